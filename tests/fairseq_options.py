"""What fairseq-train makes of a command line, without training."""

import importlib
from argparse import Namespace
from collections.abc import Sequence

from conftest import ROOT
from fairseq import options


def read_by_fairseq(command: Sequence[str]) -> Namespace:
    """The options of a command of ours, after --arch has filled its own in; SystemExit for what fairseq-train lacks."""
    for kind in ("tasks",):  # as --user-dir does where nothing of it is imported yet
        for path in (ROOT / "fairseq_lxsr" / kind).glob("[!_]*.py"):
            importlib.import_module(f"fairseq_lxsr.{kind}.{path.stem}")
    return options.parse_args_and_arch(options.get_training_parser(), input_args=list(command))
