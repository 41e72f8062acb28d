"""Embeddings without parallel text on real documents: what every step is worth, by the size of the
draws.

python -m benchmarks.quality.context --data DIR --work FOLDER --output
benchmarks/quality/results/context.jsonl
    --plot docs/context.svg

DIR has docs/novels.LANG.txt.gz, eval/pud.LANG.txt.gz, eval/xquad-questions.LANG.txt.gz and
classification/SET/LANG.PART.tsv.gz. English with each other language; the first stage is trained
once and copied for every size of the draws. One line of results a step: P@1 in percent both ways,
what the mining found, seconds; with some, accuracy of a classifier trained on English. Steps that
are in the file already are left out.
"""

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.sets import CLASSIFICATION, classification, retrieval_with_english
from benchmarks.script import add_result, command_line, read_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.context.rounds import REPORT, ContextConfig, Rounds
from fairseq_lxsr.preparation.documents import prepare_documents

KEY = ("arch", "language", "draw", "step")
STAGE = 0  # where there are no draws yet
UNTRAINED, STAGE1 = "untrained", "stage1"


def measured(work: Path, step: str, data: Path, language: str, classify: bool) -> dict:
    """Retrieval and classification with the model of a step, and what was reported of its
    mining.
    """
    model = work / (STAGE1 if step == UNTRAINED else step) / "model"
    encoder = SentenceEncoder.from_pretrained(model, untrained=step == UNTRAINED)
    result: dict = {
        name: retrieval_with_english(encoder, data, (language,), name)
        for name in ("pud", "xquad-questions")
        if (data / "eval" / f"{name}.{language}.txt.gz").is_file()
    }
    for name in CLASSIFICATION if classify else ():
        if (data / "classification" / name / f"{language}.test.tsv.gz").is_file():
            result[name] = classification(
                encoder.encode, data / "classification" / name, ("en", language)
            )
    reports = (work / REPORT).read_text().splitlines() if (work / REPORT).exists() else []
    for report in map(json.loads, reports):
        if report["round"] == step:
            result |= {
                name: report[name] for name in ("pairs", "mean CSLS", "mean cosine", "seconds")
            }
    return result


class Results:
    """Lines of a file, one a step, added as they come."""

    def __init__(self, file: Path):
        self.file = file
        self.lines = read_results(file)

    def __contains__(self, key: tuple) -> bool:
        return key in {tuple(line[name] for name in KEY) for line in self.lines}

    def add(self, key: tuple, result: dict) -> None:
        self.lines.append(dict(zip(KEY, key, strict=True)) | result | {"machine": machine()})
        print(
            *key,
            {name: round(value, 1) for name, value in self.lines[-1]["pud"].items()},
            flush=True,
        )
        add_result(self.file, self.lines[-1])


def mean_pud(result: dict) -> float:
    return float(np.mean(list(result["pud"].values())))


def plot(results: list[dict], file: Path) -> None:
    """P@1 by step, and by the size of the draws; a line a language."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    last: defaultdict[tuple[str, str], dict[int, list[float]]] = defaultdict(dict)
    largest = max(result["draw"] for result in results)
    for result in results:
        if result["draw"] in (STAGE, largest):
            steps[result["arch"], result["language"]][result["step"]] = mean_pud(result)
        if result["draw"] != STAGE:
            last[result["arch"], result["language"]].setdefault(result["draw"], []).append(
                mean_pud(result)
            )
    # legible where a page is 360 px wide
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(4.8, 7.6), layout="constrained")
    for (arch, language), values in steps.items():
        name = f"en-{language}, {arch.removeprefix('context_transformer_')}"
        upper.plot(list(values), list(values.values()), marker="o", label=name)
        draws = sorted(last[arch, language])
        if len(draws) > 1:
            before = steps[arch, language][STAGE1]
            lower.plot(
                draws,
                [last[arch, language][draw][-1] - before for draw in draws],
                marker="o",
                label=name,
            )
    upper.set(
        title=f"After each step, m = {largest:,}",
        ylabel="P@1 on PUD, mean of both ways, %",
        ylim=(0, None),
    )
    lower.set(
        title="What the rounds add to stage 1",
        xscale="log",
        xlabel="m, sentences of a draw",
        ylabel="points",
    )
    lower.axhline(0, color="grey", linewidth=0.8)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center")
    figure.savefig(file, metadata={"Date": None})


def study(language: str, args: argparse.Namespace, results: Results) -> None:
    """The first stage and, from it, the rounds of every size of the draws."""
    base = ContextConfig(
        documents={
            name: str(args.data / "docs" / f"novels.{name}.txt.gz") for name in ("en", language)
        },
        work=str(args.work / f"{args.arch}.en-{language}" / STAGE1),
        arch=args.arch,
        vocab_size=8_000,
        epochs=args.epochs,
        rounds=0,
        pairs=args.pairs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
    )
    text = prepare_documents(**base.text_options)
    Rounds(base, lambda: text).run()
    keep(results, args, Path(base.work), language, STAGE, (UNTRAINED, STAGE1), classify=True)
    for draw in args.draws:
        work = Path(base.work).with_name(f"draw-{draw}")
        if not work.exists():
            shutil.copytree(base.work, work)
        config = replace(base, work=str(work), draw=draw, rounds=args.rounds)
        Rounds(config, lambda: text).run()
        steps = [f"round{number}" for number in range(1, args.rounds + 1)]
        keep(results, args, work, language, draw, steps, classify=draw == max(args.draws))


def keep(
    results: Results,
    args,
    work: Path,
    language: str,
    draw: int,
    steps: Sequence[str],
    classify: bool,
) -> None:
    """Measure the steps that are not in the results; classification only with the last of them."""
    for step in steps:
        key = (args.arch, language, draw, step)
        if key not in results:
            results.add(
                key,
                measured(
                    work, step, args.data, language, classify and step in (UNTRAINED, steps[-1])
                ),
            )


def main() -> None:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw all that is in the file of results"
    )
    parser.add_argument(
        "--languages", nargs="+", default=["fr", "de", "es", "zh"], help="default: fr de es zh"
    )
    parser.add_argument(
        "--draws",
        nargs="+",
        type=int,
        default=[10_000, 1_000, 100, 1],
        help="m (default: 10000 to 1)",
    )
    parser.add_argument(
        "--arch", default="context_transformer_static", help="default: context_transformer_static"
    )
    parser.add_argument("--epochs", type=int, default=5, help="of the first stage (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--pairs", type=int, default=4_000, help="of a round (default: 4000)")
    parser.add_argument("--batch-size", type=int, default=32, help="default: 32")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    args = parser.parse_args()
    results = Results(args.output)
    for language in args.languages:
        study(language, args, results)
        if args.plot:
            plot(results.lines, args.plot)


if __name__ == "__main__":
    main()
