"""The card of a model folder: written at export, with scores when there are some, never with another model's."""

import json

import pytest
from conftest import lxsr, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.score import Score, append_scores


@pytest.fixture
def folder(tmp_path, toy_checkpoint):
    lxsr("export-model", "--checkpoint", toy_checkpoint, "--output", tmp_path / "model")
    return tmp_path / "model"


def score_of(model):
    return Score("xsr", "en->fr", {"P@1": 91.25}, {"metric": "nn", "queries": 20, "model": model})


def test_export_writes_what_is_known(folder):
    card = (folder / "README.md").read_text()
    pairs = json.loads((folder / "config.json").read_text())["training"]["pairs"]
    assert set(pairs) == {"en-fr"}
    assert f"| text | en-fr: {pairs['en-fr']:,} pairs |" in card
    assert "language: [en, fr]" in card
    assert "| objective | ugt |" in card
    assert "sentences/s" in card
    assert SentenceEncoder.from_pretrained(folder).fingerprint in card
    assert "None yet" in card


def test_scores_come_with_their_signatures(tmp_path, folder):
    score = score_of(SentenceEncoder.from_pretrained(folder).fingerprint)
    append_scores(tmp_path / "scores.jsonl", [score])
    lxsr("export-model", "--model", folder, "--to", "card", "--scores", tmp_path / "scores.jsonl")
    card = (folder / "README.md").read_text()
    assert "| xsr en->fr | P@1 91.2 |" in card
    assert score.signature in card
    assert "None yet" not in card
    assert SentenceEncoder.from_pretrained(folder).encode(["A dog."]).shape[0] == 1


def test_scores_of_another_model_and_senseless_options_are_refused(tmp_path, folder):
    append_scores(tmp_path / "scores.jsonl", [score_of("0123456789ab")])
    card = ("export-model", "--model", folder, "--to", "card")
    before = (folder / "README.md").read_text()
    refused(lxsr(*card, "--scores", tmp_path / "scores.jsonl", check=False), "0123456789ab", "evaluate this model")
    assert (folder / "README.md").read_text() == before
    refused(lxsr(*card, "--output", tmp_path / "other", check=False), "expects no --output")
    onnx = ("export-model", "--model", folder, "--to", "onnx")
    refused(lxsr(*onnx, check=False), "expects --output")
    refused(lxsr(*onnx, "--output", tmp_path / "o", "--scores", "x", check=False), "--scores is for --to card")
