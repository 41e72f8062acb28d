"""Checks that a model folder is the one that a SHA-256 checksum identifies."""

import re
from pathlib import Path

from fairseq_lxsr.encoder.hub import DATA_ENDINGS
from fairseq_lxsr.encoder.model_folder import CARD_FILES, CONFIG_FILE, read_config
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, check_export, stored_checksums
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.open import sha256

# Separates the name of a model from its checksum.
PIN = "#sha256="
_SHA256 = re.compile("[0-9a-f]{64}", re.IGNORECASE)


def check_sha256(checksum: str, place: str) -> None:
    """Raise `InputError` if a text is not a SHA-256 checksum; `place` begins the message."""
    if not isinstance(checksum, str) or not _SHA256.fullmatch(checksum):
        raise InputError(
            f"{place}: {shown(checksum)} is not a SHA-256 checksum; expected 64 hexadecimal digits"
        )


def listing_of(folder: Path) -> Path:
    """Return the file of a model folder that lists the checksums of its other files.

    It is modules.json in a folder for sentence-transformers, and otherwise config.json.
    """
    path = folder / MODULES_FILE
    if path.is_file():
        return path
    return folder / CONFIG_FILE


def check_pin(folder: Path, checksum: str) -> None:
    """Check that a model folder is the one that a checksum identifies, with all of its files.

        check_pin(Path("model"), "0f...")  # sha256sum model/config.json
        check_pin(Path("my-model"), "3c...")  # sha256sum my-model/modules.json

    Args:
        folder: a folder from `lxsr export`.
        checksum: SHA-256 checksum of the file that lists the checksums of the others (see
            `listing_of`). The model card, its scores, the licences and files for other tools
            are not covered.

    Raises:
        InputError: if the checksum differs, a file has changed or is missing, or the folder has a
            file that is not listed.
    """
    listing = listing_of(folder)
    if not listing.is_file():
        raise InputError(f"{listing}: no such file; expected a folder written by `lxsr export`")
    actual_checksum = sha256(listing)
    if actual_checksum != checksum.lower():
        raise InputError(
            f"{listing}: SHA-256 {actual_checksum} instead of {checksum}; use the revision that "
            "this checksum belongs to"
        )
    if listing.name == MODULES_FILE:
        check_export(folder)
        names = set(stored_checksums(listing))
    else:
        names = set(read_config(folder)["files"])
    if not names:
        raise InputError(
            f"{listing}: lists no checksums, so it does not identify the weights; expected a "
            "folder written by `lxsr export`"
        )
    _check_unlisted(folder, names | {listing.name, *CARD_FILES})


def _check_unlisted(folder: Path, names: set[str]) -> None:
    """Raise `InputError` if a file that a library could load is not listed."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_read = path.suffix in DATA_ENDINGS and not name.startswith(".")
        if is_read and name not in names:
            raise InputError(
                f"{path}: not one of the files that the checksum covers; expected an unchanged "
                "folder of `lxsr export`: delete this file, or use another revision"
            )
