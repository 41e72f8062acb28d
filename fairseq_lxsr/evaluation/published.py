"""Scores from papers, to show beside measured ones; training data and test text differ."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_lxsr.evaluation.table import format_table

FILE = Path(__file__).with_name("published.json")
CAUTION = "Published, on other training data and other test text: an orientation, not a comparison"


@dataclass(frozen=True)
class Published:
    """Values of one system by task, in percent, and their source."""

    protocol: str
    value: str
    system: str
    values: dict[str, float]
    source: str


def published(protocol: str) -> list[Published]:
    """Return all published values of a protocol."""
    return [Published(**row) for row in json.loads(FILE.read_text(encoding="utf-8")) if row["protocol"] == protocol]


def published_table(protocols: Sequence[str]) -> str:
    """Format the published values as tables with their sources; empty where there are none."""
    blocks = []
    for protocol in dict.fromkeys(protocols):
        found = published(protocol)
        for value in dict.fromkeys(row.value for row in found):
            rows = [row for row in found if row.value == value]
            sources = "; ".join(dict.fromkeys(row.source for row in rows))
            blocks.append(
                f"{CAUTION}: {protocol}, {value}\n{format_table({row.system: row.values for row in rows})}\n({sources})"
            )
    return "\n\n".join(blocks)
