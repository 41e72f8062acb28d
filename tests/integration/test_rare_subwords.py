"""--rare-subword-dropout with the real commands: which pieces are split, and the exported rows."""

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


def exported_table(checkpoint, folder):
    """The embeddings of the exported model."""
    export(checkpoint, folder)
    return load_file(folder / "model.safetensors")["embed_tokens.weight"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, toy_work):
    """A checkpoint of a training with --rare-subword-dropout 3."""
    folder = tmp_path_factory.mktemp("rare")
    flags = ("--gated", "--rare-subword-dropout", "3", "--no-epoch-checkpoints")
    train(toy_work / "data-bin", folder, *flags, **NO_LAYER)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def symbols(toy_work):
    """The pieces of the dictionary."""
    return read_dictionary(toy_work / "data-bin" / "dict.en.txt")


def test_the_probability_of_splitting_a_piece_follows_from_its_count_in_the_training_text(
    toy_work, checkpoint, symbols
):
    counts = np.zeros(len(symbols))
    for language in ("en", "fr"):
        side = MMapIndexedDataset(str(toy_work / "data-bin" / f"train.en-fr.{language}"))
        for row in range(len(side)):
            np.add.at(counts, side[row].numpy(), 1)

    probability = read_checkpoint(checkpoint)["task_state"][SPLIT_PROBABILITY]

    # 3 is the value of the option.
    np.testing.assert_allclose(probability, 3 / (3 + counts), rtol=1e-6)


def test_an_exported_row_is_the_expectation_over_the_splits_of_its_piece(
    tmp_path, checkpoint, symbols
):
    state = read_checkpoint(checkpoint)
    probability = np.array(state["task_state"][SPLIT_PROBABILITY], np.float32)
    # The last row is that of <mask>, which is no piece.
    *rows, mask = state["model"]["encoder.embed_tokens.weight"].numpy()

    exported = exported_table(checkpoint, tmp_path / "model")

    # The first four symbols are special.
    expected = expected_rows(np.array(rows), merged_from(symbols, 4), probability)
    assert not np.allclose(expected, rows, atol=1e-3)
    np.testing.assert_array_equal(exported, [*expected, mask])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "flags", "is_unchanged"),
    [
        # A second training without the option.
        ("0", ("--gated",), True),
        ("1", ("--gated", "--rare-subword-dropout", "3"), False),
        # Without gates, a layer normalisation comes first, so that a mean of rows is not exact.
        ("1", ("--rare-subword-dropout", "3"), True),
    ],
    ids=["no-splits", "gated", "normalisation"],
)
def test_rows_are_exported_unchanged_without_splits_or_with_layer_normalisation_first(
    tmp_path, toy_work, checkpoint, layers, flags, is_unchanged
):
    words = [*flags, "--no-epoch-checkpoints"]
    if "--gated" in flags:
        words += ["--finetune-from-model", checkpoint]
    options = NO_LAYER | {"encoder_layers": layers}

    train(toy_work / "data-bin", tmp_path / "run", *words, **options)

    state = read_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    assert (SPLIT_PROBABILITY in state["task_state"]) == ("--rare-subword-dropout" in flags)
    table = state["model"]["encoder.embed_tokens.weight"].numpy()
    rows = exported_table(tmp_path / "run" / "checkpoint_last.pt", tmp_path / "model")
    assert np.array_equal(rows, table) == is_unchanged


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["3", "0"])
def test_training_from_a_model_splits_pieces_no_more_often_than_before(
    tmp_path, toy_work, checkpoint, dropout
):
    """Pieces that are rare in this text may have been frequent in that of the model.

    The model was trained with the option (3) or without it (0).
    """
    data = toy_work / "data-bin"
    flags = ("--gated", "--no-epoch-checkpoints", "--rare-subword-dropout")
    if dropout == "0":
        train(data, tmp_path / "start", *flags, "0", **NO_LAYER)
        checkpoint = tmp_path / "start" / "checkpoint_last.pt"
    state = torch.load(checkpoint, weights_only=True)
    expected = np.array(state["task_state"].get(SPLIT_PROBABILITY, 0.0))
    if dropout == "3":
        # As if the model had been trained on more text.
        expected = expected / 2
        state["task_state"][SPLIT_PROBABILITY] = expected.tolist()
    torch.save(state, tmp_path / "start.pt")

    # The second run resumes the first.
    for max_epoch in ("1", "2"):
        options = NO_LAYER | {"max_epoch": max_epoch}
        start = ("--finetune-from-model", tmp_path / "start.pt")
        train(data, tmp_path / "run", *flags, "3", *start, **options)
        state = read_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
        probability = state["task_state"][SPLIT_PROBABILITY]
        expected_row = np.broadcast_to(expected, len(probability))
        np.testing.assert_allclose(probability, expected_row, rtol=1e-6)


@pytest.mark.parametrize("value", [[0.5] * 3, "all"], ids=["three", "text"])
def test_a_checkpoint_whose_probabilities_do_not_fit_the_pieces_is_refused(
    tmp_path, checkpoint, value
):
    state = torch.load(checkpoint, weights_only=True)
    state["task_state"][SPLIT_PROBABILITY] = value
    torch.save(state, tmp_path / "checkpoint_last.pt")

    result = export(tmp_path / "checkpoint_last.pt", tmp_path / "model", check=False)

    refused(result, "checkpoint_last.pt", "pieces")


def validation_loss(checkpoint, data, split="valid"):
    """Return the loss that fairseq-validate prints."""
    options = ["--path", checkpoint, "--task", "xling_sent", "--user-dir", "fairseq_lxsr"]
    options += ["--log-format", "simple", "--cpu", "--valid-subset", split, "--batch-size", "32"]
    result = run("fairseq_cli.validate", data, *options)
    output = result.stdout + result.stderr
    return float(re.search(rf"valid on '{split}' subset.* loss (\S+)", output)[1])


@pytest.mark.slow
def test_validation_uses_the_exported_rows_and_splits_no_pieces(tmp_path, toy_work, checkpoint):
    """Also on the training text, and in the validation during training."""
    data = toy_work / "data-bin"
    state = torch.load(checkpoint, weights_only=True)
    assert state["task_state"].pop(SPLIT_PROBABILITY)
    state["cfg"]["task"]["rare_subword_dropout"] = 0.0
    # Two checkpoints without splits: with the trained rows, and with the exported ones.
    torch.save(state, tmp_path / "trained.pt")
    rows = torch.from_numpy(exported_table(checkpoint, tmp_path / "model"))
    state["model"]["encoder.embed_tokens.weight"] = rows
    torch.save(state, tmp_path / "exported.pt")

    loss = validation_loss(checkpoint, data)

    assert loss == validation_loss(tmp_path / "exported.pt", data)
    assert loss != pytest.approx(validation_loss(tmp_path / "trained.pt", data), abs=0.01)
    logged_loss = read_checkpoint(checkpoint)["extra_state"]["val_loss"]
    assert logged_loss == pytest.approx(loss, abs=1e-3)
    on_training_text = validation_loss(tmp_path / "exported.pt", data, "train")
    assert validation_loss(checkpoint, data, "train") == on_training_text
