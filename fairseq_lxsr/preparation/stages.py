"""Stages: each of them builds a folder from its inputs, and is skipped if nothing has changed."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, refuse_overlap, restore_folder
from fairseq_lxsr.text.data_folder import STAGE_FILE


def run_stage(
    folder: Path,
    options: dict[str, Any],
    inputs: Iterable[Path],
    build: Callable[[Path], dict[str, Any]],
) -> dict[str, Any]:
    """Build a folder, unless it was already built from the same inputs and is unchanged.

    Args:
        folder: folder to build.
        options: JSON values that the result depends on, in addition to the input files.
        inputs: files that the result depends on; they are compared by content.
        build: function that fills the given empty folder, and returns a report of JSON values. It
            must read all inputs itself, so that later changes are detected.

    Returns:
        The report, even if the stage was skipped.

    Raises:
        InputError: if an input changed while the folder was being built.
    """
    inputs = list(inputs)
    refuse_overlap([folder], inputs)
    checksums = {str(path): sha256(path) for path in inputs}
    key = {"options": options, "inputs": checksums}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    restore_folder(folder)
    manifest = read_manifest(folder / STAGE_FILE)
    if manifest and manifest["key"] == digest and _is_untouched(folder, manifest["files"]):
        print(f"{folder}: unchanged, kept")
        return manifest["report"]
    with atomic_folder(folder, STAGE_FILE) as work:
        report = build(work)
        _check_unchanged(folder, checksums)
        paths = [path for path in sorted(work.rglob("*")) if path.is_file()]
        files = {str(path.relative_to(work)): sha256(path) for path in paths}
        record = {"key": digest, "version": __version__, **key, "report": report, "files": files}
        content = json.dumps(sealed(record), indent=2) + "\n"
        (work / STAGE_FILE).write_text(content, encoding="utf-8")
    return report


def _check_unchanged(folder: Path, checksums: dict[str, str]) -> None:
    """Check that the inputs still match the checksums to be recorded in the manifest."""
    for path, checksum in checksums.items():
        if not Path(path).is_file() or sha256(path) != checksum:
            raise InputError(
                f"{path}: changed while {folder} was being built from it; run the command again "
                "when no other program is writing to the file"
            )


def is_external(folder: Path, names: Iterable[str]) -> bool:
    """Return whether a folder contains these files but was not built by a stage."""
    restore_folder(folder)
    if (folder / STAGE_FILE).is_file():
        return False
    return all((folder / name).is_file() for name in names)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Read the manifest of a stage's folder.

    Returns:
        The manifest, or None if it is missing or damaged, so that the stage runs again.
    """
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if {"key", "inputs", "files", "report"} <= manifest.keys():
        return manifest
    return None


def _is_untouched(folder: Path, checksums: dict[str, str]) -> bool:
    """Return whether the files in a folder still match the checksums in its manifest."""
    return all(
        (folder / name).is_file() and sha256(folder / name) == checksum
        for name, checksum in checksums.items()
    )
