"""Pairs of English texts of programs and their translations, out of packages of Debian.

python examples/pretrained/programs.py --root work/sources/programs --output text/programs

ROOT is the folder into which `dpkg -x` unpacked the packages: chromium-common and chromium-l10n,
firefox-esr and firefox-esr-l10n-LANG, thunderbird and thunderbird-l10n-LANG, libreoffice-l10n-LANG.
The packages of a program must be of the same version: the texts of Chromium only have numbers.
Texts of Firefox and Thunderbird need `pip install fluent.syntax`. Texts lose their mark-up,
placeholders and keyboard shortcuts. Pairs are written as NAME.en-LANG.en.txt.gz and
NAME.en-LANG.LANG.txt.gz, where NAME is chromium, firefox, thunderbird or libreoffice.
"""

import argparse
import html
import random
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from names import ENGLISH, LANGUAGES, Pair, letter_of, write_pairs

from fairseq_lxsr.characters import visible
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.preparation.catalogues import parse_catalogue

SEE_HELP = "see --help"
# Languages that a program lacks in Debian 12.
LACKING = {"chromium": ["is"], "thunderbird": ["fa", "hi"]}

CHROMIUM_FILE = "usr/lib/chromium/locales/{}.pak"
CHROMIUM_ENGLISH = "en-US"
# Languages that have other codes in a program, or several.
CHROMIUM_CODES = {"pt": ["pt-BR"], "zh": ["zh-CN"]}
MOZILLA_ENGLISH = "en-US"
MOZILLA_CODES = {
    **{"es": ["es-ES"], "hi": ["hi-IN"], "nb": ["nb-NO"], "pt": ["pt-PT", "pt-BR"]},
    **{"sv": ["sv-SE"], "zh": ["zh-CN"]},
}
LIBREOFFICE_FOLDER = "usr/lib/libreoffice/program/resource/{}/LC_MESSAGES"
LIBREOFFICE_CODES = {"pt": ["pt", "pt_BR"], "sr": ["sr", "sr@latin"], "zh": ["zh_CN"]}
# Separates the context of a message from its text.
CONTEXT_END = "\x04"
PRODUCT = "%PRODUCTNAME"

# Version, encoding, number of resources and number of aliases.
PAK_HEADER = struct.Struct("<IB3xHH")
PAK_VERSION = 5
PAK_UTF8 = 1
# Number of a resource, and the place of its first byte.
PAK_RESOURCE = struct.Struct("<HI")
# Number of a resource, and the index of the resource that has its text.
PAK_ALIAS = struct.Struct("<HH")

# A line break inside a property.
CONTINUED = re.compile(r"\\\r?\n\s*")
PROPERTY = re.compile(r"\s*([^#!=:\s][^=:\s]*)\s*[=:]\s*(.*)")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
BLANK_ESCAPES = "nrtf"
# Ends of the names of messages that are keys or style sheets.
NOT_TEXT = re.compile(r"(?:accesskey|commandkey|[.-]key|keycode|\.style)$", re.IGNORECASE)
# Files that define the names of products, which other files use.
BRANDING = "/branding/"

# <b>, </a>
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
# &amp; &#8230;
ENTITY = re.compile(r"&#?\w+;")
PLACEHOLDER = re.compile(
    # {name}
    r"\{[^{}]*\}"
    # $1, $name, ${user.name}, $(name)
    r"|\$(?:\d|[({]?[A-Za-z]\w*(?:\.\w+)*[)}]?)"
    # %name%, %%name%%
    r"|%%?[A-Za-z]\w*%%?"
    # %s, %1$s, %1
    r"|%(?:\d+\$)?[sSdiIux@](?![A-Za-z])|%\d(?!\d)"
    # %NAME
    r"|%[A-Z_]{2,}"
    # #1
    r"|(?<!\w)#\d",
    re.ASCII,
)
# (&F), a keyboard shortcut after a text without Latin letters.
SHORTCUT = re.compile(r"\s*\([&~_]\w\)")
# The mark before the letter of a keyboard shortcut: &File, Fo~rmat.
SHORTCUT_MARK = re.compile(r"[&~](?=\w)")
# The same mark in F_ile. Texts with several underscores are names of variables.
ONLY_UNDERSCORE = re.compile(r"([^_]*)_(?=\w)([^_]*)")
# Quotation marks of all languages; \u05f4 is Hebrew, \u300c to \u300f are Chinese and Japanese.
QUOTE = "[\"'\u00ab\u00bb\u05f4\u2018-\u201f\u2039\u203a\u300c-\u300f]"
# Quotation marks around a placeholder that was removed. The marks of the second line open and
# close, so a letter may be next to them.
EMPTY_QUOTES = re.compile(
    rf"(?<!\w){QUOTE}\s*{QUOTE}(?!\w)"
    r"|[\u201c\u300c\u300e]\s*[\u201d\u300d\u300f]"
)
EMPTY_BRACKETS = re.compile(r"[(\uff08]\s*[)\uff09]|\[\s*\]")
# Blanks between a placeholder that was removed and the end of a sentence or clause.
BLANKS_BEFORE_END = re.compile(r"\s+(?=[.,](?:\s|$))")
# A label may end with a colon in one language only.
ENDS = " :\uff1a"

# Addresses, nested placeholders such as {COUNT, plural, =1 {file} other {files}}, and characters
# that are not text.
REFUSED = re.compile(r"https?:|[{}\ufffd\ud800-\udfff]")
LETTER = re.compile(r"[^\W\d_]")
LEAST_LETTERS = 2
MOST_CHARACTERS = 600
# Maximum ratio of the lengths, after the same number of characters is added to both.
MOST_RATIO = 4
ADDED_CHARACTERS = 8


class MozillaProgram(NamedTuple):
    """The files of Firefox or Thunderbird.

    Attributes:
        english: archives of the English texts.
        translation: archive of a language.
    """

    english: Sequence[str]
    translation: str


MOZILLA = {
    "firefox": MozillaProgram(
        ["usr/lib/firefox-esr/omni.ja", "usr/lib/firefox-esr/browser/omni.ja"],
        "usr/lib/firefox-esr/browser/extensions/langpack-{}@firefox-esr.mozilla.org.xpi",
    ),
    "thunderbird": MozillaProgram(
        ["usr/lib/thunderbird/omni.ja"],
        "usr/lib/thunderbird/extensions/langpack-{}@thunderbird.mozilla.org.xpi",
    ),
}


def read_pak(path: Path) -> dict[int, str]:
    """Map the numbers of the resources in a .pak file of Chromium to their texts."""
    content = path.read_bytes()
    try:
        texts = texts_of_pak(content)
    except (struct.error, ValueError, LookupError) as error:
        message = f"{path}: {error!r:.100}; expected a .pak file of version {PAK_VERSION}"
        raise InputError(f"{message}: {SEE_HELP}") from None
    if not texts:
        raise InputError(f"{path}: no texts; expected those of a language: {SEE_HELP}")
    return texts


def texts_of_pak(content: bytes) -> dict[int, str]:
    """Map the numbers of resources to their texts. Raise ValueError if the file is invalid."""
    version, encoding, num_resources, num_aliases = PAK_HEADER.unpack_from(content)
    if version != PAK_VERSION or encoding != PAK_UTF8:
        raise ValueError(f"version {version}, encoding {encoding}")
    resources = []
    # After the last resource, there is an entry for its end.
    end_of_table = PAK_HEADER.size + PAK_RESOURCE.size * (num_resources + 1)
    for place in range(PAK_HEADER.size, end_of_table, PAK_RESOURCE.size):
        resources.append(PAK_RESOURCE.unpack_from(content, place))
    if resources[-1][1] > len(content):
        raise ValueError("cut off")
    texts = {}
    for index, (number, start) in enumerate(resources[:-1]):
        end = resources[index + 1][1]
        # Resources that are not text have bytes that are not UTF-8.
        texts[number] = content[start:end].decode("utf-8", "replace")
    for index in range(num_aliases):
        place = end_of_table + PAK_ALIAS.size * index
        number, resource = PAK_ALIAS.unpack_from(content, place)
        texts[number] = texts[resources[resource][0]]
    return texts


def read_properties(text: str) -> dict[str, str]:
    """Map the names of the messages in a .properties file to their texts."""
    messages = {}
    for line in CONTINUED.sub("", text).splitlines():
        row = PROPERTY.fullmatch(line)
        if row:
            messages[row[1]] = ESCAPE.sub(unescaped, row[2])
    return messages


def unescaped(match: re.Match[str]) -> str:
    """Return the character of an escape in a .properties file."""
    if match[1]:
        return chr(int(match[1], 16))
    return " " if match[2] in BLANK_ESCAPES else match[2]


def read_ftl(text: str, terms: dict[str, str]) -> dict[str, str]:
    """Map the names of the messages and attributes in an .ftl file to their texts.

    Args:
        text: content of the file.
        terms: names of products. The function adds those that the file defines.
    """
    from fluent.syntax import ast, parse

    messages = {}
    for entry in parse(text).body:
        if isinstance(entry, ast.Term):
            terms[entry.id.name] = text_of(entry.value, terms)
        elif isinstance(entry, ast.Message):
            if entry.value:
                messages[entry.id.name] = text_of(entry.value, terms)
            for attribute in entry.attributes:
                name = f"{entry.id.name}.{attribute.id.name}"
                messages[name] = text_of(attribute.value, terms)
    return messages


def text_of(pattern: Any, terms: Mapping[str, str]) -> str:
    """Return the text of a pattern in an .ftl file, without its variables.

    Args:
        pattern: a `fluent.syntax.ast.Pattern`. Of several variants, the default one is used.
        terms: names of products.
    """
    from fluent.syntax import ast

    parts = []
    for element in pattern.elements:
        if isinstance(element, ast.TextElement):
            parts.append(element.value)
            continue
        expression = element.expression
        if isinstance(expression, ast.StringLiteral):
            parts.append(expression.parse()["value"])
        elif isinstance(expression, ast.TermReference):
            parts.append(terms.get(expression.id.name, " "))
        elif isinstance(expression, ast.SelectExpression):
            for variant in expression.variants:
                if variant.default:
                    parts.append(text_of(variant.value, terms))
        else:
            parts.append(" ")
    return "".join(parts)


def read_archives(paths: Sequence[Path], code: str) -> dict[str, str]:
    """Map the messages in archives of Firefox or Thunderbird to their texts.

    Args:
        paths: archives of one language.
        code: code of the language in the names of folders.

    Returns:
        Texts by the path in the archive, without the code, and the name of the message.
    """
    texts: dict[str, str] = {}
    terms: dict[str, str] = {}
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                texts |= texts_of_archive(archive, code, terms)
        except InputError:
            raise
        except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError) as error:
            message = f"{path}: {error!r:.100}; expected an archive of Firefox or Thunderbird"
            raise InputError(f"{message}: {SEE_HELP}") from None
    return texts


def texts_of_archive(archive: zipfile.ZipFile, code: str, terms: dict[str, str]) -> dict[str, str]:
    """Map the messages in one archive to their texts; see `read_archives` and `read_ftl`."""
    texts = {}
    # False comes before True, so the names of products are read first.
    for path in sorted(archive.namelist(), key=lambda path: BRANDING not in path):
        if path.endswith(".properties"):
            messages = read_properties(archive.read(path).decode())
        elif path.endswith(".ftl"):
            if is_missing("fluent.syntax"):
                raise InputError(
                    f"{archive.filename}, {path}: fluent.syntax is not installed; expected"
                    " the package that reads .ftl: pip install fluent.syntax"
                )
            messages = read_ftl(archive.read(path).decode(), terms)
        else:
            continue
        # A language pack has the texts of both English archives, and the second one is its folder
        # browser.
        folders = path.removeprefix("browser/").split("/")
        file = "/".join(folder for folder in folders if folder != code)
        for name, text in messages.items():
            if not NOT_TEXT.search(name):
                texts[f"{file} {name}"] = text
    return texts


def chromium_pairs(english: Mapping[int, str], root: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of texts of Chromium."""
    for code in CHROMIUM_CODES.get(language, [language]):
        texts = read_pak(root / CHROMIUM_FILE.format(code))
        for number in english.keys() & texts.keys():
            yield english[number], texts[number]


def mozilla_pairs(
    english: Mapping[str, str], root: Path, program: MozillaProgram, language: str
) -> Iterator[Pair]:
    """Yield the pairs of texts of Firefox or Thunderbird."""
    for code in MOZILLA_CODES.get(language, [language]):
        texts = read_archives([root / program.translation.format(code)], code)
        for name in english.keys() & texts.keys():
            yield english[name], texts[name]


def libreoffice_pairs(root: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of texts of LibreOffice."""
    for code in LIBREOFFICE_CODES.get(language, [language]):
        folder = root / LIBREOFFICE_FOLDER.format(code)
        paths = sorted(folder.glob("*.mo"))
        if not paths:
            raise InputError(
                f"{folder}: no catalogues; expected those of libreoffice-l10n-LANG: {SEE_HELP}"
            )
        for path in paths:
            for message, text in parse_catalogue(path, Counter[str]()).items():
                english = message.rpartition(CONTEXT_END)[2]
                yield english.replace(PRODUCT, "LibreOffice"), text.replace(PRODUCT, "LibreOffice")


def clean(text: str) -> str:
    """Return a text without mark-up, placeholders, keyboard shortcuts and invisible characters."""
    text = TAG.sub(" ", text)
    text = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = PLACEHOLDER.sub(" ", text)
    text = SHORTCUT.sub("", text)
    text = SHORTCUT_MARK.sub("", text)
    underscore = ONLY_UNDERSCORE.fullmatch(text)
    if underscore:
        text = underscore[1] + underscore[2]
    text = EMPTY_QUOTES.sub(" ", text)
    text = EMPTY_BRACKETS.sub(" ", text)
    text = BLANKS_BEFORE_END.sub("", text)
    return " ".join(visible(text).split()).strip(ENDS)


def is_kept(english: str, text: str, letter: re.Pattern[str]) -> bool:
    """Return whether two clean texts are a pair to learn from.

    Args:
        english: the English text.
        text: its translation.
        letter: matches a letter of the language of the translation.
    """
    if english.casefold() == text.casefold() or REFUSED.search(english + text):
        return False
    if len(LETTER.findall(english)) < LEAST_LETTERS or not letter.search(text):
        return False
    short, long = sorted([len(english), len(text)])
    ratio = (long + ADDED_CHARACTERS) / (short + ADDED_CHARACTERS)
    return long <= MOST_CHARACTERS and ratio < MOST_RATIO


def cleaned(pairs: Iterator[Pair], language: str) -> list[Pair]:
    """Return clean pairs in random order. Of pairs that differ in case only, one is kept."""
    letter = letter_of(language)
    distinct: dict[Pair, Pair] = {}
    # Sorted, because the order of the pairs of a source is not always the same.
    for raw_english, raw_text in sorted(pairs):
        english = clean(raw_english)
        text = clean(raw_text)
        if is_kept(english, text, letter):
            distinct.setdefault((english.casefold(), text.casefold()), (english, text))
    ordered = sorted(distinct.values())
    random.Random(0).shuffle(ordered)
    return ordered


def languages(program: str) -> list[str]:
    """Return the languages of a program."""
    return [language for language in LANGUAGES if language not in LACKING.get(program, [])]


def all_pairs(root: Path) -> dict[tuple[str, str], list[Pair]]:
    """Map names of programs and languages to their pairs."""
    raw_pairs: dict[tuple[str, str], Iterator[Pair]] = {}
    texts = read_pak(root / CHROMIUM_FILE.format(CHROMIUM_ENGLISH))
    for language in languages("chromium"):
        raw_pairs["chromium", language] = chromium_pairs(texts, root, language)
    for name, program in MOZILLA.items():
        archives = [root / path for path in program.english]
        messages = read_archives(archives, MOZILLA_ENGLISH)
        for language in languages(name):
            raw_pairs[name, language] = mozilla_pairs(messages, root, program, language)
    for language in languages("libreoffice"):
        raw_pairs["libreoffice", language] = libreoffice_pairs(root, language)
    pairs = {}
    for (name, language), source_pairs in raw_pairs.items():
        pairs[name, language] = cleaned(source_pairs, language)
        if not pairs[name, language]:
            raise InputError(
                f"{root}: no pairs of {name} in {ENGLISH}-{language};"
                f" expected packages of the same version: {SEE_HELP}"
            )
    return pairs


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, required=True, metavar="ROOT", help="folder of the unpacked packages"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    with exit_on_input_error("programs.py"):
        # All packages are read first, so that nothing is written if one is invalid.
        for (name, language), pairs in all_pairs(args.root).items():
            write_pairs(args.output, name, language, pairs)


if __name__ == "__main__":
    main()
