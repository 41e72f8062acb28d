"""Translation loss and distance constraint on small models."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics
from operations import SYNCHRONISE, Operations
from pair_batches import EOS, PAD, Words, corpus

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.laser import lstm as laser
from fairseq_lxsr.training.laser import transformer as tlaser
from fairseq_lxsr.training.laser.criterion import XlingTranslationLoss, XlingTranslationLossConfig
from fairseq_lxsr.training.laser.dataset import TranslationDataset

KINDS = ["laser", "tlaser"]


TASK = SimpleNamespace(source_dictionary=Words(), target_dictionary=Words(), languages=["en", "fr"])
VOCAB = len(TASK.source_dictionary)


def make_model(kind, dropout=0.0):
    """The smallest LASER or T-LASER model, always with the same weights."""
    torch.manual_seed(0)
    if kind == "laser":
        cfg = laser.LaserModelConfig()
        model = laser.LaserModel
        options = laser.LASER_PRESETS["laser_tiny"]
    else:
        cfg = tlaser.TLaserModelConfig()
        model = tlaser.TLaserModel
        options = tlaser.TLASER_PRESETS["tlaser_tiny"]
    options = options | {"dropout": dropout, "max_positions": 50, "encoder_prepend_bos": False}
    for name, value in options.items():
        setattr(cfg, name, value)
    return model.build_model(cfg, TASK)


def make_criterion(**options):
    return XlingTranslationLoss(XlingTranslationLossConfig(**options), TASK)


def make_batch(rows=(0, 1, 2, 3, 4, 5)):
    """The pairs with these numbers, translated from English to French."""
    text = [corpus("en-fr", 6, longest=9)]
    data = TranslationDataset(text, [1], padding_idx=PAD, eos_idx=EOS, max_positions=50)
    return data.collater([data[row] for row in rows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_translation_loss_is_the_label_smoothed_cross_entropy_of_fairseq(kind, smoothing):
    model = make_model(kind)
    batch = make_batch()

    loss, num_pieces, logged = make_criterion(label_smoothing=smoothing)(model, batch)

    logits, _ = model(**batch["net_input"])
    log_p = F.log_softmax(logits, dim=2).flatten(0, 1)
    expected, expected_without_smoothing = label_smoothed_nll_loss(
        log_p, batch["target"].flatten(), smoothing, ignore_index=PAD
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(logged["nll_loss"], expected_without_smoothing, rtol=1e-5, atol=1e-4)
    assert num_pieces == batch["target"].ne(PAD).sum()
    assert batch["ntokens"] == num_pieces


def embed_sides(model, batch):
    """The embeddings of sources and targets."""
    u = model.encoder.network(batch["net_input"]["src_tokens"])
    v = model.encoder.network(batch["target_tokens"])
    return u, v


@pytest.mark.parametrize("kind", KINDS)
def test_the_total_is_the_weighted_sum_of_translation_and_constraint(kind):
    model = make_model(kind).eval()
    batch = make_batch()
    options = {"constraint": "norm", "constraint_weight": 3.0, "negative_weight": 0.2}

    loss, _, logged = make_criterion(**options).eval()(model, batch)

    translation, _, _ = make_criterion()(model, batch)
    pair, negative = losses.distance_constraint(*embed_sides(model, batch))
    assert logged["pair"].item() == pytest.approx(pair.item(), rel=1e-4)
    assert logged["negative"].item() == pytest.approx(negative.item(), rel=1e-4)
    # If there is a constraint, the translation has a weight of 0.5.
    expected = 0.5 * translation + 3 * (pair + 0.2 * negative)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logged_accuracy_is_the_mean_of_both_directions(kind):
    model = make_model(kind).eval()
    batch = make_batch()
    _, _, logged = make_criterion(constraint="norm").eval()(model, batch)
    cosines = losses.cosine_similarities(*embed_sides(model, batch)).values
    correct_sources, correct_targets = losses.in_batch_accuracy(cosines)
    expected = (correct_sources + correct_targets) / 2
    assert logged["accuracy"].item() == pytest.approx(expected.item())


def test_defaults_are_those_of_the_paper():
    cfg = XlingTranslationLossConfig()
    assert cfg.constraint_weight == 0.25
    assert cfg.negative_weight == 0.5
    assert cfg.constraint_margin == 0.5
    assert cfg.negatives == 20
    assert cfg.label_smoothing == 0.1


def test_negatives_without_a_constraint_are_refused():
    with pytest.raises(InputError, match=r"--negatives 5.*--constraint"):
        make_criterion(negatives=5)


@pytest.mark.parametrize(
    ("constraint", "has_gradient"), [("none", False), ("norm", True), ("angular", True)]
)
def test_only_a_constraint_trains_the_encoder_with_the_target(constraint, has_gradient):
    model = make_model("tlaser")
    batch = make_batch()
    # Pieces whose embeddings the encoder reads only in the target.
    source_pieces = set(batch["net_input"]["src_tokens"].flatten().tolist())
    target_pieces = set(batch["target_tokens"].flatten().tolist())
    only_in_target = sorted(target_pieces - source_pieces - {PAD})
    assert only_in_target

    loss, _, _ = make_criterion(constraint=constraint)(model, batch)
    loss.backward()

    gradient = model.encoder.network.embed_tokens.weight.grad[only_in_target]
    for row in gradient:
        assert row.any() == has_gradient


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_pairs_changes_no_loss_of_validation(kind):
    model = make_model(kind).eval()
    criterion = make_criterion(constraint="norm").eval()
    _, _, expected = criterion(model, make_batch())
    _, _, logged = criterion(model, make_batch(rows=[3, 1, 5, 0, 4, 2]))
    for name, value in expected.items():
        assert float(logged[name]) == pytest.approx(float(value), rel=1e-4), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constraint", ["none", "norm", "angular"])
def test_no_operation_of_a_step_waits_for_the_device(kind, constraint):
    model = make_model(kind, dropout=0.1)
    criterion = make_criterion(constraint=constraint)
    batch = make_batch()
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not SYNCHRONISE & {name for name, _ in operations.calls}


def operations_of_a_step(criterion, model, batch):
    """The name of each operation of torch, and the shape of its result."""
    with Operations() as operations, torch.no_grad():
        criterion(model, batch)
    return operations.calls


def num_lookups(calls):
    """How often embeddings of pieces or languages are looked up."""
    return sum(name == "aten::embedding" for name, _ in calls)


def test_only_a_constraint_encodes_the_target():
    model = make_model("tlaser")
    batch = make_batch()
    plain = operations_of_a_step(make_criterion(), model, batch)
    constrained = operations_of_a_step(make_criterion(constraint="norm"), model, batch)
    # The pieces of the target are looked up once more.
    assert num_lookups(constrained) == num_lookups(plain) + 1


def test_no_logits_of_padding_are_computed():
    batch = make_batch()
    # The number of rows of each matrix with a column for each piece of the vocabulary.
    numbers_of_logits = set()
    for _, shape in operations_of_a_step(make_criterion(), make_model("tlaser"), batch):
        if shape and shape[-1] == VOCAB and len(shape) == 2:
            numbers_of_logits.add(shape[0])
    number_of_pieces = batch["ntokens"]
    number_with_padding = batch["target"].numel()
    assert number_of_pieces in numbers_of_logits
    assert number_with_padding not in numbers_of_logits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_half_precision_models_are_float32(dtype):
    model = make_model("tlaser").eval()
    batch = make_batch()
    criterion = make_criterion(constraint="norm").eval()
    expected, _, _ = criterion(model, batch)
    loss, _, _ = criterion(model.to(dtype), batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.03)


def test_a_batch_of_one_pair_has_no_loss_of_negatives():
    criterion = make_criterion(constraint="norm")
    loss, _, logged = criterion(make_model("tlaser"), make_batch(rows=[2]))
    assert loss.isfinite()
    assert logged["negative"] == 0


def test_metrics_are_means_over_batches_of_different_size():
    # Losses are sums: over `ntokens` pieces or, for `pair`, over `nsentences` pairs.
    small = {"loss": 6.0, "nll_loss": 4.0, "pair": 3.0}
    small |= {"sample_size": 2, "nsentences": 1, "ntokens": 2}
    large = {"loss": 2.0, "nll_loss": 4.0, "pair": 1.0}
    large |= {"sample_size": 6, "nsentences": 3, "ntokens": 6}

    with metrics.aggregate() as aggregate:
        XlingTranslationLoss.reduce_metrics([small, large])

    values = aggregate.get_smoothed_values()
    assert values["loss"] == (6 + 2) / (2 + 6)
    assert values["nll_loss"] == (4 + 4) / (2 + 6)
    assert values["pair"] == (3 + 1) / (1 + 3)
    # The perplexity is the exponential of the mean in nats.
    assert values["ppl"] == pytest.approx(math.exp(values["nll_loss"]))


@pytest.mark.parametrize("constraint", ["none", "norm"])
def test_the_metrics_of_the_criterion_are_those_of_validation(constraint):
    criterion = make_criterion(constraint=constraint)
    _, _, logged = criterion(make_model("laser").eval(), make_batch())
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([logged])
    assert sorted(criterion.metrics) == sorted(aggregate.get_smoothed_values())
