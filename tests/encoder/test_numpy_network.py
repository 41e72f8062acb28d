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

WIDTH = 32
SENTENCES = toy.lines(60, seed=5)
# Empty, of one word, longer than `max_positions`, short, blank.
SENTENCES += ["", "dog", "the " * 150, "Un chien.", "  "]


@pytest.fixture(scope="module", params=[0, 1, 3], ids=lambda order: f"order{order}")
def folder(request, tmp_path_factory):
    """A model folder without layers, with several numbers of order coefficients."""
    return random_model.write_model(
        tmp_path_factory.mktemp("bag") / "m",
        gated=True,
        num_layers=0,
        embed_dim=WIDTH,
        order_coefficients=request.param,
    )


def by_torch(folder, untrained=False, **options) -> np.ndarray:
    """Return the vectors of SENTENCES that the network of torch computes."""
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

    embeddings = encoder.encode(SENTENCES, **options)

    assert embeddings.dtype == np.float32
    assert difference(embeddings, by_torch(folder, **options)) < 1e-6


def test_encoding_builds_no_network_of_torch(folder):
    encoder = SentenceEncoder.from_pretrained(folder)

    encoder.encode(SENTENCES)

    assert isinstance(encoder._bag, Bag)
    assert encoder._networks is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_vectors_of_a_rounded_table_equal_those_of_torch(folder, dtype, tmp_path):
    rounded = small_model.save_as(folder, tmp_path / "rounded", dtype)

    embeddings = SentenceEncoder.from_pretrained(rounded).encode(SENTENCES)

    assert difference(embeddings, by_torch(rounded)) < 1e-6


@pytest.fixture
def int8_folder(folder, tmp_path):
    """The model of `folder` with its table in 8 bits."""
    return small_model.save_as(folder, tmp_path / "int8", "int8")


def test_a_table_in_8_bits_gives_nearly_the_directions_of_float32(folder, int8_folder):
    by_int8 = SentenceEncoder.from_pretrained(int8_folder).encode(SENTENCES, normalize=True)
    by_float32 = SentenceEncoder.from_pretrained(folder).encode(SENTENCES, normalize=True)

    cosines = (by_int8 * by_float32).sum(axis=1)
    is_text = by_float32.any(axis=1)
    assert cosines[is_text].min() > 0.999


def test_a_table_in_8_bits_is_another_model_with_as_many_parameters(folder, int8_folder):
    int8 = SentenceEncoder.from_pretrained(int8_folder)
    float32 = SentenceEncoder.from_pretrained(folder)

    assert int8.fingerprint != float32.fingerprint
    assert int8.parameters == float32.parameters


def test_a_table_in_8_bits_takes_less_than_half_of_float32(folder, int8_folder):
    int8_size = (int8_folder / "model.safetensors").stat().st_size
    float32_size = (folder / "model.safetensors").stat().st_size

    # A large table would shrink to a quarter; this one is small, and there are other weights.
    assert int8_size < 0.5 * float32_size


def test_a_sentence_alone_has_exactly_the_vector_that_it_has_in_a_batch(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    in_a_batch = encoder.encode(SENTENCES)

    for sentence, expected in zip(SENTENCES, in_a_batch, strict=True):
        np.testing.assert_array_equal(encoder.encode(sentence), expected)


def test_vectors_do_not_depend_on_the_size_of_batches(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    in_large_batches = encoder.encode(SENTENCES)

    # Every sentence becomes a batch.
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCH_PIECES", 1)

    np.testing.assert_array_equal(encoder.encode(SENTENCES), in_large_batches)


def test_no_sentences_give_no_rows(folder):
    assert SentenceEncoder.from_pretrained(folder).encode([]).shape == (0, WIDTH)


def test_threads_give_the_same_vectors(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    sentences = SENTENCES * 3
    by_one_thread = encoder.encode(sentences)

    # Small batches, so that there are enough of them for three threads.
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCH_PIECES", 16)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BATCHES_PER_THREAD", 2)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.usable_threads", lambda: 3)

    np.testing.assert_array_equal(encoder.encode(sentences), by_one_thread)


def test_bfloat16_gives_nearly_the_vectors_of_float32(folder):
    encoder = SentenceEncoder.from_pretrained(folder)

    rounded = encoder.encode(SENTENCES, dtype="bfloat16", normalize=True)

    assert difference(rounded, encoder.encode(SENTENCES, normalize=True)) < 0.01


def test_the_network_of_torch_shares_its_table_with_numpy(folder):
    encoder = SentenceEncoder.from_pretrained(folder)

    # Reading the attribute builds the network.
    network = encoder.model

    assert network.state_dict().keys() == encoder._bag.weights.keys()
    table = network.embed_tokens.weight.detach().numpy()
    assert np.shares_memory(table, encoder._bag.weights["embed_tokens.weight"])


def test_an_encoder_without_layers_is_on_the_cpu(folder):
    encoder = SentenceEncoder.from_pretrained(folder)

    assert encoder.device == "cpu"
    assert encoder.output_dim == WIDTH


def test_int8_on_a_gpu_is_refused(folder):
    """On a machine without a GPU, the device is refused first."""
    encoder = SentenceEncoder.from_pretrained(folder)

    with pytest.raises(InputError, match=r"int8.*cuda|device cuda.*cpu"):
        encoder.encode(["dog"], dtype="int8", device="cuda")


def test_untrained_weights_equal_those_of_torch(folder):
    embeddings = SentenceEncoder.from_pretrained(folder, untrained=True).encode(SENTENCES)

    np.testing.assert_array_equal(embeddings, by_torch(folder, untrained=True))
