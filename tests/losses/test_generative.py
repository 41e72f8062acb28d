"""Cross-entropy of masked pieces, one piece at a time."""

import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import token_loss

PAD = 1


def test_each_sentence_has_the_same_weight_whatever_its_number_of_masked_pieces():
    torch.manual_seed(0)
    source = torch.tensor([[4, 6, 4], [5, PAD, PAD]])
    target = torch.tensor([[7, 3], [PAD, PAD]])
    # The positions of the pieces that are not padding.
    index = (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1]))
    logits = torch.randn(6, 9, dtype=torch.double, requires_grad=True)
    log_p = logits.log_softmax(dim=1)
    first_source = (log_p[0, 4] + log_p[1, 6] + log_p[2, 4]) / 3
    second_source = log_p[3, 5]
    first_target = (log_p[4, 7] + log_p[5, 3]) / 2
    expected = -(first_source + second_source + first_target)
    loss = token_loss(logits, (source, target), index, PAD)
    assert_same_with_gradients(loss, expected, logits)
