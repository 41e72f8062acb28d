"""Reads text, Markdown and HTML files as passages with ids.

In a text file, empty lines separate the passages. In Markdown and HTML, each paragraph, list item,
table row and code block is a passage, with the nearest heading above in front of it. A heading
without text of its own is a passage too.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from fairseq_lxsr.errors import InputError, listed, say
from fairseq_lxsr.files.lines import SENTENCE_BYTES, is_blank, read_lines, single_line
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.formats import ending_of

TEXT = ".txt"
MARKDOWN = (".md", ".markdown")
HTML = (".html", ".htm")
EXPECTED = ", ".join((TEXT, *MARKDOWN, *HTML))
# Elements whose text is not shown, or leads to other pages.
HIDDEN = {"nav", "script", "style", "template"}
HEADINGS = {"title", "h1", "h2", "h3", "h4", "h5", "h6"}
CELLS = {"td", "th"}
# Elements that begin and end a block of text.
BLOCKS = HEADINGS | {
    "address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog",
    "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "head", "header",
    "hr", "html", "legend", "li", "main", "ol", "option", "p", "pre", "section", "select",
    "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
}  # fmt: skip
# Metadata at the start of a Markdown file, as written for generators of web sites.
FRONT_MATTER = re.compile(r"\A---\n(?=[\w-]+:)(.*?)^(?:---|\.\.\.)\s*$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r"^title:(.+)$", re.MULTILINE)

# Whether a block is a heading, and its text.
Block = tuple[bool, str]


def has_paragraphs(paths: Sequence[str]) -> bool:
    """Return whether inputs are articles: a folder, several files, or Markdown or HTML."""
    return len(paths) > 1 or ending_of(paths[0]) in MARKDOWN + HTML or os.path.isdir(paths[0])


def place_of(paths: Sequence[str]) -> str:
    """Name inputs in a message. The name of a single file is not cut."""
    return paths[0] if len(paths) == 1 else listed(paths)


def find_articles(paths: Sequence[str]) -> dict[str, Path]:
    """Find the files of articles, in folders and their subfolders, and name them.

        files = find_articles(["kb"])
        for name, text in read_articles(files):
            print(name, text)  # guides/wifi.md#1 Wi-Fi. Switch the router off and on.

    Names are relative to the folder that contains all inputs; a single input folder is that folder.
    Hidden files are skipped. A message lists the other files that are not read.

    Args:
        paths: files and folders, or `-` for standard input. A single file is read whatever its
            name is.

    Returns:
        The files, sorted, by their names.

    Raises:
        InputError: if an input is missing, or no file can be read.
    """
    if list(paths) == ["-"]:
        return {"-": Path("-")}
    files: list[str] = []
    parents = []
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file or folder; check the name")
        if os.path.isdir(path):
            files += _files_in(path)
            parents.append(os.path.abspath(path))
        else:
            files.append(path)
            parents.append(os.path.dirname(os.path.abspath(path)))
    parent = os.path.commonpath(parents)
    names = {Path(os.path.relpath(file, parent)).as_posix(): Path(file) for file in files}
    is_single = len(paths) == 1 and not os.path.isdir(paths[0])
    articles = {}
    for name in sorted(names):
        is_article = ending_of(name) in (TEXT, *MARKDOWN, *HTML) and names[name].is_file()
        if is_article or is_single:
            articles[name] = names[name]
    unread = [name for name in names if name not in articles]
    if not articles:
        raise InputError(
            f"{place_of(paths)}: no file name ends in {EXPECTED} (files: {len(unread):,}); convert "
            "the files, or use --columns for CSV and JSON lines"
        )
    if unread:
        say(f"files not read: {len(unread):,} ({listed(sorted(unread))}); only {EXPECTED} are read")
    return articles


def _files_in(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.join(parent, name)


def read_articles(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each passage; see `find_articles`.

    The id of the first passage in the file NAME is `NAME#1`.

    Args:
        files: files by their names.

    Raises:
        InputError: if a file is not UTF-8, a passage is longer than 1 MiB, no file has text, or a
            package that reads Markdown or HTML is not installed.
    """
    is_empty = True
    for name, file in files.items():
        for number, text in enumerate(_passages(file), start=1):
            if len(text.encode("utf-8", "replace")) > SENTENCE_BYTES:
                raise InputError(
                    f"{file}: the paragraph that starts with {text[:20]!r} is longer than "
                    f"{SENTENCE_BYTES:,} bytes; separate paragraphs by empty lines"
                )
            is_empty = False
            yield f"{name}#{number}", text
    if is_empty:
        raise InputError(
            f"{place_of(list(map(str, files.values())))}: no text; expected paragraphs"
        )


def _passages(file: Path) -> Iterator[str]:
    ending = ending_of(file.name)
    lines = read_lines(file, is_sentence=False)
    if ending in MARKDOWN:
        return with_headings(markdown_blocks("\n".join(lines), str(file)))
    if ending in HTML:
        return with_headings(html_blocks("\n".join(lines), str(file)))
    return paragraphs(lines)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of each paragraph. Empty lines separate paragraphs."""
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        if not is_blank(line):
            paragraph.append(line)
        elif paragraph:
            yield single_line(" ".join(paragraph))
            paragraph = []


def markdown_blocks(text: str, place: str = "Markdown") -> list[Block]:
    """Return the blocks of a Markdown text.

    The title in the metadata at the start is a heading; other metadata are skipped.

    Args:
        text: the text.
        place: name of the file, for the message.

    Raises:
        InputError: if markdown-it-py or lxml is not installed.
    """
    require("markdown_it", "articles", place)
    from markdown_it import MarkdownIt

    blocks: list[Block] = []
    front_matter = FRONT_MATTER.match(text)
    if front_matter:
        text = text[front_matter.end() :]
        title = TITLE.search(front_matter[1])
        if title:
            blocks.append((True, single_line(title[1]).strip("\"'")))
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return blocks + html_blocks(parser.render(text), place)


def html_blocks(text: str, place: str = "HTML") -> list[Block]:
    """Return the blocks of an HTML text, without scripts, styles and navigation.

    Args:
        text: the text.
        place: name of the file, for the message.

    Raises:
        InputError: if lxml is not installed.
    """
    require("lxml", "articles", place)
    from lxml import etree

    # Without huge_tree, deeply nested text would be left out.
    parser = etree.HTMLParser(target=_BlockBuilder(), encoding="utf-8", huge_tree=True)
    parser.feed(text.encode())
    return parser.close()


class _BlockBuilder:
    """Collects the blocks of HTML from the events of a parser."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._parts: list[str] = []
        self._is_heading = False
        self._num_hidden = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag in BLOCKS:
            self._end_block()
            self._is_heading = self._is_heading or tag in HEADINGS
        elif tag in CELLS:
            self._begin_cell()
        elif tag in HIDDEN:
            self._num_hidden += 1
        elif tag == "br":
            self._parts.append(" ")
        elif tag == "img":
            self._parts.append(attributes.get("alt", ""))

    def end(self, tag: str) -> None:
        if tag in BLOCKS:
            self._end_block()
            self._is_heading = self._is_heading and tag not in HEADINGS
        elif tag in HIDDEN:
            self._num_hidden -= 1

    def data(self, data: str) -> None:
        if not self._num_hidden:
            self._parts.append(data)

    def close(self) -> list[Block]:
        self._end_block()
        return self._blocks

    def _begin_cell(self) -> None:
        text = "".join(self._parts)
        if not is_blank(text):
            self._parts = [text.rstrip(), ", "]

    def _end_block(self) -> None:
        text = "".join(self._parts)
        if not is_blank(text):
            self._blocks.append((self._is_heading, single_line(text)))
        self._parts = []


def with_headings(blocks: Iterable[Block]) -> Iterator[str]:
    """Put the nearest heading in front of each block. A heading without a block stays alone."""
    heading = ""
    is_used = True
    for is_heading, text in blocks:
        if not is_heading:
            yield titled(heading, text)
            is_used = True
            continue
        if not is_used:
            yield heading
        heading = text
        is_used = False
    if not is_used:
        yield heading


def titled(title: str, text: str) -> str:
    """Join a title and a text; the title becomes a sentence, so it ends in punctuation."""
    if not title or not text:
        return title or text
    is_sentence = unicodedata.category(title[-1]).startswith("P")
    return f"{title} {text}" if is_sentence else f"{title}. {text}"
