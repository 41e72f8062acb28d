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
NOT_FOUND = -1
TOO_LONG_WORDS = ["y" * (MAX_KEY_BYTES + 1), "y" * (MAX_KEY_BYTES + 2), "é" * 12]


def keys_of(words: list[str]) -> np.ndarray:
    """The keys by which a table finds words, as those of a text with spaces between them."""
    data = " ".join(words).encode() + PADDING
    starts, ends = split_at_blanks(data)
    assert [data[start:end].decode() for start, end in zip(starts, ends, strict=True)] == words
    return word_keys(data, starts, ends)


@pytest.fixture(params=["without collisions", "with collisions"])
def empty_table(request, monkeypatch):
    """A table; with collisions, the search of all words begins at one slot near its end."""
    if request.param == "with collisions":
        # An empty table has 1,024 slots.
        monkeypatch.setattr(
            WordTable, "_first_slots", lambda self, keys: np.full(keys.shape[1], 1022)
        )
    return WordTable()


def table_with_all_words(table):
    """Add WORDS with the numbers 0, 1, 2 and so on, in four parts of several sizes."""
    for start, stop in ((0, 1), (1, 5), (5, 6), (6, len(WORDS))):
        table.add(keys_of(WORDS[start:stop]), np.arange(start, stop))
    return table


def test_an_empty_table_has_no_word(empty_table):
    numbers = empty_table.find(keys_of(WORDS))

    assert numbers.tolist() == [NOT_FOUND] * len(WORDS)


def test_a_table_finds_the_numbers_of_all_added_words(empty_table):
    table = table_with_all_words(empty_table)

    numbers = table.find(keys_of(WORDS))

    assert numbers.tolist() == list(range(len(WORDS)))


def test_a_table_finds_no_other_words_next_to_added_ones(empty_table):
    table = table_with_all_words(empty_table)

    numbers = table.find(keys_of(["other", *WORDS, *TOO_LONG_WORDS, WORDS[0]]))

    first, *numbers_of_words, number_of_first_word = numbers.tolist()
    assert first == NOT_FOUND
    expected = [*range(len(WORDS)), *([NOT_FOUND] * len(TOO_LONG_WORDS))]
    assert numbers_of_words == expected
    assert number_of_first_word == 0


def random_words(rng) -> list[str]:
    """Up to 300 distinct words of 0 to 8 letters, many of which occur in other calls too."""
    words = set()
    for _ in range(300):
        letters = rng.choice(list("abcdefé\0"), rng.integers(0, 9))
        words.add("".join(letters))
    return sorted(words)


def test_a_growing_table_has_the_numbers_of_a_dict():
    table = WordTable()
    numbers = {}
    rng = np.random.default_rng(1)
    for _ in range(40):
        words = random_words(rng)
        expected = [numbers.get(word, NOT_FOUND) for word in words]
        assert table.find(keys_of(words)).tolist() == expected

        # Add the new words to both.
        new_words = [word for word in words if word not in numbers]
        for word in new_words:
            numbers[word] = len(numbers)
        table.add(keys_of(new_words), np.array([numbers[word] for word in new_words]))

    # Enough for the table to have grown several times from its 1,024 slots.
    assert len(numbers) > 5000
    assert table.find(keys_of(list(numbers))).tolist() == list(numbers.values())
