"""Prepares corpora: from raw text to training data for fairseq-train, with one folder per stage."""
