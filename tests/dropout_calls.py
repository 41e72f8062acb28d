"""Counts the calls of each dropout of a model."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fairseq_lxsr.modules.dropout import Dropout


def dropout_calls(model: nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """Return how often `run` calls each dropout of a model, by its name."""
    calls: Counter[str] = Counter()

    def count(name: str, *_: Any) -> None:
        calls[name] += 1

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            hooks.append(module.register_forward_hook(partial(count, name)))
    run()
    for hook in hooks:
        hook.remove()
    return dict(calls)
