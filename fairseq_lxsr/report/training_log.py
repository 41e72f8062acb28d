"""What fairseq-train logged: --log-format json or simple."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_lxsr.files import read_lines

VALUE = re.compile(r"\b([a-z][a-z0-9_]*)[= ](-?[0-9.]+(?:e-?[0-9]+)?)(?=[,\s|]|$)")
VALID_PREFIX = "valid_"


@dataclass
class Curves:
    """Values of one log: {name: {update: value}}."""

    name: str
    train: dict[str, dict[int, float]] = field(default_factory=dict)
    valid: dict[str, dict[int, float]] = field(default_factory=dict)


def read_log(path: Path, name: str = "") -> Curves | None:
    """Curves of what fairseq-train printed or wrote with --log-file; None where a file holds none."""
    curves = Curves(name or path.name)
    for line in read_lines(path, max_words=None):
        start = line.find("{")
        if start >= 0 and '"num_updates"' in line:
            _add(curves.train, _json_values(line[start:]))
        elif start >= 0 and '"valid_num_updates"' in line:
            values = _json_values(line[start:])
            _add(curves.valid, {key.removeprefix(VALID_PREFIX): value for key, value in values.items()})
        elif "| valid on " in line:
            _add(curves.valid, _values(line))
        elif "num_updates=" in line:
            _add(curves.train, _values(line))
    return curves if curves.train or curves.valid else None


def _json_values(text: str) -> dict[str, float]:
    try:
        return {key: float(value) for key, value in json.loads(text).items() if _is_number(value)}
    except (ValueError, AttributeError):
        return {}


def _values(text: str) -> dict[str, float]:
    """Of the simple format: `name=1.5,` in training, `| name 1.5 |` in validation."""
    return {key: float(value) for key, value in VALUE.findall(text) if _is_number(value)}


def _is_number(value) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _add(curves: dict[str, dict[int, float]], values: dict[str, float]) -> None:
    update = values.get("num_updates")
    if update is not None:
        for name, value in values.items():
            curves.setdefault(name, {})[int(update)] = value
