"""An encoder without layers needs no torch, and gives the vectors of torch."""

import numpy as np
import pytest
import random_model
import small_model
import toy

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import read_config
from fairseq_lxsr.encoder.numpy_network import Bag
from fairseq_lxsr.encoder.torch_network import read_model
from fairseq_lxsr.errors import InputError

SENTENCES = toy.lines(60, seed=5)
SENTENCES += ["", "dog", "the " * 150, "Un chien.", "  "]


@pytest.fixture(scope="module", params=[0, 1, 3], ids=lambda order: f"order{order}")
def folder(request, tmp_path_factory):
    return random_model.write_model(
        tmp_path_factory.mktemp("bag") / "m",
        gated=True,
        num_layers=0,
        order_coefficients=request.param,
    )


def by_torch(folder, untrained=False, **options) -> np.ndarray:
    config = read_config(folder)
    network, tokenizer = read_model(folder, config, untrained)
    return SentenceEncoder(network, tokenizer, config, "cpu", untrained).encode(
        SENTENCES, **options
    )


def difference(embeddings: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of a coordinate, relative to the longest vector."""
    return float(np.abs(embeddings - expected).max() / np.linalg.norm(expected, axis=1).max())


@pytest.mark.parametrize(
    "options", [{}, {"on_long": "split-mean"}, {"normalize": True, "truncate_dim": 8}], ids=str
)
def test_vectors_equal_those_of_torch(folder, options):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert isinstance(encoder._bag, Bag)
    embeddings = encoder.encode(SENTENCES, **options)
    assert embeddings.dtype == np.float32
    assert difference(embeddings, by_torch(folder, **options)) < 1e-6
    # The network of torch was not built.
    assert encoder._networks is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_vectors_of_a_half_precision_table_equal_those_of_torch(folder, dtype, tmp_path):
    half = small_model.save_as(folder, tmp_path / "half", dtype)
    embeddings = SentenceEncoder.from_pretrained(half).encode(SENTENCES)
    assert difference(embeddings, by_torch(half)) < 1e-6


def test_a_table_in_8_bits_is_small_and_close_to_the_float32_one(folder, tmp_path):
    small = small_model.save_as(folder, tmp_path / "small", "int8")
    encoder = SentenceEncoder.from_pretrained(small)
    float32 = SentenceEncoder.from_pretrained(folder)
    embeddings = encoder.encode(SENTENCES, normalize=True)
    assert difference(embeddings, by_torch(small, normalize=True)) < 1e-6
    cosines = (embeddings * float32.encode(SENTENCES, normalize=True)).sum(axis=1)
    assert cosines[embeddings.any(axis=1)].min() > 0.999
    assert encoder.fingerprint != float32.fingerprint
    assert encoder.parameters == float32.parameters
    # A large table would shrink to a quarter.
    small_size = (small / "model.safetensors").stat().st_size
    assert small_size < 0.5 * (folder / "model.safetensors").stat().st_size


def test_an_embedding_does_not_depend_on_its_batch(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    reference = encoder.encode(SENTENCES)
    for sentence, expected in zip(SENTENCES, reference, strict=True):
        np.testing.assert_array_equal(encoder.encode(sentence), expected)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCH_PIECES", 1)
    np.testing.assert_array_equal(encoder.encode(SENTENCES), reference)
    assert encoder.encode([]).shape == (0, 32)


def test_threads_give_the_same_vectors(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    reference = encoder.encode(SENTENCES * 3)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCH_PIECES", 16)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCHES_PER_THREAD", 2)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.usable_threads", lambda: 3)
    np.testing.assert_array_equal(encoder.encode(SENTENCES * 3), reference)


def test_other_precisions_and_the_network_come_from_the_same_weights(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert (encoder.device, encoder.output_dim) == ("cpu", 32)
    rounded = encoder.encode(SENTENCES, dtype="bfloat16", normalize=True)
    assert difference(rounded, encoder.encode(SENTENCES, normalize=True)) < 0.01
    assert encoder.model.state_dict().keys() == encoder._bag.weights.keys()
    table = encoder.model.embed_tokens.weight.detach().numpy()
    assert np.shares_memory(table, encoder._bag.weights["embed_tokens.weight"])
    with pytest.raises(InputError, match=r"int8.*cuda|device cuda.*cpu"):
        encoder.encode(["dog"], dtype="int8", device="cuda")


def test_untrained_weights_equal_those_of_torch(folder):
    embeddings = SentenceEncoder.from_pretrained(folder, untrained=True).encode(SENTENCES)
    np.testing.assert_array_equal(embeddings, by_torch(folder, untrained=True))
