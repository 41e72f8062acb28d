"""Copies of nested objects with another value in one place."""

import copy
from collections.abc import Iterator
from typing import Any

import torch


def places(value: Any, names: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value in nested objects and lists."""
    if isinstance(value, list):
        items = list(enumerate(value))
    elif isinstance(value, dict):
        items = list(value.items())
    else:
        items = []
    for name, inner in items:
        yield (*names, name)
        yield from places(inner, (*names, name))


def changed(value: Any, place: tuple, new: Any) -> Any:
    """Return a copy with a new value in one place, or without it if the new value is `...`."""
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
    """Yield the state with another value in one place, for every place but most weights."""
    yield from ({}, [], None, 5, "x", torch.ones(1))
    weights = list(state["model"])
    for place in places(state):
        if place[0] != "model" or len(place) == 1 or place[1] in weights[:2]:
            for value in VALUES:
                if not (isinstance(value, torch.Tensor) and place[0] == "model"):
                    yield changed(state, place, value)
