"""Every option of every verb, by walking through the parsers."""

import argparse
import re

import pytest
from conftest import lxsr_here, refused
from parsers import options

from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.options import Range


def test_every_number_has_a_range():
    without = [
        f"{program} {action.option_strings}"
        for program, action in options()
        if not isinstance(action.type, Range)
        and (action.type in (int, float) or action.metavar == "N" or type(action.default) in (int, float))
    ]
    assert not without


NUMBERS = {
    f"{program} {action.option_strings[0]}": (program, action)
    for program, action in options()
    if isinstance(action.type, Range)
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_out_of_range_are_refused(name):
    program, action = NUMBERS[name]
    for value in ("-9", "nan", "inf", "1e400", "", "x", "9" * 30, "9" * 5000, "0.5.5"):
        if value in ("-9", "9" * 30) and float(value) in action.type:
            continue
        done = lxsr_here(*program.split()[1:], action.option_strings[0], value, check=False)
        refused(done, f"argument {action.option_strings[0]}:", "expected a")


def test_every_path_is_checked():
    """An empty one would be the current folder, and no name holds a NUL."""
    for _, action in options():
        if re.search(r"FILE|FOLDER|DIR|PATH|TEMPLATE|PREFIX|DATA_BIN|\.jsonl|\.yaml", str(action.metavar)):
            for text in ("", " ", "a\0b", *(("en=", "en= ") if "LANG=" in action.metavar else ())):
                with pytest.raises(argparse.ArgumentTypeError, match="expected a file name"):
                    action.type(text)


@pytest.mark.parametrize("option", ["--input", "--output", "--model"])
def test_an_empty_path_is_refused_by_its_option(option):
    done = lxsr_here("embed", "--model", "m", "--input", "i", "--output", "o", option, "", check=False)
    refused(done, f"argument {option}: ''; expected a file name")


def test_default_numbers_are_in_their_ranges():
    for program, action in options():
        if isinstance(action.type, Range) and action.default not in (None, argparse.SUPPRESS):
            assert action.default in action.type, (program, action.option_strings)


def test_options_that_are_on_say_so():
    for program, action in options():
        if isinstance(action, argparse.BooleanOptionalAction) and action.default:
            assert "default: yes" in action.help, (program, action.option_strings)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1/0", "1", "/", "1/2/3", "1/" + "9" * 5000, "a/b", "1.0/2"])
def test_parts_that_are_none(part):
    refused(lxsr_here("embed", "--shard", part, check=False), "argument --shard:", "expected for example 2/4")


@pytest.mark.parametrize("verb", ["embed", "mine"])
def test_an_output_without_a_name(verb):
    for output in (".", "/", "./"):
        refused(lxsr_here(verb, "--output", output, check=False), "argument --output:", "expected a file name")


def test_a_value_that_argparse_would_lose():
    refused(lxsr_here("embed", "--model=m", "--input=i", "--output=--", check=False), "--output=--: expected a value")


def test_a_title_that_is_no_text(tmp_path):
    append_scores(tmp_path / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 1.0}, {"model": "x"})])
    lxsr_here("report", tmp_path, "--title", "caf\u00e9 \udcff")
    assert "<title>caf\u00e9 ?</title>" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("no-verb",),
        ("eval",),
        ("embed", "--model", "m"),
        ("embed", "--model", "m", "--input", "i", "--output", "o", "--no-option"),
        ("index", "--kind", "no-kind", "--model", "m", "--input", "i", "--output", "o"),
    ],
)
def test_a_wrong_command_line_ends_with_one_line(words):
    done = lxsr_here(*words, check=False)
    refused(done, f"see lxsr{f' {words[0]}' if words and words[0] != 'no-verb' else ''} --help")
    assert len(done.stderr.splitlines()) == 1
