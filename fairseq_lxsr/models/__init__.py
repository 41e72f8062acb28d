"""fairseq models; see `lxsr`."""
