"""Reads YAML files that hold the fields of a dataclass."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.optional import require

Config = TypeVar("Config")


def read_config(path: Path, kind: type[Config]) -> Config:
    """Read a YAML file into a dataclass; file names in it are relative to the current folder.

    Args:
        path: the YAML file.
        kind: the dataclass, which checks its own values (see `ranges.check_fields`).

    Raises:
        InputError: naming the file, for a field that is unknown, missing or of another type.
    """
    content = read_yaml(path)
    try:
        return from_mapping(content, kind, "the file")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; tags that create objects are refused.

    Raises:
        InputError: for a file that is missing or is not YAML.
    """
    require("yaml", "train", f"{path}:")
    import yaml

    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a YAML file ({' '.join(str(error).split()):.300})") from None


def from_mapping(content: Any, kind: type[Config], where: str) -> Config:
    """Create a dataclass from a mapping; nested mappings and lists become nested dataclasses and tuples.

    Args:
        content: the mapping.
        kind: the dataclass.
        where: name of the mapping in messages.

    Raises:
        InputError: for an unknown field, a missing value, and a value that the dataclass refuses.
    """
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(content, Mapping):
        raise InputError(f"{where} is {shown(content)}; expected a mapping with some of {', '.join(known)}")
    for name in content:
        if name not in known:
            raise InputError(f"{where} has {shown(name)}; expected some of {', '.join(known)}")
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in content:
            raise InputError(f"{where} has no {name!r}")
    hints = get_type_hints(kind)
    values = {}
    for name, value in content.items():
        if is_dataclass(hints[name]):
            value = from_mapping(value, hints[name], name)
        elif get_origin(hints[name]) is tuple and isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)
