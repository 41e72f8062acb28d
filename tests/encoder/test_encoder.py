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


SENTENCES = [english for english, _ in toy.sentences(60, seed=5)] + [
    "",
    "dog",
    "the " * 150,
    "Un chien.",
    "  ",
]


def test_embeddings_are_the_same_whatever_the_batch_and_the_order(encoder):
    reference = encoder.encode(SENTENCES)
    assert reference.dtype == np.float32
    assert reference.shape == (len(SENTENCES), 32)
    for batch_size in (1, 7, 1000):
        np.testing.assert_allclose(
            encoder.encode(SENTENCES, batch_size=batch_size), reference, atol=1e-5
        )
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    np.testing.assert_allclose(
        encoder.encode([SENTENCES[i] for i in order]), reference[order], atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode([SENTENCES[3]])[0], reference[3], atol=1e-5)


def test_empty_sentences_are_zero_and_others_are_not(encoder):
    embeddings = encoder.encode(SENTENCES)
    empty = [not sentence.strip() for sentence in SENTENCES]
    assert not embeddings[empty].any()
    assert (np.abs(embeddings[~np.array(empty)]).max(axis=1) > 0).all()
    assert encoder.encode([]).shape == (0, 32)
    assert encoder.encode(["", ""]).tolist() == np.zeros((2, 32)).tolist()


def test_long_sentences_are_cut_and_case_follows_the_training_text(encoder):
    np.testing.assert_array_equal(
        encoder.encode(["the dog " * 300]), encoder.encode(["the dog " * 400])
    )
    np.testing.assert_array_equal(encoder.encode(["ONE RED DOG"]), encoder.encode(["one red dog"]))


def test_same_pieces_as_the_training_data(toy_work, toy_model, encoder):
    """Encoding maps text to the ids that fairseq-preprocess wrote for it."""
    from fairseq.data import data_utils

    lines = (toy_work / "corpus" / "en-fr" / "test.fr").read_text(encoding="utf-8").splitlines()
    binarised = data_utils.load_indexed_dataset(
        str(toy_work / "data-bin" / "test.en-fr.fr"), dataset_impl=None
    )
    for index, ids in enumerate(encoder.tokenizer.encode(lines)):
        assert ids.tolist() == binarised[index][:-1].tolist()  # EOS ends the binarised ones


def test_equal_to_the_model_that_was_trained(toy_checkpoint, encoder):
    from fairseq_lxsr.encoder.checkpoint import read_checkpoint

    trained = read_checkpoint(toy_checkpoint)["model"]
    for name, value in encoder.model.state_dict().items():
        assert torch.equal(value, trained[f"encoder.{name}"]), name


def test_half_precision_weights_take_half_the_room(tmp_path, toy_model, toy_checkpoint, encoder):
    half = tmp_path / "half"
    lxsr_here(
        "export", "folder", "--checkpoint", toy_checkpoint, "--output", half, "--dtype", "float16"
    )
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (half, toy_model)]
    assert sizes[0] < 0.6 * sizes[1]
    found = SentenceEncoder.from_pretrained(half)
    assert found.model.embed_tokens.weight.dtype == torch.float32
    np.testing.assert_allclose(found.encode(SENTENCES), encoder.encode(SENTENCES), atol=5e-3)


def test_fingerprint_tells_models_apart(toy_model, tmp_path, encoder):
    assert len(encoder.fingerprint) == 12
    assert SentenceEncoder.from_pretrained(toy_model).fingerprint == encoder.fingerprint
    other = json.loads((toy_model / "config.json").read_text())
    other["text"]["lowercase"] = False
    assert (
        SentenceEncoder(encoder.model, encoder.tokenizer, other).fingerprint != encoder.fingerprint
    )


def test_untrained_weights_are_others_and_repeatable(toy_model, encoder):
    first, again = (
        SentenceEncoder.from_pretrained(toy_model, untrained=True).encode(["a dog"])
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - encoder.encode(["a dog"])).max() > 0.1


def test_loading_does_not_touch_the_random_state(toy_model):
    before = torch.random.get_rng_state()
    SentenceEncoder.from_pretrained(toy_model)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dictionary_begins_with_the_specials(toy_model):
    symbols = read_dictionary(toy_model / "dict.txt")
    assert symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (
        len(symbols) + 1
        == json.loads((toy_model / "config.json").read_text())["encoder"]["vocab_size"]
    )


def test_one_dimension_less_and_length_one(encoder):
    whole = encoder.encode(SENTENCES)
    short = encoder.encode(SENTENCES, truncate_dim=10, normalize=True)
    expected = whole[:, :10] / np.maximum(
        np.linalg.norm(whole[:, :10], axis=1, keepdims=True), 1e-30
    )
    np.testing.assert_allclose(short, expected, atol=1e-6)
    assert short.dtype == np.float32


def test_generators_arrays_and_a_small_budget_of_pieces_change_nothing(encoder, monkeypatch):
    reference = encoder.encode(SENTENCES)
    np.testing.assert_array_equal(encoder.encode(sentence for sentence in SENTENCES), reference)
    np.testing.assert_array_equal(encoder.encode(np.array(SENTENCES)), reference)
    monkeypatch.setattr("fairseq_lxsr.encoder.torch_network.BATCH_PIECES", 1)
    np.testing.assert_allclose(encoder.encode(SENTENCES), reference, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"on_long": "split-mean"}, {"dtype": "bfloat16"}], ids=str)
def test_memory_does_not_grow_with_what_was_encoded(encoder, options):
    sentences, times = SENTENCES * 10, 5
    encoder.encode(sentences, **options)
    tracemalloc.start()
    encoder.encode(sentences, **options)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(times):
        encoder.encode(sentences, **options)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / (times * len(sentences)) < 10  # bytes a sentence


def test_long_sentences(encoder):
    """The mean over parts is that over pieces; parts are read apart, from position 0 each."""
    limit = encoder.model.config.max_positions
    long = "the dog " * 300
    ids, lengths = encoder.tokenizer.encode_flat([long])
    assert lengths[0] > 2 * limit
    parts = [ids[start : start + limit] for start in range(0, len(ids), limit)]
    with torch.inference_mode():
        vectors = [encoder.model(torch.from_numpy(part)[None])[0][0][0].numpy() for part in parts]
    mean = sum(len(part) * vector for part, vector in zip(parts, vectors, strict=True)) / len(ids)
    counts = Counter()
    found = encoder.encode(["dog", long, ""], on_long="split-mean", counts=counts)
    np.testing.assert_allclose(found[1], mean, atol=1e-5)
    np.testing.assert_allclose(found[0], encoder.encode(["dog"])[0], atol=1e-5)
    assert not found[2].any()
    assert counts == {"empty": 1, "long": 1}
    with pytest.raises(InputError, match=rf"sentence 2, 'the dog .*: {lengths[0]} .*\b{limit}\b"):
        encoder.encode(["dog", long], on_long="error")


def test_threads_do_not_disturb_each_other(encoder):
    reference = {dtype: encoder.encode(SENTENCES, dtype=dtype) for dtype in ("float32", "bfloat16")}
    work = [(dtype, size) for dtype in reference for size in (3, 8, 64)] * 3
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda job: encoder.encode(SENTENCES, job[1], dtype=job[0]), work))
    for (dtype, _), embeddings in zip(work, found, strict=True):
        np.testing.assert_allclose(
            embeddings, reference[dtype], atol=1e-5 if dtype == "float32" else 0.05
        )


@pytest.mark.slow
def test_goes_to_other_processes_without_its_copies(encoder):
    parts, size = [SENTENCES[:20], SENTENCES[20:]], len(pickle.dumps(encoder))
    encoder.encode(SENTENCES[:2], dtype="int8")  # a copy that stays here
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        found = np.concatenate(processes.map(encoder.encode, parts))
    np.testing.assert_array_equal(found, np.concatenate([encoder.encode(part) for part in parts]))
    assert len(pickle.dumps(encoder)) == size
    again = pickle.loads(pickle.dumps(encoder))
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(
        *(each.encode(SENTENCES, dtype="bfloat16") for each in (encoder, again))
    )


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
def test_unknown_options_are_refused(encoder, options, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(["dog"], **options)


@pytest.mark.parametrize(
    ("dtype", "least"), [("bfloat16", 0.999), ("float16", 0.99999), ("int8", 0.99)]
)
def test_other_precisions_point_the_same_way(encoder, dtype, least):
    exact, rounded = (
        encoder.encode(SENTENCES, normalize=True),
        encoder.encode(SENTENCES, dtype=dtype, normalize=True),
    )
    assert rounded.dtype == np.float32
    cosines = (exact * rounded).sum(axis=1)[exact.any(axis=1)]
    assert cosines.min() > least
    assert (cosines < 1 - 1e-7).any()  # they are other precisions


def test_packed_layers_share_the_table_and_compute_the_same(encoder):
    packed, network = encoder._copies()._model("cpu", "float32"), encoder.model
    assert packed.embed_tokens.weight.data_ptr() == network.embed_tokens.weight.data_ptr()
    linears = [
        type(part) for part in packed.modules() if isinstance(part, torch.nn.Linear | PackedLinear)
    ]
    # two layers of four
    assert linears == [PackedLinear if can_pack(torch.float32) else torch.nn.Linear] * 8
    ids = torch.from_numpy(np.concatenate(encoder.tokenizer.encode(["the red dog"])))[None]
    with torch.inference_mode():
        np.testing.assert_allclose(packed.embed_padded(ids), network.embed_padded(ids), atol=1e-5)
