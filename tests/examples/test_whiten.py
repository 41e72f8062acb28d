"""examples/pretrained/whiten.py changes only the vectors of the pieces of a checkpoint."""

import numpy as np
import pytest
import small_model
import torch
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH
from fairseq_lxsr.text.data_folder import keep_text
from fairseq_lxsr.text.tokenizer import hash_symbols, read_dictionary

VECTORS = "encoder.embed_tokens.weight"
# Vectors of four dimensions that depend on each other.
ROWS = np.random.default_rng(0).normal(size=(200, 4)) @ np.random.default_rng(1).normal(size=(4, 4))


@pytest.fixture
def script():
    """The script: WHITENED is the part of whitening, and LENGTHS the power of the lengths."""
    return load_script(ROOT / "examples" / "pretrained" / "whiten.py")


def test_whitened_embeddings_have_the_same_variance_in_every_direction(script):
    script.WHITENED = 1
    script.LENGTHS = 1

    whitened = script.changed(ROWS, ROWS)

    np.testing.assert_allclose(np.cov(whitened.T), np.eye(4), atol=1e-9)


def test_without_whitening_and_with_the_power_1_of_lengths_nothing_changes(script):
    script.WHITENED = 0
    script.LENGTHS = 1

    np.testing.assert_allclose(script.changed(ROWS, ROWS), ROWS)


def test_directions_are_divided_by_a_power_of_their_variance(script):
    script.LENGTHS = 1
    axes = np.diag([3.0, 2.0, 1.0])
    # Embeddings whose variances are along the axes.
    embeddings = np.concatenate([axes, -axes])
    variances = np.diag(np.cov(embeddings.T))

    changed = script.changed(axes, embeddings)

    # Full whitening divides by the square root, 0.5; a fifth of it is the default.
    np.testing.assert_allclose(changed, axes / variances**0.1)


def test_lengths_are_raised_to_a_power_below_1_and_zero_stays_zero(script):
    script.WHITENED = 0
    # Lengths 0, 5 and 0.1; the default power is 0.85.
    zero, long, short = [0, 0], [3, 4], [0, 0.1]

    changed = script.changed(np.array([zero, long, short]), ROWS[:, :2])

    expected = [zero, np.multiply(long, 5**0.85 / 5), np.multiply(short, 0.1**0.85 / 0.1)]
    np.testing.assert_allclose(changed, expected, atol=1e-12)


def test_directions_without_variance_give_finite_vectors(script):
    # All four dimensions are equal, so that there is one direction.
    embeddings = np.ones((5, 4)) * np.arange(5)[:, None]

    assert np.isfinite(script.changed(ROWS, embeddings)).all()


def write_run(tmp_path, **sizes):
    """Write a checkpoint and a corpus; return the content of the checkpoint."""
    data = small_model.write_pieces(tmp_path / "data")
    state = small_model.checkpoint_state(data, **sizes)
    state["task_state"][DICTIONARY_HASH] = hash_symbols(read_dictionary(data / "dict.txt"))
    (tmp_path / "run").mkdir()
    torch.save(state, tmp_path / "run" / "checkpoint_last.pt")
    keep_text(data, tmp_path / "run")
    (tmp_path / "corpus" / "en-fr").mkdir(parents=True)
    corpus = tmp_path / "corpus" / "en-fr"
    (corpus / "train.en").write_text("one dog\na cat\n")
    (corpus / "train.fr").write_text("un chien\nun chat\n")
    (corpus / "train.sources").write_text("0\n")
    return state


def whiten(script, checkpoint, corpus, output, check=True):
    return main_here(script, checkpoint, "--corpus", corpus, "--output", output, check=check)


def test_of_the_weights_and_options_of_a_checkpoint_only_the_vectors_change(script, tmp_path):
    before = write_run(tmp_path, num_layers=0, gated=True)
    output = tmp_path / "white" / "checkpoint_last.pt"

    whiten(script, tmp_path / "run" / "checkpoint_last.pt", tmp_path / "corpus", output)

    after = torch.load(output, weights_only=True)
    assert not torch.equal(after["model"].pop(VECTORS), before["model"].pop(VECTORS))
    for name, value in before["model"].items():
        assert torch.equal(after["model"][name], value), name
    assert before["cfg"].items() <= after["cfg"].items()


def test_a_whitened_checkpoint_has_its_dictionary_beside_it(script, tmp_path):
    write_run(tmp_path, num_layers=0, gated=True)
    output = tmp_path / "white" / "checkpoint_last.pt"

    whiten(script, tmp_path / "run" / "checkpoint_last.pt", tmp_path / "corpus", output)

    assert (tmp_path / "white" / "text" / "dict.txt").is_file()


def test_a_whitened_checkpoint_has_no_teacher_and_no_average(script, tmp_path):
    """They are those of other vectors. The output may be in the folder of the checkpoint."""
    state = write_run(tmp_path, num_layers=0, gated=True)
    state["task_state"]["teacher"] = "0123456789ab"
    state["extra_state"] = {"ema": dict(state["model"])}
    run = tmp_path / "run"
    torch.save(state, run / "checkpoint_last.pt")

    whiten(script, run / "checkpoint_last.pt", tmp_path / "corpus", run / "white.pt")

    after = torch.load(run / "white.pt", weights_only=True)
    assert "teacher" not in after["task_state"]
    assert "ema" not in after["extra_state"]


@pytest.mark.parametrize(
    ("sizes", "corpus", "message"),
    [
        # Models with layers, and with weights for the order of words.
        ({"num_layers": 1}, "corpus", "checkpoint_last.pt: "),
        ({"num_layers": 0, "order_coefficients": 2}, "corpus", "checkpoint_last.pt: "),
        # A folder without text, and a corpus of equal sentences, which have no variance.
        ({"num_layers": 0}, "run", "run: "),
        ({"num_layers": 0}, "equal", "--corpus"),
    ],
    ids=["layers", "order", "no-text", "equal"],
)
def test_models_with_layers_or_order_and_corpora_without_variance_are_refused(
    script, tmp_path, sizes, corpus, message
):
    write_run(tmp_path, gated=True, **sizes)
    (tmp_path / "equal" / "en-fr").mkdir(parents=True)
    for side in ("en", "fr"):
        (tmp_path / "equal" / "en-fr" / f"train.{side}").write_text("one dog\n" * 3)
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    output = tmp_path / "white" / "checkpoint_last.pt"

    done = whiten(script, checkpoint, tmp_path / corpus, output, check=False)

    refused(done, message)
    assert not (tmp_path / "white").exists()
