"""BUCC: mining translations from two monolingual sets (Zweigenbaum et al. 2017), in the forms that the field reports.

- `learned`: the threshold of largest F1 on one part is applied to another, as in the shared task and by Artetxe and
  Schwenk (2019a): training to test. XTREME's scripts take sample to training.
- `oracle`: the threshold is chosen on the gold of the part that is measured, as in the table of LASER's tasks/bucc, in
  sentence-transformers' bucc2018.py and where the gold of the test part is not at hand: an upper bound of `learned`.
- `mteb-v2` and `mteb-v1`: no threshold and no mining: the source sentences of the gold pairs search their translation,
  among the other targets of the gold (mteb's task BUCC.v2) or among all target sentences (its task BUCC).

The values have other names in each form, and the signature says which it is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import mteb_bitext
from fairseq_lxsr.evaluation.score import LIMIT, Outcomes, Score, as_units, from_hits, text_hash
from fairseq_lxsr.evaluation.text import find_file, rows_of
from fairseq_lxsr.languages import split_pair
from fairseq_lxsr.lines import read_lines
from fairseq_lxsr.retrieval import MinedPairs, mine

Gold = set[tuple[int, int]]  # pairs of a source row and a target row
CURVE_POINTS = 200
LARGEST = LIMIT / 2  # stands for a score of infinity, which no file of scores holds


@dataclass(frozen=True)
class MiningSet:
    """Two sets of sentences, their identifiers, and the gold pairs."""

    source: Text
    target: Text
    source_ids: list[str]
    target_ids: list[str]
    gold: Gold
    part: str = ""


def find_files(template: str, pair: str, part: str) -> tuple[Path, Path, Path]:
    """Find the source, target and gold files of a part.

    Raises:
        InputError: naming the file that is missing.
    """
    source, target = (find_file(f"{template}.{part}.{{lang}}", language, pair) for language in split_pair(pair))
    return source, target, find_file(f"{template}.{part}.gold", pair=pair)


def read_set(template: str, pair: str, part: str) -> MiningSet:
    """Read TEMPLATE.PART.LANG (`id<TAB>sentence`) and TEMPLATE.PART.gold (`id<TAB>id`), the files of BUCC.

    Args:
        template: prefix of the files, for example bucc2018/{pair}/{pair}; {pair} is replaced by the pair.
        pair: language pair, SRC-TGT.
        part: `sample`, `training` or `test`.

    Raises:
        InputError: naming the line and the identifier that do not fit.
    """
    *texts, gold = find_files(template, pair, part)
    sides = []
    for language, path in zip(split_pair(pair), texts, strict=True):
        rows = [_two_columns(line, f"{path}, line {n}") for n, line in enumerate(read_lines(path), start=1)]
        if not rows:
            raise InputError(f"{path}: empty file; expected id<TAB>sentence on every line")
        ids, lines = zip(*rows, strict=True)
        if len(set(ids)) != len(ids):
            raise InputError(f"{path}: an identifier stands there twice; expected each once")
        sides.append((Text(lines, language, str(path)), list(ids)))
    (source, source_ids), (target, target_ids) = sides
    return MiningSet(source, target, source_ids, target_ids, _read_gold(gold, source_ids, target_ids), part)


def _two_columns(line: str, where: str) -> tuple[str, str]:
    left, tab, right = line.partition("\t")
    if not tab or not left or not right.strip():
        raise InputError(f"{where}: {line!r:.60}; expected two columns with a tab between them")
    return left, right


def _read_gold(path: Path, source_ids: list[str], target_ids: list[str]) -> Gold:
    source_rows = {name: row for row, name in enumerate(source_ids)}
    target_rows = {name: row for row, name in enumerate(target_ids)}
    gold = set()
    for number, line in enumerate(read_lines(path), start=1):
        left, right = _two_columns(line, f"{path}, line {number}")
        if left not in source_rows or right not in target_rows:
            missing = left if left not in source_rows else right
            raise InputError(
                f"{path}, line {number}: {missing!r} is not in the text; check that the files belong together"
            )
        gold.add((source_rows[left], target_rows[right]))
    if not gold:
        raise InputError(f"{path}: empty file; expected the pairs to be found")
    return gold


def correct(mined: MinedPairs, gold: Gold) -> np.ndarray:
    """Return whether each mined pair is a gold pair, bool [P]."""
    return np.array(
        [pair in gold for pair in zip(mined.source.tolist(), mined.target.tolist(), strict=True)], dtype=bool
    )


def best_threshold(mined: MinedPairs, gold: Gold) -> float:
    """Find the finite threshold of largest F1, half-way between the last pair to keep and the next one.

    Pairs of equal score are kept or dropped together, those of minus infinity are dropped.

    Raises:
        InputError: where there is no other pair.
    """
    mined = mined.above(-LARGEST)
    if not len(mined):
        raise InputError("no pair was mined, so no threshold can be learnt; give more text")
    found = correct(mined, gold).cumsum()
    kept = np.arange(1, len(mined) + 1)
    f1 = 2 * found / (kept + len(gold))
    following = np.append(mined.scores[1:], -np.inf)
    f1[mined.scores == following] = -1
    best = int(f1.argmax())
    last = min(float(mined.scores[best]), LARGEST)
    return (last + float(following[best])) / 2 if np.isfinite(following[best]) else last


def threshold_curve(mined: MinedPairs, gold: Gold) -> dict[str, list[float]]:
    """Compute precision and recall, in percent, of the pairs at or above each of up to 200 thresholds."""
    last = np.append(mined.scores[1:] != mined.scores[:-1], True)[: len(mined)]  # of the pairs of equal score
    ranks = np.flatnonzero(last & np.isfinite(mined.scores))
    ends = ranks[np.unique(np.linspace(0, len(ranks) - 1, CURVE_POINTS).round().astype(int))] if len(ranks) else ranks
    found = correct(mined, gold).cumsum()[ends]
    return {
        "threshold": [round(value, 6) for value in mined.scores[ends].tolist()],
        "precision": (100 * found / (ends + 1)).round(3).tolist(),
        "recall": (100 * found / len(gold)).round(3).tolist(),
    }


def f1_outcomes(mined: MinedPairs, gold: Gold, sentences: int) -> dict[str, Outcomes]:
    """Compute precision, recall and F1 of mined pairs; the units are the `sentences` source sentences."""
    right = np.bincount(mined.source[correct(mined, gold)], minlength=sentences)
    kept = np.bincount(mined.source, minlength=sentences)
    wanted = np.bincount([row for row, _ in gold], minlength=sentences)
    return {
        "F1": Outcomes(as_units(2 * right), as_units(kept + wanted)),
        "precision": Outcomes(as_units(right), as_units(kept)),
        "recall": Outcomes(as_units(right), as_units(wanted)),
    }


def _signed(part: MiningSet) -> tuple[Sequence[str], Sequence[str], list[str]]:
    """Return the content of a part that its signature hashes: sentences and gold pairs."""
    return part.source.lines, part.target.lines, [f"{left} {right}" for left, right in sorted(part.gold)]


def unified(text: Text) -> tuple[Text, np.ndarray, np.ndarray]:
    """Find the U distinct sentences of a text, as LASER's code does (source/mine_bitexts.py, line 41).

    Returns:
        the distinct sentences in their order, their rows in the text [U], and whether they occur only once, bool [U].
    """
    counts = Counter(line.strip() for line in text.lines)
    first: dict[str, int] = {}
    for row, line in enumerate(text.lines):
        first.setdefault(line.strip(), row)
    rows = np.fromiter(first.values(), dtype=np.int64)
    once = np.array([counts[line] == 1 for line in first])
    return rows_of(text, rows), rows, once


@dataclass(frozen=True)
class Mining:
    """How a part is mined.

    Args:
        k: size of the neighbourhoods of `mine`.
        margin: margin of `mine`.
        retrieval: retrieval of `mine`.
        unify: mine each distinct sentence once, and leave out the pairs of sentences that occur more than once:
            LASER's code does not know which of their identifiers is meant (tasks/bucc/bucc.py, lines 84 to 95).
    """

    k: int = 4
    margin: str = "ratio"
    retrieval: str = "max"
    unify: bool = False

    def mine(self, part: MiningSet, encoder: Encoder, **search: Any) -> MinedPairs:
        """Mine one part.

        Args:
            part: its text.
            encoder: encoder of the sentences.
            **search (Any): options of `nearest_neighbours`.
        """
        how = self.k, self.margin, self.retrieval
        if not self.unify:
            return mine(embed(encoder, part.source), embed(encoder, part.target), *how, **search)
        (source, source_rows, source_once), (target, target_rows, target_once) = map(
            unified, (part.source, part.target)
        )
        mined = mine(embed(encoder, source), embed(encoder, target), *how, **search)
        kept = source_once[mined.source] & target_once[mined.target]
        return MinedPairs(mined.scores[kept], source_rows[mined.source[kept]], target_rows[mined.target[kept]])

    def settings(self, part: MiningSet) -> dict[str, Any]:
        """Return what the signature of a score on a part says of its mining."""
        return {
            "metric": f"margin-{self.margin}",
            "norm": "l2",
            "k": self.k,
            "retrieval": self.retrieval,
            **({"unify": "yes"} if self.unify else {}),
            "sentences": f"{len(part.source)}x{len(part.target)}",
            "gold": len(part.gold),
        }


DEFAULT = Mining()


def evaluate(
    train: MiningSet, test: MiningSet, encoder: Encoder, mining: Mining = DEFAULT, **search: Any
) -> tuple[Score, MinedPairs]:
    """Measure F1 on the test part at the threshold of largest F1 on the training part (`learned`).

    Args:
        train: text and gold of the training part.
        test: text and gold of the part that is measured.
        encoder: encoder of the sentences.
        mining: how both are mined.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        The score (F1, precision, recall, F1 of the training part, the threshold), and the mined test pairs.
    """
    mined_train, mined_test = (mining.mine(part, encoder, **search) for part in (train, test))
    threshold = best_threshold(mined_train, train.gold)
    kept = mined_test.above(threshold)
    outcomes = f1_outcomes(kept, test.gold, len(test.source))
    values = {name: out.value for name, out in outcomes.items()}
    values |= {
        "train F1": f1_outcomes(mined_train.above(threshold), train.gold, len(train.source))["F1"].value,
        "threshold": threshold,
    }
    settings = {
        **mining.settings(test),
        "form": "learned",
        "part": test.part,
        "threshold-from": train.part,
        "text": text_hash(*(lines for part in (train, test) for lines in _signed(part))),
        "model": encoder.fingerprint,
    }
    curve = threshold_curve(mined_test, test.gold)
    return Score("bucc", _task(test), values, settings, outcomes, curve=curve), kept


def evaluate_oracle(
    part: MiningSet, encoder: Encoder, mining: Mining = DEFAULT, **search: Any
) -> tuple[Score, MinedPairs]:
    """Measure the largest F1 of any threshold on a part.

    Args:
        part: text and gold of the part that is measured.
        encoder: encoder of the sentences.
        mining: how it is mined.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        The score (F1, precision, recall and the threshold, named as those of the oracle), and the mined pairs.
    """
    mined = mining.mine(part, encoder, **search)
    threshold = best_threshold(mined, part.gold)
    kept = mined.above(threshold)
    outcomes = {f"oracle {name}": out for name, out in f1_outcomes(kept, part.gold, len(part.source)).items()}
    settings = {
        **mining.settings(part),
        "form": "oracle",
        "part": part.part,
        "text": text_hash(*_signed(part)),
        "model": encoder.fingerprint,
    }
    values = {name: out.value for name, out in outcomes.items()} | {"threshold": threshold}
    curve = threshold_curve(mined, part.gold)
    return Score("bucc", _task(part), values, settings, outcomes, curve=curve), kept


def evaluate_mteb(part: MiningSet, encoder: Encoder, form: str = "mteb-v2", **search) -> Score:
    """Measure the search for the translations of the gold's source sentences, as mteb.

    Args:
        part: its text; mteb has the training part.
        encoder: encoder of the sentences.
        form: `mteb-v2` searches among the target sentences of the gold, `mteb-v1` among all.
        **search (Any): options of `nearest_neighbours`.

    Returns:
        The score (weighted F1, accuracy, weighted precision and recall, see `mteb_bitext.weighted_scores`).
    """
    source_rows, target_rows = zip(*sorted(part.gold), strict=True)
    everything = form == "mteb-v1"
    candidates = part.target if everything else rows_of(part.target, target_rows)
    gold = np.array(target_rows) if everything else np.arange(len(target_rows))
    found = mteb_bitext.find(embed(encoder, rows_of(part.source, source_rows)), embed(encoder, candidates), **search)
    scores = mteb_bitext.weighted_scores(gold, found)
    hits = {name if name == "accuracy" else f"weighted {name}": outcomes for name, outcomes in scores.items()}
    settings = {
        "metric": "nn-cosine",
        "norm": "l2",
        "sentences": f"{len(gold)}x{len(candidates)}",
        "gold": len(gold),
        "form": form,
        "part": part.part,
        "text": text_hash(*_signed(part)),
        "model": encoder.fingerprint,
    }
    return from_hits("bucc", _task(part), hits, settings)


def _task(part: MiningSet) -> str:
    return f"{part.source.language}-{part.target.language}"
