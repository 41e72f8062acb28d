"""Test sets for passage retrieval: queries, passages, and which passages are relevant."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import first_file
from fairseq_lxsr.evaluation.texts import read_columns, read_text
from fairseq_lxsr.files.lines import is_blank, read_lines
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search.lexical import UNSPACED

# File names in a BEIR folder (Thakur et al. 2021), without .gz.
BEIR_PASSAGES = "corpus.jsonl"
BEIR_QUERIES = "queries.jsonl"
BEIR_RELEVANT = "qrels/test.tsv"
# Columns of a file of relevant pairs; the grade is optional.
RELEVANT_COLUMNS = "query id<TAB>passage id<TAB>grade"
# Paths of queries, passages and relevant pairs.
PassageFiles = tuple[str | Path, str | Path, str | Path]
# A word, whose parts may be joined by signs such as hyphens.
_WORD = re.compile(r"[^\W_]+(?:[./:_-][^\W_]+)*")


@dataclass(frozen=True)
class PassageSet:
    """Queries, passages, and the relevant passages of each query.

    Args:
        queries: Q queries, each with a relevant passage.
        passages: P passages.
        relevant: for each query, maps row indices of relevant passages to their grades [Q].
            Relevant passages that are not among the passages have negative rows, -2 or less.
        distractors: number of passages at the end that are not relevant to any query.
        excluded: for each query that is itself a passage, the row of this passage.
        query_ids: identifiers of the queries, the same in all languages of a test set [Q].
        passage_ids: identifiers of the passages without the distractors.
    """

    queries: Text
    passages: Text
    relevant: Sequence[Mapping[int, float]] = field(repr=False)
    distractors: int = 0
    excluded: Mapping[int, int] = field(default_factory=dict, repr=False)
    query_ids: Sequence[str] = field(default=(), repr=False)
    passage_ids: Sequence[str] = field(default=(), repr=False)

    @property
    def task(self) -> str:
        """Name of the task, for example `en->de`."""
        query_language = self.queries.language or "queries"
        return f"{query_language}->{self.passages.language or 'passages'}"

    @property
    def pairs(self) -> list[str]:
        """Relevant pairs and their grades as text, to be hashed for the signature."""
        lines = []
        for query, grades in enumerate(self.relevant):
            for passage, grade in sorted(grades.items()):
                lines.append(f"{query} {passage} {grade:g}")
        return lines

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the signature.

        The last three are left out if they are zero: `empty` passages are never found, `missing`
        passages are relevant, but not among the passages, and `excluded` queries do not find the
        passage with their own identifier.
        """
        missing: set[int] = set()
        for grades in self.relevant:
            missing.update(row for row in grades if row < 0)
        settings = {
            "queries": len(self.queries),
            "passages": len(self.passages),
            "distractors": self.distractors,
            "relevant": len(self.pairs),
        }
        exceptions = {
            "empty": sum(map(is_blank, self.passages.lines)),
            "missing": len(missing),
            "excluded": len(self.excluded),
        }
        return settings | {name: count for name, count in exceptions.items() if count}

    def with_distractors(self, path: str | Path) -> "PassageSet":
        """Add passages from a file, one per line, that are not relevant to any query."""
        lines = read_text(path).lines
        passages = replace(self.passages, lines=[*self.passages.lines, *lines])
        return replace(self, passages=passages, distractors=len(lines))


def read_passage_set(files: PassageFiles, languages: tuple[str, str] = ("", "")) -> PassageSet:
    """Read a test set from three files.

        files = ("queries.tsv", "passages.tsv", "relevant.tsv")
        read_passage_set(files, ("en", "de")).relevant[0]  # {17: 1.0}

    JSON lines are read as BEIR does: passages may be empty, relevant passages may be missing, and a
    query does not find a passage with its own identifier.

    Args:
        files: queries and passages, each `id<TAB>text` or BEIR's JSON lines; and the relevant pairs
            `query id<TAB>passage id`, with or without a grade and a header.
        languages: languages of the queries and of the passages.

    Raises:
        InputError: if a line is invalid, an identifier is repeated or unknown, or no passage is
            relevant.
    """
    queries_file, passages_file, _ = files
    queries = _read_texts(queries_file)
    passages = _read_texts(passages_file)
    passage_rows = {name: row for row, name in enumerate(passages)}
    relevant = _relevant_rows(files, queries, passage_rows)
    # Queries without a relevant passage are skipped, as in BEIR.
    names = [name for name in queries if name in relevant]
    excluded = {}
    if _is_beir(files):
        for number, name in enumerate(names):
            if name in passage_rows:
                excluded[number] = passage_rows[name]
    return PassageSet(
        Text([queries[name] for name in names], languages[0], str(queries_file)),
        Text(list(passages.values()), languages[1], str(passages_file)),
        [relevant[name] for name in names],
        excluded=excluded,
        query_ids=names,
        passage_ids=list(passages),
    )


def _relevant_rows(
    files: PassageFiles, queries: Container[str], passage_rows: Mapping[str, int]
) -> dict[str, dict[int, float]]:
    """Read the relevant pairs.

    Args:
        files: as in `read_passage_set`.
        queries: identifiers of the queries.
        passage_rows: maps identifiers of passages to their rows.

    Returns:
        Maps queries to the rows of relevant passages and their grades, as in `PassageSet`.
    """
    queries_file, passages_file, relevant_file = files
    missing_rows: dict[str, int] = {}
    relevant: dict[str, dict[int, float]] = {}
    for place, query, passage, grade in _read_relevant(relevant_file):
        if query not in queries:
            raise InputError(
                f"{place}: query {query!r:.60} is not in {queries_file}; "
                "check that the files belong together"
            )
        row = passage_rows.get(passage)
        if row is None and _is_beir(files):
            # Retrieved rows of -1 mark that there is no passage.
            row = missing_rows.setdefault(passage, -2 - len(missing_rows))
        if row is None:
            raise InputError(
                f"{place}: passage {passage!r:.60} is not in {passages_file}; "
                "check that the files belong together"
            )
        if grade > 0:
            relevant.setdefault(query, {})[row] = grade
    if not relevant:
        raise InputError(f"{relevant_file}: no relevant passages; expected {RELEVANT_COLUMNS}")
    if all(row < 0 for grades in relevant.values() for row in grades):
        raise InputError(
            f"{relevant_file}: none of the {len(missing_rows):,} relevant passages is in "
            f"{passages_file}; check that the files belong together"
        )
    return relevant


def _is_beir(files: PassageFiles) -> bool:
    return _is_json(files[0]) and _is_json(files[1])


def read_codes(path: str | Path, languages: tuple[str, str] = ("", "")) -> PassageSet:
    """Read passages, and make queries of the codes in them, such as part numbers and dates.

        # "1<TAB>Part AX-55-210, 12 in stock" and "2<TAB>Part AX-55-211, 12 in stock"
        read_codes("parts.tsv").queries.lines  # ["AX-55-210", "AX-55-211"]

    A code is a word with a digit that only one passage has, in capitals or not. That passage is
    relevant.

    Args:
        path: passages, `id<TAB>text` or BEIR's JSON lines.
        languages: languages of the queries and of the passages.

    Raises:
        InputError: if a line is invalid, an identifier is repeated, or there are no codes.
    """
    passages = _read_texts(path)
    codes: dict[str, str] = {}
    rows: dict[str, set[int]] = {}
    for row, text in enumerate(passages.values()):
        for word in _WORD.findall(UNSPACED.sub(" ", text)):
            if not any(map(str.isdigit, word)):
                continue
            key = word.lower()
            codes.setdefault(key, word)
            rows.setdefault(key, set()).add(row)
    distinct = [key for key, places in rows.items() if len(places) == 1]
    if not distinct:
        raise InputError(f"{path}: no codes; expected words with a digit that only one passage has")
    return PassageSet(
        Text([codes[key] for key in distinct], languages[0], str(path)),
        Text(list(passages.values()), languages[1], str(path)),
        [{min(rows[key]): 1.0} for key in distinct],
        query_ids=distinct,
        passage_ids=list(passages),
    )


def beir_files(folder: str) -> PassageFiles:
    """Find the queries, passages and relevant pairs in a folder with BEIR's layout.

    Raises:
        InputError: if a file is missing.
    """
    paths = []
    for name in (BEIR_QUERIES, BEIR_PASSAGES, BEIR_RELEVANT):
        path = first_file([Path(folder) / name])
        if path is None:
            raise InputError(
                f"{Path(folder) / name}: no such file, with or without .gz; expected --data to be "
                f"a folder with {BEIR_QUERIES}, {BEIR_PASSAGES} and {BEIR_RELEVANT}"
            )
        paths.append(path)
    return paths[0], paths[1], paths[2]


def _read_texts(path: str | Path) -> dict[str, str]:
    """Read texts from TSV or JSON lines, and map identifiers to texts."""
    rows: Iterable[Sequence[str]]
    if _is_json(path):
        rows = _json_texts(path)
    else:
        rows = read_columns(path, "id<TAB>text")
    texts: dict[str, str] = {}
    for name, text in rows:
        if name in texts:
            raise InputError(
                f"{path}: identifier {name!r:.60} is not unique; expected one line per identifier"
            )
        texts[name] = text
    if not texts:
        raise InputError(f"{path}: empty file; expected lines with _id and text")
    return texts


def _is_json(path: str | Path) -> bool:
    return Path(path).name.removesuffix(".gz").endswith(".jsonl")


def _json_texts(path: str | Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        try:
            record = parse_json(line)
            title = str(record.get("title") or "")
            # BEIR puts the title before the text.
            yield str(record["_id"]), " ".join(f"{title} {record['text']}".split())
        except (ValueError, KeyError) as error:
            raise InputError(
                f"{path}, line {number}: not a JSON object with _id and text ({error!r:.80}); "
                "expected BEIR's format"
            ) from None


def _read_relevant(path: str | Path) -> Iterator[tuple[str, str, str, float]]:
    """Yield the file and line number, query id, passage id and grade of each line."""
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}, line {number}"
        columns = line.split("\t")
        if len(columns) not in (2, 3):
            raise InputError(f"{place}: invalid line {line!r:.60}; expected {RELEVANT_COLUMNS}")
        grade = _parse_grade(columns[2]) if len(columns) > 2 else 1.0
        if grade is not None:
            yield place, columns[0], columns[1], grade
        elif number > 1:
            # The first line may be a header, with a column name instead of a grade.
            raise InputError(f"{place}: grade {columns[2]!r:.60} is invalid; expected a number")


def _parse_grade(text: str) -> float | None:
    try:
        grade = float(text)
    except ValueError:
        return None
    # The comparison is also false for NaN.
    return grade if abs(grade) <= 1e6 else None


# -- XQuAD


def read_xquad(
    question_file: str | Path, paragraph_file: str | Path, languages: tuple[str, str]
) -> PassageSet:
    """Read the questions in one language and the paragraphs in another from XQuAD.

    Args:
        question_file: file xquad.LANG.json with the questions (Artetxe, Ruder and Yogatama 2020).
        paragraph_file: file xquad.LANG.json with the paragraphs.
        languages: languages of the questions and of the paragraphs.

    Returns:
        The test set.

    Raises:
        InputError: if a file is invalid, or both have different questions.
    """
    questions = {question_id: text for _, question_id, text in _xquad_questions(question_file)}
    rows = {question_id: row for row, question_id, _ in _xquad_questions(paragraph_file)}
    if questions.keys() != rows.keys():
        raise InputError(
            f"{question_file} and {paragraph_file} contain different question ids; expected the "
            "same XQuAD set in two languages"
        )
    paragraphs = _paragraphs(paragraph_file)
    # A paragraph has no identifier, but its questions have the same in all languages.
    passage_ids = []
    for row, paragraph in enumerate(paragraphs):
        question_ids = (question["id"] for question in paragraph["qas"])
        passage_ids.append(min(question_ids, default=f"paragraph {row}"))
    return PassageSet(
        Text(_single_lines(questions.values()), languages[0], str(question_file)),
        Text(
            _single_lines(paragraph["context"] for paragraph in paragraphs),
            languages[1],
            str(paragraph_file),
        ),
        [{rows[question_id]: 1.0} for question_id in questions],
        query_ids=list(questions),
        passage_ids=passage_ids,
    )


def _single_lines(texts: Any) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def _xquad_questions(path: str | Path) -> Iterator[tuple[int, str, str]]:
    """Yield the paragraph index, identifier and text of each question."""
    for row, paragraph in enumerate(_paragraphs(path)):
        for question in paragraph["qas"]:
            yield row, question["id"], question["question"]


def _paragraphs(path: str | Path) -> list[dict[str, Any]]:
    """Read the paragraphs of a file in SQuAD 1.1 format."""
    paragraphs: list[dict[str, Any]] = []
    try:
        content = json.loads("\n".join(read_lines(path, is_sentence=False)))
        for article in content["data"]:
            paragraphs += article["paragraphs"]
        for paragraph in paragraphs:
            _check_paragraph(paragraph)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: not an XQuAD file ({error!r:.80}); expected SQuAD 1.1 format"
        ) from None
    return paragraphs


def _check_paragraph(paragraph: dict[str, Any]) -> None:
    """Check the fields of a paragraph that `read_xquad` uses.

    Raises:
        KeyError: for a missing field.
        TypeError: for a field that is not text.
    """
    texts = [paragraph["context"]]
    for question in paragraph["qas"]:
        texts += [question["id"], question["question"]]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} is not text")
