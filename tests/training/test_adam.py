"""The optimizer against torch.optim.Adam itself, and checkpoints of another kind of Adam."""

import pytest
import torch
from conftest import assert_same_weights, refused, train_here
from conftest import weights as weights_of
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


def after_steps(make, steps=5):
    """Weights after gradients that grow and shrink, so that the largest second moment is not the
    last.
    """
    weights = [
        torch.nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3)),
        torch.nn.Parameter(torch.ones(3)),
    ]
    made = make(weights)
    for step in range(steps):
        made.zero_grad()
        sum(
            (weight * (5 - step) ** 2 * (1 + torch.arange(3))).sin().sum() for weight in weights
        ).backward()
        made.step()
    return torch.cat([weight.detach().flatten() for weight in weights])


FAST = (0.5, 0.5)  # the second moment forgets, so that AMSGrad matters within five steps
OPTIONS = {"weight_decay": 0.1, "amsgrad": True}


@pytest.mark.parametrize("betas", [(0.9, 0.999), "(0.8, 0.99)", "[0.8, 0.99]"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        OPTIONS,
        {"weight_decay": 0.1},
        {"amsgrad": True},
        OPTIONS | {"decoupled_weight_decay": True},
    ],
)
def test_five_steps_are_those_of_torch(options, betas):
    ours = after_steps(
        lambda weights: optimizer("torch_adam", weights, adam_betas=betas, **options)
    )
    numbers = (0.8, 0.99) if isinstance(betas, str) else betas
    torchs = after_steps(
        lambda weights: torch.optim.Adam(weights, 0.01, numbers, foreach=False, **options)
    )
    torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-7)


def test_fairseqs_adam_is_another_with_weight_decay():
    ours, fairseqs = (
        after_steps(
            lambda weights, name=name: optimizer(name, weights, weight_decay=0.1, adam_betas=FAST)
        )
        for name in ("torch_adam", "adam")
    )
    assert (ours - fairseqs).abs().max() > 1e-3
    amsgrad = after_steps(
        lambda weights: optimizer("torch_adam", weights, adam_betas=FAST, **OPTIONS)
    )
    assert (ours - amsgrad).abs().max() > 1e-3
    decoupled = {"weight_decay": 0.1, "adam_betas": FAST, "decoupled_weight_decay": True}
    adamw = after_steps(lambda weights: optimizer("torch_adam", weights, **decoupled))
    torch.testing.assert_close(adamw, fairseqs, rtol=1e-5, atol=1e-6)


def test_options_of_now_replace_those_of_a_checkpoint_but_for_amsgrad():
    weights = [torch.nn.Parameter(torch.ones(3))]
    plain, other = (optimizer("torch_adam", weights, amsgrad=amsgrad) for amsgrad in (False, True))
    with pytest.raises(InputError, match="without --amsgrad, but this run is with it"):
        other.load_state_dict(plain.state_dict())
    with pytest.raises(InputError, match="with --amsgrad, but this run is without it"):
        plain.load_state_dict(other.state_dict())
    other.load_state_dict(other.state_dict(), {"weight_decay": 0.5})
    assert other.param_groups[0]["weight_decay"] == 0.5
    then = optimizer("torch_adam", weights, weight_decay=0.1, adam_betas="(0.8, 0.9)")
    now = optimizer("torch_adam", weights, weight_decay=0.2, decoupled_weight_decay=True)
    then.set_lr(0.5)
    now.load_state_dict(then.state_dict(), {"eps": 1e-4})
    [group] = now.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (
        0.5,
        0.2,
        (0.9, 0.999),
        1e-4,
    )
    assert group["decoupled_weight_decay"]


def test_training_stops_and_goes_on(tmp_path, toy_work):
    data, flags = (
        toy_work / "data-bin",
        ("--disable-validation", "--no-epoch-checkpoints", "--amsgrad"),
    )
    options = {"optimizer": "torch_adam", "weight_decay": "1e-5", "cpu_precision": "bfloat16"}
    for name, updates in (("whole", "4"), ("halves", "2"), ("halves", "4")):
        done = train_here(data, tmp_path / name, *flags, **options, max_update=updates)
        assert not done.returncode, done.stderr[-2000:]
    assert_same_weights(tmp_path / "whole", tmp_path / "halves")
    state = read_checkpoint(tmp_path / "whole" / "checkpoint_last.pt")["last_optimizer_state"]
    group = state["param_groups"][0]
    assert (group["amsgrad"], group["weight_decay"]) == (True, 1e-5)
    more = {"max_update": "6", "weight_decay": "1e-5"}
    for name, message in (
        ("adam", "Optimizer is FairseqAdam, but the checkpoint was trained with TorchAdam"),
        ("torch_adam", "this run is without it"),
    ):
        refused(train_here(data, tmp_path / "whole", *flags[:2], optimizer=name, **more), message)
    done = train_here(data, tmp_path / "new", *flags, optimizer="torch_adam", weight_decay="-1")
    refused(done, "--weight-decay -1.0")


def test_moments_of_other_weights_are_refused():
    """The fused step of torch would read beyond their memory."""
    made = {}
    for size in (2, 300):
        weights = torch.nn.Parameter(torch.ones(size))
        made[size] = optimizer("torch_adam", [weights])
        weights.sum().backward()
        made[size].step()
    made[300].load_state_dict(made[300].state_dict())
    with pytest.raises(InputError, match=r"torch_adam.*--reset-optimizer"):
        made[300].load_state_dict(made[2].state_dict())


def test_moments_of_few_rows_take_little_space_and_are_restored():
    """A text that has few pieces of a large table moves these rows only."""
    table = torch.nn.Parameter(torch.ones(100, 8))
    made = optimizer("torch_adam", [table])
    table[[3, 50]].square().sum().backward()
    made.step()
    expected = made.optimizer.state_dict()["state"][0]
    packed = made.state_dict()
    assert packed["state"][0]["exp_avg"]["values"].shape == (2, 8)
    restored = optimizer("torch_adam", [torch.nn.Parameter(torch.ones(100, 8))])
    restored.load_state_dict(packed)
    moments = restored.optimizer.state_dict()["state"][0]
    assert all(torch.equal(moments[name], expected[name]) for name in expected)


def named_as_embeddings(weight):
    """As the tasks mark the embedding table of an encoder."""
    weight.param_group = EMBEDDINGS
    return weight


def test_embeddings_have_a_multiple_of_the_rate_at_every_update():
    """With a constant gradient, each step of Adam is as long as the learning rate."""
    before, table, after = (torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
    named_as_embeddings(table)
    made = optimizer("torch_adam", [before, table, after], embed_lr_scale=10.0)
    expected = torch.zeros(2, 2)
    for rate in (0.01, 0.02, 0.005):
        if rate != 0.01:
            made.set_lr(rate)
        assert made.get_lr() == rate
        made.zero_grad()
        (before + table + after).sum().backward()
        made.step()
        expected -= rate
        for weight, scale in ((before, 1), (table, 10), (after, 1)):
            torch.testing.assert_close(weight.detach(), scale * expected, rtol=1e-5, atol=0)


def test_five_steps_with_a_multiple_for_embeddings_are_those_of_two_groups_of_torch():
    def grouped(weights):
        table, rest = ({"params": [weight]} for weight in weights)
        return torch.optim.Adam([rest, table | {"lr": 0.03}], 0.01, foreach=False)

    def ours(weights):
        named_as_embeddings(weights[0])
        return optimizer("torch_adam", weights, embed_lr_scale=3.0)

    torch.testing.assert_close(after_steps(ours), after_steps(grouped), rtol=1e-6, atol=1e-7)


def test_without_a_multiple_all_weights_are_one_group_in_their_order():
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 2, 4)]
    named_as_embeddings(weights[1])
    [group] = optimizer("torch_adam", weights).param_groups
    assert [id(weight) for weight in group["params"]] == [id(weight) for weight in weights]


def test_an_encoder_may_have_nothing_but_embeddings():
    table = named_as_embeddings(torch.nn.Parameter(torch.ones(3)))
    made = optimizer("torch_adam", [table], embed_lr_scale=2.0)
    table.sum().backward()
    made.step()
    torch.testing.assert_close(table.detach(), torch.full((3,), 0.98))
    assert made.get_lr() == 0.01


def test_weights_joined_into_one_have_no_rate_for_embeddings():
    """--fp16 joins all weights, unless --fp16-no-flatten-grads copies them one by one."""
    weights = [torch.nn.Parameter(torch.ones(2, dtype=torch.float16)) for _ in range(3)]
    named_as_embeddings(weights[1])
    joined = torch.nn.Parameter(torch.ones(6))
    with pytest.raises(InputError, match=r"--embed-lr-scale 3 .*--fp16-no-flatten-grads"):
        optimizer("torch_adam", [joined], embed_lr_scale=3.0)
    copies = FP16Optimizer.build_fp32_params(None, weights, flatten=False)
    rest, embeddings = optimizer("torch_adam", copies, embed_lr_scale=3.0).param_groups
    assert (len(rest["params"]), len(embeddings["params"])) == (2, 1)
    assert embeddings["params"][0] is copies[1]


def test_the_multiple_of_now_replaces_that_of_a_checkpoint_unless_one_has_none():
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    named_as_embeddings(weights[1])
    ten, five, none = (
        optimizer("torch_adam", weights, embed_lr_scale=scale) for scale in (10.0, 5.0, 1.0)
    )
    ten.set_lr(0.5)
    five.load_state_dict(ten.state_dict())
    assert [group["lr"] for group in five.param_groups] == [0.5, 2.5]
    with pytest.raises(InputError, match="with --embed-lr-scale, but this run is without it"):
        none.load_state_dict(ten.state_dict())
    with pytest.raises(InputError, match="without --embed-lr-scale, but this run is with it"):
        ten.load_state_dict(none.state_dict())


def test_training_moves_the_embeddings_by_a_multiple_and_goes_on(tmp_path, toy_work):
    data, flags = toy_work / "data-bin", ("--disable-validation", "--no-epoch-checkpoints")
    options = {"optimizer": "torch_adam", "init_branches": "zero", "lr_scheduler": "fixed"}
    options |= {"warmup_updates": "0"}
    runs = (("start", 1, "0", {"lr": "0"}), ("plain", 1, "1", {}), ("scaled", 1, "10", {}))
    runs += tuple((name, updates, "10", {}) for name, updates in (("whole", 3), ("scaled", 3)))
    first = {}
    for name, updates, scale, more in runs:
        done = train_here(
            data,
            tmp_path / name,
            *flags,
            **(options | more),
            max_update=updates,
            embed_lr_scale=scale,
        )
        assert not done.returncode, done.stderr[-2000:]
        first.setdefault(name, weights_of(tmp_path / name))
    table = "encoder.embed_tokens.weight"
    moved = {name: first[name][table] - first["start"][table] for name in ("plain", "scaled")}
    assert moved["plain"].abs().max() > 1e-4
    torch.testing.assert_close(moved["scaled"], 10 * moved["plain"], rtol=1e-2, atol=1e-6)
    for name, value in first["plain"].items():
        if name != table:
            torch.testing.assert_close(first["scaled"][name], value, rtol=1e-5, atol=1e-6)
    for name in ("self_attn.out_proj", "fc2"):
        assert not first["start"][f"encoder.layers.0.{name}.weight"].any()
        assert first["plain"][f"encoder.layers.0.{name}.weight"].any()
    assert_same_weights(tmp_path / "whole", tmp_path / "scaled")
    done = train_here(data, tmp_path / "x", *flags, **options, embed_lr_scale="-1")
    refused(done, "--embed-lr-scale -1.0")
