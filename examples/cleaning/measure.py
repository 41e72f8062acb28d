"""Precision and recall of filters against the labels of make_dirty.py.

python measure.py --dirty dirty FILTERED.tsv ...

FILTERED.tsv has the pairs that a filter kept, in the order of the dirty corpus.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines, read_parallel


def kept_rows(dirty: Sequence[str], path: Path) -> list[int]:
    """Return the rows of the dirty corpus that were kept; the first remaining one of equal pairs.

    Raises:
        InputError: for a line that does not occur in the rest of the corpus.
    """
    rows = []
    start = 0
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = dirty.index(line, start)
        except ValueError:
            raise InputError(
                f"{path}, line {number}: {line!r:.60} does not follow in the dirty corpus; "
                "expected pairs of the corpus in their order"
            ) from None
        rows.append(row)
        start = row + 1
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("filtered", nargs="+", type=Path, metavar="FILE.tsv")
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
    for path in args.filtered:
        label_counts = Counter(labels[row] for row in kept_rows(dirty, path))
        total = label_counts.total()
        precision = label_counts["true"] / max(1, total)
        recalls = [label_counts[kind] / counts[kind] for kind in ("true", *faults)]
        cells = " | ".join(f"{100 * share:.1f}" for share in (precision, *recalls))
        print(f"| {path.stem} | {total:,} | {cells} |")


if __name__ == "__main__":
    main()
