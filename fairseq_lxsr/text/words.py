"""Encodes texts into word pieces using a cache of words.

This requires that SentencePiece splits each word independently of its neighbours.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np

from fairseq_lxsr.files.locks import ThreadLock
from fairseq_lxsr.text.sentencepiece_model import BPE, UNIGRAM, WORD, read_sentencepiece

# SentencePiece's word-start mark, U+2581.
WORD_START = "▁"
# SentencePiece normalization rules that never depend on characters across a space.
PLAIN_RULES = {b"identity", b"nfkc", b"nfkc_cf", b"nmt_nfkc", b"nmt_nfkc_cf", b"folded"}
# Number of texts to look up together.
LOOKUP_TEXTS = 4096
# Texts shorter than this, in bytes, are looked up in a dict, which is faster for few words.
SHORT_TEXT_BYTES = 2000
# Maximum number of cached words. The words in the table take about 30 MB.
CACHED_WORDS = 1 << 19
# Maximum number of words in the dict, and maximum of their total bytes. They take about 30 MB.
DICT_WORDS = 1 << 17
DICT_BYTES = 1 << 22

# The concatenated ids of all texts [P], and the number of ids per text [N].
FlatIds = tuple[np.ndarray, np.ndarray]


def splits_words_independently(model: bytes, pieces: Sequence[str]) -> bool:
    """Return whether a model splits words independently of their context.

    BPE models do. Unigram models do, except for ties: SentencePiece adds up scores along the text,
    so rounding may decide between two equally good splits of a word, whereas here the choice
    depends only on the word. Word models do only if their words have no word-start mark; otherwise
    they join adjacent unknown words.

    Args:
        model: content of a SentencePiece model file.
        pieces: the model's pieces, as the dictionary spells them.
    """
    file = read_sentencepiece(model)
    if file.kind == WORD:
        return not is_marked(pieces)
    if file.kind not in (BPE, UNIGRAM) or not file.plain or file.rule not in PLAIN_RULES:
        return False
    # If the word-start mark is not a piece, unknown pieces are joined across words.
    if WORD_START not in pieces:
        return False
    return not _spans_words(pieces)


def _spans_words(pieces: Sequence[str]) -> bool:
    """Return whether any piece contains a space, or a word-start mark after its first character."""
    # Search all pieces as one text, because a loop over them is slow.
    text = "".join(pieces)
    first_marks = sum(map(str.startswith, pieces, repeat(WORD_START)))
    return " " in text or text.count(WORD_START) > first_marks


def is_marked(pieces: Iterable[str]) -> bool:
    """Return whether any piece contains the word-start mark of SentencePiece."""
    return WORD_START in "".join(pieces)


class WordPieces:
    """A thread-safe cache that maps words to their pieces.

        word_pieces = WordPieces(encode)
        ids, lengths = word_pieces.encode_flat(["the dog", "the cat"])

    Args:
        encode: encodes texts with SentencePiece, without a cache.
    """

    def __init__(self, encode: Callable[[Sequence[str]], FlatIds]):
        self._encode = encode
        self._lock = ThreadLock(self._forget)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the cache: each process fills its own cache."""
        return {"encode": self._encode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        """Empty the cache."""
        # Indices of the words of short texts, and of words that are too long for the table.
        self._indices: dict[bytes, int] = {}
        self._dict_bytes = 0
        # Looks up the indices of many short words at once.
        self._table = WordTable()
        # The concatenated ids of all words.
        self._ids = np.zeros(0, dtype=np.int64)
        # Offsets in `_ids` where each word ends, with a leading 0.
        self._ends = np.zeros(1, dtype=np.int64)

    def _is_full(self) -> bool:
        """Return whether the cache has reached one of its limits."""
        return (
            len(self._ends) > CACHED_WORDS
            or len(self._indices) > DICT_WORDS
            or self._dict_bytes > DICT_BYTES
        )

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the concatenated ids of texts, int64 [P], and the number of ids per text [N]."""
        starts = range(0, len(texts), LOOKUP_TEXTS)
        blocks = [self._encode_block(texts[start : start + LOOKUP_TEXTS]) for start in starts]
        if not blocks:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        ids, lengths = zip(*blocks, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_block(self, texts: Sequence[str]) -> FlatIds:
        """Like `encode_flat`, but for a single block of texts."""
        joined = " ".join(texts)
        # SentencePiece removes this mark at the end of a text, but not at the end of other words.
        if WORD_START in joined:
            return self._encode(texts)
        data = joined.encode("utf-8", "surrogatepass") + PADDING
        word_counts = np.fromiter(map(str.count, texts, repeat(" ")), np.int64, len(texts)) + 1
        with self._lock:
            try:
                indices = self._look_up(data)
            except BaseException:
                # Some words may have pieces, but no index yet.
                self._forget()
                raise
            ids = self._ids
            ends = self._ends
            if self._is_full():
                self._forget()
        word_lengths = ends[indices + 1] - ends[indices]
        # Number of ids before each word in the block, followed by the total.
        ids_before = np.concatenate([[0], word_lengths.cumsum()])
        shifts = np.repeat(ends[indices] - ids_before[:-1], word_lengths)
        places = shifts + np.arange(ids_before[-1])
        text_ends = ids_before[word_counts.cumsum()]
        return ids[places], text_ends - np.concatenate([[0], text_ends[:-1]])

    def _look_up(self, data: bytes) -> np.ndarray:
        """Return the index of each word of a text, int64 [W]; new words are encoded and added.

        Args:
            data: the text in UTF-8, followed by `PADDING`.
        """
        if len(data) < SHORT_TEXT_BYTES:
            words = data[: -len(PADDING)].split(b" ")
            return self._indices_in_dict(words)
        starts, ends = split_at_blanks(data)
        keys = word_keys(data, starts, ends)
        indices = self._table.find(keys)
        # The remaining words are either new or too long for the table.
        rest = np.flatnonzero(indices < 0)
        is_short = ends[rest] - starts[rest] <= MAX_KEY_BYTES
        short = rest[is_short]
        long = rest[~is_short]
        indices[long] = self._indices_in_dict(_slices(data, starts[long], ends[long]))
        indices[short] = self._indices_of(_slices(data, starts[short], ends[short]), {})
        first = short[np.unique(indices[short], return_index=True)[1]]
        self._table.add(keys[:, first], indices[first])
        return indices

    def _indices_in_dict(self, words: Sequence[bytes]) -> np.ndarray:
        """Return the index of each word, int64 [n]; new words are encoded and added to the dict."""
        known_count = len(self._indices)
        indices = self._indices_of(words, self._indices)
        if len(self._indices) > known_count:
            new_words = islice(reversed(self._indices), len(self._indices) - known_count)
            self._dict_bytes += sum(map(len, new_words))
        return indices

    def _indices_of(self, words: Sequence[bytes], known: dict[bytes, int]) -> np.ndarray:
        """Return the index of each word, int64 [n]; words that are not in `known` are encoded.

        Args:
            words: n words.
            known: index of each cached word; new words are added to it.
        """
        new_words = [word for word in dict.fromkeys(words) if word not in known]
        if new_words:
            first = len(self._ends) - 1
            # SentencePiece is faster when given many words at once, and so is decoding.
            texts = b" ".join(new_words).decode("utf-8", "surrogatepass").split(" ")
            ids, lengths = self._encode(texts)
            self._ids = np.concatenate([self._ids, ids])
            self._ends = np.concatenate([self._ends, self._ends[-1] + lengths.cumsum()])
            known.update(zip(new_words, range(first, first + len(new_words)), strict=True))
        return np.fromiter(map(known.__getitem__, words), dtype=np.int64, count=len(words))


def _slices(data: bytes, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
    """Return n parts of a text, given the offsets of their first bytes and of their ends [n]."""
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return [data[start:end] for start, end in bounds]


# Number of 8-byte parts in a key; the last byte of the last part is the word length.
KEY_PARTS = 3
# Maximum length of a word in the table, in bytes.
MAX_KEY_BYTES = 8 * KEY_PARTS - 1
# Bytes to append to a text, because `word_keys` reads beyond the last word.
PADDING = bytes(8 * KEY_PARTS + 7)
BLANK = ord(" ")
# Minimum number of table slots per word.
SLOTS_PER_WORD = 2
# An odd, random-looking factor for each part of a key, as in MurmurHash3's finalizer.
_FACTORS = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9E3779B97F4A7C15], dtype=np.uint64)
# Number of bits used in each part of a key, by word length: [KEY_PARTS, MAX_KEY_BYTES + 2].
_BITS = np.clip(np.arange(MAX_KEY_BYTES + 2) - 8 * np.arange(KEY_PARTS)[:, None], 0, 8) * 8
_MASKS = np.array([[(1 << int(bits)) - 1 for bits in row] for row in _BITS], dtype=np.uint64)


def split_at_blanks(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of each word in a UTF-8 text; words may be empty.

    Args:
        data: the text, followed by `PADDING`.

    Returns:
        Offset of each word's first byte [W], and of the byte after its last one [W].
    """
    size = len(data) - len(PADDING)
    blanks = np.flatnonzero(np.frombuffer(data, np.uint8, size) == BLANK)
    return np.append(0, blanks + 1), np.append(blanks, size)


def word_keys(data: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a key for each word, uint64 [KEY_PARTS, W]: its bytes and its length.

    Distinct words of at most `MAX_KEY_BYTES` bytes have distinct keys. Keys of longer words differ
    from all of these keys, but may collide with each other: never add them to a table.

    Args:
        data: UTF-8 text, followed by `PADDING`.
        starts: offset of each word's first byte [W].
        ends: offset of the byte after each word [W].
    """
    # The eight bytes starting at each position, as an integer.
    eight_bytes = np.ndarray(len(data) - 7, "<u8", data, strides=(1,)).copy()
    lengths = np.minimum(ends - starts, MAX_KEY_BYTES + 1)
    parts = [eight_bytes[starts + 8 * part] & _MASKS[part, lengths] for part in range(KEY_PARTS)]
    keys = np.stack(parts)
    last_part = keys[-1]
    last_part &= np.uint64((1 << 56) - 1)
    last_part |= lengths.astype(np.uint64) << np.uint64(56)
    return keys


class WordTable:
    """A vectorized hash table that maps word keys to word indices.

    It uses open addressing: a word is stored in the first free slot at or after its hash slot.
    """

    def __init__(self) -> None:
        self._keys = np.zeros((KEY_PARTS, 0), dtype=np.uint64)
        self._indices = np.zeros(0, dtype=np.int64)
        # Index of each slot's column in `_keys`; -1 for a free slot.
        self._slots = np.full(1 << 10, -1, dtype=np.int32)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the index of each word, int64 [W], or -1 for words that are not in the table.

        Args:
            keys: word keys, uint64 [KEY_PARTS, W] (see `word_keys`).
        """
        indices = np.full(keys.shape[1], -1, dtype=np.int64)
        if not len(self._indices):
            return indices
        # Words that are still unresolved, and the next slot to check for each of them.
        searched = np.arange(keys.shape[1])
        slots = self._first_slots(keys)
        while len(searched):
            columns = self._slots[slots]
            is_match = columns >= 0
            for table_part, key_part in zip(self._keys, keys, strict=True):
                is_match &= table_part[columns] == key_part[searched]
            indices[searched[is_match]] = self._indices[columns[is_match]]
            # If the slot holds a different word, continue with the next slot.
            is_taken = (columns >= 0) & ~is_match
            searched = searched[is_taken]
            slots = (slots[is_taken] + 1) % len(self._slots)
        return indices

    def add(self, keys: np.ndarray, indices: np.ndarray) -> None:
        """Add distinct words that are not yet in the table.

        Args:
            keys: word keys, uint64 [KEY_PARTS, W] (see `word_keys`).
            indices: indices of the words, int64 [W].
        """
        first_new = len(self._indices)
        self._keys = np.concatenate([self._keys, keys], axis=1)
        self._indices = np.concatenate([self._indices, indices])
        if SLOTS_PER_WORD * len(self._indices) > len(self._slots):
            while SLOTS_PER_WORD * len(self._indices) > len(self._slots):
                self._slots = np.full(4 * len(self._slots), -1, dtype=np.int32)
            # The enlarged table is empty, so add all words again.
            first_new = 0
        columns = np.arange(first_new, len(self._indices), dtype=np.int32)
        slots = self._first_slots(self._keys[:, first_new:])
        while len(columns):
            is_free = self._slots[slots] < 0
            # If several words compete for a slot, one of them gets it.
            self._slots[slots[is_free]] = columns[is_free]
            is_left = self._slots[slots] != columns
            columns = columns[is_left]
            slots = (slots[is_left] + 1) % len(self._slots)

    def _first_slots(self, keys: np.ndarray) -> np.ndarray:
        """Return the slot, int64 [W], that each key hashes to."""
        hashes = np.zeros(keys.shape[1], dtype=np.uint64)
        for part, factor in zip(keys, _FACTORS, strict=True):
            hashes = (hashes ^ part) * factor
            hashes ^= hashes >> np.uint64(32)
        return (hashes % np.uint64(len(self._slots))).astype(np.int64)
