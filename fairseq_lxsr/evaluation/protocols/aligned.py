"""Protocols on aligned files: sentences of two languages, line by line."""

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fairseq_lxsr.evaluation.protocols.options import (
    aligned_files,
    aligned_options,
    rerank_option,
    reranker,
    search_options,
    search_settings,
    signed,
)
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.evaluation.score import Score


class AlignedProtocol(Protocol):
    """What is measured on each pair of aligned files; sub-classes define `scores`."""

    both_directions = True  # whether `scores` measures both, so that a pair need not be given in both

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        search_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation.text import read_aligned

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
        from fairseq_lxsr.evaluation import similarity_search

        again = reranker(encoder, args) if self.reranks else None
        return similarity_search.evaluate(self.name, source, target, encoder, again, **search_settings(args))
