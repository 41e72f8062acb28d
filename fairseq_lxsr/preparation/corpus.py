"""Makes a corpus folder: aligned train, valid and test of one language pair, without a sentence in
two splits.

The number of pairs is not limited: several processes clean text in blocks, and only the keys and
flags of all pairs, not their text, are compared. The result does not depend on the number of
processes.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_lxsr.characters import visible
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.lines import SENTENCE_BYTES, is_blank, read_lines
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.catalogues import ALTERNATIVES
from fairseq_lxsr.preparation.clean import Filters, TextPair, first_failing_filter, make_filters
from fairseq_lxsr.preparation.config import DEFAULT_CLEANING, Cleaning
from fairseq_lxsr.preparation.excluded import files_to_exclude, sentences_to_exclude
from fairseq_lxsr.preparation.formats import Source
from fairseq_lxsr.preparation.splits import (
    ASSIGNMENTS,
    HELD_OUT,
    KEY,
    REPEATED,
    TEST,
    TRAIN,
    VALID,
    HeldOut,
    assign_splits,
    keys_of,
    sentence_key,
)
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import in_blocks, ordered_map
from fairseq_lxsr.text.data_folder import count_sources, write_sources

SPLITS = ("train", "valid", "test")
DEFAULT_HELD_OUT = HeldOut()
DROPPED_FILE = "dropped.tsv.gz"
MAX_WORDS = 10_000  # of a sentence to train on; longer lines are documents
SOURCES_FILE = "sources.json"  # of a corpus folder: training pairs of each named source
BEFORE = "sources before cleaning"  # in a report, as "sources"; that of an earlier version has none


@dataclass
class Cleaned:
    """The result of cleaning a block of pairs of one source."""

    name: str
    source: str
    target: str
    keys: np.ndarray
    dropped: list[tuple[str, TextPair]]


_filters: Filters = {}
_excluded: frozenset[int] = frozenset()


def _start(
    filters: Mapping[str, Mapping[str, Any]], languages: TextPair, excluded: frozenset[int]
) -> None:
    global _filters, _excluded
    _filters, _excluded = make_filters(filters, languages), excluded


def clean_block(block: tuple[str, list[TextPair]]) -> Cleaned:
    """Leave out what shows nothing in pairs of a source, reduce blanks, filter, and compute keys of
    the kept pairs.
    """
    name, pairs = block
    kept: list[TextPair] = []
    keys: list[tuple[int, int]] = []
    dropped: list[tuple[str, TextPair]] = []
    for source, target in pairs:
        pair = _single_blanks(source), _single_blanks(target)
        reason = _no_sentence(pair) or first_failing_filter(pair, _filters)
        if reason is None:
            key = sentence_key(pair[0]), sentence_key(pair[1])
            if _excluded and not _excluded.isdisjoint(key):
                reason = "excluded"
            else:
                kept.append(pair)
                keys.append(key)
        if reason is not None:
            dropped.append((reason, pair))
    left, right = ("".join(f"{pair[side]}\n" for pair in kept) for side in (0, 1))
    return Cleaned(name, left, right, np.array(keys, dtype=KEY), dropped)


def _single_blanks(text: str) -> str:
    return " ".join(visible(text).replace("\0", " ").split())


def _no_sentence(pair: TextPair) -> str | None:
    if any(map(is_blank, pair)):
        return "empty side"
    if any(side.count(" ") >= MAX_WORDS for side in pair):
        return "over 10,000 words"
    return (
        "over 1 MiB"
        if any(len(side.encode("utf-8", "replace")) > SENTENCE_BYTES for side in pair)
        else None
    )


def make_corpus(
    folder: Path,
    languages: TextPair,
    source: Source,
    cleaning: Cleaning = DEFAULT_CLEANING,
    held_out: HeldOut = DEFAULT_HELD_OUT,
    workers: int = 1,
) -> dict:
    """Run the corpus stage; the result does not depend on the number of `workers`.

    The report has the size of every split, the number of dropped pairs by reason, and of training
    pairs by named source.
    """
    cleaning = cleaning.for_text(source.is_messages)
    filters = cleaning.filters or {}
    make_filters(filters, languages)  # raises before anything is read
    to_exclude = files_to_exclude(cleaning.exclude, *languages)
    excluded = keys_of(map(sentences_to_exclude, to_exclude))
    sizes = {"valid": held_out.valid_size, "test": held_out.test_size, "seed": held_out.seed}
    by = {"drawn by": held_out.by} if held_out.by else {}

    def build(work: Path) -> dict:
        dropped: Counter = Counter()
        parts = work / "parts"
        parts.mkdir()
        with ExitStack() as stack:
            drops = (
                stack.enter_context(atomic_write(work / DROPPED_FILE))
                if cleaning.keep_dropped
                else None
            )
            results = ordered_map(
                clean_block,
                _read(source, languages, dropped),
                workers,
                _start,
                (filters, languages, excluded),
            )
            before, kept = _store(results, parts, dropped, drops)
            assigned = assign_splits(parts / "keys", cleaning.repeats or "", held_out)
            counts = np.array([np.count_nonzero(assigned == split) for split in ASSIGNMENTS])
            _check_size(
                counts, held_out, f"{'-'.join(languages)} from {source.name}", source.is_messages
            )
            _write(parts, work, languages, assigned, drops)
        shutil.rmtree(parts)
        return _report(counts, dropped) | _write_sources(work, source, before, kept, assigned)

    options = {
        "pair": list(languages),
        "data": source.name,
        **sizes,
        **by,
        "cleaning": asdict(cleaning),
    }
    models = [
        Path(given["method"])
        for given in filters.values()
        if given and Path(given.get("method", "")).is_file()
    ]
    report = run_stage(folder, options, [*source.files, *models, *to_exclude], build)
    print_corpus(folder, languages, report)
    return report


def _report(counts: np.ndarray, dropped: Counter) -> dict:
    """Report the number of pairs by split and of dropped pairs by reason; `counts` is in the order
    of ASSIGNMENTS.
    """
    for reason, split in (("repeated", REPEATED), ("held out in another pair", HELD_OUT)):
        dropped[reason] += int(counts[split])
    return {
        "pairs": dict(zip(SPLITS, counts[:3].tolist(), strict=True)),
        "dropped": sort_reasons(dropped),
    }


def _write_sources(
    work: Path, source: Source, before: Counter, kept: Counter, assigned: np.ndarray
) -> dict:
    """Write the number of training pairs of each named source, which follow each other in the
    training text.

    `before` and `kept` are the numbers of pairs by source, before and after the filters.
    """
    if not source.parts:
        return {}
    sources = count_sources({name: kept[name] for name in source.parts}, assigned == TRAIN)
    write_sources(work / SOURCES_FILE, sources)
    return {"sources": sources, BEFORE: {name: before[name] for name in source.parts}}


def sort_reasons(dropped: Counter) -> dict[str, int]:
    """Sort the reasons, so that their order does not depend on the order of processes."""
    return dict(sorted((+dropped).items()))


def print_corpus(folder: Path, languages: TextPair, report: dict) -> None:
    """Print one line about a corpus folder."""
    counts = ", ".join(f"{count:,} {split}" for split, count in report["pairs"].items())
    reasons = (
        ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items()) or "none"
    )
    sources = ", ".join(f"{name} {count:,}" for name, count in report.get("sources", {}).items())
    named = f"; sources of train: {sources}" if sources else ""
    print(f"{folder}: {'-'.join(languages)} pairs: {counts}; dropped: {reasons}{named}")


def warn_of_empty_sources(languages: TextPair, report: dict) -> None:
    """Name each source of which no pair is left to train on."""
    for name in (name for name, count in report.get("sources", {}).items() if not count):
        of_all = f" of {report[BEFORE][name]:,}" if name in report.get(BEFORE, ()) else ""
        say(
            f"lxsr prepare: warning: {'-'.join(languages)}: source {name} has 0{of_all} pairs left to train on; "
            "--keep-dropped writes what was dropped, and why"
        )


def _read(
    source: Source, languages: TextPair, dropped: Counter
) -> Iterator[tuple[str, list[TextPair]]]:
    """Read blocks of pairs, each with the name of its source; a single text has none."""
    for name, part in (source.parts or {"": source}).items():
        desc = " ".join(("-".join(languages), name)).strip()
        pairs = Progress(part.read(dropped), desc=desc, unit=" pairs", disable=None)
        yield from ((name, block) for block in in_blocks(pairs))


def _store(
    results: Iterable[Cleaned], parts: Path, dropped: Counter, drops: IO | None
) -> tuple[Counter, Counter]:
    """Write the kept pairs to parts/0 and parts/1, and their keys to parts/keys; count all and the
    kept by source.
    """
    before: Counter = Counter()
    kept: Counter = Counter()
    with (
        open(parts / "0", "w", encoding="utf-8", errors="replace", newline="\n") as left,
        open(parts / "1", "w", encoding="utf-8", errors="replace", newline="\n") as right,
        open(parts / "keys", "wb") as keys,
    ):
        for result in results:
            left.write(result.source)
            right.write(result.target)
            keys.write(result.keys.tobytes())
            before[result.name] += len(result.keys) + len(result.dropped)
            kept[result.name] += len(result.keys)
            dropped.update(reason for reason, _ in result.dropped)
            if drops:
                drops.writelines(f"{reason}\t{a}\t{b}\n" for reason, (a, b) in result.dropped)
    return before, kept


def _check_size(counts: np.ndarray, held_out: HeldOut, where: str, is_messages: bool) -> None:
    usable = int(counts[[TRAIN, VALID, TEST, HELD_OUT]].sum())
    valid_size, test_size = held_out.sizes(usable)
    if (
        counts[TRAIN] < max(1, valid_size + test_size)
        or counts[VALID] < valid_size
        or counts[TEST] < test_size
    ):
        raise InputError(
            f"{where}: {usable:,} usable sentence pairs, {counts[TRAIN]:,} without a sentence of the held-out ones; "
            f"expected at least {max(1, 2 * (valid_size + test_size)):,} to hold out {valid_size:,} for validation and "
            f"{test_size:,} for testing: give more text, milder filters, or smaller --valid-size and --test-size"
            f"{f'; {ALTERNATIVES}' if is_messages else ''}"
        )


def _write(
    parts: Path, work: Path, languages: TextPair, assigned: np.ndarray, drops: IO | None
) -> None:
    """Distribute the kept pairs over the files of the splits, in their order."""
    for side, language in enumerate(languages):
        with ExitStack() as stack:
            text = stack.enter_context(open(parts / str(side), "rb"))
            outputs = [
                stack.enter_context(open(work / f"{split}.{language}", "wb")) for split in SPLITS
            ]
            start = 0
            for lines in in_blocks(text):
                here = assigned[start : start + len(lines)]
                start += len(lines)
                for split, output in enumerate(outputs):
                    output.writelines(itertools.compress(lines, here == split))
    if drops:
        texts = (read_lines(parts / str(side), is_sentence=False) for side in (0, 1))
        for split, a, b in zip(assigned, *texts, strict=True):
            if split > TEST:
                drops.write(
                    f"{'repeated' if split == REPEATED else 'held out in another pair'}\t{a}\t{b}\n"
                )
