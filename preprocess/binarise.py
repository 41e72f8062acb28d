"""Pieces and fairseq-preprocess: the folder that fairseq-train reads."""

import importlib.util
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import read_lines
from fairseq_lxsr.text import SENTENCEPIECE_FILE, TEXT_FILE, TextOptions, Tokenizer
from preprocess.corpus import SPLITS
from preprocess.stages import run_stage
from preprocess.subwords import DICTIONARY_FILE

FAIRSEQ_MISSING = (
    "fairseq is not installed; training needs it: run `make install` in the project, or "
    "pip install fairseq-lxsr[train], then pip install --no-deps --no-build-isolation fairseq-fixed==0.12.3.1"
)
LINES_AT_ONCE = 10_000


def binarise(folder: Path, corpora: dict[tuple[str, str], Path], subwords: Path, workers: int = 2) -> dict:
    """The binarise stage: every split of every pair through SentencePiece and fairseq-preprocess.

    Args:
        corpora: corpus folder by (source, target).
    Raises: InputError without fairseq, or with what fairseq-preprocess says.
    """
    if importlib.util.find_spec("fairseq_cli") is None:
        raise InputError(FAIRSEQ_MISSING)
    texts = {
        pair: [corpus / f"{split}.{language}" for split in SPLITS for language in pair]
        for pair, corpus in corpora.items()
    }
    for path in itertools.chain(*texts.values()):
        if not path.is_file():
            raise InputError(f"{path}: no such file; make the corpus first")
    inputs = [*itertools.chain(*texts.values()), *(subwords / name for name in (SENTENCEPIECE_FILE, DICTIONARY_FILE))]

    def build(work: Path) -> dict:
        tokenizer = Tokenizer(subwords / SENTENCEPIECE_FILE, TextOptions.load(subwords / TEXT_FILE))
        for pair, paths in texts.items():
            with tempfile.TemporaryDirectory(dir=work.parent, prefix=".pieces.") as pieces:
                for path in paths:
                    write_pieces(path, Path(pieces) / path.name, tokenizer)
                run_fairseq_preprocess(Path(pieces), work, *pair, subwords / DICTIONARY_FILE, workers)
        for name in (SENTENCEPIECE_FILE, TEXT_FILE):
            shutil.copy(subwords / name, work / name)
        return {"pairs": ["-".join(pair) for pair in corpora]}

    report = run_stage(folder, {"pairs": ["-".join(pair) for pair in corpora]}, inputs, build)
    print(f"{folder}: fairseq data of {', '.join(report['pairs'])}")
    return report


def write_pieces(text: Path, output: Path, tokenizer: Tokenizer) -> None:
    lines = read_lines(text)
    with open(output, "w", encoding="utf-8", newline="\n") as stream:
        while block := list(itertools.islice(lines, LINES_AT_ONCE)):
            stream.writelines(" ".join(pieces) + "\n" for pieces in tokenizer.pieces(block))


def run_fairseq_preprocess(pieces: Path, output: Path, source: str, target: str, dictionary: Path, workers: int):
    languages: Sequence[str] = ("--source-lang", source, "--target-lang", target)
    prefixes = itertools.chain(*((f"--{split}pref", str(pieces / split)) for split in SPLITS))
    command = [
        *(sys.executable, "-m", "fairseq_cli.preprocess", *languages, *prefixes),
        *("--srcdict", str(dictionary), "--joined-dictionary", "--destdir", str(output), "--workers", str(workers)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"fairseq-preprocess failed on {source}-{target}: {reason}")
