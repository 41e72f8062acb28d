"""Cross-entropy of masked pieces, one piece at a time."""

import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import token_loss

PAD = 1


def test_each_sentence_has_the_same_weight_whatever_its_number_of_masked_pieces():
    torch.manual_seed(0)
    # The masked pieces of two source and two target sentences: three, one, two and none.
    source_ids = torch.tensor([[4, 6, 4], [5, PAD, PAD]])
    target_ids = torch.tensor([[7, 3], [PAD, PAD]])
    # The positions of the pieces that are not padding, in the flattened ids of each side.
    positions = (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1]))
    # One row for each masked piece, in the order of the ids above.
    logits = torch.randn(6, 9, dtype=torch.double, requires_grad=True)

    loss = token_loss(logits, (source_ids, target_ids), positions, PAD)

    log_p = logits.log_softmax(dim=1)
    mean_of_first_source = (log_p[0, 4] + log_p[1, 6] + log_p[2, 4]) / 3
    mean_of_second_source = log_p[3, 5]
    mean_of_first_target = (log_p[4, 7] + log_p[5, 3]) / 2
    expected = -(mean_of_first_source + mean_of_second_source + mean_of_first_target)
    assert_same_with_gradients(loss, expected, logits)
