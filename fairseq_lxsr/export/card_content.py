"""What a model card says that the model itself does not contain: scores and sources of its text.

Both are stored in scores.json in the model folder, from which the card is written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fairseq_lxsr.encoder.model_folder import SCORES_FILE
from fairseq_lxsr.errors import InputError, say, shown
from fairseq_lxsr.evaluation.compare import latest
from fairseq_lxsr.evaluation.score import Score, parse_score
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.records import parse_json, sealed
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.options import check_fields

# Decimals of stored scores.
DECIMALS = 4
# Required content of a sources file, for error messages.
SOURCES_FORMAT = 'expected {"note": TEXT, "sources": [{"name": ...}, ...]}'


@dataclass(frozen=True)
class TextSource:
    """One source of training text.

    Attributes:
        name: short name of the source.
        about: description of the source.
        url: download URL.
        licence: name of its licence.
        attribution: attribution that the licence requires.
        pairs: number of pairs by language pair, such as `en-fr`.
    """

    name: str
    about: str
    url: str
    licence: str
    attribution: str
    pairs: Mapping[str, int]

    def __post_init__(self):
        check_fields(self)

    @property
    def cells(self) -> list[str]:
        """Cells of a row in a Markdown table."""
        counts = ", ".join(f"{pair} {count:,}" for pair, count in sorted(self.pairs.items()))
        description = f"{self.name}: {self.about}, {self.url}"
        return [description, self.licence, self.attribution, counts]


@dataclass(frozen=True)
class TextSources:
    """All sources of a training text.

    Attributes:
        note: text above the table: what was selected from the sources, and why.
        sources: the sources, in the order of the table.
    """

    note: str
    sources: tuple[TextSource, ...]

    @classmethod
    def read(cls, path: str | Path) -> "TextSources":
        """Read the sources from a JSON file.

        Args:
            path: file with `{"note": ..., "sources": [{"name": ..., ...}, ...]}`; unknown fields
                are ignored.

        Raises:
            InputError: if the file is invalid.
        """
        try:
            content = parse_json("\n".join(read_lines(path, is_sentence=False)))
        except InputError as error:
            raise InputError(f"{error}; {SOURCES_FORMAT}") from None
        except ValueError as error:
            raise InputError(f"{path}: {error!s:.100}; {SOURCES_FORMAT}") from None
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: Mapping[str, Any], place: str) -> "TextSources":
        """Create the sources from a JSON object.

        Args:
            content: the object, as in `read`.
            place: where it comes from, for error messages.

        Raises:
            InputError: if the object is invalid.
        """
        note = content.get("note")
        if not isinstance(note, str):
            raise InputError(f"{place}: invalid note {shown(note)}; {SOURCES_FORMAT}")
        rows = content.get("sources")
        if not isinstance(rows, list) or not rows:
            raise InputError(f"{place}: invalid sources {shown(rows)}; {SOURCES_FORMAT}")
        sources = []
        for number, row in enumerate(rows, start=1):
            sources.append(_parse_source(row, f"{place}, source {number}"))
        return cls(" ".join(note.split()), tuple(sources))


def _parse_source(row: Any, place: str) -> TextSource:
    names = [item.name for item in fields(TextSource)]
    if not isinstance(row, dict) or not row.keys() >= set(names):
        raise InputError(
            f"{place}: {shown(row)} is invalid; expected an object with {', '.join(names)}"
        )
    try:
        return TextSource(**{name: row[name] for name in names})
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _rounded(score: Score) -> Score:
    """Return a score with the decimals that are stored, so that a later card shows the same."""
    return replace(
        score, values={name: round(value, DECIMALS) for name, value in score.values.items()}
    )


@dataclass(frozen=True)
class CardContent:
    """The content of scores.json.

    Attributes:
        model: fingerprint of the model that was evaluated.
        scores: scores of the model; outcomes and curves are not stored.
        sources: sources of its training text; None if unknown.
    """

    model: str
    scores: tuple[Score, ...] = ()
    sources: TextSources | None = None

    @classmethod
    def of(
        cls, encoder: Any, scores: Sequence[Score] = (), sources: TextSources | None = None
    ) -> "CardContent":
        """Return the content for a card; what is not given is read from the encoder's folder.

        Args:
            encoder: the encoder that was evaluated.
            scores: its scores. Of comparable scores, the last is used.
            sources: sources of its training text.

        Raises:
            InputError: if a score belongs to another model, or scores.json is damaged.
        """
        for score in scores:
            model = score.settings.get("model")
            if model != encoder.fingerprint:
                raise InputError(
                    f"{score.protocol} {score.task}: computed with model {model}; expected the "
                    f"model {encoder.fingerprint}: evaluate this model"
                )
        rounded = tuple(_rounded(score) for score in latest(scores).values())
        given = cls(encoder.fingerprint, rounded, sources)
        if encoder.folder is None or not (encoder.folder / SCORES_FILE).is_file():
            return given
        stored = cls.read(encoder.folder)
        if stored.model != given.model:
            say(
                f"{encoder.folder / SCORES_FILE} describes model {stored.model:.40} and is not "
                f"used for model {given.model}"
            )
            return given
        return replace(
            given, scores=given.scores or stored.scores, sources=sources or stored.sources
        )

    @classmethod
    def read(cls, folder: Path) -> "CardContent":
        """Read scores.json in a model folder.

        Raises:
            InputError: if the file is damaged, or contains anything but scores and sources.
        """
        path = folder / SCORES_FILE
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            model = content["model"]
            scores = [parse_score(record) for record in content["scores"]]
            sources = content["sources"]
            if not isinstance(model, str):
                raise TypeError(f"invalid model: {model!r:.40}")
            if sources is not None:
                sources = TextSources.parse(sources, "sources")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: not the scores of a model ({error!r:.200}); delete the file, and write "
                "it again with `lxsr export card --scores FILE.jsonl --sources FILE.json`"
            ) from None
        return cls(model, tuple(scores), sources)

    def write(self, folder: Path) -> None:
        """Write scores.json into a model folder."""
        scores = []
        for score in self.scores:
            record = replace(score, outcomes={}, curve={}).as_dict()
            # The signature repeats the settings.
            del record["signature"]
            scores.append(record)
        content = sealed(
            {
                "model": self.model,
                "scores": scores,
                "sources": asdict(self.sources) if self.sources else None,
            }
        )
        with atomic_write(folder / SCORES_FILE) as stream:
            stream.write(json.dumps(content, indent=1) + "\n")
