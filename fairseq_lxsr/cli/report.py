"""`lxsr report`: write an HTML page about a folder with training logs, scores and a model."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
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
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score
    from fairseq_lxsr.report import Sample
    from fairseq_lxsr.report.training_log import Curves

LOGS = "**/*.log"
SCORES = "**/*.jsonl"


def add_parser(verbs) -> None:
    parser = verbs.add_parser("report", description=__doc__)
    parser.add_argument(
        "folder",
        type=file_path,
        metavar="DIR",
        help="folder with *.log from fairseq-train and *.jsonl from `lxsr eval`; the text is "
        "DIR/corpus/PAIR/test.LANG unless --source or --data specifies other text",
    )
    parser.add_argument(
        "--output",
        type=file_path,
        metavar="FILE.html",
        help="output page (default: DIR/report.html)",
    )
    parser.add_argument(
        "--title", help="page title (default: Training of, followed by the name of DIR)"
    )
    add_any_model_options(parser, "DIR/model")
    add_options(parser, AlignedText)
    parser.set_defaults(run=report)


def report(args: argparse.Namespace) -> None:
    for library in ("plotly", "sklearn"):
        require(library, "report", "lxsr report")
    from fairseq_lxsr.report import write_report

    if not args.folder.is_dir():
        raise InputError(f"{args.folder}: no such folder; expected one with *.log and *.jsonl")
    output = args.output or args.folder / "report.html"
    texts = aligned_texts(args)
    check_output(output, args, texts)
    logs = list(training_logs(args.folder))
    scores = list(all_scores(args.folder))
    samples: list[Sample] = []
    trained = ""
    if args.model:
        encoder = load_any(args)
        trained = encoder.fingerprint
        samples = list(measure_texts(args, encoder, texts))
    title = args.title or f"Training of {args.folder.resolve().name}"
    write_report(output, title, logs, scores, samples, packaged_names(), trained)
    print(
        f"{output}: {len(logs)} training logs, {len(scores)} scores, "
        f"{len(samples)} samples of test text"
    )


def packaged_names() -> dict[str, str]:
    """Return the names of the packaged models by fingerprint."""
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.encoder.locate import model_names

    names = {}
    for name in model_names():
        names[SentenceEncoder.from_pretrained(name, "cpu").fingerprint] = name
    return names


def check_output(output: Path, args: argparse.Namespace, texts: list[AlignedFiles]) -> None:
    """Raise an error if the output would overwrite a file that the report reads."""
    from fairseq_lxsr.embeddings import model_files

    inputs: list[str | Path] = [*args.folder.glob(LOGS), *args.folder.glob(SCORES)]
    for _, _, source, target in texts:
        inputs += [source, target]
    refuse_overlap([output], [*inputs, *model_files(args.model or [])])


def training_logs(folder: Path) -> Iterator["Curves"]:
    """Yield the curves of every training log in a folder and its sub-folders."""
    from fairseq_lxsr.report.training_log import read_log

    for path in files_of(folder, LOGS):
        with skipping_unreadable():
            # The page is UTF-8, but file names may contain bytes that are not UTF-8.
            name = str(path.relative_to(folder)).encode("utf-8", "replace").decode()
            curves = read_log(path, name)
            if curves is not None:
                curves.exported = exported_update(path.parent.parent / "model")
                yield curves


def exported_update(model: Path) -> int | None:
    """Return the number of training updates of an exported model, or None if it is unknown.

    `lxsr run` writes the log to WORK/checkpoints and the model folder to WORK/model.
    """
    from fairseq_lxsr.encoder.model_folder import CONFIG_FILE
    from fairseq_lxsr.files.records import parse_json

    try:
        text = (model / CONFIG_FILE).read_text(encoding="utf-8")
        updates = parse_json(text)["training"]["updates"]
    except (OSError, ValueError, KeyError, TypeError):
        # This number is optional in the report.
        return None
    return updates if type(updates) is int else None


def all_scores(folder: Path) -> Iterator["Score"]:
    """Yield all scores from `lxsr eval --output` in a folder and its sub-folders."""
    from fairseq_lxsr.evaluation.score import read_scores

    for path in files_of(folder, SCORES):
        with skipping_unreadable():
            yield from read_scores(path)


@contextlib.contextmanager
def skipping_unreadable() -> Iterator[None]:
    """Skip a file that raises an error, and print why."""
    try:
        yield
    except (InputError, OSError) as error:
        print(f"lxsr: file skipped: {error_message(error)}", file=sys.stderr)


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Return the matching regular files, sorted; pipes are skipped, because they may never end."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def names_text(args: argparse.Namespace) -> bool:
    """Return whether the command line specifies the text to evaluate on."""
    return any((args.source, args.target, args.data, args.dataset, args.lang_pairs))


def aligned_texts(args: argparse.Namespace) -> list[AlignedFiles]:
    """Return the text specified on the command line, otherwise the test text in the folder.

    Without --model, the model in the folder is used. If there is none, the list is empty.
    """
    from fairseq_lxsr.encoder.model_folder import CONFIG_FILE

    if args.model is None:
        model = args.folder / "model"
        if not (model / CONFIG_FILE).is_file():
            if names_text(args):
                raise InputError(
                    f"{args.folder}: no folder model/, which is needed for test text; specify "
                    "a model with --model"
                )
            return []
        args.model = [str(model)]
    if names_text(args):
        return filled(AlignedText, args).files()
    return list(prepared_texts(args.folder))


def prepared_texts(folder: Path) -> Iterator[AlignedFiles]:
    """Yield the test text of every language pair that `lxsr prepare` wrote."""
    for pair in sorted((folder / "corpus").glob("*-*")):
        first, second = pair.name.split("-", 1)
        source = pair / f"test.{first}"
        target = pair / f"test.{second}"
        if source.is_file() and target.is_file():
            yield first, second, str(source), str(target)


def measure_texts(
    args: argparse.Namespace, encoder: "Encoder", texts: list[AlignedFiles]
) -> Iterator["Sample"]:
    """Embed a sample of every text.

    A text that cannot be read or embedded is skipped, unless the command line specifies it.
    """
    for files in texts:
        if names_text(args):
            yield measure_text(encoder, files)
        else:
            with skipping_unreadable():
                yield measure_text(encoder, files)


def measure_text(encoder: "Encoder", files: AlignedFiles) -> "Sample":
    """Embed a sample of the pairs of an aligned text, without pairs with a blank side."""
    import numpy as np

    from fairseq_lxsr.embeddings import Text, embed
    from fairseq_lxsr.report.sample import measure_sample, sample_rows

    first, second, source, target = files
    pairs = list(read_parallel(source, target))
    complete = []
    for row, pair in enumerate(pairs):
        if not any(map(is_blank, pair)):
            complete.append(row)
    rows = sample_rows(complete, source)
    texts = []
    for side, (language, path) in enumerate(((first, source), (second, target))):
        lines = [pairs[row][side] for row in rows]
        texts.append(Text(lines, language, path, np.array(rows), len(pairs)))
    left, right = texts
    return measure_sample(
        (left.lines, right.lines),
        (embed(encoder, left), embed(encoder, right)),
        (first or "source", second or "target"),
        len(complete),
    )
