"""Train the vectors of a model without layers on words without marks, and on translations.

python examples/pretrained/refine.py MODEL --text work/static/text --weak et,lv,lt --output MODEL

Each update draws sentence pairs of several languages, from text that `collect.py` wrote. Three
losses are added for each language:

1. cosine distances between a sentence and its embedding at the start, which keep what the model
   knows, on both sides of a pair,
2. the cosine distance between a sentence without marks and the embedding of the sentence with its
   marks at the start, and their cross-entropy among the sentences of the batch,
3. the cross-entropy of translations among the sentences of the batch, in both directions.

Only the vectors of pieces in the batch change, by Adam with one second moment for each vector. At
the end, a vector moves by half of its change, and by more if its piece occurs mostly in text
without marks.
"""

import argparse
import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from fold import parser_of_step, write_table
from sample import PAIRS_FILE, WORDS
from unmarked import MARKED, with_two_letters, without_marks

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.sentence_transformers_folder import text_files
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.preparation.clean import comparable

ENGLISH = "en"
# Vietnamese words without marks are words of other languages most often, so each update has it.
ALWAYS = "vi"
# Most pairs of a kind of text and of a language.
KIND_LIMIT = 40_000
LIMIT = 60_000
MAX_CHARACTERS = 500
LANGUAGES_IN_UPDATE = 6
PAIRS_OF_LANGUAGE = 512
# A weak language is drawn so many times as often as another one.
WEAK_WEIGHT = 3.0
TEMPERATURE = 0.05
TRANSLATION_WEIGHT = 0.15
UNMARKED_WEIGHT = 2.0
UNMARKED_CONTRAST_WEIGHT = 0.2
WARMUP_UPDATES = 20
FIRST_MOMENT = 0.9
# Weight of English, which is one side of all pairs, in counts of pieces.
ENGLISH_WEIGHT = 0.3
# Part of a change that remains; it grows to 1 from this share of text without marks on.
LEAST_PART = 0.5
LEAST_SHARE = 0.6
SECOND_MOMENT = 0.98


class Sentences:
    """The word pieces of sentences, one after the other.

    Args:
        encoder: the model.
        texts: the sentences.
    """

    def __init__(self, encoder: SentenceEncoder, texts: list[str]):
        self.pieces, self.lengths = encoder.tokenizer.encode_flat(texts)
        self._ends = np.cumsum(self.lengths)

    def take(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces of some sentences [T], and where each sentence starts [N]."""
        lengths = self.lengths[places]
        starts = np.cumsum(lengths) - lengths
        first = self._ends[places] - lengths
        positions = np.arange(lengths.sum()) + np.repeat(first - starts, lengths)
        return self.pieces[positions], starts


@dataclass(frozen=True)
class Text:
    """The sentence pairs of a language and English.

    Attributes:
        sentences: sentences of the language.
        english: their translations.
        unmarked: the same sentences as people type them without marks, one item for each way.
    """

    sentences: Sentences
    english: Sentences
    unmarked: list[Sentences]


def prefixes_of_pairs(text: Path) -> dict[str, dict[str, str]]:
    """Return the prefixes of the files of each language and kind of text beside English.

    Args:
        text: output folder of `collect.py`.
    """
    collected = yaml.safe_load((text / PAIRS_FILE).read_text(encoding="utf-8"))["pairs"]
    start = f"{ENGLISH}-"
    pairs = sorted(pair for pair in collected if pair.startswith(start))
    return {pair.removeprefix(start): collected[pair] for pair in pairs}


def read_pairs(
    prefixes: Mapping[str, str], language: str, excluded: Container[str]
) -> list[tuple[str, ...]]:
    """Return sentences in English and a language, at most LIMIT.

    Args:
        prefixes: path of the files of each kind of text, without the language.
        language: the language beside English.
        excluded: evaluation sentences, processed by `comparable`.
    """
    pair = f"{ENGLISH}-{language}"
    pairs = []
    for kind, prefix in sorted(prefixes.items()):
        if kind == WORDS:
            continue
        files = [Path(f"{prefix}.{code}") for code in (ENGLISH, language)]
        lines = list(read_parallel(*files, is_sentence=False))
        pairs += random.Random(f"{kind}.{pair}").sample(lines, min(KIND_LIMIT, len(lines)))
    pairs = random.Random(pair).sample(pairs, min(LIMIT, len(pairs)))
    pairs = [both for both in pairs if max(map(len, both)) <= MAX_CHARACTERS]
    return [both for both in pairs if not any(comparable(side) in excluded for side in both)]


def read_text(
    encoder: SentenceEncoder, prefixes: Mapping[str, str], language: str, excluded: Container[str]
) -> Text:
    """Return the text of a language and English, see `read_pairs`."""
    pairs = read_pairs(prefixes, language, excluded)
    sentences = [both[1] for both in pairs]
    ways: list[Callable[[str], str]] = []
    if language in MARKED:
        ways.append(without_marks)
    if language == "de":
        ways.append(with_two_letters)
    return Text(
        Sentences(encoder, sentences),
        Sentences(encoder, [both[0] for both in pairs]),
        [Sentences(encoder, list(map(way, sentences))) for way in ways],
    )


class RowAdam:
    """Adam for the vectors of a batch, with one second moment for each vector.

    Args:
        table: the vectors of the pieces [V, D], float32; they are changed.
        rate: learning rate at the end of the warm-up; it then falls to zero linearly.
        updates: number of updates.
    """

    def __init__(self, table: np.ndarray, rate: float, updates: int):
        self.table = table
        self._rate = rate
        self._updates = updates
        self._mean_gradient = np.zeros_like(table)
        self._mean_square = np.zeros(len(table), np.float32)
        self._counts = np.zeros((len(table), 1), np.int32)

    def step(self, number: int, used: np.ndarray, gradient: np.ndarray) -> None:
        """Change some vectors.

        Args:
            number: number of the update, from 1.
            used: places of the vectors in the table, each once [U].
            gradient: their gradient [U, D].
        """
        rate = self._rate * min(1, number / WARMUP_UPDATES) * (1 - number / (self._updates + 1))
        self._counts[used] += 1
        mean = FIRST_MOMENT * self._mean_gradient[used] + (1 - FIRST_MOMENT) * gradient
        square = SECOND_MOMENT * self._mean_square[used]
        square += (1 - SECOND_MOMENT) * np.square(gradient).mean(axis=1)
        self._mean_gradient[used] = mean
        self._mean_square[used] = square
        unbiased = mean / (1 - FIRST_MOMENT ** self._counts[used])
        scale = np.sqrt(square[:, None] / (1 - SECOND_MOMENT ** self._counts[used]))
        self.table[used] -= rate * unbiased / (scale + 1e-8)


class Refinement:
    """Training of a table of vectors.

    Args:
        table: the vectors of the pieces [V, D], float32; they are changed.
        rate: learning rate at the end of the warm-up; it then falls to zero linearly.
        updates: number of updates.
    """

    def __init__(self, table: np.ndarray, rate: float, updates: int):
        self.table = table
        self._start = table.copy()
        self._optimizer = RowAdam(table, rate, updates)

    def update(self, number: int, batches: list[list[tuple[np.ndarray, np.ndarray]]]) -> float:
        """Make an update, and return the loss before it.

        Args:
            number: number of the update, from 1.
            batches: of each language, the pieces of its sentences and of their translations; and,
                if it has marks, of its sentences without marks. See `Sentences.take`.
        """
        used = np.unique(np.concatenate([pieces for batch in batches for pieces, _ in batch]))
        rows = torch.from_numpy(self.table[used]).requires_grad_(True)
        start = torch.from_numpy(self._start[used])
        loss = rows.sum() * 0
        for batch in batches:
            texts = [(np.searchsorted(used, pieces), starts) for pieces, starts in batch]
            loss = loss + language_loss(rows, start, texts)
        loss.backward()  # type: ignore[no-untyped-call]
        assert rows.grad is not None
        self._optimizer.step(number, used, rows.grad.numpy())
        return float(loss.detach())


def embed(table: torch.Tensor, text: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    """Return the unit embeddings of sentences [N, D]: the sum of the vectors of their pieces.

    Args:
        table: vectors [V, D].
        text: the pieces of all sentences [T], and where each sentence starts [N].
    """
    pieces, starts = map(torch.from_numpy, text)
    return F.normalize(F.embedding_bag(pieces, table, starts, mode="sum"), dim=1)


def language_loss(
    table: torch.Tensor, start: torch.Tensor, texts: list[tuple[np.ndarray, np.ndarray]]
) -> torch.Tensor:
    """Return the loss of the batch of a language, a scalar.

    Args:
        table: vectors in training [V, D].
        start: the vectors at the start [V, D].
        texts: sentences, their translations, and perhaps the sentences without marks.
    """
    sentences, english = (embed(table, text) for text in texts[:2])
    first_sentences, first_english = (embed(start, text) for text in texts[:2])
    loss = distance(sentences, first_sentences) + distance(english, first_english)
    loss = loss + TRANSLATION_WEIGHT * contrast(sentences, english) / 2
    loss = loss + TRANSLATION_WEIGHT * contrast(english, sentences) / 2
    for text in texts[2:]:
        unmarked = embed(table, text)
        loss = loss + UNMARKED_WEIGHT * distance(unmarked, first_sentences)
        loss = loss + UNMARKED_CONTRAST_WEIGHT * contrast(unmarked, first_sentences)
    return loss


def distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the mean cosine distance of unit vectors in corresponding rows [N, D]."""
    return 1 - (left * right).sum(dim=1).mean()


def contrast(queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the candidates in the rows of the queries [N, D]."""
    similarities = queries @ candidates.T / TEMPERATURE
    return F.cross_entropy(similarities, torch.arange(len(queries)))


def draw(
    texts: Mapping[str, Text], weights: np.ndarray, rng: np.random.Generator
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return the batches of an update, see `Refinement.update`.

    Args:
        texts: the text of each language.
        weights: how often each language is drawn; the sum is 1.
        rng: source of the random draws.
    """
    languages = list(texts)
    count = min(LANGUAGES_IN_UPDATE, len(languages))
    drawn = [languages[i] for i in rng.choice(len(languages), count, replace=False, p=weights)]
    if ALWAYS in texts and ALWAYS not in drawn:
        drawn[0] = ALWAYS
    batches = []
    for language in drawn:
        text = texts[language]
        sides = [text.sentences, text.english]
        if text.unmarked:
            sides.append(text.unmarked[rng.integers(len(text.unmarked))])
        places = rng.integers(0, len(text.sentences.lengths), PAIRS_OF_LANGUAGE)
        for side in sides:
            # A sentence without a known character has no embedding.
            places = places[side.lengths[places] > 0]
        batches.append([side.take(places) for side in sides])
    return batches


def unmarked_share(texts: Mapping[str, Text], count: int) -> np.ndarray:
    """Return the share of text without marks in the occurrences of each piece [V].

    The frequencies of all languages are added. A piece that does not occur has the share 0.5.

    Args:
        texts: the text of each language.
        count: number of pieces.
    """

    def frequencies(sentences: Sentences) -> np.ndarray:
        return np.bincount(sentences.pieces, minlength=count) / max(len(sentences.pieces), 1)

    plain = np.zeros(count)
    unmarked = np.zeros(count)
    for text in texts.values():
        plain += frequencies(text.sentences) + ENGLISH_WEIGHT * frequencies(text.english)
        for sentences in text.unmarked[:1]:
            unmarked += frequencies(sentences)
    total = plain + unmarked
    share = np.full(count, 0.5)
    np.divide(unmarked, total, out=share, where=total > 0)
    return share


def remaining_part(share: np.ndarray) -> np.ndarray:
    """Return which part of its change each vector keeps [V, 1], given the shares [V]."""
    excess = np.clip((share - LEAST_SHARE) / (1 - LEAST_SHARE), 0, 1)
    return np.asarray(LEAST_PART + (1 - LEAST_PART) * excess, dtype=np.float32)[:, None]


def run_updates(count: int, update: Callable[[int], float]) -> None:
    """Make updates, and print the mean loss of each hundred.

    Args:
        count: number of updates.
        update: makes the update with this number, from 1, and returns its loss.
    """
    total = 0.0
    for number in range(1, count + 1):
        total += update(number)
        if number % 100 == 0:
            print(f"update {number:,} of {count:,}: loss {total / 100:.3f}", flush=True)
            total = 0.0


def parser_of_training(doc: str | None, updates: int, rate: float) -> argparse.ArgumentParser:
    """Return a parser of a script that trains a model on the text of `collect.py`.

    Args:
        doc: documentation of the script.
        updates: number of updates if the option is not given.
        rate: learning rate if the option is not given.
    """
    parser = parser_of_step(doc)
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--updates",
        type=int,
        default=updates,
        metavar="N",
        help="updates (default: %(default)s)",
    )
    parser.add_argument(
        "--lr", type=float, default=rate, metavar="R", help="learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--exclude", type=Path, nargs="*", default=[], metavar="FILE", help="evaluation text"
    )
    return parser


def refine(args: argparse.Namespace) -> None:
    """Write the trained model."""
    model = find_model(args.model)
    encoder = SentenceEncoder.from_pretrained(model)
    excluded = {comparable(line) for file in args.exclude for line in read_lines(file)}
    texts = {}
    for language, prefixes in prefixes_of_pairs(args.text).items():
        texts[language] = read_text(encoder, prefixes, language, excluded)
        count = len(texts[language].sentences.lengths)
        print(f"{ENGLISH}-{language}: {count:,} pairs", flush=True)
    weak = args.weak.split(",")
    weights = np.array([WEAK_WEIGHT if language in weak else 1.0 for language in texts])
    weights /= weights.sum()
    rng = np.random.default_rng(1)
    training = Refinement(encoder.table.astype(np.float32), args.lr, args.updates)
    run_updates(args.updates, lambda number: training.update(number, draw(texts, weights, rng)))
    start = encoder.table.astype(np.float32)
    part = remaining_part(unmarked_share(texts, len(start)))
    table = start + part * (training.table - start)
    texts_of_model = text_files(model, encoder.tokenizer)
    write_table(encoder, table, list(texts_of_model), args.output, "float32")


def main() -> None:
    parser = parser_of_training(__doc__, updates=2500, rate=0.01)
    parser.add_argument("--weak", default="", metavar="LANG,...", help="the weak languages")
    args = parser.parse_args()
    with exit_on_input_error("refine.py"):
        refine(args)
        print(f"{args.output}: trained for {args.updates:,} updates")


if __name__ == "__main__":
    main()
