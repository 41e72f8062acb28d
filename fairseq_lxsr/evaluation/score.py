"""Scores, score files, and the signatures that determine whether two scores are comparable."""

import hashlib
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
from fairseq_lxsr.files.records import json_line, parse_json, sealed
from fairseq_lxsr.files.write import atomic_write, check_replaceable

# Larger integers are not exact in JSON, which stores double-precision numbers.
LARGEST_NUMBER = 2**53
# Denominators are at least this large, to avoid a division by zero.
SMALLEST_DENOMINATOR = 1e-12
# How long to wait for another process that appends scores to the same file.
SCORES_LOCK_SECONDS = 60


@dataclass(frozen=True)
class Outcomes:
    """Results per unit (query, document or sentence). Their value is 100 * sum(hits) / sum(totals).

    The paired bootstrap resamples these units to compare two systems.

        Outcomes([1, 0, 1, 1]).value  # 75.0

    Args:
        hits: numerators [U], or the first sample of a correlation.
        totals: denominators [U], or the second sample; None means 1 for every unit. Score files
            store them as `of`.
        correlation: whether the value is 100 times Pearson's correlation of hits and totals
            instead of their ratio.
    """

    hits: list[float]
    totals: list[float] | None = None
    correlation: bool = False

    @property
    def value(self) -> float:
        """Ratio or correlation in percent, or 0 if the denominator is 0."""
        if self.correlation:
            return float(self.percent(self.parts.sum(axis=1)))
        total = len(self.hits) if self.totals is None else math.fsum(self.totals)
        if not total:
            return 0.0
        return 100 * math.fsum(self.hits) / total

    @property
    def parts(self) -> np.ndarray:
        """Sufficient statistics of each resampling unit [P, U], whose sums determine the value.

        A ratio has two statistics, hits and totals. A correlation has six: ones, both standardised
        samples, their squares and their product.
        """
        hits = np.array(self.hits, dtype=float)
        totals = np.ones_like(hits) if self.totals is None else np.array(self.totals, dtype=float)
        if not self.correlation:
            return np.stack([hits, totals])
        x = _standardise(hits)
        y = _standardise(totals)
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y])

    def percent(self, sums: np.ndarray) -> np.ndarray:
        """Compute the value from sums of `parts` over a sample of units.

        Args:
            sums: sums of the rows of `parts` [P, ...].

        Returns:
            Values in percent [...].
        """
        if not self.correlation:
            return 100 * sums[0] / np.maximum(sums[1], SMALLEST_DENOMINATOR)
        n, x, y, xx, yy, xy = sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return 100 * (n * xy - x * y) / np.sqrt(np.maximum(spread, SMALLEST_DENOMINATOR))


def _standardise(sample: np.ndarray) -> np.ndarray:
    """Subtract the mean of a sample [U], and scale the result to unit length."""
    centred = sample - sample.mean()
    return centred / (np.linalg.norm(centred) or 1)


@dataclass(frozen=True)
class Score:
    """Named values of one protocol on one task, in percent.

    Args:
        protocol: name of the protocol, for example xsr or xsim.
        task: name of the task, for example `en->fr`.
        values: values by name, for example {"P@1": 93.3}.
        settings: all settings that change the values; the last is the model.
        outcomes: outcomes that the bootstrap can resample, under the same names as the values.
        curve: values by threshold: named lists of equal length, the first of which contains the
            thresholds.
        version: version of fairseq-lxsr that computed the score.
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
        """All settings in the signature, including the version of fairseq-lxsr."""
        return self.settings | {"version": self.version}

    @property
    def signature(self) -> str:
        """Signature in one line, for example `xsr|metric:nn|queries:2000|...|version:0.1.0`."""
        fields = [f"{name}:{value}" for name, value in self.signed_settings.items()]
        return "|".join([self.protocol, *fields])

    @property
    def system(self) -> str:
        """Fingerprint of the model, and how it handled texts that were too long, if any."""
        model = f"{self.settings.get('model')}"
        on_long = str(self.settings.get("long", "")).rpartition("-")[0]
        if not on_long:
            return model
        return f"{model} (long texts: {on_long})"

    @property
    def measurement(self) -> dict[str, Any]:
        """Signed settings that must be equal for scores to be comparable.

        The model and the number of texts that were too long for it are excluded.
        """
        settings = self.signed_settings
        settings.pop("model", None)
        settings.pop("long", None)
        return settings

    @property
    def comparable(self) -> tuple[str, ...]:
        """Key that is equal for comparable scores."""
        fields = [f"{name}:{value}" for name, value in self.measurement.items()]
        return (self.protocol, self.task, *fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the score as a dict for JSON.

        Returns:
            The fields of the score; `read_scores` reads the same JSON.
        """
        names = ("protocol", "task", "values", "settings", "version", "signature")
        content: dict[str, Any] = {name: getattr(self, name) for name in names}
        content["outcomes"] = {}
        for name, outcomes in self.outcomes.items():
            content["outcomes"][name] = {"hits": outcomes.hits, "of": outcomes.totals}
            if outcomes.correlation:
                content["outcomes"][name]["correlation"] = True
        if self.curve:
            content["curve"] = self.curve
        return content


def from_hits(
    protocol: str, task: str, hits: dict[str, Outcomes], settings: dict[str, Any]
) -> Score:
    """Create a score whose values are the ratios of the outcomes.

    Args:
        protocol: name of the protocol.
        task: name of the task.
        hits: outcomes by value name.
        settings: settings of the signature; the last is the model.

    Returns:
        The score, with its outcomes.
    """
    values = {name: outcomes.value for name, outcomes in hits.items()}
    return Score(protocol, task, values, settings, hits)


def as_units(hits: np.ndarray) -> list[float]:
    """Shorten numbers for JSON: 1 instead of 1.0, and at most four decimals.

    Args:
        hits: numbers [N].

    Returns:
        N numbers.
    """
    return [int(hit) if hit == int(hit) else round(float(hit), 4) for hit in hits.tolist()]


def text_hash(*texts: Sequence[str]) -> str:
    """Hash test sentences, in their order, to eight hexadecimal digits.

    Args:
        *texts: lists of sentences.

    Returns:
        The digits.
    """
    digest = hashlib.sha256()
    for text in texts:
        digest.update(("\n".join(text) + "\0").encode())
    return digest.hexdigest()[:8]


def text_and_model(model: str, *texts: Sequence[str]) -> dict[str, str]:
    """Return the last two settings of a signature: the text hash and the model fingerprint.

    Args:
        model: fingerprint of the model.
        texts: the texts to hash.

    Returns:
        The settings `text` and `model`.
    """
    return {"text": text_hash(*texts), "model": model}


def append_scores(path: str | Path, scores: Iterable[Score]) -> None:
    """Append one JSON line per score.

    The file is replaced atomically under a lock, so that several processes can append to it.

    Args:
        path: score file, created if it is missing.
        scores: scores to append.

    Raises:
        InputError: if the file contains anything but scores, or stays locked for a minute.
    """
    path = Path(path)
    check_scores_file(path)
    with locked(path.with_name(f".{path.name}.lock"), path, SCORES_LOCK_SECONDS):
        lines = list(read_lines(path, is_sentence=False)) if path.exists() else []
        for score in scores:
            lines.append(json_line(sealed(score.as_dict())))
        with atomic_write(path) as stream:
            stream.writelines(f"{line}\n" for line in lines)


def check_scores_file(path: str | Path) -> None:
    """Check that a score file is missing, empty, or valid, so that scores can be appended.

    Args:
        path: score file.
    """
    check_replaceable(Path(path))
    if Path(path).exists() and Path(path).stat().st_size:
        read_scores(path)


def read_scores(path: str | Path) -> list[Score]:
    """Read a score file, which has one JSON object per line.

        for score in read_scores("scores.jsonl"):
            print(score.task, score.values)

    Args:
        path: score file.

    Returns:
        The scores, in the order of the file.

    Raises:
        InputError: if the file is empty, or a line is not a score.
    """
    scores = []
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        try:
            scores.append(parse_score(parse_json(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: not a score ({error!r}); "
                "expected the output of `lxsr eval --output`"
            ) from None
    if not scores:
        raise InputError(f"{path} contains no scores; expected the output of `lxsr eval --output`")
    return scores


def parse_score(record: dict[str, Any]) -> Score:
    """Create a score from a JSON object.

    Args:
        record: the object, as `Score.as_dict` returns it.

    Returns:
        The score.

    Raises:
        KeyError: if a field is missing.
        TypeError: if a field has an unsuitable value.
    """
    for name in ("protocol", "task", "version"):
        _check_type(record, name, str)
    for name in ("values", "settings", "outcomes"):
        _check_type(record, name, dict)
    _check_numbers("values", list(record["values"].values()))
    outcomes = {name: _parse_outcomes(name, part) for name, part in record["outcomes"].items()}
    curve = record.get("curve", {})
    _check_curve(curve)
    return Score(
        record["protocol"],
        record["task"],
        record["values"],
        record["settings"],
        outcomes,
        record["version"],
        curve=curve,
    )


def _check_type(record: dict[str, Any], name: str, kind: type) -> None:
    if not isinstance(record[name], kind):
        raise TypeError(f"invalid {name}: {record[name]!r:.40}")


def _check_curve(curve: Any) -> None:
    if not isinstance(curve, dict):
        raise TypeError(f"invalid curve: {curve!r:.40}")
    for name, values in curve.items():
        _check_numbers(f"curve of {name}", values)
    if len({len(values) for values in curve.values()}) > 1:
        raise TypeError("curve has lists of different lengths")


def _parse_outcomes(name: str, record: Any) -> Outcomes:
    if not isinstance(record, dict):
        raise TypeError(f"invalid outcomes of {name}: {record!r:.40}")
    hits: Any = record.get("hits")
    totals: Any = record.get("of")
    correlation = record.get("correlation", False)
    _check_numbers(f"hits of {name}", hits)
    if totals is not None:
        _check_numbers(f"totals of {name}", totals)
    has_units = bool(hits) and (totals is None or len(totals) == len(hits))
    # A correlation requires a second sample.
    if not has_units or correlation not in (False, totals is not None):
        raise TypeError(
            f"invalid hits of {name}: {hits!r:.40}, of {totals!r:.40}, "
            f"correlation {correlation!r:.40}"
        )
    return Outcomes(hits, totals, bool(correlation))


def _check_numbers(name: str, values: Any) -> None:
    # The comparison is also false for NaN.
    if not (
        isinstance(values, list)
        and all(type(value) in (int, float) and abs(value) < LARGEST_NUMBER for value in values)
    ):
        raise TypeError(f"invalid {name}: {values!r:.40}")
