"""Learning rates of the benchmarks: what is read from fairseq's log."""

from benchmarks.quality.rates import held_out

VALIDATION = (
    "2026-11-28 22:32:38 | INFO | valid | epoch 001 | valid on 'valid' subset | loss {loss} "
    "| align 6.25 | gen 11.7 | sim 0.0473 | acc_fwd 0.583 | acc_bwd 0.577 | accuracy 0.58 "
    "| wps 50888.3 | wpb 3647 | bsz 125 | num_updates {updates}\n"
)


def test_the_loss_is_that_of_the_last_validation():
    log = "".join(
        VALIDATION.format(loss=loss, updates=updates) for loss, updates in ((30.5, 10), (24.25, 20))
    )
    losses = {"loss": 24.25, "align": 6.25, "gen": 11.7, "sim": 0.0473, "accuracy": 0.58}
    assert held_out(log) == losses
