"""The value of a little parallel text next to documents: a model of N pairs starts the rounds.

python -m benchmarks.quality.context_bitext --data DIR --work FOLDER \
    --output benchmarks/quality/results/context_bitext.jsonl

FOLDER is that of `quality.context --arch context_transformer_static_mean`, whose first stage and
vocabulary are used. For each N, the lightweight model without layers is trained on N pairs for some
seconds; then it mines the pairs of the first round of learning from contexts (`start_model`). Each
line of results has P@1 in percent among the 1,000 sentences of PUD, in both directions.
"""

import argparse
import json
import shlex
import shutil
import sys
from dataclasses import replace
from functools import partial
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

# Pairs of the validation set.
VALID = 1000
OPTIONS = (
    *shlex.split("--user-dir fairseq_lxsr --task xling_sent --criterion xling_sent_loss"),
    *shlex.split("--arch lxsr_small --encoder-layers 0 --objective none --sim-weight 0"),
    *shlex.split("--align-similarity cosine --align-temperature 0.05 --batch-size 128"),
    *shlex.split("--optimizer adam --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 100"),
    *shlex.split("--cpu --cpu-precision auto --num-workers 0 --no-epoch-checkpoints"),
    *shlex.split("--log-format simple"),
)
ROUNDS = ("round1", "round2", "round3")


def lightweight(
    data: Path, pair: str, count: int, subwords: Path, work: Path, seconds: float
) -> Path:
    """Train on pairs that are drawn from the training text, and return the model folder.

    Args:
        data: folder of the training text.
        pair: language pair.
        count: number of training pairs.
        subwords: folder of the word pieces.
        work: new folder of all files.
        seconds: duration of the training.
    """
    source, target = pair.split("-")
    pairs = list(training_pairs(data, pair))
    order = np.random.default_rng(0).permutation(len(pairs))
    splits = {"train": order[:count], "valid": order[-VALID:], "test": order[-VALID - 1 : -VALID]}
    corpus = work / "corpus"
    corpus.mkdir(parents=True)
    for split, rows in splits.items():
        for side, language in enumerate((source, target)):
            lines = [f"{pairs[row][side]}\n" for row in rows]
            (corpus / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    binarise(work / "data-bin", {(source, target): corpus}, subwords)
    save_dir = work / "run"
    train = (sys.executable, "-m", "fairseq_cli.train", work / "data-bin", *OPTIONS)
    run(*train, "--save-dir", save_dir, "--stop-time-hours", seconds / 3600)
    checkpoint = save_dir / "checkpoint_best.pt"
    lxsr("export", "folder", "--checkpoint", checkpoint, "--output", work / "model")
    return work / "model"


class FirstStage:
    """The finished first stage of learning from contexts, the starting point of the rounds."""

    def __init__(self, folder: Path):
        self.folder = folder
        record = json.loads((folder / RECORD).read_text())
        del record["text"]
        self.config = ContextConfig(**record)
        self.text = [folder / "data-bin"], folder / "documents"

    def run_rounds(self, work: Path, model: Path) -> None:
        """Copy the first stage, and run the rounds; a model mines the pairs of the first."""
        shutil.copytree(self.folder, work)
        config = replace(self.config, work=str(work), rounds=len(ROUNDS), start_model=str(model))
        Rounds(config, lambda: self.text).run()


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of quality.context"
    )
    parser.add_argument("--language", default="fr", help="language next to English (default: fr)")
    parser.add_argument(
        "--arch",
        default="context_transformer_static_mean",
        help="architecture of the first stage (default: context_transformer_static_mean)",
    )
    parser.add_argument(
        "--counts",
        nargs="+",
        type=int,
        default=[100, 300, 2000],
        help="numbers of pairs (default: 100 300 2000)",
    )
    parser.add_argument(
        "--seconds", type=float, default=40, help="seconds of training on the pairs (default: 40)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    pair = f"en-{args.language}"
    first = FirstStage((args.work / f"{args.arch}.{pair}" / STAGE1).absolute())
    measured = partial(retrieval_with_english, data=args.data, languages=(args.language,))
    for count in args.counts:
        work = first.folder.with_name(f"bitext-{count}")
        shutil.rmtree(work, ignore_errors=True)
        subwords = first.folder / "subwords"
        model = lightweight(args.data, pair, count, subwords, work, args.seconds)
        first.run_rounds(work / "rounds", model)
        result = {
            "arch": args.arch,
            "language": args.language,
            "pairs": count,
            "lightweight": measured(SentenceEncoder.from_pretrained(model)),
        }
        for name in (STAGE1, *ROUNDS):
            folder = work / "rounds" / name / "model"
            result[name] = measured(SentenceEncoder.from_pretrained(folder))
        print(result, flush=True)
        add_result(args.output, result | {"machine": machine()})


if __name__ == "__main__":
    main()
