"""Prepares documents for training a context encoder.

Documents are read as ordered sentences, some documents are held out for validation, and all are
binarised with their boundaries.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.archives import files_in
from fairseq_lxsr.files.lines import SENTENCE_BYTES, is_blank, peek, read_lines
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.binarise import (
    SUBWORD_FILES,
    SplitText,
    binarise_texts,
    check_subwords,
    make_shard_folders,
    shard_folders,
)
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.formats import check_file
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.text.languages import parse_tag

DOCUMENT_SPLITS = ("train", "valid")
# Maximum size of a document, because a whole document is held in memory.
DOCUMENT_CHARACTERS = 2**26
# Start of a JSON object. A brace alone is not enough: plain text may begin with "{1}".
_OBJECT = re.compile(r'\s*\{\s*"[^"]*"\s*:')


def iter_documents(
    path: Path, language: str, max_characters: int = DOCUMENT_CHARACTERS
) -> Iterator[list[str]]:
    """Yield each document as a list of sentences, from a file or from all files in a folder.

    A file contains one sentence per line, and an empty line between documents. Alternatively, it is
    the output of WikiExtractor --json, with one object per line, whose `text` is split into
    sentences by sentencex. The files of a folder are read in alphabetical order.

    Args:
        path: a file or a folder; files may be compressed.
        language: language of the text.
        max_characters: maximum number of characters per document in a text file.

    Raises:
        InputError: if a file is missing, empty or in another format, or a document or sentence is
            too long.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; specify documents in {language}")
    for file in _files(path):
        for document in _documents_of(file, language, max_characters):
            _check_sentences(document, file)
            yield document


def _files(path: Path) -> list[Path]:
    """Return all files in a folder, sorted by name, or the file itself."""
    return files_in(path) if path.is_dir() else [path]


def _documents_of(file: Path, language: str, max_characters: int) -> Iterator[list[str]]:
    first, lines = peek(read_lines(file, is_sentence=False))
    if not first:
        raise InputError(f"{file}: empty file; expected documents with one sentence per line")
    if _OBJECT.match(first[0]):
        return _extracted(lines, file, language)
    return _paragraphs(lines, file, max_characters)


def _check_sentences(document: list[str], file: Path) -> None:
    for sentence in document:
        if len(sentence.encode()) > SENTENCE_BYTES:
            raise InputError(
                f"{file}: the sentence that starts with {sentence[:20]!r} has more than "
                f"{SENTENCE_BYTES:,} bytes; expected one sentence per line"
            )


def _paragraphs(lines: Iterator[str], file: Path, max_characters: int) -> Iterator[list[str]]:
    """Yield documents from text in which empty lines separate them."""
    document: list[str] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        size += len(line)
        if size > max_characters:
            raise InputError(
                f"{file}, line {number}: the document is longer than {max_characters:,} "
                "characters; separate documents by empty lines"
            )
        if not is_blank(line):
            document.append(" ".join(line.split()))
        elif document:
            yield document
            document = []
            size = 0
    if document:
        yield document


def _extracted(lines: Iterator[str], file: Path, language: str) -> Iterator[list[str]]:
    """Yield documents from WikiExtractor output, split into sentences."""
    segment = sentence_splitter(language)
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            continue
        try:
            text = json.loads(line)["text"].encode("utf-8", "replace").decode().replace("\0", " ")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(
                f"{file}, line {number}: {line!r:.60}; expected a JSON object with a `text` "
                "field, the format of WikiExtractor --json"
            ) from None
        document: list[str] = []
        for paragraph in text.split("\n"):
            document += [" ".join(sentence.split()) for sentence in segment(paragraph)]
        # Skip pages without sentences.
        document = [sentence for sentence in document if not is_blank(sentence)]
        if document:
            yield document


def sentence_splitter(language: str) -> Callable[[str], Sequence[str]]:
    """Return a function that splits text in a language into sentences.

    Raises:
        InputError: if the package sentencex is not installed.
    """
    require("sentencex", "documents", "text of WikiExtractor")
    import sentencex

    code = parse_tag(language).language

    def split(text: str) -> list[str]:
        if not text.strip():
            return []
        return list(sentencex.segment(code, text))

    return split


def prepare_documents(
    documents: Mapping[str, str],
    work: str,
    subwords: Mapping[str, Any],
    *,
    valid_documents: int,
    seed: int,
    workers: int,
    shards: int,
) -> tuple[list[Path], Path]:
    """Run all stages from documents to data folder. Stages with unchanged inputs are skipped.

    Args:
        documents: file or folder of documents for each language.
        work: work folder for the results of all stages.
        subwords: fields of `SubwordOptions`.
        valid_documents: number of documents per language to hold out for validation.
        seed: random seed for choosing these documents.
        workers: number of processes.
        shards: number of shards of the training data.

    Returns:
        The data folder or its shards, and the folder of the text.

    Raises:
        InputError: if a file cannot be read, or there are too few documents.
    """
    sources = {language: Path(source) for language, source in documents.items()}
    text = Path(work) / "documents"
    pieces = Path(work) / "subwords"
    data = Path(work) / "data-bin"
    make_documents(text, sources, valid_documents, seed)
    train_subwords(pieces, [text], SubwordOptions(**subwords))
    binarise_documents(data, text, list(sources), pieces, workers, shards)
    return list(shard_folders(data)), text


def make_documents(
    folder: Path, sources: Mapping[str, Path], valid_documents: int, seed: int
) -> dict[str, dict[str, int]]:
    """Run the documents stage: write SPLIT.LANG and its document starts for each language.

    A text has one sentence per line; its document starts are in starts.SPLIT.LANG.npy.

    Args:
        folder: output folder.
        sources: file or folder of documents for each language.
        valid_documents: number of documents per language to hold out.
        seed: random seed for choosing these documents.

    Returns:
        Number of documents and sentences in each split, keyed by language.

    Raises:
        InputError: if a file cannot be read, or a language has too few documents.
    """
    inputs: list[Path] = []
    for source in sources.values():
        inputs += _files(source)
    for file in inputs:
        check_file(file, "a file or a folder of documents")

    def build(work: Path) -> dict:
        return {
            language: _write_language(work, language, source, valid_documents, seed)
            for language, source in sources.items()
        }

    texts = {language: str(source) for language, source in sources.items()}
    options = {"sources": texts, "valid_documents": valid_documents, "seed": seed}
    report = run_stage(folder, options, inputs, build)
    for language, counts in report.items():
        listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(f"{folder}: {language}: {listed}")
    return report


def _write_language(
    work: Path, language: str, source: Path, valid_documents: int, seed: int
) -> dict[str, int]:
    """Write the splits of one language, and return the numbers of documents and sentences."""
    # Read the documents twice, so that only one is in memory at a time.
    total = sum(1 for _ in iter_documents(source, language))
    if total <= valid_documents:
        raise InputError(
            f"{source}: only {total} documents, which must be more than the {valid_documents} held "
            "out for validation"
        )
    held_out = set(np.random.default_rng(seed).permutation(total)[:valid_documents].tolist())
    starts: dict[str, list[int]] = {split: [0] for split in DOCUMENT_SPLITS}
    with ExitStack() as stack:
        streams = {}
        for split in DOCUMENT_SPLITS:
            stream = (work / f"{split}.{language}").open("w", encoding="utf-8")
            streams[split] = stack.enter_context(stream)
        for number, document in enumerate(iter_documents(source, language)):
            split = "valid" if number in held_out else "train"
            streams[split].writelines(f"{sentence}\n" for sentence in document)
            starts[split].append(starts[split][-1] + len(document))
    counts: dict[str, int] = {}
    for split in DOCUMENT_SPLITS:
        np.save(starts_of(work / f"{split}.{language}"), np.array(starts[split], dtype=np.int64))
        counts[f"{split} documents"] = len(starts[split]) - 1
        counts[f"{split} sentences"] = starts[split][-1]
    return counts


def binarise_documents(
    folder: Path,
    documents: Path,
    languages: Sequence[str],
    subwords: Path,
    workers: int,
    shards: int = 1,
) -> None:
    """Write the data folder for the task sent_context: piece ids and document starts.

    With several shards, `folder` has subfolders 0, 1, ... with consecutive documents in every
    language and about equal numbers of sentences; the first shard also contains the validation
    documents. No document is split.

    Args:
        folder: output data folder.
        documents: folder written by `make_documents`.
        languages: languages of the documents.
        subwords: folder of the SentencePiece model and the dictionary.
        workers: number of processes.
        shards: number of shards.

    Raises:
        InputError: if there are too few documents for the shards.
    """
    train, valid = DOCUMENT_SPLITS
    texts: list[Path] = []
    for language in languages:
        texts += [documents / f"{train}.{language}", documents / f"{valid}.{language}"]

    def build(work: Path) -> dict:
        outputs = make_shard_folders(work, shards)
        for output in outputs:
            for name in SUBWORD_FILES:
                shutil.copyfile(subwords / name, output / name)
        sharded = []
        for text in texts:
            is_train = text.name.startswith(train)
            sharded.append(_sharded(text, outputs if is_train else outputs[:1]))
        return {"unknown per cent": binarise_texts(sharded, subwords, workers)}

    check_subwords(subwords)
    options = {"languages": list(languages), "shards": shards}
    inputs = [*texts, *map(starts_of, texts), *(subwords / name for name in SUBWORD_FILES)]
    report = run_stage(folder, options, inputs, build)
    most_unknown = max(report["unknown per cent"].values())
    print(f"{folder}: at most {most_unknown} % of the pieces in any text are unknown")


def starts_of(text: Path) -> Path:
    """Return the path of a text's document starts, which are stored next to the text."""
    return text.with_name(f"starts.{text.name}.npy")


def _sharded(text: Path, outputs: list[Path]) -> SplitText:
    """Write a text's document starts to its shards.

    Returns:
        The text, with a function that assigns its lines to shards.
    """
    places = [output / text.name for output in outputs]
    starts = np.load(starts_of(text), allow_pickle=False)
    firsts = first_documents(starts, len(places), text)
    for place, first, last in zip(places, firsts[:-1], firsts[1:], strict=True):
        np.save(
            place.with_name(f"{place.name}.documents.npy"), starts[first : last + 1] - starts[first]
        )

    def shard_of_lines(first: int, count: int, shards: int) -> np.ndarray:
        return np.searchsorted(starts[firsts[1:-1]], np.arange(first, first + count), side="right")

    return SplitText(text, places, shard_of_lines)


def first_documents(starts: np.ndarray, shards: int, text: Path) -> np.ndarray:
    """Find the first document of each shard.

    Args:
        starts: index of each document's first sentence, followed by the number of sentences
            [documents + 1].
        shards: number of shards.
        text: path of the text, for messages.

    Returns:
        Index of each shard's first document, followed by the number of documents [shards + 1].

    Raises:
        InputError: if a shard would contain no document.
    """
    sentences = starts[-1] * np.arange(shards + 1) / shards
    firsts = np.searchsorted(starts, sentences)
    if (np.diff(firsts) < 1).any():
        raise InputError(
            f"{text}: {len(starts) - 1:,} documents are too few for {shards} "
            "equal shards; use fewer shards"
        )
    return firsts
