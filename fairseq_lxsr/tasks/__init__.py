"""Loads the fairseq tasks of this package; see `families`."""
