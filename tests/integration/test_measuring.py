"""`lxsr eval`, `compare`, `mine`, `index`, `search` and `report` with the toy model."""

import json
import re
import shutil

import numpy as np
import pytest
import toy
from conftest import GOLDEN, refused
from conftest import lxsr_here as lxsr

from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.records import parse_json


@pytest.fixture(scope="module")
def test_text(toy_work):
    return toy_work / "corpus" / "en-fr" / "test"


@pytest.fixture(scope="module")
def stored(toy_work, toy_model, test_text, tmp_path_factory):
    """Files with embeddings of the toy model: .npy of English, and French as LASER writes it."""
    folder = tmp_path_factory.mktemp("stored")
    for language in ("en", "fr"):
        text = f"{test_text}.{language}"
        output = folder / f"test.{language}.npy"
        lxsr("embed", "--model", toy_model, "--input", text, "--output", output)
    np.load(folder / "test.fr.npy").tofile(folder / "test.fr.raw")
    (folder / "test.fr.npy").unlink()
    return folder


def numbers_in(line: str) -> list[float]:
    """Return the numbers of a line that have one decimal."""
    return [float(value) for value in re.findall(r"-?\d+\.\d", line)]


def test_scores_measured_before_an_error_are_kept(toy_model, test_text, tmp_path):
    shutil.copy(f"{test_text}.en", tmp_path / "t.en")
    shutil.copy(f"{test_text}.fr", tmp_path / "t.fr")
    shutil.copy(f"{test_text}.en", tmp_path / "t.de")
    with (tmp_path / "t.de").open("a") as stream:
        stream.write("one line more\n")
    command = ["eval", "tatoeba", "--model", toy_model, "--data", tmp_path / "t"]
    command += ["--lang-pairs", "en-fr,en-de", "--output", tmp_path / "scores.jsonl"]

    result = lxsr(*command, check=False)

    assert result.returncode == 2
    assert "t.de" in result.stderr
    # Both directions of the first pair.
    assert "en->fr" in result.stdout
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2


def evaluate_xsr(model, test_text, output):
    """Write the scores of a model to a file, and return what is printed."""
    data = ("--data", test_text, "--lang-pairs", "en-fr")
    return lxsr("eval", "xsr", "--model", model, *data, "--output", output).stdout


@pytest.fixture
def scores_of_trained(toy_model, test_text, tmp_path):
    evaluate_xsr(toy_model, test_text, tmp_path / "trained.jsonl")
    return tmp_path / "trained.jsonl"


# The row of a direction in a comparison.
ROW = re.compile(r"^xsr en->fr P@1 nn-cosine(.*)", re.MULTILINE)


def test_xsr_prints_three_precisions_of_three_metrics_with_their_signatures(
    toy_model, test_text, tmp_path
):
    output = evaluate_xsr(toy_model, test_text, tmp_path / "scores.jsonl")

    [row] = [line for line in output.splitlines() if line.startswith("en->fr")]
    # P@1, P@5 and P@10 of each metric.
    assert len(numbers_in(row)) == 3 * 3
    assert output.count("\nxsr|") == 3


def test_compare_shows_the_difference_of_two_models_with_its_interval(
    scores_of_trained, toy_model, test_text, tmp_path
):
    untrained = tmp_path / "untrained.jsonl"
    evaluate_xsr(f"{toy_model}#untrained", test_text, untrained)

    output = lxsr("compare", untrained, scores_of_trained, "--draws", 200).stdout

    first, second, difference, low, high, *_ = numbers_in(ROW.search(output)[1])
    # All three are rounded to one decimal.
    assert second - first == pytest.approx(difference, abs=0.11)
    # The trained model is better beyond doubt.
    assert 0 < low <= difference <= high
    assert "-untrained, B: model" in output
    assert "between training runs" in output


def test_compare_shows_published_scores_beside_those_of_a_model(scores_of_trained):
    [score, *_] = read_scores(scores_of_trained)

    output = lxsr("compare", scores_of_trained, "--published").stdout

    assert numbers_in(ROW.search(output)[1]) == [round(score.values["P@1"], 1)]
    assert "xsr, P@1" in output


def test_compare_refuses_a_single_file_without_published_scores(scores_of_trained):
    result = lxsr("compare", scores_of_trained, check=False)

    refused(result, "trained.jsonl: ", "--published")


@pytest.mark.parametrize("protocol", ["tatoeba", "xsim"])
def test_stored_embeddings_have_the_scores_of_their_model_and_another_signature(
    toy_model, stored, test_text, tmp_path, protocol
):
    scores = []
    for name, model in (("model", toy_model), ("stored", f"{stored}#dim=32")):
        output = tmp_path / f"{name}.jsonl"
        files = ("--source", f"{test_text}.en", "--target", f"{test_text}.fr")
        lxsr("eval", protocol, "--model", model, *files, "--output", output)
        scores.append(json.loads(output.read_text().splitlines()[0]))
    of_model, of_stored = scores
    assert of_stored["values"] == of_model["values"]
    assert of_stored["settings"]["text"] == of_model["settings"]["text"]
    assert of_stored["settings"]["model"] != of_model["settings"]["model"]


def test_word_vectors_of_two_languages_are_evaluated(test_text, tmp_path):
    """Each word shares an axis with its translation, so that most sentences are found."""
    pairs = []
    for table in (toy.NUMBERS, toy.COLOURS, toy.NOUNS, toy.VERBS):
        pairs += table.items()
    for side, language in enumerate(("en", "fr")):
        with open(tmp_path / f"{language}.vec", "w") as stream:
            for axis, pair in enumerate(pairs):
                word = pair[side].split()[0]
                vector = ["0"] * len(pairs)
                vector[axis] = "1"
                stream.write(f"{word} {' '.join(vector)}\n{word}. {' '.join(vector)}\n")
    command = ["eval", "xsr", "--data", test_text, "--lang-pairs", "en-fr"]
    for language in ("en", "fr"):
        command += ["--model", f"{language}={tmp_path / language}.vec#idf"]

    output = lxsr(*command).stdout

    row = next(line for line in output.splitlines() if line.startswith("en->fr"))
    _, _, precision_at_10, *_ = numbers_in(row)
    # The order of words is lost, so that P@1 is not 100.
    assert precision_at_10 > 50


@pytest.fixture
def documents_with_labels(tmp_path):
    """Documents in two languages, in which a noun tells the label."""
    for language, nouns in (("en", ("dog", "fish")), ("fr", ("chien", "poisson"))):
        for part, count in (("train", 40), ("dev", 20), ("test", 20)):
            with open(tmp_path / f"{language}.{part}.tsv", "w") as stream:
                for number in range(count):
                    label = number % 2
                    stream.write(f"{label}\tOne red {nouns[label]} sees {number}\n")
    return tmp_path


@pytest.mark.parametrize("protocol", ["mldoc", "titles"])
def test_classifiers_are_evaluated_within_and_across_languages(
    toy_model, documents_with_labels, tmp_path, protocol
):
    options = ["--model", toy_model, "--data", documents_with_labels, "--langs", "en,fr"]
    options += ["--epochs", 30, "--seeds", 2]

    output = lxsr("eval", protocol, *options, "--output", tmp_path / "scores.jsonl").stdout

    # A row for each language of training, with the accuracy in both languages.
    assert re.search(r"train en +\d+\.\d +\d+\.\d\n", output)
    assert "means: same" in output
    scores = read_scores(tmp_path / "scores.jsonl")
    accuracies = {score.task: score.values["accuracy"] for score in scores}
    assert accuracies.keys() == {"en->en", "en->fr", "fr->en", "fr->fr"}
    assert accuracies["en->en"] > 90


def test_classifiers_may_be_trained_on_one_language_alone(toy_model, documents_with_labels):
    options = ["--model", toy_model, "--data", documents_with_labels, "--langs", "en,fr"]
    options += ["--epochs", 30, "--seeds", 2, "--train-langs", "en", "--classifier", "linear"]

    output = lxsr("eval", "mldoc", *options).stdout

    assert "train en" in output
    assert "train fr" not in output


def test_xnli_is_evaluated(toy_model):
    options = ("--data", GOLDEN / "xnli", "--langs", "en,fr", "--epochs", 3)

    output = lxsr("eval", "xnli", "--model", toy_model, *options).stdout

    assert "train en" in output


def test_bucc_is_evaluated_and_its_pairs_are_written(toy_model, tmp_path):
    command = ["eval", "bucc", "--model", toy_model, "--data", f"{GOLDEN / 'bucc'}/{{pair}}"]
    command += ["--lang-pairs", "fr-en", "--k", 2, "--pairs-output", tmp_path / "pairs.tsv"]

    output = lxsr(*command).stdout

    # Four scores, then a table with the threshold.
    assert re.search(r"fr-en( +\d+\.\d){4}\n +threshold\nfr-en +\d+\.\d{4}\n", output)
    # A score, and the names of the sentences.
    for line in (tmp_path / "pairs.tsv").read_text().splitlines():
        assert re.fullmatch(r"-?\d+\.\d{6}\tfr-\d{9}\ten-\d{9}", line)


def test_most_of_the_best_mined_pairs_are_translations(toy_model, test_text, tmp_path):
    command = ["mine", "--model", toy_model, "--source", f"{test_text}.en"]
    command += ["--target", f"{test_text}.fr", "--output", tmp_path / "mined.tsv", "--top", 50]

    output = lxsr(*command).stdout

    assert "50 pairs, scores" in output
    translations = set(read_parallel(f"{test_text}.en", f"{test_text}.fr"))
    # After the score, the sentences.
    mined = [line.split("\t")[1:] for line in (tmp_path / "mined.tsv").read_text().splitlines()]
    right = [pair for pair in mined if tuple(pair) in translations]
    assert len(right) >= 40
    assert not (tmp_path / "mined.tsv.work").exists()


@pytest.fixture
def french_index(toy_model, test_text, tmp_path):
    """An index of the French test text, without words."""
    index = tmp_path / "index"
    lxsr("index", "--model", toy_model, "--input", f"{test_text}.fr", "--output", index, "--plain")
    return index


def test_a_search_for_a_sentence_of_the_index_finds_it_first(french_index, test_text):
    sentence = next(read_lines(f"{test_text}.fr"))

    output = lxsr("search", "--index", french_index, "--k", 2, sentence).stdout

    # The query, then the hits with their cosines.
    assert output.splitlines()[:2] == [sentence, f"   1.00  {sentence}"]


def test_a_search_for_english_sentences_finds_most_of_their_translations(
    french_index, test_text, tmp_path
):
    table = tmp_path / "results.tsv"
    files = ("--input", f"{test_text}.en", "--output", table)

    lxsr("search", "--index", french_index, "--k", 3, *files)

    # Three rows for each of 200 queries, whose third column is the number of the line.
    lines = [int(row.split("\t")[2]) for row in table.read_text().splitlines()]
    assert len(lines) == 3 * 200
    found = 0
    for query in range(200):
        found += query + 1 in lines[3 * query : 3 * query + 3]
    assert found > 120


def test_the_report_of_a_work_folder_has_its_test_text(toy_work, tmp_path):
    result = lxsr("report", toy_work, "--output", tmp_path / "report.html", "--title", "toy")

    assert re.search(r"1 \w+ of test text", result.stdout)
    assert "of 200 sentence pairs" in (tmp_path / "report.html").read_text()


@pytest.fixture(scope="module")
def places(toy_model, test_text, stored, tmp_path_factory):
    """The places in the refused commands: files, models and an index."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").write_text("")
    (folder / "short").write_text("a\nb\nc\n")
    (folder / "gap").write_text("one\n\nthree\nfour\n")
    (folder / "a.jsonl").write_text("{}\n")
    changed_model = shutil.copytree(toy_model, folder / "other")
    config = parse_json((changed_model / "config.json").read_text())
    config["text"] = {"lowercase": not config["text"]["lowercase"]}
    (changed_model / "config.json").write_text(json.dumps(config))
    lxsr("index", "--model", toy_model, "--input", f"{test_text}.fr", "--output", folder / "index")
    return {"folder": folder, "text": test_text, "model": toy_model, "stored": stored}


XSR = "eval xsr --model {model} --data {text} --lang-pairs"
MINE = "mine --model {model} --source {text}.en --target {text}.fr"


@pytest.mark.parametrize(
    ("command", "fragments"),
    [
        (
            "eval xsr --model {model} --source {text}.en",
            ("--source and --target", "--data and --lang-pairs"),
        ),
        # Language pairs that are none, have no text, or occur twice.
        (f"{XSR} en", ("--lang-pairs", "'en'")),
        (f"{XSR} en-de", ("test.de",)),
        (f"{XSR} en-fr,fr-en", ("--lang-pairs en-fr,fr-en",)),
        (f"{XSR} en-fr --device gpu", ("--device gpu",)),
        (f"{XSR} en-fr --device cpu:x", ("--device cpu:x",)),
        (f"{XSR} en-fr --device cuda:99", ("--device cuda:99",)),
        (f"{XSR} en-fr --batch-size 0", ("--batch-size: '0'",)),
        (f"{XSR} en-fr --seed -1", ("--seed: '-1'",)),
        (f"{XSR} en-fr --model {{model}}", ("--model",)),
        # Models: embeddings of unknown width, missing, named twice, and none for a language.
        ("eval xsr --model {stored} --data {text} --lang-pairs en-fr", ("#dim=N",)),
        (
            "eval xsr --model {folder}/none --data {text} --lang-pairs en-fr",
            ("{folder}/none",),
        ),
        (
            "eval xsr --source {text}.fr --target {text}.fr --model en={model} --model en={model}",
            ("en={model}",),
        ),
        ("eval xsr --model en={model} --data {text} --lang-pairs en-fr", ("'fr'", "en")),
        # Texts: too short for P@10, unequal, empty, and with an empty line.
        (
            "eval xsr --model {model} --source {folder}/short --target {folder}/short",
            ("3", "10"),
        ),
        (
            "eval xsr --model {model} --source {folder}/short --target {folder}/gap",
            ("{folder}/short", "3", "{folder}/gap", "4"),
        ),
        (
            "eval tatoeba --model {model} --source {text}.en --target {folder}/empty",
            ("{folder}/empty",),
        ),
        (
            "eval tatoeba --model {model} --source {text}.en --target {folder}/short",
            ("{text}.en", "200", "{folder}/short", "3"),
        ),
        (
            "eval tatoeba --model {model} --source {folder}/gap --target {folder}/gap",
            ("{folder}/gap, line 2",),
        ),
        # Margins need four neighbours.
        (
            "eval xsim --model {model} --source {folder}/short --target {folder}/short",
            ("3", "4"),
        ),
        ("eval mldoc --model {model} --data {folder} --langs en", ("en.train",)),
        ("eval mldoc --model {model} --data {folder} --langs en --seeds 0", ("--seeds: '0'",)),
        ("eval xnli --model {model} --data {folder} --langs en", ("en.test.tsv",)),
        (
            "eval bucc --model {model} --data {folder}/{{pair}} --lang-pairs fr-en",
            ("fr-en.training.fr",),
        ),
        ("compare {folder}/a.jsonl {folder}/a.jsonl", ("a.jsonl, line 1: ",)),
        ("mine --model {model} --source {folder}/none --target {text}.fr", ("{folder}/none: ",)),
        (f"{MINE} --k 0", ("--k: '0'",)),
        (f"{MINE} --kind int8 --precision bfloat16", ("--precision bfloat16", "--kind int8")),
        (
            "score --model {model} --source {text}.en --target {text}.fr --columns 1,2",
            ("--columns",),
        ),
        ("index --model {model} --input {text}.fr --kind ivf", ("--kind", "ivf", "int8")),
        (
            "search --index {folder}/index --model {folder}/other x",
            ("{folder}/index",),
        ),
        ("search --index {folder}/index \u200b", ("the command line: ",)),
        ("search --index {folder}/index --k 1", ("--input",)),
        ("search --index {folder}/none x", ("{folder}/none",)),
        ("report {folder}/index --data {text} --lang-pairs en-fr", ("{folder}/index: ", "--model")),
        ("report {folder}/none", ("{folder}/none: ",)),
        ("report {folder}/index", ()),
    ],
)
def test_a_command_with_wrong_options_or_files_is_refused_and_writes_nothing(
    places, tmp_path, command, fragments
):
    words = [word.format(**places) for word in command.split(" ")]
    output = () if words[0] in ("compare", "search", "report") else ("--output", tmp_path / "out")

    result = lxsr(*words, *output, check=False)

    refused(result, *(fragment.format(**places) for fragment in fragments))
    assert not (tmp_path / "out").exists()
