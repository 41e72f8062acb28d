"""Finds a model folder by a path, a name in the package or on a hub, or an archive URL."""

import json
import os
import re
import shutil
from pathlib import Path

from fairseq_lxsr.encoder.hub import HUB, HUB_NAME, download_model
from fairseq_lxsr.encoder.model_folder import (
    CARD_FILES,
    CONFIG_FILE,
    MODEL_FILES,
    ST_MODULE,
    read_config,
)
from fairseq_lxsr.encoder.pin import PIN, check_pin, check_sha256
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import PACKAGE, sha256
from fairseq_lxsr.files.write import atomic_folder, atomic_write, restore_folder

# Folder of packaged models; each model is a subfolder.
MODELS = PACKAGE / "pretrained"
# File next to a cached model that contains the SHA-256 checksums of its archive and its files.
CACHE_RECORD = ".files.json"
# Seconds to wait for another process that is downloading the same archive.
WAIT_SECONDS = 3_600
# Folder of a model in the cache of a hub.
HUB_CACHE = re.compile(r"/models--(?P<name>[^/]+)/snapshots/[0-9a-f]+$")
SCHEME = re.compile(r"https?://", re.IGNORECASE)
ARCHIVE_ADDRESS = re.compile(
    r"(?P<url>https?://[^#\s]+/(?P<name>[\w-][\w.-]*)(?P<ending>\.tar\.gz|\.tgz|\.zip)(\?[^#\s]*)?)"
    r"#sha256=(?P<checksum>[0-9a-f]{64})",
    re.IGNORECASE | re.ASCII,
)


def model_names() -> list[str]:
    """Return the names of the packaged models."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{CONFIG_FILE}"))


def find_model(model: str | Path, revision: str | None = None, sha256: str | None = None) -> Path:
    """Return the path of a model folder, downloading it if necessary.

        find_model("lxsr-static")
        find_model("hub:ORG/NAME", revision="v1")
        find_model("hub:ORG/NAME@v1#sha256=HEX")

    Args:
        model: name of a packaged model; path of a model folder (a `Path` object is never treated as
            a name); name of a model on a hub, `hub:ORG/NAME` or `hub:ORG/NAME@REVISION`; or archive
            URL with its checksum, `https://.../NAME.tar.gz#sha256=HEX`. The network is needed only
            when a URL or a commit of a hub is used for the first time, and for other names of a hub
            unless $HF_HUB_OFFLINE is set. `#sha256=HEX` may follow any of these.
        revision: branch, tag or commit of a model on a hub; None for the newest version.
        sha256: SHA-256 checksum that identifies the model; see `encoder.pin.check_pin`. For a URL,
            it is the checksum of the archive.

    Returns:
        Path of the model folder. If `model` is a path with several parts, the folder may be
        missing.

    Raises:
        InputError: if no such model exists, it cannot be downloaded, it is not a model, or it is
            not the model with this checksum.
    """
    if sha256 is not None:
        check_sha256(sha256, "sha256")
    if isinstance(model, str) and SCHEME.match(model):
        return _find_archive(model, revision, sha256)
    if isinstance(model, str) and PIN in model and not Path(model).exists():
        model, checksum = _split_pin(model)
        if sha256 not in (None, checksum):
            raise InputError(f"{model}: both {PIN}{checksum} and sha256={sha256} given; use one")
        sha256 = checksum
    folder = _find_folder(model, revision)
    if sha256 is not None:
        check_pin(folder, sha256)
    return folder


def name_of(folder: Path) -> str:
    """Return the name of a model: `ORG/NAME` in the cache of a hub, otherwise the folder name."""
    folder = folder.resolve()
    if folder.name == ST_MODULE:
        folder = folder.parent
    match = HUB_CACHE.search(folder.as_posix())
    if match is not None:
        return match["name"].replace("--", "/")
    return folder.name


def is_cached_from_hub(folder: Path) -> bool:
    """Return whether a folder belongs to the cache of a hub, whose files must not be changed."""
    return HUB_CACHE.search(folder.resolve().as_posix()) is not None


def _split_pin(model: str) -> tuple[str, str]:
    """Split `NAME#sha256=HEX` into the name and the checksum."""
    name, _, checksum = model.partition(PIN)
    check_sha256(checksum, model)
    return name, checksum


def _find_archive(address: str, revision: str | None, sha256: str | None) -> Path:
    """Return the cached model folder of an archive; for the arguments, see `find_model`."""
    if revision is not None:
        raise InputError(
            f"{address}: an archive has no revision {revision!r:.60}; omit the revision"
        )
    if sha256 is not None and PIN not in address:
        address += f"{PIN}{sha256}"
    elif sha256 is not None and not address.lower().endswith(f"{PIN}{sha256.lower()}"):
        raise InputError(f"{address}: has another checksum than sha256={sha256}; use one")
    return _cached_model(address)


def _find_folder(model: str | Path, revision: str | None) -> Path:
    """Return a model folder without checking a pin; for the arguments, see `find_model`."""
    if isinstance(model, str) and model.startswith(HUB):
        return _find_on_hub(model, revision)
    path = Path(model)
    if isinstance(model, str) and model in model_names():
        path = MODELS / model
    if revision is not None:
        raise InputError(
            f"{model}: a folder has no revision {revision!r:.60}; omit the revision, or use "
            f"{HUB}ORG/NAME for a model on a hub"
        )
    restore_folder(path)
    if not path.exists():
        _check_missing_name(path)
    return path


def _find_on_hub(model: str, revision: str | None) -> Path:
    """Return the cached folder of a model on a hub; for the arguments, see `find_model`."""
    hub_name = HUB_NAME.fullmatch(model.removeprefix(HUB))
    if hub_name is None:
        raise InputError(
            f"{model:.200} is not the name of a model on a hub; expected {HUB}ORG/NAME or "
            f"{HUB}ORG/NAME@REVISION"
        )
    named_revision = hub_name["revision"]
    if named_revision and revision not in (None, named_revision):
        raise InputError(f"{model}: both this and revision={revision!r:.60} given; use one")
    return download_model(hub_name["name"], named_revision or revision)


def _check_missing_name(path: Path) -> None:
    """Reject a missing model whose name is not a path, or may be meant as a name on a hub."""
    if len(path.parts) == 1:
        names = ", ".join(model_names()) or "none"
        raise InputError(
            f"{path}: no such model folder; create one with `lxsr export folder`, or use a model "
            f"of this package ({names})"
        )
    if HUB_NAME.fullmatch(path.as_posix()):
        raise InputError(
            f"{path}: no such file or folder; check the path, or use {HUB}{path.as_posix()} for a "
            "model on a hub"
        )


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
    return {name: sha256(folder / name) for name in sorted((*MODEL_FILES, *CARD_FILES))}


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
                unpack(archive, {name: work / name for name in (*MODEL_FILES, *CARD_FILES)})
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
