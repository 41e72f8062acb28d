"""Training text of the benchmarks, prepared for fairseq-train."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.script import lxsr
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.text.tokenizer import FILLER

FILES = {  # of each kind of text; another file is a kind of its own
    "law": "calaws-acts calaws-annual calaws-regs",
    "software": "tech appstream ddtp ddtpbr debdocs lohelp lohelpbr msdyn365-ht mswin32-ht",
    "everyday": "tatoeba tatoeba-manythings smallenja",
    "captions": "multi30k",
    "other": "diabla tico19 wesnoth",
}
KINDS = {name: kind for kind, names in FILES.items() for name in names.split()}


def training_files(
    data: Path, pair: str, folders: Sequence[str] = ("train",)
) -> list[tuple[Path, Path]]:
    """The aligned files DIR/FOLDER/NAME.PAIR.LANG.txt.gz; Multi30k has more languages and no pair
    in its name.
    """
    parts = []
    for path in (
        path for folder in folders for path in sorted((data / folder).glob("*.en.txt.gz"))
    ):
        name = path.name.removesuffix(".en.txt.gz")
        other = path.with_name(f"{name}.{pair[3:]}.txt.gz")
        if other.is_file() and (pair in name or "-" not in name):
            parts.append((path, other))
    return parts


def training_pairs(
    data: Path, pair: str, folders: Sequence[str] = ("train",)
) -> Iterator[tuple[str, str]]:
    """All pairs of a language pair."""
    for part in training_files(data, pair, folders):
        yield from read_parallel(*part)


def prepare(
    data: Path,
    work: Path,
    pairs: Sequence[str],
    vocab_size: int,
    folders: Sequence[str] = ("train",),
) -> Path:
    """Every text of a pair by its kind, as named sources; one vocabulary for all pairs. Returns:
    the data folder.
    """
    return prepare_sources(work, {pair: sources(data, pair, folders) for pair in pairs}, vocab_size)


def sources(data: Path, pair: str, folders: Sequence[str]) -> dict[str, list[str]]:
    """Texts of a pair by their kind."""
    found: dict[str, list[str]] = {}
    for path, _ in training_files(data.absolute(), pair, folders):
        prefix = path.with_name(path.name.removesuffix(".en.txt.gz"))
        name = prefix.name.removesuffix(f".{pair}")
        found.setdefault(KINDS.get(name, name), []).append(str(prefix))
    return found


def prepare_sources(
    work: Path, pairs: Mapping[str, Mapping[str, list[str]]], vocab_size: int
) -> Path:
    """Prepare texts by pair and kind. Returns: the data folder."""
    config = {"pairs": pairs, "work": str(work), "valid_size": 1000, "test_size": 1}
    work.mkdir(parents=True, exist_ok=True)
    (work / "prepare.yaml").write_text(
        json.dumps(config | {"subwords": {"vocab_size": vocab_size}}, indent=2)
    )
    lxsr("prepare", work / "prepare.yaml")
    return work / "data-bin"


def fillers(count: int) -> str:
    """Lines of a dictionary that no text uses, which a SentencePiece model may lack."""
    return "".join(f"{FILLER}_unused{number} 0\n" for number in range(count))


def chosen_rows(count: int, share: float) -> np.ndarray:
    """A random share of so many rows, the same every time."""
    return np.sort(np.random.default_rng(1).permutation(count)[: round(share * count)])


def subset(data_bin: Path, output: Path, share: float) -> Path:
    """The same data folder with a random share of its training pairs; dictionary and pieces
    stay.
    """
    # fills the log when imported
    from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

    output.mkdir(parents=True)
    for path in data_bin.iterdir():
        if not path.name.startswith("train."):
            shutil.copy(path, output)
    for index in sorted(data_bin.glob("train.*.idx")):
        side = MMapIndexedDataset(str(index.with_suffix("")))
        builder = MMapIndexedDatasetBuilder(str(output / f"{index.stem}.bin"), dtype=np.int32)
        for number in chosen_rows(len(side), share):
            builder.add_item(side[int(number)])
        builder.finalize(str(output / index.name))
    for path in data_bin.glob("train.*.sources.json"):
        sources = json.loads(path.read_text(encoding="utf-8"))
        ends = np.cumsum(list(sources.values()))
        counts = np.diff(np.searchsorted(chosen_rows(ends[-1], share), ends), prepend=0)
        (output / path.name).write_text(
            json.dumps(dict(zip(sources, counts.tolist(), strict=True)))
        )
    return output
