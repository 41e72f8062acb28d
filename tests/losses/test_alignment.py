"""The alignment loss, and its Matryoshka form, the sum over prefixes of the embeddings."""

import math

import pytest
import torch
import torch.nn.functional as F
from same_gradients import assert_same_with_gradients

from fairseq_lxsr import losses
from fairseq_lxsr.losses import (
    Candidates,
    Negatives,
    alignment_loss,
    cosine_similarities,
    in_batch_accuracy,
)
from fairseq_lxsr.losses.alignment import SHARED_SCALE

of_both_losses = pytest.mark.parametrize(
    "widths", [[5], [1, 2, 5]], ids=["alignment", "matryoshka"]
)
of_both_similarities = pytest.mark.parametrize("similarity", ["inner", "cosine"])


def loss_of(widths, u, v, **options):
    if len(widths) > 1:
        return losses.matryoshka_alignment_loss(u, v, widths, **options)
    return alignment_loss(u, v, **options)


def slow_softmax_loss(queries, candidates, scale, negatives, is_hidden):
    """Reference for one direction: the log probability of the translation of each query.

    Args:
        queries: [N, D]; query number i belongs to candidate number i.
        candidates: [N, D].
        scale: factor of the similarities.
        negatives: an additional candidate for each query, or None.
        is_hidden: function of a query and a candidate: whether they have the same text.
    """
    loss = queries.new_zeros(())
    for query in range(len(queries)):
        rows = [row for row in range(len(candidates)) if not is_hidden(query, row)]
        vectors = [candidates[row] for row in rows]
        if negatives[query] is not None:
            vectors.append(negatives[query])
        scores = scale * torch.stack(vectors) @ queries[query]
        loss = loss - scores.log_softmax(0)[rows.index(query)]
    return loss


def slow_loss(widths, u, v, similarity="inner", scale=1.0, negatives=None, same_text=None):
    """Reference: the sum over all widths and both directions."""
    loss = u.new_zeros(())
    for width in widths:
        sides = [u[:, :width], v[:, :width]]
        if negatives is not None:
            sides.append(negatives.embeddings[:, :width])
        if similarity == "cosine":
            sides = [side / side.norm(dim=1, keepdim=True) for side in sides]
        for side, queries, candidates in ((0, sides[0], sides[1]), (1, sides[1], sides[0])):
            negatives_of_queries = [None] * len(u)
            for query in range(len(u)):
                if negatives is not None and negatives.is_candidate[query, side]:
                    negatives_of_queries[query] = sides[2][query]

            def is_hidden(query, row, side=side):
                return same_text is not None and bool(same_text[side, query, row])

            loss = loss + slow_softmax_loss(
                queries, candidates, scale, negatives_of_queries, is_hidden
            )
    return loss


def sides(count=2, pairs=4):
    torch.manual_seed(pairs)
    return [torch.randn(pairs, 5, dtype=torch.double, requires_grad=True) for _ in range(count)]


def test_the_value_equals_one_worked_out_by_hand():
    # S = [[1, 0], [2, 2]]
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    v = torch.tensor([[1.0, 2.0], [0.0, 2.0]])
    rows = math.log1p(math.exp(-1)) + math.log(2)
    columns = math.log1p(math.e) + math.log1p(math.exp(-2))
    assert alignment_loss(u, v).item() == pytest.approx(rows + columns)


def test_the_matryoshka_value_equals_one_worked_out_by_hand():
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # The first unit: S = [[1, 0], [0, 0]]; rows and columns are alike.
    width_1 = 2 * (math.log1p(math.exp(-1)) + math.log(2))
    # Both units: S = [[1, 0], [0, 1]].
    width_2 = 2 * 2 * math.log1p(math.exp(-1))
    loss = losses.matryoshka_alignment_loss(u, u, [1, 2])
    assert loss.item() == pytest.approx(width_1 + width_2)


def test_arguments_may_be_given_by_name():
    u, v = torch.randn(2, 5, 4)
    assert alignment_loss(u=u, v=v) == alignment_loss(u, v)


def test_the_loss_of_a_single_pair_is_zero():
    u, v = torch.randn(2, 1, 4)
    assert alignment_loss(u, v).item() == 0


@of_both_losses
@of_both_similarities
@pytest.mark.parametrize("scale", [1.0, 20.0, 5.0, SHARED_SCALE, SHARED_SCALE + 1])
@pytest.mark.parametrize("pairs", [2, 5])
def test_values_and_gradients_equal_the_slow_reference(widths, similarity, scale, pairs):
    u, v = sides(pairs=pairs)
    loss = loss_of(widths, u, v, similarity=similarity, scale=scale)
    assert_same_with_gradients(loss, slow_loss(widths, u, v, similarity, scale), (u, v))


@of_both_losses
@of_both_similarities
@pytest.mark.parametrize("has_negatives", [False, True])
@pytest.mark.parametrize("has_repetitions", [False, True])
def test_hard_negatives_and_repeated_text_equal_the_slow_reference(
    widths, similarity, has_negatives, has_repetitions
):
    u, v, negative = sides(3)
    tensors = [u, v]
    options = {"similarity": similarity, "scale": 3.0}
    if has_negatives:
        is_candidate = torch.tensor([[True, False], [False, True], [False, False], [True, False]])
        options["negatives"] = Negatives(negative, is_candidate)
        tensors.append(negative)
    if has_repetitions:
        # u_1 does not see v_2, and v_3 does not see u_0.
        same_text = torch.zeros(2, 4, 4, dtype=torch.bool)
        same_text[0, 1, 2] = True
        same_text[1, 3, 0] = True
        options["same_text"] = same_text
    loss = loss_of(widths, u, v, **options)
    assert_same_with_gradients(loss, slow_loss(widths, u, v, **options), tensors)


@of_both_losses
@of_both_similarities
def test_gathered_candidates_equal_the_whole_batch(widths, similarity):
    u, v = sides(pairs=6)
    padded_u = F.pad(u, (0, 0, 0, 2))
    padded_v = F.pad(v, (0, 0, 0, 2))
    is_candidate = torch.arange(8) < 6
    loss = 0
    for start, end in ((0, 2), (2, 6)):
        candidates = Candidates(padded_u, padded_v, start, is_candidate)
        options = {"candidates": candidates, "similarity": similarity}
        loss = loss + loss_of(widths, u[start:end], v[start:end], **options)
    assert_same_with_gradients(loss, slow_loss(widths, u, v, similarity), (u, v))


def test_matryoshka_of_the_full_width_alone_is_the_alignment_loss():
    u, v = sides()
    assert losses.matryoshka_alignment_loss(u, v, [5]) == alignment_loss(u, v)
    assert losses.matryoshka_alignment_loss(u.bfloat16(), v.bfloat16(), [5]).dtype == torch.float32


def test_a_pair_is_its_own_candidate_even_if_it_is_none_for_others():
    u, v = torch.randn(2, 4, 3, dtype=torch.double)
    candidates = Candidates(u, v, 0, torch.tensor([False, True, True, False]))
    three_candidates = Candidates(u[:3], v[:3], 0, torch.ones(3).bool())
    expected = alignment_loss(u[:1], v[:1], candidates=three_candidates)
    torch.testing.assert_close(alignment_loss(u[:1], v[:1], candidates=candidates), expected)


def test_candidates_and_negatives_in_half_precision_give_the_loss_of_float32():
    torch.manual_seed(0)
    half = torch.randn(5, 4, 6).bfloat16()

    def loss(u, v, candidates_u, candidates_v, negatives):
        return alignment_loss(
            u,
            v,
            similarity="cosine",
            candidates=Candidates(candidates_u, candidates_v, 0, torch.ones(4).bool()),
            negatives=Negatives(negatives, torch.ones(4, 2).bool()),
        )

    assert loss(*half) == loss(*half.float())


@pytest.mark.parametrize("has_negatives", [False, True])
def test_precomputed_cosines_give_the_same_loss_and_gradients(has_negatives):
    torch.manual_seed(0)
    u, v, negative = (torch.randn(6, 8, requires_grad=True) for _ in range(3))
    tensors = [u, v]
    options = {"similarity": "cosine", "scale": 10}
    if has_negatives:
        options["negatives"] = Negatives(negative, torch.tensor([[True, False]] * 6))
        tensors.append(negative)
    cosines = cosine_similarities(u, v)

    loss = alignment_loss(u, v, **options, cosines=cosines)

    expected = alignment_loss(u, v, **options)
    assert_same_with_gradients(loss, expected, tensors)
    opposite = cosines._replace(values=-cosines.values)
    loss_of_other_cosines = alignment_loss(u, v, **options, cosines=opposite)
    assert (loss_of_other_cosines - expected).abs() > 0.1
    # Inner products do not use them.
    assert alignment_loss(u, v, cosines=cosines) == alignment_loss(u, v)


def test_unit_vectors_and_their_gradient_are_those_of_torch():
    x = torch.randn(5, 8, dtype=torch.double)
    x[1] = 0
    x[2] *= 1e6
    x.requires_grad_()
    weights = torch.randn_like(x)

    units = cosine_similarities(x, x).u

    expected = F.normalize(x, dim=1)
    assert_same_with_gradients((weights * units).sum(), (weights * expected).sum(), (x,))


def test_accuracy_counts_nearest_neighbours_by_cosine():
    # Source 0 is nearest to target 1; targets 0 and 1 are both nearest to source 1; in row 2, only
    # the lengths differ.
    u = torch.tensor([[1.0, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    v = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    assert in_batch_accuracy(cosine_similarities(u, v).values).tolist() == [2.0, 2.0]
    # Target 0 is nearer to source 1 than to source 0; all others are nearest to their translation.
    assert in_batch_accuracy(torch.tensor([[-0.5, -0.9], [-0.2, -0.1]])).tolist() == [2.0, 1.0]
    assert in_batch_accuracy(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist() == [1.0, 2.0]


def test_opposite_sentences_at_any_scale_are_finite():
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = alignment_loss(u, -u.detach(), similarity="cosine", scale=SHARED_SCALE)
    assert loss.item() == pytest.approx(4 * 2 * SHARED_SCALE)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # The exponential of -2,000 is 0 in float32.
    loss = alignment_loss(u, -u, similarity="cosine", scale=25 * SHARED_SCALE)
    assert loss.item() == pytest.approx(4 * math.log(2))


@of_both_similarities
def test_sides_of_different_lengths_and_impossible_widths_are_refused(similarity):
    u = torch.eye(3)
    with pytest.raises(ValueError, match=r"\(3, 3\) and v \(4, 3\)"):
        alignment_loss(u, torch.eye(4, 3), similarity=similarity, scale=20.0)
    for width in (0, 4):
        with pytest.raises(ValueError, match=f"width {width}\\b.* 3"):
            losses.matryoshka_alignment_loss(u, u, (1, width), similarity=similarity)
