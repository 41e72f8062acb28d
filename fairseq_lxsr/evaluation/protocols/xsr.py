"""XSR: cross-lingual sentence retrieval, P@1, P@5 and P@10 in both directions (Sabet et al. 2019).

The protocol follows Mao et al. 2021, section 4.4. The papers do not state whether candidates are
ranked by cosine similarity or by margin: Mao et al. calculate P@1 like Artetxe and Schwenk (2019a),
who introduced the margin. Report both `nn` and `margin`; one run computes both.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.protocols.protocol import (
    AlignedText,
    Plan,
    Protocol,
    comma_separated,
    with_dataset,
)
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
    """Aligned sentences of a retrieval test. The first ones on each side are the queries.

    Args:
        source: source sentences [M].
        target: target sentences [M].
        queries: number of queries on each side.
        seed: seed of the shuffle.
        empty: number of pairs dropped because a side has no letter or digit.
        repeated: number of pairs dropped because a side repeats an earlier sentence.
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
    files: tuple[str, str] = ("", ""),
    lowercase: bool = False,
) -> RetrievalSet:
    """Select the sentence pairs that the protocol evaluates.

    Pairs with an empty or repeated side are dropped, and up to 200,000 pairs are drawn. Sentences
    that differ only in case count as repeated, so that the selection does not depend on
    `lowercase`.

    Args:
        pairs: source and target sentences.
        seed: seed of the shuffle.
        languages: languages of the source and the target.
        files: names of the files, for messages and external embeddings.
        lowercase: whether to convert the sentences to lower case.

    Returns:
        The selected pairs.

    Raises:
        InputError: if fewer than 10 pairs are left.
    """
    selected: list[tuple[str, str, int]] = []
    total = 0
    empty = 0
    source_lines: set[str] = set()
    target_lines: set[str] = set()
    for row, pair in enumerate(pairs):
        total = row + 1
        source, target = (sentence.strip() for sentence in pair)
        lower_source, lower_target = source.lower(), target.lower()
        if not (_WORD.search(source) and _WORD.search(target)):
            empty += 1
            continue
        if lower_source in source_lines or lower_target in target_lines:
            continue
        source_lines.add(lower_source)
        target_lines.add(lower_target)
        if lowercase:
            source, target = lower_source, lower_target
        selected.append((source, target, row))
    if len(selected) < max(RANKS):
        raise InputError(
            f"found {len(selected)} usable sentence pairs; expected at least {max(RANKS)}: "
            "use more aligned text"
        )
    repeated = total - empty - len(selected)
    random.Random(seed).shuffle(selected)
    sources, targets, numbers = zip(*selected[:XSR_CANDIDATES], strict=True)
    rows = np.array(numbers)
    return RetrievalSet(
        Text(sources, languages[0], files[0], rows, total=total),
        Text(targets, languages[1], files[1], rows, total=total),
        min(XSR_QUERIES, len(rows)),
        seed,
        empty,
        repeated,
    )


def precision_at(
    queries: FloatArray,
    candidates: FloatArray,
    metric: str = "nn",
    seed: int = 1,
    reranker: TextReranker | None = None,
) -> dict[str, Outcomes]:
    """Compute P@1, P@5 and P@10.

    Candidates with equal scores are ranked in random order, so that the translation does not gain
    an advantage from its position.

    Args:
        queries: embeddings [Q, D].
        candidates: embeddings [M, D]; candidate i is the translation of query i.
        metric: ranking metric; see `texts.rank`.
        seed: random seed for ordering candidates with equal scores.
        reranker: if given, ranks the candidates instead of the metric.

    Returns:
        Outcomes by name: 1 for each query whose translation is among the first, otherwise 0.
    """
    order = np.random.default_rng(seed).permutation(len(candidates))
    if reranker:
        retrieved = reranker.rank(queries, candidates[order], order, max(RANKS))
    else:
        retrieved = order[rank(queries, candidates[order], max(RANKS), metric)]
    return precision_outcomes(RANKS, retrieved, np.arange(len(queries)))


@dataclass(frozen=True, kw_only=True)
class SentenceRetrieval(RerankOption, AlignedText, Protocol):
    """P@1, P@5 and P@10 in both directions for every metric."""

    metric: tuple[str, ...] | None = option(
        f"metrics from {', '.join(RANKING_METRICS)}, separated by commas (default: all; with "
        "--rerank only nn)",
        None,
        type=comma_separated(f"names from {', '.join(RANKING_METRICS)}", RANKING_METRICS),
        metavar="NAMES",
    )
    seed: int = option("seed of the shuffle that draws queries and candidates", 1, at_least(0))
    lowercase: bool = option(
        "lower-case the text, as the released code of Mao et al. 2021 does, even if the model "
        "distinguishes case",
        False,
    )

    def prepare(self) -> Plan:
        files = self.files()

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for source, target, source_file, target_file in files:
                texts = select(
                    read_parallel(source_file, target_file),
                    self.seed,
                    (source, target),
                    (source_file, target_file),
                    self.lowercase,
                )
                _report_dropped(texts)
                yield with_dataset(self.scores(texts, encoder), self.dataset)

        paths = []
        for _, _, source_file, target_file in files:
            paths += [source_file, target_file]
        return Plan(measure, paths)

    def scores(self, texts: RetrievalSet, encoder: Encoder) -> list[Score]:
        """Score an encoder in both directions of one language pair.

        Args:
            texts: the sentence pairs.
            encoder: encoder to score.

        Returns:
            A score for each direction.
        """
        default_metrics = ("nn",) if self.rerank else tuple(RANKING_METRICS)
        metrics = self.metric or default_metrics
        reranker = find_reranker(encoder, self)
        if reranker and list(metrics) != ["nn"]:
            raise InputError(
                f"--rerank does not support --metric {','.join(metrics)}; "
                "use nn, because reranking averages MaxSim with cosine similarity"
            )
        source = texts.source
        target = texts.target
        sides = [(source.lines, embed(encoder, source)), (target.lines, embed(encoder, target))]
        shared_settings = {
            "case": "lower" if self.lowercase else "mixed",
            "queries": texts.queries,
            "candidates": len(target),
            "seed": texts.seed,
            **text_and_model(encoder.fingerprint, source.lines, target.lines),
        }
        scores = []
        for metric in metrics:
            name = reranker.name if reranker else RANKING_METRICS[metric]
            settings = {"metric": name, "norm": "l2", **shared_settings}
            for task, (lines, queries), (candidate_lines, candidates) in zip(
                directions(source, target), sides, sides[::-1], strict=True
            ):
                text_reranker = None
                if reranker:
                    text_reranker = TextReranker(reranker, lines[: texts.queries], candidate_lines)
                hits = precision_at(
                    queries[: texts.queries], candidates, metric, texts.seed, text_reranker
                )
                scores.append(from_hits("xsr", task, hits, settings))
        return scores


def _report_dropped(texts: RetrievalSet) -> None:
    if texts.empty or texts.repeated:
        say(
            f"{texts.source.file}, {texts.target.file}: of {texts.source.total:,} pairs, dropped "
            f"{texts.empty:,} with an empty side and {texts.repeated:,} with a repeated sentence"
        )
