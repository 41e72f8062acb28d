"""Ranges of options: declared once, where the option is, and checked alike on the command line, in YAML and in JSON."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from fairseq_lxsr.errors import InputError

LARGEST = 2**31 - 1  # of a whole number, where nothing smaller is declared


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; NaN is never one of them.

        parser.add_argument("--k", type=at_least(1), default=5)
        dropout: float = field(default=0.1, metadata={"help": "...", "range": below(1)})

    Args:
        least, most: the ends, both allowed.
        whole: whole numbers only.
        open_least, open_most: the end itself is not allowed.
        infinite: infinity is allowed.
    """

    least: float = -math.inf
    most: float = math.inf
    whole: bool = False
    open_least: bool = False
    open_most: bool = False
    infinite: bool = False

    def __contains__(self, value: Any) -> bool:
        kinds = (int,) if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or math.isnan(value):
            return False
        if math.isinf(value) and not self.infinite:
            return False
        above = value > self.least if self.open_least else value >= self.least
        return above and (value < self.most if self.open_most else value <= self.most)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"{'above' if self.open_least else 'of at least'} {self.least:,}" if self.least > -math.inf else ""
        shown = self.most < (LARGEST if self.whole else math.inf)
        high = f"{'below' if self.open_most else 'of at most'} {self.most:,}" if shown else ""
        return " ".join((kind, " and ".join(filter(None, (low, high))))).strip()

    def check(self, name: str, value: Any) -> None:
        """Raises: InputError naming the option, its value and this range."""
        if value not in self:
            raise InputError(f"{name} {value!r:.60}; expected {self}")

    def __call__(self, text: str) -> float:
        """The number that an option of the command line gives, as `type=` of argparse."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = math.nan
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r:.60}; expected {self}")
        return value


def at_least(least: int, most: int = LARGEST) -> Range:
    """Whole numbers from `least`."""
    return Range(least, most, whole=True)


def between(least: float, most: float) -> Range:
    """Numbers from `least` to `most`, both allowed."""
    return Range(least, most)


def below(most: float, least: float = 0.0) -> Range:
    """Numbers from `least` up to `most`, which is not allowed itself: a probability that leaves something."""
    return Range(least, most, open_most=True)


def positive(infinite: bool = False) -> Range:
    """Numbers above 0."""
    return Range(0, open_least=True, infinite=infinite)


NOT_NEGATIVE = Range(0)
FINITE = Range()


def check_fields(
    values: Any, kind: type | None = None, spell: Callable[[str], str] = str, where: str = "", optional: bool = False
) -> None:
    """Check the fields of a dataclass: numbers against the `range` in their metadata, and plain types.

    Args:
        values: an object with these fields.
        kind: the dataclass, where `values` is not of it.
        spell: the name of a field as the user writes it, for example `--align-weight`.
        where: what stands before the name in the message, for example a file.
        optional: None is as good as any value.
    Raises: InputError naming the first field whose value does not fit.
    """
    kind = kind or type(values)
    hints = get_type_hints(kind)
    for item in fields(kind):
        value = getattr(values, item.name)
        if value is None and optional:
            continue
        name = f"{where}{spell(item.name)}"
        allowed = item.metadata.get("range")
        if allowed is not None:
            allowed.check(name, value)
        elif hints[item.name] in (bool, int, str) and type(value) is not hints[item.name]:
            expected = {bool: "true or false", int: "a whole number", str: "text"}[hints[item.name]]
            raise InputError(f"{name} {value!r:.60}; expected {expected}")
