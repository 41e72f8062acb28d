"""A table of words has the numbers that a dict has."""

import numpy as np
import pytest

from fairseq_lxsr.text.words import MAX_KEY_BYTES, PADDING, WordTable, split_at_blanks, word_keys

WORDS = [
    "a",
    "b",
    "ab",
    # These differ only in zero bytes.
    "a\0",
    "a\0\0",
    "",
    "\0",
    # These differ only in their lengths.
    "x" * 8,
    "x" * 9,
    "x" * 16,
    "x" * 17,
    # These have two bytes per letter.
    "éèê",
    "é" * 11,
    # These are the longest words of a table.
    "y" * MAX_KEY_BYTES,
    "y" * (MAX_KEY_BYTES - 1) + "z",
]
TOO_LONG_WORDS = ["y" * (MAX_KEY_BYTES + 1), "y" * (MAX_KEY_BYTES + 2), "é" * 12]


def keys_of(words: list[str]) -> np.ndarray:
    data = " ".join(words).encode() + PADDING
    starts, ends = split_at_blanks(data)
    assert [data[start:end].decode() for start, end in zip(starts, ends, strict=True)] == words
    return word_keys(data, starts, ends)


@pytest.mark.parametrize("has_collisions", [False, True])
def test_added_words_have_their_numbers_and_no_others_have(monkeypatch, has_collisions):
    if has_collisions:
        # All words begin at one slot of the table.
        monkeypatch.setattr(
            WordTable, "_first_slots", lambda self, keys: np.full(keys.shape[1], 1022)
        )
    table = WordTable()
    assert (table.find(keys_of(WORDS)) == -1).all()
    # The key of a word does not depend on the words that are added with it.
    for start, stop in ((0, 1), (1, 5), (5, 6), (6, len(WORDS))):
        table.add(keys_of(WORDS[start:stop]), np.arange(start, stop))
    assert table.find(keys_of(WORDS)).tolist() == list(range(len(WORDS)))
    numbers = table.find(keys_of(["other", *WORDS, *TOO_LONG_WORDS, "a"]))
    assert numbers.tolist() == [-1, *range(len(WORDS)), -1, -1, -1, 0]


def test_a_growing_table_has_the_numbers_of_a_dict():
    table = WordTable()
    numbers = {}
    rng = np.random.default_rng(1)
    for _ in range(40):
        words = set()
        for _ in range(300):
            words.add("".join(rng.choice(list("abcdefé\0"), rng.integers(0, 9))))
        words = sorted(words)
        expected = [numbers.get(word, -1) for word in words]
        assert table.find(keys_of(words)).tolist() == expected
        new_words = [word for word in words if word not in numbers]
        for word in new_words:
            numbers[word] = len(numbers)
        table.add(keys_of(new_words), np.array([numbers[word] for word in new_words]))
    assert len(numbers) > 5000
    assert table.find(keys_of(list(numbers))).tolist() == list(numbers.values())
