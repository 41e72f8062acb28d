"""Scores: values, signatures, files and tables, with published scores next to them."""

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

# Published values have one decimal, so their mean may differ from a published mean by 0.05.
ROUNDING = 0.051


def score(task="en->fr", model="abc", metric="nn", hits=(1, 0, 1, 1)) -> Score:
    """Return the P@1 of four queries, by default three of them right."""
    settings = {"metric": metric, "queries": 4, "model": model}
    return from_hits("xsr", task, {"P@1": Outcomes(list(hits))}, settings)


@pytest.mark.parametrize(
    ("hits", "totals", "percent"),
    [
        pytest.param([1, 0, 1, 1], None, 75, id="each unit counts 1"),
        pytest.param([2, 0], [3, 1], 50, id="2 of 3 + 1"),
        pytest.param([], [], 0, id="no units"),
    ],
)
def test_the_value_is_the_percentage_of_hits(hits, totals, percent):
    assert Outcomes(hits, totals).value == percent


def test_a_score_has_the_values_of_its_outcomes():
    three_of_four = score(hits=(1, 0, 1, 1))

    assert three_of_four.values == {"P@1": 75}


def test_the_signature_lists_protocol_settings_and_version():
    signature = score(metric="nn", model="abc").signature

    assert signature == f"xsr|metric:nn|queries:4|model:abc|version:{__version__}"


def test_scores_of_two_models_are_comparable_and_those_of_two_metrics_are_not():
    assert score(model="abc").comparable == score(model="other").comparable
    assert score(metric="nn").comparable != score(metric="csls").comparable


def test_the_hash_of_a_text_depends_on_sides_and_line_breaks():
    one_line_a_side = text_hash(["a"], ["b"])
    exchanged_sides = text_hash(["b"], ["a"])
    one_side_of_two_lines = text_hash(["a", "b"])
    one_side_of_one_line = text_hash(["ab"])

    hashes = {one_line_a_side, exchanged_sides, one_side_of_two_lines, one_side_of_one_line}
    assert len(hashes) == 4


def test_outcomes_are_written_with_at_most_four_decimals():
    assert json.dumps(as_units(np.array([1.0, 0.0, 0.33333333]))) == "[1, 0, 0.3333]"


def test_boolean_outcomes_are_written_as_numbers():
    assert json.dumps(as_units(np.array([True, False]))) == "[1, 0]"


def test_scores_are_appended_and_read_back(tmp_path):
    path = tmp_path / "scores.jsonl"

    append_scores(path, [score()])
    append_scores(path, [score("fr->en"), score(model="été")])

    assert read_scores(path) == [score(), score("fr->en"), score(model="été")]


def test_a_file_of_scores_contains_the_signature(tmp_path):
    path = tmp_path / "scores.jsonl"

    append_scores(path, [score()])

    assert json.loads(path.read_text())["signature"] == score().signature


def test_the_outcomes_of_a_correlation_are_stored(tmp_path):
    path = tmp_path / "scores.jsonl"
    outcomes = Outcomes([1.0, 2.0, 4.0], [3.0, 5.0, 6.0], correlation=True)

    append_scores(path, [from_hits("sts", "en-de", {"Pearson": outcomes}, {"model": "m"})])

    [stored] = read_scores(path)
    assert stored.outcomes == {"Pearson": outcomes}
    assert stored.values == {"Pearson": outcomes.value}


def test_a_score_that_is_not_a_number_is_not_written(tmp_path):
    invalid = Score("xsr", "en->fr", {"P@1": float("nan")}, {})

    with pytest.raises(ValueError, match="not JSON compliant"):
        append_scores(tmp_path / "scores.jsonl", [invalid])

    assert list(tmp_path.iterdir()) == []


def test_scores_that_two_threads_append_are_all_kept(tmp_path, monkeypatch):
    @contextmanager
    def slow_write(path):
        # Without a lock, the other thread would read the same file meanwhile.
        time.sleep(0.01)
        with atomic_write(path) as stream:
            yield stream

    monkeypatch.setattr("fairseq_lxsr.evaluation.score.atomic_write", slow_write)
    path = tmp_path / "scores.jsonl"
    tasks = ["en->de", "en->fr", "en->it", "en->ru"]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: append_scores(path, [score(task)]), tasks))

    assert sorted(stored.task for stored in read_scores(path)) == tasks
    # The lock is removed.
    assert list(tmp_path.iterdir()) == [path]


def changed_record(**fields) -> str:
    """Return the line of a valid score with other values of some fields."""
    return json.dumps(score().as_dict() | fields)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("not json", id="not JSON"),
        pytest.param("[]", id="not an object"),
        pytest.param('{"protocol": "xsr"}', id="fields are missing"),
        pytest.param(changed_record(outcomes=3), id="outcomes are not an object"),
        pytest.param(
            changed_record(outcomes={"P@1": {"hits": [1], "of": None, "correlation": True}}),
            id="correlation of one sample",
        ),
        pytest.param(
            changed_record(curve={"threshold": [1, 2], "recall": [1]}),
            id="curve of unequal lists",
        ),
        pytest.param(changed_record(curve={"threshold": ["x"]}), id="curve of text"),
        pytest.param(changed_record(curve=[1]), id="curve is a list"),
    ],
)
def test_a_line_that_is_no_score_is_refused(tmp_path, line):
    path = tmp_path / "scores.jsonl"
    append_scores(path, [score()])
    with path.open("a") as stream:
        stream.write(f"{line}\n")

    with pytest.raises(InputError, match=r"scores\.jsonl, line 2"):
        read_scores(path)


def test_an_empty_file_of_scores_is_refused(tmp_path):
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(InputError, match=r"scores\.jsonl"):
        read_scores(tmp_path / "scores.jsonl")


def test_a_table_has_an_empty_cell_and_no_mean_for_a_value_that_a_task_lacks():
    settings = {"metric": "cosine", "model": "m"}
    french = Score("minimal-pairs", "fr->en", {"swap": 60.0, "number": 90.0}, settings)
    german = Score("minimal-pairs", "de->en", {"negation": 50.0, "swap": 70.0}, settings)

    table = scores_table([french, german])

    assert table.splitlines() == [
        "          swap  number  negation",
        "fr->en    60.0    90.0",
        "de->en    70.0              50.0",
        "mean      65.0",
    ]


def test_a_table_has_columns_and_means_per_metric():
    scores = [
        score("en->fr", metric="nn", hits=(1, 0, 1, 1)),
        score("fr->en", metric="nn", hits=(1, 1, 1, 1)),
        score("en->fr", metric="csls", hits=(1, 0, 1, 1)),
        score("fr->en", metric="csls", hits=(1, 0, 1, 1)),
    ]

    table = scores_table(scores)

    assert table.splitlines() == [
        "        nn P@1  csls P@1",
        "en->fr    75.0      75.0",
        "fr->en   100.0      75.0",
        "mean      87.5      75.0",
    ]


def test_scores_of_two_metrics_have_two_signatures():
    lines = signatures([score(metric="nn"), score(metric="csls")]).splitlines()

    assert lines == [score(metric="nn").signature, score(metric="csls").signature]


def test_scores_of_two_models_have_a_joint_signature():
    joint = signatures([score(model="abc"), score(model="def")])

    assert joint == f"xsr|metric:nn|queries:4|model:abc+def|version:{__version__}"


@pytest.mark.parametrize(("protocol", "rows_with_mean"), [("xsr", 6), ("mldoc", 12)])
def test_published_means_are_the_means_of_the_published_values(protocol, rows_with_mean):
    """Finds a wrong digit in published.json. Only some rows of a paper's table have a mean."""
    rows = [row.values for row in published(protocol) if "mean" in row.values]

    assert len(rows) == rows_with_mean
    for values in rows:
        directions = [value for name, value in values.items() if name != "mean"]
        assert np.mean(directions) == pytest.approx(values["mean"], abs=ROUNDING)


# Scores with all settings of classifiers and norms for which there are published values.
MEASURED = [
    Score("xsr", "en->fr", {}, {}),
    Score("mldoc", "en->fr", {}, {"classifier": "linear"}),
    Score("mldoc", "en->fr", {}, {"classifier": "mlp-10-8"}),
    Score("titles", "en->fr", {}, {"classifier": "mlp-10"}),
    Score("xnli", "en->fr", {}, {"norm": "none"}),
    Score("xnli", "en->fr", {}, {"norm": "l2-sentence"}),
]


def test_each_table_of_published_values_has_a_caution():
    table = published_table(MEASURED)

    # One table each of xsr, titles and xnli, and the four tables of mldoc.
    assert table.count(CAUTION) == 3 + 4
    assert "other training data" in CAUTION


def test_published_values_of_classifiers_that_the_package_lacks_are_listed_as_not_shown():
    table = published_table(MEASURED)

    left_out = [line for line in table.splitlines() if line.startswith("Not shown")]
    assert left_out
    assert all(line.endswith(("classifier:cnn", "classifier:fine-tuned")) for line in left_out)


def test_a_protocol_without_published_values_has_no_table():
    assert published_table([Score("tatoeba", "en->fr", {}, {})]) == ""


@pytest.mark.parametrize(
    ("protocol", "settings", "shown", "not_shown"),
    [
        # Mao et al. measured MLDoc with a linear classifier, Li and Mak with layers of 10 and 8.
        ("mldoc", {"classifier": "linear"}, "Mao et al.", "Li and Mak"),
        ("mldoc", {"classifier": "mlp-10-8"}, "Li and Mak", "Mao et al."),
        # Wang et al. did not normalise sentences for XNLI, LASER did.
        ("xnli", {"norm": "l2-sentence"}, "LASER's tasks/xnli", "norm:none"),
        ("xnli", {"norm": "none"}, "Wang et al.", "norm:l2-sentence"),
        # Values of BUCC differ by form and part.
        ("bucc", {"form": "learned", "part": "test"}, "Azpeitia et al. 2017", "form:mteb-v1"),
        (
            "bucc",
            {"form": "oracle", "part": "training"},
            "F1 of the training part",
            "form:learned, part:test",
        ),
        ("bucc", {"form": "mteb-v1", "part": "training"}, "LaBSE", "form:oracle"),
    ],
)
def test_published_values_are_shown_only_for_the_settings_of_their_paper(
    protocol, settings, shown, not_shown
):
    table = published_table([Score(protocol, "en->fr", {}, settings)])

    rows, _, left_out = table.partition("Not shown: ")
    assert shown in rows
    assert not_shown in left_out


@pytest.mark.parametrize(
    ("protocol", "settings", "published_settings"),
    [
        ("mldoc", {"classifier": "mlp-10"}, "classifier:linear"),
        ("titles", {"classifier": "linear"}, "classifier:mlp-10"),
        ("bucc", {"form": "learned", "part": "sample"}, "form:learned, part:test"),
    ],
)
def test_settings_of_no_paper_show_only_what_is_left_out(protocol, settings, published_settings):
    table = published_table([Score(protocol, "en->fr", {}, settings)])

    assert table.startswith("Not shown: ")
    assert published_settings in table


def test_published_laser_is_listed_with_the_classifier_of_laser():
    """The values are from LASER's own table, whose classifier has layers of 10 and 8 units.

    The lightweight paper prints only their mean, so it must be the mean of this table.
    """
    [row] = [row for row in published("mldoc") if row.system == "LASER"]

    assert row.settings == {"classifier": "mlp-10-8"}
    # English to and from French, German, Spanish and Italian.
    directions = [value for name, value in row.values.items() if name != "mean"]
    assert len(directions) == 8
    assert np.mean(directions) == pytest.approx(row.values["mean"], abs=ROUNDING)


def test_the_tlaser_of_the_lightweight_paper_is_listed_as_ct_laser():
    """Mao et al. call it T-LASER, but their values are cells of the matrix of Li and Mak's cT-LASER."""
    rows = {row.system: row.values for row in published("mldoc")}

    directions = dict(rows["T-LASER of Mao et al., by its cells cT-LASER"])
    del directions["mean"]

    for direction, accuracy in directions.items():
        train_language, test_language = direction.split("->")
        assert accuracy == rows[f"cT-LASER, train {train_language}"][test_language]


@pytest.mark.parametrize("system", ["LASER2018", "cT-LASER"])
def test_published_matrices_have_the_published_means(system):
    """The matrices of training and test language are tables 3 and 5 of Li and Mak, the means a
    row of their table 4: `same` averages the diagonal, `all` the whole matrix.
    """
    rows = {row.system: row.values for row in published("mldoc") if "mean" not in row.values}
    same_language = []
    all_pairs = []
    for language in ("en", "de", "fr", "es", "it"):
        row = rows[f"{system}, train {language}"]
        same_language.append(row[language])
        all_pairs += row.values()
    means = rows[system]
    assert np.mean(same_language) == pytest.approx(means["same"], abs=ROUNDING)
    assert np.mean(all_pairs) == pytest.approx(means["all"], abs=ROUNDING)


def test_published_xnli_means_exclude_english():
    """The "overall" of Wang et al. is the mean without English, which is `cross` here."""
    rows = [row for row in published("xnli") if row.source.startswith("Wang et al.")]

    # Six systems are in their table.
    assert len(rows) == 6
    for row in rows:
        accuracies = [row.values[f"en->{language}"] for language in ("zh", "fr", "es", "de")]
        assert np.mean(accuracies) == pytest.approx(row.values["cross"], abs=ROUNDING)
        assert "leaves English out" in row.source
