"""The rules that choose a checkpoint, on synthetic results; nothing is trained."""

import json

import toy
from conftest import main_here

from benchmarks.quality import checkpoint_rule
from benchmarks.quality.checkpoint_rule import RULES, Training, balanced, write_text

# Update, loss, accuracy, and P@1 on the validation pairs, the left-out pairs and PUD.
ROWS = ((10, 3.0, 0.9, 91, 60, 40), (20, 2.0, 0.8, 92, 62, 43), (30, 2.5, 0.9, 92, 61, 41))


def synthetic_run() -> dict:
    checkpoints = []
    for update, loss, accuracy, valid, left_out, pud in ROWS:
        scores = {"valid": valid, "own": left_out, "PUD": pud}
        checkpoints.append({"update": update, "loss": loss, "accuracy": accuracy, "P@1": scores})
    means = [{"checkpoints": count, "P@1": {"own": count, "PUD": 1}} for count in (2, 3, 5)]
    return {"pairs": 1000, "updates": 0, "checkpoints": checkpoints, "means": means}


def test_each_rule_chooses_the_best_checkpoint_by_its_measure():
    run = synthetic_run()
    updates = {name: rule(run).get("update") for name, rule in RULES.items()}
    assert updates["accuracy in the batch"] == 10
    assert updates["retrieval among held-out pairs"] == 20
    assert updates["validation loss"] == 20
    assert updates["last"] == 30
    assert RULES["mean of the last 5"](run)["P@1"]["own"] == 5


def test_the_table_has_differences_from_the_last_checkpoint(tmp_path):
    (tmp_path / "runs.jsonl").write_text(json.dumps(synthetic_run()) + "\n")
    words = ["--tables", "--output", tmp_path / "runs.jsonl"]
    table = main_here(checkpoint_rule, *words).stdout
    assert "| validation loss | all | 1 | +1.00 | +1.00 | +2.00 | +2.00 | 20 |" in table
    assert "| last | 1,000 | 1 | +0.00 | +0.00 | +0.00 | +0.00 | 30 |" in table


def test_left_out_pairs_are_not_in_the_training_text(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_rule, "OWN_PAIRS", 50)
    pairs = toy.sentences(300)
    # The first pair occurs twice.
    pairs.append(pairs[0])
    toy.pack(tmp_path / "train/multi30k.en", [source for source, _ in pairs])
    toy.pack(tmp_path / "train/multi30k.de", [target for _, target in pairs])
    training = Training("captions", 100, seed=1)
    left_out = write_text(tmp_path, training, tmp_path / "work" / "text")
    assert len(left_out["en"]) == len(left_out["de"]) == 50
    for language in ("en", "de"):
        text = (tmp_path / "work" / f"text.{language}").read_text().splitlines()
        assert len(text) == 100
        assert not set(text) & set(left_out[language])


def test_the_beginning_of_the_grid_has_all_texts_and_sizes():
    grid = list(balanced(["a", "b", "c"], [1, 2, 3], [1, 2]))
    assert len(set(grid)) == 18
    assert {text for text, _, _ in grid[:3]} == {"a", "b", "c"}
    assert {size for _, size, _ in grid[:3]} == {1, 2, 3}
