"""Finds test text, specified by a path template or by the name of a public test set."""

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
    """Return the first existing file with one of these names and suffixes, or None."""
    for name in names:
        for suffix in suffixes:
            path = Path(f"{name}{suffix}")
            if path.is_file():
                return path
    return None


def find_file(template: str, language: str = "", pair: str = "") -> Path:
    """Find the file that a path template refers to.

    Args:
        template: path in which {lang} and {pair} are filled in. Without {lang}, the language is
            appended to it. A suffix such as .txt.gz may be missing.
        language: language of the file.
        pair: language pair of the file.

    Raises:
        InputError: if no such file exists.
    """
    if language and "{lang}" not in template:
        template = f"{template}.{{lang}}"
    base = template.replace("{lang}", language).replace("{pair}", pair)
    path = first_file([base], TEXT_SUFFIXES)
    if path is None:
        raise InputError(
            f"{base}: no such file, with or without {', '.join(TEXT_SUFFIXES[1:])}; "
            "check its name and the languages"
        )
    return path


@dataclass(frozen=True)
class Dataset:
    """A public test set: the same sentences in many languages, one file per language.

    Args:
        name: name on the command line and in signatures.
        about: description and citation.
        file: path of a language's file in the unpacked archive; {code} is the language code.
        sentences: number of sentences per language.
        codes: language codes in the names of the files.
        short: maps two-letter language codes to codes of this set.
        url: URL of the archive, or of a page that links to it.
        licence: licence of the text.
        size: archive size in bytes; None if `url` does not point to a fixed archive.
        sha256: archive checksum, or None if `size` is None.
        files: exceptions to `file`, as paths by language code.
        error_types: path of the xsim++ error types, with {code}; empty if the set has none.
        augmented: path of the xsim++ hard negatives, with {code}; empty if the set has none.
    """

    name: str
    about: str
    file: str
    sentences: int
    codes: tuple[str, ...]
    short: Mapping[str, str]
    url: str
    licence: str
    size: int | None = None
    sha256: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    error_types: str = ""
    augmented: str = ""

    def all_files(self) -> list[str]:
        """Return the files of all languages, as paths in the unpacked archive."""
        return [self._file(code) for code in self.codes]

    def _file(self, code: str) -> str:
        return self.files.get(code, self.file.format(code=code))

    def code(self, language: str) -> str:
        """Return the code of a language in this test set.

        Args:
            language: language in any BCP 47 spelling, such as zh, zho_Hant or zh_TW.

        Raises:
            InputError: if the language is unknown or ambiguous.
        """
        if language in self.codes:
            return language
        if language in self.short:
            return self.short[language]
        codes = self._matching_codes(language)
        if len(codes) == 1:
            return codes[0]
        if codes:
            expected = " or ".join(code.replace("-", "_") for code in codes)
            raise InputError(
                f"--lang-pairs: language {language!r} is ambiguous in {self.name}; "
                f"expected {expected}"
            )
        raise InputError(
            f"--lang-pairs: language {language!r} is not in {self.name}; "
            "use a language such as en or eng, or a code from its file names"
        )

    def _matching_codes(self, language: str) -> list[str]:
        """Return the codes of a language, preferring those with the same script and region."""
        codes = [code for code in self.codes if is_same_language(language, code)]
        exact = [code for code in codes if parse_tag(code) == parse_tag(language)]
        return exact or codes

    def path(self, folder: str, language: str) -> Path:
        """Find the file of a language in the unpacked archive.

        Args:
            folder: folder of the unpacked archive.
            language: language in any spelling; see `code`.

        Raises:
            InputError: if the file is missing or has the wrong number of lines.
        """
        path = self._find(folder, self._file(self.code(language)))
        count = sum(1 for _ in read_lines(path))
        if count != self.sentences:
            raise InputError(
                f"{path}: {count:,} lines; expected the {self.sentences:,} sentences of "
                f"{self.name}: unpack the archive again"
            )
        return path

    def augmented_files(self, folder: str, language: str) -> tuple[Path, Path]:
        """Find the error types and hard negatives of a language for xsim++.

        Args:
            folder: folder of the unpacked archive.
            language: language in any spelling; see `code`.

        Raises:
            InputError: if the test set has no hard negatives, or a file is missing.
        """
        if not self.error_types:
            raise InputError(
                f"--dataset {self.name} has no hard negatives for xsim++; "
                "specify --error-types or another --dataset"
            )
        code = self.code(language)
        errors = self._find(folder, self.error_types.format(code=code))
        text = self._find(folder, self.augmented.format(code=code))
        return errors, text

    def _find(self, folder: str, name: str) -> Path:
        path = Path(folder) / name
        file = first_file([path])
        if file is None:
            raise InputError(
                f"{path}: no such file; expected --data to be the folder of {self.name}, "
                f"unpacked from {self.url}"
            )
        return file


@cache
def datasets() -> dict[str, Dataset]:
    """Return all public test sets by name."""
    registry = json.loads(DATASETS_FILE.read_text(encoding="utf-8"))
    sets = {}
    for row in registry["datasets"]:
        group = row.pop("codes")
        codes = tuple(registry["codes"][group].split())
        sets[row["name"]] = Dataset(**row, codes=codes, short=registry["short"][group])
    return sets
