"""Options of `lxsr train-context`, and the record of its work folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, case

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


def test_the_choices_of_arch_are_the_presets_of_the_model():
    assert tuple(context_transformer.CONTEXT_PRESETS) == CONTEXT_ARCHITECTURES


def test_a_work_folder_with_a_colon_is_refused(tmp_path):
    """fairseq would split the path at the colon."""
    documents = {"en": "en.txt", "fr": "fr.txt"}
    ContextConfig(documents, work=str(tmp_path))
    with pytest.raises(InputError, match=r"work: .*/a:b/work"):
        ContextConfig(documents, work=str(tmp_path / "a:b" / "work"))


def test_an_invalid_record_is_refused_before_preparing(tmp_path):
    (tmp_path / "stage1" / "model").mkdir(parents=True)
    config = ContextConfig({"en": "none", "fr": "none"}, work=str(tmp_path))
    for content in ("", "[]", "{", "[" * 200_000, '"x"'):
        (tmp_path / RECORD).write_text(content)
        rounds = Rounds(config, lambda: pytest.fail("prepared"))
        with case(content[:9]), pytest.raises(InputError, match=rf"{RECORD}: "):
            rounds.run()


def test_a_run_is_continued_only_with_the_same_options(tmp_path):
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
    ("both_samples", "negatives", "samples", "flags"),
    [
        (False, "language", 5, ()),
        (True, "language", 10, ("--both-samples",)),
        (True, "corpus", 10, ("--both-samples", "--negatives", "corpus")),
    ],
)
def test_both_samples_and_negatives_are_passed_to_the_first_training(
    tmp_path, monkeypatch, both_samples, negatives, samples, flags
):
    # The second document has a single sentence.
    np.save(tmp_path / "train.en.documents.npy", np.array([0, 3, 4, 6]))
    options = {"both_samples": both_samples, "negatives": negatives}
    config = ContextConfig({"en": "none"}, work=str(tmp_path), rounds=0, **options)
    rounds = Rounds(config, pytest.fail)
    rounds.shards = [tmp_path]
    trained = []
    monkeypatch.setattr(rounds, "_train", lambda *arguments: trained.append(arguments[1:]))
    monkeypatch.setattr("fairseq_lxsr.context.rounds.export_checkpoint", lambda *_: None)
    rounds._step("stage1", None)
    assert trained == [([samples], flags)]


def test_a_round_is_reported_once(tmp_path):
    """A run that was killed between the report and the pairs reports again."""
    path = tmp_path / REPORT
    for pairs in (5, 7):
        add_report(path, {"round": "round1", "pairs": pairs})
    add_report(path, {"round": "round2", "pairs": 9})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"round": "round1", "pairs": 7}, {"round": "round2", "pairs": 9}]


def test_a_damaged_report_is_refused_and_not_changed(tmp_path):
    path = tmp_path / REPORT
    path.write_text('{"round": "rou')
    with pytest.raises(InputError, match=rf"{REPORT}: damaged"):
        add_report(path, {"round": "round1", "pairs": 5})
    assert path.read_text() == '{"round": "rou'


def test_the_example_has_the_settings_of_the_paper():
    """Wang et al., abstract (any languages), 3.1 (negatives), 3.2 (pairs), 4.1, and 4.4 (m)."""
    config = read_yaml_config(ROOT / "examples" / "context" / "wikipedia.yaml", ContextConfig)
    expected = {
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
    assert vars(config).items() >= expected.items()
