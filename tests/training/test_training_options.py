"""Options of fairseq-train: every number has a range, and what is outside is refused before
anything is built.
"""

import math
from dataclasses import fields
from functools import cache

import pytest
from conftest import case, refused, train_here
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

ARCHS = [
    arch
    for models, _ in MODELS_AND_CRITERION.values()
    for model in models
    for arch in ARCH_MODEL_INV_REGISTRY[model]
]
DATACLASSES = {
    **{task: TASK_DATACLASS_REGISTRY[task] for task in MODELS_AND_CRITERION},
    **{
        criterion: CRITERION_DATACLASS_REGISTRY[criterion]
        for _, criterion in MODELS_AND_CRITERION.values()
    },
    **{arch: MODEL_DATACLASS_REGISTRY[arch] for arch in ARCHS},
}


def test_every_number_of_ours_has_a_range_that_its_default_is_in():
    for name, dataclass in DATACLASSES.items():
        for item in fields(dataclass):
            if item.type in (int, float) and not str(item.default).startswith("${"):
                with case(f"{name}: {item.name}"):
                    assert item.default in item.metadata["range"]


@cache
def config(task: str):
    """All options of a run of this task, as fairseq gives them to it."""
    models, criterion = MODELS_AND_CRITERION[task]
    words = [
        "data",
        "--task",
        task,
        "--arch",
        f"{models[0]}",
        "--criterion",
        criterion,
        "--optimizer",
        "adam",
    ]
    more = [
        "--lr-scheduler",
        "polynomial_decay",
        "--total-num-update",
        "9",
        "--batch-size",
        "32",
        "--cpu",
    ]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words + more)
    cfg = convert_namespace_to_omegaconf(args)
    add_defaults(cfg)
    check_options(cfg)
    return cfg


def objection(group: str, name: str, value, task: str = "xling_sent") -> str:
    """What is said of one changed option; empty where nothing is."""
    # Changed and restored, because a copy of all options takes longer than the check.
    options_of_group = config(task)[group]
    before = options_of_group[name]
    options_of_group[name] = value
    try:
        check_options(config(task))
    except InputError as error:
        return str(error)
    finally:
        options_of_group[name] = before
    return ""


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (
            "task.align_temperature",
            math.inf,
            "--align-temperature inf",
        ),
        ("task.gen_weight", -1.0, "--gen-weight -1.0"),
        ("task.sim_weight", math.nan, "--sim-weight nan"),
        ("task.sampling_temperature", math.nan, "--sampling-temperature nan"),
        ("task.max_positions", 0, "--max-positions 0"),
        ("task.max_positions", 10**9, "--max-positions 1000000000"),
        (
            "task.word_dropout",
            1.0,
            "--word-dropout 1.0",
        ),
        ("task.subword_dropout", -0.1, "--subword-dropout -0.1"),
        ("model.dropout", 1.5, "--dropout 1.5"),
        (
            "model.layer_norm_eps",
            0.0,
            "--layer-norm-eps 0.0",
        ),
        ("model.encoder_embed_dim", 10**9, "--encoder-embed-dim 1000000000"),
        ("model.encoder_layers", 10**9, "--encoder-layers 1000000000"),
        ("model.order_coefficients", 10**9, "--order-coefficients 1000000000"),
        ("ema.ema_decay", 5.0, "--ema-decay 5.0"),
        ("optimization.clip_norm", math.nan, "--clip-norm nan"),
        ("optimization.update_freq", [0], "--update-freq 0"),
        ("optimization.update_freq", [1, 0], "--update-freq 0"),
        ("optimization.lr", [1e30], "--lr 1e+30"),
        ("optimization.lr", [], "--lr is empty"),
        ("optimizer.weight_decay", -1.0, "--weight-decay -1.0"),
        ("optimizer.adam_betas", "__import__('os')", "--adam-betas"),
        (
            "optimizer.adam_betas",
            [0.9, 1.0],
            "--adam-betas [0.9, 1.0]",
        ),
        (
            "checkpoint.optimizer_overrides",
            "x",
            "--optimizer-overrides 'x'",
        ),
        ("lr_scheduler.warmup_updates", -5, "--warmup-updates -5"),
        ("dataset.batch_size", 0, "--batch-size 0"),
        ("dataset.max_tokens", 0, "--max-tokens 0"),
        ("dataset.num_workers", -1, "--num-workers -1"),
        ("dataset.validate_interval", 0, "--validate-interval 0"),
        ("checkpoint.save_interval", 0, "--save-interval 0"),
        ("common.log_interval", 0, "--log-interval 0"),
        ("common.seed", -1, "--seed -1"),
        ("common.fp16", True, "--fp16 requires a GPU"),
        ("common.bf16", True, "--bf16 requires a GPU"),
        ("model._name", "laser_1", "--arch laser_1 does not support --task xling_sent"),
        (
            "model._name",
            "transformer",
            "--arch transformer does not support --task xling_sent",
        ),
        (
            "criterion._name",
            "cross_entropy",
            "--criterion cross_entropy does not support --task xling_sent",
        ),
    ],
)
def test_an_option_outside_its_range_is_named(option, value, expected):
    assert objection(*option.split("."), value).startswith(expected)


def test_the_ends_of_ranges_are_in_them():
    assert not objection("task", "sampling_temperature", math.inf)
    assert not objection("optimization", "max_update", 0)


@pytest.mark.parametrize("task", MODELS_AND_CRITERION)
def test_no_range_has_nan_and_every_option_with_a_range_is_checked(task):
    cfg = config(task)
    declared = [
        (group, item.name)
        for group, name in (
            ("task", task),
            ("model", cfg.model._name),
            ("criterion", cfg.criterion._name),
        )
        for item in fields(DATACLASSES[name])
        if "range" in item.metadata and item.type is float
    ]
    fairseqs = [(group, name) for group, ranges in RANGES.items() for name in ranges]
    floats = [
        (group, name)
        for group, name in fairseqs
        if isinstance(getattr(cfg[group], name, None), float)
    ]
    for group, name in declared + floats:
        assert objection(group, name, math.nan, task).startswith(
            f"--{name.replace('_', '-')} nan"
        ), name


OF_FAIRSEQ = [
    ((), {"seed": "-1"}, "--seed"),
    ((), {"update_freq": "0"}, "--update-freq 0"),
    ((), {"lr": "1e30"}, "--lr 1e+30"),
    ((), {"warmup_updates": "0"}, "--warmup-updates is 0; --lr-scheduler inverse_sqrt"),
    (
        (),
        {"lr": "0.1,0.01"},
        "--lr 0.1, 0.01: --lr-scheduler inverse_sqrt",
    ),
    (
        ("--best-checkpoint-metric", "acc"),
        {},
        "--best-checkpoint-metric acc",
    ),
    (
        ("--best-checkpoint-metric", "accuracy"),
        {},
        "--maximize-best-checkpoint-metric",
    ),
    (
        ("--maximize-best-checkpoint-metric",),
        {},
        "--maximize-best-checkpoint-metric",
    ),
    (("--continue-once", "none.pt"), {}, "none.pt: no such checkpoint"),
    (
        (),
        {"matryoshka": "8,8"},
        "--matryoshka '8,8'",
    ),
    ((), {"matryoshka": "8,99"}, "--matryoshka 8,99"),
    (
        (),
        {"criterion": "cross_entropy"},
        "--criterion cross_entropy does not support --task xling_sent",
    ),
    ((), {"arch": "laser_1"}, "--arch laser_1 does not support --task xling_sent"),
    (
        (),
        {"criterion": "sent_context_loss"},
        "xling_sent, lxsr* and xling_sent_loss, or ",
    ),
    (
        (),
        {"arch": None},
        "--arch is required",
    ),
    (
        (),
        {"optimizer": None},
        "--optimizer is required",
    ),
    (
        (),
        {"criterion": None},
        "--criterion cross_entropy does not support --task xling_sent",
    ),
    ((), {"task": None}, "xling_sent, lxsr* and xling_sent_loss, or "),
    (
        ("--source-lang", "en"),
        {},
        "--source-lang: expected --lang-pairs en-fr",
    ),
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
    ("flags", "given", "expected"), OF_FAIRSEQ, ids=[str(case[:2]) for case in OF_FAIRSEQ]
)
def test_fairseq_train_ends_in_one_line(tmp_path, toy_work, flags, given, expected):
    refused(train_here(toy_work / "data-bin", tmp_path / "save", *flags, **given), expected)
    assert not list(tmp_path.rglob("*.pt"))


def test_the_learning_rate_that_is_left_out_is_named(tmp_path, toy_work):
    done = train_here(
        toy_work / "data-bin",
        tmp_path / "save",
        lr=None,
        encoder_layers="40",
        encoder_embed_dim="16384",
    )
    refused(done, " GB ")  # what comes next
    assert "--lr 0.25" in done.stdout
    assert "--lr 1e-3" in done.stdout


def test_what_fairseq_says_of_mendable_errors_is_one_line():
    diverged, looking = FloatingPointError("gradients are Nan/Inf"), StopIteration()
    looking.__context__ = diverged
    assert "training diverged" in explain(diverged)
    assert "training diverged" in explain(looking)
    missing = ImportError("\n\nPlease install the fairscale package:\n\n  pip install fairscale")
    assert "pip install fairscale" in explain(missing)
    found = explain(
        AssertionError(
            "Optimizer does not match; please reset it (--reset-optimizer). FairseqAdam vs SGD"
        )
    )
    assert found.startswith("Optimizer is SGD, ")
    assert "FairseqAdam" in found
    for dead in (
        RuntimeError("[/pytorch/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:52917."),
        DistBackendError("NCCL error: remote process exited or there was a network error"),
        ProcessExitedException("process 1 terminated with signal SIGKILL", 1, 7, -9, "SIGKILL"),
    ):
        assert "another worker" in explain(dead)
    relayed = "\n-- Process 0 terminated:\nTraceback:\n  line\n"
    relayed += "fairseq_lxsr.errors.InputError: --lr -1; expected more\n"
    assert explain(RuntimeError(relayed)) == "--lr -1; expected more"
    assert "TorchAdam" in explain(ValueError("Unsupported optimizer: TorchAdam"))
    assert explain(AssertionError("of another kind")) is None
    both = "--finetune-from-model can not be set together with either --reset-optimizer"
    assert explain(ValueError(both)).startswith(both)


# -- schedules of fairseq, which say what they need by assertions and a division by zero
SCHEDULES = [
    (
        ("--lr-scheduler", "polynomial_decay"),
        "--total-num-update",
    ),
    (
        ("--lr-scheduler", "tri_stage"),
        "--lr-scheduler: please specify steps or phase_ratio",
    ),
    (
        ("--lr-scheduler", "tri_stage", "--phase-ratio", "(1,2,3)"),
        "--lr-scheduler: phase ratios must add up to 1",
    ),
    (("--lr-scheduler", "pass_through"), "--lr-scheduler: Pass-through schedule can only"),
    (
        ("--lr-scheduler", "triangular", "--max-lr", "1e-9"),
        "--lr-scheduler: max_lr must be more than lr",
    ),
    (
        ("--lr-scheduler", "cosine", "--warmup-updates", "9"),
        "--max-update 9 is too small for --lr-scheduler cosine",
    ),
    (
        ("--lr-scheduler", "reduce_lr_on_plateau", "--lr", "0.1,0.2"),
        "--lr-scheduler reduce_lr_on_plateau",
    ),
]


@pytest.mark.parametrize(
    ("flags", "expected"), SCHEDULES, ids=[" ".join(flags[1:]) for flags, _ in SCHEDULES]
)
def test_a_schedule_that_lacks_something_ends_in_one_line(tmp_path, toy_work, flags, expected):
    refused(
        train_here(
            toy_work / "data-bin", tmp_path / "save", *flags, max_update="9", warmup_updates=None
        ),
        expected,
    )


@pytest.mark.parametrize("method", ["build_generator", "eval_lm_dataloader"])
def test_programs_that_generate_text_are_refused(method):
    from fairseq_lxsr.training.lightweight.task import XlingSentTask

    with pytest.raises(InputError, match="--task xling_sent"):
        getattr(XlingSentTask, method)(None, [])
