"""fairseq optimizers; see `fused_adamw`."""
