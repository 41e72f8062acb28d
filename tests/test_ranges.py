"""Ranges of options: their values, their descriptions, and the checks that use them."""

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import (
    FILE_NAME,
    LARGEST_INT,
    NON_NEGATIVE,
    WORK_FOLDER,
    FileName,
    NumberList,
    Range,
    at_least,
    below,
    between,
    check_fields,
    limited,
    positive,
)

# An integer that is too large for a float.
HUGE = 10**400
# More digits than Python converts to an integer, which is 4,300.
TOO_MANY_DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        pytest.param(
            at_least(1),
            [1, 7, LARGEST_INT, np.int64(3)],
            # Too small, too large, and values of other types.
            [0, -5, -HUGE, LARGEST_INT + 1, HUGE, 1.0, math.nan, True, "1", None],
            id="at least 1",
        ),
        pytest.param(
            between(0, 1), [0, 0.5, 1], [-0.01, 1.01, math.nan, math.inf, "0"], id="0 to 1"
        ),
        pytest.param(below(1), [0, 0.999], [1, -0.1, math.nan], id="below 1"),
        pytest.param(positive(), [1e-9, 5], [0, -1, math.inf, math.nan], id="positive"),
        pytest.param(
            positive(infinite=True),
            [1, math.inf],
            [0, -math.inf, math.nan],
            id="positive or infinite",
        ),
        pytest.param(NON_NEGATIVE, [0, 3.5], [-1e-9, math.inf, math.nan], id="non-negative"),
        pytest.param(
            Range(),
            [-5, 0.0, np.float32(0.5)],
            [np.bool_(1), math.inf, -math.inf, math.nan, HUGE],
            id="any number",
        ),
    ],
)
def test_a_range_contains_only_numbers_between_its_ends(allowed, inside, outside):
    for value in inside:
        assert value in allowed
    for value in outside:
        assert value not in allowed


# Python represents bytes of a name that are not UTF-8 by surrogates.
NOT_UTF8 = ["\ud800", "\udcff"]


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        pytest.param(
            FILE_NAME, ["a", "a b/é"], ["", " ", "a\0b", *NOT_UTF8, 5, None], id="required"
        ),
        pytest.param(FileName(optional=True), ["", "a"], ["\0", None], id="optional"),
        # fairseq separates data folders by os.pathsep, which is a colon on POSIX.
        pytest.param(
            WORK_FOLDER,
            ["a", "a b/é"],
            ["", os.pathsep, f"2026-11-27T10{os.pathsep}00", None],
            id="work folder",
        ),
    ],
)
def test_a_file_name_is_text_in_utf8_without_nul(allowed, inside, outside):
    for value in inside:
        assert value in allowed
    for value in outside:
        assert value not in allowed


def test_a_list_of_numbers_contains_distinct_integers_of_its_range():
    allowed = NumberList(at_least(1, 99))

    for value in ["64", "1,99", "9, 5"]:
        assert value in allowed
    # Outside the range, twice the same, not a number, not a text.
    for value in ["0", "100", "5,5", "", "5,", "x", TOO_MANY_DIGITS, 5, None]:
        assert value not in allowed


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        (at_least(1), "an integer of at least 1"),
        (at_least(0, 10_000), "an integer from 0 to 10,000"),
        (between(0, 1), "a number from 0 to 1"),
        (below(1), "a number of at least 0.0 and below 1"),
        (positive(), "a number above 0"),
        (Range(), "a number"),
    ],
)
def test_a_range_is_described_by_its_kind_of_number_and_its_ends(allowed, text):
    assert str(allowed) == text


@pytest.fixture
def parser():
    """A parser with an integer and a number as options."""
    parser = argparse.ArgumentParser(prog="lxsr")
    parser.add_argument("--k", type=at_least(1))
    parser.add_argument("--share", type=between(0, 1))
    return parser


def test_argparse_converts_values_inside_a_range(parser):
    args = parser.parse_args(["--k", "5", "--share", "1"])

    assert vars(args) == {"k": 5, "share": 1.0}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--k", "0"),
        ("--k", "1.5"),
        ("--k", "many"),
        ("--k", str(HUGE)),
        ("--k", TOO_MANY_DIGITS),
        ("--share", "nan"),
    ],
    ids=["small", "fraction", "word", "huge", "digits", "nan"],
)
def test_argparse_refuses_a_value_outside_a_range_and_shows_its_first_60_characters(
    parser, capsys, option, text
):
    with pytest.raises(SystemExit) as stop:
        parser.parse_args([option, text])

    assert stop.value.code == 2
    assert f"argument {option}: {text!r:.60} is invalid" in capsys.readouterr().err


@dataclass
class Config:
    width: int = field(default=4, metadata={"range": at_least(1)})
    dropout: float = field(default=0.1, metadata={"range": below(1)})
    gated: bool = False
    name: str = "a"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        # Outside the range.
        ({"width": 0}, "--width 0"),
        ({"dropout": math.nan}, "--dropout nan"),
        # Of another type.
        ({"width": 512.0}, "--width 512.0"),
        ({"width": None}, "--width None"),
        ({"gated": "no"}, "--gated 'no'"),
        ({"name": 3}, "--name 3"),
    ],
)
def test_check_fields_names_the_option_and_the_value_that_it_refuses(values, message):
    with pytest.raises(InputError) as caught:
        check_fields(Config(**values), spell="--{}".format)

    assert message in str(caught.value)


def test_check_fields_accepts_values_inside_a_range():
    check_fields(Config())


def test_check_fields_accepts_none_if_fields_are_optional():
    check_fields(Config(width=None), optional=True)  # type: ignore[arg-type]


@dataclass
class Nested:
    """Fields of each type that options have."""

    kind: str | None = limited(None, ("a", "b"))
    share: float = 0.5
    names: tuple[str, ...] = ()
    texts: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any] | None] | None = None


def test_check_fields_accepts_values_of_the_declared_types():
    check_fields(
        Nested(
            kind="a",
            # An integer is a float too.
            share=1,
            names=("x",),
            texts={"y": None},
            options={"z": {"w": object()}, "v": None},
        )
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "c"}, "kind 'c'"),
        ({"kind": ["a"]}, "kind ['a']"),
        ({"share": "half"}, "share 'half'"),
        ({"share": True}, "share True"),
        ({"names": "abc"}, "names 'abc'"),
        ({"names": ("a", 1)}, "names ('a', 1)"),
        ({"texts": {"a": 1}}, "texts {'a': 1}"),
        ({"texts": {None: "a"}}, "texts {None: 'a'}"),
        ({"options": {"a": {1: 2}}}, "options {'a': {1: 2}}"),
    ],
)
def test_check_fields_refuses_values_of_the_wrong_type(values, message):
    with pytest.raises(InputError) as caught:
        check_fields(Nested(**values))

    assert message in str(caught.value)


def test_the_message_for_a_long_value_shows_only_its_beginning():
    with pytest.raises(InputError) as caught:
        check_fields(Nested(names=("x" * 1_000_000, 1)))

    assert "names ('xxxxxx" in str(caught.value)
    assert len(str(caught.value)) < 300
