"""Trains without parallel text: runs both stages and all rounds. Interrupted runs can resume."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.context.mining import LazyEmbeddings, MinedPair, mine_draws, precision
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import newest_checkpoint, read_checkpoint
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE, read_config
from fairseq_lxsr.errors import InputError, listed, sigterm_as_interrupt
from fairseq_lxsr.export.folder import export_checkpoint
from fairseq_lxsr.files.lines import Lines, count_file_lines, count_lines, read_lines
from fairseq_lxsr.files.locks import locked_work_folder
from fairseq_lxsr.files.open import PACKAGE, sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.options import (
    COMPUTE_DTYPES,
    CONTEXT_NEGATIVES,
    CPU_PRECISIONS,
    FILE_NAME,
    PAIR_LANGUAGES,
    FileName,
    at_least,
    below,
    check_fields,
    option,
    positive,
)
from fairseq_lxsr.text.languages import check_language_code

# Presets from training/context/model.py, repeated here because importing it requires fairseq.
PRESETS = ("base", "small", "static", "static_mean", "tiny")
CONTEXT_ARCHITECTURES = tuple(f"context_transformer_{preset}" for preset in PRESETS)


@dataclass(frozen=True)
class ContextConfig:
    """Options of both stages and all rounds.

    The defaults are the values reported by Wang et al., if any.
    """

    documents: Mapping[str, str] = option("text file or folder of documents for each language")
    work: str = option("work folder for all results", "work/context", FILE_NAME)
    arch: str = option(
        "model preset, a value of --arch for context_transformer",
        "context_transformer_base",
        CONTEXT_ARCHITECTURES,
    )
    vocab_size: int = option(
        "number of entries in the joint dictionary of all languages",
        16_000,
        at_least(1, 10_000_000),
    )
    lowercase: bool = option("lowercase all text", True)
    split_han: bool = option("treat every Chinese character as a separate word", True)
    valid_documents: int = option("number of held-out documents per language", 10, at_least(1))
    shards: int = option(
        "number of shards of the training data, each with whole documents; the first stage "
        "loads one shard at a time",
        1,
        at_least(1, 512),
    )
    epochs: int = option("number of epochs of the first stage", 1, at_least(1))
    both_samples: bool = option(
        "in the first stage, use every sentence twice per epoch, in its own context and "
        "replaced by another sentence, instead of choosing one of the two at random",
        False,
    )
    negatives: str = option(
        "source of the replacement sentences in the first stage: language (the language of the "
        "original sentence) or corpus (all languages, as in Wang et al.)",
        "language",
        CONTEXT_NEGATIVES,
    )
    rounds: int = option("number of rounds of mining and regression", 3, at_least(0))
    draw: int = option("number of sentences in each sample (m in the paper)", 10_000, at_least(1))
    best: int = option("maximum number of pairs to keep from two samples", 1_000, at_least(1))
    candidates: int = option(
        "number of sentences in the second sample (b in the paper); each sentence of the first "
        "sample is paired with the best of them; 0 compares two samples of `draw` sentences and "
        "keeps the best pairs",
        0,
        at_least(0),
    )
    pair_languages: str = option(
        "languages of the two sentences of a pair: different, or any (also pairs of sentences in "
        "the same language, as in Wang et al.)",
        "different",
        PAIR_LANGUAGES,
    )
    pairs: int = option("number of pairs to mine per round", 100_000, at_least(1))
    start_model: str = option(
        "folder, name or URL of the model that mines the pairs of the first round, such as a model "
        "trained on a small parallel corpus; if empty, the model of the first stage mines them",
        "",
        FileName(optional=True),
    )
    gold: str = option(
        "file of reference pairs, `sentence<TAB>sentence`, to report the precision of mined pairs",
        "",
        FileName(optional=True),
    )
    batch_size: int = option("number of samples per update", 128, at_least(1))
    learning_rate: float = option(
        "initial learning rate in every stage and round; it decreases linearly to zero",
        1e-4,
        positive(),
    )
    dropout: float = option("dropout probability", 0.1, below(1))
    max_positions: int = option(
        "maximum number of word pieces in a sentence with its context; longer samples are "
        "truncated",
        150,
        at_least(2),
    )
    seed: int = option("random seed for sampling and training", 1, at_least(0))
    workers: int = option("number of processes that prepare the text", 2, at_least(1, 1024))
    cpu_precision: str = option("training precision on a CPU", "auto", CPU_PRECISIONS)
    encode_dtype: str = option("encoding precision for mining", "float32", COMPUTE_DTYPES)

    @property
    def text_options(self) -> dict[str, Any]:
        """Arguments for `preparation.documents.prepare_documents`."""
        names = ("documents", "work", "valid_documents", "seed", "workers", "shards")
        subwords = {name: getattr(self, name) for name in ("vocab_size", "lowercase", "split_han")}
        return {name: getattr(self, name) for name in names} | {"subwords": subwords}

    def __post_init__(self):
        check_fields(self)
        for language, source in self.documents.items():
            check_language_code(language)
            FILE_NAME.check(f"documents: {language}", source)
        if self.rounds and len(self.documents) < 2:
            languages = listed(self.documents) or "none"
            raise InputError(
                f"documents: {languages}; specify text files for at least two languages"
            )
        if not self.documents:
            raise InputError(
                "documents is empty; specify files by language, such as {en: en.txt, fr: fr.txt}"
            )
        work = os.path.abspath(self.work)
        if os.pathsep in work:
            raise InputError(
                f"work: {work} contains {os.pathsep!r}, which separates shards; choose another name"
            )


RECORD = "context.json"
REPORT = "rounds.jsonl"
# Options that may always differ between runs in the same work folder.
CHANGEABLE = {"work", "rounds", "workers", "gold"}
# Options that may change until the first pairs have been mined.
CHANGEABLE_BEFORE_MINING = {
    "draw",
    "best",
    "candidates",
    "pair_languages",
    "pairs",
    "start_model",
    "encode_dtype",
}
# Number of updates between checkpoints.
SAVE_INTERVAL = 1000


class Rounds:
    """Runs the training steps, each in its own folder: `stage1`, `round1`, `round2`, ...

    Finished steps are kept, so an interrupted run can be resumed.

    Args:
        config: options of the run.
        prepare: prepares the text, unless it is already prepared. It is called while the work
            folder is locked, and returns the shard folders and the folder with the text files
            train.LANG.
    """

    shards: Sequence[Path]
    text: Path

    def __init__(self, config: ContextConfig, prepare: Callable[[], tuple[Sequence[Path], Path]]):
        self.config = config
        self.prepare = prepare
        self.work = Path(config.work)

    def run(self) -> Path:
        """Run all unfinished steps.

        Returns:
            Model folder of the last step.

        Raises:
            InputError: if the options or the text differ from those of an earlier run, a file
                cannot be read, or training fails.
        """
        # The training process inherits the lock, because it may outlive this process.
        with locked_work_folder(self.work) as self.lock:
            self._check_files()
            record = self._check_record()
            self.shards, self.text = self.prepare()
            with atomic_write(self.work / RECORD) as stream:
                stream.write(json.dumps(record, indent=2) + "\n")
            model = self._step("stage1", None)
            for number in range(1, self.config.rounds + 1):
                model = self._step(f"round{number}", model)
        return model

    def _step(self, name: str, previous: Path | None) -> Path:
        """Run the first stage or a round, unless it is already finished.

        Args:
            name: name of the step, and of its folder.
            previous: model folder of the previous step; None for the first stage.

        Returns:
            Model folder of this step.
        """
        folder = self.work / name
        model = folder / "model"
        if (model / CONFIG_FILE).is_file():
            print(f"{folder}: already finished")
            return model
        folder.mkdir(parents=True, exist_ok=True)
        if previous is None:
            self._train_first_stage(folder)
        else:
            self._train_round(folder, previous)
        export_checkpoint(folder / "checkpoints" / "checkpoint_last.pt", model, self.shards[0])
        print(f"{model}: exported")
        return model

    def _train_first_stage(self, folder: Path) -> None:
        sizes = [self._count_samples(shard) for shard in self.shards]
        options: tuple[str | Path, ...] = ()
        if self.config.both_samples:
            options += ("--both-samples",)
        if self.config.negatives != "language":
            options += ("--negatives", self.config.negatives)
        # One shard is one fairseq epoch.
        self._train(folder, self.config.epochs * sizes, options)

    def _train_round(self, folder: Path, previous: Path) -> None:
        """Mine the sentence pairs of a round, unless they exist, and train on them."""
        mined = folder / "mined.tsv"
        if not mined.is_file():
            model = previous
            if folder.name == "round1" and self.config.start_model:
                model = find_model(self.config.start_model)
            self._mine(model, mined, folder.name)
        # Each pair yields two samples, one per direction.
        samples = 2 * count_file_lines(mined)
        last = previous.parent / "checkpoints" / "checkpoint_last.pt"
        options = ("--mined", mined, "--disable-validation", "--finetune-from-model", last)
        self._train(folder, [samples], options)

    # -- mining

    def _mine(self, model: Path, output: Path, name: str) -> None:
        """Mine the sentence pairs of one round, and append a report to rounds.jsonl.

        Args:
            model: model that embeds the sentences.
            output: output file, which contains the scores, the sentences and their line numbers.
            name: name of the round.
        """
        config = self.config
        start = time.perf_counter()
        encoder = SentenceEncoder.from_pretrained(model)
        texts: dict[str, Lines] = {}
        files: dict[str, Path] = {}
        embedded: dict[str, LazyEmbeddings] = {}
        for language in config.documents:
            texts[language] = Lines(self.text / f"train.{language}")
            files[language] = output.with_name(f"vectors.{language}.raw")
        for language, lines in texts.items():
            embedded[language] = LazyEmbeddings(
                encoder, lines, config.encode_dtype, files[language]
            )
        seed = config.seed * 1000 + int(name.removeprefix("round"))
        try:
            pairs, seconds = mine_draws(
                embedded,
                config.draw,
                config.best,
                config.pairs,
                seed,
                candidates=config.candidates,
                pair_languages=config.pair_languages,
            )
        finally:
            for file in files.values():
                file.unlink()
        report = {
            "round": name,
            "model": str(model),
            "pairs": len(pairs),
            "mean CSLS": float(np.mean([pair.score for pair in pairs])),
            "mean cosine": float(np.mean([pair.cosine for pair in pairs])),
            "seconds": {"all": time.perf_counter() - start, **seconds},
        }
        if config.gold:
            report["precision"] = precision(pairs, texts, read_gold(Path(config.gold)))
        # Write the report first: a round that already has pairs is not mined again.
        add_report(self.work / REPORT, report)
        with atomic_write(output) as stream:
            stream.writelines(f"{row}\n" for row in format_pairs(pairs, texts))
        print(f"{output}: {_describe_mining(report)}")

    # -- training

    def _train(self, folder: Path, samples: Sequence[int], options: tuple[str | Path, ...]) -> None:
        """Train one step.

        Args:
            folder: folder of the step.
            samples: number of samples in each fairseq epoch.
            options: additional fairseq-train options for this step.
        """
        log = folder / "train.log"
        updates = sum(math.ceil(count / self.config.batch_size) for count in samples)
        command = self._training_command(folder, updates, len(samples), options)
        print(f"{folder}: training, {updates:,} updates (log: {log})", flush=True)
        restore_last_checkpoint(folder / "checkpoints" / "checkpoint_last.pt")
        start = time.perf_counter()
        # An interrupted run appends to its existing log.
        earlier_lines = count_lines(log) or 0
        if run_logged(command, log, self.lock):
            reason = _reason_of_failure(log, earlier_lines)
            raise InputError(
                f"{log}: training failed: {reason:.300}; fix the cause and run the command again"
            )
        seconds = time.perf_counter() - start
        print(f"{folder}: trained in {seconds:.0f} s; {_last_figures(log)}")

    def _training_command(
        self, folder: Path, updates: int, epochs: int, options: tuple[str | Path, ...]
    ) -> list[str]:
        """Return the fairseq-train command for one step."""
        config = self.config
        data = os.pathsep.join(str(shard.absolute()) for shard in self.shards)
        values = {
            "--user-dir": PACKAGE,
            "--task": "sent_context",
            "--criterion": "sent_context_loss",
            "--arch": config.arch,
            "--langs": ",".join(config.documents),
            "--max-positions": config.max_positions,
            "--dropout": config.dropout,
            "--batch-size": config.batch_size,
            "--max-epoch": epochs,
            "--optimizer": "torch_adam",
            "--lr": config.learning_rate,
            "--lr-scheduler": "polynomial_decay",
            "--total-num-update": updates,
            "--cpu-precision": config.cpu_precision,
            "--seed": config.seed,
            "--log-format": "simple",
            "--save-dir": (folder / "checkpoints").absolute(),
            "--save-interval-updates": SAVE_INTERVAL,
            "--keep-interval-updates": 1,
            # The number of updates and the learning rate assume a single process.
            "--distributed-world-size": 1,
        }
        command = [sys.executable, "-m", "fairseq_cli.train", data, "--no-epoch-checkpoints"]
        for name, value in values.items():
            command += [name, str(value)]
        for word in options:
            command.append(str(word.absolute() if isinstance(word, Path) else word))
        return command

    def _count_samples(self, shard: Path) -> int:
        """Count the training samples of a shard in the first stage.

        Each sentence yields one sample, or two with `both_samples`. The only sentence of a document
        yields none, because it has no context.
        """
        count = 0
        for language in self.config.documents:
            sizes = np.diff(np.load(shard / f"train.{language}.documents.npy", allow_pickle=False))
            count += int(sizes[sizes > 1].sum())
        return count * (1 + self.config.both_samples)

    # -- the work folder

    def _check_record(self) -> dict[str, Any]:
        """Return the options and text hashes of this run, to be recorded in the work folder.

        Raises:
            InputError: if training has already started with different options or text.
        """
        documents = dict(self.config.documents)
        record = asdict(self.config) | {"documents": documents}
        record["text"] = {
            language: hash_source(Path(source)) for language, source in documents.items()
        }
        has_begun = any(self.work.glob("stage1/checkpoints/*.pt")) or any(self.work.glob("*/model"))
        if has_begun and (self.work / RECORD).is_file():
            self._refuse_changes(record)
        return record

    def _refuse_changes(self, record: dict[str, Any]) -> None:
        """Raise InputError if an option or a text has changed since training started."""
        path = self.work / RECORD
        try:
            recorded = parse_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{path}: damaged ({error!r}), so the options of the earlier run are unknown; use "
                "another work folder"
            ) from None
        changeable = set(CHANGEABLE)
        if not any(self.work.glob("round*/mined.tsv")):
            changeable |= CHANGEABLE_BEFORE_MINING
        for name in sorted(record.keys() - changeable):
            is_same = recorded.get(name) == record[name]
            if is_same and name == "documents":
                # Their order matters, because mining cycles through the language pairs.
                is_same = list(recorded[name]) == list(record[name])
            if not is_same:
                raise InputError(
                    f"{path}: {name} is {record[name]!r}, but training started with "
                    f"{recorded.get(name)!r}; use the same value or another work folder"
                )

    def _check_files(self) -> None:
        """Check the input files of later rounds first, because the first stage may take days."""
        if self.config.gold:
            read_gold(Path(self.config.gold))
        if self.config.start_model and not (self.work / "round1" / "mined.tsv").is_file():
            read_config(find_model(self.config.start_model))


def _describe_mining(report: dict[str, Any]) -> str:
    """Summarize the mining report of a round in one line."""
    seconds = report["seconds"]
    figures = (
        f"{report['pairs']:,} pairs, mean CSLS {report['mean CSLS']:.3f}, "
        f"mean cosine {report['mean cosine']:.3f}"
    )
    if "precision" in report:
        figures += f", precision {report['precision']:.3f}"
    return (
        f"{figures}; {seconds['draws']:.0f} draws, encoding {seconds['encode']:.0f} s, "
        f"search {seconds['search']:.0f} s"
    )


def _reason_of_failure(log: Path, earlier_lines: int) -> str:
    """Return the last error in a log, or its last line if it contains no error.

    Args:
        log: path of the log.
        earlier_lines: number of lines written by earlier runs, which are skipped.

    Returns:
        The message; empty if the run wrote nothing.
    """
    reason = ""
    error = ""
    for line in islice(read_lines(log, is_sentence=False), earlier_lines, None):
        if line.strip():
            reason = line
        if ": error: " in line:
            error = line
    return (error or reason).split(": error: ")[-1]


def _last_figures(log: Path) -> str:
    """Return the loss and accuracy of the last epoch in a fairseq-train log, as one line."""
    names = ("loss", "accuracy")
    markers = {"train": "| train |", "valid": "| valid on "}
    figures = {}
    for line in read_lines(log, is_sentence=False):
        for kind, marker in markers.items():
            if marker not in line:
                continue
            metrics = []
            for part in line.split("|"):
                name, _, value = part.strip().rpartition(" ")
                if name in names:
                    metrics.append(f"{name} {value}")
            figures[kind] = ", ".join(metrics)
    return "; ".join(f"{kind} {metrics}" for kind, metrics in figures.items())


def format_pairs(pairs: list[MinedPair], texts: dict[str, Lines]) -> Iterator[str]:
    """Format mined pairs as input lines for the task sent_context.

    The task does not read the last two columns, the sentences, which are for human readers.
    """
    for pair in pairs:
        columns = [f"{pair.score:.6f}", f"{pair.cosine:.6f}"]
        sentences = []
        for language, number in zip(pair.languages, pair.sentences, strict=True):
            columns += [language, str(number)]
            sentences.append(texts[language][number])
        yield "\t".join(columns + sentences)


def add_report(path: Path, report: dict[str, Any]) -> None:
    """Append the report of a round to a JSON Lines file.

    If an interrupted run has left a report of the same round, it is replaced.
    """
    lines = list(read_lines(path, is_sentence=False)) if path.is_file() else []
    with atomic_write(path) as stream:
        for line in lines:
            try:
                is_same_round = parse_json(line).get("round") == report["round"]
            except ValueError as error:
                raise InputError(
                    f"{path}: damaged ({error}); delete it, and repeat the command"
                ) from None
            if not is_same_round:
                stream.write(f"{line}\n")
        stream.write(json.dumps(report) + "\n")


def hash_source(path: Path) -> str:
    """Return the hash of a file, or of all files in a folder.

    Returns:
        The hash, or an empty string if the file is missing. A later step then fails to read the
        text.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    hashes = [sha256(file) for file in files if file.is_file()]
    if not hashes:
        return ""
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:12]


def read_gold(path: Path) -> frozenset[tuple[str, str]]:
    """Read reference pairs, one `sentence<TAB>sentence` per line.

    Raises:
        InputError: if a line has no tab.
    """
    pairs = set()
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise InputError(f"{path}, line {number}: {line!r:.60}; expected sentence<TAB>sentence")
        # The document reader normalizes whitespace in the same way.
        pairs.add((" ".join(first.split()), " ".join(second.split())))
    return frozenset(pairs)


def restore_last_checkpoint(checkpoint: Path) -> None:
    """Replace a missing or damaged last checkpoint with the newest intact one.

    If all checkpoints are damaged, they are removed, because fairseq-train would refuse to start.
    """
    try:
        read_checkpoint(checkpoint)
    except InputError:
        intact = newest_checkpoint(checkpoint.parent, checkpoint.name)
        if intact is None:
            for path in checkpoint.parent.glob("checkpoint*.pt"):
                path.unlink()
            return
        copy = checkpoint.with_suffix(".copied")
        shutil.copyfile(intact, copy)
        copy.replace(checkpoint)


def run_logged(command: Sequence[str], log: Path, lock: Sequence[int]) -> int:
    """Run a command and append its output to a log. SIGTERM to this process also stops the command.

    Args:
        command: program and arguments.
        log: path of the log file.
        lock: file descriptors of the lock, which the command inherits.

    Returns:
        The exit status of the command.
    """
    # subprocess.run() kills the command if an exception interrupts the call.
    with sigterm_as_interrupt(), log.open("a", encoding="utf-8") as stream:
        return subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, pass_fds=lock
        ).returncode
