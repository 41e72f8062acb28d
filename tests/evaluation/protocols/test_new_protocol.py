"""A new protocol needs only its file, with options, text and scores, and a row of the table."""

import sys

import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import protocols
from fairseq_lxsr.evaluation.protocols.protocol import Protocol
from fairseq_lxsr.evaluation.protocols.xsr import SentenceRetrieval

PROTOCOL = '''
"""How long embeddings are."""

from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.embeddings import embed
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.texts import read_text
from fairseq_lxsr.options import at_least, option


@dataclass(frozen=True, kw_only=True)
class Lengths(Protocol):
    text: str = option("sentences")
    power: int = option("of the norm", 2, at_least(1))

    def prepare(self):
        def measure(encoder):
            lengths = np.linalg.norm(embed(encoder, read_text(self.text)), self.power, axis=1)
            yield [Score("lengths", "text", {"mean": float(lengths.mean())}, {"model": encoder.fingerprint})]

        return Plan(measure, [self.text])
'''


def test_the_rows_of_the_table_are_protocols():
    for name in protocols.PROTOCOLS:
        kind = protocols.protocol_class(name)
        assert issubclass(kind, Protocol), name
        # A class for several rows has the name as an attribute.
        assert getattr(kind, "name", name) == name


def test_options_are_checked_in_python_and_in_the_command():
    with pytest.raises(InputError, match="--seed -1"):
        SentenceRetrieval(source="a", target="b", seed=-1)
    for words, value, expected in (
        (("xsr", "--metric"), "nn,best", "nn, csls, margin"),
        (("mldoc", "--data", "x", "--langs"), "en,fr,en", "languages"),
        (("mldoc", "--data", "x", "--langs"), "en,,fr", "languages"),
    ):
        done = lxsr_here("eval", *words, value, "--model", "x", check=False)
        refused(done, f"'{value}'", expected)


def test_a_file_and_a_row_make_a_protocol(tmp_path, monkeypatch):
    (tmp_path / "lengths.py").write_text(PROTOCOL)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    monkeypatch.setitem(
        protocols.PROTOCOLS, "lengths", ("lengths", "Lengths", "mean length of the embeddings")
    )
    (tmp_path / "words.vec").write_text("a 3 4\nb 0 1\n")
    (tmp_path / "text").write_text("a\nb\n")
    command = ("eval", "lengths", "--model", tmp_path / "words.vec", "--text", tmp_path / "text")
    assert "3.0" in lxsr_here(*command).stdout
    assert "4.0" in lxsr_here(*command, "--power", 1).stdout
    refused(lxsr_here(*command, "--power", 0, check=False), "--power: '0'")
    assert "mean length of the embeddings" in lxsr_here("eval", "--help").stdout
    sys.modules.pop("fairseq_lxsr.evaluation.protocols.lengths", None)
