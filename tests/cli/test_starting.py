"""What starting costs: a parser imports nothing that takes long."""

import subprocess
import sys

import pytest
from conftest import lxsr_here

from fairseq_lxsr.cli.main import VERBS

HEAVY = ("torch", "numpy", "faiss", "sentencepiece", "yaml", "tqdm", "filelock", "safetensors", "sklearn", "plotly", "transformers")


def imported_by(code: str) -> set[str]:
    """The modules in memory after this in a fresh Python, without what it imports anyway (.pth files)."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; before = set(sys.modules)\n{code}\nprint(*sys.modules.keys() - before)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_parsers_of_all_verbs_import_nothing_heavy():
    verbs = list(VERBS)
    names = imported_by(f"from fairseq_lxsr.cli.main import make_parser\nfor verb in {verbs}: make_parser(verb)")
    assert "fairseq_lxsr.cli.embed" in names
    assert not names & set(HEAVY)


def test_help_of_lxsr_imports_no_verb():
    names = imported_by("from fairseq_lxsr.cli.main import make_parser\nmake_parser('')")
    assert {name for name in names if name.startswith("fairseq_lxsr.cli")} == {
        "fairseq_lxsr.cli",
        "fairseq_lxsr.cli.main",
    }


def test_help_names_every_verb():
    words = lxsr_here("--help").stdout.split()
    assert set(VERBS) <= set(words)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_table_has_a_parser(verb):
    done = lxsr_here(verb, "--help")
    assert done.stdout.startswith(f"usage: lxsr {verb} ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: VERB"),
        (["emded"], "invalid choice: 'emded'"),
        (["--no-such-option"], "VERB"),
        (["compare", "a", "b", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["eval", "--no-such-option"], "PROTOCOL"),
        (["embed"], "the following arguments are required: --model, --input, --output"),
        (["prepare", "--lang-pairs", "en"], "'en'; expected SRC-TGT"),
        (["prepare", "--lang-pairs", "en-en"], "'en-en'; expected SRC-TGT"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, said):
    done = lxsr_here(*arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
