"""A new loss is one file in `terms/`: its options, its batch, its head and its logging come with
it.
"""

import subprocess

import pytest
from conftest import ROOT, TRAIN_OPTIONS, forked_commands
from forks import FAIRSEQ

TERM = '''
"""Term `spread`: embeddings stay apart, or their projections do."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import nn

from fairseq_lxsr.options import NON_NEGATIVE
from fairseq_lxsr.training.lightweight.terms.term import Term


@dataclass
class SpreadOptions(FairseqDataclass):
    spread_weight: float = field(default=0.0, metadata={"help": "weight of the spread loss", "range": NON_NEGATIVE})


class Lengths:
    """Part of a batch: how many pieces a source has."""

    def __call__(self, batch, pairs):
        batch["source_length"] = (pairs.tokens[0] != pairs.dataset.padding_idx).sum(axis=1)


class SpreadTerm(Term):
    """Uniformity (Wang and Isola 2020), weighted by the lengths."""

    name, Options = "spread", SpreadOptions

    @classmethod
    def build(cls, cfg, setting):
        return cls(cfg.spread_weight) if cfg.spread_weight else None

    def parts(self, split):
        return [Lengths()]

    def heads(self, config):
        return {"spread": nn.Linear(config.output_dim, 4)}

    def output(self, model, encoded, batch):
        return model.spread(encoded["embeddings"]["source"])

    def loss(self, encoded, batch, training):
        x = encoded["outputs"][self.name].float()
        distances = (x[:, None] - x[None]).square().sum(dim=2)
        return torch.exp(-2 * distances).mean(dim=1).log().mul(batch["source_length"]).sum()
'''

RUN = """
import sys
import fairseq_lxsr.training.lightweight.terms
fairseq_lxsr.training.lightweight.terms.__path__.append(sys.argv.pop(1))  # as if the file lay in the package
import fairseq_lxsr.tasks.families  # --user-dir imports nothing of a package that is there
from fairseq_cli.train import cli_main
cli_main()
"""


@pytest.mark.slow
def test_a_file_in_the_folder_is_a_term_of_the_loss(tmp_path, toy_work):
    (tmp_path / "spread.py").write_text(TERM)
    options = TRAIN_OPTIONS | {"--spread-weight": "0.1", "--max-update": "3", "--log-interval": "1"}
    words = [word for item in options.items() for word in item]
    python, data = forked_commands(FAIRSEQ) / "python", toy_work / "data-bin"
    command = [python, "-c", RUN, tmp_path, data, "--cpu", "--no-save", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    updates = [line for line in (done.stdout + done.stderr).splitlines() if "train_inner" in line]
    assert len(updates) == 3
    assert all("spread=" in line and "gen=" in line for line in updates)
