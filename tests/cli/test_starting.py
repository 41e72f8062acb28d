"""`lxsr` starts quickly: parsers import no large packages."""

from conftest import lxsr_here, python

from fairseq_lxsr.cli.main import VERBS

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
    verbs = list(VERBS)
    names = imported_by(
        f"from fairseq_lxsr.cli.main import make_parser\nfor verb in {verbs}: make_parser(verb)"
    )
    assert "fairseq_lxsr.cli.embed" in names
    assert not names & set(HEAVY)


def test_help_of_lxsr_imports_no_verb():
    names = imported_by("from fairseq_lxsr.cli.main import make_parser\nmake_parser('')")
    ours = {name for name in names if name.startswith("fairseq_lxsr.cli")}
    assert ours == {"fairseq_lxsr.cli", "fairseq_lxsr.cli.main", "fairseq_lxsr.cli.streams"}


def test_help_names_every_verb_and_each_has_a_parser():
    assert set(VERBS) <= set(lxsr_here("--help").stdout.split())
    for verb in VERBS:
        assert lxsr_here(verb, "--help").stdout.startswith(f"usage: lxsr {verb} ")
