"""Search in embedding space, on arrays: neighbours, indexes, margins and mining."""

from fairseq_lxsr.vectors.index import build_index, read_index, search_index, write_index
from fairseq_lxsr.vectors.margin import (
    csls_neighbours,
    margin_neighbours,
    margin_scores,
    neighbourhood,
)
from fairseq_lxsr.vectors.mining import (
    MinedPairs,
    csls_best,
    csls_pairs,
    mine,
    mine_neighbours,
    mine_within,
    one_to_one,
)
from fairseq_lxsr.vectors.neighbours import merge_neighbours, nearest_neighbours
from fairseq_lxsr.vectors.pieces import Pieces, piece_scores
from fairseq_lxsr.vectors.rows import check_directions, normalise_rows

__all__ = [
    "MinedPairs",
    "Pieces",
    "build_index",
    "check_directions",
    "csls_best",
    "csls_neighbours",
    "csls_pairs",
    "margin_neighbours",
    "margin_scores",
    "merge_neighbours",
    "mine",
    "mine_neighbours",
    "mine_within",
    "nearest_neighbours",
    "neighbourhood",
    "normalise_rows",
    "one_to_one",
    "piece_scores",
    "read_index",
    "search_index",
    "write_index",
]
