"""Which recipe learns most in the same time: ours, the paper's, or what users would train instead.

python -m benchmarks.quality.run --data DIR --work FOLDER \
    --output benchmarks/quality/results/quality.jsonl --only NAME ...

The runs are in quality.yaml. DIR has train, eval, docs, valid and classification. Every run has the
same minutes of training on this machine, on its GPU if torch finds one, and gives one line of
results, see `sets`. Runs that are already in the file are skipped.
"""

import argparse
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from benchmarks.script import add_result, add_text_and_work, command_line, lxsr, read_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.search.reranker import Reranker

# The fields that identify a line of results.
KEY = ("name", "trained on", "minutes", "seed", "vocab_size", "max_updates", "text")
DEVICE = "--bf16" if torch.cuda.is_available() else "--cpu"
# Number of updates between checkpoints, which an interrupted run resumes from.
SAVE_INTERVAL = 1000
COMMON = (DEVICE, "--num-workers", "1", "--disable-validation", "--log-interval", "1")
LAST = "checkpoint_last.pt"
FAIRSEQ = "fairseq"

Encode = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Budget:
    """The limit of a run: minutes or, on a machine that others use too, a number of updates.

    Attributes:
        minutes: duration of the training.
        updates: number of updates; None to train for `minutes`.
        stops: number of intermediate checkpoints to keep and evaluate.
    """

    minutes: float
    updates: int | None = None
    stops: int = 0

    def part(self, share: float) -> "Budget":
        """Return a share of the budget, for a phase."""
        updates = self.updates and round(self.updates * share)
        return Budget(self.minutes * share, updates, self.stops)

    def without(self, seconds: float) -> "Budget":
        """Return the budget without some seconds."""
        return Budget(self.minutes - seconds / 60, self.updates, self.stops)

    def saving(self, updates: int) -> list:
        """Return the options of fairseq-train for saving checkpoints in a number of updates."""
        interval = max(1, updates // (self.stops + 1)) if self.stops else SAVE_INTERVAL
        return ["--save-interval-updates", interval, "--keep-interval-updates", self.stops + 1]


class Trained(NamedTuple):
    """A trained model.

    Attributes:
        encode: returns the embeddings of sentences.
        updates: number of updates of each phase.
        folder: model folder.
    """

    encode: Encode
    updates: list[int]
    folder: Path


class Phase:
    """One phase of a training by fairseq-train.

    Args:
        config: recipe and options.
        more: further options.
        data_bin: data folder.
        folder: output folder of the checkpoints.
        seed: random seed.
        start: checkpoint to start from; None for random weights.
    """

    def __init__(
        self,
        config: dict,
        more: list,
        data_bin: Path,
        folder: Path,
        seed: int,
        start: Path | None,
    ):
        options = config.get("options", "").split()
        self.options = [data_bin, "--recipe", config["recipe"], *COMMON, *options, *more]
        self.options += ["--seed", seed, "--save-dir", folder]
        self.folder = folder
        # fairseq counts the time of training of a checkpoint, including that of its start.
        self.seconds_before = 0.0
        if start:
            self.options += ["--finetune-from-model", start]
            self.seconds_before = read_checkpoint(start)["extra_state"]["previous_training_time"]

    def run(self, budget: Budget) -> int:
        """Train, or continue an interrupted training, and return the number of updates."""
        if budget.updates:
            self.train(budget.updates, *budget.saving(budget.updates))
            return budget.updates
        seconds, updates = self.plan(budget)
        self.train(updates, *self.limit(seconds), *budget.saving(updates))
        return last_update(self.folder / LAST)

    def train(self, updates: int, *options: object) -> str:
        """Run `lxsr train`, and return its log."""
        return script.train(*self.options, "--max-update", updates, *options)

    def limit(self, seconds: float) -> list:
        """Return the option that ends training after some seconds."""
        return ["--stop-time-hours", (self.seconds_before + seconds) / 3600]

    def plan(self, budget: Budget) -> tuple[float, int]:
        """Return the seconds and the updates that the budget allows.

        A short trial measures the speed. The plan is stored, so that an interrupted run keeps it.
        """
        path = self.folder / "plan.json"
        if not path.exists():
            # The trial is not too short, because the first updates are fast.
            trial_seconds = max(baselines.TRIAL, 60 * budget.minutes / 50)
            log = self.train(10**6, *self.limit(trial_seconds), "--no-save")
            # Both come before the first update and count as time of the run. fairseq's clock sees
            # only the second.
            indexing = seconds_of("latent semantic indexing", log)
            cells = seconds_of("grouping near pairs", log)
            seconds = 60 * budget.minutes - indexing
            updates = max(10, int(updates_per_second(log) * (seconds - cells)))
            self.folder.mkdir(exist_ok=True)
            path.write_text(json.dumps([seconds, updates]))
        seconds, updates = json.loads(path.read_text())
        return seconds, updates


def last_update(checkpoint: Path) -> int:
    """Return the number of updates of a checkpoint."""
    return read_checkpoint(checkpoint)["optimizer_history"][-1]["num_updates"]


def seconds_of(step: str, log: str) -> int:
    """Return the seconds that a log reports for a step, and 0 if it reports none."""
    match = re.search(rf"{step}.*: (\d+) seconds", log)
    return int(match[1]) if match else 0


def updates_per_second(log: str) -> float:
    """Return the speed between the first and the last update in a log."""
    updates = re.findall(r"train_inner .*num_updates=(\d+),.*wall=(\d+)", log)
    first, start = map(int, updates[0])
    last, end = map(int, updates[-1])
    return (last - first) / (end - start)


def train(
    config: dict, trained_on: list[str], data_bin: Path, folder: Path, budget: Budget, seed: int
) -> Trained:
    """Train a run, or continue it if it was interrupted.

    Args:
        config: configuration of the run.
        trained_on: language pairs to train on.
        data_bin: data folder.
        folder: output folder of the run.
        budget: time or updates of the run.
        seed: random seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # An interrupted run may have left an incomplete copy.
    shutil.rmtree(folder / "data-bin", ignore_errors=True)
    if config.get("library", FAIRSEQ) == FAIRSEQ:
        return train_phases(config, trained_on, data_bin, folder, budget, seed)
    return train_baseline(config, trained_on, data_bin, folder, budget, seed)


def train_phases(
    config: dict, trained_on: list[str], data_bin: Path, folder: Path, budget: Budget, seed: int
) -> Trained:
    """Train all phases of a run by fairseq-train."""
    text = data_bin.parent / "corpus"
    share = config.get("corpus", 1)
    teacher = []
    if "teacher" in config:
        teacher = learnt_from(config["teacher"], trained_on, text, folder, share)
    if share < 1:
        data_bin = subset(data_bin, folder / "data-bin", share)
    start: Path | None = None
    updates = []
    for number, phase in enumerate(config["phases"]):
        save_dir = folder / str(number)
        part = budget.part(phase.get("share", 1))
        before = time.perf_counter()
        more = teacher
        if start and phase.get("near"):
            more = [*teacher, *near_batches(start, trained_on, text, folder, share)]
        part = part.without(time.perf_counter() - before)
        updates.append(Phase(phase, more, data_bin, save_dir, seed, start).run(part))
        start = save_dir / LAST
    options = ["--ema"] if config.get("ema") else []
    model = export(save_dir / LAST, folder / "model", *options)
    encode = SentenceEncoder.from_pretrained(model).encode
    return Trained(partial(encode, dtype=config.get("dtype", "float32")), updates, model)


def train_baseline(
    config: dict, trained_on: list[str], data_bin: Path, folder: Path, budget: Budget, seed: int
) -> Trained:
    """Train a model of sentence-transformers."""
    if config["library"] == "static":
        model = baselines.make_static(data_bin, config["dim"])
    else:
        model = baselines.make_transformer(data_bin, folder, config["encoder"])
    pairs: list[tuple[str, str]] = []
    for pair in trained_on:
        source, target = pair.split("-")
        text = data_bin.parent / "corpus" / pair
        all_pairs = list(read_parallel(text / f"train.{source}", text / f"train.{target}"))
        rows = chosen_rows(len(all_pairs), config.get("corpus", 1))
        pairs += [all_pairs[row] for row in rows]
    training = baselines.Training(**config["training"], loss=config.get("loss", {}))
    steps = baselines.train(model, pairs, folder, seed, training, budget.minutes, budget.updates)
    model.save(str(folder / "model"))
    return Trained(baselines.encoder(model), [steps], folder / "model")


def count_pairs(work: Path, pairs: Sequence[str]) -> int:
    """Return the number of training pairs of all language pairs together."""
    count = 0
    for pair in pairs:
        path = work / "corpus" / pair / f"train.{pair[:2]}"
        count += sum(1 for _ in read_lines(path, is_sentence=False))
    return count


def export(checkpoint: Path, folder: Path, *options: object) -> Path:
    """Write the model folder of a checkpoint, and return it."""
    output = ("--output", folder, "--dtype", "float16")
    lxsr("export", "folder", "--checkpoint", checkpoint, *output, *options)
    return folder


def learnt_from(
    teacher: str, trained_on: list[str], text: Path, folder: Path, share: float
) -> list:
    """Return the options that learn from the model of another run with the same budget and seed."""
    _, setting = folder.name.split(".", 1)
    model = folder.with_name(f"{teacher}.{setting}") / "model"
    embed_text(model, trained_on, text, folder / "teacher", share)
    return ["--teacher-embeddings", folder / "teacher"]


def near_batches(
    start: Path, trained_on: list[str], text: Path, folder: Path, share: float
) -> list:
    """Return the options that put pairs into a batch that are near each other in a checkpoint."""
    model = export(start, folder / "near-model")
    embed_text(model, trained_on, text, folder / "near", share)
    return ["--batches", "near", "--near-embeddings", folder / "near"]


def embed_text(model: Path, trained_on: list[str], text: Path, folder: Path, share: float) -> None:
    """Write the embeddings of a share of the training text to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for pair in trained_on:
        for language in pair.split("-"):
            source = text / pair / f"train.{language}"
            output = folder / f"train.{pair}.{language}.npy"
            lxsr("embed", "--model", model, "--input", source, "--output", output)
            if share < 1:
                rows = np.load(output)
                np.save(output, rows[chosen_rows(len(rows), share)])
                # Its record has the checksum of all rows.
                Path(f"{output}.json").unlink()


class Measure:
    """The evaluation sets of a language pair, which are read once.

    Minimal pairs and classification are for pairs with English.

    Args:
        data: folder of the text.
        work: the folder that `lxsr prepare` wrote.
        pair: language pair to evaluate.
        text: folders of the training text.
        tune: evaluate on the sets for choosing recipes.
    """

    def __init__(self, data: Path, work: Path, pair: str, text: Sequence[str], tune: bool):
        self.data = data
        self.languages = pair.split("-")
        self.sets = tuning_sets(data, work, pair) if tune else eval_sets(data, pair)
        self.contrast = {}
        if self.languages[0] == "en":
            self.contrast = minimal_pairs(self.sets, self.languages[1])
        self.crowd = {}
        self.trained_words = {}
        further_text = [folder for folder in text if folder != "train"]
        for language in self.languages:
            # Models that are evaluated on other pairs were trained on pairs with English.
            trained_pair = pair if "en" in self.languages else f"en-{language}"
            sentences = {line for sides in self.sets.values() for line in sides[language]}
            self.crowd[language] = distractors(
                data, language, trained_pair, CANDIDATES, sentences, further_text
            )
            side = trained_pair.split("-").index(language)
            files = [pair_files[side] for pair_files in training_files(data, trained_pair, text)]
            self.trained_words[language] = words_of(files)

    def retrieval(self, encode: Encode, reranker: Reranker | None = None) -> dict:
        """Return the scores of retrieval."""
        return retrieval(encode, self.sets, self.crowd, self.trained_words, reranker)

    def truncated(self, encode: Encode, dims: Sequence[int]) -> dict:
        """Return the scores of retrieval by the first dimensions alone."""
        scores = {str(dim): self.retrieval(partial(encode, truncate_dim=dim)) for dim in dims}
        return {"truncated": scores} if scores else {}

    def reranked(self, encode: Encode, model: Path, depths: Sequence[int]) -> dict:
        """Return the scores with re-ranking, for some numbers of neighbours."""
        scores = {}
        for depth in depths:
            reranker = Reranker(ModelFolder(SentenceEncoder.from_pretrained(model)), depth)
            scores[reranker.name] = {
                "retrieval": self.retrieval(encode, reranker),
                "contrast": contrast(encode, self.contrast, reranker),
            }
        return {"reranked": scores} if scores else {}

    def curve(self, save_dir: Path, dtype: str) -> dict:
        """Return the scores of the intermediate checkpoints, with their updates and minutes."""
        points = []
        last = last_update(save_dir / LAST)
        checkpoints = {
            int(path.stem.split("_")[2]): path for path in save_dir.glob("checkpoint_*_*.pt")
        }
        for updates, path in sorted(checkpoints.items()):
            if updates == last:
                continue
            encoder = SentenceEncoder.from_pretrained(export(path, save_dir / "stop"))
            encode = partial(encoder.encode, dtype=dtype)
            point = {
                "updates": updates,
                "minutes": minutes_of(path),
                "retrieval": self.retrieval(encode),
                "contrast": contrast(encode, self.contrast),
            }
            points.append(point)
        return {"curve": points, "minutes of training": minutes_of(save_dir / LAST)}

    def __call__(self, encode: Encode, classify: bool) -> dict:
        """Return the scores of a model.

        Args:
            encode: the model.
            classify: whether to train classifiers too.
        """
        result: dict = {
            "retrieval": self.retrieval(encode),
            "candidates": {language: len(lines) for language, lines in self.crowd.items()},
            "contrast": contrast(encode, self.contrast),
        }
        if classify and self.contrast:
            for name in CLASSIFICATION:
                folder = self.data / "classification" / name
                result[name] = classification(encode, folder, self.languages)
        return result


def minutes_of(checkpoint: Path) -> float:
    """Return the minutes that a model was trained for, in all phases and runs."""
    return round(read_checkpoint(checkpoint)["extra_state"]["previous_training_time"] / 60, 1)


def show(result: dict) -> None:
    """Print P@1 of a result, and its minimal pairs."""
    cells = []
    for name, directions in result["retrieval"].items():
        precisions = " ".join(str(direction["P@1"]) for direction in directions.values())
        cells.append(f"{name} {precisions}")
    head = (result["name"], result["pair"], result["updates"])
    print(*head, "|", *cells, "|", result["contrast"], flush=True)


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    add_text_and_work(parser)
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(__file__).with_name("quality.yaml"),
        metavar="FILE.yaml",
        help="configurations of the runs (default: quality.yaml next to this script)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="runs to train (default: all of the file)"
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        default=["en-fr"],
        metavar="PAIR",
        help="language pairs (default: en-fr)",
    )
    parser.add_argument("--joint", action="store_true", help="train one model on all --pairs")
    parser.add_argument(
        "--zero-shot",
        nargs="+",
        default=[],
        metavar="PAIR",
        help="language pairs to evaluate but not train on, for example fr-de",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="training time of each run, in minutes (default: 10)",
    )
    parser.add_argument(
        "--updates",
        type=int,
        metavar="N",
        help="number of updates in place of --minutes, on a machine that others use too",
    )
    parser.add_argument(
        "--curve",
        type=int,
        default=0,
        metavar="N",
        help="number of intermediate checkpoints to evaluate (default: 0)",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        default=["train"],
        metavar="NAME",
        help="folders of DIR with training text (default: train)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=16_000,
        metavar="N",
        help="number of word pieces (default: 16000)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1], help="seeds of the trainings (default: 1)"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="evaluate on the sets for choosing recipes, instead of eval/",
    )
    parser.add_argument(
        "--classify", action="store_true", help="also evaluate zero-shot classification (a minute)"
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
    """Train a run in a folder next to the data, and yield its scores on each language pair."""
    start = time.perf_counter()
    budget = Budget(args.minutes, args.updates, args.curve)
    model = train(config, pairs, folder.parent / "data-bin", folder, budget, seed)
    common = {"updates": model.updates, "seconds": round(time.perf_counter() - start)}
    common["pairs"] = round(count_pairs(folder.parent, pairs) * config.get("corpus", 1))
    files = [file for file in model.folder.rglob("*") if file.is_file()]
    common["bytes"] = sum(file.stat().st_size for file in files)
    for pair, measure in measures.items():
        scores = measure(model.encode, args.classify)
        result = common | {"pair": pair, **scores, "machine": machine()}
        result |= measure.truncated(model.encode, config.get("truncate_dims", ()))
        result |= measure.reranked(model.encode, model.folder, config.get("rerank", ()))
        if args.curve and "phases" in config:
            last = folder / str(len(config["phases"]) - 1)
            result |= measure.curve(last, config.get("dtype", "float32"))
        yield result


def run_group(pairs: list[str], configs: dict, done: set[tuple], args: argparse.Namespace) -> None:
    """Train and evaluate all runs on some language pairs."""
    trained_on = "+".join(pairs)
    text = None if args.text == ["train"] else "+".join(args.text)
    work = args.work / ".".join(filter(None, (trained_on, text)))
    prepare(args.data, work, pairs, args.vocab_size, args.text)
    measures = {}
    for pair in [*pairs, *args.zero_shot]:
        measures[pair] = Measure(args.data, work, pair, args.text, args.tune)
    minutes = None if args.updates else args.minutes
    length = f"{args.updates}u" if args.updates else f"{args.minutes:g}"
    # With the first seed of all runs before the second, an interrupted benchmark compares them all.
    for seed, name in itertools.product(args.seeds, args.only or configs):
        key = (name, trained_on, minutes, seed, args.vocab_size, args.updates, text)
        if key in done:
            continue
        folder = work / f"{name}.{length}.{seed}.{args.vocab_size}"
        for scores in measured(resolve(configs, name), pairs, folder, seed, measures, args):
            result = dict(zip(KEY, key, strict=True)) | scores
            show(result)
            add_result(args.output, result)


def main() -> None:
    args = parse_options()
    configs = yaml.safe_load(args.config.read_text())
    done = {tuple(map(result.get, KEY)) for result in read_results(args.output)}
    groups = [args.pairs] if args.joint else [[pair] for pair in args.pairs]
    for pairs in groups:
        run_group(pairs, configs, done, args)


if __name__ == "__main__":
    main()
