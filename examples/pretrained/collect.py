"""Collect the training text of a model from the sources of a table, and check its size.

python examples/pretrained/collect.py --data DIR --output work/static/text

A row of the table names the files DIR/FILES.LANG.txt.gz of a source, in which `{pair}` stands for
SRC-TGT; with `tag`, only the lines that DIR/FILES.source.txt.gz marks with it. Of several --data,
the first that has the files is used. All text of a kind is written to OUTPUT/KIND.PAIR.LANG, which
pairs.yaml names for `lxsr prepare`. Pairs of the languages in variants.py are written twice, the
second time in another spelling, unless one of the spellings has a sentence of --exclude.
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
# The required fields of a source, and their types.
FIELDS = {"name": str, "kind": str, "files": str, "pairs": dict}


def pairs_of(
    source: Mapping[str, Any], data: Sequence[Path], pair: str
) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a source, and check their number against the table."""
    files = source["files"].replace("{pair}", pair)
    folders = [folder for folder in data if list(folder.glob(f"{files}.*"))]
    prefix = (folders or data)[0] / files
    sides = [f"{prefix}.{language}.txt.gz" for language in pair.split("-")]
    tags = read_lines(f"{prefix}.source.txt.gz") if "tag" in source else None
    count = 0
    for sentences in read_parallel(*sides, is_sentence=False):
        if tags is None or next(tags, None) == source["tag"]:
            count += 1
            yield sentences
    expected = source["pairs"][pair]
    if count != expected:
        raise InputError(
            f"{prefix}: {count:,} pairs of {source['name']};"
            f" expected {expected:,}: complete the files or correct the table"
        )


@dataclass(frozen=True)
class Text:
    """The sources of the text, and what is excluded.

    Attributes:
        sources: rows of the table.
        data: folders of the files.
        excluded: evaluation text, processed by `comparable`.
    """

    sources: Sequence[Mapping[str, Any]]
    data: Sequence[Path]
    excluded: Container[str]

    def spellings(
        self, sentences: tuple[str, ...], pair: str, rng: random.Random
    ) -> list[tuple[str, ...]]:
        """Return a sentence pair and, if a language has another spelling, the pair in it.

        The list is empty if one of the two spellings is excluded.
        """
        respelt = []
        for sentence, language in zip(sentences, pair.split("-"), strict=True):
            if language in VARIANTS:
                sentence = VARIANTS[language](sentence, rng)
            respelt.append(sentence)
        variant = tuple(respelt)
        if variant == sentences:
            return [sentences]
        if any(comparable(side) in self.excluded for side in (*sentences, *variant)):
            return []
        return [sentences, variant]

    def pairs(self, kind: str, pair: str, rng: random.Random) -> Iterator[tuple[str, ...]]:
        """Yield all sentence pairs of a kind of text and a language pair."""
        for source in self.sources:
            if source["kind"] == kind and pair in source["pairs"]:
                for sentences in pairs_of(source, self.data, pair):
                    yield from self.spellings(sentences, pair, rng)


def collect(text: Text, output: Path, kind: str, pair: str) -> None:
    """Write the text of a kind and a language pair."""
    prefix = output / f"{kind}.{pair}"
    rng = random.Random(f"{kind}.{pair}")
    count = 0
    with contextlib.ExitStack() as stack:
        streams = []
        for language in pair.split("-"):
            streams.append(stack.enter_context(atomic_write(f"{prefix}.{language}")))
        for sentences in text.pairs(kind, pair, rng):
            count += 1
            for stream, sentence in zip(streams, sentences, strict=True):
                stream.write(f"{sentence}\n")
    print(f"{prefix}: {count:,} pairs")


def collect_all(text: Text, output: Path) -> None:
    """Write all text and, at the end, the file that lists it."""
    kinds = {(pair, source["kind"]) for source in text.sources for pair in source["pairs"]}
    prefixes: dict[str, dict[str, str]] = {}
    for pair, kind in sorted(kinds):
        collect(text, output, kind, pair)
        prefixes.setdefault(pair, {})[kind] = str(output / f"{kind}.{pair}")
    with atomic_write(output / PAIRS_FILE) as stream:
        # JSON would write some characters as pairs of surrogates, which YAML does not read.
        stream.write(f"pairs: {json.dumps(prefixes, ensure_ascii=False)}\n")


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
        if not is_source(source):
            raise InputError(
                f"{path}, source {number}: {shown(source)};"
                f" expected an object with {', '.join(FIELDS)}"
            )
    return sources


def is_source(source: Any) -> bool:
    """Return whether a row of the table has all fields with their types."""
    if not isinstance(source, dict):
        return False
    return all(isinstance(source.get(name), kind) for name, kind in FIELDS.items())


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
        "--exclude",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="text for evaluation, see above",
    )
    parser.add_argument(
        "--sources",
        type=Path,
        default=TABLE,
        metavar="FILE.json",
        help="table of sources (default: sources.json next to this script)",
    )
    args = parser.parse_args()
    with exit_on_input_error("collect.py"):
        sources = read_sources(args.sources)
        excluded = set()
        for file in args.exclude:
            excluded.update(map(comparable, read_lines(file, is_sentence=False)))
        collect_all(Text(sources, args.data, excluded), args.output)


if __name__ == "__main__":
    main()
