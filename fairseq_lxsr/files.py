"""Reads text line by line with checks, and writes files and folders atomically."""

import codecs
import contextlib
import errno
import fcntl
import glob
import gzip
import hashlib
import importlib
import io
import lzma
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

from fairseq_lxsr.errors import InputError

# value of fairseq-train --user-dir: fairseq imports the folder by its name from the parent folder, and so gets the
# package that `import fairseq_lxsr` finds, once; the path is absolute so that it works from any current folder
PACKAGE = Path(__file__).parent.absolute()
MAX_WORDS = 10_000
HOLDER = re.compile(rb"(process \d+ on \S+)?")  # content of a lock file; empty after a full disk
OLD = ".old"  # suffix of the hidden name of a folder that is being replaced
MAX_RATIO = 100  # largest ratio of decompressed to compressed bytes; text has less than 20
FREE = 2**26  # decompressed bytes that any file may have, because the ratio of small repetitive files is high
UNPACKED_AT_ONCE = 2**17  # bytes
SENTENCE_BYTES = 2**20  # longest line of text; a tokenizer takes 80 times as much memory
RECORD_BYTES = 2**27  # longest line that is not a sentence: scores with outcomes of a million queries, a document
PACKED = (".gz", ".xz", ".zst")
# how packed bytes begin, the program that unpacks them, and the ending of such a file
PACKERS = ((b"\x1f\x8b", "zcat", ".gz"), (b"\xfd7zXZ", "xzcat", ".xz"), (b"\x28\xb5\x2f\xfd", "zstdcat", ".zst"))
# fairseq-preprocess splits at white space, so a piece must not contain white space or control characters
BLANKS = r"[\s\x00-\x1f\u007f-\u009f\u200b\u2028\u2029\ufeff]+"
# SentencePiece reads these as blanks too, but fairseq-preprocess does not split there; surrogates are no text
_BLANK_LINE = re.compile(
    BLANKS.replace("[", r"[\u061c\u200c\u200e\u200f\u2581\ud800-\udfff\ufffd", 1).replace("+", "*")
)


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file for reading, `-` for standard input; `.gz`, `.xz` and `.zst` are decompressed."""
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("-: standard input is closed; expected text from a file or another program")
        if sys.stdin.closed or sys.stdin.buffer.closed:
            raise InputError("-: standard input was read already; expected a file where text is read twice")
        return sys.stdin.buffer
    if not Path(path).exists():
        raise InputError(f"{path}: no such file; check the name")
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder; expected a file")
    suffix = Path(path).suffix
    if suffix not in PACKED:
        return open(path, "rb")
    unpack: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix) or _zstd(path).open
    return io.BufferedReader(Metered(unpack(path, "rb"), Budget(path, FREE)), UNPACKED_AT_ONCE)


class Budget:
    """Limits the decompressed bytes of a compressed file over all its readers; a pipe has no limit.

    Args:
        free: number of bytes that are allowed before the ratio is checked.
    """

    def __init__(self, path: str | Path, free: int):
        about = os.stat(path)
        self.path, self.size = path, about.st_size
        self.left = free + MAX_RATIO * self.size if stat.S_ISREG(about.st_mode) else sys.maxsize

    def spend(self, count: int) -> None:
        """Take `count` bytes from the budget.

        Raises:
            InputError: where nothing is left.
        """
        self.left -= count
        if self.left < 0:
            raise InputError(
                f"{self.path}: unfolds to more than {MAX_RATIO} times its {self.size:,} bytes; expected text"
            )


class Metered(io.RawIOBase):
    """A file that is decompressed while it is read, within its budget."""

    def __init__(self, stream: Any, budget: Budget):
        self.stream, self.budget = stream, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        block = self.stream.read(len(buffer))
        self.budget.spend(len(block))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self.stream.close()
        super().close()


def _zstd(path: str | Path):
    """Return Python's own module (3.14 and later), or the package that backports it."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise InputError(f"{path}: needs backports.zstd, which is not installed: pip install 'fairseq-lxsr[zst]'")


def is_blank(line: str) -> bool:
    """Return whether a line has no pieces: white space, control characters, marks of direction and joining, U+FFFD."""
    return _BLANK_LINE.fullmatch(line) is not None


def one_line(text: str) -> str:
    """Return text that can be written as a cell or a line: single blanks, and `?` for what UTF-8 cannot hold."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def read_lines(path: str | Path, max_words: int | None = MAX_WORDS) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without line ends; lines are split at \\n only.

    Args:
        path: the file, `-` for standard input.
        max_words: largest number of words of a line that holds one sentence; None for lines that are not sentences.

    Raises:
        InputError: naming file, line and value for a missing file, bytes that are not UTF-8, a NUL, or a line of more
            words or of more than 1 MiB (128 MiB where `max_words` is None).
    """
    with reading(path), open_binary(path) as stream:
        for number, raw in enumerate(_raw_lines(stream, path, max_words), start=1):
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            yield _checked(raw, f"{path}, line {number}", max_words)


def _raw_lines(stream: BinaryIO, path: str | Path, max_words: int | None) -> Iterator[bytes]:
    """Yield lines with their ends; no more of a line is held in memory than its limit."""
    limit = SENTENCE_BYTES if max_words else RECORD_BYTES
    for number, raw in enumerate(iter(partial(stream.readline, limit + 1), b""), start=1):
        if len(raw) > limit:
            raise InputError(
                f"{path}, line {number}: begins with {raw[:20]!r} and has more than {limit:,} bytes; expected "
                + ("one sentence a line: split the text into sentences" if max_words else "shorter lines")
            )
        yield raw


class Lines(Sequence[str]):
    """Gives the lines of an uncompressed UTF-8 file by number; only their offsets are kept in memory."""

    def __init__(self, path: str | Path):
        import numpy as np  # imported here because every verb of the command line imports this module

        with open(path, "rb") as stream:
            lengths = np.fromiter(map(len, _raw_lines(stream, path, None)), dtype=np.int64)
        self._starts = np.concatenate(([0], lengths.cumsum()))
        self._stream = open(path, "rb")  # noqa: SIM115 (open for the lifetime of this object)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        start, end = self._starts[number], self._starts[number + 1]
        self._stream.seek(start)
        return self._stream.read(end - start).decode("utf-8").rstrip("\n")


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Convert decompression errors inside the block to an `InputError` that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path}: not a whole packed file ({error}); fetch or pack it again") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # its module may not be installed
            raise
        raise InputError(f"{path}: not a whole packed file ({error}); fetch or pack it again") from None


def _checked(raw: bytes, where: str, max_words: int | None) -> str:
    try:
        line = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        for magic, program, ending in PACKERS:
            if raw.startswith(magic):
                raise InputError(
                    f"{where}: packed bytes; expected text: pipe it through {program}, or give a file named *{ending}"
                ) from None
        found = raw[error.start : error.start + 4].hex(" ")
        raise InputError(
            f"{where}: bytes {found} at byte {error.start + 1} are not UTF-8; convert the file, for example with iconv"
        ) from None
    if "\0" in line:
        column = line.index("\0") + 1
        raise InputError(f"{where}: a NUL character at column {column}; expected text, remove it (tr -d '\\0')")
    if max_words and len(line) > max_words and len(line.split()) > max_words:
        raise InputError(
            f"{where}: {len(line.split()):,} words; expected one sentence a line, at most {max_words:,} words: "
            "split the text into sentences"
        )
    return line


def read_parallel(
    source: str | Path, target: str | Path, max_words: int | None = MAX_WORDS
) -> Iterator[tuple[str, str]]:
    """Yield the aligned lines of two files.

    Raises:
        InputError: where the numbers of lines differ or a file is empty, and as `read_lines`.
    """
    left, right = read_lines(source, max_words), read_lines(target, max_words)
    count = 0
    for line in left:
        other = next(right, None)
        if other is None:
            rest = count + 1 + sum(1 for _ in left)
            raise InputError(_unequal(source, rest, target, count, f"{source}: {line[:60]!r}"))
        count += 1
        yield line, other
    extra = next(right, None)
    if extra is not None:
        rest = count + 1 + sum(1 for _ in right)
        raise InputError(_unequal(source, count, target, rest, f"{target}: {extra[:60]!r}"))
    if not count:
        raise InputError(f"{source}: empty file; expected one sentence a line")


def _unequal(source, source_count: int, target, target_count: int, alone: str) -> str:
    return (
        f"{source} has {source_count:,} lines and {target} has {target_count:,}; expected aligned files of the same "
        f"number of lines; line {min(source_count, target_count) + 1:,} stands alone in {alone}"
    )


def count_lines(path: str | Path) -> int:
    """Count the lines of an uncompressed file; the last line may lack its end."""
    count, last = 0, b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def stamp(path: str | Path) -> list[int]:
    """Return the size of a file and the time of its last change (of content or attributes), in nanoseconds.

    A file with the stamp that was stored when it was hashed is the same file, unchanged: a copy has another time.
    """
    about = os.stat(path)
    return [about.st_size, about.st_ctime_ns]


def check_replaceable(path: Path) -> None:
    """Check that a file of this name would not replace a folder or a device.

    Raises:
        InputError: where it would.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is no file, so it is not replaced; choose another name")


def check_writable(path: Path) -> None:
    """Check that `atomic_write` can write a file, before work that takes long.

    Raises:
        InputError: where it would replace a folder or a device, or cannot be compressed.
        OSError: where the system does not allow it.
    """
    with contextlib.suppress(_NothingWrittenError), atomic_write(path):
        raise _NothingWrittenError


class _NothingWrittenError(Exception):
    """Ends a write before the file has its name."""


def refuse_overlap(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Check that no input is overwritten; every verb calls this before it starts.

    Args:
        outputs: files and folders that will be written or removed, with side files; None entries are ignored.
        inputs: files and folders that are read; a folder stands for all its content, `-` for standard input.

    Raises:
        InputError: for an output that is an input (also under another name), lies in one, contains one, or is given
            twice.
    """
    written = [Path(path) for path in outputs if path is not None]
    read = [path for path in inputs if path is not None]
    for number, output in enumerate(written):
        place = Path(os.path.realpath(output))
        if place in [Path(os.path.realpath(other)) for other in written[:number]]:
            raise InputError(f"{output}: would be written by two options; choose another name for one of them")
        for other in read:
            source = Path(os.path.realpath(other))
            if str(other) != "-" and (place.is_relative_to(source) or source.is_relative_to(place)):
                raise InputError(f"{output}: would be written over {other}, which is read; choose another name")
            if _is_same_file(output, other):  # also a hard link, or standard input
                raise InputError(f"{output}: is the same file as {other}, which is read; choose another name")


def _is_same_file(output: Path, other: str | Path) -> bool:
    try:
        return os.path.samestat(os.stat(output), _stat_input(other))
    except OSError:  # one of them does not exist
        return False


def _stat_input(path: str | Path) -> os.stat_result:
    if str(path) != "-":
        return os.stat(path)
    if sys.stdin is None:
        raise FileNotFoundError
    return os.fstat(0)


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Write a file that appears under its name only when it is complete; it is removed where the block fails.

    Text is UTF-8 with \\n; a name ending in .gz, .xz or .zst is compressed, without a time stamp, so that the same
    text gives the same bytes.
    """
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path)
    with naming(path):
        handle, name = tempfile.mkstemp(prefix=_own_prefix(path), suffix=".tmp", dir=path.parent)
    try:
        with contextlib.ExitStack() as stack:
            stream: IO = stack.enter_context(os.fdopen(handle, "wb"))
            if path.suffix in PACKED:
                stream = stack.enter_context(_packing(path, stream))
            if "b" not in mode:
                stream = stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))
            yield stream
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise _named(error, path) from None


@contextlib.contextmanager
def atomic_folder(path: str | Path, *markers: str) -> Iterator[Path]:
    """Write a folder that replaces `path` only when it is complete.

    Args:
        path: the final folder.
        markers: names of files that every such folder contains; an existing folder without one is not replaced.

    Raises:
        InputError: where `path` exists and is something else.
    """
    path = Path(path).resolve() if Path(path).is_symlink() or ".." in Path(path).parts else Path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError(f"{path}: is the current folder or holds it, so it is not replaced; choose another name")
    restore_folder(path)
    missing = [name for name in markers if not (path / name).is_file()]
    if path.exists() and missing and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path}: exists and has no {missing[0]}, so it is not replaced; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path)
    with naming(path):
        work = Path(tempfile.mkdtemp(prefix=_own_prefix(path), suffix=".tmp", dir=path.parent))
    try:
        yield work
        work.chmod(0o777 & ~_umask())
        _take_place(work, path)
    except BaseException as error:
        restore_folder(path)
        shutil.rmtree(work, ignore_errors=True)
        raise _named(error, path) from None


def _take_place(work: Path, path: Path) -> None:
    """Rename a complete folder to `path`; meanwhile the old folder lies where `restore_folder` finds it."""
    old = work.with_suffix(OLD)
    while work.exists():
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(work, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or old.exists():
                raise  # otherwise a reader has just restored the old folder, so try again
    if old.exists():
        os.replace(old, work)  # so that the old folder is not restored where its removal is interrupted
        shutil.rmtree(work)


def restore_folder(path: str | Path) -> None:
    """Restore a folder of `atomic_folder` whose replacement was interrupted; every reader calls this first.

    A process that was killed between two renames has left the folder under its hidden name.
    """
    path = Path(path)
    left = [] if os.path.lexists(path) else sorted(path.parent.glob(f".{glob.escape(path.name)}.*{OLD}"))
    if left:
        os.replace(left[-1], path)


@contextlib.contextmanager
def locked(path: str | Path, of: str | Path) -> Iterator[int]:
    """Hold a lock inside the block; the system releases it when the process ends for any reason.

    Args:
        path: the lock file, which names the holder; it is created with its folder, and removed at the end. A file that
            is no lock is neither changed nor removed.
        of: the folder or output that only one process may write, for the message.

    Returns:
        File descriptor of the lock; a process that inherits it over exec holds the lock too.

    Raises:
        InputError: naming the process and the machine that hold the lock, and for a file that is no lock.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _take_lock(path, of)
    _held.add(lock)
    try:
        with contextlib.suppress(OSError):  # on a full disk the file does not name the holder
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)  # as HOLDER
        yield lock
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # removed before the release, while no other process can hold it
        _held.discard(lock)
        os.close(lock)


def _take_lock(path: Path, of: str | Path) -> int:
    while True:
        lock = _open_lock(path, of)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace") or "its name is not known"
            os.close(lock)
            raise InputError(f"{of}: another run works in it ({holder}); wait for its end, or end it") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                os.close(lock)
                raise
            return lock  # this file system has no locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)  # the previous holder has removed the file in the meantime


def _open_lock(path: Path, of: str | Path) -> int:
    """Open or create a lock file; a link is not followed, because it may lead to any file.

    Raises:
        InputError: for a file that holds anything else than the name of a holder.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if os.path.lexists(path):
            raise
        raise OSError(error.errno, error.strerror, str(of)) from None  # nobody knows the name of a lock
    with contextlib.suppress(OSError):  # for example a pipe, which is no lock either
        if HOLDER.fullmatch(os.pread(lock, 300, 0)):
            return lock
    os.close(lock)
    raise InputError(f"{path}: would be the lock, and is another file; move it, or choose another name")


_held: set[int] = set()


def _let_go_in_child() -> None:
    """Close locks in a forked child, because a data loading process can outlive its parent by a few seconds."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


def _packing(path: Path, stream: IO) -> IO:
    """Return a stream that compresses as the ending of the name says."""
    if path.suffix == ".zst":
        return _zstd(path).ZstdFile(stream, "wb")
    if path.suffix == ".xz":
        return lzma.LZMAFile(stream, "wb")
    return gzip.GzipFile("", "wb", 6, stream, mtime=0)  # type: ignore[return-value]


def _own_prefix(path: Path) -> str:
    """Return the prefix for temporary files of `path`: host and process id."""
    return f".{path.name}.{socket.gethostname()}.{os.getpid()}."


def _remove_left_behind(path: Path) -> None:
    """Remove temporary files for `path` of processes of this machine that were killed."""
    start = f".{path.name}.{socket.gethostname()}."
    for left in path.parent.glob(f"{glob.escape(start)}*"):
        process = left.name.removeprefix(start).partition(".")[0]
        if left.suffix in (".tmp", OLD) and process.isdecimal() and not _is_alive(int(process)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the path in errors of the file system that name nothing (as of a full disk) or a temporary file of it."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: BaseException, path: Path) -> BaseException:
    if not (isinstance(error, OSError) and error.errno):
        return error
    is_temporary = any(part.startswith(f".{path.name}.") for part in Path(str(error.filename)).parts)
    if error.filename and not is_temporary:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
