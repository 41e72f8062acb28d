"""Corpus preparation: from raw text to the data of fairseq-train, one folder per stage."""
