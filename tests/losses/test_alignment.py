import math

import pytest
import torch
import torch.nn.functional as F
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import Candidates, Negatives, alignment_loss, cosine_similarities, in_batch_accuracy
from fairseq_lxsr.losses.alignment import SHARED_SCALE


def slow_alignment(u, v, similarity, scale):
    """Reference: one softmax at a time, one pair at a time."""
    total = u.new_zeros(())
    for left, right in ((u, v), (v, u)):
        for i in range(len(u)):
            scores = []
            for j in range(len(u)):
                a, b = left[i], right[j]
                score = (a * b).sum()
                if similarity == "cosine":
                    score = score / (a.norm() * b.norm())
                scores.append(score * scale)
            total = total - torch.stack(scores).log_softmax(0)[i]
    return total


def test_value_worked_out_by_hand():
    # S = [[1, 0], [2, 2]]; rows: log(1 + e^-1) + log 2; columns: log(1 + e^1) + log(1 + e^-2)
    u, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 2.0]])
    expected = math.log1p(math.exp(-1)) + math.log(2) + math.log1p(math.e) + math.log1p(math.exp(-2))
    assert alignment_loss(u, v).item() == pytest.approx(expected)


def test_arguments_may_have_names():
    u, v = torch.randn(2, 5, 4)
    assert alignment_loss(u=u, v=v) == alignment_loss(u, v)


def test_one_pair_has_nothing_to_tell_apart():
    assert alignment_loss(torch.randn(1, 4), torch.randn(1, 4)).item() == 0


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
@pytest.mark.parametrize("scale", [1.0, 20.0, 5.0, SHARED_SCALE, SHARED_SCALE + 1])
@pytest.mark.parametrize("pairs", [2, 5])
def test_values_and_gradients_equal_the_slow_reference(similarity, scale, pairs):
    torch.manual_seed(pairs)
    u, v = (torch.randn(pairs, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    result = alignment_loss(u, v, similarity=similarity, scale=scale)
    expected = slow_alignment(u, v, similarity, scale)
    assert_same_with_gradients(result, expected, (u, v))


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_a_negative_of_its_own_is_one_more_candidate_for_one_sentence(similarity):
    torch.manual_seed(3)
    u, v, negative = (torch.randn(4, 3, dtype=torch.double, requires_grad=True) for _ in range(3))
    negative_of = torch.tensor([[True, False], [False, True], [False, False], [True, False]])
    options = {"similarity": similarity, "scale": 3.0}
    result = alignment_loss(u, v, negatives=Negatives(negative, negative_of), **options)
    cut = (lambda x: F.normalize(x, dim=1)) if similarity == "cosine" else (lambda x: x)
    expected = u.new_zeros(())
    for side, (queries, candidates) in enumerate(((u, v), (v, u))):
        for i in range(4):
            rows = [*candidates, *([negative[i]] if negative_of[i, side] else [])]
            expected = expected - (3.0 * cut(torch.stack(rows)) @ cut(queries[i : i + 1])[0]).log_softmax(0)[i]
    assert_same_with_gradients(result, expected, (u, v, negative))


def test_sentences_with_the_text_of_the_true_one_are_no_candidates():
    torch.manual_seed(3)
    u, v = (torch.randn(4, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    same_text = torch.zeros(2, 4, 4, dtype=torch.bool)
    same_text[0, 1, 2] = same_text[1, 3, 0] = True  # u_1 does not see v_2, v_3 does not see u_0
    result = alignment_loss(u, v, same_text=same_text)
    expected = u.new_zeros(())
    for side, (queries, candidates) in enumerate(((u, v), (v, u))):
        for i in range(4):
            seen = [j for j in range(4) if not same_text[side, i, j]]
            expected = expected - (candidates[seen] @ queries[i]).log_softmax(0)[seen.index(i)]
    assert_same_with_gradients(result, expected, (u, v))


def test_gathered_candidates_equal_the_whole_batch():
    u, v = torch.randn(6, 4, dtype=torch.double), torch.randn(6, 4, dtype=torch.double)
    pad = F.pad(u, (0, 0, 0, 2)), F.pad(v, (0, 0, 0, 2))
    is_candidate = torch.arange(8) < 6
    parts = [
        alignment_loss(u[rows], v[rows], candidates=Candidates(*pad, rows.start, is_candidate))
        for rows in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(sum(parts), alignment_loss(u, v))


def test_a_pair_sees_its_own_row_though_it_is_no_candidate_for_others():
    u, v = torch.randn(2, 4, 3, dtype=torch.double)
    first, others = Candidates(u, v, 0, torch.tensor([False, True, True, False])), slice(0, 3)
    expected = alignment_loss(u[:1], v[:1], candidates=Candidates(u[others], v[others], 0, torch.ones(3).bool()))
    torch.testing.assert_close(alignment_loss(u[:1], v[:1], candidates=first), expected)


def test_candidates_and_negatives_in_half_precision_are_widened_too():
    torch.manual_seed(0)
    half = torch.randn(5, 4, 6).bfloat16()
    own, of, is_candidate = half[4], torch.ones(4, 2).bool(), torch.ones(4).bool()

    def loss(u, v, more_u, more_v, negative):
        candidates, negatives = Candidates(more_u, more_v, 0, is_candidate), Negatives(negative, of)
        return alignment_loss(u, v, similarity="cosine", candidates=candidates, negatives=negatives)

    assert loss(*half[:4], own) == loss(*half[:4].float(), own.float())


@pytest.mark.parametrize("hard", [False, True])
def test_cosines_that_are_at_hand_change_nothing(hard):
    torch.manual_seed(0)
    u, v, own = (torch.randn(6, 8, requires_grad=True) for _ in range(3))
    negatives = Negatives(own, torch.tensor([[True, False]] * 6)) if hard else None
    options = {"similarity": "cosine", "scale": 10, "negatives": negatives}
    values = []
    for more in ({}, {"cosines": cosine_similarities(u, v)}):
        loss = alignment_loss(u, v, **options, **more)
        values.append([loss, *torch.autograd.grad(loss, (u, v, own) if hard else (u, v))])
    torch.testing.assert_close(*values)
    other = alignment_loss(u, v, **options, cosines=-cosine_similarities(u, v))
    assert (other - values[0][0]).abs() > 0.1
    assert alignment_loss(u, v, cosines=cosine_similarities(u, v)) == alignment_loss(u, v)  # not of the inner product


def test_accuracy_counts_nearest_neighbours_by_cosine():
    # source 0 is nearest to target 1; targets 0 and 1 are both nearest to source 1; only length differs in row 2
    u = torch.tensor([[1.0, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    v = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    assert in_batch_accuracy(cosine_similarities(u, v)).tolist() == [2.0, 2.0]


def test_accuracy_of_negative_cosines_of_ties_and_of_either_way():
    # target 0 is nearer to source 1 than to source 0; no other sentence is
    assert in_batch_accuracy(torch.tensor([[-0.5, -0.9], [-0.2, -0.1]])).tolist() == [2.0, 1.0]
    assert in_batch_accuracy(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist() == [1.0, 2.0]


def test_opposite_sentences_at_the_largest_shared_scale_are_finite():
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = alignment_loss(u, -u.detach(), similarity="cosine", scale=SHARED_SCALE)
    assert loss.item() == pytest.approx(4 * 2 * SHARED_SCALE)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()


def test_opposite_sentences_beyond_the_largest_shared_scale_are_finite():
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    loss = alignment_loss(u, -u, similarity="cosine", scale=25 * SHARED_SCALE)  # no exponential of -2,000 is above 0
    assert loss.item() == pytest.approx(4 * math.log(2))
