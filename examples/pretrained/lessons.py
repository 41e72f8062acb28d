"""Make aligned text of lessons that Microsoft publishes in 50 languages.

python examples/pretrained/lessons.py --lessons work/sources/iot work/sources/azd \
    --output text/lessons

Each repository has its English pages, and their translations in `translations/LANGUAGE` under the
same names. A page and its translation are aligned line by line. Pages whose lines are not the same
in number and in kind (heading, list item, code) are left out and counted.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

from names import write_pairs

from fairseq_lxsr.errors import InputError, exit_on_input_error

# Names of the folders of languages, if they are not the codes of the languages.
FOLDERS = {"nb": "no", "pt": "br"}
LANGUAGES = (
    *("ar", "bg", "cs", "da", "de", "el", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu"),
    *("id", "it", "ja", "ko", "lt", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv"),
    *("th", "tr", "uk", "vi", "zh"),
)
METADATA = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)
CODE_FENCE = re.compile(r"^\s*(```|~~~)")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
TAG = re.compile(r"<[^<>]+>")
# Heading, quotation, list item or table cell.
PREFIX = re.compile(r"^\s*(#+|>|[-*+]|\d+\.|\|)\s*")
EMPHASIS = re.compile(r"[*_`]+")
# The full-width signs of Chinese and Japanese need no space after them.
SENTENCE_END = re.compile("(?<=[.!?\u0964\u061f])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")
LETTERS = re.compile(r"[^\W\d_]{2}")
MAX_CHARACTERS = 600


def prose(page: str) -> list[tuple[str, str]]:
    """Return the lines of a page of Markdown without code: their kind, and their plain text."""
    lines = []
    is_code = False
    for line in METADATA.sub("", page).splitlines():
        if CODE_FENCE.match(line):
            is_code = not is_code
            lines.append(("code", ""))
        elif not is_code and line.strip():
            prefix = PREFIX.match(line)
            kind = prefix.group(1)[0] if prefix else ""
            text = LINK.sub(r"\1", IMAGE.sub("", line))
            text = EMPHASIS.sub("", TAG.sub("", PREFIX.sub("", text)))
            lines.append((kind, " ".join(text.replace("|", " ").split())))
    return lines


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence for sentence in SENTENCE_END.split(text) if sentence]


def sentence_pairs(english: str, translation: str) -> list[tuple[str, str]]:
    """Return the sentences of two texts, or the two texts if they differ in their number."""
    sources = sentences(english)
    targets = sentences(translation)
    if len(sources) != len(targets):
        return [(english, translation)]
    return list(zip(sources, targets, strict=True))


def page_pairs(english: str, translation: str) -> list[tuple[str, str]] | None:
    """Return the sentence pairs of a page, or None if its lines do not correspond."""
    sources = prose(english)
    targets = prose(translation)
    # The translation ends with a disclaimer.
    targets = targets[: len(sources)]
    if [kind for kind, _ in sources] != [kind for kind, _ in targets]:
        return None
    pairs = []
    for (_, source), (_, target) in zip(sources, targets, strict=True):
        pairs += sentence_pairs(source, target)
    return [pair for pair in pairs if is_translated(*pair)]


def is_translated(source: str, target: str) -> bool:
    """Return whether both texts have words, differ, and are short enough."""
    texts = (source, target)
    return source != target and all(
        len(text) <= MAX_CHARACTERS and LETTERS.search(text) for text in texts
    )


def repository_pairs(repository: Path, language: str) -> tuple[list[tuple[str, str]], int, int]:
    """Return the pairs of a repository, and how many pages have been read and left out."""
    folder = repository / "translations" / FOLDERS.get(language, language)
    pairs = []
    page_count = 0
    excluded = 0
    for page in sorted(folder.rglob("*.md")):
        english = repository / page.relative_to(folder)
        if not english.is_file():
            continue
        page_count += 1
        pairs_of_page = page_pairs(english.read_text("utf-8"), page.read_text("utf-8"))
        if pairs_of_page is None:
            excluded += 1
        else:
            pairs += pairs_of_page
    return pairs, page_count, excluded


def write_lessons(repositories: list[Path], output: Path) -> None:
    """Write `lessons.en-LANG.en.txt.gz` and `lessons.en-LANG.LANG.txt.gz`, each pair once.

    Raises:
        InputError: if a repository has no translations.
    """
    for repository in repositories:
        if not (repository / "translations").is_dir():
            raise InputError(f"{repository}: no folder translations; expected lessons of Microsoft")
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = defaultdict(int)
    for language in LANGUAGES:
        pairs: dict[tuple[str, str], None] = {}
        for repository in repositories:
            new_pairs, page_count, excluded = repository_pairs(repository, language)
            pairs |= dict.fromkeys(new_pairs)
            counts["pages"] += page_count
            counts["excluded"] += excluded
        write_pairs(output, "lessons", language, list(pairs))
    excluded, pages = counts["excluded"], counts["pages"]
    print(f"{excluded:,} of {pages:,} pages have other lines than the English page")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lessons", type=Path, nargs="+", required=True, metavar="REPOSITORY")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    with exit_on_input_error("lessons.py"):
        write_lessons(args.lessons, args.output)


if __name__ == "__main__":
    main()
