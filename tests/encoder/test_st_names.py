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


def test_one_text_gives_one_vector(encoder):
    rows = encoder.encode(TEXTS)
    for one in (TEXTS[1], np.str_(TEXTS[1])):
        np.testing.assert_allclose(encoder.encode(one), rows[1], atol=1e-6)
    assert encoder.encode("").shape == (8,)
    assert encoder.encode("a", normalize=True, truncate_dim=4).shape == (4,)
    for query in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(query(TEXTS, batch_size=2), rows)
        assert query(TEXTS[0]).shape == (8,)


def test_options_by_their_names(encoder):
    rows, unit = encoder.encode(TEXTS), encoder.encode(TEXTS, normalize=True)
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
def test_bits_are_those_of_sentence_transformers(encoder, precision):
    quantization = pytest.importorskip("sentence_transformers.util")
    expected = quantization.quantize_embeddings(encoder.encode(TEXTS), precision)
    found = encoder.encode(TEXTS, precision=precision)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_wrong_values_are_refused_by_the_name_that_was_given(encoder, options, said):
    with pytest.raises(InputError, match=said):
        encoder.encode(["a"], **options)


def test_a_name_of_nobody_is_an_error_of_python(encoder):
    with pytest.raises(TypeError, match="normalise"):
        encoder.encode(["a"], normalise=True)


def test_texts_of_tables(encoder):
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
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
    for wrong, said in (
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
        with pytest.raises(InputError, match=said):
            encoder.encode(wrong)
    with pytest.raises(InputError, match="str 'a dog'"):
        encoder.split("a dog")


def test_similarity(encoder):
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


def test_pieces_of_texts(encoder):
    found = encoder.tokenize(["One red dog.", "", "Two"])
    ids, lengths = encoder.split(["One red dog.", "", "Two"])
    assert found["attention_mask"].sum(1).tolist() == lengths.tolist()
    np.testing.assert_array_equal(found["input_ids"][found["attention_mask"] == 1], ids)
    assert (found["input_ids"][found["attention_mask"] == 0] == encoder.size.padding_idx).all()
    np.testing.assert_array_equal(
        encoder.tokenize("One red dog.")["input_ids"], found["input_ids"][:1]
    )
    assert encoder.get_sentence_embedding_dimension() == encoder.get_embedding_dimension() == 8


def test_the_limit_of_pieces(encoder):
    text, before = " ".join(TEXTS * 5), encoder.fingerprint
    whole = encoder.encode(text)
    assert encoder.max_seq_length is None
    encoder.max_seq_length = 5
    assert encoder.max_seq_length == len(encoder.split([text])[0]) == 5
    assert not np.allclose(encoder.encode(text), whole)
    assert encoder.fingerprint == f"{before}-max5"
    assert pickle.loads(pickle.dumps(encoder)).max_seq_length == 5
    for wrong in (0, "5", 2.0, True, -1):
        with pytest.raises(InputError, match=r"max_seq_length .*1 or more"):
            encoder.max_seq_length = wrong
    encoder.max_seq_length = None
    np.testing.assert_array_equal(encoder.encode(text), whole)
    assert encoder.fingerprint == before


def test_save(encoder, tmp_path):
    encoder.save(tmp_path / "copy")
    encoder.save_pretrained(tmp_path / "copy")  # over one of ours
    again = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    again.save(tmp_path / "copy")
    assert contents(tmp_path / "copy").items() <= contents(FOLDER).items()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="other"):
        encoder.save(tmp_path / "other")
    with pytest.raises(InputError, match="random"):
        SentenceEncoder.from_pretrained(FOLDER, untrained=True).save(tmp_path / "random")


def test_what_it_says_of_itself(encoder, tmp_path):
    text = repr(encoder)
    assert text.startswith("SentenceEncoder('best.model': en fr; 8 wide, 90 pieces, ")
    assert f"{encoder.parameters:,} parameters" in text
    assert "untrained" in repr(SentenceEncoder.from_pretrained(FOLDER, untrained=True))
    layers = SentenceEncoder.from_pretrained(small_model.write_folder(tmp_path / "layers"))
    assert f"{sum(value.size for value in layers.weights.values()):,} parameters" in repr(layers)


def test_cosines_of_extreme_lengths_and_of_codes(encoder):
    for length in (1e20, 1e-25):
        for found in (encoder.similarity, encoder.similarity_pairwise):
            np.testing.assert_allclose(found(np.full(8, length), np.full(8, 1.0)), 1, atol=1e-6)
    for precision in ("binary", "ubinary"):
        with pytest.raises(InputError, match=r"second.* u?int8"):
            encoder.similarity(encoder.encode(TEXTS), encoder.encode(TEXTS, precision=precision))
    with pytest.raises(InputError, match=r"row 1.*first"):
        encoder.similarity([[1.0, 2.0], [np.nan, 1.0]], [[1.0, 2.0]])
    with pytest.raises(InputError, match=r"output_dtype.*precision"):
        encoder.encode(TEXTS, precision="binary", output_dtype="binary")


def test_a_name_or_a_folder_in_the_place_of_a_network(encoder):
    rows = encoder.encode(TEXTS)
    for model in (FOLDER, str(FOLDER)):
        opened = SentenceEncoder(model)
        assert opened.folder == FOLDER
        np.testing.assert_array_equal(opened.encode(TEXTS), rows)
    with pytest.raises(InputError, match="without tokenizer or config"):
        SentenceEncoder(encoder.model)
    with pytest.raises(InputError, match="with tokenizer, config or folder"):
        SentenceEncoder(str(FOLDER), encoder.tokenizer)


def test_languages_of_the_training_text(encoder):
    assert encoder.languages == ["en", "fr"]
    encoder.config = {"training": {"pairs": {"en-fr": 2}, "lang_pairs": "de-en, en-it"}}
    assert encoder.languages == ["de", "en", "fr", "it"]
    encoder.config = {}
    assert encoder.languages == []
