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
# Larger numbers of updates are not exact as floating-point numbers.
MAX_UPDATES = 2**53


@dataclass
class Curves:
    """The training curves in one log.

    Attributes:
        name: name of the log.
        train: training values: {name: {update: value}}.
        valid: validation values, in the same form.
        exported: update at which the weights of the exported model were saved; None if unknown.
    """

    name: str
    train: dict[str, dict[int, float]] = field(default_factory=dict)
    valid: dict[str, dict[int, float]] = field(default_factory=dict)
    exported: int | None = None


def read_log(path: Path, name: str = "") -> Curves | None:
    """Read the training curves from the printed output or --log-file of fairseq-train.

    Args:
        path: log file.
        name: name of the curves; the file name if empty.

    Returns:
        The curves, or None if the file contains none.

    Raises:
        InputError: if a number of updates is invalid.
    """
    curves = Curves(name or path.name)
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        is_valid, values = _values_in_line(line)
        update = values.get("num_updates")
        if update is None:
            continue
        if not 0 <= update < MAX_UPDATES or update != int(update):
            raise InputError(
                f"{path}, line {number}: num_updates {update} is invalid; expected an "
                "integer, the format of fairseq-train"
            )
        extended = curves.valid if is_valid else curves.train
        for value_name, value in values.items():
            extended.setdefault(value_name, {})[int(update)] = value
    return curves if curves.train or curves.valid else None


def _values_in_line(line: str) -> tuple[bool, dict[str, float]]:
    """Parse a line of a log.

    Returns:
        Whether the values are from validation, and the values by name. A line without values gives
        an empty dict.
    """
    start = line.find("{")
    if start >= 0 and '"num_updates"' in line:
        return False, _json_values(line[start:])
    if start >= 0 and '"valid_num_updates"' in line:
        values = _json_values(line[start:])
        return True, {key.removeprefix(VALID_PREFIX): value for key, value in values.items()}
    if "| valid on " in line:
        return True, _parse_numbers(VALUE.findall(line))
    if "num_updates=" in line:
        return False, _parse_numbers(VALUE.findall(line))
    return False, {}


def _json_values(text: str) -> dict[str, float]:
    try:
        return _parse_numbers(parse_json(text).items())
    except ValueError:
        return {}


def _parse_numbers(fields: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Parse numbers, which are strings in both formats. Other values are skipped."""
    numbers = {}
    for name, value in fields:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            numbers[name] = float(value)
    return numbers
