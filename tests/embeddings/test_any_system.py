"""Every command that embeds text takes any system, and a new format is one class."""

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
    """A folder with word vectors, and a text of their words with an empty line."""
    rows = np.random.default_rng(0).standard_normal((len(WORDS), 4)).round(3)
    lines = []
    for word, row in zip(WORDS, rows, strict=True):
        lines.append(f"{word} {' '.join(map(str, row))}")
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "text.en").write_text("red green\n\nblue\nblack white red\n")
    return tmp_path


@pytest.mark.parametrize("name", choices.EMBEDDING_FORMATS)
def test_every_format_is_written_and_read_as_stored_embeddings(folder, name):
    model = folder / "words.vec"
    text = folder / "text.en"
    (folder / "stored").mkdir()
    stored = folder / "stored" / f"text.en{formats.find_format(name).suffix}"
    embed = ("embed", "--input", text)
    done = lxsr_here(*embed, "--model", model, "--output", stored, "--format", name)
    assert "4 embeddings of width 4, 1 empty" in done.stdout
    part = folder / "part.npy"
    lxsr_here(*embed, "--model", folder / "stored", "--output", part, "--shard", "2/2")
    expected = WordVectors(model).embed(Text(text.read_text().splitlines()))
    np.testing.assert_array_equal(read_embeddings(stored), expected)
    np.testing.assert_array_equal(np.load(part), expected[2:])


def test_the_name_of_the_output_decides_its_format(folder):
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


def test_an_index_of_word_vectors_is_built_and_searched(folder):
    text = folder / "text.en"
    index = folder / "index"
    model = folder / "words.vec"
    lxsr_here("index", "--plain", "--model", model, "--input", text, "--output", index)
    query = ("search", "--index", index, "--model", model)
    assert "1.00  black white red" in lxsr_here(*query, "black red white").stdout
    lxsr_here(*query, "--input", text, "--k", "1", "--output", folder / "hits.tsv")
    hits = [row.split("\t") for row in (folder / "hits.tsv").read_text().splitlines()]
    assert [line for _, _, line, *_ in hits] == ["1", "3", "4"]


def test_an_index_of_stored_embeddings_is_searched_by_their_model(folder):
    text = folder / "text.en"
    model = folder / "words.vec"
    stored = folder / "stored"
    embed = ("embed", "--model", model, "--input", text, "--output")
    lxsr_here(*embed, stored / "text.en.npy")
    lxsr_here("index", "--plain", "--model", stored, "--input", text, "--output", folder / "index")
    search = ("search", "--index", folder / "index", "--output", "-", "--k", 1)
    assert lxsr_here(*search, "--model", model, "black").stdout.endswith("\t4\tblack white red\n")
    # More embeddings of the same model do not change the fingerprint.
    lxsr_here(*embed, stored / "more.raw")
    assert lxsr_here(*search, "--model", stored, "--input", text).stdout.count("\n") == 3
    lxsr_here(*embed, folder / "small" / "text.en.npy", "--truncate-dim", 2)
    done = lxsr_here(*search, "--model", folder / "small", "--input", text, check=False)
    refused(done, str(folder / "index"), " 4 ", " 2;")


@pytest.mark.parametrize("options", [("--dtype", "bfloat16"), ("--on-long", "error")])
def test_options_of_model_folders_are_refused_for_word_vectors(folder, options):
    files = ("--input", folder / "text.en", "--output", folder / "o.npy")
    done = lxsr_here("embed", "--model", folder / "words.vec", *files, *options, check=False)
    refused(done, options[0])
    assert not (folder / "o.npy").exists()


def test_a_long_line_is_named_by_its_file(folder):
    # The model reads 40 pieces.
    model = small_model.write_folder(folder / "model")
    (folder / "long.en").write_text("a cat\n" + "a dog " * 30 + "\n")
    command = ("embed", "--model", model, "--output", folder / "o.npy", "--on-long", "error")
    for inputs in (("long.en",), ("text.en", "long.en"), ("text.en", "long.en", "--shard", "2/2")):
        done = lxsr_here(*command, "--input", *inputs, check=False, folder=folder)
        refused(done, "error: long.en, line 2: ", "40")


def test_a_long_line_of_a_pipe_is_named_by_its_number_in_the_input(folder):
    """The lines of a pipe cannot be counted again."""
    os.mkfifo(folder / "pipe")
    assert line_place(["text.en", str(folder / "pipe")], 6) == "line 7 of the input"


def test_idf_weights_are_refused_by_commands_that_read_text_in_blocks(folder):
    text = folder / "text.en"
    index = ("--input", text, "--output", folder / "index")
    lxsr_here("index", "--model", folder / "words.vec", *index)
    model = ("--model", f"{folder / 'words.vec'}#idf")
    for verb, *options in (
        ("embed", "--input", text, "--output", folder / "o"),
        ("index", "--input", text, "--output", folder / "o"),
        ("search", "--index", folder / "index", "red"),
        ("mine", "--source", text, "--target", text, "--output", folder / "o"),
        ("score", "--source", text, "--target", text),
    ):
        refused(lxsr_here(verb, *model, *options, check=False), "words.vec#idf: ")
    assert not (folder / "o").exists()


def test_resume_refuses_embeddings_of_another_language(folder):
    (folder / "fr.vec").write_text("red 1 2 3 4\nblue 4 3 2 1\n")
    models = ("--model", f"en={folder / 'words.vec'}", "--model", f"fr={folder / 'fr.vec'}")
    command = ("embed", *models, "--input", folder / "text.en", "--output", folder / "o.npy")
    lxsr_here(*command, "--lang", "en")
    refused(lxsr_here(*command, "--lang", "fr", "--resume", check=False), "language")
    lxsr_here(*command, "--lang", "fr")
    assert np.load(folder / "o.npy")[2].tolist() == [4, 3, 2, 1]


def test_the_width_is_that_of_the_model_of_the_language(folder):
    (folder / "fr.vec").write_text("red 1 2 3 4 5 6\nblue 6 5 4 3 2 1\n")
    models = ("--model", "en=words.vec", "--model", "fr=fr.vec", "--lang", "fr")
    command = ("embed", *models, "--input", "text.en", "--output", "o.npy", "--truncate-dim")
    done = lxsr_here(*command, 5, folder=folder)
    assert "4 embeddings of width 5" in done.stdout
    assert np.load(folder / "o.npy")[2].tolist() == [6, 5, 4, 3, 2]
    refused(lxsr_here(*command, 7, check=False, folder=folder), "--truncate-dim 7", "6")


def test_the_width_of_stored_embeddings_is_that_of_the_file(folder):
    stored = folder / "stored"
    stored.mkdir()
    np.save(stored / "a.npy", np.ones((4, 3), np.float32))
    np.save(stored / "text.en.npy", np.ones((4, 8), np.float32))
    files = ("--input", "text.en", "--output", "o.npy")
    lxsr_here("embed", "--model", "stored", *files, folder=folder)
    assert np.load(folder / "o.npy").shape == (4, 8)


def test_several_models_need_a_language_and_a_single_one_refuses_it(folder):
    models = ("--model", "en=words.vec", "--model", "fr=words.vec")
    texts = ("--source", "text.en", "--target", "text.en")
    for command, option in (
        (("embed", "--input", "text.en", "--output", "o"), "--lang"),
        (("index", "--input", "text.en", "--output", "o"), "--lang"),
        (("mine", *texts, "--output", "o"), "--lang-pair"),
        (("score", *texts), "--lang-pair"),
        (("eval", "xsr", *texts), "--lang-pairs"),
    ):
        done = lxsr_here(*command, *models, check=False, folder=folder)
        refused(done, option)
    command = ("index", "--input", "text.en", "--output", "o", "--model", "words.vec")
    refused(lxsr_here(*command, "--lang", "en", check=False, folder=folder), "--lang en")
    assert not (folder / "o").exists()


def test_a_search_names_the_model_of_an_index_by_language_again(folder):
    """Such an index does not store its model."""
    model = ("--model", f"en={folder / 'words.vec'}", "--lang", "en")
    index = folder / "index"
    lxsr_here("index", "--plain", *model, "--input", folder / "text.en", "--output", index)
    refused(lxsr_here("search", "--index", index, "red", check=False), "--model")
    query = ("--output", "-", "--k", 1, "black\nred white")
    done = lxsr_here("search", "--index", index, *model, *query)
    assert done.stdout == "black red white\t1.000000\t4\tblack white red\n"


def test_a_shard_without_lines_is_refused(folder):
    files = ("--input", folder / "text.en", "--output", folder / "o.npy")
    command = ("embed", "--model", folder / "words.vec", *files, "--shard", "1/7")
    refused(lxsr_here(*command, check=False), "--shard 1/7 would be empty")


class Lines(formats.Format):
    suffix = ".lines"

    def header(self, layout, rows):
        return b"LINES"


def test_a_new_format_is_one_class_and_its_name(folder, monkeypatch):
    for module in ("fairseq_lxsr.cli.embed", "fairseq_lxsr.embeddings.formats"):
        monkeypatch.setattr(f"{module}.EMBEDDING_FORMATS", (*choices.EMBEDDING_FORMATS, "lines"))
    files = ("--input", folder / "text.en", "--output", folder / "o.lines")
    lxsr_here("embed", "--model", folder / "words.vec", *files)
    assert (folder / "o.lines").read_bytes()[:5] == b"LINES"
