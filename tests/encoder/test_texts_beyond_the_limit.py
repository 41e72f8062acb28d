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
LONG = "the dog sees two cats " * 20 + "un chien " * 20


def model(folder, **sizes):
    return random_model.write_model(folder, max_positions=LIMIT, **sizes)


@pytest.fixture(scope="module", params=[0, 2], ids=lambda order: f"order{order}")
def bag(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bag") / "m"
    return model(folder, gated=True, num_layers=0, order_coefficients=request.param)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    return model(tmp_path_factory.mktemp("layers") / "m", num_layers=1)


def test_a_model_without_layers_reads_the_whole_text(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    assert encoder.max_seq_length is None
    ids, lengths = encoder.split([LONG])
    assert lengths[0] > 3 * LIMIT
    counts = Counter()
    whole = encoder.encode(LONG, counts=counts)
    assert counts["long"] == 0
    if not encoder.size.order_coefficients:
        expected = encoder.table[ids].mean(axis=0) * np.sqrt(encoder.size.embed_dim)
        np.testing.assert_allclose(whole, expected, atol=1e-5)
    for on_long in ("cut", "split-mean", "error"):
        np.testing.assert_array_equal(encoder.encode(LONG, on_long=on_long), whole)
    network = SentenceEncoder(encoder.model, encoder.tokenizer, encoder.config, "cpu")
    np.testing.assert_allclose(network.encode(LONG), whole, atol=1e-5)
    unit = whole / np.linalg.norm(whole)
    np.testing.assert_allclose(unit_vectors(str(bag), [LONG])[0], unit, atol=1e-6)


def test_max_seq_length_limits_the_text_and_changes_the_fingerprint(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    whole = encoder.encode(LONG)
    encoder.max_seq_length = LIMIT
    assert encoder.fingerprint.endswith(f"-max{LIMIT}")
    assert not np.allclose(encoder.encode(LONG), whole)


def test_reading_in_blocks_gives_the_same_vectors(bag, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(bag)
    texts = [LONG, "the dog", LONG[:200], LONG]
    expected = encoder.encode(texts)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BLOCK_PIECES", 16)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_a_very_long_text_takes_less_memory_than_all_its_rows(tmp_path):
    folder = model(tmp_path / "m", gated=True, num_layers=0, embed_dim=64, num_heads=1)
    encoder = SentenceEncoder.from_pretrained(folder)
    text = "the dog sees " * 30_000
    pieces = int(encoder.tokenizer.encode_known([text])[1][0])
    encoder.encode(text)
    tracemalloc.start()
    encoder.encode(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All rows at once would need 64 floats for each piece.
    assert peak < pieces * 64 * 4


def test_a_model_with_layers_warns_and_counts_truncated_texts(transformer, tmp_path, caplog):
    encoder = SentenceEncoder.from_pretrained(transformer, "cpu")
    with caplog.at_level(logging.WARNING):
        cut = encoder.encode([LONG, "the dog"])
        assert f"1 of 2 texts were truncated to {LIMIT} word pieces" in caplog.text
        caplog.clear()
        encoder.encode(["the dog"])
        encoder.encode([LONG], on_long="split-mean")
        encoder.encode([LONG], counts=Counter())
        assert not caplog.text
    np.testing.assert_allclose(unit_vectors(str(transformer), [LONG])[0], unit(cut[0]), atol=1e-5)

    text = tmp_path / "text"
    text.write_text(f"{LONG}\nthe dog\n{LONG} a\n", encoding="utf-8")
    index = tmp_path / "index"
    device = ("--device", "cpu")
    done = lxsr_here(
        "index", "--model", transformer, "--input", text, "--output", index, "--plain", *device
    )
    assert "truncated: 2" in done.stderr
    done = lxsr_here("search", "--index", index, LONG, *device)
    assert "truncated: 1" in done.stderr
    pairs = tmp_path / "pairs.tsv"
    mining = ("--source", text, "--target", text, "--output", pairs, "--k", 1)
    assert "truncated: 2" in lxsr_here("mine", "--model", transformer, *mining, *device).stderr


def unit(vector):
    return vector / np.linalg.norm(vector)
