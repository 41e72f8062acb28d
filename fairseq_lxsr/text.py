"""The one place that turns text into pieces: the same for preparing training data and for encoding."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files import BLANKS, read_lines
from fairseq_lxsr.ranges import check_fields

# fairseq's dictionaries begin with these; <mask> comes last
BOS, PAD, EOS, UNK, MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
SPECIAL = (BOS, PAD, EOS, UNK)

DICTIONARY_FILE, SENTENCEPIECE_FILE, TEXT_FILE = "dict.txt", "sentencepiece.model", "text.json"
# halves of a surrogate pair are no text; SentencePiece refuses them
_BLANKS = re.compile(BLANKS.replace("[", r"[\ud800-\udfff", 1))
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
FILLER = "madeupword"  # entries that fairseq adds up to a multiple of eight
WORD_START = "▁"  # SentencePiece's mark, U+2581
_WORD_CHARACTER = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class TextOptions:
    """How text was treated before SentencePiece; travels with the data and the model."""

    lowercase: bool = False
    split_han: bool = False  # Chinese characters stand alone, as words of their own

    def __post_init__(self):
        check_fields(self)

    @classmethod
    def load(cls, path: str | Path) -> "TextOptions":
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: not a {TEXT_FILE} as `lxsr prepare` writes it ({error})") from None

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def normalise(text: str, options: TextOptions) -> str:
    """White space and control characters become single blanks; lower case, Chinese characters apart where asked for.

    Unicode normalisation (NFKC) is SentencePiece's own and lies in its model.
    """
    if options.split_han:
        text = _HAN.sub(r" \g<0> ", text)
    text = _BLANKS.sub(" ", text).strip()
    return text.lower() if options.lowercase else text


def is_punctuation(piece: str) -> bool:
    """Whether a piece has neither a letter nor a digit (of any script)."""
    return _WORD_CHARACTER.search(piece) is None


def read_dictionary(path: str | Path) -> list[str]:
    """Symbols of a fairseq dictionary file in the order of their ids, specials first.

    Raises:
        InputError: for a line that is not `symbol count`, or a symbol that stands twice.
    """
    symbols = list(SPECIAL)
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
        if len(fields) != 2 or not re.fullmatch(r"-?\d{1,18}", fields[1]):
            raise InputError(f"{path}, line {number}: {shown(line)}; expected `symbol count`, a fairseq dictionary")
        symbols.append(fields[0])
    if len(set(symbols)) != len(symbols):
        twice = next(symbol for position, symbol in enumerate(symbols) if symbol in symbols[:position])
        raise InputError(f"{path}: {twice!r} stands twice; make the dictionary again with fairseq-preprocess")
    return symbols


def hash_symbols(symbols: Sequence[str]) -> str:
    """Identity of a dictionary: the same symbols in the same order, whatever their counts."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


class Tokenizer:
    """SentencePiece with the text treatment around it; ids are those of a fairseq dictionary.

    Args:
        model: a SentencePiece model file.
        symbols: the dictionary in the order of its ids (see `read_dictionary`); only `encode` needs it.

    Raises:
        InputError: for a file that is no SentencePiece model, or one that shares no piece with the dictionary.
    """

    def __init__(self, model: str | Path, options: TextOptions, symbols: Sequence[str] | None = None):
        self.options = options
        if not Path(model).is_file():
            raise InputError(f"{model}: no such file; expected a SentencePiece model")
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(Path(model).read_bytes())
        except RuntimeError:
            raise InputError(f"{model}: not a SentencePiece model; expected the .model file of spm_train") from None
        self.symbols = list(symbols or ())
        if symbols is not None:
            self._ids = self._dictionary_ids(symbols, model)

    def __len__(self) -> int:
        return self._processor.GetPieceSize()

    @property
    def unknown(self) -> int:
        """Dictionary id of what is unknown."""
        return self.symbols.index(UNK)

    def all_pieces(self) -> list[str]:
        """Every piece of the SentencePiece model."""
        return [self._processor.IdToPiece(index) for index in range(len(self))]

    def serialized_model(self) -> bytes:
        """The content of the SentencePiece file."""
        return self._processor.serialized_model_proto()

    def _dictionary_ids(self, symbols: Sequence[str], model: str | Path) -> np.ndarray:
        position = {symbol: index for index, symbol in enumerate(symbols)}
        unknown = position[UNK]
        pieces = self.all_pieces()
        ids = np.array([unknown if piece in SPECIAL else position.get(piece, unknown) for piece in pieces])
        if (ids == unknown).mean() > 0.5:
            raise InputError(
                f"{model}: only {(ids != unknown).sum():,} of its {len(ids):,} pieces are in the dictionary of "
                f"{len(symbols):,}; expected the SentencePiece model that the training data was made with"
            )
        # fairseq-preprocess also takes letters that SentencePiece does not know, and fills up with words of its own
        own = {*pieces, *SPECIAL, MASK}
        lacking = [symbol for symbol in symbols if symbol not in own and not symbol.startswith(FILLER)]
        if len(lacking) > 0.1 * len(symbols):
            raise InputError(
                f"{model}: lacks {len(lacking):,} of the {len(symbols):,} entries of the dictionary, for example "
                f"{lacking[0]!r:.60}; expected the SentencePiece model that the training data was made with"
            )
        return ids

    def pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Pieces as text, for fairseq-preprocess."""
        return self._processor.EncodeAsPieces([normalise(text, self.options) for text in texts])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Dictionary ids of the pieces of each text; an empty text gives an empty array."""
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, lengths.cumsum()[:-1]) if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same, one text after the other: ids int64 [pieces of all], number of pieces of each text [N]."""
        encoded = self._processor.EncodeAsIds([normalise(text, self.options) for text in texts])
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(lengths.sum()))
        return self._ids[flat], lengths
