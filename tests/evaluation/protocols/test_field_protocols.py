"""xsim++, mteb-bitext and STS give the results of LASER and mteb on the same vectors; see
golden/README.md.
"""

import json

import numpy as np
import pytest
from conftest import case
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import sts, xsim_plus_plus
from fairseq_lxsr.evaluation.protocols.mteb_bitext import MtebBitext, weighted_scores
from fairseq_lxsr.evaluation.protocols.xsim_plus_plus import read_augmented

DATA = json.loads((GOLDEN / "protocols.json").read_text())
VALUES = DATA["values"]
SOURCE = np.array(DATA["source"], np.float32)
OTHER = np.array(DATA["other"], np.float32)
SOURCES = [f"source {row}" for row in range(len(SOURCE))]
TEXTS = Text(SOURCES, "fr"), Text(DATA["lines"], "en")


def encoder() -> Vectors:
    lines = [*SOURCES, *DATA["lines"], *DATA["errors"]]
    vectors = [*DATA["source"], *DATA["target"], *DATA["changed"]]
    return Vectors(dict(zip(lines, vectors, strict=True)))


def augmented(tmp_path) -> xsim_plus_plus.Augmented:
    (tmp_path / "errors.json").write_text(json.dumps(DATA["errors"]))
    return read_augmented(tmp_path / "errors.json", language="en")


def test_xsim_plus_plus_equals_the_reference_tool(tmp_path):
    changed = augmented(tmp_path)
    expected = VALUES["xsim++"]
    score = xsim_plus_plus.score_among_changed(*TEXTS, changed, encoder())
    errors = {name: sum(outcomes.hits) for name, outcomes in score.outcomes.items()}
    assert errors == {"error": expected["errors"]} | expected["types"]
    assert score.values["error"] == pytest.approx(100 * expected["errors"] / expected["of"])
    assert score.task == "fr->en"
    signature = "xsim++|metric:margin-ratio-k4-of-4|norm:l2|case:mixed|identical:hit|pairs:60|augmented:90|text:"
    assert score.signature.startswith(signature)


def test_the_signature_of_xsim_plus_plus_depends_on_the_types_of_changes(tmp_path):
    changed = augmented(tmp_path)
    origins = changed.origins | {"changed 0": ("Other", "target 1")}
    retyped = xsim_plus_plus.Augmented(changed.text, origins)
    score = xsim_plus_plus.score_among_changed(*TEXTS, changed, encoder())
    retyped_score = xsim_plus_plus.score_among_changed(*TEXTS, retyped, encoder())
    assert retyped_score.signature != score.signature


def test_an_error_has_the_type_of_the_changed_translation(tmp_path):
    errors = {
        "a 7 dog": {"errtype": "Number", "src": "a dog"},
        "no cat": {"errtype": "Entity", "src": "a cat"},
    }
    (tmp_path / "e.json").write_text(json.dumps(errors))
    (tmp_path / "text").write_text("no cat\na 7 dog\nno cat\n")
    changed = read_augmented(tmp_path / "e.json", tmp_path / "text")
    target = ["a dog", "a dog", "a dog", "a cat", "a dog"]
    # The translation, its changed form, the changed form of another sentence, another sentence, and
    # a sentence identical with the translation.
    nearest = np.array([0, 6, 5, 0, 1])
    outcomes = xsim_plus_plus.error_outcomes(nearest, target, changed)
    assert {name: values.hits for name, values in outcomes.items()} == {
        "error": [0, 1, 1, 1, 0],
        "Misaligned": [0, 0, 1, 1, 0],
        "Entity": [0, 0, 0, 0, 0],
        "Number": [0, 1, 0, 0, 0],
    }


def test_invalid_files_of_changed_sentences_are_refused(tmp_path):
    too_many_types = {str(row): {"errtype": f"type {row}", "src": "b"} for row in range(20)}
    for content in (
        "",
        "[]",
        "{}",
        '{"a": 1}',
        '{"a": {"errtype": "x"}}',
        '{"a": {"errtype": 1, "src": "b"}}',
        '{"a": {"errtype": "x|y", "src": "b"}}',
        '{"a": {"errtype": "x", "src": null}}',
        json.dumps(too_many_types),
    ):
        (tmp_path / "e.json").write_text(content)
        with case(content), pytest.raises(InputError, match=r"e\.json: .*expected"):
            read_augmented(tmp_path / "e.json")


def test_mteb_bitext_equals_mteb():
    [score] = MtebBitext().scores(*TEXTS, encoder())
    values = {name.lower(): value / 100 for name, value in score.values.items()}
    assert values == pytest.approx(VALUES["mteb-bitext"])
    outcomes = {name: outcomes.value for name, outcomes in score.outcomes.items()}
    assert outcomes == pytest.approx(score.values)
    assert score.task == "fr->en"
    signature = (
        "mteb-bitext|metric:nn-cosine|average:weighted|case:mixed|identical:error|pairs:60|text:"
    )
    assert score.signature.startswith(signature)


def test_weighted_scores_by_hand():
    # Target 1 is the gold of two sources and chosen by three; target 0 is never chosen.
    scores = weighted_scores(np.array([0, 1, 1, 2]), np.array([1, 1, 1, 2]))
    values = {name: outcomes.value for name, outcomes in scores.items()}
    assert values == pytest.approx(
        {
            "F1": 100 * (0 + 0.8 + 0.8 + 1) / 4,
            "accuracy": 75,
            "precision": 100 * (0 + 4 / 3 + 1) / 4,
            "recall": 75,
        }
    )
    # Target 7 is the gold of no source.
    for name, outcomes in weighted_scores(np.array([0, 1]), np.array([0, 7])).items():
        assert outcomes.value == 50, name


def test_correlations_equal_those_of_mteb():
    outcomes = sts.correlations(SOURCE, OTHER, np.array(DATA["ratings"]))
    assert outcomes.keys() == {"Spearman", "Pearson"}
    spearman = 100 * VALUES["sts"]["cosine_spearman"]
    pearson = 100 * VALUES["sts"]["cosine_pearson"]
    assert outcomes["Spearman"].value == pytest.approx(spearman, abs=1e-4)
    assert outcomes["Pearson"].value == pytest.approx(pearson, abs=1e-4)


def test_equal_cosines_have_no_correlation():
    with pytest.raises(InputError, match=r"\b3 cosines"):
        sts.correlations(np.ones((3, 2)), np.ones((3, 2)), np.array([1.0, 2, 3]))


def test_ties_share_the_mean_of_their_ranks():
    assert sts.ranks(np.array([3.0, 1, 3, 2, 3])).tolist() == [4, 1, 4, 2, 4]


def test_the_cosine_of_a_vector_with_itself_is_exactly_one():
    vectors = np.random.default_rng(1).standard_normal((50, 7)).astype(np.float32)
    assert sts.cosines(vectors, vectors).tolist() == [1] * 50


def test_rated_pairs_are_read_by_column(tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_text("id\tscore\tone\ttwo\n1\t5\ta\tb\n2\t0.5\tc\td\n3\t2\te\tf\n")
    rated = sts.read_rated(path, ("en", "de"), (3, 4, 2))
    assert (rated.first.lines, rated.second.lines) == (("a", "c", "e"), ("b", "d", "f"))
    assert rated.scores.tolist() == [5, 0.5, 2]
    assert rated.first.rows.tolist() == [1, 2, 3]
    assert rated.second.file.endswith("sts.tsv.second")
    vectors = {"a": [1, 0], "b": [1, 0.1], "c": [1, 0], "d": [0, 1], "e": [1, 0], "f": [1, 1]}
    score = sts.score_rated(rated, Vectors(vectors))
    assert (score.task, score.values["Spearman"]) == ("en-de", pytest.approx(100))
    assert score.signature.startswith("sts|metric:cosine|ties:mean-rank|pairs:3|text:")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n", "line 1: .*2 .*3"),
        ("a\tb\t1\nc\td\tx\n", "line 2: .*'x'.*column 3"),
        ("a\tb\t1\nc\td\tnan\n", "line 2: .*'nan'"),
        ("a\tb\t1\nc\td\t1e300\n", "line 2: .*'1e300'"),
        ("", r"s\.tsv: .*3"),
        ("a\tb\t1\n" * 3, r"s\.tsv: .* 1\b"),
    ],
)
def test_invalid_rated_pairs_are_refused(tmp_path, content, message):
    (tmp_path / "s.tsv").write_text(content)
    with pytest.raises(InputError, match=message):
        sts.read_rated(tmp_path / "s.tsv")


def test_pairs_without_a_rating_are_skipped_and_counted(tmp_path, capsys):
    """Of STS 2015 and 2016 only a part was rated."""
    path = tmp_path / "sts.tsv"
    path.write_text("\ta\tb\n5\tc\td\n \te\tf\n1\tg\th\n2\ti\tj\n")
    rated = sts.read_rated(path, columns=(2, 3, 1))
    assert rated.first.lines == ("c", "g", "i")
    assert rated.first.rows.tolist() == [1, 3, 4]
    assert f"{path}: skipped 2 of 5 rows" in capsys.readouterr().err
    path.write_text("\ta\tb\n\tc\td\n")
    with pytest.raises(InputError, match="0 rated pairs"):
        sts.read_rated(path, columns=(2, 3, 1))


def test_rated_pairs_are_read_from_a_csv(tmp_path):
    rows = '"A dog, red.",Un chien,5\r\n"A ""cat"".",Le chat,0.5\r\nA bird,Un oiseau,2\r\n'
    (tmp_path / "sts.csv").write_bytes(f"sentence1,sentence2,score\r\n{rows}".encode())
    rated = sts.read_rated(tmp_path / "sts.csv")
    assert rated.first.lines == ("A dog, red.", 'A "cat".', "A bird")
    assert rated.scores.tolist() == [5, 0.5, 2]
    assert rated.first.rows.tolist() == [1, 2, 3]
    (tmp_path / "sts.tsv").write_bytes(rows.encode())
    with pytest.raises(InputError, match=r"line 1: 1 columns; expected at least 3: .*\.csv"):
        sts.read_rated(tmp_path / "sts.tsv")


def test_a_first_row_with_an_invalid_score_is_not_skipped_as_a_header(tmp_path):
    for score in ("4,5", "nan", "-inf", "null", "None", "5e", "1e400"):
        rows = [f"A dog.\tUn chien.\t{score}", "The cat.\tLe chat.\t1", "A bird.\tUn oiseau.\t2"]
        (tmp_path / "x.tsv").write_text("\n".join(rows) + "\n")
        with case(score), pytest.raises(InputError, match=r"x\.tsv, line 1: "):
            sts.read_rated(tmp_path / "x.tsv")
