"""Drop the word pieces of a trained model without layers that change its embeddings least.

python examples/pretrained/prune.py MODEL --before OLDER --text work/static/text --pieces 177100 \
    --output MODEL

`grow.py` gave OLDER more pieces, and MODEL was trained from there. A piece of OLDER gets the mean
of its two vectors, so that what OLDER learnt from other text is not lost. The importance of a piece
is its frequency times the squared distance between its vector and the sum of the vectors of its
parts, which replace it if it is dropped. Single characters are kept. With --sentences, pieces are
also counted in the sentences of monolingual.py.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from fold import dictionary_of, table_of_pieces, unigram_file, write_table
from grow import parts, piece_scores
from rows import ENGLISH, kind_files, piece_shares
from rows import LINES as ENGLISH_LINES
from sample import PAIRS_FILE

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.text.sentencepiece_model import (
    NORMAL,
    UNIGRAM,
    Piece,
    model_of_pieces,
    with_rule_name,
)

# Kind of the sentences of --sentences.
SENTENCES = "sentences"
# Number of lines that are read of each kind of text of a language other than English.
LINES = 20_000
# Weight of a kind of text, if it is not 1: people search everyday sentences more than laws.
KINDS = {
    "everyday": 3.0,
    SENTENCES: 3.0,
    "commands": 1.5,
    "interface": 0.5,
    "software": 0.4,
    "manuals": 0.3,
    "law": 0.2,
}
# Weight of a language, if it is not 1. English is one side of all pairs. The others are those in
# which the fewest sentences are found.
LANGUAGES = {"en": ENGLISH, "he": 4.0, "et": 3.0, "lv": 2.0, "sk": 2.0, "sl": 2.0}
# Weight of the probabilities of the older pieces, which were learnt from lists of words, too.
LISTS = 0.2
# Pieces are dropped in so many rounds: parts of a dropped piece occur more often afterwards.
ROUNDS = 8


def frequencies(
    encoder: SentenceEncoder, texts: Mapping[str, Mapping[str, list[Path]]]
) -> np.ndarray:
    """Return the weighted mean frequency of each piece over languages and kinds of text [V].

    Args:
        encoder: a model without layers.
        texts: the files of each language and kind.
    """
    total = np.zeros(len(encoder.table))
    total_weight = 0.0
    for language, kinds in texts.items():
        shares = piece_shares(encoder, kinds, ENGLISH_LINES if language == "en" else LINES)
        weights = [KINDS.get(kind, 1.0) for kind in shares]
        weight = LANGUAGES.get(language, 1.0)
        total += weight * np.average(list(shares.values()), axis=0, weights=weights)
        total_weight += weight
    return total / total_weight


def important_pieces(
    scores: Mapping[str, float], vectors: np.ndarray, frequency: np.ndarray, limit: int
) -> list[int]:
    """Return the places of the pieces that matter most, in ascending order.

    Args:
        scores: score of each piece in a unigram model.
        vectors: the vectors of the pieces, in the order of `scores` [V, D].
        frequency: how often each piece occurs [V].
        limit: number of pieces to keep.

    Raises:
        InputError: if there are more single characters than that.
    """
    places = {text: place for place, text in enumerate(scores)}
    remaining = dict(scores)
    frequency = frequency.copy()
    for rounds in range(ROUNDS, 0, -1):
        segmentations = {text: parts(text, remaining) for text in remaining}
        divisible = {text: pieces for text, pieces in segmentations.items() if pieces}
        excess = len(remaining) - limit
        if excess > len(divisible):
            raise InputError(
                f"--pieces {limit}: less than the number of characters;"
                f" expected at least {len(remaining) - len(divisible)}"
            )
        importance = importances(divisible, places, vectors, frequency)
        texts = list(divisible)
        for index in np.argsort(importance, kind="stable")[: math.ceil(excess / rounds)]:
            text = texts[index]
            for part in divisible[text]:
                frequency[places[part]] += frequency[places[text]]
            del remaining[text]
    return sorted(places[text] for text in remaining)


def importances(
    segmentations: Mapping[str, list[str]],
    places: Mapping[str, int],
    vectors: np.ndarray,
    frequency: np.ndarray,
) -> np.ndarray:
    """Return the importance of each piece in `segmentations` [N].

    Args:
        segmentations: the parts that replace each piece.
        places: place of each piece in `vectors`.
        vectors: the vectors of the pieces [V, D].
        frequency: how often each piece occurs [V].
    """
    sums = np.zeros((len(segmentations), vectors.shape[1]), dtype=np.float32)
    for row, pieces in enumerate(segmentations.values()):
        for part in pieces:
            sums[row] += vectors[places[part]]
    rows = [places[text] for text in segmentations]
    return np.asarray(frequency[rows] * np.square(vectors[rows] - sums).sum(axis=1))


def averaged(encoder: SentenceEncoder, before: SentenceEncoder) -> np.ndarray:
    """Return the vectors of a model [V, D]: a piece that `before` has gets the mean of both."""
    table = encoder.table.astype(np.float32)
    rows = {symbol: row for row, symbol in enumerate(encoder.tokenizer.symbols)}
    for row, symbol in enumerate(before.tokenizer.symbols):
        if symbol in rows:
            table[rows[symbol]] = (table[rows[symbol]] + before.table[row]) / 2
    return table


def counted_texts(pairs_file: Path, folders: Sequence[Path]) -> dict[str, dict[str, list[Path]]]:
    """Return the files of each language and kind of text in which pieces are counted.

    Args:
        pairs_file: file of `collect.py` that lists the training text.
        folders: folders of further sentences LANG.txt, for languages of the training text.
    """
    texts = kind_files(pairs_file)
    for folder in folders:
        for file in folder.glob("*.txt"):
            if file.stem in texts:
                texts[file.stem].setdefault(SENTENCES, []).append(file)
    return texts


def prune(
    model: Path,
    before: Path,
    texts: Mapping[str, Mapping[str, list[Path]]],
    limit: int,
    output: Path,
    dtype: str,
) -> int:
    """Write a model with fewer pieces, and return the number of dropped pieces."""
    encoder = SentenceEncoder.from_pretrained(model)
    older = SentenceEncoder.from_pretrained(before)
    file = unigram_file(encoder)
    scores = piece_scores(encoder)
    symbols = {symbol: row for row, symbol in enumerate(encoder.tokenizer.symbols)}
    rows = [symbols[text] for text in scores]
    table = averaged(encoder, older)
    vectors = table[rows]
    frequency = frequencies(encoder, texts)[rows]
    older_symbols = set(older.tokenizer.symbols)
    for place, (text, score) in enumerate(scores.items()):
        # The scores of new pieces are no probabilities: grow.py derives them from other pieces.
        if text in older_symbols:
            frequency[place] += LISTS * math.exp(score)
    places = important_pieces(scores, vectors, frequency, limit)
    names = list(scores)
    pieces = [Piece(names[place], scores[names[place]], NORMAL) for place in places]
    sentencepiece = model_of_pieces(pieces, UNIGRAM, file.charsmap)
    sentencepiece = with_rule_name(sentencepiece, file.rule)
    table = table_of_pieces(encoder, table, vectors[places])
    write_table(encoder, table, [dictionary_of(pieces), sentencepiece], output, dtype)
    return len(scores) - len(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="folder of the trained model")
    parser.add_argument(
        "--before", required=True, metavar="OLDER", help="model folder or name, before grow.py"
    )
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--sentences",
        type=Path,
        nargs="*",
        default=[],
        metavar="DIR",
        help="folders of sentences of monolingual.py",
    )
    parser.add_argument(
        "--pieces", type=int, required=True, metavar="N", help="number of pieces to keep"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="model folder to write"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "int4"),
        default="float32",
        help="type of the weights that are written (default: float32)",
    )
    args = parser.parse_args()
    with exit_on_input_error("prune.py"):
        model, before = find_model(args.model), find_model(args.before)
        texts = counted_texts(args.text / PAIRS_FILE, args.sentences)
        dropped = prune(model, before, texts, args.pieces, args.output, args.dtype)
        print(f"{args.output}: {dropped:,} pieces were dropped")


if __name__ == "__main__":
    main()
