"""Resumable search and mining over text files, built from encoders and `retrieval`."""

from fairseq_lxsr.search.bitext import Mining, Side, mine_files
from fairseq_lxsr.search.corpus import CorpusIndex, Hit, ShardedIndex, open_index
from fairseq_lxsr.search.pairs import PairEncoder, score_pairs, score_pairs_among_themselves

__all__ = [
    "CorpusIndex",
    "Hit",
    "Mining",
    "PairEncoder",
    "ShardedIndex",
    "Side",
    "mine_files",
    "open_index",
    "score_pairs",
    "score_pairs_among_themselves",
]
