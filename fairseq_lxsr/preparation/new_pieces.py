"""The pieces of a model for text that goes to it, and new ones for languages that it lacks.

Old pieces keep their numbers, and text is split at their boundaries first: new ones join
neighbours, as byte-pair encoding finds them on words of a new language.
"""

import heapq
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
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

LEAST = 5  # occurrences of a new piece when it is learnt
MOST_LETTERS = 16  # characters of a piece, as in SentencePiece
WORDS = 100_000  # most frequent words that pieces are learnt from
JOINING = 0.01  # more of the score of a new piece than float32 rounds away in a line
COMPARED = 2_000  # sentences of a known language that are compared


def extend_subwords(
    folder: Path, corpora: Mapping[tuple[str, str], Path], how: SubwordOptions
) -> dict:
    """Run the subwords stage for `how.from_model`: its pieces, and at most `how.new_pieces` of the
    languages it lacks.

    Raises:
        InputError: for a model that training cannot go on from, for pairs of two languages that it
            lacks, and for new languages where its pieces are words or letters.
    """
    assert how.from_model is not None
    encoder = open_starting_model(how.from_model)
    options, tokenizer = encoder.tokenizer.options, encoder.tokenizer
    new = new_languages(encoder, ["-".join(pair) for pair in corpora], how.from_model)
    sides = [
        (corpus / f"train.{side}", side in new) for pair, corpus in corpora.items() for side in pair
    ]
    known = [path for path, is_new in sides if not is_new]
    files = [path for path, is_new in sides if is_new]

    def build(work: Path) -> dict:
        dictionary, model = text_files(encoder.folder or Path(), tokenizer)
        pieces = (
            learn_pieces(
                model, count_words(files, options), count_words(known, options), how.new_pieces
            )
            if new
            else []
        )
        (work / SENTENCEPIECE_FILE).write_bytes(append_pieces(model, pieces))
        (work / DICTIONARY_FILE).write_bytes(
            dictionary + "".join(f"{piece} 1\n" for piece in pieces).encode()
        )
        (work / TEXT_FILE).write_text(options.dumps(), encoding="utf-8")
        report = {
            "dictionary": dictionary.count(b"\n") + len(pieces) + len(SPECIAL) + 1,
            "new pieces": len(pieces),
        }
        return report | (
            {"split otherwise": percent_split_differently(tokenizer, work, known)} if pieces else {}
        )

    manifest = {
        "from_model": encoder.fingerprint,
        "new_pieces": how.new_pieces if new else 0,
        "languages": new,
    }
    report = run_stage(folder, manifest, [path for path, _ in sides] if new else [], build)
    changed = (
        f", {report['split otherwise']} % of the known text split otherwise"
        if report["new pieces"]
        else ""
    )
    print(
        f"{folder}: pieces of {how.from_model}, and {report['new pieces']:,} new"
        f"{' for ' + ', '.join(new) if new else ', it has these languages'}{changed}"
    )
    return report


def count_words(files: Iterable[Path], options: TextOptions) -> Counter[str]:
    """Count the words of files, treated as before they are split into pieces."""
    found: Counter[str] = Counter()
    for path in files:
        for line in normalise_all(list(read_lines(path)), options):
            found.update(line.split())
    return found


def learn_pieces(
    model: bytes, words: Mapping[str, int], known: Mapping[str, int], most: int
) -> list[str]:
    """Learn pieces on words of a new language on top of those of a model, first the letters that it
    lacks.

    Args:
        model: content of a SentencePiece model file of the kind BPE or unigram.
        words: counts of the words of the new language.
        known: words of its translation, which make no pieces: names and quotations keep theirs.
        most: number of pieces.

    Returns:
        At most so many pieces in the order in which they were learnt, each seen `LEAST` times.
    """
    file = read_sentencepiece(model)
    if file.kind not in (BPE, UNIGRAM):
        raise InputError(
            "its pieces are words or letters, which cannot be added to; expected BPE or unigram pieces"
        )
    old = {piece.text for piece in file.pieces}
    chosen = dict(
        Counter({word: count for word, count in words.items() if word not in known}).most_common(
            WORDS
        )
    )
    letters: Counter[str] = Counter()
    for word, count in zip(_processor(model).Normalize(list(chosen)), chosen.values(), strict=True):
        for letter in word:
            letters[letter] += count
    new = [
        letter for letter, count in letters.most_common() if letter not in old and count >= LEAST
    ][:most]
    split = _processor(append_pieces(model, new)).EncodeAsPieces(list(chosen))
    taken = old.union(new)
    joined = merge_pieces(
        list(zip(split, chosen.values(), strict=True)),
        most - len(new),
        lambda text: is_valid_piece(text) and text not in taken,
    )
    return new + joined


def merge_pieces(
    words: list[tuple[list[str], int]], most: int, allowed: Callable[[str], bool]
) -> list[str]:
    """Byte-pair encoding: join the two neighbouring pieces that are most frequent in words with
    counts, `most` times.

    Of equally frequent ones the first in the alphabet is joined, so that the result is always the
    same.
    """
    counts: Counter[str] = Counter()
    places: dict[str, set[int]] = defaultdict(set)
    for number, (pieces, count) in enumerate(words):
        for pair in pairwise(pieces):
            counts["".join(pair)] += count
            places["".join(pair)].add(number)
    waiting = [(-count, text) for text, count in counts.items() if count >= LEAST and allowed(text)]
    heapq.heapify(waiting)
    found: dict[str, None] = {}  # a text can become frequent again
    while waiting and len(found) < most:
        count, text = heapq.heappop(waiting)
        if -count != counts[text]:  # it has become rarer, or it is there twice
            if LEAST <= counts[text] < -count:
                heapq.heappush(waiting, (-counts[text], text))
            continue
        found[text] = None
        more: set[str] = set()
        for number in sorted(places.pop(text)):
            pieces, times = words[number]
            after = _joined(pieces, text)
            for pair in pairwise(pieces):
                counts["".join(pair)] -= times
            for pair in pairwise(after):
                counts["".join(pair)] += times
                places["".join(pair)].add(number)
                more.add("".join(pair))
            words[number] = after, times
        for other in more:
            if counts[other] >= LEAST and allowed(other):
                heapq.heappush(waiting, (-counts[other], other))
    return list(found)


def _joined(pieces: Sequence[str], text: str) -> list[str]:
    """Join neighbours that spell a text, from the left."""
    after: list[str] = []
    place = 0
    while place < len(pieces):
        both = place + 1 < len(pieces) and pieces[place] + pieces[place + 1] == text
        after.append(text if both else pieces[place])
        place += 1 + both
    return after


def is_valid_piece(text: str) -> bool:
    """Return whether text may be a piece: letters and their marks, perhaps the beginning of a
    word.
    """
    letters = text.removeprefix("▁")
    return len(text) <= MOST_LETTERS and all(
        unicodedata.category(letter)[0] in "LM" for letter in letters
    )


def append_pieces(model: bytes, new: Sequence[str]) -> bytes:
    """Add pieces to a model file, which join only what the old ones leave apart, but for near ties
    of unigram pieces.

    BPE joins by the highest score. Unigram splits by the highest sum: each gets little more than
    its parts, in order.
    """
    file = read_sentencepiece(model)
    scores = {piece.text: piece.score for piece in file.pieces if piece.type == NORMAL}
    least = min(
        (n for text, n in scores.items() if file.kind == BPE or len(text) == 1), default=0.0
    )
    for i, text in enumerate(new):
        scores[text] = (
            least - 1 - i
            if file.kind == BPE
            else _best(text, scores, least) + JOINING * (2 - i / len(new))
        )
    return with_pieces(model, (Piece(text, scores[text], NORMAL) for text in new))


def _best(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """Sum the scores of the pieces that a unigram model splits a text into; `unknown` is that of a
    letter without.
    """
    best = [0.0]
    for end in range(1, len(text) + 1):
        best.append(
            max(
                best[i] + scores.get(text[i:end], unknown if i == end - 1 else -math.inf)
                for i in range(end)
            )
        )
    return best[-1]


def percent_split_differently(before: Tokenizer, subwords: Path, files: Iterable[Path]) -> float:
    """Percent of the first sentences of files that two models split into other pieces."""
    after = _processor((subwords / SENTENCEPIECE_FILE).read_bytes())
    lines = [
        line for path in files for line, _ in zip(read_lines(path), range(COMPARED), strict=False)
    ]
    found = before.pieces(lines), after.EncodeAsPieces(normalise_all(lines, before.options))
    other = sum(one != two for one, two in zip(*found, strict=True))
    return round(100 * other / max(1, len(lines)), 2)


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)
