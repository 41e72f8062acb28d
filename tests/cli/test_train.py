"""The plugin is found from any folder, and imported once."""

import os
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import lxsr_here, python, refused, run
from forks import FAIRSEQ

import fairseq_lxsr

# Lets fairseq import the folder of the package, and checks that tasks and models are registered,
# that no file is imported under two names, and that the package is found in this folder only.
IMPORT_BY_FAIRSEQ = """
import sys
from argparse import Namespace
from collections import Counter
from fairseq.tasks import TASK_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.utils import import_user_module

import_user_module(Namespace(user_dir=sys.argv[1]))
assert {"xling_sent", "sent_context", "xling_translation"} <= TASK_REGISTRY.keys()
assert {"lxsr", "laser", "tlaser", "context_transformer"} <= MODEL_REGISTRY.keys()
files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
ours = {name: file for name, file in files.items() if file.startswith(sys.argv[1])}
assert max(Counter(ours.values()).values()) == 1, Counter(ours.values())
assert all(name.split(".")[0] == "fairseq_lxsr" for name in ours), ours
import fairseq_lxsr
assert fairseq_lxsr.__path__ == [sys.argv[1]]
"""


PACKAGE = Path(fairseq_lxsr.__file__).parent.absolute()


def test_user_dir_prints_the_absolute_path_of_the_package():
    assert lxsr_here("user-dir").stdout == f"{PACKAGE}\n"


def test_fairseq_imports_the_folder_of_the_package_once_from_another_folder(tmp_path):
    python(IMPORT_BY_FAIRSEQ, PACKAGE, cwd=tmp_path, preloaded=FAIRSEQ)


# fairseq separates several data folders by os.pathsep, so none of them may have it in its name.
NAME_WITH_SEPARATOR = f"10{os.pathsep}00"


@pytest.mark.parametrize("verb", ["prepare", "run"])
def test_a_work_folder_with_the_separator_of_paths_is_refused_and_not_made(
    toy_work, tmp_path, verb
):
    text = {"prepare": ("--data", toy_work / "text"), "run": ("demo",)}[verb]

    result = lxsr_here(verb, *text, "--work", NAME_WITH_SEPARATOR, check=False, folder=tmp_path)

    refused(result, NAME_WITH_SEPARATOR, "--work")
    assert list(tmp_path.iterdir()) == []


def test_train_refuses_a_data_folder_with_the_separator_of_paths(toy_work, tmp_path):
    shutil.copytree(toy_work / "data-bin", tmp_path / NAME_WITH_SEPARATOR)
    train = ("train", NAME_WITH_SEPARATOR, "--recipe", "best", "--print")

    result = lxsr_here(*train, check=False, folder=tmp_path)

    refused(result, f"{NAME_WITH_SEPARATOR}: ", repr(os.pathsep))


def test_the_command_that_prepare_prints_trains_from_another_folder(toy_work, tmp_path):
    work = tmp_path / "a folder"
    options = ("--valid-size", 50, "--test-size", 50, "--vocab-size", 200)
    output = lxsr_here("prepare", "--work", work, "--data", toy_work / "text", *options).stdout
    # The last line is "...: fairseq-train DATA OPTIONS ...", whose dots stand for more options.
    _, _, command = output.splitlines()[-1].partition(": ")
    program, *words, dots = shlex.split(command)
    assert (program, dots) == ("fairseq-train", "...")

    words += ["--arch", "lxsr_tiny", "--criterion", "xling_sent_loss", "--max-update", 1]
    words += ["--batch-size", 8, "--optimizer", "adam", "--cpu", "--no-save"]
    # It ends with status 0.
    run("fairseq_cli.train", *words, cwd=tmp_path, preloaded=FAIRSEQ)
