"""The options of this plugin, after those of fairseq, where --help is asked for.

fairseq prints its help and exits before it looks at --task, --arch and --criterion, so theirs never show.
"""

import argparse
import atexit
import sys

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_INV_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY


def add_to_help() -> None:
    """Call once, when the plugin is imported; does nothing unless the command line asks for help."""
    if {"-h", "--help"} & set(sys.argv):
        atexit.register(print_options)


def print_options() -> None:
    """Every option of ours with its help and default."""
    parser = argparse.ArgumentParser(
        add_help=False, usage=argparse.SUPPRESS, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for title, config in (
        ("--task xling_sent", TASK_DATACLASS_REGISTRY["xling_sent"]),
        (
            f"--arch {', '.join(ARCH_MODEL_INV_REGISTRY['lxsr'])} (defaults of lxsr_base)",
            MODEL_DATACLASS_REGISTRY["lxsr"],
        ),
        ("--criterion xling_sent_loss", CRITERION_DATACLASS_REGISTRY["xling_sent_loss"]),
    ):
        gen_parser_from_dataclass(parser.add_argument_group(title), config())
    print()
    parser.print_help()
