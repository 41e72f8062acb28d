"""Align the sentences of translated documents with vecalign or Bertalign, by embeddings of a model.

python align.py vecalign --model MODEL --source a.de b.de --target a.fr b.fr --output aligned

A document has one sentence per line. aligned/a.de.align has one line for each group of sentences:
the line numbers on both sides, from 0, for example `[0]:[0, 1]`. vecalign appends its cost.
--gold compares the alignments with files of this format.
"""

import argparse
import importlib
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

from fairseq_lxsr.clients.bertalign import bertalign_with
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write


def with_vecalign(args: argparse.Namespace, outputs: list[Path]) -> None:
    """Write and embed the overlaps (all runs of up to --max-size sentences), then align them."""
    options = ["-a", args.max_size]
    for side, documents in (("src", args.source), ("tgt", args.target)):
        overlaps = args.output / f"overlaps.{side}"
        vectors = args.output / f"overlaps.{side}.raw"
        run("-m", "vecalign.overlap", "-n", args.max_size, "-i", *documents, "-o", overlaps)
        embed = ["embed", "--model", args.model, "--input", overlaps, "--output", vectors]
        run("-m", "fairseq_lxsr.cli.main", *embed, "--format", "raw", "--on-long", "split-mean")
        options += [f"--{side}_embed", overlaps, vectors]
    for source, target, output in zip(args.source, args.target, outputs, strict=True):
        with atomic_write(output) as file:
            run("-m", "vecalign.vecalign", "-s", source, "-t", target, *options, stdout=file)


def run(*arguments, **options) -> None:
    """Run Python. If it fails, exit with its status; it has already printed the reason."""
    status = subprocess.run([sys.executable, *map(str, arguments)], **options).returncode
    if status:
        sys.exit(status)


def with_bertalign(args: argparse.Namespace, outputs: list[Path]) -> None:
    """Align with Bertalign, which accepts any model of this package."""
    aligner = bertalign_with(args.model)
    for source, target, output in zip(args.source, args.target, outputs, strict=True):
        source_rows, source_text = numbered(source)
        target_rows, target_text = numbered(target)
        # Bertalign prints that it uses LaBSE, and the languages that it guesses.
        with redirect_stdout(None):
            alignment = aligner.Bertalign(
                source_text, target_text, max_align=args.max_size, is_split=True
            )
            alignment.align_sents()
        with atomic_write(output) as file:
            for source_group, target_group in alignment.result:
                source_lines = [source_rows[row] for row in source_group]
                target_lines = [target_rows[row] for row in target_group]
                print(source_lines, target_lines, sep=":", file=file)


def numbered(path: Path) -> tuple[list[int], str]:
    """Return the numbers and texts of the non-empty lines; Bertalign skips empty ones."""
    rows = []
    lines = []
    for row, line in enumerate(read_lines(path)):
        words = line.split()
        if words:
            rows.append(row)
            lines.append(" ".join(words))
    return rows, "\n".join(lines)


# For each tool: the function that aligns, the modules of the tool that read alignments and score
# them, and the largest number of sentences in a group.
TOOLS = {
    "vecalign": (with_vecalign, "vecalign.dp_utils", "vecalign.score", 8),
    "bertalign": (with_bertalign, "bertalign.eval", "bertalign.eval", 5),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--model", required=True, metavar="MODEL")
    for side in ("source", "target"):
        parser.add_argument(f"--{side}", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument(
        "--gold",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="true alignments, in the order of --source",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--max-size", type=int, metavar="N", help="sentences per group (default: 8; Bertalign: 5)"
    )
    return parser


def check(parser: argparse.ArgumentParser, args: argparse.Namespace, outputs: list[Path]) -> None:
    if find_spec(args.tool) is None:
        parser.error(f"{args.tool} is not installed; pip install a checkout of its repository")
    counts = {len(args.source), len(args.target), len(args.gold or args.source)}
    if len(counts) != 1:
        parser.error("--source, --target and --gold specify different numbers of files")
    if len(set(outputs)) != len(outputs):
        parser.error(
            "two files of --source have the same name, and would have the same output; rename one"
        )


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    align, reader, scorer, max_size = TOOLS[args.tool]
    outputs = [args.output / f"{source.name}.align" for source in args.source]
    check(parser, args, outputs)
    args.max_size = args.max_size or max_size
    with exit_on_input_error("align.py"):
        args.output.mkdir(parents=True, exist_ok=True)
        align(args, outputs)
    print("\n".join(map(str, outputs)))
    if args.gold:
        read = importlib.import_module(reader).read_alignments
        score = importlib.import_module(scorer)
        gold = [read(path) for path in args.gold]
        predicted = [read(path) for path in outputs]
        score.log_final_scores(score.score_multiple(gold, predicted))


if __name__ == "__main__":
    main()
