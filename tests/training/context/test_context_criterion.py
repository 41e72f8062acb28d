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


@pytest.mark.parametrize(
    ("mined", "loss"),
    [(None, losses.context_classification_loss), ("mined.tsv", losses.coherence_regression_loss)],
)
def test_the_loss_is_that_of_the_stage_and_its_metric_the_mean_per_sample(mined, loss):
    criterion = SentContextLoss(SimpleNamespace(mined=mined), task=None)
    scores = torch.tensor([2.0, -1.0, 0.5, -3.0])
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    sample = {"net_input": {}, "label": labels, "nsentences": 4, "ntokens": 9}

    def model():
        return scores

    total, num_samples, logged = criterion(model, sample)
    assert total == loss(scores, labels)
    assert num_samples == 4
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([logged])
    values = aggregate.get_smoothed_values()
    assert values["loss"] == pytest.approx(loss(scores, labels).item() / 4, abs=1e-3)
    if "accuracy" in values:
        assert values["accuracy"] == 0.75
    assert sorted(criterion.metrics) == sorted(values)


def build_model(init_branches):
    cfg = ContextTransformerConfig(encoder_embed_dim=8, encoder_attention_heads=2, encoder_layers=2)
    cfg.max_positions = 20
    cfg.init_branches = init_branches
    torch.manual_seed(0)
    task = SimpleNamespace(source_dictionary=Words(30))
    return ContextTransformerModel.build_model(cfg, task)


def test_branches_of_the_encoder_may_start_at_zero():
    zero_weights = build_model("zero").state_dict()
    for name, weight in build_model("random").state_dict().items():
        if name.endswith(("out_proj.weight", "fc2.weight")) and name.startswith("encoder."):
            assert not zero_weights[name].any()
            assert weight.any()
        else:
            assert torch.equal(zero_weights[name], weight), name
