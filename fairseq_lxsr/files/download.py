"""Downloads files with resume, retries and checks; a file has its final name only when it is complete."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import READ_BYTES, sha256
from fairseq_lxsr.files.unpack import unpack
from fairseq_lxsr.files.write import naming

DOWNLOAD_ATTEMPTS = 5  # attempts without any progress
BUSY_STATUS = (408, 429)  # status codes of a server that may answer later
TIMEOUT = 60  # seconds without an answer
BACK_OFF = 1.0  # seconds before the second attempt, doubled before each further attempt
CHANGED = "the file on the server has changed"


class InterruptedDownloadError(Exception):
    """A download was interrupted, and another attempt may resume it."""


def download(url: str, path: Path, size: int | None = None, checksum: str | None = None) -> None:
    """Download a file, or check the one that is there; a partial file PATH.part of an earlier run is resumed.

    The expected size in bytes and the SHA-256 (`checksum`) are None where they are unknown.
    """
    if path.is_file():
        if wrong := _difference(path, size, checksum):
            raise InputError(f"{path}: {wrong}, as {url} has; remove it, and it is fetched again")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = _length(partial)
        try:
            _fetch(url, partial)
            break
        except (InterruptedDownloadError, urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in BUSY_STATUS:
                raise InputError(f"{url}: {error.code} {error.reason}; check the name, it may have moved") from None
            is_of_disk = isinstance(error, OSError) and not isinstance(error, urllib.error.URLError) and error.filename
            if is_of_disk:
                raise
            failures = 0 if _length(partial) > before else failures + 1
            if failures == DOWNLOAD_ATTEMPTS:
                raise InputError(
                    f"{url}: {str(error) or type(error).__name__} ({DOWNLOAD_ATTEMPTS} attempts); try again later, "
                    f"{_length(partial):,} bytes are kept"
                ) from None
            time.sleep(BACK_OFF * 2**failures)
    _check(url, partial, size, checksum)
    partial.replace(path)
    _tag_file(partial).unlink(missing_ok=True)


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag_file(partial: Path) -> Path:
    """Return the path of the file with the server's validator (ETag or date) for the partial file."""
    return partial.with_name(f"{partial.name}.etag")


def _fetch(url: str, partial: Path) -> None:
    """Append the missing bytes to the partial file; start again where the server does not support ranges."""
    tag_file, have = _tag_file(partial), _length(partial)
    request = urllib.request.Request(url, headers={"User-Agent": "fairseq-lxsr", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag_file.is_file():
            request.add_header("If-Range", tag_file.read_text(encoding="ascii"))
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: no bytes follow those that we have
            raise
        if (error.headers.get("Content-Range") or "").rpartition("/")[2] == str(have):
            return
        partial.unlink(missing_ok=True)
        raise InterruptedDownloadError(CHANGED) from None
    with answer:
        if answer.status == 200:
            have = 0
            partial.write_bytes(b"")  # emptied before the validator of the new version is written
            tag_file.unlink(missing_ok=True)
            tag = answer.headers.get("ETag", "")
            mark = answer.headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
            if mark:
                tag_file.write_text(mark, encoding="ascii", errors="ignore")
        elif (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0] != str(have):
            partial.unlink(missing_ok=True)
            raise InterruptedDownloadError("the server gave another part than the one asked for")
        announced = answer.headers.get("Content-Length") or ""
        total = have + int(announced) if announced.isdecimal() else None
        with tqdm(desc=partial.stem, total=total, initial=have, unit="B", unit_scale=True, disable=None) as bar:
            while block := answer.read(READ_BYTES):
                with naming(partial), open(partial, "ab") as stream:  # only disk errors name the partial file
                    stream.write(block)
                bar.update(len(block))
    if total is not None and _length(partial) < total:
        raise InterruptedDownloadError(f"the connection ended after {_length(partial):,} of {total:,} bytes")


def _difference(path: Path, size: int | None, checksum: str | None) -> str | None:
    """Say how a file differs from the size and the SHA-256 that are expected; None where it does not."""
    if size is not None and _length(path) != size:
        return f"{_length(path):,} bytes, expected {size:,}"
    if checksum is not None and (found := sha256(path)) != checksum.lower():
        return f"SHA-256 {found}, expected {checksum}"
    return None


def _check(url: str, partial: Path, size: int | None, checksum: str | None) -> None:
    if wrong := _difference(partial, size, checksum):
        partial.unlink()
        _tag_file(partial).unlink(missing_ok=True)
        raise InputError(f"{url}: {wrong}; the file has changed or was damaged on its way, it was not kept")


def get_archive(
    url: str,
    archive: Path,
    wanted: Mapping[str, Path],
    expected: tuple[int | None, str | None] = (None, None),
    keep_archive: bool = False,
) -> None:
    """Download an archive, `.zip` or `.tar.gz`, and unpack files of it (see `unpack`), unless all of them are there.

    Its `expected` size in bytes and SHA-256 are None where they are unknown. It is removed when it is unpacked,
    unless it was there before or is to be kept.
    """
    if all(path.is_file() for path in wanted.values()):  # before the lock: the folder may be read-only
        return
    with locked(archive.with_name(f".{archive.name}.lock"), archive):
        was_there = archive.is_file()
        download(url, archive, *expected)
        unpack(archive, wanted)
        if not (keep_archive or was_there):
            archive.unlink()
