"""Corpus preparation: from raw text to training data for fairseq-train, one folder per stage."""
