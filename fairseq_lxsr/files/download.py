"""Downloads files with resume, retries and checks; a file has its final name only when it is
complete.
"""

import http.client
import re
import shutil
import ssl
import time
import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.connection import (
    SLOWEST,
    Connection,
    InterruptedDownloadError,
    ascii_address,
    plain,
)
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import READ_BYTES, sha256
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.unpack import unpack
from fairseq_lxsr.files.write import naming, no_follow, remove_planted

# attempts without progress: less than `SLOWEST` bytes more than there ever were
DOWNLOAD_ATTEMPTS = 5
ALL_ATTEMPTS = 100  # attempts with and without progress
TOTAL_SECONDS = 24 * 3600  # seconds of all attempts
BUSY_STATUS = (408, 429)  # status codes of a server that may answer later
TIMEOUT = 60  # seconds without an answer, or with less than `SLOWEST` bytes
BACK_OFF = 1.0  # seconds before the second attempt, doubled before each further attempt
MAX_BYTES = 2**34  # bytes of a file whose length nobody says
MAX_TAG = 1000  # characters of a validator
CHANGED = "the file on the server has changed"
HEADERS = {"User-Agent": "fairseq-lxsr", "Accept-Encoding": "identity"}
RETRIED = (InterruptedDownloadError, http.client.HTTPException, OSError)


def download(url: str, path: Path, size: int | None = None, checksum: str | None = None) -> None:
    """Download a file, or check the one that is there; a partial file PATH.part of an earlier run
    is resumed.

    The expected size in bytes and the SHA-256 (`checksum`) are None where they are unknown.
    Attempts and total time have limits, whatever the server does.
    """
    if path.is_file():
        if wrong := _difference(path, size, checksum):
            raise InputError(f"{path}: {wrong}, as {url} has; remove it, and it is fetched again")
        return
    address = ascii_address(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    remove_planted(partial)
    remove_planted(_tag_file(partial))
    was_there = _length(partial) > 0
    _transfer(url, address, partial, size)
    wrong = _difference(partial, size, checksum)
    if wrong and was_there:  # what an earlier run left may be wrong, and not what the server has
        _forget(partial)
        _transfer(url, address, partial, size)
        wrong = _difference(partial, size, checksum)
    if wrong:
        _forget(partial)
        raise InputError(
            f"{url}: {wrong}; the file has changed or was damaged on its way, it was not kept"
        )
    partial.replace(path)
    _tag_file(partial).unlink(missing_ok=True)


def _transfer(url: str, address: str, partial: Path, size: int | None) -> None:
    """Append what is missing to the partial file, in as many attempts as are allowed."""
    until = time.monotonic() + TOTAL_SECONDS
    failures, most = 0, _length(partial)
    for attempt in range(1, ALL_ATTEMPTS + 1):
        try:
            with Connection(TIMEOUT, until) as connection:
                _fetch(connection, address, partial, size)
            return
        except InputError as error:
            raise InputError(f"{url}: {error}") from None
        except RETRIED as error:
            if wrong := _is_final(error):
                raise InputError(f"{url}: {wrong}") from None
            failures = failures + 1 if _length(partial) < most + SLOWEST else 0
            most = max(most, _length(partial))
            if failures == DOWNLOAD_ATTEMPTS or attempt == ALL_ATTEMPTS or time.monotonic() > until:
                tried = failures if failures == DOWNLOAD_ATTEMPTS else attempt
                kind = (
                    f"{type(error).__name__}: "
                    if isinstance(error, http.client.HTTPException)
                    else ""
                )
                raise InputError(
                    f"{url}: {kind}{plain(error)} ({tried} attempts); try again later, "
                    f"{_length(partial):,} bytes are kept"
                ) from None
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{url}: {plain(error)}; check the address, and those that it leads to"
            ) from None
        time.sleep(BACK_OFF * 2**failures)


def _is_final(error: Exception) -> str | None:
    """Say what is wrong where another attempt does not help; errors of the disk are raised."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code < 500 and error.code not in BUSY_STATUS:
            return f"{error.code} {plain(error.reason)}; check the name, it may have moved"
    elif isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
        return f"{plain(error)}; check who answers at this address"
    elif isinstance(error, http.client.InvalidURL):
        return f"{plain(error)}; expected an address, https://HOST/FILE"
    elif (
        isinstance(error, OSError)
        and not isinstance(error, urllib.error.URLError)
        and error.filename
    ):
        raise error
    return None


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag_file(partial: Path) -> Path:
    """Return the path of the file with the server's validator (ETag or date) for the partial
    file.
    """
    return partial.with_name(f"{partial.name}.etag")


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _tag_file(partial).unlink(missing_ok=True)


def _is_tag(tag: str) -> bool:
    return 0 < len(tag) <= MAX_TAG and tag.isascii() and tag.isprintable()


def _request(partial: Path) -> dict[str, str]:
    """Return the headers that ask for the missing bytes; a partial file with a damaged validator is
    removed.
    """
    tag_file, have = _tag_file(partial), _length(partial)
    if not have:
        return HEADERS
    asked = HEADERS | {"Range": f"bytes={have}-"}
    if tag_file.is_file():
        tag = tag_file.read_bytes()[: MAX_TAG + 1].decode("latin-1")
        if not _is_tag(tag):
            _forget(partial)
            return HEADERS
        asked["If-Range"] = tag
    return asked


def _fetch(connection: Connection, address: str, partial: Path, size: int | None) -> None:
    """Append the missing bytes to the partial file; start again where the server does not support
    ranges.
    """
    headers = _request(partial)
    have = _length(partial)
    try:
        answer = connection.open(address, headers)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: no bytes follow those that we have
            raise
        if (error.headers.get("Content-Range") or "").rpartition("/")[2] == str(have):
            return
        partial.unlink(missing_ok=True)
        raise InterruptedDownloadError(CHANGED) from None
    with answer:
        if answer.status != 206:
            have = 0
            _begin(partial, answer.headers)
        elif not re.match(rf"bytes 0*{have}-", answer.headers.get("Content-Range") or ""):
            partial.unlink(missing_ok=True)
            raise InterruptedDownloadError("the server gave another part than the one asked for")
        total = None if answer.length is None else have + answer.length
        if answer.length and answer.length > (free := shutil.disk_usage(partial.parent).free):
            raise InputError(
                f"{answer.length:,} bytes, and {free:,} are free in {partial.parent}; make space"
            )
        limit = size if size is not None else MAX_BYTES if total is None else total
        with Progress(
            desc=partial.stem, total=total, initial=have, unit="B", unit_scale=True, disable=None
        ) as bar:
            for block in _blocks(connection, answer, limit - have):
                # names errors of the disk only
                with naming(partial), open(partial, "ab", opener=no_follow) as stream:
                    stream.write(block)
                bar.update(len(block))
    if total is not None and _length(partial) < min(total, limit):
        raise InterruptedDownloadError(
            f"the connection ended after {_length(partial):,} of {total:,} bytes"
        )
    if total is None and size is None and _length(partial) > limit:
        _forget(partial)
        raise InputError(f"more than {limit:,} bytes, and no end; nothing is kept")


def _blocks(
    connection: Connection, answer: http.client.HTTPResponse, limit: int
) -> Iterator[bytes]:
    """Yield what has arrived, again and again, to the end or until it is far more than the
    limit.
    """
    count = 0
    while count <= limit + READ_BYTES and (block := answer.read1(READ_BYTES)):
        connection.received += len(block)
        count += len(block)
        yield block


def _begin(partial: Path, headers: http.client.HTTPMessage) -> None:
    """Empty the partial file, before the validator of the new version is written."""
    with open(partial, "wb", opener=no_follow):
        pass
    _tag_file(partial).unlink(missing_ok=True)
    tag = headers.get("ETag", "")
    mark = headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
    if _is_tag(mark):
        with open(_tag_file(partial), "x", encoding="ascii", opener=no_follow) as stream:
            stream.write(mark)


def _difference(path: Path, size: int | None, checksum: str | None) -> str | None:
    """Say how a file differs from the size and the SHA-256 that are expected; None where it does
    not.
    """
    if size is not None and _length(path) != size:
        return f"{_length(path):,} bytes, expected {size:,}"
    if checksum is not None and (found := sha256(path)) != checksum.lower():
        return f"SHA-256 {found}, expected {checksum}"
    return None


def get_archive(
    url: str,
    archive: Path,
    wanted: Mapping[str, Path],
    expected: tuple[int | None, str | None] = (None, None),
    keep_archive: bool = False,
) -> None:
    """Download an archive, `.zip` or `.tar.gz`, and unpack files of it (see `unpack`), unless all
    of them are there.

    Its `expected` size in bytes and SHA-256 are None where they are unknown. It is removed when it
    is unpacked, unless it was there before or is to be kept.
    """
    # before the lock: the folder may be read-only
    if all(path.is_file() for path in wanted.values()):
        return
    with locked(archive.with_name(f".{archive.name}.lock"), archive):
        was_there = archive.is_file()
        download(url, archive, *expected)
        unpack(archive, wanted)
        if not (keep_archive or was_there):
            archive.unlink()
