"""What little parallel text is worth beside documents alone: a model of N pairs, and rounds that it
starts.

python -m benchmarks.quality.context_bitext --data DIR --work FOLDER \
    --output benchmarks/quality/results/context_bitext.jsonl

FOLDER is that of `context --arch context_transformer_static_mean`, whose first stage and vocabulary
are used. For each N: the lightweight model without layers is trained on N pairs for some seconds;
it mines the first round of learning from contexts (`start_model`). One line each: P@1 in percent
among the 1,000 sentences of PUD both ways.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.corpora import training_pairs
from benchmarks.machine import machine
from benchmarks.quality.context import STAGE1
from benchmarks.quality.sets import retrieval_with_english
from benchmarks.script import add_result, command_line, lxsr, run
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.context.rounds import RECORD, ContextConfig, Rounds
from fairseq_lxsr.preparation.binarise import binarise

VALID = 1000
OPTIONS = (
    *(
        "--user-dir",
        "fairseq_lxsr",
        "--task",
        "xling_sent",
        "--criterion",
        "xling_sent_loss",
        "--arch",
        "lxsr_small",
    ),
    *("--encoder-layers", "0", "--objective", "none", "--sim-weight", "0"),
    *(
        "--align-similarity",
        "cosine",
        "--align-temperature",
        "0.05",
        "--batch-size",
        "128",
        "--optimizer",
        "adam",
    ),
    *(
        "--lr",
        "0.003",
        "--lr-scheduler",
        "inverse_sqrt",
        "--warmup-updates",
        "100",
        "--cpu",
        "--cpu-precision",
        "auto",
    ),
    *("--num-workers", "0", "--no-epoch-checkpoints", "--log-format", "simple"),
)


def lightweight(
    data: Path, pair: str, count: int, subwords: Path, work: Path, seconds: float
) -> Path:
    """Returns: the model folder after so many seconds on `count` pairs drawn from the training
    text.
    """
    pairs = list(training_pairs(data, pair))
    order = np.random.default_rng(0).permutation(len(pairs))
    parts = {"train": order[:count], "valid": order[-VALID:], "test": order[-VALID - 1 : -VALID]}
    (work / "corpus").mkdir(parents=True)
    for split, rows in parts.items():
        for side, language in enumerate(pair.split("-")):
            lines = [f"{pairs[row][side]}\n" for row in rows]
            (work / "corpus" / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    source, target = pair.split("-")
    binarise(work / "data-bin", {(source, target): work / "corpus"}, subwords)
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.train",
        work / "data-bin",
        *OPTIONS,
        "--save-dir",
        work / "run",
    ]
    run(*command, "--stop-time-hours", seconds / 3600)
    lxsr(
        "export",
        "folder",
        "--checkpoint",
        work / "run" / "checkpoint_best.pt",
        "--output",
        work / "model",
    )
    return work / "model"


def main() -> None:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="of `context`")
    parser.add_argument("--language", default="fr", help="with English (default: fr)")
    parser.add_argument(
        "--arch", default="context_transformer_static_mean", help="of the first stage"
    )
    parser.add_argument(
        "--counts", nargs="+", type=int, default=[100, 300, 2000], help="default: 100 300 2000"
    )
    parser.add_argument(
        "--seconds", type=float, default=40, help="of training on the pairs (default: 40)"
    )
    args = parser.parse_args()
    first = (args.work / f"{args.arch}.en-{args.language}" / STAGE1).absolute()
    record = json.loads((first / RECORD).read_text())
    del record["text"]
    text = [first / "data-bin"], first / "documents"
    config = ContextConfig(**record)

    def measured(model: Path) -> dict[str, float]:
        return retrieval_with_english(
            SentenceEncoder.from_pretrained(model), args.data, (args.language,)
        )

    for count in args.counts:
        work = first.with_name(f"bitext-{count}")
        shutil.rmtree(work, ignore_errors=True)
        model = lightweight(
            args.data, f"en-{args.language}", count, first / "subwords", work, args.seconds
        )
        shutil.copytree(first, work / "rounds")
        options = replace(config, work=str(work / "rounds"), rounds=3, start_model=str(model))
        Rounds(options, lambda: text).run()
        result = {
            "arch": args.arch,
            "language": args.language,
            "pairs": count,
            "lightweight": measured(model),
        }
        for name in (STAGE1, "round1", "round2", "round3"):
            result[name] = measured(work / "rounds" / name / "model")
        print(result, flush=True)
        add_result(args.output, result | {"machine": machine()})


if __name__ == "__main__":
    main()
