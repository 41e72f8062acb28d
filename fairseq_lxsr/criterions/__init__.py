"""fairseq criterions; see `xling_sent_loss`."""
