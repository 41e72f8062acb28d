"""`lxsr index`, `lxsr search` and `lxsr mine` on the command line."""

import json
import re
from types import SimpleNamespace

import pytest
import small_model
from conftest import lxsr_here, refused

from fairseq_lxsr.cli.search import index_model
from fairseq_lxsr.errors import InputError

CORPUS = ["the dog sees a house", "", "a cat", " \u200b", "a dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    small_model.write_folder(folder / "model")
    (folder / "corpus").write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    (folder / "queries").write_text("a cat\n\n \na dog\n")
    command = ("index", "--model", "model", "--input", "corpus", "--output", "index", "--plain")
    lxsr_here(*command, folder=folder)
    return folder


def search(folder, *arguments, check=True):
    return lxsr_here("search", "--index", "index", *arguments, check=check, folder=folder)


def test_the_kind_of_an_index_and_empty_lines_are_reported(folder):
    command = ("index", "--model", "model", "--output", "other", "--input")
    result = lxsr_here(*command, "corpus", folder=folder)
    assert "index of 3 texts, 0 of several sentences, with words, 2 empty" in result.stdout
    (folder / "whole").write_text("a cat\na dog\n")
    result = lxsr_here(*command, "whole", "--plain", folder=folder)
    assert "index of 2 texts, one vector each, model" in result.stdout


def test_empty_queries_are_left_out_and_the_others_numbered(folder):
    options = ("--input", "queries", "--k", 1, "--output", "-")
    result = search(folder, *options, "--numbered")
    assert result.stdout == "1\ta cat\t1.000000\t3\ta cat\n4\ta dog\t1.000000\t5\ta dog\n"
    assert result.stderr.startswith("2 of 4 ")
    assert result.stderr.count("\n") == 1
    without_numbers = "a cat\t1.000000\t3\ta cat\na dog\t1.000000\t5\ta dog\n"
    assert search(folder, *options).stdout == without_numbers
    refused(search(folder, "--numbered", "a cat", check=False), "--numbered", "--output")


def test_invalid_bytes_of_a_query_become_question_marks(folder):
    lines = search(folder, "--k", 1, "--json", "caf\udce9", "a cat").stdout.splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["caf?", "a cat"]


def test_control_characters_are_escaped_in_json(folder):
    query = "a\x7f \x85\x9b31m cat"
    result = search(folder, "--k", 1, "--json", query)
    assert not re.search(r"[\x7f-\x9f]", result.stdout)
    assert json.loads(result.stdout)["query"] == query


@pytest.mark.parametrize(("option", "value"), [("--memory", 64), ("--precision", "bfloat16")])
def test_options_without_effect_are_refused(folder, option, value):
    command = ["mine", "--model", "model", "--source", "corpus", "--target", "corpus"]
    command += ["--output", "mined", "--kind", "int8", option, value]
    result = lxsr_here(*command, check=False, folder=folder)
    refused(result, f"{option} {value}", "--kind int8")


@pytest.mark.parametrize(("target", "lines"), [(("--target", "queries"), "3"), ((), "2")])
def test_too_few_lines_to_mine_are_refused(folder, target, lines):
    command = ("mine", "--model", "model", "--output", "mined", "--source", "corpus", *target)
    result = lxsr_here(*command, check=False, folder=folder)
    refused(result, "--k: ", "4", lines, "corpus")


@pytest.mark.parametrize("target", [(), ("--target", "corpus"), ("--target", "reversed")])
def test_mining_within_one_text_pairs_no_sentence_with_itself(folder, target):
    (folder / "reversed").write_text("\n".join(CORPUS[::-1]) + "\n", encoding="utf-8")
    command = ["mine", "--model", "model", "--source", "corpus", *target]
    command += ["--k", 2, "--retrieval", "all", "--output", "-"]
    rows = lxsr_here(*command, folder=folder).stdout.splitlines()
    pairs = [sorted(row.split("\t")[1:]) for row in rows]
    assert sorted(pairs) == [["a cat", "a dog"], ["a cat", CORPUS[0]], ["a dog", CORPUS[0]]]


def test_the_error_for_an_index_of_vectors_says_what_can_search_it(folder):
    (folder / "whole").write_text("a cat\na dog\n")
    embed = ("embed", "--model", "model", "--input", "whole", "--output", "stored/whole.npy")
    lxsr_here(*embed, folder=folder)
    build = ("index", "--plain", "--input", "whole", "--output", "vectors", "--model")
    result = lxsr_here(*build, "stored/whole.npy", check=False, folder=folder)
    refused(result, "--model stored/whole.npy is an embedding file")

    lxsr_here(*build, "stored", folder=folder)
    query = ("search", "--index", "vectors", "a cat", "--k", 1)
    result = lxsr_here(*query, check=False, folder=folder)
    refused(result, "vectors: ", folder / "stored", "--model NAME")
    result = lxsr_here(*query, "--model", "stored", check=False, folder=folder)
    refused(result, "--model NAME", "--input FILE")
    assert "a cat" in lxsr_here(*query, "--model", "model", folder=folder).stdout

    # Without the description, the model of the vectors is unknown.
    (folder / "stored" / "whole.npy.json").unlink()
    lxsr_here(*build, "stored", folder=folder)
    result = lxsr_here(*query, "--model", "model", check=False, folder=folder)
    refused(result, "vectors: ", folder / "stored", "--input FILE")
    query = ("search", "--index", "vectors", "--input", "whole", "--k", 1, "--output", "-")
    result = lxsr_here(*query, "--model", "stored", folder=folder)
    assert "a cat\t1.000000\t1\ta cat" in result.stdout


def test_a_model_whose_replacement_was_interrupted_is_restored(tmp_path):
    model = tmp_path / "model"
    index = SimpleNamespace(config={"model_folder": str(model)})
    with pytest.raises(InputError, match=f"index: .*{model}"):
        index_model(index, "index")
    (tmp_path / ".model.host.12.x.old").mkdir()
    with pytest.raises(InputError, match=f"index: .*--model {model}"):
        index_model(index, "index")
    small_model.write_folder(model)
    assert index_model(index, "index") == str(model)
    assert model.is_dir()
