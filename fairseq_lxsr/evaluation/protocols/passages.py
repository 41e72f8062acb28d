"""Passage retrieval: does a question find its paragraph? Scores: MRR@10, R@1, R@10 and nDCG@10.

The metrics are computed as in BEIR (Thakur et al. 2021). BM25 is the usual baseline within one
language.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, embed
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.named_sets import datasets, find_file
from fairseq_lxsr.evaluation.passage_sets import (
    PassageSet,
    beir_files,
    read_codes,
    read_passage_set,
    read_xquad,
)
from fairseq_lxsr.evaluation.pools import Pool, make_pool
from fairseq_lxsr.evaluation.protocols.protocol import (
    Plan,
    Protocol,
    comma_separated,
    parse_lang_pairs,
    with_dataset,
)
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import rank
from fairseq_lxsr.files.lines import is_blank
from fairseq_lxsr.options import (
    FILE_NAME,
    ON_LONG,
    PASSAGE_METRICS,
    POOLS,
    at_least,
    option,
)
from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.lexical import LexicalIndex, Postings
from fairseq_lxsr.search.passages import PassageRanker
from fairseq_lxsr.vectors.rows import IntArray

# Number of passages to retrieve and score.
DEPTH = 10
# Random seed for ordering passages with equal scores.
SEED = 1


def ranking_outcomes(
    retrieved: IntArray, relevant: Sequence[Mapping[int, float]]
) -> dict[str, Outcomes]:
    """Compute MRR@10, R@1, R@10 and nDCG@10, each averaged over the queries.

        ranking_outcomes(np.array([[3, 0]]), [{0: 1.0}])["MRR@10"].value  # 50.0

    R@k is the fraction of a query's relevant passages that are retrieved. In nDCG, the gain of a
    passage is its grade, discounted by the logarithm of its rank, as in trec_eval.

    Args:
        retrieved: row indices of passages, best first [Q, K]; -1 marks a missing passage. The first
            10 are scored.
        relevant: for each query, maps row indices of relevant passages to their grades [Q].

    Returns:
        Outcomes by name, each [Q].
    """
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    values: dict[str, list[float]] = {"MRR@10": [], "R@1": [], "R@10": [], "nDCG@10": []}
    for rows, grades in zip(retrieved[:, :DEPTH].tolist(), relevant, strict=True):
        gains = np.zeros(DEPTH)
        gains[: len(rows)] = [grades.get(row, 0.0) for row in rows]
        ideal = np.zeros(DEPTH)
        best_grades = sorted(grades.values(), reverse=True)[:DEPTH]
        ideal[: len(best_grades)] = best_grades
        is_hit = gains > 0
        first_hit = int(is_hit.argmax()) + 1
        values["MRR@10"].append(is_hit.any() / first_hit)
        values["R@1"].append(is_hit[0] / len(grades))
        values["R@10"].append(is_hit.sum() / len(grades))
        values["nDCG@10"].append(float(gains @ discounts) / float(ideal @ discounts))
    return {name: Outcomes(as_units(np.array(units, float))) for name, units in values.items()}


def retrieve(test: PassageSet, encoder: Encoder, metric: str) -> IntArray:
    """Rank the passages for each query.

    Passages with equal scores are ranked in random order, so that a relevant passage does not gain
    an advantage from its position.

    Args:
        test: queries and passages.
        encoder: encodes queries and passages.
        metric: `nn` (cosine similarity), `passages` (the ranking of an index; see
            `search.retrieval`), or `bm25` (BM25 only; the encoder is not used).

    Returns:
        Row indices of the best passages [Q, at most 10]; -1 marks a missing passage. Empty passages
        and passages that the test set excludes are left out.
    """
    depth = DEPTH + bool(test.excluded)
    rows = _nearest(test, encoder, metric, min(depth, len(test.passages)))
    for query, passage in test.excluded.items():
        # Move the excluded passage to the end.
        order = np.argsort(rows[query] == passage, kind="stable")
        rows[query] = np.where(rows[query] == passage, -1, rows[query])[order]
    return rows[:, :DEPTH]


def _nearest(test: PassageSet, encoder: Encoder, metric: str, depth: int) -> IntArray:
    """Return the row indices of the best passages [Q, depth]; see `retrieve`."""
    if metric == "passages":
        return _search_index(test, encoder, depth)
    order = np.random.default_rng(SEED).permutation(len(test.passages))
    if metric == "bm25":
        shuffled = [test.passages[row] for row in order.tolist()]
        index = LexicalIndex([Postings.build(shuffled)])
        rows = np.full((len(test.queries), depth), -1)
        for number, query in enumerate(test.queries.lines):
            documents = index.nearest(query, depth).documents
            rows[number, : len(documents)] = order[documents]
        return rows
    queries = embed(encoder, test.queries)
    passages = embed(encoder, test.passages, zeros=True)
    is_empty = np.array([is_blank(text) for text in test.passages])
    has_text = passages.any(axis=1) & ~is_empty
    if not has_text.any():
        raise InputError(f"{test.passages.file}: no passage has a known word; expected text")
    num_skipped = len(has_text) - int(has_text.sum())
    if num_skipped:
        say(f"passages without a known word, which no query can find: {num_skipped:,}")
    order = order[has_text[order]]
    rows = np.full((len(queries), depth), -1)
    count = min(depth, len(order))
    rows[:, :count] = order[rank(queries, passages[order], count, "nn")]
    return rows


def _search_index(test: PassageSet, encoder: Encoder, depth: int) -> IntArray:
    """Build an index, as `lxsr index` does, and search it.

    Returns:
        Row indices of the best passages [Q, depth]; -1 marks a missing passage.
    """
    ranker = PassageRanker(encoder)
    with TemporaryDirectory() as folder:
        index = CorpusIndex.build(Path(folder) / "index", test.passages.lines, encoder)
        all_hits = index.search(test.queries, encoder, depth, ranker=ranker)
    rows = np.full((len(test.queries), depth), -1)
    for number, hits in enumerate(all_hits):
        rows[number, : len(hits)] = [hit.line for hit in hits]
    return rows


@dataclass(frozen=True, kw_only=True)
class Passages(Protocol):
    """MRR@10, R@1, R@10 and nDCG@10 of the passages retrieved for each query."""

    queries: str | None = option(
        "queries: id<TAB>text, or BEIR's queries.jsonl; {lang} in the name stands for the language",
        None,
        FILE_NAME,
        metavar="FILE",
    )
    passages: str | None = option(
        "passages: id<TAB>text, or BEIR's corpus.jsonl; {lang} in the name stands for the language",
        None,
        FILE_NAME,
        metavar="FILE",
    )
    relevant: str | None = option(
        "relevant pairs: query id<TAB>passage id, optionally with a grade, or BEIR's "
        "qrels/test.tsv; queries without a relevant passage are skipped",
        None,
        FILE_NAME,
        metavar="FILE",
    )
    data: str | None = option(
        "BEIR folder, instead of --queries, --passages and --relevant; with --dataset, folder of "
        "the test set",
        None,
        FILE_NAME,
        metavar="FOLDER",
    )
    dataset: str | None = option(
        "name of a public test set, whose files and languages are known",
        None,
        tuple(datasets("passages")),
    )
    lang_pairs: str | None = option(
        "languages of queries and passages, for example en-de; with --dataset or {lang} also "
        "several: en-en,en-de",
        None,
        metavar="PAIRS",
    )
    pool: str | None = option(
        "one collection of all languages of --lang-pairs, with each query in a random one of them: "
        "each passage in a random language (one), or in all languages, where any copy counts (all)",
        None,
        POOLS,
    )
    seed: int = option("random seed of --pool (default: 1)", 1, at_least(0))
    codes: bool = option(
        "instead of --queries and --relevant: each word with a digit that only one passage has is "
        "a query, and this passage is relevant",
        False,
    )
    distractors: str | None = option(
        "additional passages that are not relevant to any query, one per line",
        None,
        FILE_NAME,
        metavar="FILE",
    )
    metric: tuple[str, ...] = option(
        f"metrics from {', '.join(PASSAGE_METRICS)}, separated by commas: nn: the nearest "
        "vectors; passages: the ranking of an index (`lxsr index`); bm25: lexical search "
        "(default: nn)",
        ("nn",),
        type=comma_separated(f"names from {', '.join(PASSAGE_METRICS)}", tuple(PASSAGE_METRICS)),
        metavar="NAMES",
    )
    on_long: str = option(
        "how to embed texts that are too long for the model: split-mean (mean over the parts), "
        "cut or error; the signature includes the number of such texts (default: split-mean)",
        "split-mean",
        ON_LONG,
    )

    def prepare(self) -> Plan:
        pairs = [("", "")]
        if self.lang_pairs:
            pairs = parse_lang_pairs(self.lang_pairs, both_directions=False)
        self._check_files()
        files = {pair: self._files(pair, pairs) for pair in pairs}
        paths: list[str | Path] = []
        for names in files.values():
            paths += names
        if self.distractors:
            paths.append(self.distractors)

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for test in self._tests(files):
                if self.distractors:
                    test = test.with_distractors(self.distractors)
                # Long texts are counted for each list of scores. The metrics are in separate
                # lists, because BM25 does not encode any text.
                for metric in self.metric:
                    yield with_dataset(self.scores(test, encoder, metric), self.dataset)

        return Plan(measure, paths)

    def _check_files(self) -> None:
        """Raise `InputError` for options of files that are missing or contradict each other."""
        names = (self.queries, self.passages, self.relevant)
        if self.pool and not self.lang_pairs:
            raise InputError(f"--pool {self.pool} requires --lang-pairs, for example en-en,de-de")
        if self.codes:
            alternatives = (self.queries, self.relevant, self.data, self.dataset, self.pool)
            if not self.passages or self.distractors or any(alternatives):
                raise InputError(
                    "--codes requires --passages, and cannot be combined with --queries, "
                    "--relevant, --data, --dataset, --pool and --distractors"
                )
        elif self.dataset:
            if not (self.data and self.lang_pairs) or any(names):
                raise InputError(
                    f"--dataset {self.dataset} requires --data FOLDER and --lang-pairs, and cannot "
                    "be combined with --queries, --passages and --relevant"
                )
        elif any(names) if self.data else not all(names):
            raise InputError(
                "specify either --queries, --passages and --relevant, or --data FOLDER"
            )

    def _files(
        self, pair: tuple[str, str], pairs: Sequence[tuple[str, str]]
    ) -> Sequence[str | Path]:
        """Find the files of a language pair.

        Returns:
            The questions and paragraphs of XQuAD, the passages with codes, or `PassageFiles`.
        """
        if self.codes:
            return [_file_of(str(self.passages), pair[1], pairs, 1)]
        if self.dataset:
            test_set = datasets("passages")[self.dataset]
            return [test_set.path(str(self.data), language) for language in pair]
        queries, passages, relevant = self.queries, self.passages, self.relevant
        if self.data:
            queries, passages, relevant = map(str, beir_files(self.data))
        return [
            _file_of(str(queries), pair[0], pairs, 0),
            _file_of(str(passages), pair[1], pairs, 1),
            str(relevant),
        ]

    def _tests(self, files: Mapping[tuple[str, str], Sequence[str | Path]]) -> Iterator[PassageSet]:
        """Read the test set of each language pair; with --pool, make one of them all."""
        tests = (self._read(pair, names) for pair, names in files.items())
        if self.pool:
            yield make_pool(list(tests), self.pool, self.seed)
        else:
            yield from tests

    def _read(self, pair: tuple[str, str], files: Sequence[str | Path]) -> PassageSet:
        if self.codes:
            return read_codes(files[0], pair)
        if self.dataset:
            return read_xquad(files[0], files[1], pair)
        return read_passage_set((files[0], files[1], files[2]), pair)

    def scores(self, test: PassageSet, encoder: Encoder, metric: str) -> list[Score]:
        """Score an encoder on one test set with one metric.

        Args:
            test: queries, passages and relevant pairs.
            encoder: encoder to score.
            metric: one of `PASSAGE_METRICS`.

        Returns:
            One score; for a pool `one`, one for each of its parts.
        """
        retrieved = retrieve(test, encoder, metric)
        if not isinstance(test, Pool):
            outcomes = ranking_outcomes(retrieved, test.relevant)
            return [self._score(test, encoder, metric, outcomes)]
        if test.kind == "all":
            outcomes = ranking_outcomes(test.first_copies(retrieved), test.relevant)
            outcomes["same-language@1"] = Outcomes(test.has_same_language(retrieved))
            return [self._score(test, encoder, metric, outcomes)]
        scores = []
        for part, rows in test.parts():
            outcomes = ranking_outcomes(retrieved[rows], part.relevant)
            scores.append(self._score(part, encoder, metric, outcomes))
        return scores

    def _score(
        self, test: PassageSet, encoder: Encoder, metric: str, outcomes: dict[str, Outcomes]
    ) -> Score:
        model = encoder.fingerprint
        if metric == "bm25":
            model = metric
        settings: dict[str, Any] = {"metric": PASSAGE_METRICS[metric]}
        if self.codes:
            settings["made"] = "codes"
        settings |= test.settings
        settings |= text_and_model(model, test.queries.lines, test.passages.lines, test.pairs)
        return from_hits("passages", test.task, outcomes, settings)


def _file_of(name: str, language: str, pairs: Sequence[tuple[str, str]], side: int) -> str | Path:
    """Return the file of a language.

    Args:
        name: name of a file, in which {lang} stands for the language.
        language: language of the file.
        pairs: all language pairs.
        side: 0 for a file of queries, 1 for passages.

    Raises:
        InputError: if a name without {lang} stands for files of several languages, there is no
            language for {lang}, or no such file.
    """
    languages = {pair[side] for pair in pairs}
    if "{lang}" not in name:
        if len(languages) > 1:
            raise InputError(
                f"{name}: one file for {len(languages)} languages of --lang-pairs; write {{lang}} "
                "in place of the language in its name, or specify one language"
            )
        return name
    if not language:
        raise InputError(f"{name}: no language for {{lang}}; specify --lang-pairs")
    return find_file(name, language)
