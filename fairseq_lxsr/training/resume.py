"""May training go on from this checkpoint? Asked before fairseq tries, which would fail late or not
at all.
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
from fairseq_lxsr.options import REMOVED


@dataclass(frozen=True)
class NewRun:
    """The training that is to go on from a checkpoint."""

    task: str  # its --task
    vocab_size: int  # entries of its dictionary, <mask> among them
    task_state: Mapping[str, Any]  # what its task keeps in checkpoints
    weights: Mapping[str, Tensor]  # of its model, as they begin
    resumes: bool  # the optimizer goes on too, where its state is kept, so that exactly the same weights are needed
    options_without_shape: Mapping[
        str, Any
    ]  # options of the model that no weight shows, see `SentenceNetwork`
    same_place: bool = (
        False  # it goes on in the middle of the data, so that exactly the same data is needed
    )

    @classmethod
    def of(cls, task: Any, model: nn.Module, resumes: bool, same_place: bool) -> "NewRun":
        """Describe the training of a model by a task of fairseq."""
        networks = (module for module in model.modules() if isinstance(module, SentenceNetwork))
        options = {
            name: value
            for network in networks
            for name, value in network.options_without_shape.items()
        }
        state, vocab_size = task.state.state_dict, len(task.source_dictionary)
        return cls(
            task.cfg._name, vocab_size, state, model.state_dict(), resumes, options, same_place
        )


def check_resumable(path: Path, run: NewRun) -> None:
    """Refuse a checkpoint of another task, another dictionary, other languages, sizes or
    options.
    """
    state = read_checkpoint(path)
    trained_by = state["cfg"]["task"].get("_name") or state["cfg"]["task"].get("task")
    if trained_by != run.task:
        raise InputError(
            f"{path}: trained by --task {trained_by}, not {run.task}; choose another --save-dir"
        )
    _check_text(path, state, run)
    stored, own = state["task_state"].get(DATA_HASH), run.task_state.get(DATA_HASH)
    if run.same_place and stored not in (None, own):
        raise InputError(
            f"{path}: trained on other text than the files of train and valid have now; go on with the data it was "
            "trained on, or give --reset-dataloader to begin with this data, or another --save-dir"
        )
    _check_weights(path, state, run)
    if run.resumes:
        _check_removed(path, state["cfg"])
        _check_teacher(path, state["task_state"].get(TEACHER), run.task_state.get(TEACHER))


def _check_teacher(path: Path, stored: str | None, own: str | None) -> None:
    """Refuse a run in the space of another teacher, or in no teacher's, than the one that is
    resumed.
    """
    if stored != own:
        raise InputError(
            f"{path}: trained against {f'the vectors of teacher {stored}' if stored else 'no teacher'}, and this run "
            f"against {f'those of {own}' if own else 'none'}; choose another --save-dir"
        )


def check_layers(path: Path, model: Any) -> None:
    """Refuse a checkpoint with layers that a new model lacks, and the other way round.

    The model's `upgrade_state_dict` adds what may be missing.
    """
    stored = dict(read_checkpoint(path)["model"])
    model.upgrade_state_dict(stored)
    for name in sorted(stored.keys() ^ model.state_dict().keys()):
        raise InputError(
            f"{path}: trained with other layers, only {'it' if name in stored else 'the new model'} has {name}; give "
            "the options of its training (--arch, --encoder-layers, --gated), or another checkpoint"
        )


def refuse_replacing(save_dir: Path) -> None:
    """Refuse to begin in a folder with the checkpoints of another training, which the first ones
    would replace.
    """
    names = sorted(path.name for path in save_dir.glob("checkpoint*.pt"))
    if names:
        best = save_dir / "checkpoint_best.pt"
        good = best if best.name in names else newest_checkpoint(save_dir)
        raise InputError(
            f"{save_dir}: has {good.name if good else names[0]} of an earlier training and no checkpoint_last.pt, and "
            "this training would begin anew and replace it; choose another --save-dir"
            f"{f', or go on with --restore-file {good}' if good else ''}"
        )


def reached(path: Path, cfg: DictConfig) -> str | None:
    """Find the limit that a checkpoint has reached, an option with its value; None where there is
    more to train.

    fairseq would do one more update, and write its checkpoints again.
    """
    state, limits = read_checkpoint(path), cfg.optimization
    extra, history = state["extra_state"], state["optimizer_history"]
    counts = not cfg.checkpoint.reset_optimizer and state.get("last_optimizer_state") is not None
    updates = history[-1].get("num_updates", 0) if counts else 0
    next_epoch = (
        1 if cfg.checkpoint.reset_dataloader else extra.get("train_iterator", {}).get("epoch", 1)
    )
    hours = extra.get("previous_training_time", 0) / 3600
    if 0 < limits.max_update <= updates:
        return f"--max-update {limits.max_update}"
    if 0 < limits.max_epoch < next_epoch:
        return f"--max-epoch {limits.max_epoch}"
    if 0 < limits.stop_time_hours < hours:
        return f"--stop-time-hours {limits.stop_time_hours:g}"
    return None


def _check_text(path: Path, state: Mapping[str, Any], run: NewRun) -> None:
    entries = [
        len(value)
        for name, value in state["model"].items()
        if name.endswith(TOKEN_EMBEDDINGS) and value.dim()
    ]
    other = next((count for count in entries if count != run.vocab_size), None)
    stored, own = state["task_state"], run.task_state
    if other or stored.get(DICTIONARY_HASH, own[DICTIONARY_HASH]) != own[DICTIONARY_HASH]:
        sizes = (
            f"{other:,} entries; the data's has {run.vocab_size:,}" if other else "of the same size"
        )
        raise InputError(
            f"{path}: trained with another dictionary ({sizes}); use the data it was trained on, or another "
            f"{_instead(run)}"
        )
    if stored.get(LANGUAGES) != own.get(LANGUAGES):
        raise InputError(
            f"{path}: trained to translate into {stored.get(LANGUAGES)}, not {own.get(LANGUAGES)}; "
            "name the same languages, or another --save-dir"
        )


def _check_weights(path: Path, state: Mapping[str, Any], run: NewRun) -> None:
    before, now = (
        {name: tuple(value.shape) for name, value in each.items()}
        for each in (state["model"], run.weights)
    )
    shared = sorted(before.keys() & now.keys())
    for name in shared:
        if before[name] != now[name]:
            raise InputError(
                f"{path}: trained with other sizes, {name} is {before[name]} and now {now[name]}; give the same "
                f"options, or another {_instead(run)}"
            )
    if run.resumes or any(".layers." in name for name in shared):
        _check_options(path, state["cfg"]["model"], run.options_without_shape)
    if (
        run.resumes
        and state.get("last_optimizer_state") is not None
        and before.keys() != now.keys()
    ):
        raise InputError(
            f"{path}: trained with other losses or layers, only one of the two has {min(before.keys() ^ now.keys())}; "
            "give the same options, or begin with --finetune-from-model in another --save-dir"
        )


def _check_options(path: Path, stored: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if stored.get(name, value) != value:  # older checkpoints lack newer options
            raise InputError(
                f"{path}: trained with --{name.replace('_', '-')} {shown(stored[name])}, now {value}, with which its "
                "weights mean something else; give the same options, or another checkpoint"
            )


def _check_removed(path: Path, cfg: Mapping[str, Any]) -> None:
    for name, value in REMOVED.items():
        key = name.replace("-", "_")
        found = next(
            (cfg[group][key] for group in ("task", "model", "criterion") if key in cfg[group]),
            value,
        )
        if found != value:
            raise InputError(
                f"{path}: trained with --{name} {shown(found)}, an option that is gone and is always {value} now; "
                "begin with --finetune-from-model in another --save-dir"
            )


def _instead(run: NewRun) -> str:
    return "--save-dir" if run.resumes else "checkpoint"
