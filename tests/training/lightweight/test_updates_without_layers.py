"""Updates of a model without layers, whose passes are written out for speed, are those of torch."""

import torch
import torch.nn.functional as F

from fairseq_lxsr import losses
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder

PADDING = 1
SCALE = 10
SOURCE = torch.tensor([[4, 5, 6, 7], [8, 9, 1, 1], [5, 5, 10, 1]])
TARGET = torch.tensor([[11, 12, 13], [14, 1, 1], [12, 15, 1]])
# Two words of the target, the source and the target exchanged.
NEGATIVE = torch.tensor([[12, 11, 13, 1], [9, 8, 1, 1], [15, 12, 1, 1]])
IS_CANDIDATE = torch.tensor([[True, False], [False, True], [True, False]])


def fast_loss(encoder):
    u, v, negative = encoder.embed(SOURCE, TARGET, NEGATIVE)
    return losses.alignment_loss(
        u,
        v,
        similarity="cosine",
        scale=SCALE,
        negatives=losses.Negatives(negative, IS_CANDIDATE),
        cosines=losses.cosine_similarities(u, v),
    )


def slow_loss(encoder):
    """The embeddings by the states of all pieces, and the loss by torch's functions."""
    sides = [pooled for pooled, _ in encoder(SOURCE, TARGET, NEGATIVE)]
    u, v, negative = (F.normalize(side, dim=1) for side in sides)
    loss = u.new_zeros(())
    for number, (queries, candidates) in enumerate(((u, v), (v, u))):
        extra = (queries * negative).sum(dim=1).masked_fill(~IS_CANDIDATE[:, number], -torch.inf)
        logits = SCALE * torch.cat((queries @ candidates.T, extra[:, None]), dim=1)
        loss = loss + F.cross_entropy(logits, torch.arange(len(u)), reduction="sum")
    return loss


def weights_after_four_updates(loss_of):
    """The weights of a new encoder, the same each time, after training with a function of it."""
    torch.manual_seed(1)
    encoder = TransformerSentenceEncoder(
        TransformerConfig(
            16, PADDING, embed_dim=8, num_layers=0, gated=True, order_coefficients=2, dropout=0.0
        )
    )
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.02)
    for _ in range(4):
        optimizer.zero_grad()
        (loss_of(encoder) / len(SOURCE)).backward()
        optimizer.step()
    return encoder.state_dict()


def test_weights_after_four_updates_are_those_of_the_slow_passes():
    weights = weights_after_four_updates(fast_loss)

    expected = weights_after_four_updates(slow_loss)
    # They start at zero.
    assert expected["order"].abs().mean() > 0.01
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
