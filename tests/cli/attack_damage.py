"""Damages files that the package has written: a flipped bit, the end cut off, or emptied. Every
command that reads one must refuse it or give the same result as without damage.

`python tests/cli/attack_damage.py 1000` tries 1,000 damaged files and prints each failure.
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

import pytest
import small_model
import torch
import toy
from conftest import lxsr_here

from fairseq_lxsr.embeddings import write
from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH
from fairseq_lxsr.text.data_folder import keep_text
from fairseq_lxsr.text.tokenizer import hash_symbols, read_dictionary

PREPARE = "prepare --data raw/s --work w --valid-size 9 --test-size 9 --workers 1 --vocab-size 80"
MINE = "mine --source s.en --target s.fr --k 2"
EVALUATE = "eval xsr --model m --source s.en --target s.fr"
# Written for people and other processes; no command reads them.
NOT_READ = {"lock", ".lxsr-work", "prepare.json", "README.md"}


@dataclass(frozen=True)
class Reader:
    """A command, patterns of the files that it reads, and patterns of its outputs."""

    words: str
    inputs: str
    outputs: str


READERS = [
    Reader("embed --model m --input s.en --output o.npy", "m/*", "o.npy"),
    Reader("search --index i --input t.en --output o.tsv --k 2", "i/* i/*/* m/*", "o.tsv"),
    Reader("search --index i2 --input t.en --output o.tsv --k 2", "i2/* i2/*/*", "o.tsv"),
    Reader(f"{MINE} --model e --output o.tsv", "e/*", "o.tsv"),
    Reader(f"{MINE} --model m --output o.tsv --work k", "k/*", "o.tsv k/*.npy"),
    Reader("embed --model m --input s.en --output r/x.npy --resume", "r/*", "r/x.npy"),
    Reader("embed --model m --input s.en --output e/s.en.npy --resume", "e/s.en*", "e/s.en.npy"),
    Reader("export folder --checkpoint c/checkpoint_best.pt --output o", "c/*.pt c/text/*", "o/*"),
    Reader(
        "export folder --checkpoint c/checkpoint_best.pt --data w/data-bin --output o",
        "w/data-bin/[dst]*",
        "o/*",
    ),
    Reader("compare a.jsonl b.jsonl --draws 100", "a.jsonl b.jsonl", ""),
    Reader(PREPARE, "w/*/* w/*/*/*", "w/*/* w/*/*/*"),
]


def run_lxsr(words: str, folder: Path):
    """Run `lxsr` with small windows, so that interrupted embeddings have some rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "WINDOW", 20)
        return lxsr_here(*words.split(), check=False, folder=folder)


def write_files(folder: Path) -> None:
    """Write a file of every kind that a command reads."""
    small_model.write_folder(folder / "m")
    shutil.rmtree(folder / "m.data")
    toy.write(folder / "s", toy.sentences(60))
    toy.write(folder / "t", toy.sentences(20, seed=2))
    toy.write(folder / "raw" / "s", toy.sentences(200))
    (folder / "e").mkdir()
    (folder / "r").mkdir()
    commands = [
        "index --model m --input s.en --output i",
        "index --model m --input s.en --output i2 --kind int8",
        "embed --model m --input s.en --output e/s.en.npy",
        "embed --model m --input s.fr --output e/s.fr.npy",
        f"{MINE} --model m --output p.tsv --work k",
        f"{EVALUATE} --output a.jsonl",
        f"{EVALUATE} --output b.jsonl",
        PREPARE,
    ]
    for words in commands:
        assert not run_lxsr(words, folder).returncode, words
    interrupt_embedding(folder)
    data = folder / "w" / "data-bin"
    state = small_model.checkpoint_state(folder / "w" / "subwords", named=str(data))
    state["task_state"][DICTIONARY_HASH] = hash_symbols(read_dictionary(data / "dict.en.txt"))
    (folder / "c").mkdir()
    torch.save(state, folder / "c" / "checkpoint_best.pt")
    keep_text(data, folder / "c")


def interrupt_embedding(folder: Path) -> None:
    """Leave the files of a command that stopped after two windows."""
    append = write.EmbeddingsFile.append
    number_of_windows = 0

    def append_or_stop(self, *arguments):
        nonlocal number_of_windows
        if number_of_windows == 2:
            raise ZeroDivisionError
        append(self, *arguments)
        number_of_windows += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write.EmbeddingsFile, "append", append_or_stop)
        run_lxsr("embed --model m --input s.en --output r/x.npy", folder)


def damage(content: bytes, random_numbers: random.Random) -> bytes:
    """The content with a flipped bit, cut off, or empty."""
    kind = random_numbers.random()
    if kind < 0.8:
        position = random_numbers.randrange(len(content))
        damaged = bytearray(content)
        damaged[position] ^= 1 << random_numbers.randrange(8)
        return bytes(damaged)
    if kind < 0.95:
        return content[: random_numbers.randrange(len(content))]
    return b""


def first_difference(content: bytes, damaged: bytes) -> int:
    for position, (before, after) in enumerate(zip(content, damaged, strict=False)):
        if before != after:
            return position
    return len(damaged)


def files(folder: Path, patterns: str) -> list[Path]:
    """The files of the patterns that have content and are read by commands."""
    paths = set()
    for pattern in patterns.split():
        for path in folder.glob(pattern):
            if path.is_file() and path.stat().st_size and path.name not in NOT_READ:
                paths.add(path)
    return sorted(paths)


def outputs(folder: Path, reader: Reader) -> dict[str, bytes]:
    """The outputs of a command, without JSON files: these have times, and the numbers in them are
    in other files, too.
    """
    contents = {}
    for path in files(folder, reader.outputs):
        if path.suffix != ".json":
            contents[str(path.relative_to(folder))] = path.read_bytes()
    return contents


class Campaign:
    """Runs commands with damaged files, and compares the results with those of intact files."""

    def __init__(self, folder: Path):
        self.folder = folder / "good"
        self.copy = folder / "try"
        self.folder.mkdir(parents=True)
        write_files(self.folder)
        self.counts: Counter[str] = Counter()
        self.expected: dict[Reader, dict[str, bytes]] = {}
        for reader in READERS:
            result = self.run(reader)
            assert not result.returncode, result.stderr
            self.expected[reader] = outputs(self.copy, reader) or {"": result.stdout.encode()}

    def run(self, reader: Reader, path: Path | None = None, content: bytes = b""):
        """Run a command over a copy, with another content of a file."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder, self.copy, symlinks=True)
        if path is not None:
            (self.copy / path).write_bytes(content)
        return run_lxsr(reader.words, self.copy)

    def try_one(self, random_numbers: random.Random) -> str | None:
        """Damage one file, and read it.

        Returns:
            A description of what went wrong, or None.
        """
        reader = random_numbers.choice(READERS)
        path = random_numbers.choice(files(self.folder, reader.inputs)).relative_to(self.folder)
        content = (self.folder / path).read_bytes()
        damaged = damage(content, random_numbers)
        result = self.run(reader, path, damaged)
        position = first_difference(content, damaged)
        sizes = f"from byte {position} of {len(content)}, {len(damaged)} left"
        description = f"{path} ({sizes}): lxsr {reader.words}"
        if "Traceback" in result.stdout + result.stderr or result.returncode not in (0, 2):
            return f"{description}: status {result.returncode}\n{result.stderr[-1500:]}"
        if result.returncode == 2:
            self.counts["refused"] += 1
            errors = result.stderr.count("lxsr: error: ")
            if errors != 1:
                return f"{description}: {errors} lines of error\n{result.stderr}"
            return None
        if (outputs(self.copy, reader) or {"": result.stdout.encode()}) == self.expected[reader]:
            self.counts["the same result"] += 1
            return None
        return f"{description}: used, with another result\n{result.stdout[-500:]}{result.stderr[-500:]}"


def main(count: int, seed: int = 1) -> int:
    """Print how many damaged files were refused, and each failure.

    Returns:
        The number of failures.
    """
    random_numbers = random.Random(seed)
    number_of_failures = 0
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder) / "campaign")
        for number in range(count):
            if number % 100 == 0:
                print(f"{number:,}: {dict(campaign.counts)}", flush=True)
            problem = campaign.try_one(random_numbers)
            if problem:
                print(problem, flush=True)
                number_of_failures += 1
        print(f"{count:,} damaged files: {dict(campaign.counts)}, {number_of_failures} failures")
    return number_of_failures


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), *map(int, sys.argv[2:]))))
