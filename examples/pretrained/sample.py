"""Draw pairs of the collected text for another training, equally many of each language.

python examples/pretrained/sample.py --text work/static/text --limit 2500 --weak et,lv,lt \
    --weak-limit 12000 --output work/static/again

Of each language pair and kind of text, at most LIMIT pairs are drawn, or at most the weak limit if
one of the languages is weak. The lists of words of the text are left out; --words names those that
are taken for weak languages, such as words/cldr, with files words/cldr.SRC-TGT.LANG.txt.gz.
OUTPUT gets KIND.SRC-TGT.LANG and pairs.yaml, which lists them for `lxsr prepare`.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import yaml

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.files.write import atomic_write

PAIRS_FILE = "pairs.yaml"
# Kind of the lists of words in the collected text.
WORDS = "words"


def draw(sides: Sequence[Path], output: Path, pair: str, limit: int) -> None:
    """Write at most `limit` sentence pairs to OUTPUT.PAIR.LANG.

    Args:
        sides: aligned files of the two languages.
        output: path of the files to write, without language pair and language.
        pair: the language pair.
        limit: maximum number of pairs.
    """
    pairs = list(read_parallel(*sides, is_sentence=False))
    rng = random.Random(f"{output.name}.{pair}")
    chosen = rng.sample(pairs, min(limit, len(pairs)))
    for place, language in enumerate(pair.split("-")):
        with atomic_write(f"{output}.{pair}.{language}") as stream:
            stream.writelines(f"{sentences[place]}\n" for sentences in chosen)


def word_lists(prefixes: Sequence[Path], weak: set[str]) -> dict[str, dict[str, Path]]:
    """Return the lists of words with a weak language: pair, name, path without the language.

    Raises:
        InputError: if a prefix has no file.
    """
    lists: dict[str, dict[str, Path]] = {}
    for prefix in prefixes:
        files = sorted(prefix.parent.glob(f"{prefix.name}.*-*.*.txt.gz"))
        if not files:
            raise InputError(f"--words {prefix}: no file {prefix}.SRC-TGT.LANG.txt.gz")
        for file in files:
            pair = file.name.split(".")[-4]
            if weak & set(pair.split("-")):
                lists.setdefault(pair, {})[prefix.name] = Path(f"{prefix}.{pair}")
    return lists


def sample(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Write the text, and return its files: pair, kind, path without the language."""
    weak = set(args.weak.split(","))
    collected = yaml.safe_load((args.text / PAIRS_FILE).read_text(encoding="utf-8"))["pairs"]
    lists = word_lists(args.words, weak)
    files: dict[str, dict[str, str]] = {}
    for pair in sorted(collected | lists):
        languages = pair.split("-")
        limit = args.weak_limit if weak & set(languages) else args.limit
        if limit == 0:
            continue
        for kind, prefix in collected.get(pair, {}).items():
            if kind not in (WORDS, args.without):
                sides = [Path(f"{prefix}.{language}") for language in languages]
                draw(sides, args.output / kind, pair, limit)
                files.setdefault(pair, {})[kind] = f"{args.output / kind}.{pair}"
        for name, prefix in lists.get(pair, {}).items():
            sides = [Path(f"{prefix}.{language}.txt.gz") for language in languages]
            draw(sides, args.output / name, pair, limit)
            files.setdefault(pair, {})[name] = f"{args.output / name}.{pair}"
    return files


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=0,
        metavar="N",
        help="most pairs of a language pair and kind of text; 0: weak languages only (default: 0)",
    )
    parser.add_argument("--weak", required=True, metavar="LANG,...", help="the weak languages")
    parser.add_argument(
        "--weak-limit", type=int, required=True, metavar="N", help="the limit of weak languages"
    )
    parser.add_argument(
        "--words", type=Path, nargs="*", default=[], metavar="PREFIX", help="lists of words"
    )
    parser.add_argument("--without", metavar="KIND", help="a kind of text that is left out")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")
    args = parser.parse_args()
    with exit_on_input_error("sample.py"):
        args.output.mkdir(parents=True, exist_ok=True)
        files = sample(args)
        with atomic_write(args.output / PAIRS_FILE) as stream:
            stream.write(f"pairs: {json.dumps(files, ensure_ascii=False, sort_keys=True)}\n")
        print(f"{args.output}: text of {len(files)} language pairs")


if __name__ == "__main__":
    main()
