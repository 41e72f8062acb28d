"""Adapters of other systems: word vectors, stored embeddings, folders of other libraries."""

import gzip
import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
import small_model
from conftest import case
from hub_server import serving

from fairseq_lxsr.embeddings import (
    ByLanguage,
    Layout,
    LibraryModel,
    StoredEmbeddings,
    Text,
    WordVectors,
    embed,
    embed_lines,
    load,
    read_embeddings,
    sentence_transformers_folder,
)
from fairseq_lxsr.embeddings.load import ModelName
from fairseq_lxsr.embeddings.write import hash_lines
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import xsr

# Three words with vectors of two dimensions, as fastText writes them.
VEC = "3 2\na 1 0\nb 0 2\nc -1 4\n"
NUM_LINES = 12
# Fingerprints that are checksums have twelve hexadecimal digits.
FINGERPRINT = "[0-9a-f]{12}"


@pytest.fixture
def vec(tmp_path):
    """A file with VEC."""
    (tmp_path / "en.vec").write_text(VEC)
    return tmp_path / "en.vec"


@pytest.mark.parametrize(
    ("weights", "expected"),
    # The vectors of a and b are (1, 0) and (0, 2), those of c and a (-1, 4) and (1, 0).
    [("sum", [[1, 2], [0, 4]]), ("mean", [[1 / 2, 2 / 2], [0 / 2, 4 / 2]])],
    ids=["sum", "mean"],
)
def test_a_sentence_is_the_sum_or_mean_of_its_known_words_in_any_case(vec, weights, expected):
    text = Text(["a B unknown", "c a"])

    embeddings = WordVectors(vec, weights).embed(text)

    np.testing.assert_allclose(embeddings, expected)


def test_mean_of_word_vectors_weighted_by_idf(vec):
    """The word a is in both sentences, with the weight log(3/2); b and c are in one, with log 3."""
    a = np.array([1, 0])
    b = np.array([0, 2])
    c = np.array([-1, 4])

    embeddings = WordVectors(vec, "idf").embed(Text(["a b", "a c"]))

    common = np.log(3 / 2)
    rare = np.log(3)
    first = (common * a + rare * b) / (common + rare)
    second = (common * a + rare * c) / (common + rare)
    np.testing.assert_allclose(embeddings, [first, second], rtol=1e-6)


def test_word_vectors_may_be_compressed_and_without_a_header(tmp_path):
    with gzip.open(tmp_path / "x.vec.gz", "wt") as stream:
        stream.write("a 1 0\nb 0 2\n")

    embeddings = WordVectors(tmp_path / "x.vec.gz").embed(Text(["a", "b"]))

    np.testing.assert_array_equal(embeddings, [[1, 0], [0, 2]])


def test_of_a_repeated_word_the_first_vector_counts(tmp_path):
    (tmp_path / "x.vec").write_text("a 1 0\na 5 5\n")

    embeddings = WordVectors(tmp_path / "x.vec").embed(Text(["a"]))

    np.testing.assert_array_equal(embeddings, [[1, 0]])


def test_embed_names_the_line_of_a_sentence_without_known_words(vec):
    text = Text(["a", "unknown"], file="test.en")

    with pytest.raises(InputError, match=r"test\.en, line 2: .*'unknown'"):
        embed(WordVectors(vec), text)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("b 1", id="too few numbers"),
        pytest.param("b x y", id="no numbers"),
        pytest.param("b 1 nan", id="nan"),
        pytest.param("b", id="word alone"),
    ],
)
def test_the_error_for_an_invalid_word_vector_names_its_line(tmp_path, line):
    (tmp_path / "x.vec").write_text(f"a 1 0\n{line}\n")

    with pytest.raises(InputError, match=r"x\.vec, line 2: .*\b2 numbers"):
        WordVectors(tmp_path / "x.vec")


def test_the_error_for_unknown_weights_of_words_names_the_known_ones(vec):
    with pytest.raises(InputError, match=r"'max'.*mean, sum, idf"):
        WordVectors(vec, "max")


def test_a_warning_names_a_file_with_fewer_vectors_than_its_header_says(tmp_path, caplog):
    # The header says 3 vectors of 2 dimensions; there are 2 vectors.
    (tmp_path / "x.vec").write_text("3 2\na 1 0\nb 0 1\n")

    WordVectors(tmp_path / "x.vec")

    assert re.search(r"x\.vec .*\b2 .*\b2\b.*\b3 2\b", caplog.text)


def test_the_fingerprint_of_word_vectors_depends_on_vectors_and_weights(vec, tmp_path):
    (tmp_path / "more.vec").write_text("4 2\na 1 0\nb 0 2\nc -1 4\nd 3 3\n")

    mean = WordVectors(vec).fingerprint
    total = WordVectors(vec, "sum").fingerprint
    more_words = WordVectors(tmp_path / "more.vec").fingerprint

    assert len({mean, total, more_words}) == 3


def test_the_fingerprint_of_encoders_by_language_depends_on_the_languages(vec):
    english = ByLanguage({"en": WordVectors(vec)})
    french = ByLanguage({"fr": WordVectors(vec)})

    assert english.fingerprint != french.fingerprint


def test_the_language_of_a_text_chooses_its_encoder(vec):
    system = ByLanguage({"en": WordVectors(vec, "mean"), "fr": WordVectors(vec, "sum")})

    # Twice the vector of b, (0, 2).
    assert system.embed(Text(["b b"], "fr")).tolist() == [[0, 4]]
    assert system.embed(Text(["b b"], "en")).tolist() == [[0, 2]]


def test_the_error_for_a_text_of_a_language_without_an_encoder_names_those_with_one(vec):
    system = ByLanguage({"en": WordVectors(vec), "fr": WordVectors(vec)})

    with pytest.raises(InputError, match=r"'de'.*\ben, fr\b.*--model de="):
        system.embed(Text(["b"], "de"))


def test_stored_embeddings_of_selected_pairs_are_the_rows_of_their_lines(tmp_path):
    english_rows = np.arange(NUM_LINES * 3, dtype=np.float32).reshape(NUM_LINES, 3) + 1
    french_rows = english_rows[::-1]
    np.save(tmp_path / "test.en.npy", english_rows.astype(np.float16))
    french_rows.tofile(tmp_path / "test.fr.raw")
    system = StoredEmbeddings(tmp_path, raw_width=3)
    # Each text ends with the number of its row.
    pairs = [(f"a {row}", f"b {row}") for row in range(NUM_LINES)]
    files = ("text/test.en.txt.gz", "text/test.fr")

    # The protocol selects some of the pairs, in an order of its own.
    selected = xsr.select(pairs, languages=("en", "fr"), files=files)

    for text, stored_rows in ((selected.source, english_rows), (selected.target, french_rows)):
        row_numbers = [int(line.split()[1]) for line in text.lines]
        np.testing.assert_array_equal(system.embed(text), stored_rows[row_numbers])


def test_stored_embeddings_are_not_used_for_two_texts_of_the_same_name(tmp_path):
    np.save(tmp_path / "test.en.npy", np.ones((NUM_LINES, 3)))
    system = StoredEmbeddings(tmp_path)
    lines = ["x"] * NUM_LINES
    system.embed(Text(lines, file="text/test.en.txt.gz"))

    message = r"test\.en\.npy\b.*text/test\.en\.txt\.gz.*other/test\.en"
    with pytest.raises(InputError, match=message):
        system.embed(Text(lines, file="other/test.en"))


@pytest.fixture
def twelve_rows(tmp_path):
    """A folder with embeddings of the twelve lines of `test.en`."""
    np.save(tmp_path / "test.en.npy", np.ones((NUM_LINES, 3), np.float16))
    return tmp_path


def test_stored_embeddings_are_found_by_the_name_of_the_text(twelve_rows):
    system = StoredEmbeddings(twelve_rows)

    embeddings = system.embed(Text(["x"] * NUM_LINES, file="test.en"))

    assert embeddings.shape == (NUM_LINES, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(Text(["x"] * 5, file="test.en"), "12 .*5 lines", id="whole text"),
        # Five lines of a text that has eleven.
        pytest.param(
            Text(["x"] * 5, file="test.en", rows=np.arange(5), total=11),
            "12 .*11 lines",
            id="selected lines",
        ),
    ],
)
def test_stored_embeddings_of_another_number_of_lines_are_refused(twelve_rows, text, message):
    system = StoredEmbeddings(twelve_rows)

    with pytest.raises(InputError, match=rf"test\.en\.npy:? .*\b{message}"):
        system.embed(text)


def test_the_error_for_a_text_without_stored_embeddings_names_the_files_that_were_sought(
    twelve_rows,
):
    system = StoredEmbeddings(twelve_rows, raw_width=3)

    with pytest.raises(InputError, match=r"other\.npy:? .*\.parquet, \.raw, "):
        system.embed(Text(["x"], file="other"))


def test_stored_embeddings_are_refused_for_a_text_without_a_file(twelve_rows):
    """A query of `lxsr search`, for example, is in no file."""
    system = StoredEmbeddings(twelve_rows)

    with pytest.raises(InputError, match=r"--model.*--input"):
        system.embed(Text(["x"]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("x.npy", b"text", "x.npy", id="no npy"),
        pytest.param("x.npy", np.array(["a"]), r"<U1\b.*\(1,\)", id="array of text"),
        pytest.param("x.npy", np.ones(3), r"float64\b.*\(3,\)", id="one vector"),
        pytest.param("x.npy", np.array([{}], dtype=object), "x.npy", id="pickled"),
        # A row of two float32 has 8 bytes.
        pytest.param("x.raw", b"12345", r"5 bytes.*\b2 float32.*#dim=", id="half a row"),
        pytest.param("x.raw", b"", "0 bytes", id="empty"),
    ],
)
def test_the_error_for_an_invalid_file_of_embeddings_says_what_it_has(
    tmp_path, name, content, message
):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.save(tmp_path / name, content)

    with pytest.raises(InputError, match=message):
        read_embeddings(tmp_path / name, raw_width=2)


@pytest.mark.parametrize("name", ["x.npy", "x.raw"])
def test_a_width_of_zero_for_raw_files_is_refused_for_any_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(InputError, match="raw_width 0"):
        read_embeddings(tmp_path / name, raw_width=0)


@pytest.mark.parametrize(
    "column",
    [
        pytest.param([[1.0, 2], [3]], id="lengths"),
        # The numbers would be enough for three rows.
        pytest.param([[1.0, 2], None, [3, 4, 5, 6]], id="missing list"),
        pytest.param([[1.0, 2], [None, 3]], id="missing number"),
        pytest.param([1.0, 2], id="no lists"),
        pytest.param([], id="no rows"),
        pytest.param([[], []], id="empty lists"),
        pytest.param([["a"]], id="text"),
    ],
)
def test_a_parquet_column_without_lists_of_equal_length_is_refused(tmp_path, column):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"embeddings": column}), tmp_path / "x.parquet")

    with pytest.raises(InputError, match=r"x\.parquet:? "):
        read_embeddings(tmp_path / "x.parquet")


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_big_endian_embeddings_are_converted_to_float32_of_this_machine(tmp_path, dtype):
    # Quarters are exact in all types.
    rows = np.arange(12).reshape(4, 3) / 4
    np.save(tmp_path / "en.npy", rows.astype(dtype))

    embeddings = StoredEmbeddings(tmp_path).embed(Text(["x"] * 4, file="en"))

    assert embeddings.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(embeddings, rows)


@pytest.fixture
def bert(tmp_path):
    """A tiny untrained BERT with tokenizer, as Hugging Face writes it."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "cat", "chien", "chat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    folder = tmp_path / "bert"
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_a_hugging_face_folder_gives_the_mean_of_the_states_of_its_tokens(bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    # The second sentence is padded, and padding does not count.
    text = Text(["dog cat cat", "chien"])

    embeddings = sentence_transformers_folder(bert, device="cpu").embed(text)

    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokens = tokenizer(list(text.lines), padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(bert).eval()(**tokens).last_hidden_state
    is_token = tokens["attention_mask"][..., None]
    means = (states * is_token).sum(1) / is_token.sum(1)
    np.testing.assert_allclose(embeddings, means.numpy(), atol=1e-5)


def test_a_model_of_another_library_is_downloaded_without_pickles_and_code(
    bert, tmp_path, monkeypatch
):
    """Either could run code of strangers."""
    monkeypatch.chdir(tmp_path)
    text = Text(["dog cat cat", "chien"])
    with serving(tmp_path / "cache") as server:
        # Next to its safetensors, the repository has a pickle and code.
        server.add("org/bert", bert, pytorch_model__bin=b"pickled", code__py=b"1 / 0")

        embeddings = load("hub:org/bert", device="cpu").embed(text)

    np.testing.assert_allclose(embeddings, load(bert, device="cpu").embed(text), atol=1e-6)
    assert not [name for name in server.requests if name.endswith((".bin", ".py"))]


def test_a_model_of_another_library_that_has_only_a_pickle_is_refused(bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with serving(tmp_path / "cache") as server:
        server.add("org/pickled", bert)

        with pytest.raises(InputError, match="models--org--pickled"):
            load("hub:org/pickled", device="cpu")


def test_a_folder_of_sentence_transformers_gives_its_embeddings_and_a_fingerprint(bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bert), device="cpu")
    model.save(str(tmp_path / "st"))

    system = sentence_transformers_folder(tmp_path / "st", device="cpu")

    np.testing.assert_allclose(system.embed(Text(["dog"])), model.encode(["dog"]), atol=1e-6)
    assert re.fullmatch(FINGERPRINT, system.fingerprint)


def test_the_error_for_a_folder_that_does_not_load_names_it(bert):
    (bert / "model.safetensors").write_bytes(b"broken")

    with pytest.raises(InputError, match=re.escape(str(bert))):
        sentence_transformers_folder(bert, device="cpu")


def test_the_error_without_sentence_transformers_says_how_to_install_it(bert, monkeypatch):
    # No package is found, as if none were installed.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(InputError, match=r"-m pip install .*sentence-transformers"):
        sentence_transformers_folder(bert)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("modules.json", "5", id="modules no list"),
        pytest.param("modules.json", "[1]", id="modules of numbers"),
        pytest.param(
            "config.json", '{"model_type": "bert", "hidden_size": "x"}', id="size no number"
        ),
        pytest.param("config_sentence_transformers.json", "[]", id="config no object"),
        pytest.param("1_Pooling/config.json", '{"what": 3}', id="unknown option"),
    ],
)
def test_the_error_for_a_damaged_file_in_a_folder_names_the_folder_and_the_reason(
    bert, tmp_path, name, content
):
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(bert), device="cpu").save(str(tmp_path / "st"))
    (tmp_path / "st" / name).write_text(content)

    # The reason is in parentheses.
    with pytest.raises(InputError, match=r"/st: .*\(."):
        sentence_transformers_folder(tmp_path / "st", device="cpu")


def test_an_error_of_a_library_without_a_message_is_named_by_its_type(tmp_path, monkeypatch):
    def fail_without_message(*arguments, **options):
        raise AssertionError

    library = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(library, "SentenceTransformer", fail_without_message)

    with pytest.raises(InputError, match=r"\(AssertionError\)"):
        sentence_transformers_folder(tmp_path)


class PanicException(BaseException):
    """The exception of libraries in Rust, for example of tokenizers for a damaged tokenizer.json."""


def panic(*arguments, **options):
    """Print and raise as Rust does when it panics."""
    os.write(2, b"thread panicked\n")
    raise PanicException("Invalid byte 61")


def test_a_panic_of_rust_while_loading_is_an_input_error_without_further_output(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(pytest.importorskip("sentence_transformers"), "SentenceTransformer", panic)

    with pytest.raises(InputError, match=rf"{tmp_path}: .*\(Invalid byte 61\)"):
        sentence_transformers_folder(tmp_path)
    assert capfd.readouterr().err == ""


def test_a_panic_of_rust_while_embedding_is_an_input_error():
    model = LibraryModel(SimpleNamespace(encode=panic), "x", 2)

    with pytest.raises(InputError, match="Invalid byte 61"):
        model.embed(Text(["a"]))


def test_a_folder_of_sentence_transformers_without_a_network_is_refused(tmp_path):
    modules = pytest.importorskip("sentence_transformers.models")
    from sentence_transformers import SentenceTransformer

    # It would only scale vectors that nothing computes.
    SentenceTransformer(modules=[modules.Normalize()], device="cpu").save(str(tmp_path / "st"))

    with pytest.raises(InputError, match="/st: "):
        sentence_transformers_folder(tmp_path / "st", device="cpu")


ENGLISH = Text(["x"] * 4, file="en")
FRENCH = Text(["x"] * 4, file="fr")
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def english_and_french(tmp_path):
    """A folder with ROWS for both texts: English as raw float16, French as npy, by model aaaa."""
    ROWS.astype(np.float16).tofile(tmp_path / "en.raw")
    np.save(tmp_path / "fr.npy", ROWS)
    description = {"model": "aaaa", "dimension": 3}
    english_description = description | {"dtype": "float16"}
    french_description = description | {"dtype": "float32"}
    (tmp_path / "en.raw.json").write_text(json.dumps(english_description))
    (tmp_path / "fr.npy.json").write_text(json.dumps(french_description))
    return tmp_path


def test_the_width_and_type_of_a_raw_file_are_read_from_its_description(english_and_french):
    system = StoredEmbeddings(english_and_french)

    np.testing.assert_array_equal(system.embed(ENGLISH), ROWS)


def test_stored_embeddings_of_one_model_may_have_different_formats(english_and_french):
    system = StoredEmbeddings(english_and_french)

    np.testing.assert_array_equal(system.embed(ENGLISH), ROWS)
    np.testing.assert_array_equal(system.embed(FRENCH), ROWS)


def test_stored_embeddings_of_two_models_are_never_mixed(english_and_french):
    description = {"model": "bbbb", "dimension": 3, "dtype": "float32"}
    (english_and_french / "fr.npy.json").write_text(json.dumps(description))
    system = StoredEmbeddings(english_and_french)
    system.embed(ENGLISH)

    with pytest.raises(InputError, match=r"fr\.npy:? .*\bbbbb\b.*en\.raw.*\baaaa\b"):
        system.embed(FRENCH)


def test_stored_embeddings_with_an_invalid_description_are_refused(english_and_french):
    (english_and_french / "fr.npy.json").write_text("[]")
    system = StoredEmbeddings(english_and_french)

    with pytest.raises(InputError, match=r"fr\.npy\.json: .*\bfr\.npy\b"):
        system.embed(FRENCH)


SETTINGS = {"model": "aaaa", "computed_in": "float32", "normalize": False, "on_long": "cut"}


def store(path, dtype="float32", values=1.0, **settings):
    """Write two embeddings of three dimensions by the model aaaa, or with other settings."""

    def encode(lines, counts):
        return np.full((2, 3), values)

    embed_lines(["a", "b"], encode, path, Layout("npy", dtype, 3), SETTINGS | settings)


def test_the_fingerprint_of_stored_embeddings_is_their_model(tmp_path):
    store(tmp_path / "en.npy")
    store(tmp_path / "fr.npy")
    # Neither the values nor the handling of long lines make vectors of another kind.
    store(tmp_path / "de.npy", values=2, on_long="error")

    assert StoredEmbeddings(tmp_path).fingerprint == "aaaa"


@pytest.mark.parametrize(
    "settings",
    [{"model": "bbbb"}, {"normalize": True}, {"dtype": "int8"}],
    ids=["model", "normalize", "dtype"],
)
def test_the_fingerprint_of_embeddings_with_different_settings_is_a_checksum(tmp_path, settings):
    store(tmp_path / "en.npy")
    store(tmp_path / "de.npy", **settings)

    assert re.fullmatch(FINGERPRINT, StoredEmbeddings(tmp_path).fingerprint)


def test_the_fingerprint_of_embeddings_by_a_model_of_an_unusual_name_is_a_checksum(tmp_path):
    store(tmp_path / "en.npy", model="a|b")

    assert re.fullmatch(FINGERPRINT, StoredEmbeddings(tmp_path).fingerprint)


def test_the_fingerprint_of_stored_embeddings_has_settings_that_change_vectors(tmp_path):
    store(tmp_path / "en.npy", dtype="float16", normalize=True)
    store(tmp_path / "fr.npy", dtype="float16", normalize=True)

    fingerprint = StoredEmbeddings(tmp_path).fingerprint

    assert fingerprint == "aaaa-dtype=float16-normalize=True"


def test_the_fingerprint_is_the_model_again_once_all_settings_are_the_same(tmp_path):
    store(tmp_path / "en.npy")
    store(tmp_path / "fr.npy", dtype="float16", normalize=True)
    assert StoredEmbeddings(tmp_path).fingerprint != "aaaa"

    store(tmp_path / "fr.npy")

    assert StoredEmbeddings(tmp_path).fingerprint == "aaaa"


def test_the_fingerprint_of_embeddings_described_by_another_program_is_a_checksum(tmp_path):
    store(tmp_path / "en.npy")
    (tmp_path / "en.npy.json").write_text("{}")

    assert re.fullmatch(FINGERPRINT, StoredEmbeddings(tmp_path).fingerprint)


def test_the_fingerprint_of_embeddings_changed_after_their_description_is_a_checksum(tmp_path):
    store(tmp_path / "en.npy")
    np.save(tmp_path / "en.npy", np.zeros((2, 3)))

    assert re.fullmatch(FINGERPRINT, StoredEmbeddings(tmp_path).fingerprint)


ANIMALS = ["A dog", "a cat", "", "a bird"]


@pytest.fixture
def animals(tmp_path):
    """The text ANIMALS in `test.en`, and its embeddings, which have a checksum of the text."""
    (tmp_path / "test.en").write_text("\n".join(ANIMALS) + "\n")
    np.save(tmp_path / "test.en.npy", np.ones((4, 3), dtype=np.float32))
    description = {"model": "aaaa", "dimension": 3, "dtype": "float32"}
    description["text"] = hash_lines(ANIMALS)[1]
    (tmp_path / "test.en.npy.json").write_text(json.dumps(description))
    return tmp_path


def test_stored_embeddings_of_an_unchanged_text_are_used(animals):
    """A protocol may change the case of lines, or select some."""
    file = str(animals / "test.en")
    for text in (
        Text(ANIMALS, file="elsewhere/test.en"),
        Text([line.upper() for line in ANIMALS], file=file),
        Text(["a bird", "a dog"], file=file, rows=np.array([3, 0]), total=4),
    ):
        with case(text.lines):
            assert len(StoredEmbeddings(animals).embed(text)) == len(text)


def test_stored_embeddings_of_labelled_text_are_used_though_it_cannot_be_compared(animals):
    """The checksum is that of the text alone, and the lines of the file begin with a label."""
    (animals / "test.en").write_text("".join(f"1\t{line}\n" for line in ANIMALS))
    file = str(animals / "test.en")
    for text in (
        Text(ANIMALS, file=file),
        Text(["other", "text"], file=file, rows=np.array([3, 0]), total=4),
    ):
        with case(text.lines):
            assert len(StoredEmbeddings(animals).embed(text)) == len(text)


@pytest.fixture
def reversed_animals(animals):
    """As `animals`, but the lines of the text were reversed after they were embedded."""
    (animals / "test.en").write_text("\n".join(ANIMALS[::-1]) + "\n")
    return animals


def test_stored_embeddings_of_a_changed_text_are_refused(reversed_animals):
    file = str(reversed_animals / "test.en")
    for text in (
        Text(ANIMALS[::-1], file=file),
        Text(["A dog"], file=file, rows=np.array([3]), total=4),
    ):
        with case(text.lines), pytest.raises(InputError, match=r"test\.en\.npy:? .*/test\.en\b"):
            StoredEmbeddings(reversed_animals).embed(text)


def test_stored_embeddings_without_a_description_are_used_for_any_text(reversed_animals):
    (reversed_animals / "test.en.npy.json").unlink()
    text = Text(ANIMALS[::-1], file=str(reversed_animals / "test.en"))

    assert len(StoredEmbeddings(reversed_animals).embed(text)) == 4


@pytest.fixture
def encoders(tmp_path, monkeypatch):
    """The working folder: a model, word vectors, and stored embeddings of `text`, (2, 2, 2)."""
    small_model.write_folder(tmp_path / "model")
    (tmp_path / "words.vec").write_text("red 1 2\nblue 4 3\n")
    (tmp_path / "stored").mkdir()
    np.full((1, 3), 2, dtype=np.float32).tofile(tmp_path / "stored" / "text.raw")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "vector"),
    [
        # The mean and the sum of (1, 2) and (4, 3).
        ("words.vec", [2.5, 2.5]),
        ("words.vec#sum", [5, 5]),
        ("stored#dim=3", [2, 2, 2]),
    ],
)
@pytest.mark.usefixtures("encoders")
def test_word_vectors_and_stored_embeddings_are_loaded_by_name_and_options(name, vector):
    text = Text(["red blue"], "en", "text")

    embeddings = load(name).embed(text)

    assert embeddings.tolist() == [vector]


@pytest.mark.usefixtures("encoders")
def test_encoders_by_language_are_loaded_by_their_names():
    system = load({"en": "words.vec#sum", "fr": "words.vec"})

    assert system.embed(Text(["red blue"], "en")).tolist() == [[5, 5]]
    assert system.embed(Text(["red blue"], "fr")).tolist() == [[2.5, 2.5]]


@pytest.mark.usefixtures("encoders")
def test_a_model_without_its_training_has_another_fingerprint():
    fingerprint = load("model").fingerprint

    assert load("model#untrained").fingerprint == f"{fingerprint}-untrained"


def test_the_name_of_an_existing_folder_has_no_options(encoders):
    fingerprint = load("model").fingerprint
    (encoders / "model").rename(encoders / "model#untrained")

    assert load("model#untrained").fingerprint == fingerprint


ADDRESS = "https://a.org/m.zip?b=c"
ADDRESS_WITH_CHECKSUM = f"{ADDRESS}#sha256=0f"


@pytest.mark.parametrize("address", [ADDRESS, ADDRESS_WITH_CHECKSUM], ids=["plain", "checksum"])
def test_a_checksum_belongs_to_the_address_and_not_to_the_options(address):
    name = f"en={address}"

    parsed = ModelName.parse(name)

    assert parsed == ModelName(name, "en", address, ())


@pytest.mark.parametrize(
    ("address", "separator"),
    [(ADDRESS, "#"), (ADDRESS_WITH_CHECKSUM, "#"), (ADDRESS_WITH_CHECKSUM, ",")],
    ids=["plain", "checksum", "checksum and comma"],
)
def test_options_follow_the_address_and_its_checksum(address, separator):
    name = f"{address}{separator}untrained"

    parsed = ModelName.parse(name)

    assert parsed == ModelName(name, "", address, ("untrained",))


@pytest.mark.parametrize(
    ("name", "options_in_message"),
    [
        ("words.vec#untrained", "#mean or #sum or #idf"),
        ("model#idf", "#untrained"),
        ("stored#mean", "#dim=N"),
        ("stored#dim=0", "#dim="),
        ("stored#dim=x", "#dim="),
        # These names have no file.
        ("#untrained", ""),
        ("en=", ""),
    ],
)
@pytest.mark.usefixtures("encoders")
def test_the_error_for_invalid_options_after_a_name_has_the_name_and_the_valid_ones(
    name, options_in_message
):
    with pytest.raises(InputError, match=f"{re.escape(name)}.*{re.escape(options_in_message)}"):
        load(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"other": 1}, "other"), ({"dtype": "int4"}, "dtype|int4"), ({"on_long": "drop"}, "on_long")],
    ids=["name", "dtype", "on_long"],
)
def test_load_refuses_unknown_options_and_values(options, message):
    with pytest.raises(InputError, match=message):
        load("lxsr-static", **options)
