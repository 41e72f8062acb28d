"""Downloads files and archives, continues interrupted downloads, and verifies checksums."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import READ_BYTES, sha256
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.unpack import unpack
from fairseq_lxsr.files.write import naming, no_follow, remove_planted

# Maximum number of seconds without data.
TIMEOUT = 60
PARTIAL_CONTENT = 206
# HTTP status code if the file has no bytes beyond those already downloaded.
RANGE_NOT_SATISFIABLE = 416
# ValueError is raised for an invalid URL.
DOWNLOAD_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    ConnectionError,
    TimeoutError,
    ValueError,
)


def download(url: str, path: Path, size: int | None = None, checksum: str | None = None) -> None:
    """Download a file, or check it if it already exists.

    A partial file PATH.part from an interrupted run is continued.

    Args:
        url: URL of the file.
        path: output path.
        size: expected size in bytes; None if unknown.
        checksum: expected SHA-256 in hexadecimal digits; None if unknown.

    Raises:
        InputError: if the file cannot be downloaded, or its size or checksum does not match.
    """
    if path.is_file():
        problem = _difference(path, size, checksum)
        if problem:
            raise InputError(f"{path}: {problem} for {url}; delete it to download it again")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    remove_planted(partial)
    _complete(url, partial)
    problem = _difference(partial, size, checksum)
    if problem:
        partial.unlink()
        raise InputError(
            f"{url}: {problem}; the download was deleted: run the command again, or check whether "
            "the file has changed"
        )
    partial.replace(path)


def _complete(url: str, partial: Path) -> None:
    """Download the missing bytes, and continue as long as every attempt brings some of them."""
    while True:
        length = _length(partial)
        try:
            _append(url, partial)
            return
        except DOWNLOAD_ERRORS as error:
            if length and getattr(error, "code", None) == RANGE_NOT_SATISFIABLE:
                # The partial file is already complete, which the caller checks.
                return
            if _length(partial) > length:
                continue
            advice = "check the URL and the network, and run the command again"
            if length:
                advice += f", which continues after {length:,} bytes"
            raise InputError(f"{url}: download failed ({_reason(error)}); {advice}") from None


def _reason(error: Exception) -> str:
    cause = error
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        # The error itself only adds that it comes from urllib.
        cause = error.reason
    return f"{first_line(cause):.200}"


def _append(url: str, partial: Path) -> None:
    """Append the missing bytes in one attempt, or all bytes if the server cannot send a part."""
    length = _length(partial)
    request = urllib.request.Request(url, headers={"User-Agent": "fairseq-lxsr"})
    if length:
        request.add_header("Range", f"bytes={length}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        mode = "ab"
        if response.status != PARTIAL_CONTENT:
            mode = "wb"
            length = 0
        total = None
        if response.length is not None:
            total = length + response.length
        with (
            open(partial, mode, opener=no_follow) as stream,
            Progress(
                desc=partial.stem, total=total, initial=length, unit="B", unit_scale=True
            ) as bar,
        ):
            while block := response.read1(READ_BYTES):
                # Only disk errors should name the file.
                with naming(partial):
                    stream.write(block)
                    stream.flush()
                bar.update(len(block))
    if total is not None and _length(partial) < total:
        raise ConnectionError(f"the connection ended after {_length(partial):,} of {total:,} bytes")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _difference(path: Path, size: int | None, checksum: str | None) -> str | None:
    """Describe a mismatch with the expected size and SHA-256, or return None if there is none."""
    if size is not None and _length(path) != size:
        return f"{_length(path):,} bytes instead of {size:,}"
    if checksum is not None:
        actual_checksum = sha256(path)
        if actual_checksum != checksum.lower():
            return f"SHA-256 {actual_checksum} instead of {checksum}"
    return None


def get_archive(
    url: str,
    archive: Path,
    outputs: Mapping[str, Path],
    expected: tuple[int | None, str | None] = (None, None),
) -> None:
    """Download an archive and extract files from it, unless all of these files exist.

    The archive is deleted after extraction, unless it existed before.

    Args:
        url: URL of the archive.
        archive: path of the archive, ending in `.zip`, `.tgz` or `.tar.gz`.
        outputs: maps file names in the archive to output paths (see `unpack`).
        expected: size in bytes and SHA-256 checksum of the archive; None if unknown.

    Raises:
        InputError: if the archive cannot be downloaded, is damaged, or lacks one of the files, or
            another process is downloading it.
    """
    # Do this before acquiring the lock, because the folder may be read-only.
    if all(path.is_file() for path in outputs.values()):
        return
    with locked(archive.with_name(f".{archive.name}.lock"), archive):
        existed = archive.is_file()
        download(url, archive, *expected)
        unpack(archive, outputs)
        if not existed:
            archive.unlink()
