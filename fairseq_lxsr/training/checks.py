"""Checks of the options of fairseq-train before anything is built; the ranges of fairseq's own
options are here.
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
    NOT_NEGATIVE,
    Range,
    at_least,
    below,
    between,
    check_fields,
    positive,
)

logger = logging.getLogger(__name__)

# models and criterion of each task; sub-classes of the models go with it too
OF_TASK = {
    "xling_sent": (("lxsr",), "xling_sent_loss"),
    "xling_translation": (("laser", "tlaser"), "xling_translation_loss"),
    "sent_context": (("context_transformer",), "sent_context_loss"),
}

COUNT, SIZE = at_least(0), at_least(1)
OR_OFF = at_least(-1)  # -1 means never, or all
ONE_RATE = (
    "inverse_sqrt",
    "cosine",
    "tri_stage",
    "triangular",
    "reduce_lr_on_plateau",
)  # schedules of one --lr
LEARNING_RATE = Range(0, 1_000)
FAIRSEQ_LR = 0.25  # where --lr is left out


def _each(names: str, allowed: Range) -> dict[str, Range]:
    return dict.fromkeys(names.split(), allowed)


RANGES: Mapping[str, Mapping[str, Range]] = {
    "common": {
        **_each(
            "seed empty_cache_freq amp_batch_retries", COUNT
        ),  # fairseq adds to the seed: less than numpy's
        **_each(
            "log_interval fp16_init_scale fp16_scale_window amp_init_scale amp_scale_window", SIZE
        ),
        **_each("min_loss_scale threshold_loss_scale", positive()),
        "fp16_scale_tolerance": between(0, 1),
        "model_parallel_size": at_least(1, 1),
    },
    "dataset": {
        **_each(
            "max_tokens batch_size max_tokens_valid batch_size_valid required_batch_size_multiple",
            SIZE,
        ),
        **_each("validate_interval num_shards", SIZE),
        **_each(
            "data_buffer_size validate_interval_updates validate_after_updates max_valid_steps",
            COUNT,
        ),
        **_each("fixed_validation_seed curriculum shard_id", COUNT),
        "num_workers": at_least(0, 1_000),
    },
    "optimization": {
        **_each("max_epoch max_update", COUNT),
        **_each("stop_time_hours clip_norm", NOT_NEGATIVE),
        "update_freq": SIZE,
        "lr": LEARNING_RATE,
        "stop_min_lr": Range(-1),
    },
    "checkpoint": {
        "save_interval": SIZE,
        "save_interval_updates": COUNT,
        **_each("keep_interval_updates keep_interval_updates_pattern keep_last_epochs", OR_OFF),
        **_each("keep_best_checkpoints patience", OR_OFF),
    },
    "ema": {"ema_decay": below(1), "ema_start_update": COUNT, "ema_update_freq": SIZE},
    "optimizer": {
        "weight_decay": between(0, 1_000),
        "adam_eps": Range(1e-20, 1),
        "momentum": below(1),
    },
    "lr_scheduler": {
        **_each(
            "warmup_updates force_anneal lr_patience warmup_steps hold_steps decay_steps", COUNT
        ),
        **_each("end_learning_rate max_lr", LEARNING_RATE),
        **_each("power lr_threshold init_lr_scale final_lr_scale", NOT_NEGATIVE),
        "warmup_init_lr": Range(-1, LEARNING_RATE.most),
        "total_num_update": positive(),
        "lr_shrink": between(0, 1),
        "t_mult": Range(1),
    },
}


def check_run(task: DictConfig) -> None:
    """Check all options of a training run, or only those of the task where a trained model is
    loaded.
    """
    everything = task._get_parent() if isinstance(task, DictConfig) else None
    # fairseq-generate and fairseq-validate name a model by its path, and have a default of fairseq
    # as --arch
    if (
        isinstance(everything, DictConfig)
        and everything.get("model") is not None
        and not everything.common_eval.path
    ):
        check_options(everything)
    else:
        check_group(task, TASK_DATACLASS_REGISTRY.get(task._name), "task")


def check_options(cfg: DictConfig) -> None:
    """Check all groups of options of a training run, after fairseq has filled in the defaults."""
    _check_together(cfg)
    for group, ranges in RANGES.items():
        for name, allowed in ranges.items():
            value = getattr(cfg[group], name, None)
            if isinstance(value, ListConfig) and not len(value):
                raise InputError(f"{spelling(group, name)} is empty; expected {allowed}")
            for one in value if isinstance(value, ListConfig) else [value]:
                if one is not None:
                    allowed.check(spelling(group, name), one)
    registries = {
        "task": TASK_DATACLASS_REGISTRY,
        "model": MODEL_DATACLASS_REGISTRY,
        "criterion": CRITERION_DATACLASS_REGISTRY,
    }
    for group, registry in registries.items():
        check_group(cfg[group], registry.get(cfg[group]._name), group)
    if (
        cfg.task._name in OF_TASK and cfg.dataset.train_subset != "train"
    ):  # what shuffles, drops and samples is by name
        option = spelling("dataset", "train_subset")
        raise InputError(
            f"{option} {cfg.dataset.train_subset}; expected train, and the text under that name"
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


def check_group(values: Any, kind: type | None, group: str) -> None:
    """Check one group of options by the ranges that its dataclass declares; groups without a
    dataclass pass.
    """
    if kind is not None:
        check_fields(values, kind, lambda name: spelling(group, name), optional=True)


def spelling(group: str, name: str) -> str:
    """Spell an option as the user writes it: --batch-size, or dataset.batch_size for
    fairseq-hydra-train.
    """
    return f"{group}.{name}" if HydraConfig.initialized() else f"--{name.replace('_', '-')}"


def _check_together(cfg: DictConfig) -> None:
    """Refuse models and criterions of fairseq or of another of our tasks, which would fail during
    training.
    """
    task = cfg.task._name
    if task not in OF_TASK:
        return
    if not getattr(cfg.optimizer, "_name", None):
        raise InputError("--optimizer is missing; expected for example --optimizer adam --lr 1e-3")
    models, criterion = OF_TASK[task]
    known = tuple(MODEL_REGISTRY[model] for model in models if model in MODEL_REGISTRY)
    fitting = [
        model
        for model, kind in MODEL_REGISTRY.items()
        if isinstance(kind, type) and issubclass(kind, known)
    ]
    archs = [arch for model in fitting for arch in ARCH_MODEL_INV_REGISTRY.get(model, ())]
    for option, name, expected, registry in (
        ("arch", cfg.model._name, archs, ARCH_MODEL_REGISTRY),
        ("criterion", cfg.criterion._name, [criterion], CRITERION_REGISTRY),
    ):
        package = getattr(registry.get(name), "__module__", "").partition(".")[0]
        if name not in expected and package in (
            "fairseq",
            "fairseq_lxsr",
        ):  # other plugins may support this task
            default = "; it is fairseq's default" if name == "cross_entropy" else ""
            raise InputError(
                f"--{option} {name} with --task {task}; expected {', '.join(expected)}{default}"
            )


def _check_precision(common: DictConfig) -> None:
    """Refuse precisions that need a GPU or a TPU where there is none.

    fairseq trains in bfloat16 only on TPUs and in float16 on GPUs; the memory-efficient forms also
    work on a CPU.
    """
    no_gpu = common.cpu or not torch.cuda.is_available()
    half = (common.fp16 and not common.memory_efficient_fp16) or (
        common.bf16 and not common.memory_efficient_bf16
    )
    half = half or common.amp
    no_tpu = common.tpu and importlib.util.find_spec("torch_xla") is None
    option = next((f"--{name}" for name in ("fp16", "bf16", "amp") if common[name]), "--tpu")
    if no_gpu and (half or no_tpu):
        raise InputError(f"{option} without a GPU; on a CPU expected --cpu-precision bfloat16")
    if no_tpu:
        raise InputError(
            f"{option} is for TPUs in fairseq, and there is none; on a GPU expected --fp16 or --amp"
        )


def _check_schedule(cfg: DictConfig) -> None:
    """Check schedules that divide by a number of updates, and those that take only one learning
    rate.
    """
    name = cfg.lr_scheduler._name
    if name == "inverse_sqrt" and not cfg.lr_scheduler.warmup_updates:
        option = spelling("lr_scheduler", "warmup_updates")
        raise InputError(f"{option} 0 with --lr-scheduler inverse_sqrt; expected {SIZE}")
    most, warm_up = cfg.optimization.max_update, getattr(cfg.lr_scheduler, "warmup_updates", 0)
    if name == "cosine" and cfg.lr_scheduler.lr_period_updates <= 0 and most <= warm_up:
        option = spelling("optimization", "max_update")
        raise InputError(
            f"{option} {most} with --lr-scheduler cosine and {warm_up} updates of warm-up; expected more than "
            f"{warm_up}, or --lr-period-updates"
        )
    if list(cfg.optimization.lr) == [FAIRSEQ_LR] and "adam" in cfg.optimizer._name:
        option = spelling("optimization", "lr")
        logger.warning(
            f"{option} {FAIRSEQ_LR}, fairseq's default, is too big for Adam; give for example {option} 1e-3"
        )
    if len(cfg.optimization.lr) > 1 and name in ONE_RATE:
        rates = ", ".join(f"{rate:g}" for rate in cfg.optimization.lr)
        raise InputError(
            f"{spelling('optimization', 'lr')} {rates} with --lr-scheduler {name}; expected one, or fixed"
        )


def _check_literal(
    group: str, name: str, value: Any, fits: Callable[[Any], bool], example: str
) -> None:
    """Check an option that fairseq evaluates as Python."""
    try:
        good = fits(ast.literal_eval(value) if isinstance(value, str) else value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        good = False
    if not good:
        raise InputError(f"{spelling(group, name)} {shown(value)}; expected for example {example}")


def _are_betas(value: Any) -> bool:
    return len(value) == 2 and all(beta in below(1) for beta in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)
