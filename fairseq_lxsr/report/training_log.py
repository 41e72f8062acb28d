"""Reads logs of fairseq-train (--log-format json or simple)."""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.records import parse_json

VALUE = re.compile(r"\b([a-z][a-z0-9_]*)[= ](-?(?:[0-9.]+(?:e-?[0-9]+)?|inf|nan))(?=[,\s|]|$)")
VALID_PREFIX = "valid_"
MOST_UPDATES = 2**53  # limit of the number of updates


@dataclass
class Curves:
    """Values of one log: {name: {update: value}}."""

    name: str
    train: dict[str, dict[int, float]] = field(default_factory=dict)
    valid: dict[str, dict[int, float]] = field(default_factory=dict)


def read_log(path: Path, name: str = "") -> Curves | None:
    """Read the curves that fairseq-train printed or wrote with --log-file; None where a file holds
    none.
    """
    curves = Curves(name or path.name)
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        found, values = _of_line(curves, line)
        update = values.get("num_updates")
        if update is None:
            continue
        if not 0 <= update < MOST_UPDATES or update != int(update):
            raise InputError(
                f"{path}, line {number}: num_updates {update}; expected a whole number, as fairseq-train"
            )
        for value_name, value in values.items():
            found.setdefault(value_name, {})[int(update)] = value
    return curves if curves.train or curves.valid else None


def _of_line(curves: Curves, line: str) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Return the curves that a line extends, and its values; both are empty for any other line."""
    start = line.find("{")
    if start >= 0 and '"num_updates"' in line:
        return curves.train, _json_values(line[start:])
    if start >= 0 and '"valid_num_updates"' in line:
        values = _json_values(line[start:])
        return curves.valid, {
            key.removeprefix(VALID_PREFIX): value for key, value in values.items()
        }
    if "| valid on " in line:
        return curves.valid, _numbers(VALUE.findall(line))
    return curves.train, _numbers(VALUE.findall(line)) if "num_updates=" in line else {}


def _json_values(text: str) -> dict[str, float]:
    try:
        return _numbers(parse_json(text).items())
    except ValueError:
        return {}


def _numbers(fields: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Parse numbers of the simple format (`name=1.5,` or `| name 1.5 |`) and of JSON, where they
    are strings.
    """
    numbers = {}
    for name, value in fields:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            numbers[name] = float(value)
    return numbers
