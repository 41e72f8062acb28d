"""`lxsr prepare --data` of tables: columns, headers, rows without a pair, what mining writes."""

import json

import pytest
from conftest import lxsr_here, refused

WORDS = ["sleeps", "falls", "waits", "shines", "moves", "stops"]
PAIRS = [(f"The red dog {word} over there.", f"Le chien rouge {word} là-bas.") for word in WORDS]
SPLITS = ("--until", "clean", "--valid-size", 1, "--test-size", 1, "--workers", 1)


def prepare(folder, name, rows, *options, check=True):
    """Prepare a table of rows, of which a tuple is joined by tabs; return what is said."""
    text = ["\t".join(row) if isinstance(row, tuple) else row for row in rows]
    (folder / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return lxsr_here(
        "prepare", "--work", "w", "--data", name, *SPLITS, *options, check=check, folder=folder
    )


def pairs_of(folder):
    """All pairs of the corpus, and how many were dropped by reason."""
    corpus = folder / "w" / "corpus" / "en-fr"
    sides = (
        [
            line
            for split in ("train", "valid", "test")
            for line in read(corpus / f"{split}.{language}")
        ]
        for language in ("en", "fr")
    )
    return sorted(zip(*sides, strict=True)), json.loads((corpus / "stage.json").read_text())[
        "report"
    ]["dropped"]


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


URL = "https://a.example/0"


@pytest.mark.parametrize(
    ("name", "rows", "options", "dropped"),
    [
        ("x.tsv", [(URL, URL, *pair, "0.8") for pair in PAIRS], (), {}),
        ("x.tsv", [(URL, URL, *pair, "0.8") for pair in PAIRS], ("--columns", "3,4"), {}),
        ("x.tsv", [("1.234567", *pair) for pair in PAIRS], (), {}),
        (
            "x.tsv",
            [*PAIRS[:3], "", *PAIRS[3:], "alone", " \t"],
            (),
            {"empty side": 2, "short row": 1},
        ),
        ("x.tsv", [("French", "English"), *((b, a) for a, b in PAIRS)], (), {"header": 1}),
        (
            "x.tsv",
            [("von", "nach", "zu"), *((b, b, a) for a, b in PAIRS)],
            ("--columns", "zu,nach"),
            {"header": 1},
        ),
        (
            "x.csv",
            ["source;target", *(f'"{a}";{b}' for a, b in PAIRS), ""],
            (),
            {"header": 1, "empty side": 1},
        ),
    ],
)
def test_the_pairs_of_a_table(tmp_path, name, rows, options, dropped):
    prepare(tmp_path, name, rows, *options)
    found, reasons = pairs_of(tmp_path)
    assert found == sorted(PAIRS)
    assert reasons == dropped


def test_other_columns_are_other_text(tmp_path):
    rows = [(a, b, b.upper()) for a, b in PAIRS]
    prepare(tmp_path, "x.tsv", rows)
    done = prepare(tmp_path, "x.tsv", rows, "--columns", "1,3")
    assert pairs_of(tmp_path)[0] == sorted((a, b.upper()) for a, b in PAIRS), done.stdout


def test_columns_that_do_not_fit(tmp_path):
    for columns, value in (("1", "columns '1'"), ("en,de", "--columns 'en'")):
        refused(prepare(tmp_path, "x.tsv", PAIRS, "--columns", columns, check=False), value)
    refused(
        prepare(tmp_path, "x.tmx", PAIRS, "--columns", "1,2", check=False),
        "columns 1,2",
    )
