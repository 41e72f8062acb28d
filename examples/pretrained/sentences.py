"""Train the vectors of weak languages on sentences without a translation that a teacher embeds.

python examples/pretrained/sentences.py MODEL --text work/static/text \
    --sentences text/laws text/everyday --teacher intfloat/multilingual-e5-small \
    --prefix "query: " --vectors work/static/sentences.npz --languages et,he,lt --output MODEL

The folders have files LANG.txt, from `laws.py` and `monolingual.py`. The teacher is a model of
sentence-transformers that reads all languages. A linear map from its space to that of the model is
learnt on pairs of training text: an English sentence and its translation, whose embedding is
corrected by the mean difference of the two languages, both map to the embedding of the English
sentence. Four losses are added for a batch of a language:

1. cosine distances between its sentences and the teacher's embeddings after the map,
2. their cross-entropy among the sentences of the batch,
3. cosine distances between sentences of training text and their embeddings at the start,
4. the cross-entropy of their translations among those of the batch.

Only vectors of pieces that occur mostly in the trained languages change. At the end, a vector moves
by half of its change.
"""

import argparse
import itertools
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fold import write_table
from neighbours import add_teacher, teacher_vectors, unit
from refine import (
    ENGLISH,
    RowAdam,
    Sentences,
    contrast,
    distance,
    embed,
    parser_of_training,
    prefixes_of_pairs,
    read_pairs,
    run_updates,
)

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.preparation.clean import comparable

# Most sentences of a file; of a language's training text; English ones for the map.
SENTENCE_LIMIT = 30_000
PAIR_LIMIT = 15_000
# Pairs of a language that correct the teacher's embeddings, and English sentences for the map.
CORRECTION_PAIRS = 1_200
MAP_SENTENCES = 26_000
# Penalty of the linear map, for each sentence that it is learnt from.
RIDGE = 2.5e-5
SENTENCES_IN_BATCH = 768
PAIRS_IN_BATCH = 512
TEACHER_CONTRAST_WEIGHT = 0.2
TRANSLATION_WEIGHT = 0.15
# A vector changes if its pieces are, to this share at least, text of a trained language.
LEAST_SHARE = 0.6
# Lines of each kind of text, in which pieces are counted.
COUNTED_LINES = 4_000
# Part of a change that remains.
PART = 0.5


@dataclass(frozen=True)
class Language:
    """The text of a language.

    Attributes:
        sentences: sentences without a translation.
        targets: the teacher's embeddings of them after the map [N, D].
        translated: sentences of training text, which have translations.
        translated_start: their embeddings at the start [M, D].
        english: the embeddings of their translations at the start [M, D].
    """

    sentences: Sentences
    targets: np.ndarray
    translated: Sentences
    translated_start: np.ndarray
    english: np.ndarray


class TeacherMap:
    """A linear map from the teacher's space to that of the model.

    Args:
        teacher: embeddings of English sentences [N, T].
        model: embeddings of the same sentences in the model [N, D].
        pairs: for each language, embeddings by the teacher of its sentences and of their
            translations [P, T], and the embeddings of the translations in the model [P, D].
    """

    def __init__(
        self,
        teacher: np.ndarray,
        model: np.ndarray,
        pairs: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
    ):
        self._corrections = {
            language: (foreign - english).mean(axis=0)
            for language, (foreign, english, _) in pairs.items()
        }
        inputs = [teacher]
        outputs = [model]
        for language, (foreign, english, of_model) in pairs.items():
            inputs += [english, foreign - self._corrections[language]]
            outputs += [of_model, of_model]
        samples = np.concatenate(inputs)
        directions = np.concatenate(outputs)
        self._center = samples.mean(axis=0)
        self._mean = directions.mean(axis=0)
        samples = samples - self._center
        penalty = RIDGE * len(samples) * np.eye(samples.shape[1], dtype=np.float32)
        self._weights = np.linalg.solve(
            samples.T @ samples + penalty, samples.T @ (directions - self._mean)
        )

    def __call__(self, vectors: np.ndarray, language: str) -> np.ndarray:
        """Return unit vectors in the space of the model [N, D] for the teacher's [N, T]."""
        centered = vectors - self._corrections[language] - self._center
        return unit(centered @ self._weights + self._mean).astype(np.float32)


def frequencies(sentences: Sentences, count: int) -> np.ndarray:
    """Return the share of each of `count` pieces in sentences [V]."""
    return np.bincount(sentences.pieces, minlength=count) / max(len(sentences.pieces), 1)


def trained_rows(
    encoder: SentenceEncoder, text: Mapping[str, list[str]], trained: Mapping[str, Sentences]
) -> np.ndarray:
    """Return which pieces occur mostly in one of the trained languages [V].

    Args:
        encoder: the model.
        text: lines of training text of all languages.
        trained: sentences without a translation of the trained languages.
    """
    size = len(encoder.table)
    shares = {}
    for language, lines in text.items():
        shares[language] = frequencies(Sentences(encoder, lines), size)
    total = np.sum(list(shares.values()), axis=0)
    rows = np.zeros(size, dtype=bool)
    for language, sentences in trained.items():
        of_language = np.maximum(shares[language], frequencies(sentences, size))
        of_others = total - shares[language]
        rows |= (of_language > 0) & (of_language >= LEAST_SHARE * (of_language + of_others))
    return rows


def sentences_of(
    folders: Sequence[Path], languages: Sequence[str], excluded: Container[str]
) -> dict[str, list[str]]:
    """Return the sentences of files LANG.txt in folders, by language.

    Raises:
        InputError: if a language has no file.
    """
    sentences: dict[str, list[str]] = {}
    for language in languages:
        paths = [folder / f"{language}.txt" for folder in folders]
        lines = []
        for path in paths:
            if path.is_file():
                lines += list(read_lines(path))[:SENTENCE_LIMIT]
        sentences[language] = [line for line in lines if comparable(line) not in excluded]
        if not sentences[language]:
            raise InputError(
                f"{paths[0]}: no sentences, nor in the other folders; expected text in {language!r}"
            )
    return sentences


def unit_embeddings(table: np.ndarray, sentences: Sentences) -> np.ndarray:
    """Return the unit embeddings of all sentences [N, D]."""
    places = np.arange(len(sentences.lengths))
    return embed(torch.from_numpy(table), sentences.take(places)).numpy()


def with_pieces(encoder: SentenceEncoder, texts: list[str]) -> list[str]:
    """Return the texts that have at least one word piece."""
    lengths = Sentences(encoder, texts).lengths
    return [text for text, length in zip(texts, lengths, strict=True) if length > 0]


def update(
    optimizer: RowAdam, number: int, trained: np.ndarray, text: Language, rng: np.random.Generator
) -> float:
    """Make an update with a batch of a language, and return the loss before it.

    Args:
        optimizer: the optimizer with the table in training.
        number: number of the update, from 1.
        trained: which vectors of the table may change [V].
        text: the text of the language.
        rng: source of the random draws.
    """
    places = rng.integers(0, len(text.targets), SENTENCES_IN_BATCH)
    pair_places = rng.integers(0, len(text.english), PAIRS_IN_BATCH)
    texts = [text.sentences.take(places), text.translated.take(pair_places)]
    used = np.unique(np.concatenate([pieces for pieces, _ in texts]))
    rows = torch.from_numpy(optimizer.table[used]).requires_grad_(True)
    sentences, pairs = (
        embed(rows, (np.searchsorted(used, pieces), starts)) for pieces, starts in texts
    )
    targets = torch.from_numpy(text.targets[places])
    english = torch.from_numpy(text.english[pair_places])
    loss = distance(sentences, targets) + TEACHER_CONTRAST_WEIGHT * contrast(sentences, targets)
    loss = loss + distance(pairs, torch.from_numpy(text.translated_start[pair_places]))
    loss = loss + TRANSLATION_WEIGHT * contrast(pairs, english)
    loss.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    may_change = trained[used]
    optimizer.step(number, used[may_change], rows.grad.numpy()[may_change])
    return float(loss.detach())


# A function that returns the embeddings of texts [N, D].
Embed = Callable[[list[str]], np.ndarray]
# Sentences in English and another language.
Pairs = list[tuple[str, ...]]


def fit_map(
    pairs: Mapping[str, Pairs],
    languages: Iterable[str],
    english: list[str],
    teach: Embed,
    own: Embed,
) -> TeacherMap:
    """Return the map to the embeddings of the model.

    Args:
        pairs: training text of each language.
        languages: languages whose sentences the teacher embeds.
        english: English sentences.
        teach: embeds texts by the teacher.
        own: embeds texts by the model.
    """
    corrections = {}
    for language in languages:
        sample = pairs[language][:CORRECTION_PAIRS]
        translations = [both[0] for both in sample]
        foreign = teach([both[1] for both in sample])
        corrections[language] = (foreign, teach(translations), own(translations))
    return TeacherMap(teach(english), own(english), corrections)


def trained_by_language(
    encoder: SentenceEncoder,
    pairs: Mapping[str, Pairs],
    english: list[str],
    texts: Mapping[str, Language],
) -> np.ndarray:
    """Return which pieces are trained [V], see `trained_rows`."""
    counted = {ENGLISH: english[:COUNTED_LINES]}
    for language, of_language in pairs.items():
        counted[language] = [both[1] for both in of_language[:COUNTED_LINES]]
    sentences = {language: text.sentences for language, text in texts.items()}
    return trained_rows(encoder, counted, sentences)


def english_sentences(encoder: SentenceEncoder, pairs: Mapping[str, Pairs]) -> list[str]:
    """Return different English sentences of training text, at most MAP_SENTENCES."""
    sentences = [both[0] for of_language in pairs.values() for both in of_language]
    sentences = with_pieces(encoder, list(dict.fromkeys(sentences)))
    return random.Random(1).sample(sentences, min(MAP_SENTENCES, len(sentences)))


def train(args: argparse.Namespace) -> None:
    """Write the trained model."""
    model = find_model(args.model)
    encoder = SentenceEncoder.from_pretrained(model)
    table = encoder.table.astype(np.float32)
    excluded = {comparable(line) for file in args.exclude for line in read_lines(file)}
    pairs = {}
    for language, prefixes in prefixes_of_pairs(args.text).items():
        pairs[language] = read_pairs(prefixes, language, excluded)
    sentences = sentences_of(args.sentences, args.languages.split(","), excluded)

    def teach(texts: list[str]) -> np.ndarray:
        return teacher_vectors(texts, args.teacher, args.prefix, args.vectors)

    def own(texts: list[str]) -> np.ndarray:
        return unit_embeddings(table, Sentences(encoder, texts))

    english = english_sentences(encoder, pairs)
    teacher_map = fit_map(pairs, sentences, english, teach, own)
    texts = {}
    for language, lines in sentences.items():
        lines = with_pieces(encoder, lines)
        sample = pairs[language][:PAIR_LIMIT]
        translated = Sentences(encoder, [both[1] for both in sample])
        texts[language] = Language(
            Sentences(encoder, lines),
            teacher_map(teach(lines), language),
            translated,
            unit_embeddings(table, translated),
            own([both[0] for both in sample]),
        )
        print(f"{language}: {len(lines):,} sentences, {len(sample):,} pairs", flush=True)
    trained = trained_by_language(encoder, pairs, english, texts)

    start = table.copy()
    optimizer = RowAdam(table, args.lr, args.updates)
    rng = np.random.default_rng(1)
    rounds = itertools.cycle(texts.values())
    run_updates(args.updates, lambda number: update(optimizer, number, trained, next(rounds), rng))
    table = start + PART * (table - start)
    write_table(encoder, table, list(text_files(model, encoder.tokenizer)), args.output, "float32")


def main() -> None:
    parser = parser_of_training(__doc__, updates=3000, rate=0.02)
    add_teacher(parser)
    parser.add_argument(
        "--sentences",
        type=Path,
        nargs="+",
        required=True,
        metavar="DIR",
        help="folders with files LANG.txt of sentences without a translation",
    )
    parser.add_argument(
        "--languages", required=True, metavar="LANG,...", help="the languages that are trained"
    )
    args = parser.parse_args()
    with exit_on_input_error("sentences.py"):
        train(args)
        print(f"{args.output}: trained for {args.updates:,} updates")


if __name__ == "__main__":
    main()
