"""Registry of public corpora: URLs, languages, formats and licences."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.download import get_archive
from fairseq_lxsr.text.languages import best_code

T = TypeVar("T")
CORPORA_FILE = Path(__file__).with_name("sources.json")
# Three-letter language codes, which are used by some archives.
THREE_LETTERS = {
    "de": "deu",
    "es": "spa",
    "fr": "fra",
    "it": "ita",
    "nl": "nld",
    "pt": "por",
    "ru": "rus",
    "sv": "swe",
    "tr": "tur",
    "zh": "cmn",
}


@dataclass(frozen=True)
class PublicCorpus:
    """An entry in the registry of public corpora.

    Attributes:
        name: name of the corpus, with a version if there are several.
        format: `moses.zip` or `moses.tgz`, with one file per language, or `tsv.zip`. Corpora in
            other formats are local and have no URL.
        licence: licence of the text.
        about: short description.
        url: URL of the archive. {first}-{second} stands for the languages in alphabetical order,
            {other} for the language that is not English, {other3} for its three-letter code, and
            {language} for the requested language.
        member: file in the archive, with the same placeholders.
        languages: language codes.
        partner: language that is part of every pair; None if all pairs are available.
        size: published size in bytes of each pair's archive, keyed by SRC-TGT or TGT-SRC.
        sha256: published SHA-256 of each pair's archive, keyed by SRC-TGT or TGT-SRC.
    """

    name: str
    format: str
    licence: str
    about: str
    url: str | None = None
    member: str = ""
    languages: tuple[str, ...] = ()
    partner: str | None = None
    size: Mapping[str, int] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)

    def pair(self, source: str, target: str) -> tuple[str, str] | None:
        """Return the language codes that the corpus uses for a language pair.

        Returns:
            Codes of source and target, or None if the corpus does not contain the pair.
        """
        codes = list(self.languages)
        if self.partner:
            codes.append(self.partner)
        source_code = best_code(source, codes)
        target_code = best_code(target, codes)
        if source_code is None or target_code is None or source_code == target_code:
            return None
        if self.partner and self.partner not in (source_code, target_code):
            return None
        return source_code, target_code

    def has(self, source: str, target: str) -> bool:
        """Return whether the corpus contains a language pair, in any spelling of the codes."""
        return self.pair(source, target) is not None

    def fill(self, template: str, source: str, target: str, language: str = "") -> str:
        """Replace the placeholders in `url` or `member`."""
        first, second = sorted((source, target))
        foreign = target
        if target == (self.partner or "en"):
            foreign = source
        return template.format(
            first=first,
            second=second,
            other=foreign,
            other3=THREE_LETTERS.get(foreign, foreign),
            language=language,
        )


@cache
def registry() -> dict[str, PublicCorpus]:
    """Return all public corpora, keyed by name."""
    corpora = {}
    for row in json.loads(CORPORA_FILE.read_text(encoding="utf-8")):
        languages = tuple(row.pop("languages", "").split())
        partner = row.pop("with", None)
        corpora[row["name"]] = PublicCorpus(languages=languages, partner=partner, **row)
    return corpora


def find_corpus(name: str, source: str, target: str) -> PublicCorpus:
    """Return the registry entry of a corpus that covers a language pair.

    Args:
        name: name in the registry.
        source: source language, in any spelling of its code.
        target: target language, in any spelling of its code.

    Raises:
        InputError: if there is no such corpus to download, or it does not contain the pair.
    """
    corpora = registry()
    corpus = corpora.get(name)
    if corpus is None or corpus.url is None:
        names = []
        for candidate in corpora.values():
            if candidate.url and candidate.has(source, target):
                names.append(candidate.name)
        raise InputError(
            f"{name!r}: unknown corpus; corpora for {source}-{target}: {', '.join(names) or 'none'}"
        )
    if not corpus.has(source, target):
        partner = f", each paired with {corpus.partner}" if corpus.partner else ""
        raise InputError(
            f"{name}: this corpus does not contain {source}-{target}; its languages are "
            f"{', '.join(corpus.languages)}{partner}"
        )
    return corpus


def get_corpus(corpus: PublicCorpus, source: str, target: str, folder: Path) -> list[Path]:
    """Download and unpack a language pair of a corpus. An interrupted download is resumed.

    Args:
        corpus: corpus with a URL.
        source: source language, in any spelling of its code.
        target: target language, in any spelling of its code.
        folder: output folder.

    Returns:
        Files that `formats.find_source` accepts: NAME.SRC-TGT.SRC and NAME.SRC-TGT.TGT, or
        NAME.SRC-TGT.tsv, with the corpus's language codes.

    Raises:
        InputError: if the download fails, or the archive differs from the published one.
    """
    source, target = corpus.pair(source, target) or (source, target)
    is_table = corpus.format.startswith("tsv")
    if is_table and source != corpus.partner:
        # The columns of the table have a fixed order, which begins with the partner language.
        source, target = target, source
    prefix = f"{corpus.name}.{source}-{target}"
    archive = folder / f"{prefix}.{corpus.format.rpartition('.')[2]}"
    members = {}
    if is_table:
        members[corpus.fill(corpus.member, source, target)] = folder / f"{prefix}.tsv"
    else:
        for language in (source, target):
            member = corpus.fill(corpus.member, source, target, language)
            members[member] = folder / f"{prefix}.{language}"
    published = (
        _value_of_pair(corpus.size, source, target),
        _value_of_pair(corpus.sha256, source, target),
    )
    url = corpus.fill(corpus.url or "", source, target)
    get_archive(url, archive, members, published)
    return list(members.values())


def _value_of_pair(values: Mapping[str, T], source: str, target: str) -> T | None:
    """Return the value for a language pair in either direction, or None if it is not published."""
    for name in (f"{source}-{target}", f"{target}-{source}"):
        if name in values:
            return values[name]
    return None
