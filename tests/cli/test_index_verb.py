"""`lxsr index --add`, `--update`, `--delete`, `--compact` and ids on the command line."""

import json

import pytest
import random_model
import small_model
from conftest import lxsr_here, refused

NOTES = ["n1\tthe dog sees a house", "n2\ta cat", "n3\t", "n4\ta dog"]
IDS = "n1\nn2\nn3\nn4\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    small_model.write_folder(folder)
    return folder


@pytest.fixture
def folder(tmp_path, model):
    (tmp_path / "notes").write_text("\n".join(NOTES) + "\n")
    (tmp_path / "ids").write_text(IDS)
    (tmp_path / "text").write_text("the house\n")
    (tmp_path / "new").write_text("n5\tthe house\n")
    (tmp_path / "n2").write_text("n2\n")
    index(tmp_path, "--model", model, "--input", "notes", "--id-column")
    return tmp_path


def index(folder, *arguments, **options):
    return lxsr_here("index", "--output", "index", *arguments, folder=folder, **options)


def found(folder, *arguments):
    command = ("search", "--index", "index", "--k", 9, "--json", *arguments, "a cat")
    hits = json.loads(lxsr_here(*command, folder=folder).stdout)["hits"]
    return {hit["id"]: (hit["line"], hit["text"]) for hit in hits}


def test_edits(folder):
    texts = {"n1": (1, "the dog sees a house"), "n2": (2, "a cat"), "n4": (4, "a dog")}
    assert found(folder) == texts
    assert "1 sentence added, 4 " in index(folder, "--add", "--input", "new", "--id-column").stdout
    texts["n5"] = (5, "the house")
    assert found(folder) == texts
    done = index(folder, "--update", "--input", "text", "--ids", "n2")
    assert "1 sentence updated" in done.stdout
    assert found(folder) == texts | {"n2": (2, "the house")}
    assert "1 sentence deleted, 3 left" in index(folder, "--delete", "--ids", "n2").stdout
    del texts["n2"]
    assert "3 sentences in one segment" in index(folder, "--compact").stdout
    assert found(folder) == texts
    assert found(folder, "--only-ids", "ids") == {name: texts[name] for name in ("n1", "n4")}


def test_ids_are_shown(folder):
    search = ("search", "--index", "index", "--k", 1, "a cat")
    assert lxsr_here(*search, folder=folder).stdout == "a cat\n   1.00  n2  a cat\n"
    done = lxsr_here(*search, "--output", "-", folder=folder)
    assert done.stdout == "a cat\t1.000000\tn2\ta cat\n"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ("--add --input new", ["index: "]),
        ("--add --input notes --id-column", ["index: ", "'n1'"]),
        ("--add --input text --ids twice", ["twice: ", "1 "]),
        ("--add --input ids --ids twice", ["twice: id 3: ", "'n7'"]),
        ("--add --input text --id-column", ["text, line 1: ", "'the house'"]),
        ("--update --input text --ids n9", ["index: ", "'n9'"]),
        ("--update --input text", ["--update"]),
        ("--delete --ids twice", ["twice: id 3: ", "'n7'"]),
        ("--delete --ids n9", ["index: ", "'n9'"]),
        ("--delete", ["--delete"]),
        ("--delete --input text --ids n2", ["--input"]),
        ("--compact --ids n2", ["--ids"]),
        ("--compact --kind int8", ["--kind"]),
        ("--add --delete --ids n2", ["--add", "--delete"]),
        ("--input text", ["--model"]),
        ("--add", ["--input"]),
        ("--ids n2 --id-column --input new --model m", ["--ids"]),
    ],
)
def test_an_edit_that_is_refused(folder, arguments, fragments):
    (folder / "twice").write_text("n7\nn8\nn7\nn9\n")
    (folder / "n9").write_text("n9\n")
    before = found(folder)
    refused(index(folder, *arguments.split(), check=False), *fragments)
    assert found(folder) == before


def test_texts_that_were_truncated_are_counted_in_edits_of_an_index(tmp_path):
    model = random_model.write_model(tmp_path / "layers")
    text = tmp_path / "text"
    text.write_text(f"{'a dog ' * 200}\nA dog.\n")
    index = ("index", "--model", model, "--input", text, "--output", tmp_path / "one")
    assert "truncated: 1" in lxsr_here(*index).stderr
    assert "truncated: 1" in lxsr_here(*index, "--add").stderr
