"""A loss in another package, which --user-dir names, with options, batch part and head."""

import pytest
from conftest import ROOT, TRAIN_OPTIONS, export, lxsr_here, python, refused, run
from forks import FAIRSEQ, PRELOADED

from fairseq_lxsr import SentenceEncoder

# A line of code that imports the tasks, which --user-dir does too.
FAMILIES = "import fairseq_lxsr.tasks.families\n"
TERM = '''
"""Term `spread`: projections of embeddings stay apart."""

from dataclasses import dataclass

import torch
from fairseq.dataclass import FairseqDataclass
from torch import nn

from fairseq_lxsr.options import LOSS_WEIGHT, option
from fairseq_lxsr.training.lightweight.terms.term import Term


@dataclass
class SpreadOptions(FairseqDataclass):
    spread_weight: float = option("weight of the spread loss", 0.0, LOSS_WEIGHT)


class Lengths:
    """Part of a batch: the number of pieces of each source."""

    def __call__(self, batch, pairs):
        batch["source_length"] = (pairs.tokens[0] != pairs.dataset.padding_idx).sum(axis=1)


class SpreadTerm(Term):
    """Uniformity (Wang and Isola 2020), weighted by the lengths."""

    name = "spread"
    Options = SpreadOptions

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
# A notebook may encode with the package, and then train with --user-dir.
AFTER_IMPORT = """
import sys
from fairseq_lxsr import SentenceEncoder
from fairseq_cli.train import cli_main
cli_main()
"""


def write_term(tmp_path, content=TERM):
    """Write a package, and return its folder, for --user-dir."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(content)
    return folder


def words_of(data, save_dir, **options):
    """The command line of a training for two updates, each of which is logged."""
    words = [str(data), "--cpu", "--disable-validation", "--save-dir", str(save_dir)]
    all_options = TRAIN_OPTIONS | {"--max-update": "2", "--log-interval": "1"} | options
    for name, value in all_options.items():
        words += [name, str(value)]
    return words


@pytest.mark.parametrize(
    "preloaded",
    [
        pytest.param(FAIRSEQ, id="the package is not imported before"),
        pytest.param(PRELOADED, id="the package is imported before"),
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(TERM, id="tasks not imported"),
        pytest.param(FAMILIES + TERM, id="tasks imported before the term"),
        pytest.param(TERM + FAMILIES, id="tasks imported after the term"),
    ],
)
def test_a_term_of_another_package_trains_in_any_order_of_imports(
    content, preloaded, tmp_path, toy_work
):
    """Importing the tasks registers their options, among which those of the term must be."""
    folder = write_term(tmp_path, content)
    options = {"--user-dir": folder, "--spread-weight": "0.1"}
    words = words_of(toy_work / "data-bin", tmp_path / "save", **options)

    done = run("fairseq_cli.train", *words, preloaded=preloaded)

    lines = (done.stdout + done.stderr).splitlines()
    # The log has a line for each of the two updates.
    updates = [line for line in lines if "train_inner" in line]
    assert len(updates) == 2
    for line in updates:
        assert "spread=" in line
        # The generative loss, a term of this package.
        assert "gen=" in line


def test_a_checkpoint_with_a_term_of_another_package_is_resumed_and_exported(tmp_path, toy_work):
    options = {"--user-dir": write_term(tmp_path), "--spread-weight": "0.1"}
    save_dir = tmp_path / "save"
    run("fairseq_cli.train", *words_of(toy_work / "data-bin", save_dir, **options))

    options["--max-update"] = "3"
    done = run("fairseq_cli.train", *words_of(toy_work / "data-bin", save_dir, **options))

    # fairseq says with how many updates a checkpoint was loaded.
    assert "@ 2 updates)" in done.stdout
    assert "spread" in done.stdout
    export(save_dir / "checkpoint_last.pt", tmp_path / "model")
    vectors = SentenceEncoder.from_pretrained(tmp_path / "model").encode(["A dog."])
    assert vectors.any()


def test_the_help_has_the_options_of_a_term_of_another_package(tmp_path):
    words = ("--user-dir", write_term(tmp_path), "--task", "xling_sent", "--help")
    assert "--spread-weight" in run("fairseq_cli.train", *words).stdout


@pytest.mark.parametrize(
    ("old", "new", "fragments"),
    [
        ("spread_weight", "sim_weight", ("SpreadOptions: an option sim_weight exists already",)),
        ('name = "spread"', 'name = "align"', ("SpreadTerm: a loss 'align' exists already",)),
        ('name = "spread"', 'name = "loss"', ("SpreadTerm: a loss 'loss' exists already",)),
        ('name = "spread"', "", ("SpreadTerm: no name;",)),
        ("Options = SpreadOptions", "", ("SpreadTerm: no Options;",)),
        ("def loss(", "def compute(", ("SpreadTerm: no loss;",)),
        ("def build(", "def make(", ("SpreadTerm: no build;",)),
        (
            "    def parts",
            "    def __init__(self, weight):\n        self.weight = weight\n\n    def parts",
            ("SpreadTerm: __init__ must call super().__init__(weight)",),
        ),
        ('length"]).sum()', 'length"])', ("loss of term spread is a tensor of shape [",)),
        ("return torch.exp", "return 1.0 or torch.exp", ("loss of term spread is float",)),
    ],
)
def test_a_mistake_in_a_term_is_refused(tmp_path, toy_work, old, new, fragments):
    assert old in TERM
    options = {"--user-dir": write_term(tmp_path, TERM.replace(old, new)), "--spread-weight": "1"}
    words = words_of(toy_work / "data-bin", tmp_path / "save", **options)
    done = run("fairseq_cli.train", *words, check=False)
    refused(done, *fragments)


def test_the_log_begins_with_the_weights_of_the_loss(tmp_path, toy_work):
    options = {"--user-dir": write_term(tmp_path), "--spread-weight": "0.5", "--max-update": "1"}
    words = words_of(toy_work / "data-bin", tmp_path / "save", **options)
    done = run("fairseq_cli.train", *words)
    assert "loss: 2 align + 1 gen + 2 sim + 0.5 spread" in done.stdout + done.stderr


def test_a_user_dir_without_code_is_refused(tmp_path, toy_work):
    (tmp_path / "empty").mkdir()
    for folder, problem in (
        (tmp_path / "none", "no such folder"),
        (tmp_path / "empty", "__init__.py"),
    ):
        words = (toy_work / "data-bin", "--recipe", "best", "--user-dir", folder)
        refused(lxsr_here("train", *words, check=False), f"--user-dir {folder}: ", problem)


def test_an_unknown_weight_asks_for_the_folder_of_the_loss(tmp_path, toy_work):
    options = {"--spread-weight": "0.5"}
    words = words_of(toy_work / "data-bin", tmp_path / "save", **options)
    done = run("fairseq_cli.train", *words, check=False)
    refused(done, "--spread-weight: if the loss is your own, give its folder with --user-dir")


def test_user_dir_registers_the_tasks_if_the_package_is_already_imported(tmp_path, toy_work):
    words = words_of(toy_work / "data-bin", tmp_path / "save")
    assert "--user-dir" in words
    output = python(AFTER_IMPORT, *words, preloaded=FAIRSEQ)
    assert "num_updates 2" in output


def test_importing_the_package_imports_neither_fairseq_nor_torch():
    code = "import sys, fairseq_lxsr; print({'fairseq', 'torch'} & set(sys.modules))"
    assert python(code, cwd=ROOT).strip() == "set()"
