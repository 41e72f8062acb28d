"""Scores, their files, their tables, and published ones beside them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

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
    assert (
        len(
            {
                text_hash(["a"], ["b"]),
                text_hash(["b"], ["a"]),
                text_hash(["a", "b"]),
                text_hash(["ab"]),
            }
        )
        == 4
    )
    assert json.dumps(as_units(np.array([1.0, 0.0, 0.33333333]))) == "[1, 0, 0.3333]"
    assert json.dumps(as_units(np.array([True, False]))) == "[1, 0]"


def test_file_of_scores_grows_and_reads_back(tmp_path):
    path = tmp_path / "scores.jsonl"
    append_scores(path, [score()])
    append_scores(path, [score("fr->en"), score(model="été")])
    assert read_scores(path) == [score(), score("fr->en"), score(model="été")]
    assert json.loads(path.read_text().splitlines()[0])["signature"] == score().signature
    outcomes = Outcomes([1.0, 2.0, 4.0], [3.0, 5.0, 6.0], correlation=True)
    append_scores(path, [from_hits("sts", "en-de", {"Pearson": outcomes}, {"model": "m"})])
    assert read_scores(path)[3].outcomes == {"Pearson": outcomes}
    assert read_scores(path)[3].values == {"Pearson": outcomes.value}
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_scores(
            tmp_path / "not a number", [Score("xsr", "en->fr", {"P@1": float("nan")}, {})]
        )
    assert list(tmp_path.iterdir()) == [path]


def test_scores_of_several_writers_are_all_kept(tmp_path, monkeypatch):
    @contextmanager
    def slow_write(path):
        time.sleep(0.01)  # in which the other writer reads the same file
        with atomic_write(path) as stream:
            yield stream

    monkeypatch.setattr("fairseq_lxsr.evaluation.score.atomic_write", slow_write)
    path, tasks = tmp_path / "scores.jsonl", ["en->de", "en->fr", "en->it", "en->ru"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: append_scores(path, [score(task)]), tasks))
    assert sorted(read.task for read in read_scores(path)) == tasks
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"protocol": "xsr"}',
        '{"outcomes": 3}',
        json.dumps(score().as_dict() | {"curve": {"threshold": [1, 2], "recall": [1]}}),
        json.dumps(score().as_dict() | {"curve": {"threshold": ["x"]}}),
        json.dumps(score().as_dict() | {"curve": [1]}),
        json.dumps(
            score().as_dict()
            | {"outcomes": {"P@1": {"hits": [1], "of": None, "correlation": True}}}
        ),
    ],
)
def test_what_is_no_score_is_refused(tmp_path, line):
    append_scores(tmp_path / "scores.jsonl", [score()])
    with open(tmp_path / "scores.jsonl", "a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=r"scores\.jsonl, line 2"):
        read_scores(tmp_path / "scores.jsonl")
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(InputError, match=r"scores\.jsonl"):
        read_scores(tmp_path / "scores.jsonl")


def test_a_table_of_tasks_with_different_values():
    scores = [
        Score("minimal-pairs", task, values, {"metric": "cosine", "model": "m"})
        for task, values in (
            ("fr->en", {"swap": 60.0, "number": 90.0}),
            ("de->en", {"negation": 50.0, "swap": 70.0}),
        )
    ]
    assert [line.split() for line in scores_table(scores).splitlines()] == [
        ["swap", "number", "negation"],
        ["fr->en", "60.0", "90.0"],
        ["de->en", "70.0", "50.0"],
        ["mean", "65.0"],
    ]


def test_table_has_means_and_one_signature_a_metric():
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
    assert (
        signatures([score(), score(model="def")])
        == f"xsr|metric:nn|queries:4|model:abc+def|version:{__version__}"
    )


def test_published_values_are_marked_and_their_means_those_of_the_paper():
    """The paper's means of eight directions, to rounding: catches a wrong digit in the data
    file.
    """
    rows = [row for name in ("xsr", "mldoc") for row in published(name) if "mean" in row.values]
    assert len(rows) == 18
    for row in rows:
        directions = [value for name, value in row.values.items() if name != "mean"]
        assert np.mean(directions) == pytest.approx(row.values["mean"], abs=0.051)
    settings = {
        "xsr": {},
        "mldoc": {"classifier": "linear"},
        "xnli": {"norm": "none"},
        "titles": {"classifier": "mlp-10"},
    }
    measured = [Score(name, "en->fr", {}, how) for name, how in settings.items()]
    measured.append(Score("mldoc", "en->fr", {}, {"classifier": "mlp-10-8"}))
    measured.append(Score("xnli", "en->fr", {}, {"norm": "l2-sentence"}))
    table = published_table(measured)
    assert table.count(CAUTION) == 7  # mldoc has four tables
    left_out = [line for line in table.splitlines() if line.startswith("Not shown")]
    # No classifier here is like theirs.
    assert left_out
    assert all(line.endswith(("classifier:cnn", "classifier:fine-tuned")) for line in left_out)
    assert "other training data" in CAUTION
    assert published_table([Score("tatoeba", "en->fr", {}, {})]) == ""


@pytest.mark.parametrize(
    ("protocol", "settings", "shown", "left_out"),
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
def test_published_values_stand_only_beside_what_was_measured_as_in_their_paper(
    protocol, settings, shown, left_out
):
    above, _, below = published_table([Score(protocol, "en->fr", {}, settings)]).partition(
        "Not shown: "
    )
    assert (shown in above) if shown else not above
    assert (left_out in below) if left_out else not below


def test_the_mean_that_the_lightweight_paper_prints_of_laser_is_that_of_lasers_own_table():
    """So it was measured with LASER's classifier, and stands beside that one."""
    [row] = [row for row in published("mldoc") if row.system == "LASER"]
    directions = [value for name, value in row.values.items() if name != "mean"]
    assert len(directions) == 8
    assert np.mean(directions) == pytest.approx(row.values["mean"], abs=0.051)
    assert row.settings == {"classifier": "mlp-10-8"}


def test_the_row_that_the_lightweight_paper_calls_tlaser_says_what_it_is():
    """Its 75.7 is, cell by cell, Li and Mak's cT-LASER."""
    [row] = [row for row in published("mldoc") if row.values.get("mean") == 75.7]
    assert "cT-LASER" in row.system


@pytest.mark.parametrize("system", ["LASER2018", "cT-LASER"])
def test_published_matrices_have_the_means_that_their_paper_prints_elsewhere(system):
    """Tables 3 and 5 of Li and Mak, and their row of table 4."""
    rows = {row.system: row.values for row in published("mldoc") if "mean" not in row.values}
    printed = rows[system]
    matrix = {
        language: rows[f"{system}, train {language}"] for language in ("en", "de", "fr", "es", "it")
    }
    same = [row[language] for language, row in matrix.items()]
    everything = [value for row in matrix.values() for value in row.values()]
    assert np.mean(same) == pytest.approx(printed["same"], abs=0.051)
    assert np.mean(everything) == pytest.approx(printed["all"], abs=0.051)


def test_published_xnli_is_compared_with_the_column_without_english():
    """The "overall" of Wang et al. leaves English out, which is `cross` here."""
    rows = [row for row in published("xnli") if row.source.startswith("Wang et al.")]
    assert len(rows) == 6
    for row in rows:
        others = [row.values[f"en->{language}"] for language in ("zh", "fr", "es", "de")]
        assert np.mean(others) == pytest.approx(row.values["cross"], abs=0.051)
        assert "leaves English out" in row.source
