"""The criterion and the initial weights of the context model."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from pair_batches import Words

from fairseq_lxsr import losses
from fairseq_lxsr.training.context.model import (
    ContextTransformerConfig,
    ContextTransformerModel,
    SentContextLoss,
)

SCORES = torch.tensor([2.0, -1.0, 0.5, -3.0])
LABELS = torch.tensor([1.0, 0.0, 0.0, 0.0])
SAMPLE = {"net_input": {}, "label": LABELS, "nsentences": 4, "ntokens": 9}
# Training on mined pairs is a regression.
of_both_stages = pytest.mark.parametrize(
    ("mined", "loss"),
    [(None, losses.context_classification_loss), ("mined.tsv", losses.coherence_regression_loss)],
    ids=["classification", "regression"],
)


def model_with_scores():
    """Stands for a model: it has no input, and returns the scores."""
    return SCORES


def reduced_metrics(criterion, logged):
    """The values that fairseq shows of a batch."""
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([logged])
    return aggregate.get_smoothed_values()


@of_both_stages
def test_the_loss_is_that_of_the_stage(mined, loss):
    criterion = SentContextLoss(SimpleNamespace(mined=mined), task=None)
    total, num_samples, _ = criterion(model_with_scores, SAMPLE)
    assert total == loss(SCORES, LABELS)
    assert num_samples == 4


@of_both_stages
def test_the_metric_of_the_loss_is_its_mean_per_sample(mined, loss):
    criterion = SentContextLoss(SimpleNamespace(mined=mined), task=None)
    _, _, logged = criterion(model_with_scores, SAMPLE)
    values = reduced_metrics(criterion, logged)
    assert values["loss"] == pytest.approx(loss(SCORES, LABELS).item() / 4, abs=1e-3)
    assert sorted(criterion.metrics) == sorted(values)


def test_the_accuracy_of_classification_counts_scores_of_the_right_sign():
    criterion = SentContextLoss(SimpleNamespace(mined=None), task=None)
    _, _, logged = criterion(model_with_scores, SAMPLE)
    # Only the third score, 0.5, has the wrong sign for its label.
    assert reduced_metrics(criterion, logged)["accuracy"] == 3 / 4


def build_model(init_branches):
    """A small context model, whose other weights are always the same."""
    cfg = ContextTransformerConfig(encoder_embed_dim=8, encoder_attention_heads=2, encoder_layers=2)
    cfg.max_positions = 20
    cfg.init_branches = init_branches
    torch.manual_seed(0)
    task = SimpleNamespace(source_dictionary=Words(30))
    return ContextTransformerModel.build_model(cfg, task)


def test_only_the_last_projections_of_branches_of_the_encoder_may_start_at_zero():
    zero_weights = build_model("zero").state_dict()
    for name, weight in build_model("random").state_dict().items():
        is_projection = name.endswith(("out_proj.weight", "fc2.weight"))
        if is_projection and name.startswith("encoder."):
            assert not zero_weights[name].any()
            assert weight.any()
        else:
            assert torch.equal(zero_weights[name], weight), name
