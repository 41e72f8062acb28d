"""Removes leaks between the language pairs of one model: text held out in one pair must not train
another.
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
from typing import IO

import numpy as np

from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.corpus import (
    BEFORE,
    DROPPED_FILE,
    SOURCES_FILE,
    SPLITS,
    print_corpus,
    sort_reasons,
)
from fairseq_lxsr.preparation.splits import keys_of, sentence_key
from fairseq_lxsr.preparation.stages import STAGE_FILE, run_stage
from fairseq_lxsr.preparation.workers import in_blocks, ordered_map
from fairseq_lxsr.text.data_folder import count_sources, read_sources, write_sources
from fairseq_lxsr.text.languages import parse_tag

LEAK = "held out in another language pair"


def drop_leaks(
    folder: Path,
    languages: TextPair,
    cleaned: Path,
    others: Mapping[TextPair, Path],
    workers: int = 1,
) -> dict:
    """Run the stage after cleaning where pairs share a language: no held-out sentence of one pair
    trains another.

    Everything in the corpus folder `cleaned` of this pair but its training text is copied; `others`
    are the corpus folders of the other pairs.
    """
    held = [
        (code, path / f"{part}.{code}")
        for pair, path in others.items()
        for code in pair
        for part in SPLITS[1:]
    ]
    files = [(parse_tag(code).language, file) for code, file in held if file.is_file()]
    held_files = {
        name: [file for of, file in files if of == parse_tag(name).language] for name in languages
    }
    texts = [cleaned / f"{split}.{language}" for split in SPLITS for language in languages]

    def build(work: Path) -> dict:
        for path in cleaned.iterdir():
            if path.name not in (STAGE_FILE, *(f"train.{language}" for language in languages)):
                shutil.copyfile(path, work / path.name)
        held = [keys_of(map(read_lines, held_files[language])) for language in languages]
        report = json.loads((cleaned / STAGE_FILE).read_text(encoding="utf-8"))["report"]
        is_kept = _write_without(held, cleaned, work, languages, workers)
        kept = int(np.count_nonzero(is_kept))
        dropped = Counter(report["dropped"]) + Counter({LEAK: report["pairs"]["train"] - kept})
        changed = {"pairs": report["pairs"] | {"train": kept}, "dropped": sort_reasons(dropped)}
        sources = read_sources(work / SOURCES_FILE, len(is_kept))
        if sources:
            changed["sources"] = count_sources(sources, is_kept)
            write_sources(work / SOURCES_FILE, changed["sources"])
            changed[BEFORE] = report.get(BEFORE, {})
        return changed

    inputs = [cleaned / STAGE_FILE, *texts, *itertools.chain.from_iterable(held_files.values())]
    options = {"pair": list(languages), "without leaks of": sorted(map("-".join, others))}
    report = run_stage(folder, options, inputs, build)
    print_corpus(folder, languages, report)
    return report


def _write_without(
    held: list[frozenset[int]], cleaned: Path, work: Path, languages: TextPair, workers: int
) -> np.ndarray:
    """Write the training text without the pairs of which a side is held out; return which pairs are
    left.
    """
    source, target = (cleaned / f"train.{language}" for language in languages)
    pairs = read_parallel(source, target, is_sentence=False)
    is_kept: list[np.ndarray] = []
    with ExitStack() as stack:
        outputs = [
            stack.enter_context(
                open(work / f"train.{language}", "w", encoding="utf-8", newline="\n")
            )
            for language in languages
        ]
        drops = stack.enter_context(_more_dropped(work)) if (work / DROPPED_FILE).exists() else None
        for block, is_leak in ordered_map(
            _find_leaks, in_blocks(pairs), workers, _start_held, (held,)
        ):
            is_kept.append(~is_leak)
            for side, output in enumerate(outputs):
                output.writelines(f"{pair[side]}\n" for pair in itertools.compress(block, ~is_leak))
            if drops:
                drops.writelines(
                    f"{LEAK}\t{a}\t{b}\n" for a, b in itertools.compress(block, is_leak)
                )
    return np.concatenate(is_kept)


_held: list[frozenset[int]] = []


def _start_held(held: list[frozenset[int]]) -> None:
    global _held
    _held = held


def _find_leaks(pairs: list[TextPair]) -> tuple[list[TextPair], np.ndarray]:
    """Mark the pairs that must not train."""
    is_leak = [
        any(sentence_key(text) in known for text, known in zip(pair, _held, strict=True))
        for pair in pairs
    ]
    return pairs, np.array(is_leak)


@contextmanager
def _more_dropped(work: Path) -> Iterator[IO[str]]:
    """Append to a file of dropped pairs; concatenated compressed files are one valid file."""
    with open(work / DROPPED_FILE, "ab") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield text
        text.flush()
