"""The encoder of a trained transformer: batches, options, precisions, threads and copies."""

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

# The width of `lxsr_tiny`.
WIDTH = 32


@pytest.fixture(scope="module")
def encoder(toy_model):
    """The encoder of a model with two layers, trained on the toy corpus."""
    return SentenceEncoder.from_pretrained(toy_model, device="cpu")


SENTENCES = [english for english, _ in toy.sentences(60, seed=5)]
# Empty, of one word, longer than the model reads, short, blank.
SENTENCES += ["", "dog", "the " * 150, "Un chien.", "  "]


def test_embeddings_are_rows_of_float32(encoder):
    embeddings = encoder.encode(SENTENCES)

    assert embeddings.dtype == np.float32
    assert embeddings.shape == (len(SENTENCES), WIDTH)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_an_embedding_does_not_depend_on_the_size_of_batches(encoder, batch_size):
    embeddings = encoder.encode(SENTENCES, batch_size=batch_size)

    np.testing.assert_allclose(embeddings, encoder.encode(SENTENCES), atol=1e-5)


def test_an_embedding_does_not_depend_on_the_order_of_sentences(encoder):
    order = np.random.default_rng(0).permutation(len(SENTENCES))

    embeddings = encoder.encode([SENTENCES[row] for row in order])

    np.testing.assert_allclose(embeddings, encoder.encode(SENTENCES)[order], atol=1e-5)


def test_a_sentence_alone_has_the_embedding_that_it_has_among_others(encoder):
    [alone] = encoder.encode([SENTENCES[3]])

    np.testing.assert_allclose(alone, encoder.encode(SENTENCES)[3], atol=1e-5)


def test_only_empty_sentences_give_zeros(encoder):
    is_empty = np.array([not sentence.strip() for sentence in SENTENCES])

    embeddings = encoder.encode(SENTENCES)

    assert not embeddings[is_empty].any()
    assert embeddings[~is_empty].any(axis=1).all()


def test_no_sentences_give_no_rows(encoder):
    assert encoder.encode([]).shape == (0, WIDTH)


def test_a_batch_of_empty_sentences_gives_rows_of_zeros(encoder):
    assert encoder.encode(["", ""]).tolist() == np.zeros((2, WIDTH)).tolist()


def test_long_sentences_are_cut(encoder):
    """Both are longer than the model reads, so the additional words change nothing."""
    shorter = "the dog " * 300
    longer = "the dog " * 400

    np.testing.assert_array_equal(encoder.encode([longer]), encoder.encode([shorter]))


def test_text_is_lowercased_as_in_training(encoder):
    np.testing.assert_array_equal(encoder.encode(["ONE RED DOG"]), encoder.encode(["one red dog"]))


def test_encoding_gives_the_ids_that_fairseq_preprocess_wrote(toy_work, toy_model, encoder):
    from fairseq.data import data_utils

    lines = (toy_work / "corpus" / "en-fr" / "test.fr").read_text(encoding="utf-8").splitlines()
    binarised = data_utils.load_indexed_dataset(
        str(toy_work / "data-bin" / "test.en-fr.fr"), dataset_impl=None
    )

    for ids, written in zip(encoder.tokenizer.encode(lines), binarised, strict=True):
        # fairseq adds the end of the sentence.
        *written_ids, _ = written.tolist()
        assert ids.tolist() == written_ids


def test_the_weights_are_those_of_the_checkpoint(toy_checkpoint, encoder):
    from fairseq_lxsr.encoder.checkpoint import read_checkpoint

    trained = read_checkpoint(toy_checkpoint)["model"]

    for name, value in encoder.model.state_dict().items():
        assert torch.equal(value, trained[f"encoder.{name}"]), name


@pytest.fixture(scope="module")
def half_model(toy_checkpoint, tmp_path_factory):
    """The model folder of the same checkpoint in float16."""
    folder = tmp_path_factory.mktemp("half") / "model"
    options = ("--output", folder, "--dtype", "float16")
    lxsr_here("export", "folder", "--checkpoint", toy_checkpoint, *options)
    return folder


def test_half_precision_weights_take_about_half_the_space(half_model, toy_model):
    half_size = (half_model / "model.safetensors").stat().st_size
    full_size = (toy_model / "model.safetensors").stat().st_size

    # Names and hashes take the same space in both.
    assert half_size < 0.6 * full_size


def test_half_precision_weights_are_computed_in_float32_and_give_close_embeddings(
    half_model, encoder
):
    half_encoder = SentenceEncoder.from_pretrained(half_model)

    assert half_encoder.model.embed_tokens.weight.dtype == torch.float32
    expected = encoder.encode(SENTENCES)
    np.testing.assert_allclose(half_encoder.encode(SENTENCES), expected, atol=5e-3)


def test_a_model_read_twice_has_the_same_fingerprint(toy_model, encoder):
    assert SentenceEncoder.from_pretrained(toy_model).fingerprint == encoder.fingerprint
    assert len(encoder.fingerprint) == 12


def test_the_fingerprint_depends_on_the_text_options(toy_model, encoder):
    config = json.loads((toy_model / "config.json").read_text())
    config["text"]["lowercase"] = False

    cased = SentenceEncoder(encoder.model, encoder.tokenizer, config)

    assert cased.fingerprint != encoder.fingerprint


def test_untrained_weights_are_the_same_each_time_and_not_the_trained_ones(toy_model, encoder):
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


def test_the_vocabulary_is_the_dictionary_and_the_mask_of_the_task(toy_model):
    symbols = read_dictionary(toy_model / "dict.txt")

    config = json.loads((toy_model / "config.json").read_text())
    assert config["encoder"]["vocab_size"] == len(symbols) + 1


def test_embeddings_are_truncated_before_they_are_normalized(encoder):
    first_columns = encoder.encode(SENTENCES)[:, :10]

    short = encoder.encode(SENTENCES, truncate_dim=10, normalize=True)

    lengths = np.linalg.norm(first_columns, axis=1, keepdims=True)
    # Rows of zeros stay zeros.
    expected = first_columns / np.maximum(lengths, 1e-30)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    assert short.dtype == np.float32


def test_generators_and_arrays_give_the_vectors_of_lists(encoder):
    from_list = encoder.encode(SENTENCES)

    from_generator = encoder.encode(sentence for sentence in SENTENCES)
    from_array = encoder.encode(np.array(SENTENCES))

    np.testing.assert_array_equal(from_generator, from_list)
    np.testing.assert_array_equal(from_array, from_list)


def test_sentences_are_read_in_blocks_that_change_no_vector(encoder, monkeypatch):
    in_one_block = encoder.encode(SENTENCES)

    # Every sentence becomes a block.
    monkeypatch.setattr("fairseq_lxsr.encoder.torch_network.BATCH_PIECES", 1)

    np.testing.assert_allclose(encoder.encode(SENTENCES), in_one_block, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"on_long": "split-mean"}, {"dtype": "bfloat16"}], ids=str)
def test_memory_does_not_grow_with_the_number_of_calls(encoder, options):
    sentences = SENTENCES * 10
    times = 5
    # The first calls fill caches.
    encoder.encode(sentences, **options)
    tracemalloc.start()
    encoder.encode(sentences, **options)
    before, _ = tracemalloc.get_traced_memory()

    for _ in range(times):
        encoder.encode(sentences, **options)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    bytes_per_sentence = (after - before) / (times * len(sentences))
    # A vector that was kept would be 128 bytes.
    assert bytes_per_sentence < 10


LONG = "the dog " * 300


def test_split_mean_weighs_the_parts_of_a_long_sentence_by_their_pieces(encoder):
    """Each part is encoded from position 0."""
    limit = encoder.model.config.max_positions
    ids, lengths = encoder.tokenizer.encode_flat([LONG])
    assert lengths[0] > 2 * limit
    weighted_sum = np.zeros(WIDTH)
    for start in range(0, len(ids), limit):
        part = ids[start : start + limit]
        with torch.inference_mode():
            [embedding] = encoder.model.embed_padded(torch.from_numpy(part)[None]).numpy()
        weighted_sum += len(part) * embedding

    [embedding] = encoder.encode([LONG], on_long="split-mean")

    np.testing.assert_allclose(embedding, weighted_sum / len(ids), atol=1e-5)


def test_split_mean_does_not_change_short_and_empty_sentences(encoder):
    short, _, empty = encoder.encode(["dog", LONG, ""], on_long="split-mean")

    np.testing.assert_allclose(short, encoder.encode(["dog"])[0], atol=1e-5)
    assert not empty.any()


def test_empty_and_long_sentences_are_counted(encoder):
    counts = Counter()

    encoder.encode(["dog", LONG, ""], on_long="split-mean", counts=counts)

    assert counts == {"empty": 1, "long": 1}


def test_a_long_sentence_can_be_refused_with_its_number_of_pieces(encoder):
    limit = encoder.model.config.max_positions
    _, lengths = encoder.tokenizer.encode_flat([LONG])

    with pytest.raises(InputError, match=rf"sentence 2, 'the dog .*: {lengths[0]} .*\b{limit}\b"):
        encoder.encode(["dog", LONG], on_long="error")


def test_threads_in_several_precisions_do_not_disturb_each_other(encoder):
    expected = {
        "float32": encoder.encode(SENTENCES),
        "bfloat16": encoder.encode(SENTENCES, dtype="bfloat16"),
    }
    # Batches of another size round differently.
    tolerances = {"float32": 1e-5, "bfloat16": 0.05}
    batch_sizes = (3, 8, 64)
    jobs = list(itertools.product(expected, batch_sizes)) * 3

    def encode(job):
        dtype, batch_size = job
        return encoder.encode(SENTENCES, batch_size, dtype=dtype)

    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(encode, jobs))

    for (dtype, _), embeddings in zip(jobs, results, strict=True):
        np.testing.assert_allclose(embeddings, expected[dtype], atol=tolerances[dtype])


@pytest.mark.slow
def test_processes_can_share_an_encoder(encoder):
    """It is pickled for each of them."""
    first_part = SENTENCES[:20]
    second_part = SENTENCES[20:]

    with multiprocessing.get_context("spawn").Pool(2) as processes:
        first, second = processes.map(encoder.encode, [first_part, second_part])

    np.testing.assert_array_equal(first, encoder.encode(first_part))
    np.testing.assert_array_equal(second, encoder.encode(second_part))


def test_a_pickled_encoder_has_no_copies_in_other_precisions(encoder):
    size = len(pickle.dumps(encoder))

    # Makes a copy of the weights.
    encoder.encode(SENTENCES[:2], dtype="int8")

    assert len(pickle.dumps(encoder)) == size


def test_an_unpickled_encoder_encodes_in_other_precisions(encoder):
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
        ({"truncate_dim": WIDTH + 1}, "truncate_dim is 33.* 32"),
        ({"on_long": "drop"}, "on_long is 'drop'.* cut, split-mean, error"),
        # No machine has this device, and no device has this name.
        ({"device": "cuda:99"}, "device cuda:99.*cpu"),
        ({"device": "gpu"}, "device gpu.*cpu"),
    ],
)
def test_invalid_options_are_refused(encoder, options, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(["dog"], **options)


@pytest.mark.parametrize(
    ("dtype", "least_cosine"), [("bfloat16", 0.999), ("float16", 0.99999), ("int8", 0.99)]
)
def test_lower_precision_changes_the_direction_little(encoder, dtype, least_cosine):
    exact = encoder.encode(SENTENCES, normalize=True)

    rounded = encoder.encode(SENTENCES, dtype=dtype, normalize=True)

    assert rounded.dtype == np.float32
    is_text = exact.any(axis=1)
    cosines = (exact * rounded).sum(axis=1)[is_text]
    assert cosines.min() > least_cosine
    # The precision did change.
    assert (cosines < 1 - 1e-7).any()


@pytest.fixture(scope="module")
def packed(encoder):
    """The copy of the network that float32 uses on the CPU."""
    return encoder._copies()._model("cpu", "float32")


def test_the_linear_layers_of_the_copy_for_the_cpu_are_packed(packed):
    linear_layers = [
        type(part) for part in packed.modules() if isinstance(part, torch.nn.Linear | PackedLinear)
    ]

    # Not every CPU and build of torch can pack them. Two layers have four linear modules each.
    expected = PackedLinear if can_pack(torch.float32) else torch.nn.Linear
    assert linear_layers == [expected] * 2 * 4


def test_the_copy_for_the_cpu_shares_the_table_of_the_network(packed, encoder):
    shared = packed.embed_tokens.weight
    assert shared.data_ptr() == encoder.model.embed_tokens.weight.data_ptr()


def test_packed_layers_compute_what_the_network_computes(packed, encoder):
    [ids] = encoder.tokenizer.encode(["the red dog"])
    batch = torch.from_numpy(ids)[None]

    with torch.inference_mode():
        by_packed = packed.embed_padded(batch)
        by_network = encoder.model.embed_padded(batch)

    np.testing.assert_allclose(by_packed, by_network, atol=1e-5)
