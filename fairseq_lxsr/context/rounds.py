"""Training without parallel text: both stages and all rounds, each step kept when it is
finished.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.context.mining import LazyEmbeddings, MinedPair, mine_draws, precision
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import newest_checkpoint, read_checkpoint
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE, read_config
from fairseq_lxsr.errors import InputError, sigterm_as_interrupt
from fairseq_lxsr.export.folder import export_checkpoint
from fairseq_lxsr.files.lines import Lines, read_lines
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import PACKAGE, sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.options import (
    COMPUTE_DTYPES,
    CONTEXT_NEGATIVES,
    CPU_PRECISIONS,
    FILE_NAME,
    FileName,
    at_least,
    below,
    check_fields,
    option,
    positive,
)
from fairseq_lxsr.text.languages import check_language_code

# the presets of training/context/model.py, which only fairseq can import
SIZES = ("base", "small", "static", "static_mean", "tiny")
CONTEXT_ARCHITECTURES = tuple(f"context_transformer_{size}" for size in SIZES)


@dataclass(frozen=True)
class ContextConfig:
    """Options of both stages and all rounds; defaults are the values of Wang et al. where they
    state them.
    """

    documents: Mapping[str, str] = option("file or folder of each language")
    work: str = option("folder of all results", "work/context", FILE_NAME)
    arch: str = option(
        "a preset of context_transformer", "context_transformer_base", CONTEXT_ARCHITECTURES
    )
    vocab_size: int = option(
        "entries of the dictionary of all languages", 16_000, at_least(1, 10_000_000)
    )
    lowercase: bool = option("lower-case all text", True)
    split_han: bool = option("treat every Chinese character as a word", True)
    valid_documents: int = option("documents of each language that are held out", 10, at_least(1))
    shards: int = option(
        "parts of the training data, of whole documents; the first stage holds one at a time in memory",
        1,
        at_least(1, 512),
    )
    epochs: int = option("epochs of the first stage", 1, at_least(1))
    both_samples: bool = option(
        "in the first stage every sentence twice in an epoch, in its place and replaced by another; without it once, "
        "one of the two at random",
        False,
    )
    negatives: str = option(
        "sentences that the first stage puts in the place of another: of its language, or of the whole corpus, all "
        "languages together (Wang et al.)",
        "language",
        CONTEXT_NEGATIVES,
    )
    rounds: int = option("rounds of mining and regression", 3, at_least(0))
    draw: int = option("m, sentences of either language in one draw", 10_000, at_least(1))
    best: int = option("largest number of pairs kept of a draw", 1_000, at_least(1))
    pairs: int = option("pairs of a round", 100_000, at_least(1))
    start_model: str = option(
        "model folder of another encoder that mines the first round, or its name or address, for example of one "
        "trained on little parallel text; without it the model of the first stage does",
        "",
        FileName(optional=True),
    )
    gold: str = option(
        "file of true pairs, `sentence<TAB>sentence`; with it the precision of the mined pairs is reported",
        "",
        FileName(optional=True),
    )
    batch_size: int = option("samples of an update", 128, at_least(1))
    learning_rate: float = option(
        "initial learning rate, which decreases linearly to zero in every stage and round",
        1e-4,
        positive(),
    )
    dropout: float = option("dropout probability", 0.1, below(1))
    max_positions: int = option("pieces of a sentence that are read", 150, at_least(2))
    seed: int = option("of all draws and of training", 1, at_least(0))
    workers: int = option("processes that prepare text", 2, at_least(1, 1024))
    cpu_precision: str = option("precision of training on a CPU", "auto", CPU_PRECISIONS)
    encode_dtype: str = option("precision of encoding for mining", "float32", COMPUTE_DTYPES)

    @property
    def text_options(self) -> dict[str, Any]:
        """Options of the training text, as `preparation.documents.prepare_documents` takes them."""
        names = ("documents", "work", "valid_documents", "seed", "workers", "shards")
        subwords = {name: getattr(self, name) for name in ("vocab_size", "lowercase", "split_han")}
        return {name: getattr(self, name) for name in names} | {"subwords": subwords}

    def __post_init__(self):
        check_fields(self)
        for language, source in self.documents.items():
            check_language_code(language)
            FILE_NAME.check(f"documents: {language}", source)
        if self.rounds and len(self.documents) < 2:
            raise InputError(
                f"documents: {', '.join(self.documents) or 'none'}; expected two languages or more"
            )
        if not self.documents:
            raise InputError("documents: none; expected for example {en: en.txt, fr: fr.txt}")
        if os.pathsep in (work := os.path.abspath(self.work)):
            raise InputError(
                f"work: {work}; expected a path without {os.pathsep!r}, which separates shards"
            )


RECORD, REPORT = "context.json", "rounds.jsonl"
# options that may change between two calls on one work folder: always, and only before anything is
# mined
MAY_CHANGE = {"work", "rounds", "workers", "gold"}
OF_ROUNDS = {"draw", "best", "pairs", "start_model", "encode_dtype"}
SAVE_EVERY = 1000  # updates
DEFAULTS = {
    option.name: option.default for option in fields(ContextConfig) if option.default is not MISSING
}


class Rounds:
    """Runs the steps, each in its own folder: `stage1`, `round1`, `round2`, ...

    `prepare` prepares the text, or finds it unchanged, and returns its data folders and the folder
    of train.LANG; it is called with the work folder locked.
    """

    shards: Sequence[Path]
    text: Path

    def __init__(self, config: ContextConfig, prepare: Callable[[], tuple[Sequence[Path], Path]]):
        self.config, self.prepare = config, prepare
        self.work = Path(config.work)

    def run(self) -> Path:
        """Run all steps that are not finished; return the model folder of the last."""
        # the training process holds the lock too, even if it outlives this process
        with locked(self.work / "lock", self.work) as self.lock:
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
        folder = self.work / name
        model = folder / "model"
        if (model / CONFIG_FILE).is_file():
            print(f"{folder}: done, kept")
            return model
        folder.mkdir(parents=True, exist_ok=True)
        if previous is None:
            samples = self.config.epochs * [
                self._sentences_with_context(shard) for shard in self.shards
            ]
            options: tuple[str | Path, ...] = ("--both-samples",) * self.config.both_samples
            if self.config.negatives != "language":
                options += ("--negatives", self.config.negatives)
        else:
            mined = folder / "mined.tsv"
            if not mined.is_file():
                start = self.config.start_model if name == "round1" else ""
                self._mine(find_model(start) if start else previous, mined, name)
            samples = [2 * sum(1 for _ in read_lines(mined, is_sentence=False))]
            last = previous.parent / "checkpoints" / "checkpoint_last.pt"
            options = ("--mined", mined, "--disable-validation", "--finetune-from-model", last)
        self._train(folder, samples, options)
        export_checkpoint(folder / "checkpoints" / "checkpoint_last.pt", model, self.shards[0])
        print(f"{model}: exported")
        return model

    # -- mining

    def _mine(self, model: Path, output: Path, name: str) -> None:
        """Mine the pairs of one round, with their cosines under the model of the previous step."""
        config, start = self.config, time.perf_counter()
        encoder = SentenceEncoder.from_pretrained(model)
        texts = {language: Lines(self.text / f"train.{language}") for language in config.documents}
        files = {language: output.with_name(f"vectors.{language}.raw") for language in texts}
        embedded = {
            language: LazyEmbeddings(encoder, lines, config.encode_dtype, files[language])
            for language, lines in texts.items()
        }
        seed = config.seed * 1000 + int(name.removeprefix("round"))
        try:
            pairs, seconds = mine_draws(embedded, config.draw, config.best, config.pairs, seed)
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
        # before the pairs, because a round that has them is not mined again
        add_report(self.work / REPORT, report)
        with atomic_write(output) as stream:
            stream.writelines(f"{row}\n" for row in rows(pairs, texts))
        print(
            f"{output}: {len(pairs):,} pairs, mean CSLS {report['mean CSLS']:.3f}, mean cosine "
            f"{report['mean cosine']:.3f}"
            + (f", precision {report['precision']:.3f}" if config.gold else "")
            + f"; {seconds['draws']:.0f} draws, encoding {seconds['encode']:.0f} s, search {seconds['search']:.0f} s"
        )

    # -- training

    def _train(self, folder: Path, samples: Sequence[int], options: tuple) -> None:
        """Train one step; `samples` has the size of every epoch; an epoch of fairseq is one
        shard.
        """
        config, log = self.config, folder / "train.log"
        updates = sum(math.ceil(count / config.batch_size) for count in samples)
        data = os.pathsep.join(str(shard.absolute()) for shard in self.shards)
        command = [
            *(sys.executable, "-m", "fairseq_cli.train", data, "--user-dir", PACKAGE),
            *("--task", "sent_context", "--criterion", "sent_context_loss", "--arch", config.arch),
            *("--langs", ",".join(config.documents)),
            *("--max-positions", config.max_positions, "--dropout", config.dropout),
            *(
                "--batch-size",
                config.batch_size,
                "--max-epoch",
                len(samples),
                "--optimizer",
                "torch_adam",
            ),
            *(
                "--lr",
                config.learning_rate,
                "--lr-scheduler",
                "polynomial_decay",
                "--total-num-update",
                updates,
            ),
            *(
                "--cpu-precision",
                config.cpu_precision,
                "--seed",
                config.seed,
                "--log-format",
                "simple",
            ),
            *("--save-dir", (folder / "checkpoints").absolute(), "--no-epoch-checkpoints"),
            *("--save-interval-updates", SAVE_EVERY, "--keep-interval-updates", 1),
            *(
                "--distributed-world-size",
                1,
            ),  # the updates and the learning rate are counted for one
            *(option.absolute() if isinstance(option, Path) else option for option in options),
        ]
        print(f"{folder}: training, {updates:,} updates (log: {log})", flush=True)
        restore_last_checkpoint(folder / "checkpoints" / "checkpoint_last.pt")
        start, said = (
            time.perf_counter(),
            sum(1 for _ in read_lines(log, is_sentence=False)) if log.is_file() else 0,
        )
        if run_logged(list(map(str, command)), log, self.lock):
            lines = [
                line
                for line in islice(read_lines(log, is_sentence=False), said, None)
                if line.strip()
            ]
            message = next(
                (line for line in reversed(lines) if ": error: " in line),
                lines[-1] if lines else "",
            )
            raise InputError(
                f"{log}: training failed ({message.split(': error: ')[-1]:.300}); correct it, run again"
            )
        print(
            f"{folder}: trained in {time.perf_counter() - start:.0f} s; {self._last_figures(log)}"
        )

    def _last_figures(self, log: Path) -> str:
        """Read the metrics of the last epoch from the log of fairseq-train."""
        wanted = ("loss", "accuracy")
        found = {}
        for line in read_lines(log, is_sentence=False):
            for kind, marker in (("train", "| train |"), ("valid", "| valid on ")):
                if marker in line:
                    fields = (field.strip().rpartition(" ") for field in line.split("|"))
                    found[kind] = ", ".join(
                        f"{name} {value}" for name, _, value in fields if name in wanted
                    )
        return "; ".join(f"{kind} {figures}" for kind, figures in found.items())

    def _sentences_with_context(self, shard: Path) -> int:
        """Count the samples of an epoch of the first stage: sentences that are not alone in their
        document.
        """
        count = 0
        for language in self.config.documents:
            sizes = np.diff(np.load(shard / f"train.{language}.documents.npy", allow_pickle=False))
            count += int(sizes[sizes > 1].sum())
        return count * (1 + self.config.both_samples)

    # -- the work folder

    def _check_record(self) -> dict[str, Any]:
        """Compute the options and hashes of the text; if training has begun, they must be those it
        began with.
        """
        path, documents = self.work / RECORD, dict(self.config.documents)
        now = asdict(self.config) | {"documents": documents}
        now["text"] = {
            language: hash_source(Path(source)) for language, source in documents.items()
        }
        begun = any(self.work.glob("stage1/checkpoints/*.pt")) or any(self.work.glob("*/model"))
        if begun and path.is_file():
            try:
                # an option that an older version did not have counts as its default
                before = DEFAULTS | parse_json(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(
                    f"{path}: not the options of an earlier run ({error!r}); take another work"
                ) from None
            may_change = (
                MAY_CHANGE if any(self.work.glob("round*/mined.tsv")) else MAY_CHANGE | OF_ROUNDS
            )
            for name in sorted(now.keys() - may_change):
                # the languages take turns, so their order is a part of the option
                if before.get(name) != now[name] or (
                    name == "documents" and [*before[name]] != [*documents]
                ):
                    raise InputError(
                        f"{path}: begun with {name} {before.get(name)!r}, not {now[name]!r}; take the same, or "
                        "another work"
                    )
        return now

    def _check_files(self) -> None:
        """Check the files that the rounds read, before days of training."""
        if self.config.gold:
            read_gold(Path(self.config.gold))
        if self.config.start_model and not (self.work / "round1" / "mined.tsv").is_file():
            read_config(find_model(self.config.start_model))


def rows(pairs: list[MinedPair], texts: dict[str, Lines]) -> Iterator[str]:
    """Format mined pairs as lines for the task sent_context; the text in the last columns is for
    people.
    """
    for pair in pairs:
        sides = list(zip(pair.languages, pair.sentences, strict=True))
        places = [str(value) for side in sides for value in side]
        said = [texts[language][number] for language, number in sides]
        yield "\t".join([f"{pair.score:.6f}", f"{pair.cosine:.6f}", *places, *said])


def add_report(path: Path, report: dict[str, Any]) -> None:
    """Add the line of a round to the file of reports; it replaces a line of the same round from a
    killed run.
    """
    lines = list(read_lines(path, is_sentence=False)) if path.is_file() else []
    with atomic_write(path) as stream:
        for line in lines:
            with contextlib.suppress(ValueError):  # a truncated line
                if parse_json(line).get("round") != report["round"]:
                    stream.write(f"{line}\n")
        stream.write(json.dumps(report) + "\n")


def hash_source(path: Path) -> str:
    """Hash a file, or all files of a folder; the hash is empty if there is none, which fails when
    it is read.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    hashes = [sha256(file) for file in files if file.is_file()]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:12] if hashes else ""


def read_gold(path: Path) -> frozenset[tuple[str, str]]:
    """Read true pairs, `sentence<TAB>sentence`."""
    found = set()
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        one, tab, other = line.partition("\t")
        if not tab:
            raise InputError(f"{path}, line {number}: {line!r:.60}; expected sentence<TAB>sentence")
        found.add((" ".join(one.split()), " ".join(other.split())))  # as in documents
    return frozenset(found)


def restore_last_checkpoint(checkpoint: Path) -> None:
    """Replace a last checkpoint that is missing or corrupt by the newest intact one: fairseq copies
    it.

    Where all are corrupt, they are removed: training would refuse to begin beside them.
    """
    try:
        read_checkpoint(checkpoint)
    except InputError:
        other = newest_checkpoint(checkpoint.parent, checkpoint.name)
        if other is None:
            for path in checkpoint.parent.glob("checkpoint*.pt"):
                path.unlink()
            return
        copy = checkpoint.with_suffix(".copied")
        shutil.copyfile(other, copy)
        copy.replace(checkpoint)


def run_logged(command: Sequence[str], log: Path, lock: Sequence[int]) -> int:
    """Run a command that inherits the descriptors of our lock; append its output to `log`; return
    its exit status.

    SIGTERM ends it together with us.
    """
    # on an exception, run() kills its child
    with sigterm_as_interrupt(), log.open("a", encoding="utf-8") as stream:
        return subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, pass_fds=lock
        ).returncode
