"""The commands of blocks that no test runs: their options and files exist, and their Python
compiles.
"""

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

NOT_RUN = [block for page in pages() for block in blocks(page) if block.reason]
SHELL = [block for block in NOT_RUN if block.language == "sh"]
PYTHON = [block for block in NOT_RUN if block.language == "python"]
# What ends a command in a line.
ENDS = {";", "|", "&&", "&", "<", ">"}
# Options of fairseq-train stand in these files.
FAIRSEQ = Path(importlib.util.find_spec("fairseq").origin).parent
OPTION_FILES = [
    FAIRSEQ / "dataclass" / "configs.py",
    FAIRSEQ / "options.py",
    *(FAIRSEQ / "optim").rglob("*.py"),
    *(ROOT / "fairseq_lxsr").rglob("*.py"),
]


def words_of(text: str) -> list[str]:
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
    found = []
    words = words_of(text)
    for start, word in enumerate(words):
        if word == program:
            end = start + 1
            while end < len(words) and words[end] not in ENDS:
                end += 1
            found.append(words[start + 1 : end])
    return found


def test_commands_are_found_in_a_block():
    text = (
        "for x in a; do\n  lxsr embed --model m \\\n    --input $x # note\ndone\nlxsr serve | head"
    )
    expected = [["embed", "--model", "m", "--input", "$x"], ["serve"]]
    assert commands(text, "lxsr") == expected


def test_options_exist():
    for block in SHELL:
        for arguments in commands(block.text, "lxsr"):
            arguments = [word.rstrip(')"') for word in arguments]
            if arguments[0] == "user-dir":
                continue
            with case(block.where):
                others = getattr(parse(arguments), "others", [])
            for word in others:
                if word.startswith("--"):
                    assert is_option_of_training(word), f"{block.where}: {word}"


def is_option_of_training(word: str) -> bool:
    name = word.removeprefix("--").partition("=")[0]
    pattern = rf"\b{name.replace('-', '_')}\s*:|\"--{name}\""
    return re.search(pattern, text_of_options()) is not None


@cache
def text_of_options() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in OPTION_FILES)


def test_a_wrong_option_is_found():
    with pytest.raises(SystemExit):
        parse(["serve", "--model", "lxsr-static", "--port", "many"])
    assert is_option_of_training("--max-update")
    assert is_option_of_training("--source-temperature")
    assert not is_option_of_training("--no-such-option")


@pytest.mark.parametrize("program", ["python", "bash"])
def test_scripts_exist(program):
    for block in SHELL:
        page = ROOT / block.where.rpartition(":")[0]
        for arguments in commands(block.text, program):
            script = arguments[0]
            place = f"{block.where}: {script}"
            if script == "-m":
                assert importlib.util.find_spec(arguments[1]), place
            elif script != "-c":
                assert (ROOT / script).is_file() or (page.parent / script).is_file(), place


def test_names_of_the_package_exist():
    for block in PYTHON:
        with case(block.where):
            nodes = list(ast.walk(ast.parse(block.text)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fairseq_lxsr"):
                module = importlib.import_module(str(node.module))
                # Classes that need another package are listed without being imported.
                names = {*dir(module), *getattr(module, "__all__", ())}
                for name in node.names:
                    assert name.name in names, f"{block.where}: {name.name}"
