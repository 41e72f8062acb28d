"""`lxsr report`: one HTML page from a folder with training logs, scores, a model and test text."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import add_any_model_options, add_options, filled, load_any
from fairseq_lxsr.errors import InputError, error_message
from fairseq_lxsr.evaluation.protocols.protocol import AlignedFiles, AlignedText
from fairseq_lxsr.files.lines import is_blank, read_parallel
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import file_path

if TYPE_CHECKING:
    from fairseq_lxsr.evaluation.score import Score
    from fairseq_lxsr.report import Sample
    from fairseq_lxsr.report.training_log import Curves

SHOWN_PAIRS = 5000
LOGS, SCORES = "**/*.log", "**/*.jsonl"


def add_parser(verbs) -> None:
    parser = verbs.add_parser("report", description=__doc__)
    parser.add_argument(
        "folder",
        type=file_path,
        metavar="DIR",
        help="with *.log of fairseq-train and *.jsonl of lxsr eval; the text is DIR/corpus/PAIR/test.LANG, or what "
        "--source or --data names",
    )
    parser.add_argument(
        "--output", type=file_path, metavar="FILE.html", help="default: DIR/report.html"
    )
    parser.add_argument("--title", help="default: Training of, and the name of the folder")
    add_any_model_options(parser, "DIR/model")
    add_options(parser, AlignedText)
    parser.set_defaults(run=report)


def report(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import model_files

    for library in ("plotly", "sklearn"):
        require(library, "report", "lxsr report")
    from fairseq_lxsr.report import write_report

    if not args.folder.is_dir():
        raise InputError(f"{args.folder}: no such folder; expected one with *.log and *.jsonl")
    output = args.output or args.folder / "report.html"
    files = aligned_texts(args)
    texts = chain.from_iterable(pair[2:] for pair in files)
    read = chain(
        args.folder.glob(LOGS), args.folder.glob(SCORES), texts, model_files(args.model or [])
    )
    refuse_overlap([output], list(read))
    logs = list(training_logs(args.folder))
    scores = list(all_scores(args.folder))
    samples = list(closer_looks(args, files))
    title = args.title or f"Training of {args.folder.resolve().name}"
    write_report(output, title, logs, scores, samples, training_pairs(args.folder))
    print(
        f"{output}: {len(logs)} training logs, {len(scores)} scores, {len(samples)} language pairs looked at"
    )


def training_pairs(folder: Path) -> int:
    """Count the pairs that `lxsr prepare` kept for training; 0 where the folder does not tell."""
    from fairseq_lxsr.files.records import parse_json

    try:
        text = (folder / "prepare.json").read_text(encoding="utf-8")
        stages = parse_json(text)
        return sum(
            stages[pair]["report"]["pairs"]["train"]
            for pair in stages["data-bin"]["report"]["pairs"]
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return 0


def training_logs(folder: Path) -> Iterator["Curves"]:
    from fairseq_lxsr.report.training_log import read_log

    for path in files_of(folder, LOGS):
        with skipped_if_unfit():
            # which can be written as UTF-8
            name = str(path.relative_to(folder)).encode("utf-8", "replace").decode()
            curves = read_log(path, name)
            if curves is not None:
                yield curves


def all_scores(folder: Path) -> Iterator["Score"]:
    from fairseq_lxsr.evaluation.score import read_scores

    for path in files_of(folder, SCORES):
        with skipped_if_unfit():
            yield from read_scores(path)


@contextlib.contextmanager
def skipped_if_unfit() -> Iterator[None]:
    """Report and skip a file that is of another kind or unreadable, or text with too few pairs."""
    try:
        yield
    except (InputError, OSError) as error:
        print(f"lxsr: left out: {error_message(error)}", file=sys.stderr)


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Return the sorted files; a pipe is left out because it might never end."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def names_text(args: argparse.Namespace) -> bool:
    return any((args.source, args.target, args.data, args.dataset, args.lang_pairs))


def aligned_texts(args: argparse.Namespace) -> list[AlignedFiles]:
    """Return the text that was named, or the held-out text beside the model; empty where there is
    no model.
    """
    from fairseq_lxsr.encoder.model_folder import CONFIG_FILE

    if args.model is None:
        if not (args.folder / "model" / CONFIG_FILE).is_file():
            if names_text(args):
                raise InputError(
                    f"{args.folder} has no model folder, to look at that text with; name one, --model"
                )
            return []
        args.model = [str(args.folder / "model")]
    return filled(AlignedText, args).files() if names_text(args) else list(held_out(args.folder))


def closer_looks(args: argparse.Namespace, files: list[AlignedFiles]) -> Iterator["Sample"]:
    """Measure the model on each aligned text."""
    import numpy as np

    from fairseq_lxsr.embeddings import Text, embed
    from fairseq_lxsr.report import measure_sample

    encoder = load_any(args) if files else None
    for first, second, source, target in files:
        assert encoder is not None
        pairs = list(read_parallel(source, target))
        rows = [row for row, pair in enumerate(pairs) if not any(map(is_blank, pair))][:SHOWN_PAIRS]
        texts = [
            Text([pairs[row][side] for row in rows], language, path, np.array(rows), len(pairs))
            for side, (language, path) in enumerate(((first, source), (second, target)))
        ]
        with contextlib.nullcontext() if names_text(args) else skipped_if_unfit():
            embeddings = [embed(encoder, text) for text in texts]
            languages = first or "source", second or "target"
            yield measure_sample(
                texts[0].lines,
                texts[1].lines,
                embeddings[0],
                embeddings[1],
                languages,
                encoder.fingerprint,
            )


def held_out(folder: Path) -> Iterator[AlignedFiles]:
    """Yield the test text of `lxsr prepare`."""
    for pair in sorted((folder / "corpus").glob("*-*")):
        first, second = pair.name.split("-", 1)
        source, target = pair / f"test.{first}", pair / f"test.{second}"
        if source.is_file() and target.is_file():
            yield first, second, str(source), str(target)
