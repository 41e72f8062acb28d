"""examples/cleaning: the dirty corpus, and the precision and recall of a filter."""

from pathlib import Path

import pytest
from conftest import ROOT, load_script, main_here, refused

FOLDER = ROOT / "examples" / "cleaning"
NUMBER_OF_PAIRS = 400
FAULTS = ("shifted", "truncated", "wrong_language", "untranslated")


def run_script(name: str, folder: Path, words: str, **options):
    """Run a script of the example in this process."""
    return main_here(load_script(FOLDER / f"{name}.py"), *words.split(), folder=folder, **options)


@pytest.fixture
def dirty(tmp_path):
    """The pairs of a dirty corpus, and their labels; each fault has 15 % of the pairs.

    Pair N is `en N a b` and `fr N a b`; the same line in another language is `de N a b`.
    """
    for side in ("en", "fr", "de"):
        lines = [f"{side} {number} a b\n" for number in range(NUMBER_OF_PAIRS)]
        (tmp_path / side).write_text("".join(lines))
    words = "--source en --target fr --other de --output dirty --rate 0.15"
    run_script("make_dirty", tmp_path, words)
    rows = [line.split("\t") for line in (tmp_path / "dirty.tsv").read_text().splitlines()]
    labels = (tmp_path / "dirty.labels").read_text().splitlines()
    return rows, labels


def test_a_pair_has_the_fault_of_its_label(dirty):
    rows, labels = dirty

    for number, ((source, target), label) in enumerate(zip(rows, labels, strict=True)):
        expected_targets = {
            "true": f"fr {number} a b",
            # The target of the next pair.
            "shifted": f"fr {(number + 1) % NUMBER_OF_PAIRS} a b",
            "truncated": f"fr {number}",
            "wrong_language": f"de {number} a b",
            "untranslated": f"en {number} a b",
        }
        assert source == f"en {number} a b"
        assert target == expected_targets[label]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_about_its_rate_of_the_pairs(dirty, fault):
    _, labels = dirty

    # 15 % are 60 pairs; the tolerance is 3.5 standard deviations.
    assert labels.count(fault) == pytest.approx(0.15 * NUMBER_OF_PAIRS, abs=25)


def test_precision_and_recall_are_those_of_the_true_pairs_among_the_kept_ones(dirty, tmp_path):
    # A filter that keeps true and shifted pairs, except the first of them.
    rows, labels = dirty
    _, *kept = [
        (row, label)
        for row, label in zip(rows, labels, strict=True)
        if label in ("true", "shifted")
    ]
    (tmp_path / "kept.tsv").write_text("".join("\t".join(row) + "\n" for row, _ in kept))

    done = run_script("measure", tmp_path, "--dirty dirty kept.tsv")

    true_positives = [label for _, label in kept].count("true")
    _, _, row = done.stdout.splitlines()
    _, _, precision, recall, *_ = row.split(" | ")
    assert precision == f"{100 * true_positives / len(kept):.1f}"
    assert recall == f"{100 * true_positives / labels.count('true'):.1f}"


def test_kept_pairs_in_another_order_are_refused(dirty, tmp_path):
    first, second, *_ = (tmp_path / "dirty.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "kept.tsv").write_text(second + first)

    done = run_script("measure", tmp_path, "--dirty dirty kept.tsv", check=False)

    refused(done, "measure.py: error: kept.tsv, line 2: 'en 0 a b")


def test_a_corpus_with_fewer_labels_than_pairs_is_refused(dirty, tmp_path):
    (tmp_path / "dirty.labels").write_text("true\n")

    done = run_script("measure", tmp_path, "--dirty dirty dirty.tsv", check=False)

    refused(done, "dirty.tsv", "400", "dirty.labels", "1")


@pytest.mark.parametrize("rate", ["0.25", "-0.1", "nan"])
def test_a_rate_outside_0_to_a_quarter_is_refused(rate, dirty, tmp_path):
    """Four faults, each with a rate of a quarter, leave no true pair."""
    words = f"--source en --rate {rate} --target fr --other de --output dirty"

    done = run_script("make_dirty", tmp_path, words, check=False)

    refused(done, f"--rate {rate};")


def test_a_missing_text_is_refused(tmp_path):
    words = "--source no --target fr --other de --output dirty"

    done = run_script("make_dirty", tmp_path, words, check=False)

    refused(done, "make_dirty.py: error: no: ")
