"""Reads documents as ordered sentences, holds some out for validation, and binarises them with
their boundaries.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import SENTENCE_BYTES, is_blank, read_lines
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.binarise import (
    SUBWORD_FILES,
    SplitText,
    binarise_texts,
    check_subwords,
    shard_folders,
    shard_places,
)
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.formats import check_file
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.text.languages import parse_tag

DOCUMENT_SPLITS = ("train", "valid")
DOCUMENT_CHARACTERS = 2**26  # largest document, which is held in memory
_OBJECT = re.compile(
    r'\s*\{\s*"[^"]*"\s*:'
)  # how an object of JSON begins; text may begin with {1}


def iter_documents(path: Path, language: str) -> Iterator[list[str]]:
    """Yield the sentences of each document of a file, or of all files of a folder in order of
    names.

    A file is text with one sentence per line and an empty line between documents, or the output of
    WikiExtractor --json, one object with `text` per line, which sentencex splits into sentences.
    Files may be compressed.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected documents in {language}")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        lines = read_lines(file, is_sentence=False)
        first = next(lines, None)
        if first is None:
            raise InputError(f"{file}: empty file; expected documents, one sentence a line")
        whole = chain([first], lines)
        documents = (
            _extracted(whole, file, language) if _OBJECT.match(first) else _paragraphs(whole, file)
        )
        for document in documents:
            for sentence in document:
                if len(sentence.encode()) > SENTENCE_BYTES:
                    raise InputError(
                        f"{file}: {sentence[:20]!r} begins a sentence of more than {SENTENCE_BYTES:,} bytes; expected "
                        "sentences"
                    )
            yield document


def _paragraphs(lines: Iterator[str], file: Path) -> Iterator[list[str]]:
    document: list[str] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        size += len(line)
        if size > DOCUMENT_CHARACTERS:
            raise InputError(
                f"{file}, line {number}: a document of more than {DOCUMENT_CHARACTERS:,} characters; expected an empty "
                "line between documents"
            )
        if not is_blank(line):
            document.append(" ".join(line.split()))
        elif document:
            yield document
            document, size = [], 0
    if document:
        yield document


def _extracted(lines: Iterator[str], file: Path, language: str) -> Iterator[list[str]]:
    segment = sentence_splitter(language)
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            continue
        try:
            text = json.loads(line)["text"].encode("utf-8", "replace").decode().replace("\0", " ")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(
                f"{file}, line {number}: {line!r:.60}; expected an object with text, as WikiExtractor --json writes it"
            ) from None
        sentences = (
            " ".join(sentence.split()) for part in text.split("\n") for sentence in segment(part)
        )
        if document := [sentence for sentence in sentences if not is_blank(sentence)]:
            yield document


def sentence_splitter(language: str) -> Callable[[str], Sequence[str]]:
    """Return a function that splits text of a language into sentences."""
    require("sentencex", "documents", "text of WikiExtractor")
    import sentencex

    code = parse_tag(language).language
    return lambda text: list(sentencex.segment(code, text)) if text.strip() else []


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
    """Run the stages from documents to the data folder in the work folder; stages with unchanged
    inputs are skipped.

    `documents` are a file or folder of each language, of which some documents are held out for
    validation; `subwords` are fields of `SubwordOptions`. Returns the data folder or its shards,
    and the folder of the text.
    """
    sources = {language: Path(source) for language, source in documents.items()}
    text, pieces, data = (Path(work) / name for name in ("documents", "subwords", "data-bin"))
    make_documents(text, sources, valid_documents, seed)
    train_subwords(pieces, [text], SubwordOptions(**subwords))
    binarise_documents(data, text, list(sources), pieces, workers, shards)
    return list(shard_folders(data)), text


def make_documents(
    folder: Path, sources: Mapping[str, Path], valid_documents: int, seed: int
) -> dict[str, dict[str, int]]:
    """Run the documents stage; return numbers of documents and sentences by language and split.

    It writes SPLIT.LANG, one sentence a line, and document starts to starts.SPLIT.LANG.npy.
    """
    inputs = [
        file
        for source in sources.values()
        for file in (
            sorted(path for path in source.rglob("*") if path.is_file())
            if source.is_dir()
            else [source]
        )
    ]
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
        print(
            f"{folder}: {language}: "
            + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        )
    return report


def _write_language(
    work: Path, language: str, source: Path, valid_documents: int, seed: int
) -> dict[str, int]:
    total = sum(1 for _ in iter_documents(source, language))
    if total <= valid_documents:
        raise InputError(
            f"{source}: {total} documents; expected more than the {valid_documents} that are held out"
        )
    held_out = set(np.random.default_rng(seed).permutation(total)[:valid_documents].tolist())
    counts: dict[str, int] = {}
    streams = {
        split: (work / f"{split}.{language}").open("w", encoding="utf-8")
        for split in DOCUMENT_SPLITS
    }
    starts: dict[str, list[int]] = {split: [0] for split in DOCUMENT_SPLITS}
    for number, document in enumerate(iter_documents(source, language)):
        split = "valid" if number in held_out else "train"
        streams[split].writelines(f"{sentence}\n" for sentence in document)
        starts[split].append(starts[split][-1] + len(document))
    for split in DOCUMENT_SPLITS:
        streams[split].close()
        np.save(starts_of(work / f"{split}.{language}"), np.array(starts[split], dtype=np.int64))
        counts |= {
            f"{split} documents": len(starts[split]) - 1,
            f"{split} sentences": starts[split][-1],
        }
    return counts


def binarise_documents(
    folder: Path,
    documents: Path,
    languages: Sequence[str],
    subwords: Path,
    workers: int,
    shards: int = 1,
) -> None:
    """Write the data folder of the task sent_context: piece ids and document starts.

    With several shards, `folder` has subfolders 0, 1, ... with consecutive whole documents of every
    language and about equal numbers of sentences; the first also has the documents for validation.
    """
    texts = [
        documents / f"{split}.{language}" for language in languages for split in DOCUMENT_SPLITS
    ]

    def build(work: Path) -> dict:
        outputs = shard_places(work, shards)
        for output in outputs:
            for name in SUBWORD_FILES:
                shutil.copyfile(subwords / name, output / name)
        is_train = [text.name.startswith(DOCUMENT_SPLITS[0]) for text in texts]
        sharded = [
            _sharded(text, outputs if of else outputs[:1])
            for text, of in zip(texts, is_train, strict=True)
        ]
        return {"unknown per cent": binarise_texts(sharded, subwords, workers)}

    check_subwords(subwords)
    options = {"languages": list(languages), "shards": shards}
    inputs = [*texts, *map(starts_of, texts), *(subwords / name for name in SUBWORD_FILES)]
    report = run_stage(folder, options, inputs, build)
    print(f"{folder}: at most {max(report['unknown per cent'].values())} % of a text unknown")


def starts_of(text: Path) -> Path:
    """Return the path of the document starts of a text, a file beside it."""
    return text.with_name(f"starts.{text.name}.npy")


def _sharded(text: Path, outputs: list[Path]) -> SplitText:
    """Write the document starts of one language of a split to its shards; return how its lines are
    distributed.
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
    """Return the first document of each shard, followed by the number of documents: [shards +
    1].
    """
    wanted = starts[-1] * np.arange(shards + 1) / shards
    firsts = np.searchsorted(starts, wanted)
    if (np.diff(firsts) < 1).any():
        raise InputError(
            f"{text}: {len(starts) - 1:,} documents; expected enough for {shards} shards: ask for fewer"
        )
    return firsts
