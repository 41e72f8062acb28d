"""Cross-entropy of masked pieces, one piece at a time."""

import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import token_loss

PAD = 1


def test_a_sentence_counts_once_however_many_of_its_pieces_are_masked():
    torch.manual_seed(0)
    masked = torch.tensor([[4, 6, 4], [5, PAD, PAD]]), torch.tensor([[7, 3], [PAD, PAD]])
    index = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1])  # of the real ones
    logits = torch.randn(6, 9, dtype=torch.double, requires_grad=True)
    log_p = logits.log_softmax(dim=1)
    sentences = [(0, 4), (1, 6), (2, 4)], [(3, 5)], [(4, 7), (5, 3)]
    expected = -sum(
        sum(log_p[row, piece] for row, piece in pieces) / len(pieces) for pieces in sentences
    )
    assert_same_with_gradients(token_loss(logits, masked, index, PAD), expected, logits)
