"""What all verbs of `lxsr` share: the start, `--quiet`, pipes, and completion by shells."""

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
# By command line: the completions of its last word.
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


def test_python_m_fairseq_lxsr_is_the_same_as_lxsr():
    assert run("fairseq_lxsr", "--version").stdout == lxsr_here("--version").stdout
    refused(run("fairseq_lxsr", "recipes", "--nothing", check=False), "--nothing")


@pytest.mark.parametrize("error", [ImportError, TypeError, ValueError])
def test_an_error_inside_the_check_of_an_option_is_not_reported_as_a_wrong_value(
    error, monkeypatch
):
    def check(_):
        raise error("a package is broken")

    monkeypatch.setattr(ModelName, "parse", check)
    with pytest.raises(error, match="a package is broken"):
        parse(["embed", "--model", "lxsr-static", "--input", "a", "--output", "b"])


def test_help_has_no_colours():
    """The control characters that Python 3.14 would write would be escaped."""
    for verb in ("", *VERBS):
        for parser in parsers(make_parser(verb)):
            assert not parser.color, parser.prog


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    pytest.importorskip("shtab")
    monkeypatch.chdir(tmp_path)
    for shell in SHELLS:
        (tmp_path / shell).write_text(lxsr_here("--print-completion", shell).stdout)
    (tmp_path / "some_text").touch()
    return tmp_path


def test_the_script_of_every_shell_has_all_verbs(scripts):
    for shell in SHELLS:
        script = (scripts / shell).read_text()
        for verb in VERBS:
            assert verb in script, shell


BASH = (
    "source ./bash; COMP_WORDS=(lxsr $0); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_lxsr; "
    "echo ${COMPREPLY[*]}"
)


def test_bash_completes_words(scripts):
    for words, completions in COMPLETED.items():
        command = ["bash", "-c", BASH, " ".join(words)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert set(result.stdout.split()) == completions, words


@pytest.mark.skipif(not shutil.which("fish"), reason="this machine has no fish")
def test_fish_completes_words(scripts):
    for words, completions in COMPLETED.items():
        code = f"source fish; complete -C 'lxsr {' '.join(words)}'"
        result = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
        lines = result.stdout.splitlines()
        assert {line.split("\t")[0] for line in lines} == completions, words


@pytest.mark.skipif(not shutil.which("zsh"), reason="this machine has no zsh")
def test_zsh_loads_its_script(scripts):
    code = 'autoload -U compinit; compinit -u -D; eval "$(cat zsh)"; whence -w _shtab_lxsr; '
    code += "echo $_comps[lxsr]"
    result = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["_shtab_lxsr: function", "_shtab_lxsr"]


def test_a_missing_extra_for_completion_and_an_unknown_shell_are_named(monkeypatch):
    monkeypatch.setattr(machine, "is_missing", lambda module: module == "shtab")
    result = lxsr_here("--print-completion", "bash", check=False)
    refused(result, "shtab", "pip install 'shtab>=")
    result = lxsr_here("--print-completion", "cmd", check=False)
    refused(result, "--print-completion", "'bash', 'zsh', 'fish'")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_hides_progress_but_not_errors(tmp_path, monkeypatch):
    """`--quiet` may stand before or after the verb."""
    text = tmp_path / "text"
    output = tmp_path / "o.npy"
    text.write_text("a dog\n" * 3000)
    words = ["embed", "--model", str(MODEL), "--input", str(text), "--output", str(output)]

    def messages(*arguments):
        monkeypatch.setattr(sys, "stderr", Terminal())
        main([*arguments])
        return sys.stderr.getvalue()

    assert "3000" in messages(*words).replace(",", "")
    assert messages("--quiet", *words) == ""
    assert messages(*words, "--quiet") == ""
    assert output.exists()
    refused(lxsr_here(*words, "--quiet", "--truncate-dim", "9999", check=False), "9999")


def index_text(folder, text):
    (folder / "text").write_text(text, encoding="utf-8")
    index = folder / "index"
    lxsr_here("index", "--model", MODEL, "--input", folder / "text", "--output", index)
    return index


def test_quiet_hides_notes_but_not_results(tmp_path):
    index = index_text(tmp_path, "a dog\na house\n")
    words = ["search", "--index", index, "--k", "1", "a dog", ""]
    loud = lxsr_here(*words)
    quiet = lxsr_here(*words, "--quiet")
    assert "1 of 2 " in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout != ""


def test_quiet_is_not_an_option_after_a_double_dash():
    args = parse(["search", "--index", "x", "--", "--quiet"])
    assert args.quiet is False
    assert args.queries == ["--quiet"]


def test_quiet_before_train_is_not_passed_to_fairseq_or_recorded():
    args = parse(["--quiet", "train", "data", "--recipe", "best", "--max-update", "3"])
    assert args.quiet is True
    assert args.others == ["--max-update", "3"]
    assert args.command_line == ["train", "data", "--recipe", "best", "--max-update", "3"]


@pytest.mark.parametrize(
    ("encoding", "expected"), [("", "dog é中\n".encode()), ("cp1252", b"dog \xe9\\u4e2d\n")]
)
def test_pipes_get_utf8_unless_pythonioencoding_is_set(encoding, expected, monkeypatch, tmp_path):
    """On Windows, Python would write another encoding and other ends of lines."""
    index = index_text(tmp_path, "a dog é中\n")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    output = io.BytesIO()
    newline = "\n" if encoding else "\r\n"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252", newline=newline))
    main(["search", "--index", str(index), "--k", "1", "a dog"])
    assert output.getvalue().endswith(b"a " + expected)
