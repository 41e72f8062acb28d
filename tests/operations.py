"""What torch does while a test looks on."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

INDEX_BY_MASK = "x[mask]"  # has to know how many are True


def is_mask(index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


class Operations(TorchDispatchMode):
    """Every operation that runs, by name, with the size of what it returns."""

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


SYNCHRONISE = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::item",
    "aten::equal",
}
SYNCHRONISE |= {
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::is_nonzero",
    "aten::repeat_interleave",
}
SYNCHRONISE |= {"aten::_pack_padded_sequence", INDEX_BY_MASK}
