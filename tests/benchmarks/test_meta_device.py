"""Every training step and every encoder on torch's meta device, with the rules of a GPU.

The runs come from the registries: recipes, architectures, each option of every task, model,
criterion and term, and all networks. `meta_device` refuses operations for which a GPU would wait.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import asdict, fields
from enum import Enum
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import COMPATIBILITY
from fairseq import models, utils
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.models import ARCH_MODEL_INV_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq_options import read_by_fairseq
from omegaconf import OmegaConf
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.speed.meta_device import WaitsForDeviceError, cuda_autocast, without_waiting
from fairseq_lxsr.modules import all_networks
from fairseq_lxsr.modules.network import shapes_only
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.recipes import names, read_recipe, train_command
from fairseq_lxsr.training.checks import MODELS_AND_CRITERION
from fairseq_lxsr.training.fairseq_patches import configs_of_package
from fairseq_lxsr.training.laser.criterion import CONSTRAINT_OPTIONS
from fairseq_lxsr.training.task import LxsrTaskConfig

pytestmark = pytest.mark.slow
FOLDERS = {"xling_sent": "data", "xling_translation": "data", "sent_context": "documents"}
DATA = {task: COMPATIBILITY / folder for task, folder in FOLDERS.items()}
# Types of autocast and of the weights.
AUTOCAST = [(torch.float16, torch.float32), (torch.bfloat16, torch.float32)]
# The options --fp16 and --bf16 of fairseq-train on a GPU.
HALF = [(None, torch.float16), (None, torch.bfloat16)]
# Pieces of a sentence; an LSTM takes a slow step for each.
LONGEST = 2
# Pairs of the training text.
PAIRS = 49
# Widths of the embeddings of a teacher, and of one as wide as the student.
WIDTH = 6
SAME_WIDTH = 32
SAME_SPACE_OPTIONS = ("--teacher-embeddings", "wide", "--encoder-embed-dim", str(SAME_WIDTH))


def run_options(task: str, arch: str | None = None, **changed) -> argparse.Namespace:
    """Return the options of a run: those of fairseq-train, of an architecture, and changed ones."""
    model = MODELS_AND_CRITERION[task][0][0]
    options = vars(fairseq_options(task, model)) | {"arch": arch or model, "max_positions": LONGEST}
    if arch:
        for item in fields(MODEL_DATACLASS_REGISTRY[arch]):
            if item.name != "_name" and not str(item.default).startswith("${"):
                options[item.name] = item.default
    return argparse.Namespace(**(options | changed))


@cache
def fairseq_options(task: str, model: str) -> argparse.Namespace:
    """Return the options of fairseq-train for a task, with the defaults of a model."""
    words = ["--task", task, "--arch", model, "--criterion", MODELS_AND_CRITERION[task][1]]
    words += ["--optimizer", "adam", "--cpu", "--batch-size", "5"]
    return read_by_fairseq([str(DATA[task]), *words])


@cache
def recipe_options(name: str) -> argparse.Namespace:
    """Return the options of fairseq-train for a recipe, with at most two layers."""
    words = ["--cpu", "--max-positions", str(LONGEST)]
    if name == "same_space":
        words += SAME_SPACE_OPTIONS
    options = read_by_fairseq(train_command(read_recipe(name), str(DATA["xling_sent"]), words))
    # The tests of architectures have models with more layers.
    options.encoder_layers = min(options.encoder_layers, 2)
    return options


def build(options: argparse.Namespace):
    """Return the task, the model on the meta device, and the criterion of a run."""
    groups = {
        "checkpoint": {"best_checkpoint_metric": "loss", "maximize_best_checkpoint_metric": False}
    }
    for group, name, registry in (
        ("task", options.task, TASK_DATACLASS_REGISTRY),
        ("model", options.arch, MODEL_DATACLASS_REGISTRY),
        ("criterion", options.criterion, CRITERION_DATACLASS_REGISTRY),
    ):
        groups[group] = asdict(registry[name].from_namespace(options)) | {"_name": name}
    cfg = OmegaConf.create(groups)
    task = TASK_REGISTRY[options.task](cfg.task)
    with shapes_only():
        model = models.build_model(cfg.model, task)
    return task, model, task.build_criterion(cfg.criterion)


def batch_of_five(task) -> dict:
    """Return five pairs or samples of the training text, as a batch."""
    task.load_dataset("train")
    data = task.dataset("train")
    return data.collater([data[int(index)] for index in data.ordered_indices()[-5:]])


def on_device(batch: dict, dtype: torch.dtype) -> dict:
    """Move a batch like fairseq-train: floats become the type of the weights, integers stay."""

    def move(value: torch.Tensor) -> torch.Tensor:
        if value.is_floating_point():
            return value.to("meta", dtype)
        return value.to("meta")

    return utils.apply_to_sample(move, batch)


def check_steps(options: argparse.Namespace, precisions, modes=(True,)) -> None:
    """Check that training steps wait for no result of the device.

    The loss must stay on the device, be in float32 and reach every weight.

    Args:
        options: the options of the run.
        precisions: types of autocast and of the weights, such as `AUTOCAST` and `HALF`.
        modes: True for a training step, False for a validation step; the last is True.
    """
    task, model, criterion = build(options)
    batch = batch_of_five(task)
    for autocast, dtype in precisions:
        model.to(dtype)
        sample = on_device(batch, dtype)
        for training in modes:
            model.train(training)
            criterion.train(training)
            with without_waiting(), cuda_autocast(autocast), torch.set_grad_enabled(training):
                loss, _, logged = criterion(model, sample)
            assert loss.is_meta
            assert loss.dtype is torch.float32
            for value in logged.values():
                assert not isinstance(value, torch.Tensor) or value.is_meta
        model.zero_grad()
        with without_waiting(), cuda_autocast(None):
            loss.backward()
        for name, parameter in model.named_parameters():
            # Several GPUs would wait for the gradient of every weight.
            assert not parameter.requires_grad or parameter.grad is not None, name


# Recipes with --fp16 and with --bf16 in turn: both for each would take twice as long.
@pytest.mark.parametrize(("name", "precision"), zip(names(), itertools.cycle(HALF)))
@pytest.mark.usefixtures("files")
def test_a_recipe_trains_and_validates_without_waiting_for_the_device(name, precision):
    check_steps(recipe_options(name), [precision], modes=(False, True))


def models_of(task: str) -> list[str]:
    """Return the models of a task and their subclasses, without presets."""
    classes = tuple(MODEL_REGISTRY[name] for name in MODELS_AND_CRITERION[task][0])
    models_of_package = configs_of_package(MODEL_DATACLASS_REGISTRY)
    return [name for name in models_of_package if issubclass(MODEL_REGISTRY[name], classes)]


# Every architecture, with its task.
ARCHS = [
    (task, arch)
    for task in MODELS_AND_CRITERION
    for kind in models_of(task)
    for arch in ARCH_MODEL_INV_REGISTRY[kind]
]


def test_every_registered_task_has_models_and_a_criterion_to_be_tested_with():
    tasks = configs_of_package(TASK_DATACLASS_REGISTRY)

    assert tasks.keys() == MODELS_AND_CRITERION.keys()


def test_every_registered_model_belongs_to_one_task():
    models_of_tasks = []
    for task in MODELS_AND_CRITERION:
        models_of_tasks += models_of(task)

    assert sorted(configs_of_package(MODEL_DATACLASS_REGISTRY)) == sorted(models_of_tasks)


def test_every_registered_criterion_belongs_to_one_task():
    criterions = [criterion for _, criterion in MODELS_AND_CRITERION.values()]

    assert sorted(configs_of_package(CRITERION_DATACLASS_REGISTRY)) == sorted(criterions)


@pytest.mark.parametrize(("task", "arch"), ARCHS)
def test_an_architecture_trains_without_waiting_for_the_device(task, arch):
    check_steps(run_options(task, arch), AUTOCAST)


# Options that an option, or one value of it, needs. A new option that needs others, or a text as its
# value, fails until it is in these tables.
NEEDED_OPTIONS: dict[str, dict[str, object]] = {
    "hard_negatives": {"objective": "none"},
    **{name: {"constraint": "norm"} for name in CONSTRAINT_OPTIONS},
    "distill_loss": {"teacher_embeddings": "teacher"},
    "distill_loss contrast": {"teacher_embeddings": "wide"},
    "batches near": {"near_embeddings": "teacher"},
    "near_embeddings": {"batches": "near"},
}
TEXTS = {
    "matryoshka": "8,16",
    "mined": "mined.tsv",
    "teacher_embeddings": "teacher",
    "near_embeddings": "teacher",
}
# Options that choose the text or the initial weights, and do not change a training step.
UNTESTED_OPTIONS = {
    "lang_pairs",
    "langs",
    "init_embeddings",
    "from_model",
    "teacher_text",
    "teacher_text_weight",
}


def values_of(item) -> list[object]:
    """Return values of an option, other than its default, that may run other code."""
    kind = item.type
    default = item.default
    if item.name in UNTESTED_OPTIONS or str(default).startswith("${") or item.name == "_name":
        return []
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [value.value for value in kind if value.value != str(default)]
    if kind is bool:
        return [not default]
    if kind in (int, float):
        if default:
            value = kind(0)
        else:
            value = 1 if kind is int else 0.25
        return [value] if value in item.metadata["range"] else []
    return [TEXTS[item.name]]


def changes() -> Iterator[tuple[str, str, str, object]]:
    """Yield task, architecture, option and value: each option of the registries changed alone."""
    shared = {item.name for item in fields(LxsrTaskConfig)}
    for task, (_, criterion) in MODELS_AND_CRITERION.items():
        for number, kind in enumerate(models_of(task)):
            arch = next(name for name in ARCH_MODEL_INV_REGISTRY[kind] if name.endswith("tiny"))
            groups = [MODEL_DATACLASS_REGISTRY[kind]]
            if not number:
                groups += [TASK_DATACLASS_REGISTRY[task], CRITERION_DATACLASS_REGISTRY[criterion]]
            for item in itertools.chain.from_iterable(map(fields, groups)):
                if item.name not in shared:
                    yield from ((task, arch, item.name, value) for value in values_of(item))


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """The current folder with embeddings of a teacher and mined pairs, as options name them."""
    for name, width in (("teacher", WIDTH), ("wide", SAME_WIDTH)):
        (tmp_path / name).mkdir()
        for language in ("en", "fr"):
            embeddings = np.zeros((PAIRS, width), np.float32)
            np.save(tmp_path / name / f"train.en-fr.{language}.npy", embeddings)
    (tmp_path / "mined.tsv").write_text("1.5\t0.9\ten\t0\tfr\t1\n1.2\t0.5\ten\t2\tfr\t3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two_workers() -> Iterator[None]:
    """Make this process the second of two workers, which exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("task", "arch", "option", "value"), list(changes()))
@pytest.mark.usefixtures("files")
def test_training_with_an_option_does_not_wait_for_the_device(task, arch, option, value, request):
    if option == "gather_negatives":
        # It has an effect only with several workers.
        request.getfixturevalue("two_workers")
    needed = NEEDED_OPTIONS.get(f"{option} {value}", NEEDED_OPTIONS.get(option, {}))
    options = run_options(task, arch, **needed | {option: value})

    check_steps(options, AUTOCAST[:1])


def sizes_of(kind: type) -> Iterator[dict[str, object]]:
    """Yield sizes of a network: the defaults, and each field that may run other code changed alone."""
    yield {}
    for item in fields(kind):
        allowed = item.metadata.get("range", ())
        if item.type is bool:
            yield {item.name: not item.default}
        elif item.type is str:
            yield from (
                {item.name: value} for value in item.metadata["choices"] if value != item.default
            )
        elif isinstance(item.default, int | float):
            values = (0,) if item.default else (1,)
            yield from ({item.name: value} for value in values if value in allowed)


NETWORKS = [
    (name, size) for name, network in all_networks().items() for size in sizes_of(network.Config)
]


# Three sentences, of 1, 2 and 2 pieces, one after the other.
THREE_SENTENCES = FlatPieces(
    np.array([4, 5, 6, 7, 8]), starts=np.array([0, 1, 3]), lengths=np.array([1, 2, 2])
)


@pytest.mark.parametrize(("name", "size"), NETWORKS, ids=str)
def test_an_encoder_embeds_without_waiting_for_the_device(name, size):
    network = all_networks()[name]
    with shapes_only():
        model = network(network.Config(vocab_size=100, padding_idx=1, **size)).eval()
    # More pieces than all sentences have, for a single batch.
    [(_, arrays)] = model.batches(THREE_SENTENCES, 8)
    inputs = [torch.from_numpy(array).to("meta") for array in arrays]

    # A network of int8 runs on the CPU only.
    for dtype in set(network.dtypes) - {"int8"}:
        model.to(getattr(torch, dtype))
        with torch.inference_mode(), without_waiting(), cuda_autocast(None):
            vectors = model.embed_batch(*inputs)
            vectors_of_padded = model.embed_padded(torch.ones_like(inputs[0]))
        assert vectors.shape == (3, model.config.output_dim)
        assert vectors_of_padded.shape[1] == model.config.output_dim


@pytest.mark.parametrize(
    "operation",
    [
        # A value of the device is read by Python.
        lambda x: x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: range(x.long().sum()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        # The shape of the result depends on values.
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.clone().index_put_((x > 0,), x),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.unique(),
        # Values of the CPU are copied to the device.
        lambda x: x[[0, 1]],
        lambda x: x + torch.tensor([1, 2]).to(x.device),
        lambda x: x + x.new_tensor([1, 2]),
        lambda x: x + torch.arange(2),
        lambda x: x[torch.arange(2)],
    ],
)
def test_an_operation_that_waits_for_the_device_is_refused(operation):
    x = torch.ones(2, device="meta")

    with pytest.raises((WaitsForDeviceError, RuntimeError)), without_waiting():
        operation(x)


LINEAR = torch.nn.Linear(3, 4, device="meta")
FLOAT32 = torch.ones(2, 3, device="meta")
BFLOAT16 = torch.ones(2, 4, device="meta", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        # Products are in half precision.
        (lambda: LINEAR(FLOAT32), torch.bfloat16),
        (lambda: FLOAT32 @ FLOAT32.T, torch.bfloat16),
        (lambda: torch.einsum("ij,kj->ik", FLOAT32, FLOAT32), torch.bfloat16),
        # Norms, sums and exponentials are in float32.
        (lambda: torch.nn.functional.layer_norm(BFLOAT16, (4,)), torch.float32),
        (lambda: BFLOAT16.norm(dim=1), torch.float32),
        (lambda: BFLOAT16.sum(), torch.float32),
        (lambda: BFLOAT16.exp(), torch.float32),
        (lambda: BFLOAT16.softmax(1), torch.float32),
        (lambda: BFLOAT16.logsumexp(1), torch.float32),
        # Of two types, the wider.
        (lambda: torch.cat((BFLOAT16, FLOAT32), dim=1), torch.float32),
    ],
)
def test_autocast_computes_in_the_types_of_cuda(operation, dtype):
    with cuda_autocast(torch.bfloat16):
        result = operation()

    assert result.dtype is dtype


def test_autocast_has_no_effect_where_it_is_disabled_and_after_its_end():
    with cuda_autocast(torch.bfloat16), torch.autocast("meta", enabled=False):
        disabled = LINEAR(FLOAT32)
    after = LINEAR(FLOAT32)

    assert disabled.dtype is torch.float32
    assert after.dtype is torch.float32


def test_under_autocast_the_gradient_of_a_weight_has_the_type_of_the_weight():
    linear = torch.nn.Linear(3, 4, device="meta")

    with cuda_autocast(torch.bfloat16):
        loss = linear(FLOAT32).sum()
    loss.backward()

    assert linear.weight.grad.dtype is torch.float32
