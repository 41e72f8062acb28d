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
ABSOLUTE = BuccMining(margin="absolute")
DATA = json.loads((GOLDEN / "protocols.json").read_text())
TRAIN = bucc.read_set(TEMPLATE, "fr-en", "training")
TEST = bucc.read_set(TEMPLATE, "fr-en", "test")
LEARNED, MINED = bucc.score_mined(TEST, Vectors(), ABSOLUTE, TRAIN)
# Two adjacent numbers of float32: no number is between them.
ABOVE_ONE = np.float32(1.0000001)
BELOW_IT = np.nextafter(ABOVE_ONE, np.float32(0))


def pairs(scores, rows) -> MinedPairs:
    source, target = zip(*rows, strict=True)
    return MinedPairs(np.array(scores, dtype=np.float32), np.array(source), np.array(target))


def test_every_form_has_its_own_names_of_values_and_signature():
    oracle, _ = bucc.score_mined(TEST, Vectors(), ABSOLUTE)
    mteb_v2 = bucc.score_as_mteb(TEST, Vectors(), "mteb-v2")
    mteb_v1 = bucc.score_as_mteb(TEST, Vectors(), "mteb-v1")
    mining = "bucc|metric:margin-absolute|norm:l2|k:4|retrieval:max|sentences:4x4|gold:3|form:"
    assert LEARNED.signature.startswith(f"{mining}learned|part:test|threshold-from:training|text:")
    assert oracle.signature.startswith(f"{mining}oracle|part:test|text:")
    assert "|sentences:3x3|gold:3|form:mteb-v2|part:test|text:" in mteb_v2.signature
    assert "|sentences:3x4|gold:3|form:mteb-v1|part:test|text:" in mteb_v1.signature
    assert {score.task for score in (LEARNED, oracle, mteb_v2, mteb_v1)} == {"fr-en"}
    for first, second in combinations((LEARNED, oracle, mteb_v2), 2):
        assert first.values.keys() & second.values.keys() <= {"threshold"}


def test_golden_values_of_a_learned_threshold():
    assert LEARNED.values == pytest.approx(
        {
            "F1": 200 / 3,
            "precision": 200 / 3,
            "recall": 200 / 3,
            "train F1": 600 / 7,
            "threshold": 0.55,
        }
    )
    source_ids = [TEST.source_ids[row] for row in MINED.source]
    assert source_ids == ["fr-000000000", "fr-000000001", "fr-000000002"]


def test_golden_values_of_the_best_threshold():
    """All pairs are above it: 0.95 (gold), 0.75, 0.58 (gold), 0.54 (gold)."""
    oracle, mined = bucc.score_mined(TEST, Vectors(), ABSOLUTE)
    assert len(mined) == 4
    assert oracle.values == pytest.approx(
        {"oracle F1": 600 / 7, "oracle precision": 75, "oracle recall": 100, "threshold": 0.54},
        abs=1e-4,
    )


def reference_set(vectors, targets, gold):
    """Return the mining set and the encoder of the values of a reference tool."""
    sources = [f"source {row}" for row in range(len(vectors["source"]))]
    lines = [*sources, *targets]
    encoder = Vectors(dict(zip(lines, vectors["source"] + vectors["target"], strict=True)))
    pairs = set(map(tuple, gold))
    return bucc.MiningSet(Text(sources), Text(targets), sources, targets, pairs), encoder


def test_the_best_threshold_equals_that_of_laser():
    vectors = json.loads((GOLDEN / "margin.json").read_text())
    targets = [f"target {row}" for row in range(40)]
    score, _ = bucc.score_mined(*reference_set(vectors, targets, DATA["gold"]))
    values = {name.removeprefix("oracle "): value for name, value in score.values.items()}
    assert values == pytest.approx(DATA["values"]["bucc"], abs=1e-4)


@pytest.mark.parametrize(("form", "task"), [("mteb-v1", "mteb BUCC"), ("mteb-v2", "mteb BUCC.v2")])
def test_values_equal_those_of_mteb(form, task):
    score = bucc.score_as_mteb(*reference_set(DATA, DATA["lines"], DATA["pairs"]), form)
    values = {}
    for name, value in score.values.items():
        values[name.removeprefix("weighted ").lower()] = value / 100
    assert values == pytest.approx(DATA["values"][task])


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--form mteb-v2 --k 4", ("--k", "--form mteb-v2")),
        ("--form mteb-v1 --unify", ("--unify", "--form mteb-v1")),
        ("--form oracle --learn-part sample", ("--learn-part", "--form oracle")),
        ("--part training", ("--learn-part", "--part", "training")),
        ("--learn-part sample", ("fr-en.sample.fr",)),
    ],
)
def test_options_without_effect_are_refused(options, fragments):
    data = ("--data", TEMPLATE, "--lang-pairs", "fr-en")
    done = lxsr_here("eval", "bucc", "--model", "missing", *data, *options.split(), check=False)
    refused(done, *fragments)


def test_outcomes_of_sentences_in_several_pairs_give_the_f1():
    mined = pairs([3, 2, 1], [(0, 0), (0, 1), (2, 2)])
    gold = {(0, 0), (0, 5), (1, 1)}
    outcomes = bucc.f1_outcomes(mined, gold, 4)
    for name in ("F1", "precision", "recall"):
        assert outcomes[name].value == pytest.approx(100 / 3)
    assert (outcomes["F1"].hits, outcomes["F1"].totals) == ([2, 0, 0, 0], [4, 1, 1, 0])
    no_pairs = bucc.f1_outcomes(mined.above(9), gold, 4)
    for name in ("F1", "precision", "recall"):
        assert no_pairs[name].value == 0


def test_two_systems_that_mined_different_sentences_are_compared():
    vectors = Vectors().vectors
    # The second system finds pair 3, and does not mine the wrong pair 1.
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
    assert (f1.first, f1.second) == pytest.approx((200 / 3, 100))


def with_a_changed_gold_pair(mining_set: bucc.MiningSet) -> bucc.MiningSet:
    pair, *unchanged = sorted(mining_set.gold)
    return replace(mining_set, gold={(pair[0], pair[1] + 1), *unchanged})


def test_scores_with_different_gold_pairs_are_not_compared():
    for train, test in (
        (with_a_changed_gold_pair(TRAIN), TEST),
        (TRAIN, with_a_changed_gold_pair(TEST)),
    ):
        changed, _ = bucc.score_mined(test, Vectors(), ABSOLUTE, train)
        assert changed.signature != LEARNED.signature
        results, _ = compare_runs([[LEARNED]], [[changed]])
        assert results == []


@pytest.mark.parametrize(
    ("scores", "num_above"),
    [
        ([ABOVE_ONE, BELOW_IT], 1),
        ([np.inf, 2, 1], 1),
        ([np.inf, np.inf], 2),
        ([np.inf, -np.inf], 1),
        ([2, 1, -np.inf], 2),
    ],
)
def test_a_threshold_is_finite_and_between_two_margins(tmp_path, scores, num_above):
    rows = [(row, row) for row in range(len(scores))]
    mined = pairs(scores, rows)
    threshold = bucc.best_threshold(mined, set(rows[:num_above]))
    assert len(mined.above(threshold)) == num_above
    append_scores(tmp_path / "scores.jsonl", [Score("bucc", "fr-en", {"threshold": threshold}, {})])
    assert read_scores(tmp_path / "scores.jsonl")[0].values == {"threshold": threshold}


def repeated() -> bucc.MiningSet:
    """Return the test part with its first source and its fourth target repeated at the end."""
    source = replace(TEST.source, lines=[*TEST.source.lines, f"{TEST.source.lines[0]} "])
    target = replace(TEST.target, lines=[*TEST.target.lines, TEST.target.lines[3]])
    return bucc.MiningSet(
        source, target, [*TEST.source_ids, "fr-5"], [*TEST.target_ids, "en-5"], TEST.gold
    )


def test_unify_drops_the_pairs_of_repeated_sentences():
    mined = ABSOLUTE.mine(TEST, Vectors())
    unified = replace(ABSOLUTE, unify=True).mine(repeated(), Vectors())
    # The neighbourhoods are those without the repetitions.
    is_unique = (mined.source != 0) & (mined.target != 3)
    assert 0 < is_unique.sum() < len(mined)
    for name in ("source", "target", "scores"):
        np.testing.assert_array_equal(getattr(unified, name), getattr(mined, name)[is_unique])
    text, rows, occurs_once = bucc.distinct_sentences(repeated().target)
    assert rows.tolist() == [0, 1, 2, 3]
    assert occurs_once.tolist() == [True, True, True, False]
    assert (text.rows.tolist(), text.total, len(text)) == ([0, 1, 2, 3], 5, 4)


def test_unify_is_in_the_signature_and_changes_no_value_without_repetitions():
    unified, _ = bucc.score_mined(TEST, Vectors(), replace(ABSOLUTE, unify=True), TRAIN)
    assert unified.values == LEARNED.values
    assert "|retrieval:max|unify:yes|sentences:4x4|" in unified.signature
    assert "unify" not in LEARNED.signature


def test_the_curve_of_a_score_has_its_values_and_is_stored(tmp_path):
    row = sum(value >= LEARNED.values["threshold"] for value in LEARNED.curve["threshold"]) - 1
    for name in ("precision", "recall"):
        assert LEARNED.curve[name][row] == pytest.approx(LEARNED.values[name], abs=1e-3)
    append_scores(tmp_path / "scores.jsonl", [LEARNED])
    assert read_scores(tmp_path / "scores.jsonl")[0].curve == LEARNED.curve


def test_precision_and_recall_over_the_threshold():
    mined = pairs([0.9, 0.8, 0.8, 0.5, -np.inf], [(0, 0), (1, 1), (2, 0), (3, 3), (4, 4)])
    gold = {(0, 0), (2, 0), (3, 3), (9, 9)}
    curve = bucc.threshold_curve(mined, gold)
    assert curve == {
        "threshold": [0.9, 0.8, 0.5],
        "precision": [100.0, 66.667, 75.0],
        "recall": [25.0, 50.0, 75.0],
    }
    empty_curve = {"threshold": [], "precision": [], "recall": []}
    assert bucc.threshold_curve(mined.first(0), gold) == empty_curve


def test_a_curve_of_many_pairs_has_a_limited_number_of_points():
    rows = [(row, row) for row in range(5000)]
    mined = pairs(np.linspace(1, 0, 5000), rows)
    curve = bucc.threshold_curve(mined, set(rows[::2]))
    assert len(curve["threshold"]) == bucc.CURVE_POINTS
    assert (curve["precision"][-1], curve["recall"][-1]) == (50, 100)


def test_pairs_of_equal_score_are_on_the_same_side_of_the_threshold():
    mined = pairs([2, 1, 1], [(0, 0), (1, 1), (2, 5)])
    assert bucc.best_threshold(mined, {(0, 0)}) == 1.5
    # With all pairs 2 of 3 are correct, an F1 of 67; with the first pair alone it is 50.
    assert bucc.best_threshold(mined, {(0, 0), (1, 1), (2, 2)}) == 1.0
    with pytest.raises(InputError, match="threshold"):
        bucc.best_threshold(pairs([-np.inf], [(0, 0)]), {(0, 0)})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("fr-en.test.fr", "fr-1 no tab\n", "line 1: .*'fr-1 no tab'"),
        ("fr-en.test.fr", "fr-1\ta\nfr-1\tb\n", r"fr-en\.test\.fr.*'fr-1'"),
        ("fr-en.test.fr", "", r"fr-en\.test\.fr"),
        ("fr-en.test.gold", "fr-000000000\ten-9\n", "line 1: .*'en-9'"),
        ("fr-en.test.gold", "", r"fr-en\.test\.gold.*id<TAB>id"),
        ("fr-en.test.fr", None, r"fr-en\.test\.fr"),
    ],
)
def test_invalid_and_missing_files_of_bucc_are_refused(tmp_path, name, content, message):
    shutil.copytree(GOLDEN / "bucc", tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content or "")
    if content is None:
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=message):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")
