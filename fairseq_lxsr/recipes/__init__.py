"""Training recipes: YAML files in this folder that set the fields of `Recipe`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.options import (
    at_least,
    below,
    check_fields,
    limited,
    read_yaml_config,
)
from fairseq_lxsr.text.data_folder import count_pairs, split_shards

FOLDER = Path(__file__).parent
# Both options set the training length, so setting one of them replaces both.
LENGTH = {"max-update", "max-epoch"}
ALIASES = {"max-sentences": "batch-size"}
# Number of times to validate and save, if the recipe determines the training length.
VALIDATIONS = 10

Option = bool | int | float | str
Value = TypeVar("Value")
# The words that follow an option on the command line; empty for a flag.
Words = list[str]


@dataclass(frozen=True)
class Recipe:
    """A training recipe, read from a YAML file.

    Attributes:
        description: one-line summary.
        source: the paper and its equation or table, or the experiment that produced the result.
        extends: name of a recipe to inherit from; options given here override it.
        finetunes: name of the recipe whose checkpoint this recipe must start from.
        warmup: fraction of updates used for warmup, with --lr-scheduler polynomial_decay or fixed.
        options: fairseq-train options without the leading dashes; true for a flag, false to remove
            an inherited option.
        updates: maps a number of pairs to a number of updates; used unless an option sets the
            training length. Values are interpolated, and constant outside the given range. Training
            then validates and saves `VALIDATIONS` times.
    """

    description: str = ""
    source: str = ""
    extends: str = ""
    finetunes: str = ""
    warmup: float | None = limited(None, below(1))
    options: Mapping[str, Option] = field(default_factory=dict)
    updates: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self):
        check_fields(self)


def names() -> list[str]:
    """Return the sorted names of the recipes.

    Files whose names begin with `_` only contain options shared by several recipes.
    """
    return sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))


def read_recipe(name: str) -> Recipe:
    """Read a recipe, including all options that it inherits.

        read_recipe("best").options["lr"]  # 0.02

    Raises:
        InputError: if no recipe has this name.
    """
    if name not in names():
        raise InputError(
            f"unknown --recipe {shown(name)}; choose from {', '.join(names())} (see `lxsr recipes`)"
        )
    return _read(name)


def _read(name: str) -> Recipe:
    recipe = read_yaml_config(FOLDER / f"{name}.yaml", Recipe)
    if not recipe.extends:
        return recipe
    base = _read(recipe.extends)
    warmup = base.warmup if recipe.warmup is None else recipe.warmup
    updates = recipe.updates or base.updates
    if LENGTH & recipe.options.keys():
        updates = {}
    return replace(
        recipe, warmup=warmup, options=override(base.options, recipe.options), updates=updates
    )


def override(options: Mapping[str, Value], changes: Mapping[str, Value]) -> dict[str, Value]:
    """Return `options`, updated with the options in `changes`.

    If `changes` sets the training length, both options that set it in `options` are removed.
    """
    merged = dict(options)
    if LENGTH & changes.keys():
        for name in LENGTH:
            merged.pop(name, None)
    return merged | dict(changes)


def table() -> str:
    """Return a table of all recipes with their descriptions, one per line."""
    width = max(map(len, names()))
    return "\n".join(f"{name:{width}}  {_read(name).description}" for name in names())


def train_command(recipe: Recipe, data: str, user_options: Sequence[str]) -> list[str]:
    """Return the fairseq-train arguments for a recipe.

        train_command(read_recipe("best"), "data-bin", ["--lr", "0.01"])

    Args:
        recipe: the recipe.
        data: the data folder, or several shards joined by ':'.
        user_options: fairseq-train options that override the recipe. `--no-X` removes `--X` if it
            comes from the recipe, but not if it comes from the user.

    Raises:
        InputError: if the training length cannot be computed from the options.
    """
    given = _parse(user_options)
    options = _merge(recipe, given)
    states_length = {"max-epoch", "no-max-epoch", "no-max-update"} & given.keys()
    if recipe.updates and not states_length:
        options = _with_defaults(options, _length_by_pairs(options, recipe, data))
    options = _with_defaults(options, _schedule(options, recipe.warmup or 0, data))
    command = [data, "--user-dir", str(PACKAGE)]
    for name, words in options.items():
        command += [f"--{name}", *words]
    return command


def _merge(recipe: Recipe, given: Mapping[str, Words]) -> dict[str, Words]:
    """Return the options of a recipe, overridden by the user's options."""
    base = {name: _words(value) for name, value in recipe.options.items() if value is not False}
    removed = [name for name in base if f"no-{name}" in given]
    added = dict(given)
    for name in removed:
        del base[name]
        del added[f"no-{name}"]
    return override(base, added)


def _with_defaults(options: dict[str, Words], defaults: dict[str, Words]) -> dict[str, Words]:
    """Return `options`, followed by the defaults for options that are not set."""
    return options | {name: words for name, words in defaults.items() if name not in options}


def _words(value: Option) -> Words:
    return [] if value is True else [str(value)]


def _parse(user_options: Sequence[str]) -> dict[str, Words]:
    """Map options to the words after them. If an option is repeated, the last occurrence counts."""
    options: dict[str, Words] = {}
    words: Words | None = None
    for word in user_options:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            words = [value] if equals else []
            options[ALIASES.get(name, name)] = words
        elif words is not None:
            words.append(word)
        else:
            raise InputError(
                f"unexpected {shown(word)} after the data folder; only options may follow, such as "
                "--lr 0.001"
            )
    return options


def _schedule(options: dict[str, Words], warmup: float, data: str) -> dict[str, Words]:
    """Return the options for a learning rate schedule that depends on the number of updates.

    The rate rises linearly during the warmup fraction of the updates. Then it falls linearly to
    zero at the last update (polynomial_decay), or stays (fixed).
    """
    scheduler = " ".join(options.get("lr-scheduler", []))
    if scheduler == "fixed" and warmup and "warmup-updates" not in options:
        return {"warmup-updates": [str(int(warmup * _count_updates(options, data)))]}
    if scheduler != "polynomial_decay":
        return {}
    if "total-num-update" in options:
        total = _number(options, "total-num-update")
    else:
        total = _count_updates(options, data)
    return {"total-num-update": [str(total)], "warmup-updates": [str(int(warmup * total))]}


def _count_updates(options: dict[str, Words], data: str) -> int:
    """Return the total number of training updates."""
    limits = []
    if "max-update" in options:
        limits.append(_number(options, "max-update"))
    if "max-epoch" in options:
        limits.append(_updates_of_epochs(options, data))
    if not limits:
        raise InputError(
            "--max-update or --max-epoch is required, because the learning rate depends on the "
            "number of updates"
        )
    return min(limits)


def _updates_of_epochs(options: dict[str, Words], data: str) -> int:
    """Return the number of updates in `--max-epoch` epochs.

    Each epoch uses one shard in turn, split over the GPUs that fairseq-train uses.
    """
    _check_batches_are_countable(options)
    batch_size = _number(options, "batch-size")
    gpus = _gpus(options)
    batches_per_update = _number(options, "update-freq", 1)
    round_batches = math.floor if "drop-last" in options else math.ceil
    batches_of_shards = []
    for counts in _pairs_of_shards(options, data):
        batches_of_shards.append(sum(round_batches(count / batch_size) for count in counts))
    updates = 0
    for batches in islice(cycle(batches_of_shards), _number(options, "max-epoch")):
        batches_of_worker = math.ceil(batches / gpus)
        if "skip-remainder-batch" in options:
            # fairseq skips the last batches of each worker even if they form a whole update.
            updates += (batches_of_worker - 1) // batches_per_update
        else:
            updates += math.ceil(batches_of_worker / batches_per_update)
    return updates


def _check_batches_are_countable(options: dict[str, Words]) -> None:
    """Check that the number of batches per epoch depends on --batch-size alone."""
    advice = "specify --max-update: the learning rate depends on the number of updates"
    if "batch-size" not in options:
        raise InputError(f"--max-epoch requires --batch-size to count the updates; {advice}")
    for name in ("max-tokens", "sampling-temperature", "source-temperature"):
        value = " ".join(options.get(name, []))
        has_no_effect = name != "max-tokens" and value in ("1", "1.0")
        if value and not has_no_effect:
            raise InputError(
                f"--max-epoch with --{name} {value}: the number of updates per epoch is unknown "
                f"in advance; {advice}"
            )


def _pairs_of_shards(options: dict[str, Words], data: str) -> list[list[int]]:
    """Return the number of sentence pairs per language pair, for each shard."""
    lang_pairs = ",".join(options.get("lang-pairs", []))
    shards = []
    for shard in split_shards(data):
        counts = list(count_pairs(shard, lang_pairs).values())
        if not sum(counts):
            languages = f" for {lang_pairs}" if lang_pairs else ""
            raise InputError(
                f"{data}: no sentence pairs{languages}; expected a data folder from `lxsr prepare`"
            )
        shards.append(counts)
    return shards


def _length_by_pairs(options: dict[str, Words], recipe: Recipe, data: str) -> dict[str, Words]:
    """Return options that set the number of updates according to the number of pairs.

    They also set when training validates and saves.
    """
    shards = split_shards(data)
    lang_pairs = ",".join(options.get("lang-pairs", []))
    count = sum(sum(count_pairs(shard, lang_pairs).values()) for shard in shards)
    updates = _number(options, "max-update", _interpolate(recipe.updates, count))
    # The option has one value per epoch; the last value applies to all later epochs.
    update_freq = " ".join(options.get("update-freq", ["1"])).rpartition(",")[2]
    pairs_per_update = (
        _number(options, "batch-size", 1024)
        * _gpus(options)
        * _number({"update-freq": [update_freq]}, "update-freq")
    )
    updates_per_epoch = max(1, math.ceil(count / len(shards) / pairs_per_update))
    epochs = updates / updates_per_epoch
    intervals = {"interval": max(1, int(epochs / VALIDATIONS))}
    if epochs < VALIDATIONS or "validate-interval-updates" in options:
        intervals["interval-updates"] = max(1, updates // VALIDATIONS)
    length = {"max-update": [str(updates)]}
    if "interval-updates" in intervals:
        length["keep-interval-updates"] = ["1"]
    for unit, number in intervals.items():
        # Save at every validation; otherwise the best model would be lost.
        interval = options.get(f"validate-{unit}", [str(number)])
        length[f"validate-{unit}"] = interval
        length[f"save-{unit}"] = interval
    return length


def _interpolate(updates: Mapping[int, int], count: int) -> int:
    """Interpolate the number of updates for a number of pairs on a log-log scale."""
    sizes = sorted(updates)
    lengths = [updates[size] for size in sizes]
    return round(math.exp(np.interp(math.log(max(1, count)), np.log(sizes), np.log(lengths))))


def _gpus(options: dict[str, Words]) -> int:
    if "distributed-world-size" in options:
        return _number(options, "distributed-world-size")
    # Without torch, the command can still be printed and run on another machine.
    if "cpu" in options or find_spec("torch") is None:
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _number(options: dict[str, Words], name: str, default: int | None = None) -> int:
    """Return the value of an option, which must be an integer of at least 1."""
    value = " ".join(options.get(name, [str(default)]))
    number = int(value) if value.isdecimal() else value
    at_least(1).check(f"--{name}", number)
    return int(number)
