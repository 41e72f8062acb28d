"""`lxsr` starts quickly: parsers import no large packages."""

import pytest
from conftest import lxsr_here, python

from fairseq_lxsr.cli.main import VERBS

# Packages that take a tenth of a second or more to import, or are needed by few commands.
HEAVY = (
    "torch",
    "numpy",
    "faiss",
    "sentencepiece",
    "yaml",
    "tqdm",
    "filelock",
    "safetensors",
    "sklearn",
    "plotly",
    "transformers",
)


def imported_by(code: str) -> set[str]:
    """The modules that the code imports in a new Python, without those of the start of Python."""
    output = python(
        f"import sys; before = set(sys.modules)\n{code}\nprint(*sys.modules.keys() - before)"
    )
    return set(output.split())


def test_parsers_of_all_verbs_import_nothing_heavy():
    modules = imported_by(
        "from fairseq_lxsr.cli.main import make_parser\n"
        f"for verb in {list(VERBS)}: make_parser(verb)"
    )

    # The modules of the verbs were imported.
    assert "fairseq_lxsr.cli.embed" in modules
    assert not modules & set(HEAVY)


def test_the_parser_of_lxsr_alone_imports_the_module_of_no_verb():
    modules = imported_by("from fairseq_lxsr.cli.main import make_parser\nmake_parser('')")

    modules_of_cli = {name for name in modules if name.startswith("fairseq_lxsr.cli")}
    assert modules_of_cli == {
        "fairseq_lxsr.cli",
        "fairseq_lxsr.cli.main",
        "fairseq_lxsr.cli.streams",
    }


def test_the_help_of_lxsr_names_every_verb():
    words = lxsr_here("--help").stdout.split()

    assert set(VERBS) <= set(words)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help(verb):
    assert lxsr_here(verb, "--help").stdout.startswith(f"usage: lxsr {verb} ")
