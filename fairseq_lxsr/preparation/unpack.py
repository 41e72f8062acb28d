"""Named files out of .zip and .tgz archives; nothing else of an archive is trusted."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write

MAX_RATIO = 100  # of unpacked to packed bytes; text has less than 20
MAX_BYTES = 1 << 40
FREE = 1 << 20  # bytes before the ratio counts: short files may be all alike
BLOCK = 1 << 20


def unpack(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Unpack files to names of our own choosing; each appears when it is complete.

    Args:
        wanted: where the file of each name goes; folders inside the archive do not matter.
    Raises: InputError where one is missing, the archive is spoilt, or unfolds to more than any text would.
    """
    missing = dict(wanted)
    budget = min(MAX_BYTES, FREE + MAX_RATIO * archive.stat().st_size)
    with _removed_unless_whole(wanted.values()), _opening(archive) as members:
        for name, stream in members:
            output = missing.pop(PurePosixPath(name).name, None)
            if output is not None:
                budget -= _copy(stream, output, budget, archive)
    if missing:
        raise InputError(f"{archive}: no {', '.join(missing)} in it; expected the text of the language pair")


@contextmanager
def _removed_unless_whole(outputs: Iterable[Path]) -> Iterator[None]:
    """Sums at the end of an archive may tell that what was unpacked is wrong."""
    try:
        yield
    except BaseException:
        for output in outputs:
            output.unlink(missing_ok=True)
        raise


def _copy(stream: IO[bytes], output: Path, budget: int, archive: Path) -> int:
    written = 0
    with atomic_write(output, "wb") as target, tqdm(desc=output.name, unit="B", unit_scale=True, disable=None) as bar:
        while block := stream.read(BLOCK):
            written += len(block)
            if written > budget:
                raise InputError(
                    f"{archive}: unfolds to more than {MAX_RATIO} times its {archive.stat().st_size:,} bytes; "
                    "expected text"
                )
            target.write(block)
            bar.update(len(block))
    return written


@contextmanager
def _opening(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The regular files of an archive, one after the other; gzip checks its sums at the end."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                yield ((info.filename, packed.open(info)) for info in packed.infolist() if not info.is_dir())
        else:
            with gzip.open(archive) as stream, tarfile.open(mode="r|", fileobj=stream) as tar:
                yield ((info.name, tar.extractfile(info)) for info in tar if info.isfile())  # type: ignore[misc]
                while stream.read(BLOCK):
                    pass
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise InputError(f"{archive}: not a whole archive ({error}); remove it and fetch it again") from None
