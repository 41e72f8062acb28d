"""Finds the numbers of many words at once: a hash table in numpy, exact, for words of up to 23 bytes."""

import numpy as np

PARTS = 3  # of a key: eight bytes each; the last byte of the last part is the length of the word
LONGEST = 8 * PARTS - 1  # bytes of a word that the table can hold
PADDING = bytes(8 * PARTS + 7)  # `word_keys` reads so far beyond the last word
BLANK = ord(" ")
FILLED = 2  # places of the table for each word
# odd numbers without a pattern, as in MurmurHash3's finalizer, one for each part
_FACTORS = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9E3779B97F4A7C15], dtype=np.uint64)
# bits of each part that belong to a word of so many bytes [PARTS, LONGEST + 2]
_BITS = np.clip(np.arange(LONGEST + 2) - 8 * np.arange(PARTS)[:, None], 0, 8) * 8
_MASKS = np.array([[(1 << int(bits)) - 1 for bits in row] for row in _BITS], dtype=np.uint64)


def split_at_blanks(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the first byte of each word of UTF-8 text and the byte after its last one, [W] each; words may be empty.

    Args:
        data: the text, and `PADDING`.
    """
    size = len(data) - len(PADDING)
    blanks = np.flatnonzero(np.frombuffer(data, np.uint8, size) == BLANK)
    return np.append(0, blanks + 1), np.append(blanks, size)


def word_keys(data: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a key of each word, uint64 [PARTS, W]: its bytes and its length.

    Different words of at most `LONGEST` bytes have different keys. Longer words have keys that none of these has; they
    can be equal, so they must not be added to a table.

    Args:
        data: as in `split_at_blanks`.
        starts: first byte of each word [W].
        ends: the byte after its last one [W].
    """
    eight = np.ndarray(len(data) - 7, "<u8", data, strides=(1,)).copy()  # the bytes from each one on
    lengths = np.minimum(ends - starts, LONGEST + 1)
    keys = np.stack([eight[starts + 8 * part] & _MASKS[part, lengths] for part in range(PARTS)])
    last = keys[-1]
    last &= np.uint64((1 << 56) - 1)
    last |= lengths.astype(np.uint64) << np.uint64(56)
    return keys


class WordTable:
    """Numbers of words by their keys; open addressing, a word lies at the first free place from that of its hash on."""

    def __init__(self) -> None:
        self._keys = np.zeros((PARTS, 0), dtype=np.uint64)
        self._numbers = np.zeros(0, dtype=np.int64)
        self._places = np.full(1 << 10, -1, dtype=np.int32)  # rows of the above, -1 where there is none

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of each word [W], -1 for those that are not in the table; keys: see `word_keys`."""
        numbers = np.full(keys.shape[1], -1, dtype=np.int64)
        if not len(self._numbers):
            return numbers
        asked, places = np.arange(keys.shape[1]), self._first_places(keys)
        while len(asked):
            rows = self._places[places]
            same = rows >= 0
            for known, wanted in zip(self._keys, keys, strict=True):
                same &= known[rows] == wanted[asked]
            numbers[asked[same]] = self._numbers[rows[same]]
            other = (rows >= 0) & ~same
            asked, places = asked[other], (places[other] + 1) % len(self._places)
        return numbers

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Add words that are not in the table: their keys [PARTS, W], none twice, and their numbers [W]."""
        before = len(self._numbers)
        self._keys = np.concatenate([self._keys, keys], axis=1)
        self._numbers = np.concatenate([self._numbers, numbers])
        if FILLED * len(self._numbers) > len(self._places):
            while FILLED * len(self._numbers) > len(self._places):
                self._places = np.full(4 * len(self._places), -1, dtype=np.int32)
            before = 0
        rows = np.arange(before, len(self._numbers), dtype=np.int32)
        places = self._first_places(self._keys[:, before:])
        while len(rows):
            free = self._places[places] < 0
            self._places[places[free]] = rows[free]  # of several rows one gets the place
            left = self._places[places] != rows
            rows, places = rows[left], (places[left] + 1) % len(self._places)

    def _first_places(self, keys: np.ndarray) -> np.ndarray:
        """Return the place of each word's hash [W]."""
        mixed = np.zeros(keys.shape[1], dtype=np.uint64)
        for part, factor in zip(keys, _FACTORS, strict=True):
            mixed = (mixed ^ part) * factor
            mixed ^= mixed >> np.uint64(32)
        return (mixed % np.uint64(len(self._places))).astype(np.int64)
