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


@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_each_row_of_the_table_is_a_protocol(name):
    kind = protocols.protocol_class(name)

    assert issubclass(kind, Protocol)
    # A class for several rows has the name as an attribute.
    assert getattr(kind, "name", name) == name


def test_an_invalid_option_is_refused_in_python():
    with pytest.raises(InputError, match="--seed -1"):
        SentenceRetrieval(source="a", target="b", seed=-1)


@pytest.mark.parametrize(
    ("words", "value", "expected"),
    [
        pytest.param(("xsr", "--metric"), "nn,best", "nn, csls, margin", id="unknown metric"),
        pytest.param(
            ("mldoc", "--data", "x", "--langs"), "en,fr,en", "languages", id="language twice"
        ),
        pytest.param(("mldoc", "--data", "x", "--langs"), "en,,fr", "languages", id="empty name"),
    ],
)
def test_an_invalid_option_is_refused_in_the_command(words, value, expected):
    done = lxsr_here("eval", *words, value, "--model", "x", check=False)

    refused(done, f"'{value}'", expected)


@pytest.fixture
def lengths_command(tmp_path, monkeypatch):
    """Install PROTOCOL as a file and a row of the table; return a command that runs it.

    Its text has two words, whose vectors are (3, 4) and (0, 1).
    """
    (tmp_path / "lengths.py").write_text(PROTOCOL)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    row = ("lengths", "Lengths", "mean length of the embeddings")
    monkeypatch.setitem(protocols.PROTOCOLS, "lengths", row)
    (tmp_path / "words.vec").write_text("a 3 4\nb 0 1\n")
    (tmp_path / "text").write_text("a\nb\n")
    model = ("--model", tmp_path / "words.vec")
    yield ("eval", "lengths", *model, "--text", tmp_path / "text")
    sys.modules.pop("fairseq_lxsr.evaluation.protocols.lengths", None)


@pytest.mark.parametrize(
    ("options", "mean_length"),
    [
        # Euclidean lengths 5 and 1; sums of the absolute values 7 and 1.
        pytest.param((), (5 + 1) / 2, id="default"),
        pytest.param(("--power", 1), (7 + 1) / 2, id="power 1"),
    ],
)
def test_a_file_and_a_row_make_a_protocol_with_options(lengths_command, options, mean_length):
    table = lxsr_here(*lengths_command, *options).stdout

    assert f"{mean_length:.1f}" in table


def test_an_option_of_a_new_protocol_is_checked(lengths_command):
    done = lxsr_here(*lengths_command, "--power", 0, check=False)

    refused(done, "--power: '0'")


@pytest.mark.usefixtures("lengths_command")
def test_a_new_protocol_is_in_the_help():
    assert "mean length of the embeddings" in lxsr_here("eval", "--help").stdout
