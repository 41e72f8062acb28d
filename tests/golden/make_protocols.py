"""Golden values of protocols by the code of others: `python make_protocols.py LASER-checkout >
protocols.json`.

LASER's `source/xsim.py` and `tasks/bucc/bucc.py`, and mteb's classes, run on small vectors; only
values are kept.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PAIRS, CHANGED, WIDTH = 60, 90, 6
TYPES = ("Causality", "Entity", "Number")


def vectors(generator: np.random.Generator, base: np.ndarray, noise: float) -> np.ndarray:
    return (base + noise * generator.standard_normal(base.shape)).round(3).astype(np.float32)


def made_up() -> dict:
    """Sentences with their vectors: noisy translations, changed ones near theirs, and repeated
    target sentences.
    """
    generator = np.random.default_rng(7)
    source = vectors(generator, np.zeros((PAIRS, WIDTH)), 1)
    target = vectors(generator, source, 0.5)
    origin = generator.integers(0, PAIRS, CHANGED)
    changed = vectors(generator, target[origin], 0.2)
    lines = [f"target {row}" for row in range(PAIRS)]
    for copy, of in ((11, 10), (31, 30)):  # the same sentence has the same vector
        lines[copy], target[copy] = lines[of], target[of]
    errors = {
        f"changed {row}": {"errtype": TYPES[row % 3], "src": lines[of]}
        for row, of in enumerate(origin)
    }
    ratings = np.round(
        5 * np.clip(np.linspace(0, 1, PAIRS) + 0.3 * generator.standard_normal(PAIRS), 0, 1), 1
    )
    other = vectors(generator, np.where(ratings[:, None] > 2.5, source, -source), 0.8)
    other[:4] = source[:4]  # cosines that are tied
    data = {
        "source": source,
        "target": target,
        "changed": changed,
        "ratings": ratings,
        "other": other,
    }
    return {name: rows.tolist() for name, rows in data.items()} | {"lines": lines, "errors": errors}


def xsim_plus_plus(laser: Path, data: dict) -> dict:
    sys.path.insert(0, str(laser / "source"))
    from xsim import xSIM

    with tempfile.TemporaryDirectory() as folder:
        text, errors = Path(folder, "text"), Path(folder, "errors.json")
        text.write_text("".join(f"{line}\n" for line in [*data["lines"], *data["errors"]]))
        errors.write_text(json.dumps(data["errors"]))
        source, target = (np.array(data[name], np.float32) for name in ("source", "target"))
        every = np.concatenate([target, np.array(data["changed"], np.float32)])
        wrong, count, types = xSIM(source, every, eval_text=str(text), augmented_json=str(errors))
    return {"errors": wrong, "of": count, "types": types}


def bucc(laser: Path, mined: list, gold: list) -> dict:
    """What `bucc.py --gold` prints of pairs that `mine_bitexts.py` mined: the threshold is chosen
    on the same gold.
    """
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for language in ("a", "b"):
            (at / f"text.{language}").write_text(
                "".join(f"{language} {row}\n" for row in range(40))
            )
            (at / f"id.{language}").write_text("".join(f"{language}-{row}\n" for row in range(40)))
        (at / "mined").write_text("".join(f"{score!r}\ta {i}\tb {j}\n" for score, i, j in mined))
        (at / "gold").write_text("".join(f"a-{i}\tb-{j}\n" for i, j in gold))
        options = {
            "src-lang": "a",
            "trg-lang": "b",
            "bucc-texts": at / "text",
            "bucc-ids": at / "id",
        }
        options |= {"candidates": at / "mined", "gold": at / "gold"}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        script = laser / "tasks" / "bucc" / "bucc.py"
        printed = subprocess.run(
            [sys.executable, script, *words], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"threshold=(.+): precision=(.+), recall=(.+), F1=(.+)", printed)
    return dict(
        zip(("threshold", "precision", "recall", "F1"), map(float, found.groups()), strict=True)
    )


class Cosine:
    """What mteb asks of a model."""

    @staticmethod
    def similarity(a, b):
        from mteb.similarity_functions import cos_sim

        return cos_sim(a, b)


def mteb_bitext(queries: np.ndarray, candidates: np.ndarray, gold: list) -> dict:
    import torch
    from mteb._evaluators import BitextMiningEvaluator
    from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining

    sides = torch.from_numpy(queries), torch.from_numpy(candidates)
    found = BitextMiningEvaluator._similarity_search(None, *sides, Cosine)
    return dict(AbsTaskBitextMining._compute_metrics(None, found, gold))


def mteb_sts(first: np.ndarray, second: np.ndarray, ratings: list) -> dict:
    from mteb.abstasks.sts import AbsTaskSTS
    from sklearn.metrics.pairwise import paired_cosine_distances

    scores = (1 - paired_cosine_distances(first, second)).tolist()
    every = dict.fromkeys(
        ("cosine_scores", "manhattan_distances", "euclidean_distances", "similarity_scores"), scores
    )
    found = AbsTaskSTS._calculate_scores(None, every, ratings)
    return {name: found[name] for name in ("cosine_spearman", "cosine_pearson")}


def main() -> None:
    laser = Path(sys.argv[1])
    data = made_up()
    source, target, other = (
        np.array(data[name], np.float32) for name in ("source", "target", "other")
    )
    margin = json.loads((HERE / "margin.json").read_text())
    mined = sorted(margin["mined"]["max"], reverse=True)
    # two that are not mined
    gold = [mined[rank][1:] for rank in (0, 1, 2, 4, 5, 8, 9, 13)] + [[0, 39], [39, 0]]
    # two sources with one target
    pairs = sorted([[row, row] for row in range(1, 60, 3)] + [[2, 4]])
    queries = source[[row for row, _ in pairs]]
    data["gold"], data["pairs"] = gold, pairs
    data["values"] = {
        "xsim++": xsim_plus_plus(laser, data),
        "bucc": bucc(laser, mined, gold),
        "mteb-bitext": mteb_bitext(source, target, [(row, row) for row in range(PAIRS)]),
        "mteb BUCC": mteb_bitext(queries, target, pairs),
        "mteb BUCC.v2": mteb_bitext(
            queries, target[[row for _, row in pairs]], [(row,) * 2 for row in range(len(pairs))]
        ),
        "sts": mteb_sts(source, other, data["ratings"]),
    }
    data["versions"] = {
        name: importlib.metadata.version(name)
        for name in ("mteb", "scikit-learn", "scipy", "faiss-cpu")
    }
    print(json.dumps(data))


if __name__ == "__main__":
    main()
