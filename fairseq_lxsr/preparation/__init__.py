"""Corpus preparation: from raw text to the data of fairseq-train, in stages with one folder each."""
