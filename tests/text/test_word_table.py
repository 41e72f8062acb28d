"""The table finds what a dict finds, whatever the words."""

import numpy as np
import pytest

from fairseq_lxsr.text.words import MAX_KEY_BYTES, PADDING, WordTable, split_at_blanks, word_keys

# equal beginnings, equal but for zero bytes, around the longest, two bytes a letter
WORDS = [
    "a",
    "b",
    "ab",
    "a\0",
    "a\0\0",
    "",
    "\0",
    "x" * 8,
    "x" * 9,
    "x" * 16,
    "x" * 17,
    "éèê",
    "é" * 11,
]
WORDS += ["y" * MAX_KEY_BYTES, "y" * (MAX_KEY_BYTES - 1) + "z"]
LONG = ["y" * (MAX_KEY_BYTES + 1), "y" * (MAX_KEY_BYTES + 2), "é" * 12]


def keys_of(words: list[str]) -> np.ndarray:
    data = " ".join(words).encode() + PADDING
    starts, ends = split_at_blanks(data)
    assert [data[start:end].decode() for start, end in zip(starts, ends, strict=True)] == words
    return word_keys(data, starts, ends)


@pytest.fixture(params=["spread", "all in one place"])
def table(request, monkeypatch):
    if request.param != "spread":
        monkeypatch.setattr(
            WordTable, "_first_slots", lambda self, keys: np.full(keys.shape[1], 1022)
        )
    return WordTable()


def test_words_are_found_again(table):
    numbers = np.arange(len(WORDS)) + 7
    assert (table.find(keys_of(WORDS)) == -1).all()
    for part in np.split(np.arange(len(WORDS)), [1, 5, 6]):  # keys depend on the word alone
        table.add(keys_of([WORDS[row] for row in part]), numbers[part])
    assert table.find(keys_of(["other", *WORDS, *LONG, "a"])).tolist() == [
        -1,
        *numbers,
        -1,
        -1,
        -1,
        7,
    ]


def test_it_grows():
    table, known = WordTable(), {}
    rng = np.random.default_rng(1)
    for _ in range(40):
        words = list(
            {"".join(rng.choice(list("abcdefé\0"), rng.integers(0, 9))) for _ in range(300)}
        )
        found = table.find(keys_of(words))
        assert found.tolist() == [known.get(word, -1) for word in words]
        new = [word for word in words if word not in known]
        known |= {word: len(known) + row for row, word in enumerate(new)}
        table.add(keys_of(new), np.array([known[word] for word in new]))
    assert len(known) > 5000
    assert table.find(keys_of(list(known))).tolist() == list(known.values())
