"""A model without layers reads the whole of a long text; a model with layers reports what it cuts."""

import logging
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import random_model
from conftest import lxsr_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.clients.shared import unit_vectors

LIMIT = 24
# 140 words, so at least as many word pieces.
LONG = "the dog sees two cats " * 20 + "un chien " * 20


def write_limited_model(folder, **sizes):
    """Write a model folder with random weights whose `max_positions` is LIMIT."""
    return random_model.write_model(folder, max_positions=LIMIT, **sizes)


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module", params=[0, 2], ids=lambda order: f"order{order}")
def bag(request, tmp_path_factory):
    """A model folder without layers, without and with order coefficients."""
    folder = tmp_path_factory.mktemp("bag") / "m"
    return write_limited_model(folder, gated=True, num_layers=0, order_coefficients=request.param)


@pytest.fixture(scope="module")
def mean_encoder(tmp_path_factory):
    """An encoder without layers and order coefficients: the mean of the rows of a text."""
    folder = tmp_path_factory.mktemp("mean") / "m"
    return SentenceEncoder.from_pretrained(write_limited_model(folder, gated=True, num_layers=0))


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """A model folder with a layer."""
    return write_limited_model(tmp_path_factory.mktemp("layers") / "m", num_layers=1)


# -- models without layers


def test_the_vector_of_a_long_text_is_the_mean_over_all_its_pieces(mean_encoder):
    ids, lengths = mean_encoder.split([LONG])
    assert lengths[0] > LIMIT

    embedding = mean_encoder.encode(LONG)

    # A bag scales the mean by the root of its width.
    expected = mean_encoder.table[ids].mean(axis=0) * np.sqrt(mean_encoder.size.embed_dim)
    np.testing.assert_allclose(embedding, expected, atol=1e-5)


def test_no_text_is_too_long_for_a_model_without_layers(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    counts = Counter()

    encoder.encode(LONG, counts=counts)

    assert encoder.max_seq_length is None
    assert counts["long"] == 0


@pytest.mark.parametrize("on_long", ["cut", "split-mean", "error"])
def test_on_long_changes_nothing_for_a_model_without_layers(bag, on_long):
    encoder = SentenceEncoder.from_pretrained(bag)

    embedding = encoder.encode(LONG, on_long=on_long)

    np.testing.assert_array_equal(embedding, encoder.encode(LONG))


def test_the_network_of_torch_and_the_clients_read_the_whole_text_too(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    whole = encoder.encode(LONG)

    by_torch = SentenceEncoder(encoder.model, encoder.tokenizer, encoder.config, "cpu").encode(LONG)
    [by_client] = unit_vectors(str(bag), [LONG])

    np.testing.assert_allclose(by_torch, whole, atol=1e-5)
    np.testing.assert_allclose(by_client, unit(whole), atol=1e-6)


def test_max_seq_length_limits_the_text_and_changes_the_fingerprint(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    whole = encoder.encode(LONG)

    encoder.max_seq_length = LIMIT

    assert encoder.fingerprint.endswith(f"-max{LIMIT}")
    assert not np.allclose(encoder.encode(LONG), whole)


def test_reading_in_blocks_gives_the_same_vectors(bag, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(bag)
    texts = [LONG, "the dog", LONG[:200], LONG]
    in_one_block = encoder.encode(texts)

    # The long texts are divided into several blocks.
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BLOCK_PIECES", 16)

    np.testing.assert_allclose(encoder.encode(texts), in_one_block, atol=1e-5)


def test_a_very_long_text_takes_less_memory_than_all_its_rows(tmp_path):
    width = 64
    folder = write_limited_model(
        tmp_path / "m", gated=True, num_layers=0, embed_dim=width, num_heads=1
    )
    encoder = SentenceEncoder.from_pretrained(folder)
    text = "the dog sees " * 30_000
    _, lengths = encoder.tokenizer.encode_known([text])
    # Buffers that are kept are made by the first call.
    encoder.encode(text)

    tracemalloc.start()
    encoder.encode(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    bytes_of_all_rows = int(lengths[0]) * width * np.dtype(np.float32).itemsize
    assert peak < bytes_of_all_rows


# -- models with layers


def test_a_model_with_layers_warns_that_texts_were_truncated(transformer, caplog):
    encoder = SentenceEncoder.from_pretrained(transformer, "cpu")

    with caplog.at_level(logging.WARNING):
        encoder.encode([LONG, "the dog"])

    assert f"1 of 2 texts were truncated to {LIMIT} word pieces" in caplog.text


@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param("the dog", {}, id="short text"),
        pytest.param(LONG, {"on_long": "split-mean"}, id="read in parts"),
        pytest.param(LONG, {"counts": Counter()}, id="counted by the caller"),
    ],
)
def test_a_model_with_layers_does_not_warn_without_need(transformer, caplog, text, options):
    encoder = SentenceEncoder.from_pretrained(transformer, "cpu")

    with caplog.at_level(logging.WARNING):
        encoder.encode([text], **options)

    assert not caplog.text


def test_the_clients_cut_long_texts(transformer):
    encoder = SentenceEncoder.from_pretrained(transformer, "cpu")

    [by_client] = unit_vectors(str(transformer), [LONG])

    np.testing.assert_allclose(by_client, unit(encoder.encode(LONG)), atol=1e-5)


def test_commands_count_truncated_texts(transformer, tmp_path):
    text = tmp_path / "text"
    text.write_text(f"{LONG}\nthe dog\n{LONG} a\n", encoding="utf-8")
    index = tmp_path / "index"
    device = ("--device", "cpu")
    model = ("--model", transformer, *device)

    indexing = lxsr_here("index", *model, "--input", text, "--output", index, "--plain")
    search = lxsr_here("search", "--index", index, LONG, *device)
    files = ("--source", text, "--target", text, "--output", tmp_path / "pairs.tsv")
    mining = lxsr_here("mine", *model, *files, "--k", 1)

    # Two of the three lines are long, and so is the query.
    assert "truncated: 2" in indexing.stderr
    assert "truncated: 1" in search.stderr
    assert "truncated: 2" in mining.stderr
