"""Where test text is: files of a template, and the named test sets with the languages of their
archives.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.languages import is_same_language, parse_tag

DATASETS_FILE = Path(__file__).with_name("datasets.json")
TEXT_SUFFIXES = ("", ".gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz")


def first_file(names: Iterable[str | Path], suffixes: Sequence[str] = ("", ".gz")) -> Path | None:
    """Return the first file that is there, of these names with these endings."""
    paths = (Path(f"{name}{suffix}") for name in names for suffix in suffixes)
    return next(filter(Path.is_file, paths), None)


def find_file(template: str, language: str = "", pair: str = "") -> Path:
    """Find the file of a template: {lang} and {pair} are filled in, an ending such as .txt.gz is
    added where needed.
    """
    name = template if "{lang}" in template or not language else f"{template}.{{lang}}"
    base = name.replace("{lang}", language).replace("{pair}", pair)
    found = first_file([base], TEXT_SUFFIXES)
    if found:
        return found
    raise InputError(
        f"{base}: no such file, nor with {', '.join(TEXT_SUFFIXES[1:])}; check --data and the languages"
    )


@dataclass(frozen=True)
class Dataset:
    """One entry of the registry: the same sentences in many languages, one file a language."""

    name: str  # on the command line and in signatures
    about: str  # with its paper
    file: str  # of a language in the unpacked archive; {code} is the language
    sentences: int  # the same number in each language
    codes: tuple[str, ...]  # languages, as the files are named
    short: Mapping[str, str]  # two letters -> code
    url: str
    licence: str
    size: int | None = (
        None  # bytes of the archive; None where the address is none of an archive that can be checked
    )
    sha256: str | None = None  # see `size`
    files: Mapping[str, str] = field(default_factory=dict)  # that are named otherwise, by code
    error_types: str = ""  # file of the changed sentences of xsim++; empty where there is none
    augmented: str = ""  # file of their text

    def all_files(self) -> list[str]:
        """Return the files of all languages, as paths in the unpacked archive."""
        return [self.files.get(code, self.file.format(code=code)) for code in self.codes]

    def code(self, language: str) -> str:
        """Return the code of a language that is given in any spelling of BCP 47: zh, zho_Hant or
        zh_TW.
        """
        if language in self.codes:
            return language
        if language in self.short:
            return self.short[language]
        found = [code for code in self.codes if is_same_language(language, code)]
        found = [code for code in found if parse_tag(code) == parse_tag(language)] or found
        if len(found) == 1:
            return found[0]
        known = (
            " or ".join(code.replace("-", "_") for code in found)
            or "for example en, eng or a code of its files"
        )
        raise InputError(
            f"--lang-pairs: {self.name} has {len(found)} languages {language!r}; expected {known}"
        )

    def path(self, folder: str, language: str) -> Path:
        """Find the file of a language (see `code`) in the unpacked archive, and check its number of
        lines.
        """
        code = self.code(language)
        path = self._find(folder, self.files.get(code, self.file.format(code=code)))
        count = sum(1 for _ in read_lines(path))
        if count != self.sentences:
            raise InputError(
                f"{path}: {count:,} lines; {self.name} has {self.sentences:,} sentences: unpack it again"
            )
        return path

    def changed(self, folder: str, language: str) -> tuple[Path, Path]:
        """Find the changed sentences of a language for xsim++: their types, and their text."""
        if not self.error_types:
            raise InputError(
                f"{self.name} has no changed sentences; expected --error-types, or another --dataset"
            )
        code = self.code(language)
        errors, text = (
            self._find(folder, name.format(code=code))
            for name in (self.error_types, self.augmented)
        )
        return errors, text

    def _find(self, folder: str, name: str) -> Path:
        path = Path(folder) / name
        found = first_file([path])
        if found:
            return found
        where = f"the folder that {self.name} unpacks to, of {self.url}"
        raise InputError(f"{path}: no such file; expected in --data {where}")


@cache
def datasets() -> dict[str, Dataset]:
    """Return all named test sets by name."""
    read = json.loads(DATASETS_FILE.read_text(encoding="utf-8"))
    found = {}
    for row in read["datasets"]:
        codes = row.pop("codes")
        found[row["name"]] = Dataset(
            **row, codes=tuple(read["codes"][codes].split()), short=read["short"][codes]
        )
    return found
