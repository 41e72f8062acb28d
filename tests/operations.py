"""What torch does while a test looks on."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Every operation that runs, by name, with the size of what it returns."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else None
        self.calls.append((func.overloadpacket._qualified_op_name, shape))
        return result


SYNCHRONISE = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::item",
    "aten::equal",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::is_nonzero",
}
