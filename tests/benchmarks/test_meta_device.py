"""Every training step and every encoder on torch's device without numbers, by the rules of a GPU.

The runs come from the registries: recipes, architectures, each option of every task, model,
criterion and term, and all networks. `meta_device` refuses what would make a GPU wait for the host.
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
# type of autocast, and of the weights
AUTOCAST = [(torch.float16, torch.float32), (torch.bfloat16, torch.float32)]
# --fp16 and --bf16 of fairseq-train on a GPU
HALF = [(None, torch.float16), (None, torch.bfloat16)]
LONGEST = 2  # pieces; a step of an LSTM for each takes its time here too
PAIRS = 49  # of the training text
WIDTH, SAME_WIDTH = 6, 32  # of the embeddings of a teacher, and of one as wide as the student
OF_TEACHER = ("--teacher-embeddings", "wide", "--encoder-embed-dim", str(SAME_WIDTH))


def settings(task: str, arch: str | None = None, **changed) -> argparse.Namespace:
    """The options of a run: those of fairseq-train, of an architecture, and what is changed."""
    model = MODELS_AND_CRITERION[task][0][0]
    options = vars(parsed(task, model)) | {"arch": arch or model, "max_positions": LONGEST}
    preset = (
        {item.name: item.default for item in fields(MODEL_DATACLASS_REGISTRY[arch])} if arch else {}
    )
    own = {
        name: value
        for name, value in preset.items()
        if not str(value).startswith("${") and name != "_name"
    }
    return argparse.Namespace(**(options | own | changed))


@cache
def parsed(task: str, model: str) -> argparse.Namespace:
    words = [
        "--task",
        task,
        "--arch",
        model,
        "--criterion",
        MODELS_AND_CRITERION[task][1],
        "--optimizer",
        "adam",
        "--cpu",
    ]
    return read_by_fairseq([str(DATA[task]), *words, "--batch-size", "5"])


@cache
def of_recipe(name: str) -> argparse.Namespace:
    own = ["--cpu", "--max-positions", str(LONGEST), *(OF_TEACHER if name == "same_space" else ())]
    options = read_by_fairseq(train_command(read_recipe(name), str(DATA["xling_sent"]), own))
    # more of them are those of the architecture
    options.encoder_layers = min(options.encoder_layers, 2)
    return options


def built(options: argparse.Namespace):
    """Task, model without memory, and criterion of a run."""
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


def a_batch(task) -> dict:
    """Five pairs or samples of the training text."""
    task.load_dataset("train")
    data = task.dataset("train")
    return data.collater([data[int(index)] for index in data.ordered_indices()[-5:]])


def on_device(batch: dict, dtype: torch.dtype) -> dict:
    """What fairseq-train does with a batch: integers as they are, numbers in the type of the
    weights.
    """
    return utils.apply_to_sample(
        lambda value: value.to("meta", dtype if value.is_floating_point() else value.dtype), batch
    )


def check_steps(options: argparse.Namespace, precisions, modes=(True,)) -> None:
    task, model, criterion = built(options)
    batch = a_batch(task)
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
            assert all(
                value.is_meta for value in logged.values() if isinstance(value, torch.Tensor)
            )
        model.zero_grad()
        with without_waiting(), cuda_autocast(None):
            loss.backward()
        unused = [
            name
            for name, part in model.named_parameters()
            if part.requires_grad and part.grad is None
        ]
        assert not unused, "several GPUs wait for the gradient of every weight"


@pytest.mark.parametrize(("name", "precision"), zip(names(), itertools.cycle(HALF)))
@pytest.mark.usefixtures("files")
def test_recipe(name, precision):
    check_steps(of_recipe(name), [precision], modes=(False, True))


def models_of(task: str) -> list[str]:
    """The models of a task and their sub-classes, without presets."""
    known = tuple(MODEL_REGISTRY[name] for name in MODELS_AND_CRITERION[task][0])
    return [
        name
        for name in configs_of_package(MODEL_DATACLASS_REGISTRY)
        if issubclass(MODEL_REGISTRY[name], known)
    ]


ARCHS = [
    (task, arch)
    for task in MODELS_AND_CRITERION
    for kind in models_of(task)
    for arch in ARCH_MODEL_INV_REGISTRY[kind]
]


def test_every_model_belongs_to_a_task():
    assert sorted(configs_of_package(MODEL_DATACLASS_REGISTRY)) == sorted(
        itertools.chain.from_iterable(map(models_of, MODELS_AND_CRITERION))
    )
    assert configs_of_package(TASK_DATACLASS_REGISTRY).keys() == MODELS_AND_CRITERION.keys()
    assert sorted(configs_of_package(CRITERION_DATACLASS_REGISTRY)) == sorted(
        criterion for _, criterion in MODELS_AND_CRITERION.values()
    )


@pytest.mark.parametrize(("task", "arch"), ARCHS)
def test_architecture(task, arch):
    check_steps(settings(task, arch), AUTOCAST)


# what an option, or one value of it, needs beside it, or the text that it takes; a new option that
# needs either fails until it stands here
BESIDE: dict[str, dict[str, object]] = {
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
OF_TEXT = {
    "lang_pairs",
    "langs",
    "init_embeddings",
    "from_model",
    "teacher_text",
    "teacher_text_weight",
}  # which text is read, how weights begin


def values_of(item) -> list[object]:
    """Values of an option other than its default that may take another way through the code."""
    kind, default = item.type, item.default
    if item.name in OF_TEXT or str(default).startswith("${") or item.name == "_name":
        return []
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [value.value for value in kind if value.value != str(default)]
    if kind is bool:
        return [not default]
    if kind in (int, float):
        zero = [kind(0)] if default and 0 in item.metadata["range"] else []
        more = [kind(1) if kind is int else 0.25] if not default else []
        return [value for value in zero + more if value in item.metadata["range"]]
    return [TEXTS[item.name]]


def changes() -> Iterator[tuple[str, str, str, object]]:
    """Task, architecture, option and value: every option of the registries changed by itself."""
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
    """A folder with a teacher's embeddings and mined pairs, in which the names of `BESIDE` are
    found.
    """
    for name, width in (("teacher", WIDTH), ("wide", SAME_WIDTH)):
        (tmp_path / name).mkdir()
        for language in ("en", "fr"):
            np.save(
                tmp_path / name / f"train.en-fr.{language}.npy",
                np.zeros((PAIRS, width), np.float32),
            )
    (tmp_path / "mined.tsv").write_text("1.5\t0.9\ten\t0\tfr\t1\n1.2\t0.5\ten\t2\tfr\t3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two_workers() -> Iterator[None]:
    """The second of two workers, whose exchanges come to nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("task", "arch", "option", "value"), list(changes()))
@pytest.mark.usefixtures("files")
def test_option(task, arch, option, value, request):
    if option == "gather_negatives":
        request.getfixturevalue("two_workers")
    beside = BESIDE.get(f"{option} {value}", BESIDE.get(option, {}))
    check_steps(settings(task, arch, **beside | {option: value}), AUTOCAST[:1])


def sizes_of(kind: type) -> Iterator[dict[str, object]]:
    """The sizes of a network: its own, and each field that may take another way through the code
    changed by itself.
    """
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


@pytest.mark.parametrize(("name", "size"), NETWORKS, ids=str)
def test_encoder(name, size):
    network = all_networks()[name]
    with shapes_only():
        model = network(network.Config(vocab_size=100, padding_idx=1, **size)).eval()
    lengths = np.array([1, 2, 2])
    ids, starts = np.arange(4, 4 + lengths.sum()), lengths.cumsum() - lengths
    (_, inputs), *_ = model.batches(FlatPieces(ids, starts, lengths), 8)
    inputs = [torch.from_numpy(values).to("meta") for values in inputs]
    for dtype in set(network.dtypes) - {"int8"}:
        model.to(getattr(torch, dtype))
        with torch.inference_mode(), without_waiting(), cuda_autocast(None):
            assert model.embed_batch(*inputs).shape == (len(lengths), model.config.output_dim)
            assert (
                model.embed_padded(torch.ones_like(inputs[0])).shape[1] == model.config.output_dim
            )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x[[0, 1]],
        lambda x: x.nonzero(),
        lambda x: x.clone().index_put_((x > 0,), x),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x + torch.tensor([1, 2]).to(x.device),
        lambda x: x + x.new_tensor([1, 2]),
        lambda x: x + torch.arange(2),
        lambda x: x[torch.arange(2)],
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.unique(),
        lambda x: range(x.long().sum()),
    ],
)
def test_what_would_wait_is_refused(wrong):
    with pytest.raises((WaitsForDeviceError, RuntimeError)), without_waiting():
        wrong(torch.ones(2, device="meta"))


def test_autocast_is_that_of_cuda():
    """Products in half precision; sums, norms and losses in float32; weights once."""
    linear = torch.nn.Linear(3, 4, device="meta")
    x = torch.ones(2, 3, device="meta")
    with cuda_autocast(torch.bfloat16):
        y = linear(x)
        assert (y @ y.T).dtype is torch.einsum("ij,kj->ik", y, y).dtype is y.dtype is torch.bfloat16
        wide = [
            torch.nn.functional.layer_norm(y, (4,)),
            y.softmax(1),
            y.sum(),
            y.exp(),
            y.logsumexp(1),
            y.norm(dim=1),
        ]
        assert {value.dtype for value in wide} == {torch.float32}
        assert torch.cat((y, x), dim=1).dtype is torch.float32
        with torch.autocast("meta", enabled=False):
            assert linear(x).dtype is torch.float32
    assert linear(x).dtype is torch.float32
    y.sum().backward()
    assert linear.weight.grad.dtype is torch.float32
