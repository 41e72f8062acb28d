"""Pieces of whole texts from those of their words, where SentencePiece splits each word by
itself.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

import numpy as np

from fairseq_lxsr.files.locks import ThreadLock
from fairseq_lxsr.text.sentencepiece_model import BPE, UNIGRAM, WORD, read_sentencepiece

WORD_START = "▁"  # SentencePiece's mark, U+2581
# its rules of normalization, none of which reads across a blank
PLAIN_RULES = {b"identity", b"nfkc", b"nfkc_cf", b"nmt_nfkc", b"nmt_nfkc_cf"}
LOOKUP_TEXTS = 4096  # texts that are looked up together
SHORT_TEXT_BYTES = 2000  # bytes of text that are looked up word by word, which is faster for so few
CACHED_WORDS, CACHED_CHARACTERS = 1 << 17, 1 << 22  # of the words that are remembered, 30 MB

# ids of all texts, one text after the other, and how many each has
FlatIds = tuple[np.ndarray, np.ndarray]


def splits_words_independently(model: bytes, pieces: Sequence[str]) -> bool:
    """Return whether the pieces of a text are those of its words, one after the other, for any
    text.

    They are for BPE. They are for unigram too, but for ties: SentencePiece adds up scores along the
    text, and its rounding may decide between two equally good splits of a word; here the word alone
    decides. A model of whole words joins unknown ones that follow each other, unless `pieces` are
    words without a mark.
    """
    file = read_sentencepiece(model)
    if file.kind == WORD:
        return not is_marked(pieces)
    return (
        file.kind in (BPE, UNIGRAM)
        and file.plain
        and file.rule in PLAIN_RULES
        and WORD_START in pieces  # otherwise unknown pieces join across words
        and not any(WORD_START in piece[1:] or " " in piece for piece in pieces)
    )


def is_marked(pieces: Iterable[str]) -> bool:
    """Return whether pieces are SentencePiece's; words, and pieces of subword-nmt, have no mark."""
    return any(WORD_START in piece for piece in pieces)


class _Numbers(dict[bytes, int]):
    """Numbers of words, in the order in which they were first looked up; `new` lists those without
    pieces yet.
    """

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, word: bytes) -> int:
        self.new.append(word.decode("utf-8", "surrogatepass"))
        self[word] = number = len(self)
        return number


class WordPieces:
    """Remembers the pieces of words, at most `CACHED_WORDS`; several threads may ask at once.

    `encode` gives the concatenated ids of texts [P] and the number of ids of each [N], by
    SentencePiece.
    """

    def __init__(self, encode: Callable[[Sequence[str]], FlatIds]):
        self._encode = encode
        self._lock = ThreadLock(self._forget)
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle; the other process remembers words of its own."""
        return {"encode": self._encode}

    def __setstate__(self, state: dict[str, Callable[[Sequence[str]], FlatIds]]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        self._numbers, self._table = _Numbers(), WordTable()  # the table has the short ones
        self._ids = np.zeros(0, dtype=np.int64)  # of all words, one after the other
        self._ends = np.zeros(1, dtype=np.int64)  # of the ids of each word, after a 0
        self._characters = 0

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return concatenated ids of all texts, int64 [P], and the number of ids of each text
        [N].
        """
        starts = range(0, len(texts), LOOKUP_TEXTS)
        blocks = [self._encode_block(texts[start : start + LOOKUP_TEXTS]) for start in starts]
        if not blocks:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        ids, lengths = zip(*blocks, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_block(self, texts: Sequence[str]) -> FlatIds:
        """Encode one or more texts."""
        joined = " ".join(texts)
        # SentencePiece removes the mark from the end of a text, not from the end of a word
        if WORD_START in joined:
            return self._encode(texts)
        data = joined.encode("utf-8", "surrogatepass") + PADDING
        counts = np.fromiter(map(str.count, texts, repeat(" ")), np.int64, len(texts)) + 1
        with self._lock:
            try:
                numbers = self._look_up(data)
                self._learn()
            except BaseException:  # words may have numbers and no pieces
                self._forget()
                raise
            ids, ends = self._ids, self._ends
            if len(self._numbers) > CACHED_WORDS or self._characters > CACHED_CHARACTERS:
                self._forget()
        lengths = ends[numbers + 1] - ends[numbers]
        before = np.concatenate([[0], lengths.cumsum()])  # ids before each word
        places = np.repeat(ends[numbers] - before[:-1], lengths) + np.arange(before[-1])
        text_ends = before[counts.cumsum()]
        return ids[places], text_ends - np.concatenate([[0], text_ends[:-1]])

    def _look_up(self, data: bytes) -> np.ndarray:
        """Return the number of each word of a text [W]; words met for the first time get one."""
        if len(data) < SHORT_TEXT_BYTES:
            words = data[: -len(PADDING)].split(b" ")
            return np.fromiter(
                map(self._numbers.__getitem__, words), dtype=np.int64, count=len(words)
            )
        starts, ends = split_at_blanks(data)
        keys = word_keys(data, starts, ends)
        numbers = self._table.find(keys)
        rest = np.flatnonzero(numbers < 0)  # words that the table has not met, and long ones
        words = [
            data[start:end]
            for start, end in zip(starts[rest].tolist(), ends[rest].tolist(), strict=True)
        ]
        numbers[rest] = np.fromiter(
            map(self._numbers.__getitem__, words), dtype=np.int64, count=len(words)
        )
        first = rest[np.unique(numbers[rest], return_index=True)[1]]
        new = first[ends[first] - starts[first] <= MAX_KEY_BYTES]
        self._table.add(keys[:, new], numbers[new])
        return numbers

    def _learn(self) -> None:
        """Ask SentencePiece for the pieces of new words."""
        new = self._numbers.new
        if new:
            ids, lengths = self._encode(new)
            self._ids = np.concatenate([self._ids, ids])
            self._ends = np.concatenate([self._ends, self._ends[-1] + lengths.cumsum()])
            self._characters += sum(map(len, new))
            self._numbers.new = []


# of a key: eight bytes each; the last byte of the last part is the length of the word
KEY_PARTS = 3
MAX_KEY_BYTES = 8 * KEY_PARTS - 1  # bytes of a word that the table can hold
PADDING = bytes(8 * KEY_PARTS + 7)  # `word_keys` reads so far beyond the last word
BLANK = ord(" ")
SLOTS_PER_WORD = 2  # places of the table for each word
# odd numbers without a pattern, as in MurmurHash3's finalizer, one for each part
_FACTORS = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9E3779B97F4A7C15], dtype=np.uint64)
# bits of each part that belong to a word of so many bytes [KEY_PARTS, MAX_KEY_BYTES + 2]
_BITS = np.clip(np.arange(MAX_KEY_BYTES + 2) - 8 * np.arange(KEY_PARTS)[:, None], 0, 8) * 8
_MASKS = np.array([[(1 << int(bits)) - 1 for bits in row] for row in _BITS], dtype=np.uint64)


def split_at_blanks(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the first byte of each word of UTF-8 text and the byte after its last one, [W] each;
    words may be empty.

    `data` is the text, and `PADDING`.
    """
    size = len(data) - len(PADDING)
    blanks = np.flatnonzero(np.frombuffer(data, np.uint8, size) == BLANK)
    return np.append(0, blanks + 1), np.append(blanks, size)


def word_keys(data: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a key of each word, uint64 [KEY_PARTS, W]: its bytes and its length; the text is as in
    `split_at_blanks`.

    Different words of at most `MAX_KEY_BYTES` bytes have different keys. Longer words have keys
    that none of these has; they can be equal, so they must not be added to a table.
    """
    # the bytes from each one on
    eight = np.ndarray(len(data) - 7, "<u8", data, strides=(1,)).copy()
    lengths = np.minimum(ends - starts, MAX_KEY_BYTES + 1)
    keys = np.stack([eight[starts + 8 * part] & _MASKS[part, lengths] for part in range(KEY_PARTS)])
    last = keys[-1]
    last &= np.uint64((1 << 56) - 1)
    last |= lengths.astype(np.uint64) << np.uint64(56)
    return keys


class WordTable:
    """Numbers of words by their keys; open addressing, a word lies at the first free place from
    that of its hash on.
    """

    def __init__(self) -> None:
        self._keys = np.zeros((KEY_PARTS, 0), dtype=np.uint64)
        self._numbers = np.zeros(0, dtype=np.int64)
        # rows of the above, -1 where there is none
        self._places = np.full(1 << 10, -1, dtype=np.int32)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of each word [W], -1 for those that are not in the table; keys: see
        `word_keys`.
        """
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
        """Add words that are not in the table: their keys [KEY_PARTS, W], none twice, and their
        numbers [W].
        """
        before = len(self._numbers)
        self._keys = np.concatenate([self._keys, keys], axis=1)
        self._numbers = np.concatenate([self._numbers, numbers])
        if SLOTS_PER_WORD * len(self._numbers) > len(self._places):
            while SLOTS_PER_WORD * len(self._numbers) > len(self._places):
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
