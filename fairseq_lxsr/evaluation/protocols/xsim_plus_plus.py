"""xsim++: xsim among sentences that were made to be mistaken for the translation (Chen et al. 2023,
section 3).

English sentences were changed by rules (causality, entities, numbers); the changed ones are
candidates beside all true ones. Errors are those of LASER's `source/xsim.py` with `augmented_json`:
the 4 nearest by cosine are ranked by ratio margin with neighbourhoods of 4, in one direction; an
error has the type of the changed sentence if that was made from the translation, and is
`Misaligned` otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.evaluation.named_sets import datasets
from fairseq_lxsr.evaluation.protocols.protocol import AlignedProtocol, Plan
from fairseq_lxsr.evaluation.protocols.similarity_search import SEARCH_METRICS, XSIM_NEIGHBOURS
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_aligned, check_pair, directions, read_text
from fairseq_lxsr.files.lines import reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.options import FILE_NAME, option
from fairseq_lxsr.vectors import margin_neighbours
from fairseq_lxsr.vectors.rows import IntArray

MISALIGNED = "Misaligned"
TYPE = re.compile(r"\w[\w +-]{0,39}")  # it becomes the name of a value
MAX_TYPES = 20


@dataclass(frozen=True)
class Augmented:
    """Changed sentences."""

    text: Text
    made: Mapping[
        str, tuple[str, str]
    ]  # sentence -> (type of the change, the sentence that it was made from)

    @property
    def types(self) -> list[str]:
        """Types of errors, sorted, after the one of true sentences."""
        return [MISALIGNED, *sorted({kind for kind, _ in self.made.values()} - {MISALIGNED})]


def read_augmented(
    errors: str | Path, sentences: str | Path | None = None, language: str = ""
) -> Augmented:
    """Read changed sentences as LASER publishes them, their types from JSON.

    Their text is one sentence a line, or without such a file that of the JSON.
    """
    with reading(errors), open_binary(errors) as stream:
        content = stream.read()
    try:
        read = parse_json(content.decode())
        made = {sentence: (about["errtype"], about["src"]) for sentence, about in read.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{errors}: not the types of changed sentences ({error!r:.60}); expected JSON, "
            '{sentence: {"errtype": type, "src": sentence}}'
        ) from None
    for kind, origin in made.values():
        if not (isinstance(kind, str) and TYPE.fullmatch(kind) and isinstance(origin, str)):
            raise InputError(
                f"{errors}: errtype {shown(kind)}, src {shown(origin)}; expected a name and a sentence"
            )
    text = read_text(sentences, language) if sentences else Text(list(made), language, str(errors))
    found = Augmented(text, made)
    if not made or len(found.types) > MAX_TYPES:
        raise InputError(
            f"{errors}: {len(made)} texts of {len(found.types) - 1} types; expected 1 to {MAX_TYPES - 1}"
        )
    return found


def types_of_errors(
    found: IntArray, target: Sequence[str], augmented: Augmented
) -> dict[str, Outcomes]:
    """Compute the share of errors, and of errors of each type; the types add up to all errors.

    `found` has the candidate found for each source sentence [N], of the target [N] and then of the
    changed sentences.
    """
    candidates = [*target, *augmented.text.lines]
    kinds = [
        _type(target[row], candidates[place], augmented.made)
        for row, place in enumerate(found.tolist())
    ]
    hits = {"error": np.array([kind is not None for kind in kinds])}
    hits |= {name: np.array([kind == name for kind in kinds]) for name in augmented.types}
    return {name: Outcomes(as_units(hit)) for name, hit in hits.items()}


def _type(wanted: str, found: str, made: Mapping[str, tuple[str, str]]) -> str | None:
    """Return the type of an error; None where the sentence that was found is the translation."""
    if found == wanted:
        return None
    kind, origin = made.get(found.strip(), (MISALIGNED, ""))
    return kind if origin == wanted.strip() else MISALIGNED


def score_among_changed(
    source: Text, target: Text, augmented: Augmented, encoder: Encoder
) -> Score:
    """Measure the errors from the source to the target among the changed sentences."""
    check_aligned(source, target)
    if len(source) < XSIM_NEIGHBOURS:
        raise InputError(
            f"{len(source)} sentence pairs; xsim++ expects at least {XSIM_NEIGHBOURS}: add text"
        )
    queries, *candidates = (embed(encoder, text) for text in (source, target, augmented.text))
    everything = np.concatenate(candidates)
    check_pair(queries, everything)
    _, found = margin_neighbours(queries, everything, XSIM_NEIGHBOURS, show_progress=True)
    made = [f"{sentence}\t{kind}\t{origin}" for sentence, (kind, origin) in augmented.made.items()]
    settings: dict[str, Any] = {
        "metric": SEARCH_METRICS["xsim"],
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
    }
    settings |= {"pairs": len(source), "augmented": len(augmented.text)}
    settings |= text_and_model(
        encoder.fingerprint, source.lines, target.lines, augmented.text.lines, made
    )
    hits = types_of_errors(found[:, 0], target.lines, augmented)
    return from_hits("xsim++", directions(source, target)[0], hits, settings)


@dataclass(frozen=True, kw_only=True)
class XsimPlusPlus(AlignedProtocol):
    """Error rate of the nearest by margin, among the changed sentences of the target language."""

    error_types: str | None = option(
        "changed target sentences, with the type of the change and the original, as LASER publishes them; {lang} is "
        "filled in (with --dataset: where LASER's script puts them)",
        None,
        FILE_NAME,
        metavar="FILE.json",
    )
    augmented: str | None = option(
        "the changed sentences, one a line, as LASER publishes them; {lang} is filled in (default: those of "
        "--error-types, each once)",
        None,
        FILE_NAME,
        metavar="FILE",
    )

    both_directions = False

    def prepare(self) -> Plan:
        plan = super().prepare()
        files: list[str] = []
        for _, language in self.pairs():
            errors, sentences = self.changed(language)
            read_augmented(
                errors, sentences
            )  # what is wrong with it is said before the encoder is loaded
            files += [name for name in (errors, sentences) if name]
        return replace(plan, texts=[*plan.texts, *files])

    def changed(self, language: str) -> tuple[str, str | None]:
        """Return the files of the changed sentences of a language: their types, and their text."""
        if self.error_types:
            sentences = self.augmented and self.augmented.replace("{lang}", language)
            return self.error_types.replace("{lang}", language), sentences
        if not (self.dataset and self.data) or self.augmented:
            raise InputError(
                "no --error-types; expected the types of the changed sentences, as LASER publishes them"
            )
        errors, text = datasets()[self.dataset].augmented_files(self.data, language)
        return str(errors), str(text)

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        augmented = read_augmented(*self.changed(target.language), target.language)
        return [score_among_changed(source, target, augmented, encoder)]
