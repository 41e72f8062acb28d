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

VEC = "3 2\na 1 0\nb 0 2\nc -1 4\n"


@pytest.fixture
def vec(tmp_path):
    (tmp_path / "en.vec").write_text(VEC)
    return tmp_path / "en.vec"


@pytest.mark.parametrize(
    ("weights", "expected"), [("sum", [[1, 2], [0, 4]]), ("mean", [[0.5, 1], [0, 4 / 2]])]
)
def test_sum_and_mean_of_word_vectors(vec, weights, expected):
    text = Text(["a B unknown", "c a"])
    np.testing.assert_allclose(WordVectors(vec, weights).embed(text), expected)


def test_mean_of_word_vectors_weighted_by_idf(vec):
    """The word a is in both sentences, with the weight log(3/2); b and c are in one, with log 3."""
    common = np.log(3 / 2)
    rare = np.log(3)
    first = (common * np.array([1, 0]) + rare * np.array([0, 2])) / (common + rare)
    second = (common * np.array([1, 0]) + rare * np.array([-1, 4])) / (common + rare)
    np.testing.assert_allclose(
        WordVectors(vec, "idf").embed(Text(["a b", "a c"])), [first, second], rtol=1e-6
    )


def test_word_vectors_may_be_compressed_without_header_and_with_repeated_words(tmp_path):
    with gzip.open(tmp_path / "x.vec.gz", "wt") as stream:
        stream.write("a 1 0\na 5 5\n")
    np.testing.assert_array_equal(WordVectors(tmp_path / "x.vec.gz").embed(Text(["a"])), [[1, 0]])


def test_embed_refuses_a_sentence_without_known_words(vec):
    with pytest.raises(InputError, match=r"test\.en, line 2: .*'unknown'"):
        embed(WordVectors(vec), Text(["a", "unknown"], file="test.en"))


def test_invalid_word_vectors_are_refused(tmp_path):
    for line in ("b 1", "b x y", "b 1 nan", "b"):
        (tmp_path / "x.vec").write_text(f"a 1 0\n{line}\n")
        with pytest.raises(InputError, match=r"x\.vec, line 2: .*\b2 numbers"):
            WordVectors(tmp_path / "x.vec")


def test_unknown_weights_of_words_are_refused(vec):
    with pytest.raises(InputError, match=r"'max'.*mean, sum, idf"):
        WordVectors(vec, "max")


def test_a_file_with_fewer_vectors_than_its_header_says_is_named(tmp_path, caplog):
    (tmp_path / "x.vec").write_text("3 2\na 1 0\nb 0 1\n")
    WordVectors(tmp_path / "x.vec")
    assert re.search(r"x\.vec .*\b2 .*\b2\b.*\b3 2\b", caplog.text)


def test_fingerprints_depend_on_vectors_weights_and_languages(vec, tmp_path):
    (tmp_path / "fr.vec").write_text(VEC.replace("3 2", "4 2", 1) + "d 3 3\n")
    systems = [WordVectors(vec), WordVectors(vec, "sum"), WordVectors(tmp_path / "fr.vec")]
    assert len({system.fingerprint for system in systems}) == 3
    assert ByLanguage({"en": systems[0]}).fingerprint != ByLanguage({"fr": systems[0]}).fingerprint


def test_the_language_of_a_text_chooses_its_encoder(vec):
    system = ByLanguage({"en": WordVectors(vec), "fr": WordVectors(vec, "sum")})
    assert system.embed(Text(["b b"], "fr")).tolist() == [[0, 4]]
    with pytest.raises(InputError, match=r"'de'.*\ben, fr\b.*--model de="):
        system.embed(Text(["b"], "de"))


def test_stored_embeddings_follow_the_rows_of_the_file(tmp_path):
    rows = np.arange(36, dtype=np.float32).reshape(12, 3) + 1
    np.save(tmp_path / "test.en.npy", rows.astype(np.float16))
    rows[::-1].tofile(tmp_path / "test.fr.raw")
    system = StoredEmbeddings(tmp_path, raw_width=3)
    pairs = [(f"a {number}", f"b {number}") for number in range(12)]
    files = ("text/test.en.txt.gz", "text/test.fr")
    selected = xsr.select(pairs, languages=("en", "fr"), files=files)
    for text, stored in ((selected.source, rows), (selected.target, rows[::-1])):
        numbers = [int(line.split()[1]) for line in text.lines]
        np.testing.assert_array_equal(system.embed(text), stored[numbers])
    message = r"test\.en\.npy\b.*text/test\.en\.txt\.gz.*other/test\.en"
    with pytest.raises(InputError, match=message):
        system.embed(Text(["x"] * 12, file="other/test.en"))


def test_stored_embeddings_of_another_number_of_lines_are_refused(tmp_path):
    np.save(tmp_path / "test.en.npy", np.ones((12, 3), np.float16))
    system = StoredEmbeddings(tmp_path, raw_width=3)
    assert system.embed(Text(["x"] * 12, file="test.en")).shape == (12, 3)
    for text in (
        Text(["x"] * 5, file="test.en"),
        Text(["x"] * 5, file="test.en", rows=np.arange(5), total=11),
    ):
        with pytest.raises(InputError, match=r"test\.en\.npy:? .*12 .*\b(5|11) lines"):
            system.embed(text)
    with pytest.raises(InputError, match=r"other\.npy:? .*\.parquet, \.raw, "):
        system.embed(Text(["x"], file="other"))
    with pytest.raises(InputError, match=r"--model.*--input"):
        system.embed(Text(["x"]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", b"text", "x.npy"),
        ("x.npy", np.array(["a"]), r"<U1\b.*\(1,\)"),
        ("x.npy", np.ones(3), r"float64\b.*\(3,\)"),
        ("x.npy", np.array([{}], dtype=object), "x.npy"),
        ("x.raw", b"12345", r"5 bytes.*\b2 float32.*#dim="),
        ("x.raw", b"", "0 bytes"),
    ],
)
def test_invalid_files_of_embeddings_are_refused(tmp_path, name, content, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.save(tmp_path / name, content)
    with pytest.raises(InputError, match=message):
        read_embeddings(tmp_path / name, raw_width=2)
    with pytest.raises(InputError, match="raw_width 0"):
        read_embeddings(tmp_path / name, raw_width=0)


def test_a_parquet_column_without_lists_of_equal_length_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    for column in (
        [[1.0, 2], [3]],
        [[1.0, 2], None, [3, 4, 5, 6]],
        [[1.0, 2], [None, 3]],
        [1.0, 2],
        [],
        [[], []],
        [["a"]],
    ):
        parquet.write_table(pyarrow.table({"embeddings": column}), tmp_path / "x.parquet")
        with case(column), pytest.raises(InputError, match=r"x\.parquet:? "):
            read_embeddings(tmp_path / "x.parquet")


def test_big_endian_embeddings_are_converted(tmp_path):
    rows = np.arange(12).reshape(4, 3) / 4
    for dtype in (">f2", ">f4", ">f8"):
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


def test_a_hugging_face_folder_gives_the_mean_of_its_states(bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    text = Text(["dog cat cat", "chien"])
    embeddings = sentence_transformers_folder(bert, device="cpu").embed(text)
    tokens = AutoTokenizer.from_pretrained(bert)(
        list(text.lines), padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        states = AutoModel.from_pretrained(bert).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(embeddings, means.numpy(), atol=1e-5)


def test_of_a_model_of_another_library_only_safetensors_are_downloaded(bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Text(["dog cat cat", "chien"])
    with serving(tmp_path / "cache") as server:
        server.add("org/bert", bert, pytorch_model__bin=b"pickled", code__py=b"1 / 0")
        embeddings = load("hub:org/bert", device="cpu").embed(text)
        np.testing.assert_allclose(embeddings, load(bert, device="cpu").embed(text), atol=1e-6)
        assert not [name for name in server.requests if name.endswith((".bin", ".py"))]
        (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
        server.add("org/pickled", bert)
        with pytest.raises(InputError, match="models--org--pickled"):
            load("hub:org/pickled", device="cpu")


def test_a_folder_of_sentence_transformers_gives_its_embeddings(bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bert), device="cpu")
    model.save(str(tmp_path / "st"))
    system = sentence_transformers_folder(tmp_path / "st", device="cpu")
    np.testing.assert_allclose(system.embed(Text(["dog"])), model.encode(["dog"]), atol=1e-6)
    assert len(system.fingerprint) == 12


def test_folders_that_do_not_load_are_refused(bert, monkeypatch):
    (bert / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InputError, match=re.escape(str(bert))):
        sentence_transformers_folder(bert, device="cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"-m pip install .*sentence-transformers"):
        sentence_transformers_folder(bert)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "5"),
        ("modules.json", "[1]"),
        ("config.json", '{"model_type": "bert", "hidden_size": "x"}'),
        ("config_sentence_transformers.json", "[]"),
        ("1_Pooling/config.json", '{"what": 3}'),
    ],
)
def test_damaged_folders_are_refused(bert, tmp_path, name, content):
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(bert), device="cpu").save(str(tmp_path / "st"))
    (tmp_path / "st" / name).write_text(content)
    with pytest.raises(InputError, match=r"/st: .*\(."):
        sentence_transformers_folder(tmp_path / "st", device="cpu")


def test_an_error_without_a_message_is_named_by_its_type(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(pytest.importorskip("sentence_transformers"), "SentenceTransformer", refuse)
    with pytest.raises(InputError, match=r"\(AssertionError\)"):
        sentence_transformers_folder(tmp_path)


class PanicException(BaseException):
    """The exception of libraries in Rust, for example of tokenizers for a damaged tokenizer.json."""


def panic(*arguments, **options):
    os.write(2, b"thread panicked\n")
    raise PanicException("Invalid byte 61")


def test_a_panic_of_rust_is_refused_in_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(pytest.importorskip("sentence_transformers"), "SentenceTransformer", panic)
    with pytest.raises(InputError, match=rf"{tmp_path}: .*\(Invalid byte 61\)"):
        sentence_transformers_folder(tmp_path)
    assert capfd.readouterr().err == ""
    model = LibraryModel(SimpleNamespace(encode=panic), "x", 2)
    with pytest.raises(InputError, match="Invalid byte 61"):
        model.embed(Text(["a"]))


def test_a_folder_that_embeds_nothing_is_refused(tmp_path):
    modules = pytest.importorskip("sentence_transformers.models")
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=[modules.Normalize()], device="cpu").save(str(tmp_path / "st"))
    with pytest.raises(InputError, match="/st: "):
        sentence_transformers_folder(tmp_path / "st", device="cpu")


def test_stored_embeddings_of_two_models_are_never_mixed(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    about = {"model": "aaaa", "dimension": 3, "dtype": "float16"}
    rows.astype(np.float16).tofile(tmp_path / "en.raw")
    np.save(tmp_path / "fr.npy", rows)
    (tmp_path / "en.raw.json").write_text(json.dumps(about))
    (tmp_path / "fr.npy.json").write_text(json.dumps(about | {"dtype": "float32"}))
    # The width and type of raw files are in the description.
    system = StoredEmbeddings(tmp_path)
    english = Text(["x"] * 4, file="en")
    french = Text(["x"] * 4, file="fr")
    np.testing.assert_array_equal(system.embed(english), rows)
    np.testing.assert_array_equal(system.embed(french), rows)
    (tmp_path / "fr.npy.json").write_text(json.dumps(about | {"model": "bbbb"}))
    system = StoredEmbeddings(tmp_path)
    system.embed(english)
    with pytest.raises(InputError, match=r"fr\.npy:? .*\bbbbb\b.*en\.raw.*\baaaa\b"):
        system.embed(french)
    (tmp_path / "fr.npy.json").write_text("[]")
    with pytest.raises(InputError, match=r"fr\.npy\.json: .*\bfr\.npy\b"):
        system.embed(french)


def test_the_fingerprint_of_stored_embeddings_is_their_model(tmp_path):
    def store(name, values=1.0, **about):
        settings = {"model": "aaaa", "computed_in": "float32", "normalize": False, "on_long": "cut"}
        settings |= about
        layout = Layout("npy", settings.pop("dtype", "float32"), 3)

        def encode(lines, counts):
            return np.full((2, 3), values)

        embed_lines(["a", "b"], encode, tmp_path / name, layout, settings)
        return StoredEmbeddings(tmp_path).fingerprint

    assert store("en.npy") == store("fr.npy") == store("de.npy", 2, on_long="error") == "aaaa"
    for about in ({"model": "bbbb"}, {"model": "a|b"}, {"normalize": True}, {"dtype": "int8"}):
        assert re.fullmatch("[0-9a-f]{12}", store("de.npy", 2, **about))
    (tmp_path / "de.npy").unlink()
    store("en.npy", dtype="float16", normalize=True)
    assert store("fr.npy", dtype="float16", normalize=True) == "aaaa-dtype=float16-normalize=True"
    assert store("en.npy") != store("fr.npy") == "aaaa"
    # The description is one of another program.
    (tmp_path / "fr.npy.json").write_text("{}")
    assert re.fullmatch("[0-9a-f]{12}", StoredEmbeddings(tmp_path).fingerprint)
    store("fr.npy")
    # The description is no longer true.
    np.save(tmp_path / "en.npy", np.zeros((2, 3)))
    assert re.fullmatch("[0-9a-f]{12}", StoredEmbeddings(tmp_path).fingerprint)


def test_stored_embeddings_of_a_changed_text_are_refused(tmp_path):
    lines = ["A dog", "a cat", "", "a bird"]
    (tmp_path / "test.en").write_text("\n".join(lines) + "\n")
    (tmp_path / "labelled").write_text("".join(f"1\t{line}\n" for line in lines))
    about = {"model": "aaaa", "dimension": 3, "dtype": "float32", "text": hash_lines(lines)[1]}
    for name in ("test.en", "labelled"):
        np.save(tmp_path / f"{name}.npy", np.ones((4, 3), dtype=np.float32))
        (tmp_path / f"{name}.npy.json").write_text(json.dumps(about))
    whole = str(tmp_path / "test.en")
    labelled = str(tmp_path / "labelled")
    rows = np.array([3, 0])
    # A protocol may change the case of lines, or select some; labelled text cannot be compared.
    for text in (
        Text(lines, file="elsewhere/test.en"),
        Text([line.upper() for line in lines], file=whole),
        Text(["a bird", "a dog"], file=whole, rows=rows, total=4),
        Text(lines, file=labelled),
        Text(["other", "text"], file=labelled, rows=rows, total=4),
    ):
        assert len(StoredEmbeddings(tmp_path).embed(text)) == len(text)
    (tmp_path / "test.en").write_text("\n".join(lines[::-1]) + "\n")
    for text in (
        Text(lines[::-1], file=whole),
        Text(["a dog"], file=whole, rows=rows[:1], total=4),
    ):
        with pytest.raises(InputError, match=r"test\.en\.npy:? .*/test\.en\b"):
            StoredEmbeddings(tmp_path).embed(text)
    (tmp_path / "test.en.npy.json").unlink()
    assert len(StoredEmbeddings(tmp_path).embed(Text(lines[::-1], file=whole))) == 4


def test_any_encoder_is_loaded_by_its_name(tmp_path):
    model = small_model.write_folder(tmp_path / "model")
    (tmp_path / "words.vec").write_text("red 1 2\nblue 4 3\n")
    (tmp_path / "stored").mkdir()
    np.full((1, 3), 2, dtype=np.float32).tofile(tmp_path / "stored" / "text.raw")
    red = Text(["red blue"], "en", "text")
    expected = {
        f"{tmp_path}/words.vec": [2.5, 2.5],
        f"{tmp_path}/words.vec#sum": [5, 5],
        f"{tmp_path}/stored#dim=3": [2, 2, 2],
    }
    for name, vector in expected.items():
        assert load(name).embed(red).tolist() == [vector]
    languages = load({"en": f"{tmp_path}/words.vec#sum", "fr": f"{tmp_path}/words.vec"})
    assert languages.embed(red).tolist() == [[5, 5]]
    fingerprint = load(model).fingerprint
    assert load(f"{model}#untrained").fingerprint == f"{fingerprint}-untrained"
    # The name of an existing folder has no options.
    model.rename(tmp_path / "model#untrained")
    assert load(f"{model}#untrained").fingerprint == fingerprint


def test_a_checksum_belongs_to_the_address_and_not_to_the_options():
    address = "https://a.org/m.zip?b=c"
    with_checksum = f"{address}#sha256=0f"
    for name in (address, with_checksum):
        assert ModelName.parse(f"en={name}") == ModelName(f"en={name}", "en", name, ())
    for name, end in (
        (address, "#untrained"),
        (with_checksum, "#untrained"),
        (with_checksum, ",untrained"),
    ):
        assert ModelName.parse(name + end) == ModelName(name + end, "", name, ("untrained",))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("words.vec#untrained", "#mean or #sum or #idf"),
        ("model#idf", "#untrained"),
        ("stored#mean", "#dim=N"),
        ("stored#dim=0", "#dim="),
        ("stored#dim=x", "#dim="),
        ("#untrained", ""),
        ("en=", ""),
    ],
)
def test_invalid_options_after_a_name_are_refused(tmp_path, monkeypatch, name, message):
    small_model.write_folder(tmp_path / "model")
    (tmp_path / "words.vec").write_text("red 1 2\n")
    (tmp_path / "stored").mkdir()
    np.zeros((1, 3), dtype=np.float32).tofile(tmp_path / "stored" / "text.raw")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"{re.escape(name)}.*{re.escape(message)}"):
        load(name)


@pytest.mark.parametrize("options", [{"other": 1}, {"dtype": "int4"}, {"on_long": "drop"}])
def test_load_refuses_unknown_options(options):
    ((name, value),) = options.items()
    with pytest.raises(InputError, match=f"{name}|{value}"):
        load("lxsr-static", **options)
