"""Finds test text, specified by a path template or by the name of a public test set."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.languages import best_code

DATASETS_FILE = Path(__file__).with_name("datasets.json")
# English in test sets whose files have pairs of languages in their names.
ENGLISH = "eng"
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
    """A public test set with one file per language.

    Args:
        name: name on the command line and in signatures.
        about: description and citation.
        file: path of a language's file in the unpacked archive; {code} is the language code, {pair}
            that of a language with English, for example `fra-eng`.
        codes: language codes in the names of the files.
        url: URL of the archive, or of a page that links to it.
        licence: licence of the text.
        kind: `aligned` for the same sentences in many languages, `sts` for rated pairs, or
            `passages`.
        sentences: number of sentences per language; None if it varies or is not checked.
        mteb: the MTEB task of this set: `task`, `type`, `path` and `split`; empty if there is none.
        size: archive size in bytes; None if `url` does not point to a fixed archive.
        sha256: archive checksum, or None if `size` is None.
        files: exceptions to `file`, as paths by language code.
        error_types: path of the xsim++ error types, with {code}; empty if the set has none.
        augmented: path of the xsim++ hard negatives, with {code}; empty if the set has none.
    """

    name: str
    about: str
    file: str
    codes: tuple[str, ...]
    url: str
    licence: str
    kind: str = "aligned"
    sentences: int | None = None
    mteb: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    sha256: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    error_types: str = ""
    augmented: str = ""

    def all_files(self) -> list[str]:
        """Return the files of all languages, as paths in the unpacked archive."""
        return [self._file(code) for code in self.codes]

    def _file(self, code: str, pair: str = "") -> str:
        return self.files.get(code, self.file.format(code=code, pair=pair))

    def code(self, language: str) -> str:
        """Return the code of a language in this test set; see `text.languages.best_code`.

        Args:
            language: language in any BCP 47 spelling, such as zh, zho_Hant or zh_TW.

        Returns:
            The code; without a script in `language`, that of its usual script.

        Raises:
            InputError: if the test set does not have the language.
        """
        code = best_code(language, self.codes)
        if code is None:
            raise InputError(
                f"--lang-pairs: language {language!r} is not in {self.name}; "
                "use a language such as en or eng, or a code from its file names"
            )
        return code

    def path(self, folder: str, language: str, partner: str = "en") -> Path:
        """Find the file of a language in the unpacked archive.

        Args:
            folder: folder of the unpacked archive.
            language: language in any spelling; see `code`.
            partner: other language of the pair.

        Returns:
            The path.

        Raises:
            InputError: if the file is missing or has the wrong number of lines, or the set does not
                have the pair.
        """
        code = self.code(language)
        pair = ""
        if "{pair}" in self.file:
            foreign = {code, self.code(partner)} - {ENGLISH}
            if len(foreign) != 1 or code == self.code(partner):
                raise InputError(
                    f"--lang-pairs {language}-{partner}: {self.name} has pairs with English only; "
                    f"expected for example {language}-en"
                )
            pair = f"{foreign.pop()}-{ENGLISH}"
        path = self._find(folder, self._file(code, pair))
        if self.sentences is None:
            return path
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
def datasets(kind: str = "aligned") -> dict[str, Dataset]:
    """Return the public test sets of a kind.

    Args:
        kind: `aligned`, `sts` or `passages`.

    Returns:
        The test sets by name.
    """
    registry = json.loads(DATASETS_FILE.read_text(encoding="utf-8"))
    sets = {}
    for row in registry["datasets"]:
        codes = tuple(registry["codes"][row.pop("codes")].split())
        test_set = Dataset(**row, codes=codes)
        if test_set.kind == kind:
            sets[test_set.name] = test_set
    return sets
