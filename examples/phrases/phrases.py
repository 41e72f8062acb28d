"""Cut words and short phrases that translate each other from sentence pairs.

python phrases.py --model MODEL --source train.en --target train.fr --output-source short.en
--output-target short.fr

MODEL was trained on these pairs. Two words are linked if each is the nearest of the other, by the
embeddings of the model and the positions of the words (Jalili Sabet et al. 2020, "Argmax" with
distortion). A phrase is a run of words whose links all lie in one run of the other sentence, and
vice versa (Koehn, Och and Marcu 2003). Words are separated by spaces and punctuation.
"""

import argparse
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.vectors import normalise_rows


def is_mark(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M")


# Marks and joiners, which \w leaves out, belong to the letter before. Marks beyond U+FFFF, of rare
# scripts, would make the expression ten times as slow.
MARKS = "".join(filter(is_mark, map(chr, range(0x10000))))
# An apostrophe belongs to the word before it.
WORD = re.compile(rf"\w[\w{MARKS}\u200c\u200d]*['\u2019]?")
# Longer sentences are skipped, in words.
LONGEST = 40
# Least cosine similarity of linked words.
LEAST_COSINE = 0.3
# Subtracted from the cosine of the first word of one sentence and the last word of the other.
DISTORTION = 0.2
# Least share of the occurrences of a phrase, on either side, that have this translation.
LEAST_SHARE = 0.2
Pair = tuple[str, str]


def link(cosines: np.ndarray) -> list[int]:
    """Link words of two sentences.

    Args:
        cosines: similarities of the words of one sentence and the other, [N, M].

    Returns:
        For each of the N words the number of the linked word, or -1.
    """
    places = (np.arange(size) / size for size in cosines.shape)
    scores = cosines - DISTORTION * np.abs(np.subtract.outer(*places))
    nearest = scores.argmax(axis=1)
    is_mutual = scores.argmax(axis=0)[nearest] == np.arange(len(scores))
    is_linked = is_mutual & (scores.max(axis=1) > LEAST_COSINE)
    return np.where(is_linked, nearest, -1).tolist()


def phrases(links: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """Find the phrases of a sentence pair.

    Args:
        links: see `link`.
        most: largest number of words; the other side may have one more.

    Yields:
        The words of the source and of the target. The first and last source words are linked.
    """
    source_of = {target: source for source, target in enumerate(links) if target >= 0}
    for first, start in enumerate(links):
        if start < 0:
            continue
        low = high = start
        for last in range(first, min(len(links), first + most)):
            if links[last] < 0:
                continue
            low = min(low, links[last])
            high = max(high, links[last])
            if high - low > most:
                break
            sources = (source_of.get(target, first) for target in range(low, high + 1))
            if all(first <= source <= last for source in sources):
                yield slice(first, last + 1), slice(low, high + 1)


class Side:
    """The words of one side of the text, with their unit-length embeddings."""

    def __init__(self, encoder: SentenceEncoder, sentences: Sequence[str]):
        words = sorted(set(chain.from_iterable(map(WORD.findall, sentences))))
        self.numbers = {word: number for number, word in enumerate(words)}
        self.vectors = normalise_rows(encoder.encode(words))

    def read(self, sentence: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Return starts and ends of the N words of a sentence, and their vectors [N, D]."""
        words = list(WORD.finditer(sentence))
        spans = [word.span() for word in words]
        numbers = [self.numbers[word[0]] for word in words]
        return spans, self.vectors[numbers]


def count_phrases(encoder: SentenceEncoder, pairs: Sequence[Pair], most: int) -> Counter[Pair]:
    """Count the phrases of all sentence pairs."""
    source_side, target_side = (Side(encoder, lines) for lines in zip(*pairs, strict=True))
    counts = Counter[Pair]()
    for source, target in tqdm(pairs, desc="phrases", unit=" pairs", disable=None):
        source_spans, source_vectors = source_side.read(source)
        target_spans, target_vectors = target_side.read(target)
        if not source_spans or not target_spans:
            continue
        if max(len(source_spans), len(target_spans)) > LONGEST:
            continue
        links = link(source_vectors @ target_vectors.T)
        for source_words, target_words in phrases(links, most):
            phrase = cut(source, source_spans[source_words])
            translation = cut(target, target_spans[target_words])
            counts[phrase, translation] += 1
    return counts


def cut(sentence: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text from the first word to the last."""
    return sentence[spans[0][0] : spans[-1][1]]


def frequent(phrase_counts: Counter[Pair], least: int) -> list[Pair]:
    """Choose phrases that occur at least `least` times and seldom have another translation.

    Phrases that are the same on both sides are left out.
    """
    pairs = list(phrase_counts)
    counts = np.array(list(phrase_counts.values()))
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
        "--max-words", type=int, default=4, metavar="N", help="longest phrase (default: 4)"
    )
    parser.add_argument(
        "--min-count", type=int, default=1, metavar="N", help="least occurrences (default: 1)"
    )
    args = parser.parse_args()
    with exit_on_input_error("phrases.py"):
        pairs = list(read_parallel(args.source, args.target))
        counts = count_phrases(SentenceEncoder.from_pretrained(args.model), pairs, args.max_words)
        chosen = frequent(counts, args.min_count)
        with atomic_write(args.output_source) as source, atomic_write(args.output_target) as target:
            source.writelines(f"{phrase}\n" for phrase, _ in chosen)
            target.writelines(f"{phrase}\n" for _, phrase in chosen)
        print(f"{len(pairs):,} pairs: {len(counts):,} phrases, {len(chosen):,} of them kept")


if __name__ == "__main__":
    main()
