"""Properties that all options of all verbs share."""

import argparse
import re

import pytest
import toy
from conftest import COMPATIBILITY, case, lxsr_here, refused
from parsers import options

from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.options import Range


def test_every_option_with_a_number_has_a_range():
    for program, action in options():
        is_number = (
            action.type in (int, float)
            or action.metavar == "N"
            or type(action.default) in (int, float)
        )
        if is_number:
            assert isinstance(action.type, Range), (program, action.option_strings)


# No number, or none that an option accepts: the last has more digits than Python converts.
NEVER_ACCEPTED = ("nan", "inf", "1e400", "", "x", "0.5.5", "9" * 5000)
# Numbers that are out of the range of most options.
SELDOM_ACCEPTED = ("-9", "9" * 30)


def test_every_option_refuses_numbers_out_of_its_range():
    num_options = 0
    for program, action in options():
        if not isinstance(action.type, Range):
            continue
        num_options += 1
        option = action.option_strings[0]
        verb = program.split()[1:]
        refused_numbers = [text for text in SELDOM_ACCEPTED if float(text) not in action.type]
        for text in (*NEVER_ACCEPTED, *refused_numbers):
            with case((program, option, text[:40])):
                result = lxsr_here(*verb, option, text, check=False)
                # The message shows the beginning of a long value.
                refused(result, f"argument {option}:", f"'{text[:18]}")

    # The options were found.
    assert num_options > 50


def test_every_option_refuses_empty_paths_and_paths_with_nul():
    """An empty path would be the current folder."""
    is_path = re.compile(r"FILE|FOLDER|DIR|PATH|TEMPLATE|PREFIX|DATA_BIN|\.jsonl|\.yaml")
    for program, action in options():
        metavar = str(action.metavar)
        if not is_path.search(metavar):
            continue
        paths = ["", " ", "a\0b"]
        if "LANG=" in metavar:
            paths += ["en=", "en= "]
        for path in paths:
            with (
                case((program, action.option_strings)),
                pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(path))),
            ):
                action.type(path)


@pytest.mark.parametrize("option", ["--input", "--output", "--model"])
def test_an_empty_name_on_the_command_line_is_refused_by_its_option(option):
    result = lxsr_here("embed", option, "", check=False)

    refused(result, f"argument {option}:", "''")


@pytest.mark.parametrize("verb", ["embed", "mine"])
@pytest.mark.parametrize("folder", [".", "/", "./"])
def test_the_name_of_a_folder_is_refused_as_an_output_file(verb, folder):
    result = lxsr_here(verb, "--output", folder, check=False)

    refused(result, "argument --output:", repr(folder))


@pytest.mark.parametrize(
    "shard",
    [
        # Not from 1 to the number of shards.
        "0/4",
        "5/4",
        "1/0",
        # Not two integers.
        "1",
        "/",
        "1/2/3",
        "a/b",
        "1.0/2",
    ],
)
def test_an_invalid_shard_is_refused(shard):
    result = lxsr_here("embed", "--shard", shard, check=False)

    refused(result, "argument --shard:", repr(shard))


def test_the_error_for_a_shard_of_thousands_of_digits_shows_the_first_ones():
    """Python refuses to convert so many digits to an integer."""
    shown_beginning = "1/" + "9" * 30
    shard = shown_beginning + "9" * 5000

    result = lxsr_here("embed", "--shard", shard, check=False)

    refused(result, "argument --shard:", f"'{shown_beginning}")


def test_every_default_is_in_the_range_of_its_option():
    for program, action in options():
        if isinstance(action.type, Range) and action.default not in (None, argparse.SUPPRESS):
            assert action.default in action.type, (program, action.option_strings)


def test_the_help_of_every_switch_that_is_on_by_default_says_so():
    for program, action in options():
        if isinstance(action, argparse.BooleanOptionalAction) and action.default:
            assert "default: yes" in action.help, (program, action.option_strings)


def test_a_value_of_two_dashes_is_refused():
    """argparse would drop it."""
    result = lxsr_here("embed", "--model=m", "--input=i", "--output=--", check=False)

    refused(result, "--output=--: ")


def test_bytes_of_a_title_that_are_not_utf8_become_question_marks(tmp_path):
    append_scores(tmp_path / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 1.0}, {"model": "x"})])

    # Python represents the byte FF by U+DCFF.
    lxsr_here("report", tmp_path, "--title", "café \udcff")

    assert "<title>café ?</title>" in (tmp_path / "report.html").read_text("utf-8")


def test_lxsr_alone_prints_its_help():
    assert lxsr_here().stdout == lxsr_here("--help").stdout


BEST = f"--model {COMPATIBILITY}/best.model"
PT = f"--checkpoint {COMPATIBILITY}/best.pt"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # Unknown or missing verbs, protocols and options.
        ("no-verb", "'no-verb'"),
        ("--no-such-option", "VERB; see lxsr --help"),
        ("eval", "PROTOCOL; see lxsr eval --help"),
        ("eval --no-such-option", "PROTOCOL; see lxsr eval --help"),
        ("embed", "--model, --input, --output"),
        ("embed --model m", "--input, --output; see lxsr embed --help"),
        (
            "embed --model m --input i --output {out} --no-option",
            " --no-option; see lxsr embed --help",
        ),
        ("index --kind no-kind --model m --input i --output {out}", "see lxsr index --help"),
        ("compare a b --no-such-option", " --no-such-option"),
        ("prepare --lang-pairs en", "'en'"),
        ("prepare --lang-pairs en-en", "'en-en'"),
        # Each form of export has options of its own.
        ("export", "FORM; see lxsr export --help"),
        ("export vectors", "'vectors'"),
        (f"export folder {PT}", " --output"),
        (f"export folder {BEST} --output {{out}}", " --checkpoint"),
        (f"export folder {PT} --output {{out}} --int8", " --int8"),
        (f"export folder {PT} --output {{out}} --scores x", " --scores"),
        ("export card", " --model"),
        (f"export card {BEST} --output {{out}}", " --output"),
        (f"export card {BEST} --dtype float16", " --dtype"),
        (f"export onnx {PT} --output {{out}}", " --model"),
        (f"export onnx {BEST}", " --output"),
        (f"export onnx {BEST} --output {{out}} --ema", " --ema"),
        (
            f"export sentence-transformers {BEST} --output {{out}} --int8",
            " --int8",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line_that_names_the_help(
    tmp_path, command, message
):
    result = lxsr_here(*command.format(out=tmp_path / "out").split(), check=False)

    refused(result, message, "; see lxsr ")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_every_option_with_a_list_joins_the_lists_if_it_is_given_several_times():
    num_lists = 0
    for program, action in options():
        if action.option_strings and action.nargs == "+":
            num_lists += 1
            assert isinstance(action, argparse._ExtendAction), (program, action.option_strings)

    # The options were found.
    assert num_lists >= 5


def test_prepare_excludes_the_sentences_of_each_exclude(tmp_path):
    """Otherwise, with `--exclude a --exclude b`, a model would be trained on the sentences of a."""
    pairs = toy.sentences(100)
    rows = [f"{source}\t{target}\n" for source, target in pairs]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    (tmp_path / "a").write_text(f"{pairs[3][0]}\n")
    (tmp_path / "b").write_text(f"{pairs[7][0]}\n")
    command = ["prepare", "--data", "pairs.tsv", "--lang-pairs", "en-fr", "--work", "work"]
    command += ["--until", "clean", "--exclude", "a", "--exclude", "b"]

    result = lxsr_here(*command, folder=tmp_path)

    assert "2 excluded" in result.stdout + result.stderr
