"""Finds a model folder by the name of a packaged model, a path, or an archive URL."""

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

# Folder of packaged models; each model is a subfolder.
MODELS = PACKAGE / "pretrained"
# Packaged models of earlier versions, and their replacements.
REPLACED = {"lxsr-nine": "lxsr-static"}
# File next to a cached model that contains the SHA-256 checksums of its archive and its files.
CACHE_RECORD = ".files.json"
# Seconds to wait for another process that is downloading the same archive.
WAIT_SECONDS = 3_600
SCHEME = re.compile(r"https?://", re.IGNORECASE)
ARCHIVE_ADDRESS = re.compile(
    r"(?P<url>https?://[^#\s]+/(?P<name>[\w-][\w.-]*)(?P<ending>\.tar\.gz|\.tgz|\.zip)(\?[^#\s]*)?)"
    r"#sha256=(?P<checksum>[0-9a-f]{64})",
    re.IGNORECASE | re.ASCII,
)


def model_names() -> list[str]:
    """Return the names of the packaged models."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{CONFIG_FILE}"))


def find_model(model: str | Path) -> Path:
    """Return the path of a model folder, downloading it if necessary.

    Args:
        model: name of a packaged model, path of a model folder (a `Path` object is never treated as
            a name), or archive URL with its checksum, `https://.../NAME.tar.gz#sha256=HEX`. The
            network is needed only when a URL is used for the first time.

    Returns:
        Path of the model folder. If `model` is a path with several parts, the folder may be
        missing.

    Raises:
        InputError: if no model has this name, or the archive cannot be downloaded or is not a
            model.
    """
    if isinstance(model, str) and model in model_names():
        return MODELS / model
    if isinstance(model, str) and SCHEME.match(model):
        return _cached_model(model)
    path = Path(model)
    restore_folder(path)
    if path.exists():
        return path
    if model in REPLACED:
        raise InputError(
            f"{model} has been replaced by {REPLACED[model]}, whose embeddings are not "
            f"compatible: use {REPLACED[model]}, and embed and index your texts again"
        )
    if len(path.parts) == 1:
        names = ", ".join(model_names()) or "none"
        raise InputError(
            f"{path}: no such model folder; create one with `lxsr export folder`, or use a model "
            f"of this package ({names})"
        )
    return path


def _cached_model(address: str) -> Path:
    """Return the cached model folder of an archive, downloading it if necessary."""
    parts = ARCHIVE_ADDRESS.fullmatch(address)
    if parts is None:
        raise InputError(
            f"{address}: not an archive URL with SHA-256; expected https://.../NAME.tar.gz#sha256= "
            "and 64 hexadecimal digits"
        )
    checksum = parts["checksum"].lower()
    cache = cache_folder() / checksum
    folder = cache / parts["name"]
    if _is_cached(folder, checksum):
        return folder
    # Model names never begin with a dot, so the archive cannot have the name of a model.
    archive = cache / f".archive{parts['ending'].lower()}"
    with locked(cache / ".lock", cache, WAIT_SECONDS):
        # Another process may have downloaded the model while this one waited for the lock.
        if not _is_cached(folder, checksum):
            if os.path.lexists(folder):
                say(f"{folder} does not match {parts['url']}; downloading it again")
            _download_model(parts["url"], checksum, archive, folder)
    return folder


def _download_model(url: str, checksum: str, archive: Path, folder: Path) -> None:
    """Download an archive, unpack it into a folder, and record its files' checksums."""
    # Imported here, because the network modules are not needed otherwise.
    from fairseq_lxsr.files.download import download

    archive.unlink(missing_ok=True)
    download(url, archive, checksum=checksum)
    _unpack(archive, folder, url)
    with atomic_write(folder.parent / CACHE_RECORD) as stream:
        json.dump({"archive": checksum, "files": _hashes(folder)}, stream)


def _is_cached(folder: Path, checksum: str) -> bool:
    """Return whether a folder still contains the unchanged files from this archive."""
    try:
        record = json.loads((folder.parent / CACHE_RECORD).read_text(encoding="utf-8"))
        return not folder.is_symlink() and record == {"archive": checksum, "files": _hashes(folder)}
    except (OSError, ValueError, RecursionError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    """Map the names of the files in a model folder to their SHA-256 checksums."""
    return {name: sha256(folder / name) for name in sorted((*MODEL_FILES, CARD_FILE))}


def _unpack(archive: Path, folder: Path, url: str) -> None:
    """Unpack an archive, check that it is a model folder, and delete the archive in any case."""
    from fairseq_lxsr.files.unpack import unpack

    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            # The folder is incomplete or was changed.
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
    """Return the folder for downloaded models, in $XDG_CACHE_HOME or ~/.cache."""
    return _user_cache() / "fairseq-lxsr" / "models"


def _user_cache() -> Path:
    xdg_cache_home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    if os.path.isabs(xdg_cache_home):
        return Path(xdg_cache_home)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise InputError(
            "no home folder for the cache of downloaded models; set HOME or XDG_CACHE_HOME"
        ) from None
