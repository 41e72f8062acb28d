"""The optimizer `torch_adam` against torch.optim.Adam, its checkpoints, and its groups."""

import pytest
import torch
from conftest import assert_same_weights, checked, refused, train_here
from conftest import weights as read_weights
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY, OPTIMIZER_REGISTRY, FP16Optimizer
from omegaconf import OmegaConf

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.adam import EMBEDDINGS

ONLY_LAST_CHECKPOINT = ("--disable-validation", "--no-epoch-checkpoints")


def optimizer(name, weights, **options):
    """The optimizer of fairseq-train with this name, a learning rate of 0.01 and other options."""
    cfg = OmegaConf.merge(
        OmegaConf.structured(OPTIMIZER_DATACLASS_REGISTRY[name]()), {"lr": [0.01], **options}
    )
    if "tpu" in cfg:
        cfg.tpu = False
    return OPTIMIZER_REGISTRY[name](cfg, weights)


def weights_after_five_steps(make_optimizer):
    """Weights after gradients that grow and shrink, so that the largest second moment is not the
    last.

    Args:
        make_optimizer: function of the list of weights, a matrix and a vector.
    """
    matrix = torch.nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3))
    vector = torch.nn.Parameter(torch.ones(3))
    adam = make_optimizer([matrix, vector])
    for step in range(5):
        adam.zero_grad()
        factors = (5 - step) ** 2 * (1 + torch.arange(3))
        loss = (matrix * factors).sin().sum() + (vector * factors).sin().sum()
        loss.backward()
        adam.step()
    return torch.cat([matrix.detach().flatten(), vector.detach()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"amsgrad": True},
        {"weight_decay": 0.1, "amsgrad": True},
        {"weight_decay": 0.1, "amsgrad": True, "decoupled_weight_decay": True},
    ],
    ids=["plain", "decay", "amsgrad", "decay amsgrad", "decoupled"],
)
@pytest.mark.parametrize(
    ("adam_betas", "betas"),
    [
        ((0.9, 0.999), (0.9, 0.999)),
        # The two ways to write them on a command line.
        ("(0.8, 0.99)", (0.8, 0.99)),
        ("[0.8, 0.99]", (0.8, 0.99)),
    ],
    ids=["numbers", "parentheses", "brackets"],
)
def test_five_steps_are_those_of_torch(options, adam_betas, betas):
    weights = weights_after_five_steps(
        lambda weights: optimizer("torch_adam", weights, adam_betas=adam_betas, **options)
    )

    expected = weights_after_five_steps(
        lambda weights: torch.optim.Adam(weights, 0.01, betas, foreach=False, **options)
    )
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


def weights_after_decay(name, **options):
    """Weights after five steps with weight decay.

    The second moment changes so fast that AMSGrad matters within five steps.
    """
    options |= {"weight_decay": 0.1, "adam_betas": (0.5, 0.5)}
    return weights_after_five_steps(lambda weights: optimizer(name, weights, **options))


def test_decoupled_weight_decay_gives_the_weights_of_the_adam_of_fairseq():
    decoupled = weights_after_decay("torch_adam", decoupled_weight_decay=True)
    fairseq_adam = weights_after_decay("adam")
    torch.testing.assert_close(decoupled, fairseq_adam, rtol=1e-5, atol=1e-6)


def test_the_weight_decay_of_torch_adam_differs_from_that_of_fairseq_by_default():
    difference = weights_after_decay("torch_adam") - weights_after_decay("adam")
    assert difference.abs().max() > 1e-3


def test_amsgrad_changes_the_weights():
    difference = weights_after_decay("torch_adam", amsgrad=True) - weights_after_decay("torch_adam")
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("is_in_checkpoint", "message"),
    [
        (False, "without --amsgrad, but this run is with it"),
        (True, "with --amsgrad, but this run is without it"),
    ],
    ids=["only run", "only checkpoint"],
)
def test_a_checkpoint_is_refused_if_it_or_the_run_alone_has_amsgrad(is_in_checkpoint, message):
    weights = [torch.nn.Parameter(torch.ones(3))]
    saved = optimizer("torch_adam", weights, amsgrad=is_in_checkpoint)
    resumed = optimizer("torch_adam", weights, amsgrad=not is_in_checkpoint)
    with pytest.raises(InputError, match=message):
        resumed.load_state_dict(saved.state_dict())


def test_a_checkpoint_with_amsgrad_is_read_by_a_run_with_amsgrad():
    weights = [torch.nn.Parameter(torch.ones(3))]
    saved = optimizer("torch_adam", weights, amsgrad=True)
    resumed = optimizer("torch_adam", weights, amsgrad=True)
    resumed.load_state_dict(saved.state_dict())
    assert resumed.param_groups[0]["amsgrad"]


def test_options_of_a_run_replace_those_of_its_checkpoint_except_the_learning_rate():
    weights = [torch.nn.Parameter(torch.ones(3))]
    saved = optimizer("torch_adam", weights, weight_decay=0.1, adam_betas="(0.8, 0.9)")
    saved.set_lr(0.5)
    resumed = optimizer("torch_adam", weights, weight_decay=0.2, decoupled_weight_decay=True)

    # The second argument has the values of --optimizer-overrides.
    resumed.load_state_dict(saved.state_dict(), {"eps": 1e-4})

    [group] = resumed.param_groups
    assert group["lr"] == 0.5
    assert group["weight_decay"] == 0.2
    default_betas = (0.9, 0.999)
    assert group["betas"] == default_betas
    assert group["eps"] == 1e-4
    assert group["decoupled_weight_decay"]


def test_optimizer_overrides_replace_the_options_of_the_run():
    weights = [torch.nn.Parameter(torch.ones(3))]
    adam = optimizer("torch_adam", weights, weight_decay=0.2)
    adam.load_state_dict(adam.state_dict(), {"weight_decay": 0.5})
    assert adam.param_groups[0]["weight_decay"] == 0.5


@pytest.fixture(scope="module")
def amsgrad_run(tmp_path_factory, toy_work):
    """The folder of a run of four updates with torch_adam, AMSGrad and weight decay."""
    folder = tmp_path_factory.mktemp("amsgrad") / "whole"
    train_with_amsgrad(toy_work, folder, max_update="4")
    return folder


def train_with_amsgrad(toy_work, save_dir, max_update):
    options = {"optimizer": "torch_adam", "weight_decay": "1e-5", "cpu_precision": "bfloat16"}
    flags = (*ONLY_LAST_CHECKPOINT, "--amsgrad")
    data = toy_work / "data-bin"
    checked(train_here(data, save_dir, *flags, max_update=max_update, **options))


def test_a_resumed_training_has_the_weights_of_an_uninterrupted_one(
    tmp_path, toy_work, amsgrad_run
):
    train_with_amsgrad(toy_work, tmp_path / "resumed", max_update="2")
    train_with_amsgrad(toy_work, tmp_path / "resumed", max_update="4")
    assert_same_weights(tmp_path / "resumed", amsgrad_run)


def test_a_checkpoint_has_the_options_of_the_optimizer(amsgrad_run):
    state = read_checkpoint(amsgrad_run / "checkpoint_last.pt")["last_optimizer_state"]
    [group] = state["param_groups"]
    assert group["amsgrad"]
    assert group["weight_decay"] == 1e-5


def test_training_refuses_a_checkpoint_of_another_optimizer_or_without_its_amsgrad(
    toy_work, amsgrad_run
):
    data = toy_work / "data-bin"
    options = {"max_update": "6", "weight_decay": "1e-5"}

    done = train_here(data, amsgrad_run, *ONLY_LAST_CHECKPOINT, optimizer="adam", **options)
    refused(done, "Optimizer is FairseqAdam, but the checkpoint was trained with TorchAdam")

    done = train_here(data, amsgrad_run, *ONLY_LAST_CHECKPOINT, optimizer="torch_adam", **options)
    refused(done, "this run is without it")


def test_a_negative_weight_decay_is_refused(tmp_path, toy_work):
    options = {"optimizer": "torch_adam", "weight_decay": "-1"}
    done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
    refused(done, "--weight-decay -1.0")


def optimizer_after_a_step(size):
    """An optimizer of a single weight of this size, which has moments."""
    weight = torch.nn.Parameter(torch.ones(size))
    adam = optimizer("torch_adam", [weight])
    weight.sum().backward()
    adam.step()
    return adam


def test_moments_of_weights_of_another_size_are_refused():
    """The fused step of torch would read beyond their memory."""
    small = optimizer_after_a_step(2)
    large = optimizer_after_a_step(300)
    with pytest.raises(InputError, match=r"torch_adam.*--reset-optimizer"):
        large.load_state_dict(small.state_dict())


def test_moments_of_weights_of_the_same_size_are_accepted():
    saved = optimizer_after_a_step(300)
    optimizer_after_a_step(300).load_state_dict(saved.state_dict())


def test_only_moments_of_used_rows_are_stored_and_all_are_restored():
    """A text that has few pieces of a large table changes few rows."""
    table = torch.nn.Parameter(torch.ones(100, 8))
    adam = optimizer("torch_adam", [table])
    used_rows = [3, 50]
    table[used_rows].square().sum().backward()
    adam.step()

    state = adam.state_dict()
    assert state["state"][0]["exp_avg"]["values"].shape == (len(used_rows), 8)

    restored = optimizer("torch_adam", [torch.nn.Parameter(torch.ones(100, 8))])
    restored.load_state_dict(state)
    moments = adam.optimizer.state_dict()["state"][0]
    restored_moments = restored.optimizer.state_dict()["state"][0]
    for name, expected in moments.items():
        assert torch.equal(restored_moments[name], expected)


def mark_as_embeddings(weight):
    """Mark a weight as the tasks mark the embedding table of an encoder."""
    weight.param_group = EMBEDDINGS


def test_embeddings_have_a_multiple_of_the_learning_rate_at_every_update():
    """With a constant gradient, each step of Adam is as long as the learning rate."""
    first = torch.nn.Parameter(torch.zeros(2, 2))
    table = torch.nn.Parameter(torch.zeros(2, 2))
    last = torch.nn.Parameter(torch.zeros(2, 2))
    mark_as_embeddings(table)
    adam = optimizer("torch_adam", [first, table, last], embed_lr_scale=10.0)

    expected = torch.zeros(2, 2)
    for rate in (0.01, 0.02, 0.005):
        # 0.01 is the rate of the options.
        if rate != 0.01:
            adam.set_lr(rate)
        assert adam.get_lr() == rate
        adam.zero_grad()
        (first + table + last).sum().backward()
        adam.step()

        expected -= rate
        torch.testing.assert_close(first.detach(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(table.detach(), 10 * expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(last.detach(), expected, rtol=1e-5, atol=0)


def test_five_steps_with_a_rate_for_embeddings_are_those_of_two_groups_of_torch():
    """A scale of 3 makes the learning rate of 0.01 one of 0.03."""

    def adam_with_scale(weights):
        table, _ = weights
        mark_as_embeddings(table)
        return optimizer("torch_adam", weights, embed_lr_scale=3.0)

    def adam_of_torch(weights):
        table, vector = weights
        groups = [{"params": [vector]}, {"params": [table], "lr": 0.03}]
        return torch.optim.Adam(groups, 0.01, foreach=False)

    weights = weights_after_five_steps(adam_with_scale)
    expected = weights_after_five_steps(adam_of_torch)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


def test_without_a_rate_for_embeddings_all_weights_are_one_group_in_their_order():
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 2, 4)]
    mark_as_embeddings(weights[1])
    [group] = optimizer("torch_adam", weights).param_groups
    assert [id(weight) for weight in group["params"]] == [id(weight) for weight in weights]


def test_embeddings_may_be_the_only_weights():
    table = torch.nn.Parameter(torch.ones(3))
    mark_as_embeddings(table)
    adam = optimizer("torch_adam", [table], embed_lr_scale=2.0)

    table.sum().backward()
    adam.step()

    # The first step of Adam is as long as the learning rate, here 2 x 0.01.
    torch.testing.assert_close(table.detach(), torch.full((3,), 1 - 2 * 0.01))
    assert adam.get_lr() == 0.01


def test_a_rate_for_embeddings_is_refused_if_all_weights_are_joined():
    """--fp16 makes one vector of all weights."""
    joined_weights = torch.nn.Parameter(torch.ones(6))
    with pytest.raises(InputError, match=r"--embed-lr-scale 3 .*--fp16-no-flatten-grads"):
        optimizer("torch_adam", [joined_weights], embed_lr_scale=3.0)


def test_float32_copies_of_half_precision_embeddings_have_the_rate_for_embeddings():
    """--fp16-no-flatten-grads copies each weight of its own."""
    weights = [torch.nn.Parameter(torch.ones(2, dtype=torch.float16)) for _ in range(3)]
    mark_as_embeddings(weights[1])
    copies = FP16Optimizer.build_fp32_params(None, weights, flatten=False)

    adam = optimizer("torch_adam", copies, embed_lr_scale=3.0)

    other_weights, embeddings = adam.param_groups
    assert [id(weight) for weight in other_weights["params"]] == [id(copies[0]), id(copies[2])]
    assert [id(weight) for weight in embeddings["params"]] == [id(copies[1])]


def optimizers_of_one_model(*scales):
    """Optimizers of a weight and a table, each with its own scale of the rate for embeddings."""
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    mark_as_embeddings(weights[1])
    return [optimizer("torch_adam", weights, embed_lr_scale=scale) for scale in scales]


def test_the_rate_for_embeddings_of_a_run_replaces_that_of_its_checkpoint():
    saved, resumed = optimizers_of_one_model(10.0, 5.0)
    saved.set_lr(0.5)
    resumed.load_state_dict(saved.state_dict())
    assert [group["lr"] for group in resumed.param_groups] == [0.5, 5 * 0.5]


@pytest.mark.parametrize(
    ("saved_scale", "scale", "message"),
    [
        # A scale of 1 is none.
        (10.0, 1.0, "with --embed-lr-scale, but this run is without it"),
        (1.0, 10.0, "without --embed-lr-scale, but this run is with it"),
    ],
    ids=["only checkpoint", "only run"],
)
def test_a_checkpoint_is_refused_if_it_or_the_run_alone_has_a_rate_for_embeddings(
    saved_scale, scale, message
):
    saved, resumed = optimizers_of_one_model(saved_scale, scale)
    with pytest.raises(InputError, match=message):
        resumed.load_state_dict(saved.state_dict())


TABLE = "encoder.embed_tokens.weight"


def train_from_zero_branches(toy_work, folder, updates=1, **options):
    """Train, and return the weights; the branches of the layers start at zero."""
    options |= {"optimizer": "torch_adam", "init_branches": "zero", "max_update": updates}
    options |= {"lr_scheduler": "fixed", "warmup_updates": "0"}
    checked(train_here(toy_work / "data-bin", folder, *ONLY_LAST_CHECKPOINT, **options))
    return read_weights(folder)


@pytest.fixture(scope="module")
def start(tmp_path_factory, toy_work):
    """Weights before the update: with rates of zero, it changes nothing."""
    folder = tmp_path_factory.mktemp("start") / "run"
    return train_from_zero_branches(toy_work, folder, embed_lr_scale="0", lr="0")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, toy_work):
    """Weights after the update, with one learning rate for all."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    return train_from_zero_branches(toy_work, folder, embed_lr_scale="1")


def test_an_update_changes_the_embeddings_by_the_given_multiple_and_no_other_weight(
    start, plain, toy_work, tmp_path
):
    scaled = train_from_zero_branches(toy_work, tmp_path / "run", embed_lr_scale="10")

    plain_change = plain[TABLE] - start[TABLE]
    scaled_change = scaled[TABLE] - start[TABLE]
    assert plain_change.abs().max() > 1e-4
    torch.testing.assert_close(scaled_change, 10 * plain_change, rtol=1e-2, atol=1e-6)
    for name, value in plain.items():
        if name != TABLE:
            torch.testing.assert_close(scaled[name], value, rtol=1e-5, atol=1e-6)


def test_branches_that_start_at_zero_are_trained(start, plain):
    for projection in ("self_attn.out_proj", "fc2"):
        name = f"encoder.layers.0.{projection}.weight"
        assert not start[name].any()
        assert plain[name].any()


def test_a_resumed_training_with_a_rate_for_embeddings_has_the_weights_of_an_uninterrupted_one(
    toy_work, tmp_path
):
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"

    train_from_zero_branches(toy_work, whole, updates=3, embed_lr_scale="10")
    train_from_zero_branches(toy_work, resumed, updates=1, embed_lr_scale="10")
    train_from_zero_branches(toy_work, resumed, updates=3, embed_lr_scale="10")

    assert_same_weights(resumed, whole)


def test_a_negative_rate_for_embeddings_is_refused(tmp_path, toy_work):
    options = {"optimizer": "torch_adam", "embed_lr_scale": "-1"}
    done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
    refused(done, "--embed-lr-scale -1.0")
