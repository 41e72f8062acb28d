"""What the datasets of this plugin share: every epoch has an order of its own, a function of (seed, epoch) alone."""

from fairseq.data import FairseqDataset


class EpochDataset(FairseqDataset):
    """Sub-classes read samples, give their lengths and collate them.

    Args:
        max_positions: longest sample, in pieces; longer ones are cut.
        shuffle: draw a new order every epoch; off for validation.
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
        return False  # every epoch has batches of its own

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def filter_indices_by_size(self, indices, max_sizes):
        return indices, []  # samples are cut, not dropped
