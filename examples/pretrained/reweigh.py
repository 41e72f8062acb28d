"""Change the lengths of the vectors of a model without layers: frequent words and signs count less.

python examples/pretrained/reweigh.py MODEL --output MODEL --dtype int4

A vector is multiplied by exp(-RATE (log p + 10)), where p is the probability of its piece and
log p + 10 is cut to -3 .. 6. Signs of mark-up, such as # and |, are then multiplied by SIGN_SCALE.
Full stops, question marks, quotes, brackets and dashes of sentences are not: they tell sentences
apart.
"""

import unicodedata
from pathlib import Path

import numpy as np
from fold import parser_of_step, write_table
from grow import piece_scores

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.text.words import WORD_START

# Log probability of a piece that keeps its length, and the range of the difference to it.
USUAL = -10.0
LOWEST, HIGHEST = -3.0, 6.0
SIGN_SCALE = 0.2
# Signs that belong to sentences.
ASCII_PUNCTUATION = ".?!,;:'\"`-()"
# Quotes, dashes, dots, and Chinese and Japanese signs.
OTHER_PUNCTUATION = (
    "\u2019\u2018\u201c\u201d\xab\xbb\u201e\xb4\u2013\u2014\u2026"
    "\u3002\uff1f\uff01\u3001\uff0c\uff08\uff09\u300c\u300d"
)
PUNCTUATION = set(ASCII_PUNCTUATION + OTHER_PUNCTUATION)


def is_sign(piece: str) -> bool:
    """Return whether a piece has only signs, and one that is no punctuation of sentences."""
    text = piece.removeprefix(WORD_START)
    if not text or any(unicodedata.category(letter)[0] in "LNM" for letter in text):
        return False
    has_symbol = any(unicodedata.category(letter) == "So" for letter in text)
    return not has_symbol and not set(text) <= PUNCTUATION


def scales(scores: dict[str, float], rate: float) -> dict[str, float]:
    """Return the factor of each piece.

    Args:
        scores: log probability of each piece.
        rate: see the module.
    """
    factors = {}
    for piece, score in scores.items():
        difference = min(max(score - USUAL, LOWEST), HIGHEST)
        factors[piece] = float(np.exp(-rate * difference)) * (SIGN_SCALE if is_sign(piece) else 1)
    return factors


def reweigh(model: Path, rate: float, output: Path, dtype: str) -> None:
    """Write the model."""
    encoder = SentenceEncoder.from_pretrained(model)
    rows = {symbol: row for row, symbol in enumerate(encoder.tokenizer.symbols)}
    table = encoder.table.astype(np.float32)
    for piece, factor in scales(piece_scores(encoder), rate).items():
        table[rows[piece]] *= factor
    texts = text_files(model, encoder.tokenizer)
    write_table(encoder, table, list(texts), output, dtype)


def main() -> None:
    parser = parser_of_step(__doc__)
    parser.add_argument(
        "--rate", type=float, default=0.015, metavar="RATE", help="see above (default: 0.015)"
    )
    parser.add_argument("--dtype", choices=["float32", "int4"], default="int4")
    args = parser.parse_args()
    with exit_on_input_error("reweigh.py"):
        reweigh(find_model(args.model), args.rate, args.output, args.dtype)
        print(f"{args.output}: written")


if __name__ == "__main__":
    main()
