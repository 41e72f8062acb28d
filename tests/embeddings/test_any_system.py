"""Every verb that makes vectors takes every system, and a new format is one file."""

import os

import numpy as np
import pytest
import small_model
from conftest import lxsr_here, refused

from fairseq_lxsr import options as choices
from fairseq_lxsr.cli.embed import line_place
from fairseq_lxsr.embeddings import Text, WordVectors, formats, read_embeddings

WORDS = ("red", "green", "blue", "black", "white")


@pytest.fixture
def folder(tmp_path):
    """Word vectors and a text of their words, an empty line in it."""
    rows = np.random.default_rng(0).standard_normal((len(WORDS), 4))
    lines = [
        f"{word} {' '.join(map(str, row.round(3)))}" for word, row in zip(WORDS, rows, strict=True)
    ]
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "text.en").write_text("red green\n\nblue\nblack white red\n")
    return tmp_path


@pytest.mark.parametrize("name", choices.EMBEDDING_FORMATS)
def test_what_a_format_writes_it_reads(folder, name):
    """Word vectors are embedded to a file, whose folder is a system again, embedded to numpy's
    format.
    """
    model, text = folder / "words.vec", folder / "text.en"
    (folder / "stored").mkdir()
    stored = folder / "stored" / f"text.en{formats.find_format(name).suffix}"
    done = lxsr_here(
        "embed", "--model", model, "--input", text, "--output", stored, "--format", name
    )
    assert "4 embeddings of width 4, 1 empty" in done.stdout
    lxsr_here(
        "embed",
        "--model",
        folder / "stored",
        "--input",
        text,
        "--output",
        folder / "again.npy",
        "--shard",
        "2/2",
    )
    expected = WordVectors(model).embed(Text(text.read_text().splitlines()))
    np.testing.assert_array_equal(read_embeddings(stored), expected)
    np.testing.assert_array_equal(np.load(folder / "again.npy"), expected[2:])


def test_the_name_of_the_output_says_the_format(folder):
    embed = ("embed", "--model", folder / "words.vec", "--input", folder / "text.en", "--output")
    for name, start in (
        ("o.safetensors", b"\x78"),
        ("o.npy", b"\x93NUMPY"),
        ("o.bin", b"\x93NUMPY"),
    ):
        lxsr_here(*embed, folder / name)
        assert (folder / name).read_bytes().startswith(start), name
    done = lxsr_here(*embed, folder / "o.raw", "--format", "npy", check=False)
    refused(done, "--format npy", "o.raw")
    assert not (folder / "o.raw").exists()


def test_an_index_of_any_system(folder):
    text, index, model = folder / "text.en", folder / "index", folder / "words.vec"
    lxsr_here("index", "--plain", "--model", model, "--input", text, "--output", index)
    query = ("search", "--index", index, "--model", model)
    assert "1.00  black white red" in lxsr_here(*query, "black red white").stdout
    found = lxsr_here(*query, "--input", text, "--k", "1", "--output", folder / "found.tsv")
    assert found.returncode == 0
    assert [row.split("\t")[2] for row in (folder / "found.tsv").read_text().splitlines()] == [
        "1",
        "3",
        "4",
    ]


def test_an_index_of_stored_embeddings_is_searched_by_their_model(folder):
    text, model, stored = folder / "text.en", folder / "words.vec", folder / "stored"
    embed = ("embed", "--model", model, "--input", text, "--output")
    lxsr_here(*embed, stored / "text.en.npy")
    lxsr_here("index", "--plain", "--model", stored, "--input", text, "--output", folder / "index")
    search = ("search", "--index", folder / "index", "--output", "-", "--k", 1)
    assert lxsr_here(*search, "--model", model, "black").stdout.endswith("\t4\tblack white red\n")
    lxsr_here(*embed, stored / "more.raw")  # of the same model, so that the index still fits
    assert lxsr_here(*search, "--model", stored, "--input", text).stdout.count("\n") == 3
    lxsr_here(*embed, folder / "small" / "text.en.npy", "--truncate-dim", 2)
    done = lxsr_here(*search, "--model", folder / "small", "--input", text, check=False)
    refused(done, str(folder / "index"), " 4 ", " 2;")


@pytest.mark.parametrize("options", [("--dtype", "bfloat16"), ("--on-long", "error")])
def test_options_of_model_folders_are_refused_for_others(folder, options):
    command = (
        "embed",
        "--model",
        folder / "words.vec",
        "--input",
        folder / "text.en",
        "--output",
        folder / "o.npy",
    )
    refused(lxsr_here(*command, *options, check=False), options[0])
    assert not (folder / "o.npy").exists()


def test_a_long_line_is_named_by_its_file(folder):
    model = small_model.write_folder(folder / "model")  # reads 40 pieces
    (folder / "other").write_text("a cat\n" + "a dog " * 30 + "\n")
    for inputs in (("other",), ("text.en", "other"), ("text.en", "other", "--shard", "2/2")):
        command = (
            "embed",
            "--model",
            model,
            "--output",
            folder / "o.npy",
            "--on-long",
            "error",
            "--input",
        )
        refused(
            lxsr_here(*command, *inputs, check=False, folder=folder),
            "error: other, line 2: ",
            "40",
        )
    os.mkfifo(folder / "pipe")  # what cannot be read again has no lines to count
    assert line_place(["text.en", str(folder / "pipe")], 6) == "line 7 of the input"


def test_weights_counted_in_the_text_are_refused_where_it_is_read_in_blocks(folder):
    text, model = folder / "text.en", ("--model", f"{folder / 'words.vec'}#idf")
    lxsr_here(
        "index", "--model", folder / "words.vec", "--input", text, "--output", folder / "index"
    )
    for verb, *options in (
        ("embed", "--input", text, "--output", folder / "o"),
        ("index", "--input", text, "--output", folder / "o"),
        ("search", "--index", folder / "index", "red"),
        ("mine", "--source", text, "--target", text, "--output", folder / "o"),
        ("score", "--source", text, "--target", text),
    ):
        refused(
            lxsr_here(verb, *model, *options, check=False),
            "words.vec#idf: ",
        )
    assert not (folder / "o").exists()


def test_embeddings_of_another_language_are_not_those_that_were_kept(folder):
    (folder / "fr.vec").write_text("red 1 2 3 4\nblue 4 3 2 1\n")
    models = ("--model", f"en={folder / 'words.vec'}", "--model", f"fr={folder / 'fr.vec'}")
    command = ("embed", *models, "--input", folder / "text.en", "--output", folder / "o.npy")
    lxsr_here(*command, "--lang", "en")
    refused(lxsr_here(*command, "--lang", "fr", "--resume", check=False), "language")
    lxsr_here(*command, "--lang", "fr")
    assert np.load(folder / "o.npy")[2].tolist() == [4, 3, 2, 1]


def test_the_width_is_that_of_the_language_and_of_the_stored_file(folder):
    (folder / "fr.vec").write_text("red 1 2 3 4 5 6\nblue 6 5 4 3 2 1\n")
    several = (
        "--model",
        "en=words.vec",
        "--model",
        "fr=fr.vec",
        "--lang",
        "fr",
        "--input",
        "text.en",
    )
    done = lxsr_here("embed", *several, "--output", "o.npy", "--truncate-dim", 5, folder=folder)
    assert "4 embeddings of width 5" in done.stdout
    assert np.load(folder / "o.npy")[2].tolist() == [6, 5, 4, 3, 2]
    refused(
        lxsr_here(
            "embed", *several, "--output", "o.npy", "--truncate-dim", 7, check=False, folder=folder
        ),
        "--truncate-dim 7",
        "6",
    )
    stored = folder / "stored"
    stored.mkdir()
    np.save(stored / "a.npy", np.ones((4, 3), np.float32))
    np.save(stored / "text.en.npy", np.ones((4, 8), np.float32))
    lxsr_here(
        "embed", "--model", "stored", "--input", "text.en", "--output", "o.npy", folder=folder
    )
    assert np.load(folder / "o.npy").shape == (4, 8)


def test_the_language_is_named_where_the_model_depends_on_it(folder):
    several = ("--model", "en=words.vec", "--model", "fr=words.vec")
    texts = ("--source", "text.en", "--target", "text.en")
    for command, option in (
        (("embed", "--input", "text.en", "--output", "o"), "--lang en"),
        (("index", "--input", "text.en", "--output", "o"), "--lang en"),
        (("mine", *texts, "--output", "o"), "--lang-pair en-fr"),
        (("score", *texts), "--lang-pair en-fr"),
        (("eval", "xsr", *texts), "--lang-pairs en-fr"),
    ):
        done = lxsr_here(*command, *several, check=False, folder=folder)
        refused(done, option.split()[0])
    command = (
        "index",
        "--input",
        "text.en",
        "--output",
        "o",
        "--model",
        "words.vec",
        "--lang",
        "en",
    )
    refused(
        lxsr_here(*command, check=False, folder=folder),
        "--lang en",
    )
    assert not (folder / "o").exists()


def test_an_index_of_one_of_several_models(folder):
    """No model is stored with it, so that a search names it again."""
    model = ("--model", f"en={folder / 'words.vec'}", "--lang", "en")
    lxsr_here(
        "index", "--plain", *model, "--input", folder / "text.en", "--output", folder / "index"
    )
    refused(lxsr_here("search", "--index", folder / "index", "red", check=False), "--model")
    found = lxsr_here(
        "search", "--index", folder / "index", *model, "--output", "-", "--k", 1, "black\nred white"
    ).stdout
    assert found == "black red white\t1.000000\t4\tblack white red\n"


def test_a_part_without_lines_is_named(folder):
    command = (
        "embed",
        "--model",
        folder / "words.vec",
        "--input",
        folder / "text.en",
        "--output",
        folder / "o.npy",
    )
    refused(
        lxsr_here(*command, "--shard", "1/7", check=False),
        "--shard 1/7 would be empty",
    )


class Lines(formats.Format):
    suffix = ".lines"

    def header(self, layout, rows):
        return b"LINES"


def test_a_new_format_is_one_class_and_its_name(folder, monkeypatch):
    for module in ("fairseq_lxsr.cli.embed", "fairseq_lxsr.embeddings.formats"):
        monkeypatch.setattr(f"{module}.EMBEDDING_FORMATS", (*choices.EMBEDDING_FORMATS, "lines"))
    command = (
        "embed",
        "--model",
        folder / "words.vec",
        "--input",
        folder / "text.en",
        "--output",
        folder / "o.lines",
    )
    lxsr_here(*command)
    assert (folder / "o.lines").read_bytes()[:5] == b"LINES"
