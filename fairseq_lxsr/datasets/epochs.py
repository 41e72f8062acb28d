"""The base of all datasets: every epoch has its own order, which is a function of (seed, epoch) alone."""

from fairseq.data import FairseqDataset


class EpochDataset(FairseqDataset):
    """Base class; sub-classes read samples, return their lengths and collate them.

    Args:
        padding_idx: id of padding.
        eos_idx: id of EOS.
        max_positions: maximum number of pieces of a sample; longer ones are cut.
        seed: seed of all draws.
        shuffle: whether every epoch draws a new order; off for validation.
    """

    def __init__(self, padding_idx: int, eos_idx: int, max_positions: int, seed: int = 1, shuffle: bool = True):
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
