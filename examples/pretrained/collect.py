"""Collects the training text of one model from the sources of a table, and checks that it is all
there.

python examples/pretrained/collect.py --data DIR --output work/static/text

A row of the table names the files DIR/FILES.LANG.txt.gz of a source, `{pair}` in it standing for
SRC-TGT; with `tag` only the lines that DIR/FILES.source.txt.gz marks so. With several --data, the
first that has the files. All text of a kind becomes OUTPUT/KIND.PAIR.LANG, and pairs.yaml names it
for `lxsr prepare`. Pairs of the languages in variants.py are there twice, the second time in
another spelling, but not those with a sentence of --exclude in one of them.
"""

import argparse
import contextlib
import json
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from variants import VARIANTS

from fairseq_lxsr.errors import InputError, exit_on_input_error, shown
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.clean import comparable

TABLE = Path(__file__).with_name("sources.json")
PAIRS_FILE = "pairs.yaml"
FIELDS = {"name": str, "kind": str, "files": str, "pairs": dict}  # of a source


def pairs_of(
    source: Mapping[str, Any], data: Sequence[Path], pair: str
) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a source, which must be as many as the table says."""
    files = source["files"].replace("{pair}", pair)
    there = [folder for folder in data if list(folder.glob(f"{files}.*"))]
    prefix = (there or data)[0] / files
    sides = [f"{prefix}.{language}.txt.gz" for language in pair.split("-")]
    count, expected = 0, source["pairs"][pair]
    tags = read_lines(f"{prefix}.source.txt.gz") if "tag" in source else None
    for sentences in read_parallel(*sides, is_sentence=False):
        if tags is None or next(tags, None) == source["tag"]:
            count += 1
            yield sentences
    if count != expected:
        raise InputError(
            f"{prefix}: {count:,} pairs of {source['name']}; expected {expected:,}; change the table"
        )


@dataclass(frozen=True)
class Text:
    """Where the text is, and what is not for training."""

    sources: Sequence[Mapping[str, Any]]
    data: Sequence[Path]
    excluded: Container[str]  # sentences as `comparable` gives them

    def spellings(
        self, sentences: tuple[str, ...], pair: str, rng: random.Random
    ) -> list[tuple[str, ...]]:
        """Return a sentence pair and, in languages that have more than one spelling, the pair in
        another one.
        """
        found = zip(sentences, pair.split("-"), strict=True)
        other = tuple(
            VARIANTS[code](text, rng) if code in VARIANTS else text for text, code in found
        )
        if other == sentences:
            return [sentences]
        is_excluded = any(comparable(side) in self.excluded for side in (*sentences, *other))
        return [] if is_excluded else [sentences, other]


def collect(text: Text, output: Path, kind: str, pair: str) -> None:
    """Write the text of a kind and language pair, of all sources that have it."""
    count, prefix, rng = 0, output / f"{kind}.{pair}", random.Random(f"{kind}.{pair}")
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(atomic_write(f"{prefix}.{language}"))
            for language in pair.split("-")
        ]
        for source in text.sources:
            if source["kind"] == kind and pair in source["pairs"]:
                for sentences in pairs_of(source, text.data, pair):
                    for spelt in text.spellings(sentences, pair, rng):
                        count += 1
                        for side, sentence in zip(sides, spelt, strict=True):
                            side.write(f"{sentence}\n")
    print(f"{prefix}: {count:,} pairs")


def collect_all(text: Text, output: Path) -> None:
    """Write all text, and last the file that names it."""
    found: dict[str, dict[str, str]] = {}
    for pair, kind in sorted(
        {(pair, source["kind"]) for source in text.sources for pair in source["pairs"]}
    ):
        collect(text, output, kind, pair)
        found.setdefault(pair, {})[kind] = str(output / f"{kind}.{pair}")
    with atomic_write(output / PAIRS_FILE) as stream:
        # YAML reads no pairs of surrogates
        stream.write(f"pairs: {json.dumps(found, ensure_ascii=False)}\n")


def read_sources(path: Path) -> list[dict[str, Any]]:
    """Read the table of sources."""
    text = "\n".join(read_lines(path, is_sentence=False))
    try:
        sources = parse_json(text)["sources"]
        if not isinstance(sources, list):
            raise TypeError("the sources are not a list")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f'{path}: {error!r:.100}; expected {{"sources": [...]}}') from None
    for number, source in enumerate(sources, start=1):
        if not (
            isinstance(source, dict)
            and all(isinstance(source.get(name), FIELDS[name]) for name in FIELDS)
        ):
            raise InputError(
                f"{path}, source {number}: {shown(source)}; expected an object with {', '.join(FIELDS)}"
            )
    return sources


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="DIR", help="text, see above"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    parser.add_argument(
        "--exclude", type=Path, nargs="+", default=[], metavar="FILE", help="text for evaluation"
    )
    parser.add_argument(
        "--sources", type=Path, default=TABLE, metavar="FILE.json", help="default: of this folder"
    )
    args = parser.parse_args()
    with exit_on_input_error("collect.py"):
        sources = read_sources(args.sources)
        excluded = {
            comparable(line)
            for file in args.exclude
            for line in read_lines(file, is_sentence=False)
        }
        collect_all(Text(sources, args.data, excluded), args.output)


if __name__ == "__main__":
    main()
