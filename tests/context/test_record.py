"""Options of `lxsr train-context`, and the record of its work folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT

from fairseq_lxsr.context.rounds import (
    CONTEXT_ARCHITECTURES,
    RECORD,
    REPORT,
    ContextConfig,
    Rounds,
    add_report,
)
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import read_yaml_config
from fairseq_lxsr.training.context import model as context_transformer


def test_architectures_are_those_of_the_model_and_a_folder_that_fairseq_would_split_is_refused(
    tmp_path,
):
    assert tuple(context_transformer.CONTEXT_PRESETS) == CONTEXT_ARCHITECTURES
    documents = {"en": "en.txt", "fr": "fr.txt"}
    ContextConfig(documents, work=str(tmp_path))
    with pytest.raises(InputError, match=r"work: .*/a:b/work"):
        ContextConfig(documents, work=str(tmp_path / "a:b" / "work"))


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 200_000, '"x"'])
def test_what_is_no_record_is_named(tmp_path, content):
    (tmp_path / "stage1" / "model").mkdir(parents=True)
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(InputError, match=rf"{RECORD}: "):
        Rounds(
            ContextConfig({"en": "none", "fr": "none"}, work=str(tmp_path)),
            lambda: pytest.fail("prepared"),
        ).run()


def test_a_run_is_continued_with_the_same_options_only(tmp_path):
    (tmp_path / "stage1" / "model").mkdir(parents=True)
    source = tmp_path / "en.txt"
    source.write_text("One.\nTwo.\n")
    config = ContextConfig({"en": str(source), "fr": str(source)}, work=str(tmp_path))
    record = Rounds(config, pytest.fail)._check_record()
    (tmp_path / RECORD).write_text(json.dumps(record))
    Rounds(config, pytest.fail)._check_record()
    with pytest.raises(InputError, match=rf"{RECORD}: both_samples .*True.*False"):
        Rounds(replace(config, both_samples=True), pytest.fail)._check_record()
    # The languages take turns in this order.
    turned = dict(reversed(config.documents.items()))
    with pytest.raises(InputError, match=rf"{RECORD}: documents "):
        Rounds(replace(config, documents=turned), pytest.fail)._check_record()


@pytest.mark.parametrize(
    ("both", "negatives", "samples", "flags"),
    [
        (False, "language", 5, ()),
        (True, "language", 10, ("--both-samples",)),
        (True, "corpus", 10, ("--both-samples", "--negatives", "corpus")),
    ],
)
def test_both_samples_and_negatives_reach_the_first_stage(
    tmp_path, monkeypatch, both, negatives, samples, flags
):
    # the second document has one sentence
    np.save(tmp_path / "train.en.documents.npy", np.array([0, 3, 4, 6]))
    config = ContextConfig(
        {"en": "none"}, work=str(tmp_path), rounds=0, both_samples=both, negatives=negatives
    )
    rounds = Rounds(config, pytest.fail)
    rounds.shards, trained = [tmp_path], []
    monkeypatch.setattr(rounds, "_train", lambda *arguments: trained.append(arguments[1:]))
    monkeypatch.setattr("fairseq_lxsr.context.rounds.export_checkpoint", lambda *_: None)
    rounds._step("stage1", None)
    assert trained == [([samples], flags)]


def test_a_round_is_reported_once(tmp_path):
    """Also where a run was killed between the report and the pairs."""
    path = tmp_path / REPORT
    for pairs in (5, 7):
        add_report(path, {"round": "round1", "pairs": pairs})
    add_report(path, {"round": "round2", "pairs": 9})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"round": "round1", "pairs": 7}, {"round": "round2", "pairs": 9}]


def test_a_damaged_report_is_refused_and_stays(tmp_path):
    path = tmp_path / REPORT
    path.write_text('{"round": "rou')
    with pytest.raises(InputError, match=rf"{REPORT}: damaged"):
        add_report(path, {"round": "round1", "pairs": 5})
    assert path.read_text() == '{"round": "rou'


def test_the_example_has_what_the_paper_prints():
    """Wang et al., abstract (any languages), 3.1 (negatives), 3.2 (pairs), 4.1, and 4.4 (m)."""
    config = read_yaml_config(ROOT / "examples" / "context" / "wikipedia.yaml", ContextConfig)
    printed = {
        "pair_languages": "any",
        "negatives": "corpus",
        "both_samples": True,
        "best": 1000,
        "pairs": 100_000,
        "draw": 10_000,
        "epochs": 1,
        "rounds": 3,
        "learning_rate": 1e-4,
        "dropout": 0.1,
        "max_positions": 150,
    }
    assert vars(config).items() >= printed.items()
