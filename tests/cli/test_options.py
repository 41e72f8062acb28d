"""Every option of every verb, by walking through the parsers."""

import argparse
import re

import pytest
import toy
from conftest import COMPATIBILITY, lxsr_here, refused
from parsers import options

from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.options import Range


def test_every_number_has_a_range():
    without = [
        f"{program} {action.option_strings}"
        for program, action in options()
        if not isinstance(action.type, Range)
        and (
            action.type in (int, float)
            or action.metavar == "N"
            or type(action.default) in (int, float)
        )
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
        refused(done, f"argument {action.option_strings[0]}:", f"{value!r:.20}"[:-1])


def test_every_path_is_checked():
    """An empty one would be the current folder, and no name holds a NUL."""
    for _, action in options():
        if re.search(
            r"FILE|FOLDER|DIR|PATH|TEMPLATE|PREFIX|DATA_BIN|\.jsonl|\.yaml", str(action.metavar)
        ):
            for text in ("", " ", "a\0b", *(("en=", "en= ") if "LANG=" in action.metavar else ())):
                with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
                    action.type(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, "") for option in ("--input", "--output", "--model")),
        *(("--output", folder) for folder in (".", "/", "./")),
        *(
            ("--shard", part)
            for part in ("0/4", "5/4", "1/0", "1", "/", "1/2/3", "1/" + "9" * 5000, "a/b", "1.0/2")
        ),
    ],
)
def test_names_of_files_and_parts_that_are_none(option, value):
    for verb in ("embed", "mine") if option == "--output" else ("embed",):
        refused(
            lxsr_here(verb, option, value, check=False),
            f"argument {option}:",
            f"{value!r:.40}".removesuffix("'"),
        )


def test_defaults_are_in_their_ranges_and_options_that_are_on_say_so():
    for program, action in options():
        if isinstance(action.type, Range) and action.default not in (None, argparse.SUPPRESS):
            assert action.default in action.type, (program, action.option_strings)
        if isinstance(action, argparse.BooleanOptionalAction) and action.default:
            assert "default: yes" in action.help, (program, action.option_strings)


def test_a_value_that_argparse_would_lose():
    refused(
        lxsr_here("embed", "--model=m", "--input=i", "--output=--", check=False),
        "--output=--: ",
    )


def test_a_title_that_is_no_text(tmp_path):
    append_scores(tmp_path / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 1.0}, {"model": "x"})])
    lxsr_here("report", tmp_path, "--title", "caf\u00e9 \udcff")
    assert "<title>caf\u00e9 ?</title>" in (tmp_path / "report.html").read_text("utf-8")


def test_lxsr_alone_prints_the_verbs():
    assert lxsr_here().stdout == lxsr_here("--help").stdout


BEST, PT = f"--model {COMPATIBILITY}/best.model", f"--checkpoint {COMPATIBILITY}/best.pt"


@pytest.mark.parametrize(
    ("command", "said"),
    [
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
        # each form of export has its own options
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
def test_a_wrong_command_line_ends_with_one_line(tmp_path, command, said):
    done = lxsr_here(*command.format(out=tmp_path / "out").split(), check=False)
    refused(done, said, "; see lxsr ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_list_that_is_given_twice_has_all(tmp_path):
    """For example `--exclude A --exclude B`; with B alone the text would be trained on A."""
    lists = [
        (program, action)
        for program, action in options()
        if action.option_strings and action.nargs == "+"
    ]
    assert len(lists) >= 5
    assert all(isinstance(action, argparse._ExtendAction) for _, action in lists)
    pairs = toy.sentences(100)
    (tmp_path / "own.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs))
    for name, number in (("a", 3), ("b", 7)):
        (tmp_path / name).write_text(f"{pairs[number][0]}\n")
    command = (
        "prepare",
        "--data",
        "own.tsv",
        "--lang-pairs",
        "en-fr",
        "--work",
        "work",
        "--until",
        "clean",
    )
    done = lxsr_here(*command, "--exclude", "a", "--exclude", "b", folder=tmp_path)
    assert "2 excluded" in done.stdout + done.stderr
