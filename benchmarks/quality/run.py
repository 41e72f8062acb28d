"""Which recipe learns most in the same time: ours, the paper's, and what users would train instead.

python -m benchmarks.quality.run --data DIR --work FOLDER \
    --output benchmarks/quality/results/quality.jsonl --only NAME ...

The runs are in quality.yaml. DIR has train, eval, docs, valid and classification. Every run has the
same minutes of training on this machine, on its GPU where torch finds one; one line of results
each, see `sets`. What is in the file is left out.
"""

import argparse
import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import yaml

from benchmarks import script
from benchmarks.corpora import chosen_rows, prepare, subset, training_files
from benchmarks.machine import machine
from benchmarks.quality import baselines
from benchmarks.quality.config import resolve
from benchmarks.quality.sets import (
    CANDIDATES,
    CLASSIFICATION,
    classification,
    contrast,
    distractors,
    eval_sets,
    minimal_pairs,
    retrieval,
    tuning_sets,
    words_of,
)
from benchmarks.script import add_result, command_line, lxsr, read_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.search.reranker import Reranker

KEY = ("name", "trained on", "minutes", "seed", "vocab_size", "max_updates", "text")
DEVICE = "--bf16" if torch.cuda.is_available() else "--cpu"
SAVE_INTERVAL = 1000  # updates; a run that is interrupted goes on
COMMON = (DEVICE, "--num-workers", "1", "--disable-validation", "--log-interval", "1")


@dataclass(frozen=True)
class Budget:
    """What a run may use: minutes, or on a machine in use by others so many updates.

    Attributes:
        stops: checkpoints on the way that are kept, to be measured too.
    """

    minutes: float
    updates: int | None = None
    stops: int = 0

    def part(self, share: float) -> "Budget":
        return Budget(
            self.minutes * share, self.updates and round(self.updates * share), self.stops
        )

    def without(self, seconds: float) -> "Budget":
        return Budget(self.minutes - seconds / 60, self.updates, self.stops)

    def saving(self, updates: int) -> list:
        """Options of fairseq-train for a phase of so many updates."""
        interval = max(1, updates // (self.stops + 1)) if self.stops else SAVE_INTERVAL
        return ["--save-interval-updates", interval, "--keep-interval-updates", self.stops + 1]


def fairseq_train(
    phase: dict,
    more: list,
    data_bin: Path,
    folder: Path,
    budget: Budget,
    seed: int,
    start: Path | None,
) -> int:
    """One phase: its recipe and options, and `more` of them.

    Returns: the number of updates. A short trial tells how many there will be.
    """

    # fairseq counts the time that a checkpoint was trained for, of a model to go on from too
    before = read_checkpoint(start)["extra_state"]["previous_training_time"] if start else 0

    def run(seconds: float, updates: int, *only) -> str:
        return script.train(
            *(
                data_bin,
                "--recipe",
                phase["recipe"],
                *COMMON,
                *phase.get("options", "").split(),
                *more,
            ),
            *("--seed", seed, "--max-update", updates, "--save-dir", folder),
            *(("--stop-time-hours", (before + seconds) / 3600) if seconds else ()),
            *(("--finetune-from-model", start) if start else ()),
            *only,
        )

    if budget.updates:
        run(0, budget.updates, *budget.saving(budget.updates))
        return budget.updates
    plan = folder / "plan.json"  # of a run that was interrupted and goes on
    if not plan.exists():
        # the first updates are fast
        trial = run(max(baselines.TRIAL, 60 * budget.minutes / 50), 10**6, "--no-save")
        # both come before the first update and count; fairseq's clock sees only the second
        indexing, cells = (
            seconds_of(what, trial) for what in ("latent semantic indexing", "cells of near pairs")
        )
        seconds = 60 * budget.minutes - indexing
        updates = max(10, int(updates_per_second(trial) * (seconds - cells)))
        folder.mkdir(exist_ok=True)
        plan.write_text(json.dumps([seconds, updates]))
    seconds, updates = json.loads(plan.read_text())
    run(seconds, updates, *budget.saving(updates))
    return read_checkpoint(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


def seconds_of(what: str, log: str) -> int:
    found = re.search(rf"{what}.*: (\d+) seconds", log)
    return int(found[1]) if found else 0


def updates_per_second(log: str) -> float:
    """From the first line of the log to the last: what comes before the first update is not
    counted.
    """
    (first, start), *_, (last, end) = re.findall(
        r"train_inner .*num_updates=(\d+),.*wall=(\d+)", log
    )
    return (int(last) - int(first)) / (int(end) - int(start))


def train(
    config: dict, trained: list[str], data_bin: Path, folder: Path, budget: Budget, seed: int
):
    """Train, or go on where a run was interrupted.

    Returns: a function from sentences to embeddings, updates, and bytes of the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # half of it, of a run that was interrupted
    shutil.rmtree(folder / "data-bin", ignore_errors=True)
    kind = config.get("library", "fairseq")
    if kind == "fairseq":
        share = config.get("corpus", 1)
        teacher = (
            learnt_from(config["teacher"], trained, data_bin, folder, share)
            if "teacher" in config
            else []
        )
        text = data_bin.parent / "corpus"
        if share < 1:
            data_bin = subset(data_bin, folder / "data-bin", share)
        start: Path | None = None
        updates = []
        for number, phase in enumerate(config["phases"]):
            save_dir = folder / str(number)
            part = budget.part(phase.get("share", 1))
            begun, more = time.perf_counter(), teacher
            if start and phase.get("near"):
                more = [*teacher, *near_batches(start, trained, text, folder, share)]
            part = part.without(time.perf_counter() - begun)
            updates.append(fairseq_train(phase, more, data_bin, save_dir, part, seed, start))
            start = save_dir / "checkpoint_last.pt"
        model = export(
            save_dir / "checkpoint_last.pt",
            folder / "model",
            *(("--ema",) if config.get("ema") else ()),
        )
        encode = SentenceEncoder.from_pretrained(model).encode
        return partial(encode, dtype=config.get("dtype", "float32")), updates, model
    if kind == "static":
        model = baselines.make_static(data_bin, config["dim"])
    else:
        model = baselines.make_transformer(data_bin, folder, config["encoder"])
    pairs: list[tuple[str, str]] = []
    for trained_pair in trained:
        source, target = (
            data_bin.parent / "corpus" / trained_pair / f"train.{x}"
            for x in trained_pair.split("-")
        )
        both = list(read_parallel(source, target))
        pairs += [both[row] for row in chosen_rows(len(both), config.get("corpus", 1))]
    training = baselines.Training(**config["training"], loss=config.get("loss", {}))
    steps = baselines.train(model, pairs, folder, seed, training, budget.minutes, budget.updates)
    model.save(str(folder / "model"))
    return baselines.encoder(model), [steps], folder / "model"


def count_pairs(work: Path, pairs: Sequence[str]) -> int:
    """Training pairs of all language pairs together."""
    return sum(
        sum(1 for _ in read_lines(work / "corpus" / pair / f"train.{pair[:2]}", is_sentence=False))
        for pair in pairs
    )


def export(checkpoint: Path, folder: Path, *options) -> Path:
    """Write the model folder of a checkpoint, which is returned."""
    lxsr(
        "export",
        "folder",
        "--checkpoint",
        checkpoint,
        "--output",
        folder,
        "--dtype",
        "float16",
        *options,
    )
    return folder


def learnt_from(
    teacher: str, trained: list[str], data_bin: Path, folder: Path, share: float
) -> list:
    """Options that learn from the model of another run of the same minutes and seed."""
    _, setting = folder.name.split(".", 1)
    model = folder.with_name(f"{teacher}.{setting}") / "model"
    embed_text(model, trained, data_bin.parent / "corpus", folder / "teacher", share)
    return ["--teacher-embeddings", folder / "teacher"]


def near_batches(start: Path, trained: list[str], text: Path, folder: Path, share: float) -> list:
    """Options that put pairs together which a checkpoint finds near each other."""
    embed_text(export(start, folder / "near-model"), trained, text, folder / "near", share)
    return ["--batches", "near", "--near-embeddings", folder / "near"]


def embed_text(model: Path, trained: list[str], text: Path, folder: Path, share: float) -> None:
    """Write the embeddings of a share of the training text to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in trained:
        for language in name.split("-"):
            output = folder / f"train.{name}.{language}.npy"
            lxsr(
                "embed",
                "--model",
                model,
                "--input",
                text / name / f"train.{language}",
                "--output",
                output,
            )
            if share < 1:
                rows = np.load(output)
                np.save(output, rows[chosen_rows(len(rows), share)])


class Measure:
    """The sets of a language pair, read once; minimal pairs and classification are in English and
    another.
    """

    def __init__(self, data: Path, work: Path, pair: str, text: Sequence[str], tune: bool):
        self.data, self.languages = data, pair.split("-")
        self.sets = tuning_sets(data, work, pair) if tune else eval_sets(data, pair)
        self.contrast = (
            minimal_pairs(self.sets, self.languages[1]) if self.languages[0] == "en" else {}
        )
        self.crowd, self.seen = {}, {}
        for language in self.languages:
            trained = pair if "en" in self.languages else f"en-{language}"
            known = {sentence for sides in self.sets.values() for sentence in sides[language]}
            more = [folder for folder in text if folder != "train"]
            self.crowd[language] = distractors(data, language, trained, CANDIDATES, known, more)
            files = training_files(data, trained, text)
            self.seen[language] = words_of(
                [sides[trained.split("-").index(language)] for sides in files]
            )

    def truncated(self, encode, dims: Sequence[int]) -> dict:
        """Retrieval by the first dimensions alone, for each number of them."""
        found = {}
        for dim in dims:
            first = partial(encode, truncate_dim=dim)
            found[str(dim)] = retrieval(first, self.sets, self.crowd, self.seen)
        return {"truncated": found} if found else {}

    def reranked(self, encode, model: Path, depths: Sequence[int]) -> dict:
        """Retrieval and minimal pairs by pieces, with each number of nearest scored again."""
        found = {}
        for depth in depths:
            again = Reranker(ModelFolder(SentenceEncoder.from_pretrained(model)), depth)
            found[again.name] = {
                "retrieval": retrieval(encode, self.sets, self.crowd, self.seen, again),
                "contrast": contrast(encode, self.contrast, again),
            }
        return {"reranked": found} if found else {}

    def curve(self, save_dir: Path, dtype: str) -> dict:
        """Retrieval and minimal pairs of the checkpoints on the way, with updates and minutes, and
        all minutes.
        """
        found = []
        last = read_checkpoint(save_dir / "checkpoint_last.pt")["optimizer_history"][-1][
            "num_updates"
        ]
        paths = {int(path.stem.split("_")[2]): path for path in save_dir.glob("checkpoint_*_*.pt")}
        for updates, path in sorted(paths.items()):
            if updates == last:
                continue
            encode = partial(
                SentenceEncoder.from_pretrained(export(path, save_dir / "stop")).encode, dtype=dtype
            )
            near = retrieval(encode, self.sets, self.crowd, self.seen)
            stop = {"updates": updates, "minutes": minutes_of(path), "retrieval": near}
            found.append(stop | {"contrast": contrast(encode, self.contrast)})
        return {"curve": found, "minutes of training": minutes_of(save_dir / "checkpoint_last.pt")}

    def __call__(self, encode, classify: bool) -> dict:
        result: dict = {"retrieval": retrieval(encode, self.sets, self.crowd, self.seen)}
        result["candidates"] = {language: len(crowd) for language, crowd in self.crowd.items()}
        result["contrast"] = contrast(encode, self.contrast)
        for name in CLASSIFICATION if classify and self.contrast else ():
            result[name] = classification(
                encode, self.data / "classification" / name, self.languages
            )
        return result


def minutes_of(checkpoint: Path) -> float:
    """Minutes that its model was trained for, in all phases and runs."""
    return round(read_checkpoint(checkpoint)["extra_state"]["previous_training_time"] / 60, 1)


def show(result: dict) -> None:
    scores = [
        f"{name} {' '.join(str(direction['P@1']) for direction in directions.values())}"
        for name, directions in result["retrieval"].items()
    ]
    print(
        result["name"],
        result["pair"],
        result["updates"],
        "|",
        *scores,
        "|",
        result["contrast"],
        flush=True,
    )


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made"
    )
    parser.add_argument(
        "--config", type=Path, default=Path(__file__).with_name("quality.yaml"), metavar="FILE.yaml"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default: all of the file")
    parser.add_argument(
        "--pairs", nargs="+", default=["en-fr"], metavar="PAIR", help="default: en-fr"
    )
    parser.add_argument("--joint", action="store_true", help="one model of all --pairs")
    parser.add_argument(
        "--zero-shot",
        nargs="+",
        default=[],
        metavar="PAIR",
        help="measured but not trained on: fr-de",
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="of training, each run (default: 10)"
    )
    parser.add_argument(
        "--updates",
        type=int,
        metavar="N",
        help="instead of --minutes, on a machine in use by others",
    )
    parser.add_argument(
        "--curve", type=int, default=0, metavar="N", help="measure N checkpoints on the way, too"
    )
    parser.add_argument(
        "--text",
        nargs="+",
        default=["train"],
        metavar="NAME",
        help="folders of DIR (default: train)",
    )
    parser.add_argument(
        "--vocab-size", type=int, default=16_000, metavar="N", help="word pieces (default: 16000)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="default: 1")
    parser.add_argument(
        "--tune", action="store_true", help="measure on text to choose recipes by, not on eval/"
    )
    parser.add_argument(
        "--classify", action="store_true", help="zero-shot classification too; takes a minute more"
    )
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def measured(
    config: dict,
    pairs: list[str],
    folder: Path,
    seed: int,
    measures: Mapping[str, Measure],
    args: argparse.Namespace,
) -> Iterator[dict]:
    """Train one run in a folder beside the data, and yield what it finds on each language pair."""
    start, budget = time.perf_counter(), Budget(args.minutes, args.updates, args.curve)
    encode, updates, model = train(config, pairs, folder.parent / "data-bin", folder, budget, seed)
    result = {"updates": updates, "seconds": round(time.perf_counter() - start)}
    result["pairs"] = round(count_pairs(folder.parent, pairs) * config.get("corpus", 1))
    result["bytes"] = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    for pair, measure in measures.items():
        found = result | {"pair": pair, **measure(encode, args.classify), "machine": machine()}
        found |= measure.truncated(encode, config.get("truncate_dims", ()))
        found |= measure.reranked(encode, model, config.get("rerank", ()))
        if args.curve and "phases" in config:
            last = folder / str(len(config["phases"]) - 1)
            found |= measure.curve(last, config.get("dtype", "float32"))
        yield found


def main() -> None:
    args = parse_options()
    configs = yaml.safe_load(args.config.read_text())
    done = {tuple(map(result.get, KEY)) for result in read_results(args.output)}
    for pairs in [args.pairs] if args.joint else [[pair] for pair in args.pairs]:
        group, text = "+".join(pairs), None if args.text == ["train"] else "+".join(args.text)
        work = args.work / ".".join(filter(None, (group, text)))
        prepare(args.data, work, pairs, args.vocab_size, args.text)
        measures = {
            pair: Measure(args.data, work, pair, args.text, args.tune)
            for pair in [*pairs, *args.zero_shot]
        }
        for name, seed in itertools.product(args.only or configs, args.seeds):
            key = (
                name,
                group,
                None if args.updates else args.minutes,
                seed,
                args.vocab_size,
                args.updates,
                text,
            )
            if key in done:
                continue
            length = f"{args.updates}u" if args.updates else f"{args.minutes:g}"
            folder = work / f"{name}.{length}.{seed}.{args.vocab_size}"
            for found in measured(resolve(configs, name), pairs, folder, seed, measures, args):
                row = dict(zip(KEY, key, strict=True)) | found
                show(row)
                add_result(args.output, row)


if __name__ == "__main__":
    main()
