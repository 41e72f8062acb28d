"""XSR on a data set small enough to work out by hand; see golden/README.md."""

import itertools
import json
import re

import numpy as np
import pytest
import small_model
from conftest import lxsr_here
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import xsr
from fairseq_lxsr.evaluation.protocols.xsr import SentenceRetrieval
from fairseq_lxsr.evaluation.texts import directions, identities, precision_outcomes, rank
from fairseq_lxsr.vectors import csls_neighbours, margin_neighbours, nearest_neighbours

DATA = json.loads((GOLDEN / "xsr.json").read_text())


def golden_set() -> xsr.RetrievalSet:
    return xsr.RetrievalSet(
        Text(DATA["source"], "en"), Text(DATA["target"], "fr"), len(DATA["source"]), seed=1
    )


def test_golden_values():
    encoder = Vectors(DATA["vectors"])
    scores = SentenceRetrieval(metric=("nn",)).scores(golden_set(), encoder)
    assert [score.task for score in scores] == ["en->fr", "fr->en"]
    for score, direction in zip(scores, ("source->target", "target->source"), strict=True):
        assert score.values == pytest.approx(
            {f"P@{k}": DATA["values"][f"{direction} P@{k}"] for k in xsr.RANKS}
        )
        signature = "xsr|metric:nn-cosine|norm:l2|case:mixed|queries:10|candidates:10|seed:1|text:"
        assert score.signature.startswith(signature)
        assert "|model:golden|version:" in score.signature
    metrics = ("nn-cosine", "csls-k10", "margin-ratio-k4-of-100")
    found = [
        (score.settings["metric"], score.task)
        for score in SentenceRetrieval().scores(golden_set(), encoder)
    ]
    assert found == list(itertools.product(metrics, ("en->fr", "fr->en")))


def test_metrics_order_as_the_search_of_that_name():
    """On vectors around a common direction, where neighbourhoods matter, the three orders
    differ.
    """
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((30, 8)) + 0.7
    candidates = np.concatenate([queries, queries[:20]]) + rng.standard_normal((50, 8))
    orders = {metric: rank(queries, candidates, 10, metric) for metric in ("nn", "csls", "margin")}
    np.testing.assert_array_equal(orders["nn"], nearest_neighbours(queries, candidates, 10)[1])
    np.testing.assert_array_equal(orders["csls"], csls_neighbours(queries, candidates, 10, 10)[1])
    np.testing.assert_array_equal(
        orders["margin"], margin_neighbours(queries, candidates, 4, depth=50)[1][:, :10]
    )
    assert len({order.tobytes() for order in orders.values()}) == 3


def test_precision_counts_the_right_index():
    hits = precision_outcomes(
        (1, 2, 3), np.array([[0, 1, 2], [2, 0, 1], [0, 1, 3]]), np.array([0, 1, 2])
    )
    assert [outcomes.value for outcomes in hits.values()] == pytest.approx(
        [100 / 3, 100 / 3, 200 / 3]
    )
    assert identities(["a", "b", "b", "c"]).tolist() == [0, 1, 1, 2]
    text = Text(["a"], "en")  # scores are compared and shown by their tasks
    assert directions(text, text) == ("en (source)->en (target)", "en (target)->en (source)")


def test_text_of_the_protocol(monkeypatch):
    pairs = [(f"Sentence {i}", f"Satz {i}") for i in range(12)]
    messy = [
        *pairs,
        ("SENTENCE 3", "ein anderer"),
        ("neu", "satz 4"),
        ("", "leer"),
        ("leer", "  "),
        ("\u200b", "leer"),
        ("\U0001f60a", "ja"),
    ]
    chosen = xsr.select(messy)
    assert sorted(zip(chosen.source.lines, chosen.target.lines, strict=True)) == sorted(pairs)
    assert [messy[row][0] for row in chosen.source.rows] == list(chosen.source.lines)
    lowered = xsr.select(messy, lowercase=True)
    assert lowered.source.rows.tolist() == chosen.source.rows.tolist()
    assert lowered.target.lines == tuple(line.lower() for line in chosen.target.lines)
    assert chosen.queries == 12
    assert (chosen.empty, chosen.repeated) == (4, 2)
    assert xsr.select(messy).source.lines == chosen.source.lines  # a fixed shuffle
    assert xsr.select(messy, seed=2).source.lines != chosen.source.lines
    with pytest.raises(InputError, match=r"9 .*10"):
        xsr.select(pairs[:9])
    monkeypatch.setattr(xsr, "XSR_CANDIDATES", 30)
    monkeypatch.setattr(xsr, "XSR_QUERIES", 20)
    chosen = xsr.select((f"a {i}", f"b {i}") for i in range(100))
    assert (len(chosen.source), len(chosen.target), chosen.queries) == (30, 30, 20)


def test_the_command_counts_what_is_left_out(tmp_path):
    small_model.write_folder(tmp_path / "model")
    for side in ("s", "t"):
        (tmp_path / side).write_text(
            "".join(f"a dog {i}\n" for i in range(12)) + f"{side}\n" * 3 + "\n"
        )
    arguments = ("--model", "model", "--source", "s", "--target", "t", "--metric", "nn")
    done = lxsr_here("eval", "xsr", *arguments, folder=tmp_path)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("s, t: ")]
    assert re.findall(r"\d+", line) == ["16", "1", "2"]


@pytest.mark.parametrize(
    ("options", "case", "right"), [((), "mixed", 100.0), (("--lowercase",), "lower", 0.0)]
)
def test_a_cased_model_reads_the_text_as_it_is(tmp_path, options, case, right):
    """Word vectors that are right for capitalised words, and wrong for words in lower case."""
    vectors = np.eye(12)
    english, german = ([f"{start}{letter}x" for letter in "abcdefghijkl"] for start in "ED")
    lines = ["48 12"]
    for words, shift in ((english, 1), (german, 0)):
        for number, word in enumerate(words):
            lines.append(f"{word} " + " ".join(map(str, vectors[number])))
            lower = vectors[(number + shift) % 12]
            lines.append(f"{word.lower()} " + " ".join(map(str, lower)))
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "t.en").write_text("\n".join(english) + "\n")
    (tmp_path / "t.de").write_text("\n".join(german) + "\n")
    arguments = ("--data", "t", "--lang-pairs", "en-de", "--metric", "nn", "--output", "scores")
    done = lxsr_here("eval", "xsr", "--model", "words.vec", *arguments, *options, folder=tmp_path)
    scores = [json.loads(line) for line in (tmp_path / "scores").read_text().splitlines()]
    assert [score["values"]["P@1"] for score in scores] == [right, right]
    assert f"|case:{case}|" in done.stdout


def test_embeddings_that_are_all_alike_score_by_chance():
    hits = xsr.precision_at(np.ones((100, 4)), np.ones((100, 4)))
    assert hits["P@1"].value == 1.0
    assert hits["P@10"].value == 10.0
    few = [
        xsr.precision_at(np.ones((100, 4)), np.ones((1000, 4)), seed=seed)["P@10"].value
        for seed in range(50)
    ]
    # 10 of 1,000, and not 10 of the 100 that are translations
    assert np.mean(few) == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize(
    ("queries", "candidates", "metric", "message"),
    [
        (20, 9, "nn", "9 candidates.* 10"),
        (9, 20, "csls", "9 queries and 20 candidates.* 10.*csls-k10"),
        (3, 20, "margin", "3 queries and 20 candidates.* 4.*margin-ratio-k4-of-100"),
        (20, 20, "best", "'best'.*nn, csls, margin"),
    ],
)
def test_too_few_for_the_metric_is_refused(queries, candidates, metric, message):
    with pytest.raises(InputError, match=message):
        rank(np.eye(20)[:queries], np.eye(20)[:candidates], 10, metric)


@pytest.mark.parametrize(("value", "message"), [(0.0, "zero"), (float("nan"), "NaN")])
def test_embeddings_without_meaning_are_refused(value, message):
    with pytest.raises(InputError, match=f"fr, line 3: .*'t2'.*{message}"):
        SentenceRetrieval().scores(golden_set(), Vectors(DATA["vectors"] | {"t2": [value] * 10}))
