"""Strategies of hypothesis for damaged files: cut, overwritten, of another type, or with other values
in their JSON.
"""

import json

from hypothesis import strategies as st
from other_values import changed, places

# First bytes of other types of files.
KINDS = (
    b"",
    b"PK\x03\x04",
    b"\x93NUMPY\x01\0\xff\xff",
    b"\x1f\x8b",
    b"\xff\xfe",
    b"\0" * 200,
    b"[]",
    b"null",
    b"{",
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [
            2**31,
            2**53,
            2**63,
            -(2**64),
            10**400,
            1e308,
            -0.5,
            float("nan"),
            float("inf"),
            float("-inf"),
        ]
    ),
    st.sampled_from(
        ["", "x", "nan", "1e9", "float32", "object", "\ud800", "\x00", "é" * 300, "../../etc"]
    ),
    st.lists(st.integers(0, 2), max_size=3),
    st.dictionaries(st.sampled_from(["a", "lines", "hits"]), st.integers(-1, 2), max_size=2),
    st.integers(2, 40).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)


@st.composite
def odd_bytes(draw, content: bytes):
    """Draw the bytes of a damaged file."""
    start = draw(st.integers(0, max(0, len(content) - 1)))
    end = draw(st.integers(start, min(len(content), start + 40)))
    return draw(
        st.one_of(
            st.sampled_from(KINDS),
            st.just(content[:start]),
            st.binary(max_size=40).map(lambda new: content[:start] + new + content[end:]),
            st.sampled_from(KINDS).map(lambda new: new + content[len(new) :]),
        )
    )


@st.composite
def odd_json(draw, document):
    """Draw a JSON document with one or two changes, or its damaged bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(odd_bytes(json.dumps(document).encode()))
    for _ in range(draw(st.integers(1, 2))):
        paths = list(places(document))
        if paths:
            value = ... if draw(st.integers(0, 5)) == 0 else draw(ODD)
            document = changed(document, draw(st.sampled_from(paths)), value)
    return json.dumps(document).encode()
