"""The rules that choose a checkpoint, on synthetic results; nothing is trained."""

import itertools
import json

import pytest
import toy
from conftest import main_here

from benchmarks.quality import checkpoint_rule
from benchmarks.quality.checkpoint_rule import RULES, Training, balanced, write_text


def checkpoint_at(update: int, loss: float, accuracy: float, **precision: float) -> dict:
    """Return the results of one checkpoint; `precision` is P@1 by set."""
    return {"update": update, "loss": loss, "accuracy": accuracy, "P@1": precision}


# `valid` has the validation pairs, `own` the pairs left out of the text, `PUD` another kind of text.
FIRST = checkpoint_at(10, loss=3.0, accuracy=0.9, valid=91, own=60, PUD=40)
SECOND = checkpoint_at(20, loss=2.0, accuracy=0.8, valid=92, own=62, PUD=43)
LAST = checkpoint_at(30, loss=2.5, accuracy=0.9, valid=92, own=61, PUD=41)
# Of the weights of the last 2, 3 and 5 checkpoints.
MEAN_OF_2 = {"checkpoints": 2, "P@1": {"own": 63, "PUD": 44}}
MEAN_OF_3 = {"checkpoints": 3, "P@1": {"own": 64, "PUD": 45}}
MEAN_OF_5 = {"checkpoints": 5, "P@1": {"own": 65, "PUD": 46}}
TRAINING_RESULTS = {
    "pairs": 1000,
    "updates": 0,
    "checkpoints": [FIRST, SECOND, LAST],
    "means": [MEAN_OF_2, MEAN_OF_3, MEAN_OF_5],
}


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        # The first of two equal accuracies, and of two equal P@1 among `valid`.
        ("accuracy in the batch", FIRST),
        ("retrieval among held-out pairs", SECOND),
        ("validation loss", SECOND),
        ("last", LAST),
        ("mean of the last 2", MEAN_OF_2),
        ("mean of the last 3", MEAN_OF_3),
        ("mean of the last 5", MEAN_OF_5),
    ],
)
def test_each_rule_chooses_the_best_checkpoint_by_its_measure(rule, chosen):
    assert RULES[rule](TRAINING_RESULTS) is chosen


def test_the_table_has_the_gains_of_each_rule_over_the_last_checkpoint(tmp_path):
    results = tmp_path / "runs.jsonl"
    results.write_text(json.dumps(TRAINING_RESULTS) + "\n")

    table = main_here(checkpoint_rule, "--tables", "--output", results).stdout

    assert "| rule | pairs | trainings | own | least | other kinds | least | update |" in table
    # SECOND minus LAST: 62 - 61 on the pairs left out, 43 - 41 on PUD; mean and least are equal.
    assert "| validation loss | all | 1 | +1.00 | +1.00 | +2.00 | +2.00 | 20 |" in table
    assert "| last | 1,000 | 1 | +0.00 | +0.00 | +0.00 | +0.00 | 30 |" in table


def test_left_out_pairs_are_not_in_the_training_text(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_rule, "OWN_PAIRS", 50)
    pairs = toy.sentences(300)
    # One pair occurs twice: it may not be in both.
    pairs.append(pairs[0])
    # The file of `captions`.
    toy.pack(tmp_path / "train/multi30k.en", [source for source, _ in pairs])
    toy.pack(tmp_path / "train/multi30k.de", [target for _, target in pairs])
    training = Training("captions", pairs=100, seed=1)

    left_out = write_text(tmp_path, training, tmp_path / "work" / "text")

    assert len(left_out["en"]) == len(left_out["de"]) == 50
    for language in ("en", "de"):
        text = (tmp_path / "work" / f"text.{language}").read_text().splitlines()
        assert len(text) == 100
        assert not set(text) & set(left_out[language])


def test_the_grid_has_every_combination_once_and_its_first_trainings_all_texts_and_sizes():
    """A grid that is not finished compares all texts and sizes."""
    texts = ["a", "b", "c"]
    sizes = [1, 2, 3]
    seeds = [1, 2]

    grid = list(balanced(texts, sizes, seeds))

    assert sorted(grid) == list(itertools.product(texts, sizes, seeds))
    assert {text for text, _, _ in grid[:3]} == set(texts)
    assert {size for _, size, _ in grid[:3]} == set(sizes)
