"""Scores in the metadata of a model card: one mean per task, by MTEB's names if MTEB has the task.

Hubs show them in the field `model-index`. The score of each language is in the card itself.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fairseq_lxsr.evaluation.named_sets import Dataset, datasets
from fairseq_lxsr.evaluation.score import Score

# Kind of test set, value, and its name in MTEB, by protocol.
MTEB_VALUES = {
    "mteb-bitext": ("aligned", "F1", "f1"),
    "sts": ("sts", "Spearman", "cosine_spearman"),
    "passages": ("passages", "nDCG@10", "ndcg_at_10"),
}
# Settings that separate the scores of a task.
SEPARATE = ("dataset", "metric", "rerank", "pool", "form")
DECIMALS = 2


def model_index(name: str, scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return the mean of each task in the format of model hubs.

    Args:
        name: name of the model.
        scores: scores of the model.

    Returns:
        The value of `model-index`.
    """
    groups: dict[tuple[Any, ...], list[Score]] = {}
    for score in scores:
        values = [score.settings.get(setting) for setting in SEPARATE]
        groups.setdefault((score.protocol, *values), []).append(score)
    return [{"name": name, "results": [_result(group) for group in groups.values()]}]


def _result(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the result of the scores of one task in several languages."""
    first = scores[0]
    test_set = _mteb_set(scores)
    if test_set:
        _, value, metric = MTEB_VALUES[first.protocol]
        task = {"type": test_set.mteb["type"]}
        label = f"MTEB {test_set.mteb['task']}"
        dataset = {"type": test_set.mteb["path"], "split": test_set.mteb["split"]}
    else:
        # The first value is the most important one of a protocol.
        value = metric = next(iter(first.values))
        task = {"type": "sentence-similarity", "name": first.protocol}
        settings = [first.settings.get(setting) for setting in SEPARATE]
        label = ", ".join(str(part) for part in (first.protocol, *settings) if part is not None)
        dataset = {"type": first.protocol}
    tasks = f"mean of {len(scores)}" if len(scores) > 1 else first.task
    mean = fmean(score.values[value] for score in scores)
    return {
        "task": task,
        "dataset": {**dataset, "name": f"{label} ({tasks})"},
        "metrics": [{"type": metric, "value": round(mean, DECIMALS)}],
    }


def _mteb_set(scores: Sequence[Score]) -> Dataset | None:
    """Return the test set of scores that MTEB has, too; None if there is none."""
    first = scores[0]
    if first.protocol not in MTEB_VALUES:
        return None
    kind, _, _ = MTEB_VALUES[first.protocol]
    test_set = datasets(kind).get(str(first.settings.get("dataset")))
    if test_set is None or not test_set.mteb:
        return None
    if first.protocol == "passages" and not all(map(_is_monolingual_vectors, scores)):
        return None
    return test_set


def _is_monolingual_vectors(score: Score) -> bool:
    """Return whether a score is of one vector per text, within one language, as in MTEB."""
    query_language, _, passage_language = score.task.partition("->")
    is_nearest = str(score.settings.get("metric")).startswith("nn")
    return is_nearest and query_language == passage_language
