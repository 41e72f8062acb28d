"""`lxsr run`: from aligned text to a model and its scores in one command; a rerun does what is missing."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fairseq_lxsr.cli.main import QUIET_OPTION
from fairseq_lxsr.cli.options import data_first
from fairseq_lxsr.errors import EXIT_STATUS, InputError
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.options import FILE_NAME, at_least, file_path
from fairseq_lxsr.text.languages import split_pair

DEMO = PACKAGE / "preparation" / "demo.en-fr.tsv.gz"
DEMO_NAME, MACHINE_CATALOGUES = "demo", "catalogues"
RUN_EPILOG = """Other options are those of fairseq-train, for example --max-update 500. With --disable-validation no
text is held out for validation, and the last checkpoint is taken, not the best. The text of the demo: Tatoeba,
https://tatoeba.org, CC BY 2.0 FR."""


def add_parser(verbs) -> None:
    parser = verbs.add_parser("run", description=__doc__, epilog=RUN_EPILOG, allow_abbrev=False)
    parser.add_argument(
        "data",
        type=FILE_NAME,
        metavar="PREFIX",
        help="own text, as for `lxsr prepare --data`: PREFIX.SRC and PREFIX.TGT aligned, FILE.tsv and others; demo: "
        "20,000 English-French sentences of everyday life; catalogues: the program messages of this machine",
    )
    parser.add_argument("--lang-pair", default="en-fr", metavar="SRC-TGT", help="its languages (default: en-fr)")
    parser.add_argument("--work", type=file_path, metavar="FOLDER", help="for all that is made (default: work/SRC-TGT)")
    parser.add_argument("--recipe", metavar="NAME", help="of `lxsr recipes` (default: best; --from: as `lxsr train`)")
    parser.add_argument(
        "--from",
        dest="start",
        type=FILE_NAME,
        metavar="MODEL",
        help="go on from a model without layers, a model folder or a model of this package: a language that it lacks, "
        "beside one that it has, or more text of two that it has",
    )
    parser.add_argument(
        "--teacher",
        type=FILE_NAME,
        metavar="MODEL",
        help="a model that has one of the languages and lacks the other: what is trained has word pieces of its own, "
        "and its vectors can be compared with those of MODEL, in all its languages",
    )
    parser.add_argument(
        "--vocab-size",
        type=at_least(1, 10_000_000),
        default=8000,
        metavar="N",
        help="word pieces, with --from most new ones (default: 8000)",
    )
    parser.set_defaults(run=run_all, others=[])


def run_all(args: argparse.Namespace) -> None:
    data_first(args)
    source, target = split_pair(args.lang_pair)
    pair = f"{source}-{target}"
    if args.data == DEMO_NAME and pair != "en-fr":
        raise InputError(f"--lang-pair {pair} with demo, whose text is en-fr; expected the PREFIX of own text")
    work = args.work or Path("work", pair)
    if (work / "checkpoints").exists() and not (work / "prepare.json").exists():
        raise InputError(f"{work}: has checkpoints and is no folder of this command; expected another --work")
    pieces, recipe, how = _choices(args)
    known = _known_side(args.teacher, pair) if args.teacher else ""
    text = [] if args.data == MACHINE_CATALOGUES else ["--data", DEMO if args.data == DEMO_NAME else args.data]
    sizes = ["--valid-size", 500, "--test-size", 1000] if args.data == DEMO_NAME else []
    validates = "--disable-validation" not in args.others  # without, all text trains, and no checkpoint is the best
    sizes += [] if validates else ["--valid-size", 0]
    checkpoint = work / "checkpoints" / f"checkpoint_{'best' if validates else 'last'}.pt"
    data, model, test = work / "data-bin", work / "model", work / "corpus" / pair / "test"
    lxsr, make, step = _lxsr, _lxsr, _step
    if args.quiet:  # only what eval prints is a result
        lxsr, step = partial(_lxsr, QUIET_OPTION), _no_step
        make = partial(lxsr, output=subprocess.DEVNULL)
    step("1/4 Text: clean and split it, learn word pieces, binarise")
    make("prepare", "--work", work, "--lang-pairs", pair, *text, *sizes, *pieces)
    taught = _teach(args.teacher, known, work, pair, make) if known else []
    step(f"2/4 Training {how}")
    best = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
    make("train", data, *recipe, *taught, *best, "--save-dir", work / "checkpoints", *args.others)
    step("3/4 Model folder: all that is needed to encode")
    make("export", "folder", "--checkpoint", checkpoint, "--output", model)
    step("4/4 Is the nearest neighbour of a held-out sentence its translation? (percent)")
    new = source if known == target else target
    beside: list[tuple[str, list[object]]] = (
        [("beside", [f"{known}={args.teacher}", f"{new}={model}"])] if known else []
    )
    compared = [*([] if known else _before(args.start, model, work)), ("trained", [model]), *beside]
    for name, models in compared:
        print(f"{name} ({', '.join(map(str, models))}):" if len(models) > 1 else f"{name}:", flush=True)
        (work / f"{name}.jsonl").unlink(missing_ok=True)
        which = [word for one in models for word in ("--model", one)]
        lxsr("eval", "xsr", *which, "--data", test, "--lang-pairs", pair, "--output", work / f"{name}.jsonl")
    if args.quiet:
        return
    _step("What to type next")
    index = work / "index"
    searched = work / "corpus" / pair / f"train.{new}"
    print(_command("index", "--model", model, "--input", searched, "--output", index))
    print(_command("search", "--index", index, *(["--model", args.teacher] if known else []), "Where is the station?"))
    print(_command("embed", "--model", model, "--input", "sentences.txt", "--output", "vectors.npy"))
    if len(compared) > 1:
        print(_command("compare", *(work / f"{name}.jsonl" for name, _ in compared)))
    print(_command("report", work))


def _choices(args: argparse.Namespace) -> tuple[list[object], list[object], str]:
    """Return the options of pieces, those of the recipe, and what is said of it."""
    start, recipe, pieces = args.start, args.recipe, args.vocab_size
    if start and args.teacher:
        raise InputError("--from and --teacher; expected --from for one model of all languages, or --teacher")
    if not start:
        recipe = recipe or ("same_space" if args.teacher else "best")
        return ["--vocab-size", pieces], ["--recipe", recipe], f"by recipe {recipe}"
    given = ["--recipe", recipe] if recipe else []
    return ["--from-model", start, "--new-pieces", pieces], ["--from", start, *given], f"goes on from {start}"


def _known_side(teacher: str, pair: str) -> str:
    """Return the language of a pair that a teacher has."""
    from fairseq_lxsr import SentenceEncoder  # numpy takes a moment
    from fairseq_lxsr.encoder.start import new_languages, pairs_of

    encoder = SentenceEncoder.from_pretrained(teacher)
    if not pairs_of(encoder):
        raise InputError(f"--teacher {teacher}: does not name its languages; expected a folder of `lxsr export folder`")
    new = new_languages(encoder, [pair], teacher)
    if not new:
        raise InputError(f"--teacher {teacher}: has both languages of {pair}; expected --from {teacher} for other text")
    (known,) = set(pair.split("-")) - set(new)
    return known


def _teach(teacher: str, known: str, work: Path, pair: str, make: Callable) -> list[object]:
    """Embed the text of the language that a teacher knows, and return the options with which a student learns it."""
    from fairseq_lxsr import SentenceEncoder

    encoder = SentenceEncoder.from_pretrained(teacher)
    folder = work / "teacher"
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid"):
        text, output = work / "corpus" / pair / f"{split}.{known}", folder / f"{split}.{pair}.{known}.npy"
        if text.stat().st_size:  # --disable-validation holds none out
            make("embed", "--model", teacher, "--input", text, "--output", output)
    widths = encoder.config.get("training", {}).get("options", {}).get("matryoshka")
    short = ["--matryoshka", widths] if widths else []
    return ["--teacher-embeddings", folder, "--encoder-embed-dim", encoder.output_dim, *short]


def _before(start: str | None, model: Path, work: Path) -> list[tuple[str, list[object]]]:
    """Return with what the trained model is compared: nothing where its start could not read the language."""
    if not start:
        return [("untrained", [f"{model}#untrained"])]
    from fairseq_lxsr.text.data_folder import STAGE_FILE  # numpy takes a moment

    new = json.loads((work / "subwords" / STAGE_FILE).read_text(encoding="utf-8"))["report"]["new pieces"]
    return [] if new else [("before", [start])]


def _step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def _no_step(title: str) -> None:
    """Say nothing, under --quiet."""


def _command(*words: object) -> str:
    return f"  {shlex.join(['lxsr', *map(str, words)])}"


def _lxsr(*words: object, output: int | None = None) -> None:
    """Run a verb in a process of its own; this command ends with its status, after its message."""
    done = subprocess.run([sys.executable, "-m", "fairseq_lxsr.cli.main", *map(str, words)], stdout=output)
    if done.returncode:
        sys.exit(done.returncode if done.returncode > 0 else EXIT_STATUS)
