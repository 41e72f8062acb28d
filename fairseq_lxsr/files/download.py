"""Downloads files with resuming, retries and checksum verification.

Files are written atomically.
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
    MIN_BYTES,
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

# Maximum number of consecutive failed attempts without progress. Progress means at least
# `MIN_BYTES` more than in any earlier attempt.
DOWNLOAD_ATTEMPTS = 5
# Maximum total number of attempts, and maximum total time.
ALL_ATTEMPTS = 100
TOTAL_SECONDS = 24 * 3600
# HTTP status codes that are worth retrying.
BUSY_STATUS = (408, 429)
# Status code returned when the file has no bytes beyond those already downloaded.
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206
# Timeout in seconds for the response, and then for every `MIN_BYTES` of data.
TIMEOUT = 60
# Seconds to wait after a failed attempt, doubled for each consecutive attempt without progress.
BACK_OFF = 1.0
# Size limit for files of unknown size.
MAX_BYTES = 2**34
# Maximum length of a stored validator (ETag or date).
MAX_TAG = 1000
CHANGED = "the file on the server has changed"
HEADERS = {"User-Agent": "fairseq-lxsr", "Accept-Encoding": "identity"}
RETRIED = (InterruptedDownloadError, http.client.HTTPException, OSError)


def download(url: str, path: Path, size: int | None = None, checksum: str | None = None) -> None:
    """Download a file, or verify it if it already exists.

    A partial file PATH.part from an earlier run is resumed. The number of attempts and the total
    time are limited, whatever the server does.

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
    address = ascii_address(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    remove_planted(partial)
    remove_planted(_tag_file(partial))
    was_resumed = _length(partial) > 0
    _transfer(url, address, partial, size)
    problem = _difference(partial, size, checksum)
    if problem and was_resumed:
        # The part from an earlier run may be wrong even if the file on the server is right.
        _remove_partial(partial)
        _transfer(url, address, partial, size)
        problem = _difference(partial, size, checksum)
    if problem:
        _remove_partial(partial)
        raise InputError(
            f"{url}: {problem}; the file has changed or was damaged in transfer, and was deleted"
        )
    partial.replace(path)
    _tag_file(partial).unlink(missing_ok=True)


def _transfer(url: str, address: str, partial: Path, size: int | None) -> None:
    """Append the missing bytes to the partial file, retrying after errors."""
    attempts = _Attempts(url, partial)
    while True:
        try:
            with Connection(TIMEOUT, attempts.deadline) as connection:
                _fetch(connection, address, partial, size)
            return
        except InputError as error:
            raise InputError(f"{url}: {error}") from None
        except RETRIED as error:
            problem = _permanent_problem(error)
            if problem:
                raise InputError(f"{url}: {problem}") from None
            attempts.record_failure(error)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{url}: {plain(error)}; check the URL and its redirects") from None
        time.sleep(BACK_OFF * 2**attempts.without_progress)


class _Attempts:
    """Counts failed download attempts.

    Attributes:
        deadline: `time.monotonic` time after which no further attempt is made.
        without_progress: number of consecutive attempts without progress.
    """

    def __init__(self, url: str, partial: Path):
        self.deadline = time.monotonic() + TOTAL_SECONDS
        self.without_progress = 0
        self._url = url
        self._partial = partial
        self._count = 0
        self._longest = _length(partial)

    def record_failure(self, error: Exception) -> None:
        """Count a failed attempt; raise `InputError` if no attempts remain."""
        self._count += 1
        length = _length(self._partial)
        if length < self._longest + MIN_BYTES:
            self.without_progress += 1
        else:
            self.without_progress = 0
        self._longest = max(self._longest, length)
        is_stuck = self.without_progress == DOWNLOAD_ATTEMPTS
        if is_stuck or self._count == ALL_ATTEMPTS or time.monotonic() > self.deadline:
            tried = self.without_progress if is_stuck else self._count
            kind = ""
            if isinstance(error, http.client.HTTPException):
                kind = f"{type(error).__name__}: "
            raise InputError(
                f"{self._url}: {kind}{plain(error)} ({tried} attempts); try again later: the "
                f"{length:,} bytes downloaded so far are kept"
            ) from None


def _permanent_problem(error: Exception) -> str | None:
    """Describe an error that a retry would not fix, or return None; re-raise disk errors."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code < 500 and error.code not in BUSY_STATUS:
            return f"{error.code} {plain(error.reason)}; check the URL (the file may have moved)"
        return None
    if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
        return f"{plain(error)}; check that the URL belongs to the right server"
    if isinstance(error, http.client.InvalidURL):
        return f"{plain(error)}; use a URL such as https://HOST/FILE"
    is_network_error = isinstance(error, urllib.error.URLError)
    if isinstance(error, OSError) and not is_network_error and error.filename:
        raise error
    return None


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag_file(partial: Path) -> Path:
    """Return the path of the file that stores the server's validator (ETag or date)."""
    return partial.with_name(f"{partial.name}.etag")


def _remove_partial(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _tag_file(partial).unlink(missing_ok=True)


def _is_tag(tag: str) -> bool:
    return 0 < len(tag) <= MAX_TAG and tag.isascii() and tag.isprintable()


def _request_headers(partial: Path) -> dict[str, str]:
    """Return HTTP headers that request the missing bytes.

    If the validator of a partial file is damaged, the partial file is removed, and the whole file
    is requested.
    """
    length = _length(partial)
    if not length:
        return HEADERS
    headers = HEADERS | {"Range": f"bytes={length}-"}
    tag_file = _tag_file(partial)
    if tag_file.is_file():
        tag = tag_file.read_bytes()[: MAX_TAG + 1].decode("latin-1")
        if not _is_tag(tag):
            _remove_partial(partial)
            return HEADERS
        headers["If-Range"] = tag
    return headers


def _fetch(connection: Connection, address: str, partial: Path, size: int | None) -> None:
    """Append the missing bytes to the partial file, in a single attempt.

    If the server does not support ranges, the whole file is downloaded.
    """
    headers = _request_headers(partial)
    length = _length(partial)
    try:
        response = connection.open(address, headers)
    except urllib.error.HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        size_on_server = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if size_on_server == str(length):
            # The file was already complete.
            return
        partial.unlink(missing_ok=True)
        raise InterruptedDownloadError(CHANGED) from None
    with response:
        start = _start_of_response(response, partial, length)
        total = None if response.length is None else start + response.length
        _check_space(response.length, partial.parent)
        limit = _size_limit(size, total)
        with Progress(
            desc=partial.stem, total=total, initial=start, unit="B", unit_scale=True, disable=None
        ) as bar:
            for block in _blocks(connection, response, limit - start):
                # Only disk errors should name the file.
                with naming(partial), open(partial, "ab", opener=no_follow) as stream:
                    stream.write(block)
                bar.update(len(block))
    _check_end(partial, size, total, limit)


def _start_of_response(response: http.client.HTTPResponse, partial: Path, length: int) -> int:
    """Return the offset of the response's first byte: `length`, or 0 if the whole file is sent."""
    if response.status != PARTIAL_CONTENT:
        _begin(partial, response.headers)
        return 0
    content_range = response.headers.get("Content-Range") or ""
    if not re.match(rf"bytes 0*{length}-", content_range):
        partial.unlink(missing_ok=True)
        raise InterruptedDownloadError("the server did not send the requested part")
    return length


def _check_space(size: int | None, folder: Path) -> None:
    if not size:
        return
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"needs {size:,} bytes, but only {free:,} are free in {folder}; free some disk space"
        )


def _size_limit(size: int | None, total: int | None) -> int:
    """Return the maximum file size, given the expected size and the size in the headers."""
    if size is not None:
        return size
    return MAX_BYTES if total is None else total


def _check_end(partial: Path, size: int | None, total: int | None, limit: int) -> None:
    """Check that a response neither ended early nor exceeded the size limit."""
    length = _length(partial)
    if total is not None and length < min(total, limit):
        raise InterruptedDownloadError(f"the connection ended after {length:,} of {total:,} bytes")
    if total is None and size is None and length > limit:
        _remove_partial(partial)
        raise InputError(f"larger than the limit of {limit:,} bytes; the download was deleted")


def _blocks(
    connection: Connection, response: http.client.HTTPResponse, limit: int
) -> Iterator[bytes]:
    """Yield data as it arrives, until it ends or greatly exceeds the limit."""
    count = 0
    while count <= limit + READ_BYTES and (block := response.read1(READ_BYTES)):
        connection.received += len(block)
        count += len(block)
        yield block


def _begin(partial: Path, headers: http.client.HTTPMessage) -> None:
    """Truncate the partial file, then store the validator of the file's new version."""
    with open(partial, "wb", opener=no_follow):
        pass
    _tag_file(partial).unlink(missing_ok=True)
    tag = headers.get("ETag", "")
    # A weak ETag does not guarantee identical bytes.
    if not tag or tag.startswith("W/"):
        tag = headers.get("Last-Modified", "")
    if _is_tag(tag):
        with open(_tag_file(partial), "x", encoding="ascii", opener=no_follow) as stream:
            stream.write(tag)


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
    keep_archive: bool = False,
) -> None:
    """Download an archive and extract files from it, unless all of these files exist.

    The archive is deleted after extraction, unless it existed before.

    Args:
        url: URL of the archive.
        archive: path of the archive, ending in `.zip` or `.tar.gz`.
        outputs: maps file names in the archive to output paths (see `unpack`).
        expected: size in bytes and SHA-256 checksum of the archive; None if unknown.
        keep_archive: whether to keep the archive.

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
        if not (keep_archive or existed):
            archive.unlink()
