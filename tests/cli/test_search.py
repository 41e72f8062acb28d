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
    lxsr_here(
        "index",
        "--model",
        folder / "model",
        "--input",
        folder / "corpus",
        "--output",
        folder / "index",
        "--plain",
    )
    return folder


def search(where, *arguments, **options):
    return lxsr_here("search", "--index", where / "index", *arguments, **options)


def test_empty_lines_of_a_corpus_are_counted(folder):
    command = ("index", "--model", "model", "--output", "other", "--input")
    done = lxsr_here(*command, "corpus", folder=folder)
    assert "index of 3 texts, 0 of several sentences, with words, 2 empty" in done.stdout
    (folder / "whole").write_text("a cat\na dog\n")
    done = lxsr_here(*command, "whole", "--plain", folder=folder)
    assert "index of 2 texts, one vector each, model" in done.stdout


def test_queries_that_are_left_out_are_counted_and_the_others_numbered(folder):
    done = search(folder, "--input", folder / "queries", "--k", 1, "--output", "-", "--numbered")
    assert done.stdout == "1\ta cat\t1.000000\t3\ta cat\n4\ta dog\t1.000000\t5\ta dog\n"
    assert done.stderr.startswith("2 of 4 ")
    assert done.stderr.count("\n") == 1
    plain = search(folder, "--input", folder / "queries", "--k", 1, "--output", "-").stdout
    assert plain == "".join(
        line.partition("\t")[2] for line in done.stdout.splitlines(keepends=True)
    )
    refused(search(folder, "--numbered", "a cat", check=False), "--numbered", "--output")


def test_a_query_that_is_not_utf_8(folder):
    done = search(folder, "--k", 1, "--json", "caf\udce9", "a cat")
    assert [json.loads(line)["query"] for line in done.stdout.splitlines()] == ["caf?", "a cat"]


def test_json_has_no_control_characters_and_the_exact_text(folder):
    query = "a\x7f \x85\x9b31m cat"
    done = search(folder, "--k", 1, "--json", query)
    assert not re.search(r"[\x7f-\x9f]", done.stdout)
    assert json.loads(done.stdout)["query"] == query


def test_options_without_effect_are_refused(folder):
    texts = ("--source", "corpus", "--target", "corpus")
    for option, value in (("--memory", 64), ("--precision", "bfloat16")):
        command = (
            "mine",
            "--model",
            "model",
            *texts,
            "--output",
            "mined",
            "--kind",
            "int8",
            option,
            value,
        )
        refused(
            lxsr_here(*command, check=False, folder=folder),
            f"{option} {value}",
            "--kind int8",
        )


def test_too_few_lines_to_mine_name_the_option(folder):
    command = ("mine", "--model", "model", "--output", "mined", "--source", "corpus")
    for target, number in (
        (("--target", "queries"), "3"),
        ((), "2"),
    ):
        done = lxsr_here(*command, *target, check=False, folder=folder)
        refused(done, "--k: ", "4", number, "corpus")


@pytest.mark.parametrize("target", [(), ("--target", "corpus"), ("--target", "turned")])
def test_mining_one_text_pairs_no_sentence_with_itself(folder, target):
    (folder / "turned").write_text("\n".join(CORPUS[::-1]) + "\n", encoding="utf-8")
    command = (
        "mine",
        "--model",
        "model",
        "--source",
        "corpus",
        *target,
        "--k",
        2,
        "--retrieval",
        "all",
    )
    pairs = [
        row.split("\t")[1:]
        for row in lxsr_here(*command, "--output", "-", folder=folder).stdout.splitlines()
    ]
    assert sorted(map(sorted, pairs)) == [
        ["a cat", "a dog"],
        ["a cat", CORPUS[0]],
        ["a dog", CORPUS[0]],
    ]


def test_an_index_of_vectors_says_what_can_search_it(folder):
    (folder / "whole").write_text("a cat\na dog\n")
    lxsr_here(
        "embed",
        "--model",
        "model",
        "--input",
        "whole",
        "--output",
        "stored/whole.npy",
        folder=folder,
    )
    command = ("index", "--plain", "--input", "whole", "--output", "vectors", "--model")
    done = lxsr_here(*command, "stored/whole.npy", check=False, folder=folder)
    refused(
        done,
        "--model stored/whole.npy is an embedding file",
    )
    lxsr_here(*command, "stored", folder=folder)
    query = ("search", "--index", "vectors", "a cat", "--k", 1)
    done = lxsr_here(*query, check=False, folder=folder)
    refused(done, "vectors: ", folder / "stored", "--model NAME")
    done = lxsr_here(*query, "--model", "stored", check=False, folder=folder)
    refused(
        done,
        "--model NAME",
        "--input FILE",
    )
    assert "a cat" in lxsr_here(*query, "--model", "model", folder=folder).stdout
    (folder / "stored" / "whole.npy.json").unlink()
    lxsr_here(*command, "stored", folder=folder)
    done = lxsr_here(*query, "--model", "model", check=False, folder=folder)
    refused(
        done,
        "vectors: ",
        folder / "stored",
        "--input FILE",
    )
    found = ("search", "--index", "vectors", "--input", "whole", "--k", 1, "--output", "-")
    done = lxsr_here(*found, "--model", "stored", folder=folder)
    assert "a cat\t1.000000\t1\ta cat" in done.stdout


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
