"""Learning rates of the benchmarks: what is read from fairseq's log."""

from benchmarks.quality.rates import held_out

# Lines of fairseq-train, with two validations.
LOG = """\
2026-11-28 22:32:38 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 30.5 | align 7.25 \
| gen 12.7 | sim 0.0573 | acc_fwd 0.483 | acc_bwd 0.477 | accuracy 0.48 | wps 50888.3 | wpb 3647 \
| bsz 125 | num_updates 10
2026-11-28 22:32:48 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 24.25 | align 6.25 \
| gen 11.7 | sim 0.0473 | acc_fwd 0.583 | acc_bwd 0.577 | accuracy 0.58 | wps 50888.3 | wpb 3647 \
| bsz 125 | num_updates 20
"""


def test_the_losses_are_those_of_the_last_validation():
    losses = {"loss": 24.25, "align": 6.25, "gen": 11.7, "sim": 0.0473, "accuracy": 0.58}

    assert held_out(LOG) == losses
