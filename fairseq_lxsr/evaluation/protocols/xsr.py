"""XSR: cross-lingual sentence retrieval, P@1, P@5, P@10 both ways (Sabet et al. 2019; Mao et al.
2021, section 4.4).

The papers leave open whether the nearest neighbour or the largest margin is taken: Mao et al.
calculate P@1 as Artetxe and Schwenk (2019a), who introduce the margin. Report both, `nn` and
`margin`, which one run measures.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.protocols.protocol import AlignedText, Plan, Protocol, comma_separated
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import TextReranker, directions, precision_outcomes, rank
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.options import RANKING_METRICS, at_least, option
from fairseq_lxsr.search.options import RerankOption
from fairseq_lxsr.search.reranker import find_reranker
from fairseq_lxsr.vectors.rows import FloatArray

RANKS = (1, 5, 10)
XSR_CANDIDATES = 200_000
XSR_QUERIES = 2_000
_WORD = re.compile(r"[^\W_]")


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
    pairs: Iterable[tuple[str, str]],
    seed: int = 1,
    languages: tuple[str, str] = ("", ""),
    files=("", ""),
) -> RetrievalSet:
    """Select the protocol's text: lower-case, drop pairs with an empty or duplicate side, shuffle,
    cut to 200,000.
    """
    kept: list[tuple[str, str, int]] = []
    row, empty = -1, 0
    seen: tuple[set[str], set[str]] = (set(), set())
    for row, (source, target) in enumerate(pairs):
        pair = (source.strip().lower(), target.strip().lower())
        if not all(map(_WORD.search, pair)):  # a side without letter or digit
            empty += 1
            continue
        if pair[0] in seen[0] or pair[1] in seen[1]:
            continue
        seen[0].add(pair[0])
        seen[1].add(pair[1])
        kept.append((*pair, row))
    if len(kept) < max(RANKS):
        raise InputError(
            f"{len(kept)} usable sentence pairs; expected at least {max(RANKS)}: give more aligned text"
        )
    repeated = row + 1 - empty - len(kept)
    random.Random(seed).shuffle(kept)
    left, right, rows = zip(*kept[:XSR_CANDIDATES], strict=True)
    sides = [
        Text(lines, language, file, np.array(rows), total=row + 1)
        for lines, language, file in zip((left, right), languages, files, strict=True)
    ]
    return RetrievalSet(sides[0], sides[1], min(XSR_QUERIES, len(rows)), seed, empty, repeated)


def precision_at(
    queries: FloatArray,
    candidates: FloatArray,
    metric: str = "nn",
    seed: int = 1,
    again: TextReranker | None = None,
) -> dict[str, Outcomes]:
    """Compute P@1, P@5 and P@10 of queries [Q, D] among candidates [M, D]; candidate i is the
    translation of query i.

    Equal candidates are ranked in random order, so that the position of the translation gives no
    advantage. `again` ranks in place of the metric, see `texts.rank`.
    """
    order = np.random.default_rng(seed).permutation(len(candidates))
    if again:
        found = again.rank(queries, candidates[order], order, max(RANKS))
    else:
        found = order[rank(queries, candidates[order], max(RANKS), metric)]
    return precision_outcomes(RANKS, found, np.arange(len(queries)))


@dataclass(frozen=True, kw_only=True)
class SentenceRetrieval(RerankOption, AlignedText, Protocol):
    """P@1, P@5 and P@10 of both directions by each metric."""

    metric: tuple[str, ...] | None = option(
        f"of {', '.join(RANKING_METRICS)}, with commas between them (default: all; with --rerank nn, the only one)",
        None,
        type=comma_separated(f"some of {', '.join(RANKING_METRICS)}", RANKING_METRICS),
        metavar="NAMES",
    )
    seed: int = option("of the shuffle that picks queries and candidates", 1, at_least(0))

    def prepare(self) -> Plan:
        files = self.files()

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for first, second, source, target in files:
                texts = select(
                    read_parallel(source, target), self.seed, (first, second), (source, target)
                )
                if texts.empty or texts.repeated:
                    say(
                        f"{source}, {target}: of {texts.source.total:,} pairs, {texts.empty:,} with an empty side and "
                        f"{texts.repeated:,} with a sentence of an earlier pair are left out"
                    )
                yield self.signed(self.scores(texts, encoder))

        return Plan(measure, [path for pair in files for path in pair[2:]])

    def scores(self, texts: RetrievalSet, encoder: Encoder) -> list[Score]:
        """Measure both directions of one pair."""
        metrics = self.metric or (("nn",) if self.rerank else tuple(RANKING_METRICS))
        reranker = find_reranker(encoder, self)
        if reranker and list(metrics) != ["nn"]:
            raise InputError(
                f"rerank with the metric {', '.join(metrics)}; expected nn, which is averaged with MaxSim"
            )
        sides = [(text.lines, embed(encoder, text)) for text in (texts.source, texts.target)]
        tasks = directions(texts.source, texts.target)
        sizes = {"queries": texts.queries, "candidates": len(texts.target), "seed": texts.seed}
        measured = sizes | text_and_model(
            encoder.fingerprint, texts.source.lines, texts.target.lines
        )
        scores = []
        for metric in metrics:
            name = reranker.name if reranker else RANKING_METRICS[metric]
            settings = {"metric": name, "norm": "l2", "case": "lower", **measured}
            for task, (lines, queries), (others, candidates) in zip(
                tasks, sides, sides[::-1], strict=True
            ):
                again = TextReranker(reranker, lines[: texts.queries], others) if reranker else None
                hits = precision_at(queries[: texts.queries], candidates, metric, texts.seed, again)
                scores.append(from_hits("xsr", task, hits, settings))
        return scores
