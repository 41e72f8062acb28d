"""Minimal pairs: is a translation nearer to its English sentence than to one that differs a little
and means another?

Three rules change the English: two nouns change places (`swap`), a statement is negated
(`negation`), a number becomes another (`number`). A bag of words cannot tell a swap. The rules are
ours; they need no other data than aligned text.
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
# a noun ends its phrase: punctuation or one of these words follows, not another noun
FUNCTION_WORDS = (
    "of|in|on|at|to|for|by|from|with|as|is|are|was|were|has|had|will|can|that|who|which|than|into"
)
AFTER = rf"(?=[.,;:!?]|$| (?:{FUNCTION_WORDS})\b)"
PHRASE = re.compile(rf"\b([Tt]he|[Aa]n?) ([a-z]{{3,}})\b{AFTER}")
COORDINATION = re.compile(r"\b(and|or)\b")
TIE = 1e-6  # cosines that differ by less are equal


def swapped(sentence: str) -> str | None:
    """Exchange two nouns with the same article: the same words, another sentence; None where there
    are none.
    """
    for first, second in itertools.combinations(PHRASE.finditer(sentence), 2):
        noun, other = first[2], second[2]
        between = sentence[first.end() : second.start()]
        if noun == other or first[1].lower() != second[1].lower() or COORDINATION.search(between):
            continue
        return (
            sentence[: first.start(2)]
            + other
            + between
            + second[1]
            + " "
            + noun
            + sentence[second.end() :]
        )
    return None


def negated(sentence: str) -> str | None:
    """Put `not` after the first auxiliary of a statement; None where there is none."""
    if sentence.rstrip().endswith("?"):
        return None
    changed, count = AUXILIARY.subn(r"\1 not ", sentence, count=1)
    return changed if count else None


def renumbered(sentence: str) -> str | None:
    """Replace the first number in digits by another of as many digits; None where there is none."""
    found = NUMBER.search(sentence)
    if found is None:
        return None
    digits = found.group()
    other = (
        str((int(digits[0]) + 3) % 9 + 1)
        + digits[1:-1]
        + str((int(digits[-1]) + 4) % 10) * (len(digits) > 1)
    )
    return sentence[: found.start()] + other + sentence[found.end() :]


RULES: Mapping[str, Callable[[str], str | None]] = {
    "swap": swapped,
    "negation": negated,
    "number": renumbered,
}


@dataclass(frozen=True)
class Changed:
    """The P English sentences that a rule applies to: their rows in the text, and what the rule
    makes of them.
    """

    rows: list[int]
    sentences: list[str]


def change(english: Sequence[str]) -> dict[str, Changed]:
    """Apply every rule to every sentence; a sentence that a rule leaves as it is has no pair."""
    found = {name: Changed([], []) for name in RULES}
    for row, sentence in enumerate(english):
        for name, rule in RULES.items():
            changed = rule(sentence)
            if changed is not None and changed != sentence:
                found[name].rows.append(row)
                found[name].sentences.append(changed)
    return found


def nearer(foreign: FloatArray, english: FloatArray, changed: FloatArray) -> Outcomes:
    """Compute the share of P minimal pairs whose true sentence is nearer to the translation by
    cosine, [P, D] each.

    It is 1, 0, or for a tie 1/2, by pair; chance is 50 %.
    """
    foreign, english, changed = (normalise_rows(side) for side in (foreign, english, changed))
    return preferred((foreign * (english - changed)).sum(axis=1))


def preferred(difference: FloatArray) -> Outcomes:
    """Return 1, 0, or for a tie 1/2, by pair, of scores of the true sentences minus those of the
    changed ones [P].
    """
    return Outcomes(as_units(np.where(np.abs(difference) < TIE, 0.5, difference > 0)))


def score_minimal_pairs(
    foreign: Text, english: Text, encoder: Encoder
) -> tuple[Score, dict[str, Changed]]:
    """Measure each rule on aligned text; return the accuracy by rule, and the pairs.

    Embeddings made elsewhere need those of the changed sentences, under the name of the English
    file and the rule.
    """
    check_aligned(foreign, english)
    pairs = change(english.lines)
    if not any(found.rows for found in pairs.values()):
        raise InputError(
            f"{english.file}: no sentence that {', '.join(RULES)} can change; give more English text"
        )
    hits = {}
    for name, found in pairs.items():
        if found.rows:
            changed = Text(found.sentences, english.language, f"{english.file}.{name}")
            texts = rows_of(foreign, found.rows), rows_of(english, found.rows), changed
            hits[name] = nearer(*(embed(encoder, text) for text in texts))
    counts = ",".join(f"{len(found.rows)} {name}" for name, found in pairs.items())
    settings = {"metric": "cosine", "norm": "l2", "ties": "half", "pairs": counts}
    settings |= text_and_model(encoder.fingerprint, foreign.lines, english.lines)
    return from_hits("minimal-pairs", f"{foreign.language or 'foreign'}->en", hits, settings), pairs


ENGLISH = ("en", "eng", "eng_Latn")


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(AlignedProtocol):
    """Accuracy by rule on aligned files of English and another language."""

    pairs_output: str | None = option(
        "write rule, translation, English, changed", None, FILE_NAME, metavar="FILE.tsv"
    )

    def prepare(self) -> Plan:
        pairs = self.pairs()
        for pair in pairs if self.lang_pairs else ():
            if not set(pair) & set(ENGLISH):
                raise InputError(
                    f"--lang-pairs {'-'.join(pair)}: no English; the rules need {' or '.join(ENGLISH)}"
                )
        if not self.pairs_output:
            return super().prepare()
        if len(pairs) > 1:
            raise InputError(f"--pairs-output with {len(pairs)} language pairs; expected one")
        return replace(super().prepare(), outputs=[self.pairs_output])

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        # without languages the source is English
        english, foreign = (
            (target, source)
            if source.language and source.language not in ENGLISH
            else (source, target)
        )
        score, pairs = score_minimal_pairs(foreign, english, encoder)
        if self.pairs_output:
            with atomic_write(self.pairs_output) as stream:
                for rule, found in pairs.items():
                    for row, changed in zip(found.rows, found.sentences, strict=True):
                        columns = (rule, foreign.lines[row], english.lines[row], changed)
                        stream.write(
                            "\t".join(column.replace("\t", " ") for column in columns) + "\n"
                        )
        return [score]
