"""`lxsr verify`: is everything in a file or folder of ours as it was written?"""

import argparse
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import check_archive, parse_json
from fairseq_lxsr.options import file_path

# what makes the files that a description in JSON lists, by its name
MAKERS = {
    "config.json": "export the model again, or copy it again",
    "index.json": "run `lxsr index` again",
    "stage.json": "run `lxsr prepare` again; in a folder of checkpoints the next training writes it again",
    "shards.json": "run the same command again, which makes the shards that are missing",
}
HASH = re.compile("[0-9a-f]{64}")


def add_parser(verbs) -> None:
    parser = verbs.add_parser("verify", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="+",
        type=file_path,
        metavar="PATH",
        help="model folder, index, embeddings, checkpoint, data folder, work folder or shards, or a folder with some",
    )
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> None:
    from fairseq_lxsr.files.progress import Progress

    checked, damaged = 0, 0
    for path in args.paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; check the name")
        files = (
            [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        )
        shown = Progress(files, desc="verify", unit=" files", disable=None)
        before = checked
        for file, why in (each for one in shown for each in verified(one)):
            checked += 1
            if why:
                damaged += 1
                print(f"{file}: {why}")
        if checked == before:
            raise InputError(
                f"{path}: nothing that has a checksum; expected what lxsr or training wrote"
            )
    names = ", ".join(map(str, args.paths))
    if damaged:
        raise InputError(
            f"{names}: {damaged:,} of {checked:,} files damaged or missing; delete what stands above"
        )
    print(f"{names}: {checked:,} files are as they were written")


def verified(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that a file vouches for, or itself, with what is wrong with each, empty where
    nothing is.
    """
    described = file.with_name(f"{file.name}.json")
    if file.suffix == ".pt" and not _is_portuguese(file):
        yield file, _checkpoint(file)
    elif file.suffix == ".idx" and not file.with_suffix(".pack").exists():  # Git's has one
        yield file, _dataset(file)
    elif file.suffix == ".progress":
        yield file.with_suffix(".partial"), _unfinished(file)
    elif file.suffix == ".jsonl" and (damage := _scores(file)) is not None:
        yield file, damage
    elif described.is_file():
        yield from _listed(described)
    elif file.suffix == ".json" and not (
        file.name not in MAKERS and file.with_suffix("").is_file()
    ):
        yield from _listed(file)


def _is_portuguese(file: Path) -> bool:
    """Say whether a file .pt is text of that language, which no archive and no checkpoint of
    fairseq is.
    """
    with file.open("rb") as stream:
        return stream.read(2) != b"PK" and not file.name.startswith("checkpoint")


def _checkpoint(file: Path) -> str:
    try:
        check_archive(file)
    except Exception as error:  # a damaged archive raises errors of many kinds
        if isinstance(error, OSError):
            raise
        return "cut off or damaged; delete it, and go on from another checkpoint of the folder"
    return ""


def _unfinished(progress: Path) -> str:
    """Compare the rows of unfinished embeddings with the progress that counts them."""
    from fairseq_lxsr.embeddings import Layout
    from fairseq_lxsr.embeddings.write import CRC_OF_ROWS, EmbeddingsFile

    try:
        about = parse_json(progress.read_text(encoding="utf-8"))
        layout = Layout(*(about["settings"][name] for name in ("format", "dtype", "dimension")))
        rows = EmbeddingsFile(progress.with_suffix(""), layout, {}).crc(about["counts"]["lines"])
        whole = rows == about["counts"].get(CRC_OF_ROWS, rows)
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    return (
        "" if whole else f"it or {progress.name} is damaged; delete both, and embed the text again"
    )


def _scores(file: Path) -> str | None:
    """Return what is wrong with a file of scores; None for other lines of JSON."""
    content = file.read_bytes()
    if b'"signature"' not in content or b'"protocol"' not in content:
        return None
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            parse_json(line.decode())
        except ValueError as error:
            return f"line {number} is damaged ({error!r:.80}); delete that line, and score again"
    return ""


def _listed(description: Path) -> Iterator[tuple[Path, str]]:
    """Yield what a description in JSON says of files: their SHA-256, the CRC-32 of rows, or that
    they are there.
    """
    beside = description.with_suffix("")
    is_ours = (
        description.name in MAKERS
        or beside.is_file()
        or beside.with_name(f"{beside.name}.partial").is_file()
    )
    try:
        about = parse_json(description.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        if is_ours:
            advice = MAKERS.get(description.name, "make it again")
            yield description, f"damaged ({error!r:.150}); delete {_with(description)} and {advice}"
        return
    advice = (
        f"delete {_with(description)} and {MAKERS.get(description.name, 'embed the text again')}"
    )
    listed = about.get("files")
    if description.name in MAKERS and isinstance(listed, dict):
        for name, value in listed.items():
            yield description.parent / name, _hashed(description.parent / name, value, advice)
    elif description.name == "shards.json" and isinstance(about.get("shards"), list):
        for shard in about["shards"]:
            name = str(shard.get("name", "")) if isinstance(shard, dict) else ""
            there = bool(name) and any(
                file.name.startswith(name) for file in description.parent.iterdir()
            )
            yield description.parent / name, "" if there else f"missing; {MAKERS['shards.json']}"
    elif {"sha256", "count"} <= about.keys():
        yield beside, _hashed(beside, about["sha256"], advice)
    elif {"settings", "counts", "text"} <= about.keys() and dict is type(about["settings"]) is type(
        about["counts"]
    ):
        yield from _work(beside, about)
    elif description.name in MAKERS and description.name != "config.json":
        yield description, f"damaged, it lists nothing; {advice}"


def _with(description: Path) -> str:
    """Name what is to be deleted with a description: the folder that it describes, or the file
    beside it.
    """
    own = description.name in MAKERS
    return str(description.parent if own else f"{description.with_suffix('')} and {description}")


def _hashed(file: Path, value: Any, advice: str) -> str:
    if not file.is_file():
        return f"missing; {advice}"
    return "" if sha256(file) == value else f"damaged or changed, its SHA-256 is another; {advice}"


def _work(array: Path, about: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Check the rows of interrupted or kept work, see `search.resumable`, or the index of a
    shard.
    """
    from fairseq_lxsr.search.resumable import rows_are_whole

    value = about["settings"].get("sha256")
    if isinstance(value, str) and HASH.fullmatch(value):
        yield array, _hashed(array, value, f"delete {array}; the next run makes it again")
        return
    for file in (array, array.with_name(f"{array.name}.partial")):
        if file.is_file():
            whole = rows_are_whole(file, about["counts"])
            yield file, "" if whole else "damaged; delete it, the next run computes it again"


def _dataset(index: Path) -> str:
    """Compare the sizes of a memory-mapped dataset of fairseq; the bits of its text have a checksum
    in stage.json.
    """
    import numpy as np

    from fairseq_lxsr.text.data_folder import INDEX_MAGIC

    head, content = struct.Struct("<QBQ"), index.read_bytes()
    start = len(INDEX_MAGIC) + head.size
    advice = f"delete it and {index.with_suffix('.bin').name}, and run `lxsr prepare` or fairseq-preprocess again"
    if not content.startswith(INDEX_MAGIC) or len(content) < start:
        return f"not an index of a memory-mapped dataset; {advice}"
    _, kind, count = head.unpack_from(content, len(INDEX_MAGIC))
    size = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8, 8: 2, 9: 4}.get(kind, 0)  # of an id
    if not size or len(content) != start + 12 * count:
        return f"cut off or damaged; {advice}"
    lengths = np.frombuffer(content, "<i4", count, start).astype(np.int64)
    places = np.frombuffer(content, "<i8", count, start + 4 * count)
    ends = size * lengths.cumsum()
    text = index.with_suffix(".bin")
    whole = text.is_file() and text.stat().st_size == (ends[-1] if count else 0)
    return (
        ""
        if whole and (places == ends - size * lengths).all()
        else f"does not fit its .bin; {advice}"
    )
