"""examples/cleaning: the dirty corpus, and the count of what a filter keeps."""

from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, load_script, main_here, refused

FOLDER = ROOT / "examples" / "cleaning"
WRONG_RATES = ("0.25", "-0.1", "nan")  # four faults at a rate each leave no true pair


def script(name: str, folder: Path, words: str, **options):
    """Run a script of the example in this process."""
    return main_here(load_script(FOLDER / f"{name}.py"), *words.split(), folder=folder, **options)


@pytest.fixture
def dirty(tmp_path):
    for side in ("en", "fr", "de"):
        (tmp_path / side).write_text("".join(f"{side} {n} a b\n" for n in range(400)))
    script("make_dirty", tmp_path, "--source en --target fr --other de --output dirty --rate 0.15")
    rows = [line.split("\t") for line in (tmp_path / "dirty.tsv").read_text().splitlines()]
    return rows, (tmp_path / "dirty.labels").read_text().splitlines()


def test_faults_are_what_their_label_says(dirty):
    for number, ((source, target), label) in enumerate(zip(*dirty, strict=True)):
        assert source == f"en {number} a b"
        expected = {
            "true": f"fr {number} a b",
            "shifted": f"fr {(number + 1) % 400} a b",
            "truncated": f"fr {number}",
            "wrong_language": f"de {number} a b",
            "untranslated": source,
        }
        assert target == expected[label]
    counts = {label: dirty[1].count(label) for label in expected}
    assert all(35 < count < 85 for label, count in counts.items() if label != "true"), counts


def test_precision_and_recall(dirty, tmp_path):
    rows, labels = dirty
    kept = [row for row, label in zip(rows, labels, strict=True) if label in ("true", "shifted")][
        1:
    ]
    (tmp_path / "kept.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in kept))
    done = script("measure", tmp_path, "--dirty dirty kept.tsv")
    true = labels.count("true")
    first = int(labels[0] == "true")  # the pair that was left out
    cells = done.stdout.splitlines()[2].split(" | ")
    assert cells[2] == f"{100 * (true - first) / len(kept):.1f}"
    assert cells[3] == f"{100 * (true - first) / true:.1f}"


def test_pairs_in_another_order_are_refused(dirty, tmp_path):
    lines = (tmp_path / "dirty.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "kept.tsv").write_text("".join(lines[1::-1]))
    measured = partial(script, "measure", tmp_path, "--dirty dirty kept.tsv", check=False)
    refused(measured(), "measure.py: error: kept.tsv, line 2: 'en 0 a b")
    (tmp_path / "dirty.labels").write_text("true\n")
    refused(measured(), "dirty.tsv", "400", "dirty.labels", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((f"--source en --rate {rate}", f"--rate {rate};") for rate in WRONG_RATES),
        ("--source no", "make_dirty.py: error: no: "),
    ],
)
def test_rates_that_leave_no_true_pair_are_refused(words, said, dirty, tmp_path):
    words += " --target fr --other de --output dirty"
    refused(script("make_dirty", tmp_path, words, check=False), said)
