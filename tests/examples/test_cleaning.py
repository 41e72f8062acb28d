"""examples/cleaning: the dirty corpus, and the precision and recall of a filter."""

from pathlib import Path

import pytest
from conftest import ROOT, load_script, main_here, refused

FOLDER = ROOT / "examples" / "cleaning"


def script(name: str, folder: Path, words: str, **options):
    """Run a script of the example in this process."""
    return main_here(load_script(FOLDER / f"{name}.py"), *words.split(), folder=folder, **options)


@pytest.fixture
def dirty(tmp_path):
    """The pairs of a dirty corpus, and their labels."""
    for side in ("en", "fr", "de"):
        lines = [f"{side} {number} a b\n" for number in range(400)]
        (tmp_path / side).write_text("".join(lines))
    script("make_dirty", tmp_path, "--source en --target fr --other de --output dirty --rate 0.15")
    rows = [line.split("\t") for line in (tmp_path / "dirty.tsv").read_text().splitlines()]
    return rows, (tmp_path / "dirty.labels").read_text().splitlines()


def test_a_pair_has_the_fault_of_its_label(dirty):
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
    _, labels = dirty
    for fault in ("shifted", "truncated", "wrong_language", "untranslated"):
        assert 35 < labels.count(fault) < 85, fault


def test_precision_and_recall_of_the_kept_pairs(dirty, tmp_path):
    kept_rows = []
    kept_labels = []
    for row, label in zip(*dirty, strict=True):
        if label in ("true", "shifted"):
            kept_rows.append("\t".join(row))
            kept_labels.append(label)
    # One pair more is left out.
    del kept_rows[0]
    del kept_labels[0]
    (tmp_path / "kept.tsv").write_text("".join(f"{row}\n" for row in kept_rows))
    done = script("measure", tmp_path, "--dirty dirty kept.tsv")
    num_true = kept_labels.count("true")
    cells = done.stdout.splitlines()[2].split(" | ")
    assert cells[2] == f"{100 * num_true / len(kept_labels):.1f}"
    assert cells[3] == f"{100 * num_true / dirty[1].count('true'):.1f}"


def test_kept_pairs_in_another_order_and_missing_labels_are_refused(dirty, tmp_path):
    lines = (tmp_path / "dirty.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "kept.tsv").write_text("".join(lines[1::-1]))
    done = script("measure", tmp_path, "--dirty dirty kept.tsv", check=False)
    refused(done, "measure.py: error: kept.tsv, line 2: 'en 0 a b")
    (tmp_path / "dirty.labels").write_text("true\n")
    done = script("measure", tmp_path, "--dirty dirty kept.tsv", check=False)
    refused(done, "dirty.tsv", "400", "dirty.labels", "1")


@pytest.mark.parametrize("rate", ["0.25", "-0.1", "nan"])
def test_rates_that_leave_no_true_pair_are_refused(rate, dirty, tmp_path):
    """There are four faults, each with this rate."""
    words = f"--source en --rate {rate} --target fr --other de --output dirty"
    refused(script("make_dirty", tmp_path, words, check=False), f"--rate {rate};")


def test_a_missing_text_is_refused(dirty, tmp_path):
    words = "--source no --target fr --other de --output dirty"
    refused(script("make_dirty", tmp_path, words, check=False), "make_dirty.py: error: no: ")
