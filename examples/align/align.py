"""Align the sentences of translated documents by vecalign or Bertalign, with the embeddings of a
fairseq-lxsr model.

python align.py vecalign --model MODEL --source a.de b.de --target a.fr b.fr --output aligned

A document has one sentence a line. aligned/a.de.align has one line for each group of sentences,
with the numbers of its lines from 0 on both sides, for example `[0]:[0, 1]`; vecalign adds its
cost. --gold compares them with such files.
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
    """Write and embed the overlaps (all runs of up to --max-size sentences), then align."""
    options = ["-a", args.max_size]
    for side, documents in (("src", args.source), ("tgt", args.target)):
        overlaps, vectors = (args.output / f"overlaps.{side}{end}" for end in ("", ".raw"))
        run("-m", "vecalign.overlap", "-n", args.max_size, "-i", *documents, "-o", overlaps)
        embed = [
            "embed",
            "--model",
            args.model,
            "--input",
            overlaps,
            "--output",
            vectors,
            "--format",
            "raw",
        ]
        run("-m", "fairseq_lxsr.cli.main", *embed, "--on-long", "split-mean")
        options += [f"--{side}_embed", overlaps, vectors]
    for source, target, output in zip(args.source, args.target, outputs, strict=True):
        with atomic_write(output) as file:
            run("-m", "vecalign.vecalign", "-s", source, "-t", target, *options, stdout=file)


def run(*arguments, **options) -> None:
    """Run Python; end as it does where it fails, because it has said why."""
    status = subprocess.run([sys.executable, *map(str, arguments)], **options).returncode
    if status:
        sys.exit(status)


def with_bertalign(args: argparse.Namespace, outputs: list[Path]) -> None:
    """Align with Bertalign, which takes any model here."""
    aligner = bertalign_with(args.model)
    for source, target, output in zip(args.source, args.target, outputs, strict=True):
        (rows, text), (other_rows, other_text) = map(numbered, (source, target))
        with redirect_stdout(None):  # it says LaBSE, and languages that it asked nobody for
            alignment = aligner.Bertalign(text, other_text, max_align=args.max_size, is_split=True)
            alignment.align_sents()
        with atomic_write(output) as file:
            for ours, theirs in alignment.result:
                print(
                    [rows[row] for row in ours],
                    [other_rows[row] for row in theirs],
                    sep=":",
                    file=file,
                )


def numbered(path: Path) -> tuple[list[int], str]:
    """The numbers of the lines that are not empty, and these lines; Bertalign leaves the others
    out.
    """
    lines = {row: " ".join(line.split()) for row, line in enumerate(read_lines(path))}
    kept = {row: line for row, line in lines.items() if line}
    return list(kept), "\n".join(kept.values())


TOOLS = {  # how to align; the tool's modules that read alignments and score them; groups of at most so many sentences
    "vecalign": (with_vecalign, "vecalign.dp_utils", "vecalign.score", 8),
    "bertalign": (with_bertalign, "bertalign.eval", "bertalign.eval", 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--model", required=True, metavar="MODEL")
    for side in ("source", "target"):
        parser.add_argument(f"--{side}", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument(
        "--gold", type=Path, nargs="+", metavar="FILE", help="true alignments, in the same order"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--max-size", type=int, metavar="N", help="sentences of a group (default: 8; Bertalign: 5)"
    )
    args = parser.parse_args()
    align, reader, scorer, max_size = TOOLS[args.tool]
    if find_spec(args.tool) is None:
        parser.error(f"{args.tool} is not installed; pip install a checkout of its repository")
    if len({len(files) for files in (args.source, args.target, args.gold or args.source)}) != 1:
        parser.error("--source, --target and --gold name different numbers of files")
    outputs = [args.output / f"{source.name}.align" for source in args.source]
    if len(set(outputs)) != len(outputs):
        parser.error(
            "two of --source have the same file name, and would have one output; rename one of them"
        )
    args.max_size = args.max_size or max_size
    with exit_on_input_error("align.py"):
        args.output.mkdir(parents=True, exist_ok=True)
        align(args, outputs)
    print("\n".join(map(str, outputs)))
    if args.gold:
        read, score = (
            importlib.import_module(reader).read_alignments,
            importlib.import_module(scorer),
        )
        gold, found = ([read(path) for path in paths] for paths in (args.gold, outputs))
        score.log_final_scores(score.score_multiple(gold, found))


if __name__ == "__main__":
    main()
