"""The table of scores: the names of its columns, and the models that it compares."""

import pytest

from fairseq_lxsr.evaluation.compare import paired_bootstrap
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits
from fairseq_lxsr.report.scores import score_table

# Models have fingerprints. That of the packaged model is PACKAGED, and TRAINED is the model of the
# report, which is also evaluated before its training.
PACKAGED = "aaaa"
TRAINED = "bbbb"
UNTRAINED = "bbbb-untrained"
ANOTHER = "cccc"
NAMES = {PACKAGED: "lxsr-static"}
# Hits of 80 queries: 3 of 8, or 37.5 %, and 6 of 8, or 75 %.
WORSE = [1, 0, 0, 1, 0, 0, 1, 0] * 10
BETTER = [1, 1, 0, 1, 1, 0, 1, 1] * 10


def score_of(model, hits, **settings):
    """The score of a model in a search for translations, with hit or miss of each query."""
    settings = {"metric": "nn", **settings, "model": model}
    return from_hits("xsr", "en->fr", {"P@1": Outcomes(hits)}, settings)


def test_the_table_has_the_scores_of_all_models_and_how_much_better_the_trained_one_is():
    scores = [
        score_of(UNTRAINED, WORSE),
        score_of(PACKAGED, WORSE),
        score_of(TRAINED, BETTER),
    ]

    table = score_table(scores, NAMES, TRAINED)

    assert table.head == [
        "test",
        "value",
        "random weights (bbbb-untrained)",
        "lxsr-static (aaaa)",
        "trained model (bbbb)",
        "difference, 95 % interval",
    ]
    # 75.0 - 37.5, and the interval of the bootstrap.
    low, high, _ = paired_bootstrap([Outcomes(WORSE)], [Outcomes(BETTER)])
    difference = f"+37.5 ({low:+.1f} to {high:+.1f})"
    assert table.rows == [["xsr en->fr", "P@1", "37.5", "37.5", "75.0", difference]]
    assert table.compared == ["lxsr-static", "trained model"]


@pytest.mark.parametrize(
    ("models", "trained", "compared"),
    [
        pytest.param([PACKAGED], PACKAGED, [], id="packaged, not with itself"),
        pytest.param([PACKAGED], TRAINED, [], id="no score of the trained model"),
        pytest.param([PACKAGED, ANOTHER], "", [], id="no trained model"),
        pytest.param(
            [ANOTHER, PACKAGED, TRAINED], TRAINED, ["lxsr-static", "trained model"], id="packaged"
        ),
        pytest.param(
            [ANOTHER, TRAINED], TRAINED, ["model", "trained model"], id="another without packaged"
        ),
        pytest.param(
            [UNTRAINED, TRAINED],
            TRAINED,
            ["random weights", "trained model"],
            id="itself before training",
        ),
    ],
)
def test_the_trained_model_is_compared_with_the_packaged_model_or_else_with_another(
    models, trained, compared
):
    scores = [score_of(model, WORSE) for model in models]

    table = score_table(scores, NAMES, trained)

    assert table.compared == compared
    assert ("difference, 95 % interval" in table.head) == bool(compared)


def test_a_model_keeps_its_name_when_options_follow_its_fingerprint():
    model = f"{PACKAGED}-dtype=int8-truncate_dim=64"

    table = score_table([score_of(model, WORSE)], NAMES, "")

    _, _, column_of_model = table.head
    assert column_of_model == f"lxsr-static ({model})"


def test_scores_with_different_settings_have_different_rows():
    scores = [score_of(PACKAGED, BETTER, queries=80), score_of(TRAINED, BETTER, queries=70)]

    rows = score_table(scores, NAMES, TRAINED).rows

    # Columns: test, value, packaged, trained, difference.
    assert rows == [
        ["xsr en->fr, queries 80", "P@1", "75.0", "", ""],
        ["xsr en->fr, queries 70", "P@1", "", "75.0", ""],
    ]


def test_the_last_of_several_scores_of_a_model_in_the_same_test_counts():
    scores = [score_of(PACKAGED, WORSE), score_of(PACKAGED, BETTER)]

    rows = score_table(scores, NAMES, TRAINED).rows

    assert rows == [["xsr en->fr", "P@1", "75.0"]]


def test_scores_without_outcomes_have_no_interval_of_their_difference():
    """Values that are no percentages, as thresholds, have more digits."""
    values = {"F1": 78.8, "threshold": 1.07234}
    scores = [Score("bucc", "fr-en", values, {"model": model}) for model in (PACKAGED, TRAINED)]

    rows = score_table(scores, NAMES, TRAINED).rows

    assert rows == [
        ["bucc fr-en", "F1", "78.8", "78.8", ""],
        ["bucc fr-en", "threshold", "1.0723", "1.0723", ""],
    ]
