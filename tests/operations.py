"""Records the operations that torch runs."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Needs the number of True values, so it waits for the device.
INDEX_BY_MASK = "x[mask]"


def is_mask(index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


class Operations(TorchDispatchMode):
    """Records every operation: its name, and the shape of its result."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else None
        name = func.overloadpacket._qualified_op_name
        self.calls.append((name, shape))
        if name.startswith("aten::index") and any(
            map(is_mask, args[1] if isinstance(args[1], list | tuple) else ())
        ):
            self.calls.append((INDEX_BY_MASK, shape))
        return result


# Operations that wait for the device.
SYNCHRONISE = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::item",
    "aten::equal",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::is_nonzero",
    "aten::repeat_interleave",
    "aten::_pack_padded_sequence",
    INDEX_BY_MASK,
}
