"""`lxsr prepare --data` with tables: columns, headers, and rows without a pair."""

import json

import pytest
from conftest import lxsr_here, refused

WORDS = ["sleeps", "falls", "waits", "shines", "moves", "stops"]
PAIRS = [(f"The red dog {word} over there.", f"Le chien rouge {word} là-bas.") for word in WORDS]
SPLITS = ("--until", "clean", "--valid-size", 1, "--test-size", 1, "--workers", 1)


def prepare(folder, name, rows, *options, check=True):
    """Prepare a table of rows: lines, or tuples of cells."""
    with open(folder / name, "w", encoding="utf-8") as stream:
        for row in rows:
            line = "\t".join(row) if isinstance(row, tuple) else row
            stream.write(f"{line}\n")
    command = ["prepare", "--work", "w", "--data", name, *SPLITS, *options]
    return lxsr_here(*command, check=check, folder=folder)


def read_corpus(folder):
    """All pairs of the corpus, and the number of dropped pairs by reason."""
    corpus = folder / "w" / "corpus" / "en-fr"
    pairs = []
    for split in ("train", "valid", "test"):
        english = read(corpus / f"{split}.en")
        french = read(corpus / f"{split}.fr")
        pairs += zip(english, french, strict=True)
    report = json.loads((corpus / "stage.json").read_text())["report"]
    return sorted(pairs), report["dropped"]


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
        (
            "x.tsv",
            [("French", "English"), *((french, english) for english, french in PAIRS)],
            (),
            {"header": 1},
        ),
        (
            "x.tsv",
            [("von", "nach", "zu"), *((french, french, english) for english, french in PAIRS)],
            ("--columns", "zu,nach"),
            {"header": 1},
        ),
        (
            "x.csv",
            ["source;target", *(f'"{english}";{french}' for english, french in PAIRS), ""],
            (),
            {"header": 1, "empty side": 1},
        ),
    ],
)
def test_the_pairs_of_a_table_are_the_corpus_and_other_rows_are_counted(
    tmp_path, name, rows, options, dropped
):
    prepare(tmp_path, name, rows, *options)

    assert read_corpus(tmp_path) == (sorted(PAIRS), dropped)


def test_a_corpus_is_made_again_if_other_columns_are_chosen(tmp_path):
    rows = [(english, french, french.upper()) for english, french in PAIRS]
    prepare(tmp_path, "x.tsv", rows)

    prepare(tmp_path, "x.tsv", rows, "--columns", "1,3")

    pairs, _ = read_corpus(tmp_path)
    assert pairs == sorted((english, upper) for english, _, upper in rows)


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        pytest.param("x.tsv", "1", "columns '1'", id="one column"),
        pytest.param("x.tsv", "en,de", "--columns 'en'", id="names without a header"),
        pytest.param("x.tmx", "1,2", "columns 1,2", id="file that is no table"),
    ],
)
def test_columns_that_do_not_fit_the_file_are_refused(tmp_path, name, columns, message):
    result = prepare(tmp_path, name, PAIRS, "--columns", columns, check=False)

    refused(result, message)
