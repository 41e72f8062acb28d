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


@pytest.fixture
def encoder():
    return SentenceEncoder.from_pretrained(FOLDER)


def test_a_single_text_gives_a_single_vector(encoder):
    rows = encoder.encode(TEXTS)
    for text in (TEXTS[1], np.str_(TEXTS[1])):
        np.testing.assert_allclose(encoder.encode(text), rows[1], atol=1e-6)
    assert encoder.encode("").shape == (8,)
    assert encoder.encode("a", normalize=True, truncate_dim=4).shape == (4,)
    for encode in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(encode(TEXTS, batch_size=2), rows)
        assert encode(TEXTS[0]).shape == (8,)


def test_encode_accepts_the_options_of_sentence_transformers(encoder):
    rows = encoder.encode(TEXTS)
    unit = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_array_equal(encoder.encode(sentences=TEXTS, normalize_embeddings=True), unit)
    np.testing.assert_array_equal(
        encoder.encode(TEXTS, 32, show_progress_bar=None, convert_to_numpy=True), rows
    )
    defaults = {
        "prompt": None,
        "prompt_name": None,
        "output_value": "sentence_embedding",
        "precision": "float32",
    }
    np.testing.assert_array_equal(
        encoder.encode(TEXTS, **defaults, show_progress_bar=False, normalize_embeddings=False), rows
    )
    half = encoder.encode(TEXTS, output_dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, rows, rtol=1e-2)
    torch = pytest.importorskip("torch")
    assert encoder.encode(TEXTS, convert_to_tensor=True).equal(torch.from_numpy(rows))
    assert [len(row) for row in encoder.encode(TEXTS, convert_to_numpy=False)] == [8, 8, 8]
    assert encoder.encode(TEXTS[0], convert_to_tensor=True).shape == (8,)


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
        ({"truncate_dim": 9}, "truncate_dim is 9.*1 to 8"),
        ({"prompt": "query: "}, "prompt 'query: '.*omit"),
        ({"output_value": "token_embeddings"}, "'token_embeddings'.*'sentence_embedding'"),
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


def test_texts_are_lists_arrays_or_columns_of_strings(encoder):
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    rows = encoder.encode(TEXTS)
    for texts in (
        pandas.Series(TEXTS),
        arrow.array(TEXTS),
        arrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        iter(TEXTS),
        tuple(TEXTS),
    ):
        np.testing.assert_array_equal(encoder.encode(texts), rows)
    for wrong, message in (
        (pandas.Series(["a", None, "b"]), r"texts\[1\] is (None|nan)"),
        (["a", float("nan")], r"texts\[1\] is nan"),
        ([None], r"texts\[0\] is None"),
        (arrow.array(["a", None]), r"texts\[1\] is None"),
        (["a", arrow.array(["b"])], r"texts\[1\] is <pyarrow"),
        (["a", "b", arrow.scalar("c")], r"texts\[2\] is <pyarrow"),
        ([b"a"], r"texts\[0\] is b'a'"),
        ([["a"]], r"texts\[0\] is \['a'\]"),
        (np.array([["a"]]), r"texts\[0\] is \['a'\]"),
        (np.array(["a", 1.5], dtype=object), r"texts\[1\] is 1.5"),
        (np.array("a"), "texts is"),
        (pandas.DataFrame({"text": TEXTS}), r"DataFrame.*'text'.*texts\['text'\]"),
        (arrow.table({"text": TEXTS}), r"Table.*'text'.*texts\['text'\]"),
        ({"text": TEXTS}, r"dict.*'text'.*texts\['text'\]"),
        (set(TEXTS), r"set.*sorted\(texts\)"),
        (b"a dog", r"bytes.*b'a dog'"),
        (None, r"texts is .*None"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.encode(wrong)
    with pytest.raises(InputError, match="str 'a dog'"):
        encoder.split("a dog")


def test_similarity_is_the_cosine(encoder):
    rows = encoder.encode(TEXTS)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.similarity(rows, rows[:2]), unit @ unit[:2].T, atol=1e-6)
    np.testing.assert_allclose(encoder.similarity(rows[0], rows[0]), [[1]], atol=1e-6)
    np.testing.assert_allclose(
        encoder.similarity_pairwise(rows, rows[::-1]), (unit * unit[::-1]).sum(1), atol=1e-6
    )
    assert not encoder.similarity(np.zeros(8), rows).any()
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(
        encoder.similarity(torch.from_numpy(rows), rows.tolist()), unit @ unit.T, atol=1e-6
    )
    with pytest.raises(InputError, match=r"\b8\b.*\b4\b"):
        encoder.similarity(rows, rows[:, :4])
    with pytest.raises(InputError, match=r"\(3, 8\).*\(2, 8\)"):
        encoder.similarity_pairwise(rows, rows[:2])


def test_tokenize_pads_the_ids_of_split(encoder):
    features = encoder.tokenize(["One red dog.", "", "Two"])
    ids, lengths = encoder.split(["One red dog.", "", "Two"])
    assert features["attention_mask"].sum(1).tolist() == lengths.tolist()
    is_piece = features["attention_mask"] == 1
    np.testing.assert_array_equal(features["input_ids"][is_piece], ids)
    assert (features["input_ids"][~is_piece] == encoder.size.padding_idx).all()
    np.testing.assert_array_equal(
        encoder.tokenize("One red dog.")["input_ids"], features["input_ids"][:1]
    )
    assert encoder.get_sentence_embedding_dimension() == encoder.get_embedding_dimension() == 8


def test_max_seq_length_limits_the_pieces_of_a_text(encoder):
    text = " ".join(TEXTS * 5)
    fingerprint = encoder.fingerprint
    whole = encoder.encode(text)
    assert encoder.max_seq_length is None
    encoder.max_seq_length = 5
    assert encoder.max_seq_length == len(encoder.split([text])[0]) == 5
    assert not np.allclose(encoder.encode(text), whole)
    assert encoder.fingerprint == f"{fingerprint}-max5"
    assert pickle.loads(pickle.dumps(encoder)).max_seq_length == 5
    for wrong in (0, "5", 2.0, True, -1):
        with pytest.raises(InputError, match=r"max_seq_length .*1 or more"):
            encoder.max_seq_length = wrong
    encoder.max_seq_length = None
    np.testing.assert_array_equal(encoder.encode(text), whole)
    assert encoder.fingerprint == fingerprint


def test_save_replaces_a_model_folder_and_refuses_any_other(encoder, tmp_path):
    encoder.save(tmp_path / "copy")
    encoder.save_pretrained(tmp_path / "copy")
    copy = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert copy.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(copy.encode(TEXTS), encoder.encode(TEXTS))
    copy.save(tmp_path / "copy")
    assert contents(tmp_path / "copy").items() <= contents(FOLDER).items()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="other"):
        encoder.save(tmp_path / "other")
    with pytest.raises(InputError, match="random"):
        SentenceEncoder.from_pretrained(FOLDER, untrained=True).save(tmp_path / "random")


def test_repr_names_the_folder_languages_and_sizes(encoder, tmp_path):
    text = repr(encoder)
    assert text.startswith("SentenceEncoder('best.model': en fr; 8 wide, 90 pieces, ")
    assert f"{encoder.parameters:,} parameters" in text
    assert "untrained" in repr(SentenceEncoder.from_pretrained(FOLDER, untrained=True))
    layered = SentenceEncoder.from_pretrained(small_model.write_folder(tmp_path / "layers"))
    parameters = sum(value.size for value in layered.weights.values())
    assert f"{parameters:,} parameters" in repr(layered)


def test_similarity_takes_vectors_of_any_length_but_no_codes_and_no_nan(encoder):
    for length in (1e20, 1e-25):
        for similarity in (encoder.similarity, encoder.similarity_pairwise):
            cosine = similarity(np.full(8, length), np.full(8, 1.0))
            np.testing.assert_allclose(cosine, 1, atol=1e-6)
    for precision in ("binary", "ubinary"):
        with pytest.raises(InputError, match=r"second.* u?int8"):
            encoder.similarity(encoder.encode(TEXTS), encoder.encode(TEXTS, precision=precision))
    with pytest.raises(InputError, match=r"row 1.*first"):
        encoder.similarity([[1.0, 2.0], [np.nan, 1.0]], [[1.0, 2.0]])
    with pytest.raises(InputError, match=r"output_dtype.*precision"):
        encoder.encode(TEXTS, precision="binary", output_dtype="binary")


def test_the_constructor_takes_a_folder_in_place_of_a_network(encoder):
    rows = encoder.encode(TEXTS)
    for model in (FOLDER, str(FOLDER)):
        opened = SentenceEncoder(model)
        assert opened.folder == FOLDER
        np.testing.assert_array_equal(opened.encode(TEXTS), rows)
    with pytest.raises(InputError, match="without tokenizer or config"):
        SentenceEncoder(encoder.model)
    with pytest.raises(InputError, match="with tokenizer, config or folder"):
        SentenceEncoder(str(FOLDER), encoder.tokenizer)


def test_languages_are_those_of_the_training_pairs(encoder):
    assert encoder.languages == ["en", "fr"]
    encoder.config = {"training": {"pairs": {"en-fr": 2}, "lang_pairs": "de-en, en-it"}}
    assert encoder.languages == ["de", "en", "fr", "it"]
    encoder.config = {}
    assert encoder.languages == []
