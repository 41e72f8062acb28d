"""`lxsr index`, `lxsr search` and `lxsr mine` on the command line."""

import itertools
import json
import re
from types import SimpleNamespace

import pytest
import small_model
from conftest import lxsr_here, refused

from fairseq_lxsr.cli.search import index_model
from fairseq_lxsr.errors import InputError

# Lines 2 and 4 are empty: a zero-width space is invisible.
CORPUS = ["the dog sees a house", "", "a cat", " \u200b", "a dog"]
# Lines 2 and 3 are empty.
QUERIES = ["a cat", "", " ", "a dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small model, the texts CORPUS, QUERIES and `whole`, and an index of CORPUS."""
    folder = tmp_path_factory.mktemp("search")
    small_model.write_folder(folder / "model")
    (folder / "corpus").write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    (folder / "queries").write_text("\n".join(QUERIES) + "\n")
    (folder / "whole").write_text("a cat\na dog\n")
    command = ("index", "--model", "model", "--input", "corpus", "--output", "index", "--plain")
    lxsr_here(*command, folder=folder)
    return folder


def search(folder, *arguments, check=True):
    """Run `lxsr search` on the index of CORPUS."""
    return lxsr_here("search", "--index", "index", *arguments, check=check, folder=folder)


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        (("--input", "corpus"), "index of 3 texts, 0 of several sentences, with words, 2 empty"),
        (("--input", "whole", "--plain"), "index of 2 texts, one vector each, model"),
    ],
    ids=["words", "plain"],
)
def test_index_prints_the_kind_of_the_index_and_the_number_of_empty_lines(folder, options, summary):
    result = lxsr_here("index", "--model", "model", "--output", "other", *options, folder=folder)

    assert summary in result.stdout


def test_empty_queries_of_a_file_are_left_out_and_counted(folder):
    result = search(folder, "--input", "queries", "--k", 1, "--output", "-")

    # Columns: query, score, line of the corpus, sentence.
    assert result.stdout == "a cat\t1.000000\t3\ta cat\na dog\t1.000000\t5\ta dog\n"
    assert result.stderr.startswith("2 of 4 ")
    assert result.stderr.count("\n") == 1


def test_numbered_adds_the_line_of_the_query_in_the_first_column(folder):
    result = search(folder, "--input", "queries", "--k", 1, "--output", "-", "--numbered")

    first_row = f"{QUERIES.index('a cat') + 1}\ta cat\t1.000000\t3\ta cat\n"
    second_row = f"{QUERIES.index('a dog') + 1}\ta dog\t1.000000\t5\ta dog\n"
    assert result.stdout == first_row + second_row


def test_numbered_is_refused_without_a_table(folder):
    result = search(folder, "--numbered", "a cat", check=False)

    refused(result, "--numbered", "--output")


def test_bytes_of_a_query_that_are_not_utf8_become_question_marks(folder):
    # Python represents the byte E9, a letter of Latin-1, by U+DCE9.
    lines = search(folder, "--k", 1, "--json", "caf\udce9", "a cat").stdout.splitlines()

    assert [json.loads(line)["query"] for line in lines] == ["caf?", "a cat"]


def test_control_characters_of_a_query_are_escaped_in_json(folder):
    # JSON itself allows DEL and the control characters C1, which a terminal obeys.
    query = "a\x7f \x85\x9b31m cat"

    result = search(folder, "--k", 1, "--json", query)

    assert not re.search(r"[\x7f-\x9f]", result.stdout)
    assert json.loads(result.stdout)["query"] == query


@pytest.mark.parametrize(("option", "value"), [("--memory", 64), ("--precision", "bfloat16")])
def test_mine_refuses_options_that_have_no_effect_on_rounded_vectors(folder, option, value):
    command = ["mine", "--model", "model", "--source", "corpus", "--target", "corpus"]
    command += ["--output", "mined", "--kind", "int8", option, value]

    result = lxsr_here(*command, check=False, folder=folder)

    refused(result, f"{option} {value}", "--kind int8")


@pytest.mark.parametrize(
    ("target", "largest_k"),
    [
        # The corpus has three sentences.
        pytest.param(("--target", "queries"), 3, id="two texts"),
        # Each has two others within the corpus.
        pytest.param((), 2, id="one text"),
    ],
)
def test_mine_refuses_more_neighbours_than_there_are_sentences(folder, target, largest_k):
    command = ("mine", "--model", "model", "--output", "mined", "--source", "corpus", *target)

    result = lxsr_here(*command, check=False, folder=folder)

    # The default of --k.
    refused(result, "--k: k is 4", f"expected 1 to {largest_k}", "corpus")


@pytest.mark.parametrize(
    "target",
    [(), ("--target", "corpus"), ("--target", "reversed")],
    ids=["none", "the same", "reversed"],
)
def test_mining_within_one_text_pairs_each_sentence_with_the_others_and_not_with_itself(
    folder, target
):
    (folder / "reversed").write_text("\n".join(reversed(CORPUS)) + "\n", encoding="utf-8")
    command = ["mine", "--model", "model", "--source", "corpus", *target]
    command += ["--k", 2, "--retrieval", "all", "--output", "-"]

    rows = lxsr_here(*command, folder=folder).stdout.splitlines()

    # Both sides of a pair, without the score, in alphabetical order.
    pairs = [sorted(row.split("\t")[1:]) for row in rows]
    sentences = sorted(["a cat", "a dog", "the dog sees a house"])
    assert sorted(pairs) == list(map(list, itertools.combinations(sentences, 2)))


def embed_whole(folder) -> None:
    """Write `stored/whole.npy` and its description."""
    embed = ("embed", "--model", "model", "--input", "whole", "--output", "stored/whole.npy")
    lxsr_here(*embed, folder=folder)


def index_vectors(folder, model="stored", check=True):
    """Build the index `vectors` of the text `whole`."""
    command = ("index", "--plain", "--input", "whole", "--output", "vectors", "--model", model)
    return lxsr_here(*command, check=check, folder=folder)


SEARCH_VECTORS = ("search", "--index", "vectors", "--k", 1)


def test_index_refuses_an_embedding_file_in_place_of_its_folder(folder):
    embed_whole(folder)

    result = index_vectors(folder, "stored/whole.npy", check=False)

    refused(result, "--model stored/whole.npy is an embedding file")


def test_the_error_for_a_query_of_an_index_of_stored_vectors_asks_for_a_model(folder):
    embed_whole(folder)
    index_vectors(folder)

    result = lxsr_here(*SEARCH_VECTORS, "a cat", check=False, folder=folder)

    refused(result, "vectors: ", folder / "stored", "--model NAME")


def test_the_error_for_stored_vectors_as_the_model_of_a_query_asks_for_a_model_or_a_file(folder):
    embed_whole(folder)
    index_vectors(folder)

    result = lxsr_here(*SEARCH_VECTORS, "a cat", "--model", "stored", check=False, folder=folder)

    refused(result, "--model NAME", "--input FILE")


def test_an_index_of_stored_vectors_is_searched_with_the_model_that_made_them(folder):
    embed_whole(folder)
    index_vectors(folder)

    result = lxsr_here(*SEARCH_VECTORS, "a cat", "--model", "model", folder=folder)

    assert "a cat" in result.stdout


@pytest.fixture
def index_of_unknown_vectors(folder):
    """The index `vectors` of stored vectors whose model is unknown, as they have no description."""
    embed_whole(folder)
    (folder / "stored" / "whole.npy.json").unlink()
    index_vectors(folder)


@pytest.mark.usefixtures("index_of_unknown_vectors")
def test_the_error_for_a_model_with_vectors_of_an_unknown_model_asks_for_a_file(folder):
    result = lxsr_here(*SEARCH_VECTORS, "a cat", "--model", "model", check=False, folder=folder)

    refused(result, "vectors: ", folder / "stored", "--input FILE")


@pytest.mark.usefixtures("index_of_unknown_vectors")
def test_an_index_of_vectors_of_an_unknown_model_is_searched_with_stored_vectors(folder):
    options = ("--input", "whole", "--model", "stored", "--output", "-")

    result = lxsr_here(*SEARCH_VECTORS, *options, folder=folder)

    # Columns: query, score, line, sentence.
    assert "a cat\t1.000000\t1\ta cat" in result.stdout


# An index remembers the folder of the model that it was built with.


def test_the_error_for_an_index_whose_model_is_missing_names_the_folder_of_the_model(tmp_path):
    index = SimpleNamespace(config={"model_folder": str(tmp_path / "model")})

    with pytest.raises(InputError, match=f"index: .*{tmp_path / 'model'}"):
        index_model(index, "index")


def test_the_error_for_an_index_whose_model_is_an_empty_folder_names_the_option(tmp_path):
    """The folder is restored first, as its replacement seems to have been interrupted."""
    model = tmp_path / "model"
    index = SimpleNamespace(config={"model_folder": str(model)})
    (tmp_path / ".model.host.12.x.old").mkdir()

    with pytest.raises(InputError, match=f"index: .*--model {model}"):
        index_model(index, "index")

    assert model.is_dir()


def test_the_model_of_an_index_is_restored_if_its_replacement_was_interrupted(tmp_path):
    model = tmp_path / "model"
    index = SimpleNamespace(config={"model_folder": str(model)})
    small_model.write_folder(model)
    # While a folder is replaced, the old one has a hidden name.
    model.rename(tmp_path / ".model.host.12.x.old")

    assert index_model(index, "index") == str(model)
    assert (model / "config.json").is_file()
