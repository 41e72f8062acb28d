"""Reads gettext catalogues, compiled (.mo) or not (.po): messages and their translations.

Python's own module compiles the plural rule of a catalogue to a function; this module runs nothing from a file.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.optional import require

MOST_BYTES = 1 << 25  # largest size of a catalogue; the largest in use have three million bytes
BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # byte order by the first bytes of the file
CHARSET = re.compile(r"^content-type:.*charset=(\S+)", re.IGNORECASE | re.MULTILINE)


def read_catalogue(path: Path, dropped: Counter) -> dict[str, str]:
    """Read a catalogue as a dict from message (after its context and \\x04) to translation.

    Args:
        path: the catalogue.
        dropped: counter of plural forms, fuzzy and untranslated messages, and unreadable files.
    """
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
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
