"""Learning without parallel text on real documents: the value of each step, by the size of draws.

python -m benchmarks.quality.context --data DIR --work FOLDER \
    --output benchmarks/quality/results/context.jsonl

DIR has docs/novels.LANG.txt.gz, eval/pud.LANG.txt.gz, eval/xquad-questions.LANG.txt.gz and
classification/SET/LANG.PART.tsv.gz. English is paired with each other language; the first stage is
trained once and copied for every size of the draws. Each step gives one line of results: P@1 in
percent in both directions, what the mining found, seconds, and for some steps the accuracy of a
classifier that is trained on English. Steps that are already in the file are skipped.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.quality.sets import CLASSIFICATION, classification, retrieval_with_english
from benchmarks.script import add_result, command_line, read_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.context.rounds import REPORT, ContextConfig, Rounds
from fairseq_lxsr.options import PAIR_LANGUAGES
from fairseq_lxsr.preparation.documents import prepare_documents

# The fields that identify a line of results.
KEY = ("arch", "language", "candidates", "pair_languages", "draw", "step")
# Values of lines without these fields.
DEFAULTS = {"candidates": 0, "pair_languages": "different"}
# The size of the draws in the first stage, which draws nothing.
NO_DRAW = 0
UNTRAINED = "untrained"
STAGE1 = "stage1"
RETRIEVAL_SETS = ("pud", "xquad-questions")
REPORTED = ("pairs", "mean CSLS", "mean cosine", "seconds")


def measured(work: Path, step: str, data: Path, language: str, classify: bool) -> dict:
    """Evaluate the model of a step, and return the scores and the report of its mining.

    Args:
        work: folder of the rounds.
        step: the step.
        data: folder of the evaluation text.
        language: the language other than English.
        classify: whether to train classifiers.
    """
    model = work / (STAGE1 if step == UNTRAINED else step) / "model"
    encoder = SentenceEncoder.from_pretrained(model, untrained=step == UNTRAINED)
    result: dict = {}
    for name in RETRIEVAL_SETS:
        if (data / "eval" / f"{name}.{language}.txt.gz").is_file():
            result[name] = retrieval_with_english(encoder, data, (language,), name)
    if classify:
        for name in CLASSIFICATION:
            folder = data / "classification" / name
            if (folder / f"{language}.test.tsv.gz").is_file():
                result[name] = classification(encoder.encode, folder, ("en", language))
    return result | mining_report(work / REPORT, step)


def mining_report(path: Path, step: str) -> dict[str, float]:
    """Return the mining report of a step, or {} if the step does not mine."""
    report: dict[str, float] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            values = json.loads(line)
            if values["round"] == step:
                report = {name: values[name] for name in REPORTED}
    return report


class Results:
    """The lines of a results file, to which lines are added one by one."""

    def __init__(self, file: Path):
        self.file = file
        self.lines = read_results(file)

    def __contains__(self, key: tuple) -> bool:
        return key in {tuple((DEFAULTS | line)[name] for name in KEY) for line in self.lines}

    def add(self, key: tuple, result: dict) -> None:
        """Print a line of results, and add it to the file."""
        line = dict(zip(KEY, key, strict=True)) | result | {"machine": machine()}
        self.lines.append(line)
        print(*key, {name: round(value, 1) for name, value in line["pud"].items()}, flush=True)
        add_result(self.file, line)


class Study:
    """The first stage of a language and, from it, the rounds of every size of the draws.

    Args:
        language: the language other than English.
        args: options of the command line.
        results: the results file.
    """

    def __init__(self, language: str, args: argparse.Namespace, results: Results):
        self.language = language
        self.args = args
        self.results = results
        self.mining = {name: getattr(args, name) for name in DEFAULTS}
        novels = {
            name: str(args.data / "docs" / f"novels.{name}.txt.gz") for name in ("en", language)
        }
        self.config = ContextConfig(
            documents=novels,
            work=str(args.work / f"{args.arch}.en-{language}" / STAGE1),
            arch=args.arch,
            vocab_size=8_000,
            epochs=args.epochs,
            rounds=0,
            pairs=args.pairs,
            batch_size=args.batch_size,
            learning_rate=args.learning_rate,
        )

    def run(self) -> None:
        """Train and evaluate the first stage and all rounds."""
        text = prepare_documents(**self.config.text_options)
        first_stage = Path(self.config.work)
        Rounds(self.config, lambda: text).run()
        if self.mining == DEFAULTS:
            self.measure(first_stage, NO_DRAW, (UNTRAINED, STAGE1), (UNTRAINED, STAGE1))
        steps = [f"round{number}" for number in range(1, self.args.rounds + 1)]
        for draw in self.args.draws:
            name = f"draw-{draw}"
            if self.mining != DEFAULTS:
                name += f"-{self.mining['candidates']}-{self.mining['pair_languages']}"
            work = first_stage.with_name(name)
            if not work.exists():
                shutil.copytree(first_stage, work)
            config = replace(
                self.config, work=str(work), draw=draw, rounds=self.args.rounds, **self.mining
            )
            Rounds(config, lambda: text).run()
            classified = steps[-1:] if draw == max(self.args.draws) else []
            self.measure(work, draw, steps, classified)

    def measure(
        self, work: Path, draw: int, steps: Sequence[str], classified: Sequence[str]
    ) -> None:
        """Evaluate the steps that are not in the results, some of them with classification."""
        for step in steps:
            key = (self.args.arch, self.language, *self.mining.values(), draw, step)
            if key not in self.results:
                data = self.args.data
                result = measured(work, step, data, self.language, step in classified)
                self.results.add(key, result)


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of text and models"
    )
    parser.add_argument(
        "--languages",
        nargs="+",
        default=["fr", "de", "es", "zh"],
        help="languages next to English (default: fr de es zh)",
    )
    parser.add_argument(
        "--draws",
        nargs="+",
        type=int,
        default=[10_000, 1_000, 100, 1],
        help="sizes m of the draws (default: 10000 1000 100 1)",
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=0,
        help="number of candidates of each sentence, see lxsr train-context (default: 0)",
    )
    parser.add_argument(
        "--pair-languages",
        default="different",
        choices=PAIR_LANGUAGES,
        help="languages of the two sentences of a pair (default: different)",
    )
    parser.add_argument(
        "--arch",
        default="context_transformer_static",
        help="architecture (default: context_transformer_static)",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, help="epochs of the first stage (default: 5)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument(
        "--pairs", type=int, default=4_000, help="mined pairs of a round (default: 4000)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="batch size (default: 32)")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="learning rate (default: 0.001)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    results = Results(args.output)
    for language in args.languages:
        Study(language, args, results).run()


if __name__ == "__main__":
    main()
