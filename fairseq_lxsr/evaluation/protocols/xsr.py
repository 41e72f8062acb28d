"""Sentence retrieval: the nearest neighbour of a sentence among many is its translation."""

import argparse
from collections.abc import Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import METRICS
from fairseq_lxsr.errors import say
from fairseq_lxsr.evaluation.protocols.options import (
    aligned_files,
    aligned_options,
    comma_separated,
    rerank_option,
    reranker,
    search_options,
    search_settings,
    signed,
)
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol
from fairseq_lxsr.lines import read_parallel
from fairseq_lxsr.ranges import at_least

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


class SentenceRetrieval(Protocol):
    """`evaluation.xsr` on aligned files."""

    name, help = "xsr", "sentence retrieval, P@1, P@5, P@10 both ways"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        search_options(parser)
        rerank_option(parser)
        parser.add_argument(
            "--metric",
            type=comma_separated(METRICS),
            metavar="NAMES",
            help=f"of {', '.join(METRICS)}, with commas between them (default: all; with --rerank nn, the only one)",
        )
        parser.add_argument(
            "--seed",
            type=at_least(0),
            default=1,
            metavar="N",
            help="of the shuffle that picks queries and candidates (default: 1)",
        )

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation import xsr

        files = aligned_files(args)
        metrics = args.metric or (["nn"] if args.rerank else list(METRICS))

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            def of_pair(first: str, second: str, source: str, target: str) -> "list[Score]":
                texts = xsr.select(read_parallel(source, target), args.seed, (first, second), (source, target))
                if texts.empty or texts.repeated:
                    say(
                        f"{source}, {target}: of {texts.source.total:,} pairs, {texts.empty:,} with an empty side and "
                        f"{texts.repeated:,} with a sentence that stood before are left out"
                    )
                again = reranker(encoder, args)
                return signed(xsr.evaluate(texts, encoder, metrics, again, **search_settings(args)), args)

            return starmap(of_pair, files)

        return Plan(measure, list(chain.from_iterable(pair[2:] for pair in files)))


PROTOCOL = SentenceRetrieval()
