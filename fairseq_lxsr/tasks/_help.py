"""Prints the options of this plugin after those of fairseq if --help is given.

fairseq prints its help and exits before it reads --task, --arch and --criterion, so their options are missing.
"""

import argparse
import atexit
import sys

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_INV_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY

TASKS = ("xling_sent", "xling_translation", "sent_context")
MODELS = (
    "lxsr",
    "laser",
    "tlaser",
    "context_transformer",
)  # their options have the defaults of the first preset of each
CRITERIONS = ("xling_sent_loss", "xling_translation_loss", "sent_context_loss")


def add_to_help() -> None:
    """Call once, when the plugin is imported; does nothing unless the command line asks for help."""
    if {"-h", "--help"} & set(sys.argv):
        atexit.register(print_options)


def print_options() -> None:
    """Print every option of this plugin with its help and default."""
    parser = argparse.ArgumentParser(
        add_help=False, usage=argparse.SUPPRESS, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    titles = (
        *((f"--task {name}", TASK_DATACLASS_REGISTRY[name]) for name in TASKS),
        *((f"--arch {', '.join(ARCH_MODEL_INV_REGISTRY[name])}", MODEL_DATACLASS_REGISTRY[name]) for name in MODELS),
        *((f"--criterion {name}", CRITERION_DATACLASS_REGISTRY[name]) for name in CRITERIONS),
    )
    for title, config in titles:
        gen_parser_from_dataclass(parser.add_argument_group(title), config())
    print()
    parser.print_help()
