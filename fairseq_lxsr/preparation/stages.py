"""Stages: each makes one folder from inputs, and is skipped while its inputs have not changed."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq_lxsr import __version__
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
    """Build `folder` unless it was built from the same options and input bytes and its files are
    unchanged.

    `options` are everything except files that the result depends on, `inputs` these files; `build`
    fills the given folder and returns a report of plain values, which is returned also when it was
    skipped.
    """
    inputs = list(inputs)
    refuse_overlap([folder], inputs)
    key = {"options": options, "inputs": {str(path): sha256(path) for path in inputs}}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    restore_folder(folder)
    manifest = folder / STAGE_FILE
    done = read_manifest(manifest)
    if done is not None and done["key"] == digest and _untouched(folder, done["files"]):
        print(f"{folder}: unchanged, kept")
        return done["report"]
    with atomic_folder(folder, STAGE_FILE) as work:
        report = build(work)
        files = {
            str(path.relative_to(work)): sha256(path)
            for path in sorted(work.rglob("*"))
            if path.is_file()
        }
        record = {"key": digest, "version": __version__, **key, "report": report, "files": files}
        (work / STAGE_FILE).write_text(
            json.dumps(sealed(record), indent=2) + "\n", encoding="utf-8"
        )
    return report


def is_external(folder: Path, names: Iterable[str]) -> bool:
    """Return whether a folder has these files and was made by no stage, so that it is used as it
    is.
    """
    restore_folder(folder)
    return not (folder / STAGE_FILE).is_file() and all((folder / name).is_file() for name in names)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Read a manifest; return None where it is missing or corrupt, so that the stage is built
    again.
    """
    try:
        done = parse_json(path.read_text(encoding="utf-8"))
        return done if {"key", "inputs", "files", "report"} <= done.keys() else None
    except (OSError, ValueError):
        return None


def _untouched(folder: Path, files: dict[str, str]) -> bool:
    return all(
        (folder / name).is_file() and sha256(folder / name) == value
        for name, value in files.items()
    )
