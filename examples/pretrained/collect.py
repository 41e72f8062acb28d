"""Collects the training text of one model from the sources of a table, and checks that it is all there.

python examples/pretrained/collect.py --data DIR --output work/nine/text

A row of the table names the files DIR/FILES.LANG.txt.gz of a source, `{pair}` in it standing for SRC-TGT; with `tag`
only the lines that DIR/FILES.source.txt.gz marks so. All text of a language pair becomes OUTPUT/PAIR.LANG.
"""

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files import atomic_write, read_lines, read_parallel

TABLE = Path(__file__).with_name("sources.json")


def pairs_of(source: Mapping[str, Any], data: Path, pair: str) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a source.

    Raises:
        InputError: where there are fewer or more than the table says.
    """
    prefix = data / source["files"].format(pair=pair)
    sides = [f"{prefix}.{language}.txt.gz" for language in pair.split("-")]
    count, expected = 0, source["pairs"][pair]
    tags = read_lines(f"{prefix}.source.txt.gz") if "tag" in source else None
    for sentences in read_parallel(*sides, max_words=None):
        if tags is None or next(tags, None) == source["tag"]:
            count += 1
            yield sentences
    if count != expected:
        raise InputError(f"{prefix}: {count:,} pairs of {source['name']}; expected {expected:,}; change the table")


def collect(sources: Sequence[Mapping[str, Any]], data: Path, output: Path) -> dict[str, int]:
    """Write the text of every language pair of the table.

    Returns:
        Number of sentence pairs by language pair.
    """
    counts = {}
    for pair in sorted({pair for source in sources for pair in source["pairs"]}):
        counts[pair] = 0
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(atomic_write(output / f"{pair}.{language}")) for language in pair.split("-")]
            for source in sources:
                for sentences in pairs_of(source, data, pair) if pair in source["pairs"] else ():
                    counts[pair] += 1
                    for side, sentence in zip(sides, sentences, strict=True):
                        side.write(f"{sentence}\n")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--sources", type=Path, default=TABLE, metavar="FILE.json", help="default: of this folder")
    args = parser.parse_args()
    with exit_on_input_error("collect.py"):
        sources = json.loads(args.sources.read_text(encoding="utf-8"))["sources"]
        for pair, count in collect(sources, args.data, args.output).items():
            print(f"{args.output / pair}: {count:,} pairs")


if __name__ == "__main__":
    main()
