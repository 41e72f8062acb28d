import itertools
import json
import multiprocessing
import pickle
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import toy
from conftest import lxsr_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.packed_linear import PackedLinear, can_pack
from fairseq_lxsr.text.tokenizer import read_dictionary


@pytest.fixture(scope="module")
def encoder(toy_model):
    return SentenceEncoder.from_pretrained(toy_model, device="cpu")


SENTENCES = [english for english, _ in toy.sentences(60, seed=5)]
SENTENCES += ["", "dog", "the " * 150, "Un chien.", "  "]


def test_an_embedding_does_not_depend_on_batch_and_order(encoder):
    reference = encoder.encode(SENTENCES)
    assert reference.dtype == np.float32
    assert reference.shape == (len(SENTENCES), 32)
    for batch_size in (1, 7, 1000):
        np.testing.assert_allclose(
            encoder.encode(SENTENCES, batch_size=batch_size), reference, atol=1e-5
        )
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    np.testing.assert_allclose(
        encoder.encode([SENTENCES[row] for row in order]), reference[order], atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode([SENTENCES[3]])[0], reference[3], atol=1e-5)


def test_only_empty_sentences_give_zeros(encoder):
    embeddings = encoder.encode(SENTENCES)
    is_empty = np.array([not sentence.strip() for sentence in SENTENCES])
    assert not embeddings[is_empty].any()
    assert embeddings[~is_empty].any(axis=1).all()
    assert encoder.encode([]).shape == (0, 32)
    assert encoder.encode(["", ""]).tolist() == np.zeros((2, 32)).tolist()


def test_long_sentences_are_cut(encoder):
    cut = encoder.encode(["the dog " * 300])
    np.testing.assert_array_equal(cut, encoder.encode(["the dog " * 400]))


def test_text_is_lowercased_as_in_training(encoder):
    np.testing.assert_array_equal(encoder.encode(["ONE RED DOG"]), encoder.encode(["one red dog"]))


def test_encoding_gives_the_ids_that_fairseq_preprocess_wrote(toy_work, toy_model, encoder):
    from fairseq.data import data_utils

    lines = (toy_work / "corpus" / "en-fr" / "test.fr").read_text(encoding="utf-8").splitlines()
    binarised = data_utils.load_indexed_dataset(
        str(toy_work / "data-bin" / "test.en-fr.fr"), dataset_impl=None
    )
    for index, ids in enumerate(encoder.tokenizer.encode(lines)):
        # fairseq adds EOS.
        assert ids.tolist() == binarised[index][:-1].tolist()


def test_the_weights_are_those_of_the_checkpoint(toy_checkpoint, encoder):
    from fairseq_lxsr.encoder.checkpoint import read_checkpoint

    trained = read_checkpoint(toy_checkpoint)["model"]
    for name, value in encoder.model.state_dict().items():
        assert torch.equal(value, trained[f"encoder.{name}"]), name


def test_half_precision_weights_take_half_the_space(tmp_path, toy_model, toy_checkpoint, encoder):
    half = tmp_path / "half"
    lxsr_here(
        "export", "folder", "--checkpoint", toy_checkpoint, "--output", half, "--dtype", "float16"
    )
    half_size = (half / "model.safetensors").stat().st_size
    assert half_size < 0.6 * (toy_model / "model.safetensors").stat().st_size
    half_encoder = SentenceEncoder.from_pretrained(half)
    assert half_encoder.model.embed_tokens.weight.dtype == torch.float32
    expected = encoder.encode(SENTENCES)
    np.testing.assert_allclose(half_encoder.encode(SENTENCES), expected, atol=5e-3)


def test_the_fingerprint_depends_on_the_text_options(toy_model, encoder):
    assert len(encoder.fingerprint) == 12
    assert SentenceEncoder.from_pretrained(toy_model).fingerprint == encoder.fingerprint
    config = json.loads((toy_model / "config.json").read_text())
    config["text"]["lowercase"] = False
    cased = SentenceEncoder(encoder.model, encoder.tokenizer, config)
    assert cased.fingerprint != encoder.fingerprint


def test_untrained_weights_are_random_and_repeatable(toy_model, encoder):
    first = SentenceEncoder.from_pretrained(toy_model, untrained=True).encode(["a dog"])
    second = SentenceEncoder.from_pretrained(toy_model, untrained=True).encode(["a dog"])
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - encoder.encode(["a dog"])).max() > 0.1


def test_loading_does_not_change_the_random_state(toy_model):
    before = torch.random.get_rng_state()
    SentenceEncoder.from_pretrained(toy_model)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_dictionary_begins_with_the_special_symbols(toy_model):
    symbols = read_dictionary(toy_model / "dict.txt")
    assert symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    config = json.loads((toy_model / "config.json").read_text())
    assert len(symbols) + 1 == config["encoder"]["vocab_size"]


def test_embeddings_are_truncated_before_they_are_normalized(encoder):
    first_columns = encoder.encode(SENTENCES)[:, :10]
    short = encoder.encode(SENTENCES, truncate_dim=10, normalize=True)
    lengths = np.linalg.norm(first_columns, axis=1, keepdims=True)
    expected = first_columns / np.maximum(lengths, 1e-30)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    assert short.dtype == np.float32


def test_generators_arrays_and_small_batches_give_the_same_vectors(encoder, monkeypatch):
    reference = encoder.encode(SENTENCES)
    np.testing.assert_array_equal(encoder.encode(sentence for sentence in SENTENCES), reference)
    np.testing.assert_array_equal(encoder.encode(np.array(SENTENCES)), reference)
    monkeypatch.setattr("fairseq_lxsr.encoder.torch_network.BATCH_PIECES", 1)
    np.testing.assert_allclose(encoder.encode(SENTENCES), reference, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"on_long": "split-mean"}, {"dtype": "bfloat16"}], ids=str)
def test_memory_does_not_grow_with_the_number_of_calls(encoder, options):
    sentences = SENTENCES * 10
    times = 5
    encoder.encode(sentences, **options)
    tracemalloc.start()
    encoder.encode(sentences, **options)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(times):
        encoder.encode(sentences, **options)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bytes_per_sentence = (after - before) / (times * len(sentences))
    assert bytes_per_sentence < 10


def test_split_mean_weighs_the_parts_of_a_long_sentence_by_their_pieces(encoder):
    """Each part is encoded from position 0."""
    limit = encoder.model.config.max_positions
    long = "the dog " * 300
    ids, lengths = encoder.tokenizer.encode_flat([long])
    assert lengths[0] > 2 * limit
    parts = [ids[start : start + limit] for start in range(0, len(ids), limit)]
    with torch.inference_mode():
        vectors = [encoder.model(torch.from_numpy(part)[None])[0][0][0].numpy() for part in parts]
    mean = sum(len(part) * vector for part, vector in zip(parts, vectors, strict=True)) / len(ids)
    counts = Counter()
    embeddings = encoder.encode(["dog", long, ""], on_long="split-mean", counts=counts)
    np.testing.assert_allclose(embeddings[1], mean, atol=1e-5)
    np.testing.assert_allclose(embeddings[0], encoder.encode(["dog"])[0], atol=1e-5)
    assert not embeddings[2].any()
    assert counts == {"empty": 1, "long": 1}
    with pytest.raises(InputError, match=rf"sentence 2, 'the dog .*: {lengths[0]} .*\b{limit}\b"):
        encoder.encode(["dog", long], on_long="error")


def test_threads_in_several_precisions_do_not_disturb_each_other(encoder):
    expected = {
        "float32": encoder.encode(SENTENCES),
        "bfloat16": encoder.encode(SENTENCES, dtype="bfloat16"),
    }
    tolerances = {"float32": 1e-5, "bfloat16": 0.05}
    jobs = list(itertools.product(expected, (3, 8, 64))) * 3

    def encode(job):
        dtype, batch_size = job
        return encoder.encode(SENTENCES, batch_size, dtype=dtype)

    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(encode, jobs))
    for (dtype, _), embeddings in zip(jobs, results, strict=True):
        np.testing.assert_allclose(embeddings, expected[dtype], atol=tolerances[dtype])


@pytest.mark.slow
def test_a_pickled_encoder_has_no_copies_in_other_precisions(encoder):
    first_part = SENTENCES[:20]
    second_part = SENTENCES[20:]
    size = len(pickle.dumps(encoder))
    # Makes a copy of the weights that is not pickled.
    encoder.encode(SENTENCES[:2], dtype="int8")
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        first, second = processes.map(encoder.encode, [first_part, second_part])
    np.testing.assert_array_equal(first, encoder.encode(first_part))
    np.testing.assert_array_equal(second, encoder.encode(second_part))
    assert len(pickle.dumps(encoder)) == size
    unpickled = pickle.loads(pickle.dumps(encoder))
    assert unpickled.fingerprint == encoder.fingerprint
    expected = encoder.encode(SENTENCES, dtype="bfloat16")
    np.testing.assert_array_equal(unpickled.encode(SENTENCES, dtype="bfloat16"), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": 1.5}, r"batch_size is 1\.5"),
        ({"truncate_dim": True}, "truncate_dim is True"),
        ({"truncate_dim": "3"}, "truncate_dim is '3'"),
        ({"dtype": "int4"}, "dtype is 'int4'.* float32, bfloat16"),
        ({"truncate_dim": 33}, "truncate_dim is 33.* 32"),
        ({"on_long": "drop"}, "on_long is 'drop'.* cut, split-mean, error"),
        ({"device": "cuda:99"}, "device cuda:99.*cpu"),
        ({"device": "gpu"}, "device gpu.*cpu"),
    ],
)
def test_invalid_options_are_refused(encoder, options, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(["dog"], **options)


@pytest.mark.parametrize(
    ("dtype", "least"), [("bfloat16", 0.999), ("float16", 0.99999), ("int8", 0.99)]
)
def test_lower_precision_changes_the_direction_little(encoder, dtype, least):
    exact = encoder.encode(SENTENCES, normalize=True)
    rounded = encoder.encode(SENTENCES, dtype=dtype, normalize=True)
    assert rounded.dtype == np.float32
    cosines = (exact * rounded).sum(axis=1)[exact.any(axis=1)]
    assert cosines.min() > least
    # The precision did change.
    assert (cosines < 1 - 1e-7).any()


def test_packed_layers_share_the_table_and_compute_the_same(encoder):
    packed = encoder._copies()._model("cpu", "float32")
    network = encoder.model
    assert packed.embed_tokens.weight.data_ptr() == network.embed_tokens.weight.data_ptr()
    linears = [
        type(part) for part in packed.modules() if isinstance(part, torch.nn.Linear | PackedLinear)
    ]
    # Two layers with four linear modules each.
    assert linears == [PackedLinear if can_pack(torch.float32) else torch.nn.Linear] * 8
    ids = torch.from_numpy(np.concatenate(encoder.tokenizer.encode(["the red dog"])))[None]
    with torch.inference_mode():
        np.testing.assert_allclose(packed.embed_padded(ids), network.embed_padded(ids), atol=1e-5)
