"""Give a trained model without layers the frequent words of its languages as word pieces.

python examples/pretrained/grow.py MODEL --text work/static/text --limit 6000 --output MODEL

At most LIMIT pieces are added for each language, learnt by byte-pair encoding from the text that
`collect.py` wrote. The vector of a new piece is the sum of the vectors of its parts, so embeddings
keep their directions until the model is trained further. Hebrew words also become pieces that
follow a prefix, with the same vectors. `prune.py` then drops the pieces that change embeddings
least.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fold import parser_of_step, unigram_file, write_with_pieces
from rows import language_files
from sample import PAIRS_FILE

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.preparation.new_pieces import append_pieces, count_words, learn_pieces
from fairseq_lxsr.text.sentencepiece_model import (
    NORMAL,
    Piece,
    read_sentencepiece,
    with_pieces,
)
from fairseq_lxsr.text.words import WORD_START

# Languages that are written without spaces: their words cannot be counted.
WITHOUT_SPACES = {"ja", "th", "zh"}
# A Hebrew word. Words such as *the*, *and* and *to* are letters before it, without a space.
PREFIXED = re.compile(WORD_START + "[א-ת]{3,}")


def piece_scores(encoder: SentenceEncoder) -> dict[str, float]:
    """Return the score of each piece that has a vector, of a model with unigram pieces.

    Raises:
        InputError: if the pieces are of another kind.
    """
    symbols = set(encoder.tokenizer.symbols)
    return {
        piece.text: piece.score
        for piece in unigram_file(encoder).pieces
        if piece.type == NORMAL and piece.text in symbols
    }


def parts(text: str, scores: Mapping[str, float]) -> list[str]:
    """Return the best segmentation of a text into at least two pieces.

    The list is empty if there is none.
    """
    size = len(text)
    best = [(0.0, 0)]
    for end in range(1, size + 1):
        score, place = -math.inf, 0
        for start in range(end):
            piece = scores.get(text[start:end])
            if piece is not None and end - start < size and best[start][0] + piece > score:
                score, place = best[start][0] + piece, start
        best.append((score, place))
    if best[size][0] == -math.inf:
        return []
    segmentation = []
    end = size
    while end:
        start = best[end][1]
        segmentation.append(text[start:end])
        end = start
    return segmentation[::-1]


def words_after_prefixes(model: bytes) -> list[Piece]:
    """Return pieces for Hebrew words after a prefix: בית if ▁בית is a piece.

    A piece has the score of its word without a prefix, so that a word of a prefix and a known word
    is split between the two.

    Args:
        model: content of a SentencePiece model file of type unigram.
    """
    scores = {piece.text: piece.score for piece in read_sentencepiece(model).pieces}
    pieces = []
    for text, score in scores.items():
        word = text.removeprefix(WORD_START)
        if PREFIXED.fullmatch(text) and word not in scores:
            pieces.append(Piece(word, score, NORMAL))
    return pieces


def grow(model: Path, texts: Mapping[str, list[Path]], limit: int, output: Path) -> int:
    """Write a model with more pieces, and return their number.

    Args:
        model: folder of a model without layers.
        texts: files of each language, one sentence a line.
        limit: maximum number of new pieces of a language, without words after prefixes.
        output: model folder to write, in float32.

    Raises:
        InputError: if the pieces of the model are not those of a unigram model.
    """
    encoder = SentenceEncoder.from_pretrained(model)
    tokenizer = encoder.tokenizer
    dictionary, sentencepiece = text_files(model, tokenizer)
    scores = piece_scores(encoder)
    # The pieces whose vectors add up to the vector of each new piece.
    new: dict[str, list[str]] = {}
    for language, files in sorted(texts.items()):
        if language in WITHOUT_SPACES:
            continue
        words = count_words(files, tokenizer.options)
        learnt = {
            text: parts(text, scores) for text in learn_pieces(sentencepiece, words, {}, limit)
        }
        # A letter that the model lacks has no parts.
        learnt = {text: pieces for text, pieces in learnt.items() if pieces}
        sentencepiece = append_pieces(sentencepiece, list(learnt))
        new |= learnt
        print(f"{language}: {len(learnt):,} new pieces", flush=True)
    # Pieces that the dictionary lacks have no vector.
    pieces_with_vector = scores.keys() | new.keys()
    prefixed = words_after_prefixes(sentencepiece)
    prefixed = [piece for piece in prefixed if WORD_START + piece.text in pieces_with_vector]
    sentencepiece = with_pieces(sentencepiece, prefixed)
    for piece in prefixed:
        word = WORD_START + piece.text
        new[piece.text] = new.get(word, [word])
    print(f"{len(prefixed):,} new pieces for Hebrew words after a prefix")
    symbols = tokenizer.symbols
    rows = {text: row for row, text in enumerate(symbols)}
    added = np.empty((len(new), encoder.table.shape[1]), dtype=np.float32)
    for place, pieces in enumerate(new.values()):
        added[place] = encoder.table[[rows[piece] for piece in pieces]].sum(axis=0)
    write_with_pieces(encoder, [dictionary, sentencepiece], new, added, output)
    return len(new)


def main() -> None:
    parser = parser_of_step(__doc__)
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=6000,
        metavar="N",
        help="most new pieces of a language (default: 6000)",
    )
    args = parser.parse_args()
    with exit_on_input_error("grow.py"):
        texts = language_files(args.text / PAIRS_FILE)
        count = grow(find_model(args.model), texts, args.limit, args.output)
        print(f"{args.output}: {count:,} pieces were added")


if __name__ == "__main__":
    main()
