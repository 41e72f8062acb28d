"""Checkpoints that training may go on from, and those that it refuses in one line."""

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


def new_run(state, **options_without_shape) -> NewRun:
    return NewRun(
        "xling_sent", 102, {DICTIONARY_HASH: ""}, state["model"], True, options_without_shape
    )


@pytest.mark.slow
def test_any_value_in_any_place_of_a_checkpoint_is_accepted_or_refused(tmp_path, state):
    path, refusals = tmp_path / "checkpoint.pt", 0
    for other in changed_checkpoints(state):
        torch.save(other, path)
        try:
            check_resumable(path, new_run(state))
        except InputError as error:
            message, refusals = str(error), refusals + 1
            assert message.startswith(str(path)), message
            assert len(message) < 600 + 4 * len(str(tmp_path))
    assert refusals > 50


@pytest.mark.parametrize("architecture", ["transformer", "laser", "tlaser"])
def test_options_that_no_weight_shows_stay_as_they_were(tmp_path, state, architecture):
    """Resumed with another value the same weights would mean other embeddings."""
    path, network = tmp_path / "checkpoint.pt", small_model.network(tmp_path / "data", architecture)
    unseen = network.options_without_shape
    assert unseen.keys() >= {"encoder_append_eos"} or architecture == "transformer"
    state |= {"model": {f"encoder.{name}": value for name, value in network.state_dict().items()}}
    run = new_run(state, **unseen)
    for name, value in unseen.items():
        state["cfg"]["model"] = unseen | {name: not value if isinstance(value, bool) else 2 * value}
        torch.save(state, path)
        option = f"--{name.replace('_', '-')} "
        with pytest.raises(InputError, match=option):
            check_resumable(path, run)
        with pytest.raises(InputError, match=option):
            check_resumable(path, replace(run, resumes=False))
        without = {name: value for name, value in state["model"].items() if ".layers." not in name}
        check_resumable(path, replace(run, weights=without, resumes=False))
    state["cfg"]["model"] = unseen
    torch.save(state, path)
    check_resumable(path, run)
