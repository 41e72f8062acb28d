"""Words and short phrases that translate each other, cut from sentence pairs by a model that was
trained on them.

python phrases.py --model MODEL --source train.en --target train.fr --output-source short.en
--output-target short.fr

Two words are linked where each is the nearest of the other by the model's vectors and their places
(Jalili Sabet et al. 2020, "Argmax" with distortion). A phrase is a run of words whose links all lie
in one run of the other sentence, and the other way round (Koehn, Och and Marcu 2003). Words are
what stands between spaces and punctuation.
"""

import argparse
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.vectors import normalise_rows

# marks and joiners, which \w leaves out, belong to the letter before; with those of rare scripts,
# beyond U+FFFF, this takes ten times as long
MARKS = "".join(
    letter for letter in map(chr, range(0x10000)) if unicodedata.category(letter)[0] == "M"
)
WORD = re.compile(
    rf"\w[\w{MARKS}\u200c\u200d]*['\u2019]?"
)  # an apostrophe belongs to the word before it
LONGEST = 40  # words of a sentence that is read
LEAST_COSINE = 0.3  # of linked words
DISTORTION = (
    0.2  # taken from the cosine of the first word of one sentence with the last of the other
)
LEAST_SHARE = 0.2  # of the occurrences of either phrase with this translation
Pair = tuple[str, str]


def link(cosines: np.ndarray) -> list[int]:
    """Link words of two sentences.

    Args:
        cosines: [N, M] of the words of one with those of the other.

    Returns:
        for each of the N words the word that it is linked to, or -1.
    """
    places = (np.arange(size) / size for size in cosines.shape)
    scores = cosines - DISTORTION * np.abs(np.subtract.outer(*places))
    nearest = scores.argmax(axis=1)
    both = scores.argmax(axis=0)[nearest] == np.arange(len(scores))
    return np.where(both & (scores.max(axis=1) > LEAST_COSINE), nearest, -1).tolist()


def phrases(links: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """Find the phrases of a sentence pair.

    Args:
        links: see `link`.
        most: largest number of words; the other side may have one more.

    Yields:
        the words of either side. Those at the ends of the first are linked.
    """
    back = {target: source for source, target in enumerate(links) if target >= 0}
    for first, start in enumerate(links):
        low = high = start
        for last in range(first, min(len(links), first + most) if start >= 0 else first):
            if links[last] < 0:
                continue
            low, high = min(low, links[last]), max(high, links[last])
            if high - low > most:
                break
            if all(first <= back.get(target, first) <= last for target in range(low, high + 1)):
                yield slice(first, last + 1), slice(low, high + 1)


class Side:
    """One side of the text, as words with their unit vectors."""

    def __init__(self, encoder: SentenceEncoder, sentences: Sequence[str]):
        words = sorted({word for sentence in sentences for word in WORD.findall(sentence)})
        self.numbers = {word: number for number, word in enumerate(words)}
        self.vectors = normalise_rows(encoder.encode(words))

    def read(self, sentence: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Returns: first and last place of each of the N words in the sentence, and their vectors
        [N, D].
        """
        words = list(WORD.finditer(sentence))
        return [word.span() for word in words], self.vectors[
            [self.numbers[word[0]] for word in words]
        ]


def count_phrases(encoder: SentenceEncoder, pairs: Sequence[Pair], most: int) -> Counter[Pair]:
    """Count the phrases of all sentence pairs."""
    sides = [Side(encoder, sentences) for sentences in zip(*pairs, strict=True)]
    found = Counter[Pair]()
    for source, target in tqdm(pairs, desc="phrases", unit=" pairs", disable=None):
        (places, vectors), (of_target, others) = sides[0].read(source), sides[1].read(target)
        if places and of_target and max(len(places), len(of_target)) <= LONGEST:
            for words, their in phrases(link(vectors @ others.T), most):
                found[cut(source, places[words]), cut(target, of_target[their])] += 1
    return found


def cut(sentence: str, places: Sequence[tuple[int, int]]) -> str:
    """Cut neighbouring words out of a sentence, with what stands between them."""
    return sentence[places[0][0] : places[-1][1]]


def frequent(found: Counter[Pair], least: int) -> list[Pair]:
    """Choose phrases that were seen `least` times, are not the same on both sides, and seldom mean
    something else.
    """
    pairs, counts = list(found), np.array(list(found.values()))
    keep = counts >= least
    for side in zip(*pairs, strict=True):
        _, numbers = np.unique(np.array(side, dtype=object), return_inverse=True)
        keep &= counts >= LEAST_SHARE * np.bincount(numbers, weights=counts)[numbers]
    return [pair for pair in compress(pairs, keep) if pair[0].lower() != pair[1].lower()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="folder, or name of a model of the package"
    )
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="training text")
    parser.add_argument(
        "--target", type=Path, required=True, metavar="FILE", help="its translation"
    )
    parser.add_argument(
        "--output-source", type=Path, required=True, metavar="FILE", help="for the phrases"
    )
    parser.add_argument(
        "--output-target", type=Path, required=True, metavar="FILE", help="for their translations"
    )
    parser.add_argument(
        "--max-words", type=int, default=4, metavar="N", help="of a phrase (default: 4)"
    )
    parser.add_argument(
        "--min-count", type=int, default=1, metavar="N", help="times that it is seen (default: 1)"
    )
    args = parser.parse_args()
    with exit_on_input_error("phrases.py"):
        pairs = list(read_parallel(args.source, args.target))
        found = count_phrases(SentenceEncoder.from_pretrained(args.model), pairs, args.max_words)
        chosen = frequent(found, args.min_count)
        with atomic_write(args.output_source) as source, atomic_write(args.output_target) as target:
            source.writelines(f"{phrase}\n" for phrase, _ in chosen)
            target.writelines(f"{phrase}\n" for _, phrase in chosen)
        print(f"{len(pairs):,} pairs: {len(found):,} phrases, {len(chosen):,} of them kept")


if __name__ == "__main__":
    main()
