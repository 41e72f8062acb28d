"""Builds a corpus folder: aligned train, valid and test text for one language pair.

No sentence is in two splits. The number of pairs is unlimited: text is cleaned in blocks by several
processes, and pairs are compared by keys and flags instead of their text. The result does not
depend on the number of processes.
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
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.files.entities import ENTITIES, EntityReader
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
    NO_LETTERS,
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
from fairseq_lxsr.preparation.workers import ordered_map
from fairseq_lxsr.text.data_folder import count_sources, write_sources
from fairseq_lxsr.text.tokenizer import TextOptions

SPLITS = ("train", "valid", "test")
DEFAULT_HELD_OUT = HeldOut()
DROPPED_FILE = "dropped.tsv.gz"
# Maximum number of words in a training sentence; longer lines are treated as documents.
MAX_WORDS = 10_000
# File in a corpus folder with the number of training pairs per named source.
SOURCES_FILE = "sources.json"
# Report key for the number of pairs per named source before cleaning.
BEFORE_CLEANING = "sources before cleaning"
# Report key for excluded texts without any sentence in the corpus.
NOT_IN_TEXT = "excluded texts not in the text"
# Report key for the number of pairs in which HTML entities were replaced.
UNESCAPED = "HTML entities replaced"
# Report key for the number of pairs in which HTML entities were kept.
KEPT_ENTITIES = "HTML entities kept"
# Maps assignments to the reasons why pairs are dropped.
REASONS = {REPEATED: "repeated", HELD_OUT: "held out in another pair"}


@dataclass
class Cleaned:
    """The result of cleaning a block of pairs from one source.

    Attributes:
        name: name of the source; empty for text without named sources.
        source: kept source sentences, one per line.
        target: translations of the kept sentences, one per line.
        keys: keys of the kept pairs, KEY [pairs].
        dropped: reason and text of each dropped pair.
        excluded: keys of the excluded sentences that occur in the block.
    """

    name: str
    source: str
    target: str
    keys: np.ndarray
    dropped: list[tuple[str, TextPair]]
    excluded: set[int]


# State of a worker process, set by `_start`.
_filters: Filters = {}
_excluded: frozenset[int] = frozenset()
_letters = NO_LETTERS


def _start(
    filters: Mapping[str, Mapping[str, Any]],
    languages: TextPair,
    excluded: frozenset[int],
    letters: Mapping[int, str],
) -> None:
    """Initialize a worker process with the data that `clean_block` needs."""
    global _filters, _excluded, _letters
    _filters = make_filters(filters, languages)
    _excluded = excluded
    _letters = letters


def clean_block(block: tuple[str, list[TextPair]]) -> Cleaned:
    """Clean a block of pairs from one source, in a worker process initialized by `_start`.

    This removes invisible characters and repeated spaces, applies the filters, and computes the
    keys of the kept pairs.
    """
    name, pairs = block
    kept_pairs: list[TextPair] = []
    keys: list[tuple[int, int]] = []
    dropped: list[tuple[str, TextPair]] = []
    excluded: set[int] = set()
    for source, target in pairs:
        pair = (_single_spaces(source), _single_spaces(target))
        reason = _reason_not_a_sentence(pair) or first_failing_filter(pair, _filters)
        if reason is None:
            # Excluded text is compared by sentence keys, like repeated and held-out text.
            key = (sentence_key(pair[0], _letters), sentence_key(pair[1], _letters))
            if _excluded and not _excluded.isdisjoint(key):
                reason = "excluded"
                excluded |= _excluded.intersection(key)
            else:
                kept_pairs.append(pair)
                keys.append(key)
        if reason is not None:
            dropped.append((reason, pair))
    source_text = "".join(f"{pair[0]}\n" for pair in kept_pairs)
    target_text = "".join(f"{pair[1]}\n" for pair in kept_pairs)
    return Cleaned(name, source_text, target_text, np.array(keys, dtype=KEY), dropped, excluded)


def _single_spaces(text: str) -> str:
    return " ".join(visible(text).replace("\0", " ").split())


def _reason_not_a_sentence(pair: TextPair) -> str | None:
    """Return why a side is not a sentence, or None if both sides are sentences."""
    if any(map(is_blank, pair)):
        return "empty side"
    if any(side.count(" ") >= MAX_WORDS for side in pair):
        return "over 10,000 words"
    if any(len(side.encode("utf-8", "replace")) > SENTENCE_BYTES for side in pair):
        return "over 1 MiB"
    return None


def make_corpus(
    folder: Path,
    languages: TextPair,
    source: Source,
    cleaning: Cleaning = DEFAULT_CLEANING,
    held_out: HeldOut = DEFAULT_HELD_OUT,
    workers: int = 1,
    read_as: str = "",
) -> dict:
    """Run the corpus stage, and return its report. The stage is skipped if nothing has changed.

        source = find_source("text", "en", "fr")
        report = make_corpus(Path("corpus"), ("en", "fr"), source)
        print(report["pairs"])

    Args:
        folder: output corpus folder, with files SPLIT.LANG that contain one sentence per line.
        languages: source and target language.
        source: text of the pair.
        cleaning: filters, and the definition of duplicates.
        held_out: sizes of the splits valid and test.
        workers: number of processes; the result does not depend on it.
        read_as: letters that the model reads as others, for the comparison of sentences; see
            `TextOptions`.

    Returns:
        Number of pairs per split, of dropped pairs per reason, and of training pairs per named
        source.

    Raises:
        InputError: if an option does not support the languages, or too few pairs are left.
    """
    cleaning = cleaning.for_text(source.is_messages)
    filters = cleaning.filters or {}
    letters = TextOptions(read_as=read_as).table
    # Report mistakes in the filters before reading any text.
    make_filters(filters, languages)
    sets_to_exclude = {name: files_to_exclude([name], *languages) for name in cleaning.exclude}
    to_exclude = list(itertools.chain.from_iterable(sets_to_exclude.values()))

    def build(work: Path) -> dict:
        excluded = keys_of(map(sentences_to_exclude, to_exclude), letters)
        dropped: Counter = Counter()
        entities: Counter = Counter()
        parts = work / "parts"
        parts.mkdir()
        with ExitStack() as stack:
            drops = None
            if cleaning.keep_dropped:
                drops = stack.enter_context(atomic_write(work / DROPPED_FILE))
            results = ordered_map(
                clean_block,
                _read(source, languages, cleaning.entities, dropped, entities),
                workers,
                _start,
                (filters, languages, excluded, letters),
            )
            sizes_before, sizes_after, found_keys = _store(results, parts, dropped, drops)
            assigned = assign_splits(parts / "keys", cleaning.repeats or "", held_out)
            counts = np.array([np.count_nonzero(assigned == split) for split in ASSIGNMENTS])
            text_name = f"{'-'.join(languages)} from {source.name}"
            _check_size(counts, held_out, text_name, source.is_messages)
            _write(parts, work, languages, assigned, drops)
        # The parts are intermediate files, which do not belong in the corpus folder.
        shutil.rmtree(parts)
        report = _report(counts, dropped) | _write_sources(
            work, source, sizes_before, sizes_after, assigned
        )
        report |= +entities
        if cleaning.exclude:
            report[NOT_IN_TEXT] = _sets_not_in_text(sets_to_exclude, found_keys, letters)
        return report

    options: dict[str, Any] = {
        "pair": list(languages),
        "data": source.name,
        "valid": held_out.valid_size,
        "test": held_out.test_size,
        "seed": held_out.seed,
        "drawn by": held_out.shared_side,
        "cleaning": asdict(cleaning),
    }
    if read_as:
        options["read_as"] = read_as
    inputs = [*source.files, *_models(filters), *to_exclude]
    report = run_stage(folder, options, inputs, build)
    print_corpus(folder, languages, report)
    return report


def _sets_not_in_text(
    sets_to_exclude: Mapping[str, Iterable[Path]],
    found_keys: set[int],
    letters: Mapping[int, str],
) -> list[str]:
    """Return the names of the excluded texts that have no sentence in common with the corpus."""
    names: list[str] = []
    for name, files in sets_to_exclude.items():
        sentences = itertools.chain.from_iterable(map(sentences_to_exclude, files))
        if not any(sentence_key(sentence, letters) in found_keys for sentence in sentences):
            names.append(name)
    return names


def _models(filters: Mapping[str, Mapping[str, Any] | None]) -> list[Path]:
    """Return the model files used by the filters."""
    models: list[Path] = []
    for values in filters.values():
        method = (values or {}).get("method", "")
        if Path(method).is_file():
            models.append(Path(method))
    return models


def _report(counts: np.ndarray, dropped: Counter) -> dict:
    """Return the number of pairs per split, and of dropped pairs per reason.

    `counts` is in the order of ASSIGNMENTS.
    """
    for split, reason in REASONS.items():
        dropped[reason] += int(counts[split])
    return {
        "pairs": dict(zip(SPLITS, counts[:3].tolist(), strict=True)),
        "dropped": sort_reasons(dropped),
    }


def _write_sources(
    work: Path, source: Source, sizes_before: Counter, sizes_after: Counter, assigned: np.ndarray
) -> dict:
    """Write the number of training pairs per named source, and return it as report entries.

    Pairs are ordered by source in the training text. The sizes are the numbers of pairs per source
    before and after cleaning.
    """
    if not source.parts:
        return {}
    sizes = {name: sizes_after[name] for name in source.parts}
    sources = count_sources(sizes, assigned == TRAIN)
    write_sources(work / SOURCES_FILE, sources)
    return {
        "sources": sources,
        BEFORE_CLEANING: {name: sizes_before[name] for name in source.parts},
    }


def sort_reasons(dropped: Counter) -> dict[str, int]:
    """Sort the counts by reason, because their order depends on the timing of workers."""
    return dict(sorted((+dropped).items()))


def print_corpus(folder: Path, languages: TextPair, report: dict) -> None:
    """Print a one-line summary of a corpus folder."""
    counts = ", ".join(f"{count:,} {split}" for split, count in report["pairs"].items())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items())
    sources = ", ".join(f"{name} {count:,}" for name, count in report.get("sources", {}).items())
    line = f"{folder}: {'-'.join(languages)} pairs: {counts}; dropped: {reasons or 'none'}"
    if sources:
        line += f"; sources of train: {sources}"
    if UNESCAPED in report:
        line += f"; HTML entities replaced in {report[UNESCAPED]:,} pairs"
    print(line)


def warn_of_empty_sources(languages: TextPair, report: dict) -> None:
    """Warn about each source without any remaining training pairs."""
    sizes = report.get(BEFORE_CLEANING, {})
    for name, count in report.get("sources", {}).items():
        if count:
            continue
        size = f" of {sizes[name]:,}" if name in sizes else ""
        say(
            f"lxsr prepare: warning: {'-'.join(languages)}: source {name} has 0{size} training "
            "pairs left; use --keep-dropped to write the dropped pairs with the reasons"
        )


def warn_of_entities(languages: TextPair, report: dict) -> None:
    """Warn if HTML entities were kept, because only a part of the text is escaped."""
    if KEPT_ENTITIES in report:
        say(
            f"lxsr prepare: warning: {'-'.join(languages)}: {report[KEPT_ENTITIES]:,} pairs have "
            "HTML entities such as &amp;; --entities unescape replaces them, --entities keep hides "
            "this warning"
        )


def report_sets_not_in_text(reports: Mapping[TextPair, dict]) -> None:
    """Warn about excluded texts that have no sentence in common with any language pair."""
    sets = [report[NOT_IN_TEXT] for report in reports.values() if NOT_IN_TEXT in report]
    if not sets:
        return
    for name in sets[0]:
        if all(name in names for names in sets):
            say(
                f"lxsr prepare: warning: --exclude {name}: none of its sentences occurs in the "
                "text; check that it is the right text, with one sentence per line or in a format "
                "that --data supports"
            )


def _read(
    source: Source, languages: TextPair, choice: str, dropped: Counter, entities: Counter
) -> Iterator[tuple[str, list[TextPair]]]:
    """Yield blocks of pairs, each with its source name (empty for text without named sources).

    Args:
        source: the text.
        languages: source and target language.
        choice: what to do with HTML entities.
        dropped: counts skipped pairs by reason.
        entities: counts the pairs with HTML entities.
    """
    for name, part in (source.parts or {"": source}).items():
        desc = f"{'-'.join(languages)} {name}".strip()
        reader = EntityReader(choice)
        pairs = reader.read(part.read(dropped))
        for block in in_blocks(Progress(pairs, desc=desc, unit=" pairs")):
            yield name, block
        entities[UNESCAPED] += reader.num_unescaped
        if choice == ENTITIES[0]:
            entities[KEPT_ENTITIES] += reader.num_kept


def _store(
    results: Iterable[Cleaned], parts: Path, dropped: Counter, drops: IO | None
) -> tuple[Counter, Counter, set[int]]:
    """Write the two sides of the kept pairs to parts/0 and parts/1, and their keys to parts/keys.

    Returns:
        Number of pairs per source before and after cleaning, and keys of the excluded sentences
        that occur in the text.
    """
    sizes_before: Counter = Counter()
    sizes_after: Counter = Counter()
    found_keys: set[int] = set()
    with (
        open(parts / "0", "w", encoding="utf-8", errors="replace", newline="\n") as source_text,
        open(parts / "1", "w", encoding="utf-8", errors="replace", newline="\n") as target_text,
        open(parts / "keys", "wb") as keys,
    ):
        for result in results:
            source_text.write(result.source)
            target_text.write(result.target)
            keys.write(result.keys.tobytes())
            sizes_before[result.name] += len(result.keys) + len(result.dropped)
            sizes_after[result.name] += len(result.keys)
            found_keys |= result.excluded
            dropped.update(reason for reason, _ in result.dropped)
            if drops:
                drops.writelines(f"{reason}\t{a}\t{b}\n" for reason, (a, b) in result.dropped)
    return sizes_before, sizes_after, found_keys


def _check_size(counts: np.ndarray, held_out: HeldOut, text_name: str, is_messages: bool) -> None:
    """Raise `InputError` if too few pairs are left for the held-out splits and for training."""
    usable = int(counts[[TRAIN, VALID, TEST, HELD_OUT]].sum())
    valid_size, test_size = held_out.sizes(usable)
    if (
        counts[TRAIN] < max(1, valid_size + test_size)
        or counts[VALID] < valid_size
        or counts[TEST] < test_size
    ):
        alternatives = f"; {ALTERNATIVES}" if is_messages else ""
        raise InputError(
            f"{text_name}: {usable:,} usable sentence pairs, {counts[TRAIN]:,} of them without a "
            f"held-out sentence; at least {max(1, 2 * (valid_size + test_size)):,} are required to "
            f"hold out {valid_size:,} for validation and {test_size:,} for testing: use more text, "
            f"less strict filters, or smaller --valid-size and --test-size{alternatives}"
        )


def _write(
    parts: Path, work: Path, languages: TextPair, assigned: np.ndarray, drops: IO | None
) -> None:
    """Write the pairs of each split to its files, in the original order.

    Repeated and held-out pairs are appended to `drops`, if given.
    """
    for side, language in enumerate(languages):
        with ExitStack() as stack:
            text = stack.enter_context(open(parts / str(side), "rb"))
            outputs = [
                stack.enter_context(open(work / f"{split}.{language}", "wb")) for split in SPLITS
            ]
            start = 0
            for lines in in_blocks(text):
                splits = assigned[start : start + len(lines)]
                start += len(lines)
                for split, output in enumerate(outputs):
                    output.writelines(itertools.compress(lines, splits == split))
    # Append the pairs dropped after cleaning to the pairs that the filters dropped.
    if drops:
        sources = read_lines(parts / "0", is_sentence=False)
        targets = read_lines(parts / "1", is_sentence=False)
        for split, source, target in zip(assigned, sources, targets, strict=True):
            if split > TEST:
                drops.write(f"{REASONS[split]}\t{source}\t{target}\n")
