"""MLDoc, titles and XNLI on files whose results are known by hand (golden/README.md)."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from conftest import lxsr_here, refused
from golden_vectors import GOLDEN, Vectors
from sklearn.metrics import f1_score

from fairseq_lxsr.embeddings import ModelFolder, Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.classifier import macro_f1
from fairseq_lxsr.evaluation.protocols import documents, xnli
from fairseq_lxsr.evaluation.protocols.documents import MLDoc, Titles
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import report_scores, transfer_means

PROTOCOLS = {"mldoc": MLDoc, "titles": Titles}
LINEAR = documents.DOCUMENT_CLASSIFIERS["mldoc"]["linear"]
# The least training, for tests whose result does not depend on what the classifier learns.
UNTRAINED = replace(LINEAR, epochs=2, seeds=1)
# A train, dev or test file of two documents, and their vectors.
TWO_DOCUMENTS = "a\tx\nb\ty\n"
VECTORS = {"x": [1.0, 0.0], "y": [0.0, 1.0]}


def protocol(langs=("en",), data=GOLDEN / "mldoc", kind=MLDoc, **options):
    """Return a protocol of documents, by default on the golden documents."""
    return kind(data=str(data), langs=langs, **options)


def scores_with(config, protocol, vectors=None):
    """Return the scores of a protocol with a configuration of its classifier.

    Options of the command set only a part of it, so the method that applies them is replaced.
    """
    with mock.patch.object(type(protocol), "with_user_options", return_value=config):
        return protocol.scores(protocol.texts(), vectors or Vectors())


def golden_document_scores(name: str, classifier: str) -> dict[str, Score]:
    """Train a classifier to convergence on the golden documents; return its scores by task."""
    config = documents.DOCUMENT_CLASSIFIERS[name][classifier]
    config = replace(config, epochs=150, seeds=2, learning_rate=0.05, l2=config.l2[:2])
    # Without dropout, a few documents suffice.
    config = replace(config, dropout=0, input_dropout=0)
    scores = scores_with(config, protocol(("en", "fr"), kind=PROTOCOLS[name]))
    return {score.task: score for score in scores}


@pytest.mark.parametrize(
    ("name", "classifier"), [("mldoc", "mlp"), ("mldoc", "linear"), ("titles", "mlp")]
)
def test_document_classifiers_have_the_golden_accuracies(name, classifier):
    """In English, CCAT is right of zero and GCAT left; French training labels are exchanged.

    French test labels are as in English, except that the third of four documents is wrong.
    """
    scores = golden_document_scores(name, classifier)

    accuracies = {task: score.values["accuracy"] for task, score in scores.items()}
    assert accuracies == {"en->en": 100, "en->fr": 75, "fr->en": 0, "fr->fr": 25}
    assert scores["en->fr"].outcomes["accuracy"].hits == [1, 1, 0, 1]
    # Both seeds learn the same.
    assert scores["en->fr"].values["sd"] == 0


def test_macro_f1_is_the_mean_of_the_f1_of_the_classes():
    """From English to French, two CCAT and one GCAT are right, and one GCAT is taken for CCAT."""
    score = golden_document_scores("mldoc", "linear")["en->fr"]

    f1_of_ccat = 2 * 2 / (3 + 2)
    f1_of_gcat = 2 * 1 / (1 + 2)
    assert score.values["macro F1"] == pytest.approx(100 * (f1_of_ccat + f1_of_gcat) / 2)


def test_the_signature_has_the_numbers_of_documents_of_train_dev_and_test():
    score = golden_document_scores("mldoc", "linear")["en->fr"]

    assert score.settings["sizes"] == "8-4-4"


def test_the_report_of_a_classification_has_the_means_over_languages():
    """The accuracies are 100 and 25 within a language, and 75 and 0 across languages."""
    scores = list(golden_document_scores("mldoc", "linear").values())

    assert "means: same 62.5  cross 37.5  all 50.0" in report_scores(scores)


def test_the_text_of_a_task_does_not_depend_on_the_other_tasks():
    all_tasks = protocol(("en", "fr"))
    one_task = protocol(("fr",), train_langs=("en",))

    all_scores = {score.task: score for score in scores_with(UNTRAINED, all_tasks)}
    [score] = scores_with(UNTRAINED, one_task)

    assert score.task == "en->fr"
    assert score.comparable == all_scores["en->fr"].comparable
    assert score.comparable != all_scores["en->en"].comparable


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param("Up . (c) Reuters Limited 1996.", "Up . ", id="end"),
        pytest.param("a (C) Reuters Limited 1997. b", "a  b", id="middle"),
        # The documents of MLDoc are from the nineties.
        pytest.param("(c) Reuters Limited 1986.", "(c) Reuters Limited 1986.", id="1986"),
        pytest.param("c Reuters Limited 1996.", "c Reuters Limited 1996.", id="no parentheses"),
        pytest.param("Ford Motor Co . rose", "Ford Motor Co. rose", id="Co"),
        pytest.param("Apple Inc . rose", "Apple Inc. rose", id="Inc"),
        # LASER's pattern for Inc requires a space behind it.
        pytest.param("Apple Inc .", "Apple Inc .", id="Inc at the end"),
    ],
)
def test_copyrights_and_spaces_in_abbreviations_are_removed_as_by_laser(document, expected):
    labelled = documents.Labelled(Text([document], "en", "en.test"), ["C"])

    stripped = documents.without_copyright(labelled)

    assert list(stripped.text.lines) == [expected]
    assert stripped.labels == ["C"]
    assert stripped.text.file == "en.test"


def write_parts(folder, content: str) -> None:
    """Write the same English documents for training, selection and test."""
    for part in ("train", "dev", "test"):
        (folder / f"en.{part}").write_text(content)


COPYRIGHT = "(c) Reuters Limited 1996."


def test_documents_are_embedded_without_the_copyright_if_the_option_says_so(tmp_path):
    write_parts(tmp_path, f"a\tx{COPYRIGHT}\nb\ty\n")
    # A text without a vector, such as "x(c) Reuters Limited 1996.", would be an error.
    vectors_without_copyright = Vectors(VECTORS)

    stripping = protocol(data=tmp_path, strip_copyright=True)
    [score] = scores_with(UNTRAINED, stripping, vectors_without_copyright)

    assert score.signature.startswith("mldoc|copyright:stripped|classes:2|")


def test_documents_with_their_copyright_are_another_text(tmp_path):
    write_parts(tmp_path, f"a\tx{COPYRIGHT}\nb\ty\n")
    vectors = Vectors(VECTORS | {f"x{COPYRIGHT}": [1.0, 0.0]})

    [stripped] = scores_with(UNTRAINED, protocol(data=tmp_path, strip_copyright=True), vectors)
    [plain] = scores_with(UNTRAINED, protocol(data=tmp_path), vectors)

    assert "copyright" not in plain.signature
    assert plain.settings["text"] != stripped.settings["text"]


@pytest.mark.parametrize(("ties", "is_signed"), [("last", True), ("first", False)])
def test_only_ties_other_than_the_default_are_in_the_signature(tmp_path, ties, is_signed):
    write_parts(tmp_path, TWO_DOCUMENTS)

    config = replace(UNTRAINED, ties=ties)
    [score] = scores_with(config, protocol(data=tmp_path), Vectors(VECTORS))

    assert ("|seeds:1|ties:last|" in score.signature) == is_signed
    assert ("ties" in score.settings) == is_signed


@pytest.mark.parametrize(("preset", "norm"), [("laser", "l2-sentence"), ("wang", "none")])
def test_xnli_classifiers_have_the_golden_accuracies(preset, norm):
    """All English pairs have the label of their vectors, and eleven of twelve French ones."""
    config = replace(xnli.NLI_CLASSIFIERS[preset], epochs=40, batch_size=8)
    protocol = xnli.Xnli(data=str(GOLDEN / "xnli"), langs=("en", "fr"), preset=preset)

    english, french = scores_with(config, protocol)

    assert (english.task, french.task) == ("en->en", "en->fr")
    assert english.values["accuracy"] == 100
    assert french.values["accuracy"] == pytest.approx(100 * 11 / 12)
    assert english.settings["norm"] == norm


def test_features_of_xnli_are_both_vectors_their_distance_and_their_product():
    premise = [1.0, 2.0]
    hypothesis = [3.0, -1.0]
    absolute_difference = [2, 3]
    product = [3, -2]

    features = xnli.nli_features(np.array([premise]), np.array([hypothesis]))

    expected = [[*premise, *hypothesis, *absolute_difference, *product]]
    np.testing.assert_array_equal(features, expected)
    assert features.dtype == np.float32


def test_macro_f1_is_that_of_scikit_learn():
    """The last of five classes is never predicted."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 5, 200)
    predicted = rng.integers(0, 4, 200)

    assert macro_f1(predicted, gold) == pytest.approx(
        100 * f1_score(gold, predicted, average="macro")
    )


ENGLISH = Score("mldoc", "en->en", {"accuracy": 90.0}, {})
GERMAN = Score("mldoc", "en->de", {"accuracy": 70.0}, {})
FRENCH = Score("mldoc", "en->fr", {"accuracy": 80.0}, {})


def test_means_are_over_the_same_over_other_and_over_all_languages():
    means = transfer_means([ENGLISH, GERMAN, FRENCH])

    assert means == {"same": 90, "cross": (70 + 80) / 2, "all": (90 + 70 + 80) / 3}


def test_a_mean_over_no_scores_is_left_out():
    means = transfer_means([GERMAN, FRENCH])

    assert means == {"cross": 75, "all": 75}


# -- files of XNLI


def test_the_published_test_file_of_xnli_is_read_by_language_without_unlabelled_pairs(tmp_path):
    """Annotators did not agree on pairs with the label "-"."""
    lines = [
        "language\tgold_label\tpairID\tsentence1\tsentence2",
        "fr\tneutral\t1\tun\tdeux",
        "en\tentailment\t1\tone\ttwo",
        "fr\t-\t2\tx\ty",
        "fr\tcontradiction\t3\ta\tb",
    ]
    (tmp_path / "xnli.test.tsv").write_text("\n".join(lines) + "\n")

    pairs = xnli.read_nli_pairs(str(tmp_path), "fr", "test")

    assert list(pairs.premises.lines) == ["un", "a"]
    assert list(pairs.hypotheses.lines) == ["deux", "b"]
    assert pairs.labels == ["neutral", "contradiction"]
    # The places of the two pairs in `lines`.
    assert pairs.premises.rows.tolist() == [1, 4]


def test_the_spelling_contradictory_of_published_training_files_is_read(tmp_path):
    (tmp_path / "multinli.train.en.tsv").write_text(
        "premise\thypo\tlabel\nit rains\tit is dry\tcontradictory\n"
    )

    pairs = xnli.read_nli_pairs(str(tmp_path), "en", "train")

    assert pairs.labels == ["contradiction"]


@pytest.mark.parametrize(
    ("language", "part", "message"),
    [
        pytest.param("it", "test", r"it\.test\.tsv, line 1: ", id="four columns"),
        pytest.param("de", "test", r"xnli\.test\.tsv: .*\bde\b", id="language is not in the file"),
        pytest.param("en", "dev", r"en\.dev\.tsv .*xnli\.dev\.tsv", id="neither file exists"),
    ],
)
def test_missing_and_invalid_files_of_xnli_are_refused(tmp_path, language, part, message):
    (tmp_path / "xnli.test.tsv").write_text(
        "language\tgold_label\tsentence1\tsentence2\nen\tneutral\tone\ttwo\n"
    )
    (tmp_path / "it.test.tsv").write_text("neutral\tuno\tdue\ttre\n")

    with pytest.raises(InputError, match=message):
        xnli.read_nli_pairs(str(tmp_path), language, part)


# -- files of documents


@pytest.mark.parametrize("layout", ["{lang}.{part}.tsv", "{lang}/{part}", "{part}.{lang}"])
def test_documents_are_read_in_several_layouts(tmp_path, layout):
    # The part for selection may also be called `val`.
    file_names = {"train": "train", "dev": "val", "test": "test"}
    for part, name in file_names.items():
        path = tmp_path / layout.format(lang="en", part=name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"yes\t{part} text\twith a tab\n")

    parts = documents.read_language(str(tmp_path), "en", learn=True)

    assert parts.keys() == {"train", "dev", "test"}
    for part, labelled in parts.items():
        assert list(labelled.text.lines) == [f"{part} text\twith a tab"]


def test_a_language_that_is_not_tested_needs_no_test_file(tmp_path):
    for name in ("en.train", "en.dev", "fr.test"):
        (tmp_path / name).write_text(TWO_DOCUMENTS)
    english_to_french = protocol(("fr",), tmp_path, train_langs=("en",))

    [score] = scores_with(UNTRAINED, english_to_french, Vectors(VECTORS))

    assert score.task == "en->fr"


def test_without_a_dev_file_every_tenth_line_of_train_is_held_out(tmp_path):
    train = [f"yes\ttext {number}\n" for number in range(25)]
    (tmp_path / "en.train").write_text("".join(train))
    (tmp_path / "en.test").write_text("yes\ttext\n")

    parts = documents.read_language(str(tmp_path), "en", learn=True)

    assert list(parts["dev"].text.lines) == ["text 9", "text 19"]
    assert parts["dev"].text.rows.tolist() == [9, 19]
    assert len(parts["train"].labels) == 25 - 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"en.train": "a\tx\n", "en.dev": "a\tx\n"}, r"en\.test\b", id="no test"),
        pytest.param({"en.test": "a\tx\n"}, r"en\.train\.1000 or en\.train\b", id="no train"),
        pytest.param({"en.train": "a\tx\nb x\n"}, "line 2: .*'b x'", id="line without tab"),
        pytest.param({"en.train": ""}, r"en\.train: ", id="empty train"),
        pytest.param(
            {"en.train": "a\tx\nb\ty\n", "en.dev": "a\tx\n", "en.test": "c\tx\n"},
            "label 'c'",
            id="label only in test",
        ),
        pytest.param(
            {"en.train": "a\tx\na\ty\n", "en.dev": "a\tx\n", "en.test": "a\tx\n"},
            "only one class",
            id="one label",
        ),
    ],
)
def test_missing_and_invalid_files_of_documents_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    with pytest.raises(InputError, match=message):
        scores_with(LINEAR, protocol(data=tmp_path), Vectors(VECTORS))


# -- the commands

GOLDEN_DATA = [("mldoc", "mldoc"), ("titles", "mldoc"), ("xnli", "xnli")]


@pytest.mark.parametrize(("name", "golden_folder"), GOLDEN_DATA)
def test_missing_text_is_refused_before_a_missing_model(tmp_path, name, golden_folder):
    command = ("eval", name, "--model", tmp_path / "missing.model", "--langs", "en")

    without_text = lxsr_here(*command, "--data", tmp_path, check=False)
    with_text = lxsr_here(*command, "--data", GOLDEN / golden_folder, check=False)

    refused(without_text, f"error: {tmp_path}: ")
    refused(with_text, tmp_path / "missing.model")


class OneCharacter:
    """Stands for a model that reads one character: the whole text only with split-mean.

    The vector of a text has the number of b that it reads.
    """

    fingerprint = "one character"
    output_dim = 2

    def encode(self, text, counts, on_long="cut"):
        counts.update(long=sum(len(line) > 1 for line in text))
        rows = []
        for line in text:
            part = line if on_long == "split-mean" else line[:1]
            rows.append([1.0, part.count("b")])
        return np.array(rows, np.float32)


@pytest.mark.parametrize(
    ("on_long", "accuracy"),
    [
        pytest.param("split-mean", 100, id="split-mean"),
        # Both classes have the same first character.
        pytest.param("cut", 50, id="cut"),
    ],
)
def test_on_long_decides_how_much_of_a_document_is_read_and_is_in_the_signature(
    tmp_path, on_long, accuracy
):
    eight_documents = "0\taa\n1\tab\n" * 4
    write_parts(tmp_path, eight_documents)
    options = {"classifier": "linear", "ties": "first", "epochs": 600, "seeds": 1}
    mldoc = protocol(data=tmp_path, on_long=on_long, **options)

    [[score]] = mldoc.plan().measure(ModelFolder(OneCharacter()))

    assert score.values["accuracy"] == accuracy
    # Every document of the three parts is too long.
    assert f"|long:{on_long}-{3 * 8}|" in score.signature
