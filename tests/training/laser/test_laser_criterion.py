"""Translation loss and distance constraint on small models: sums, parts, options, and that nothing
waits.
"""

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
    torch.manual_seed(0)
    if kind == "laser":
        cfg, model, preset = (
            laser.LaserModelConfig(),
            laser.LaserModel,
            laser.LASER_PRESETS["laser_tiny"],
        )
    else:
        cfg, model, preset = (
            tlaser.TLaserModelConfig(),
            tlaser.TLaserModel,
            tlaser.TLASER_PRESETS["tlaser_tiny"],
        )
    for name, value in (
        preset | {"dropout": dropout, "max_positions": 50, "encoder_prepend_bos": False}
    ).items():
        setattr(cfg, name, value)
    return model.build_model(cfg, TASK)


def make_criterion(**options):
    return XlingTranslationLoss(XlingTranslationLossConfig(**options), TASK)


def make_batch(pairs=6, rows=None):
    text = [corpus("en-fr", pairs, longest=9)]
    data = TranslationDataset(text, [1], padding_idx=PAD, eos_idx=EOS, max_positions=50)
    return data.collater([data[index] for index in (range(pairs) if rows is None else rows)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_translation_loss_is_fairseqs_label_smoothed_cross_entropy(kind, smoothing):
    model, batch = make_model(kind), make_batch()
    loss, pieces, logged = make_criterion(label_smoothing=smoothing)(model, batch)
    log_p = F.log_softmax(model(**batch["net_input"])[0], dim=2).flatten(0, 1)
    expected, nll = label_smoothed_nll_loss(
        log_p, batch["target"].flatten(), smoothing, ignore_index=PAD
    )
    assert pieces == batch["ntokens"] == batch["target"].ne(PAD).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(logged["nll_loss"], nll, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_total_is_the_weighted_sum_of_the_parts(kind):
    model, batch = make_model(kind).eval(), make_batch()
    options = {"constraint": "norm", "constraint_weight": 3.0, "negative_weight": 0.2}
    criterion = make_criterion(**options).eval()
    loss, _, logged = criterion(model, batch)
    translation = make_criterion()(model, batch)[0]
    u, v = (
        model.encoder.network(tokens)
        for tokens in (batch["net_input"]["src_tokens"], batch["target_tokens"])
    )
    pair, negative = losses.distance_constraint(u, v)
    assert logged["pair"].item() == pytest.approx(pair.item(), rel=1e-4)
    assert logged["negative"].item() == pytest.approx(negative.item(), rel=1e-4)
    expected = 0.5 * translation + 3 * (pair + 0.2 * negative)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    accuracy = sum(losses.in_batch_accuracy(losses.cosine_similarities(u, v).values)) / 2
    assert logged["accuracy"].item() == pytest.approx(accuracy.item())


def test_defaults_are_those_of_the_paper():
    cfg = XlingTranslationLossConfig()
    found = (cfg.constraint_weight, cfg.negative_weight, cfg.constraint_margin, cfg.negatives)
    assert found == (0.25, 0.5, 0.5, 20)
    assert cfg.label_smoothing == 0.1
    with pytest.raises(InputError, match=r"--negatives 5.*--constraint"):
        make_criterion(negatives=5)


def test_gradient_reaches_the_encoder_through_source_and_target():
    model, batch = make_model("tlaser"), make_batch()
    weight = model.encoder.network.embed_tokens.weight
    own = set(batch["net_input"]["src_tokens"].flatten().tolist()) - {PAD}
    theirs = set(batch["target_tokens"].flatten().tolist()) - own - {PAD}
    assert theirs
    for constraint, reached in (("none", False), ("norm", True), ("angular", True)):
        model.zero_grad()
        make_criterion(constraint=constraint)(model, batch)[0].backward()
        assert (weight.grad[sorted(theirs)].abs().sum(dim=1) > 0).all() == reached


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_the_pairs_changes_nothing_in_validation(kind):
    model, criterion = make_model(kind).eval(), make_criterion(constraint="norm").eval()
    plain, again = (criterion(model, make_batch(rows=rows)) for rows in (None, [3, 1, 5, 0, 4, 2]))
    for name, value in plain[2].items():
        assert float(value) == pytest.approx(float(again[2][name]), rel=1e-4), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constraint", ["none", "norm", "angular"])
def test_no_operation_of_a_step_waits_for_the_device(kind, constraint):
    model, criterion, batch = (
        make_model(kind, dropout=0.1),
        make_criterion(constraint=constraint),
        make_batch(),
    )
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not SYNCHRONISE & {name for name, _ in operations.calls}


def test_without_a_constraint_the_target_is_not_encoded_and_padding_has_no_logits():
    model, batch = make_model("tlaser"), make_batch()

    def encoded(**options):
        with Operations() as operations, torch.no_grad():
            make_criterion(**options)(model, batch)
        looked_up = sum(name == "aten::embedding" for name, _ in operations.calls)
        logits = {
            shape[0]
            for _, shape in operations.calls
            if shape and shape[-1] == VOCAB and len(shape) == 2
        }
        return looked_up, logits

    plain, logits = encoded()
    assert encoded(constraint="norm")[0] == plain + 1
    assert batch["ntokens"] in logits
    assert batch["target"].numel() not in logits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_get_float32_losses(dtype):
    model, batch = make_model("tlaser"), make_batch()
    expected = make_criterion(constraint="norm").eval()(model.eval(), batch)[0]
    loss = make_criterion(constraint="norm").eval()(model.to(dtype), batch)[0]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.03)
    loss, _, logged = make_criterion(constraint="norm")(model.float(), make_batch(rows=[2]))
    assert loss.isfinite()
    assert logged["negative"] == 0  # a batch of one pair has none


def test_metrics_are_means_over_batches_of_different_size():
    logged = [
        {
            "loss": 6.0,
            "nll_loss": 4.0,
            "pair": 3.0,
            "sample_size": 2,
            "nsentences": 1,
            "ntokens": 2,
        },
        {
            "loss": 2.0,
            "nll_loss": 4.0,
            "pair": 1.0,
            "sample_size": 6,
            "nsentences": 3,
            "ntokens": 6,
        },
    ]
    with metrics.aggregate() as aggregate:
        XlingTranslationLoss.reduce_metrics(logged)
    values = aggregate.get_smoothed_values()
    assert (values["loss"], values["nll_loss"], values["pair"]) == (1.0, 1.0, 1.0)
    assert values["ppl"] == pytest.approx(math.e)
    for constraint in ("none", "norm"):  # and those that validation has
        criterion = make_criterion(constraint=constraint)
        with metrics.aggregate(new_root=True) as aggregate:
            criterion.reduce_metrics([criterion(make_model("laser").eval(), make_batch())[2]])
        assert sorted(criterion.metrics) == sorted(aggregate.get_smoothed_values())
