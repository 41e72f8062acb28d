"""Resumable search and mining over text files, built from encoders and `retrieval`."""

from fairseq_lxsr.search.bitext import Mining, Side, mine_files
from fairseq_lxsr.search.corpus_index import CorpusIndex, Hit
from fairseq_lxsr.search.scoring import PairEncoder, score_pairs, score_pairs_among_themselves
from fairseq_lxsr.search.sharded_index import ShardedIndex, open_index

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
