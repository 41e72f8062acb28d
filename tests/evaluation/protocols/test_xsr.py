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
from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.evaluation.texts import directions, identities, precision_outcomes, rank
from fairseq_lxsr.vectors import csls_neighbours, margin_neighbours, nearest_neighbours

# Ten pairs. Eight sentences have their translation first, two have it second; see golden/README.md.
DATA = json.loads((GOLDEN / "xsr.json").read_text())
ENCODER = Vectors(DATA["vectors"])


def golden_set() -> xsr.RetrievalSet:
    return xsr.RetrievalSet(
        Text(DATA["source"], "en"), Text(DATA["target"], "fr"), len(DATA["source"]), seed=1
    )


def test_both_directions_have_the_golden_precision():
    forward, backward = SentenceRetrieval(metric=("nn",)).scores(golden_set(), ENCODER)

    assert (forward.task, backward.task) == ("en->fr", "fr->en")
    expected = {"P@1": 80, "P@5": 100, "P@10": 100}
    assert forward.values == pytest.approx(expected)
    assert backward.values == pytest.approx(expected)


def test_the_signature_has_metric_numbers_seed_and_model():
    for score in SentenceRetrieval(metric=("nn",)).scores(golden_set(), ENCODER):
        expected = "xsr|metric:nn-cosine|norm:l2|case:mixed|queries:10|candidates:10|seed:1|text:"
        assert score.signature.startswith(expected)
        assert "|model:golden|version:" in score.signature


def test_by_default_every_metric_scores_both_directions():
    scores = SentenceRetrieval().scores(golden_set(), ENCODER)

    metrics = ("nn-cosine", "csls-k10", "margin-ratio-k4-of-100")
    expected = list(itertools.product(metrics, ("en->fr", "fr->en")))
    assert [(score.settings["metric"], score.task) for score in scores] == expected


NUM_RANKED = 10


def draw_vectors() -> tuple[np.ndarray, np.ndarray]:
    """Draw 30 queries and 50 candidates with a common direction, so that the metrics differ."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((30, 8)) + 0.7
    candidates = np.concatenate([queries, queries[:20]]) + rng.standard_normal((50, 8))
    return queries, candidates


def search(metric: str, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the ranking of the search that a metric is named after."""
    if metric == "nn":
        _, order = nearest_neighbours(queries, candidates, NUM_RANKED)
    elif metric == "csls":
        _, order = csls_neighbours(queries, candidates, NUM_RANKED, 10)
    else:
        # All candidates are reranked by margin.
        _, order = margin_neighbours(queries, candidates, 4, depth=len(candidates))
    return order[:, :NUM_RANKED]


@pytest.mark.parametrize("metric", ["nn", "csls", "margin"])
def test_a_metric_ranks_like_the_search_with_its_name(metric):
    queries, candidates = draw_vectors()

    order = rank(queries, candidates, NUM_RANKED, metric)

    np.testing.assert_array_equal(order, search(metric, queries, candidates))


def test_the_three_metrics_rank_differently():
    queries, candidates = draw_vectors()

    orders = [rank(queries, candidates, NUM_RANKED, name) for name in ("nn", "csls", "margin")]

    for first, second in itertools.combinations(orders, 2):
        assert not np.array_equal(first, second)


def test_precision_counts_queries_whose_translation_is_among_the_first():
    """The translations of the three queries are at rank 1, at rank 3, and not among the ranked."""
    translations = np.array([0, 1, 2])
    ranked = np.array([[0, 1, 2], [2, 0, 1], [0, 1, 3]])

    outcomes = precision_outcomes((1, 2, 3), ranked, translations)

    values = {name: outcome.value for name, outcome in outcomes.items()}
    assert values == pytest.approx({"P@1": 100 / 3, "P@2": 100 / 3, "P@3": 200 / 3})


def test_equal_sentences_have_the_same_identity():
    assert identities(["a", "b", "b", "c"]).tolist() == [0, 1, 1, 2]


def test_the_directions_of_one_language_are_told_apart():
    text = Text(["a"], "en")

    assert directions(text, text) == ("en (source)->en (target)", "en (target)->en (source)")


# -- which sentences are queries and candidates

PAIRS = [(f"Sentence {number}", f"Satz {number}") for number in range(12)]
# Only differences of case.
REPEATED = [("SENTENCE 3", "ein anderer"), ("neu", "satz 4")]
# Without a letter or digit on one side: nothing, spaces, an invisible space, an emoji.
EMPTY = [("", "leer"), ("leer", "  "), ("\u200b", "leer"), ("\U0001f60a", "ja")]


def test_empty_and_repeated_sentences_are_left_out_and_counted():
    selected = xsr.select([*PAIRS, *REPEATED, *EMPTY])

    pairs = zip(selected.source.lines, selected.target.lines, strict=True)
    assert sorted(pairs) == sorted(PAIRS)
    assert selected.queries == len(PAIRS)
    assert selected.empty == len(EMPTY)
    assert selected.repeated == len(REPEATED)


def test_selected_sentences_keep_their_rows_in_the_file():
    pairs = [*EMPTY, *PAIRS]

    selected = xsr.select(pairs)

    for row, line in zip(selected.source.rows, selected.source.lines, strict=True):
        assert pairs[row][0] == line


def test_lowercase_changes_the_sentences_but_not_the_selection():
    pairs = [*PAIRS, *REPEATED, *EMPTY]

    selected = xsr.select(pairs)
    lowered = xsr.select(pairs, lowercase=True)

    assert lowered.source.rows.tolist() == selected.source.rows.tolist()
    assert lowered.target.lines == tuple(line.lower() for line in selected.target.lines)


def test_the_seed_decides_the_order_of_sentences():
    selected = xsr.select(PAIRS, seed=1)

    assert xsr.select(PAIRS, seed=1).source.lines == selected.source.lines
    assert xsr.select(PAIRS, seed=2).source.lines != selected.source.lines


def test_fewer_than_ten_pairs_are_refused():
    """P@10 needs ten candidates."""
    with pytest.raises(InputError, match=r"9 .*10"):
        xsr.select(PAIRS[:9])


def test_the_numbers_of_candidates_and_queries_are_limited(monkeypatch):
    # Instead of 200,000 and 2,000.
    monkeypatch.setattr(xsr, "XSR_CANDIDATES", 30)
    monkeypatch.setattr(xsr, "XSR_QUERIES", 20)

    selected = xsr.select((f"a {number}", f"b {number}") for number in range(100))

    assert len(selected.source) == 30
    assert len(selected.target) == 30
    assert selected.queries == 20


def test_the_command_reports_how_many_pairs_are_empty_and_repeated(tmp_path):
    small_model.write_folder(tmp_path / "model")
    distinct = "".join(f"a dog {number}\n" for number in range(12))
    repeated_twice = "again\n" * 3
    empty = "\n"
    for side in ("s", "t"):
        (tmp_path / side).write_text(distinct + repeated_twice + empty)

    arguments = ("--model", "model", "--source", "s", "--target", "t", "--metric", "nn")
    done = lxsr_here("eval", "xsr", *arguments, folder=tmp_path)

    [line] = [line for line in done.stderr.splitlines() if line.startswith("s, t: ")]
    all_pairs, empty_pairs, repeated_pairs = re.findall(r"\d+", line)
    assert all_pairs == "16"
    assert empty_pairs == "1"
    assert repeated_pairs == "2"


ENGLISH = [f"E{letter}x" for letter in "abcdefghijkl"]
GERMAN = [f"D{letter}x" for letter in "abcdefghijkl"]


@pytest.fixture
def case_sensitive_model(tmp_path):
    """A folder with word vectors that translate capitalised words, and lowercased ones wrongly.

    t.en and t.de have twelve capitalised words each; word i has the i-th unit vector. In lower
    case, an English word has that of the next one.
    """
    unit_vectors = np.eye(12)
    lines = ["48 12"]
    for words, shift in ((ENGLISH, 1), (GERMAN, 0)):
        for number, word in enumerate(words):
            lines.append(" ".join([word, *map(str, unit_vectors[number])]))
            lowercased = unit_vectors[(number + shift) % 12]
            lines.append(" ".join([word.lower(), *map(str, lowercased)]))
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "t.en").write_text("\n".join(ENGLISH) + "\n")
    (tmp_path / "t.de").write_text("\n".join(GERMAN) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "signed_case", "precision"),
    [
        pytest.param((), "mixed", 100.0, id="default"),
        pytest.param(("--lowercase",), "lower", 0.0, id="lowercase"),
    ],
)
def test_text_is_lowercased_only_with_the_option(
    case_sensitive_model, options, signed_case, precision
):
    arguments = ("--data", "t", "--lang-pairs", "en-de", "--metric", "nn", "--output", "scores")
    command = ("eval", "xsr", "--model", "words.vec", *arguments, *options)

    done = lxsr_here(*command, folder=case_sensitive_model)

    forward, backward = read_scores(case_sensitive_model / "scores")
    assert forward.values["P@1"] == precision
    assert backward.values["P@1"] == precision
    assert f"|case:{signed_case}|" in done.stdout


# -- ties and refused input


def test_among_a_hundred_equal_embeddings_one_percent_are_first_and_ten_among_the_first_ten():
    hits = xsr.precision_at(np.ones((100, 4)), np.ones((100, 4)))

    assert hits["P@1"].value == 1.0
    assert hits["P@10"].value == 10.0


def test_equal_embeddings_are_ranked_at_random_among_all_candidates():
    """100 queries have 1,000 candidates, so the chance to be among the first ten is 1 percent.

    If only the translations of the queries were ranked, it would be 10 percent.
    """
    precisions = []
    for seed in range(50):
        hits = xsr.precision_at(np.ones((100, 4)), np.ones((1000, 4)), seed=seed)
        precisions.append(hits["P@10"].value)

    assert np.mean(precisions) == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize(
    ("queries", "candidates", "metric", "message"),
    [
        # Ten are to be ranked; CSLS needs ten neighbours of both sides, the margin four.
        (20, 9, "nn", "9 candidates.* 10"),
        (9, 20, "csls", "9 queries and 20 candidates.* 10.*csls-k10"),
        (3, 20, "margin", "3 queries and 20 candidates.* 4.*margin-ratio-k4-of-100"),
    ],
)
def test_too_few_queries_or_candidates_for_the_metric_are_refused(
    queries, candidates, metric, message
):
    vectors = np.eye(20)

    with pytest.raises(InputError, match=message):
        rank(vectors[:queries], vectors[:candidates], NUM_RANKED, metric)


def test_an_unknown_metric_is_refused():
    with pytest.raises(InputError, match=r"'best'.*nn, csls, margin"):
        rank(np.eye(20), np.eye(20), NUM_RANKED, "best")


@pytest.mark.parametrize(("value", "message"), [(0.0, "zero"), (float("nan"), "NaN")])
def test_zero_and_nan_embeddings_are_refused_with_their_line(value, message):
    third_target = DATA["target"][2]
    vectors = DATA["vectors"] | {third_target: [value] * 10}

    with pytest.raises(InputError, match=f"fr, line 3: .*'{third_target}'.*{message}"):
        SentenceRetrieval().scores(golden_set(), Vectors(vectors))
