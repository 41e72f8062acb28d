"""examples/pretrained/whiten.py changes the vectors of pieces as it says, and nothing else of a
checkpoint.
"""

import numpy as np
import pytest
import small_model
import torch
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH
from fairseq_lxsr.text.data_folder import keep_text
from fairseq_lxsr.text.tokenizer import hash_symbols, read_dictionary

VECTORS = "encoder.embed_tokens.weight"
ROWS = np.random.default_rng(0).normal(size=(200, 4)) @ np.random.default_rng(1).normal(size=(4, 4))


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "whiten.py")


def test_white_embeddings_vary_alike_in_every_direction(script):
    script.WHITENED, script.LENGTHS = 1, 1
    np.testing.assert_allclose(np.cov(script.changed(ROWS, ROWS).T), np.eye(4), atol=1e-9)


def test_nothing_changes_where_nothing_is_asked(script):
    script.WHITENED, script.LENGTHS = 0, 1
    np.testing.assert_allclose(script.changed(ROWS, ROWS), ROWS)


def test_directions_are_shortened_by_a_power_of_their_variance(script):
    script.LENGTHS = 1
    axes = np.diag([3.0, 2.0, 1.0])
    embeddings = np.concatenate([axes, -axes])
    variances = np.diag(np.cov(embeddings.T))
    np.testing.assert_allclose(script.changed(axes, embeddings), axes / variances**0.1)


def test_lengths_become_more_alike_and_nothing_stays_nothing(script):
    script.WHITENED = 0
    rows = np.array([[0, 0], [3, 4], [0, 0.1]])
    np.testing.assert_allclose(
        script.changed(rows, ROWS[:, :2]), rows * [[1], [5**-0.15], [0.1**-0.15]], atol=1e-12
    )


def test_directions_without_variance_are_no_infinity(script):
    assert np.isfinite(script.changed(ROWS, np.ones((5, 4)) * np.arange(5)[:, None])).all()


def made(tmp_path, **sizes):
    """A checkpoint and a corpus."""
    data = small_model.write_pieces(tmp_path / "data")
    state = small_model.checkpoint_state(data, **sizes)
    state["task_state"][DICTIONARY_HASH] = hash_symbols(read_dictionary(data / "dict.txt"))
    (tmp_path / "run").mkdir()
    torch.save(state, tmp_path / "run" / "checkpoint_last.pt")
    keep_text(data, tmp_path / "run")
    (tmp_path / "corpus" / "en-fr").mkdir(parents=True)
    for side, text in {
        "en": "one dog\na cat\n",
        "fr": "un chien\nun chat\n",
        "sources": "0\n",
    }.items():
        (tmp_path / "corpus" / "en-fr" / f"train.{side}").write_text(text)
    return state


def test_a_checkpoint_differs_in_its_vectors_alone(script, tmp_path):
    before = made(tmp_path, num_layers=0, gated=True)
    output = tmp_path / "white" / "checkpoint_last.pt"
    main_here(
        script,
        tmp_path / "run" / "checkpoint_last.pt",
        "--corpus",
        tmp_path / "corpus",
        "--output",
        output,
    )
    after = torch.load(output, weights_only=True)
    assert not torch.equal(after["model"].pop(VECTORS), before["model"].pop(VECTORS))
    assert all(torch.equal(after["model"][name], value) for name, value in before["model"].items())
    assert before["cfg"].items() <= after["cfg"].items()
    assert (tmp_path / "white" / "text" / "dict.txt").is_file()


def test_a_checkpoint_of_another_name_in_the_same_folder(script, tmp_path):
    """And one that claims the space of a teacher, and has an average."""
    state = made(tmp_path, num_layers=0, gated=True)
    state["task_state"]["teacher"], state["extra_state"] = (
        "0123456789ab",
        {"ema": dict(state["model"])},
    )
    run = tmp_path / "run"
    torch.save(state, run / "checkpoint_last.pt")
    main_here(
        script,
        run / "checkpoint_last.pt",
        "--corpus",
        tmp_path / "corpus",
        "--output",
        run / "white.pt",
    )
    after = torch.load(run / "white.pt", weights_only=True)
    assert "teacher" not in after["task_state"]
    assert "ema" not in after["extra_state"]


@pytest.mark.parametrize(
    ("sizes", "corpus", "message"),
    [
        ({"num_layers": 1}, "corpus", "checkpoint_last.pt: "),
        ({"num_layers": 0, "order_coefficients": 2}, "corpus", "checkpoint_last.pt: "),
        ({"num_layers": 0}, "run", "run: "),
        ({"num_layers": 0}, "one", "--corpus"),
    ],
)
def test_what_cannot_be_whitened_is_refused(script, tmp_path, sizes, corpus, message):
    made(tmp_path, gated=True, **sizes)
    (tmp_path / "one" / "en-fr").mkdir(parents=True)
    for side in ("en", "fr"):
        (tmp_path / "one" / "en-fr" / f"train.{side}").write_text("one dog\n" * 3)
    files = (
        tmp_path / "run" / "checkpoint_last.pt",
        "--output",
        tmp_path / "white" / "checkpoint_last.pt",
    )
    refused(main_here(script, *files, "--corpus", tmp_path / corpus, check=False), message)
    assert not (tmp_path / "white").exists()
