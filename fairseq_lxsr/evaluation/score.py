"""Scores, the signatures that tell whether two scores are comparable, and files of scores."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.records import parse_json, sealed
from fairseq_lxsr.files.write import atomic_write, check_replaceable

LARGEST_NUMBER = 2**53  # limit of numbers in a score
SMALLEST_DENOMINATOR = 1e-12  # denominator, so that nothing is divided by 0
SCORES_LOCK_SECONDS = 60  # seconds to wait for another process that adds scores


@dataclass(frozen=True)
class Outcomes:
    """The parts of a value by unit (query, document, sentence), which is 100 * sum(hits) / sum(of).

    The paired bootstrap draws these units to compare two systems.

    Args:
        hits: numerators [U], or one of the two samples of a correlation.
        of: denominators [U], or the other sample; None counts 1 for every unit.
        correlation: the value is 100 times Pearson's correlation of both instead of their ratio.
    """

    hits: list[float]
    of: list[float] | None = None
    correlation: bool = False

    @property
    def value(self) -> float:
        """Ratio or correlation in percent; 0 where the denominator is 0."""
        if self.correlation:
            return float(self.percent(self.parts.sum(axis=1)))
        total = len(self.hits) if self.of is None else math.fsum(self.of)
        return 100 * math.fsum(self.hits) / total if total else 0.0

    @property
    def parts(self) -> np.ndarray:
        """What is summed over units, [P, U]: hits and of; for a correlation also their squares and
        products.
        """
        hits = np.array(self.hits, dtype=float)
        of = np.ones_like(hits) if self.of is None else np.array(self.of, dtype=float)
        if not self.correlation:
            return np.stack([hits, of])
        centred = (side - side.mean() for side in (hits, of))
        x, y = (side / (np.linalg.norm(side) or 1) for side in centred)
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y])

    def percent(self, sums: np.ndarray) -> np.ndarray:
        """Compute the value from sums of the parts over some units, [P, ...]."""
        if not self.correlation:
            return 100 * sums[0] / np.maximum(sums[1], SMALLEST_DENOMINATOR)
        n, x, y, xx, yy, xy = sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return 100 * (n * xy - x * y) / np.sqrt(np.maximum(spread, SMALLEST_DENOMINATOR))


@dataclass(frozen=True)
class Score:
    """Named values of one protocol on one task, in percent.

    Args:
        protocol: name of the protocol, for example xsr or xsim.
        task: name of the task, for example `en->fr`.
        values: values by name, for example {"P@1": 93.3}.
        settings: all settings that change the values; the last is the model.
        outcomes: outcomes by unit of the values that the bootstrap can draw, by the same names.
        curve: values over a threshold, named lists of equal length, of which the first is the
            threshold.
        version: version of fairseq-lxsr that measured.
    """

    protocol: str
    task: str
    values: dict[str, float]
    settings: dict[str, Any]
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict, kw_only=True)
    version: str = __version__

    @property
    def signed_settings(self) -> dict[str, Any]:
        """Settings, and the version that measured."""
        return self.settings | {"version": self.version}

    @property
    def signature(self) -> str:
        """Signature in one line, for example `xsr|metric:nn|queries:2000|...|version:0.1.0`."""
        return "|".join(
            [self.protocol, *(f"{name}:{value}" for name, value in self.signed_settings.items())]
        )

    @property
    def system(self) -> str:
        """The model and, where texts were longer than it reads, how it read them."""
        how = str(self.settings.get("long", "")).rpartition("-")[0]
        return f"{self.settings.get('model')}" + (f" (long texts: {how})" if how else "")

    @property
    def measured_alike(self) -> dict[str, Any]:
        """Signed settings that comparable scores share: all but the model, and how many texts are
        long for it.
        """
        return {
            name: value
            for name, value in self.signed_settings.items()
            if name not in ("model", "long")
        }

    @property
    def comparable(self) -> tuple[str, ...]:
        """Key that comparable scores share."""
        return (
            self.protocol,
            self.task,
            *(f"{name}:{value}" for name, value in self.measured_alike.items()),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        outcomes = {
            name: {
                "hits": out.hits,
                "of": out.of,
                **({"correlation": True} if out.correlation else {}),
            }
            for name, out in self.outcomes.items()
        }
        names = ("protocol", "task", "values", "settings", "version", "signature")
        curve = {"curve": self.curve} if self.curve else {}
        return {name: getattr(self, name) for name in names} | {"outcomes": outcomes} | curve


def from_hits(
    protocol: str, task: str, hits: dict[str, Outcomes], settings: dict[str, Any]
) -> Score:
    """Make a score whose values are the ratios of the outcomes."""
    return Score(
        protocol, task, {name: outcomes.value for name, outcomes in hits.items()}, settings, hits
    )


def as_units(hits: np.ndarray) -> list[float]:
    """Convert numbers to a short form in JSON: 1 and not 1.0."""
    return [int(hit) if hit == int(hit) else round(float(hit), 4) for hit in hits.tolist()]


def text_hash(*texts: Sequence[str]) -> str:
    """Hash test sentences in their order to eight hexadecimal digits."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(("\n".join(text) + "\0").encode())
    return digest.hexdigest()[:8]


def text_and_model(model: str, *texts: Sequence[str]) -> dict[str, str]:
    """Return the last settings of a signature: the hash of the text, and the fingerprint of the
    model.
    """
    return {"text": text_hash(*texts), "model": model}


def append_scores(path: str | Path, scores: Iterable[Score]) -> None:
    """Append one JSON line per score; the file is replaced atomically, by one process after the
    other.
    """
    path = Path(path)
    check_scores_file(path)
    with locked(path.with_name(f".{path.name}.lock"), path, SCORES_LOCK_SECONDS):
        lines = list(read_lines(path, is_sentence=False)) if path.exists() else []
        lines += [
            json.dumps(sealed(score.as_dict()), ensure_ascii=False, allow_nan=False)
            for score in scores
        ]
        with atomic_write(path) as stream:
            stream.writelines(f"{line}\n" for line in lines)


def check_scores_file(path: str | Path) -> None:
    """Check that scores can be appended to a file: it is missing, empty, or holds scores."""
    check_replaceable(Path(path))
    if Path(path).exists() and Path(path).stat().st_size:
        read_scores(path)


def read_scores(path: str | Path) -> list[Score]:
    """Read the scores of a file of JSON lines."""
    scores = []
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        try:
            scores.append(_score(parse_json(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: not a score ({error!r}); expected the output of `lxsr eval --output`"
            ) from None
    if not scores:
        raise InputError(f"{path}: no score in it; expected the output of `lxsr eval --output`")
    return scores


def _score(read: dict[str, Any]) -> Score:
    """Make a score of a JSON object; KeyError for a field that is missing, TypeError for one that
    does not fit.
    """
    for kind, names in (
        (str, ("protocol", "task", "version")),
        (dict, ("values", "settings", "outcomes")),
    ):
        for name in names:
            if not isinstance(read[name], kind):
                raise TypeError(f"{name} {read[name]!r:.40}")
    _check_numbers("values", list(read["values"].values()))
    outcomes = {name: _outcomes(name, out) for name, out in read["outcomes"].items()}
    curve = read.get("curve", {})
    if not isinstance(curve, dict):
        raise TypeError(f"curve {curve!r:.40}")
    for name, values in curve.items():
        _check_numbers(f"curve of {name}", values)
    if len({len(values) for values in curve.values()}) > 1:
        raise TypeError("curve of lists of different lengths")
    settings, version = read["settings"], read["version"]
    return Score(
        read["protocol"], read["task"], read["values"], settings, outcomes, version, curve=curve
    )


def _outcomes(name: str, read: Any) -> Outcomes:
    hits, of = (read.get("hits"), read.get("of")) if isinstance(read, dict) else (None, None)
    _check_numbers(f"hits of {name}", hits)
    if of is not None:
        _check_numbers(f"of of {name}", of)
    correlation = read.get("correlation", False)
    if (
        not hits
        or (of is not None and len(of) != len(hits))
        or correlation not in (False, of is not None)
    ):
        raise TypeError(
            f"hits of {name} {hits!r:.40}, of {of!r:.40}, correlation {correlation!r:.40}"
        )
    return Outcomes(hits, of, bool(correlation))


def _check_numbers(name: str, values: Any) -> None:
    # the comparison is also false for NaN
    if not (
        isinstance(values, list)
        and all(type(value) in (int, float) and abs(value) < LARGEST_NUMBER for value in values)
    ):
        raise TypeError(f"{name} {values!r:.40}")
