"""Cut aligned documents into small ones, of --groups aligned groups of sentences each.

python make_documents.py --source a.de b.de --target a.fr b.fr --gold a.defr b.defr --output small

They are used to evaluate document_pairs.py. The files small.source and small.target have an empty
line between documents. Empty lines, and groups without sentences on one side, are left out.
"""

import argparse
from ast import literal_eval
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import is_blank, read_lines


def read_groups(gold: Path, sides: list[list[str]]) -> Iterator[list[list[int]]]:
    """Yield the line numbers of each group, for source and target; blank lines are left out.

    Raises:
        InputError: for a line that does not list lines of both sides.
    """
    for number, line in enumerate(read_lines(gold), start=1):
        group = parse_group(line, sides)
        if group is None:
            sizes = " and ".join(f"{len(lines):,}" for lines in sides)
            raise InputError(
                f"{gold}, line {number}: {line!r:.60}; expected numbers of {sizes} lines, for "
                "example [0, 1]:[0]"
            )
        with_text = []
        for rows, lines in zip(group, sides, strict=True):
            # A blank line would end the document.
            with_text.append([row for row in rows if not is_blank(lines[row])])
        yield with_text


def parse_group(line: str, sides: list[list[str]]) -> list[list[int]] | None:
    """Return the line numbers of both sides, or None if the line does not align these sides."""
    try:
        group = [literal_eval(rows) for rows in line.split(":")[:2]]
        for rows, lines in zip(group, sides, strict=True):
            if not all(row in range(len(lines)) for row in rows):
                return None
    except (ValueError, SyntaxError, TypeError):
        return None
    return group


def cut(
    source: Path, target: Path, gold: Path, count: int
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the documents of source and target; groups that do not fill a document are dropped."""
    sides = [list(read_lines(path)) for path in (source, target)]
    groups = [group for group in read_groups(gold, sides) if all(group)]
    documents: tuple[list[list[str]], list[list[str]]] = ([], [])
    for start in range(0, len(groups) - count + 1, count):
        for side, lines in enumerate(sides):
            rows = chain.from_iterable(group[side] for group in groups[start : start + count])
            documents[side].append([lines[row] for row in rows])
    return documents


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
        parser.error("--source, --target and --gold specify different numbers of files")
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
