"""Splits texts with a tokenizer.json, by the tokenizers library."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError, first_line, rust_errors
from fairseq_lxsr.machine import require
from fairseq_lxsr.text.tokenizer import SPECIAL, TextOptions, Tokenizer
from fairseq_lxsr.text.words import FlatIds


class LibraryTokenizer(Tokenizer):
    """Tokenizer of a sentence-transformers folder that has no SentencePiece model.

    It encodes texts. Everything that needs a SentencePiece model raises `InputError`, such as
    exporting the model or continuing its training.

        tokenizer = LibraryTokenizer(Path("tuned/tokenizer.json"))
        ids, lengths = tokenizer.encode_known(["A dog."])

    Args:
        path: path of a tokenizer.json.

    Raises:
        InputError: if the library is missing, or the file is not from an export of this package.
    """

    def __init__(self, path: Path):
        require("tokenizers", "st", f"{path}: this file, which was not exported by this package,")
        import tokenizers

        self.path = path
        self.options = TextOptions()
        try:
            with rust_errors():
                self._library = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            # A damaged file may raise almost any exception.
            raise InputError(f"{path.name} is damaged: {first_line(error):.150}") from None
        ids = self._library.get_vocab()
        names = sorted(ids, key=ids.__getitem__)
        # A symbol that SentencePiece never produces begins with a space.
        self.symbols = [name.removeprefix(" ") for name in names]
        is_complete = [ids[name] for name in names] == list(range(len(names)))
        if not is_complete or tuple(self.symbols[: len(SPECIAL)]) != SPECIAL:
            raise InputError(
                f"{path.name} does not begin with the symbols {' '.join(SPECIAL)} of an export"
            )

    @property
    def _processor(self) -> Any:  # type: ignore[override]
        raise InputError(
            f"{self.path.parent}: no SentencePiece model belongs to {self.path.name}, so that this "
            "model can only encode: if it was trained from an export of this package, copy the "
            "folder lxsr of the export into it"
        )

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """See `Tokenizer.encode_flat`."""
        encodings = self._library.encode_batch(list(texts), add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        return ids, lengths

    def encode_known(self, texts: Sequence[str]) -> FlatIds:
        """Like `encode_flat`: tokenizer.json itself empties texts without a known word."""
        return self.encode_flat(texts)
