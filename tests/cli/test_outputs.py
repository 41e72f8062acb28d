"""No verb writes an output, or a temporary file next to it, over one of its inputs."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import GOLDEN, case, contents, lxsr_here, refused

from fairseq_lxsr.cli.main import VERBS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.files.write import refuse_overlap

ENGLISH = "the dog sees a house\na cat\n" * 8
FRENCH = "le chien voit une maison\nun chat\n" * 8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with an input of every kind, and links to some; no test may change them."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(GOLDEN / "compatibility" / "best.model", folder / "model")
    shutil.copytree(GOLDEN / "compatibility" / "data", folder / "data")
    shutil.copy(GOLDEN / "compatibility" / "best.pt", folder / "best.pt")
    texts = {
        "s": ENGLISH,
        "t": FRENCH,
        "o.npy.json": ENGLISH,
        "o.npy.partial": ENGLISH,
        "o.npy.progress": ENGLISH,
        "p.work": ENGLISH,
        "corpus/en-fr/test.en": ENGLISH,
        "corpus/en-fr/test.fr": FRENCH,
        "pages/run.log": "",
        "pages/notes.txt": "notes",
        "bucc/fr-en.test.gold": "1\t2\n",
        "record.yaml": f"documents: {{en: {folder}/w/context.json, fr: {folder}/t}}\n"
        f"work: {folder}/w\n",
        "within.yaml": f"documents: {{en: {folder}/corpus, fr: {folder}/t}}\n"
        f"work: {folder}/corpus/w\n",
        "work/prepare.json": f"{{'pairs': {{'en-fr': {folder}/corpus/en-fr/test}}, "
        f"'work': {folder}/work}}\n",
        "w/context.json": "{}",
        "rated.tsv": "a\tun\t1\nthe dog\tle chien\t5\nthe cat\tune maison\t2\n",
        "errors.json": '{"a dog": {"errtype": "Entity", "src": "a cat"}}',
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for part in ("training", "test"):
        for ending in ("fr", "en", "gold"):
            shutil.copy(GOLDEN / "bucc" / f"fr-en.{part}.{ending}", folder / "bucc")
    for name in ("mldoc", "xnli"):
        shutil.copytree(GOLDEN / name, folder / name)
    score = Score("xsr", "en->fr", {"P@1": 1.0}, {"model": "x"})
    append_scores(folder / "pages" / "t.jsonl", [score])
    (folder / "link").symlink_to(folder / "s")
    os.link(folder / "s", folder / "hard")
    (folder / "model-link").symlink_to(folder / "model")
    index = ("index", "--model", "model", "--input", "t", "--output", "index")
    lxsr_here(*index, folder=folder)
    return folder


# Commands that would write over one of their inputs, by what they would overwrite. `words_of`
# explains the names in braces.
CASES = {
    "embed, the input": "embed {M} --input {s} --output {s}",
    "embed, one of several": "embed {M} --input {s} {t} --output {t}",
    "embed, another way to write it": "embed {M} --input {s} --output {d}/model/../s",
    "embed, a link": "embed {M} --input {s} --output {d}/link",
    "embed, from a link": "embed {M} --input {d}/link --output {s}",
    "embed, a hard link": "embed {M} --input {s} --output {d}/hard",
    "embed, its description": "embed {M} --input {d}/o.npy.json --output {d}/o.npy",
    "embed, its rows": "embed {M} --input {d}/o.npy.partial --output {d}/o.npy",
    "embed, its progress": "embed {M} --input {d}/o.npy.progress --output {d}/o.npy --resume",
    "embed, the model": "embed {M} --input {s} --output {model}/model.safetensors",
    "embed, the model's options": "embed {M} --input {s} --output {model}/config",
    "embed, the model by a link": "embed {M} --input {s} --output {d}/model-link/dict.txt",
    "mine, source": "mine {M} {TEXTS} --output {s}",
    "mine, target": "mine {M} {TEXTS} --output {t}",
    "mine, a hard link": "mine {M} {TEXTS} --output {d}/hard",
    "mine, work": "mine {M} {TEXTS} --output {d}/p --work {s}",
    "mine, work around": "mine {M} {TEXTS} --output {d}/p --work {d}",
    "mine, work beside": "mine {M} --source {d}/p.work --target {t} --output {d}/p",
    "mine, both": "mine {M} {TEXTS} --output {d}/p --work {d}/p",
    "mine, model": "mine --model en={model} --model fr={model} {TEXTS} --output {model}/dict.txt",
    "score, the pairs": "score {M} --input {s} --output {s}",
    "score, target": "score {M} {TEXTS} --output {t}",
    "score, model": "score {M} --input {s} --output {model}/dict.txt",
    "score, index": "score {M} --input {s} --margin ratio --index {index} {index} "
    "--output {index}/segment-0/sentences.txt",
    "index, the input": "index {M} --input {s} --output {s}",
    "index, the model": "index {M} --input {s} --output {model}",
    "index, an index that is the input": "index {M} --input {index}/segment-0/sentences.txt --output {index}",
    "index, around all": "index {M} --input {s} --output {d}",
    "search, queries": "search --index {index} --input {s} --output {s}",
    "search, sentences": "search --index {index} dog --output {index}/segment-0/sentences.txt",
    "search, the index": "search --index {index} dog --output {index}/index.json",
    "search, its model": "search --index {index} dog --output {model}/config.json",
    "report, scores": "report {d}/pages --output {d}/pages/t.jsonl",
    "report, a log": "report {d}/pages --output {d}/pages/run.log",
    "report, text": "report {d} --output {d}/corpus/en-fr/test.en",
    "report, named text": "report {d}/pages {M} {TEXTS} --output {t}",
    "report, model": "report {d} --output {model}/config.json",
    "export, model": "export onnx {M} --output {model}",
    "export, model by a link": "export sentence-transformers {M} --output {d}/model-link",
    "export, around": "export onnx {M} --output {d}",
    "export, text": "export web {M} --input {s} --output {s}",
    "export, checkpoint": "export folder --checkpoint {d}/best.pt --output {d}/best.pt",
    "export, around the checkpoint": "export folder --checkpoint {d}/best.pt --output {d}",
    "export, scores": "export card {M} --scores {model}/README.md",
    "export, data": "export folder --checkpoint {d}/best.pt --data {d}/data --output {d}/data",
    "eval xsr, text": "eval xsr {M} {TEXTS} --output {s}",
    "eval xsr, model": "eval xsr {M} {TEXTS} --output {model}/dict.txt",
    "eval tatoeba, a link": "eval tatoeba {M} {TEXTS} --output {d}/link",
    "eval xsim, another file": "eval xsim {M} {TEXTS} --output {d}/pages/notes.txt",
    "eval xsim, a folder": "eval xsim {M} {TEXTS} --output {d}/pages",
    "eval bucc, pairs": "eval bucc {M} {BUCC} --pairs-output {d}/bucc/fr-en.test.gold",
    "eval bucc, both": "eval bucc {M} {BUCC} --pairs-output {d}/b --output {d}/b",
    "eval minimal-pairs, text": "eval minimal-pairs {M} {TEXTS} --pairs-output {t}",
    "eval mteb-bitext, a link": "eval mteb-bitext {M} {TEXTS} --output {d}/link",
    "eval passages, the passages": "eval passages {M} --queries {d}/rated.tsv --passages "
    "{d}/rated.tsv --relevant {d}/rated.tsv --output {d}/rated.tsv",
    "eval sts, the pairs": "eval sts {M} --data {d}/rated.tsv --lang-pairs en-fr "
    "--output {d}/rated.tsv",
    "eval xsim++": "eval xsim++ {M} {TEXTS} --error-types {d}/errors.json --augmented {s} "
    "--output {d}/errors.json",
    "eval mldoc": "eval mldoc {M} --data {d}/mldoc --langs en --output {d}/mldoc/en.test",
    "eval titles": "eval titles {M} --data {d}/mldoc --langs en --output {d}/mldoc/en.dev",
    "eval xnli": "eval xnli {M} --data {d}/xnli --langs en --output {d}/xnli/en.test.tsv",
    "prepare, the corpus": "prepare --data {d}/corpus/en-fr/test --work {d}",
    "prepare, its configuration": "prepare {d}/work/prepare.json",
    "train-context, its record": "train-context {d}/record.yaml",
    "train-context, within the documents": "train-context {d}/within.yaml",
}
# Verbs without an option that names an output, or with one in which nothing is overwritten.
WRITES_NO_FILE_THAT_IS_NAMED = {
    "compare",
    "corpus",
    "recipes",
    "run",
    "serve",
    "train",
    "user-dir",
}


def words_of(command, inputs):
    """The words of a command of `CASES` with its places filled in."""
    places = {
        "d": inputs,
        "s": inputs / "s",
        "t": inputs / "t",
        "model": inputs / "model",
        "index": inputs / "index",
        "M": f"--model {inputs}/model",
        "TEXTS": f"--source {inputs}/s --target {inputs}/t",
        "BUCC": f"--data {inputs}/bucc/{{pair}} --lang-pairs fr-en",
    }
    return command.format(**places).split()


def test_a_command_that_would_overwrite_an_input_is_refused_and_changes_no_file(inputs):
    before = contents(inputs)
    for name, command in CASES.items():
        with case(name):
            result = lxsr_here(*words_of(command, inputs), check=False)
            # The message has the path of the input.
            refused(result, inputs)
            assert contents(inputs) == before


def test_the_cases_have_every_verb_that_writes_a_named_file():
    verbs = {command.split()[0] for command in CASES.values()}

    assert verbs | WRITES_NO_FILE_THAT_IS_NAMED == set(VERBS)


@pytest.mark.parametrize(
    "command",
    [
        "mine {M} {TEXTS} --k 1 --output -",
        "score {M} {TEXTS} --output -",
        "search --index {index} dog --output -",
    ],
)
def test_a_dash_as_output_writes_a_table_to_standard_output_and_no_file(inputs, tmp_path, command):
    result = lxsr_here(*words_of(command, inputs), folder=tmp_path)

    rows = result.stdout.splitlines()
    assert rows
    for row in rows:
        # A score and two texts, or more columns.
        assert len(row.split("\t")) >= 3
    assert list(tmp_path.iterdir()) == []


def test_a_dash_as_output_is_refused_by_commands_that_write_no_table(inputs, tmp_path):
    commands = ["corpus get tatoeba-en-fr --lang-pair en-fr --output -", *CASES.values()]
    num_refusals = 0
    for command in commands:
        words = words_of(command, inputs)
        output_options = [number for number, word in enumerate(words) if word.endswith("output")]
        if len(output_options) != 1 or words[0] in ("mine", "score", "search"):
            continue
        words[output_options[0] + 1] = "-"
        num_refusals += 1
        with case(command):
            refused(lxsr_here(*words, check=False, folder=tmp_path), " -: ")
            assert list(tmp_path.iterdir()) == []

    # The commands were found.
    assert num_refusals > 30


@pytest.fixture
def text_as_standard_input(tmp_path):
    """A text file that is the standard input of this process."""
    text = tmp_path / "s"
    text.write_text(ENGLISH)
    with open(text) as stream:
        standard_input = os.dup(0)
        os.dup2(stream.fileno(), 0)
        yield text
        os.dup2(standard_input, 0)
        os.close(standard_input)


def test_the_file_that_is_standard_input_is_refused_as_output(text_as_standard_input):
    with pytest.raises(InputError, match=re.escape(f"{text_as_standard_input} ")):
        refuse_overlap([text_as_standard_input], ["-"])


def test_another_file_than_standard_input_is_allowed_as_output(text_as_standard_input):
    refuse_overlap([text_as_standard_input.with_name("other")], ["-"])


@pytest.mark.parametrize("output", ["o", "folder/o", "../inputs-2/s", "s.json"])
def test_outputs_next_to_an_input_are_allowed(tmp_path, output):
    folder = tmp_path / "inputs"
    (folder / "folder").mkdir(parents=True)
    (folder / "s").write_text(ENGLISH)

    # None is an option that was not given. It raises no error.
    refuse_overlap([folder / output, None], [folder / "s", folder / "missing", "-", None])


@pytest.fixture
def evaluate_command(inputs):
    """A command that evaluates a model, and writes a score for each of two directions."""
    texts = ("--source", inputs / "s", "--target", inputs / "t")
    return ("eval", "tatoeba", "--model", inputs / "model", *texts)


@pytest.mark.parametrize("num_before", [None, 0, 1], ids=["new", "empty", "one score"])
def test_scores_are_appended_to_the_output_of_eval(evaluate_command, inputs, tmp_path, num_before):
    output = tmp_path / "scores.jsonl"
    if num_before == 0:
        output.touch()
    elif num_before == 1:
        shutil.copy(inputs / "pages" / "t.jsonl", output)

    lxsr_here(*evaluate_command, "--output", output)

    scores = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(scores) == (num_before or 0) + 2


@pytest.fixture
def unloadable_model(monkeypatch):
    """Fail the test if a command loads a model."""
    monkeypatch.setattr(
        "fairseq_lxsr.cli.evaluate.load_any", lambda args: pytest.fail("the model was loaded")
    )


@pytest.mark.usefixtures("unloadable_model")
def test_scores_in_a_folder_that_cannot_be_written_are_refused_before_the_model_is_loaded(
    evaluate_command, tmp_path
):
    file = tmp_path / "file"
    file.touch()
    # A file in place of a folder, and a folder in which even root makes no files.
    for folder in (file, "/proc"):
        result = lxsr_here(*evaluate_command, "--output", f"{folder}/scores.jsonl", check=False)
        refused(result, folder)


@pytest.mark.usefixtures("unloadable_model")
def test_scores_on_a_full_disk_are_refused_before_the_model_is_loaded(
    evaluate_command, tmp_path, monkeypatch
):
    def fail_on_full_disk(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("fairseq_lxsr.cli.evaluate.check_writable", fail_on_full_disk)
    output = tmp_path / "scores.jsonl"

    result = lxsr_here(*evaluate_command, "--output", output, check=False)

    refused(result, output)
