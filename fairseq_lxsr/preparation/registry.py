"""Registry of public corpora: addresses, languages, formats and licences."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.download import get_archive
from fairseq_lxsr.text.languages import best_code

CORPORA_FILE = Path(__file__).with_name("sources.json")
TWO_LETTERS, OTHER_CODES = (
    "de es fr it nl pt ru sv tr zh",
    "deu spa fra ita nld por rus swe tur cmn",
)
THREE_LETTERS = dict(zip(TWO_LETTERS.split(), OTHER_CODES.split(), strict=True))


@dataclass(frozen=True)
class PublicCorpus:
    """One entry of the registry."""

    name: str  # with its version where there are several
    format: str  # `moses.zip`, `moses.tgz` (one file per language) or `tsv.zip`; others are local and have no url
    licence: str
    about: str
    # of the archive; {first}-{second} are the languages in alphabetical order, {other} is the one
    # that is not English, {other3} its three-letter code, {language} the requested one
    url: str | None = None
    member: str = ""  # file in the archive, with the same placeholders
    # of which all pairs are available, or only those with `partner`
    languages: tuple[str, ...] = ()
    partner: str | None = None  # language that every pair includes; None for all pairs
    # of a pair's archive, by SRC-TGT or TGT-SRC, where the publisher states them
    size: Mapping[str, int] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)

    def pair(self, source: str, target: str) -> tuple[str, str] | None:
        """Return the codes that the corpus has for a pair of languages, of any spelling; None where
        it has no such.
        """
        known = [*self.languages, *filter(None, [self.partner])]
        found = best_code(source, known), best_code(target, known)
        if (
            found[0] is None
            or found[1] is None
            or found[0] == found[1]
            or self.partner not in (None, *found)
        ):
            return None
        return found[0], found[1]

    def has(self, source: str, target: str) -> bool:
        return self.pair(source, target) is not None

    def fill(self, template: str, source: str, target: str, language: str = "") -> str:
        first, second = sorted((source, target))
        other = source if target == (self.partner or "en") else target
        return template.format(
            first=first,
            second=second,
            other=other,
            other3=THREE_LETTERS.get(other, other),
            language=language,
        )


@cache
def registry(path: Path = CORPORA_FILE) -> dict[str, PublicCorpus]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for row in rows:
        languages, partner = tuple(row.pop("languages", "").split()), row.pop("with", None)
        found[row["name"]] = PublicCorpus(languages=languages, partner=partner, **row)
    return found


def find_corpus(
    name: str, source: str, target: str, corpora: dict[str, PublicCorpus] | None = None
) -> PublicCorpus:
    """Find a corpus to download."""
    corpora = registry() if corpora is None else corpora
    corpus = corpora.get(name)
    if corpus is None or corpus.url is None:
        remote = [
            known.name for known in corpora.values() if known.url and known.has(source, target)
        ]
        raise InputError(
            f"{name!r}: no corpus to download; {source}-{target} has {', '.join(remote) or 'none'}"
        )
    if not corpus.has(source, target):
        partner = f" with {corpus.partner}" if corpus.partner else ""
        raise InputError(
            f"{name} has no {source}-{target}; it has {', '.join(corpus.languages)}{partner}"
        )
    return corpus


def get_corpus(
    corpus: PublicCorpus, source: str, target: str, folder: Path, keep_archive: bool = False
) -> list[Path]:
    """Download and unpack the text of a language pair of a corpus with a url; an interrupted
    download resumes.

    The files are for `formats.find_source`: NAME.SRC-TGT.SRC and .TGT, or NAME.SRC-TGT.tsv, by the
    codes of the corpus.
    """
    source, target = corpus.pair(source, target) or (source, target)
    if corpus.format.startswith("tsv") and source != corpus.partner:
        source, target = target, source  # the columns have a fixed order
    pair = f"{source}-{target}"
    archive = folder / f"{corpus.name}.{pair}.{corpus.format.rpartition('.')[2]}"
    if corpus.format.startswith("tsv"):
        wanted = {corpus.fill(corpus.member, source, target): folder / f"{corpus.name}.{pair}.tsv"}
    else:
        wanted = {
            corpus.fill(corpus.member, source, target, language): folder
            / f"{corpus.name}.{pair}.{language}"
            for language in (source, target)
        }
    either = pair, f"{target}-{source}"
    size = next((corpus.size[name] for name in either if name in corpus.size), None)
    sha256 = next((corpus.sha256[name] for name in either if name in corpus.sha256), None)
    get_archive(
        corpus.fill(corpus.url or "", source, target), archive, wanted, (size, sha256), keep_archive
    )
    return list(wanted.values())
