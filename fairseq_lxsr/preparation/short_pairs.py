"""Extracts short pairs, words and phrases that translate each other, from sentence pairs.

Two words are linked if each is the nearest word to the other, according to the embeddings of a
model that was trained on the text, and to the positions of the words (Jalili Sabet et al. 2020,
"Argmax" with distortion). A phrase is a sequence of words whose links all lie in one sequence of
the other sentence, and vice versa (Koehn, Och and Marcu 2003). Words are separated by spaces and
punctuation.
"""

import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.corpus import SOURCES_FILE
from fairseq_lxsr.preparation.splits import keys_of, sentence_key
from fairseq_lxsr.text.data_folder import write_sources
from fairseq_lxsr.vectors import normalise_rows
from fairseq_lxsr.vectors.rows import FloatArray

# Maximum sentence length in words; longer sentences are skipped.
LONGEST_SENTENCE = 40
# Maximum number of words in a phrase; the other side may have one more.
LONGEST_PHRASE = 4
# Minimum cosine similarity of linked words.
LEAST_COSINE = 0.3
# Maximum penalty for distortion: subtracted from the cosine of the first word of one sentence and
# the last word of the other.
DISTORTION = 0.2
# Minimum fraction of a phrase's occurrences, on either side, that have this translation.
LEAST_SHARE = 0.2
HELD_OUT_SPLITS = ("valid", "test")

Pair = tuple[str, str]


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M")


# \w does not match marks and joiners, which belong to the preceding letter. Marks beyond U+FFFF,
# which are used by rare scripts, would make the regex ten times slower.
MARKS = "".join(filter(_is_mark, map(chr, range(0x10000))))
# An apostrophe belongs to the word before it.
WORD = re.compile(rf"\w[\w{MARKS}\u200c\u200d]*['\u2019]?")


def write_with_short_pairs(
    encoder: SentenceEncoder,
    corpus: Path,
    languages: Pair,
    output: Path,
    dictionary: Iterable[Pair] = (),
) -> int:
    """Copy a corpus folder, and add short pairs from its training text as a second source.

    Train on it with `--source-temperature`, because most of the pairs may be short. Sentences that
    are held out for validation or testing are not used.

    Args:
        encoder: a model that was trained on the text.
        corpus: corpus folder of a language pair.
        languages: languages of the pair.
        output: output corpus folder.
        dictionary: words and their translations, which become a third source.

    Returns:
        The number of short pairs.
    """
    output.mkdir(parents=True, exist_ok=True)
    held_out = []
    for split in HELD_OUT_SPLITS:
        for language in languages:
            path = corpus / f"{split}.{language}"
            shutil.copyfile(path, output / path.name)
            held_out.append(read_lines(path))
    held_out_keys = keys_of(held_out)
    source_name, target_name = [f"train.{language}" for language in languages]
    pairs = list(read_parallel(corpus / source_name, corpus / target_name))
    short_pairs = _not_held_out(frequent(count_phrases(encoder, pairs)), held_out_keys)
    sources = {"text": pairs, "short": short_pairs}
    words = _not_held_out(dictionary, held_out_keys)
    if words:
        sources["dictionary"] = words
    with atomic_write(output / source_name) as source, atomic_write(output / target_name) as target:
        for source_line, target_line in chain.from_iterable(sources.values()):
            source.write(f"{source_line}\n")
            target.write(f"{target_line}\n")
    sizes = {name: len(source_pairs) for name, source_pairs in sources.items()}
    write_sources(output / SOURCES_FILE, sizes)
    return len(short_pairs)


def _not_held_out(pairs: Iterable[Pair], held_out: Collection[int]) -> list[Pair]:
    """Return the pairs without a held-out sentence; `held_out` contains keys of sentences."""
    usable = []
    for pair in pairs:
        if not any(sentence_key(side) in held_out for side in pair):
            usable.append(pair)
    return usable


def link(cosines: FloatArray) -> list[int]:
    """Align the words of two sentences. Two words are linked if each is the other's best match.

    Args:
        cosines: cosine similarities between the words of the first and the second sentence [N, M].

    Returns:
        For each of the N words, the index of the linked word, or -1 if there is none.
    """
    rows, columns = (np.arange(size) / size for size in cosines.shape)
    scores = cosines - DISTORTION * np.abs(np.subtract.outer(rows, columns))
    nearest = scores.argmax(axis=1)
    is_mutual = scores.argmax(axis=0)[nearest] == np.arange(len(scores))
    is_linked = is_mutual & (scores.max(axis=1) > LEAST_COSINE)
    return np.where(is_linked, nearest, -1).tolist()


def phrases(links: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Find the phrases of a sentence pair.

    Args:
        links: linked word of each source word; see `link`.

    Yields:
        Ranges of the source and target words. The first and last source words are linked.
    """
    source_of = {target: source for source, target in enumerate(links) if target >= 0}
    for first, start in enumerate(links):
        if start < 0:
            continue
        low = high = start
        for last in range(first, min(len(links), first + LONGEST_PHRASE)):
            if links[last] < 0:
                continue
            low = min(low, links[last])
            high = max(high, links[last])
            if high - low > LONGEST_PHRASE:
                break
            sources = (source_of.get(target, first) for target in range(low, high + 1))
            if all(first <= source <= last for source in sources):
                yield slice(first, last + 1), slice(low, high + 1)


class _Side:
    """The words on one side of the text, with their unit-length embeddings."""

    def __init__(self, encoder: SentenceEncoder, sentences: Sequence[str]):
        words = sorted(set(chain.from_iterable(map(WORD.findall, sentences))))
        self.numbers = {word: number for number, word in enumerate(words)}
        self.vectors = normalise_rows(encoder.encode(words))

    def read(self, sentence: str) -> tuple[list[tuple[int, int]], FloatArray]:
        """Return the start and end of each word in a sentence, and the word vectors [N, D]."""
        words = list(WORD.finditer(sentence))
        numbers = [self.numbers[word[0]] for word in words]
        return [word.span() for word in words], self.vectors[numbers]


def count_phrases(encoder: SentenceEncoder, pairs: Sequence[Pair]) -> Counter[Pair]:
    """Count the phrase pairs in all sentence pairs; long sentences are skipped."""
    source_side, target_side = (_Side(encoder, lines) for lines in zip(*pairs, strict=True))
    counts = Counter[Pair]()
    for source, target in Progress(pairs, desc="extract short pairs", unit=" pairs"):
        source_spans, source_vectors = source_side.read(source)
        target_spans, target_vectors = target_side.read(target)
        if not source_spans or not target_spans:
            continue
        if max(len(source_spans), len(target_spans)) > LONGEST_SENTENCE:
            continue
        links = link(source_vectors @ target_vectors.T)
        for source_words, target_words in phrases(links):
            phrase = _text_of(source, source_spans[source_words])
            translation = _text_of(target, target_spans[target_words])
            counts[phrase, translation] += 1
    return counts


def _text_of(sentence: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text of a phrase, given the start and end of each of its words."""
    return sentence[spans[0][0] : spans[-1][1]]


def frequent(phrase_counts: Counter[Pair]) -> list[Pair]:
    """Select the phrase pairs that make up at least `LEAST_SHARE` of each side's occurrences.

    Pairs of equal phrases, ignoring case, are dropped.
    """
    pairs = list(phrase_counts)
    counts = np.array(list(phrase_counts.values()))
    is_frequent = np.ones(len(pairs), bool)
    for side in zip(*pairs, strict=True):
        _, numbers = np.unique(np.array(side, dtype=object), return_inverse=True)
        totals = np.bincount(numbers, weights=counts)[numbers]
        is_frequent &= counts >= LEAST_SHARE * totals
    chosen = []
    for pair, is_chosen in zip(pairs, is_frequent, strict=True):
        if is_chosen and pair[0].lower() != pair[1].lower():
            chosen.append(pair)
    return chosen
