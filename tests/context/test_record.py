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


def test_the_choices_of_arch_are_the_presets_of_the_model():
    assert tuple(context_transformer.CONTEXT_PRESETS) == CONTEXT_ARCHITECTURES


def test_a_work_folder_with_a_colon_is_refused(tmp_path):
    """fairseq would split the path at the colon."""
    documents = {"en": "en.txt", "fr": "fr.txt"}
    with pytest.raises(InputError, match=r"work: .*/a:b/work contains ':'"):
        ContextConfig(documents, work=str(tmp_path / "a:b" / "work"))


def begin_training(work):
    """Make the folder that the first stage leaves in the work folder."""
    (work / "stage1" / "model").mkdir(parents=True)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "[" * 200_000, '"x"'],
    ids=["empty", "list", "cut", "too deep", "string"],
)
def test_an_invalid_record_is_refused_before_the_text_is_prepared(tmp_path, content):
    begin_training(tmp_path)
    (tmp_path / RECORD).write_text(content)
    config = ContextConfig({"en": "none", "fr": "none"}, work=str(tmp_path))
    rounds = Rounds(config, prepare=lambda: pytest.fail("prepared"))
    with pytest.raises(InputError, match=rf"{RECORD}: "):
        rounds.run()


@pytest.fixture
def begun_run(tmp_path):
    """The options of a run of English and French whose training has begun."""
    source = tmp_path / "en.txt"
    source.write_text("One.\nTwo.\n")
    config = ContextConfig({"en": str(source), "fr": str(source)}, work=str(tmp_path))
    record = Rounds(config, prepare=pytest.fail)._check_record()
    (tmp_path / RECORD).write_text(json.dumps(record))
    begin_training(tmp_path)
    return config


def test_a_run_may_be_continued_with_the_same_options(begun_run):
    Rounds(begun_run, prepare=pytest.fail)._check_record()


def test_a_run_cannot_be_continued_with_another_option(begun_run):
    changed = replace(begun_run, both_samples=True)
    with pytest.raises(InputError, match=rf"{RECORD}: both_samples is True, .* with False"):
        Rounds(changed, prepare=pytest.fail)._check_record()


def test_a_run_cannot_be_continued_with_the_languages_in_another_order(begun_run):
    """The languages take turns in this order."""
    changed = replace(begun_run, documents=dict(reversed(begun_run.documents.items())))
    with pytest.raises(InputError, match=rf"{RECORD}: documents "):
        Rounds(changed, prepare=pytest.fail)._check_record()


@pytest.mark.parametrize(
    ("both_samples", "negatives", "samples", "options"),
    [
        (False, "language", 5, ()),
        (True, "language", 2 * 5, ("--both-samples",)),
        (True, "corpus", 2 * 5, ("--both-samples", "--negatives", "corpus")),
    ],
    ids=["default", "both", "both corpus"],
)
def test_both_samples_and_negatives_are_passed_to_the_first_training(
    tmp_path, monkeypatch, both_samples, negatives, samples, options
):
    """`both_samples` gives two samples for each sentence, otherwise there is one."""
    # The first sentence of each document, and the end: documents of 3, 1 and 2 sentences. The
    # single sentence has no context, so 3 + 2 = 5 sentences have samples.
    np.save(tmp_path / "train.en.documents.npy", np.array([0, 3, 4, 6]))
    config = ContextConfig(
        {"en": "none"},
        work=str(tmp_path),
        rounds=0,
        both_samples=both_samples,
        negatives=negatives,
    )
    rounds = Rounds(config, prepare=pytest.fail)
    rounds.shards = [tmp_path]
    # Record what would be trained, and export nothing.
    trainings = []

    def record_training(folder, samples, options):
        trainings.append((samples, options))

    monkeypatch.setattr(rounds, "_train", record_training)
    monkeypatch.setattr("fairseq_lxsr.context.rounds.export_checkpoint", lambda *_: None)

    rounds._step("stage1", previous=None)

    # One training, of one shard.
    assert trainings == [([samples], options)]


def test_a_round_that_is_reported_again_replaces_its_earlier_report(tmp_path):
    """A run that was killed between the report and the pairs reports again."""
    path = tmp_path / REPORT
    add_report(path, {"round": "round1", "pairs": 5})
    add_report(path, {"round": "round1", "pairs": 7})
    add_report(path, {"round": "round2", "pairs": 9})
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    assert reports == [{"round": "round1", "pairs": 7}, {"round": "round2", "pairs": 9}]


def test_a_damaged_report_is_refused_and_not_changed(tmp_path):
    path = tmp_path / REPORT
    incomplete_line = '{"round": "rou'
    path.write_text(incomplete_line)
    with pytest.raises(InputError, match=rf"{REPORT}: damaged"):
        add_report(path, {"round": "round1", "pairs": 5})
    assert path.read_text() == incomplete_line


def test_the_example_has_the_settings_of_the_paper():
    """Wang et al.: the abstract (any languages), 3.1 (negatives), 3.2 (pairs), 4.1, and 4.4 (m)."""
    config = read_yaml_config(ROOT / "examples" / "context" / "wikipedia.yaml", ContextConfig)
    assert config.pair_languages == "any"
    assert config.negatives == "corpus"
    assert config.both_samples
    assert config.best == 1000
    assert config.pairs == 100_000
    assert config.rounds == 3
    assert config.epochs == 1
    assert config.learning_rate == 1e-4
    assert config.dropout == 0.1
    assert config.max_positions == 150
    # m in the paper.
    assert config.draw == 10_000
