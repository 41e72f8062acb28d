"""Reads the licence, the sources and the scores in the model card of a model folder."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXT = "Text"
SCORES = "Scores"
SIZE = "Size and speed"
LICENCE_FIELDS = ("license", "license_name", "license_link")
INDEX_FIELD = "model-index"
# Matches the table row with the fingerprint. Cards of earlier versions call it `model`.
_FINGERPRINT = re.compile(r"^\| (?:fingerprint|model) \| (\S+) \|$", re.MULTILINE)
# Dataset names that hubs accept.
_DATASET_TYPE = re.compile(r"([\w-]+/)?[\w.-]+", re.ASCII)


def dataset_type(protocol: str, task: str) -> str:
    """Return a name for the data of a score that hubs accept, such as `xsr-en-fr`."""
    return re.sub(r"[^\w.]+", "-", f"{protocol}-{task}", flags=re.ASCII).strip("-")


@dataclass(frozen=True)
class EarlierCard:
    """The parts of a model card that `write_card` wrote.

    Attributes:
        metadata: values of the front matter by name.
        sections: maps each heading to the text of its section, including the heading.
    """

    metadata: Mapping[str, Any]
    sections: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "EarlierCard":
        """Read a model card.

        Returns:
            The card; empty if the file is missing or is not a model card.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return cls({}, {})
        front_matter, _, body = text.removeprefix("---\n").partition("\n---\n")
        sections = {}
        for section in re.split(r"^(?=## )", body, flags=re.MULTILINE)[1:]:
            heading = section.partition("\n")[0].removeprefix("## ").strip()
            sections[heading] = section.rstrip() + "\n"
        return cls(_metadata(front_matter), sections)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model that the card describes, or an empty string."""
        match = _FINGERPRINT.search(self.sections.get(SIZE, ""))
        return match[1] if match else ""

    @property
    def licence(self) -> dict[str, Any]:
        """Metadata of the licence, or {} if it is unknown."""
        if TEXT not in self.sections:
            return {}
        return {name: self.metadata[name] for name in LICENCE_FIELDS if name in self.metadata}

    @property
    def has_scores(self) -> bool:
        """Whether the card has scores."""
        return SCORES in self.sections and "|" in self.sections[SCORES]

    def index(self, name: str) -> dict[str, Any]:
        """Return the scores in the format of model hubs, under another model name.

        Earlier versions wrote names of datasets that hubs do not accept, such as `en->fr`.

        Args:
            name: the new model name.

        Returns:
            The `model-index` field of the metadata; {} if the card has none.
        """
        try:
            [entry] = self.metadata[INDEX_FIELD]
            results = [_with_dataset_type(result) for result in entry["results"]]
        except (KeyError, TypeError, ValueError):
            # Somebody has edited the card.
            return {}
        return {INDEX_FIELD: [{**entry, "name": name, "results": results}]}


def _with_dataset_type(result: dict[str, Any]) -> dict[str, Any]:
    """Return a score of a model index, with a name of its data that hubs accept."""
    dataset = result["dataset"]
    if _DATASET_TYPE.fullmatch(dataset["type"]):
        return result
    name = dataset_type(result["task"]["name"], dataset["type"])
    return {**result, "dataset": {**dataset, "type": name}}


def _metadata(front_matter: str) -> dict[str, Any]:
    """Parse a front matter whose values are JSON, one per line."""
    metadata = {}
    for line in front_matter.splitlines():
        name, _, value = line.partition(": ")
        try:
            metadata[name] = json.loads(value)
        except ValueError:
            # The line was edited by hand. The other lines may still be valid.
            continue
    return metadata
