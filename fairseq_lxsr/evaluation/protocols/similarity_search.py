"""Protocols on aligned files: sentences of two languages, line by line."""

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fairseq_lxsr.evaluation.protocols.protocol import (
    Plan,
    Protocol,
    aligned_files,
    aligned_options,
    rerank_option,
    reranker,
    search_options,
    search_settings,
    signed,
)

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.evaluation.score import Score
import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_hash
from fairseq_lxsr.evaluation.texts import Again, check_aligned, check_pair, directions, identities
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import margin_neighbours, nearest_neighbours
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


class AlignedProtocol(Protocol):
    """What is measured on each pair of aligned files; sub-classes define `scores`."""

    both_directions = True  # whether `scores` measures both, so that a pair need not be given in both

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        search_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation.texts import read_aligned

        files = aligned_files(args, self.both_directions)

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            for first, second, source, target in files:
                texts = read_aligned((source, target), (first, second))
                yield signed(self.scores(*texts, encoder, args), args)

        return Plan(measure, list(chain.from_iterable(pair[2:] for pair in files)))

    def scores(self, source: "Text", target: "Text", encoder: "Encoder", args: argparse.Namespace) -> "list[Score]":
        """Measure one pair of aligned texts."""
        raise NotImplementedError


class SimilaritySearch(AlignedProtocol):
    """`evaluation.similarity_search`, which two protocols share."""

    reranks = False  # whether the nearest may be scored again; MaxSim is averaged with a cosine, not with a margin

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        if self.reranks:
            rerank_option(parser)

    def scores(self, source: "Text", target: "Text", encoder: "Encoder", args: argparse.Namespace) -> "list[Score]":
        from fairseq_lxsr.evaluation.protocols import similarity_search

        again = reranker(encoder, args) if self.reranks else None
        return similarity_search.evaluate(self.name, source, target, encoder, again, **search_settings(args))


METRICS = {"tatoeba": "nn-cosine", "xsim": "margin-ratio-k4-of-4"}
NEIGHBOURS = 4


def error_rate(
    source: FloatArray,
    target: FloatArray,
    protocol: str,
    same: IntArray | None = None,
    again: Again | None = None,
    **search,
) -> Outcomes:
    """Compute the share of source sentences whose first neighbour is neither their translation nor identical to it.

    Args:
        source: source embeddings [N, D].
        target: target embeddings [N, D], aligned with the source.
        protocol: `tatoeba` or `xsim`.
        same: `ranking.identities` of the target [N].
        again: ranks in place of the protocol.
    """
    check_pair(source, target)
    if len(source) != len(target):
        raise InputError(f"{len(source)} and {len(target)} embeddings; expected aligned sentences")
    if again:
        found = again.rank(source, target, np.arange(len(target)), 1, **search)
    elif protocol == "tatoeba":
        _, found = nearest_neighbours(source, target, 1, **search)
    else:
        if len(source) < NEIGHBOURS:
            raise InputError(f"{len(source)} sentence pairs; xsim expects at least {NEIGHBOURS}: add text")
        _, found = margin_neighbours(source, target, NEIGHBOURS, **search)
    same = np.arange(len(target)) if same is None else same
    return Outcomes(as_units(same[found[:, 0]] != same))


def evaluate(
    protocol: str, source: Text, target: Text, encoder: Encoder, reranker: Reranker | None = None, **search
) -> list[Score]:
    """Measure both directions of a pair; a reranker scores the nearest by cosine again."""
    check_aligned(source, target)
    embeddings = embed(encoder, source), embed(encoder, target)
    settings = {
        "metric": reranker.name if reranker else METRICS[protocol],
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
        "pairs": len(source),
        "text": text_hash(source.lines, target.lines),
        "model": encoder.fingerprint,
    }
    forth, back = (
        Again(reranker, *lines) if reranker else None
        for lines in ((source.lines, target.lines), (target.lines, source.lines))
    )
    forward = error_rate(*embeddings, protocol, identities(target.lines), forth, **search)
    backward = error_rate(*embeddings[::-1], protocol, identities(source.lines), back, **search)
    tasks = directions(source, target)
    return [
        from_hits(protocol, task, {"error": errors}, settings)
        for task, errors in zip(tasks, (forward, backward), strict=True)
    ]


class Tatoeba(SimilaritySearch):
    """See `evaluation.similarity_search`."""

    name, help = "tatoeba", "similarity search by cosine, error rate both ways"
    reranks = True


TATOEBA = Tatoeba()


class Xsim(SimilaritySearch):
    """See `evaluation.similarity_search`."""

    name, help = "xsim", "similarity search by margin, error rate both ways"


XSIM = Xsim()

PROTOCOLS = (TATOEBA, XSIM)
