"""Checks the fairseq-train options before anything is built.

Options of this package declare their own ranges. `RANGES` defines the ranges of fairseq's options.
"""

import ast
import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models import (
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
)
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.options import (
    NON_NEGATIVE,
    Range,
    at_least,
    below,
    between,
    check_fields,
    positive,
)

logger = logging.getLogger(__name__)

# Models and criterion for each task. Subclasses of the models are allowed too.
MODELS_AND_CRITERION = {
    "xling_sent": (("lxsr",), "xling_sent_loss"),
    "xling_translation": (("laser", "tlaser"), "xling_translation_loss"),
    "sent_context": (("context_transformer",), "sent_context_loss"),
}

COUNT = at_least(0)
SIZE = at_least(1)
# For some options, -1 means "never" or "all".
COUNT_OR_OFF = at_least(-1)
LEARNING_RATE = Range(0, 1_000)
# fairseq's default for --lr.
FAIRSEQ_LR = 0.25
# Schedules that support only one --lr value.
SINGLE_RATE_SCHEDULES = (
    "inverse_sqrt",
    "cosine",
    "tri_stage",
    "triangular",
    "reduce_lr_on_plateau",
)


def _same_range(names: str, allowed: Range) -> dict[str, Range]:
    return dict.fromkeys(names.split(), allowed)


RANGES: Mapping[str, Mapping[str, Range]] = {
    "common": {
        # fairseq adds numbers to the seed, so the limit is lower than numpy's.
        **_same_range("seed empty_cache_freq amp_batch_retries", COUNT),
        **_same_range(
            "log_interval fp16_init_scale fp16_scale_window amp_init_scale amp_scale_window", SIZE
        ),
        **_same_range("min_loss_scale threshold_loss_scale", positive()),
        "fp16_scale_tolerance": between(0, 1),
        "model_parallel_size": at_least(1, 1),
    },
    "dataset": {
        **_same_range(
            "max_tokens batch_size max_tokens_valid batch_size_valid required_batch_size_multiple",
            SIZE,
        ),
        **_same_range("validate_interval num_shards", SIZE),
        **_same_range(
            "data_buffer_size validate_interval_updates validate_after_updates max_valid_steps",
            COUNT,
        ),
        **_same_range("fixed_validation_seed curriculum shard_id", COUNT),
        "num_workers": at_least(0, 1_000),
    },
    "optimization": {
        **_same_range("max_epoch max_update", COUNT),
        **_same_range("stop_time_hours clip_norm", NON_NEGATIVE),
        "update_freq": SIZE,
        "lr": LEARNING_RATE,
        "stop_min_lr": Range(-1),
    },
    "checkpoint": {
        "save_interval": SIZE,
        "save_interval_updates": COUNT,
        **_same_range(
            "keep_interval_updates keep_interval_updates_pattern keep_last_epochs", COUNT_OR_OFF
        ),
        **_same_range("keep_best_checkpoints patience", COUNT_OR_OFF),
    },
    "ema": {"ema_decay": below(1), "ema_start_update": COUNT, "ema_update_freq": SIZE},
    "optimizer": {
        **_same_range("weight_decay embed_lr_scale", between(0, 1_000)),
        "adam_eps": Range(1e-20, 1),
        "momentum": below(1),
    },
    "lr_scheduler": {
        **_same_range(
            "warmup_updates force_anneal lr_patience warmup_steps hold_steps decay_steps", COUNT
        ),
        **_same_range("end_learning_rate max_lr", LEARNING_RATE),
        **_same_range("power lr_threshold init_lr_scale final_lr_scale", NON_NEGATIVE),
        "warmup_init_lr": Range(-1, LEARNING_RATE.most),
        "total_num_update": positive(),
        "lr_shrink": between(0, 1),
        "t_mult": Range(1),
    },
}


def check_run(task: DictConfig) -> None:
    """Check all options of a training run, or only the task options if a trained model is loaded.

    Args:
        task: task options, which are part of the run's options.

    Raises:
        InputError: if an option is out of range, or is incompatible with another option.
    """
    if _is_training_run(task):
        check_options(task._get_parent())  # type: ignore[arg-type]
    else:
        check_group(task, TASK_DATACLASS_REGISTRY.get(task._name), "task")


def _is_training_run(task: DictConfig) -> bool:
    if not isinstance(task, DictConfig):
        return False
    options = task._get_parent()
    if not isinstance(options, DictConfig) or options.get("model") is None:
        return False
    # fairseq-generate and fairseq-validate load a trained model; their --arch has fairseq's
    # default.
    return not options.common_eval.path


def check_options(cfg: DictConfig) -> None:
    """Check all options of a training run after fairseq has filled in the defaults.

    Raises:
        InputError: if an option is out of range, or is incompatible with another option.
    """
    _check_combination(cfg)
    _check_ranges(cfg)
    registries = {
        "task": TASK_DATACLASS_REGISTRY,
        "model": MODEL_DATACLASS_REGISTRY,
        "criterion": CRITERION_DATACLASS_REGISTRY,
    }
    for group, registry in registries.items():
        check_group(cfg[group], registry.get(cfg[group]._name), group)
    # The tasks of this package shuffle, drop and sample pairs only in the split named "train".
    if cfg.task._name in MODELS_AND_CRITERION and cfg.dataset.train_subset != "train":
        option = spelling("dataset", "train_subset")
        raise InputError(
            f"{option} {cfg.dataset.train_subset} is not supported; name the training split train"
        )
    _check_precision(cfg.common)
    _check_schedule(cfg)
    _check_literal(
        "optimizer",
        "adam_betas",
        getattr(cfg.optimizer, "adam_betas", (0, 0)),
        _are_betas,
        "(0.9, 0.999)",
    )
    _check_literal(
        "checkpoint",
        "optimizer_overrides",
        cfg.checkpoint.optimizer_overrides,
        _is_mapping,
        "{'adam_eps': 1e-6}",
    )


def _check_ranges(cfg: DictConfig) -> None:
    """Check fairseq's own options, including each value of a list."""
    for group, ranges in RANGES.items():
        for name, allowed in ranges.items():
            value = getattr(cfg[group], name, None)
            values = value if isinstance(value, ListConfig) else [value]
            if not len(values):
                raise InputError(f"{spelling(group, name)} is empty; expected {allowed}")
            for item in values:
                if item is not None:
                    allowed.check(spelling(group, name), item)


def check_group(values: Any, kind: type | None, group: str) -> None:
    """Check options against the ranges declared in the dataclass `kind`, unless it is None."""
    if kind is not None:
        check_fields(values, kind, lambda name: spelling(group, name), optional=True)


def spelling(group: str, name: str) -> str:
    """Return the name of an option as the user writes it.

    An example is --batch-size, or dataset.batch_size with fairseq-hydra-train.
    """
    if HydraConfig.initialized():
        return f"{group}.{name}"
    return f"--{name.replace('_', '-')}"


def _check_combination(cfg: DictConfig) -> None:
    """Reject models and criterions that do not support the task and would fail during training.

    Models and criterions from other plugins are not checked, because they may support the task.
    """
    task = cfg.task._name
    if task not in MODELS_AND_CRITERION:
        return
    if not getattr(cfg.optimizer, "_name", None):
        raise InputError("--optimizer is required, for example: --optimizer adam --lr 1e-3")
    models, criterion = MODELS_AND_CRITERION[task]
    _check_part(cfg, "--arch", cfg.model._name, _archs_of(models), ARCH_MODEL_REGISTRY)
    _check_part(cfg, "--criterion", cfg.criterion._name, [criterion], CRITERION_REGISTRY)


def _check_part(
    cfg: DictConfig,
    option: str,
    name: str,
    supported: list[str],
    registry: Mapping[str, Any],
) -> None:
    package = getattr(registry.get(name), "__module__", "").partition(".")[0]
    if name in supported or package not in ("fairseq", "fairseq_lxsr"):
        return
    message = (
        f"{option} {name} does not support --task {cfg.task._name}; use {', '.join(supported)}"
    )
    if name == "cross_entropy":
        message += f" ({name} is fairseq's default)"
    raise InputError(message)


def _archs_of(models: tuple[str, ...]) -> list[str]:
    """Return the --arch values that select these models or their subclasses."""
    classes = tuple(MODEL_REGISTRY[model] for model in models if model in MODEL_REGISTRY)
    archs: list[str] = []
    for model, model_class in MODEL_REGISTRY.items():
        if isinstance(model_class, type) and issubclass(model_class, classes):
            archs += ARCH_MODEL_INV_REGISTRY.get(model, ())
    return archs


def _check_precision(common: DictConfig) -> None:
    """Reject precisions that require a GPU or TPU if this machine has none.

    fairseq trains in bfloat16 only on TPUs, and in float16 only on GPUs; the memory-efficient
    variants also work on a CPU.
    """
    has_gpu = torch.cuda.is_available() and not common.cpu
    lacks_tpu = common.tpu and importlib.util.find_spec("torch_xla") is None
    option = "--tpu"
    for name in ("amp", "bf16", "fp16"):
        if common[name]:
            option = f"--{name}"
    if not has_gpu and (_needs_gpu(common) or lacks_tpu):
        raise InputError(f"{option} requires a GPU; on a CPU, use --cpu-precision bfloat16")
    if lacks_tpu:
        raise InputError(f"{option} requires a TPU in fairseq; on a GPU, use --fp16 or --amp")


def _needs_gpu(common: DictConfig) -> bool:
    if common.fp16 and not common.memory_efficient_fp16:
        return True
    if common.bf16 and not common.memory_efficient_bf16:
        return True
    return common.amp


def _check_schedule(cfg: DictConfig) -> None:
    """Check the learning rate schedule.

    Some schedules divide by a number of updates, and some support only one learning rate.
    """
    name = cfg.lr_scheduler._name
    rates = list(cfg.optimization.lr)
    if name == "inverse_sqrt" and not cfg.lr_scheduler.warmup_updates:
        option = spelling("lr_scheduler", "warmup_updates")
        raise InputError(f"{option} is 0; --lr-scheduler inverse_sqrt expects {SIZE}")
    if name == "cosine":
        _check_cosine_period(cfg)
    option = spelling("optimization", "lr")
    if rates == [FAIRSEQ_LR] and "adam" in cfg.optimizer._name:
        logger.warning(
            f"{option} {FAIRSEQ_LR}, fairseq's default, is too high for Adam; try {option} 1e-3"
        )
    if len(rates) > 1 and name in SINGLE_RATE_SCHEDULES:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise InputError(
            f"{option} {listed}: --lr-scheduler {name} supports only one learning rate; use a "
            "single rate, or --lr-scheduler fixed"
        )


def _check_cosine_period(cfg: DictConfig) -> None:
    max_update = cfg.optimization.max_update
    warmup = getattr(cfg.lr_scheduler, "warmup_updates", 0)
    if cfg.lr_scheduler.lr_period_updates <= 0 and max_update <= warmup:
        option = spelling("optimization", "max_update")
        raise InputError(
            f"{option} {max_update} is too small for --lr-scheduler cosine with {warmup} warmup "
            f"updates; use more than {warmup}, or set --lr-period-updates"
        )


def _check_literal(
    group: str, name: str, value: Any, fits: Callable[[Any], bool], example: str
) -> None:
    """Check an option that fairseq evaluates as a Python expression."""
    given = value
    try:
        if isinstance(value, str):
            value = ast.literal_eval(value)
        is_valid = fits(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"{spelling(group, name)} {shown(given)} is invalid; expected a value such as {example}"
        )


def _are_betas(value: Any) -> bool:
    return len(value) == 2 and all(beta in below(1) for beta in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)
