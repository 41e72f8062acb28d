"""`lxsr eval`, `compare`, `mine`, `index`, `search` and `report` on the toy model, as a user runs
them.
"""

import json
import re
import shutil

import numpy as np
import pytest
import toy
from conftest import GOLDEN, refused
from conftest import lxsr_here as lxsr

from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.records import parse_json


@pytest.fixture(scope="module")
def test_text(toy_work):
    return toy_work / "corpus" / "en-fr" / "test"


@pytest.fixture(scope="module")
def stored(toy_work, toy_model, test_text, tmp_path_factory):
    """The toy model's embeddings as files: .npy of English, LASER-raw of French."""
    folder = tmp_path_factory.mktemp("stored")
    for language in ("en", "fr"):
        output = folder / f"test.{language}.npy"
        lxsr(
            "embed", "--model", toy_model, "--input", f"{test_text}.{language}", "--output", output
        )
    np.load(folder / "test.fr.npy").tofile(folder / "test.fr.raw")
    (folder / "test.fr.npy").unlink()
    return folder


def values(line: str) -> list[float]:
    return [float(value) for value in re.findall(r"-?\d+\.\d", line)]


def test_what_was_measured_before_an_error_is_kept(toy_model, test_text, tmp_path):
    for language in ("en", "fr", "de"):
        shutil.copy(
            f"{test_text}.{'en' if language == 'de' else language}", tmp_path / f"t.{language}"
        )
    with (tmp_path / "t.de").open("a") as stream:
        stream.write("one line more\n")
    options = (
        "--data",
        tmp_path / "t",
        "--lang-pairs",
        "en-fr,en-de",
        "--output",
        tmp_path / "scores.jsonl",
    )
    done = lxsr("eval", "tatoeba", "--model", toy_model, *options, check=False)
    assert (done.returncode, "t.de" in done.stderr) == (2, True)
    assert "en->fr" in done.stdout
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2


def test_two_models_are_compared(toy_model, test_text, tmp_path):
    data = ("--data", test_text, "--lang-pairs", "en-fr")
    done = lxsr("eval", "xsr", "--model", toy_model, *data, "--output", tmp_path / "b.jsonl")
    assert re.search(r"en->fr( +\d+\.\d){9}\n", done.stdout)
    assert done.stdout.count("\nxsr|") == 3
    lxsr(
        "eval", "xsr", "--model", f"{toy_model}#untrained", *data, "--output", tmp_path / "a.jsonl"
    )
    compared = lxsr("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--draws", 200)
    line = next(
        line for line in compared.stdout.splitlines() if line.startswith("xsr en->fr P@1 nn-cosine")
    )
    first, second, difference, low, high, *_ = values(line.split("nn-cosine")[1])
    assert second - first == pytest.approx(difference, abs=0.11)
    assert 0 < low <= difference <= high
    assert "-untrained, B: model" in compared.stdout
    assert "between training runs" in compared.stdout
    beside = lxsr("compare", tmp_path / "b.jsonl", "--published").stdout
    assert re.search(rf"xsr en->fr P@1 nn-cosine +{second}\n", beside)
    assert "xsr, P@1" in beside
    refused(
        lxsr("compare", tmp_path / "b.jsonl", check=False),
        "b.jsonl: ",
        "--published",
    )


def test_stored_embeddings_score_as_the_model_they_are_from(toy_model, stored, test_text, tmp_path):
    for protocol in ("tatoeba", "xsim"):
        for model in (toy_model, f"{stored}#dim=32"):
            output = tmp_path / f"{protocol}.jsonl"
            data = (
                "--source",
                f"{test_text}.en",
                "--target",
                f"{test_text}.fr",
                "--output",
                output,
            )
            lxsr("eval", protocol, "--model", model, *data)
        one, two = (json.loads(line) for line in output.read_text().splitlines()[::2])
        assert one["values"] == two["values"]
        assert one["settings"]["text"] == two["settings"]["text"]
        assert one["settings"]["model"] != two["settings"]["model"]


def test_word_vectors_of_two_languages(toy_work, test_text, tmp_path):
    """A dictionary as word vectors: every word and its translation share an axis, so retrieval
    nearly succeeds.
    """
    pairs = [
        pair for table in (toy.NUMBERS, toy.COLOURS, toy.NOUNS, toy.VERBS) for pair in table.items()
    ]
    for side, language in enumerate(("en", "fr")):
        lines = []
        for axis, pair in enumerate(pairs):
            numbers = " ".join("1" if other == axis else "0" for other in range(len(pairs)))
            lines += [f"{word} {numbers}\n{word}. {numbers}\n" for word in [pair[side].split()[0]]]
        (tmp_path / f"{language}.vec").write_text("".join(lines))
    models = (
        "--model",
        f"en={tmp_path / 'en.vec'}#idf",
        "--model",
        f"fr={tmp_path / 'fr.vec'}#idf",
    )
    done = lxsr("eval", "xsr", *models, "--data", test_text, "--lang-pairs", "en-fr")
    row = next(line for line in done.stdout.splitlines() if line.startswith("en->fr"))
    assert values(row)[2] > 50  # P@10; word order is lost, so P@1 is not 100


def test_classification(toy_model, tmp_path):
    for language, words in (("en", ("dog", "fish")), ("fr", ("chien", "poisson"))):
        for part, count in (("train", 40), ("dev", 20), ("test", 20)):
            lines = [f"{i % 2}\tOne red {words[i % 2]} sees {i}\n" for i in range(count)]
            (tmp_path / f"{language}.{part}.tsv").write_text("".join(lines))
    options = (
        "--model",
        toy_model,
        "--data",
        tmp_path,
        "--langs",
        "en,fr",
        "--epochs",
        30,
        "--seeds",
        2,
    )
    for protocol in ("mldoc", "titles"):
        done = lxsr("eval", protocol, *options, "--output", tmp_path / "scores.jsonl")
        assert re.search(r"train en +\d+\.\d +\d+\.\d\n", done.stdout)
        assert "means: same" in done.stdout
    assert (
        "train fr"
        not in lxsr(
            "eval", "mldoc", *options, "--train-langs", "en", "--classifier", "linear"
        ).stdout
    )
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert len(scores) == 8
    assert max(score["values"]["accuracy"] for score in scores if score["task"] == "en->en") > 90


def test_xnli_and_bucc(toy_model, tmp_path):
    done = lxsr(
        "eval",
        "xnli",
        "--model",
        toy_model,
        "--data",
        GOLDEN / "xnli",
        "--langs",
        "en,fr",
        "--epochs",
        3,
    )
    assert "train en" in done.stdout
    template = f"{GOLDEN / 'bucc'}/{{pair}}"
    options = (
        "--data",
        template,
        "--lang-pairs",
        "fr-en",
        "--k",
        2,
        "--pairs-output",
        tmp_path / "pairs.tsv",
    )
    done = lxsr("eval", "bucc", "--model", toy_model, *options)
    assert re.search(r"fr-en( +\d+\.\d){4}\n +threshold\nfr-en +\d+\.\d{4}\n", done.stdout)
    for line in (tmp_path / "pairs.tsv").read_text().splitlines():
        assert re.fullmatch(r"-?\d+\.\d{6}\tfr-\d{9}\ten-\d{9}", line)


def test_mining(toy_model, toy_work, test_text, tmp_path):
    texts = ("--source", f"{test_text}.en", "--target", f"{test_text}.fr")
    done = lxsr(
        "mine", "--model", toy_model, *texts, "--output", tmp_path / "mined.tsv", "--top", 50
    )
    assert "50 pairs, scores" in done.stdout
    rows = [line.split("\t") for line in (tmp_path / "mined.tsv").read_text().splitlines()]
    translations = set(read_parallel(f"{test_text}.en", f"{test_text}.fr"))
    assert sum((source, target) in translations for _, source, target in rows) >= 40
    assert not (tmp_path / "mined.tsv.work").exists()


def test_search(toy_model, test_text, tmp_path):
    text = ("--input", f"{test_text}.fr")
    lxsr("index", "--model", toy_model, *text, "--output", tmp_path / "index", "--plain")
    first = next(read_lines(f"{test_text}.fr"))
    done = lxsr("search", "--index", tmp_path / "index", "--k", 2, first)
    assert done.stdout.splitlines()[:2] == [first, f"   1.00  {first}"]
    output = ("--input", f"{test_text}.en", "--output", tmp_path / "found.tsv")
    lxsr("search", "--index", tmp_path / "index", "--k", 3, *output)
    rows = [line.split("\t") for line in (tmp_path / "found.tsv").read_text().splitlines()]
    assert len(rows) == 600
    # the translation is among three
    assert sum(int(row[2]) == 1 + i // 3 for i, row in enumerate(rows)) > 120


def test_report_of_a_work_folder(toy_work, toy_model, tmp_path):
    done = lxsr("report", toy_work, "--output", tmp_path / "report.html", "--title", "toy")
    assert re.search(r"1 \w+ of test text", done.stdout)
    assert "of 200 sentence pairs" in (tmp_path / "report.html").read_text()


@pytest.fixture(scope="module")
def places(toy_model, test_text, stored, tmp_path_factory):
    """What the refused commands name: files, models and an index."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").write_text("")
    (folder / "short").write_text("a\nb\nc\n")
    (folder / "gap").write_text("one\n\nthree\nfour\n")
    (folder / "a.jsonl").write_text("{}\n")
    other = shutil.copytree(toy_model, folder / "other")
    config = parse_json((other / "config.json").read_text())
    (other / "config.json").write_text(
        json.dumps(config | {"text": {"lowercase": not config["text"]["lowercase"]}})
    )
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
        (f"{XSR} en", ("--lang-pairs", "'en'")),
        (f"{XSR} en-de", ("test.de",)),
        (f"{XSR} en-fr,fr-en", ("--lang-pairs en-fr,fr-en",)),
        (f"{XSR} en-fr --device gpu", ("--device gpu",)),
        (f"{XSR} en-fr --device cpu:x", ("--device cpu:x",)),
        (f"{XSR} en-fr --device cuda:99", ("--device cuda:99",)),
        (f"{XSR} en-fr --batch-size 0", ("--batch-size: '0'",)),
        (f"{XSR} en-fr --seed -1", ("--seed: '-1'",)),
        (f"{XSR} en-fr --model {{model}}", ("--model",)),
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
def test_what_is_refused(places, tmp_path, command, fragments):
    words = [word.format(**places) for word in command.split(" ")]
    output = () if words[0] in ("compare", "search", "report") else ("--output", tmp_path / "out")
    done = lxsr(*words, *output, check=False)
    refused(done, *(fragment.format(**places) for fragment in fragments))
    assert not (tmp_path / "out").exists()
