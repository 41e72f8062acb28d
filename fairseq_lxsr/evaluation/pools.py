"""Collections of several languages, made from a test set that exists in each of them.

In a pool `one`, each passage is in one language. In a pool `all`, it is in all languages, and any
copy of a relevant passage counts, as in LAReQA (Roy et al. 2020).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.passage_sets import PassageSet
from fairseq_lxsr.vectors.rows import IntArray


@dataclass(frozen=True)
class Pool(PassageSet):
    """Queries and passages in several languages.

    Args:
        kind: `one` or `all`.
        languages: languages of the queries and of the passages, for example `en,de->de`.
        seed: random seed of the languages.
        query_languages: language of each query [Q].
        passage_languages: language of each passage, without the distractors [P]. In a pool `all`,
            the copies of the N passages in the first language are in rows 0 to N - 1, those in the
            second language in rows N to 2N - 1. `relevant` has rows of the first language.
        name: name of the task.
    """

    kind: str = "one"
    languages: str = ""
    seed: int = 1
    query_languages: Sequence[str] = field(default=(), repr=False)
    passage_languages: Sequence[str] = field(default=(), repr=False)
    name: str = "any language"

    @property
    def task(self) -> str:
        return self.name

    @property
    def settings(self) -> dict[str, Any]:
        pool = {"pool": self.kind, "languages": self.languages, "seed": self.seed}
        return pool | super().settings

    def parts(self) -> list[tuple["Pool", IntArray]]:
        """Divide the queries of a pool `one` by the languages of their relevant passages.

        The queries with a relevant passage in their language are in `same language`, the others in
        `two languages`.

        Returns:
            The parts that have queries, and the rows of their queries in this pool.
        """
        is_same = np.zeros(len(self.queries), dtype=bool)
        for query, grades in enumerate(self.relevant):
            # Negative rows are passages that are missing.
            languages = {self.passage_languages[row] for row in grades if row >= 0}
            is_same[query] = self.query_languages[query] in languages
        parts = []
        for name, mask in (("same language", is_same), ("two languages", ~is_same)):
            rows = np.flatnonzero(mask)
            if len(rows):
                parts.append((self._part(name, rows.tolist()), rows))
        return parts

    def _part(self, name: str, rows: list[int]) -> "Pool":
        excluded = {}
        for number, row in enumerate(rows):
            if row in self.excluded:
                excluded[number] = self.excluded[row]
        return replace(
            self,
            name=name,
            queries=replace(self.queries, lines=[self.queries.lines[row] for row in rows]),
            relevant=[self.relevant[row] for row in rows],
            excluded=excluded,
            query_languages=[self.query_languages[row] for row in rows],
        )

    def first_copies(self, retrieved: IntArray) -> IntArray:
        """Replace the passages retrieved from a pool `all` by their copies in the first language.

        Args:
            retrieved: rows of passages, best first [Q, K]; -1 marks a missing passage.

        Returns:
            Rows of the first language [Q, K]; -1 if an earlier passage is a copy of the same one.
        """
        num_copies = len(self.passage_languages)
        size = num_copies // len(set(self.passage_languages))
        is_copy = (retrieved >= 0) & (retrieved < num_copies)
        rows = np.where(is_copy, retrieved % size, retrieved)
        for ranking in rows:
            _, first = np.unique(ranking, return_index=True)
            is_repeated = np.ones(len(ranking), dtype=bool)
            is_repeated[first] = False
            ranking[is_repeated] = -1
        return rows

    def has_same_language(self, retrieved: IntArray) -> list[float]:
        """Return for each query whether the first passage is in its language, 0 or 1 [Q]."""
        values: list[float] = []
        for language, row in zip(self.query_languages, retrieved[:, 0].tolist(), strict=True):
            is_copy = 0 <= row < len(self.passage_languages)
            values.append(int(is_copy and self.passage_languages[row] == language))
        return values


def make_pool(tests: Sequence[PassageSet], kind: str, seed: int) -> Pool:
    """Make a pool of the same test set in several languages.

    Each query is in one of the languages of the queries, at random.

        files = ("queries.tsv", "passages.tsv", "relevant.tsv")
        german = ("queries.de.tsv", "passages.de.tsv", "relevant.tsv")
        make_pool([read_passage_set(files), read_passage_set(german, ("de", "de"))], "one", 1)

    Args:
        tests: the test set in each pair of languages.
        kind: `one` for each passage in one of the languages of the passages, at random; `all` for
            each passage in all of them.
        seed: random seed.

    Raises:
        InputError: if the identifiers of two test sets differ, or a passage of a pool `all` has the
            identifier of a query.
    """
    first = tests[0]
    if kind == "all" and first.excluded:
        raise InputError(
            f"{first.queries.file}: {len(first.excluded):,} queries have the identifier of a "
            "passage; expected other identifiers, or --pool one"
        )
    queries = {}
    passages = {}
    for test in tests:
        query_lines = dict(zip(test.query_ids, test.queries.lines, strict=True))
        passage_lines = dict(zip(test.passage_ids, test.passages.lines, strict=True))
        queries[test.queries.language] = query_lines
        passages[test.passages.language] = passage_lines
        _check_ids(first.queries, first.query_ids, test.queries, test.query_ids)
        _check_ids(first.passages, first.passage_ids, test.passages, test.passage_ids)
    generator = random.Random(seed)
    if kind == "one":
        languages = _draw(generator, passages, len(first.passage_ids))
        lines = _texts(passages, languages, first.passage_ids)
    else:
        languages = []
        lines = []
        for language, texts_by_id in passages.items():
            languages += [language] * len(first.passage_ids)
            lines += [texts_by_id[name] for name in first.passage_ids]
    query_languages = _draw(generator, queries, len(first.query_ids))
    return Pool(
        Text(_texts(queries, query_languages, first.query_ids), file=first.queries.file),
        Text(lines, file=first.passages.file),
        first.relevant,
        excluded=first.excluded,
        kind=kind,
        languages=f"{','.join(queries)}->{','.join(passages)}",
        seed=seed,
        query_languages=query_languages,
        passage_languages=languages,
    )


def _draw(generator: random.Random, languages: Mapping[str, Any], count: int) -> list[str]:
    names = list(languages)
    return [generator.choice(names) for _ in range(count)]


def _texts(
    by_language: Mapping[str, Mapping[str, str]], languages: Sequence[str], ids: Sequence[str]
) -> list[str]:
    """Return the text of each identifier in its language [N]."""
    texts = []
    for language, name in zip(languages, ids, strict=True):
        texts.append(by_language[language][name])
    return texts


def _check_ids(first: Text, first_ids: Sequence[str], text: Text, ids: Sequence[str]) -> None:
    differing = set(first_ids) ^ set(ids)
    if differing:
        raise InputError(
            f"{first.file} and {text.file}: identifier {min(differing)!r:.60} is only in one of "
            "them; expected the same test set in several languages"
        )
