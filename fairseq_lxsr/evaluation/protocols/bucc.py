"""BUCC: mining translations from two monolingual sets (Zweigenbaum et al. 2017), in the forms that
the field reports.

- `learned`: the threshold of largest F1 on one part is applied to another, as in the shared task
  and by Artetxe and Schwenk (2019a): training to test. XTREME's scripts take sample to training.
- `oracle`: the threshold is chosen on the gold of the part that is measured, as in the table of
  LASER's tasks/bucc, in sentence-transformers' bucc2018.py and where the gold of the test part is
  not at hand: an upper bound of `learned`.
- `mteb-v2` and `mteb-v1`: no threshold and no mining: the source sentences of the gold pairs search
  their translation, among the other targets of the gold (mteb's task BUCC.v2) or among all target
  sentences (its task BUCC).

The values have other names in each form, and the signature says which it is.
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

Gold = set[tuple[int, int]]  # pairs of a source row and a target row
CURVE_POINTS = 200
LARGEST_THRESHOLD = (
    LARGEST_NUMBER / 2
)  # stands for a score of infinity, which no file of scores holds


@dataclass(frozen=True)
class MiningSet:
    """Two sets of sentences, their identifiers, and the gold pairs."""

    source: Text
    target: Text
    source_ids: list[str]
    target_ids: list[str]
    gold: Gold
    part: str = ""

    @property
    def task(self) -> str:
        return f"{self.source.language}-{self.target.language}"

    @property
    def signed(self) -> tuple[Sequence[str], Sequence[str], list[str]]:
        """What the signature hashes: sentences and gold pairs."""
        return (
            self.source.lines,
            self.target.lines,
            [f"{left} {right}" for left, right in sorted(self.gold)],
        )


def find_files(template: str, pair: str, part: str) -> tuple[Path, Path, Path]:
    """Find the source, target and gold files of a part."""
    source, target = (
        find_file(f"{template}.{part}.{{lang}}", language, pair) for language in split_pair(pair)
    )
    return source, target, find_file(f"{template}.{part}.gold", pair=pair)


def read_set(template: str, pair: str, part: str) -> MiningSet:
    """Read TEMPLATE.PART.LANG (`id<TAB>sentence`) and TEMPLATE.PART.gold (`id<TAB>id`), the files
    of BUCC.
    """
    *texts, gold = find_files(template, pair, part)
    sides = []
    for language, path in zip(split_pair(pair), texts, strict=True):
        ids, lines = zip(*read_columns(path, "id<TAB>sentence"), strict=True)
        if len(set(ids)) != len(ids):
            raise InputError(f"{path}: an identifier is given twice; expected each once")
        sides.append((Text(lines, language, str(path)), list(ids)))
    (source, source_ids), (target, target_ids) = sides
    return MiningSet(
        source, target, source_ids, target_ids, _read_gold(gold, source_ids, target_ids), part
    )


def _read_gold(path: Path, source_ids: list[str], target_ids: list[str]) -> Gold:
    rows = [{name: row for row, name in enumerate(ids)} for ids in (source_ids, target_ids)]
    gold = set()
    for number, pair in enumerate(read_columns(path, "id<TAB>id"), start=1):
        for name, known in zip(pair, rows, strict=True):
            if name not in known:
                where = f"{path}, line {number}"
                raise InputError(
                    f"{where}: {name!r} is not in the text; check that the files belong together"
                )
        gold.add((rows[0][pair[0]], rows[1][pair[1]]))
    return gold


def correct(mined: MinedPairs, gold: Gold) -> np.ndarray:
    """Return whether each mined pair is a gold pair, bool [P]."""
    pairs = zip(mined.source.tolist(), mined.target.tolist(), strict=True)
    return np.array([pair in gold for pair in pairs], dtype=bool)


def best_threshold(mined: MinedPairs, gold: Gold) -> float:
    """Find the finite threshold of largest F1, half-way between the last pair to keep and the next
    one.

    Pairs of equal score are kept or dropped together, those of minus infinity are dropped.
    """
    mined = mined.above(-LARGEST_THRESHOLD)
    if not len(mined):
        raise InputError("no pair was mined, so no threshold can be learned; give more text")
    found = correct(mined, gold).cumsum()
    kept = np.arange(1, len(mined) + 1)
    f1 = 2 * found / (kept + len(gold))
    following = np.append(mined.scores[1:], -np.inf)
    f1[mined.scores == following] = -1
    best = int(f1.argmax())
    last = min(float(mined.scores[best]), LARGEST_THRESHOLD)
    return (last + float(following[best])) / 2 if np.isfinite(following[best]) else last


def threshold_curve(mined: MinedPairs, gold: Gold) -> dict[str, list[float]]:
    """Compute precision and recall, in percent, of the pairs at or above each of up to 200
    thresholds.
    """
    last = np.append(mined.scores[1:] != mined.scores[:-1], True)[
        : len(mined)
    ]  # of the pairs of equal score
    ranks = np.flatnonzero(last & np.isfinite(mined.scores))
    ends = (
        ranks[np.unique(np.linspace(0, len(ranks) - 1, CURVE_POINTS).round().astype(int))]
        if len(ranks)
        else ranks
    )
    found = correct(mined, gold).cumsum()[ends]
    return {
        "threshold": [round(value, 6) for value in mined.scores[ends].tolist()],
        "precision": (100 * found / (ends + 1)).round(3).tolist(),
        "recall": (100 * found / len(gold)).round(3).tolist(),
    }


def f1_outcomes(mined: MinedPairs, gold: Gold, sentences: int) -> dict[str, Outcomes]:
    """Compute precision, recall and F1 of mined pairs; the units are the `sentences` source
    sentences.
    """
    right = np.bincount(mined.source[correct(mined, gold)], minlength=sentences)
    kept = np.bincount(mined.source, minlength=sentences)
    wanted = np.bincount([row for row, _ in gold], minlength=sentences)
    return {
        "F1": Outcomes(as_units(2 * right), as_units(kept + wanted)),
        "precision": Outcomes(as_units(right), as_units(kept)),
        "recall": Outcomes(as_units(right), as_units(wanted)),
    }


def unified(text: Text) -> tuple[Text, np.ndarray, np.ndarray]:
    """Find the U distinct sentences of a text, as LASER's code does (source/mine_bitexts.py, line
    41).

    Beside them, in their order: their rows in the text [U], and whether they occur only once, bool
    [U].
    """
    counts = Counter(line.strip() for line in text.lines)
    first: dict[str, int] = {}
    for row, line in enumerate(text.lines):
        first.setdefault(line.strip(), row)
    rows = np.fromiter(first.values(), dtype=np.int64)
    once = np.array([counts[line] == 1 for line in first])
    return rows_of(text, rows), rows, once


@dataclass(frozen=True, kw_only=True)
class BuccMining:
    """How a part is mined; options are None where they are not given, because the forms of mteb
    refuse them.
    """

    k: int | None = option("size of the neighbourhoods (default: 4)", None, at_least(1))
    margin: str | None = option("default: ratio", None, MARGINS)
    retrieval: str | None = option("default: max", None, RETRIEVALS)
    # LASER's code does not know which identifier of a repeated sentence is meant
    # (tasks/bucc/bucc.py, lines 84 to 95)
    unify: bool = option(
        "mine each distinct sentence once and count no pair of a repeated one, as LASER's code",
        False,
    )

    @property
    def how(self) -> tuple[int, str, str]:
        """Neighbours, margin and retrieval of `vectors.mine`."""
        return self.k or 4, self.margin or "ratio", self.retrieval or "max"

    def mine(self, part: MiningSet, encoder: Encoder) -> MinedPairs:
        """Mine one part."""
        if not self.unify:
            return mine(
                embed(encoder, part.source),
                embed(encoder, part.target),
                *self.how,
                show_progress=True,
            )
        source, source_rows, source_once = unified(part.source)
        target, target_rows, target_once = unified(part.target)
        mined = mine(embed(encoder, source), embed(encoder, target), *self.how, show_progress=True)
        kept = source_once[mined.source] & target_once[mined.target]
        return MinedPairs(
            mined.scores[kept], source_rows[mined.source[kept]], target_rows[mined.target[kept]]
        )

    def settings(self, part: MiningSet) -> dict[str, Any]:
        """Return what the signature of a score on a part says of its mining."""
        k, margin, retrieval = self.how
        how = {"metric": f"margin-{margin}", "norm": "l2", "k": k, "retrieval": retrieval}
        sizes = {"sentences": f"{len(part.source)}x{len(part.target)}", "gold": len(part.gold)}
        return how | ({"unify": "yes"} if self.unify else {}) | sizes


DEFAULT_MINING = BuccMining()


def score_mined(
    part: MiningSet,
    encoder: Encoder,
    mining: BuccMining = DEFAULT_MINING,
    train: MiningSet | None = None,
) -> tuple[Score, MinedPairs]:
    """Measure F1 on a part at the threshold of largest F1 on a training part, or on itself where
    there is none.

    The score has F1, precision, recall, F1 of the training part and the threshold; without a
    training part they are named as those of the oracle. Beside it: the pairs at or above the
    threshold.
    """
    mined = mining.mine(part, encoder)
    mined_train = mining.mine(train, encoder) if train else mined
    threshold = best_threshold(mined_train, (train or part).gold)
    kept = mined.above(threshold)
    outcomes = f1_outcomes(kept, part.gold, len(part.source))
    settings = {
        **mining.settings(part),
        "form": "learned" if train else "oracle",
        "part": part.part,
    }
    learned = {}
    if train:
        settings["threshold-from"] = train.part
        of_train = f1_outcomes(mined_train.above(threshold), train.gold, len(train.source))
        learned["train F1"] = of_train["F1"].value
    else:
        outcomes = {f"oracle {name}": out for name, out in outcomes.items()}
    settings |= text_and_model(
        encoder.fingerprint, *(lines for one in (train, part) if one for lines in one.signed)
    )
    values = (
        {name: out.value for name, out in outcomes.items()} | learned | {"threshold": threshold}
    )
    return Score(
        "bucc", part.task, values, settings, outcomes, curve=threshold_curve(mined, part.gold)
    ), kept


def score_as_mteb(part: MiningSet, encoder: Encoder, form: str = "mteb-v2") -> Score:
    """Measure the search for the translations of the gold's source sentences, as mteb, which has
    the training part.

    `mteb-v2` searches among the target sentences of the gold, `mteb-v1` among all. The score has
    weighted F1, accuracy, weighted precision and recall, see `mteb_bitext.weighted_scores`.
    """
    source_rows, target_rows = zip(*sorted(part.gold), strict=True)
    everything = form == "mteb-v1"
    candidates = part.target if everything else rows_of(part.target, target_rows)
    gold = np.array(target_rows) if everything else np.arange(len(target_rows))
    found = rank(
        embed(encoder, rows_of(part.source, source_rows)), embed(encoder, candidates), 1, "nn"
    )[:, 0]
    scores = weighted_scores(gold, found)
    hits = {
        name if name == "accuracy" else f"weighted {name}": outcomes
        for name, outcomes in scores.items()
    }
    sizes = {"sentences": f"{len(gold)}x{len(candidates)}", "gold": len(gold)}
    settings = {"metric": "nn-cosine", "norm": "l2", **sizes, "form": form, "part": part.part}
    settings |= text_and_model(encoder.fingerprint, *part.signed)
    return from_hits("bucc", part.task, hits, settings)


@dataclass(frozen=True, kw_only=True)
class Bucc(BuccMining, Protocol):
    """Mining on the files of BUCC, in any of the forms."""

    data: str = option(
        "such as bucc2018/{pair}/{pair}: .training.fr and so on",
        allowed=FILE_NAME,
        metavar="TEMPLATE",
    )
    lang_pairs: str = option("for example fr-en,de-en", metavar="PAIRS")
    form: str = option(
        "learned: the threshold of --learn-part is applied to --part, as in the shared task; oracle: the threshold is "
        "chosen on --part itself, an upper bound; mteb-v2, mteb-v1: weighted F1 of the nearest neighbours of the "
        "gold's sentences, without a threshold, as mteb's BUCC.v2 and BUCC (default: learned)",
        "learned",
        BUCC_FORMS,
    )
    part: str | None = option(
        "that is measured (default: test; training where nothing is learned)", None, BUCC_PARTS
    )
    learn_part: str | None = option("of --form learned (default: training)", None, BUCC_PARTS)
    pairs_output: str | None = option(
        "write the mined pairs of one language pair", None, FILE_NAME, metavar="FILE.tsv"
    )

    def prepare(self) -> Plan:
        pairs = ["-".join(pair) for pair in parse_lang_pairs(self.lang_pairs)]
        if self.pairs_output and len(pairs) > 1:
            raise InputError(f"--pairs-output with {len(pairs)} language pairs; expected one")
        parts = self.parts()

        def measure(encoder: Encoder) -> Iterator[list[Score]]:
            for pair in pairs:
                yield [self.score([read_set(self.data, pair, part) for part in parts], encoder)]

        texts = [
            path for pair in pairs for part in parts for path in find_files(self.data, pair, part)
        ]
        return Plan(measure, texts, [self.pairs_output] if self.pairs_output else [])

    def parts(self) -> tuple[str, ...]:
        """Return the parts that the form reads; the last is measured."""
        if self.form.startswith("mteb"):
            for name in ("k", "margin", "retrieval", "unify", "pairs_output"):
                if getattr(self, name):
                    raise InputError(
                        f"--{name.replace('_', '-')} with --form {self.form}, which mines nothing"
                    )
        if self.form != "learned":
            if self.learn_part:
                raise InputError(
                    f"--learn-part with --form {self.form}, which learns nothing; expected --form learned"
                )
            return (self.part or "training",)
        parts = (self.learn_part or "training", self.part or "test")
        if parts[0] == parts[1]:
            raise InputError(
                f"--learn-part and --part are both {parts[0]}; expected two, or --form oracle"
            )
        return parts

    def score(self, sets: Sequence[MiningSet], encoder: Encoder) -> Score:
        """Measure the last part of one language pair; mined pairs are written best first."""
        *train, part = sets
        if self.form.startswith("mteb"):
            return score_as_mteb(part, encoder, self.form)
        score, mined = score_mined(part, encoder, self, *train)
        if self.pairs_output:
            pairs = zip(
                mined.scores.tolist(), mined.source.tolist(), mined.target.tolist(), strict=True
            )
            with atomic_write(self.pairs_output) as stream:
                stream.writelines(
                    f"{s:.6f}\t{part.source_ids[i]}\t{part.target_ids[j]}\n" for s, i, j in pairs
                )
        return score
