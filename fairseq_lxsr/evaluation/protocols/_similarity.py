"""Similarity search, which two protocols share."""

import argparse
from collections.abc import Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING

from fairseq_lxsr.evaluation.protocols.options import aligned_files, aligned_options, search_options, search_settings
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


class SimilaritySearch(Protocol):
    """`evaluation.similarity_search` on aligned files."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        search_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation import similarity_search
        from fairseq_lxsr.evaluation.text import read_text

        files = aligned_files(args)

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            def of_pair(first: str, second: str, source: str, target: str) -> "list[Score]":
                texts = read_text(source, first), read_text(target, second)
                return similarity_search.evaluate(self.name, *texts, encoder, **search_settings(args))

            return starmap(of_pair, files)

        return Plan(measure, list(chain.from_iterable(pair[2:] for pair in files)))
