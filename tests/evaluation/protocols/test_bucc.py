"""BUCC on files worked out by hand; see golden/README.md."""

import json
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


def pairs(scores, rows) -> MinedPairs:
    source, target = zip(*rows, strict=True)
    return MinedPairs(np.array(scores, dtype=np.float32), np.array(source), np.array(target))


def test_golden_values():
    train, test = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
    score, mined = bucc.score_mined(test, Vectors(), BuccMining(margin="absolute"), train)
    assert score.values == pytest.approx(
        {"F1": 200 / 3, "precision": 200 / 3, "recall": 200 / 3, "train F1": 600 / 7, "threshold": 0.55}
    )
    assert [test.source_ids[row] for row in mined.source] == ["fr-000000000", "fr-000000001", "fr-000000002"]
    assert score.task == "fr-en"
    assert score.signature.startswith("bucc|metric:margin-absolute|norm:l2|k:4|retrieval:max|sentences:4x4|gold:3|")


def test_every_form_has_its_own_names_and_signature():
    train, test = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
    learned, _ = bucc.score_mined(test, Vectors(), BuccMining(margin="absolute"), train)
    oracle, kept = bucc.score_mined(test, Vectors(), BuccMining(margin="absolute"))
    found = [learned, oracle, *(bucc.score_as_mteb(test, Vectors(), form) for form in ("mteb-v2", "mteb-v1"))]
    assert "|gold:3|form:learned|part:test|threshold-from:training|text:" in learned.signature
    assert "|gold:3|form:oracle|part:test|text:" in oracle.signature
    assert "|sentences:3x3|gold:3|form:mteb-v2|part:test|text:" in found[2].signature
    assert "|sentences:3x4|gold:3|form:mteb-v1|part:test|text:" in found[3].signature
    assert len({score.signature for score in found}) == 4
    names = [set(score.values) - {"threshold"} for score in found]
    assert all(not one & other for one, other in combinations(names[:3], 2))
    # test part: 0.95 (gold), 0.75, 0.58 (gold), 0.54 (gold): all four give precision 3/4, recall 1
    assert oracle.values == pytest.approx(
        {"oracle F1": 600 / 7, "oracle precision": 75, "oracle recall": 100, "threshold": 0.54}, abs=1e-4
    )
    assert len(kept) == 4


def test_the_oracle_of_the_reference_tool():
    margin, data = (json.loads((GOLDEN / name).read_text()) for name in ("margin.json", "protocols.json"))
    lines = [f"a {row}" for row in range(40)], [f"b {row}" for row in range(40)]
    vectors = dict(zip(lines[0] + lines[1], margin["source"] + margin["target"], strict=True))
    gold = {tuple(pair) for pair in data["gold"]}
    score, _ = bucc.score_mined(bucc.MiningSet(Text(lines[0]), Text(lines[1]), *lines, gold), Vectors(vectors))
    found = {name.removeprefix("oracle "): value for name, value in score.values.items()}
    assert found == pytest.approx(data["values"]["bucc"], abs=1e-4)


@pytest.mark.parametrize(("form", "task"), [("mteb-v1", "mteb BUCC"), ("mteb-v2", "mteb BUCC.v2")])
def test_the_forms_of_mteb(form, task):
    data = json.loads((GOLDEN / "protocols.json").read_text())
    lines = [f"source {row}" for row in range(60)], data["lines"]
    vectors = dict(zip([*lines[0], *lines[1]], data["source"] + data["target"], strict=True))
    gold = {tuple(pair) for pair in data["pairs"]}
    score = bucc.score_as_mteb(bucc.MiningSet(Text(lines[0]), Text(lines[1]), *lines, gold), Vectors(vectors), form)
    found = {name.removeprefix("weighted ").lower(): value / 100 for name, value in score.values.items()}
    assert found == pytest.approx(data["values"][task])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--form mteb-v2 --k 4", "--k with --form mteb-v2, which mines nothing"),
        ("--form mteb-v1 --unify", "--unify with --form mteb-v1"),
        ("--form oracle --learn-part sample", "--learn-part with --form oracle, which learns nothing"),
        (
            "--part training",
            "--learn-part and --part are both training; expected two, or --form oracle",
        ),
        ("--learn-part sample", "fr-en.sample.fr: no such file"),
    ],
)
def test_options_of_another_form(options, message):
    words = ("eval", "bucc", "--model", "missing", "--data", TEMPLATE, "--lang-pairs", "fr-en", *options.split())
    refused(lxsr_here(*words, check=False), message)


def test_outcomes_give_the_f1_back_when_a_sentence_is_in_several_pairs():
    mined, gold = pairs([3, 2, 1], [(0, 0), (0, 1), (2, 2)]), {(0, 0), (0, 5), (1, 1)}
    outcomes = bucc.f1_outcomes(mined, gold, 4)
    assert outcomes["precision"].value == pytest.approx(100 / 3)
    assert outcomes["recall"].value == pytest.approx(100 / 3)
    assert outcomes["F1"].value == pytest.approx(100 / 3)
    assert outcomes["F1"].hits == [2, 0, 0, 0]
    assert outcomes["F1"].of == [4, 1, 1, 0]


def test_two_systems_that_mined_different_sentences_are_compared():
    train, test = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
    vectors = Vectors().vectors
    other = vectors | {"test target 3": vectors["test source 3"], "test target 1": vectors["test target 1"][::-1]}
    how = BuccMining(margin="absolute", k=3)
    scores = [bucc.score_mined(test, Vectors(chosen), how, train)[0] for chosen in (vectors, other)]
    results, notes = compare(scores[:1], scores[1:])
    assert notes == []
    f1 = next(result for result in results if result.value == "F1")
    assert (f1.first, f1.second) == pytest.approx((200 / 3, 100))  # the other finds pair 3 and not the wrong pair 1


@pytest.mark.parametrize("part", [0, 1])
def test_other_gold_pairs_are_measured_differently(part):
    parts = [bucc.read_set(TEMPLATE, "fr-en", name) for name in ("training", "test")]
    score, _ = bucc.score_mined(parts[1], Vectors(), BuccMining(margin="absolute"), parts[0])
    (first, *others) = sorted(parts[part].gold)
    parts[part] = replace(parts[part], gold={(first[0], first[1] + 1), *others})
    changed, _ = bucc.score_mined(parts[1], Vectors(), BuccMining(margin="absolute"), parts[0])
    assert changed.signature != score.signature
    assert compare([score], [changed])[0] == []


def test_a_threshold_between_neighbouring_numbers():
    high = np.float32(1.0000001)
    mined = pairs([high, np.nextafter(high, np.float32(0))], [(0, 0), (1, 1)])
    assert len(mined.above(bucc.best_threshold(mined, {(0, 0)}))) == 1


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([np.inf, 2, 1], 1),
        ([np.inf, np.inf], 2),
        ([np.inf, -np.inf], 1),
        ([2, 1, -np.inf], 2),
    ],
)
def test_a_threshold_is_finite_and_below_infinite_margins(tmp_path, scores, kept):
    rows = [(row, row) for row in range(len(scores))]
    mined = pairs(scores, rows)
    threshold = bucc.best_threshold(mined, set(rows[:kept]))
    assert len(mined.above(threshold)) == kept
    append_scores(tmp_path / "scores.jsonl", [Score("bucc", "fr-en", {"threshold": threshold}, {})])
    assert read_scores(tmp_path / "scores.jsonl")[0].values == {"threshold": threshold}


def test_pairs_without_a_margin_give_no_threshold():
    with pytest.raises(InputError, match="no pair was mined"):
        bucc.best_threshold(pairs([-np.inf], [(0, 0)]), {(0, 0)})


def repeated(name="test") -> bucc.MiningSet:
    """The set of a part whose first source stands there again, and whose fourth target does."""
    part = bucc.read_set(TEMPLATE, "fr-en", name)
    source = replace(part.source, lines=[*part.source.lines, f"{part.source.lines[0]} "])
    target = replace(part.target, lines=[*part.target.lines, part.target.lines[3]])
    return bucc.MiningSet(source, target, [*part.source_ids, "fr-5"], [*part.target_ids, "en-5"], part.gold)


def test_repeated_sentences_are_mined_once_and_their_pairs_dropped():
    plain, part = bucc.read_set(TEMPLATE, "fr-en", "test"), repeated()
    mined = BuccMining(margin="absolute").mine(plain, Vectors())
    found = BuccMining(margin="absolute", unify=True).mine(part, Vectors())
    # the same neighbourhoods as without the repetitions, and no pair of source 0 or target 3
    kept = (mined.source != 0) & (mined.target != 3)
    assert 0 < kept.sum() < len(mined)
    assert found.source.tolist() == mined.source[kept].tolist()
    assert found.target.tolist() == mined.target[kept].tolist()
    np.testing.assert_array_equal(found.scores, mined.scores[kept])


def test_unified_rows_are_those_of_the_file():
    text, rows, once = bucc.unified(repeated().target)
    assert (rows.tolist(), once.tolist()) == ([0, 1, 2, 3], [True, True, True, False])
    assert (text.rows.tolist(), text.total, len(text)) == ([0, 1, 2, 3], 5, 4)


def test_unify_is_in_the_signature():
    train, test = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
    how = [BuccMining(margin="absolute", unify=on) for on in (False, True)]
    plain, unified = (bucc.score_mined(test, Vectors(), mining, train)[0] for mining in how)
    assert unified.values == plain.values  # nothing stands there twice
    assert "|retrieval:max|unify:yes|sentences:4x4|" in unified.signature
    assert "unify" not in plain.signature


def test_curve_over_the_threshold():
    mined = pairs([0.9, 0.8, 0.8, 0.5, -np.inf], [(0, 0), (1, 1), (2, 0), (3, 3), (4, 4)])
    gold = {(0, 0), (2, 0), (3, 3), (9, 9)}
    curve = bucc.threshold_curve(mined, gold)
    assert curve == {"threshold": [0.9, 0.8, 0.5], "precision": [100.0, 66.667, 75.0], "recall": [25.0, 50.0, 75.0]}
    many = pairs(np.linspace(1, 0, 5000), [(row, row) for row in range(5000)])
    curve = bucc.threshold_curve(many, {(row, row) for row in range(0, 5000, 2)})
    assert len(curve["threshold"]) == bucc.CURVE_POINTS
    assert (curve["precision"][-1], curve["recall"][-1]) == (50, 100)
    empty = bucc.threshold_curve(many.first(0), gold)
    assert empty == {"threshold": [], "precision": [], "recall": []}


def test_the_curve_passes_through_the_values_of_the_score_and_is_stored(tmp_path):
    train, test = (bucc.read_set(TEMPLATE, "fr-en", part) for part in ("training", "test"))
    score, _ = bucc.score_mined(test, Vectors(), BuccMining(margin="absolute"), train)
    row = sum(value >= score.values["threshold"] for value in score.curve["threshold"]) - 1
    assert score.curve["precision"][row] == pytest.approx(score.values["precision"], abs=1e-3)
    assert score.curve["recall"][row] == pytest.approx(score.values["recall"], abs=1e-3)
    append_scores(tmp_path / "scores.jsonl", [score])
    assert read_scores(tmp_path / "scores.jsonl")[0].curve == score.curve
    for broken in ({"threshold": [1, 2], "recall": [1]}, {"threshold": ["x"]}, [1]):
        line = json.dumps(score.as_dict() | {"curve": broken})
        (tmp_path / "broken.jsonl").write_text(line + "\n")
        with pytest.raises(InputError, match="line 1: not a score"):
            read_scores(tmp_path / "broken.jsonl")


def test_pairs_of_equal_score_are_kept_or_left_together():
    mined = pairs([2, 1, 1], [(0, 0), (1, 1), (2, 5)])
    assert bucc.best_threshold(mined, {(0, 0)}) == 1.5
    assert bucc.best_threshold(mined, {(0, 0), (1, 1), (2, 2)}) == 1.0  # 2 of 3 right: F1 67, against 50


def test_nothing_mined_above_the_threshold_scores_zero():
    outcomes = bucc.f1_outcomes(pairs([1], [(0, 0)]).above(2), {(0, 0)}, 1)
    assert {name: out.value for name, out in outcomes.items()} == {"F1": 0, "precision": 0, "recall": 0}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("fr-en.test.fr", "fr-1 no tab\n", "line 1: 'fr-1 no tab'; expected id<TAB>sentence"),
        ("fr-en.test.fr", "fr-1\ta\nfr-1\tb\n", "an identifier stands there twice"),
        ("fr-en.test.fr", "", "empty file"),
        ("fr-en.test.gold", "fr-000000000\ten-9\n", "'en-9' is not in the text"),
        ("fr-en.test.gold", "", "empty file; expected id<TAB>id"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, message):
    for path in (GOLDEN / "bucc").iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"fr-en\.test\.fr: no such file, nor with \.gz"):
        bucc.read_set(str(tmp_path / "{pair}"), "fr-en", "test")
