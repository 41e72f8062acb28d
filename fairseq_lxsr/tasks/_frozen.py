"""Weights that training leaves as they are, so that old text keeps its vectors while new pieces learn."""

import torch
from torch import Tensor, nn

from fairseq_lxsr.modules import SentenceNetwork


class FrozenPieces:
    """Remembers the encoder except for the rows of new pieces, and puts it back after each update.

    Rows are put back, not left without gradient: weight decay and the moments of an optimizer move rows without one.

    Args:
        model: the model, or what wraps it for several workers.
        count: number N of the pieces that are kept, the first of the dictionary.
    """

    def __init__(self, model: nn.Module, count: int):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        table = network.embed_tokens.weight
        weights = [weight for weight in network.parameters() if weight is not table]
        places = [table.detach()[:count], *(weight.detach() for weight in weights)]
        self._kept: list[tuple[Tensor, Tensor]] = [(place, place.clone()) for place in places]

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the kept weights the values that they had at the beginning."""
        for place, value in self._kept:
            place.copy_(value)
