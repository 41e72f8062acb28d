"""Commands of every verb over small files, and what goes wrong with one: an option, or a file that
it reads.
"""

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

SECONDS, MEGABYTES = 60, 1500  # of the processor; more for one command over these files is a defect
LEFTOVER = re.compile(r"\.(tmp|partial|progress|lock|old)\b")
M, TEXTS = "--model in/model", "--source in/s.en --target in/s.fr"
HELD_OUT = "--valid-size 5 --test-size 5"
COMMANDS = {  # the words that lead to a parser of the command line, and what it is given; outputs are in out/
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
# these need a network, train or do not end
NOT_ATTACKED = {"corpus get", "run", "serve", "train", "train-context"}
MADE = {"export": "in/model/README.md"}  # anew
SLOW = {"--epochs", "--seeds", "--draws"}  # so many times the work is what a large number asks for
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
    toy.write(
        inputs / "m", [(f"{line} in the house is 7", other) for line, other in toy.sentences(20)]
    )
    toy.write_dataset(inputs / "flores", datasets()["flores200-dev"])
    rows = (
        f"{number}\t{source}\t{target}\n"
        for number, (source, target) in enumerate(toy.sentences(20))
    )
    (inputs / "pairs.tsv").write_text("".join(rows))
    texts = [source for source, _ in toy.sentences(20)]
    (inputs / "texts.tsv").write_text(
        "".join(f"{number}\t{text}\n" for number, text in enumerate(texts))
    )
    (inputs / "relevant.tsv").write_text("".join(f"{number}\t{number}\n" for number in range(20)))
    shutil.copy(inputs / "pairs.tsv", inputs / "rated.tsv")
    changed = {
        other: {"errtype": "Entity", "src": line}
        for (line, _), (other, _) in pairwise(toy.sentences(20))
    }
    (inputs / "errors.json").write_text(json.dumps(changed))
    (inputs / "sources.json").write_bytes(
        (ROOT / "examples" / "pretrained" / "sources.json").read_bytes()
    )
    for file in ("a.jsonl", "b.jsonl"):
        lxsr_here("eval", "xsr", *f"{M} {TEXTS} --output in/{file}".split(), folder=folder)
    (inputs / "run").mkdir()
    shutil.copy(inputs / "a.jsonl", inputs / "run")
    log = '2026-11-21 | INFO | train_inner | {"epoch": 1, "loss": "14.1", "num_updates": "50"}\n'
    (inputs / "run" / "train.log").write_text(log)
    toy.write(folder / "longer" / "s", toy.sentences(300))
    work = f"--data longer/s --work in/work {HELD_OUT} --workers 1 --vocab-size 80"
    lxsr_here("prepare", *work.split(), folder=folder)
    shutil.rmtree(folder / "longer")
    lxsr_here(
        "index",
        *f"{M} --input in/s.en --output in/index --kind int8".split(),
        folder=folder,
    )
    return inputs


@dataclass
class Case:
    """A command line, what becomes of the folder before it runs, and what is wrong, for people."""

    words: list[str]
    spoil: Callable[[Path], object]
    what: str


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command that takes its options."""
    return next(one for one in parsers(make_parser(name.split()[0])) if one.prog == f"lxsr {name}")


def all_commands() -> set[str]:
    """The words that lead to each parser of the command line."""
    return {one.prog.removeprefix("lxsr ") for verb in VERBS for one in parsers(make_parser(verb))}


@st.composite
def cases(draw, name: str, inputs: Path):
    """A case of one command: an option or a file, odd."""
    words = COMMANDS[name].split()
    kind = draw(st.sampled_from(["value", "value", "value", "file", "file", "drop", "twice"]))
    if kind == "file":
        path, content = draw(odd_file(words, inputs))
        if path is not None:
            what = f"{path}: {content!r:.200}"
            return Case([*name.split(), *words], lambda folder: put(folder / path, content), what)
    flags = [place for place, word in enumerate(words) if word.startswith("--")]
    if kind in ("drop", "twice") and flags:
        start = draw(st.sampled_from(flags))
        end = min([place for place in flags if place > start], default=len(words))
        repeated = words[start:end] * 2 if kind == "twice" else []
        words = [*words[:start], *repeated, *words[end:]]
    else:
        words = draw(odd_option(name, words))
    return Case([*name.split(), *words], lambda folder: None, kind)


@st.composite
def odd_option(draw, name: str, words: list[str]):
    """The words with another value for one option or argument, whether it is among them or not."""
    actions = [action for action in parser_of(name)._actions if action.dest not in ("help", "to")]
    action = draw(st.sampled_from(actions)) if actions else None
    if action is None or not action.option_strings:
        places = [
            place
            for place in range(len(words))
            if place == 0 or not words[place - 1].startswith("--")
        ]
        place = draw(st.sampled_from(places or [0]))
        return [*words[:place], draw(st.sampled_from(TEXT)), *words[place + 1 :]]
    option = action.option_strings[-1]
    if action.nargs == 0:
        return [*words, option]
    value = draw(st.sampled_from(values(action, words)))
    if option not in words:
        return [*words, f"{option}={value}"]
    place = words.index(option)
    return [*words[:place], f"{option}={value}", *words[place + 2 :]]


def values(action: argparse.Action, words: list[str]) -> tuple[str, ...]:
    """Odd values for an option, by its kind; the files of the command are among them."""
    if action.metavar in ("N", "MB", "SCORE"):
        return NUMBERS if action.option_strings[-1] in SLOW else NUMBERS + LARGE
    if action.choices:
        return (*action.choices, "", "x", next(iter(action.choices)).upper())
    if re.search(r"FILE|FOLDER|DIR|PATH|PREFIX|TEMPLATE", str(action.metavar)):
        files = [word for word in words if "/" in word]
        return (*NAMES, "in/s.en/x", *files, *(f"en={file}" for file in files))
    return TEXT


@st.composite
def odd_file(draw, words: list[str], inputs: Path):
    """The path of a file that the words name, from the folder of `in`, and its bytes: None for a
    folder, or a link.
    """
    named = [inputs.parent / re.sub(r"\{.*", "", word) for word in words if word.startswith("in/")]
    files = sorted({file for path in named for file in beneath(path)})
    if not files:
        return None, None
    file = draw(st.sampled_from(files))
    content = file.read_bytes()
    wide = st.just(content.decode("latin-1").encode("utf-16"))
    how = [st.sampled_from([None, "loop"]), odd_bytes(content), odd_bytes(content), wide]
    if file.suffix == ".json":
        how.append(odd_json(json.loads(content)))
    return file.relative_to(inputs.parent), draw(st.one_of(how))


def beneath(path: Path) -> list[Path]:
    """The files that a word stands for: one, those in a folder, or those with a prefix."""
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file()]
    return (
        [path]
        if path.is_file()
        else [file for file in path.parent.glob(f"{path.name}*") if file.is_file()]
    )


def put(path: Path, content: bytes | str | None) -> None:
    """Another content for a file: bytes, a folder (None) or a link to itself."""
    path.unlink()
    if content is None:
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(content)


def attack(case: Case, inputs: Path, folder: Path) -> str | None:
    """Run a case over a copy of the inputs. Returns: what is wrong with how it ended."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder / "in")
    (folder / "out").mkdir()
    case.spoil(folder)
    before, began, memory = contents(folder), time.process_time(), peak()
    done = lxsr_here(*case.words, check=False, folder=folder)
    after, said = contents(folder), done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if re.match("lxsr.*: error: ", line)]
    made = MADE.get(case.words[0], "out")
    spoilt = [
        name for name in before if not kept(name, before[name], after) and not name.startswith(made)
    ]
    left = [name for name in after.keys() - before.keys() if LEFTOVER.search(name)]
    expected = {0: 0, 2: 1}
    problems = {
        f"exit status {done.returncode}": done.returncode not in expected,
        f"{len(errors)} lines of error": len(errors) != expected.get(done.returncode),
        "a traceback": "Traceback" in said,
        f"changed {spoilt}": spoilt,
        f"left {left}": left,
        f"{time.process_time() - began:.0f} s": time.process_time() - began > SECONDS,
        f"{peak() - memory:.0f} MB more": peak() - memory > MEGABYTES,
    }
    wrong = [problem for problem, found in problems.items() if found]
    return f"lxsr {case.words}\n{case.what}: {', '.join(wrong)}\n{said[-2000:]}" if wrong else None


def kept(name: str, content: bytes, after: dict[str, bytes]) -> bool:
    """Whether a file is as it was; scores may be added to."""
    now = after.get(name)
    return now is not None and (
        now.startswith(content) if name.endswith(".jsonl") else now == content
    )


def peak() -> float:
    """The most memory that this process had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
