"""What fairseq-train makes of a command line, without training."""

import importlib
from argparse import Namespace
from collections.abc import Sequence

from fairseq import options


def read_by_fairseq(command: Sequence[str]) -> Namespace:
    """The options of a command of ours, after --arch has filled its own in; SystemExit for what
    fairseq-train lacks.
    """
    importlib.import_module("fairseq_lxsr.tasks.families")
    return options.parse_args_and_arch(options.get_training_parser(), input_args=list(command))
