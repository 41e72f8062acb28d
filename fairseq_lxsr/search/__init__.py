"""Resumable search and mining of text files, built from encoders and `vectors`."""

from typing import TYPE_CHECKING

from fairseq_lxsr.machine import lazy_getattr
from fairseq_lxsr.search.options import IndexOptions, Mining, PairScoring, SearchOptions

if TYPE_CHECKING:
    from fairseq_lxsr.search.bitext import Side, mine_files
    from fairseq_lxsr.search.corpus import CorpusIndex, Hit
    from fairseq_lxsr.search.pairs import PairEncoder, score_pairs, score_pairs_among_themselves

__all__ = [
    "CorpusIndex",
    "Hit",
    "IndexOptions",
    "Mining",
    "PairEncoder",
    "PairScoring",
    "SearchOptions",
    "Side",
    "mine_files",
    "score_pairs",
    "score_pairs_among_themselves",
]
# Maps each public name to the module that defines it. The modules import NumPy, which command-line
# parsers do not need, so they are imported on first use.
_MODULES = {
    "bitext": ("Side", "mine_files"),
    "corpus": ("CorpusIndex", "Hit"),
    "pairs": ("PairEncoder", "score_pairs", "score_pairs_among_themselves"),
}
__getattr__ = lazy_getattr(__name__, _MODULES)
