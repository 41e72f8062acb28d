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
    index(tmp_path, "--model", model, "--input", "notes", "--columns", "1,2")
    return tmp_path


def index(folder, *arguments, **options):
    return lxsr_here("index", "--output", "index", *arguments, folder=folder, **options)


def search(folder, *arguments):
    """The line number and text of each sentence of the index, by its id."""
    command = ("search", "--index", "index", "--k", 9, "--json", *arguments, "a cat")
    output = lxsr_here(*command, folder=folder).stdout
    sentences = {}
    for hit in json.loads(output)["hits"]:
        name = hit.get("id", str(hit["line"]))
        sentences[name] = (hit["line"], hit["text"])
    return sentences


def test_sentences_are_added_updated_deleted_and_compacted(folder):
    texts = {"n1": (1, "the dog sees a house"), "n2": (2, "a cat"), "n4": (4, "a dog")}
    assert search(folder) == texts

    result = index(folder, "--add", "--input", "new", "--columns", "1,2")
    assert "1 sentence added, 4 " in result.stdout
    texts["n5"] = (5, "the house")
    assert search(folder) == texts

    result = index(folder, "--update", "--input", "text", "--ids", "n2")
    assert "1 sentence updated" in result.stdout
    texts["n2"] = (2, "the house")
    assert search(folder) == texts

    result = index(folder, "--delete", "--ids", "n2")
    assert "1 sentence deleted, 3 left" in result.stdout
    del texts["n2"]
    assert "3 sentences in one segment" in index(folder, "--compact").stdout
    assert search(folder) == texts

    del texts["n5"]
    assert search(folder, "--only-ids", "ids") == texts


def test_ids_are_shown_with_results(folder):
    command = ("search", "--index", "index", "--k", 1, "a cat")
    assert lxsr_here(*command, folder=folder).stdout.endswith("  n2  a cat\n")
    table = lxsr_here(*command, "--output", "-", folder=folder).stdout
    query, _, name, text, match = table.rstrip("\n").split("\t")
    assert query == "a cat"
    assert name == "n2"
    assert text == "a cat"
    assert match == "a cat"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ("--add --input new", ["index: "]),
        ("--add --input notes --columns 1,2", ["index: ", "'n1'"]),
        ("--add --input text --ids twice", ["twice: ", "1 "]),
        ("--add --input ids --ids twice", ["twice: id 3: ", "'n7'"]),
        ("--add --input text --columns 1,2", ["text, line 1: ", "'the house'"]),
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
        ("--ids n2 --columns 1,2 --input new --model m", ["--ids"]),
    ],
)
def test_a_refused_edit_leaves_the_index_unchanged(folder, arguments, fragments):
    (folder / "twice").write_text("n7\nn8\nn7\nn9\n")
    (folder / "n9").write_text("n9\n")
    before = search(folder)
    refused(index(folder, *arguments.split(), check=False), *fragments)
    assert search(folder) == before


def test_truncated_texts_are_counted_when_an_index_is_built_and_edited(tmp_path):
    model = random_model.write_model(tmp_path / "layers")
    text = tmp_path / "text"
    text.write_text(f"{'a dog ' * 200}\nA dog.\n")
    command = ("index", "--model", model, "--input", text, "--output", tmp_path / "index")
    assert "truncated: 1" in lxsr_here(*command, "--plain").stderr
    assert "truncated: 1" in lxsr_here(*command, "--add").stderr


@pytest.fixture
def kb(tmp_path):
    """A folder with articles in HTML and text, named `kb`; returns its parent."""
    (tmp_path / "kb" / "more").mkdir(parents=True)
    (tmp_path / "kb" / "a.html").write_text("<h1>the dog</h1><p>sees a house<p>a cat")
    (tmp_path / "kb" / "more" / "b.txt").write_text("a cat\n\na\ndog\n")
    return tmp_path


KB = {
    "a.html#1": "the dog. sees a house",
    "a.html#2": "the dog. a cat",
    "more/b.txt#1": "a cat",
    "more/b.txt#2": "a dog",
}


def texts(folder):
    """The text of each sentence of the index, by its id."""
    return {name: text for name, (_, text) in search(folder).items()}


def test_a_file_of_a_folder_that_is_not_read_is_named(kb, model):
    (kb / "kb" / "x.png").write_bytes(b"\x89PNG")
    assert "x.png" in index(kb, "--model", model, "--input", "kb").stderr
    assert texts(kb) == KB


def test_a_folder_or_several_files_are_indexed_by_paragraphs(kb, model):
    index(kb, "--model", model, "--input", "kb")
    assert texts(kb) == KB
    index(kb, "--model", model, "--input", "kb/a.html", "kb/more/b.txt")
    assert texts(kb) == KB


def test_one_file_is_lines_or_paragraphs(kb, model):
    index(kb, "--model", model, "--input", "kb/more/b.txt")
    assert texts(kb) == {"1": "a cat", "3": "a", "4": "dog"}
    index(kb, "--model", model, "--input", "kb/more/b.txt", "--paragraphs")
    assert texts(kb) == {"b.txt#1": "a cat", "b.txt#2": "a dog"}
    index(kb, "--model", model, "--input", "kb/a.html")
    assert texts(kb) == {"a.html#1": KB["a.html#1"], "a.html#2": KB["a.html#2"]}


def test_an_update_replaces_only_what_has_changed_in_a_folder(kb, model):
    index(kb, "--model", model, "--input", "kb")
    (kb / "kb" / "a.html").write_text("<h1>the dog</h1><p>sees a house<p>the cat<p>a dog")
    (kb / "kb" / "more" / "b.txt").write_text("a cat\n")
    (kb / "kb" / "c.txt").write_text("a house\n")
    expected = {
        "a.html#1": KB["a.html#1"],
        "a.html#2": "the dog. the cat",
        "a.html#3": "the dog. a dog",
        "c.txt#1": "a house",
        "more/b.txt#1": "a cat",
    }
    result = index(kb, "--update", "--input", "kb")
    assert "2 added, 1 replaced, 1 removed, 2 unchanged, 5 in the index" in result.stdout
    assert texts(kb) == expected
    before = (kb / "index" / "index.json").read_bytes()
    assert "0 added, 0 replaced, 0 removed, 5 " in index(kb, "--update", "--input", "kb").stdout
    assert (kb / "index" / "index.json").read_bytes() == before


def test_a_part_of_the_folder_does_not_empty_the_index(kb, model):
    index(kb, "--model", model, "--input", "kb")
    result = index(kb, "--update", "--input", "kb/more", check=False)
    refused(result, "kb/more: none of its files is in index, which has a.html")
    assert texts(kb) == KB


def test_an_update_of_a_folder_keeps_texts_that_are_of_no_file(kb, model):
    index(kb, "--model", model, "--input", "kb")
    (kb / "note").write_text("n1\ta house\n")
    index(kb, "--add", "--input", "note", "--columns", "1,2")
    (kb / "kb" / "more" / "b.txt").unlink()
    index(kb, "--update", "--input", "kb")
    assert sorted(texts(kb)) == ["a.html#1", "a.html#2", "n1"]


def test_an_update_of_a_file_leaves_other_files_unchanged(kb, model):
    index(kb, "--model", model, "--input", "kb")
    (kb / "kb" / "a.html").write_text("<p>a house")
    index(kb, "--update", "--input", "kb/a.html")
    assert texts(kb) == {
        "a.html#1": "a house",
        "more/b.txt#1": "a cat",
        "more/b.txt#2": "a dog",
    }


def test_a_folder_is_added_to_an_index(kb, model):
    index(kb, "--model", model, "--input", "kb/a.html")
    (kb / "kb" / "a.html").unlink()
    assert "2 sentences added, 4 " in index(kb, "--add", "--input", "kb").stdout
    assert texts(kb) == KB


def test_columns_of_tables_are_indexed(tmp_path, model):
    (tmp_path / "faq.csv").write_text('id,question,answer\nx,"a cat","the\nhouse"\n')
    index(tmp_path, "--model", model, "--input", "faq.csv", "--columns", "id,question,answer")
    assert texts(tmp_path) == {"x": "a cat. the house"}
    (tmp_path / "faq.jsonl").write_text('{"id": "x", "text": "a dog"}\n')
    index(tmp_path, "--update", "--input", "faq.jsonl", "--columns", "id,text")
    assert texts(tmp_path) == {"x": "a dog"}
    index(tmp_path, "--model", model, "--input", "faq.csv", "--columns", "answer")
    assert texts(tmp_path) == {"1": "the house"}


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ("--input faq.csv", ["faq.csv", "--columns id,text", "id, text"]),
        ("--input faq.csv --columns id,body", ["faq.csv", "'body'", "'text'"]),
        ("--input empty.jsonl", ["empty.jsonl: empty file"]),
        ("--input none", ["none: no file name ends in", ".html"]),
        ("--input latin", ["latin/a.txt, line 1", "iconv"]),
        ("--input missing", ["missing: no such file"]),
        ("--input kb missing", ["missing: no such file"]),
        ("--input x.docx", ["x.docx", "pandoc"]),
        ("--input kb --ids faq.csv", ["kb", "--ids"]),
        ("--input kb --columns id,text", ["kb is a folder"]),
        ("--input kb --ray", ["--ray"]),
        ("--input faq.csv kb --columns id,text", ["--columns"]),
        ("--input .", ["index is inside the folder ."]),
    ],
)
def test_refused_input_leaves_no_index(kb, model, arguments, fragments):
    (kb / "faq.csv").write_text("id,text\n1,a dog\n")
    (kb / "empty.jsonl").write_text("")
    (kb / "x.docx").write_bytes(b"PK\x03\x04")
    (kb / "none").mkdir()
    (kb / "none" / "x.png").write_bytes(b"\x89PNG")
    (kb / "latin").mkdir()
    (kb / "latin" / "a.txt").write_bytes(b"caf\xe9\n")
    result = index(kb, "--model", model, *arguments.split(), check=False)
    refused(result, *fragments)
    assert not (kb / "index").exists()


def test_csv_is_not_embedded_as_lines(tmp_path, model):
    (tmp_path / "faq.csv").write_text("id,text\n1,a dog\n")
    command = ("embed", "--model", model, "--input", "faq.csv", "--output", "faq.npy")
    refused(lxsr_here(*command, folder=tmp_path, check=False), "faq.csv: not one sentence per line")
    assert not (tmp_path / "faq.npy").exists()
