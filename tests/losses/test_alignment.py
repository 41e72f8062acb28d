"""The alignment loss and Matryoshka, which is that of the first units for every width, one pair at
a time.
"""

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


def slow_loss(widths, u, v, similarity="inner", scale=1.0, negatives=None, same_text=None):
    """Reference: of every width, side and pair, one softmax over the candidates that the pair
    sees.
    """
    total = u.new_zeros(())
    for width in widths:
        cut = [side[:, :width] for side in (u, v, *(negatives or [])[:1])]
        if similarity == "cosine":
            cut = [side / side.norm(dim=1, keepdim=True) for side in cut]
        for side, (queries, candidates) in enumerate(((cut[0], cut[1]), (cut[1], cut[0]))):
            for i in range(len(u)):
                rows = [j for j in range(len(u)) if same_text is None or not same_text[side, i, j]]
                seen = [candidates[j] for j in rows]
                if negatives is not None and negatives.is_candidate[i, side]:
                    seen.append(cut[2][i])
                total = (
                    total - (scale * torch.stack(seen) @ queries[i]).log_softmax(0)[rows.index(i)]
                )
    return total


def sides(count=2, pairs=4):
    torch.manual_seed(pairs)
    return [torch.randn(pairs, 5, dtype=torch.double, requires_grad=True) for _ in range(count)]


def test_value_worked_out_by_hand():
    # S = [[1, 0], [2, 2]]; rows: log(1 + e^-1) + log 2; columns: log(1 + e^1) + log(1 + e^-2)
    u, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 2.0]])
    expected = (
        math.log1p(math.exp(-1)) + math.log(2) + math.log1p(math.e) + math.log1p(math.exp(-2))
    )
    assert alignment_loss(u, v).item() == pytest.approx(expected)
    # of the first unit: S = [[1, 0], [0, 0]], of both: S = [[1, 0], [0, 1]]; rows and columns alike
    one, two = math.log1p(math.exp(-1)) + math.log(2), 2 * math.log1p(math.exp(-1))
    assert losses.matryoshka_alignment_loss(u, u, [1, 2]).item() == pytest.approx(2 * one + 2 * two)


def test_arguments_may_have_names_and_one_pair_has_nothing_to_tell_apart():
    u, v = torch.randn(2, 5, 4)
    assert alignment_loss(u=u, v=v) == alignment_loss(u, v)
    assert alignment_loss(u[:1], v[:1]).item() == 0


@of_both_losses
@of_both_similarities
@pytest.mark.parametrize("scale", [1.0, 20.0, 5.0, SHARED_SCALE, SHARED_SCALE + 1])
@pytest.mark.parametrize("pairs", [2, 5])
def test_values_and_gradients_equal_the_slow_reference(widths, similarity, scale, pairs):
    u, v = sides(pairs=pairs)
    found = loss_of(widths, u, v, similarity=similarity, scale=scale)
    assert_same_with_gradients(found, slow_loss(widths, u, v, similarity, scale), (u, v))


@of_both_losses
@of_both_similarities
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_with_a_negative_of_its_own_and_without_sentences_of_the_same_text(
    widths, similarity, hard, repeated
):
    u, v, negative = sides(3)
    of = torch.tensor([[True, False], [False, True], [False, False], [True, False]])
    same_text = torch.zeros(2, 4, 4, dtype=torch.bool)
    same_text[0, 1, 2] = same_text[1, 3, 0] = True  # u_1 does not see v_2, v_3 does not see u_0
    options = {
        "similarity": similarity,
        "scale": 3.0,
        "negatives": Negatives(negative, of) if hard else None,
    }
    options["same_text"] = same_text if repeated else None
    tensors = (u, v, negative) if hard else (u, v)
    assert_same_with_gradients(
        loss_of(widths, u, v, **options), slow_loss(widths, u, v, **options), tensors
    )


@of_both_losses
@of_both_similarities
def test_gathered_candidates_equal_the_whole_batch(widths, similarity):
    u, v = sides(pairs=6)
    pad, is_candidate = [F.pad(side, (0, 0, 0, 2)) for side in (u, v)], torch.arange(8) < 6
    parts = [
        loss_of(
            widths,
            u[rows],
            v[rows],
            candidates=Candidates(*pad, rows.start, is_candidate),
            similarity=similarity,
        )
        for rows in (slice(0, 2), slice(2, 6))
    ]
    assert_same_with_gradients(sum(parts), slow_loss(widths, u, v, similarity), (u, v))


def test_matryoshka_of_the_full_width_alone_is_the_alignment_loss():
    u, v = sides()
    assert losses.matryoshka_alignment_loss(u, v, [5]) == alignment_loss(u, v)
    assert losses.matryoshka_alignment_loss(u.bfloat16(), v.bfloat16(), [5]).dtype == torch.float32


def test_a_pair_sees_its_own_row_though_it_is_no_candidate_for_others():
    u, v = torch.randn(2, 4, 3, dtype=torch.double)
    first, others = Candidates(u, v, 0, torch.tensor([False, True, True, False])), slice(0, 3)
    expected = alignment_loss(
        u[:1], v[:1], candidates=Candidates(u[others], v[others], 0, torch.ones(3).bool())
    )
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
    cosines = cosine_similarities(u, v)
    opposite = cosines._replace(values=-cosines.values)
    other = alignment_loss(u, v, **options, cosines=opposite)
    assert (other - values[0][0]).abs() > 0.1
    # not of the inner product
    assert alignment_loss(u, v, cosines=cosine_similarities(u, v)) == alignment_loss(u, v)


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
    # source 0 is nearest to target 1; targets 0 and 1 are both nearest to source 1; only length
    # differs in row 2
    u = torch.tensor([[1.0, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    v = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    assert in_batch_accuracy(cosine_similarities(u, v).values).tolist() == [2.0, 2.0]
    # target 0 is nearer to source 1 than to source 0; no other sentence is
    assert in_batch_accuracy(torch.tensor([[-0.5, -0.9], [-0.2, -0.1]])).tolist() == [2.0, 1.0]
    assert in_batch_accuracy(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist() == [1.0, 2.0]


def test_opposite_sentences_at_any_scale_are_finite():
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = alignment_loss(u, -u.detach(), similarity="cosine", scale=SHARED_SCALE)
    assert loss.item() == pytest.approx(4 * 2 * SHARED_SCALE)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # no exponential of -2,000 is above 0
    loss = alignment_loss(u, -u, similarity="cosine", scale=25 * SHARED_SCALE)
    assert loss.item() == pytest.approx(4 * math.log(2))


@of_both_similarities
def test_sides_of_other_lengths_are_refused(similarity):
    with pytest.raises(ValueError, match=r"\(3, 3\) and v \(4, 3\)"):
        alignment_loss(torch.eye(3), torch.eye(4, 3), similarity=similarity, scale=20.0)
    for width in (0, 4):
        with pytest.raises(ValueError, match=f"width {width}\\b.* 3"):
            losses.matryoshka_alignment_loss(
                torch.eye(3), torch.eye(3), (1, width), similarity=similarity
            )
