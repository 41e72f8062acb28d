"""What belongs to no verb: how `lxsr` starts, says nothing, writes to pipes, and is completed by
shells.
"""

import io
import shutil
import subprocess
import sys

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused, run
from parsers import parsers

from fairseq_lxsr import machine
from fairseq_lxsr.cli.main import SHELLS, VERBS, main, make_parser, parse
from fairseq_lxsr.embeddings.load import ModelName

MODEL = COMPATIBILITY / "best.model"
# a command line, and what its last word is completed to
COMPLETED = {
    ("em",): {"embed"},
    ("--qu",): {"--quiet"},
    ("embed", "--output-"): {"--output-dtype"},
    ("export", "sent"): {"sentence-transformers"},
    ("eval", "xsi"): {"xsim", "xsim++"},
    ("eval", "xsr", "--sou"): {"--source"},
    ("embed", "--format", "p"): {"parquet"},
    ("train", "--recipe", "best_6"): {"best_64"},
    ("embed", "--input", "some_t"): {"some_text"},
    ("train", "some_t"): {"some_text"},
}


def test_the_package_is_the_command():
    assert run("fairseq_lxsr", "--version").stdout == lxsr_here("--version").stdout
    refused(run("fairseq_lxsr", "recipes", "--nothing", check=False), "--nothing")


@pytest.mark.parametrize("error", [ImportError, TypeError, ValueError])
def test_an_error_inside_the_check_of_an_option_is_no_wrong_value(error, monkeypatch):
    def check(_):
        raise error("a package is broken")

    monkeypatch.setattr(ModelName, "parse", check)
    with pytest.raises(error, match="a package is broken"):
        parse(["embed", "--model", "lxsr-static", "--input", "a", "--output", "b"])


def test_help_has_no_colours():
    """Python 3.14 would write control characters, which are escaped."""
    assert [
        one.prog for verb in ("", *VERBS) for one in parsers(make_parser(verb)) if one.color
    ] == []


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    pytest.importorskip("shtab")
    monkeypatch.chdir(tmp_path)
    for shell in SHELLS:
        (tmp_path / shell).write_text(lxsr_here("--print-completion", shell).stdout)
    (tmp_path / "some_text").touch()
    return tmp_path


def test_every_shell_gets_every_verb(scripts):
    for shell in SHELLS:
        assert [verb for verb in VERBS if verb not in (scripts / shell).read_text()] == []


BASH = (
    "source ./bash; COMP_WORDS=(lxsr $0); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_lxsr; "
    "echo ${COMPREPLY[*]}"
)


@pytest.mark.parametrize("words", COMPLETED, ids=" ".join)
def test_bash_completes(words, scripts):
    done = subprocess.run(
        ["bash", "-c", BASH, " ".join(words)], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == COMPLETED[words]


@pytest.mark.skipif(not shutil.which("fish"), reason="this machine has no fish")
def test_fish_completes(scripts):
    for words, wanted in COMPLETED.items():
        code = f"source fish; complete -C 'lxsr {' '.join(words)}'"
        done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
        assert {line.split("\t")[0] for line in done.stdout.splitlines()} == wanted


@pytest.mark.skipif(not shutil.which("zsh"), reason="this machine has no zsh")
def test_zsh_reads_its_script(scripts):
    code = 'autoload -U compinit; compinit -u -D; eval "$(cat zsh)"; whence -w _shtab_lxsr; '
    code += "echo $_comps[lxsr]"
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["_shtab_lxsr: function", "_shtab_lxsr"]


def test_completion_names_its_extra_and_its_shells(monkeypatch):
    monkeypatch.setattr(machine, "is_missing", lambda module: module == "shtab")
    refused(lxsr_here("--print-completion", "bash", check=False), "shtab", "pip install 'shtab>=")
    refused(
        lxsr_here("--print-completion", "cmd", check=False),
        "--print-completion",
        "'bash', 'zsh', 'fish'",
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_leaves_errors(tmp_path, monkeypatch):
    """Before and after the verb; without it a terminal gets a progress bar."""
    text, output, said = tmp_path / "text", tmp_path / "o.npy", {}
    text.write_text("a dog\n" * 3000)
    words = ["embed", "--model", str(MODEL), "--input", str(text), "--output", str(output)]
    for name, line in {
        "loud": words,
        "before": ["--quiet", *words],
        "after": [*words, "--quiet"],
    }.items():
        monkeypatch.setattr(sys, "stderr", Terminal())
        main(line)
        said[name] = sys.stderr.getvalue()
    assert "3000" in said.pop("loud").replace(",", "")
    assert set(said.values()) == {""}
    assert output.exists()
    refused(lxsr_here(*words, "--quiet", "--truncate-dim", "9999", check=False), "9999")


def test_quiet_drops_notes_and_keeps_results(tmp_path):
    (tmp_path / "text").write_text("a dog\na house\n")
    lxsr_here(
        "index", "--model", MODEL, "--input", tmp_path / "text", "--output", tmp_path / "index"
    )
    words = ["search", "--index", tmp_path / "index", "--k", "1", "a dog", ""]
    loud, quiet = lxsr_here(*words), lxsr_here(*words, "--quiet")
    assert "1 of 2 " in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout != ""


def test_quiet_is_a_word_where_words_are_text():
    args = parse(["search", "--index", "x", "--", "--quiet"])
    assert (args.quiet, args.queries) == (False, ["--quiet"])
    args = parse(["--quiet", "train", "data", "--recipe", "best", "--max-update", "3"])
    assert (args.quiet, args.others) == (True, ["--max-update", "3"])
    # what records have
    assert args.command_line == ["train", "data", "--recipe", "best", "--max-update", "3"]


@pytest.mark.parametrize(
    ("given", "expected"), [("", "dog é中\n".encode()), ("cp1252", b"dog \xe9\\u4e2d\n")]
)
def test_pipes_get_utf8_on_every_system(given, expected, monkeypatch, tmp_path):
    """On Windows Python would write another encoding and other ends of lines; PYTHONIOENCODING is
    obeyed.
    """
    (tmp_path / "text").write_text("a dog é中\n", encoding="utf-8")
    lxsr_here(
        "index", "--model", MODEL, "--input", tmp_path / "text", "--output", tmp_path / "index"
    )
    monkeypatch.setenv("PYTHONIOENCODING", given)
    written = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(written, "cp1252", newline="\n" if given else "\r\n")
    )
    main(["search", "--index", str(tmp_path / "index"), "--k", "1", "a dog"])
    assert written.getvalue().endswith(b"a " + expected)
