"""Code that was written for sentence-transformers keeps working."""

import pickle

import numpy as np
import pytest
import small_model
from conftest import COMPATIBILITY, contents

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError

TEXTS = ["One red dog sees the cat.", "Un chien rouge voit le chat.", "Two blue birds."]
FOLDER = COMPATIBILITY / "best.model"
WIDTH = 8


@pytest.fixture
def encoder():
    """The encoder of a small model without layers."""
    return SentenceEncoder.from_pretrained(FOLDER)


# -- encode


@pytest.mark.parametrize("text", [TEXTS[1], np.str_(TEXTS[1])], ids=["str", "numpy"])
def test_a_single_text_gives_the_vector_of_its_row(encoder, text):
    np.testing.assert_allclose(encoder.encode(text), encoder.encode(TEXTS)[1], atol=1e-6)


def test_a_single_empty_text_gives_a_single_vector(encoder):
    assert encoder.encode("").shape == (WIDTH,)


def test_a_single_text_can_be_normalized_and_truncated(encoder):
    assert encoder.encode("a", normalize=True, truncate_dim=4).shape == (4,)


@pytest.mark.parametrize("name", ["encode_query", "encode_document"])
def test_queries_and_documents_are_encoded_alike(encoder, name):
    encode = getattr(encoder, name)

    np.testing.assert_array_equal(encode(TEXTS, batch_size=2), encoder.encode(TEXTS))
    assert encode(TEXTS[0]).shape == (WIDTH,)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"batch_size": 32}, id="batch_size"),
        pytest.param({"show_progress_bar": None, "convert_to_numpy": True}, id="bar is None"),
        pytest.param(
            {
                "prompt": None,
                "prompt_name": None,
                "output_value": "sentence_embedding",
                "precision": "float32",
                "show_progress_bar": False,
                "normalize_embeddings": False,
            },
            id="defaults of sentence-transformers",
        ),
    ],
)
def test_options_of_sentence_transformers_that_change_nothing_are_accepted(encoder, options):
    np.testing.assert_array_equal(encoder.encode(TEXTS, **options), encoder.encode(TEXTS))


def test_sentences_and_normalize_embeddings_are_names_of_texts_and_normalize(encoder):
    unit = encoder.encode(TEXTS, normalize=True)

    np.testing.assert_array_equal(encoder.encode(sentences=TEXTS, normalize_embeddings=True), unit)


def test_output_dtype_gives_rounded_vectors(encoder):
    half = encoder.encode(TEXTS, output_dtype="float16")

    assert half.dtype == np.float16
    np.testing.assert_allclose(half, encoder.encode(TEXTS), rtol=1e-2)


def test_vectors_can_be_converted_to_tensors(encoder):
    torch = pytest.importorskip("torch")

    tensor = encoder.encode(TEXTS, convert_to_tensor=True)

    assert tensor.equal(torch.from_numpy(encoder.encode(TEXTS)))
    assert encoder.encode(TEXTS[0], convert_to_tensor=True).shape == (WIDTH,)


def test_without_numpy_the_vectors_are_a_list_of_rows(encoder):
    rows = encoder.encode(TEXTS, convert_to_numpy=False)

    assert isinstance(rows, list)
    assert [len(row) for row in rows] == [WIDTH] * len(TEXTS)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_bits_equal_those_of_sentence_transformers(encoder, precision):
    quantization = pytest.importorskip("sentence_transformers.util")
    expected = quantization.quantize_embeddings(encoder.encode(TEXTS), precision)

    codes = encoder.encode(TEXTS, precision=precision)

    np.testing.assert_array_equal(codes, expected)
    assert codes.dtype == expected.dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize_embeddings": "yes"}, "normalize_embeddings is 'yes'"),
        ({"show_progress_bar": 1}, "show_progress_bar is 1"),
        ({"convert_to_numpy": None}, "convert_to_numpy is None"),
        ({"precision": "int8"}, "precision 'int8'.*float32, float16, binary, ubinary"),
        ({"output_dtype": "bf16"}, "output_dtype 'bf16'.*float32"),
        ({"truncate_dim": WIDTH + 1}, "truncate_dim is 9.*1 to 8"),
        ({"prompt": "query: "}, "prompt 'query: '.*omit"),
        ({"output_value": "token_embeddings"}, "'token_embeddings'.*'sentence_embedding'"),
        # Both names of the same option.
        ({"normalize": True, "normalize_embeddings": True}, "normalize_embeddings.* normalize"),
        ({"sentences": ["b"]}, "sentences.* texts"),
    ],
)
def test_invalid_values_are_refused_under_the_name_that_the_caller_used(encoder, options, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(["a"], **options)


def test_an_unknown_option_is_a_type_error(encoder):
    with pytest.raises(TypeError, match="normalise"):
        encoder.encode(["a"], normalise=True)


# -- types of texts


def pandas_column(texts):
    return pytest.importorskip("pandas").Series(texts)


def arrow_array(texts):
    return pytest.importorskip("pyarrow").array(texts)


def arrow_chunks(texts):
    return pytest.importorskip("pyarrow").chunked_array([texts[:1], texts[1:]])


def numpy_objects(texts):
    return np.array(texts, dtype=object)


@pytest.mark.parametrize(
    "convert", [pandas_column, arrow_array, arrow_chunks, np.array, numpy_objects, iter, tuple]
)
def test_texts_may_be_arrays_and_columns_of_strings(encoder, convert):
    np.testing.assert_array_equal(encoder.encode(convert(TEXTS)), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param(["a", float("nan")], r"texts\[1\] is nan", id="nan"),
        pytest.param([None], r"texts\[0\] is None", id="None"),
        pytest.param([b"a"], r"texts\[0\] is b'a'", id="bytes"),
        pytest.param([["a"]], r"texts\[0\] is \['a'\]", id="list"),
        pytest.param(np.array([["a"]]), r"texts\[0\] is \['a'\]", id="two dimensions"),
        pytest.param(np.array(["a", 1.5], dtype=object), r"texts\[1\] is 1.5", id="number"),
    ],
)
def test_an_entry_that_is_no_string_is_named(encoder, texts, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(texts)


def test_an_entry_of_a_pandas_column_that_is_no_string_is_named(encoder):
    # pandas 3 stores None as nan.
    with pytest.raises(InputError, match=r"texts\[1\] is (None|nan)"):
        encoder.encode(pandas_column(["a", None, "b"]))


def test_an_entry_of_arrow_that_is_no_string_is_named(encoder):
    arrow = pytest.importorskip("pyarrow")

    with pytest.raises(InputError, match=r"texts\[1\] is None"):
        encoder.encode(arrow.array(["a", None]))
    with pytest.raises(InputError, match=r"texts\[1\] is <pyarrow"):
        encoder.encode(["a", arrow.array(["b"])])
    with pytest.raises(InputError, match=r"texts\[2\] is <pyarrow"):
        encoder.encode(["a", "b", arrow.scalar("c")])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param(np.array("a"), "texts is", id="array without dimensions"),
        pytest.param(b"a dog", r"bytes.*b'a dog'", id="bytes"),
        pytest.param(None, r"texts is .*None", id="None"),
    ],
)
def test_texts_that_are_no_sequence_of_strings_are_refused(encoder, texts, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(texts)


def test_a_dictionary_of_texts_is_refused_with_the_name_of_its_entry(encoder):
    texts = {"text": TEXTS}

    with pytest.raises(InputError, match=r"dict.*'text'.*texts\['text'\]"):
        encoder.encode(texts)


def test_a_set_of_texts_is_refused_with_the_advice_to_sort_it(encoder):
    """The rows would have no known order."""
    with pytest.raises(InputError, match=r"set.*sorted\(texts\)"):
        encoder.encode(set(TEXTS))


def test_tables_are_refused_with_the_name_of_their_column(encoder):
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")

    with pytest.raises(InputError, match=r"DataFrame.*'text'.*texts\['text'\]"):
        encoder.encode(pandas.DataFrame({"text": TEXTS}))
    with pytest.raises(InputError, match=r"Table.*'text'.*texts\['text'\]"):
        encoder.encode(arrow.table({"text": TEXTS}))


def test_split_refuses_a_single_string(encoder):
    """It would be read as a list of letters."""
    with pytest.raises(InputError, match="str 'a dog'"):
        encoder.split("a dog")


# -- similarity


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_similarity_is_the_matrix_of_cosines(encoder):
    rows = encoder.encode(TEXTS)

    cosines = encoder.similarity(rows, rows[:2])

    np.testing.assert_allclose(cosines, unit(rows) @ unit(rows)[:2].T, atol=1e-6)


def test_similarity_of_two_vectors_is_a_matrix_of_one_number(encoder):
    row = encoder.encode(TEXTS[0])

    np.testing.assert_allclose(encoder.similarity(row, row), [[1]], atol=1e-6)


def test_similarity_pairwise_is_the_cosine_of_each_pair_of_rows(encoder):
    rows = encoder.encode(TEXTS)
    reversed_rows = rows[::-1]

    cosines = encoder.similarity_pairwise(rows, reversed_rows)

    expected = (unit(rows) * unit(reversed_rows)).sum(axis=1)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)


def test_the_similarity_of_zeros_is_zero(encoder):
    assert not encoder.similarity(np.zeros(WIDTH), encoder.encode(TEXTS)).any()


def test_similarity_takes_tensors_and_lists(encoder):
    torch = pytest.importorskip("torch")
    rows = encoder.encode(TEXTS)

    cosines = encoder.similarity(torch.from_numpy(rows), rows.tolist())

    np.testing.assert_allclose(cosines, unit(rows) @ unit(rows).T, atol=1e-6)


# Their squares are beyond the range of float32.
@pytest.mark.parametrize("number", [1e20, 1e-25])
@pytest.mark.parametrize("name", ["similarity", "similarity_pairwise"])
def test_similarity_takes_vectors_of_any_length(encoder, number, name):
    similarity = getattr(encoder, name)

    cosine = similarity(np.full(WIDTH, number), np.full(WIDTH, 1.0))

    np.testing.assert_allclose(cosine, 1, atol=1e-6)


def test_similarity_of_vectors_of_different_widths_is_refused(encoder):
    rows = encoder.encode(TEXTS)

    with pytest.raises(InputError, match=r"\b8\b.*\b4\b"):
        encoder.similarity(rows, rows[:, :4])


def test_similarity_pairwise_of_different_numbers_of_rows_is_refused(encoder):
    rows = encoder.encode(TEXTS)

    with pytest.raises(InputError, match=r"\(3, 8\).*\(2, 8\)"):
        encoder.similarity_pairwise(rows, rows[:2])


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_similarity_of_codes_of_bits_is_refused(encoder, precision):
    codes = encoder.encode(TEXTS, precision=precision)

    with pytest.raises(InputError, match=r"second.* u?int8"):
        encoder.similarity(encoder.encode(TEXTS), codes)


def test_similarity_of_nan_is_refused_with_its_row(encoder):
    with pytest.raises(InputError, match=r"row 1.*first"):
        encoder.similarity([[1.0, 2.0], [np.nan, 1.0]], [[1.0, 2.0]])


def test_two_options_of_the_precision_are_refused(encoder):
    with pytest.raises(InputError, match=r"output_dtype.*precision"):
        encoder.encode(TEXTS, precision="binary", output_dtype="binary")


# -- pieces of a text


def test_tokenize_pads_the_ids_of_split(encoder):
    texts = ["One red dog.", "", "Two"]
    ids, lengths = encoder.split(texts)

    features = encoder.tokenize(texts)

    is_piece = features["attention_mask"] == 1
    assert is_piece.sum(axis=1).tolist() == lengths.tolist()
    np.testing.assert_array_equal(features["input_ids"][is_piece], ids)
    assert (features["input_ids"][~is_piece] == encoder.size.padding_idx).all()


def test_tokenize_of_a_single_text_gives_a_row(encoder):
    row = encoder.tokenize("One red dog.")["input_ids"]

    np.testing.assert_array_equal(row, encoder.tokenize(["One red dog."])["input_ids"])


@pytest.mark.parametrize("name", ["get_embedding_dimension", "get_sentence_embedding_dimension"])
def test_the_width_has_the_names_of_old_and_new_versions_of_sentence_transformers(encoder, name):
    assert getattr(encoder, name)() == WIDTH


LONG = " ".join(TEXTS * 5)


def test_max_seq_length_limits_the_pieces_of_a_text(encoder):
    whole = encoder.encode(LONG)
    assert encoder.max_seq_length is None

    encoder.max_seq_length = 5

    ids, _ = encoder.split([LONG])
    assert len(ids) == 5
    assert not np.allclose(encoder.encode(LONG), whole)


def test_max_seq_length_is_in_the_fingerprint(encoder):
    fingerprint = encoder.fingerprint

    encoder.max_seq_length = 5

    assert encoder.fingerprint == f"{fingerprint}-max5"


def test_max_seq_length_is_pickled(encoder):
    encoder.max_seq_length = 5

    assert pickle.loads(pickle.dumps(encoder)).max_seq_length == 5


def test_max_seq_length_can_be_removed(encoder):
    fingerprint = encoder.fingerprint
    whole = encoder.encode(LONG)
    encoder.max_seq_length = 5

    encoder.max_seq_length = None

    np.testing.assert_array_equal(encoder.encode(LONG), whole)
    assert encoder.fingerprint == fingerprint


@pytest.mark.parametrize("value", [0, "5", 2.0, True, -1], ids=repr)
def test_an_invalid_max_seq_length_is_refused(encoder, value):
    with pytest.raises(InputError, match=r"max_seq_length .*1 or more"):
        encoder.max_seq_length = value


# -- folders


@pytest.mark.parametrize("name", ["save", "save_pretrained"])
def test_a_saved_model_is_the_same_model(encoder, tmp_path, name):
    getattr(encoder, name)(tmp_path / "copy")

    copy = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert copy.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(copy.encode(TEXTS), encoder.encode(TEXTS))
    assert contents(tmp_path / "copy").items() <= contents(FOLDER).items()


def test_a_model_can_be_saved_in_its_own_folder(encoder, tmp_path):
    encoder.save(tmp_path / "copy")
    copy = SentenceEncoder.from_pretrained(tmp_path / "copy")

    copy.save(tmp_path / "copy")

    assert contents(tmp_path / "copy").items() <= contents(FOLDER).items()


def test_save_refuses_a_folder_with_other_files(encoder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")

    with pytest.raises(InputError, match="other"):
        encoder.save(tmp_path / "other")


def test_save_refuses_untrained_weights(tmp_path):
    untrained = SentenceEncoder.from_pretrained(FOLDER, untrained=True)

    with pytest.raises(InputError, match="random"):
        untrained.save(tmp_path / "random")


def test_repr_names_the_folder_languages_and_sizes(encoder):
    text = repr(encoder)

    assert text.startswith("SentenceEncoder('best.model': en fr; 8 wide, 90 pieces, ")
    assert f"{encoder.parameters:,} parameters" in text


def test_repr_says_that_weights_are_untrained():
    assert "untrained" in repr(SentenceEncoder.from_pretrained(FOLDER, untrained=True))


def test_repr_counts_the_parameters_of_layers(tmp_path):
    layered = SentenceEncoder.from_pretrained(small_model.write_folder(tmp_path / "layers"))

    parameters = sum(value.size for value in layered.weights.values())
    assert f"{parameters:,} parameters" in repr(layered)


@pytest.mark.parametrize("model", [FOLDER, str(FOLDER)], ids=["Path", "str"])
def test_the_constructor_takes_a_folder_in_place_of_a_network(encoder, model):
    opened = SentenceEncoder(model)

    assert opened.folder == FOLDER
    np.testing.assert_array_equal(opened.encode(TEXTS), encoder.encode(TEXTS))


def test_the_constructor_refuses_a_network_without_its_tokenizer(encoder):
    with pytest.raises(InputError, match="without tokenizer or config"):
        SentenceEncoder(encoder.model)


def test_the_constructor_refuses_a_folder_with_a_tokenizer(encoder):
    with pytest.raises(InputError, match="with tokenizer, config or folder"):
        SentenceEncoder(str(FOLDER), encoder.tokenizer)


@pytest.mark.parametrize(
    ("config", "languages"),
    [
        pytest.param(
            {"training": {"pairs": {"en-fr": 2}, "lang_pairs": "de-en, en-it"}},
            ["de", "en", "fr", "it"],
            id="of both fields",
        ),
        pytest.param({}, [], id="unknown"),
    ],
)
def test_languages_are_those_of_the_training_pairs(encoder, config, languages):
    assert encoder.languages == ["en", "fr"]

    encoder.config = config

    assert encoder.languages == languages
