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
    """The content of a checkpoint of the task xling_sent."""
    return small_model.checkpoint_state(small_model.write_pieces(tmp_path / "data"))


def run_with_weights(weights, **options_without_shape) -> NewRun:
    """A run of the same task and dictionary whose model has these weights, and which resumes."""
    return NewRun(
        task="xling_sent",
        # Those of `small_model`, and <mask>.
        vocab_size=102,
        task_state={DICTIONARY_HASH: ""},
        weights=weights,
        resumes=True,
        options_without_shape=options_without_shape,
    )


@pytest.mark.slow
def test_a_checkpoint_with_any_changed_value_is_accepted_or_refused_in_a_short_message(
    tmp_path, state
):
    path = tmp_path / "checkpoint.pt"
    run = run_with_weights(state["model"])
    num_refused = 0
    for changed_state in changed_checkpoints(state):
        torch.save(changed_state, path)
        try:
            check_resumable(path, run)
        except InputError as error:
            num_refused += 1
            message = str(error)
            assert message.startswith(str(path)), message
            # It may name the path several times.
            assert len(message) < 600 + 4 * len(str(tmp_path))
    # Many values matter.
    assert num_refused > 50


# The options that change an embedding, but the shape of no weight, with another value.
CHANGED_OPTIONS = [
    ("transformer", "encoder_attention_heads"),
    ("transformer", "layer_norm_eps"),
    ("laser", "encoder_append_eos"),
    ("laser", "encoder_prepend_bos"),
    ("tlaser", "encoder_append_eos"),
    ("tlaser", "encoder_attention_heads"),
]


@pytest.fixture
def weights_and_options(tmp_path, architecture, state):
    """The weights of a network as in a checkpoint, and its options that change no shape."""
    network = small_model.network(tmp_path / "data", architecture)
    weights = {f"encoder.{name}": value for name, value in network.state_dict().items()}
    return weights, network.options_without_shape


def save_checkpoint(tmp_path, state, weights, options):
    """A checkpoint whose model has these weights and options."""
    state["model"] = weights
    state["cfg"]["model"] = dict(options)
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    return path


def with_another_value(options, name):
    value = options[name]
    changed_value = not value if isinstance(value, bool) else 2 * value
    return options | {name: changed_value}


@pytest.mark.parametrize("architecture", ["transformer", "laser", "tlaser"])
def test_all_options_that_change_no_shape_are_tested(architecture, weights_and_options):
    _, options = weights_and_options
    tested = {name for tested_arch, name in CHANGED_OPTIONS if tested_arch == architecture}
    assert set(options) == tested


@pytest.mark.parametrize(("architecture", "name"), CHANGED_OPTIONS)
@pytest.mark.parametrize("resumes", [True, False], ids=["resumes", "weights only"])
def test_a_checkpoint_with_another_value_of_an_option_that_changes_no_shape_is_refused(
    tmp_path, state, weights_and_options, name, resumes
):
    """The same weights would give other embeddings."""
    weights, options = weights_and_options
    path = save_checkpoint(tmp_path, state, weights, with_another_value(options, name))
    run = replace(run_with_weights(weights, **options), resumes=resumes)
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} "):
        check_resumable(path, run)


@pytest.mark.parametrize(("architecture", "name"), CHANGED_OPTIONS)
def test_an_option_that_changes_no_shape_may_differ_if_no_layer_is_read(
    tmp_path, state, weights_and_options, name
):
    """A run whose model has no layers reads the embeddings of the checkpoint alone."""
    weights, options = weights_and_options
    path = save_checkpoint(tmp_path, state, weights, with_another_value(options, name))
    weights_without_layers = {
        name: value for name, value in weights.items() if ".layers." not in name
    }
    run = replace(run_with_weights(weights_without_layers, **options), resumes=False)
    check_resumable(path, run)


@pytest.mark.parametrize("architecture", ["transformer", "laser", "tlaser"])
def test_a_checkpoint_with_the_options_of_the_run_is_accepted(tmp_path, state, weights_and_options):
    weights, options = weights_and_options
    path = save_checkpoint(tmp_path, state, weights, options)
    check_resumable(path, run_with_weights(weights, **options))
