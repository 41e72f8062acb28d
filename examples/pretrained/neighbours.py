"""Move the vectors of words towards those of words that a teacher finds similar.

python examples/pretrained/neighbours.py MODEL --teacher intfloat/multilingual-e5-small \
    --prefix "query: " --vectors work/static/words.npz --output MODEL

The teacher is a model of sentence-transformers that reads all languages. It embeds each piece that
is a word. A new direction of a word is the sum of two unit vectors: the mean of its nearest words
in the teacher's space, and the teacher's embedding after a linear map that is learnt on frequent
words in Latin letters. The direction of a vector moves by --share towards the new direction, and
the vector keeps its length. --vectors stores the teacher's embeddings, so that a second run needs
no teacher.
"""

import argparse
import unicodedata
from pathlib import Path

import numpy as np
from fold import parser_of_step, write_table
from grow import piece_scores

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.text.words import WORD_START

# A piece of these scripts may be a word although nothing marks its start.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI")
# Neighbours are looked for among so many of the most frequent words.
FREQUENT = 40_000
NEIGHBOURS = 12
# Neighbours are weighted by exp(similarity / TEMPERATURE).
TEMPERATURE = 0.04
# Some words are near to all others. Half of the mean similarity to the nearest DENSE_NEIGHBOURS
# words of a sample is subtracted from the similarity to a word.
SAMPLE = 8_000
DENSE_NEIGHBOURS = 10
DENSITY_WEIGHT = 0.5
# Penalty of the linear map.
RIDGE = 3.0
# Number of words whose similarities are computed together.
BLOCK = 2_000


def first_script(text: str) -> str:
    """Return the first word of the Unicode name of the first letter, such as LATIN."""
    for letter in text:
        if letter.isalpha():
            return unicodedata.name(letter, "?").split()[0]
    return "?"


def is_word(piece: str) -> bool:
    """Return whether a piece is a word of at least two letters."""
    text = piece.removeprefix(WORD_START)
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) < 2:
        return False
    if piece.startswith(WORD_START):
        return True
    return all(first_script(letter) in UNSPACED for letter in text)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length 1 [N, D]; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-9))


def teacher_vectors(texts: list[str], teacher: str, prefix: str, cache: Path) -> np.ndarray:
    """Return the teacher's embeddings of words or sentences [N, T], float32, and store them.

    Raises:
        InputError: if there are no stored embeddings of a text, and no teacher.
    """
    stored: dict[str, np.ndarray] = {}
    if cache.exists():
        with np.load(cache) as arrays:
            stored = dict(zip(arrays["texts"].tolist(), arrays["vectors"], strict=True))
    missing = [text for text in dict.fromkeys(texts) if text not in stored]
    if missing:
        if not teacher:
            raise InputError(f"{cache}: no embedding of {missing[0]!r}; expected --teacher as well")
        from sentence_transformers import SentenceTransformer

        queries = [prefix + text for text in missing]
        vectors = SentenceTransformer(teacher).encode(queries, show_progress_bar=True)
        stored.update(zip(missing, vectors, strict=True))
        with atomic_write(cache, "wb") as stream:
            vectors = np.stack(list(stored.values())).astype(np.float16)
            np.savez(stream, texts=np.array(list(stored)), vectors=vectors)
    return np.stack([stored[text] for text in texts]).astype(np.float32)


def add_teacher(parser: argparse.ArgumentParser) -> None:
    """Add the options of `teacher_vectors`."""
    parser.add_argument(
        "--teacher", default="", metavar="MODEL", help="a model of sentence-transformers"
    )
    parser.add_argument("--prefix", default="", metavar="TEXT", help="text before each query")
    parser.add_argument(
        "--vectors",
        type=Path,
        required=True,
        metavar="FILE",
        help="the teacher's embeddings, written if they are not there (.npz)",
    )


def mean_of_neighbours(
    teacher: np.ndarray, directions: np.ndarray, frequent: np.ndarray
) -> np.ndarray:
    """Return the weighted mean direction of the nearest frequent words of each word [N, D].

    Args:
        teacher: the teacher's unit embeddings of the words [N, T].
        directions: the unit vectors of the words in the model [N, D].
        frequent: places of the most frequent words [F].
    """
    candidates = teacher[frequent]
    sample = np.random.default_rng(0).permutation(len(frequent))[:SAMPLE]
    density = np.empty(len(frequent), dtype=np.float32)
    for start in range(0, len(frequent), BLOCK):
        similarities = candidates[start : start + BLOCK] @ candidates[sample].T
        nearest = np.sort(similarities, axis=1)[:, -DENSE_NEIGHBOURS:]
        density[start : start + BLOCK] = nearest.mean(axis=1)
    place_among_frequent = np.full(len(teacher), -1)
    place_among_frequent[frequent] = np.arange(len(frequent))
    means = np.empty_like(directions)
    count = min(NEIGHBOURS, len(frequent) - 1)
    for start in range(0, len(teacher), BLOCK):
        similarities = teacher[start : start + BLOCK] @ candidates.T - DENSITY_WEIGHT * density
        places = place_among_frequent[start : start + BLOCK]
        rows = np.flatnonzero(places >= 0)
        # A word is not its own neighbour.
        similarities[rows, places[rows]] = -np.inf
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(similarities, nearest, axis=1)
        weights = np.exp((values - values.max(axis=1, keepdims=True)) / TEMPERATURE)
        weights /= weights.sum(axis=1, keepdims=True)
        means[start : start + BLOCK] = np.einsum(
            "nk,nkd->nd", weights, directions[frequent[nearest]]
        )
    return means


def mapped(teacher: np.ndarray, directions: np.ndarray, learnt_from: np.ndarray) -> np.ndarray:
    """Return the teacher's embeddings after a linear map to the directions of the model [N, D].

    Args:
        teacher: the teacher's unit embeddings of the words [N, T].
        directions: the unit vectors of the words in the model [N, D].
        learnt_from: whether the map is learnt from a word [N].
    """
    inputs = np.concatenate([teacher, np.ones((len(teacher), 1), np.float32)], axis=1)
    samples = inputs[learnt_from]
    penalty = RIDGE * np.eye(samples.shape[1], dtype=np.float32)
    weights = np.linalg.solve(samples.T @ samples + penalty, samples.T @ directions[learnt_from])
    return np.asarray(inputs @ weights)


def move(
    model: Path, teacher: str, prefix: str, cache: Path, share: float, output: Path
) -> tuple[int, float]:
    """Write the model, and return the number of words and the mean cosine of the two directions."""
    encoder = SentenceEncoder.from_pretrained(model)
    scores = piece_scores(encoder)
    words = [piece for piece in scores if is_word(piece)]
    symbols = {symbol: row for row, symbol in enumerate(encoder.tokenizer.symbols)}
    rows = [symbols[word] for word in words]
    table = encoder.table.astype(np.float32)
    directions = unit(table[rows])
    lengths = np.linalg.norm(table[rows], axis=1, keepdims=True)
    texts = [word.removeprefix(WORD_START) for word in words]
    embeddings = teacher_vectors(texts, teacher, prefix, cache)
    embeddings = unit(embeddings - embeddings.mean(axis=0))
    frequency = np.array([scores[word] for word in words])
    frequent = np.argsort(-frequency, kind="stable")[:FREQUENT]
    is_latin = np.array([first_script(text) == "LATIN" for text in texts])
    learnt_from = is_latin & (frequency > np.median(frequency[is_latin]))
    new = unit(
        unit(mean_of_neighbours(embeddings, directions, frequent))
        + unit(mapped(embeddings, directions, learnt_from))
    )
    table[rows] = lengths * unit((1 - share) * directions + share * new)
    texts_of_model = text_files(model, encoder.tokenizer)
    write_table(encoder, table, list(texts_of_model), output, "float32")
    return len(words), float((directions * new).sum(axis=1).mean())


def main() -> None:
    parser = parser_of_step(__doc__)
    add_teacher(parser)
    parser.add_argument(
        "--share",
        type=float,
        default=0.22,
        metavar="S",
        help="how far directions move, from 0 to 1 (default: 0.22)",
    )
    args = parser.parse_args()
    with exit_on_input_error("neighbours.py"):
        count, cosine = move(
            find_model(args.model), args.teacher, args.prefix, args.vectors, args.share, args.output
        )
        print(
            f"{args.output}: {count:,} words moved; mean cosine to the new directions {cosine:.2f}"
        )


if __name__ == "__main__":
    main()
