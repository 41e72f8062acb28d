"""Give a trained model without layers word pieces for words typed without their marks.

python examples/pretrained/unmarked.py MODEL --text work/static/text --limit 25000 --output MODEL

Many people type Latin letters without accents and other marks: *khong* for *không*. German umlauts
are also replaced by two letters: *fuer* for *für*. A word that is typed like this becomes a piece,
unless it is one already. Its vector is the mean of the embeddings of the words that are typed so,
weighted by their frequency in text that `collect.py` wrote and by the probabilities of their
pieces. The LIMIT pieces are added that change embeddings most. `refine.py` then trains the pieces
of words that other languages have, too.
"""

import itertools
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fold import parser_of_step, unigram_file, write_with_pieces
from grow import parts, piece_scores
from prune import KINDS, LINES
from rows import kind_files
from sample import PAIRS_FILE

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.preparation.new_pieces import SCORE_MARGIN
from fairseq_lxsr.text.sentencepiece_model import NORMAL, Piece, with_pieces
from fairseq_lxsr.text.tokenizer import TextOptions, normalise_all
from fairseq_lxsr.text.words import WORD_START

# Languages with marks in Latin letters.
MARKED = {
    *("ca", "cs", "da", "de", "es", "et", "fi", "fr", "hr", "hu", "is", "it", "lt", "lv"),
    *("nb", "nl", "pl", "pt", "ro", "sk", "sl", "sv", "tr", "vi"),
}
# Letters whose marks Unicode does not separate.
STROKES = str.maketrans("łŁđĐøØı", "lLdDoOi")
UMLAUTS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}
)


def without_marks(text: str) -> str:
    """Return a text without the marks of its letters: *Cong* for *Công*."""
    letters = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).translate(
        STROKES
    )


def with_two_letters(text: str) -> str:
    """Return a German text with two letters for each umlaut: *fuer* for *für*."""
    return text.translate(UMLAUTS)


def is_latin(text: str) -> bool:
    """Return whether a text has at least two letters, all of them Latin."""
    return len(text) > 1 and all(
        unicodedata.name(letter, "").startswith("LATIN") for letter in text
    )


def word_shares(files: list[Path], options: TextOptions) -> dict[str, float]:
    """Return the share of each word among all words in the first lines of files."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in normalise_all(list(itertools.islice(read_lines(file), LINES)), options):
            counts.update(line.split())
    total = max(counts.total(), 1)
    return {word: count / total for word, count in counts.items()}


def word_weights(
    scores: Mapping[str, float],
    texts: Mapping[str, Mapping[str, list[Path]]],
    options: TextOptions,
) -> dict[str, float]:
    """Return the frequency of words, the mean over languages, and of their pieces.

    Args:
        scores: log probability of each piece.
        texts: the files of each language and kind of text.
        options: how the model reads text.
    """
    weights: dict[str, float] = defaultdict(float)
    for language in sorted(MARKED & set(texts)):
        kinds = {kind: KINDS.get(kind, 1.0) for kind in texts[language]}
        for kind, weight in kinds.items():
            factor = weight / sum(kinds.values()) / len(texts)
            for word, share in word_shares(texts[language][kind], options).items():
                weights[word] += factor * share
    for piece, score in scores.items():
        if piece.startswith(WORD_START):
            weights[piece.removeprefix(WORD_START)] += math.exp(score)
    return weights


def typed_words(weights: Mapping[str, float], scores: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the new pieces, each with the words that are typed like it.

    Args:
        weights: frequency of each word.
        scores: score of each piece.
    """
    words = defaultdict(list)
    for word in weights:
        for typed in sorted({without_marks(word), with_two_letters(word)}):
            if typed != word and is_latin(typed) and WORD_START + typed not in scores:
                words[WORD_START + typed].append(word)
    return words


def add_unmarked(
    model: Path, texts: Mapping[str, Mapping[str, list[Path]]], limit: int, output: Path
) -> int:
    """Write a model with words without marks, and return their number.

    Args:
        model: folder of a model without layers.
        texts: the files of each language and kind of text, one sentence a line.
        limit: number of pieces to add.
        output: model folder to write, in float32.
    """
    encoder = SentenceEncoder.from_pretrained(model)
    tokenizer = encoder.tokenizer
    dictionary, _ = text_files(model, tokenizer)
    scores = piece_scores(encoder)
    weights = word_weights(scores, texts, tokenizer.options)
    words = typed_words(weights, scores)
    table = encoder.table.astype(np.float32)
    rows = {symbol: row for row, symbol in enumerate(tokenizer.symbols)}
    candidates = []
    distinct = sorted(set(itertools.chain.from_iterable(words.values())))
    pieces_of = dict(zip(distinct, tokenizer.encode(distinct), strict=True))
    for typed, marked in words.items():
        frequencies = np.array([weights[word] for word in marked])
        embeddings = np.stack([table[pieces_of[word]].sum(axis=0) for word in marked])
        frequency = frequencies.sum()
        vector = frequencies @ embeddings / frequency
        pieces = parts(typed, scores)
        score = math.log(frequency)
        change = vector
        if pieces:
            # The piece must have a better score than its parts.
            score = max(score, sum(scores[piece] for piece in pieces) + SCORE_MARGIN)
            change = vector - table[[rows[piece] for piece in pieces]].sum(axis=0)
        importance = float(frequency * np.square(change).sum())
        candidates.append((importance, Piece(typed, score, NORMAL), vector))
    candidates.sort(key=lambda candidate: -candidate[0])
    del candidates[limit:]
    vectors = [vector for _, _, vector in candidates]
    added = np.array(vectors, dtype=np.float32).reshape(-1, table.shape[1])
    new_pieces = [piece for _, piece, _ in candidates]
    sentencepiece = with_pieces(unigram_file(encoder).data, new_pieces)
    texts_of_model = [dictionary, sentencepiece]
    names = [piece.text for piece in new_pieces]
    write_with_pieces(encoder, texts_of_model, names, added, output)
    return len(new_pieces)


def main() -> None:
    parser = parser_of_step(__doc__)
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--limit", type=int, default=25_000, metavar="N", help="new pieces (default: 25,000)"
    )
    args = parser.parse_args()
    with exit_on_input_error("unmarked.py"):
        texts = kind_files(args.text / PAIRS_FILE)
        count = add_unmarked(find_model(args.model), texts, args.limit, args.output)
        print(f"{args.output}: {count:,} words without marks were added")


if __name__ == "__main__":
    main()
