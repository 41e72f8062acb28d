"""Removes training sentences that other language pairs of the same model hold out.

Text that is held out in one pair must not be in the training text of another pair.
"""

import gzip
import io
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.corpus import (
    BEFORE_CLEANING,
    DROPPED_FILE,
    KEPT_ENTITIES,
    SOURCES_FILE,
    SPLITS,
    UNESCAPED,
    print_corpus,
    sort_reasons,
)
from fairseq_lxsr.preparation.splits import NO_LETTERS, keys_of, sentence_key
from fairseq_lxsr.preparation.stages import STAGE_FILE, run_stage
from fairseq_lxsr.preparation.workers import ordered_map
from fairseq_lxsr.text.data_folder import count_sources, read_sources, write_sources
from fairseq_lxsr.text.languages import parse_tag
from fairseq_lxsr.text.tokenizer import TextOptions

LEAK = "held out in another language pair"


def drop_leaks(
    folder: Path,
    languages: TextPair,
    cleaned: Path,
    corpora: Mapping[TextPair, Path],
    workers: int = 1,
    read_as: str = "",
) -> dict:
    """Remove sentences from this pair's training text that other pairs hold out.

    This stage follows cleaning if language pairs share a language. Everything except the training
    text is copied from `cleaned`.

    Args:
        folder: output corpus folder.
        languages: source and target language.
        cleaned: cleaned corpus folder of this pair.
        corpora: corpus folders of the other pairs.
        workers: number of processes; the result does not depend on it.
        read_as: see `make_corpus`.

    Returns:
        The report of `make_corpus`, with updated numbers.
    """
    held_out_files = {language: _held_out_files(language, corpora) for language in languages}
    letters = TextOptions(read_as=read_as).table
    texts = [cleaned / f"{split}.{language}" for split in SPLITS for language in languages]

    def build(work: Path) -> dict:
        _copy_without_train(cleaned, work, languages)
        held_out = [
            keys_of(map(read_lines, held_out_files[language]), letters) for language in languages
        ]
        report = json.loads((cleaned / STAGE_FILE).read_text(encoding="utf-8"))["report"]
        is_kept = _write_without(held_out, letters, cleaned, work, languages, workers)
        return _new_report(report, is_kept, work)

    inputs = [cleaned / STAGE_FILE, *texts, *itertools.chain.from_iterable(held_out_files.values())]
    options: dict[str, Any] = {
        "pair": list(languages),
        "without leaks of": sorted(map("-".join, corpora)),
    }
    if read_as:
        options["read_as"] = read_as
    report = run_stage(folder, options, inputs, build)
    print_corpus(folder, languages, report)
    return report


def _held_out_files(language: str, corpora: Mapping[TextPair, Path]) -> list[Path]:
    """Return the held-out text files in a language, under any spelling of its code."""
    files: list[Path] = []
    for pair, folder in corpora.items():
        for code in pair:
            if parse_tag(code).language != parse_tag(language).language:
                continue
            paths = [folder / f"{split}.{code}" for split in SPLITS[1:]]
            files += [path for path in paths if path.is_file()]
    return files


def _copy_without_train(cleaned: Path, work: Path, languages: TextPair) -> None:
    """Copy a corpus folder, except for its manifest and training text."""
    left_out = {STAGE_FILE, *(f"train.{language}" for language in languages)}
    for path in cleaned.iterdir():
        if path.name not in left_out:
            shutil.copyfile(path, work / path.name)


def _new_report(report: dict, is_kept: np.ndarray, work: Path) -> dict:
    """Return the report for the kept training pairs, and rewrite the file of source sizes.

    Args:
        report: report of the cleaned corpus.
        is_kept: whether each training pair is kept, bool [pairs].
        work: folder of the new corpus.
    """
    train_size = int(np.count_nonzero(is_kept))
    dropped = Counter(report["dropped"])
    dropped[LEAK] += report["pairs"]["train"] - train_size
    changed = {"pairs": report["pairs"] | {"train": train_size}, "dropped": sort_reasons(dropped)}
    for name in (UNESCAPED, KEPT_ENTITIES):
        if name in report:
            changed[name] = report[name]
    sources = read_sources(work / SOURCES_FILE, len(is_kept))
    if sources:
        changed["sources"] = count_sources(sources, is_kept)
        write_sources(work / SOURCES_FILE, changed["sources"])
        changed[BEFORE_CLEANING] = report.get(BEFORE_CLEANING, {})
    return changed


def _write_without(
    held_out: list[frozenset[int]],
    letters: Mapping[int, str],
    cleaned: Path,
    work: Path,
    languages: TextPair,
    workers: int,
) -> np.ndarray:
    """Write the training text, except for pairs with a held-out sentence on either side.

    Returns:
        Whether each pair is kept, bool [pairs].
    """
    source, target = (cleaned / f"train.{language}" for language in languages)
    blocks = in_blocks(read_parallel(source, target, is_sentence=False))
    is_kept: list[np.ndarray] = []
    with ExitStack() as stack:
        paths = [work / f"train.{language}" for language in languages]
        outputs = [
            stack.enter_context(open(path, "w", encoding="utf-8", newline="\n")) for path in paths
        ]
        drops = None
        if (work / DROPPED_FILE).exists():
            drops = stack.enter_context(_more_dropped(work))
        results = ordered_map(_find_leaks, blocks, workers, _start_held_out, (held_out, letters))
        for block, is_leak in results:
            is_kept.append(~is_leak)
            for side, output in enumerate(outputs):
                output.writelines(f"{pair[side]}\n" for pair in itertools.compress(block, ~is_leak))
            if drops:
                drops.writelines(
                    f"{LEAK}\t{source}\t{target}\n"
                    for source, target in itertools.compress(block, is_leak)
                )
    return np.concatenate(is_kept)


# State of a worker process, set by `_start_held_out`.
_held_out: list[frozenset[int]] = []
_letters = NO_LETTERS


def _start_held_out(held_out: list[frozenset[int]], letters: Mapping[int, str]) -> None:
    """Initialize a worker process with the keys of the held-out sentences on each side."""
    global _held_out, _letters
    _held_out = held_out
    _letters = letters


def _find_leaks(pairs: list[TextPair]) -> tuple[list[TextPair], np.ndarray]:
    """Return the pairs, and a mask of the pairs that contain a held-out sentence."""
    source_keys, target_keys = _held_out
    is_leak = [
        sentence_key(source, _letters) in source_keys
        or sentence_key(target, _letters) in target_keys
        for source, target in pairs
    ]
    return pairs, np.array(is_leak)


@contextmanager
def _more_dropped(work: Path) -> Iterator[IO[str]]:
    """Open the file of dropped pairs for appending; a gzip file may consist of several members."""
    with (
        open(work / DROPPED_FILE, "ab") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed,
    ):
        text = io.TextIOWrapper(compressed, encoding="utf-8", newline="\n")
        yield text
        text.flush()
