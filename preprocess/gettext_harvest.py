"""Real bitext from the gettext catalogues of any Linux machine: translated messages of its programs.

The same kind of text as the GNOME, KDE4 and Ubuntu corpora of OPUS, without a download.
"""

import gettext
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from preprocess.clean import Pair, clean, one_to_one, strip_message

LOCALE_FOLDERS = (Path("/usr/share/locale"), Path("/usr/local/share/locale"))
CATALOGUE_LANGUAGE = "en"  # what the messages themselves are written in
ALTERNATIVES = (
    "give your own text (lxsr prepare --data PREFIX or FILE.tsv), or install programs with translations "
    "(for example git, glib, gtk, bash, coreutils and their language packs)"
)


def catalogues(language: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> dict[str, Path]:
    """The .mo files of a language by program name.

    Raises: InputError where the machine has none, with the languages it does have.
    """
    found = {path.stem: path for folder in folders for path in sorted(folder.glob(f"{language}/LC_MESSAGES/*.mo"))}
    if not found:
        known = sorted({path.parent.parent.name for folder in folders for path in folder.glob("*/LC_MESSAGES/*.mo")})
        listed = f"it has {', '.join(known)}" if known else "it has no catalogues at all"
        raise InputError(f"{language!r}: this machine has no gettext catalogues of it ({listed}); {ALTERNATIVES}")
    return found


def read_catalogue(path: Path) -> dict[str, str]:
    """Message (with its context) to translation; plural forms are left out, a file that cannot be decoded is empty."""
    try:
        with open(path, "rb") as stream:
            # the parsed catalogue has no public name, but this one since Python 2.3
            messages = gettext.GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
    except (UnicodeDecodeError, OSError, LookupError):
        return {}
    return {key: text for key, text in messages.items() if isinstance(key, str) and key and isinstance(text, str)}


def messages(source: str, target: str, folders: Sequence[Path]) -> Iterator[Pair]:
    """Raw message pairs of two languages, program by program; English is the language of the keys."""
    sides = [None if language == CATALOGUE_LANGUAGE else catalogues(language, folders) for language in (source, target)]
    translated = [side for side in sides if side is not None]
    for program in sorted(set.intersection(*(set(side) for side in translated))):
        texts = [None if side is None else read_catalogue(side[program]) for side in sides]
        keys = next(text for text in texts if text is not None)
        for key in keys:
            if all(text is None or key in text for text in texts):
                english = key.rpartition("\x04")[2]  # a context stands before \x04
                left, right = (english if text is None else text[key] for text in texts)
                yield left, right


def input_files(source: str, target: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> list[Path]:
    """The catalogues that a harvest of this pair reads."""
    languages = [language for language in (source, target) if language != CATALOGUE_LANGUAGE]
    if len(languages) != len({source, target}) - (CATALOGUE_LANGUAGE in (source, target)) or not languages:
        raise InputError(f"{source}-{target}: expected two different languages")
    return sorted(path for language in languages for path in catalogues(language, folders).values())


def harvest(source: str, target: str, dropped: Counter, folders: Sequence[Path] = LOCALE_FOLDERS) -> Iterator[Pair]:
    """Clean one-to-one sentence pairs; `dropped` counts what was left out, by reason."""
    stripped = ((strip_message(left), strip_message(right)) for left, right in messages(source, target, folders))
    return one_to_one(clean(stripped, dropped), dropped)
