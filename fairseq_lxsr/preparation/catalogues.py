"""Harvests parallel text from gettext catalogues: program messages and translations, compiled (.mo)
or not (.po).

Most Linux machines have some; the text is like the GNOME, KDE4 and Ubuntu corpora of OPUS, without
a download.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.archives import archive_of
from fairseq_lxsr.files.lines import reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.clean import TextPair, strip_message
from fairseq_lxsr.text.languages import best_code, parse_tag, script_of

LOCALE_FOLDERS = (Path("/usr/share/locale"), Path("/usr/local/share/locale"))
CATALOGUE_LANGUAGE = "en"  # language of the messages themselves
ALTERNATIVES = (
    "give your own text (lxsr prepare --data PREFIX or FILE.tsv), or install programs with translations "
    "(for example git, glib, gtk, bash, coreutils and their language packs)"
)
_FILE = re.compile(r"(.+)\.[mp]o(?:\.(?:gz|bz2|xz|zst))?", re.IGNORECASE)
_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Za-z]{4})?(?:[-_](?:r?[A-Za-z]{2}|\d{3}))?(?:@[a-z]+)?"
_NAMED = re.compile(
    rb'(?:^|"|\\n)language: *([\w@.-]+)', re.IGNORECASE | re.MULTILINE
)  # in the header of a catalogue
HEADER_BYTES = 1 << 16  # of a catalogue, in which its header is
RULE_CHARACTERS = 1000  # longest plural rule; that of Arabic has 100


def catalogues(language: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> dict[str, Path]:
    """Find the catalogues of a language by program name, in any usual layout; see `_candidates`."""
    found: dict[str, dict[str, Path]] = {}
    known: set[str] = set()
    for folder in folders:
        for path in _files(folder):
            candidates = _candidates(path.relative_to(folder))
            known.update(code for code, _ in candidates if _is_known(code))
            code, program = _chosen(language, path, candidates)
            if code:
                found.setdefault(program, {}).setdefault(code, path)
    if not found:
        where = "this machine" if tuple(folders) == LOCALE_FOLDERS else ", ".join(map(str, folders))
        listed = f"it has {', '.join(sorted(known))}" if known else "it has no catalogues at all"
        raise InputError(
            f"{language!r}: {where} has no gettext catalogues of it ({listed}); {ALTERNATIVES}"
        )
    return {program: codes[best_code(language, codes) or ""] for program, codes in found.items()}


def _files(folder: Path) -> list[Path]:
    """Return the catalogues in a folder, or a file that is one itself; compiled ones first."""
    return sorted(
        path for path in folder.rglob("*") if _FILE.fullmatch(path.name) and not path.is_dir()
    )


def _candidates(path: Path) -> list[tuple[str, str]]:
    """Return what may be the code of the language of a catalogue, and the name of its program
    without it.

    The code is the folder of LC_MESSAGES, or the name of the file (fr.po), the end of it
    (app-fr.po, messages.fr.po), or any folder (locale/fr/guide/start.po).
    """
    found = _FILE.fullmatch(path.name)
    *parents, stem = *path.parent.parts, found[1] if found else path.stem
    for place, part in enumerate(parents[1:]):
        if part.upper() == "LC_MESSAGES":
            return [(parents[place], "/".join([*parents[:place], *parents[place + 2 :], stem]))]
    candidates: list[tuple[str, str]] = []
    for cut in (0, *(mark.end() for mark in re.finditer(r"(?<=[^\W_])[-_.]", stem))):
        code = stem[cut:]
        if re.fullmatch(_CODE, code):
            candidates.append((code, "/".join([*parents, stem[: max(cut - 1, 0)]]).strip("/")))
            if (
                _is_known(code) and not code.islower()
            ):  # in pt_BR, BR is no language; en-fr may be two
                break
    for place, part in reversed([*enumerate(parents)]):
        if re.fullmatch(_CODE, part):
            candidates.append((part, "/".join([*parents[:place], *parents[place + 1 :], stem])))
    return candidates


def _chosen(language: str, path: Path, candidates: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the candidate that is of a language; the header of the file decides where names may
    mean several.
    """
    fitting = [candidate for candidate in candidates if best_code(language, [candidate[0]])]
    known = {parse_tag(code).language for code, _ in candidates if _is_known(code)}
    if fitting and len(known) < 2:
        return fitting[0]
    if not fitting and known:
        return "", ""
    header = _header_language(path)
    if header and not best_code(language, [header]):
        return "", ""
    if fitting:
        return fitting[0]
    return header, (path.parent / path.stem).as_posix()


def _is_known(code: str) -> bool:
    return bool(script_of(parse_tag(code)))


def _header_language(path: Path) -> str:
    """Return the code in the header of a catalogue; empty where there is none."""
    if not path.is_file():
        return ""
    try:
        with reading(path), open_binary(path) as stream:
            named = _NAMED.search(stream.read(HEADER_BYTES))
    except (OSError, InputError):
        return ""
    return named[1].decode("ascii", "replace") if named else ""


def input_files(source: str, target: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> list[Path]:
    """Return the catalogues that a harvest of this pair reads."""
    languages = [language for language in (source, target) if not _is_english(language)]
    if (
        len(languages) != len({source, target}) - any(map(_is_english, (source, target)))
        or not languages
    ):
        raise InputError(f"{source}-{target}: expected two different languages")
    return sorted(path for language in languages for path in catalogues(language, folders).values())


def _is_english(language: str) -> bool:
    """Return whether text of a language is what catalogues are translations of."""
    return best_code(language, [CATALOGUE_LANGUAGE]) is not None


def harvest(
    source: str, target: str, dropped: Counter, folders: Sequence[Path] = LOCALE_FOLDERS
) -> Iterator[TextPair]:
    """Yield messages as sentence pairs, program by program; the keys are the English text."""
    sides = [
        None if _is_english(language) else catalogues(language, folders)
        for language in (source, target)
    ]
    translated = [side for side in sides if side is not None]
    for program in sorted(set.intersection(*(set(side) for side in translated))):
        texts = [None if side is None else read_catalogue(side[program], dropped) for side in sides]
        yield from _messages(texts)


def _messages(texts: Sequence[Mapping[str, str] | None]) -> Iterator[TextPair]:
    """Yield the messages that both sides have; None is the English side."""
    keys = next(text for text in texts if text is not None)
    for key in keys:
        if all(text is None or key in text for text in texts):
            english = key.rpartition("\x04")[2]  # the context precedes \x04
            left, right = (english if text is None else text[key] for text in texts)
            yield strip_message(left), strip_message(right)


def catalogue_language(path: Path, source: str, target: str) -> str:
    """Return which language of a pair one catalogue is in, which must be paired with English."""
    others = [language for language in (source, target) if not _is_english(language)]
    if len(others) != 1:
        raise InputError(
            f"{path}: of one language, and English; expected a folder of catalogues for {source}-{target}"
        )
    candidates = _candidates(
        Path(path.name) if path.parent.name.upper() != "LC_MESSAGES" else Path(*path.parts[-3:])
    )
    codes = [code for code, _ in candidates if _is_known(code)]
    codes += [header] if (header := _header_language(path)) else []
    if codes and not best_code(others[0], codes):
        raise InputError(
            f"{path}: is in {codes[-1]}; expected {others[0]}: name the pair with --lang-pairs"
        )
    return others[0]


def read_messages(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the messages of one catalogue, as `harvest` does those of a folder."""
    found = read_catalogue(path, dropped)
    yield from _messages(
        [None if _is_english(language) else found for language in (source, target)]
    )
    if not found:
        raise InputError(f"{path}: no translated message; expected a gettext catalogue, .po or .mo")


CATALOGUE_BYTES = (
    1 << 25
)  # largest size of a catalogue; the largest in use have three million bytes
BYTE_ORDERS = {
    b"\xde\x12\x04\x95": "<",
    b"\x95\x04\x12\xde": ">",
}  # byte order by the first bytes of the file
CHARSET = re.compile(r"^content-type:.*charset=(\S+)", re.IGNORECASE | re.MULTILINE)


_PLURAL_RULE = re.compile(r"^plural-forms:(.*)", re.IGNORECASE | re.MULTILINE)
_FORM_OF_ONE = re.compile(r"\bn(?:\s*%\s*\d+)?\s*==\s*1\s*(?:&&[^?]*)?\?\s*(\d)")
_LAST_FORM = re.compile(r":\s*(\d)[\s)]*;?\s*$")


def read_catalogue(path: Path, dropped: Counter) -> dict[str, str]:
    """Read a catalogue as a dict from message (after its context and \\x04) to translation.

    Of plural forms, those of one and of many are two messages. Fuzzy and untranslated messages, and
    unreadable files are counted in `dropped`.
    """
    try:
        if not archive_of(path) and (not path.is_file() or path.stat().st_size > CATALOGUE_BYTES):
            raise ValueError
        with reading(path), open_binary(path) as stream:
            content = stream.read(CATALOGUE_BYTES + 1)
        if len(content) > CATALOGUE_BYTES:
            raise ValueError
        is_source = ".po" in path.name.lower()[-8:]
        return _read_po(path, content, dropped) if is_source else _read_mo(content)
    except InputError as error:
        if "pip install" in str(error):
            raise
    except (OSError, LookupError, ValueError, struct.error):
        pass
    dropped["unreadable catalogue"] += 1
    return {}


def _plurals(messages: Sequence[str], forms: Sequence[str], rule: str) -> dict[str, str]:
    """Return the translations of the forms of one and of many things, with the form that the rule
    of a language names.

    A language without plural has one form, which translates the plural.
    """
    of_one, last = _FORM_OF_ONE.search(rule), _LAST_FORM.search(rule)
    one = int(of_one[1]) if of_one and len(forms) > 2 else 0
    many = int(last[1]) if last and len(forms) > 2 else len(forms) - 1
    chosen = {messages[-1]: forms[min(many, len(forms) - 1)]}
    if len(forms) > 1:
        chosen = {messages[0]: forms[min(one, len(forms) - 1)]} | chosen
    return {message: text for message, text in chosen.items() if text}


def _rule(header: str) -> str:
    found = _PLURAL_RULE.search(header)
    return found[1][:RULE_CHARACTERS] if found else ""


def _read_mo(content: bytes) -> dict[str, str]:
    kept, charset, rule = {}, "ascii", ""
    for raw, raw_text in _entries(content):
        if not raw:
            header = raw_text.decode("utf-8", "replace")
            named = CHARSET.search(header)
            charset, rule = named[1] if named else charset, _rule(header)
            continue
        message, text = str(raw, charset), str(raw_text, charset)
        if "\0" not in message:
            kept[message] = text
            continue
        context, mark, _ = message.rpartition("\x04")
        messages = [f"{context}{mark}{form}" for form in message.rpartition("\x04")[2].split("\0")]
        kept |= _plurals(messages, text.split("\0"), rule)
    return kept


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield messages and translations of a .mo file; raise ValueError where a table points outside
    the file.
    """
    order = BYTE_ORDERS.get(content[:4])
    if order is None:
        raise ValueError("no .mo file")
    revision, count, *tables = struct.unpack_from(f"{order}4I", content, 4)
    if revision >> 16 > 1:
        raise ValueError("a later format")
    left = len(
        content
    )  # entries must not share bytes, so that all together are not larger than the file
    for number in range(count):
        entry = []
        for table in tables:
            length, start = struct.unpack_from(f"{order}2I", content, table + 8 * number)
            left -= length
            if start + length >= len(content) or left < 0:
                raise ValueError("an entry outside of the file")
            entry.append(content[start : start + length])
        yield entry[0], entry[1]


def _read_po(path: Path, content: bytes, dropped: Counter) -> dict[str, str]:
    require("polib", "prepare", f"{path}: reading .po")
    import polib

    named = CHARSET.search(
        content[:HEADER_BYTES].decode("ascii", "replace").replace('"', "").replace("\\n", "\n")
    )
    charset = "utf-8" if named is None or "CHARSET" in named[1] else named[1]
    read = polib.pofile("\n" + content.decode(charset).removeprefix("\ufeff"))
    rule = _rule(f"plural-forms:{read.metadata.get('Plural-Forms', '')}")
    kept: dict[str, str] = {}
    for entry in read:
        forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)]
        reasons = {
            "obsolete": entry.obsolete,
            "fuzzy": entry.fuzzy,
            "untranslated": not (any(forms) if entry.msgid_plural else entry.msgstr),
        }
        context = f"{entry.msgctxt}\x04" if entry.msgctxt else ""
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason:
            dropped[reason] += 1
        elif entry.msgid_plural:
            kept |= _plurals(
                [f"{context}{entry.msgid}", f"{context}{entry.msgid_plural}"], forms, rule
            )
        else:
            kept[f"{context}{entry.msgid}"] = entry.msgstr
    return kept
