"""Harvests parallel text from gettext catalogues: program messages and translations, compiled (.mo) or not (.po).

Most Linux machines have some; the text is like the GNOME, KDE4 and Ubuntu corpora of OPUS, without a download.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.catalogues import read_catalogue
from fairseq_lxsr.preparation.clean import Pair, strip_message

LOCALE_FOLDERS = (Path("/usr/share/locale"), Path("/usr/local/share/locale"))
CATALOGUE_LANGUAGE = "en"  # language of the messages themselves
ALTERNATIVES = (
    "give your own text (lxsr prepare --data PREFIX or FILE.tsv), or install programs with translations "
    "(for example git, glib, gtk, bash, coreutils and their language packs)"
)
# layouts of an installed machine and of a source checkout
PATTERNS = ("{0}/LC_MESSAGES/*.mo", "{0}.po", "**/{0}/LC_MESSAGES/*.[mp]o", "**/po/{0}.po", "**/locale/{0}/**/*.po")


def catalogues(language: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> dict[str, Path]:
    """Find the catalogues of a language by program name; of several for a program, the first is taken.

    Raises:
        InputError: where the folders have none, naming the installed languages.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for pattern in PATTERNS:
            for path in sorted(folder.glob(pattern.format(language))):
                found.setdefault(_program(path, language, folder), path)
    if not found:
        known = sorted({path.parent.parent.name for folder in folders for path in folder.glob("*/LC_MESSAGES/*.mo")})
        where = "this machine" if tuple(folders) == LOCALE_FOLDERS else ", ".join(map(str, folders))
        listed = f"it has {', '.join(known)}" if known else "it has no catalogues at all"
        raise InputError(f"{language!r}: {where} has no gettext catalogues of it ({listed}); {ALTERNATIVES}")
    return found


def _program(path: Path, language: str, folder: Path) -> str:
    """Return the same name for all languages: the path in the folder without the parts that name a language."""
    parts = path.relative_to(folder).with_suffix("").parts
    return "/".join(part for part in parts if part not in (language, "LC_MESSAGES"))


def input_files(source: str, target: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> list[Path]:
    """Return the catalogues that a harvest of this pair reads."""
    languages = [language for language in (source, target) if language != CATALOGUE_LANGUAGE]
    if len(languages) != len({source, target}) - (CATALOGUE_LANGUAGE in (source, target)) or not languages:
        raise InputError(f"{source}-{target}: expected two different languages")
    return sorted(path for language in languages for path in catalogues(language, folders).values())


def harvest(source: str, target: str, dropped: Counter, folders: Sequence[Path] = LOCALE_FOLDERS) -> Iterator[Pair]:
    """Yield messages as sentence pairs, program by program; the keys are the English text."""
    sides = [None if language == CATALOGUE_LANGUAGE else catalogues(language, folders) for language in (source, target)]
    translated = [side for side in sides if side is not None]
    for program in sorted(set.intersection(*(set(side) for side in translated))):
        texts = [None if side is None else read_catalogue(side[program], dropped) for side in sides]
        keys = next(text for text in texts if text is not None)
        for key in keys:
            if all(text is None or key in text for text in texts):
                english = key.rpartition("\x04")[2]  # the context precedes \x04
                left, right = (english if text is None else text[key] for text in texts)
                yield strip_message(left), strip_message(right)
