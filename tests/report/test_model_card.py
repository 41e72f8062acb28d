"""The card of a model folder: written at export, with scores when there are some, never with another model's."""

import json

import pytest
from conftest import lxsr, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.checkpoint import how_trained
from fairseq_lxsr.evaluation.score import Score, append_scores


@pytest.fixture
def folder(tmp_path, toy_checkpoint):
    lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", tmp_path / "model")
    return tmp_path / "model"


def score_of(model):
    return Score("xsr", "en->fr", {"P@1": 91.25}, {"metric": "nn", "queries": 20, "model": model})


def test_export_writes_what_is_known(folder):
    card = (folder / "README.md").read_text()
    pairs = json.loads((folder / "config.json").read_text())["training"]["pairs"]
    assert set(pairs) == {"en-fr"}
    assert f"| text | en-fr: {pairs['en-fr']:,} pairs |" in card
    assert 'language: ["en", "fr"]' in card
    assert "| objective | ugt |" in card
    assert "| align similarity | inner |" in card
    assert "distill" not in card
    assert "sentences/s" in card
    assert SentenceEncoder.from_pretrained(folder).fingerprint in card
    assert "None yet" in card


def test_pairs_of_all_shards_and_chosen_languages_are_counted(tmp_path, toy_work):
    shards = [toy_work / "data-bin", tmp_path / "second"]
    shards[1].mkdir()
    for language in ("en", "fr"):
        source, target = (shard / f"train.en-fr.{language}.idx" for shard in shards)
        target.write_bytes(source.read_bytes())
        (shards[1] / f"train.en-de.{language}.idx").write_bytes(b"another kind of index, longer than 26 bytes")
    state = {
        "cfg": {
            "task": {"lang_pairs": "fr-en"},
            "criterion": {"_name": "x", "align_weight": 2.0, "distill_weight": 1.0},
            "common": {"seed": 1},
        },
        "optimizer_history": [{"num_updates": 7}],
    }
    one, both = (how_trained(state, part)["pairs"] for part in (shards[:1], shards))
    assert one["en-fr"] > 500
    assert both == {"en-fr": 2 * one["en-fr"]}
    state["cfg"]["task"]["lang_pairs"] = None
    assert how_trained(state, shards)["pairs"] == {"en-de": 0, "en-fr": 2 * one["en-fr"]}


def test_scores_come_with_their_signatures(tmp_path, folder):
    score = score_of(SentenceEncoder.from_pretrained(folder).fingerprint)
    append_scores(tmp_path / "scores.jsonl", [score])
    lxsr("export", "card", "--model", folder, "--scores", tmp_path / "scores.jsonl")
    card = (folder / "README.md").read_text()
    assert "| xsr en->fr | P@1 91.2 |" in card
    assert score.signature in card
    assert "None yet" not in card
    assert SentenceEncoder.from_pretrained(folder).encode(["A dog."]).shape[0] == 1


def test_scores_of_another_model_are_refused(tmp_path, folder):
    append_scores(tmp_path / "scores.jsonl", [score_of("0123456789ab")])
    before = (folder / "README.md").read_text()
    done = lxsr("export", "card", "--model", folder, "--scores", tmp_path / "scores.jsonl", check=False)
    refused(done, "0123456789ab", "evaluate this model")
    assert (folder / "README.md").read_text() == before
