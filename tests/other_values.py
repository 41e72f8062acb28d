"""Copies of nested objects with another value in one place."""

import copy
from collections.abc import Iterator
from typing import Any

import torch


def places(value: Any, names: tuple = ()) -> Iterator[tuple]:
    """Where something lies in nested objects and lists."""
    items = (
        enumerate(value)
        if isinstance(value, list)
        else value.items()
        if isinstance(value, dict)
        else ()
    )
    for name, inner in items:
        yield (*names, name)
        yield from places(inner, (*names, name))


def changed(value: Any, place: tuple, new: Any) -> Any:
    """A copy with something else in one place; `...` takes it away."""
    whole = copy.deepcopy(value)
    inner = whole
    for name in place[:-1]:
        inner = inner[name]
    if new is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return whole


VALUES = [..., None, {}, [], "no", "\ud800", -1, 10**30, float("nan"), True, torch.ones(2)]


def changed_checkpoints(state: dict[str, Any]) -> Iterator[Any]:
    """The state with another value in every place, one at a time; of the weights the first two."""
    yield from ({}, [], None, 5, "x", torch.ones(1))
    weights = list(state["model"])
    for place in places(state):
        if place[0] != "model" or len(place) == 1 or place[1] in weights[:2]:
            for value in VALUES:
                if not (isinstance(value, torch.Tensor) and place[0] == "model"):
                    yield changed(state, place, value)
