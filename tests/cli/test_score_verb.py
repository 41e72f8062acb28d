"""`lxsr score` on the command line."""

import io
import re
import sys

import numpy as np
import pytest
import small_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder

PAIRS = toy.sentences(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    small_model.write_folder(folder / "model")
    toy.write(folder / "s", PAIRS)
    rows = [f"{number}\t{source}\t{target}" for number, (source, target) in enumerate(PAIRS)]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def score(where, *arguments, **options):
    return lxsr_here("score", "--model", where / "model", *arguments, **options)


def cosines(folder):
    encoder = SentenceEncoder.from_pretrained(folder / "model")
    source, target = (encoder.encode(list(side)) for side in zip(*PAIRS, strict=True))
    return (source * target).sum(1) / np.linalg.norm(source, axis=1) / np.linalg.norm(target, axis=1)


def test_cosines_of_a_table_of_two_files_and_of_standard_input(folder, monkeypatch):
    table = score(folder, "--input", folder / "pairs.tsv", "--columns", "2,3").stdout
    np.testing.assert_allclose([float(line) for line in table.splitlines()], cosines(folder), atol=1e-5)
    assert score(folder, "--source", folder / "s.en", "--target", folder / "s.fr").stdout == table
    stream = io.TextIOWrapper(io.BytesIO((folder / "pairs.tsv").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert score(folder, "--columns", "2,3").stdout == table


@pytest.mark.parametrize("output", ["-", "scored.tsv"])
def test_the_text_beside_the_scores(folder, output):
    done = score(folder, "--input", "pairs.tsv", "--columns", "2,3", "--output", output, folder=folder)
    text = done.stdout if output == "-" else (folder / output).read_text(encoding="utf-8")
    scores, lines = zip(*(line.split("\t", 1) for line in text.splitlines()), strict=True)
    assert "\n".join(lines) + "\n" == (folder / "pairs.tsv").read_text(encoding="utf-8")
    assert all(re.fullmatch(r"-?[01]\.\d{6}", one) for one in scores)


def test_a_sentence_of_a_file_is_one_cell(folder):
    (folder / "odd").write_text("a\tb\u2028c\rd\n", encoding="utf-8")
    done = score(folder, "--source", folder / "odd", "--target", folder / "odd", "--output", "-")
    assert done.stdout.splitlines() == ["1.000000\ta b c d\ta b c d"]


def test_margins_against_indexes_of_the_text_are_those_of_the_text(folder):
    for side in ("en", "fr"):
        lxsr_here("index", "--model", folder / "model", "--input", folder / f"s.{side}", "--output", folder / side)
    pairs = ("--source", folder / "s.en", "--target", folder / "s.fr", "--margin", "ratio", "--k", 3)
    own = np.array(score(folder, *pairs).stdout.split(), float)
    indexed = np.array(score(folder, *pairs, "--index", folder / "en", folder / "fr").stdout.split(), float)
    if len(set(PAIRS)) == len(PAIRS):  # an index keeps equal sentences, which count once among themselves
        np.testing.assert_allclose(own, indexed, rtol=1e-4)
    assert own.shape == (30,)
    assert np.isfinite(own).all()


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--input", "pairs.tsv", "--columns", "2,4"), ("pairs.tsv, line 1: 3 columns", "at least 4")),
        (("--input", "empty"), ("empty: no pairs",)),
        (("--source", "s.en"), ("--source without --target",)),
        (("--source", "s.en", "--target", "s.fr", "--input", "pairs.tsv"), ("--input beside --source",)),
        (("--input", "pairs.tsv", "--index", "s.en", "s.fr"), ("--index with --margin absolute",)),
        (("--input", "pairs.tsv", "--columns", "2,3", "--k", "9"), ("--k 9 with --margin absolute",)),
        (("--margin", "ratio"), ("reads the pairs twice",)),
        (("--input", "pairs.tsv", "--columns", "2,3", "--margin", "ratio", "--k", "31"), ("--k: k is 31;",)),
    ],
)
def test_what_is_refused(folder, arguments, fragments):
    (folder / "empty").write_text("")
    refused(score(folder, *arguments, "--output", "out.tsv", check=False, folder=folder), *fragments)
    assert not (folder / "out.tsv").exists()


@pytest.mark.parametrize("columns", ["", "1", "1,2,3", "0,1", "a,b", "1;2"])
def test_columns_that_are_none(folder, columns):
    refused(score(folder, "--input", "pairs.tsv", "--columns", columns, check=False, folder=folder), "--columns")
