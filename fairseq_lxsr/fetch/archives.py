"""Downloads an archive and unpacks files of it."""

from collections.abc import Mapping
from pathlib import Path

from fairseq_lxsr.fetch.download import download
from fairseq_lxsr.fetch.unpack import unpack
from fairseq_lxsr.locks import locked


def get_archive(
    url: str,
    archive: Path,
    wanted: Mapping[str, Path],
    expected: tuple[int | None, str | None] = (None, None),
    keep_archive: bool = False,
) -> None:
    """Download an archive and unpack files of it, unless all of them are there.

    Args:
        url: its address.
        archive: where to keep it until it is unpacked; `.zip` or a `.tar.gz`.
        wanted: output path by file name, see `unpack`.
        expected: size in bytes and SHA-256 of the archive; None where they are unknown.
        keep_archive: keep the downloaded archive; one that was there before is always kept.

    Raises:
        InputError: where the archive differs from what is expected or lacks a file, and while another process has it.
    """
    if all(path.is_file() for path in wanted.values()):  # before the lock: the folder may be read-only
        return
    with locked(archive.with_name(f".{archive.name}.lock"), archive):
        was_there = archive.is_file()
        download(url, archive, *expected)
        unpack(archive, wanted)
        if not (keep_archive or was_there):
            archive.unlink()
