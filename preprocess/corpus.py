"""A corpus folder: train, valid and test of one language pair, aligned, with no sentence in two splits."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write, read_lines, read_parallel
from preprocess.clean import Pair, comparable
from preprocess.gettext_harvest import ALTERNATIVES, LOCALE_FOLDERS, harvest, input_files
from preprocess.stages import run_stage

SPLITS = ("train", "valid", "test")


def read_tsv(path: Path) -> Iterator[Pair]:
    """Two tab-separated columns; further columns are left out.

    Raises: InputError for a line with fewer, and as `read_lines`.
    """
    count = 0
    for count, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise InputError(f"{path}, line {count}: {line[:60]!r} has no tab; expected `source<TAB>target`")
        yield columns[0], columns[1]
    if not count:
        raise InputError(f"{path}: empty file; expected `source<TAB>target` lines")


def own_files(data: str, source: str, target: str) -> list[Path]:
    """What `--data` stands for: one .tsv(.gz) file, or PREFIX.SRC and PREFIX.TGT, each as it is or with .gz."""
    if data.removesuffix(".gz").endswith(".tsv"):
        if not Path(data).is_file():
            raise InputError(f"{data}: no such file; expected `source<TAB>target` lines")
        return [Path(data)]
    files = []
    for language in (source, target):
        candidates = [Path(f"{data}.{language}{ending}") for ending in ("", ".gz", ".txt", ".txt.gz")]
        found = [path for path in candidates if path.is_file()]
        if not found:
            raise InputError(
                f"{data}.{language}: no such file (nor with .gz or .txt); expected PREFIX.{source} and "
                f"PREFIX.{target}, or one .tsv file"
            )
        files.append(found[0])
    return files


def read_own(files: Sequence[Path], dropped: Counter) -> Iterator[Pair]:
    """Pairs of one's own files; tabs and pairs with an empty side are left out."""
    pairs = read_tsv(files[0]) if len(files) == 1 else read_parallel(*files)
    for pair in pairs:
        if all(side.strip() for side in pair):
            yield pair
        else:
            dropped["empty side"] += 1


def split(pairs: Iterable[Pair], valid_size: int, test_size: int, seed: int, dropped: Counter) -> dict[str, list[Pair]]:
    """Shuffle and split so that no sentence of either side (compared without case and punctuation) is in two splits.

    Raises: InputError where less text is left for training than is held out.
    """
    shuffled = list(pairs)
    random.Random(seed).shuffle(shuffled)
    wanted = {"test": test_size, "valid": valid_size}
    splits: dict[str, list[Pair]] = {name: [] for name in SPLITS}
    held: tuple[set[str], set[str]] = (set(), set())
    for pair in shuffled:
        keys = [comparable(side) for side in pair]
        repeats = any(key in known for key, known in zip(keys, held, strict=True))
        name = next((name for name, size in wanted.items() if len(splits[name]) < size), None)
        if repeats:
            dropped["held out in another pair"] += 1
        elif name is None:
            splits["train"].append(pair)
        else:
            splits[name].append(pair)
            for key, known in zip(keys, held, strict=True):
                known.add(key)
    if len(splits["train"]) < valid_size + test_size:
        raise InputError(
            f"{len(shuffled):,} usable sentence pairs; expected at least {2 * (valid_size + test_size):,} to hold out "
            f"{valid_size:,} for validation and {test_size:,} for testing: give more text, or smaller --valid-size "
            "and --test-size"
        )
    return splits


def write_splits(folder: Path, splits: dict[str, list[Pair]], source: str, target: str) -> None:
    for name, pairs in splits.items():
        for side, language in enumerate((source, target)):
            with atomic_write(folder / f"{name}.{language}") as stream:
                stream.writelines(" ".join(pair[side].split()) + "\n" for pair in pairs)


def make_corpus(
    folder: Path,
    source: str,
    target: str,
    data: str | None = None,
    locale_folders: Sequence[Path] = LOCALE_FOLDERS,
    valid_size: int = 1000,
    test_size: int = 2000,
    seed: int = 1,
) -> dict:
    """The corpus stage: one's own files (`data`), or the gettext catalogues of this machine.

    Returns: a report with the size of every split and how many pairs were dropped, by reason.
    """
    files = input_files(source, target, locale_folders) if data is None else own_files(data, source, target)

    def build(work: Path) -> dict:
        dropped: Counter = Counter()
        pairs = harvest(source, target, dropped, locale_folders) if data is None else read_own(files, dropped)
        try:
            splits = split(pairs, valid_size, test_size, seed, dropped)
        except InputError as error:
            raise InputError(
                f"{source}-{target} from {data or 'gettext catalogues'}: {error}"
                + ("" if data else f"; {ALTERNATIVES}")
            ) from None
        write_splits(work, splits, source, target)
        return {"pairs": {name: len(pairs) for name, pairs in splits.items()}, "dropped": dict(dropped)}

    options = {"pair": [source, target], "data": data, "valid": valid_size, "test": test_size, "seed": seed}
    report = run_stage(folder, options, files, build)
    counts = ", ".join(f"{count:,} {name}" for name, count in report["pairs"].items())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items()) or "none"
    print(f"{folder}: {source}-{target} pairs: {counts}; dropped: {reasons}")
    return report
