"""xsim++: xsim with hard negatives that resemble the translation (Chen et al. 2023, section 3).

English sentences were altered by rules (causality, entities, numbers); the altered sentences are
added to the candidates as hard negatives. As in LASER's `source/xsim.py` with `augmented_json`, the
4 nearest candidates by cosine similarity are ranked by ratio margin with 4 neighbours, in one
direction. An error has the type of the best candidate if this is an altered copy of the
translation, and the type `Misaligned` otherwise.
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
from fairseq_lxsr.evaluation.protocols.similarity_search import (
    SEARCH_METRICS,
    XSIM_NEIGHBOURS,
    check_enough_for_margin,
)
from fairseq_lxsr.evaluation.score import Outcomes, Score, as_units, from_hits, text_and_model
from fairseq_lxsr.evaluation.texts import check_aligned, check_pair, directions, read_text
from fairseq_lxsr.files.lines import reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.options import FILE_NAME, option
from fairseq_lxsr.vectors import margin_neighbours
from fairseq_lxsr.vectors.rows import IntArray

MISALIGNED = "Misaligned"
# Valid error types; each becomes the name of a value in the score.
TYPE = re.compile(r"\w[\w +-]{0,39}")
MAX_TYPES = 20

# Maps each hard negative to its error type and original sentence.
Origins = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Augmented:
    """Hard negatives, each with its error type and original sentence.

    Args:
        text: the hard negatives.
        origins: maps each hard negative to its error type and original sentence.
    """

    text: Text
    origins: Origins

    @property
    def types(self) -> list[str]:
        """Error types: `Misaligned`, then the types of the hard negatives in alphabetical order."""
        types = {kind for kind, _ in self.origins.values()}
        return [MISALIGNED, *sorted(types - {MISALIGNED})]


def read_augmented(
    errors: str | Path, sentences: str | Path | None = None, language: str = ""
) -> Augmented:
    """Read hard negatives in the format published by LASER.

    Args:
        errors: JSON file {sentence: {"errtype": type, "src": original}}.
        sentences: text file of the hard negatives, one per line; None uses the JSON keys.
        language: language of the sentences.

    Returns:
        The hard negatives, with their types and original sentences.

    Raises:
        InputError: if the file is invalid, or there are too few or too many error types.
    """
    origins = _read_origins(errors)
    text = Text(list(origins), language, str(errors))
    if sentences:
        text = read_text(sentences, language)
    augmented = Augmented(text, origins)
    if not origins or len(augmented.types) > MAX_TYPES:
        raise InputError(
            f"{errors}: {len(origins)} sentences and {len(augmented.types) - 1} error "
            f"types; expected 1 to {MAX_TYPES - 1} types"
        )
    return augmented


def _read_origins(path: str | Path) -> Origins:
    with reading(path), open_binary(path) as stream:
        content = stream.read()
    try:
        records = parse_json(content.decode())
        origins = {
            sentence: (record["errtype"], record["src"]) for sentence, record in records.items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a file of xsim++ error types ({error!r:.60}); expected JSON, "
            '{sentence: {"errtype": type, "src": sentence}}'
        ) from None
    for kind, original in origins.values():
        is_type = isinstance(kind, str) and TYPE.fullmatch(kind)
        if not is_type or not isinstance(original, str):
            raise InputError(
                f"{path}: errtype {shown(kind)} or src {shown(original)} is invalid; "
                "expected a short name and a sentence"
            )
    return origins


def error_outcomes(
    retrieved: IntArray, target: Sequence[str], augmented: Augmented
) -> dict[str, Outcomes]:
    """Compute the error rate, in total and by type. The rates of the types add up to the total.

    Args:
        retrieved: row index of the candidate retrieved for every source sentence [N]. The
            candidates are the target sentences, followed by the hard negatives.
        target: translations of the source sentences [N].
        augmented: hard negatives.

    Returns:
        Outcomes by name, each [N]: 1 for each error, otherwise 0.
    """
    candidates = [*target, *augmented.text.lines]
    types = [
        _error_type(translation, candidates[row], augmented.origins)
        for translation, row in zip(target, retrieved.tolist(), strict=True)
    ]
    hits = {"error": np.array([kind is not None for kind in types])}
    for name in augmented.types:
        hits[name] = np.array([kind == name for kind in types])
    return {name: Outcomes(as_units(hit)) for name, hit in hits.items()}


def _error_type(translation: str, retrieved: str, origins: Origins) -> str | None:
    """Return the type of an error, or None if the retrieved sentence is the translation."""
    if retrieved == translation:
        return None
    kind, original = origins.get(retrieved.strip(), (MISALIGNED, ""))
    return kind if original == translation.strip() else MISALIGNED


def score_among_changed(
    source: Text, target: Text, augmented: Augmented, encoder: Encoder
) -> Score:
    """Compute the xsim++ error rate: retrieve translations among the targets and hard negatives.

    Args:
        source: sentences [N].
        target: their translations [N].
        augmented: hard negatives of the translations.
        encoder: encoder of all texts.

    Returns:
        A score with the error rate, in total and by error type.
    """
    check_aligned(source, target)
    check_enough_for_margin("xsim++", len(source))
    queries, *candidates = (embed(encoder, text) for text in (source, target, augmented.text))
    all_candidates = np.concatenate(candidates)
    check_pair(queries, all_candidates)
    _, neighbours = margin_neighbours(queries, all_candidates, XSIM_NEIGHBOURS, show_progress=True)
    origins = [
        f"{sentence}\t{kind}\t{original}"
        for sentence, (kind, original) in augmented.origins.items()
    ]
    settings: dict[str, Any] = {
        "metric": SEARCH_METRICS["xsim"],
        "norm": "l2",
        "case": "mixed",
        "identical": "hit",
        "pairs": len(source),
        "augmented": len(augmented.text),
    }
    settings |= text_and_model(
        encoder.fingerprint, source.lines, target.lines, augmented.text.lines, origins
    )
    hits = error_outcomes(neighbours[:, 0], target.lines, augmented)
    task, _ = directions(source, target)
    return from_hits("xsim++", task, hits, settings)


@dataclass(frozen=True, kw_only=True)
class XsimPlusPlus(AlignedProtocol):
    """Error rate of the nearest sentence by margin, with hard negatives among the candidates."""

    error_types: str | None = option(
        "hard negatives of the target sentences, each with its error type and original, in "
        "the format published by LASER; {lang} is filled in (default: the files of --dataset)",
        None,
        FILE_NAME,
        metavar="FILE.json",
    )
    augmented: str | None = option(
        "hard negatives, one per line, in the format published by LASER; {lang} is filled in "
        "(default: the keys of --error-types)",
        None,
        FILE_NAME,
        metavar="FILE",
    )

    both_directions = False

    def prepare(self) -> Plan:
        plan = super().prepare()
        files: list[str] = []
        for _, language in self.pairs():
            errors, sentences = self.augmented_files(language)
            # Check the files before the encoder is loaded.
            read_augmented(errors, sentences)
            files += [name for name in (errors, sentences) if name]
        return replace(plan, texts=[*plan.texts, *files])

    def augmented_files(self, language: str) -> tuple[str, str | None]:
        """Return the files with the error types and hard negatives of a language.

        Args:
            language: language of the hard negatives.

        Returns:
            The JSON file, and the text file or None.

        Raises:
            InputError: if neither --error-types nor --dataset is given.
        """
        if self.error_types:
            sentences = self.augmented and self.augmented.replace("{lang}", language)
            return self.error_types.replace("{lang}", language), sentences
        if not (self.dataset and self.data) or self.augmented:
            raise InputError(
                "--error-types is required without --dataset; specify hard negatives in the "
                "format published by LASER"
            )
        errors, text = datasets()[self.dataset].augmented_files(self.data, language)
        return str(errors), str(text)

    def scores(self, source: Text, target: Text, encoder: Encoder) -> list[Score]:
        errors, sentences = self.augmented_files(target.language)
        augmented = read_augmented(errors, sentences, target.language)
        return [score_among_changed(source, target, augmented, encoder)]
