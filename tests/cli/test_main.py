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
# By command line: the completions of its last word. Verbs, options, values of an option with
# choices, recipes, and files of the current folder, which has `some_text`.
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


def test_python_m_fairseq_lxsr_runs_lxsr():
    assert run("fairseq_lxsr", "--version").stdout == lxsr_here("--version").stdout


def test_python_m_fairseq_lxsr_refuses_an_unknown_option_as_lxsr_does():
    refused(run("fairseq_lxsr", "recipes", "--nothing", check=False), "--nothing")


# argparse reports errors of these types as a wrong value of the option.
@pytest.mark.parametrize("error", [ImportError, TypeError, ValueError])
def test_an_error_in_the_code_that_checks_an_option_is_raised_and_not_reported_as_a_wrong_value(
    error, monkeypatch
):
    def check(_):
        raise error("a package is broken")

    monkeypatch.setattr(ModelName, "parse", check)

    with pytest.raises(error, match="a package is broken"):
        parse(["embed", "--model", "lxsr-static", "--input", "a", "--output", "b"])


def test_no_parser_writes_its_help_in_colours():
    """The control characters that Python 3.14 would write would be escaped."""
    for verb in ("", *VERBS):
        for parser in parsers(make_parser(verb)):
            assert not parser.color, parser.prog


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """The current folder, with the completion script of each shell under its name, and a text."""
    pytest.importorskip("shtab")
    monkeypatch.chdir(tmp_path)
    for shell in SHELLS:
        (tmp_path / shell).write_text(lxsr_here("--print-completion", shell).stdout)
    (tmp_path / "some_text").touch()
    return tmp_path


def test_the_completion_script_of_every_shell_has_all_verbs(scripts):
    for shell in SHELLS:
        script = (scripts / shell).read_text()
        for verb in VERBS:
            assert verb in script, shell


# Completes the last word of `lxsr $0` as bash does when a user presses the tabulator key.
BASH = (
    "source ./bash; COMP_WORDS=(lxsr $0); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_lxsr; "
    "echo ${COMPREPLY[*]}"
)


@pytest.mark.usefixtures("scripts")
def test_bash_completes_verbs_options_values_and_files():
    for words, completions in COMPLETED.items():
        command = ["bash", "-c", BASH, " ".join(words)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert set(result.stdout.split()) == completions, words


@pytest.mark.usefixtures("scripts")
@pytest.mark.skipif(not shutil.which("fish"), reason="this machine has no fish")
def test_fish_completes_verbs_options_values_and_files():
    for words, completions in COMPLETED.items():
        code = f"source fish; complete -C 'lxsr {' '.join(words)}'"
        result = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
        # The completion, a tab, and its description.
        lines = result.stdout.splitlines()
        assert {line.split("\t")[0] for line in lines} == completions, words


@pytest.mark.usefixtures("scripts")
@pytest.mark.skipif(not shutil.which("zsh"), reason="this machine has no zsh")
def test_zsh_registers_the_function_of_its_script_for_lxsr():
    code = 'autoload -U compinit; compinit -u -D; eval "$(cat zsh)"; whence -w _shtab_lxsr; '
    code += "echo $_comps[lxsr]"

    result = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.splitlines() == ["_shtab_lxsr: function", "_shtab_lxsr"]


def test_the_error_for_a_missing_package_of_completion_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(machine, "is_missing", lambda module: module == "shtab")

    result = lxsr_here("--print-completion", "bash", check=False)

    refused(result, "shtab", "pip install 'shtab>=")


def test_the_error_for_an_unknown_shell_lists_the_shells():
    result = lxsr_here("--print-completion", "cmd", check=False)

    refused(result, "--print-completion", "'bash', 'zsh', 'fish'")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def messages_on_terminal(monkeypatch):
    """A function that runs a command, and returns what a terminal as standard error gets."""

    def run_on_terminal(*command: str) -> str:
        monkeypatch.setattr(sys, "stderr", Terminal())
        main(list(command))
        return sys.stderr.getvalue()

    return run_on_terminal


@pytest.fixture
def embed_command(tmp_path) -> list[str]:
    """The command that embeds 3,000 lines."""
    (tmp_path / "text").write_text("a dog\n" * 3000)
    files = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "o.npy")]
    return ["embed", "--model", str(MODEL), *files]


def test_embed_shows_its_progress_on_a_terminal(embed_command, messages_on_terminal):
    messages = messages_on_terminal(*embed_command)

    assert "3000" in messages.replace(",", "")


def test_quiet_before_or_after_the_verb_hides_progress(embed_command, messages_on_terminal):
    assert messages_on_terminal("--quiet", *embed_command) == ""
    assert messages_on_terminal(*embed_command, "--quiet") == ""


def test_quiet_does_not_hide_errors(embed_command):
    result = lxsr_here(*embed_command, "--quiet", "--truncate-dim", "9999", check=False)

    refused(result, "--truncate-dim 9999")


def index_text(folder, text):
    """Write an index of a text, and return its path."""
    (folder / "text").write_text(text, encoding="utf-8")
    index = folder / "index"
    lxsr_here("index", "--model", MODEL, "--input", folder / "text", "--output", index)
    return index


def test_quiet_hides_notes_but_not_results(tmp_path):
    index = index_text(tmp_path, "a dog\na house\n")
    # There is a note about the empty query.
    search = ["search", "--index", index, "--k", "1", "a dog", ""]

    with_notes = lxsr_here(*search)
    quiet = lxsr_here(*search, "--quiet")

    assert "1 of 2 " in with_notes.stderr
    assert quiet.stderr == ""
    assert "a dog" in quiet.stdout
    assert quiet.stdout == with_notes.stdout


def test_quiet_after_a_double_dash_is_a_query():
    args = parse(["search", "--index", "x", "--", "--quiet"])

    assert args.quiet is False
    assert args.queries == ["--quiet"]


def test_quiet_before_train_is_not_passed_to_fairseq_or_recorded():
    args = parse(["--quiet", "train", "data", "--recipe", "best", "--max-update", "3"])

    assert args.quiet is True
    assert args.others == ["--max-update", "3"]
    assert args.command_line == ["train", "data", "--recipe", "best", "--max-update", "3"]


@pytest.fixture
def search_in_pipe(tmp_path, monkeypatch):
    """A function that searches for "a dog", and returns the bytes that a pipe gets on Windows.

    There, Python writes the encoding cp1252, which has é but not 中, and ends lines with \\r\\n.
    """
    index = index_text(tmp_path, "a dog é中\n")

    def search() -> bytes:
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252", newline="\r\n"))
        main(["search", "--index", str(index), "--k", "1", "a dog"])
        return output.getvalue()

    return search


def test_a_pipe_gets_utf8_and_line_feeds_on_any_system(search_in_pipe, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "")

    assert search_in_pipe().endswith("a dog é中\n".encode())


def test_a_pipe_gets_the_encoding_of_pythonioencoding_and_escaped_what_it_lacks(
    search_in_pipe, monkeypatch
):
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")

    assert b"a dog \xe9\\u4e2d" in search_in_pipe()
