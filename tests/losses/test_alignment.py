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


def alignment_or_matryoshka_loss(widths, u, v, **options):
    """The loss of the package: the Matryoshka loss if there are several widths."""
    if len(widths) > 1:
        return losses.matryoshka_alignment_loss(u, v, widths, **options)
    return alignment_loss(u, v, **options)


def slow_softmax_loss(queries, candidates, scale, negatives, is_hidden):
    """Reference for one direction: minus the log probability of each query's translation.

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


def random_embeddings(sides=2, pairs=4):
    """Tensors [pairs, 5] with gradients: u and v, and a third for negatives if `sides` is 3."""
    torch.manual_seed(pairs)
    return [torch.randn(pairs, 5, dtype=torch.double, requires_grad=True) for _ in range(sides)]


def test_the_value_equals_one_worked_out_by_hand():
    # The inner products are [[1, 0], [2, 2]]. The loss of one sentence is
    # log(1 + exp(product with the other sentence - product with the translation)).
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    v = torch.tensor([[1.0, 2.0], [0.0, 2.0]])

    loss = alignment_loss(u, v)

    loss_of_u = math.log1p(math.exp(0 - 1)) + math.log1p(math.exp(2 - 2))
    loss_of_v = math.log1p(math.exp(2 - 1)) + math.log1p(math.exp(0 - 2))
    assert loss.item() == pytest.approx(loss_of_u + loss_of_v)


def test_the_matryoshka_value_equals_one_worked_out_by_hand():
    """The loss of a sentence is as in the test above; u to v and v to u are alike."""
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    loss = losses.matryoshka_alignment_loss(u, u, [1, 2])

    # Of the first component alone, the inner products are [[1, 0], [0, 0]].
    loss_of_width_1 = 2 * (math.log1p(math.exp(0 - 1)) + math.log1p(math.exp(0 - 0)))
    # Of both components, they are [[1, 0], [0, 1]].
    loss_of_width_2 = 2 * (math.log1p(math.exp(0 - 1)) + math.log1p(math.exp(0 - 1)))
    assert loss.item() == pytest.approx(loss_of_width_1 + loss_of_width_2)


def test_embeddings_may_be_given_by_name():
    u, v = torch.randn(2, 5, 4)
    assert alignment_loss(u=u, v=v) == alignment_loss(u, v)


def test_the_loss_of_a_single_pair_is_zero():
    u, v = torch.randn(2, 1, 4)
    assert alignment_loss(u, v).item() == 0


@of_both_losses
@of_both_similarities
# Above SHARED_SCALE, the loss of cosines is computed in another way.
@pytest.mark.parametrize("scale", [1.0, 20.0, 5.0, SHARED_SCALE, SHARED_SCALE + 1])
@pytest.mark.parametrize("pairs", [2, 5])
def test_values_and_gradients_equal_the_slow_reference(widths, similarity, scale, pairs):
    u, v = random_embeddings(pairs=pairs)

    loss = alignment_or_matryoshka_loss(widths, u, v, similarity=similarity, scale=scale)

    expected = slow_loss(widths, u, v, similarity, scale)
    assert_same_with_gradients(loss, expected, (u, v))


@of_both_losses
@of_both_similarities
@pytest.mark.parametrize("has_negatives", [False, True])
@pytest.mark.parametrize("has_repetitions", [False, True])
def test_the_loss_with_hard_negatives_and_repeated_text_equals_the_slow_reference(
    widths, similarity, has_negatives, has_repetitions
):
    u, v, negative = random_embeddings(sides=3, pairs=4)
    tensors = [u, v]
    options = {"similarity": similarity, "scale": 3.0}
    if has_negatives:
        # The negative is a candidate for u (first column), for v (second column), or for neither.
        is_candidate = torch.tensor([[True, False], [False, True], [False, False], [True, False]])
        options["negatives"] = Negatives(negative, is_candidate)
        tensors.append(negative)
    if has_repetitions:
        # u_1 does not see v_2, and v_3 does not see u_0.
        same_text = torch.zeros(2, 4, 4, dtype=torch.bool)
        same_text[0, 1, 2] = True
        same_text[1, 3, 0] = True
        options["same_text"] = same_text

    loss = alignment_or_matryoshka_loss(widths, u, v, **options)

    assert_same_with_gradients(loss, slow_loss(widths, u, v, **options), tensors)


@of_both_losses
@of_both_similarities
def test_losses_of_two_workers_with_gathered_candidates_add_up_to_that_of_the_whole_batch(
    widths, similarity
):
    u, v = random_embeddings(pairs=6)
    # The candidates of both workers, and two rows of padding, which are no candidates.
    padded_u = F.pad(u, (0, 0, 0, 2))
    padded_v = F.pad(v, (0, 0, 0, 2))
    is_candidate = torch.tensor([True] * 6 + [False] * 2)

    loss = 0
    # The first worker has two pairs, the second has four.
    for start, end in ((0, 2), (2, 6)):
        candidates = Candidates(padded_u, padded_v, start, is_candidate)
        options = {"candidates": candidates, "similarity": similarity}
        loss = loss + alignment_or_matryoshka_loss(widths, u[start:end], v[start:end], **options)

    expected = slow_loss(widths, u, v, similarity)
    assert_same_with_gradients(loss, expected, (u, v))


def test_matryoshka_of_the_full_width_alone_is_the_alignment_loss():
    u, v = random_embeddings()
    full_width = u.shape[1]
    assert losses.matryoshka_alignment_loss(u, v, [full_width]) == alignment_loss(u, v)


def test_the_matryoshka_loss_of_half_precision_is_float32():
    u, v = random_embeddings()
    loss = losses.matryoshka_alignment_loss(u.bfloat16(), v.bfloat16(), [5])
    assert loss.dtype == torch.float32


def test_a_pair_is_its_own_candidate_even_if_it_is_not_a_candidate_for_others():
    """Of four pairs, the worker has the first, and only the second and the third are candidates."""
    u, v = torch.randn(2, 4, 3, dtype=torch.double)
    candidates = Candidates(u, v, 0, torch.tensor([False, True, True, False]))

    loss = alignment_loss(u[:1], v[:1], candidates=candidates)

    first_three = Candidates(u[:3], v[:3], 0, torch.tensor([True, True, True]))
    expected = alignment_loss(u[:1], v[:1], candidates=first_three)
    torch.testing.assert_close(loss, expected)


def test_candidates_and_negatives_in_half_precision_give_the_loss_of_float32():
    torch.manual_seed(0)
    # u, v, the candidates of both sides, and the negatives: four pairs each.
    half_tensors = torch.randn(5, 4, 6).bfloat16()

    def loss_of(u, v, candidates_u, candidates_v, negatives):
        return alignment_loss(
            u,
            v,
            similarity="cosine",
            candidates=Candidates(candidates_u, candidates_v, 0, torch.ones(4).bool()),
            negatives=Negatives(negatives, torch.ones(4, 2).bool()),
        )

    assert loss_of(*half_tensors) == loss_of(*half_tensors.float())


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


def test_precomputed_cosines_are_used_instead_of_the_embeddings():
    torch.manual_seed(0)
    u, v = torch.randn(2, 6, 8)
    options = {"similarity": "cosine", "scale": 10}
    cosines = cosine_similarities(u, v)
    opposite_cosines = cosines._replace(values=-cosines.values)

    loss = alignment_loss(u, v, **options, cosines=opposite_cosines)

    assert (loss - alignment_loss(u, v, **options)).abs() > 0.1


def test_the_loss_of_inner_products_ignores_precomputed_cosines():
    u, v = torch.randn(2, 6, 8)
    cosines = cosine_similarities(u, v)
    assert alignment_loss(u, v, cosines=cosines) == alignment_loss(u, v)


def test_unit_vectors_and_their_gradient_are_those_of_torch():
    x = torch.randn(5, 8, dtype=torch.double)
    # A vector without a direction, and a very long one.
    x[1] = 0
    x[2] *= 1e6
    x.requires_grad_()
    # Random weights of the sum, so that every component has a gradient of its own.
    weights = torch.randn_like(x)

    units = cosine_similarities(x, x).u

    expected = F.normalize(x, dim=1)
    assert_same_with_gradients((weights * units).sum(), (weights * expected).sum(), (x,))


def test_in_batch_accuracy_compares_directions_not_lengths():
    """By inner product, u_0 would prefer the long v_1, but its cosine with v_0 is larger."""
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    v = torch.tensor([[1.0, 0.0], [2.0, 9.0]])
    correct_sources, correct_targets = in_batch_accuracy(cosine_similarities(u, v).values)
    assert correct_sources == 2
    assert correct_targets == 2


@pytest.mark.parametrize(
    ("cosines", "correct_sources", "correct_targets"),
    [
        # Rows are sources, columns are targets, and translations are on the diagonal.
        # Source 0 is nearer to target 1, and target 1 is nearer to source 0.
        ([[0.5, 0.9], [0.2, 0.8]], 1, 1),
        # All are nearest to their translation except target 0, which is nearer to source 1.
        ([[-0.5, -0.9], [-0.2, -0.1]], 2, 1),
        # Source 0 has a tie, which does not count.
        ([[0.5, 0.5], [0.0, 1.0]], 1, 2),
    ],
    ids=["both", "target", "tie"],
)
def test_in_batch_accuracy_counts_sentences_that_are_nearest_to_their_translation(
    cosines, correct_sources, correct_targets
):
    counts = in_batch_accuracy(torch.tensor(cosines))
    assert counts.tolist() == [correct_sources, correct_targets]


def test_loss_and_gradient_of_opposite_translations_are_finite():
    """The cosine of a sentence with its translation is -1, with the other sentence it is 1."""
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    v = -u.detach()

    loss = alignment_loss(u, v, similarity="cosine", scale=SHARED_SCALE)

    # log(1 + exp(scale x (1 + 1))) is nearly 2 x scale, for two sentences of both sides.
    assert loss.item() == pytest.approx(4 * 2 * SHARED_SCALE)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()


def test_the_loss_is_exact_if_the_exponentials_of_all_similarities_are_zero():
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # All similarities are -1,000, whose exponential is 0 in float32.
    loss = alignment_loss(u, -u, similarity="cosine", scale=1000)
    # Each of the four sentences has two equal candidates.
    assert loss.item() == pytest.approx(4 * math.log(2))


@of_both_similarities
def test_sides_with_different_numbers_of_sentences_are_refused(similarity):
    with pytest.raises(ValueError, match=r"u \(3, 3\) and v \(4, 3\)"):
        alignment_loss(torch.eye(3), torch.eye(4, 3), similarity=similarity, scale=20.0)


@of_both_similarities
@pytest.mark.parametrize("width", [0, 4], ids=["zero", "too wide"])
def test_matryoshka_widths_outside_the_embedding_are_refused(similarity, width):
    embeddings = torch.eye(3)
    with pytest.raises(ValueError, match=f"width {width}; it must be between 1 and 3"):
        losses.matryoshka_alignment_loss(embeddings, embeddings, (1, width), similarity=similarity)
