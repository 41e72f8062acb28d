"""XSR: cross-lingual sentence retrieval, P@1, P@5, P@10 both ways (Sabet et al. 2019; Mao et al. 2021, section 5.2)."""

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.protocols.protocol import (
    Plan,
    Protocol,
    aligned_files,
    aligned_options,
    comma_separated,
    rerank_option,
    reranker,
    search_options,
    search_settings,
    signed,
)
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits, text_hash
from fairseq_lxsr.evaluation.texts import Again, directions, found_at, rank
from fairseq_lxsr.files.lines import is_blank, read_parallel
from fairseq_lxsr.options import RANKING_METRICS, at_least
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors.rows import FloatArray

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


RANKS = (1, 5, 10)
MAX_CANDIDATES = 200_000
MAX_QUERIES = 2_000


@dataclass(frozen=True)
class RetrievalSet:
    """Aligned sentences; the first `queries` of each side are the queries.

    `empty` and `repeated` count the pairs that `select` dropped, by the reason.
    """

    source: Text
    target: Text
    queries: int
    seed: int
    empty: int = 0
    repeated: int = 0


def select(
    pairs: Iterable[tuple[str, str]], seed: int = 1, languages: tuple[str, str] = ("", ""), files=("", "")
) -> RetrievalSet:
    """Select the text of the protocol: lower-case, drop pairs with an empty or duplicate side, shuffle, cut to 200,000.

    Args:
        pairs: aligned sentences.
        seed: seed of the shuffle.
        languages: languages of the two sides, see `Text`.
        files (tuple[str, str]): files of the two sides, see `Text`.
    """
    kept: list[tuple[str, str, int]] = []
    row, empty = -1, 0
    seen: tuple[set[str], set[str]] = (set(), set())
    for row, (source, target) in enumerate(pairs):
        pair = (source.strip().lower(), target.strip().lower())
        if any(map(is_blank, pair)):
            empty += 1
            continue
        if pair[0] in seen[0] or pair[1] in seen[1]:
            continue
        seen[0].add(pair[0])
        seen[1].add(pair[1])
        kept.append((*pair, row))
    if len(kept) < max(RANKS):
        raise InputError(f"{len(kept)} usable sentence pairs; expected at least {max(RANKS)}: give more aligned text")
    repeated = row + 1 - empty - len(kept)
    random.Random(seed).shuffle(kept)
    left, right, rows = zip(*kept[:MAX_CANDIDATES], strict=True)
    sides = [
        Text(lines, language, file, np.array(rows), total=row + 1)
        for lines, language, file in zip((left, right), languages, files, strict=True)
    ]
    return RetrievalSet(sides[0], sides[1], min(MAX_QUERIES, len(rows)), seed, empty, repeated)


def precision_at(
    queries: FloatArray,
    candidates: FloatArray,
    metric: str = "nn",
    seed: int = 1,
    again: Again | None = None,
    **search,
) -> dict[str, Outcomes]:
    """Compute P@1, P@5 and P@10, where candidate i is the translation of query i.

    Equal candidates are ranked in random order, so that the position of the translation gives no advantage.

    Args:
        queries: embeddings of the queries [Q, D].
        candidates: embeddings of the candidates [M, D], M >= Q.
        metric: see `ranking.rank`.
        seed: seed of the random order.
        again: ranks in place of the metric.
    """
    order = np.random.default_rng(seed).permutation(len(candidates))
    if again:
        found = again.rank(queries, candidates[order], order, max(RANKS), **search)
    else:
        found = order[rank(queries, candidates[order], max(RANKS), metric, **search)]
    return found_at(RANKS, found, np.arange(len(queries)))


def evaluate(
    texts: RetrievalSet,
    encoder: Encoder,
    metrics: Sequence[str] = tuple(RANKING_METRICS),
    reranker: Reranker | None = None,
    **search,
) -> list[Score]:
    """Measure both directions of a pair by each metric.

    Args:
        texts: the text.
        encoder: any encoder.
        metrics: see `ranking.rank`.
        reranker: scores the nearest again; the metric is `nn`.
        **search (Any): options of `nearest_neighbours`.
    """
    if reranker and list(metrics) != ["nn"]:
        raise InputError(
            f"rerank with the metric {', '.join(metrics)}; expected nn, the cosine that is averaged with MaxSim"
        )
    source, target = embed(encoder, texts.source), embed(encoder, texts.target)
    scores = []
    for metric in metrics:
        settings = {
            "metric": reranker.name if reranker else RANKING_METRICS[metric],
            "norm": "l2",
            "case": "lower",
            "queries": texts.queries,
            "candidates": len(texts.target),
            "seed": texts.seed,
            "text": text_hash(texts.source.lines, texts.target.lines),
            "model": encoder.fingerprint,
        }
        sides = (texts.source.lines, source), (texts.target.lines, target)
        for task, (lines, queries), (others, candidates) in zip(
            directions(texts.source, texts.target), sides, sides[::-1], strict=True
        ):
            again = Again(reranker, lines[: texts.queries], others) if reranker else None
            hits = precision_at(queries[: texts.queries], candidates, metric, texts.seed, again, **search)
            scores.append(from_hits("xsr", task, hits, settings))
    return scores


class SentenceRetrieval(Protocol):
    """`evaluation.xsr` on aligned files."""

    name, help = "xsr", "sentence retrieval, P@1, P@5, P@10 both ways"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        search_options(parser)
        rerank_option(parser)
        parser.add_argument(
            "--metric",
            type=comma_separated(RANKING_METRICS),
            metavar="NAMES",
            help=f"of {', '.join(RANKING_METRICS)}, with commas between them (default: all; with --rerank nn, the only "
            "one)",
        )
        parser.add_argument(
            "--seed",
            type=at_least(0),
            default=1,
            metavar="N",
            help="of the shuffle that picks queries and candidates (default: 1)",
        )

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation.protocols import xsr

        files = aligned_files(args)
        metrics = args.metric or (["nn"] if args.rerank else list(RANKING_METRICS))

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


PROTOCOLS = (SentenceRetrieval(),)
