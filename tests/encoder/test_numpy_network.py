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

SENTENCES = [side for pair in toy.sentences(60, seed=5) for side in pair] + [
    "",
    "dog",
    "the " * 150,
    "Un chien.",
    "  ",
]


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


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of a coordinate, relative to the longest vector."""
    return float(np.abs(found - expected).max() / np.linalg.norm(expected, axis=1).max())


@pytest.mark.parametrize(
    "options", [{}, {"on_long": "split-mean"}, {"normalize": True, "truncate_dim": 8}], ids=str
)
def test_vectors_are_those_of_torch(folder, options):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert isinstance(encoder._bag, Bag)
    found = encoder.encode(SENTENCES, **options)
    assert found.dtype == np.float32
    assert difference(found, by_torch(folder, **options)) < 1e-6
    assert encoder._networks is None  # torch was not asked


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tables_of_half_precision(folder, dtype, tmp_path):
    half = small_model.save_as(folder, tmp_path / "half", dtype)
    assert (
        difference(SentenceEncoder.from_pretrained(half).encode(SENTENCES), by_torch(half)) < 1e-6
    )


def test_a_table_in_8_bits(folder, tmp_path):
    small = small_model.save_as(folder, tmp_path / "small", "int8")
    encoder, plain = SentenceEncoder.from_pretrained(small), SentenceEncoder.from_pretrained(folder)
    found = encoder.encode(SENTENCES, normalize=True)
    assert difference(found, by_torch(small, normalize=True)) < 1e-6
    cosines = (found * plain.encode(SENTENCES, normalize=True)).sum(axis=1)
    assert cosines[found.any(axis=1)].min() > 0.999
    assert encoder.fingerprint != plain.fingerprint
    assert encoder.parameters == plain.parameters
    sizes = [(path / "model.safetensors").stat().st_size for path in (small, folder)]
    assert sizes[0] < 0.5 * sizes[1]  # of a table that is not as small, a quarter


def test_an_embedding_does_not_depend_on_its_batch(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    reference = encoder.encode(SENTENCES)
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode([one]) for one in SENTENCES]), reference
    )
    encoder._bag.batch_pieces = 1
    np.testing.assert_array_equal(encoder.encode(SENTENCES), reference)
    assert encoder.encode([]).shape == (0, 32)


def test_threads_change_nothing(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    reference = encoder.encode(SENTENCES * 3)
    encoder._bag.batch_pieces = 16
    encoder._bag.batches_per_thread = 2
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.usable_threads", lambda: 3)
    np.testing.assert_array_equal(encoder.encode(SENTENCES * 3), reference)


def test_other_precisions_and_the_network_come_from_the_same_weights(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert (encoder.device, encoder.output_dim) == ("cpu", 32)
    near = encoder.encode(SENTENCES, dtype="bfloat16", normalize=True)
    assert difference(near, encoder.encode(SENTENCES, normalize=True)) < 0.01
    assert encoder.model.state_dict().keys() == encoder._bag.weights.keys()
    table = encoder.model.embed_tokens.weight.detach().numpy()
    assert np.shares_memory(table, encoder._bag.weights["embed_tokens.weight"])
    with pytest.raises(InputError, match=r"int8.*cuda|device cuda.*cpu"):
        encoder.encode(["dog"], dtype="int8", device="cuda")


def test_untrained_weights_are_those_of_torch(folder):
    found = SentenceEncoder.from_pretrained(folder, untrained=True).encode(SENTENCES)
    np.testing.assert_array_equal(found, by_torch(folder, untrained=True))
