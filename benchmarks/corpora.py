"""The training text of the benchmarks, prepared for fairseq-train."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.script import lxsr
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.text.data_folder import STAGE_FILE
from fairseq_lxsr.text.tokenizer import FILLER

# Files of each kind of text; any other file is a kind by itself.
FILES = {
    "law": "calaws-acts calaws-annual calaws-regs",
    "software": "tech appstream ddtp ddtpbr debdocs lohelp lohelpbr msdyn365-ht mswin32-ht",
    "everyday": "tatoeba tatoeba-manythings smallenja",
    "captions": "multi30k",
    "other": "diabla tico19 wesnoth",
}
KINDS = {name: kind for kind, names in FILES.items() for name in names.split()}
ENGLISH_SUFFIX = ".en.txt.gz"


def training_files(
    data: Path, pair: str, folders: Sequence[str] = ("train",)
) -> list[tuple[Path, Path]]:
    """Return the aligned files of a language pair, DIR/FOLDER/NAME.PAIR.LANG.txt.gz.

    A name without a pair is accepted: Multi30k has more languages.
    """
    language = pair[3:]
    files = []
    for folder in folders:
        for english in sorted((data / folder).glob(f"*{ENGLISH_SUFFIX}")):
            name = english.name.removesuffix(ENGLISH_SUFFIX)
            translation = english.with_name(f"{name}.{language}.txt.gz")
            if translation.is_file() and (pair in name or "-" not in name):
                files.append((english, translation))
    return files


def training_pairs(
    data: Path, pair: str, folders: Sequence[str] = ("train",)
) -> Iterator[tuple[str, str]]:
    """Yield all sentence pairs of a language pair."""
    for files in training_files(data, pair, folders):
        yield from read_parallel(*files)


def prepare(
    data: Path,
    work: Path,
    pairs: Sequence[str],
    vocab_size: int,
    folders: Sequence[str] = ("train",),
) -> Path:
    """Prepare the text of language pairs, with kinds of text as sources and one vocabulary.

    Returns:
        The data folder.
    """
    texts = {pair: sources(data, pair, folders) for pair in pairs}
    return prepare_sources(work, texts, vocab_size)


def sources(data: Path, pair: str, folders: Sequence[str]) -> dict[str, list[str]]:
    """Return the prefixes of the texts of a language pair, by their kind."""
    prefixes: dict[str, list[str]] = {}
    for path, _ in training_files(data.absolute(), pair, folders):
        prefix = path.with_name(path.name.removesuffix(ENGLISH_SUFFIX))
        name = prefix.name.removesuffix(f".{pair}")
        prefixes.setdefault(KINDS.get(name, name), []).append(str(prefix))
    return prefixes


def prepare_sources(
    work: Path, pairs: Mapping[str, Mapping[str, list[str]]], vocab_size: int
) -> Path:
    """Run `lxsr prepare` on texts by language pair and kind, and return the data folder."""
    config = {
        "pairs": pairs,
        "work": str(work),
        "valid_size": 1000,
        "test_size": 1,
        "subwords": {"vocab_size": vocab_size},
    }
    work.mkdir(parents=True, exist_ok=True)
    (work / "prepare.yaml").write_text(json.dumps(config, indent=2))
    lxsr("prepare", work / "prepare.yaml")
    return work / "data-bin"


def fillers(count: int) -> str:
    """Return lines of a dictionary that no text uses and that a SentencePiece model may lack."""
    return "".join(f"{FILLER}_unused{number} 0\n" for number in range(count))


def chosen_rows(count: int, share: float) -> np.ndarray:
    """Return a random share of `count` rows, sorted; it is the same every time."""
    return np.sort(np.random.default_rng(1).permutation(count)[: round(share * count)])


def subset(data_bin: Path, output: Path, share: float) -> Path:
    """Copy a data folder with a random share of its training pairs and the same dictionary."""
    # The import fills the log.
    from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

    output.mkdir(parents=True)
    for path in data_bin.iterdir():
        # The checksums of the stage are those of all training pairs.
        if not path.name.startswith("train.") and path.name != STAGE_FILE:
            shutil.copy(path, output)
    for index in sorted(data_bin.glob("train.*.idx")):
        sentences = MMapIndexedDataset(str(index.with_suffix("")))
        builder = MMapIndexedDatasetBuilder(str(output / f"{index.stem}.bin"), dtype=np.int32)
        for row in chosen_rows(len(sentences), share):
            builder.add_item(sentences[int(row)])
        builder.finalize(str(output / index.name))
    for path in data_bin.glob("train.*.sources.json"):
        pairs_by_source = json.loads(path.read_text(encoding="utf-8"))
        ends = np.cumsum(list(pairs_by_source.values()))
        counts = np.diff(np.searchsorted(chosen_rows(ends[-1], share), ends), prepend=0)
        kept_by_source = dict(zip(pairs_by_source, counts.tolist(), strict=True))
        (output / path.name).write_text(json.dumps(kept_by_source))
    return output
