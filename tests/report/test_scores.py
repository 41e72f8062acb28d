"""The table of scores: the names of its columns, and the models that it compares."""

import pytest

from fairseq_lxsr.evaluation.compare import paired_bootstrap
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits
from fairseq_lxsr.report.scores import score_table

NAMES = {"aaaa": "lxsr-static"}
WORSE = [1, 0, 0, 1, 0, 0, 1, 0] * 10
BETTER = [1, 1, 0, 1, 1, 0, 1, 1] * 10


def score_of(model, hits, **settings):
    settings = {"metric": "nn", **settings, "model": model}
    return from_hits("xsr", "en->fr", {"P@1": Outcomes(hits)}, settings)


def test_the_trained_model_is_compared_with_the_packaged_model():
    scores = [
        score_of("bbbb-untrained", WORSE),
        score_of("aaaa", WORSE),
        score_of("bbbb", BETTER),
    ]
    table = score_table(scores, NAMES, "bbbb")
    assert table.head == [
        "test",
        "value",
        "random weights (bbbb-untrained)",
        "lxsr-static (aaaa)",
        "trained model (bbbb)",
        "difference, 95 % interval",
    ]
    low, high, _ = paired_bootstrap([Outcomes(WORSE)], [Outcomes(BETTER)])
    difference = f"+37.5 ({low:+.1f} to {high:+.1f})"
    assert table.rows == [["xsr en->fr", "P@1", "37.5", "37.5", "75.0", difference]]
    assert table.compared == ["lxsr-static", "trained model"]


@pytest.mark.parametrize(
    ("models", "names", "trained", "compared"),
    [
        # The packaged model alone is not a trained model, and is not compared with itself.
        (["aaaa"], NAMES, "aaaa", []),
        (["aaaa"], NAMES, "bbbb", []),
        (["aaaa", "cccc"], NAMES, "", []),
        (["cccc", "bbbb"], NAMES, "bbbb", ["model", "trained model"]),
        (["bbbb-untrained", "bbbb"], NAMES, "bbbb", ["random weights", "trained model"]),
        (["cccc", "aaaa", "bbbb"], NAMES, "bbbb", ["lxsr-static", "trained model"]),
    ],
)
def test_the_trained_model_is_compared_with_the_packaged_model_or_another_baseline(
    models, names, trained, compared
):
    table = score_table([score_of(model, WORSE) for model in models], names, trained)
    assert table.compared == compared
    assert ("difference, 95 % interval" in table.head) == bool(compared)


def test_options_do_not_change_the_name_of_a_model():
    table = score_table([score_of("aaaa-dtype=int8-truncate_dim=64", WORSE)], NAMES, "")
    assert table.head[2] == "lxsr-static (aaaa-dtype=int8-truncate_dim=64)"


def test_only_equal_tests_share_a_row():
    scores = [
        score_of("aaaa", WORSE, queries=80),
        score_of("bbbb", BETTER, queries=70),
        # It replaces the first score.
        score_of("aaaa", BETTER, queries=80),
    ]
    rows = score_table(scores, NAMES, "bbbb").rows
    assert rows == [
        ["xsr en->fr, queries 80", "P@1", "75.0", "", ""],
        ["xsr en->fr, queries 70", "P@1", "", "75.0", ""],
    ]


def test_a_score_without_outcomes_has_no_interval():
    values = {"F1": 78.8, "threshold": 1.07234}
    scores = [Score("bucc", "fr-en", values, {"model": model}) for model in ("aaaa", "bbbb")]
    assert score_table(scores, NAMES, "bbbb").rows == [
        ["bucc fr-en", "F1", "78.8", "78.8", ""],
        ["bucc fr-en", "threshold", "1.0723", "1.0723", ""],
    ]
