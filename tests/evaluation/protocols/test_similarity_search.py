"""xsim and Tatoeba against LASER's own tool; see golden/README.md."""

import json

import numpy as np
import pytest
from golden_vectors import GOLDEN, Vectors

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import similarity_search
from fairseq_lxsr.vectors import mine

DATA = json.loads((GOLDEN / "margin.json").read_text())
SOURCE, TARGET = (
    np.array(DATA["source"], dtype=np.float32),
    np.array(DATA["target"], dtype=np.float32),
)


@pytest.mark.parametrize(("protocol", "margin"), [("xsim", "ratio"), ("tatoeba", "absolute")])
def test_errors_of_the_reference_tool(protocol, margin):
    for (a, b), errors in zip(
        ((SOURCE, TARGET), (TARGET, SOURCE)), DATA["errors"][margin], strict=True
    ):
        assert sum(similarity_search.error_rate(a, b, protocol).hits) == errors


@pytest.mark.parametrize("retrieval", ["max", "intersect", "fwd", "bwd"])
def test_mined_pairs_of_the_reference_tool(retrieval):
    mined = mine(SOURCE, TARGET, 4, "ratio", retrieval)
    scores, *rows = zip(*DATA["mined"][retrieval], strict=True)
    assert {*zip(mined.source.tolist(), mined.target.tolist(), strict=True)} == {
        *zip(*rows, strict=True)
    }
    np.testing.assert_allclose(mined.scores, scores, atol=1e-4)


def test_scores_of_both_directions():
    lines = [f"s{i}" for i in range(40)], [f"t{i}" for i in range(40)]
    vectors = dict(zip(lines[0] + lines[1], DATA["source"] + DATA["target"], strict=True))
    scores = similarity_search.search_scores(
        "xsim", Text(lines[0], "a"), Text(lines[1], "b"), Vectors(vectors)
    )
    assert [(s.task, s.values["error"]) for s in scores] == [("a->b", 42.5), ("b->a", 37.5)]
    signature = "xsim|metric:margin-ratio-k4-of-4|norm:l2|case:mixed|identical:hit|pairs:40|text:"
    assert scores[0].signature.startswith(signature)


def test_an_identical_sentence_is_no_error():
    """Target 0 and 1 are the same sentence; the second query finds the first of them."""
    source, target = np.eye(4)[[0, 0, 2, 3]], np.eye(4)[[0, 0, 2, 3]]
    assert similarity_search.error_rate(source, target, "tatoeba").value == 25
    assert (
        similarity_search.error_rate(source, target, "tatoeba", np.array([0, 0, 2, 3])).value == 0
    )


def test_bad_input():
    for source, target, protocol, message in (
        (np.ones((5, 3)), np.ones((5, 4)), "xsim", "3 and 4 "),
        (
            np.zeros((5, 3)),
            np.ones((5, 3)),
            "tatoeba",
            "row 0 of the source",
        ),
        (np.ones((5, 3)), np.ones((4, 3)), "tatoeba", "5 source and 4 target"),
        (np.ones((3, 3)), np.ones((3, 3)), "xsim", "3 sentence pairs; .*4.*xsim"),
    ):
        with pytest.raises(InputError, match=message):
            similarity_search.error_rate(source, target, protocol)
    with pytest.raises(InputError, match=r"a\.txt .*2.* b\.txt .*1"):
        similarity_search.search_scores(
            "tatoeba", Text(["x", "y"], file="a.txt"), Text(["z"], file="b.txt"), Vectors()
        )
