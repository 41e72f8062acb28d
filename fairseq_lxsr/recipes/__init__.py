"""Recipes: YAML files in this folder, each with some of the fields of `Recipe`."""

import math
import os
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
    REMOVED_OPTIONS,
    at_least,
    below,
    check_fields,
    limited,
    read_yaml_config,
)
from fairseq_lxsr.text.data_folder import count_pairs

FOLDER = Path(__file__).parent
# both state the length of training: stating one of them replaces both
LENGTH = {"max-update", "max-epoch"}

Option = bool | int | float | str
Value = TypeVar("Value")


@dataclass(frozen=True)
class Recipe:
    """A recipe as its file states it.

    Args:
        description: what it trains, in one line.
        source: the paper with equation or table, or the place of the measurement.
        extends: another recipe, whose options it inherits unless it states its own.
        finetunes: the recipe of the checkpoint that it is to go on from.
        warmup: with --lr-scheduler polynomial_decay, the share of all updates in which the learning
            rate rises.
        options: options of fairseq-train, without their dashes; true for a flag, false to remove an
            option of `extends`.
        updates: the length of training by the number of pairs, where no option states it;
            interpolated, and no less than the first or more than the last. It also sets how often
            is validated and saved: ten times.
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
    """List the recipes that can be trained; files whose name begins with `_` hold options that
    several share.
    """
    return sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))


def read_recipe(name: str) -> Recipe:
    """Read a recipe with all options that it inherits from others."""
    if name not in names():
        raise InputError(
            f"--recipe {shown(name)}; expected one of these: {', '.join(names())}; see `lxsr recipes`"
        )
    return _read(name)


def _read(name: str) -> Recipe:
    recipe = read_yaml_config(FOLDER / f"{name}.yaml", Recipe)
    if not recipe.extends:
        return recipe
    base = _read(recipe.extends)
    warmup = base.warmup if recipe.warmup is None else recipe.warmup
    updates = {} if LENGTH & recipe.options.keys() else recipe.updates or base.updates
    return replace(
        recipe, warmup=warmup, options=override(base.options, recipe.options), updates=updates
    )


def override(options: Mapping[str, Value], by: Mapping[str, Value]) -> dict[str, Value]:
    """Replace options by others."""
    replaced = LENGTH if LENGTH & by.keys() else set()
    return {name: value for name, value in options.items() if name not in replaced} | dict(by)


def table() -> str:
    """List all recipes with their descriptions, one per line."""
    width = max(map(len, names()))
    return "\n".join(f"{name:{width}}  {_read(name).description}" for name in names())


ALIASES = {"max-sentences": "batch-size"}

Words = list[str]  # values of an option on the command line; none for a flag


def train_command(recipe: Recipe, data: str, own: Sequence[str]) -> list[str]:
    """Build the arguments of fairseq-train.

    Args:
        recipe: the recipe.
        data: the data folder, or several shards joined by ':'.
        own: the user's options in fairseq's spelling. They replace those of the recipe; `--no-X`
            removes its `--X`, and never theirs.
    """
    base = {name: _words(value) for name, value in recipe.options.items() if value is not False}
    given = _parse(own)
    removing = {f"no-{name}" for name in base} & given.keys()
    options = without_removed(
        override(
            {name: words for name, words in base.items() if f"no-{name}" not in removing},
            {name: words for name, words in given.items() if name not in removing},
        )
    )
    if recipe.updates and not {"max-epoch", "no-max-epoch", "no-max-update"} & given.keys():
        options |= {
            name: words
            for name, words in _sized(options, recipe, data).items()
            if name not in options
        }
    if options.get("lr-scheduler") == ["polynomial_decay"]:
        schedule = _schedule(options, recipe.warmup or 0, data)
        options |= {name: words for name, words in schedule.items() if name not in options}
    return [
        *(data, "--user-dir", str(PACKAGE)),
        *(word for name, words in options.items() for word in (f"--{name}", *words)),
    ]


def without_removed(options: Mapping[str, Words]) -> dict[str, Words]:
    """Leave out options that are gone, which must have the value that is left."""
    for name in REMOVED_OPTIONS.keys() & options.keys():
        words = " ".join(options[name])
        if words != str(REMOVED_OPTIONS[name]) and (
            REMOVED_OPTIONS[name] is False or _float(words) != REMOVED_OPTIONS[name]
        ):
            raise InputError(
                f"--{name} {words}: the option is gone, training always has {REMOVED_OPTIONS[name]}; leave it out"
            )
    return {name: words for name, words in options.items() if name not in REMOVED_OPTIONS}


def _float(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _words(value: Option) -> Words:
    return [] if value is True else [str(value)]


def _parse(own: Sequence[str]) -> dict[str, Words]:
    """Parse the values that follow each option."""
    found: dict[str, Words] = {}
    for word in own:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            words = found[ALIASES.get(name, name)] = [value] if equals else []
        elif found:
            words.append(word)
        else:
            raise InputError(
                f"{shown(word)} after the data folder; expected options, for example --lr 0.001"
            )
    return found


def _schedule(options: dict[str, Words], warmup: float, data: str) -> dict[str, Words]:
    """Compute the schedule: the learning rate rises for a share of all updates and falls to zero at
    the last.
    """
    if "total-num-update" in options:
        total = _number(options, "total-num-update")
    else:
        limits = [_number(options, "max-update")] if "max-update" in options else []
        limits += [_updates_of_epochs(options, data)] if "max-epoch" in options else []
        if not limits:
            raise InputError(
                "neither --max-update nor --max-epoch; expected one, as the learning rate falls to zero"
            )
        total = min(limits)
    return {"total-num-update": [str(total)], "warmup-updates": [str(int(warmup * total))]}


def _updates_of_epochs(options: dict[str, Words], data: str) -> int:
    """Count the updates of --max-epoch epochs, each over one shard in turn, on as many GPUs as
    fairseq-train takes.
    """
    if "batch-size" not in options:
        raise InputError(
            "--max-epoch without --batch-size; expected --max-update, as the learning rate falls to zero"
        )
    for name in ("max-tokens", "sampling-temperature", "source-temperature"):
        value = " ".join(options.get(name, []))
        if value and (name == "max-tokens" or value not in ("1", "1.0")):
            raise InputError(
                f"--max-epoch with --{name} {value}, where the number of updates of an epoch is not known beforehand; "
                "expected --max-update, where the learning rate falls to zero"
            )
    pairs = ",".join(options.get("lang-pairs", []))
    shards = [count_pairs(Path(shard), pairs).values() for shard in data.split(os.pathsep)]
    if not all(map(sum, shards)):
        raise InputError(
            f"{data}: no sentence pairs{' of ' * bool(pairs)}{pairs}; expected what `lxsr prepare` writes"
        )
    size, gpus, at_once = (
        _number(options, "batch-size"),
        _gpus(options),
        _number(options, "update-freq", 1),
    )
    whole = math.floor if "drop-last" in options else math.ceil
    batches = [sum(whole(count / size) for count in counts) for counts in shards]
    epochs = islice(cycle(batches), _number(options, "max-epoch"))
    of_worker = (math.ceil(count / gpus) for count in epochs)
    # fairseq leaves out a last batch of each worker, full or not
    if "skip-remainder-batch" in options:
        return sum((count - 1) // at_once for count in of_worker)
    return sum(math.ceil(count / at_once) for count in of_worker)


TIMES = 10  # validations of a training, each with a checkpoint


def _sized(options: dict[str, Words], recipe: Recipe, data: str) -> dict[str, Words]:
    """Choose the number of updates by that of the pairs, and the epochs between two validations."""
    pairs = ",".join(options.get("lang-pairs", []))
    count = sum(sum(count_pairs(Path(shard), pairs).values()) for shard in data.split(os.pathsep))
    sizes, updates = zip(*sorted(recipe.updates.items()), strict=True)
    total = round(math.exp(np.interp(math.log(max(1, count)), np.log(sizes), np.log(updates))))
    total = _number(options, "max-update", total)
    at_once = " ".join(options.get("update-freq", ["1"])).rpartition(",")[2]  # of most epochs
    batch = (
        _number(options, "batch-size", 1024)
        * _gpus(options)
        * _number({"update-freq": [at_once]}, "update-freq")
    )
    epochs = total / max(1, math.ceil(count / len(data.split(os.pathsep)) / batch))
    every = {"interval": max(1, int(epochs / TIMES))}
    if epochs < TIMES or "validate-interval-updates" in options:
        every["interval-updates"] = max(1, total // TIMES)
    found = {"max-update": [str(total)]} | (
        {"keep-interval-updates": ["1"]} if len(every) > 1 else {}
    )
    for unit, number in every.items():  # saved whenever it is validated, or the best is lost
        found[f"validate-{unit}"] = found[f"save-{unit}"] = options.get(
            f"validate-{unit}", [str(number)]
        )
    return found


def _gpus(options: dict[str, Words]) -> int:
    if "distributed-world-size" in options:
        return _number(options, "distributed-world-size")
    # without it the command can be printed, and run elsewhere
    if "cpu" in options or find_spec("torch") is None:
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _number(options: dict[str, Words], name: str, default: int | None = None) -> int:
    value = " ".join(options.get(name, [str(default)]))
    number = int(value) if value.isdecimal() else value
    at_least(1).check(f"--{name}", number)
    return int(number)
