"""Blocks of the pages that no test runs: their options, files and Python names exist."""

import ast
import importlib
import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, case
from test_document_blocks import blocks, pages

from fairseq_lxsr.cli.main import parse

# The blocks of the pages that are not run, by language.
SHELL = []
PYTHON = []
for page in pages():
    for block in blocks(page):
        if block.reason and block.language == "sh":
            SHELL.append(block)
        elif block.reason and block.language == "python":
            PYTHON.append(block)
# The signs that end a command.
ENDS = {";", "|", "&&", "&", "<", ">"}
# These files define the options of fairseq-train.
FAIRSEQ = Path(importlib.util.find_spec("fairseq").origin).parent
OPTION_FILES = [
    FAIRSEQ / "dataclass" / "configs.py",
    FAIRSEQ / "options.py",
    *(FAIRSEQ / "optim").rglob("*.py"),
    *(ROOT / "fairseq_lxsr").rglob("*.py"),
]


def words_and_signs(text: str) -> list[str]:
    """Split a block into words and the signs that end commands; comments are removed."""
    text = text.replace("\\\n", " ").replace("\n", " ; ")
    # A command inside quotes, as for torchrun, is a command of the block.
    text = text.replace("bash -c '", "; ").replace("'", "")
    text = re.sub(r"\$\([^()]*\)", "FOLDER", text)
    lexer = shlex.shlex(re.sub(r" #[^;]*", "", text), posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    return list(lexer)


def commands(text: str, program: str) -> list[list[str]]:
    """Return the arguments of each call of a program in a block."""
    calls = []
    words = words_and_signs(text)
    for start, word in enumerate(words):
        if word == program:
            end = start + 1
            while end < len(words) and words[end] not in ENDS:
                end += 1
            calls.append(words[start + 1 : end])
    return calls


def test_the_commands_of_a_block_are_extracted():
    text = """for x in a; do
  lxsr embed --model m \\
    --input $x # note
done
lxsr serve | head"""

    calls = commands(text, "lxsr")

    assert calls == [["embed", "--model", "m", "--input", "$x"], ["serve"]]


def test_every_command_of_a_block_that_is_not_run_has_options_that_exist():
    for block in SHELL:
        for arguments in commands(block.text, "lxsr"):
            # The end of a command inside another one.
            arguments = [word.rstrip(')"') for word in arguments]
            # This verb is for other programs, and has no parser.
            if arguments[0] == "user-dir":
                continue
            with case(block.place):
                options_of_training = getattr(parse(arguments), "others", [])
            for word in options_of_training:
                if word.startswith("--"):
                    assert is_option_of_training(word), f"{block.place}: {word}"


def is_option_of_training(word: str) -> bool:
    """Return whether a source file defines an option such as --max-update."""
    name = word.removeprefix("--").partition("=")[0]
    pattern = rf"\b{name.replace('-', '_')}\s*:|\"--{name}\""
    return re.search(pattern, text_of_options()) is not None


@cache
def text_of_options() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in OPTION_FILES)


def test_a_wrong_option_of_a_command_is_detected():
    with pytest.raises(SystemExit):
        parse(["serve", "--model", "lxsr-static", "--port", "many"])


@pytest.mark.parametrize(
    ("word", "is_option"),
    [
        # Of fairseq, of this package, and of neither.
        ("--max-update", True),
        ("--source-temperature", True),
        ("--no-such-option", False),
    ],
)
def test_options_of_training_are_recognised(word, is_option):
    assert is_option_of_training(word) == is_option


def test_every_script_and_module_of_a_block_that_is_not_run_exists():
    for block in SHELL:
        page = ROOT / block.place.rpartition(":")[0]
        for arguments in commands(block.text, "python") + commands(block.text, "bash"):
            script = arguments[0]
            place = f"{block.place}: {script}"
            if script == "-m":
                assert importlib.util.find_spec(arguments[1]), place
            elif script != "-c":
                assert (ROOT / script).is_file() or (page.parent / script).is_file(), place


def test_every_name_that_a_block_imports_from_the_package_exists():
    for block in PYTHON:
        with case(block.place):
            nodes = list(ast.walk(ast.parse(block.text)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fairseq_lxsr"):
                module = importlib.import_module(str(node.module))
                # Classes that need another package are listed without being imported.
                names = {*dir(module), *getattr(module, "__all__", ())}
                for name in node.names:
                    assert name.name in names, f"{block.place}: {name.name}"
