"""Recipes: YAML files in this folder, each with some of the fields of `Recipe`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from fairseq_lxsr.configs import read_config
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.ranges import below, check_fields, limited

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
        warmup: with --lr-scheduler polynomial_decay, the share of all updates in which the learning rate rises.
        options: options of fairseq-train, without their dashes; true for a flag, false to remove an option of
            `extends`.
    """

    description: str = ""
    source: str = ""
    extends: str = ""
    finetunes: str = ""
    warmup: float | None = limited(None, below(1))
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self):
        check_fields(self)


def names() -> list[str]:
    """List the recipes that can be trained; files whose name begins with `_` hold options that several share."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))


def read_recipe(name: str) -> Recipe:
    """Read a recipe with all options that it inherits from others.

    Raises:
        InputError: for an unknown name; it lists all recipes.
    """
    if name not in names():
        raise InputError(f"--recipe {shown(name)}; expected one of these:\n{table()}")
    return _read(name)


def _read(name: str) -> Recipe:
    recipe = read_config(FOLDER / f"{name}.yaml", Recipe)
    if not recipe.extends:
        return recipe
    base = _read(recipe.extends)
    warmup = base.warmup if recipe.warmup is None else recipe.warmup
    return replace(recipe, warmup=warmup, options=override(base.options, recipe.options))


def override(options: Mapping[str, Value], by: Mapping[str, Value]) -> dict[str, Value]:
    """Replace options by others."""
    replaced = LENGTH if LENGTH & by.keys() else set()
    return {name: value for name, value in options.items() if name not in replaced} | dict(by)


def table() -> str:
    """List all recipes with their descriptions, one per line."""
    width = max(map(len, names()))
    return "\n".join(f"{name:{width}}  {_read(name).description}" for name in names())
