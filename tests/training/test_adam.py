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


def optimizer(name, weights, **options):
    cfg = OmegaConf.merge(
        OmegaConf.structured(OPTIMIZER_DATACLASS_REGISTRY[name]()), {"lr": [0.01], **options}
    )
    if "tpu" in cfg:
        cfg.tpu = False
    return OPTIMIZER_REGISTRY[name](cfg, weights)


def after_five_steps(make_optimizer):
    """Weights after gradients that grow and shrink, so that the largest second moment is not the
    last.
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


# The second moment changes so fast that AMSGrad matters within five steps.
FAST_BETAS = (0.5, 0.5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"amsgrad": True},
        {"weight_decay": 0.1, "amsgrad": True},
        {"weight_decay": 0.1, "amsgrad": True, "decoupled_weight_decay": True},
    ],
)
def test_five_steps_are_those_of_torch(options):
    for betas, parsed_betas in (
        ((0.9, 0.999), (0.9, 0.999)),
        ("(0.8, 0.99)", (0.8, 0.99)),
        ("[0.8, 0.99]", (0.8, 0.99)),
    ):

        def torch_adam(weights, betas=parsed_betas):
            return torch.optim.Adam(weights, 0.01, betas, foreach=False, **options)

        def our_adam(weights, betas=betas):
            return optimizer("torch_adam", weights, adam_betas=betas, **options)

        expected = after_five_steps(torch_adam)
        torch.testing.assert_close(after_five_steps(our_adam), expected, rtol=1e-6, atol=1e-7)


def test_the_adam_of_fairseq_decouples_the_weight_decay():
    def weights_after_five_steps(name, **options):
        options |= {"weight_decay": 0.1, "adam_betas": FAST_BETAS}
        return after_five_steps(lambda weights: optimizer(name, weights, **options))

    fairseq_adam = weights_after_five_steps("adam")
    torch_adam = weights_after_five_steps("torch_adam")
    amsgrad = weights_after_five_steps("torch_adam", amsgrad=True)
    decoupled = weights_after_five_steps("torch_adam", decoupled_weight_decay=True)
    assert (torch_adam - fairseq_adam).abs().max() > 1e-3
    assert (torch_adam - amsgrad).abs().max() > 1e-3
    torch.testing.assert_close(decoupled, fairseq_adam, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_with_and_a_run_without_amsgrad_do_not_fit():
    weights = [torch.nn.Parameter(torch.ones(3))]
    plain = optimizer("torch_adam", weights, amsgrad=False)
    amsgrad = optimizer("torch_adam", weights, amsgrad=True)
    with pytest.raises(InputError, match="without --amsgrad, but this run is with it"):
        amsgrad.load_state_dict(plain.state_dict())
    with pytest.raises(InputError, match="with --amsgrad, but this run is without it"):
        plain.load_state_dict(amsgrad.state_dict())
    amsgrad.load_state_dict(amsgrad.state_dict(), {"weight_decay": 0.5})
    assert amsgrad.param_groups[0]["weight_decay"] == 0.5


def test_options_of_a_run_replace_those_of_its_checkpoint():
    weights = [torch.nn.Parameter(torch.ones(3))]
    saved = optimizer("torch_adam", weights, weight_decay=0.1, adam_betas="(0.8, 0.9)")
    saved.set_lr(0.5)
    resumed = optimizer("torch_adam", weights, weight_decay=0.2, decoupled_weight_decay=True)
    resumed.load_state_dict(saved.state_dict(), {"eps": 1e-4})
    [group] = resumed.param_groups
    assert group["lr"] == 0.5
    assert group["weight_decay"] == 0.2
    assert group["betas"] == (0.9, 0.999)
    assert group["eps"] == 1e-4
    assert group["decoupled_weight_decay"]


def test_a_resumed_training_has_the_weights_of_an_uninterrupted_one(tmp_path, toy_work):
    data = toy_work / "data-bin"
    flags = ("--disable-validation", "--no-epoch-checkpoints")
    options = {"optimizer": "torch_adam", "weight_decay": "1e-5", "cpu_precision": "bfloat16"}
    for name, updates in (("whole", "4"), ("resumed", "2"), ("resumed", "4")):
        done = train_here(data, tmp_path / name, *flags, "--amsgrad", **options, max_update=updates)
        checked(done)
    assert_same_weights(tmp_path / "whole", tmp_path / "resumed")
    state = read_checkpoint(tmp_path / "whole" / "checkpoint_last.pt")["last_optimizer_state"]
    [group] = state["param_groups"]
    assert (group["amsgrad"], group["weight_decay"]) == (True, 1e-5)
    # Another optimizer cannot read the checkpoint.
    options = {"max_update": "6", "weight_decay": "1e-5"}
    for name, message in (
        ("adam", "Optimizer is FairseqAdam, but the checkpoint was trained with TorchAdam"),
        ("torch_adam", "this run is without it"),
    ):
        done = train_here(data, tmp_path / "whole", *flags, optimizer=name, **options)
        refused(done, message)


def test_a_negative_weight_decay_is_refused(tmp_path, toy_work):
    options = {"optimizer": "torch_adam", "weight_decay": "-1"}
    done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
    refused(done, "--weight-decay -1.0")


def optimizer_after_a_step(size):
    weight = torch.nn.Parameter(torch.ones(size))
    adam = optimizer("torch_adam", [weight])
    weight.sum().backward()
    adam.step()
    return adam


def test_moments_of_weights_of_another_size_are_refused():
    """The fused step of torch would read beyond their memory."""
    small = optimizer_after_a_step(2)
    large = optimizer_after_a_step(300)
    large.load_state_dict(large.state_dict())
    with pytest.raises(InputError, match=r"torch_adam.*--reset-optimizer"):
        large.load_state_dict(small.state_dict())


def test_only_moments_of_used_rows_are_stored_and_restored():
    """A text that has few pieces of a large table changes few rows."""
    table = torch.nn.Parameter(torch.ones(100, 8))
    adam = optimizer("torch_adam", [table])
    table[[3, 50]].square().sum().backward()
    adam.step()
    state = adam.state_dict()
    assert state["state"][0]["exp_avg"]["values"].shape == (2, 8)
    restored = optimizer("torch_adam", [torch.nn.Parameter(torch.ones(100, 8))])
    restored.load_state_dict(state)
    moments = restored.optimizer.state_dict()["state"][0]
    for name, expected in adam.optimizer.state_dict()["state"][0].items():
        assert torch.equal(moments[name], expected)


def mark_as_embeddings(weight):
    """Mark a weight as the tasks mark the embedding table of an encoder."""
    weight.param_group = EMBEDDINGS


def test_embeddings_have_a_multiple_of_the_rate_at_every_update():
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
        for weight, scale in ((first, 1), (table, 10), (last, 1)):
            torch.testing.assert_close(weight.detach(), scale * expected, rtol=1e-5, atol=0)


def test_five_steps_with_a_rate_for_embeddings_are_those_of_two_groups_of_torch():
    def torch_adam(weights):
        table, vector = weights
        groups = [{"params": [vector]}, {"params": [table], "lr": 0.03}]
        return torch.optim.Adam(groups, 0.01, foreach=False)

    def our_adam(weights):
        mark_as_embeddings(weights[0])
        return optimizer("torch_adam", weights, embed_lr_scale=3.0)

    expected = after_five_steps(torch_adam)
    torch.testing.assert_close(after_five_steps(our_adam), expected, rtol=1e-6, atol=1e-7)


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
    torch.testing.assert_close(table.detach(), torch.full((3,), 0.98))
    assert adam.get_lr() == 0.01


def test_a_rate_for_embeddings_is_refused_if_all_weights_are_one():
    """--fp16 makes all weights one, unless --fp16-no-flatten-grads copies each."""
    weights = [torch.nn.Parameter(torch.ones(2, dtype=torch.float16)) for _ in range(3)]
    mark_as_embeddings(weights[1])
    joined = torch.nn.Parameter(torch.ones(6))
    with pytest.raises(InputError, match=r"--embed-lr-scale 3 .*--fp16-no-flatten-grads"):
        optimizer("torch_adam", [joined], embed_lr_scale=3.0)
    copies = FP16Optimizer.build_fp32_params(None, weights, flatten=False)
    rest, embeddings = optimizer("torch_adam", copies, embed_lr_scale=3.0).param_groups
    assert (len(rest["params"]), len(embeddings["params"])) == (2, 1)
    assert embeddings["params"][0] is copies[1]


def test_a_checkpoint_with_and_a_run_without_a_rate_for_embeddings_do_not_fit():
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    mark_as_embeddings(weights[1])
    ten = optimizer("torch_adam", weights, embed_lr_scale=10.0)
    five = optimizer("torch_adam", weights, embed_lr_scale=5.0)
    without_scale = optimizer("torch_adam", weights, embed_lr_scale=1.0)
    ten.set_lr(0.5)
    # The scale of the run replaces that of the checkpoint.
    five.load_state_dict(ten.state_dict())
    assert [group["lr"] for group in five.param_groups] == [0.5, 2.5]
    with pytest.raises(InputError, match="with --embed-lr-scale, but this run is without it"):
        without_scale.load_state_dict(ten.state_dict())
    with pytest.raises(InputError, match="without --embed-lr-scale, but this run is with it"):
        ten.load_state_dict(without_scale.state_dict())


def test_training_changes_the_embeddings_with_their_rate(tmp_path, toy_work):
    def train(name, **options):
        flags = ("--disable-validation", "--no-epoch-checkpoints")
        options |= {"optimizer": "torch_adam", "init_branches": "zero"}
        options |= {"lr_scheduler": "fixed", "warmup_updates": "0"}
        checked(train_here(toy_work / "data-bin", tmp_path / name, *flags, **options))
        return read_weights(tmp_path / name)

    start = train("start", max_update=1, embed_lr_scale="0", lr="0")
    plain = train("plain", max_update=1, embed_lr_scale="1")
    scaled = train("scaled", max_update=1, embed_lr_scale="10")

    table = "encoder.embed_tokens.weight"
    plain_change = plain[table] - start[table]
    scaled_change = scaled[table] - start[table]
    assert plain_change.abs().max() > 1e-4
    torch.testing.assert_close(scaled_change, 10 * plain_change, rtol=1e-2, atol=1e-6)
    for name, value in plain.items():
        if name != table:
            torch.testing.assert_close(scaled[name], value, rtol=1e-5, atol=1e-6)
    # The branches start at zero, and are trained.
    for name in ("self_attn.out_proj", "fc2"):
        assert not start[f"encoder.layers.0.{name}.weight"].any()
        assert plain[f"encoder.layers.0.{name}.weight"].any()
    # A resumed run has the weights of an uninterrupted one.
    train("whole", max_update=3, embed_lr_scale="10")
    train("scaled", max_update=3, embed_lr_scale="10")
    assert_same_weights(tmp_path / "whole", tmp_path / "scaled")


def test_a_negative_rate_for_embeddings_is_refused(tmp_path, toy_work):
    options = {"optimizer": "torch_adam", "embed_lr_scale": "-1"}
    done = train_here(toy_work / "data-bin", tmp_path, "--disable-validation", **options)
    refused(done, "--embed-lr-scale -1.0")
