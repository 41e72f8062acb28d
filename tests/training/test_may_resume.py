"""Checkpoints that training may resume from, and those that it refuses in one line."""

from dataclasses import replace

import pytest
import small_model
import torch
from other_values import changed_checkpoints

from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.resume import NewRun, check_resumable


@pytest.fixture
def state(tmp_path):
    return small_model.checkpoint_state(small_model.write_pieces(tmp_path / "data"))


def run_of(state, **options_without_shape) -> NewRun:
    return NewRun(
        "xling_sent", 102, {DICTIONARY_HASH: ""}, state["model"], True, options_without_shape
    )


@pytest.mark.slow
def test_a_checkpoint_with_any_changed_value_is_accepted_or_refused_in_a_short_message(
    tmp_path, state
):
    path = tmp_path / "checkpoint.pt"
    num_refused = 0
    for changed_state in changed_checkpoints(state):
        torch.save(changed_state, path)
        try:
            check_resumable(path, run_of(state))
        except InputError as error:
            num_refused += 1
            message = str(error)
            assert message.startswith(str(path)), message
            assert len(message) < 600 + 4 * len(str(tmp_path))
    assert num_refused > 50


@pytest.mark.parametrize("architecture", ["transformer", "laser", "tlaser"])
def test_options_that_change_no_shape_must_be_those_of_the_checkpoint(
    tmp_path, state, architecture
):
    """With another value, the same weights would give other embeddings."""
    path = tmp_path / "checkpoint.pt"
    network = small_model.network(tmp_path / "data", architecture)
    options = network.options_without_shape
    assert "encoder_append_eos" in options or architecture == "transformer"
    weights = {f"encoder.{name}": value for name, value in network.state_dict().items()}
    state["model"] = weights
    run = run_of(state, **options)
    without_layers = {name: value for name, value in weights.items() if ".layers." not in name}
    for name, value in options.items():
        if isinstance(value, bool):
            changed_value = not value
        else:
            changed_value = 2 * value
        state["cfg"]["model"] = options | {name: changed_value}
        torch.save(state, path)
        option = f"--{name.replace('_', '-')} "
        with pytest.raises(InputError, match=option):
            check_resumable(path, run)
        with pytest.raises(InputError, match=option):
            check_resumable(path, replace(run, resumes=False))
        check_resumable(path, replace(run, weights=without_layers, resumes=False))
    state["cfg"]["model"] = options
    torch.save(state, path)
    check_resumable(path, run)
