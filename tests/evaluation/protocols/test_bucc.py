"""BUCC on files worked out by hand; see golden/README.md."""

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
from fairseq_lxsr.evaluation.compare import compare
from fairseq_lxsr.evaluation.protocols import bucc
from fairseq_lxsr.evaluation.protocols.bucc import BuccMining
from fairseq_lxsr.evaluation.score import Score, append_scores, read_scores
from fairseq_lxsr.vectors import MinedPairs

TEMPLATE = str(GOLDEN / "bucc" / "{pair}")
ABSOLUTE = BuccMining(margin="absolute")
DATA = json.loads((GOLDEN / "protocols.json").read_text())
TRAIN, TEST = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
LEARNED, MINED = bucc.score_mined(TEST, Vectors(), ABSOLUTE, TRAIN)
NEXT_TO_ONE = np.float32(1.0000001)  # and its neighbour: no number is between them


def pairs(scores, rows) -> MinedPairs:
    source, target = zip(*rows, strict=True)
    return MinedPairs(np.array(scores, dtype=np.float32), np.array(source), np.array(target))


def test_every_form_has_its_own_values_names_and_signature():
    oracle, kept = bucc.score_mined(TEST, Vectors(), ABSOLUTE)
    found = [
        LEARNED,
        oracle,
        *(bucc.score_as_mteb(TEST, Vectors(), form) for form in ("mteb-v2", "mteb-v1")),
    ]
    mining = "bucc|metric:margin-absolute|norm:l2|k:4|retrieval:max|sentences:4x4|gold:3|form:"
    assert LEARNED.signature.startswith(f"{mining}learned|part:test|threshold-from:training|text:")
    assert oracle.signature.startswith(f"{mining}oracle|part:test|text:")
    assert "|sentences:3x3|gold:3|form:mteb-v2|part:test|text:" in found[2].signature
    assert "|sentences:3x4|gold:3|form:mteb-v1|part:test|text:" in found[3].signature
    assert {score.task for score in found} == {"fr-en"}
    names = [set(score.values) - {"threshold"} for score in found]
    assert all(not one & other for one, other in combinations(names[:3], 2))
    assert LEARNED.values == pytest.approx(
        {
            "F1": 200 / 3,
            "precision": 200 / 3,
            "recall": 200 / 3,
            "train F1": 600 / 7,
            "threshold": 0.55,
        }
    )
    assert [TEST.source_ids[row] for row in MINED.source] == [
        "fr-000000000",
        "fr-000000001",
        "fr-000000002",
    ]
    # test part: 0.95 (gold), 0.75, 0.58 (gold), 0.54 (gold): all four give precision 3/4, recall 1
    assert oracle.values == pytest.approx(
        {"oracle F1": 600 / 7, "oracle precision": 75, "oracle recall": 100, "threshold": 0.54},
        abs=1e-4,
    )
    assert len(kept) == 4


def reference(vectors, targets, gold):
    """The set and the encoder of a reference tool's numbers."""
    sources = [f"source {row}" for row in range(len(vectors["source"]))]
    encoder = Vectors(
        dict(zip([*sources, *targets], vectors["source"] + vectors["target"], strict=True))
    )
    return bucc.MiningSet(
        Text(sources), Text(targets), sources, targets, set(map(tuple, gold))
    ), encoder


def test_the_values_of_the_reference_tools():
    vectors = json.loads((GOLDEN / "margin.json").read_text())
    score, _ = bucc.score_mined(
        *reference(vectors, [f"target {row}" for row in range(40)], DATA["gold"])
    )
    found = {name.removeprefix("oracle "): value for name, value in score.values.items()}
    assert found == pytest.approx(DATA["values"]["bucc"], abs=1e-4)
    for form, task in (("mteb-v1", "mteb BUCC"), ("mteb-v2", "mteb BUCC.v2")):
        score = bucc.score_as_mteb(*reference(DATA, DATA["lines"], DATA["pairs"]), form)
        found = {
            name.removeprefix("weighted ").lower(): value / 100
            for name, value in score.values.items()
        }
        assert found == pytest.approx(DATA["values"][task])


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--form mteb-v2 --k 4", ("--k", "--form mteb-v2")),
        ("--form mteb-v1 --unify", ("--unify", "--form mteb-v1")),
        (
            "--form oracle --learn-part sample",
            ("--learn-part", "--form oracle"),
        ),
        (
            "--part training",
            ("--learn-part", "--part", "training"),
        ),
        ("--learn-part sample", ("fr-en.sample.fr",)),
    ],
)
def test_options_of_another_form(options, fragments):
    words = (
        "eval",
        "bucc",
        "--model",
        "missing",
        "--data",
        TEMPLATE,
        "--lang-pairs",
        "fr-en",
        *options.split(),
    )
    refused(lxsr_here(*words, check=False), *fragments)


def test_outcomes_give_the_f1_back_when_a_sentence_is_in_several_pairs_or_nothing_is_mined():
    mined, gold = pairs([3, 2, 1], [(0, 0), (0, 1), (2, 2)]), {(0, 0), (0, 5), (1, 1)}
    outcomes = bucc.f1_outcomes(mined, gold, 4)
    values = {name: one.value for name, one in outcomes.items()}
    assert values == pytest.approx(dict.fromkeys(("F1", "precision", "recall"), 100 / 3))
    assert (outcomes["F1"].hits, outcomes["F1"].totals) == ([2, 0, 0, 0], [4, 1, 1, 0])
    outcomes = bucc.f1_outcomes(mined.above(9), gold, 4)
    assert {name: one.value for name, one in outcomes.items()} == {
        "F1": 0,
        "precision": 0,
        "recall": 0,
    }


def test_two_systems_that_mined_different_sentences_are_compared():
    vectors = Vectors().vectors
    other = vectors | {
        "test target 3": vectors["test source 3"],
        "test target 1": vectors["test target 1"][::-1],
    }
    how = BuccMining(margin="absolute", k=3)
    scores = [bucc.score_mined(TEST, Vectors(chosen), how, TRAIN)[0] for chosen in (vectors, other)]
    results, notes = compare(scores[:1], scores[1:])
    assert notes == []
    f1 = next(result for result in results if result.value == "F1")
    # the other finds pair 3 and not the wrong pair 1
    assert (f1.first, f1.second) == pytest.approx((200 / 3, 100))


@pytest.mark.parametrize("part", [0, 1])
def test_other_gold_pairs_are_measured_differently(part):
    parts = [TRAIN, TEST]
    (first, *others) = sorted(parts[part].gold)
    parts[part] = replace(parts[part], gold={(first[0], first[1] + 1), *others})
    changed, _ = bucc.score_mined(parts[1], Vectors(), ABSOLUTE, parts[0])
    assert changed.signature != LEARNED.signature
    assert compare([LEARNED], [changed])[0] == []


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([NEXT_TO_ONE, np.nextafter(NEXT_TO_ONE, np.float32(0))], 1),
        ([np.inf, 2, 1], 1),
        ([np.inf, np.inf], 2),
        ([np.inf, -np.inf], 1),
        ([2, 1, -np.inf], 2),
    ],
)
def test_a_threshold_is_finite_and_between_two_margins(tmp_path, scores, kept):
    rows = [(row, row) for row in range(len(scores))]
    mined = pairs(scores, rows)
    threshold = bucc.best_threshold(mined, set(rows[:kept]))
    assert len(mined.above(threshold)) == kept
    append_scores(tmp_path / "scores.jsonl", [Score("bucc", "fr-en", {"threshold": threshold}, {})])
    assert read_scores(tmp_path / "scores.jsonl")[0].values == {"threshold": threshold}


def repeated() -> bucc.MiningSet:
    """The test part with its first source and its fourth target once more."""
    source = replace(TEST.source, lines=[*TEST.source.lines, f"{TEST.source.lines[0]} "])
    target = replace(TEST.target, lines=[*TEST.target.lines, TEST.target.lines[3]])
    return bucc.MiningSet(
        source, target, [*TEST.source_ids, "fr-5"], [*TEST.target_ids, "en-5"], TEST.gold
    )


def test_repeated_sentences_are_mined_once_and_their_pairs_dropped():
    mined = ABSOLUTE.mine(TEST, Vectors())
    found = replace(ABSOLUTE, unify=True).mine(repeated(), Vectors())
    # the same neighbourhoods as without the repetitions, and no pair of source 0 or target 3
    kept = (mined.source != 0) & (mined.target != 3)
    assert 0 < kept.sum() < len(mined)
    for name in ("source", "target", "scores"):
        np.testing.assert_array_equal(getattr(found, name), getattr(mined, name)[kept])
    text, rows, once = bucc.distinct_sentences(repeated().target)
    assert (rows.tolist(), once.tolist()) == ([0, 1, 2, 3], [True, True, True, False])
    assert (text.rows.tolist(), text.total, len(text)) == ([0, 1, 2, 3], 5, 4)  # rows of the file
    unified, _ = bucc.score_mined(TEST, Vectors(), replace(ABSOLUTE, unify=True), TRAIN)
    assert unified.values == LEARNED.values  # no sentence is repeated
    assert "|retrieval:max|unify:yes|sentences:4x4|" in unified.signature
    assert "unify" not in LEARNED.signature


def test_curve_over_the_threshold(tmp_path):
    row = sum(value >= LEARNED.values["threshold"] for value in LEARNED.curve["threshold"]) - 1
    for name in ("precision", "recall"):
        assert LEARNED.curve[name][row] == pytest.approx(LEARNED.values[name], abs=1e-3)
    append_scores(tmp_path / "scores.jsonl", [LEARNED])
    assert read_scores(tmp_path / "scores.jsonl")[0].curve == LEARNED.curve
    mined = pairs([0.9, 0.8, 0.8, 0.5, -np.inf], [(0, 0), (1, 1), (2, 0), (3, 3), (4, 4)])
    gold = {(0, 0), (2, 0), (3, 3), (9, 9)}
    curve = bucc.threshold_curve(mined, gold)
    assert curve == {
        "threshold": [0.9, 0.8, 0.5],
        "precision": [100.0, 66.667, 75.0],
        "recall": [25.0, 50.0, 75.0],
    }
    many = pairs(np.linspace(1, 0, 5000), [(row, row) for row in range(5000)])
    curve = bucc.threshold_curve(many, {(row, row) for row in range(0, 5000, 2)})
    assert len(curve["threshold"]) == bucc.CURVE_POINTS
    assert (curve["precision"][-1], curve["recall"][-1]) == (50, 100)
    assert bucc.threshold_curve(many.first(0), gold) == {
        "threshold": [],
        "precision": [],
        "recall": [],
    }


def test_pairs_of_equal_score_are_kept_or_left_together():
    mined = pairs([2, 1, 1], [(0, 0), (1, 1), (2, 5)])
    assert bucc.best_threshold(mined, {(0, 0)}) == 1.5
    # 2 of 3 right: F1 67, against 50
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
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, message):
    shutil.copytree(GOLDEN / "bucc", tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content or "")
    if content is None:
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=message):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")
