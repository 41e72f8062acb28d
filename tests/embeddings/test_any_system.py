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
TEXT = "red green\n\nblue\nblack white red\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with `words.vec`, random vectors of WORDS, and `text.en`, which holds TEXT."""
    rows = np.random.default_rng(0).standard_normal((len(WORDS), 4)).round(3)
    lines = []
    for word, row in zip(WORDS, rows, strict=True):
        lines.append(f"{word} {' '.join(map(str, row))}")
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "text.en").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("name", choices.EMBEDDING_FORMATS)
def test_embeddings_are_written_in_every_format(folder, name):
    model = folder / "words.vec"
    output = folder / f"text.en{formats.find_format(name).suffix}"

    files = ("--input", folder / "text.en", "--output", output)
    done = lxsr_here("embed", "--model", model, *files, "--format", name)

    # One of the four lines is empty.
    assert "4 embeddings of width 4, 1 empty" in done.stdout
    expected = WordVectors(model).embed(Text(TEXT.splitlines()))
    np.testing.assert_array_equal(read_embeddings(output), expected)


@pytest.mark.parametrize("name", choices.EMBEDDING_FORMATS)
def test_a_folder_of_embeddings_in_any_format_is_a_model_for_their_text(folder, name):
    model = folder / "words.vec"
    text = folder / "text.en"
    (folder / "stored").mkdir()
    stored = folder / "stored" / f"text.en{formats.find_format(name).suffix}"
    lxsr_here("embed", "--model", model, "--input", text, "--output", stored, "--format", name)

    # The second half of the lines.
    files = ("--input", text, "--output", folder / "part.npy")
    lxsr_here("embed", "--model", folder / "stored", *files, "--shard", "2/2")

    expected = WordVectors(model).embed(Text(TEXT.splitlines()))
    np.testing.assert_array_equal(np.load(folder / "part.npy"), expected[2:])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        # 0x78 is the first byte of the length of a safetensors header.
        ("o.safetensors", b"\x78"),
        ("o.npy", b"\x93NUMPY"),
        # Other names mean npy.
        ("o.bin", b"\x93NUMPY"),
    ],
)
def test_the_name_of_the_output_decides_its_format(folder, name, start):
    files = ("--input", folder / "text.en", "--output", folder / name)

    lxsr_here("embed", "--model", folder / "words.vec", *files)

    assert (folder / name).read_bytes().startswith(start)


def test_a_format_that_contradicts_the_name_of_the_output_is_refused(folder):
    files = ("--input", folder / "text.en", "--output", folder / "o.raw")

    done = lxsr_here(
        "embed", "--model", folder / "words.vec", *files, "--format", "npy", check=False
    )

    refused(done, "--format npy", "o.raw")
    assert not (folder / "o.raw").exists()


@pytest.fixture
def index(folder):
    """The index of the text, with word vectors."""
    files = ("--input", folder / "text.en", "--output", folder / "index")
    lxsr_here("index", "--plain", "--model", folder / "words.vec", *files)
    return folder / "index"


def test_a_query_finds_the_line_with_the_same_words_by_word_vectors(folder, index):
    """Their mean does not depend on the order of the words."""
    model = folder / "words.vec"

    done = lxsr_here("search", "--index", index, "--model", model, "black red white")

    assert "1.00  black white red" in done.stdout


def test_every_line_of_the_text_finds_itself_by_word_vectors(folder, index):
    model = folder / "words.vec"

    files = ("--input", folder / "text.en", "--output", folder / "hits.tsv")
    lxsr_here("search", "--index", index, "--model", model, *files, "--k", "1")

    # The third column is the number of the line. Line 2 is empty, so it is not searched.
    hits = [row.split("\t") for row in (folder / "hits.tsv").read_text().splitlines()]
    assert [columns[2] for columns in hits] == ["1", "3", "4"]


@pytest.fixture
def stored_index(folder):
    """An index of embeddings by `words.vec` that were stored before in the folder `stored`."""
    text = folder / "text.en"
    stored = folder / "stored"
    lxsr_here(
        "embed",
        "--model",
        folder / "words.vec",
        "--input",
        text,
        "--output",
        stored / "text.en.npy",
    )
    files = ("--input", text, "--output", folder / "index")
    lxsr_here("index", "--plain", "--model", stored, *files)
    return folder / "index"


def test_an_index_of_stored_embeddings_is_searched_by_the_model_that_made_them(
    folder, stored_index
):
    options = ("--index", stored_index, "--output", "-", "--k", 1)

    done = lxsr_here("search", *options, "--model", folder / "words.vec", "black")

    assert done.stdout.endswith("\t4\tblack white red\n")


def test_an_index_of_stored_embeddings_is_searched_by_them_after_more_are_stored(
    folder, stored_index
):
    """More embeddings of the same model do not change the fingerprint of the folder."""
    model = folder / "words.vec"
    text = folder / "text.en"
    more = folder / "stored" / "more.raw"
    lxsr_here("embed", "--model", model, "--input", text, "--output", more)

    options = ("--index", stored_index, "--output", "-", "--k", 1)
    done = lxsr_here("search", *options, "--model", folder / "stored", "--input", text)

    # A hit for each line that is not empty.
    assert len(done.stdout.splitlines()) == 3


def test_an_index_is_not_searched_by_stored_embeddings_of_another_width(folder, stored_index):
    text = folder / "text.en"
    narrow = folder / "narrow" / "text.en.npy"
    embed = ("embed", "--model", folder / "words.vec", "--input", text, "--output", narrow)
    lxsr_here(*embed, "--truncate-dim", 2)

    search = ("search", "--index", stored_index, "--output", "-", "--k", 1)
    done = lxsr_here(*search, "--model", folder / "narrow", "--input", text, check=False)

    # The message has the widths of the index, 4, and of the embeddings, 2.
    refused(done, str(stored_index), " 4 ", " 2;")


@pytest.mark.parametrize("options", [("--dtype", "bfloat16"), ("--on-long", "error")])
def test_options_of_model_folders_are_refused_for_word_vectors(folder, options):
    files = ("--input", folder / "text.en", "--output", folder / "o.npy")

    done = lxsr_here("embed", "--model", folder / "words.vec", *files, *options, check=False)

    name = options[0]
    refused(done, name)
    assert not (folder / "o.npy").exists()


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(("long.en",), id="one file"),
        pytest.param(("text.en", "long.en"), id="second file"),
        pytest.param(("text.en", "long.en", "--shard", "2/2"), id="shard"),
    ],
)
def test_the_error_for_a_long_line_names_its_file_and_its_number_there(folder, inputs):
    # The model reads 40 pieces, and the second line has more words.
    model = small_model.write_folder(folder / "model")
    (folder / "long.en").write_text("a cat\n" + "a dog " * 30 + "\n")

    command = ("embed", "--model", model, "--output", folder / "o.npy", "--on-long", "error")
    done = lxsr_here(*command, "--input", *inputs, check=False, folder=folder)

    refused(done, "error: long.en, line 2: ", "40")


def test_a_line_of_a_pipe_is_named_by_its_number_in_the_whole_input(folder):
    """The lines of a pipe cannot be counted again, so its number there is unknown."""
    os.mkfifo(folder / "pipe")

    # Lines are counted from 0 here, and from 1 in messages.
    place = line_place(["text.en", str(folder / "pipe")], 6)

    assert place == "line 7 of the input"


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("embed", ("--input", "text.en", "--output", "o")),
        ("index", ("--input", "text.en", "--output", "o")),
        ("search", ("--index", "index", "red")),
        ("mine", ("--source", "text.en", "--target", "text.en", "--output", "o")),
        ("score", ("--source", "text.en", "--target", "text.en")),
    ],
    ids=["embed", "index", "search", "mine", "score"],
)
@pytest.mark.usefixtures("index")
def test_idf_weights_are_refused_by_commands_that_read_text_in_blocks(folder, verb, options):
    """The weights of words depend on the whole text."""
    done = lxsr_here(verb, "--model", "words.vec#idf", *options, check=False, folder=folder)

    refused(done, "words.vec#idf: ")
    assert not (folder / "o").exists()


@pytest.fixture
def embed_english_or_french(folder):
    """The command that embeds the text, to which the language is added."""
    # The text has "blue" in its third line.
    (folder / "fr.vec").write_text("red 1 2 3 4\nblue 4 3 2 1\n")
    models = ("--model", f"en={folder / 'words.vec'}", "--model", f"fr={folder / 'fr.vec'}")
    return ("embed", *models, "--input", folder / "text.en", "--output", folder / "o.npy", "--lang")


def test_resume_refuses_embeddings_of_another_language(embed_english_or_french):
    lxsr_here(*embed_english_or_french, "en")

    done = lxsr_here(*embed_english_or_french, "fr", "--resume", check=False)

    refused(done, "language")


def test_without_resume_embeddings_of_another_language_are_replaced(
    folder, embed_english_or_french
):
    lxsr_here(*embed_english_or_french, "en")

    lxsr_here(*embed_english_or_french, "fr")

    blue_line = np.load(folder / "o.npy")[2]
    assert blue_line.tolist() == [4, 3, 2, 1]


@pytest.fixture
def embed_french_truncated(folder):
    """The command that embeds with 6-dimensional vectors of French, to which a width is added.

    English vectors have 4 dimensions.
    """
    (folder / "fr.vec").write_text("red 1 2 3 4 5 6\nblue 6 5 4 3 2 1\n")
    models = ("--model", "en=words.vec", "--model", "fr=fr.vec", "--lang", "fr")
    return ("embed", *models, "--input", "text.en", "--output", "o.npy", "--truncate-dim")


def test_embeddings_are_truncated_within_the_width_of_the_model_of_the_language(
    folder, embed_french_truncated
):
    done = lxsr_here(*embed_french_truncated, 5, folder=folder)

    assert "4 embeddings of width 5" in done.stdout
    blue_line = np.load(folder / "o.npy")[2]
    assert blue_line.tolist() == [6, 5, 4, 3, 2]


def test_truncation_beyond_the_width_of_the_model_of_the_language_is_refused(
    folder, embed_french_truncated
):
    done = lxsr_here(*embed_french_truncated, 7, check=False, folder=folder)

    refused(done, "--truncate-dim 7", "6")


def test_the_width_of_stored_embeddings_is_that_of_the_file_of_the_text(folder):
    stored = folder / "stored"
    stored.mkdir()
    np.save(stored / "a.npy", np.ones((4, 3), np.float32))
    np.save(stored / "text.en.npy", np.ones((4, 8), np.float32))

    files = ("--input", "text.en", "--output", "o.npy")
    lxsr_here("embed", "--model", "stored", *files, folder=folder)

    assert np.load(folder / "o.npy").shape == (4, 8)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("embed", "--input", "text.en", "--output", "o"), "--lang"),
        (("index", "--input", "text.en", "--output", "o"), "--lang"),
        (("mine", "--source", "text.en", "--target", "text.en", "--output", "o"), "--lang-pair"),
        (("score", "--source", "text.en", "--target", "text.en"), "--lang-pair"),
        (("eval", "xsr", "--source", "text.en", "--target", "text.en"), "--lang-pairs"),
    ],
    ids=["embed", "index", "mine", "score", "eval"],
)
def test_commands_with_a_model_per_language_need_the_language_of_the_text(folder, command, option):
    models = ("--model", "en=words.vec", "--model", "fr=words.vec")

    done = lxsr_here(*command, *models, check=False, folder=folder)

    refused(done, option)
    assert not (folder / "o").exists()


def test_a_language_is_refused_for_a_model_of_no_language(folder):
    files = ("--input", "text.en", "--output", "o")

    done = lxsr_here(
        "index", *files, "--model", "words.vec", "--lang", "en", check=False, folder=folder
    )

    refused(done, "--lang en")
    assert not (folder / "o").exists()


@pytest.fixture
def index_by_language(folder):
    """An index by the model of a language. Such an index does not store its model."""
    model = ("--model", "en=words.vec", "--lang", "en")
    files = ("--input", "text.en", "--output", "index")
    lxsr_here("index", "--plain", *model, *files, folder=folder)
    return folder / "index"


def test_an_index_by_language_is_not_searched_without_a_model(index_by_language):
    done = lxsr_here("search", "--index", index_by_language, "red", check=False)

    refused(done, "--model")


def test_an_index_by_language_is_searched_with_its_model_named_again(folder, index_by_language):
    model = ("--model", "en=words.vec", "--lang", "en")
    # One query of two lines.
    query = ("--output", "-", "--k", 1, "black\nred white")

    done = lxsr_here("search", "--index", index_by_language, *model, *query, folder=folder)

    # The query in one line, its cosine to the nearest line, the number and the text of that line.
    assert done.stdout == "black red white\t1.000000\t4\tblack white red\n"


def test_a_shard_without_lines_is_refused(folder):
    """The text has four lines, which are not enough for seven shards."""
    files = ("--input", folder / "text.en", "--output", folder / "o.npy")

    command = ("embed", "--model", folder / "words.vec", *files, "--shard", "1/7")
    done = lxsr_here(*command, check=False)

    refused(done, "--shard 1/7 would be empty")


class Lines(formats.Format):
    """A new format, which is found by the name of its class: files begin with the word LINES."""

    suffix = ".lines"

    def header(self, layout, rows):
        return b"LINES"


def test_a_new_format_is_one_class_and_its_name_in_the_choices(folder, monkeypatch):
    # As if the name were in `options.EMBEDDING_FORMATS`.
    for module in ("fairseq_lxsr.cli.embed", "fairseq_lxsr.embeddings.formats"):
        monkeypatch.setattr(f"{module}.EMBEDDING_FORMATS", (*choices.EMBEDDING_FORMATS, "lines"))

    files = ("--input", folder / "text.en", "--output", folder / "o.lines")
    lxsr_here("embed", "--model", folder / "words.vec", *files)

    assert (folder / "o.lines").read_bytes().startswith(b"LINES")
