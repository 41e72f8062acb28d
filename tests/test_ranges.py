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


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (
            at_least(1),
            [1, 7, 2**31 - 1, np.int64(3)],
            [0, -5, 1.0, True, "1", None, 2**31, math.nan],
        ),
        (between(0, 1), [0, 0.5, 1], [-0.01, 1.01, math.nan, math.inf, "0"]),
        (below(1), [0, 0.999], [1, -0.1, math.nan]),
        (positive(), [1e-9, 5], [0, -1, math.inf, math.nan]),
        (positive(infinite=True), [1, math.inf], [0, -math.inf, math.nan]),
        (NON_NEGATIVE, [0, 3.5], [-1e-9, math.inf, math.nan]),
        (
            Range(),
            [-5, 0.0, np.float32(0.5)],
            [np.bool_(1), math.inf, -math.inf, math.nan, 10**400],
        ),
        (at_least(0), [0], [10**400, -(10**400)]),
        (FILE_NAME, ["a", "a b/é"], ["", " ", "a\0b", "\ud800", "\udcff", 5, None]),
        (WORK_FOLDER, ["a", "a b/é"], ["", os.pathsep, f"2026-11-27T10{os.pathsep}00", None]),
        (FileName(optional=True), ["", "a"], ["\0", None]),
        (
            NumberList(at_least(1, 99)),
            ["64", "1,99", "9, 5"],
            ["", "0", "5,5", "5,", "100", "x", "9" * 5000, 5, None],
        ),
    ],
)
def test_a_range_contains_only_allowed_values(allowed, inside, outside):
    for value in inside:
        assert value in allowed
    for value in outside:
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
def test_the_description_of_a_range(allowed, text):
    assert str(allowed) == text


def test_argparse_refuses_values_outside_a_range(capsys):
    parser = argparse.ArgumentParser(prog="lxsr")
    parser.add_argument("--k", type=at_least(1))
    parser.add_argument("--share", type=between(0, 1))
    assert vars(parser.parse_args(["--k", "5", "--share", "1"])) == {"k": 5, "share": 1.0}
    for text in ("0", "1.5", "many", str(10**30), "9" * 400, "9" * 5000):
        with pytest.raises(SystemExit) as stop:
            parser.parse_args(["--k", text])
        assert stop.value.code == 2
        assert f"argument --k: {text!r:.60}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["--share", "nan"])


@dataclass
class Config:
    width: int = field(default=4, metadata={"range": at_least(1)})
    dropout: float = field(default=0.1, metadata={"range": below(1)})
    gated: bool = False
    name: str = "a"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 0}, "--width 0"),
        ({"width": 512.0}, "--width 512.0"),
        ({"dropout": math.nan}, "--dropout nan"),
        ({"gated": "no"}, "--gated 'no'"),
        ({"name": 3}, "--name 3"),
        ({"width": None}, "--width None"),
    ],
)
def test_check_fields_refuses_values_outside_a_range(values, message):
    with pytest.raises(InputError) as caught:
        check_fields(Config(**values), spell="--{}".format)
    assert message in str(caught.value)


@dataclass
class Nested:
    kind: str | None = limited(None, ("a", "b"))
    share: float = 0.5
    names: tuple[str, ...] = ()
    texts: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any] | None] | None = None


def test_check_fields_accepts_valid_values():
    check_fields(Config())
    check_fields(Config(width=None), optional=True)  # type: ignore[arg-type]
    check_fields(Nested("a", 1, ("x",), {"y": None}, {"z": {"w": object()}, "v": None}))


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
        ({"names": ("x" * 10**6, 1)}, "names ('xxxxxx"),
    ],
)
def test_check_fields_refuses_values_of_the_wrong_type(values, message):
    with pytest.raises(InputError) as caught:
        check_fields(Nested(**values))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300
