"""A batch of sentence pairs, and the parts that make it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

SIDES = ("source", "target")


class Batch(TypedDict, total=False):
    """What a batch of task `xling_sent` may hold; a dictionary, because fairseq copies nothing else to a device.

    id: [B] indices of the pairs; nsentences: B; ntokens: real pieces of both sides.
    net_input: what the encoder reads: `source`, `target` and, with hard negatives, `negative` [B, T].
    source_tokens, target_tokens: [B, T] without masks.
    source_masked_ids, target_masked_ids: [B, M] original ids of the masked pieces, padding at unused positions.
    source_positions, target_positions: [K] where the masked pieces are in their side read as one row.
    source_masked_index, target_masked_index: [K] where they are in the masked ids read as one row.
    text_number: [2, B] equal for equal texts of a side.
    negative_of: [B, 2] bool, whether the negative is one of the source, of the target.
    teacher: [2B, E] a teacher's embeddings, sources first.
    """

    id: Tensor
    nsentences: int
    ntokens: int
    net_input: dict[str, Tensor]
    source_tokens: Tensor
    target_tokens: Tensor
    source_masked_ids: Tensor
    target_masked_ids: Tensor
    source_positions: Tensor
    target_positions: Tensor
    source_masked_index: Tensor
    target_masked_index: Tensor
    text_number: Tensor
    negative_of: Tensor
    teacher: Tensor


@dataclass(frozen=True)
class DrawnPairs:
    """The pairs of one batch, as a part of the batch sees them.

    Args:
        dataset: where they are from; its seed and epoch are those of every draw.
        whole: B samples as they lie on disk.
        samples: the same after subword dropout.
    """

    dataset: Any
    whole: list[dict]
    samples: list[dict]

    @cached_property
    def index(self) -> np.ndarray:
        """[B] indices of the pairs."""
        return np.array([sample["id"] for sample in self.samples])

    @cached_property
    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Both sides as [B, T] ids."""
        return self.padded(self.samples)

    def padded(self, samples: list[dict]) -> tuple[np.ndarray, np.ndarray]:
        """Both sides of samples as [B, T] ids."""
        source, target = (padded([sample[side] for sample in samples], self.dataset.padding_idx) for side in SIDES)
        return source, target


class Part(Protocol):
    """Adds to a batch what one term of the loss needs: a function of (seed, epoch, index of the pair) alone."""

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        """Put arrays into the batch."""


def padded(sentences: list[np.ndarray], padding_idx: int) -> np.ndarray:
    """[B, T] ids, `padding_idx` after the end of shorter sentences."""
    lengths = np.array([len(sentence) for sentence in sentences])
    tokens = np.full((len(sentences), lengths.max()), padding_idx, dtype=np.int64)  # [B, T]
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(sentences)
    return tokens


def to_tensors(batch: dict) -> Any:
    """A batch of arrays, nested or not, as one of tensors; other values stay."""
    return {
        name: torch.from_numpy(value)
        if isinstance(value, np.ndarray)
        else (to_tensors(value) if isinstance(value, dict) else value)
        for name, value in batch.items()
    }
