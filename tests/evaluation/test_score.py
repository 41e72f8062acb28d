"""Scores: values, signatures, files and tables, with published scores next to them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import case

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import (
    Outcomes,
    Score,
    append_scores,
    as_units,
    from_hits,
    read_scores,
    text_hash,
)
from fairseq_lxsr.evaluation.tables import (
    CAUTION,
    published,
    published_table,
    scores_table,
    signatures,
)
from fairseq_lxsr.files.write import atomic_write


def score(task="en->fr", model="abc", metric="nn", hits=(1, 0, 1, 1)) -> Score:
    settings = {"metric": metric, "queries": 4, "model": model}
    return from_hits("xsr", task, {"P@1": Outcomes(list(hits))}, settings)


def test_value_and_signature():
    assert score().values == {"P@1": 75}
    assert score().signature == f"xsr|metric:nn|queries:4|model:abc|version:{__version__}"
    assert score().comparable == score(model="other").comparable != score(metric="csls").comparable
    assert Outcomes([2, 0], [3, 1]).value == 50
    assert Outcomes([], []).value == 0


def test_the_hash_of_a_text_depends_on_sides_and_line_breaks():
    hashes = {
        text_hash(["a"], ["b"]),
        text_hash(["b"], ["a"]),
        text_hash(["a", "b"]),
        text_hash(["ab"]),
    }
    assert len(hashes) == 4


def test_outcomes_are_written_with_few_digits():
    assert json.dumps(as_units(np.array([1.0, 0.0, 0.33333333]))) == "[1, 0, 0.3333]"
    assert json.dumps(as_units(np.array([True, False]))) == "[1, 0]"


def test_scores_are_appended_and_read_back(tmp_path):
    path = tmp_path / "scores.jsonl"
    append_scores(path, [score()])
    append_scores(path, [score("fr->en"), score(model="été")])
    assert read_scores(path) == [score(), score("fr->en"), score(model="été")]
    assert json.loads(path.read_text().splitlines()[0])["signature"] == score().signature
    outcomes = Outcomes([1.0, 2.0, 4.0], [3.0, 5.0, 6.0], correlation=True)
    append_scores(path, [from_hits("sts", "en-de", {"Pearson": outcomes}, {"model": "m"})])
    assert read_scores(path)[3].outcomes == {"Pearson": outcomes}
    assert read_scores(path)[3].values == {"Pearson": outcomes.value}
    invalid = Score("xsr", "en->fr", {"P@1": float("nan")}, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_scores(tmp_path / "not a number", [invalid])
    assert list(tmp_path.iterdir()) == [path]


def test_scores_of_several_writers_are_all_kept(tmp_path, monkeypatch):
    @contextmanager
    def slow_write(path):
        # Meanwhile the other thread reads the same file.
        time.sleep(0.01)
        with atomic_write(path) as stream:
            yield stream

    monkeypatch.setattr("fairseq_lxsr.evaluation.score.atomic_write", slow_write)
    path = tmp_path / "scores.jsonl"
    tasks = ["en->de", "en->fr", "en->it", "en->ru"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: append_scores(path, [score(task)]), tasks))
    assert sorted(stored.task for stored in read_scores(path)) == tasks
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_is_no_score_is_refused(tmp_path):
    path = tmp_path / "scores.jsonl"
    outcomes = {"P@1": {"hits": [1], "of": None, "correlation": True}}
    for line in (
        "not json",
        "[]",
        '{"protocol": "xsr"}',
        '{"outcomes": 3}',
        json.dumps(score().as_dict() | {"curve": {"threshold": [1, 2], "recall": [1]}}),
        json.dumps(score().as_dict() | {"curve": {"threshold": ["x"]}}),
        json.dumps(score().as_dict() | {"curve": [1]}),
        json.dumps(score().as_dict() | {"outcomes": outcomes}),
    ):
        path.unlink(missing_ok=True)
        append_scores(path, [score()])
        with path.open("a") as stream:
            stream.write(line + "\n")
        with case(line), pytest.raises(InputError, match=r"scores\.jsonl, line 2"):
            read_scores(path)


def test_an_empty_file_of_scores_is_refused(tmp_path):
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(InputError, match=r"scores\.jsonl"):
        read_scores(tmp_path / "scores.jsonl")


def test_a_table_of_tasks_with_different_values():
    settings = {"metric": "cosine", "model": "m"}
    french = Score("minimal-pairs", "fr->en", {"swap": 60.0, "number": 90.0}, settings)
    german = Score("minimal-pairs", "de->en", {"negation": 50.0, "swap": 70.0}, settings)
    scores = [french, german]
    assert [line.split() for line in scores_table(scores).splitlines()] == [
        ["swap", "number", "negation"],
        ["fr->en", "60.0", "90.0"],
        ["de->en", "70.0", "50.0"],
        ["mean", "65.0"],
    ]


def test_a_table_has_means_and_a_signature_per_metric():
    scores = [
        score(),
        score("fr->en", hits=(1, 1, 1, 1)),
        score(metric="csls"),
        score("fr->en", metric="csls"),
    ]
    assert scores_table(scores).splitlines() == [
        "        nn P@1  csls P@1",
        "en->fr    75.0      75.0",
        "fr->en   100.0      75.0",
        "mean      87.5      75.0",
    ]
    assert signatures(scores).count("\n") == 1
    two_models = signatures([score(), score(model="def")])
    assert two_models == f"xsr|metric:nn|queries:4|model:abc+def|version:{__version__}"


def test_published_means_are_the_means_of_the_published_values():
    """Finds a wrong digit in the data file: the papers print the means of eight directions."""
    num_rows = 0
    for row in (*published("xsr"), *published("mldoc")):
        if "mean" not in row.values:
            continue
        directions = [value for name, value in row.values.items() if name != "mean"]
        assert np.mean(directions) == pytest.approx(row.values["mean"], abs=0.051)
        num_rows += 1
    assert num_rows == 18


def test_published_values_are_shown_with_a_caution():
    measured = [
        Score("xsr", "en->fr", {}, {}),
        Score("mldoc", "en->fr", {}, {"classifier": "linear"}),
        Score("xnli", "en->fr", {}, {"norm": "none"}),
        Score("titles", "en->fr", {}, {"classifier": "mlp-10"}),
        Score("mldoc", "en->fr", {}, {"classifier": "mlp-10-8"}),
        Score("xnli", "en->fr", {}, {"norm": "l2-sentence"}),
    ]
    table = published_table(measured)
    # Each table has the caution; mldoc has four tables.
    assert table.count(CAUTION) == 7
    left_out = [line for line in table.splitlines() if line.startswith("Not shown")]
    # These classifiers do not exist in the package.
    assert left_out
    assert all(line.endswith(("classifier:cnn", "classifier:fine-tuned")) for line in left_out)
    assert "other training data" in CAUTION
    assert published_table([Score("tatoeba", "en->fr", {}, {})]) == ""


@pytest.mark.parametrize(
    ("protocol", "settings", "expected_row", "left_out"),
    [
        ("mldoc", {"classifier": "linear"}, "Mao et al.", "Li and Mak"),
        ("mldoc", {"classifier": "mlp-10-8"}, "Li and Mak", "Mao et al."),
        ("mldoc", {"classifier": "mlp-10"}, None, "classifier:linear"),
        ("titles", {"classifier": "linear"}, None, "classifier:mlp-10"),
        ("xnli", {"norm": "l2-sentence"}, "LASER's tasks/xnli", "norm:none"),
        ("xnli", {"norm": "none"}, "Wang et al.", "norm:l2-sentence"),
        ("bucc", {"form": "learned", "part": "sample"}, None, "form:learned, part:test"),
        ("bucc", {"form": "learned", "part": "test"}, "Azpeitia et al. 2017", "form:mteb-v1"),
        ("bucc", {"form": "oracle", "part": "training"}, "92.4", "form:learned, part:test"),
        ("bucc", {"form": "mteb-v1", "part": "training"}, "LaBSE", "form:oracle"),
    ],
)
def test_published_values_are_shown_only_for_the_settings_of_their_paper(
    protocol, settings, expected_row, left_out
):
    table = published_table([Score(protocol, "en->fr", {}, settings)])
    rows, _, not_shown = table.partition("Not shown: ")
    if expected_row is None:
        assert not rows
    else:
        assert expected_row in rows
    assert left_out in not_shown


def test_published_laser_is_listed_with_the_classifier_of_laser():
    """The mean in the lightweight paper is that of LASER's table, so LASER's classifier made it."""
    [row] = [row for row in published("mldoc") if row.system == "LASER"]
    directions = [value for name, value in row.values.items() if name != "mean"]
    assert len(directions) == 8
    assert np.mean(directions) == pytest.approx(row.values["mean"], abs=0.051)
    assert row.settings == {"classifier": "mlp-10-8"}


def test_the_tlaser_of_the_lightweight_paper_is_listed_as_ct_laser():
    """All its values are those of the cT-LASER of Li and Mak."""
    [row] = [row for row in published("mldoc") if row.values.get("mean") == 75.7]
    assert "cT-LASER" in row.system


@pytest.mark.parametrize("system", ["LASER2018", "cT-LASER"])
def test_published_matrices_have_the_published_means(system):
    """The matrices are tables 3 and 5 of Li and Mak, the means a row of their table 4."""
    rows = {row.system: row.values for row in published("mldoc") if "mean" not in row.values}
    same_language = []
    all_pairs = []
    for language in ("en", "de", "fr", "es", "it"):
        row = rows[f"{system}, train {language}"]
        same_language.append(row[language])
        all_pairs += row.values()
    means = rows[system]
    assert np.mean(same_language) == pytest.approx(means["same"], abs=0.051)
    assert np.mean(all_pairs) == pytest.approx(means["all"], abs=0.051)


def test_published_xnli_means_exclude_english():
    """The "overall" of Wang et al. is the mean without English, which is `cross` here."""
    rows = [row for row in published("xnli") if row.source.startswith("Wang et al.")]
    assert len(rows) == 6
    for row in rows:
        accuracies = [row.values[f"en->{language}"] for language in ("zh", "fr", "es", "de")]
        assert np.mean(accuracies) == pytest.approx(row.values["cross"], abs=0.051)
        assert "leaves English out" in row.source
