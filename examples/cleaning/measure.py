"""Precision and recall of filters against the labels of make_dirty.py.

python measure.py --dirty dirty FILTERED.tsv ...

A filter is a file with the pairs that it kept, in their order.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines, read_parallel


def kept_rows(dirty: Sequence[str], path: Path) -> list[int]:
    """Rows of the dirty corpus that were kept; a pair that occurs twice is the first one that is
    left.

    Raises:
        InputError: for a line that is not left in it.
    """
    rows, start = [], 0
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = dirty.index(line, start)
        except ValueError:
            where = f"{path}, line {number}: {line!r:.60}"
            raise InputError(
                f"{where} is not left in the dirty corpus; expected its pairs in their order"
            ) from None
        rows.append(row)
        start = row + 1
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kept", nargs="+", type=Path, metavar="FILE.tsv")
    parser.add_argument("--dirty", type=Path, required=True, metavar="PREFIX")
    args = parser.parse_args()
    with exit_on_input_error("measure.py"):
        show(args)


def show(args: argparse.Namespace) -> None:
    dirty, labels = zip(*read_parallel(f"{args.dirty}.tsv", f"{args.dirty}.labels"), strict=True)
    counts = Counter(labels)
    faults = sorted(counts.keys() - {"true"})
    print(f"| | kept | precision | recall | {' | '.join(f'{fault} left' for fault in faults)} |")
    print(f"|---|---|---|---|{'---|' * len(faults)}")
    for path in args.kept:
        left = Counter(labels[row] for row in kept_rows(dirty, path))
        total = left.total()
        shares = [
            left["true"] / max(1, total),
            *(left[kind] / counts[kind] for kind in ("true", *faults)),
        ]
        print(
            f"| {path.stem} | {total:,} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |"
        )


if __name__ == "__main__":
    main()
