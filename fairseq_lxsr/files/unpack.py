"""Extracts named files from .zip and .tgz archives.

Nothing is extracted under a name from the archive, so no archive can write outside the output
folder.
"""

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.files.archives import reporting_damage
from fairseq_lxsr.files.open import FREE_BYTES, READ_BYTES, Budget, Metered
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.write import atomic_write

# Errors of damaged archives, besides those of `zipfile`.
DAMAGE = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OverflowError)


def unpack(archive: Path, outputs: Mapping[str, Path]) -> None:
    """Extract files from a .zip or .tgz archive, except for files that already exist.

        unpack(Path("corpus.zip"), {"Toy.en-fr.en": Path("toy.en")})

    Files get their final names only after the whole archive has been read, because checksums at
    its end may reveal damage.

    Args:
        archive: path of the archive; the suffix determines the format.
        outputs: maps file names to output paths; folders inside the archive are ignored, and links
            are not extracted.

    Raises:
        InputError: if the archive is damaged, extracts to an implausible size, or lacks one of the
            files.
    """
    missing = {name: output for name, output in outputs.items() if not output.is_file()}
    budget = Budget(archive, FREE_BYTES)
    with ExitStack() as targets:
        with reporting_damage(archive, DAMAGE):
            for name, open_member in _members(archive):
                output = missing.pop(PurePosixPath(name).name, None)
                if output is not None:
                    target = targets.enter_context(atomic_write(output, "wb"))
                    with Metered(open_member(), budget) as source:
                        _copy(source, target, output.name)
        if missing:
            raise InputError(
                f"{archive}: no {listed(list(missing))} in this archive; check that it is the "
                "right one"
            )


def _copy(source: Metered, target: Any, name: str) -> None:
    with Progress(desc=name, unit="B", unit_scale=True) as bar:
        while block := source.read(READ_BYTES):
            target.write(block)
            bar.update(len(block))


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of every regular file in an archive, and a function that opens the file."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed_zip:
            for info in packed_zip.infolist():
                if not info.is_dir():
                    yield info.filename, partial(packed_zip.open, info)
        return
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as packed_tar:
        for member in packed_tar:
            if member.isreg():
                yield member.name, partial(packed_tar.extractfile, member)
        # gzip verifies its checksum at the end of the stream.
        while stream.read(READ_BYTES):
            pass
