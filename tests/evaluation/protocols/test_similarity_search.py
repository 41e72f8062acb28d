"""xsim and Tatoeba give the results of the tool of LASER; see golden/README.md."""

import json

import numpy as np
import pytest
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import similarity_search
from fairseq_lxsr.vectors import mine

DATA = json.loads((GOLDEN / "margin.json").read_text())
SOURCE = np.array(DATA["source"], dtype=np.float32)
TARGET = np.array(DATA["target"], dtype=np.float32)


@pytest.mark.parametrize(("protocol", "margin"), [("xsim", "ratio"), ("tatoeba", "absolute")])
def test_errors_equal_those_of_the_reference_tool(protocol, margin):
    forward_errors, backward_errors = DATA["errors"][margin]
    forward = similarity_search.error_rate(SOURCE, TARGET, protocol)
    backward = similarity_search.error_rate(TARGET, SOURCE, protocol)
    # What an error rate counts as hits are the errors.
    assert sum(forward.hits) == forward_errors
    assert sum(backward.hits) == backward_errors


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd"])
def test_mined_pairs_equal_those_of_the_reference_tool(retrieval):
    mined = mine(SOURCE, TARGET, 4, "ratio", retrieval)
    scores, sources, targets = zip(*DATA["mined"][retrieval], strict=True)
    pairs = set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))
    assert pairs == set(zip(sources, targets, strict=True))
    np.testing.assert_allclose(mined.scores, scores, atol=1e-4)


def test_both_directions_are_scored():
    source_lines = [f"source {number}" for number in range(40)]
    target_lines = [f"target {number}" for number in range(40)]
    lines = source_lines + target_lines
    encoder = Vectors(dict(zip(lines, DATA["source"] + DATA["target"], strict=True)))
    forward, backward = similarity_search.search_scores(
        "xsim", Text(source_lines, "a"), Text(target_lines, "b"), encoder
    )
    assert (forward.task, forward.values["error"]) == ("a->b", 42.5)
    assert (backward.task, backward.values["error"]) == ("b->a", 37.5)
    signature = "xsim|metric:margin-ratio-k4-of-4|norm:l2|case:mixed|identical:hit|pairs:40|text:"
    assert forward.signature.startswith(signature)


def test_finding_an_identical_sentence_is_no_error():
    """Targets 0 and 1 are the same sentence; the second query finds the first of them."""
    vectors = np.eye(4)[[0, 0, 2, 3]]
    sentence_ids = np.array([0, 0, 2, 3])
    assert similarity_search.error_rate(vectors, vectors, "tatoeba").value == 25
    assert similarity_search.error_rate(vectors, vectors, "tatoeba", sentence_ids).value == 0


def test_invalid_embeddings_and_too_few_pairs_are_refused():
    for source, target, protocol, message in (
        (np.ones((5, 3)), np.ones((5, 4)), "xsim", "3 and 4 "),
        (np.zeros((5, 3)), np.ones((5, 3)), "tatoeba", "row 0 of the source"),
        (np.ones((5, 3)), np.ones((4, 3)), "tatoeba", "5 source and 4 target"),
        (np.ones((3, 3)), np.ones((3, 3)), "xsim", "3 sentence pairs; .*4.*xsim"),
    ):
        with pytest.raises(InputError, match=message):
            similarity_search.error_rate(source, target, protocol)


def test_texts_of_different_length_are_refused():
    with pytest.raises(InputError, match=r"a\.txt .*2.* b\.txt .*1"):
        similarity_search.search_scores(
            "tatoeba", Text(["x", "y"], file="a.txt"), Text(["z"], file="b.txt"), Vectors()
        )
