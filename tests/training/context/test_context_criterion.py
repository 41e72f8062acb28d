"""The criterion of contexts over a model that answers the same whatever it is asked."""

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
def test_means_per_sample_of_the_loss_of_the_stage(mined, loss):
    criterion = SentContextLoss(SimpleNamespace(mined=mined), task=None)
    scores, labels = torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    sample = {"net_input": {}, "label": labels, "nsentences": 4, "ntokens": 9}
    found, samples, logged = criterion(lambda: scores, sample)
    assert (found, samples) == (loss(scores, labels), 4)
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([logged])
    values = aggregate.get_smoothed_values()
    assert values["loss"] == pytest.approx(loss(scores, labels).item() / 4, abs=1e-3)
    assert values.get("accuracy", 0.75) == 0.75
    assert sorted(criterion.metrics) == sorted(values)  # those of validation


def test_branches_may_start_at_zero():
    def build(branches):
        cfg = ContextTransformerConfig(
            encoder_embed_dim=8, encoder_attention_heads=2, encoder_layers=2
        )
        cfg.max_positions = 20
        cfg.init_branches = branches
        dictionary = Words(30)
        torch.manual_seed(0)
        task = SimpleNamespace(source_dictionary=dictionary)
        return ContextTransformerModel.build_model(cfg, task).state_dict()

    zero, random = build("zero"), build("random")
    for name, value in random.items():
        if name.endswith(("out_proj.weight", "fc2.weight")) and name.startswith("encoder."):
            assert not zero[name].any()
            assert value.any()
        else:
            assert torch.equal(zero[name], value), name
