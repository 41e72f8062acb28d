"""Minimal pairs: is a translation closer to its English sentence than to an altered one?

Three rules change the meaning of the English sentence: two nouns are swapped (`swap`), a statement
is negated (`negation`), or a number is replaced (`number`). A bag of words cannot detect a swap.
The rules were written for this package. They require only aligned text.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.protocol import AlignedProtocol, Plan
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_aligned, rows_of
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.options import FILE_NAME, option
from fairseq_lxsr.vectors import normalise_rows
from fairseq_lxsr.vectors.rows import FloatArray

AUXILIARY = re.compile(
    r"\b(is|are|was|were|can|could|will|would|should|must|may|might|has|had)\b (?!not\b|n't)"
)
NUMBER = re.compile(r"(?<![\w.,])\d{1,4}(?![\w.,]\d|\w)")
# A noun is the last word of its phrase if punctuation or one of these words follows it.
FUNCTION_WORDS = (
    "of|in|on|at|to|for|by|from|with|as|is|are|was|were|has|had|will|can|that|who|which|than|into"
)
AFTER = rf"(?=[.,;:!?]|$| (?:{FUNCTION_WORDS})\b)"
PHRASE = re.compile(rf"\b([Tt]he|[Aa]n?) ([a-z]{{3,}})\b{AFTER}")
COORDINATION = re.compile(r"\b(and|or)\b")
# Cosine similarities that differ by less than this count as equal.
TIE = 1e-6


def swapped(sentence: str) -> str | None:
    """Swap two nouns that have the same article.

    The altered sentence contains the same words.

    Args:
        sentence: an English sentence.

    Returns:
        The altered sentence, or None if the sentence has no such nouns.
    """
    for first, second in itertools.combinations(PHRASE.finditer(sentence), 2):
        has_same_article = first[1].lower() == second[1].lower()
        between = sentence[first.end() : second.start()]
        # Swapping coordinated nouns, as in "the cat and the dog", does not change the meaning.
        if first[2] == second[2] or not has_same_article or COORDINATION.search(between):
            continue
        start = sentence[: first.start(2)] + second[2]
        end = f"{second[1]} {first[2]}" + sentence[second.end() :]
        return start + between + end
    return None


def negated(sentence: str) -> str | None:
    """Insert `not` after the first auxiliary verb of a statement.

    Args:
        sentence: an English sentence.

    Returns:
        The altered sentence, or None for a question or a sentence without an auxiliary.
    """
    if sentence.rstrip().endswith("?"):
        return None
    changed, count = AUXILIARY.subn(r"\1 not ", sentence, count=1)
    return changed if count else None


def renumbered(sentence: str) -> str | None:
    """Replace the first number with another one that has the same number of digits.

    Args:
        sentence: a sentence in any language.

    Returns:
        The altered sentence, or None if it contains no number.
    """
    number = NUMBER.search(sentence)
    if number is None:
        return None
    digits = number.group()
    first = str((int(digits[0]) + 3) % 9 + 1)
    last = str((int(digits[-1]) + 4) % 10) if len(digits) > 1 else ""
    return sentence[: number.start()] + first + digits[1:-1] + last + sentence[number.end() :]


RULES: Mapping[str, Callable[[str], str | None]] = {
    "swap": swapped,
    "negation": negated,
    "number": renumbered,
}


@dataclass(frozen=True)
class Changed:
    """The sentences altered by one rule.

    Args:
        rows: row indices of the original sentences [P].
        sentences: the altered sentences [P].
    """

    rows: list[int]
    sentences: list[str]


def change(english: Sequence[str]) -> dict[str, Changed]:
    """Apply every rule to every sentence, and return the altered sentences by rule.

    Args:
        english: English sentences.

    Returns:
        For each rule, the sentences that it applies to, and what it makes of them.
    """
    pairs = {name: Changed([], []) for name in RULES}
    for row, sentence in enumerate(english):
        for name, rule in RULES.items():
            changed = rule(sentence)
            if changed is not None and changed != sentence:
                pairs[name].rows.append(row)
                pairs[name].sentences.append(changed)
    return pairs


def nearer(foreign: FloatArray, english: FloatArray, changed: FloatArray) -> Outcomes:
    """Compute how often a translation is closer to the true sentence than to the altered one.

    Args:
        foreign: embeddings of the translations [P, D].
        english: embeddings of the true sentences [P, D].
        changed: embeddings of the altered sentences [P, D].

    Returns:
        The outcome of each pair: 1, 0, or 1/2 for a tie. Chance level is 50 %.
    """
    foreign = normalise_rows(foreign)
    difference = normalise_rows(english) - normalise_rows(changed)
    return preferred((foreign * difference).sum(axis=1))


def preferred(difference: FloatArray) -> Outcomes:
    """Compute the fraction of pairs whose true sentence scores higher than the altered one.

    Args:
        difference: score of the true sentence minus score of the altered sentence [P].

    Returns:
        The outcome of each pair: 1, 0, or 1/2 for a tie.
    """
    return Outcomes(as_units(np.where(np.abs(difference) < TIE, 0.5, difference > 0)))


def score_minimal_pairs(
    foreign: Text, english: Text, encoder: Encoder
) -> tuple[Score, dict[str, Changed]]:
    """Compute the accuracy of each rule on aligned text.

    Args:
        foreign: translations [N].
        english: English sentences [N].
        encoder: encoder of the sentences. External embeddings of the altered sentences are looked
            up as ENGLISH_FILE.RULE.

    Returns:
        The score, and the altered sentences by rule.

    Raises:
        InputError: if no rule applies to any sentence.
    """
    check_aligned(foreign, english)
    pairs = change(english.lines)
    if not any(changed.rows for changed in pairs.values()):
        raise InputError(
            f"{english.file}: no sentence that {', '.join(RULES)} can change; use more English text"
        )
    hits = {}
    for name, changed in pairs.items():
        if changed.rows:
            hits[name] = _rule_outcomes(name, changed, foreign, english, encoder)
    counts = ",".join(f"{len(changed.rows)} {name}" for name, changed in pairs.items())
    settings = {"metric": "cosine", "norm": "l2", "ties": "half", "pairs": counts}
    settings |= text_and_model(encoder.fingerprint, foreign.lines, english.lines)
    task = f"{foreign.language or 'foreign'}->en"
    return from_hits("minimal-pairs", task, hits, settings), pairs


def _rule_outcomes(
    name: str, changed: Changed, foreign: Text, english: Text, encoder: Encoder
) -> Outcomes:
    texts = (
        rows_of(foreign, changed.rows),
        rows_of(english, changed.rows),
        Text(changed.sentences, english.language, f"{english.file}.{name}"),
    )
    return nearer(*(embed(encoder, text) for text in texts))


ENGLISH = ("en", "eng", "eng_Latn")


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(AlignedProtocol):
    """Accuracy per rule, on aligned files in English and another language."""

    pairs_output: str | None = option(
        "write rule, translation, English sentence and altered sentence to a file",
        None,
        FILE_NAME,
        metavar="FILE.tsv",
    )

    def prepare(self) -> Plan:
        pairs = self.pairs()
        if self.lang_pairs:
            _check_english(pairs)
        if not self.pairs_output:
            return super().prepare()
        if len(pairs) > 1:
            raise InputError(f"--pairs-output supports only one language pair, got {len(pairs)}")
        return replace(super().prepare(), outputs=[self.pairs_output])

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        # Without specified languages, the source is assumed to be English.
        if source.language and source.language not in ENGLISH:
            foreign = source
            english = target
        else:
            foreign = target
            english = source
        score, pairs = score_minimal_pairs(foreign, english, encoder)
        if self.pairs_output:
            write_pairs(self.pairs_output, foreign, english, pairs)
        return [score]


def _check_english(pairs: Sequence[tuple[str, str]]) -> None:
    for pair in pairs:
        if not set(pair) & set(ENGLISH):
            raise InputError(
                f"--lang-pairs {'-'.join(pair)}: no English; expected a pair with "
                f"{' or '.join(ENGLISH)}, because the rules change English sentences"
            )


def write_pairs(path: str, foreign: Text, english: Text, pairs: Mapping[str, Changed]) -> None:
    """Write rule, translation, English sentence and altered sentence, separated by tabs.

    Args:
        path: file to write.
        foreign: translations.
        english: English sentences.
        pairs: altered sentences, from `change`.
    """
    with atomic_write(path) as stream:
        for rule, changed in pairs.items():
            for row, sentence in zip(changed.rows, changed.sentences, strict=True):
                columns = (rule, foreign.lines[row], english.lines[row], sentence)
                line = "\t".join(column.replace("\t", " ") for column in columns)
                stream.write(f"{line}\n")
