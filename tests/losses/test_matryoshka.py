"""Matryoshka: the alignment loss of the first units, for every width, against one pair and one softmax at a time."""

import math

import pytest
import torch
import torch.nn.functional as F
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import Candidates, Negatives, alignment_loss, matryoshka_alignment_loss

WIDTHS = [1, 2, 5]


def slow_matryoshka(u, v, widths, similarity="inner", scale=1.0, seen=lambda side, i, j: True, extra=None):
    """Reference: of every width, side and pair, the candidates that it sees; `extra` are one more for each u."""
    total = u.new_zeros(())
    for width in widths:
        cut = [side[:, :width] for side in (u, v, *([] if extra is None else [extra]))]
        if similarity == "cosine":
            cut = [side / side.norm(dim=1, keepdim=True) for side in cut]
        for side, (queries, candidates) in enumerate(((cut[0], cut[1]), (cut[1], cut[0]))):
            for i in range(len(u)):
                rows = [j for j in range(len(u)) if j == i or seen(side, i, j)]
                scores = [scale * queries[i] @ candidates[j] for j in rows]
                scores += [scale * queries[i] @ cut[2][i]] if extra is not None and side == 0 else []
                total = total - torch.stack(scores).log_softmax(0)[rows.index(i)]
    return total


def sides(count=2, pairs=4):
    torch.manual_seed(1)
    return [torch.randn(pairs, 5, dtype=torch.double, requires_grad=True) for _ in range(count)]


def test_value_worked_out_by_hand():
    # of the first unit: S = [[1, 0], [0, 0]], of both: S = [[1, 0], [0, 1]]; rows and columns alike
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    one, two = math.log1p(math.exp(-1)) + math.log(2), 2 * math.log1p(math.exp(-1))
    assert matryoshka_alignment_loss(u, u, [1, 2]).item() == pytest.approx(2 * one + 2 * two)


@pytest.mark.parametrize(("similarity", "scale"), [("inner", 1.0), ("cosine", 10.0)])
def test_values_and_gradients_equal_the_slow_reference(similarity, scale):
    u, v = sides()
    fast = matryoshka_alignment_loss(u, v, WIDTHS, similarity=similarity, scale=scale)
    assert_same_with_gradients(fast, slow_matryoshka(u, v, WIDTHS, similarity, scale), (u, v))


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_with_hard_negatives_and_same_texts(similarity):
    u, v, negative = sides(3)
    of = torch.tensor([[True, False]] * 4)
    same_text = torch.zeros(2, 4, 4, dtype=torch.bool)
    same_text[0, 1, 2] = same_text[1, 3, 0] = True
    options = {"similarity": similarity, "scale": 2.0}
    fast = matryoshka_alignment_loss(u, v, WIDTHS, negatives=Negatives(negative, of), same_text=same_text, **options)
    slow = slow_matryoshka(u, v, WIDTHS, seen=lambda *place: not same_text[place], extra=negative, **options)
    assert_same_with_gradients(fast, slow, (u, v, negative))


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_gathered_candidates_equal_the_whole_batch(similarity):
    u, v = sides(pairs=6)
    pad = F.pad(u, (0, 0, 0, 2)), F.pad(v, (0, 0, 0, 2))
    is_candidate = torch.arange(8) < 6
    parts = [
        matryoshka_alignment_loss(
            u[rows], v[rows], WIDTHS, candidates=Candidates(*pad, rows.start, is_candidate), similarity=similarity
        )
        for rows in (slice(0, 2), slice(2, 6))
    ]
    assert_same_with_gradients(sum(parts), slow_matryoshka(u, v, WIDTHS, similarity), (u, v))


def test_the_full_width_alone_is_the_alignment_loss():
    u, v = sides()
    assert matryoshka_alignment_loss(u, v, [5]) == alignment_loss(u, v)
    assert matryoshka_alignment_loss(u.bfloat16(), v.bfloat16(), [5]).dtype == torch.float32
