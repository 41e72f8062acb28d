"""The plugin is found from any folder, and imported once."""

import os
import shlex
import shutil
from pathlib import Path

from conftest import lxsr_here, python, refused, run
from forks import FAIRSEQ

import fairseq_lxsr

CHECK = """
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


def test_fairseq_imports_the_folder_of_the_package_once_from_another_folder(tmp_path):
    folder = lxsr_here("user-dir").stdout.removesuffix("\n")
    assert folder == str(Path(fairseq_lxsr.__file__).parent.absolute())
    python(CHECK, folder, cwd=tmp_path, preloaded=FAIRSEQ)


def test_a_data_folder_with_the_separator_of_paths_is_refused(toy_work, tmp_path):
    name = f"10{os.pathsep}00"
    for command in (("prepare", "--data", toy_work / "text"), ("run", "demo")):
        result = lxsr_here(*command, "--work", name, check=False, folder=tmp_path)
        refused(result, name, "--work")
    assert not list(tmp_path.iterdir())
    shutil.copytree(toy_work / "data-bin", tmp_path / name)
    train = ("train", name, "--recipe", "best", "--print")
    result = lxsr_here(*train, check=False, folder=tmp_path)
    refused(result, f"{name}: ", repr(os.pathsep))


def test_the_command_that_prepare_prints_works_from_another_folder(toy_work, tmp_path):
    work = tmp_path / "a folder"
    options = ("--valid-size", 50, "--test-size", 50, "--vocab-size", 200)
    out = lxsr_here("prepare", "--work", work, "--data", toy_work / "text", *options).stdout
    program, *words = shlex.split(out.splitlines()[-1].partition(": ")[2])
    assert program == "fairseq-train"
    assert words.pop() == "..."
    words += ["--arch", "lxsr_tiny", "--criterion", "xling_sent_loss", "--max-update", 1]
    words += ["--batch-size", 8, "--optimizer", "adam", "--cpu", "--no-save"]
    run("fairseq_cli.train", *words, cwd=tmp_path, preloaded=FAIRSEQ)
