"""`lxsr train`: print and run a recipe as a fairseq-train command."""

import argparse
import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fairseq_lxsr.cli.options import data_first
from fairseq_lxsr.errors import InputError, install_command, say
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.options import FILE_NAME, file_path, read_yaml_config

if TYPE_CHECKING:
    from fairseq_lxsr.recipes import Recipe

# Requirements file with the tested fairseq release and its checksum.
FAIRSEQ = PACKAGE / "recipes" / "fairseq.txt"
# READTHEDOCS=1 skips building fairseq's extension modules, which the tasks of this package do not
# need.
PIP = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "-r"]
INSTALL = f"READTHEDOCS=1 {shlex.join([sys.executable, *PIP, str(FAIRSEQ)])}"
# Warnings of hydra and torch before training, which only concern the authors of fairseq.
SILENT_WARNINGS = (
    "UserWarning:hydra.compose",
    "UserWarning:hydra.core.default_element",
    "UserWarning:hydra.experimental.compose",
    "UserWarning:hydra.experimental.initialize",
    "UserWarning:runpy",
    "UserWarning:torch.utils.data.dataloader",
    "FutureWarning:fairseq.tasks.fairseq_task",
)
# Program that runs fairseq-train. Ctrl-C prints one line, even while modules are being imported.
# It does not import this package, because --user-dir must import it first.
START = """import logging.handlers, os, runpy, sys
def report(kind, error, traceback, others=sys.excepthook):
    if not issubclass(kind, KeyboardInterrupt):
        return others(kind, error, traceback)
    print("lxsr train: interrupted", file=sys.stderr)
    raise SystemExit(130)
sys.excepthook = report
# Log records are kept for the task, see training/console.py.
if os.environ["LXSR_TRAIN_SHOWS"] != "fairseq":
    level = logging.CRITICAL + 1
    memory = logging.handlers.MemoryHandler(sys.maxsize, level, flushOnClose=False)
    logging.root.handlers = [memory]
    logging.root.setLevel(logging.INFO)
runpy.run_module("fairseq_cli.train", run_name="__main__", alter_sys=True)"""
# From this Python version on, importing fairseq fails, because it cannot read the types of its
# options.
TOO_NEW = (3, 14)
# Options that start training from trained weights.
CONTINUING = {"--from-model", "--finetune-from-model", "--restore-file", "--continue-once"}
EPILOG = """Options of fairseq-train replace recipe options; --no-X removes --X and its value.
--max-update and --max-epoch replace each other, and the learning rate reaches zero at the last
update. SAVE_DIR/train.log contains the complete log of fairseq-train; --log-format simple or json
shows it on the screen. All options: fairseq-train --user-dir "$(lxsr user-dir)" --help"""


def add_parser(verbs) -> None:
    parser = verbs.add_parser("train", description=__doc__, epilog=EPILOG, allow_abbrev=False)
    parser.usage = (
        "lxsr train DATA_BIN [--recipe NAME] [--from MODEL] [--print] [option of fairseq-train ...]"
    )
    parser.add_argument(
        "data",
        type=FILE_NAME,
        metavar="DATA_BIN",
        help="data folder written by `lxsr prepare`; separate several shards with :",
    )
    parser.add_argument("--recipe", metavar="NAME", help="training recipe; see `lxsr recipes`")
    parser.add_argument(
        "--from",
        dest="start",
        type=FILE_NAME,
        metavar="MODEL",
        help="continue training a model without layers: a model folder, or a model of this "
        "package. DATA_BIN must come from `lxsr prepare --from-model MODEL` (default recipe: "
        "new_language, which leaves the old word pieces unchanged, if DATA_BIN has new ones; "
        "otherwise new_domain)",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        dest="only_print",
        help="print the fairseq-train command without running it",
    )
    parser.set_defaults(run=run_train, others=[])
    listing = verbs.add_parser("recipes", description="List the training recipes.")
    listing.set_defaults(run=run_recipes)
    add_user_dir(verbs)
    add_context(verbs)


def run_train(args: argparse.Namespace) -> None:
    data_first(args)
    if is_missing("yaml"):
        raise _not_installed()
    # Imported here because it imports numpy, which takes a moment.
    from fairseq_lxsr.recipes import train_command

    name, recipe = choose_recipe(args)
    command = train_command(recipe, args.data, args.others)
    if recipe.finetunes and not _continues_training(command):
        say(
            f"lxsr train: warning: --recipe {name} starts from random weights here, but is meant "
            "for --finetune-from-model CHECKPOINT, a checkpoint of the same width trained with "
            f"recipe {recipe.finetunes}"
        )
    if recipe.updates:
        print_length(args, command)
    if args.only_print or not args.quiet:
        print(shlex.join(["fairseq-train", *command]), flush=True)
    if not args.only_print:
        check_fairseq()
        check_user_dir(command)
        from fairseq_lxsr.text.data_folder import check_data_folder

        # fairseq would print its configuration and create --save-dir before it reads the data.
        for shard in shards_of(args):
            check_data_folder(shard)
        start_fairseq(args, command)


def choose_recipe(args: argparse.Namespace) -> tuple[str, "Recipe"]:
    """Return the name of the recipe, and the recipe with the options that --from adds to it."""
    from fairseq_lxsr.encoder.starting_model import starting_options
    from fairseq_lxsr.recipes import override, read_recipe

    name = args.recipe
    options: dict[str, bool | int | float | str] = {}
    if args.start:
        options = starting_options(args.start, shards_of(args)[0])
    if not name and not options:
        raise InputError("specify --recipe NAME (see `lxsr recipes`) or --from MODEL")
    if not name and options["frozen-pieces"]:
        name = "new_language"
    if not name:
        name = "new_domain"
    recipe = read_recipe(name)
    return name, replace(recipe, options=override(recipe.options, options))


def shards_of(args: argparse.Namespace) -> list[Path]:
    from fairseq_lxsr.text.data_folder import split_shards

    return split_shards(args.data)


def names_of(words: Sequence[str]) -> set[str]:
    """Return the fairseq-train options that the user gave, without values: `--lr` for `--lr=1`."""
    return {word.partition("=")[0] for word in words}


def print_length(args: argparse.Namespace, command: Sequence[str]) -> None:
    """Print how many updates the recipe chose for this text, unless the user set them."""
    from fairseq_lxsr.text.data_folder import count_pairs

    options = dict(pairwise(command))
    given = names_of(args.others)
    if given & {"--max-update", "--max-epoch", "--total-num-update", "--save-interval"}:
        return
    if not {"--max-update", "--save-interval"} <= options.keys():
        return
    num_pairs = 0
    for shard in shards_of(args):
        num_pairs += sum(count_pairs(shard, options.get("--lang-pairs", "")).values())
    validated = "validated and "
    if "--disable-validation" in given:
        validated = ""
    every = f"{options['--save-interval']} epochs"
    if "--save-interval-updates" in options:
        every = f"{options['--save-interval-updates']} updates"
    say(
        f"lxsr train: {num_pairs:,} pairs: {int(options['--max-update']):,} updates, "
        f"{validated}saved every {every}; set --max-update N for another length"
    )


def check_user_dir(command: Sequence[str]) -> None:
    """Check that --user-dir is a folder of Python code, before fairseq imports it."""
    folder = dict(pairwise(command)).get("--user-dir", str(PACKAGE))
    if not Path(folder).is_dir():
        raise InputError(f"--user-dir {folder}: no such folder; expected one with __init__.py")
    if not Path(folder, "__init__.py").is_file():
        raise InputError(f"--user-dir {folder}: no __init__.py in it, which imports your code")


def check_fairseq() -> None:
    """Check that fairseq is installed, and that this Python version can import it."""
    if sys.version_info >= TOO_NEW:
        raise InputError(
            f"{sys.executable} is Python {platform.python_version()}, which cannot import fairseq; "
            "train with Python 3.11 to 3.13, and encode with any version"
        )
    if importlib.util.find_spec("fairseq_cli") is None:
        raise _not_installed()


def start_fairseq(args: argparse.Namespace, command: Sequence[str]) -> NoReturn:
    """Replace this process with fairseq-train."""
    shows = "progress"
    if "--log-format" in names_of(args.others):
        shows = "fairseq"
    if args.quiet:
        shows = "errors"
    # The setting is an environment variable, so that the processes of other GPUs inherit it.
    os.environ["LXSR_TRAIN_SHOWS"] = shows
    ignore = chain.from_iterable(("-W", f"ignore::{warning}") for warning in SILENT_WARNINGS)
    os.execv(sys.executable, [sys.executable, *ignore, "-c", START, *command])


def _not_installed() -> InputError:
    return InputError(f"fairseq is not installed: {install_command('train')}; then {INSTALL}")


def run_recipes(args: argparse.Namespace) -> None:
    from fairseq_lxsr.recipes import table

    print(table())


def _continues_training(command: Sequence[str]) -> bool:
    """Return whether training starts from weights given by an option or found in --save-dir."""
    folder = dict(pairwise(command)).get("--save-dir", "checkpoints")
    return not CONTINUING.isdisjoint(command) or Path(folder, "checkpoint_last.pt").is_file()


def add_user_dir(verbs) -> None:
    description = "Print the folder to pass to fairseq-train --user-dir."
    verbs.add_parser("user-dir", description=description).set_defaults(run=print_user_dir)


def print_user_dir(args: argparse.Namespace) -> None:
    print(PACKAGE)


def add_context(verbs) -> None:
    description = "Train without parallel text: both stages and all rounds, resumable."
    parser = verbs.add_parser("train-context", description=description)
    parser.add_argument(
        "config", type=file_path, metavar="CONFIG.yaml", help="see examples/context"
    )
    parser.set_defaults(run=run_context)


def run_context(args: argparse.Namespace) -> None:
    # Imported here because torch takes seconds to import.
    from fairseq_lxsr.context.rounds import RECORD, REPORT, ContextConfig, Rounds
    from fairseq_lxsr.preparation.documents import prepare_documents

    config = read_yaml_config(args.config, ContextConfig)
    rounds = [f"round{number}" for number in range(1, config.rounds + 1)]
    outputs = [Path(config.work) / name for name in (RECORD, REPORT, "stage1", *rounds)]
    inputs = [args.config, *config.documents.values(), config.gold or None]
    refuse_overlap(outputs, inputs)
    model = Rounds(config, lambda: prepare_documents(**config.text_options)).run()
    print(f"{model}: the model of the last round; lxsr embed --model {shlex.quote(str(model))} ...")
