"""Runs the blocks of shell and Python in README and docs/ on small text, in the order of the pages.
A block that does not run says why.
"""

import json
import os
import re
import shutil
import subprocess
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import toy
import yaml
from conftest import ROOT, forked_commands
from forks import commands

from fairseq_lxsr.evaluation.named_sets import datasets

# A fenced block, with a comment before it that says why it is not run.
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)
RUN = ("sh", "python")
# They change the package; a loss is in a folder of its own.
LOSS = ROOT / "docs" / "extend" / "loss.md"
EXTENDING = [page for page in sorted(LOSS.parent.glob("*.md")) if page != LOSS]
SHOWN = ("text", "yaml", "diff", "ini", "nginx")
MAKE = """#!/bin/sh
[ "$1" = demo ] || exit 2
DATA=text/demo UPDATES=20 VOCAB=200 HELD_OUT=100 exec bash examples/quickstart/run.sh
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its file and line, language, file to write it to, and why it does not run."""

    place: str
    language: str
    title: str | None
    reason: str | None
    text: str


def pages() -> list[Path]:
    """README, the pages of the site in the order of its navigation, and those of the examples."""
    site: list[Path] = []

    def walk(item) -> None:
        if isinstance(item, str):
            site.append(ROOT / "docs" / item)
        else:
            for part in item.values() if isinstance(item, dict) else item:
                walk(part)

    content = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # Only mkdocs knows this tag, which is not needed here.
    walk(yaml.safe_load(content.replace("!ENV", ""))["nav"])
    examples = sorted((ROOT / "examples").glob("*/README.md"))
    return [
        ROOT / "README.md",
        *site,
        *examples,
        ROOT / "preprocess" / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fenced = []
    for match in FENCE.finditer(text):
        line = text[: match.start()].count("\n") + 1
        place = f"{page.relative_to(ROOT)}:{line}"
        fenced.append(Block(place, *match.group("language", "title", "reason", "text")))
    return fenced


def test_a_reason_belongs_only_to_the_block_after_it():
    block = "```sh\nls\n```\n"
    text = f"<!-- not run: one -->\n{block}\n{block}\n<!-- not run: two -->\n{block}"

    reasons = [match["reason"] for match in FENCE.finditer(text)]

    assert reasons == ["one", None, "two"]


def write_downloads(folder: Path) -> None:
    """Write small files with the names of those that the pages download."""
    pairs = toy.sentences(900)
    toy.write(folder / "text" / "demo", pairs)
    toy.write(folder / "own", pairs[:400])
    toy.write(folder / "text" / "ParaCrawl-v5.en-fr", pairs[:400])
    for place, name in enumerate(("acts", "regulations", "speech")):
        toy.write(folder / "text" / f"{name}.en-fr", pairs[100 * place : 100 * place + 100])
    for side, language in enumerate(("en", "fr")):
        first = ("The dog is in the house.", "Le chien est dans la maison.")[side]
        sentences = [first, *(pair[side] for pair in pairs[400:])]
        with open(folder / f"{language}_pud-ud-test.conllu", "w") as stream:
            for number, line in enumerate(sentences[:50]):
                stream.write(f"# sent_id = n{number}\n# text = {line}\n\n")
        documents = ["\n".join(sentences[start : start + 6]) for start in range(0, 240, 6)]
        (folder / "text" / f"novels.{language}").write_text("\n\n".join(documents) + "\n")
    toy.write(folder / "tatoeba.fra-eng", [(fr, en) for en, fr in pairs[:50]], ("fra", "eng"))
    toy.write_dataset(folder / "LASER", datasets()["tatoeba-v1"], ("en", "fr"), 50)
    for name in ("bucc", "mldoc", "xnli"):
        shutil.copytree(ROOT / "tests" / "golden" / name, folder / name)
    for name, file in (("flores200-devtest", "flores200_dataset"), ("ntrex128", "NTREX")):
        toy.write_dataset(folder / file, datasets()[name])
    (folder / "xquad").mkdir()
    for side, language in enumerate(("en", "es")):
        paragraphs = []
        for number, pair in enumerate(pairs[:20]):
            question = {"id": f"q{number}", "question": pair[side]}
            paragraphs.append({"context": f"{pair[side]} {number}", "qas": [question]})
        content = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / "xquad" / f"xquad.{language}.json").write_text(content)
    original = toy.sentences(1)[0][0]
    augmented = folder / "flores200_dataset" / "devtest_augmented"
    augmented.mkdir()
    error_types = {f"No {original}": {"errtype": "Negation", "src": original}}
    (augmented / "eng_Latn_errtype.devtest.json").write_text(json.dumps(error_types))
    (augmented / "eng_Latn_augmented.devtest").write_text(f"No {original}\n")
    (folder / "STS2017-extended").mkdir()
    rated = "".join(f"{fr}\t{en}\t{number % 6}\n" for number, (en, fr) in enumerate(pairs[:50]))
    (folder / "STS2017-extended" / "STS.fr-en.txt").write_text(rated)
    (folder / "stsb-multi-mt" / "data").mkdir(parents=True)
    (folder / "stsb-multi-mt" / "data" / "stsb-fr-test.csv").write_text(rated.replace("\t", ","))


@dataclass
class Workplace:
    """A folder like the root of the repository, in which the blocks run one after the other, the
    environment of their commands, and the texts of the blocks that have run.
    """

    folder: Path
    environment: dict[str, str]
    finished: set[str] = field(default_factory=set)


def environment_of(package: Path, *bin_folders: Path) -> dict[str, str]:
    """The commands in `bin_folders`, made small, and the package that lies in `package`; pytest
    without its plugins.
    """
    path = os.pathsep.join((*map(str, bin_folders), os.environ["PATH"]))
    return os.environ | {
        "LXSR_SHRINK": "small",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PATH": path,
        "PYTHONPATH": os.pathsep.join((str(package), str(ROOT / "tests"))),
    }


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents") / "root"
    folder.mkdir()
    for name in ("examples", "preprocess"):
        shutil.copytree(ROOT / name, folder / name)
    write_downloads(folder)
    make = folder.parent / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    return Workplace(folder, environment_of(ROOT, make.parent, forked_commands()))


@pytest.fixture(scope="module")
def extended(workplace):
    """The same folder with a copy of the package and the files that the pages on extending it add."""
    folder = workplace.folder
    for name in ("fairseq_lxsr", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for page in EXTENDING:
        for block in blocks(page):
            if block.title:
                write(block, folder)
            elif block.language == "diff":
                patch = ["git", "apply", "--unidiff-zero", "-"]
                subprocess.run(patch, cwd=folder, input=block.text, text=True, check=True)
    with commands(folder.parent / "extended", PYTHONPATH=str(folder)) as bin_folder:
        yield Workplace(folder, environment_of(folder, bin_folder))


def write(block: Block, folder: Path) -> None:
    path = folder / str(block.title)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


def run(block: Block, place: Workplace) -> None:
    if block.language == "python":
        (place.folder / "block.py").write_text(block.text)
    command = "python block.py" if block.language == "python" else block.text
    bash = ["bash", "-euo", "pipefail", "-c", command]
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    result = subprocess.run(bash, cwd=place.folder, env=place.environment, timeout=120, **streams)
    output = textwrap.indent(result.stdout[-3000:], "    ")
    assert result.returncode == 0, (
        f"{block.place} ended with {result.returncode}:\n{block.text}\n{output}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order(page, workplace, request):
    place = request.getfixturevalue("extended") if page in EXTENDING else workplace
    for block in blocks(page):
        if block.title:
            write(block, place.folder)
        elif block.reason or block.language not in RUN:
            continue
        # Several pages have the same block.
        elif block.text not in place.finished:
            run(block, place)
            place.finished.add(block.text)


def text_outside_blocks(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def test_every_block_has_a_language_that_is_run_or_shown_or_a_reason_not_to_run():
    for page in pages():
        for block in blocks(page):
            language = block.language or "no language"
            assert block.reason or language in RUN + SHOWN, f"{block.place}: {language}"


def test_every_block_of_code_is_fenced():
    """An indented block would not be run."""
    for page in pages():
        outside = text_outside_blocks(page)
        assert "```" not in outside, f"{page}: a fence that is not recognised"
        assert not re.search(r"\n\n    \S", outside), f"{page}: an indented block"


def test_every_reason_not_to_run_is_directly_before_a_fenced_block():
    for page in pages():
        assert "\n<!-- not run:" not in text_outside_blocks(page), page


# The target of a link of Markdown that is neither an address nor a place on the page.
LINK_TO_FILE = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_every_link_to_a_file_leads_to_one():
    for page in pages():
        for target in LINK_TO_FILE.findall(text_outside_blocks(page)):
            # The pages of the API are made with the site.
            is_generated = "docs" in page.parts and "api/" in target
            assert is_generated or (page.parent / target).exists(), f"{page}: {target}"
