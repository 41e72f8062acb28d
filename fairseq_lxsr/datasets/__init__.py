"""fairseq datasets of sentence pairs, and the numpy functions they are made of."""
