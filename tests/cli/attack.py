"""Runs every command with one mistake: an odd value of an option, or an odd file that it reads."""

import argparse
import json
import re
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import small_model
import toy
from conftest import COMPATIBILITY, GOLDEN, ROOT, contents, lxsr_here
from hypothesis import strategies as st
from odd_files import odd_bytes, odd_json
from parsers import parsers

from fairseq_lxsr.cli.main import VERBS, make_parser
from fairseq_lxsr.evaluation.named_sets import datasets

# A command over these small files that takes more is a defect.
MAX_CPU_SECONDS = 60
MAX_MEGABYTES = 1500
LEFTOVER = re.compile(r"\.(tmp|partial|progress|lock|old)\b")
M = "--model in/model"
TEXTS = "--source in/s.en --target in/s.fr"
HELD_OUT = "--valid-size 5 --test-size 5"
# The arguments of each command. Inputs are in `in/`, outputs in `out/`.
COMMANDS = {
    "corpus list": "--lang-pair en-fr",
    "corpus show": "Tatoeba",
    "prepare": f"--data in/s --work out --filters length --repeats side --exclude in/t.en {HELD_OUT} --workers 1 "
    "--vocab-size 80",
    "recipes": "",
    "user-dir": "",
    "export folder": "--checkpoint in/best.pt --data in/data --output out/model --dtype float16",
    "export card": f"{M} --scores in/a.jsonl --sources in/sources.json",
    "export sentence-transformers": f"{M} --output out/st",
    "export web": f"{M} --input in/s.en in/t.en --output out/web --title x --example x",
    "export hub": f"{M} --output out/hub --scores in/a.jsonl --sources in/sources.json",
    "export onnx": f"{M} --output out/onnx",
    "embed": f"{M} --input in/s.en in/t.en --output out/x.npy --output-dtype int8 --resume --shard 1/2 --batch-size 8",
    "eval bucc": f"{M} --data in/bucc/{{pair}} --lang-pairs fr-en --k 2 --pairs-output out/p.tsv --output out/a.jsonl",
    "eval mldoc": f"{M} --data in/mldoc --langs en,fr --epochs 2 --seeds 1 --output out/a.jsonl",
    "eval mteb-bitext": f"{M} --dataset flores200-dev --data in/flores --lang-pairs en-fr --output out/a.jsonl",
    "eval sts": f"{M} --data in/rated --lang-pairs en-fr --columns 2,3,1 --output out/a.jsonl",
    "eval tatoeba": f"{M} {TEXTS} --output out/a.jsonl",
    "eval minimal-pairs": f"{M} --data in/m --lang-pairs fr-en --pairs-output out/p.tsv --output out/a.jsonl",
    "eval passages": f"{M} --queries in/texts.tsv --passages in/texts.tsv --relevant in/relevant.tsv "
    "--distractors in/t.en --output out/a.jsonl",
    "eval titles": f"{M} --data in/mldoc --langs en,fr --epochs 2 --seeds 1 --classifier linear",
    "eval xnli": f"{M} --data in/xnli --langs en,fr --epochs 2 --seeds 1 --output out/a.jsonl",
    "eval xsim": f"{M} --data in/s.{{lang}} --lang-pairs en-fr --output out/a.jsonl",
    "eval xsim++": f"{M} {TEXTS} --error-types in/errors.json --augmented in/t.en --output out/a.jsonl",
    "eval xsr": f"{M} {TEXTS} --metric nn,margin --output out/a.jsonl",
    "compare": "in/a.jsonl in/b.jsonl --draws 100",
    "mine": f"{M} {TEXTS} --output out/p.tsv --threshold 0.5 --k 2 --kind binary --work out/work",
    "score": f"{M} --input in/pairs.tsv --columns 2,3 --output out/scores.tsv --margin ratio --k 2",
    "index": f"{M} --input in/s.en --output out/index --kind int8",
    "search": "--index in/index --input in/t.en --output out/hits.tsv --k 2",
    "report": f"in/run --output out/page.html {M} {TEXTS}",
}
# These need a network, train, or do not end.
NOT_ATTACKED = {"corpus get", "run", "serve", "train", "train-context"}
# A file among the inputs that a command writes.
OVERWRITTEN = {"export": "in/model/README.md"}
# With a large number, these options rightly take long.
SLOW = {"--epochs", "--seeds", "--draws"}
NUMBERS = (
    "0",
    "1",
    "2",
    "7",
    "-1",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-30",
    "",
    "x",
    "\uff11",
    "0x10",
    "1_0",
)
LARGE = ("1000000", "2147483647", "2147483648", "9" * 30)
NAMES = (
    "",
    " ",
    "-",
    ".",
    "..",
    "out",
    "in",
    "missing/f",
    "a\0b",
    "x" * 300,
    "é" * 200,
    "\udcff",
    "a\nb",
)
TEXT = (
    *NAMES[:5],
    "en-fr",
    "fr-en",
    "en",
    "{}",
    "{0}",
    "{lang",
    "%s",
    "--",
    "all",
    "nn",
    "cpu",
    "cuda:9",
    "x=in/s.en",
)


def write_inputs(folder: Path) -> Path:
    """A folder `in` with an input of every kind, which all commands take."""
    inputs = folder / "in"
    small_model.write_folder(inputs / "model")
    shutil.rmtree(inputs / "model.data")
    shutil.copytree(COMPATIBILITY / "data", inputs / "data")
    shutil.copy(COMPATIBILITY / "best.pt", inputs)
    for name in ("bucc", "mldoc", "xnli"):
        shutil.copytree(GOLDEN / name, inputs / name)
    toy.write(inputs / "s", toy.sentences(60))
    toy.write(inputs / "t", toy.sentences(20, seed=2))
    toy.write_dataset(inputs / "flores", datasets()["flores200-dev"])
    minimal_pairs = []
    pairs_table = ""
    texts_table = ""
    relevant_table = ""
    for number, (source, target) in enumerate(toy.sentences(20)):
        minimal_pairs.append((f"{source} in the house is 7", target))
        pairs_table += f"{number}\t{source}\t{target}\n"
        texts_table += f"{number}\t{source}\n"
        relevant_table += f"{number}\t{number}\n"
    toy.write(inputs / "m", minimal_pairs)
    (inputs / "pairs.tsv").write_text(pairs_table)
    (inputs / "rated.tsv").write_text(pairs_table)
    (inputs / "texts.tsv").write_text(texts_table)
    (inputs / "relevant.tsv").write_text(relevant_table)
    errors = {}
    for (source, _), (next_source, _) in pairwise(toy.sentences(20)):
        errors[next_source] = {"errtype": "Entity", "src": source}
    (inputs / "errors.json").write_text(json.dumps(errors))
    shutil.copy(ROOT / "examples" / "pretrained" / "sources.json", inputs)
    for file in ("a.jsonl", "b.jsonl"):
        lxsr_here("eval", "xsr", *f"{M} {TEXTS} --output in/{file}".split(), folder=folder)
    (inputs / "run").mkdir()
    shutil.copy(inputs / "a.jsonl", inputs / "run")
    log = '2026-11-21 | INFO | train_inner | {"epoch": 1, "loss": "14.1", "num_updates": "50"}\n'
    (inputs / "run" / "train.log").write_text(log)
    toy.write(folder / "longer" / "s", toy.sentences(300))
    prepare = f"prepare --data longer/s --work in/work {HELD_OUT} --workers 1 --vocab-size 80"
    lxsr_here(*prepare.split(), folder=folder)
    shutil.rmtree(folder / "longer")
    index = f"index {M} --input in/s.en --output in/index --kind int8"
    lxsr_here(*index.split(), folder=folder)
    return inputs


@dataclass
class Case:
    """A command line, a function that damages its folder, and a description of the mistake."""

    words: list[str]
    damage: Callable[[Path], object]
    mistake: str


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of the options of a command."""
    verb = name.split()[0]
    for parser in parsers(make_parser(verb)):
        if parser.prog == f"lxsr {name}":
            return parser
    raise ValueError(name)


def all_commands() -> set[str]:
    """The names of all commands: a verb, or a verb and what it does."""
    names = set()
    for verb in VERBS:
        for parser in parsers(make_parser(verb)):
            names.add(parser.prog.removeprefix("lxsr "))
    return names


@st.composite
def cases(draw, name: str, inputs: Path):
    """A case of one command, with an odd option or an odd file."""
    words = COMMANDS[name].split()
    kind = draw(st.sampled_from(["value", "value", "value", "file", "file", "drop", "repeat"]))
    if kind == "file":
        path, content = draw(odd_file(words, inputs))
        if path is not None:
            mistake = f"{path}: {content!r:.200}"
            words = [*name.split(), *words]
            return Case(words, lambda folder: replace_file(folder / path, content), mistake)
    option_positions = [index for index, word in enumerate(words) if word.startswith("--")]
    if kind in ("drop", "repeat") and option_positions:
        start = draw(st.sampled_from(option_positions))
        later_positions = [position for position in option_positions if position > start]
        end = min(later_positions, default=len(words))
        repeated = words[start:end] * 2 if kind == "repeat" else []
        words = [*words[:start], *repeated, *words[end:]]
    else:
        words = draw(odd_option(name, words))
    return Case([*name.split(), *words], lambda folder: None, kind)


@st.composite
def odd_option(draw, name: str, words: list[str]):
    """The words with another value of one option or argument, which may be new."""
    actions = [action for action in parser_of(name)._actions if action.dest not in ("help", "to")]
    action = draw(st.sampled_from(actions)) if actions else None
    if action is None or not action.option_strings:
        positions = []
        for position in range(len(words)):
            if position == 0 or not words[position - 1].startswith("--"):
                positions.append(position)
        position = draw(st.sampled_from(positions or [0]))
        return [*words[:position], draw(st.sampled_from(TEXT)), *words[position + 1 :]]
    option = action.option_strings[-1]
    if action.nargs == 0:
        return [*words, option]
    value = draw(st.sampled_from(odd_values(action, words)))
    if option not in words:
        return [*words, f"{option}={value}"]
    position = words.index(option)
    return [*words[:position], f"{option}={value}", *words[position + 2 :]]


def odd_values(action: argparse.Action, words: list[str]) -> tuple[str, ...]:
    """Odd values of an option by its kind, among them the files of the command."""
    if action.metavar in ("N", "MB", "SCORE"):
        if action.option_strings[-1] in SLOW:
            return NUMBERS
        return NUMBERS + LARGE
    if action.choices:
        return (*action.choices, "", "x", next(iter(action.choices)).upper())
    if re.search(r"FILE|FOLDER|DIR|PATH|PREFIX|TEMPLATE", str(action.metavar)):
        files = [word for word in words if "/" in word]
        return (*NAMES, "in/s.en/x", *files, *(f"en={file}" for file in files))
    return TEXT


@st.composite
def odd_file(draw, words: list[str], inputs: Path):
    """The path of an input that the words name, relative to the parent of `inputs`, and its new
    content: bytes, None for a folder, or `loop` for a link to itself.
    """
    files = set()
    for word in words:
        if word.startswith("in/"):
            files.update(files_of(inputs.parent / re.sub(r"\{.*", "", word)))
    if not files:
        return None, None
    file = draw(st.sampled_from(sorted(files)))
    content = file.read_bytes()
    as_utf16 = st.just(content.decode("latin-1").encode("utf-16"))
    contents = [st.sampled_from([None, "loop"]), odd_bytes(content), odd_bytes(content), as_utf16]
    if file.suffix == ".json":
        contents.append(odd_json(json.loads(content)))
    return file.relative_to(inputs.parent), draw(st.one_of(contents))


def files_of(path: Path) -> list[Path]:
    """The files that an argument means: one file, those of a folder, or those with a prefix."""
    if path.is_file():
        return [path]
    if path.is_dir():
        paths = path.rglob("*")
    else:
        paths = path.parent.glob(f"{path.name}*")
    return [file for file in paths if file.is_file()]


def replace_file(path: Path, content: bytes | str | None) -> None:
    """Replace a file by other bytes, a folder (None) or a link to itself (`loop`)."""
    path.unlink()
    if content is None:
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(content)


def attack(case: Case, inputs: Path, folder: Path) -> str | None:
    """Run a case over a copy of the inputs.

    Returns:
        A description of what went wrong, or None.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder / "in")
    (folder / "out").mkdir()
    case.damage(folder)
    files_before = contents(folder)
    memory_before = peak_memory()
    start = time.process_time()
    result = lxsr_here(*case.words, check=False, folder=folder)
    seconds = time.process_time() - start
    memory = peak_memory() - memory_before
    files_after = contents(folder)

    problems = []
    output = result.stdout + result.stderr
    errors = [line for line in result.stderr.splitlines() if re.match("lxsr.*: error: ", line)]
    expected_errors = {0: 0, 2: 1}
    if result.returncode not in expected_errors:
        problems.append(f"exit status {result.returncode}")
    if len(errors) != expected_errors.get(result.returncode):
        problems.append(f"{len(errors)} lines of error")
    if "Traceback" in output:
        problems.append("a traceback")
    overwritten = OVERWRITTEN.get(case.words[0], "out")
    for name, content in files_before.items():
        if not is_unchanged(name, content, files_after) and not name.startswith(overwritten):
            problems.append(f"changed {name}")
    for name in files_after.keys() - files_before.keys():
        if LEFTOVER.search(name):
            problems.append(f"left {name}")
    if seconds > MAX_CPU_SECONDS:
        problems.append(f"{seconds:.0f} s")
    if memory > MAX_MEGABYTES:
        problems.append(f"{memory:.0f} MB more")
    if not problems:
        return None
    return f"lxsr {case.words}\n{case.mistake}: {', '.join(problems)}\n{output[-2000:]}"


def is_unchanged(name: str, content: bytes, files: dict[str, bytes]) -> bool:
    """Whether a file is as it was; files of scores may be appended to."""
    if name not in files:
        return False
    if name.endswith(".jsonl"):
        return files[name].startswith(content)
    return files[name] == content


def peak_memory() -> float:
    """The most memory that this process has used so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
