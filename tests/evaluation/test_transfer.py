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
# Vectors of the two texts that most tests classify.
VECTORS = {"x": [1.0, 0.0], "y": [0.0, 1.0]}


def protocol(langs=("en",), data=GOLDEN / "mldoc", kind=MLDoc, **options):
    return kind(data=str(data), langs=langs, **options)


def scores_with(config, protocol, vectors=None):
    """Return the scores of a protocol with a configuration of its classifier."""
    with mock.patch.object(type(protocol), "with_user_options", return_value=config):
        return protocol.scores(protocol.texts(), vectors or Vectors())


@pytest.mark.parametrize(
    ("name", "classifier"), [("mldoc", "mlp"), ("mldoc", "linear"), ("titles", "mlp")]
)
def test_golden_values_of_documents(name, classifier):
    config = replace(
        documents.DOCUMENT_CLASSIFIERS[name][classifier], epochs=150, seeds=2, learning_rate=0.05
    )
    config = replace(config, dropout=0, input_dropout=0, l2=config.l2[:2])
    scores = scores_with(config, protocol(("en", "fr"), kind=PROTOCOLS[name]))
    accuracies = {score.task: score.values["accuracy"] for score in scores}
    assert accuracies == {"en->en": 100, "en->fr": 75, "fr->en": 0, "fr->fr": 25}
    assert scores[1].values["macro F1"] == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert scores[1].values["sd"] == 0
    assert scores[1].outcomes["accuracy"].hits == [1, 1, 0, 1]
    assert transfer_means(scores) == {"same": 62.5, "cross": 37.5, "all": 50}
    assert scores[1].settings["sizes"] == "8-4-4"
    assert "means: same 62.5  cross 37.5  all 50.0" in report_scores(scores)


def test_the_text_of_a_task_does_not_depend_on_the_other_tasks():
    config = replace(LINEAR, epochs=2, seeds=1)
    all_scores = {score.task: score for score in scores_with(config, protocol(("en", "fr")))}
    [score] = scores_with(config, protocol(("fr",), train_langs=("en",)))
    assert score.task == "en->fr"
    assert score.comparable == all_scores["en->fr"].comparable
    assert score.comparable != all_scores["en->en"].comparable


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("Profits rose . (c) Reuters Limited 1996.", "Profits rose . "),
        ("a (C) Reuters Limited 1997. b", "a  b"),
        ("(c) Reuters Limited 1986.", "(c) Reuters Limited 1986."),
        ("c Reuters Limited 1996.", "c Reuters Limited 1996."),
        ("Ford Motor Co . and Apple Inc . rose", "Ford Motor Co. and Apple Inc. rose"),
        ("Apple Inc .", "Apple Inc ."),
    ],
)
def test_the_copyright_of_reuters_is_removed(document, expected):
    labelled = documents.Labelled(Text([document], "en", "en.test"), ["C"])
    stripped = documents.without_copyright(labelled)
    assert list(stripped.text.lines) == [expected]
    assert (stripped.labels, stripped.text.file) == (["C"], "en.test")


def test_stripped_copyright_and_ties_are_in_the_signature(tmp_path):
    for name in ("en.train", "en.dev", "en.test"):
        (tmp_path / name).write_text("a\tx(c) Reuters Limited 1996.\nb\ty\n")
    # The text with its copyright has no vector yet.
    vectors = Vectors(dict(VECTORS))
    config = replace(LINEAR, epochs=2, seeds=1, ties="last")
    [score] = scores_with(config, protocol(data=tmp_path, strip_copyright=True), vectors)
    assert score.signature.startswith("mldoc|copyright:stripped|classes:2|")
    assert "|seeds:1|ties:last|" in score.signature
    vectors.vectors["x(c) Reuters Limited 1996."] = [1.0, 0.0]
    [plain] = scores_with(replace(config, ties="first"), protocol(data=tmp_path), vectors)
    assert "copyright" not in plain.signature
    assert "ties" not in plain.signature
    assert plain.settings["text"] != score.settings["text"]


@pytest.mark.parametrize("preset", ["laser", "wang"])
def test_golden_values_of_xnli(preset):
    config = replace(xnli.NLI_CLASSIFIERS[preset], epochs=40, batch_size=8)
    protocol = xnli.Xnli(data=str(GOLDEN / "xnli"), langs=("en", "fr"), preset=preset)
    scores = scores_with(config, protocol)
    accuracies = {score.task: score.values["accuracy"] for score in scores}
    assert accuracies == pytest.approx({"en->en": 100, "en->fr": 100 * 11 / 12})
    assert scores[0].settings["norm"] == ("l2-sentence" if preset == "laser" else "none")


def test_features_of_xnli_are_both_vectors_their_distance_and_their_product():
    features = xnli.nli_features(np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]]))
    np.testing.assert_array_equal(features, [[1, 2, 3, -1, 2, 3, 3, -2]])
    assert features.dtype == np.float32


def test_macro_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 5, 200)
    predicted = rng.integers(0, 4, 200)
    expected = 100 * f1_score(gold, predicted, average="macro")
    assert macro_f1(predicted, gold) == pytest.approx(expected)


def test_means_over_the_same_and_over_other_languages():
    english = Score("mldoc", "en->en", {"accuracy": 90.0}, {})
    german = Score("mldoc", "en->de", {"accuracy": 70.0}, {})
    french = Score("mldoc", "en->fr", {"accuracy": 80.0}, {})
    assert transfer_means([english, german, french]) == {"same": 90, "cross": 75, "all": 80}
    assert transfer_means([german, french]) == {"cross": 75, "all": 75}


def test_published_xnli_files_are_read(tmp_path):
    header = "language\tgold_label\tpairID\tsentence1\tsentence2\n"
    rows = "fr\tneutral\t1\tun\tdeux\nen\tentailment\t1\tone\ttwo\nfr\t-\t2\tx\ty\nfr\tcontradiction\t3\ta\tb\n"
    (tmp_path / "xnli.test.tsv").write_text(header + rows)
    (tmp_path / "multinli.train.en.tsv").write_text(
        "premise\thypo\tlabel\nit rains\tit is dry\tcontradictory\n"
    )
    pairs = xnli.read_nli_pairs(str(tmp_path), "fr", "test")
    assert (list(pairs.premises.lines), list(pairs.hypotheses.lines)) == (
        ["un", "a"],
        ["deux", "b"],
    )
    assert pairs.labels == ["neutral", "contradiction"]
    assert pairs.premises.rows.tolist() == [1, 4]
    assert xnli.read_nli_pairs(str(tmp_path), "en", "train").labels == ["contradiction"]
    (tmp_path / "it.test.tsv").write_text("neutral\tuno\tdue\ttre\n")
    for language, part, message in (
        ("it", "test", r"it\.test\.tsv, line 1: "),
        ("de", "test", r"xnli\.test\.tsv: .*\bde\b"),
        ("en", "dev", r"en\.dev\.tsv .*xnli\.dev\.tsv"),
    ):
        with pytest.raises(InputError, match=message):
            xnli.read_nli_pairs(str(tmp_path), language, part)


@pytest.mark.parametrize("layout", ["{lang}.{part}.tsv", "{lang}/{part}", "{part}.{lang}"])
def test_documents_are_read_in_several_layouts(tmp_path, layout):
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test")):
        path = tmp_path / layout.format(lang="en", part=name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"yes\t{part} text\twith a tab\n")
    parts = documents.read_language(str(tmp_path), "en", learn=True)
    assert parts.keys() == {"train", "dev", "test"}
    for part, labelled in parts.items():
        assert list(labelled.text.lines) == [f"{part} text\twith a tab"]


def test_a_language_that_is_not_tested_needs_no_test_file(tmp_path):
    for name in ("en.train", "en.dev", "fr.test"):
        (tmp_path / name).write_text("a\tx\nb\ty\n")
    one_way = protocol(("fr",), tmp_path, train_langs=("en",))
    [score] = scores_with(LINEAR, one_way, Vectors(VECTORS))
    assert score.task == "en->fr"


def test_without_a_dev_file_every_tenth_line_of_train_is_held_out(tmp_path):
    (tmp_path / "en.train").write_text("".join(f"yes\ttext {number}\n" for number in range(25)))
    (tmp_path / "en.test").write_text("yes\ttext\n")
    parts = documents.read_language(str(tmp_path), "en", learn=True)
    assert list(parts["dev"].text.lines) == ["text 9", "text 19"]
    assert parts["dev"].text.rows.tolist() == [9, 19]
    assert len(parts["train"].labels) == 23


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"en.train": "a\tx\n", "en.dev": "a\tx\n"}, r"en\.test\b"),
        ({"en.test": "a\tx\n"}, r"en\.train\.1000 or en\.train\b"),
        ({"en.train": "a\tx\nb x\n"}, "line 2: .*'b x'"),
        ({"en.train": ""}, r"en\.train: "),
        (
            {"en.train": "a\tx\nb\ty\n", "en.dev": "a\tx\n", "en.test": "c\tx\n"},
            "label 'c'",
        ),
        ({"en.train": "a\tx\na\ty\n", "en.dev": "a\tx\n", "en.test": "a\tx\n"}, "class"),
    ],
)
def test_missing_and_invalid_files_of_documents_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        scores_with(LINEAR, protocol(data=tmp_path), Vectors(VECTORS))


@pytest.mark.parametrize(
    ("name", "data"), [("mldoc", "mldoc"), ("titles", "mldoc"), ("xnli", "xnli")]
)
def test_text_is_read_before_the_model(tmp_path, name, data):
    data = GOLDEN / data
    command = ("eval", name, "--model", tmp_path / "none", "--langs", "en")
    refused(lxsr_here(*command, "--data", tmp_path, check=False), f"{tmp_path}: ")
    refused(lxsr_here(*command, "--data", data, check=False), tmp_path / "none")


class OneCharacter:
    """Stands for a model that reads one character: the whole text only with split-mean."""

    fingerprint = "one character"
    output_dim = 2

    def encode(self, text, counts, on_long="cut"):
        counts.update(long=sum(len(line) > 1 for line in text))
        rows = []
        for line in text:
            part = line if on_long == "split-mean" else line[:1]
            rows.append([1.0, part.count("b")])
        return np.array(rows, np.float32)


@pytest.mark.parametrize(("on_long", "accuracy"), [("split-mean", 100), ("cut", 50)])
def test_on_long_decides_how_much_of_a_document_is_read(tmp_path, on_long, accuracy):
    for part in ("train", "dev", "test"):
        (tmp_path / f"en.{part}").write_text("0\taa\n1\tab\n" * 4)
    options = {"classifier": "linear", "ties": "first", "epochs": 600, "seeds": 1}
    plan = protocol(data=tmp_path, on_long=on_long, **options).plan()
    [[score]] = plan.measure(ModelFolder(OneCharacter()))
    assert score.values["accuracy"] == accuracy
    assert f"|long:{on_long}-24|" in score.signature
    assert protocol(data=tmp_path).on_long == "split-mean"
