"""`lxsr verify`: compare files with the checksums that were stored when they were written."""

import argparse
import re
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import check_archive, parse_json
from fairseq_lxsr.options import file_path

# Maps the name of a JSON file that lists other files to advice on how to recreate these.
MAKERS = {
    "config.json": "export the model again, or copy it again",
    "modules.json": "export the model again, or copy it again",
    "index.json": "run `lxsr index` again",
    "stage.json": (
        "run `lxsr prepare` again; next to checkpoints, the next training writes it again"
    ),
    "shards.json": "run the same command again, which writes the missing shards",
}
HASH = re.compile("[0-9a-f]{64}")


def add_parser(verbs) -> None:
    parser = verbs.add_parser("verify", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="+",
        type=file_path,
        metavar="PATH",
        help="model folder, index, embeddings, checkpoint, data folder, work folder or shards, or "
        "a folder that contains any of these",
    )
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> None:
    from fairseq_lxsr.files.progress import Progress

    num_checked = 0
    num_damaged = 0
    for path in args.paths:
        files = Progress(files_in(path), desc="verify", unit=" files", disable=None)
        num_before = num_checked
        for file, problem in chain.from_iterable(map(verified, files)):
            num_checked += 1
            if problem:
                num_damaged += 1
                print(f"{file}: {problem}")
        if num_checked == num_before:
            raise InputError(
                f"{path}: no file with a stored checksum; expected files written by lxsr or by "
                "training"
            )
    names = ", ".join(map(str, args.paths))
    if num_damaged:
        raise InputError(
            f"{names}: {num_damaged:,} of {num_checked:,} files are damaged or missing; follow the "
            "advice above"
        )
    noun = "file is" if num_checked == 1 else "files are"
    print(f"{names}: {num_checked:,} {noun} intact")


def files_in(path: Path) -> list[Path]:
    """Return the files of a folder and its sub-folders, or the file itself."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the name")
    return sorted(filter(Path.is_file, path.rglob("*")))


def verified(file: Path) -> Iterator[tuple[Path, str]]:
    """Check a file, or the files that it lists.

    Yields:
        Each checked file, and its problem; an empty string if it is intact. Nothing is yielded for
        a file that cannot be checked.
    """
    if file.suffix == ".pt" and not _is_portuguese(file):
        yield file, _checkpoint(file)
    elif file.suffix == ".idx" and not _is_git_index(file):
        yield file, _dataset(file)
    elif file.suffix == ".progress":
        yield file.with_suffix(".partial"), _unfinished(file)
    elif file.suffix == ".jsonl" and _has_scores(file):
        yield file, _scores(file)
    else:
        description = _description_of(file)
        if description is not None:
            yield from _listed(description)


def _description_of(file: Path) -> Path | None:
    """Return the JSON file that describes how to check a file, or None.

    This is FILE.json, or the file itself if it is JSON. None means that FILE cannot be checked, or
    that it describes another file and is checked together with it.
    """
    description = file.with_name(f"{file.name}.json")
    if description.is_file():
        return description
    if file.suffix != ".json":
        return None
    if file.name in MAKERS or not file.with_suffix("").is_file():
        return file
    # `verified` is also called for the file that this one describes, and then checks both.
    return None


def _is_portuguese(file: Path) -> bool:
    """Return whether a .pt file contains Portuguese text rather than a checkpoint."""
    with file.open("rb") as stream:
        # Checkpoints are zip archives, which begin with PK.
        return stream.read(2) != b"PK" and not file.name.startswith("checkpoint")


def _is_git_index(file: Path) -> bool:
    return file.with_suffix(".pack").exists()


def _checkpoint(file: Path) -> str:
    try:
        check_archive(file)
    except OSError:
        raise
    except Exception:
        # A damaged archive may raise many types of errors.
        return "cut off or damaged; delete it, and continue from another checkpoint"
    return ""


def _unfinished(progress: Path) -> str:
    """Compare the rows of unfinished embeddings with the recorded progress; return the problem."""
    from fairseq_lxsr.embeddings import Layout
    from fairseq_lxsr.embeddings.write import CRC_OF_ROWS, EmbeddingsFile

    try:
        about = parse_json(progress.read_text(encoding="utf-8"))
        layout = Layout(*(about["settings"][name] for name in ("format", "dtype", "dimension")))
        rows = EmbeddingsFile(progress.with_suffix(""), layout, {}).crc(about["counts"]["lines"])
        is_intact = rows == about["counts"].get(CRC_OF_ROWS, rows)
    except (OSError, ValueError, KeyError, TypeError):
        is_intact = False
    if is_intact:
        return ""
    return f"this file or {progress.name} is damaged; delete both, and embed the text again"


def _has_scores(file: Path) -> bool:
    """Return whether a JSON Lines file contains scores."""
    content = file.read_bytes()
    return b'"signature"' in content and b'"protocol"' in content


def _scores(file: Path) -> str:
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            parse_json(line.decode())
        except ValueError as error:
            return f"line {number} is damaged ({error!r:.80}); delete that line, and score again"
    return ""


def _listed(description: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that a JSON description lists, with the problem of each.

    A description contains the SHA-256 of files, the CRC-32 of rows, or only the names of files.
    """
    from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, stored_checksums

    advice = MAKERS.get(description.name, "embed the text again")
    advice = f"delete {_paths_to_delete(description)} and {advice}"
    try:
        if description.name == MODULES_FILE:
            about: dict[str, Any] = {"files": stored_checksums(description)}
        else:
            about = parse_json(description.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        if _is_ours(description):
            yield description, f"damaged ({error!r:.150}); {advice}"
        return
    yield from _described(description, about, advice)


def _described(description: Path, about: dict[str, Any], advice: str) -> Iterator[tuple[Path, str]]:
    """Yield the files that the content of a description lists, with the problem of each."""
    file = description.with_suffix("")
    if description.name in MAKERS and isinstance(about.get("files"), dict):
        yield from _hashed_files(description.parent, about["files"], advice)
    elif description.name == "shards.json" and isinstance(about.get("shards"), list):
        for shard in about["shards"]:
            yield _shard(description.parent, shard)
    elif {"sha256", "count"} <= about.keys():
        yield file, _hashed(file, about["sha256"], advice)
    elif _describes_work(about):
        yield from _work(file, about)
    elif description.name in MAKERS and description.name != "config.json":
        yield description, f"damaged: it lists no files; {advice}"


def _hashed_files(
    folder: Path, checksums: dict[str, Any], advice: str
) -> Iterator[tuple[Path, str]]:
    for name, checksum in checksums.items():
        file = folder / name
        yield file, _hashed(file, checksum, advice)


def _is_ours(description: Path) -> bool:
    """Return whether a JSON file describes files written by this package, judging by its name."""
    described = description.with_suffix("")
    unfinished = described.with_name(f"{described.name}.partial")
    return description.name in MAKERS or described.is_file() or unfinished.is_file()


def _describes_work(about: dict[str, Any]) -> bool:
    if not {"settings", "counts", "text"} <= about.keys():
        return False
    return type(about["settings"]) is dict and type(about["counts"]) is dict


def _shard(folder: Path, shard: Any) -> tuple[Path, str]:
    name = ""
    if isinstance(shard, dict):
        name = str(shard.get("name", ""))
    # A shard is a file or folder with this name, plus a suffix that depends on the format.
    exists = any(file.name.startswith(name) for file in folder.iterdir())
    if name and exists:
        return folder / name, ""
    return folder / name, f"missing; {MAKERS['shards.json']}"


def _paths_to_delete(description: Path) -> str:
    """Return the folder, or the description and the file it describes, for a message."""
    if description.name in MAKERS:
        return str(description.parent)
    return f"{description.with_suffix('')} and {description}"


def _hashed(file: Path, value: Any, advice: str) -> str:
    if not file.is_file():
        return f"missing; {advice}"
    if sha256(file) != value:
        return f"checksum mismatch: the SHA-256 differs; {advice}"
    return ""


def _work(array: Path, about: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Check an array in a work folder, which may be unfinished (`search.resumable`).

    Yields:
        The files of the array, each with its problem; an empty string if it is intact.
    """
    from fairseq_lxsr.search.resumable import rows_are_intact

    value = about["settings"].get("sha256")
    if isinstance(value, str) and HASH.fullmatch(value):
        yield array, _hashed(array, value, f"delete {array}; the next run writes it again")
        return
    for file in (array, array.with_name(f"{array.name}.partial")):
        if file.is_file():
            problem = ""
            if not rows_are_intact(file, about["counts"]):
                problem = "damaged; delete it: the next run recomputes it"
            yield file, problem


# Maps fairseq's code for a data type to the number of bytes per id in a memory-mapped dataset.
ID_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8, 8: 2, 9: 4}


def _dataset(index: Path) -> str:
    """Check the sizes of a memory-mapped fairseq dataset, and return the problem.

    If there is no problem, return an empty string. The checksums of the dataset are in stage.json,
    and are checked separately.
    """
    import numpy as np

    from fairseq_lxsr.text.data_folder import INDEX_MAGIC

    header = struct.Struct("<QBQ")
    content = index.read_bytes()
    start = len(INDEX_MAGIC) + header.size
    text = index.with_suffix(".bin")
    advice = f"delete it and {text.name}, and run `lxsr prepare` or fairseq-preprocess again"
    if not content.startswith(INDEX_MAGIC) or len(content) < start:
        return f"not an index of a memory-mapped dataset; {advice}"
    _, kind, count = header.unpack_from(content, len(INDEX_MAGIC))
    size = ID_BYTES.get(kind, 0)
    if not size or len(content) != start + 12 * count:
        return f"cut off or damaged; {advice}"
    # The sums of the lengths would overflow int32.
    lengths = np.frombuffer(content, "<i4", count, start).astype(np.int64)
    starts = np.frombuffer(content, "<i8", count, start + 4 * count)
    ends = size * lengths.cumsum()
    expected_size = 0
    if count:
        expected_size = ends[-1]
    has_size = text.is_file() and text.stat().st_size == expected_size
    if has_size and (starts == ends - size * lengths).all():
        return ""
    return f"does not match {text.name}; {advice}"
