"""A corpus folder: train, valid and test of one language pair, aligned, with no sentence in two splits.

Any number of pairs: text passes through in blocks, worked on in several processes; only keys and marks of the pairs,
not their text, are looked at together. The result does not depend on the number of processes.
"""

import gzip
import hashlib
import io
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import MAX_WORDS, atomic_write, read_lines, read_parallel
from preprocess.clean import MESSAGE_FILTERS, Filters, Pair, comparable, first_objection, make_filters
from preprocess.deduplicate import KEY, REPEATS, repeated
from preprocess.formats import Source
from preprocess.messages import ALTERNATIVES
from preprocess.stages import MANIFEST, run_stage
from preprocess.workers import blocks, ordered_map

SPLITS = ("train", "valid", "test")
TRAIN, VALID, TEST, REPEATED, HELD_OUT = range(5)  # what becomes of a pair
DRAWS = 2_000_000  # pairs that are candidates for the held-out splits, at most
DROPPED_FILE = "dropped.tsv.gz"
LEAK = "held out in another language pair"


@dataclass(frozen=True)
class Cleaning:
    """What is left out before a corpus is split.

    Args:
        filters: by name, each with its options; see `clean.FILTERS`. None for what suits the text: program messages are
            filtered, one's own text is not.
        repeats: what counts as a repetition (sentences compared without case, punctuation and digits): a `pair`, a
            `side`, or nothing (`keep`). None for what suits the text: each side of a message is used once, each pair of
            one's own text.
        exclude: text files, usually of evaluation sets; a pair with one of their lines on either side is left out.
        keep_dropped: write what is left out, with the reason, to `dropped.tsv.gz`.
    """

    filters: Mapping[str, Mapping[str, Any]] | None = None
    repeats: str | None = None
    exclude: tuple[str, ...] = ()
    keep_dropped: bool = False

    def __post_init__(self):
        if self.repeats not in (None, *REPEATS):
            raise InputError(f"repeats {self.repeats!r}; expected one of {', '.join(REPEATS)}")

    def suited(self, is_messages: bool) -> "Cleaning":
        """The same with everything decided."""
        filters = self.filters if self.filters is not None else (MESSAGE_FILTERS if is_messages else {})
        return replace(self, filters=filters, repeats=self.repeats or ("side" if is_messages else "pair"))


@dataclass
class Cleaned:
    """What a process makes of a block of pairs."""

    source: str
    target: str
    keys: np.ndarray
    dropped: list[tuple[str, Pair]]


def sentence_key(text: str) -> int:
    """64 bits that sentences share when they are the same but for case, punctuation and digits."""
    return int.from_bytes(
        hashlib.blake2b(comparable(text).encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


_filters: Filters = {}
_excluded: frozenset[int] = frozenset()


def _start(filters: Mapping[str, Mapping[str, Any]], languages: Pair, excluded: frozenset[int]) -> None:
    global _filters, _excluded
    _filters, _excluded = make_filters(filters, languages), excluded


def clean_block(pairs: list[Pair]) -> Cleaned:
    """Filter a block of pairs, blanks made single, and compute the keys of what is kept."""
    kept: list[Pair] = []
    keys: list[tuple[int, int]] = []
    dropped: list[tuple[str, Pair]] = []
    for source, target in pairs:
        pair = _single_blanks(source), _single_blanks(target)
        reason = _no_sentence(pair) or first_objection(pair, _filters)
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
    return Cleaned(left, right, np.array(keys, dtype=KEY), dropped)


def _single_blanks(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())


def _no_sentence(pair: Pair) -> str | None:
    if not all(pair):
        return "empty side"
    return "over 10,000 words" if any(side.count(" ") >= MAX_WORDS for side in pair) else None


def make_corpus(
    folder: Path,
    languages: Pair,
    source: Source,
    name: str,
    cleaning: Cleaning = Cleaning(),
    valid_size: int = 1000,
    test_size: int = 2000,
    seed: int = 1,
    workers: int = 1,
) -> dict:
    """The corpus stage.

    Args:
        source: the text; `name` stands for it in messages.
        workers: processes; the result does not depend on it.
    Returns: a report with the size of every split and how many pairs were dropped, by reason.
    Raises: InputError where less text is left for training than is held out.
    """
    cleaning = cleaning.suited(source.is_messages)
    filters, repeats = cleaning.filters or {}, cleaning.repeats or ""
    make_filters(filters, languages)  # complains before anything is read
    excluded = excluded_keys(cleaning.exclude)

    def build(work: Path) -> dict:
        dropped: Counter = Counter()
        parts = work / "parts"
        parts.mkdir()
        with ExitStack() as stack:
            drops = stack.enter_context(_dropped_file(work)) if cleaning.keep_dropped else None
            pairs = tqdm(source.read(dropped), desc="-".join(languages), unit=" pairs", disable=None)
            _clean(pairs, parts, languages, filters, excluded, workers, dropped, drops)
            fates = _fates(parts / "keys", repeats, valid_size, test_size, seed)
            counts = np.array([np.count_nonzero(fates == fate) for fate in range(5)])
            _check_size(counts, valid_size, test_size, f"{'-'.join(languages)} from {name}", source.is_messages)
            _write(parts, work, languages, fates, drops)
        shutil.rmtree(parts)
        for reason, fate in (("repeated", REPEATED), ("held out in another pair", HELD_OUT)):
            dropped[reason] += int(counts[fate])
        return {"pairs": dict(zip(SPLITS, counts[:3].tolist(), strict=True)), "dropped": _sorted(dropped)}

    options = {
        "pair": list(languages),
        "data": name,
        "valid": valid_size,
        "test": test_size,
        "seed": seed,
        "cleaning": asdict(cleaning),
    }
    models = [Path(given["method"]) for given in filters.values() if Path(given.get("method", "")).is_file()]
    report = run_stage(folder, options, [*source.files, *models, *map(Path, cleaning.exclude)], build)
    _say(folder, languages, report)
    return report


def _sorted(dropped: Counter) -> dict[str, int]:
    """In an order that does not depend on which process was first."""
    return dict(sorted((+dropped).items()))


def _say(folder: Path, languages: Pair, report: dict) -> None:
    counts = ", ".join(f"{count:,} {split}" for split, count in report["pairs"].items())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items()) or "none"
    print(f"{folder}: {'-'.join(languages)} pairs: {counts}; dropped: {reasons}")


def drop_leaks(folder: Path, languages: Pair, cleaned: Path, others: Mapping[Pair, Path], workers: int = 1) -> dict:
    """The stage after cleaning, where several pairs share a language: no held-out sentence of one pair trains another.

    Args:
        cleaned: the corpus folder of this pair; everything but its training text is copied.
        others: the corpus folders of the other pairs.
    """
    held_files = {
        language: [
            other / f"{split}.{language}" for pair, other in others.items() if language in pair for split in SPLITS[1:]
        ]
        for language in languages
    }
    texts = [cleaned / f"{split}.{language}" for split in SPLITS for language in languages]

    def build(work: Path) -> dict:
        for path in cleaned.iterdir():
            if path.name not in (MANIFEST, *(f"train.{language}" for language in languages)):
                shutil.copyfile(path, work / path.name)
        held = [excluded_keys(list(map(str, held_files[language]))) for language in languages]
        report = json.loads((cleaned / MANIFEST).read_text(encoding="utf-8"))["report"]
        source, target = (cleaned / f"train.{language}" for language in languages)
        pairs = read_parallel(source, target, max_words=None)
        kept = 0
        with ExitStack() as stack:
            outputs = [
                stack.enter_context(open(work / f"train.{language}", "w", encoding="utf-8", newline="\n"))
                for language in languages
            ]
            drops = stack.enter_context(_more_dropped(work)) if (work / DROPPED_FILE).exists() else None
            for block, leaks in ordered_map(_split_leaks, blocks(pairs), workers, _start_held, (held,)):
                kept += len(block)
                for side, output in enumerate(outputs):
                    output.writelines(f"{pair[side]}\n" for pair in block)
                if drops:
                    drops.writelines(f"{LEAK}\t{a}\t{b}\n" for a, b in leaks)
        dropped = Counter(report["dropped"]) + Counter({LEAK: report["pairs"]["train"] - kept})
        return {"pairs": report["pairs"] | {"train": kept}, "dropped": _sorted(dropped)}

    inputs = [*texts, *itertools.chain.from_iterable(held_files.values())]
    report = run_stage(
        folder, {"pair": list(languages), "without leaks of": sorted(map("-".join, others))}, inputs, build
    )
    _say(folder, languages, report)
    return report


_held: list[frozenset[int]] = []


def _start_held(held: list[frozenset[int]]) -> None:
    global _held
    _held = held


def _split_leaks(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """What may train, and what must not."""
    sides: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in pairs:
        is_leak = any(sentence_key(text) in known for text, known in zip(pair, _held, strict=True))
        sides[is_leak].append(pair)
    return sides


@contextmanager
def _more_dropped(work: Path) -> Iterator[IO[str]]:
    """To go on with a file of dropped pairs: packed files that follow each other are one."""
    with open(work / DROPPED_FILE, "ab") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield text
        text.flush()


def excluded_keys(paths: Sequence[str]) -> frozenset[int]:
    """Keys of the lines of text files, and of their columns where there are tabs.

    Raises: InputError for files that are no lines of text.
    """
    for path in paths:
        if Path(path).suffix in (".tmx", ".po", ".mo"):
            raise InputError(f"{path}: cannot be excluded; expected text, one sentence a line, or columns with tabs")
    lines = itertools.chain.from_iterable(read_lines(path) for path in paths)
    texts = itertools.chain.from_iterable({line, *line.split("\t")} for line in lines)
    return frozenset(sentence_key(text) for text in texts if text.strip())


def _dropped_file(work: Path) -> AbstractContextManager[IO]:
    return atomic_write(work / DROPPED_FILE)


def _clean(pairs, parts: Path, languages, filters, excluded, workers: int, dropped: Counter, drops: IO | None) -> None:
    """Write what is kept to parts/0 and parts/1, its keys to parts/keys."""
    results = ordered_map(clean_block, blocks(pairs), workers, _start, (filters, languages, excluded))
    with (
        open(parts / "0", "w", encoding="utf-8", errors="replace", newline="\n") as left,
        open(parts / "1", "w", encoding="utf-8", errors="replace", newline="\n") as right,
        open(parts / "keys", "wb") as keys,
    ):
        for result in results:
            left.write(result.source)
            right.write(result.target)
            keys.write(result.keys.tobytes())
            dropped.update(reason for reason, _ in result.dropped)
            if drops:
                drops.writelines(f"{reason}\t{a}\t{b}\n" for reason, (a, b) in result.dropped)


def _fates(keys: Path, repeats: str, valid_size: int, test_size: int, seed: int) -> np.ndarray:
    """What becomes of each pair that the filters kept: uint8 [N].

    Held-out pairs are drawn at random; no sentence of theirs, on its side, is in another split.
    """
    marked = repeated(keys, repeats)
    fates = marked.astype(np.uint8) * np.uint8(REPEATED)
    if not len(fates):
        return fates
    rows = np.memmap(keys, dtype=KEY, mode="r")
    held: tuple[set[int], set[int]] = (set(), set())
    free = {TEST: test_size, VALID: valid_size}
    for place in _draws(len(fates), seed):
        fate = next((name for name, size in free.items() if size), None)
        if fate is None:
            break
        key = rows[place].item()
        if fates[place] == TRAIN and not any(side in known for side, known in zip(key, held, strict=True)):
            fates[place] = fate
            free[fate] -= 1
            for side, known in zip(key, held, strict=True):
                known.add(side)
    for side, name in enumerate(KEY.names or ()):
        held_keys = np.fromiter(held[side], dtype=np.uint64, count=len(held[side]))
        for start in range(0, len(fates), DRAWS):
            here = slice(start, start + DRAWS)
            leaks = np.isin(rows[name][here], held_keys) & (fates[here] == TRAIN)
            fates[here][leaks] = HELD_OUT
    return fates


def _draws(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(count) if count <= DRAWS else rng.permutation(np.unique(rng.integers(count, size=DRAWS)))


def _check_size(counts: np.ndarray, valid_size: int, test_size: int, where: str, is_messages: bool) -> None:
    usable = int(counts[[TRAIN, VALID, TEST, HELD_OUT]].sum())
    if counts[TRAIN] < valid_size + test_size or counts[VALID] < valid_size or counts[TEST] < test_size:
        raise InputError(
            f"{where}: {usable:,} usable sentence pairs, {counts[TRAIN]:,} without a sentence of the held-out ones; "
            f"expected at least {2 * (valid_size + test_size):,} to hold out {valid_size:,} for validation and "
            f"{test_size:,} for testing: give more text, milder filters, or smaller --valid-size and --test-size"
            f"{f'; {ALTERNATIVES}' if is_messages else ''}"
        )


def _write(parts: Path, work: Path, languages: Pair, fates: np.ndarray, drops: IO | None) -> None:
    """Distribute the kept pairs over the files of the splits, in their order."""
    for side, language in enumerate(languages):
        with ExitStack() as stack:
            text = stack.enter_context(open(parts / str(side), "rb"))
            outputs = [stack.enter_context(open(work / f"{split}.{language}", "wb")) for split in SPLITS]
            for start, lines in _with_places(text):
                here = fates[start : start + len(lines)]
                for fate, output in enumerate(outputs):
                    output.writelines(itertools.compress(lines, here == fate))
    if drops:
        texts = (read_lines(parts / str(side), max_words=None) for side in (0, 1))
        for fate, a, b in zip(fates, *texts, strict=True):
            if fate > TEST:
                drops.write(f"{'repeated' if fate == REPEATED else 'held out in another pair'}\t{a}\t{b}\n")


def _with_places(lines: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    place = 0
    for block in blocks(lines):
        yield place, block
        place += len(block)
