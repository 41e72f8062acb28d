"""xsim++, mteb-bitext and STS give the results of LASER and mteb on the same vectors; see
golden/README.md.
"""

import json

import numpy as np
import pytest
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import sts, xsim_plus_plus
from fairseq_lxsr.evaluation.protocols.mteb_bitext import MtebBitext, weighted_scores
from fairseq_lxsr.evaluation.protocols.xsim_plus_plus import read_augmented

# 60 sentences and their translations, changed translations, rated pairs, and the values that LASER
# and mteb compute of them.
DATA = json.loads((GOLDEN / "protocols.json").read_text())
VALUES = DATA["values"]
# The vectors of rated pairs.
FIRST = np.array(DATA["source"], np.float32)
SECOND = np.array(DATA["other"], np.float32)
SOURCE_LINES = [f"source {row}" for row in range(len(DATA["source"]))]
SOURCE = Text(SOURCE_LINES, "fr")
TARGET = Text(DATA["lines"], "en")


def golden_encoder() -> Vectors:
    """Return the encoder of the golden sources, targets and changed targets."""
    lines = [*SOURCE_LINES, *DATA["lines"], *DATA["errors"]]
    vectors = [*DATA["source"], *DATA["target"], *DATA["changed"]]
    return Vectors(dict(zip(lines, vectors, strict=True)))


# -- xsim++


@pytest.fixture
def changed(tmp_path) -> xsim_plus_plus.Augmented:
    """The golden changed targets, read from a file of LASER's format."""
    (tmp_path / "errors.json").write_text(json.dumps(DATA["errors"]))
    return read_augmented(tmp_path / "errors.json", language="en")


def test_the_errors_of_xsim_plus_plus_equal_those_of_laser(changed):
    expected = VALUES["xsim++"]

    score = xsim_plus_plus.score_among_changed(SOURCE, TARGET, changed, golden_encoder())

    errors = {name: sum(outcomes.hits) for name, outcomes in score.outcomes.items()}
    assert errors == {"error": expected["errors"]} | expected["types"]
    assert score.values["error"] == pytest.approx(100 * expected["errors"] / expected["of"])


def test_the_signature_of_xsim_plus_plus_has_the_numbers_of_pairs_and_changed_sentences(changed):
    score = xsim_plus_plus.score_among_changed(SOURCE, TARGET, changed, golden_encoder())

    assert score.task == "fr->en"
    metric = "metric:margin-ratio-k4-of-4|norm:l2|case:mixed|identical:hit"
    # The numbers are those of make_protocols.py.
    assert score.signature.startswith(f"xsim++|{metric}|pairs:60|augmented:90|text:")


def test_the_signature_of_xsim_plus_plus_depends_on_the_types_of_changes(changed):
    other_type = changed.origins | {"changed 0": ("Other", "target 1")}
    retyped = xsim_plus_plus.Augmented(changed.text, other_type)

    score = xsim_plus_plus.score_among_changed(SOURCE, TARGET, changed, golden_encoder())
    retyped_score = xsim_plus_plus.score_among_changed(SOURCE, TARGET, retyped, golden_encoder())

    assert retyped_score.signature != score.signature


def test_an_error_has_the_type_of_the_changed_translation_or_is_misaligned(tmp_path):
    error_types = {
        "a 7 dog": {"errtype": "Number", "src": "a dog"},
        "no cat": {"errtype": "Entity", "src": "a cat"},
    }
    (tmp_path / "e.json").write_text(json.dumps(error_types))
    (tmp_path / "changed").write_text("no cat\na 7 dog\nno cat\n")
    changed = read_augmented(tmp_path / "e.json", tmp_path / "changed")
    # The candidates are the five targets, then the three changed sentences.
    target = ["a dog", "a dog", "a dog", "a cat", "a dog"]
    nearest = [
        0,  # the translation
        6,  # "a 7 dog", a changed form of the translation
        5,  # "no cat", a changed form of another sentence
        0,  # another sentence
        1,  # a sentence identical with the translation
    ]

    outcomes = xsim_plus_plus.error_outcomes(np.array(nearest), target, changed)

    assert {name: values.hits for name, values in outcomes.items()} == {
        "error": [0, 1, 1, 1, 0],
        "Misaligned": [0, 0, 1, 1, 0],
        "Entity": [0, 0, 0, 0, 0],
        "Number": [0, 1, 0, 0, 0],
    }


# One more than allowed, as `Misaligned` is a type of its own.
TOO_MANY_TYPES = {
    str(row): {"errtype": f"type {row}", "src": "b"} for row in range(xsim_plus_plus.MAX_TYPES)
}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="not JSON"),
        pytest.param("[]", id="not an object"),
        pytest.param("{}", id="no sentences"),
        pytest.param('{"a": 1}', id="a number for a sentence"),
        pytest.param('{"a": {"errtype": "x"}}', id="no original"),
        pytest.param('{"a": {"errtype": 1, "src": "b"}}', id="type is a number"),
        # Signatures separate their parts by this character.
        pytest.param('{"a": {"errtype": "x|y", "src": "b"}}', id="type with a bar"),
        pytest.param('{"a": {"errtype": "x", "src": null}}', id="original is null"),
        pytest.param(json.dumps(TOO_MANY_TYPES), id="too many types"),
    ],
)
def test_an_invalid_file_of_changed_sentences_is_refused(tmp_path, content):
    (tmp_path / "e.json").write_text(content)

    with pytest.raises(InputError, match=r"e\.json: .*expected"):
        read_augmented(tmp_path / "e.json")


# -- mteb-bitext


def test_the_values_of_mteb_bitext_equal_those_of_mteb():
    [score] = MtebBitext().scores(SOURCE, TARGET, golden_encoder())

    values = {name.lower(): value / 100 for name, value in score.values.items()}
    assert values == pytest.approx(VALUES["mteb-bitext"])
    # The bootstrap draws outcomes, so they must give the same values.
    from_outcomes = {name: outcomes.value for name, outcomes in score.outcomes.items()}
    assert from_outcomes == pytest.approx(score.values)


def test_the_signature_of_mteb_bitext_says_that_an_identical_sentence_is_an_error():
    [score] = MtebBitext().scores(SOURCE, TARGET, golden_encoder())

    assert score.task == "fr->en"
    metric = "metric:nn-cosine|average:weighted|case:mixed|identical:error"
    assert score.signature.startswith(f"mteb-bitext|{metric}|pairs:60|text:")


def test_f1_precision_and_recall_are_averaged_over_the_targets_of_the_sources():
    gold = np.array([0, 1, 1, 2])
    chosen = np.array([1, 1, 1, 2])

    scores = weighted_scores(gold, chosen)

    # Target 0 is never chosen. Target 1 is chosen three times, for both of its sources and for that
    # of target 0. Target 2 is chosen for its source.
    precisions = [0, 2 / 3, 2 / 3, 1]
    recalls = [0, 1, 1, 1]
    f1s = [0, 2 * 2 / (3 + 2), 2 * 2 / (3 + 2), 1]
    values = {name: outcomes.value for name, outcomes in scores.items()}
    assert values == pytest.approx(
        {
            "F1": 100 * np.mean(f1s),
            "accuracy": 75,
            "precision": 100 * np.mean(precisions),
            "recall": 100 * np.mean(recalls),
        }
    )


def test_a_chosen_target_that_belongs_to_no_source_is_only_an_error():
    gold = np.array([0, 1])
    chosen = np.array([0, 7])

    for name, outcomes in weighted_scores(gold, chosen).items():
        assert outcomes.value == 50, name


# -- STS


def test_correlations_of_cosines_and_ratings_equal_those_of_mteb():
    outcomes = sts.correlations(FIRST, SECOND, np.array(DATA["ratings"]))

    assert outcomes.keys() == {"Spearman", "Pearson"}
    spearman = 100 * VALUES["sts"]["cosine_spearman"]
    pearson = 100 * VALUES["sts"]["cosine_pearson"]
    assert outcomes["Spearman"].value == pytest.approx(spearman, abs=1e-4)
    assert outcomes["Pearson"].value == pytest.approx(pearson, abs=1e-4)


def test_equal_cosines_have_no_correlation():
    same_vectors = np.ones((3, 2))

    with pytest.raises(InputError, match=r"\b3 cosines"):
        sts.correlations(same_vectors, same_vectors, np.array([1.0, 2, 3]))


def test_ties_share_the_mean_of_their_ranks():
    """1 has rank 1 and 2 has rank 2; the three 3 share the ranks 3, 4 and 5."""
    assert sts.ranks(np.array([3.0, 1, 3, 2, 3])).tolist() == [4, 1, 4, 2, 4]


def test_the_cosine_of_a_vector_with_itself_is_exactly_one():
    vectors = np.random.default_rng(1).standard_normal((50, 7)).astype(np.float32)

    assert sts.cosines(vectors, vectors).tolist() == [1] * len(vectors)


@pytest.fixture
def rated(tmp_path) -> sts.Rated:
    """Three rated pairs, read from columns 3, 4 and 2 of a file with a header."""
    path = tmp_path / "sts.tsv"
    path.write_text("id\tscore\tone\ttwo\n1\t5\ta\tb\n2\t0.5\tc\td\n3\t2\te\tf\n")
    return sts.read_rated(path, languages=("en", "de"), columns=(3, 4, 2))


def test_rated_pairs_are_read_by_column_without_the_header(rated):
    assert rated.first.lines == ("a", "c", "e")
    assert rated.second.lines == ("b", "d", "f")
    assert rated.scores.tolist() == [5, 0.5, 2]


def test_embeddings_of_rated_pairs_are_looked_up_by_side_and_row_of_the_file(rated):
    assert rated.first.file.endswith("sts.tsv.first")
    assert rated.second.file.endswith("sts.tsv.second")
    # The header is row 0.
    assert rated.first.rows.tolist() == [1, 2, 3]


def test_rated_pairs_are_scored_and_signed(rated):
    """The order of the cosines is that of the ratings 5, 0.5 and 2."""
    nearly_equal = {"a": [1, 0], "b": [1, 0.1]}
    orthogonal = {"c": [1, 0], "d": [0, 1]}
    at_45_degrees = {"e": [1, 0], "f": [1, 1]}

    score = sts.score_rated(rated, Vectors(nearly_equal | orthogonal | at_45_degrees))

    assert score.task == "en-de"
    assert score.values["Spearman"] == pytest.approx(100)
    assert score.signature.startswith("sts|metric:cosine|ties:mean-rank|pairs:3|text:")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("a\tb\n", "line 1: .*2 .*3", id="two columns"),
        pytest.param("a\tb\t1\nc\td\tx\n", "line 2: .*'x'.*column 3", id="rating is text"),
        pytest.param("a\tb\t1\nc\td\tnan\n", "line 2: .*'nan'", id="rating is not a number"),
        pytest.param("a\tb\t1\nc\td\t1e300\n", "line 2: .*'1e300'", id="rating is too large"),
        pytest.param("", r"s\.tsv: .*3", id="fewer than three pairs"),
        pytest.param("a\tb\t1\n" * 3, r"s\.tsv: .* 1\b", id="all ratings are 1"),
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


def test_a_file_without_any_rating_is_refused(tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_text("\ta\tb\n\tc\td\n")

    with pytest.raises(InputError, match="0 rated pairs"):
        sts.read_rated(path, columns=(2, 3, 1))


COMMA_SEPARATED = '"A dog, red.",Un chien,5\r\n"A ""cat"".",Le chat,0.5\r\nA bird,Un oiseau,2\r\n'


def test_rated_pairs_are_read_from_a_csv_with_quotes_and_a_header(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_bytes(f"sentence1,sentence2,score\r\n{COMMA_SEPARATED}".encode())

    rated = sts.read_rated(path)

    assert rated.first.lines == ("A dog, red.", 'A "cat".', "A bird")
    assert rated.scores.tolist() == [5, 0.5, 2]
    assert rated.first.rows.tolist() == [1, 2, 3]


def test_commas_in_a_file_that_is_not_named_csv_are_refused_with_advice(tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_bytes(COMMA_SEPARATED.encode())

    with pytest.raises(InputError, match=r"line 1: 1 columns; expected at least 3: .*\.csv"):
        sts.read_rated(path)


@pytest.mark.parametrize("rating", ["4,5", "nan", "-inf", "null", "None", "5e", "1e400"])
def test_a_first_row_with_an_invalid_rating_is_not_skipped_as_a_header(tmp_path, rating):
    rows = [f"A dog.\tUn chien.\t{rating}", "The cat.\tLe chat.\t1", "A bird.\tUn oiseau.\t2"]
    (tmp_path / "x.tsv").write_text("\n".join(rows) + "\n")

    with pytest.raises(InputError, match=r"x\.tsv, line 1: "):
        sts.read_rated(tmp_path / "x.tsv")
