"""The base of all datasets: every epoch has its own order, which is a function of (seed, epoch)
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors.rows import IntArray


class EpochDataset(FairseqDataset):
    """Base class; sub-classes read samples, return their lengths and collate them.

    A sample is cut at `max_positions` pieces; `seed` is that of all draws; validation does not
    `shuffle`.
    """

    def __init__(
        self,
        padding_idx: int,
        eos_idx: int,
        max_positions: int,
        seed: int = 1,
        shuffle: bool = True,
    ):
        self.padding_idx = padding_idx
        self.eos_idx = eos_idx
        self.max_positions = max_positions
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 1

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return False  # every epoch has its own batches

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def filter_indices_by_size(self, indices, max_sizes):
        return indices, []  # samples are cut, not dropped


def samples_per_corpus(
    sizes: Sequence[int], temperature: float, total: int | None = None
) -> IntArray:
    """Number of pairs that an epoch draws from each corpus, or source of one, proportional to
    size^(1 / temperature).

    Temperature 1 keeps the sizes, larger values make them more equal (Arivazhagan et al. 2019), and
    inf equal. `total` pairs are drawn, without it as many as there are.
    """
    if temperature <= 0:
        raise InputError(f"temperature is {temperature}; expected more than 0")
    counts = np.asarray(sizes, dtype=np.float64)
    shares = np.where(counts > 0, (counts / max(1, counts.max(initial=0))) ** (1 / temperature), 0)
    total = counts.sum() if total is None else total
    return np.round(total * shares / (shares.sum() or 1)).astype(np.int64)


def rounds(
    sources: Sequence[IntArray], counts: Sequence[int] | IntArray, rng: np.random.Generator
) -> list[IntArray]:
    """Draw from several sources in rounds of the same mixture, none of which has an index twice.

    The number of rounds is that of the passes over the source that is drawn most often for its
    size; the last round may be shorter, and the indices of each are in random order. Rounds of a
    single source are its passes. `counts` says how many indices to draw of each source.
    """
    pairs = list(zip(sources, counts, strict=True))
    length = max((count / len(indices) for indices, count in pairs if len(indices)), default=0)
    ends = np.minimum(np.arange(1, np.ceil(length) + 1) / (length or 1), 1)
    drawn = [
        draw_parts(indices, np.rint(count * ends).astype(np.int64), rng) for indices, count in pairs
    ]
    if len(drawn) == 1:
        return drawn[0]
    return [rng.permutation(np.concatenate(parts)) for parts in zip(*drawn, strict=True)]


def draw_parts(indices: IntArray, ends: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Draw from N indices by one complete pass in random order after another, cut into parts
    without an index twice.

    `ends` are the numbers of indices up to the end of each part, each at most N more than the one
    before.
    """
    parts, left = [], indices[:0]
    for size in np.diff(ends, prepend=0):
        part, left = left[:size], left[size:]
        if len(part) < size:
            again = rng.permutation(indices)
            is_in = np.isin(again, part)
            again = np.concatenate(
                (again[~is_in], again[is_in])
            )  # what the part has already comes later in this pass
            part, left = (
                np.concatenate((part, again[: size - len(part)])),
                again[size - len(part) :],
            )
        parts.append(part)
    return parts


def sort_by_length(indices: IntArray, source_sizes: IntArray, target_sizes: IntArray) -> IntArray:
    """Sort pairs by the length of the longer side, then of the source; equal lengths keep their
    (random) order.

    This order needs the least padding: 3 to 6 percent of the positions, against 4 to 10 percent by
    source, then target.
    """
    source, target = source_sizes[indices], target_sizes[indices]
    return indices[np.lexsort((source, np.maximum(source, target)))]


def cut_into_batches(
    indices: IntArray, lengths: IntArray, max_sentences: int | None, max_tokens: int | None
) -> list[IntArray]:
    """Cut an ordered list [N] into batches of exactly `max_sentences`, fewer where `max_tokens` is
    reached first.

    `lengths` [N] are the pieces of the longer side; `max_tokens` limits sentences x longest
    sentence, with padding.
    """
    if max_tokens is None:
        step = max_sentences or len(indices)
        return [indices[start : start + step] for start in range(0, len(indices), step)]
    batches, start, longest = [], 0, 0
    for position, length in enumerate(lengths.tolist()):
        grown = max(longest, length)
        count = position - start
        if count and (count == max_sentences or grown * (count + 1) > max_tokens):
            batches.append(indices[start:position])
            start, grown = position, length
        longest = grown
    return [*batches, indices[start:]] if len(indices) else []


SIDES = ("source", "target")


class Batch(TypedDict, total=False):
    """What a batch of task `xling_sent` may have; a dictionary, because fairseq copies only those
    to a device.
    """

    id: Tensor  # [B] indices of the pairs
    nsentences: int  # B
    ntokens: int  # number of real pieces of both sides
    net_input: dict[
        str, Tensor
    ]  # what the encoder reads [B, T]: `source`, `target`; `negative`, `teacher_text`
    source_tokens: Tensor  # [B, T] ids without masks, unless `MaskedTargets` asks for masks
    target_tokens: Tensor
    source_masked_ids: (
        Tensor  # [B, M] original ids of the masked pieces, padding at unused positions
    )
    target_masked_ids: Tensor
    source_positions: Tensor  # [K] indices of the masked pieces in the flattened source
    target_positions: Tensor
    source_masked_index: (
        Tensor  # [K] indices of the masked pieces in the flattened `source_masked_ids`
    )
    target_masked_index: Tensor
    pair_number: Tensor  # [B] numbers of the pairs, with --gather-negatives
    negative_of: Tensor  # [B, 2] bool, whether the negative belongs to the source, to the target
    teacher: Tensor  # [2B, E] a teacher's embeddings, sources first
    teacher_text: (
        Tensor  # [B, E] a teacher's embeddings of the texts of `net_input`, with --teacher-text
    )
    is_dummy: bool  # True in the batch that fairseq gives a worker which has none left; its loss does not count


@dataclass(frozen=True)
class DrawnPairs:
    """The pairs of one batch, as the parts of the batch read them."""

    dataset: Any  # every draw uses its seed and epoch
    samples: list[dict]  # B, after subword dropout

    @cached_property
    def index(self) -> np.ndarray:
        """[B] indices of the pairs."""
        return np.array([sample["id"] for sample in self.samples])

    @cached_property
    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Both sides as padded ids, [B, T] and [B, T']."""
        padding_idx = self.dataset.padding_idx
        source, target = (
            padded([sample[side] for sample in self.samples], padding_idx) for side in SIDES
        )
        return source, target


class Part(Protocol):
    """Adds to a batch what one term of the loss needs, as a function of (seed, epoch, pair index)
    alone.
    """

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        """Add arrays to the batch."""


def padded(sentences: list[np.ndarray], padding_idx: int) -> np.ndarray:
    """Pad sentences to ids [B, T], with `padding_idx` after the end of shorter sentences."""
    lengths = np.array([len(sentence) for sentence in sentences])
    tokens = np.full((len(sentences), lengths.max()), padding_idx, dtype=np.int64)  # [B, T]
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(sentences)
    return tokens


def to_tensors(batch: dict) -> Any:
    """Convert the arrays of a batch, also of nested dictionaries, to tensors; other values stay as
    they are.
    """
    return {
        name: torch.from_numpy(value)
        if isinstance(value, np.ndarray)
        else (to_tensors(value) if isinstance(value, dict) else value)
        for name, value in batch.items()
    }
