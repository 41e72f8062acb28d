"""Rescores the nearest candidates of queries by their word piece vectors.

The score is described in `vectors.pieces`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings.contract import Encoder
from fairseq_lxsr.embeddings.systems import ModelFolder
from fairseq_lxsr.embeddings.truncated import TruncatedEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import NON_NEGATIVE, at_least
from fairseq_lxsr.search.options import MAX_SIM_WEIGHT, RerankOption, score_name
from fairseq_lxsr.vectors import Pieces, piece_scores
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, best_first

# Number of queries to process at a time when candidates are split into pieces.
QUERY_BLOCK = 1024

# A function that returns the texts of candidates, given their ids [n].
Read = Callable[[IntArray], Sequence[str]]


def piece_encoder(encoder: Any, feature: str) -> Any:
    """Return the `SentenceEncoder` of an encoder, after checking that it has a table of pieces.

    Args:
        encoder: an encoder from `embeddings.load`; only model folders have a table of pieces.
        feature: feature that requires the table, for the message.

    Returns:
        The `SentenceEncoder`.

    Raises:
        InputError: if the model has no word piece vectors.
    """
    if isinstance(encoder, TruncatedEncoder):
        encoder = encoder.encoder
    if not isinstance(encoder, ModelFolder):
        raise InputError(
            f"{feature}: the model has no word piece vectors; use a model folder created by "
            "`lxsr export folder`"
        )
    # Reject a model without a piece table before any search.
    encoder.encoder.check_table()
    return encoder.encoder


class Reranker:
    """Scores candidates by cosine similarity and ordered MaxSim.

        reranker = Reranker(ModelFolder(encoder), depth=10)
        read = lambda rows: [lines[row] for row in rows]
        scores, ids = reranker.best(queries, read, cosines, ids)

    The score is (cosine + weight * MaxSim) / (1 + weight), from -1 to 1.

    Args:
        encoder: a model folder without layers or with gated layers; see `SentenceEncoder.table`.
        depth: number of nearest candidates per query that callers rescore.
        weight: weight of ordered MaxSim, 0 or more; the cosine has weight 1.

    Raises:
        InputError: if the model has no word piece vectors, or a value is out of range.
    """

    def __init__(self, encoder: Encoder, depth: int, weight: float = MAX_SIM_WEIGHT):
        at_least(1).check("rerank", depth)
        NON_NEGATIVE.check("weight", weight)
        self.depth = depth
        self.weight = weight
        self._encoder = piece_encoder(encoder, "rerank")

    @property
    def model(self) -> str:
        """Fingerprint of the model whose pieces are compared."""
        return self._encoder.fingerprint

    @property
    def name(self) -> str:
        """Name of the score, for signatures; see `score_name`."""
        return score_name(self.depth, self.weight)

    def check_depth(self, k: int) -> None:
        """Check that at least as many candidates are scored as are returned.

        Otherwise scores and cosines would be mixed in the ranking.

        Args:
            k: number of sentences to return.
        """
        if self.depth < k:
            raise InputError(
                f"--rerank {self.depth} is too small; expected at least {k}, the number of "
                "sentences to return"
            )

    def scores(
        self, queries: Sequence[str], read: Read, cosines: FloatArray, ids: IntArray
    ) -> FloatArray:
        """Rescore candidates.

        Memory does not grow with the number of queries, except for the arguments and the result.

        Args:
            queries: N sentences.
            read: returns the texts of candidates, given their ids.
            cosines: cosines of the candidates [N, k].
            ids: candidate ids [N, k]; a missing candidate (-1) keeps its cosine.

        Returns:
            Scores, float32 [N, k].

        Raises:
            InputError: for a sentence without word pieces.
        """
        scores = np.array(cosines, dtype=np.float32)
        for start in range(0, len(queries), QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            is_candidate = ids[block] >= 0
            rows = np.unique(ids[block][is_candidate])
            if not len(rows):
                # An approximate index may find no candidates.
                continue
            candidates = read(rows)
            table, pieces = self._pieces([*candidates, *queries[block]])
            candidate_pieces = pieces.part(0, len(candidates))
            query_pieces = pieces.part(len(candidates), len(pieces.lengths))
            # A missing candidate (-1) gets position 0, and its score is not used.
            positions = np.searchsorted(rows, ids[block])
            max_sims = piece_scores(table, query_pieces, candidate_pieces, positions)
            combined = (scores[block] + self.weight * max_sims) / (1 + self.weight)
            scores[block] = np.where(is_candidate, combined, scores[block])
        return scores

    def best(
        self, queries: Sequence[str], read: Read, cosines: FloatArray, ids: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Rescore candidates, and sort them by descending score.

        Args:
            queries: N sentences.
            read: returns the texts of candidates, given their ids.
            cosines: cosines of the candidates [N, k].
            ids: candidate ids [N, k]; a missing candidate (-1) keeps its cosine.

        Returns:
            Scores, float32 [N, k], and candidate ids [N, k].
        """
        return best_first(self.scores(queries, read, cosines, ids), ids)

    def _pieces(self, sentences: Sequence[str]) -> tuple[FloatArray, Pieces]:
        """Return a table of piece vectors, and the pieces of the sentences as its row indices."""
        ids, lengths = self._encoder.split(sentences)
        if not lengths.all():
            sentence = sentences[int(lengths.argmin())]
            raise InputError(f"rerank: {sentence!r:.60} has no word pieces; remove the sentence")
        table, places = self._encoder.table_rows(ids)
        return table, Pieces(places, lengths)


def find_reranker(encoder: Encoder, options: RerankOption) -> Reranker | None:
    """Return the requested reranker, or None without --rerank.

    Args:
        encoder: encoder of the sentences.
        options: the value of --rerank.

    Returns:
        The reranker, or None.
    """
    return Reranker(encoder, options.rerank) if options.rerank else None
