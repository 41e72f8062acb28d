"""CUDA graphs for training steps, which replace hundreds of kernel launches with one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# Lengths are padded to a multiple of this many pieces, to limit the number of batch shapes.
PAD_MULTIPLE = 8
# Maximum number of graphs. Each graph holds the gradients of all weights in memory.
MAX_GRAPHS = 40
# Capture a shape when it occurs for the second time, because capturing a shape that occurs only
# once does not pay off.
OCCURRENCES = 2

Capture = Callable[[nn.Module, tuple[Tensor, ...]], Any]


class GraphedCriterion:
    """Wraps a fairseq criterion, and uses CUDA graphs for batch shapes that occur repeatedly.

    At 128 pairs, a training step consists of hundreds of small kernels, and the GPU waits for each
    launch. One graph launches the whole forward pass, and another one the whole backward pass. Loss
    and gradients equal the criterion's, because the same kernels run.

    Gradients that a step leaves in the weights belong to the graph's memory. The next batch
    replaces them, so the caller must not accumulate gradients over several batches.

    Args:
        model: the model, whose weights must keep their memory addresses.
        criterion: returns the loss, the sample size and the logged values of a batch. Logged values
            that are tensors must depend only on the values of the batch.
        capture: function that captures a graph; None captures a CUDA graph. Tests on CPUs pass
            another function.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, capture: Capture | None = None):
        self.model = model
        self.criterion = criterion
        self._capture = capture or _CudaCapture()
        self._counts: dict[tuple, int] = {}
        self._graphs: dict[tuple, _GraphedStep] = {}

    def __call__(self, model: nn.Module, sample: dict) -> tuple[Tensor, int, dict]:
        """Compute the loss, the sample size and the logged values of a batch."""
        tensors = flatten(sample)
        shape = tuple((name, *value.shape) for name, value in tensors.items())
        step = self._graphs.get(shape)
        if step is None:
            count = self._counts.get(shape, 0) + 1
            self._counts[shape] = count
            if count < OCCURRENCES or len(self._graphs) >= MAX_GRAPHS:
                return self.criterion(model, sample)
            step = _GraphedStep(self.model, self.criterion, sample, self._capture)
            self._graphs[shape] = step
        return step(sample)


class _GraphedStep:
    """A captured CUDA graph for one batch shape.

    Args:
        model: the model to train.
        criterion: criterion of the batch.
        sample: a batch of this shape.
        capture: turns a module and example arguments into a function that takes such arguments.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, sample: dict, capture: Capture):
        module = _TensorStep(model, criterion, sample)
        # These copies are the graph's input buffers.
        inputs = tuple(value.clone() for value in flatten(sample).values())
        self._run = capture(module, inputs)
        self._names = module.names
        self._constants = module.constants

    def __call__(self, sample: dict) -> tuple[Tensor, int, dict]:
        loss, logged = self._run(*flatten(sample).values())
        # Copy the values, because the graph reuses this memory for the next batch.
        values = logged.clone().unbind()
        output = self._constants | dict(zip(self._names, values, strict=True))
        output["ntokens"] = sample["ntokens"]
        return loss, self._constants["sample_size"], output


class _TensorStep(nn.Module):
    """Wraps a criterion as a function of tensors only, which CUDA graphs require.

    Attributes:
        names: names of the logged values that are tensors.
        constants: all other logged values, which are equal for all batches of a shape.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, sample: dict):
        super().__init__()
        self.model = model
        self.criterion = criterion
        self.names: list[str] = []
        self.constants: dict[str, Any] = {}
        self._sample = sample
        self.train()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss, and the logged values [L] in float32."""
        sample = unflatten(self._sample, tensors)
        loss, _, output = self.criterion(self.model, sample)
        logged = {name: value for name, value in output.items() if isinstance(value, Tensor)}
        self.names = list(logged)
        self.constants = {name: value for name, value in output.items() if name not in logged}
        return loss, torch.stack([value.detach().float() for value in logged.values()])


class _CudaCapture:
    """Captures CUDA graphs that share one memory pool.

    Sharing is safe, because the backward pass of a batch ends before the next batch begins.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        # Capturing runs the step several times, which must not affect the random state.
        state = torch.cuda.get_rng_state()
        # Disable the autocast cache, because a graph cannot reuse weights converted outside it.
        with torch.autocast(
            "cuda",
            torch.get_autocast_dtype("cuda"),
            enabled=torch.is_autocast_enabled("cuda"),
            cache_enabled=False,
        ):
            graphed = torch.cuda.make_graphed_callables(
                module, inputs, allow_unused_input=True, pool=self._pool
            )
        torch.cuda.set_rng_state(state)
        return graphed


def flatten(sample: Mapping[str, Any]) -> dict[str, Tensor]:
    """Map names to the tensors of a batch, with `outer.inner` for nested dictionaries.

    Example:
        >>> flatten({"net_input": {"source": torch.ones(2, 3)}, "nsentences": 2}).keys()
        dict_keys(['net_input.source'])
    """
    tensors = {}
    for name, value in sample.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, Mapping):
            for inner, tensor in flatten(value).items():
                tensors[f"{name}.{inner}"] = tensor
    return tensors


def unflatten(sample: Mapping[str, Any], tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return a copy of a batch whose tensors are replaced, in the order of `flatten`."""
    rest = iter(tensors)

    def replace(values: Mapping[str, Any]) -> dict[str, Any]:
        replaced: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = next(rest)
            elif isinstance(value, Mapping):
                value = replace(value)
            replaced[name] = value
        return replaced

    return replace(sample)
