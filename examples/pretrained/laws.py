"""Make sentences of single languages out of collections of laws, for sentences.py.

python examples/pretrained/laws.py work/sources/laws/hebrew/akn --per-law 60 \
    --output text/laws/he.txt

The folder is searched with its subfolders. Its laws are JSON files whose `provisions` have a
`content`, or XML files of Akoma Ntoso. The output gets at most LIMIT sentences in random order, at
most PER_LAW of one law. Sentences that differ in digits and punctuation only are written once.
"""

import argparse
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write

SENTENCE_END = re.compile(r"(?<=[.;:!?])\s+|\n+")
# Numbers and letters of articles and of items of lists: "(1) ", "b) ", "12. ", "- ".
ITEM = re.compile(r"^(\(?[\dIVXa-z\u05d0-\u05ea]{1,4}[.)]\s*|\d[\d.]*\s+|[\u2013\u2014-]\s*)+")
MIN_CHARACTERS = 25
MAX_CHARACTERS = 220
MIN_WORDS = 4
# A line with fewer letters is a table or a list of references.
MIN_LETTERS = 0.72
NO_LETTERS = re.compile(r"[\W\d]+")
# The text of a law in Akoma Ntoso is the paragraphs of these elements.
BODIES = {"body", "mainBody"}
PARAGRAPH = "p"


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that are neither short, nor long, nor full of numbers."""
    selected = []
    for part in SENTENCE_END.split(text):
        sentence = ITEM.sub("", " ".join(part.split()))
        letters = sum(character.isalpha() for character in sentence)
        if (
            MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS
            and letters >= MIN_LETTERS * len(sentence)
            and len(sentence.split()) >= MIN_WORDS
        ):
            selected.append(sentence)
    return selected


def json_text(path: Path) -> str | None:
    """Return the text of a law in JSON, or None for another file."""
    try:
        law = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: {error}; expected JSON") from None
    if not isinstance(law, dict) or not isinstance(law.get("provisions"), list):
        return None
    return "\n".join(provision.get("content") or "" for provision in law["provisions"])


def akoma_ntoso_text(path: Path) -> str | None:
    """Return the paragraphs of a law in Akoma Ntoso, or None for another file."""
    try:
        law = ElementTree.fromstring(path.read_text(encoding="utf-8-sig"))
    except (ValueError, ElementTree.ParseError) as error:
        raise InputError(f"{path}: {error}; expected XML of Akoma Ntoso") from None
    paragraphs = []
    for body in law.iter():
        if local_name(body) in BODIES:
            paragraphs += [part for part in body.iter() if local_name(part) == PARAGRAPH]
    if not paragraphs:
        return None
    return "\n".join("".join(part.itertext()) for part in paragraphs)


READERS = {".json": json_text, ".xml": akoma_ntoso_text}


def local_name(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def draw(texts: Iterable[str], per_law: int, limit: int) -> list[str]:
    """Return different sentences of laws in random order.

    Args:
        texts: the text of each law.
        per_law: most sentences of a law.
        limit: most sentences of all laws together.
    """
    rng = random.Random(1)
    drawn: list[str] = []
    seen: set[str] = set()
    for text in texts:
        new = []
        for sentence in sentences(text):
            letters = NO_LETTERS.sub("", sentence.lower())
            if letters not in seen:
                seen.add(letters)
                new.append(sentence)
        drawn += rng.sample(new, min(per_law, len(new)))
    rng.shuffle(drawn)
    return drawn[:limit]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of laws")
    parser.add_argument(
        "--per-law", type=int, default=60, metavar="N", help="most sentences of a law (default: 60)"
    )
    parser.add_argument(
        "--limit", type=int, default=30_000, metavar="N", help="most sentences (default: 30000)"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    args = parser.parse_args()
    with exit_on_input_error("laws.py"):
        files = sorted(path for path in args.folder.rglob("*") if path.suffix in READERS)
        if not files:
            raise InputError(f"{args.folder}: no JSON and no XML files; expected a folder of laws")
        read = [READERS[path.suffix](path) for path in files]
        texts = [text for text in read if text is not None]
        drawn = draw(texts, args.per_law, args.limit)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(args.output) as stream:
            stream.writelines(f"{sentence}\n" for sentence in drawn)
        print(
            f"{args.output}: {len(drawn):,} sentences of {len(texts):,} laws; "
            f"{len(files) - len(texts):,} files are no laws"
        )


if __name__ == "__main__":
    main()
