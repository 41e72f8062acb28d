"""Files of ours with a flipped bit, cut off or empty, read by every verb that reads them: used
silently by none.

python tests/cli/attack_damage.py 1000 tries so many, and prints what was used although it was
damaged.
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
SCORED = (("s.en", "s.fr", "a"), ("s.en", "s.fr", "b"))
# written for people and other processes, read by none
BESIDE = {"lock", ".lxsr-work", "prepare.json", "README.md"}


@dataclass(frozen=True)
class Reader:
    """A command, the files of ours that it reads, and those that it writes from them."""

    words: str
    read: str  # patterns
    written: str


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


def here(words: str, folder: Path):
    """Run `lxsr` with small windows, so that interrupted embeddings have some rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "WINDOW", 20)
        return lxsr_here(*words.split(), check=False, folder=folder)


def write_files(folder: Path) -> None:
    """Write a file of every kind that a verb reads back."""
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
        *(
            f"embed --model m --input s.{language} --output e/s.{language}.npy"
            for language in ("en", "fr")
        ),
        f"{MINE} --model m --output p.tsv --work k",
        *(f"eval xsr --model m --source {s} --target {t} --output {o}.jsonl" for s, t, o in SCORED),
        PREPARE,
    ]
    for words in commands:
        assert not here(words, folder).returncode, words
    append, appended = write.EmbeddingsFile.append, []

    def stopped(self, *arguments):
        if len(appended) == 2:
            raise ZeroDivisionError
        appended.append(append(self, *arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write.EmbeddingsFile, "append", stopped)
        here("embed --model m --input s.en --output r/x.npy", folder)
    data = folder / "w" / "data-bin"
    state = small_model.checkpoint_state(folder / "w" / "subwords", named=str(data))
    state["task_state"][DICTIONARY_HASH] = hash_symbols(read_dictionary(data / "dict.en.txt"))
    (folder / "c").mkdir()
    torch.save(state, folder / "c" / "checkpoint_best.pt")
    keep_text(data, folder / "c")


def spoilt(content: bytes, draw: random.Random) -> bytes:
    """The content with a flipped bit, cut off, or nothing."""
    kind = draw.random()
    if kind < 0.8:
        place = draw.randrange(len(content))
        return (
            content[:place]
            + bytes([content[place] ^ 1 << draw.randrange(8)])
            + content[place + 1 :]
        )
    return content[: draw.randrange(len(content))] if kind < 0.95 else b""


def files(folder: Path, patterns: str) -> list[Path]:
    found = {
        path for pattern in patterns.split() for path in folder.glob(pattern) if path.is_file()
    }
    return sorted(path for path in found if path.name not in BESIDE and path.stat().st_size)


def outputs(folder: Path, reader: Reader) -> dict[str, bytes]:
    """What a command wrote; descriptions for people say when and from what, their numbers are in
    other files.
    """
    made = files(folder, reader.written)
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in made if path.suffix != ".json"
    }


class Campaign:
    """Damages copies of files, and compares what is made of them with what is made of the good
    ones.
    """

    def __init__(self, folder: Path):
        self.folder, self.copy = folder / "good", folder / "try"
        self.folder.mkdir(parents=True)
        write_files(self.folder)
        self.counts: Counter[str] = Counter()
        self.made: dict[Reader, dict[str, bytes]] = {}
        for reader in READERS:
            done = self.run(reader)
            assert not done.returncode, done.stderr
            self.made[reader] = outputs(self.copy, reader) or {"": done.stdout.encode()}

    def run(self, reader: Reader, path: Path | None = None, content: bytes = b""):
        """Run a command over a copy, with another content of a file."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder, self.copy, symlinks=True)
        if path is not None:
            (self.copy / path).write_bytes(content)
        return here(reader.words, self.copy)

    def try_one(self, draw: random.Random) -> str | None:
        """Damage one file, and read it. Returns: what is wrong with how that ended."""
        reader = draw.choice(READERS)
        path = draw.choice(files(self.folder, reader.read)).relative_to(self.folder)
        content = (self.folder / path).read_bytes()
        other = spoilt(content, draw)
        done = self.run(reader, path, other)
        errors = [line for line in done.stderr.splitlines() if line.startswith("lxsr: error: ")]
        place = next(
            (at for at, pair in enumerate(zip(content, other, strict=False)) if len({*pair}) > 1),
            len(other),
        )
        where = f"{path} (from {place} of {len(content)}, {len(other)} left): lxsr {reader.words}"
        if "Traceback" in done.stdout + done.stderr or done.returncode not in (0, 2):
            return f"{where}: status {done.returncode}\n{done.stderr[-1500:]}"
        if done.returncode == 2:
            self.counts["refused"] += 1
            return (
                None
                if len(errors) == 1
                else f"{where}: {len(errors)} lines of error\n{done.stderr}"
            )
        if (outputs(self.copy, reader) or {"": done.stdout.encode()}) == self.made[reader]:
            self.counts["the same result"] += 1
            return None
        return f"{where}: used, and the result is another\n{done.stdout[-500:]}{done.stderr[-500:]}"


def main(count: int, seed: int = 1) -> int:
    """Print how many damaged files were refused, and what was used. Returns: how many were."""
    draw, wrong = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder) / "campaign")
        for number in range(count):
            if number % 100 == 0:
                print(f"{number:,}: {dict(campaign.counts)}", flush=True)
            if found := campaign.try_one(draw):
                print(found, flush=True)
                wrong.append(found)
        print(
            f"{count:,} damaged files: {dict(campaign.counts)}, {len(wrong)} used silently or "
            "badly ended"
        )
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), *map(int, sys.argv[2:]))))
