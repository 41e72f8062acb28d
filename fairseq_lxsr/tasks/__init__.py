"""fairseq tasks; see `xling_sent`."""
