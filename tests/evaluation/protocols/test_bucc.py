"""BUCC on files whose results are known by hand; see golden/README.md."""

import json
import shutil
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from conftest import lxsr_here, refused
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.compare import compare_runs
from fairseq_lxsr.evaluation.protocols import bucc
from fairseq_lxsr.evaluation.protocols.bucc import BuccMining
from fairseq_lxsr.evaluation.score import Score, append_scores, read_scores
from fairseq_lxsr.vectors import MinedPairs

TEMPLATE = str(GOLDEN / "bucc" / "{pair}")
# With the absolute margin, the score of a pair is its cosine.
ABSOLUTE = BuccMining(margin="absolute")
DATA = json.loads((GOLDEN / "protocols.json").read_text())
# The cosines of the mined training pairs are 0.9 (gold), 0.8 (gold), 0.7, 0.6 (gold), 0.5; those of
# the test pairs, by row of the source, 0.95 (gold), 0.75, 0.58 (gold), 0.54 (gold).
TRAIN = bucc.read_set(TEMPLATE, "fr-en", "training")
TEST = bucc.read_set(TEMPLATE, "fr-en", "test")
LEARNED, MINED = bucc.score_mined(TEST, Vectors(), ABSOLUTE, TRAIN)
ORACLE, ORACLE_MINED = bucc.score_mined(TEST, Vectors(), ABSOLUTE)
# Two adjacent numbers of float32: no number is between them.
ABOVE_ONE = np.float32(1.0000001)
BELOW_IT = np.nextafter(ABOVE_ONE, np.float32(0))


def mined_pairs(scores, rows) -> MinedPairs:
    """Return mined pairs with these scores and (source row, target row)."""
    source, target = zip(*rows, strict=True)
    return MinedPairs(np.array(scores, dtype=np.float32), np.array(source), np.array(target))


MINING_SETTINGS = "metric:margin-absolute|norm:l2|k:4|retrieval:max|sentences:4x4|gold:3"


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        pytest.param(
            LEARNED,
            f"bucc|{MINING_SETTINGS}|form:learned|part:test|threshold-from:training|text:",
            id="learned",
        ),
        pytest.param(ORACLE, f"bucc|{MINING_SETTINGS}|form:oracle|part:test|text:", id="oracle"),
        # mteb-v2 searches among the three targets of gold pairs, mteb-v1 among all four targets.
        pytest.param(
            bucc.score_as_mteb(TEST, Vectors(), "mteb-v2"),
            "bucc|metric:nn-cosine|norm:l2|sentences:3x3|gold:3|form:mteb-v2|part:test|text:",
            id="mteb-v2",
        ),
        pytest.param(
            bucc.score_as_mteb(TEST, Vectors(), "mteb-v1"),
            "bucc|metric:nn-cosine|norm:l2|sentences:3x4|gold:3|form:mteb-v1|part:test|text:",
            id="mteb-v1",
        ),
    ],
)
def test_each_form_has_its_own_signature(score, expected):
    assert score.signature.startswith(expected)
    assert score.task == "fr-en"


def test_values_of_different_forms_have_different_names_except_the_threshold():
    mteb = bucc.score_as_mteb(TEST, Vectors(), "mteb-v2")

    for first, second in combinations((LEARNED, ORACLE, mteb), 2):
        assert first.values.keys() & second.values.keys() <= {"threshold"}


def test_the_learned_threshold_is_the_one_of_the_best_f1_of_the_training_part():
    """Four pairs of the training part, down to 0.6, have the best F1; the next one has 0.5."""
    assert LEARNED.values["threshold"] == pytest.approx((0.6 + 0.5) / 2)
    # All three gold pairs are among the four.
    precision = 3 / 4
    recall = 3 / 3
    f1 = 2 * precision * recall / (precision + recall)
    assert LEARNED.values["train F1"] == pytest.approx(100 * f1)


def test_the_values_of_the_learned_threshold_are_those_of_the_test_pairs_above_it():
    """Three test pairs are above 0.55; two of them are among the three gold pairs."""
    source_ids = [TEST.source_ids[row] for row in MINED.source]
    assert source_ids == ["fr-000000000", "fr-000000001", "fr-000000002"]
    for name in ("precision", "recall", "F1"):
        assert LEARNED.values[name] == pytest.approx(100 * 2 / 3)


def test_the_oracle_threshold_has_the_best_f1_of_the_test_part():
    """All four pairs are kept: 0.95 (gold), 0.75, 0.58 (gold), 0.54 (gold)."""
    precision = 3 / 4
    recall = 3 / 3
    f1 = 2 * precision * recall / (precision + recall)

    assert len(ORACLE_MINED) == 4
    assert ORACLE.values == pytest.approx(
        {
            "oracle F1": 100 * f1,
            "oracle precision": 100 * precision,
            "oracle recall": 100 * recall,
            # No pair follows, so the threshold is the score of the last one.
            "threshold": 0.54,
        },
        abs=1e-4,
    )


def reference_set(vectors, targets, gold):
    """Return the mining set and the encoder of the values of a reference tool.

    Args:
        vectors: vectors of `source` and `target`.
        targets: the target sentences.
        gold: rows of the gold pairs.
    """
    sources = [f"source {row}" for row in range(len(vectors["source"]))]
    lines = [*sources, *targets]
    encoder = Vectors(dict(zip(lines, vectors["source"] + vectors["target"], strict=True)))
    pairs = set(map(tuple, gold))
    return bucc.MiningSet(Text(sources), Text(targets), sources, targets, pairs), encoder


def test_the_best_threshold_and_its_values_equal_those_of_laser():
    vectors = json.loads((GOLDEN / "margin.json").read_text())
    targets = [f"target {row}" for row in range(len(vectors["target"]))]
    mining_set, encoder = reference_set(vectors, targets, DATA["gold"])

    score, _ = bucc.score_mined(mining_set, encoder)

    values = {name.removeprefix("oracle "): value for name, value in score.values.items()}
    assert values == pytest.approx(DATA["values"]["bucc"], abs=1e-4)


@pytest.mark.parametrize(("form", "task"), [("mteb-v1", "mteb BUCC"), ("mteb-v2", "mteb BUCC.v2")])
def test_values_equal_those_of_mteb(form, task):
    mining_set, encoder = reference_set(DATA, DATA["lines"], DATA["pairs"])

    score = bucc.score_as_mteb(mining_set, encoder, form)

    values = {}
    for name, value in score.values.items():
        values[name.removeprefix("weighted ").lower()] = value / 100
    assert values == pytest.approx(DATA["values"][task])


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        # The forms of mteb mine nothing.
        ("--form mteb-v2 --k 4", ("--k", "--form mteb-v2")),
        ("--form mteb-v1 --unify", ("--unify", "--form mteb-v1")),
        # The oracle learns nothing.
        ("--form oracle --learn-part sample", ("--learn-part", "--form oracle")),
        # The default form learns on the training part, which it cannot also score.
        ("--part training", ("--learn-part", "--part", "training")),
    ],
)
def test_contradictory_options_are_refused(options, fragments):
    data = ("--data", TEMPLATE, "--lang-pairs", "fr-en")

    done = lxsr_here("eval", "bucc", "--model", "missing", *data, *options.split(), check=False)

    refused(done, *fragments)


def test_a_missing_part_is_refused():
    data = ("--data", TEMPLATE, "--lang-pairs", "fr-en", "--learn-part", "sample")

    done = lxsr_here("eval", "bucc", "--model", "missing", *data, check=False)

    refused(done, "fr-en.sample.fr")


def test_outcomes_count_the_mined_and_gold_pairs_of_each_source():
    """One of three mined pairs is right, and it is one of three gold pairs."""
    mined = mined_pairs([3, 2, 1], [(0, 0), (0, 1), (2, 2)])
    gold = {(0, 0), (0, 5), (1, 1)}

    outcomes = bucc.f1_outcomes(mined, gold, sentences=4)

    for name in ("F1", "precision", "recall"):
        assert outcomes[name].value == pytest.approx(100 / 3)
    # The F1 counts a right pair twice, and divides by mined and gold pairs.
    assert outcomes["F1"].hits == [2, 0, 0, 0]
    assert outcomes["F1"].totals == [2 + 2, 0 + 1, 1 + 0, 0]


def test_without_mined_pairs_precision_recall_and_f1_are_zero():
    no_pairs = mined_pairs([1], [(0, 0)]).first(0)

    outcomes = bucc.f1_outcomes(no_pairs, {(0, 0)}, sentences=4)

    for name in ("F1", "precision", "recall"):
        assert outcomes[name].value == 0


def test_two_systems_that_mined_different_sentences_are_compared():
    vectors = Vectors().vectors
    # The second system finds the gold pair 3, and does not mine the wrong pair 1.
    better_vectors = vectors | {
        "test target 3": vectors["test source 3"],
        "test target 1": vectors["test target 1"][::-1],
    }
    mining = BuccMining(margin="absolute", k=3)
    first, _ = bucc.score_mined(TEST, Vectors(vectors), mining, TRAIN)
    second, _ = bucc.score_mined(TEST, Vectors(better_vectors), mining, TRAIN)

    results, notes = compare_runs([[first]], [[second]])

    assert notes == []
    f1 = next(result for result in results if result.value == "F1")
    # Two of three pairs of the first system are right, as with LEARNED.
    assert f1.first == pytest.approx(100 * 2 / 3)
    assert f1.second == pytest.approx(100)


def with_a_changed_gold_pair(mining_set: bucc.MiningSet) -> bucc.MiningSet:
    (source, target), *unchanged = sorted(mining_set.gold)
    return replace(mining_set, gold={(source, target + 1), *unchanged})


@pytest.mark.parametrize(
    ("train", "test"),
    [
        pytest.param(with_a_changed_gold_pair(TRAIN), TEST, id="training"),
        pytest.param(TRAIN, with_a_changed_gold_pair(TEST), id="test"),
    ],
)
def test_scores_with_different_gold_pairs_are_not_compared(train, test):
    changed, _ = bucc.score_mined(test, Vectors(), ABSOLUTE, train)

    results, _ = compare_runs([[LEARNED]], [[changed]])

    assert changed.signature != LEARNED.signature
    assert results == []


# -- thresholds


@pytest.mark.parametrize(
    ("scores", "num_gold"),
    [
        pytest.param([ABOVE_ONE, BELOW_IT], 1, id="adjacent numbers"),
        pytest.param([np.inf, 2, 1], 1, id="infinite gold"),
        pytest.param([np.inf, np.inf], 2, id="all infinite"),
        pytest.param([np.inf, -np.inf], 1, id="infinities of both signs"),
        pytest.param([2, 1, -np.inf], 2, id="minus infinity at the end"),
    ],
)
def test_a_finite_threshold_separates_the_gold_pairs_from_the_others(tmp_path, scores, num_gold):
    """The gold pairs are the first ones; without other pairs, all are above the threshold."""
    rows = [(row, row) for row in range(len(scores))]
    mined = mined_pairs(scores, rows)

    threshold = bucc.best_threshold(mined, set(rows[:num_gold]))

    assert len(mined.above(threshold)) == num_gold
    # Only finite numbers can be stored.
    path = tmp_path / "scores.jsonl"
    append_scores(path, [Score("bucc", "fr-en", {"threshold": threshold}, {})])
    assert read_scores(path)[0].values == {"threshold": threshold}


def test_a_threshold_is_half_way_between_two_scores():
    mined = mined_pairs([2, 1, 1], [(0, 0), (1, 1), (2, 5)])

    # Only the first pair is right.
    assert bucc.best_threshold(mined, {(0, 0)}) == (2 + 1) / 2


def test_pairs_of_equal_score_are_on_the_same_side_of_the_threshold():
    """The first two pairs would have the best F1 of 80, but the third has the score of the second.

    All three pairs have an F1 of 67, the first alone one of 50.
    """
    mined = mined_pairs([2, 1, 1], [(0, 0), (1, 1), (2, 5)])

    assert bucc.best_threshold(mined, {(0, 0), (1, 1), (2, 2)}) == 1


def test_pairs_without_a_finite_score_have_no_threshold():
    mined = mined_pairs([-np.inf], [(0, 0)])

    with pytest.raises(InputError, match="threshold"):
        bucc.best_threshold(mined, {(0, 0)})


# -- repeated sentences


def repeating_set() -> bucc.MiningSet:
    """Return the test part with its first source and its fourth target repeated at the end.

    The repeated source has a space behind it, which does not count.
    """
    source = replace(TEST.source, lines=[*TEST.source.lines, f"{TEST.source.lines[0]} "])
    target = replace(TEST.target, lines=[*TEST.target.lines, TEST.target.lines[3]])
    return bucc.MiningSet(
        source, target, [*TEST.source_ids, "fr-5"], [*TEST.target_ids, "en-5"], TEST.gold
    )


def test_unify_drops_the_pairs_of_repeated_sentences():
    """Other pairs have the scores that they have in the set without repetitions."""
    mined = ABSOLUTE.mine(TEST, Vectors())
    has_no_repetition = (mined.source != 0) & (mined.target != 3)
    assert 0 < has_no_repetition.sum() < len(mined)

    unified = replace(ABSOLUTE, unify=True).mine(repeating_set(), Vectors())

    np.testing.assert_array_equal(unified.source, mined.source[has_no_repetition])
    np.testing.assert_array_equal(unified.target, mined.target[has_no_repetition])
    np.testing.assert_array_equal(unified.scores, mined.scores[has_no_repetition])


def test_distinct_sentences_are_the_first_of_each_in_order():
    text = repeating_set().target

    distinct, rows, occurs_once = bucc.distinct_sentences(text)

    assert list(distinct.lines) == list(TEST.target.lines)
    assert rows.tolist() == [0, 1, 2, 3]
    # The fourth is repeated.
    assert occurs_once.tolist() == [True, True, True, False]
    # Embeddings made elsewhere are looked up by row of the whole text, which has five lines.
    assert distinct.rows.tolist() == [0, 1, 2, 3]
    assert distinct.total == 5


def test_unify_changes_no_value_without_repetitions():
    unified, _ = bucc.score_mined(TEST, Vectors(), replace(ABSOLUTE, unify=True), TRAIN)

    assert unified.values == LEARNED.values


def test_unify_is_in_the_signature():
    unified, _ = bucc.score_mined(TEST, Vectors(), replace(ABSOLUTE, unify=True), TRAIN)

    assert "|retrieval:max|unify:yes|sentences:4x4|" in unified.signature
    assert "unify" not in LEARNED.signature


# -- curves of precision and recall


def test_the_curve_has_the_precision_and_recall_of_the_score_at_its_threshold():
    thresholds = LEARNED.curve["threshold"]
    lowest_above = min(value for value in thresholds if value >= LEARNED.values["threshold"])
    row = thresholds.index(lowest_above)

    for name in ("precision", "recall"):
        assert LEARNED.curve[name][row] == pytest.approx(LEARNED.values[name], abs=1e-3)


def test_the_curve_of_a_score_is_stored(tmp_path):
    path = tmp_path / "scores.jsonl"

    append_scores(path, [LEARNED])

    assert read_scores(path)[0].curve == LEARNED.curve


def test_a_curve_has_one_point_per_finite_score():
    """Pairs of score 0.8 are one point; the pair of minus infinity is left out."""
    mined = mined_pairs([0.9, 0.8, 0.8, 0.5, -np.inf], [(0, 0), (1, 1), (2, 0), (3, 3), (4, 4)])
    gold = {(0, 0), (2, 0), (3, 3), (9, 9)}

    curve = bucc.threshold_curve(mined, gold)

    # One of one, two of three and three of four pairs are right, of four gold pairs.
    assert curve == {
        "threshold": [0.9, 0.8, 0.5],
        "precision": [100.0, 66.667, 75.0],
        "recall": [25.0, 50.0, 75.0],
    }


def test_the_curve_without_mined_pairs_is_empty():
    no_pairs = mined_pairs([1], [(0, 0)]).first(0)

    curve = bucc.threshold_curve(no_pairs, {(0, 0)})

    assert curve == {"threshold": [], "precision": [], "recall": []}


def test_a_curve_of_many_pairs_has_a_limited_number_of_points():
    """Every second pair is a gold pair."""
    rows = [(row, row) for row in range(5000)]
    mined = mined_pairs(np.linspace(1, 0, len(rows)), rows)

    curve = bucc.threshold_curve(mined, set(rows[::2]))

    assert len(curve["threshold"]) == bucc.CURVE_POINTS < len(rows)
    # The last point is that of all pairs.
    assert curve["precision"][-1] == 50
    assert curve["recall"][-1] == 100


# -- invalid files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param(
            "fr-en.test.fr", "fr-1 no tab\n", "line 1: .*'fr-1 no tab'", id="sentence without tab"
        ),
        pytest.param(
            "fr-en.test.fr", "fr-1\ta\nfr-1\tb\n", r"fr-en\.test\.fr.*'fr-1'", id="id twice"
        ),
        pytest.param("fr-en.test.fr", "", r"fr-en\.test\.fr", id="no sentences"),
        pytest.param(
            "fr-en.test.gold", "fr-000000000\ten-9\n", "line 1: .*'en-9'", id="unknown id"
        ),
        pytest.param("fr-en.test.gold", "", r"fr-en\.test\.gold.*id<TAB>id", id="no gold"),
    ],
)
def test_invalid_files_of_bucc_are_refused(tmp_path, name, content, message):
    shutil.copytree(GOLDEN / "bucc", tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content)

    with pytest.raises(InputError, match=message):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")


def test_a_missing_file_of_bucc_is_refused(tmp_path):
    shutil.copytree(GOLDEN / "bucc", tmp_path, dirs_exist_ok=True)
    (tmp_path / "fr-en.test.fr").unlink()

    with pytest.raises(InputError, match=r"fr-en\.test\.fr"):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")
