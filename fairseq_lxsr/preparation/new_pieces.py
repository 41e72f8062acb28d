"""Reuses the word pieces of a trained model, and adds pieces for languages that it lacks.

The old pieces keep their ids, and text is still split into old pieces first. A new piece is a
missing letter, or joins two neighbouring pieces, as learnt by byte-pair encoding on the words of
the new languages.
"""

import heapq
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path

import sentencepiece

from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.encoder.starting_model import new_languages, open_starting_model
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.text.sentencepiece_model import (
    BPE,
    NORMAL,
    UNIGRAM,
    Piece,
    read_sentencepiece,
    with_pieces,
)
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TEXT_FILE,
    TextOptions,
    Tokenizer,
    normalise_all,
)

# Minimum number of occurrences of a new piece in the training text.
LEAST_COUNT = 5
# Maximum length of a piece in characters, the default of SentencePiece.
LONGEST_PIECE = 16
# Maximum number of words that pieces are learnt from; the most frequent words are used.
MOST_WORDS = 100_000
# Score advantage of a new piece over its parts, larger than the float32 rounding error in a line.
SCORE_MARGIN = 0.01
# Number of sentences to compare in each text in a known language.
COMPARED_LINES = 2_000


def extend_subwords(
    folder: Path, corpora: Mapping[tuple[str, str], Path], options: SubwordOptions
) -> dict:
    """Run the subwords stage with the option `from_model`.

    The output contains that model's pieces, followed by at most `new_pieces` new pieces for
    languages that the model lacks.

    Args:
        folder: output subword folder.
        corpora: corpus folder of each language pair.
        options: `from_model` and `new_pieces`. The model determines all other options.

    Returns:
        The report: dictionary size, number of new pieces, and, if there are any, the percentage of
        sentences in known languages that are split differently.

    Raises:
        InputError: if the model cannot be trained further, lacks both languages of a pair, or has
            words or characters as pieces, which cannot be extended.
    """
    assert options.from_model is not None
    encoder = open_starting_model(options.from_model)
    tokenizer = encoder.tokenizer
    languages = new_languages(encoder, ["-".join(pair) for pair in corpora], options.from_model)
    all_languages = set(chain.from_iterable(corpora))
    new_texts = _training_texts(corpora, languages)
    known_texts = _training_texts(corpora, all_languages - set(languages))

    def build(work: Path) -> dict:
        dictionary, model = text_files(encoder.folder, tokenizer)
        pieces: list[str] = []
        if languages:
            new_words = count_words(new_texts, tokenizer.options)
            known_words = count_words(known_texts, tokenizer.options)
            pieces = learn_pieces(model, new_words, known_words, options.new_pieces)
        entries = "".join(f"{piece} 1\n" for piece in pieces)
        (work / SENTENCEPIECE_FILE).write_bytes(append_pieces(model, pieces))
        (work / DICTIONARY_FILE).write_bytes(dictionary + entries.encode())
        (work / TEXT_FILE).write_text(tokenizer.options.dumps(), encoding="utf-8")
        report: dict[str, int | float] = {
            # The special symbols and <mask> are not stored in the file.
            "dictionary": dictionary.count(b"\n") + len(pieces) + len(SPECIAL) + 1,
            "new pieces": len(pieces),
        }
        if pieces:
            report["split otherwise"] = percent_split_differently(tokenizer, work, known_texts)
        return report

    # Without a new language, the result does not depend on the text or the number of pieces.
    inputs = _training_texts(corpora, all_languages) if languages else []
    manifest = {
        "from_model": encoder.fingerprint,
        "new_pieces": options.new_pieces if languages else 0,
        "languages": languages,
    }
    report = run_stage(folder, manifest, inputs, build)
    print(f"{folder}: pieces of {options.from_model}{_describe_new_pieces(report, languages)}")
    return report


def _training_texts(
    corpora: Mapping[tuple[str, str], Path], languages: Collection[str]
) -> list[Path]:
    """Return the training texts of the corpora in these languages."""
    texts = []
    for pair, corpus in corpora.items():
        texts += [corpus / f"train.{language}" for language in pair if language in languages]
    return texts


def _describe_new_pieces(report: Mapping[str, int | float], languages: Sequence[str]) -> str:
    """Describe the new pieces of a report, for the summary line of the stage."""
    if not languages:
        return ", which support all languages; no new pieces"
    description = f", and {report['new pieces']:,} new for {', '.join(languages)}"
    if report["new pieces"]:
        percent = report["split otherwise"]
        description += f"; {percent} % of sentences in known languages are split differently"
    return description


def count_words(files: Iterable[Path], options: TextOptions) -> Counter[str]:
    """Count the words in text files, normalized as for splitting into pieces."""
    counts: Counter[str] = Counter()
    for path in files:
        for line in normalise_all(list(read_lines(path)), options):
            counts.update(line.split())
    return counts


def learn_pieces(
    model: bytes, words: Mapping[str, int], known_words: Mapping[str, int], limit: int
) -> list[str]:
    """Learn additional pieces for new languages, given the pieces of a model.

    Args:
        model: content of a SentencePiece model file of type BPE or unigram.
        words: counts of the words in the new languages.
        known_words: counts of the words in known languages. Pieces are not learnt from these words,
            so that names and quotations are still split into the same pieces.
        limit: maximum number of new pieces.

    Returns:
        New pieces in learning order: first characters that the model lacks, then longer pieces.
        Each of them occurred at least `LEAST_COUNT` times.

    Raises:
        InputError: if the model has another type.
    """
    file = read_sentencepiece(model)
    if file.kind not in (BPE, UNIGRAM):
        raise InputError(
            "--from-model: its SentencePiece model is a word or character model, which cannot be "
            "extended; use a model of type BPE or unigram"
        )
    old_pieces = {piece.text for piece in file.pieces}
    new_words = Counter[str]()
    for word, count in words.items():
        if word not in known_words:
            new_words[word] = count
    frequent = dict(new_words.most_common(MOST_WORDS))
    letters = _missing_letters(model, frequent, old_pieces)[:limit]
    split_words = _processor(append_pieces(model, letters)).EncodeAsPieces(list(frequent))
    existing = old_pieces.union(letters)

    def is_allowed(text: str) -> bool:
        return is_valid_piece(text) and text not in existing

    counted = list(zip(split_words, frequent.values(), strict=True))
    return letters + merge_pieces(counted, limit - len(letters), is_allowed)


def _missing_letters(model: bytes, words: Mapping[str, int], pieces: set[str]) -> list[str]:
    """Return the letters in the words that are not yet pieces, most frequent first."""
    counts: Counter[str] = Counter()
    normalized = _processor(model).Normalize(list(words))
    for word, count in zip(normalized, words.values(), strict=True):
        for letter in word:
            counts[letter] += count
    missing = []
    for letter, count in counts.most_common():
        if letter not in pieces and count >= LEAST_COUNT:
            missing.append(letter)
    return missing


class _Neighbours:
    """Counts pairs of neighbouring pieces in words, keyed by their concatenated text.

    Args:
        words: pieces and count of each word; changed by `join`.
    """

    def __init__(self, words: list[tuple[list[str], int]]):
        self.words = words
        self.counts: Counter[str] = Counter()
        # Indices of words that contain, or once contained, the two neighbours.
        self.places: dict[str, set[int]] = defaultdict(set)
        for number, (pieces, count) in enumerate(words):
            for pair in pairwise(pieces):
                self.counts["".join(pair)] += count
                self.places["".join(pair)].add(number)

    def candidates(
        self, texts: Iterable[str], is_allowed: Callable[[str], bool]
    ) -> Iterator[tuple[int, str]]:
        """Yield (negative count, text) for each text that may become a piece, to fill a heap."""
        for text in texts:
            if self.counts[text] >= LEAST_COUNT and is_allowed(text):
                yield -self.counts[text], text

    def join(self, text: str) -> set[str]:
        """Merge all neighbouring pieces that together spell a text.

        Returns:
            Texts of neighbours in the changed words, whose counts may have increased.
        """
        spelt: set[str] = set()
        for number in sorted(self.places.pop(text)):
            pieces, count = self.words[number]
            joined = _joined(pieces, text)
            for pair in pairwise(pieces):
                self.counts["".join(pair)] -= count
            for pair in pairwise(joined):
                self.counts["".join(pair)] += count
                self.places["".join(pair)].add(number)
                spelt.add("".join(pair))
            self.words[number] = joined, count
        return spelt


def merge_pieces(
    words: list[tuple[list[str], int]], limit: int, is_allowed: Callable[[str], bool]
) -> list[str]:
    """Learn pieces by byte-pair encoding: repeatedly merge the most frequent neighbours.

    Ties are broken in alphabetical order, so that the result is reproducible.

    Args:
        words: pieces and count of each word; changed in place.
        limit: maximum number of pieces to learn.
        is_allowed: returns whether a text may be a piece.

    Returns:
        The new pieces in learning order.
    """
    neighbours = _Neighbours(words)
    counts = neighbours.counts
    waiting = list(neighbours.candidates(counts, is_allowed))
    heapq.heapify(waiting)
    # A dict stores each text only once, because a merged text can become frequent again.
    learnt: dict[str, None] = {}
    while waiting and len(learnt) < limit:
        count, text = heapq.heappop(waiting)
        if -count != counts[text]:
            # The text has become rarer since it was added to the heap, or is in the heap twice.
            if LEAST_COUNT <= counts[text] < -count:
                heapq.heappush(waiting, (-counts[text], text))
            continue
        learnt[text] = None
        for candidate in neighbours.candidates(neighbours.join(text), is_allowed):
            heapq.heappush(waiting, candidate)
    return list(learnt)


def _joined(pieces: Sequence[str], text: str) -> list[str]:
    """Merge neighbouring pieces that together spell a text, from left to right."""
    joined: list[str] = []
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        if position + 1 < len(pieces) and piece + pieces[position + 1] == text:
            piece = text
            position += 1
        joined.append(piece)
        position += 1
    return joined


def is_valid_piece(text: str) -> bool:
    """Return whether a text may be a piece: letters and accents, optionally after a `▁`."""
    letters = text.removeprefix("▁")
    return len(text) <= LONGEST_PIECE and all(
        unicodedata.category(letter)[0] in "LM" for letter in letters
    )


def append_pieces(model: bytes, pieces: Sequence[str]) -> bytes:
    """Append pieces to a SentencePiece model so that they only merge sequences of old pieces.

    BPE merges the pair with the highest score first, so new pieces get the lowest scores. A unigram
    model maximizes the sum of scores, so each new piece scores slightly more than its parts. It may
    also replace other old pieces with an almost equal sum.

    Args:
        model: content of a SentencePiece model file.
        pieces: new pieces in learning order.

    Returns:
        Content of the new model file.
    """
    file = read_sentencepiece(model)
    scores = {piece.text: piece.score for piece in file.pieces if piece.type == NORMAL}
    compared = list(scores.values())
    if file.kind != BPE:
        compared = [score for text, score in scores.items() if len(text) == 1]
    lowest = min(compared, default=0.0)
    for rank, text in enumerate(pieces):
        if file.kind == BPE:
            scores[text] = lowest - 1 - rank
        else:
            margin = SCORE_MARGIN * (2 - rank / len(pieces))
            scores[text] = _best_score(text, scores, lowest) + margin
    return with_pieces(model, (Piece(text, scores[text], NORMAL) for text in pieces))


def _best_score(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """Return the score of a text's best segmentation under a unigram model.

    `unknown` is the score of a letter that is not a piece.
    """
    best = [0.0]
    for end in range(1, len(text) + 1):
        best.append(
            max(
                best[start]
                + scores.get(text[start:end], unknown if start == end - 1 else -math.inf)
                for start in range(end)
            )
        )
    return best[-1]


def percent_split_differently(before: Tokenizer, subwords: Path, files: Iterable[Path]) -> float:
    """Return the percentage of sentences that a new SentencePiece model splits differently.

    Only the first `COMPARED_LINES` sentences of each file are compared.
    """
    after = _processor((subwords / SENTENCEPIECE_FILE).read_bytes())
    lines: list[str] = []
    for path in files:
        lines += islice(read_lines(path), COMPARED_LINES)
    old_pieces = before.pieces(lines)
    new_pieces = after.EncodeAsPieces(normalise_all(lines, before.options))
    changed = sum(old != new for old, new in zip(old_pieces, new_pieces, strict=True))
    return round(100 * changed / max(1, len(lines)), 2)


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)
