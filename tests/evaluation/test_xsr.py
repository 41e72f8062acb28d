"""XSR on a data set small enough to work out by hand; see golden/README.md."""

import json
from pathlib import Path

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import xsr

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "xsr.json").read_text())


def test_golden_values():
    vectors = {text: np.array(vector, dtype=np.float32) for text, vector in GOLDEN["vectors"].items()}
    texts = xsr.RetrievalSet(GOLDEN["source"], GOLDEN["target"], queries=len(GOLDEN["source"]))
    score = xsr.evaluate(texts, lambda sentences: np.stack([vectors[s] for s in sentences]), "golden")
    assert score.values == pytest.approx(GOLDEN["values"])
    assert score.signature.startswith("xsr|metric:nn-cosine|case:lower|queries:10|candidates:10|seed:1|model:golden|")


def test_precision_counts_the_right_index_only():
    found = np.array([[0, 1, 2], [2, 0, 1], [0, 1, 3]])
    assert xsr.precision_at((1, 2, 3), found, np.array([0, 1, 2])) == {
        1: pytest.approx(100 / 3),
        2: pytest.approx(100 / 3),
        3: pytest.approx(200 / 3),
    }


def test_text_of_the_protocol():
    pairs = [(f"Sentence {i}", f"Satz {i}") for i in range(12)]
    messy = [*pairs, ("SENTENCE 3", "ein anderer"), ("neu", "satz 4"), ("", "leer"), ("leer", "  ")]
    chosen = xsr.select(messy)
    assert sorted(zip(chosen.source, chosen.target, strict=True)) == sorted((a.lower(), b.lower()) for a, b in pairs)
    assert chosen.queries == 12
    assert xsr.select(messy).source == chosen.source  # a fixed shuffle
    assert xsr.select(messy, seed=2).source != chosen.source


def test_limits_of_the_protocol(monkeypatch):
    monkeypatch.setattr(xsr, "MAX_CANDIDATES", 30)
    monkeypatch.setattr(xsr, "MAX_QUERIES", 20)
    chosen = xsr.select((f"a {i}", f"b {i}") for i in range(100))
    assert (len(chosen.source), len(chosen.target), chosen.queries) == (30, 30, 20)


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match="9 usable sentence pairs"):
        xsr.select((f"a {i}", f"b {i}") for i in range(9))


def test_embeddings_that_are_all_alike_score_by_chance():
    texts = xsr.select((f"a {i}", f"b {i}") for i in range(100))
    score = xsr.evaluate(texts, lambda sentences: np.ones((len(sentences), 4), dtype=np.float32), "constant")
    assert score.values["source->target P@1"] == 1.0
    assert score.values["target->source P@10"] == 10.0
