"""XSR on a small data set whose results are known by hand; see golden/README.md."""

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
        expected = {f"P@{rank}": DATA["values"][f"{direction} P@{rank}"] for rank in xsr.RANKS}
        assert score.values == pytest.approx(expected)
        signature = "xsr|metric:nn-cosine|norm:l2|case:mixed|queries:10|candidates:10|seed:1|text:"
        assert score.signature.startswith(signature)
        assert "|model:golden|version:" in score.signature


def test_every_metric_scores_both_directions():
    scores = SentenceRetrieval().scores(golden_set(), Vectors(DATA["vectors"]))
    metrics = ("nn-cosine", "csls-k10", "margin-ratio-k4-of-100")
    expected = list(itertools.product(metrics, ("en->fr", "fr->en")))
    assert [(score.settings["metric"], score.task) for score in scores] == expected


def test_a_metric_ranks_like_the_search_with_its_name():
    """The vectors have a common direction, so that the three metrics differ."""
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


def test_precision_counts_queries_whose_gold_is_among_the_first():
    ranked = np.array([[0, 1, 2], [2, 0, 1], [0, 1, 3]])
    outcomes = precision_outcomes((1, 2, 3), ranked, np.array([0, 1, 2]))
    values = [outcome.value for outcome in outcomes.values()]
    assert values == pytest.approx([100 / 3, 100 / 3, 200 / 3])


def test_equal_sentences_have_the_same_identity():
    assert identities(["a", "b", "b", "c"]).tolist() == [0, 1, 1, 2]


def test_the_directions_of_one_language_are_told_apart():
    text = Text(["a"], "en")
    assert directions(text, text) == ("en (source)->en (target)", "en (target)->en (source)")


PAIRS = [(f"Sentence {number}", f"Satz {number}") for number in range(12)]


def test_empty_and_repeated_sentences_are_left_out():
    messy = [
        *PAIRS,
        ("SENTENCE 3", "ein anderer"),
        ("neu", "satz 4"),
        ("", "leer"),
        ("leer", "  "),
        ("\u200b", "leer"),
        ("\U0001f60a", "ja"),
    ]
    selected = xsr.select(messy)
    assert sorted(zip(selected.source.lines, selected.target.lines, strict=True)) == sorted(PAIRS)
    assert [messy[row][0] for row in selected.source.rows] == list(selected.source.lines)
    assert selected.queries == 12
    assert (selected.empty, selected.repeated) == (4, 2)
    lowered = xsr.select(messy, lowercase=True)
    assert lowered.source.rows.tolist() == selected.source.rows.tolist()
    assert lowered.target.lines == tuple(line.lower() for line in selected.target.lines)


def test_the_seed_decides_the_order_of_sentences():
    selected = xsr.select(PAIRS)
    assert xsr.select(PAIRS).source.lines == selected.source.lines
    assert xsr.select(PAIRS, seed=2).source.lines != selected.source.lines


def test_fewer_than_ten_pairs_are_refused_and_many_are_limited(monkeypatch):
    with pytest.raises(InputError, match=r"9 .*10"):
        xsr.select(PAIRS[:9])
    monkeypatch.setattr(xsr, "XSR_CANDIDATES", 30)
    monkeypatch.setattr(xsr, "XSR_QUERIES", 20)
    selected = xsr.select((f"a {number}", f"b {number}") for number in range(100))
    assert (len(selected.source), len(selected.target), selected.queries) == (30, 30, 20)


def test_the_command_counts_empty_and_repeated_sentences(tmp_path):
    small_model.write_folder(tmp_path / "model")
    distinct = "".join(f"a dog {number}\n" for number in range(12))
    for side in ("s", "t"):
        (tmp_path / side).write_text(distinct + f"{side}\n" * 3 + "\n")
    arguments = ("--model", "model", "--source", "s", "--target", "t", "--metric", "nn")
    done = lxsr_here("eval", "xsr", *arguments, folder=tmp_path)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("s, t: ")]
    assert re.findall(r"\d+", line) == ["16", "1", "2"]


@pytest.mark.parametrize(
    ("options", "case", "right"), [((), "mixed", 100.0), (("--lowercase",), "lower", 0.0)]
)
def test_text_is_lowercased_only_with_the_option(tmp_path, options, case, right):
    """The word vectors are correct for capitalised words, and wrong for words in lower case."""
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


def test_equal_embeddings_have_the_precision_of_chance():
    hits = xsr.precision_at(np.ones((100, 4)), np.ones((100, 4)))
    assert hits["P@1"].value == 1.0
    assert hits["P@10"].value == 10.0
    # 10 of 1,000 candidates, not 10 of the 100 candidates that are translations.
    precisions = []
    for seed in range(50):
        hits = xsr.precision_at(np.ones((100, 4)), np.ones((1000, 4)), seed=seed)
        precisions.append(hits["P@10"].value)
    assert np.mean(precisions) == pytest.approx(1, abs=0.35)


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
def test_zero_and_nan_embeddings_are_refused(value, message):
    with pytest.raises(InputError, match=f"fr, line 3: .*'t2'.*{message}"):
        SentenceRetrieval().scores(golden_set(), Vectors(DATA["vectors"] | {"t2": [value] * 10}))
