"""Parses a command line as fairseq-train does, without training."""

import importlib
from argparse import Namespace
from collections.abc import Sequence

from fairseq import options


def read_by_fairseq(command: Sequence[str]) -> Namespace:
    """Parse the options of a command, with the defaults of its --arch.

    Raises SystemExit for an option that fairseq-train does not have.
    """
    importlib.import_module("fairseq_lxsr.tasks.families")
    return options.parse_args_and_arch(options.get_training_parser(), input_args=list(command))
