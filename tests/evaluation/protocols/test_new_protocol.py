"""A new protocol is one file: its options, its text and its scores come with it."""

import sys

import pytest
from conftest import lxsr_here

from fairseq_lxsr.evaluation import protocols

PROTOCOL = '''
"""How long embeddings are."""

from fairseq_lxsr.evaluation.protocols import Plan, Protocol


class Lengths(Protocol):
    name, help = "lengths", "mean length of the embeddings"

    def add_options(self, parser):
        parser.add_argument("--text", required=True)

    def prepare(self, args):
        import numpy as np

        from fairseq_lxsr.embeddings import embed
        from fairseq_lxsr.evaluation.score import Score
        from fairseq_lxsr.evaluation.texts import read_text

        def measure(encoder):
            lengths = np.linalg.norm(embed(encoder, read_text(args.text)), axis=1)
            settings = {"model": encoder.fingerprint}
            yield [Score("lengths", "text", {"mean": float(lengths.mean())}, settings)]

        return Plan(measure, [args.text])


PROTOCOL = Lengths()
'''


@pytest.fixture
def _in_the_folder(tmp_path, monkeypatch):
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "lengths.py").write_text(PROTOCOL)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path / "protocols")])
    yield
    sys.modules.pop("fairseq_lxsr.evaluation.protocols.lengths", None)


@pytest.mark.usefixtures("_in_the_folder")
def test_a_file_in_the_folder_is_a_protocol(tmp_path):
    (tmp_path / "words.vec").write_text("a 3 4\nb 0 1\n")
    (tmp_path / "text").write_text("a\nb\n")
    done = lxsr_here("eval", "lengths", "--model", tmp_path / "words.vec", "--text", tmp_path / "text")
    assert "3.0" in done.stdout
    assert "mean length of the embeddings" in lxsr_here("eval", "--help").stdout
