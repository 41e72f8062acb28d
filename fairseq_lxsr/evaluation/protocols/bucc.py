"""BUCC: mines translations from two monolingual sets (Zweigenbaum et al. 2017), in several forms.

- `learned`: the threshold with the highest F1 on one split is applied to another: from training to
  test in the shared task and in Artetxe and Schwenk (2019a), from sample to training in XTREME.
- `oracle`: the threshold is selected on the evaluated part itself, as in the results of LASER's
  tasks/bucc and in sentence-transformers' bucc2018.py. This is an upper bound of `learned`.
- `mteb-v2` and `mteb-v1`: retrieval without a threshold: each source sentence of a gold pair
  retrieves its translation from the gold targets (mteb's task BUCC.v2) or from all target
  sentences (mteb's task BUCC).

The names of the values differ between the forms, and the signature includes the form.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import find_file
from fairseq_lxsr.evaluation.protocols.mteb_bitext import weighted_scores
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol, parse_lang_pairs
from fairseq_lxsr.evaluation.score import (
    LARGEST_NUMBER,
    Outcomes,
    Score,
    as_units,
    from_hits,
    text_and_model,
)
from fairseq_lxsr.evaluation.texts import rank, read_columns, rows_of
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.options import (
    BUCC_FORMS,
    BUCC_PARTS,
    FILE_NAME,
    MARGINS,
    RETRIEVALS,
    at_least,
    option,
)
from fairseq_lxsr.text.languages import split_pair
from fairseq_lxsr.vectors import MinedPairs, mine

# Gold pairs as (source row, target row) tuples.
Gold = set[tuple[int, int]]
CURVE_POINTS = 200
# Replaces infinite scores, which score files cannot contain.
LARGEST_THRESHOLD = LARGEST_NUMBER / 2


@dataclass(frozen=True)
class MiningSet:
    """Sentences and gold pairs of one split for a language pair.

    Args:
        source: source sentences [N].
        target: target sentences [M].
        source_ids: identifiers of the source sentences [N].
        target_ids: identifiers of the target sentences [M].
        gold: pairs of rows that are translations.
        part: name of the split, for example test.
    """

    source: Text
    target: Text
    source_ids: list[str]
    target_ids: list[str]
    gold: Gold
    part: str = ""

    @property
    def task(self) -> str:
        """Name of the task, for example `fr-en`."""
        return f"{self.source.language}-{self.target.language}"

    @property
    def signed(self) -> tuple[Sequence[str], Sequence[str], list[str]]:
        """Texts to hash for the signature: sentences and gold pairs."""
        gold = [f"{source_row} {target_row}" for source_row, target_row in sorted(self.gold)]
        return self.source.lines, self.target.lines, gold


def find_files(template: str, pair: str, part: str) -> tuple[Path, Path, Path]:
    """Find the source, target and gold files of a split.

    Args:
        template: see `read_set`.
        pair: language pair, for example fr-en.
        part: name of the split, for example test.

    Returns:
        The three paths.

    Raises:
        InputError: if a file is missing.
    """
    sentences = f"{template}.{part}.{{lang}}"
    source_language, target_language = split_pair(pair)
    source = find_file(sentences, source_language, pair)
    target = find_file(sentences, target_language, pair)
    return source, target, find_file(f"{template}.{part}.gold", pair=pair)


def read_set(template: str, pair: str, part: str) -> MiningSet:
    """Read one split of a language pair in BUCC's format.

    Args:
        template: path in which {pair} is filled in; TEMPLATE.PART.LANG has lines
            `id<TAB>sentence`, and TEMPLATE.PART.gold has lines `id<TAB>id`.
        pair: language pair, for example fr-en.
        part: name of the split, for example test.

    Returns:
        The sentences of both sides, and the true pairs.

    Raises:
        InputError: if a file is missing, or a line is invalid.
    """
    source_file, target_file, gold_file = find_files(template, pair, part)
    source_language, target_language = split_pair(pair)
    source, source_ids = _read_sentences(source_file, source_language)
    target, target_ids = _read_sentences(target_file, target_language)
    gold = _read_gold(gold_file, source_ids, target_ids)
    return MiningSet(source, target, source_ids, target_ids, gold, part)


def _read_sentences(path: Path, language: str) -> tuple[Text, list[str]]:
    ids, lines = zip(*read_columns(path, "id<TAB>sentence"), strict=True)
    if len(set(ids)) != len(ids):
        [(repeated, _)] = Counter(ids).most_common(1)
        raise InputError(
            f"{path}: identifier {repeated!r:.60} is not unique; expected one line per identifier"
        )
    return Text(lines, language, str(path)), list(ids)


def _read_gold(path: Path, source_ids: list[str], target_ids: list[str]) -> Gold:
    source_rows = {name: row for row, name in enumerate(source_ids)}
    target_rows = {name: row for row, name in enumerate(target_ids)}
    gold = set()
    for number, pair in enumerate(read_columns(path, "id<TAB>id"), start=1):
        for name, rows in zip(pair, (source_rows, target_rows), strict=True):
            if name not in rows:
                raise InputError(
                    f"{path}, line {number}: identifier {name!r} is not in the text; "
                    "check that the files belong together"
                )
        gold.add((source_rows[pair[0]], target_rows[pair[1]]))
    return gold


def correct(mined: MinedPairs, gold: Gold) -> np.ndarray:
    """Return a boolean array [P]: whether each mined pair is a gold pair.

    Args:
        mined: P mined pairs.
        gold: the true pairs.

    Returns:
        The array.
    """
    pairs = zip(mined.source.tolist(), mined.target.tolist(), strict=True)
    return np.array([pair in gold for pair in pairs], dtype=bool)


def best_threshold(mined: MinedPairs, gold: Gold) -> float:
    """Find the finite threshold with the highest F1.

    The threshold lies half-way between the scores of the last pair to keep and of the next one. If
    there is no next one, it is the score of the last pair. Pairs with equal scores are kept or
    dropped together. Pairs with a score of minus infinity are dropped.

    Args:
        mined: mined pairs in descending order of score.
        gold: the true pairs.

    Returns:
        The threshold.

    Raises:
        InputError: if no pair has a finite score.
    """
    # A score of minus infinity has no finite threshold below it.
    mined = mined.above(-LARGEST_THRESHOLD)
    if not len(mined):
        raise InputError("no mined pairs, so no threshold can be selected; use more text")
    hits = correct(mined, gold).cumsum()
    counts = np.arange(1, len(mined) + 1)
    f1 = 2 * hits / (counts + len(gold))
    following = np.append(mined.scores[1:], -np.inf)
    # No threshold separates pairs of equal score, so the selection ends at the last of them.
    f1[mined.scores == following] = -1
    best = int(f1.argmax())
    last = min(float(mined.scores[best]), LARGEST_THRESHOLD)
    if not np.isfinite(following[best]):
        return last
    return (last + float(following[best])) / 2


def threshold_curve(mined: MinedPairs, gold: Gold) -> dict[str, list[float]]:
    """Compute precision and recall at up to 200 thresholds.

    Args:
        mined: mined pairs in descending order of score.
        gold: the true pairs.

    Returns:
        Thresholds, and the precision and recall, in percent, of the pairs at or above each
        threshold.
    """
    # Index of the last pair in each group of equal scores.
    is_last = np.append(mined.scores[1:] != mined.scores[:-1], True)[: len(mined)]
    ends = np.flatnonzero(is_last & np.isfinite(mined.scores))
    if len(ends):
        points = np.linspace(0, len(ends) - 1, CURVE_POINTS).round().astype(int)
        ends = ends[np.unique(points)]
    hits = correct(mined, gold).cumsum()[ends]
    return {
        "threshold": [round(value, 6) for value in mined.scores[ends].tolist()],
        "precision": (100 * hits / (ends + 1)).round(3).tolist(),
        "recall": (100 * hits / len(gold)).round(3).tolist(),
    }


def f1_outcomes(mined: MinedPairs, gold: Gold, sentences: int) -> dict[str, Outcomes]:
    """Compute precision, recall and F1 of mined pairs.

    Args:
        mined: the pairs to evaluate.
        gold: the true pairs.
        sentences: number of source sentences, which are the units.

    Returns:
        Outcomes by name.
    """
    # The paired bootstrap draws source sentences, so the counts are summed by source sentence.
    hits = np.bincount(mined.source[correct(mined, gold)], minlength=sentences)
    mined_counts = np.bincount(mined.source, minlength=sentences)
    gold_counts = np.bincount([row for row, _ in gold], minlength=sentences)
    return {
        "F1": Outcomes(as_units(2 * hits), as_units(mined_counts + gold_counts)),
        "precision": Outcomes(as_units(hits), as_units(mined_counts)),
        "recall": Outcomes(as_units(hits), as_units(gold_counts)),
    }


def distinct_sentences(text: Text) -> tuple[Text, np.ndarray, np.ndarray]:
    """Remove repeated sentences, in the same way as LASER (source/mine_bitexts.py, line 41).

    Args:
        text: N sentences.

    Returns:
        The U distinct sentences in order of appearance, their rows in the text [U], and whether
        each occurs only once, bool [U].
    """
    counts = Counter(line.strip() for line in text.lines)
    first_rows: dict[str, int] = {}
    for row, line in enumerate(text.lines):
        first_rows.setdefault(line.strip(), row)
    rows = np.fromiter(first_rows.values(), dtype=np.int64)
    is_unique = np.array([counts[line] == 1 for line in first_rows])
    return rows_of(text, rows), rows, is_unique


@dataclass(frozen=True, kw_only=True)
class BuccMining:
    """Mining options, which the mteb forms reject. An option that is not given is None."""

    k: int | None = option("number of neighbours per sentence (default: 4)", None, at_least(1))
    margin: str | None = option("margin function (default: ratio)", None, MARGINS)
    retrieval: str | None = option("retrieval direction (default: max)", None, RETRIEVALS)
    # For a repeated sentence, LASER cannot tell which identifier is meant (tasks/bucc/bucc.py,
    # lines 84 to 95).
    unify: bool = option(
        "mine each distinct sentence once and drop pairs with repeated sentences, as in LASER",
        False,
    )

    @property
    def mining_options(self) -> tuple[int, str, str]:
        """Number of neighbours, margin and retrieval direction, as `vectors.mine` expects them."""
        return self.k or 4, self.margin or "ratio", self.retrieval or "max"

    def mine(self, part: MiningSet, encoder: Encoder) -> MinedPairs:
        """Mine the sentence pairs of one split, in descending order of score.

        Args:
            part: the sentences of the split.
            encoder: encoder of both sides.

        Returns:
            The pairs, by indices of sentences.
        """
        if not self.unify:
            return self._mine(part.source, part.target, encoder)
        source, source_rows, source_is_unique = distinct_sentences(part.source)
        target, target_rows, target_is_unique = distinct_sentences(part.target)
        mined = self._mine(source, target, encoder)
        is_unique = source_is_unique[mined.source] & target_is_unique[mined.target]
        return MinedPairs(
            mined.scores[is_unique],
            source_rows[mined.source[is_unique]],
            target_rows[mined.target[is_unique]],
        )

    def _mine(self, source: Text, target: Text, encoder: Encoder) -> MinedPairs:
        return mine(
            embed(encoder, source),
            embed(encoder, target),
            *self.mining_options,
            show_progress=True,
        )

    def settings(self, part: MiningSet) -> dict[str, Any]:
        """Return the mining settings of a score, for its signature.

        Args:
            part: the sentences of the split.

        Returns:
            The settings by name.
        """
        k, margin, retrieval = self.mining_options
        settings = {"metric": f"margin-{margin}", "norm": "l2", "k": k, "retrieval": retrieval}
        if self.unify:
            settings["unify"] = "yes"
        settings["sentences"] = f"{len(part.source)}x{len(part.target)}"
        settings["gold"] = len(part.gold)
        return settings


DEFAULT_MINING = BuccMining()


def score_mined(
    part: MiningSet,
    encoder: Encoder,
    mining: BuccMining = DEFAULT_MINING,
    train: MiningSet | None = None,
) -> tuple[Score, MinedPairs]:
    """Score the sentence pairs that are mined with an encoder.

    Args:
        part: the split to evaluate.
        encoder: encoder of the sentences.
        mining: margin, number of neighbours and other options.
        train: split used to select the threshold with the highest F1; None selects it on `part`,
            which gives an upper bound.

    Returns:
        A score with F1, precision, recall, F1 of the training split and the threshold (the names
        start with `oracle` without a training split), and the pairs at or above the threshold.
    """
    mined = mining.mine(part, encoder)
    settings = mining.settings(part)
    if train:
        mined_train = mining.mine(train, encoder)
        threshold = best_threshold(mined_train, train.gold)
        settings |= {"form": "learned", "part": part.part, "threshold-from": train.part}
        texts = [*train.signed, *part.signed]
    else:
        threshold = best_threshold(mined, part.gold)
        settings |= {"form": "oracle", "part": part.part}
        texts = [*part.signed]
    selected = mined.above(threshold)
    outcomes = f1_outcomes(selected, part.gold, len(part.source))
    if not train:
        outcomes = {f"oracle {name}": parts for name, parts in outcomes.items()}
    values = {name: parts.value for name, parts in outcomes.items()}
    if train:
        train_outcomes = f1_outcomes(mined_train.above(threshold), train.gold, len(train.source))
        values["train F1"] = train_outcomes["F1"].value
    values["threshold"] = threshold
    settings |= text_and_model(encoder.fingerprint, *texts)
    curve = threshold_curve(mined, part.gold)
    return Score("bucc", part.task, values, settings, outcomes, curve=curve), selected


def score_as_mteb(part: MiningSet, encoder: Encoder, form: str = "mteb-v2") -> Score:
    """Score the retrieval of the gold translations, as mteb does on the training split.

    Args:
        part: the split to evaluate.
        encoder: encoder of the sentences.
        form: `mteb-v2` searches among the target sentences of the gold pairs, `mteb-v1` among
            all target sentences.

    Returns:
        A score with weighted F1, accuracy, and weighted precision and recall; see
        `mteb_bitext.weighted_scores`.
    """
    # Sets are unordered; the pairs are sorted so that the outcomes of two systems can be compared.
    source_rows, target_rows = zip(*sorted(part.gold), strict=True)
    if form == "mteb-v1":
        candidates = part.target
        gold = np.array(target_rows)
    else:
        candidates = rows_of(part.target, target_rows)
        gold = np.arange(len(target_rows))
    queries = rows_of(part.source, source_rows)
    nearest = rank(embed(encoder, queries), embed(encoder, candidates), 1, "nn")[:, 0]
    outcomes = {}
    for name, parts in weighted_scores(gold, nearest).items():
        outcomes[name if name == "accuracy" else f"weighted {name}"] = parts
    settings = {
        "metric": "nn-cosine",
        "norm": "l2",
        "sentences": f"{len(gold)}x{len(candidates)}",
        "gold": len(gold),
        "form": form,
        "part": part.part,
    }
    settings |= text_and_model(encoder.fingerprint, *part.signed)
    return from_hits("bucc", part.task, outcomes, settings)


@dataclass(frozen=True, kw_only=True)
class Bucc(BuccMining, Protocol):
    """The BUCC protocol, in any of its forms."""

    data: str = option(
        "files named TEMPLATE.PART.LANG, for example bucc2018/{pair}/{pair}",
        allowed=FILE_NAME,
        metavar="TEMPLATE",
    )
    lang_pairs: str = option("language pairs, for example fr-en,de-en", metavar="PAIRS")
    form: str = option(
        "learned: apply the threshold of --learn-part to --part, as in the shared task; oracle: "
        "select the threshold on --part itself, an upper bound; mteb-v2, mteb-v1: weighted F1 of "
        "nearest-neighbour retrieval without a threshold, as in mteb's BUCC.v2 and BUCC "
        "(default: learned)",
        "learned",
        BUCC_FORMS,
    )
    part: str | None = option(
        "split to evaluate (default: test; training if no threshold is learned)", None, BUCC_PARTS
    )
    learn_part: str | None = option(
        "split on which --form learned selects the threshold (default: training)", None, BUCC_PARTS
    )
    pairs_output: str | None = option(
        "write the mined pairs of one language pair to a file", None, FILE_NAME, metavar="FILE.tsv"
    )

    def prepare(self) -> Plan:
        pairs = ["-".join(pair) for pair in parse_lang_pairs(self.lang_pairs)]
        if self.pairs_output and len(pairs) > 1:
            raise InputError(f"--pairs-output supports only one language pair, got {len(pairs)}")
        parts = self.parts()

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for pair in pairs:
                yield [self.score([read_set(self.data, pair, part) for part in parts], encoder)]

        texts: list[Path] = []
        for pair in pairs:
            for part in parts:
                texts += find_files(self.data, pair, part)
        return Plan(measure, texts, [self.pairs_output] if self.pairs_output else [])

    def parts(self) -> tuple[str, ...]:
        """Return the names of the splits that the form uses. The last one is evaluated.

        Returns:
            The names, such as `training` and `test`.

        Raises:
            InputError: if an option does not apply to the form.
        """
        if self.form.startswith("mteb"):
            self._refuse_mining_options()
        if self.form == "learned":
            return self._learned_parts()
        if self.learn_part:
            raise InputError(
                f"--form {self.form} does not support --learn-part; use --form learned"
            )
        return (self.part or "training",)

    def _refuse_mining_options(self) -> None:
        for name in ("k", "margin", "retrieval", "unify", "pairs_output"):
            if getattr(self, name):
                raise InputError(
                    f"--form {self.form} does not support --{name.replace('_', '-')}; "
                    "use --form learned or oracle"
                )

    def _learned_parts(self) -> tuple[str, str]:
        learn_part = self.learn_part or "training"
        part = self.part or "test"
        if learn_part == part:
            raise InputError(
                f"--learn-part and --part are both {part}; use different splits, or --form oracle"
            )
        return learn_part, part

    def score(self, sets: Sequence[MiningSet], encoder: Encoder) -> Score:
        """Score the last split of one language pair, and write its mined pairs if requested.

        Args:
            sets: the splits of the pair, in the order of `parts`.
            encoder: encoder to score.

        Returns:
            The score of the last split.
        """
        *train, part = sets
        if self.form.startswith("mteb"):
            return score_as_mteb(part, encoder, self.form)
        score, mined = score_mined(part, encoder, self, *train)
        if self.pairs_output:
            write_pairs(self.pairs_output, part, mined)
        return score


def write_pairs(path: str, part: MiningSet, mined: MinedPairs) -> None:
    """Write the score and the two identifiers of each mined pair, best pairs first.

    Args:
        path: file to write.
        part: the split.
        mined: mined pairs in descending order of score.
    """
    scores = mined.scores.tolist()
    source_ids = [part.source_ids[row] for row in mined.source.tolist()]
    target_ids = [part.target_ids[row] for row in mined.target.tolist()]
    with atomic_write(path) as stream:
        for score, source_id, target_id in zip(scores, source_ids, target_ids, strict=True):
            stream.write(f"{score:.6f}\t{source_id}\t{target_id}\n")
