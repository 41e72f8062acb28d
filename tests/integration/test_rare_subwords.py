"""--rare-subword-dropout through the real commands: what is split, and what the exported model has
instead.
"""

import re

import numpy as np
import pytest
import torch
from conftest import export, refused, run, train
from fairseq.data.indexed_dataset import MMapIndexedDataset
from safetensors.numpy import load_file

from fairseq_lxsr.encoder.checkpoint import SPLIT_PROBABILITY, read_checkpoint
from fairseq_lxsr.text.segmentations import expected_rows, merged_from
from fairseq_lxsr.text.tokenizer import read_dictionary

NO_LAYER = {
    "objective": "none",
    "sim_weight": "0",
    "encoder_embed_dim": "16",
    "encoder_layers": "0",
    "max_epoch": "1",
}


def exported(checkpoint, folder):
    export(checkpoint, folder)
    return load_file(folder / "model.safetensors")["embed_tokens.weight"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, toy_work):
    folder = tmp_path_factory.mktemp("rare")
    train(
        toy_work / "data-bin",
        folder,
        "--gated",
        "--rare-subword-dropout",
        "3",
        "--no-epoch-checkpoints",
        **NO_LAYER,
    )
    return folder / "checkpoint_last.pt"


def test_probabilities_are_of_the_counts_and_the_model_has_the_expectation(
    tmp_path, toy_work, checkpoint
):
    symbols = read_dictionary(toy_work / "data-bin" / "dict.en.txt")
    counts = np.zeros(len(symbols))
    for language in ("en", "fr"):
        side = MMapIndexedDataset(str(toy_work / "data-bin" / f"train.en-fr.{language}"))
        for row in range(len(side)):
            np.add.at(counts, side[row].numpy(), 1)
    state = read_checkpoint(checkpoint)
    probability = np.array(state["task_state"][SPLIT_PROBABILITY], np.float32)
    np.testing.assert_allclose(probability, 3 / (3 + counts), rtol=1e-6)
    table = state["model"]["encoder.embed_tokens.weight"].numpy()
    rows = expected_rows(table[: len(symbols)], merged_from(symbols, 4), probability)
    assert not np.allclose(rows, table[: len(symbols)], atol=1e-3)
    np.testing.assert_array_equal(exported(checkpoint, tmp_path / "model"), [*rows, table[-1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "flags", "keeps"),
    [
        ("0", ("--gated",), True),  # a phase without it
        ("1", ("--gated", "--rare-subword-dropout", "3"), False),
        ("1", ("--rare-subword-dropout", "3"), True),
    ],
)
def test_rows_stay_where_nothing_is_split_or_layernorm_is_first(
    tmp_path, toy_work, checkpoint, layers, flags, keeps
):
    start = ("--finetune-from-model", checkpoint) if "--gated" in flags else ()
    options = NO_LAYER | {"encoder_layers": layers}
    train(
        toy_work / "data-bin", tmp_path / "run", *start, *flags, "--no-epoch-checkpoints", **options
    )
    state = read_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    assert (SPLIT_PROBABILITY in state["task_state"]) == ("--rare-subword-dropout" in flags)
    table = state["model"]["encoder.embed_tokens.weight"].numpy()
    rows = exported(tmp_path / "run" / "checkpoint_last.pt", tmp_path / "model")
    assert np.array_equal(rows, table) == keeps


@pytest.mark.slow
@pytest.mark.parametrize("before", ["3", "0"])
def test_what_a_model_goes_on_from_has_learnt_is_not_split_more_often(
    tmp_path, toy_work, checkpoint, before
):
    """Pieces that the text of another pair had are as rare in this text as unknown ones."""
    data, rare, short = toy_work / "data-bin", "--rare-subword-dropout", "--no-epoch-checkpoints"
    if before == "0":
        train(data, tmp_path / "start", "--gated", rare, before, short, **NO_LAYER)
        checkpoint = tmp_path / "start" / "checkpoint_last.pt"
    state = torch.load(checkpoint, weights_only=True)
    if before == "3":  # as if it had read more text
        state["task_state"][SPLIT_PROBABILITY] = [
            p / 2 for p in state["task_state"][SPLIT_PROBABILITY]
        ]
    torch.save(state, tmp_path / "start.pt")
    expected = np.array(state["task_state"].get(SPLIT_PROBABILITY, 0.0))
    new, run_folder = ("--finetune-from-model", tmp_path / "start.pt"), tmp_path / "run"
    # the second goes on where the first stopped
    for more in (NO_LAYER, NO_LAYER | {"max_epoch": "2"}):
        train(data, run_folder, "--gated", rare, "3", *new, short, **more)
        found = read_checkpoint(run_folder / "checkpoint_last.pt")["task_state"][SPLIT_PROBABILITY]
        np.testing.assert_allclose(found, np.broadcast_to(expected, len(found)), rtol=1e-6)


def test_probabilities_that_do_not_fit_are_refused(tmp_path, checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    for wrong in ([0.5] * 3, "all"):
        state["task_state"][SPLIT_PROBABILITY] = wrong
        torch.save(state, tmp_path / "checkpoint_last.pt")
        done = export(tmp_path / "checkpoint_last.pt", tmp_path / "model", check=False)
        refused(done, "checkpoint_last.pt", "pieces")


def validated(checkpoint, data, split="valid"):
    words = (
        "--path",
        checkpoint,
        "--task",
        "xling_sent",
        "--user-dir",
        "fairseq_lxsr",
        "--log-format",
        "simple",
    )
    done = run(
        "fairseq_cli.validate", data, *words, "--cpu", "--valid-subset", split, "--batch-size", "32"
    )
    return float(
        re.search(rf"valid on '{split}' subset.* loss (\S+)", done.stdout + done.stderr)[1]
    )


@pytest.mark.slow
def test_validation_is_of_the_exported_rows(tmp_path, toy_work, checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    splits = state["task_state"].pop(SPLIT_PROBABILITY)
    state["cfg"]["task"]["rare_subword_dropout"] = 0.0
    losses, trained = {}, state["model"]["encoder.embed_tokens.weight"].clone()
    averaged = torch.from_numpy(exported(checkpoint, tmp_path / "model"))
    for name, table in (("as trained", trained), ("exported", averaged)):
        state["model"]["encoder.embed_tokens.weight"] = table
        torch.save(state, tmp_path / f"{name}.pt")
        losses[name] = validated(tmp_path / f"{name}.pt", toy_work / "data-bin")
    on_train = validated(tmp_path / "exported.pt", toy_work / "data-bin", "train")
    assert losses["as trained"] != pytest.approx(losses["exported"], abs=0.01)
    assert splits
    assert validated(checkpoint, toy_work / "data-bin") == losses["exported"]
    assert validated(checkpoint, toy_work / "data-bin", "train") == on_train  # read whole, too
    assert read_checkpoint(checkpoint)["extra_state"]["val_loss"] == pytest.approx(
        losses["exported"], abs=1e-3
    )
