"""xsim and Tatoeba give the results of the tool of LASER; see golden/README.md."""

import json

import numpy as np
import pytest
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import similarity_search
from fairseq_lxsr.vectors import mine

# 40 pairs of random vectors, and what LASER's code computes of them.
DATA = json.loads((GOLDEN / "margin.json").read_text())
SOURCE = np.array(DATA["source"], dtype=np.float32)
TARGET = np.array(DATA["target"], dtype=np.float32)
PAIRS = len(SOURCE)


@pytest.mark.parametrize(("protocol", "margin"), [("xsim", "ratio"), ("tatoeba", "absolute")])
def test_errors_equal_those_of_laser_in_both_directions(protocol, margin):
    forward_errors, backward_errors = DATA["errors"][margin]

    forward = similarity_search.error_rate(SOURCE, TARGET, protocol)
    backward = similarity_search.error_rate(TARGET, SOURCE, protocol)

    # What an error rate counts as hits are the errors.
    assert sum(forward.hits) == forward_errors
    assert sum(backward.hits) == backward_errors


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd"])
def test_mined_pairs_equal_those_of_laser(retrieval):
    scores, sources, targets = zip(*DATA["mined"][retrieval], strict=True)

    mined = mine(SOURCE, TARGET, 4, "ratio", retrieval)

    pairs = set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))
    assert pairs == set(zip(sources, targets, strict=True))
    np.testing.assert_allclose(mined.scores, scores, atol=1e-4)


def xsim_scores():
    """Return the scores of the golden vectors from language a to b and back."""
    source_lines = [f"source {number}" for number in range(PAIRS)]
    target_lines = [f"target {number}" for number in range(PAIRS)]
    lines = source_lines + target_lines
    encoder = Vectors(dict(zip(lines, DATA["source"] + DATA["target"], strict=True)))
    return similarity_search.search_scores(
        "xsim", Text(source_lines, "a"), Text(target_lines, "b"), encoder
    )


def test_the_error_rates_of_both_directions_are_in_percent_of_the_pairs():
    forward_errors, backward_errors = DATA["errors"]["ratio"]

    forward, backward = xsim_scores()

    assert (forward.task, backward.task) == ("a->b", "b->a")
    assert forward.values["error"] == pytest.approx(100 * forward_errors / PAIRS)
    assert backward.values["error"] == pytest.approx(100 * backward_errors / PAIRS)


def test_the_signature_of_xsim_has_its_settings_and_then_the_checksum_of_the_text():
    forward, _ = xsim_scores()

    settings, _, _ = forward.signature.partition("|text:")
    assert settings.split("|") == [
        "xsim",
        # The ratio margin over 4 neighbours, computed for the 4 nearest candidates.
        "metric:margin-ratio-k4-of-4",
        "norm:l2",
        "case:mixed",
        # Finding a sentence identical to the translation is no error.
        "identical:hit",
        f"pairs:{PAIRS}",
    ]
    assert "|text:" in forward.signature


def test_finding_a_sentence_identical_to_the_translation_is_no_error():
    """Targets 0 and 1 have the same vector, so the second of four queries finds target 0."""
    vectors = np.eye(4)[[0, 0, 2, 3]]
    same_sentence = np.array([0, 0, 2, 3])

    if_all_differ = similarity_search.error_rate(vectors, vectors, "tatoeba")
    if_identical = similarity_search.error_rate(vectors, vectors, "tatoeba", same_sentence)

    assert if_all_differ.value == 100 / 4
    assert if_identical.value == 0


@pytest.mark.parametrize(
    ("source", "target", "protocol", "message"),
    [
        pytest.param(np.ones((5, 3)), np.ones((5, 4)), "xsim", "3 and 4 ", id="widths differ"),
        pytest.param(
            np.zeros((5, 3)), np.ones((5, 3)), "tatoeba", "row 0 of the source", id="zero vector"
        ),
        pytest.param(
            np.ones((5, 3)), np.ones((4, 3)), "tatoeba", "5 source and 4 target", id="not aligned"
        ),
        # The margin of xsim needs four neighbours.
        pytest.param(
            np.ones((3, 3)), np.ones((3, 3)), "xsim", "3 sentence pairs; .*4.*xsim", id="too few"
        ),
    ],
)
def test_invalid_embeddings_and_too_few_pairs_are_refused(source, target, protocol, message):
    with pytest.raises(InputError, match=message):
        similarity_search.error_rate(source, target, protocol)


def test_texts_of_different_length_are_refused():
    two_lines = Text(["x", "y"], file="a.txt")
    one_line = Text(["z"], file="b.txt")

    with pytest.raises(InputError, match=r"a\.txt .*2.* b\.txt .*1"):
        similarity_search.search_scores("tatoeba", two_lines, one_line, Vectors())
