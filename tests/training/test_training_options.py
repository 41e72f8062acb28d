"""Options of fairseq-train: every number has a range, and values outside are refused early."""

import math
from dataclasses import fields
from functools import cache

import pytest
from conftest import refused, train_here
from fairseq import options
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_INV_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from torch.distributed import DistBackendError
from torch.multiprocessing import ProcessExitedException

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.tasks import families  # noqa: F401  registers tasks, models and criterions
from fairseq_lxsr.training.checks import MODELS_AND_CRITERION, RANGES, check_options
from fairseq_lxsr.training.fairseq_patches import explain
from fairseq_lxsr.training.lightweight.task import XlingSentTask

# By the names of tasks, criterions and architectures.
DATACLASSES = {}
for task, (models, criterion) in MODELS_AND_CRITERION.items():
    DATACLASSES[task] = TASK_DATACLASS_REGISTRY[task]
    DATACLASSES[criterion] = CRITERION_DATACLASS_REGISTRY[criterion]
    for model in models:
        for arch in ARCH_MODEL_INV_REGISTRY[model]:
            DATACLASSES[arch] = MODEL_DATACLASS_REGISTRY[arch]


@pytest.mark.parametrize("name", DATACLASSES)
def test_the_range_of_every_number_contains_its_default(name):
    for item in fields(DATACLASSES[name]):
        # A default such as ${task.max_positions} is that of another option.
        if item.type in (int, float) and not str(item.default).startswith("${"):
            assert item.default in item.metadata["range"], item.name


@cache
def config(task: str):
    """All options of a run of this task, as fairseq gives them to it."""
    models, criterion = MODELS_AND_CRITERION[task]
    words = f"data --task {task} --arch {models[0]} --criterion {criterion} --optimizer adam"
    words += " --lr-scheduler polynomial_decay --total-num-update 9 --batch-size 32 --cpu"
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words.split())
    cfg = convert_namespace_to_omegaconf(args)
    add_defaults(cfg)
    check_options(cfg)
    return cfg


def error_message(group: str, name: str, value, task: str = "xling_sent") -> str:
    """The error of a changed option; empty if the value is accepted."""
    # The option is changed and restored, because a copy of all takes longer than the check.
    options_of_group = config(task)[group]
    default = options_of_group[name]
    options_of_group[name] = value
    try:
        check_options(config(task))
    except InputError as error:
        return str(error)
    finally:
        options_of_group[name] = default
    return ""


OUTSIDE_OF_RANGES = [
    ("task", "align_temperature", math.inf, "--align-temperature inf"),
    ("task", "gen_weight", -1.0, "--gen-weight -1.0"),
    ("task", "sim_weight", math.nan, "--sim-weight nan"),
    ("task", "sampling_temperature", math.nan, "--sampling-temperature nan"),
    ("task", "max_positions", 0, "--max-positions 0"),
    ("task", "max_positions", 10**9, "--max-positions 1000000000"),
    ("task", "word_dropout", 1.0, "--word-dropout 1.0"),
    ("task", "subword_dropout", -0.1, "--subword-dropout -0.1"),
    ("model", "dropout", 1.5, "--dropout 1.5"),
    ("model", "layer_norm_eps", 0.0, "--layer-norm-eps 0.0"),
    ("model", "encoder_embed_dim", 10**9, "--encoder-embed-dim 1000000000"),
    ("model", "encoder_layers", 10**9, "--encoder-layers 1000000000"),
    ("model", "order_coefficients", 10**9, "--order-coefficients 1000000000"),
    ("ema", "ema_decay", 5.0, "--ema-decay 5.0"),
    ("optimization", "clip_norm", math.nan, "--clip-norm nan"),
    # Lists: each value is checked, and there must be one.
    ("optimization", "update_freq", [0], "--update-freq 0"),
    ("optimization", "update_freq", [1, 0], "--update-freq 0"),
    ("optimization", "lr", [1e30], "--lr 1e+30"),
    ("optimization", "lr", [], "--lr is empty"),
    ("optimizer", "weight_decay", -1.0, "--weight-decay -1.0"),
    # fairseq would evaluate the text as Python.
    ("optimizer", "adam_betas", "__import__('os')", "--adam-betas"),
    ("optimizer", "adam_betas", [0.9, 1.0], "--adam-betas [0.9, 1.0]"),
    ("checkpoint", "optimizer_overrides", "x", "--optimizer-overrides 'x'"),
    ("lr_scheduler", "warmup_updates", -5, "--warmup-updates -5"),
    ("dataset", "batch_size", 0, "--batch-size 0"),
    ("dataset", "max_tokens", 0, "--max-tokens 0"),
    ("dataset", "num_workers", -1, "--num-workers -1"),
    ("dataset", "validate_interval", 0, "--validate-interval 0"),
    ("checkpoint", "save_interval", 0, "--save-interval 0"),
    ("common", "log_interval", 0, "--log-interval 0"),
    ("common", "seed", -1, "--seed -1"),
    # The options of the test train on a CPU.
    ("common", "fp16", True, "--fp16 requires a GPU"),
    ("common", "bf16", True, "--bf16 requires a GPU"),
]


@pytest.mark.parametrize(
    ("group", "name", "value", "expected"),
    OUTSIDE_OF_RANGES,
    ids=[expected for *_, expected in OUTSIDE_OF_RANGES],
)
def test_the_error_of_an_option_outside_its_range_names_option_and_value(
    group, name, value, expected
):
    assert error_message(group, name, value).startswith(expected)


@pytest.mark.parametrize(
    ("group", "name"),
    [("model", "laser_1"), ("model", "transformer"), ("criterion", "cross_entropy")],
)
def test_a_model_or_criterion_of_another_task_is_refused(group, name):
    option = {"model": "--arch", "criterion": "--criterion"}[group]
    message = error_message(group, "_name", name)
    assert message.startswith(f"{option} {name} does not support --task xling_sent")


def test_an_infinite_sampling_temperature_is_accepted():
    assert not error_message("task", "sampling_temperature", math.inf)


def test_no_limit_of_updates_is_accepted():
    assert not error_message("optimization", "max_update", 0)


def float_options_with_a_range(task):
    """The groups and names of all options of a run that are numbers with a range."""
    cfg = config(task)
    names = []
    dataclasses = {"task": task, "model": cfg.model._name, "criterion": cfg.criterion._name}
    for group, name in dataclasses.items():
        for item in fields(DATACLASSES[name]):
            if "range" in item.metadata and item.type is float:
                names.append((group, item.name))
    # The options of fairseq itself.
    for group, ranges in RANGES.items():
        for name in ranges:
            if isinstance(getattr(cfg[group], name, None), float):
                names.append((group, name))
    return names


@pytest.mark.parametrize("task", MODELS_AND_CRITERION)
def test_nan_is_refused_for_every_option_with_a_range(task):
    names = float_options_with_a_range(task)
    assert names
    for group, name in names:
        message = error_message(group, name, math.nan, task)
        assert message.startswith(f"--{name.replace('_', '-')} nan"), name


# Flags and options of fairseq-train, and a part of the message. None leaves an option out.
REFUSED_COMMANDS = [
    ((), {"seed": "-1"}, "--seed"),
    ((), {"update_freq": "0"}, "--update-freq 0"),
    ((), {"lr": "1e30"}, "--lr 1e+30"),
    ((), {"warmup_updates": "0"}, "--warmup-updates is 0; --lr-scheduler inverse_sqrt"),
    ((), {"lr": "0.1,0.01"}, "--lr 0.1, 0.01: --lr-scheduler inverse_sqrt"),
    (("--best-checkpoint-metric", "acc"), {}, "--best-checkpoint-metric acc"),
    (("--best-checkpoint-metric", "accuracy"), {}, "--maximize-best-checkpoint-metric"),
    (("--maximize-best-checkpoint-metric",), {}, "--maximize-best-checkpoint-metric"),
    (("--continue-once", "none.pt"), {}, "none.pt: no such checkpoint"),
    ((), {"matryoshka": "8,8"}, "--matryoshka '8,8'"),
    ((), {"matryoshka": "8,99"}, "--matryoshka 8,99"),
    (
        (),
        {"criterion": "cross_entropy"},
        "--criterion cross_entropy does not support --task xling_sent",
    ),
    ((), {"arch": "laser_1"}, "--arch laser_1 does not support --task xling_sent"),
    ((), {"criterion": "sent_context_loss"}, "xling_sent, lxsr* and xling_sent_loss, or "),
    ((), {"arch": None}, "--arch is required"),
    ((), {"optimizer": None}, "--optimizer is required"),
    (
        (),
        {"criterion": None},
        "--criterion cross_entropy does not support --task xling_sent",
    ),
    ((), {"task": None}, "xling_sent, lxsr* and xling_sent_loss, or "),
    (("--source-lang", "en"), {}, "--source-lang: expected --lang-pairs en-fr"),
    (
        ("--batchsize", "8", "--epochs=3"),
        {},
        "; --batchsize: expected --batch-size; --epochs: expected --max-epoch",
    ),
    (
        (),
        {"task": "xling_sents"},
        "argument --task: invalid choice: 'xling_sents'; expected xling_sent",
    ),
    ((), {"optimizer": "adm"}, "argument --optimizer: invalid choice: 'adm'; expected adam"),
    ((), {"criterion": "none"}, "argument --criterion: invalid choice: 'none'; expected one of "),
    ((), {"lr_scheduler": "inverse-sqrt"}, "invalid choice: 'inverse-sqrt'; expected inverse_sqrt"),
    (
        (),
        {"arch": "lxsr_bset"},
        "argument --arch/-a: invalid choice: 'lxsr_bset'; expected lxsr_bes",
    ),
    ((), {"lr": "fast"}, "argument --lr: invalid <lambda> value: 'fast'"),
    (("--fp16", "--bf16"), {}, "--bf16"),
    (("--bf16",), {}, "--bf16 requires a GPU"),
    (("--amp",), {}, "--amp requires a GPU"),
    (("--profile",), {}, "--profile requires a GPU"),
    (("--distributed-world-size", "99"), {}, "--distributed-world-size 99"),
    (("--train-subset", "train1"), {}, "--train-subset train1"),
    (("--frozen-pieces", "9"), {}, "--frozen-pieces 9"),
    ((), {"encoder_embed_dim": "65536"}, " GB "),
    ((), {"encoder_layers": "40", "encoder_embed_dim": "16384"}, " GB "),
]


@pytest.mark.parametrize(
    ("flags", "options", "expected"),
    REFUSED_COMMANDS,
    ids=[expected for *_, expected in REFUSED_COMMANDS],
)
def test_fairseq_train_refuses_invalid_options_in_one_line(
    tmp_path, toy_work, flags, options, expected
):
    done = train_here(toy_work / "data-bin", tmp_path / "save", *flags, **options)
    refused(done, expected)
    assert not list(tmp_path.rglob("*.pt"))


def test_a_warning_recommends_a_learning_rate_if_none_is_given(tmp_path, toy_work):
    # The model is too large, so that no training follows.
    options = {"lr": None, "encoder_layers": "40", "encoder_embed_dim": "16384"}
    done = train_here(toy_work / "data-bin", tmp_path / "save", **options)
    refused(done, " GB ")
    # The default of fairseq, and what to use instead.
    assert "--lr 0.25" in done.stdout
    assert "--lr 1e-3" in done.stdout


def diverged_error():
    return FloatingPointError("gradients are Nan/Inf")


def error_while_looking_for_the_layer():
    """After it has diverged, fairseq looks for the layer, and may find none."""
    error = StopIteration()
    error.__context__ = diverged_error()
    return error


@pytest.mark.parametrize("error", [diverged_error(), error_while_looking_for_the_layer()])
def test_a_diverged_training_is_explained(error):
    assert "training diverged" in explain(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:52917."),
        DistBackendError("NCCL error: remote process exited or there was a network error"),
        ProcessExitedException("process 1 terminated with signal SIGKILL", 1, 7, -9, "SIGKILL"),
    ],
    ids=["gloo", "nccl", "killed"],
)
def test_the_end_of_another_worker_is_explained(error):
    assert "another worker" in explain(error)


def test_a_missing_package_of_fairseq_is_explained():
    error = ImportError("\n\nPlease install the fairscale package:\n\n  pip install fairscale")
    assert "pip install fairscale" in explain(error)


def test_a_checkpoint_of_another_optimizer_is_explained():
    error = AssertionError(
        "Optimizer does not match; please reset it (--reset-optimizer). FairseqAdam vs SGD"
    )
    assert explain(error).startswith("Optimizer is SGD, ")
    assert "FairseqAdam" in explain(error)


def test_the_traceback_of_a_worker_is_reduced_to_its_message():
    error = "\n-- Process 0 terminated:\nTraceback:\n  line\n"
    error += "fairseq_lxsr.errors.InputError: --lr -1; expected more\n"
    assert explain(RuntimeError(error)) == "--lr -1; expected more"


def test_an_optimizer_that_an_option_does_not_support_is_named():
    assert "TorchAdam" in explain(ValueError("Unsupported optimizer: TorchAdam"))


def test_a_message_of_fairseq_about_its_options_is_kept():
    message = "--finetune-from-model can not be set together with either --reset-optimizer"
    assert explain(ValueError(message)).startswith(message)


def test_other_errors_are_not_explained():
    assert explain(AssertionError("of another kind")) is None


# The schedules of fairseq raise assertions or divide by zero.
REFUSED_SCHEDULES = {
    "polynomial_decay": "--total-num-update",
    "tri_stage": "--lr-scheduler: please specify steps or phase_ratio",
    "tri_stage --phase-ratio (1,2,3)": "--lr-scheduler: phase ratios must add up to 1",
    "pass_through": "--lr-scheduler: Pass-through schedule can only",
    "triangular --max-lr 1e-9": "--lr-scheduler: max_lr must be more than lr",
    # No update is left after the warm-up.
    "cosine --warmup-updates 9": "--max-update 9 is too small for --lr-scheduler cosine",
    "reduce_lr_on_plateau --lr 0.1,0.2": "--lr-scheduler reduce_lr_on_plateau",
}


@pytest.mark.parametrize("schedule", REFUSED_SCHEDULES)
def test_a_schedule_with_missing_or_invalid_options_is_refused_in_one_line(
    tmp_path, toy_work, schedule
):
    flags = ("--lr-scheduler", *schedule.split())
    options = {"max_update": "9", "warmup_updates": None}
    done = train_here(toy_work / "data-bin", tmp_path / "save", *flags, **options)
    refused(done, REFUSED_SCHEDULES[schedule])


def test_generating_text_is_refused():
    with pytest.raises(InputError, match="--task xling_sent"):
        XlingSentTask.build_generator(None, [])


def test_scoring_text_by_a_language_model_is_refused():
    with pytest.raises(InputError, match="--task xling_sent"):
        XlingSentTask.eval_lm_dataloader(None, [])
