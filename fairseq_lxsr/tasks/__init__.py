"""Package whose import registers tasks, models and criterions in fairseq; see `families`."""
