"""Checksums of the files in a `lxsr export sentence-transformers` folder.

They are stored in modules.json, where other libraries ignore them. sentence-transformers drops them
when it saves to the same folder, for example after training.
"""

import json
from pathlib import Path, PurePath
from typing import Any

from fairseq_lxsr.encoder.model_folder import ADVICE, CARD_FILES, LICENCE_FILE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import SEAL, parse_json, sealed

MODULES_FILE = "modules.json"
# Field of the first module that maps file names to SHA-256 checksums.
FILES = "files"
# Start of the names of files for other tools, which a download from a hub omits.
FOR_OTHER_TOOLS = "onnx/"


def add_checksums(folder: Path) -> None:
    """Store the checksums of all files of a complete export in its modules.json.

    The model card with its scores, the licences and hidden files are not included, because they
    change after the export.
    """
    checksums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_edited = name in (MODULES_FILE, LICENCE_FILE, *CARD_FILES) or name.startswith(".")
        if path.is_file() and not is_edited:
            checksums[name] = sha256(path)
    path = folder / MODULES_FILE
    modules = json.loads(path.read_text(encoding="utf-8"))
    modules[0][FILES] = checksums
    modules[0][SEAL] = _checksum(modules)
    path.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def _checksum(modules: list[dict[str, Any]]) -> int:
    """Return the checksum of modules.json itself."""
    return sealed({"modules": modules})[SEAL]


def stored_checksums(path: Path) -> dict[str, str]:
    """Read the SHA-256 checksums in a modules.json, keyed by file name.

    Args:
        path: path of the modules.json.

    Returns:
        The checksums; empty if another program wrote the file.

    Raises:
        ValueError: if the file is damaged.
    """
    # The content is wrapped, because `parse_json` accepts only objects.
    modules = parse_json('{"modules": ' + path.read_text(encoding="utf-8") + "}")["modules"]
    first = modules[0] if isinstance(modules, list) and modules else None
    if not isinstance(first, dict) or not first.keys() & {FILES, SEAL}:
        return {}
    checksum = first.pop(SEAL, None)
    if checksum != _checksum(modules) or not isinstance(first.get(FILES), dict):
        raise ValueError(f"damaged or edited: {SEAL} does not match the other fields")
    for name in first[FILES]:
        # A name from a download must not select a file outside the folder.
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError(f"{name!r:.60} is not the name of a file in the folder")
    return first[FILES]


def check_export(folder: Path) -> dict[str, str]:
    """Check that the files of a sentence-transformers folder have not changed since the export.

    Args:
        folder: the folder. It is accepted if it has no checksums.

    Returns:
        The SHA-256 checksums of the files, keyed by file name; empty if the folder has none.

    Raises:
        InputError: if a file that this package reads is missing, or a checksum does not match.
    """
    path = folder / MODULES_FILE
    try:
        checksums = stored_checksums(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error!r:.150}; {ADVICE}") from None
    for name, checksum in checksums.items():
        file = folder / name
        if name.startswith(FOR_OTHER_TOOLS) and not file.exists():
            continue
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected a complete export: {ADVICE}")
        if sha256(file) != checksum:
            raise InputError(f"{file}: checksum mismatch with {MODULES_FILE}: {ADVICE}")
    return checksums
