"""Resumable search and mining over text files, built from encoders and `retrieval`."""

from fairseq_lxsr.search.bitext import Mining, Side, mine_files
from fairseq_lxsr.search.corpus_index import CorpusIndex, Hit

__all__ = ["CorpusIndex", "Hit", "Mining", "Side", "mine_files"]
