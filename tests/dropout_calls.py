"""Where a model drops values."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fairseq_lxsr.modules.dropout import Dropout


def dropout_calls(model: nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """How often each dropout of a model is called, by its name."""
    calls: Counter[str] = Counter()
    hooks = [
        module.register_forward_hook(partial(lambda name, *_: calls.update([name]), name))
        for name, module in model.named_modules()
        if isinstance(module, Dropout)
    ]
    run()
    for hook in hooks:
        hook.remove()
    return dict(calls)
