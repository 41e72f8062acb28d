"""Checks whether training can continue from a checkpoint.

Without these checks, fairseq would fail late, or continue with weights that have another meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_lxsr.encoder.checkpoint import (
    DATA_HASH,
    DICTIONARY_HASH,
    LANGUAGES,
    TOKEN_EMBEDDINGS,
    newest_checkpoint,
    read_checkpoint,
)
from fairseq_lxsr.encoder.model_folder import TEACHER
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.modules import SentenceNetwork


@dataclass(frozen=True)
class NewRun:
    """A training run that is about to continue from a checkpoint.

    Attributes:
        task: value of --task.
        vocab_size: number of dictionary entries, including <mask>.
        task_state: state that the task stores in checkpoints.
        weights: weights of the new model.
        resumes: whether the optimizer continues as well, if the checkpoint contains its state. In
            this case, the checkpoint must contain exactly the weights of the model.
        options_without_shape: model options that do not affect the shape of any weight; see
            `SentenceNetwork`.
        same_place: whether training continues in the middle of the data, which then must not have
            changed.
    """

    task: str
    vocab_size: int
    task_state: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    resumes: bool
    options_without_shape: Mapping[str, Any]
    same_place: bool = False

    @classmethod
    def of(cls, task: Any, model: nn.Module, resumes: bool, same_place: bool) -> "NewRun":
        """Create the description of a new run from its fairseq task and model."""
        options: dict[str, Any] = {}
        for module in model.modules():
            if isinstance(module, SentenceNetwork):
                options |= module.options_without_shape
        return cls(
            task.cfg._name,
            len(task.source_dictionary),
            task.state.state_dict,
            model.state_dict(),
            resumes,
            options,
            same_place,
        )


def check_resumable(path: Path, run: NewRun) -> None:
    """Check that a checkpoint is compatible with the run that is about to continue from it.

    Args:
        path: path of the checkpoint.
        run: the run that is about to continue.

    Raises:
        InputError: if the checkpoint has a different task, dictionary, language, size or option, or
            different data although the run continues in the middle of the data.
    """
    state = read_checkpoint(path)
    task = state["cfg"]["task"].get("_name") or state["cfg"]["task"].get("task")
    if task != run.task:
        raise InputError(
            f"{path}: trained by --task {task}, not {run.task}; choose another --save-dir"
        )
    _check_dictionary(path, state, run)
    _check_languages(path, state["task_state"], run.task_state)
    if run.same_place:
        _check_data(path, state["task_state"], run.task_state)
    _check_weights(path, state, run)
    if run.resumes:
        _check_teacher(path, state["task_state"].get(TEACHER), run.task_state.get(TEACHER))


def check_layers(path: Path, model: Any) -> None:
    """Check that a checkpoint has the same layers as a new model.

    The model's `upgrade_state_dict` adds weights that a checkpoint may lack.

    Raises:
        InputError: if the layers differ.
    """
    stored = dict(read_checkpoint(path)["model"])
    model.upgrade_state_dict(stored)
    differing = sorted(stored.keys() ^ model.state_dict().keys())
    if differing:
        name = differing[0]
        owner = "the checkpoint" if name in stored else "the new model"
        raise InputError(
            f"{path}: trained with different layers, because only {owner} has {name}; use the "
            "options of that training (--arch, --encoder-layers, --gated), or another checkpoint"
        )


def refuse_replacing(save_dir: Path) -> None:
    """Raise `InputError` if checkpoints of another run in the folder would be overwritten."""
    names = sorted(path.name for path in save_dir.glob("checkpoint*.pt"))
    if not names:
        return
    best = save_dir / "checkpoint_best.pt"
    good: Path | None = best
    if best.name not in names:
        good = newest_checkpoint(save_dir)
    name = good.name if good else names[0]
    message = (
        f"{save_dir} contains {name} from an earlier run, which this run would replace, but no "
        "checkpoint_last.pt; choose another --save-dir"
    )
    if good:
        message += f", or continue with --restore-file {good}"
    raise InputError(message)


def finished_limit(path: Path, cfg: DictConfig) -> str | None:
    """Return the training limit that a checkpoint has reached, such as `--max-update 100`.

    If a finished run is not stopped, fairseq does one more update, and writes the checkpoints
    again.

    Args:
        path: path of the checkpoint.
        cfg: options of the run.

    Returns:
        The option and its value, or None if training is not finished.
    """
    state = read_checkpoint(path)
    limits = cfg.optimization
    has_optimizer = state.get("last_optimizer_state") is not None
    updates = 0
    if has_optimizer and not cfg.checkpoint.reset_optimizer:
        updates = state["optimizer_history"][-1].get("num_updates", 0)
    next_epoch = 1
    if not cfg.checkpoint.reset_dataloader:
        next_epoch = state["extra_state"].get("train_iterator", {}).get("epoch", 1)
    hours = state["extra_state"].get("previous_training_time", 0) / 3600
    if 0 < limits.max_update <= updates:
        return f"--max-update {limits.max_update}"
    if 0 < limits.max_epoch < next_epoch:
        return f"--max-epoch {limits.max_epoch}"
    if 0 < limits.stop_time_hours < hours:
        return f"--stop-time-hours {limits.stop_time_hours:g}"
    return None


def _check_dictionary(path: Path, state: Mapping[str, Any], run: NewRun) -> None:
    new_hash = run.task_state[DICTIONARY_HASH]
    stored_hash = state["task_state"].get(DICTIONARY_HASH, new_hash)
    stored_size = run.vocab_size
    for name, value in state["model"].items():
        if name.endswith(TOKEN_EMBEDDINGS) and value.dim() and len(value) != run.vocab_size:
            stored_size = len(value)
            break
    if stored_size != run.vocab_size:
        difference = f"{stored_size:,} entries; the data has {run.vocab_size:,}"
    elif stored_hash != new_hash:
        difference = "of the same size"
    else:
        return
    raise InputError(
        f"{path}: trained with a different dictionary ({difference}); use the original data, "
        f"or another {_option_to_change(run)}"
    )


def _check_languages(path: Path, stored: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if stored.get(LANGUAGES) != new.get(LANGUAGES):
        raise InputError(
            f"{path}: trained to translate into {stored.get(LANGUAGES)}, not {new.get(LANGUAGES)}; "
            "use the same languages, or another --save-dir"
        )


def _check_data(path: Path, stored: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if stored.get(DATA_HASH) != new.get(DATA_HASH):
        raise InputError(
            f"{path}: the train and valid files have changed since it was trained; restore them, "
            "use --reset-dataloader to start over with the new data, or use another --save-dir"
        )


def _check_weights(path: Path, state: Mapping[str, Any], run: NewRun) -> None:
    stored = state["model"]
    shared = sorted(stored.keys() & run.weights.keys())
    for name in shared:
        stored_shape = tuple(stored[name].shape)
        new_shape = tuple(run.weights[name].shape)
        if stored_shape != new_shape:
            raise InputError(
                f"{path}: trained with different sizes: {name} has shape {stored_shape}, but "
                f"{new_shape} in this run; use the same options, or another "
                f"{_option_to_change(run)}"
            )
    # A model without layers can initialize any other model, regardless of these options.
    if run.resumes or any(".layers." in name for name in shared):
        _check_options(path, state["cfg"]["model"], run.options_without_shape)
    differing = stored.keys() ^ run.weights.keys()
    has_optimizer = state.get("last_optimizer_state") is not None
    if run.resumes and has_optimizer and differing:
        raise InputError(
            f"{path}: trained with different losses or layers, because only one of the two models "
            f"has {min(differing)}; use the same options, or start with --finetune-from-model in "
            "another --save-dir"
        )


def _check_options(path: Path, stored: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        # A checkpoint of an architecture without this option was trained with its default.
        if stored.get(name, value) != value:
            raise InputError(
                f"{path}: trained with --{name.replace('_', '-')} {shown(stored[name])}, now "
                f"{value}, which changes the meaning of the weights; use the same options, or "
                "another checkpoint"
            )


def _check_teacher(path: Path, stored: str | None, new: str | None) -> None:
    """Refuse to resume with another teacher, because its embeddings are not comparable."""
    if stored != new:
        raise InputError(
            f"{path}: trained against {_describe_teacher(stored)}, but this run uses "
            f"{_describe_teacher(new)}; choose another --save-dir"
        )


def _describe_teacher(model_id: str | None) -> str:
    return f"the embeddings of teacher {model_id}" if model_id else "no teacher"


def _option_to_change(run: NewRun) -> str:
    return "--save-dir" if run.resumes else "checkpoint"
