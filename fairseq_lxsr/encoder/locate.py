"""Finds a model folder by the name of a model in this package, by its path, or by the address of
its archive.
"""

import json
import os
import re
import shutil
from pathlib import Path

from fairseq_lxsr.encoder.model_folder import CARD_FILE, CONFIG_FILE, MODEL_FILES, read_config
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import PACKAGE, sha256
from fairseq_lxsr.files.write import atomic_folder, atomic_write, restore_folder

MODELS = PACKAGE / "pretrained"  # each folder in it is a model
REPLACED = {"lxsr-nine": "lxsr-static"}  # models of earlier versions
CACHE_RECORD = ".files.json"  # SHA-256 of an archive and of the files that were in it
WAIT_SECONDS = 3_600  # seconds to wait for another process that fetches the same archive
SCHEME = re.compile(r"https?://", re.IGNORECASE)
ARCHIVE_ADDRESS = re.compile(
    r"(?P<url>https?://[^#\s]+/(?P<name>[\w-][\w.-]*)(?P<ending>\.tar\.gz|\.tgz|\.zip)(\?[^#\s]*)?)"
    r"#sha256=(?P<checksum>[0-9a-f]{64})",
    re.IGNORECASE | re.ASCII,
)


def model_names() -> list[str]:
    """Return the names of the models in this package."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{CONFIG_FILE}"))


def find_model(model: str | Path) -> Path:
    """Find a model folder by a name in this package, a path (as a `Path` always is), or the address
    of an archive.

    An address has its checksum, `https://.../NAME.tar.gz#sha256=HEX`; it needs the network when
    first used.
    """
    if isinstance(model, str) and model in model_names():
        return MODELS / model
    if isinstance(model, str) and SCHEME.match(model):
        return _fetched(model)
    path = Path(model)
    restore_folder(path)
    if model in REPLACED and not path.exists():
        raise InputError(
            f"{model}: replaced by {REPLACED[model]}, whose embeddings are others: name that one, "
            "and embed and index again what this one has embedded"
        )
    if not path.exists() and len(path.parts) == 1:
        names = ", ".join(model_names()) or "none"
        raise InputError(
            f"{path}: no such model folder; make one with `lxsr export folder`, or name one of this package ({names})"
        )
    return path


def _fetched(address: str) -> Path:
    """Return the folder of an archive in the cache, after fetching it where it is missing there."""
    from fairseq_lxsr.files.download import (
        download,
    )  # modules for the network are not loaded without need

    parts = ARCHIVE_ADDRESS.fullmatch(address)
    if parts is None:
        raise InputError(
            f"{address}: expected an archive with its SHA-256, https://.../NAME.tar.gz#sha256=64 hexadecimal digits"
        )
    checksum = parts["checksum"].lower()
    cache = cache_folder() / checksum
    folder, archive = (
        cache / parts["name"],
        cache / f".archive{parts['ending'].lower()}",
    )  # hidden, as no model is
    if not _is_cached(folder, checksum):
        with locked(cache / ".lock", cache, WAIT_SECONDS):
            if not _is_cached(folder, checksum):  # another process may have fetched it meanwhile
                if os.path.lexists(folder):
                    say(
                        f"{folder}: not, or not proved to be, what {parts['url']} has; it is fetched again"
                    )
                archive.unlink(missing_ok=True)
                download(parts["url"], archive, checksum=checksum)
                _unpack(archive, folder, parts["url"])
                with atomic_write(cache / CACHE_RECORD) as stream:
                    json.dump({"archive": checksum, "files": _hashes(folder)}, stream)
    return folder


def _is_cached(folder: Path, checksum: str) -> bool:
    """Return whether a folder has the files, and no other bytes, that were in the archive with this
    SHA-256.
    """
    try:
        record = json.loads((folder.parent / CACHE_RECORD).read_text(encoding="utf-8"))
        return not folder.is_symlink() and record == {"archive": checksum, "files": _hashes(folder)}
    except (OSError, ValueError, RecursionError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    return {name: sha256(folder / name) for name in sorted((*MODEL_FILES, CARD_FILE))}


def _unpack(archive: Path, folder: Path, url: str) -> None:
    """Unpack a model folder, and check that it is one; the archive is removed in any case."""
    from fairseq_lxsr.files.unpack import unpack

    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():  # damaged
            shutil.rmtree(folder)
        with atomic_folder(folder, CONFIG_FILE) as work:
            try:
                unpack(archive, {name: work / name for name in (*MODEL_FILES, CARD_FILE)})
                read_config(work)
            except InputError as error:
                reason = str(error).removeprefix(f"{archive}: ").replace(f"{work}{os.sep}", "")
                raise InputError(f"{url}: not a model folder ({reason})") from None
    finally:
        archive.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of fetched models, in XDG_CACHE_HOME or in .cache of the home folder."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = (
            Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        )  # as the XDG specification says
    except RuntimeError:
        raise InputError(
            "no home folder, where fetched models are kept; set HOME or XDG_CACHE_HOME"
        ) from None
    return base / "fairseq-lxsr" / "models"
