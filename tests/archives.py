"""Archives in memory, with members of any kind."""

import io
import stat
import tarfile
import zipfile


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    """Describe a member of a tar file, of a type that is a constant of `tarfile`."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar_of(*members: tuple[str | tarfile.TarInfo, bytes], **options) -> bytes:
    """Pack names, or descriptions of members, with their contents as .tar.gz."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", **options) as packed:
        for name, content in members:
            info = member(name) if isinstance(name, str) else name
            info.size = info.size or len(content)
            packed.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def zip_of(*members: tuple[str, bytes], kind: int = stat.S_IFREG) -> bytes:
    """Pack names with their contents as .zip, as files of the type `kind`, a constant of `stat`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, content)
    return stream.getvalue()
