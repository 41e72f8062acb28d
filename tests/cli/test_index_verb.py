"""`lxsr index --add`, `--update`, `--delete`, `--compact` and ids on the command line."""

import json

import pytest
import random_model
import small_model
from conftest import lxsr_here, refused

# Ids and sentences of the index; the sentence of n3 is empty, and cannot be found.
NOTES = ["n1\tthe dog sees a house", "n2\ta cat", "n3\t", "n4\ta dog"]
# Line number and text by id, as `search_all` returns them.
INDEXED_NOTES = {"n1": (1, "the dog sees a house"), "n2": (2, "a cat"), "n4": (4, "a dog")}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model."""
    return small_model.write_folder(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def folder(tmp_path, model):
    """A folder with an index of NOTES, and with texts and ids to edit it."""
    files = {
        "notes": "\n".join(NOTES) + "\n",
        "ids": "n1\nn2\nn3\nn4\n",
        "text": "the house\n",
        "new": "n5\tthe house\n",
        "n2": "n2\n",
        # Ids that the index does not have; n7 is there twice.
        "twice": "n7\nn8\nn7\nn9\n",
        "n9": "n9\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    index(tmp_path, "--model", model, "--input", "notes", "--columns", "1,2")
    return tmp_path


def index(folder, *arguments, **options):
    """Run `lxsr index` in a folder, to build or edit the index `index`."""
    return lxsr_here("index", "--output", "index", *arguments, folder=folder, **options)


def search_all(folder, *arguments):
    """Return line number and text of each sentence of the index, by its id, or else its number."""
    more_than_all = 9
    command = ("search", "--index", "index", "--k", more_than_all, "--json", *arguments, "a cat")
    output = lxsr_here(*command, folder=folder).stdout
    sentences = {}
    for hit in json.loads(output)["hits"]:
        name = hit.get("id", str(hit["line"]))
        sentences[name] = (hit["line"], hit["text"])
    return sentences


def texts_in_index(folder):
    """Return the text of each sentence of the index, by its id, or else its number."""
    return {name: text for name, (_, text) in search_all(folder).items()}


def test_a_table_with_ids_is_indexed_without_its_empty_sentence(folder):
    assert search_all(folder) == INDEXED_NOTES


def test_add_appends_sentences_with_new_ids(folder):
    result = index(folder, "--add", "--input", "new", "--columns", "1,2")

    assert "1 sentence added, 4 in the index" in result.stdout
    assert search_all(folder) == INDEXED_NOTES | {"n5": (5, "the house")}


def test_update_replaces_the_sentence_of_an_id(folder):
    result = index(folder, "--update", "--input", "text", "--ids", "n2")

    assert "1 sentence updated" in result.stdout
    assert search_all(folder) == INDEXED_NOTES | {"n2": (2, "the house")}


def test_delete_removes_the_sentence_of_an_id(folder):
    result = index(folder, "--delete", "--ids", "n2")

    assert "1 sentence deleted, 2 left" in result.stdout
    assert search_all(folder) == {"n1": INDEXED_NOTES["n1"], "n4": INDEXED_NOTES["n4"]}


def test_compact_keeps_the_sentences_of_an_edited_index_in_one_segment(folder):
    index(folder, "--add", "--input", "new", "--columns", "1,2")
    index(folder, "--delete", "--ids", "n2")
    before = search_all(folder)

    result = index(folder, "--compact")

    assert "3 sentences in one segment" in result.stdout
    assert search_all(folder) == before


def test_only_ids_limits_the_results_to_the_sentences_of_a_list(folder):
    # The new sentence n5 is not in the list `ids`.
    index(folder, "--add", "--input", "new", "--columns", "1,2")

    assert search_all(folder, "--only-ids", "ids") == INDEXED_NOTES


def test_search_shows_the_id_of_a_result_in_its_list(folder):
    result = lxsr_here("search", "--index", "index", "--k", 1, "a cat", folder=folder)

    assert result.stdout.endswith("  n2  a cat\n")


def test_search_writes_the_id_of_a_result_in_the_third_column_of_its_table(folder):
    command = ("search", "--index", "index", "--k", 1, "a cat", "--output", "-")

    table = lxsr_here(*command, folder=folder).stdout

    query, _, name, text, best_sentence = table.rstrip("\n").split("\t")
    assert (query, name, text, best_sentence) == ("a cat", "n2", "a cat", "a cat")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # Sentences without ids, or with ids that the index has.
        ("--add --input new", ["index: "]),
        ("--add --input notes --columns 1,2", ["index: ", "'n1'"]),
        # Another number of ids than of sentences, an id twice, a missing column.
        ("--add --input text --ids twice", ["twice: ", "1 "]),
        ("--add --input ids --ids twice", ["twice: id 3: ", "'n7'"]),
        ("--add --input text --columns 1,2", ["text, line 1: ", "'the house'"]),
        # Ids that the index does not have.
        ("--update --input text --ids n9", ["index: ", "'n9'"]),
        ("--delete --ids n9", ["index: ", "'n9'"]),
        ("--delete --ids twice", ["twice: id 3: ", "'n7'"]),
        # Missing options, and options that exclude each other.
        ("--update --input text", ["--update"]),
        ("--delete", ["--delete"]),
        ("--add", ["--input"]),
        ("--input text", ["--model"]),
        ("--delete --input text --ids n2", ["--input"]),
        ("--compact --ids n2", ["--ids"]),
        ("--compact --kind int8", ["--kind"]),
        ("--add --delete --ids n2", ["--add", "--delete"]),
        ("--ids n2 --columns 1,2 --input new --model m", ["--ids"]),
    ],
)
def test_a_refused_edit_leaves_the_index_unchanged(folder, arguments, fragments):
    result = index(folder, *arguments.split(), check=False)

    refused(result, *fragments)
    assert search_all(folder) == INDEXED_NOTES


@pytest.mark.parametrize("edit", [(), ("--add",)], ids=["build", "add"])
def test_texts_that_are_longer_than_the_model_can_read_are_counted(tmp_path, edit):
    # It reads 64 pieces of a text.
    model = random_model.write_model(tmp_path / "layers")
    text = tmp_path / "text"
    text.write_text(f"{'a dog ' * 200}\nA dog.\n")
    command = ("index", "--model", model, "--input", text, "--output", tmp_path / "index")
    if edit:
        lxsr_here(*command, "--plain")

    result = lxsr_here(*command, *(edit or ("--plain",)))

    assert "truncated: 1" in result.stderr


@pytest.fixture
def work(tmp_path):
    """A folder with a folder `kb` of articles, one in HTML and one in plain text."""
    (tmp_path / "kb" / "more").mkdir(parents=True)
    (tmp_path / "kb" / "a.html").write_text("<h1>the dog</h1><p>sees a house<p>a cat")
    (tmp_path / "kb" / "more" / "b.txt").write_text("a cat\n\na\ndog\n")
    return tmp_path


# The paragraphs of the articles, by their ids: those of HTML follow their heading, and an empty line
# separates those of plain text.
PARAGRAPHS = {
    "a.html#1": "the dog. sees a house",
    "a.html#2": "the dog. a cat",
    "more/b.txt#1": "a cat",
    "more/b.txt#2": "a dog",
}


@pytest.mark.parametrize(
    "files", [("kb",), ("kb/a.html", "kb/more/b.txt")], ids=["folder", "files"]
)
def test_a_folder_or_several_files_are_indexed_by_paragraphs(work, model, files):
    index(work, "--model", model, "--input", *files)

    assert texts_in_index(work) == PARAGRAPHS


def test_a_file_of_a_folder_that_has_no_text_is_named_and_left_out(work, model):
    (work / "kb" / "x.png").write_bytes(b"\x89PNG")

    result = index(work, "--model", model, "--input", "kb")

    assert "x.png" in result.stderr
    assert texts_in_index(work) == PARAGRAPHS


def test_one_file_of_plain_text_is_indexed_by_lines(work, model):
    index(work, "--model", model, "--input", "kb/more/b.txt")

    # Line 2 is empty.
    assert texts_in_index(work) == {"1": "a cat", "3": "a", "4": "dog"}


def test_one_file_of_plain_text_is_indexed_by_paragraphs_if_asked_for(work, model):
    index(work, "--model", model, "--input", "kb/more/b.txt", "--paragraphs")

    assert texts_in_index(work) == {"b.txt#1": "a cat", "b.txt#2": "a dog"}


def test_one_file_of_html_is_indexed_by_paragraphs(work, model):
    index(work, "--model", model, "--input", "kb/a.html")

    assert texts_in_index(work) == {
        "a.html#1": PARAGRAPHS["a.html#1"],
        "a.html#2": PARAGRAPHS["a.html#2"],
    }


def test_an_update_of_a_folder_replaces_adds_and_removes_what_has_changed(work, model):
    index(work, "--model", model, "--input", "kb")
    # The second paragraph is another one, and there is a third.
    (work / "kb" / "a.html").write_text("<h1>the dog</h1><p>sees a house<p>the cat<p>a dog")
    # The second paragraph is removed.
    (work / "kb" / "more" / "b.txt").write_text("a cat\n")
    # A new file.
    (work / "kb" / "c.txt").write_text("a house\n")

    result = index(work, "--update", "--input", "kb")

    assert "2 added, 1 replaced, 1 removed, 2 unchanged, 5 in the index" in result.stdout
    assert texts_in_index(work) == {
        "a.html#1": "the dog. sees a house",
        "a.html#2": "the dog. the cat",
        "a.html#3": "the dog. a dog",
        "c.txt#1": "a house",
        "more/b.txt#1": "a cat",
    }


def test_an_update_of_an_unchanged_folder_does_not_write_the_index(work, model):
    index(work, "--model", model, "--input", "kb")
    before = (work / "index" / "index.json").read_bytes()

    result = index(work, "--update", "--input", "kb")

    assert "0 added, 0 replaced, 0 removed, 4 unchanged" in result.stdout
    assert (work / "index" / "index.json").read_bytes() == before


def test_an_update_from_a_folder_inside_the_indexed_one_is_refused(work, model):
    """Its files have other ids there, so all indexed texts would be removed."""
    index(work, "--model", model, "--input", "kb")

    result = index(work, "--update", "--input", "kb/more", check=False)

    refused(result, "kb/more: none of its files is in index, which has a.html")
    assert texts_in_index(work) == PARAGRAPHS


def test_an_update_of_a_folder_keeps_texts_that_are_of_no_file(work, model):
    index(work, "--model", model, "--input", "kb")
    (work / "note").write_text("n1\ta house\n")
    index(work, "--add", "--input", "note", "--columns", "1,2")
    (work / "kb" / "more" / "b.txt").unlink()

    index(work, "--update", "--input", "kb")

    assert sorted(texts_in_index(work)) == ["a.html#1", "a.html#2", "n1"]


def test_an_update_of_a_file_leaves_other_files_unchanged(work, model):
    index(work, "--model", model, "--input", "kb")
    (work / "kb" / "a.html").write_text("<p>a house")

    index(work, "--update", "--input", "kb/a.html")

    assert texts_in_index(work) == {
        "a.html#1": "a house",
        "more/b.txt#1": "a cat",
        "more/b.txt#2": "a dog",
    }


def test_the_paragraphs_of_a_folder_are_added_to_an_index(work, model):
    index(work, "--model", model, "--input", "kb/a.html")
    # The ids of its paragraphs would be added twice.
    (work / "kb" / "a.html").unlink()

    result = index(work, "--add", "--input", "kb")

    assert "2 sentences added, 4 in the index" in result.stdout
    assert texts_in_index(work) == PARAGRAPHS


@pytest.fixture
def faq(tmp_path):
    """A folder with a table whose only answer has two lines."""
    (tmp_path / "faq.csv").write_text('id,question,answer\nx,"a cat","the\nhouse"\n')
    return tmp_path


def test_columns_of_a_table_are_indexed_as_one_text_by_the_id_of_the_first(faq, model):
    index(faq, "--model", model, "--input", "faq.csv", "--columns", "id,question,answer")

    assert texts_in_index(faq) == {"x": "a cat. the house"}


def test_one_column_of_a_table_is_indexed_by_the_numbers_of_the_rows(faq, model):
    index(faq, "--model", model, "--input", "faq.csv", "--columns", "answer")

    assert texts_in_index(faq) == {"1": "the house"}


def test_columns_of_a_table_are_updated_by_their_ids(faq, model):
    index(faq, "--model", model, "--input", "faq.csv", "--columns", "id,question,answer")
    (faq / "faq.jsonl").write_text('{"id": "x", "text": "a dog"}\n')

    index(faq, "--update", "--input", "faq.jsonl", "--columns", "id,text")

    assert texts_in_index(faq) == {"x": "a dog"}


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # A table needs columns, which it must have.
        ("--input faq.csv", ["faq.csv", "--columns id,text", "id, text"]),
        ("--input faq.csv --columns id,body", ["faq.csv", "'body'", "'text'"]),
        # Files without text, or in another encoding or format.
        ("--input empty.jsonl", ["empty.jsonl: empty file"]),
        ("--input none", ["none: no file name ends in", ".html"]),
        ("--input latin", ["latin/a.txt, line 1", "iconv"]),
        ("--input missing", ["missing: no such file"]),
        ("--input kb missing", ["missing: no such file"]),
        ("--input x.docx", ["x.docx", "pandoc"]),
        # Options that a folder, or several files, cannot have.
        ("--input kb --ids faq.csv", ["kb", "--ids"]),
        ("--input kb --columns id,text", ["kb is a folder"]),
        ("--input kb --ray", ["--ray"]),
        ("--input faq.csv kb --columns id,text", ["--columns"]),
        ("--input .", ["index is inside the folder ."]),
    ],
)
def test_refused_input_leaves_no_index(work, model, arguments, fragments):
    (work / "faq.csv").write_text("id,text\n1,a dog\n")
    (work / "empty.jsonl").write_text("")
    (work / "x.docx").write_bytes(b"PK\x03\x04")
    (work / "none").mkdir()
    (work / "none" / "x.png").write_bytes(b"\x89PNG")
    (work / "latin").mkdir()
    (work / "latin" / "a.txt").write_bytes("café\n".encode("latin-1"))

    result = index(work, "--model", model, *arguments.split(), check=False)

    refused(result, *fragments)
    assert not (work / "index").exists()


def test_embed_refuses_a_table_as_lines(tmp_path, model):
    (tmp_path / "faq.csv").write_text("id,text\n1,a dog\n")
    command = ("embed", "--model", model, "--input", "faq.csv", "--output", "faq.npy")

    result = lxsr_here(*command, folder=tmp_path, check=False)

    refused(result, "faq.csv: not one sentence per line")
    assert not (tmp_path / "faq.npy").exists()
