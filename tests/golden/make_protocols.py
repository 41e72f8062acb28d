"""Makes protocols.json: values of protocols that the code of LASER and mteb computes.

    python make_protocols.py LASER-checkout > protocols.json

`source/xsim.py` and `tasks/bucc/bucc.py` of LASER, and classes of mteb, run on small vectors.
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
# Numbers of sentence pairs and of changed sentences, and the width of vectors.
PAIRS = 60
CHANGED = 90
WIDTH = 6
TYPES = ("Causality", "Entity", "Number")


def vectors(generator: np.random.Generator, base: np.ndarray, noise: float) -> np.ndarray:
    return (base + noise * generator.standard_normal(base.shape)).round(3).astype(np.float32)


def draw_sentences() -> dict:
    """Draw vectors of sentences: noisy translations, changed ones near them, and repeated targets."""
    generator = np.random.default_rng(7)
    source = vectors(generator, np.zeros((PAIRS, WIDTH)), 1)
    target = vectors(generator, source, 0.5)
    origin = generator.integers(0, PAIRS, CHANGED)
    changed = vectors(generator, target[origin], 0.2)
    lines = [f"target {row}" for row in range(PAIRS)]
    for copy, original in ((11, 10), (31, 30)):
        lines[copy] = lines[original]
        target[copy] = target[original]
    errors = {}
    for row, original in enumerate(origin):
        errors[f"changed {row}"] = {"errtype": TYPES[row % 3], "src": lines[original]}
    noise = 0.3 * generator.standard_normal(PAIRS)
    ratings = np.round(5 * np.clip(np.linspace(0, 1, PAIRS) + noise, 0, 1), 1)
    # The second sentences of rated pairs.
    second = vectors(generator, np.where(ratings[:, None] > 2.5, source, -source), 0.8)
    # Four pairs have the same cosine.
    second[:4] = source[:4]
    data = {
        "source": source,
        "target": target,
        "changed": changed,
        "ratings": ratings,
        "other": second,
    }
    return {name: rows.tolist() for name, rows in data.items()} | {"lines": lines, "errors": errors}


def xsim_plus_plus(laser: Path, data: dict) -> dict:
    sys.path.insert(0, str(laser / "source"))
    from xsim import xSIM

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        errors = Path(folder, "errors.json")
        text.write_text("".join(f"{line}\n" for line in [*data["lines"], *data["errors"]]))
        errors.write_text(json.dumps(data["errors"]))
        source = np.array(data["source"], np.float32)
        candidates = np.array([*data["target"], *data["changed"]], np.float32)
        wrong, count, types = xSIM(
            source, candidates, eval_text=str(text), augmented_json=str(errors)
        )
    return {"errors": wrong, "of": count, "types": types}


def bucc(laser: Path, mined: list, gold: list) -> dict:
    """Return the scores that `bucc.py --gold` prints for mined pairs.

    The threshold is chosen on the same gold.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for language in ("a", "b"):
            lines = [f"{language} {row}\n" for row in range(40)]
            ids = [f"{language}-{row}\n" for row in range(40)]
            (folder / f"text.{language}").write_text("".join(lines))
            (folder / f"id.{language}").write_text("".join(ids))
        candidates = [f"{score!r}\ta {source}\tb {target}\n" for score, source, target in mined]
        (folder / "mined").write_text("".join(candidates))
        pairs = [f"a-{source}\tb-{target}\n" for source, target in gold]
        (folder / "gold").write_text("".join(pairs))
        script = laser / "tasks" / "bucc" / "bucc.py"
        options = ["--src-lang", "a", "--trg-lang", "b"]
        options += ["--bucc-texts", folder / "text", "--bucc-ids", folder / "id"]
        options += ["--candidates", folder / "mined", "--gold", folder / "gold"]
        command = [sys.executable, script, *options]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"threshold=(.+): precision=(.+), recall=(.+), F1=(.+)", printed)
    return {
        "threshold": float(match[1]),
        "precision": float(match[2]),
        "recall": float(match[3]),
        "F1": float(match[4]),
    }


class Cosine:
    """The method of a model that mteb calls."""

    @staticmethod
    def similarity(first, second):
        from mteb.similarity_functions import cos_sim

        return cos_sim(first, second)


def mteb_bitext(queries: np.ndarray, candidates: np.ndarray, gold: list) -> dict:
    import torch
    from mteb._evaluators import BitextMiningEvaluator
    from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining

    sides = torch.from_numpy(queries), torch.from_numpy(candidates)
    neighbours = BitextMiningEvaluator._similarity_search(None, *sides, Cosine)
    return dict(AbsTaskBitextMining._compute_metrics(None, neighbours, gold))


def mteb_sts(first: np.ndarray, second: np.ndarray, ratings: list) -> dict:
    from mteb.abstasks.sts import AbsTaskSTS
    from sklearn.metrics.pairwise import paired_cosine_distances

    scores = (1 - paired_cosine_distances(first, second)).tolist()
    # mteb computes all measures, of which only that of cosines is used.
    measures = ("cosine_scores", "manhattan_distances", "euclidean_distances", "similarity_scores")
    values = AbsTaskSTS._calculate_scores(None, dict.fromkeys(measures, scores), ratings)
    return {name: values[name] for name in ("cosine_spearman", "cosine_pearson")}


def main() -> None:
    laser = Path(sys.argv[1])
    data = draw_sentences()
    source = np.array(data["source"], np.float32)
    target = np.array(data["target"], np.float32)
    second = np.array(data["other"], np.float32)
    margin = json.loads((HERE / "margin.json").read_text())
    mined = sorted(margin["mined"]["max"], reverse=True)
    gold = [mined[rank][1:] for rank in (0, 1, 2, 4, 5, 8, 9, 13)]
    # Two gold pairs are not mined.
    gold += [[0, 39], [39, 0]]
    # Two sources have the same target.
    pairs = sorted([[row, row] for row in range(1, 60, 3)] + [[2, 4]])
    queries = source[[row for row, _ in pairs]]
    data["gold"] = gold
    data["pairs"] = pairs
    data["values"] = {
        "xsim++": xsim_plus_plus(laser, data),
        "bucc": bucc(laser, mined, gold),
        "mteb-bitext": mteb_bitext(source, target, [(row, row) for row in range(PAIRS)]),
        "mteb BUCC": mteb_bitext(queries, target, pairs),
        "mteb BUCC.v2": mteb_bitext(
            queries, target[[row for _, row in pairs]], [(row,) * 2 for row in range(len(pairs))]
        ),
        "sts": mteb_sts(source, second, data["ratings"]),
    }
    data["versions"] = {
        name: importlib.metadata.version(name)
        for name in ("mteb", "scikit-learn", "scipy", "faiss-cpu")
    }
    print(json.dumps(data))


if __name__ == "__main__":
    main()
