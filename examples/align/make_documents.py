"""Cut aligned documents into small ones, to measure document_pairs.py on: --groups aligned groups
of sentences each.

python make_documents.py --source a.de b.de --target a.fr b.fr --gold a.defr b.defr --output small

Writes small.source and small.target, an empty line between documents. Empty lines, and groups
without sentences on a side, are left out.
"""

import argparse
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import is_blank, read_lines


def read_groups(gold: Path, sides: list[list[str]]) -> Iterator[list[list[int]]]:
    """Yield the rows of each group on both sides; those without text, which would end a document,
    are left out.

    Raises:
        InputError: for a line that is not of rows of both sides.
    """
    for number, line in enumerate(read_lines(gold), start=1):
        try:
            group = [literal_eval(rows) for rows in line.split(":")[:2]]
            found = all(
                row in range(len(lines))
                for rows, lines in zip(group, sides, strict=True)
                for row in rows
            )
        except (ValueError, SyntaxError, TypeError):
            found = False
        if not found:
            sizes = " and ".join(f"{len(lines):,}" for lines in sides)
            raise InputError(
                f"{gold}, line {number}: {line!r:.60}; expected rows of {sizes} lines, as [0, 1]:[0]"
            )
        yield [
            [row for row in rows if not is_blank(lines[row])]
            for rows, lines in zip(group, sides, strict=True)
        ]


def cut(
    source: Path, target: Path, gold: Path, count: int
) -> tuple[list[list[str]], list[list[str]]]:
    """The documents of both sides, in order; sentences that do not fill a document are left out."""
    sides = [list(read_lines(path)) for path in (source, target)]
    whole = [group for group in read_groups(gold, sides) if all(group)]
    starts = range(0, len(whole) - count + 1, count)
    documents = (
        [
            [lines[row] for group in whole[start : start + count] for row in group[side]]
            for start in starts
        ]
        for side, lines in enumerate(sides)
    )
    return tuple(documents)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("source", "target", "gold"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--groups", type=int, default=2, metavar="N")
    parser.add_argument("--output", required=True, metavar="PREFIX")
    args = parser.parse_args()
    with exit_on_input_error("make_documents.py"):
        write(parser, args)


def write(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if len({len(files) for files in (args.source, args.target, args.gold)}) != 1:
        parser.error("--source, --target and --gold name different numbers of files")
    if args.groups < 1:
        raise InputError(f"--groups {args.groups}; expected 1 or more")
    texts: list[list[str]] = [[], []]
    for paths in zip(args.source, args.target, args.gold, strict=True):
        for text, documents in zip(texts, cut(*paths, args.groups), strict=True):
            text += ["".join(f"{line}\n" for line in document) for document in documents]
    for name, text in zip(("source", "target"), texts, strict=True):
        Path(f"{args.output}.{name}").write_text("\n".join(text), encoding="utf-8")
    print(f"{args.output}.source, {args.output}.target: {len(texts[0]):,} documents")


if __name__ == "__main__":
    main()
