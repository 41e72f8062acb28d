"""`lxsr train`: a recipe as one command of fairseq-train, printed and run; `lxsr recipes` lists
them.
"""

import argparse
import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fairseq_lxsr.cli.options import data_first
from fairseq_lxsr.errors import InputError, install_command, say
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.options import FILE_NAME, file_path, read_yaml_config

FAIRSEQ = PACKAGE / "recipes" / "fairseq.txt"  # the release that was tried, and its checksum
# without its extension modules: training/fairseq_patches.py has what is needed of them
PIP = (
    sys.executable,
    "-m",
    "pip",
    "install",
    "--no-deps",
    "--no-build-isolation",
    "-r",
    str(FAIRSEQ),
)
INSTALL = f"READTHEDOCS=1 {shlex.join(PIP)}"
# where hydra tells fairseq's authors to call it in another way: twenty lines before the first of a
# training
ADVISED = (
    "hydra.compose",
    "hydra.core.default_element",
    "hydra.experimental.compose",
    "hydra.experimental.initialize",
)
WARNED = (
    "UserWarning:runpy",
    "UserWarning:torch.utils.data.dataloader",
    "FutureWarning:fairseq.tasks.fairseq_task",
)
SILENT = (*(f"UserWarning:{module}" for module in ADVISED), *WARNED)
QUIET = [word for warning in SILENT for word in ("-W", f"ignore::{warning}")]
# fairseq-train, where Ctrl-C leaves one line also in the seconds of its imports; --user-dir must be
# the first to import this package
START = """import logging.handlers, os, runpy, sys
def report(kind, error, traceback, others=sys.excepthook):
    if not issubclass(kind, KeyboardInterrupt):
        return others(kind, error, traceback)
    print("lxsr train: interrupted", file=sys.stderr)
    raise SystemExit(130)
sys.excepthook = report
if os.environ["LXSR_TRAIN_SHOWS"] != "fairseq":  # what it says goes to the task, see training/console.py
    logging.root.handlers = [logging.handlers.MemoryHandler(sys.maxsize, logging.CRITICAL + 1, flushOnClose=False)]
    logging.root.setLevel(logging.INFO)
runpy.run_module("fairseq_cli.train", run_name="__main__", alter_sys=True)"""
TOO_NEW = (3, 14)  # where the types of fairseq's options are written in another way than it reads
GOING_ON = {"--from-model", "--finetune-from-model", "--restore-file", "--continue-once"}
EPILOG = """Options of fairseq-train replace those of the recipe; --no-X takes out its --X, with its value. --max-update
and --max-epoch replace each other, and the learning rate reaches zero at the last update. SAVE_DIR/train.log has all
that fairseq-train says, and --log-format simple or json shows it. All options:
fairseq-train --user-dir "$(lxsr user-dir)" --help"""


def add_parser(verbs) -> None:
    parser = verbs.add_parser("train", description=__doc__, epilog=EPILOG, allow_abbrev=False)
    parser.usage = (
        "lxsr train DATA_BIN [--recipe NAME] [--from MODEL] [--print] [option of fairseq-train ...]"
    )
    parser.add_argument(
        "data",
        type=FILE_NAME,
        metavar="DATA_BIN",
        help="folder of `lxsr prepare`; shards joined by :",
    )
    parser.add_argument("--recipe", metavar="NAME", help="one of `lxsr recipes`")
    parser.add_argument(
        "--from",
        dest="start",
        type=FILE_NAME,
        metavar="MODEL",
        help="go on from a model without layers: a model folder, or a model of this package; DATA_BIN of `lxsr prepare "
        "--from-model MODEL` (default recipe: new_language where it has pieces more than MODEL, whose rows stay then; "
        "else new_domain)",
    )
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="print the command and stop"
    )
    parser.set_defaults(run=run_train, others=[])
    listing = verbs.add_parser("recipes", description="List the training recipes.")
    listing.set_defaults(run=run_recipes)
    add_user_dir(verbs)
    add_context(verbs)


def run_train(args: argparse.Namespace) -> None:
    data_first(args)
    # numpy and others take a moment
    from fairseq_lxsr.encoder.starting_model import start_options
    from fairseq_lxsr.recipes import override, read_recipe, train_command
    from fairseq_lxsr.text.data_folder import check_data_folder, count_pairs

    if is_missing("yaml"):  # that of the recipe
        raise _not_installed()
    start = start_options(args.start, Path(args.data.split(os.pathsep)[0])) if args.start else {}
    if not (args.recipe or start):
        raise InputError("--recipe is missing; expected one of `lxsr recipes`, or --from MODEL")
    name = args.recipe or ("new_language" if start["frozen-pieces"] else "new_domain")
    recipe = read_recipe(name)
    recipe = replace(recipe, options=override(recipe.options, start))
    command = train_command(recipe, args.data, args.others)
    if recipe.finetunes and not _goes_on(command):
        say(
            f"lxsr train: warning: --recipe {name} trains from nothing here; it is made for "
            f"--finetune-from-model CHECKPOINT of recipe {recipe.finetunes} and the same width"
        )
    options = dict(pairwise(command))
    own = {word.partition("=")[0] for word in args.others}
    chosen = {"--max-update", "--max-epoch", "--total-num-update", "--save-interval"}
    if (
        recipe.updates
        and not own & chosen
        and {"--max-update", "--save-interval"} <= options.keys()
    ):
        wanted, shards = options.get("--lang-pairs", ""), map(Path, args.data.split(os.pathsep))
        pairs = sum(sum(count_pairs(shard, wanted).values()) for shard in shards)
        checked = "" if "--disable-validation" in own else "validated and "
        updates, epochs = options.get("--save-interval-updates"), options["--save-interval"]
        every = f"{updates} updates" if updates else f"{epochs} epochs"
        how = f"{int(options['--max-update']):,} updates, {checked}saved every {every}"
        say(f"lxsr train: {pairs:,} pairs: {how}; --max-update N takes another length")
    if args.only_print or not args.quiet:
        print(shlex.join(["fairseq-train", *command]), flush=True)
    if args.only_print:
        return
    if sys.version_info >= TOO_NEW:
        raise InputError(
            f"{sys.executable} is Python {platform.python_version()}, which cannot import fairseq; train with Python "
            "3.11 to 3.13, and encode with any"
        )
    if importlib.util.find_spec("fairseq_cli") is None:
        raise _not_installed()
    for shard in args.data.split(
        os.pathsep
    ):  # before fairseq prints its configuration and makes --save-dir
        check_data_folder(Path(shard))
    shown = "errors" if args.quiet else "fairseq" if "--log-format" in own else "progress"
    os.environ["LXSR_TRAIN_SHOWS"] = shown  # the processes of other GPUs inherit it
    os.execv(sys.executable, [sys.executable, *QUIET, "-c", START, *command])


def _not_installed() -> InputError:
    return InputError(f"fairseq is not installed: {install_command('train')}; then {INSTALL}")


def run_recipes(args: argparse.Namespace) -> None:
    from fairseq_lxsr.recipes import table

    print(table())


def _goes_on(command: Sequence[str]) -> bool:
    """Say whether training begins with a trained model: one that is named, or one in the folder of
    checkpoints.
    """
    folder = dict(pairwise(command)).get("--save-dir", "checkpoints")
    return not GOING_ON.isdisjoint(command) or Path(folder, "checkpoint_last.pt").is_file()


def add_user_dir(verbs) -> None:
    description = "Print the folder that fairseq-train --user-dir takes."
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
    # torch and others take seconds to import
    from fairseq_lxsr.context.rounds import RECORD, REPORT, ContextConfig, Rounds
    from fairseq_lxsr.preparation.documents import prepare_documents

    config = read_yaml_config(args.config, ContextConfig)
    made = (RECORD, REPORT, "stage1", *(f"round{number + 1}" for number in range(config.rounds)))
    read = [args.config, *config.documents.values(), config.gold or None]
    refuse_overlap([Path(config.work) / name for name in made], read)
    model = Rounds(config, lambda: prepare_documents(**config.text_options)).run()
    print(f"{model}: the model of the last round; lxsr embed --model {shlex.quote(str(model))} ...")
