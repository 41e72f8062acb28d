"""Scores the nearest again by their pieces, from text: see `vectors.pieces`."""

from collections.abc import Callable, Sequence

import numpy as np

from fairseq_lxsr.embeddings.contract import Encoder
from fairseq_lxsr.embeddings.systems import ModelFolder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import NON_NEGATIVE, at_least
from fairseq_lxsr.search.options import MAX_SIM_WEIGHT, RerankOption, score_name
from fairseq_lxsr.vectors import Pieces, piece_scores
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, best_first

QUERY_BLOCK = 1024  # whose candidates are read and split into pieces at a time

Read = Callable[[IntArray], Sequence[str]]  # texts of some candidates [n], by number


class Reranker:
    """Scores candidates by cosine and ordered MaxSim: (cosine + weight * MaxSim) / (1 + weight),
    from -1 to 1.

        reranker = Reranker(ModelFolder(encoder), depth=10)
        scores, ids = reranker.best(queries, lambda rows: [lines[row] for row in rows], cosines, ids)

    Args:
        encoder: a model folder without layers or with gated ones, see `SentenceEncoder.table`.
        depth: number of nearest candidates of a query that callers score again.
        weight: weight of ordered MaxSim beside the cosine, 0 or more.
    """

    def __init__(self, encoder: Encoder, depth: int, weight: float = MAX_SIM_WEIGHT):
        at_least(1).check("rerank", depth)
        NON_NEGATIVE.check("weight", weight)
        if not isinstance(encoder, ModelFolder):
            raise InputError(
                "rerank: expected a model folder of `lxsr export folder`, whose pieces have vectors"
            )
        self.depth, self.weight, self._encoder = depth, weight, encoder.encoder
        # a model without one is refused before anything is searched
        self._table = self._encoder.table

    @property
    def model(self) -> str:
        """Fingerprint of the model whose pieces are compared."""
        return self._encoder.fingerprint

    @property
    def name(self) -> str:
        """What ranks, for signatures of scores, see `score_name`."""
        return score_name(self.depth, self.weight)

    def check_depth(self, least: int) -> None:
        """Refuse to score fewer candidates again than are to be found, whose scores could not be
        compared.
        """
        if self.depth < least:
            raise InputError(
                f"--rerank {self.depth}; expected {least} or more, as many as are to be found"
            )

    def scores(
        self, queries: Sequence[str], read: Read, cosines: FloatArray, ids: IntArray
    ) -> FloatArray:
        """Score candidates of N queries again, given their cosines and numbers [N, k]; -1, for
        none, keeps its cosine.

        Memory does not grow with their number, except for the arguments and the result.
        """
        scores = np.array(cosines, dtype=np.float32)
        for start in range(0, len(queries), QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            rows = np.unique(ids[block][ids[block] >= 0])
            if not len(rows):  # an approximate index may find nothing
                continue
            candidates, here = self._pieces(read(rows)), self._pieces(queries[block])
            places = np.searchsorted(rows, ids[block])  # of -1: 0, and the score is not used
            again = piece_scores(self._table, here, candidates, places)
            again = (scores[block] + self.weight * again) / (1 + self.weight)
            scores[block] = np.where(ids[block] < 0, scores[block], again)
        return scores

    def best(
        self, queries: Sequence[str], read: Read, cosines: FloatArray, ids: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Score candidates again, see `scores`; return scores and ids [N, k] in descending order of
        score.
        """
        return best_first(self.scores(queries, read, cosines, ids), ids)

    def _pieces(self, sentences: Sequence[str]) -> Pieces:
        ids, lengths = self._encoder.split(sentences)
        if not lengths.all():
            raise InputError(
                f"rerank: {sentences[int(lengths.argmin())]!r:.60} has no pieces; leave the sentence out"
            )
        return Pieces(ids, lengths)


def find_reranker(encoder: Encoder, options: RerankOption) -> Reranker | None:
    """Return what scores again as the options say, which may be nothing."""
    return Reranker(encoder, options.rerank) if options.rerank else None
