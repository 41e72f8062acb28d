"""A model without layers reads all of a text, whichever way it is asked; others say what they cut."""

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
def layers(tmp_path_factory):
    return model(tmp_path_factory.mktemp("layers") / "m", num_layers=1)


def test_without_layers_all_of_a_text_is_read(bag):
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


def test_a_limit_that_is_set_gives_the_vectors_of_earlier_versions(bag):
    encoder = SentenceEncoder.from_pretrained(bag)
    whole = encoder.encode(LONG)
    encoder.max_seq_length = LIMIT
    assert encoder.fingerprint.endswith(f"-max{LIMIT}")
    assert not np.allclose(encoder.encode(LONG), whole)


def test_a_long_text_is_read_in_blocks(bag, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(bag)
    texts = [LONG, "the dog", LONG[:200], LONG]
    expected = encoder.encode(texts)
    monkeypatch.setattr("fairseq_lxsr.encoder.numpy_network.BLOCK_PIECES", 16)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_the_memory_of_a_very_long_text(tmp_path):
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


def test_models_with_layers_say_what_they_cut(layers, tmp_path, caplog):
    encoder = SentenceEncoder.from_pretrained(layers, "cpu")
    with caplog.at_level(logging.WARNING):
        cut = encoder.encode([LONG, "the dog"])
        assert f"1 of 2 texts were truncated to {LIMIT} word pieces" in caplog.text
        caplog.clear()
        encoder.encode(["the dog"])
        encoder.encode([LONG], on_long="split-mean")
        encoder.encode([LONG], counts=Counter())
        assert not caplog.text
    np.testing.assert_allclose(unit_vectors(str(layers), [LONG])[0], unit(cut[0]), atol=1e-5)

    text = tmp_path / "text"
    text.write_text(f"{LONG}\nthe dog\n{LONG} a\n", encoding="utf-8")
    index = tmp_path / "index"
    device = ("--device", "cpu")
    done = lxsr_here(
        "index", "--model", layers, "--input", text, "--output", index, "--plain", *device
    )
    assert "truncated: 2" in done.stderr
    done = lxsr_here("search", "--index", index, LONG, *device)
    assert "truncated: 1" in done.stderr
    pairs = (tmp_path / "pairs").with_suffix(".tsv")
    mining = ("--source", text, "--target", text, "--output", pairs, "--k", 1)
    assert "truncated: 2" in lxsr_here("mine", "--model", layers, *mining, *device).stderr


def unit(vector):
    return vector / np.linalg.norm(vector)
