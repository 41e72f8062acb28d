"""Harvests parallel text from gettext catalogues: program messages and translations, compiled (.mo) or not (.po).

Most Linux machines have some; the text is like the GNOME, KDE4 and Ubuntu corpora of OPUS, without a download.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.clean import TextPair, strip_message

LOCALE_FOLDERS = (Path("/usr/share/locale"), Path("/usr/local/share/locale"))
CATALOGUE_LANGUAGE = "en"  # language of the messages themselves
ALTERNATIVES = (
    "give your own text (lxsr prepare --data PREFIX or FILE.tsv), or install programs with translations "
    "(for example git, glib, gtk, bash, coreutils and their language packs)"
)
# layouts of an installed machine and of a source checkout
PATTERNS = ("{0}/LC_MESSAGES/*.mo", "{0}.po", "**/{0}/LC_MESSAGES/*.[mp]o", "**/po/{0}.po", "**/locale/{0}/**/*.po")


def catalogues(language: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> dict[str, Path]:
    """Find the catalogues of a language by program name; of several for a program, the first is taken."""
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


def harvest(source: str, target: str, dropped: Counter, folders: Sequence[Path] = LOCALE_FOLDERS) -> Iterator[TextPair]:
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


CATALOGUE_BYTES = 1 << 25  # largest size of a catalogue; the largest in use have three million bytes
BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # byte order by the first bytes of the file
CHARSET = re.compile(r"^content-type:.*charset=(\S+)", re.IGNORECASE | re.MULTILINE)


def read_catalogue(path: Path, dropped: Counter) -> dict[str, str]:
    """Read a catalogue as a dict from message (after its context and \\x04) to translation.

    Plural forms, fuzzy and untranslated messages, and unreadable files are counted in `dropped`.
    """
    try:
        if not path.is_file() or path.stat().st_size > CATALOGUE_BYTES:
            raise ValueError
        return _read_po(path, dropped) if path.suffix == ".po" else _read_mo(path, dropped)
    except InputError:
        raise
    except (OSError, LookupError, ValueError, struct.error):
        dropped["unreadable catalogue"] += 1
        return {}


def _read_mo(path: Path, dropped: Counter) -> dict[str, str]:
    kept, plural, charset = {}, set(), "ascii"
    for message, text in _entries(path.read_bytes()):
        if not message:
            named = CHARSET.search(text.decode())
            charset = named[1] if named else charset
        elif b"\0" in message:
            plural.add(message.partition(b"\0")[0])
        else:
            kept[str(message, charset)] = str(text, charset)
    dropped["plural"] += len(plural)
    return kept


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield messages and translations of a .mo file; raise ValueError where a table points outside the file."""
    order = BYTE_ORDERS.get(content[:4])
    if order is None:
        raise ValueError("no .mo file")
    revision, count, *tables = struct.unpack_from(f"{order}4I", content, 4)
    if revision >> 16 > 1:
        raise ValueError("a later format")
    left = len(content)  # entries must not share bytes, so that all together are not larger than the file
    for number in range(count):
        entry = []
        for table in tables:
            length, start = struct.unpack_from(f"{order}2I", content, table + 8 * number)
            left -= length
            if start + length >= len(content) or left < 0:
                raise ValueError("an entry outside of the file")
            entry.append(content[start : start + length])
        yield entry[0], entry[1]


def _read_po(path: Path, dropped: Counter) -> dict[str, str]:
    require("polib", "prepare", f"{path}: reading .po")
    import polib

    kept = {}
    for entry in polib.pofile(str(path)):
        reasons = {
            "obsolete": entry.obsolete,
            "fuzzy": entry.fuzzy,
            "plural": entry.msgid_plural,
            "untranslated": not entry.msgstr,
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason:
            dropped[reason] += 1
        else:
            kept[f"{entry.msgctxt}\x04{entry.msgid}" if entry.msgctxt else entry.msgid] = entry.msgstr
    return kept
