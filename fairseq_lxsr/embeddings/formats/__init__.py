"""Formats of files of embeddings, one module each; a new file here is a new `lxsr embed --format`."""

import importlib
from pathlib import Path

from fairseq_lxsr.choices import EMBEDDING_FORMATS
from fairseq_lxsr.embeddings.formats.format import DTYPES, WINDOW, Format, Layout
from fairseq_lxsr.errors import InputError

__all__ = ["DTYPES", "WINDOW", "Format", "Layout", "all_formats", "find_format", "format_name", "format_of_file"]


def find_format(name: str) -> Format:
    """The format of a name, one of `choices.EMBEDDING_FORMATS`."""
    return importlib.import_module(f"{__name__}.{name}").FORMAT


def all_formats() -> list[Format]:
    """Every format there is."""
    return [find_format(name) for name in EMBEDDING_FORMATS]


def format_name(path: Path) -> str | None:
    """The name of the format that a file's name says; None where it says none."""
    return next((name for name in EMBEDDING_FORMATS if find_format(name).suffix == path.suffix), None)


def format_of_file(path: Path) -> Format:
    """The format that a file's name says.

    Raises: InputError for a name that says none.
    """
    if name := format_name(path):
        return find_format(name)
    known = ", ".join(found.suffix for found in all_formats())
    raise InputError(f"{path}: not the name of a file of embeddings; expected one that ends in {known}")
