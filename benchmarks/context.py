"""Embeddings without parallel text on real documents: what every step is worth, by the size of the draws.

python benchmarks/context.py --data DIR --work FOLDER --output benchmarks/results/context.jsonl

DIR has docs/novels.LANG.txt.gz and eval/pud.LANG.txt.gz. English with each other language; the first stage is trained
once and copied for every size of the draws. One line of results a step: P@1 among the 1,000 sentences of PUD both ways
(chance: 0.1 %), what the mining found, seconds. Steps that are in the file already are left out.
"""

import argparse
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from laser_family import retrieval
from machine import machine

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.train_context import prepare
from fairseq_lxsr.context.config import ContextConfig
from fairseq_lxsr.context.rounds import REPORT, Rounds

KEY = ("language", "draw", "step")


def measured(work: Path, step: str, data: Path, language: str) -> dict:
    """Retrieval with the model of a step, and what was reported of its mining."""
    result: dict = {"PUD P@1": retrieval(SentenceEncoder.from_pretrained(work / step / "model"), data, (language,))}
    reports = (work / REPORT).read_text().splitlines() if (work / REPORT).exists() else []
    for report in map(json.loads, reports):
        if report["round"] == step:
            result |= {name: report[name] for name in ("mean CSLS", "mean cosine", "seconds")}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl", help="results are added to it")
    parser.add_argument("--languages", nargs="+", default=["fr", "de", "es", "zh"], help="default: fr de es zh")
    parser.add_argument("--draws", nargs="+", type=int, default=[10_000, 1_000, 100, 1], help="m (default: 10000 to 1)")
    parser.add_argument("--arch", default="context_transformer_small", help="default: context_transformer_small")
    parser.add_argument("--epochs", type=int, default=2, help="of the first stage (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--pairs", type=int, default=20_000, help="of a round (default: 20000)")
    parser.add_argument("--vocab-size", type=int, default=8_000, help="default: 8000")
    args = parser.parse_args()
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    done = {tuple(result[name] for name in KEY) for result in map(json.loads, lines)}

    def record(work: Path, language: str, draw: int, step: str) -> None:
        if (language, draw, step) in done:
            return
        result = dict(zip(KEY, (language, draw, step), strict=True)) | measured(work, step, args.data, language)
        print(language, draw, step, {name: round(value, 1) for name, value in result["PUD P@1"].items()}, flush=True)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a") as output:
            output.write(json.dumps(result | {"machine": machine()}) + "\n")

    for language in args.languages:
        base = ContextConfig(
            documents={name: str(args.data / "docs" / f"novels.{name}.txt.gz") for name in ("en", language)},
            work=str(args.work / f"en-{language}" / "stage1"),
            arch=args.arch,
            vocab_size=args.vocab_size,
            epochs=args.epochs,
            rounds=0,
            pairs=args.pairs,
            learning_rate=5e-4,
        )
        start = time.perf_counter()
        prepare(base).run()
        print(f"en-{language}: first stage {time.perf_counter() - start:.0f} s", flush=True)
        record(Path(base.work), language, 0, "stage1")
        for draw in args.draws:
            work = args.work / f"en-{language}" / f"draw-{draw}"
            if not work.exists():
                shutil.copytree(base.work, work)
            config = replace(base, work=str(work), draw=draw, rounds=args.rounds)
            Rounds(config, work / "data-bin", work / "documents").run()
            for number in range(1, args.rounds + 1):
                record(work, language, draw, f"round{number}")


if __name__ == "__main__":
    main()
