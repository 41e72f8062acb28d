"""Extracts parallel text from gettext catalogues: program messages and their translations.

Catalogues are compiled (.mo) or plain text (.po). Most Linux machines have some; without a
download, they provide text like the GNOME, KDE4 and Ubuntu corpora of OPUS.
"""

import codecs
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, listed, say
from fairseq_lxsr.files.archives import archive_of, files_in
from fairseq_lxsr.files.lines import reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.clean import TextPair, strip_message
from fairseq_lxsr.text.languages import best_code, parse_tag, script_of

LOCALE_FOLDERS = (Path("/usr/share/locale"), Path("/usr/local/share/locale"))
# Language of the original messages.
CATALOGUE_LANGUAGE = "en"
ALTERNATIVES = (
    "use your own text (lxsr prepare --data PREFIX or FILE.tsv), or install programs with "
    "translations, such as git, glib, gtk, bash and coreutils, and their language packs"
)
# The header must start within this many bytes of the start of a catalogue.
HEADER_BYTES = 1 << 16
# Maximum length of a plural rule. The rule for Arabic has 100 characters.
RULE_CHARACTERS = 1000
# Maximum size of a catalogue. The largest existing ones have three million bytes.
CATALOGUE_BYTES = 1 << 25
# Maps the magic number of a .mo file to its byte order.
BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
# Maximum number of unreadable catalogues to list.
MAX_NAMED = 10
# Matches a polib syntax error message, and captures the line number and the text after it.
_PO_LINE = re.compile(r"\(line (\d+)\)(?:: (.+))?")
CHARSET = re.compile(r"^content-type:.*charset=(\S+)", re.IGNORECASE | re.MULTILINE)
_FILE = re.compile(r"(.+)\.[mp]o(?:\.(?:gz|bz2|xz|zst))?", re.IGNORECASE)
_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Za-z]{4})?(?:[-_](?:r?[A-Za-z]{2}|\d{3}))?(?:@[a-z]+)?"
_HEADER_LANGUAGE = re.compile(rb'(?:^|"|\\n)language: *([\w@.-]+)', re.IGNORECASE | re.MULTILINE)
_PLURAL_RULE = re.compile(r"^plural-forms:(.*)", re.IGNORECASE | re.MULTILINE)
_FORM_OF_ONE = re.compile(r"\bn(?:\s*%\s*\d+)?\s*==\s*1\s*(?:&&[^?]*)?\?\s*(\d)")
_LAST_FORM = re.compile(r":\s*(\d)[\s)]*;?\s*$")


def catalogues(language: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> dict[str, Path]:
    """Find the gettext catalogues in a language.

    Args:
        language: language code.
        folders: locale folders, searched in this order; any common layout is supported.

    Returns:
        Catalogue paths by program name.

    Raises:
        InputError: if the folders contain no catalogue in this language.
    """
    # Paths by program name, then by the spelling of the language code.
    programs: dict[str, dict[str, Path]] = {}
    available: set[str] = set()
    for folder in folders:
        for path in _files(folder):
            candidates = _candidates(path.relative_to(folder))
            available.update(_known_codes(candidates))
            code, program = _match(language, path, candidates)
            # The first folder that contains a program takes precedence.
            if code:
                programs.setdefault(program, {}).setdefault(code, path)
    if not programs:
        place = "this machine"
        if tuple(folders) != LOCALE_FOLDERS:
            place = ", ".join(map(str, folders))
        languages = listed(sorted(available)) or "none"
        raise InputError(
            f"{language!r}: no gettext catalogues in this language in {place} (available: "
            f"{languages}); {ALTERNATIVES}"
        )
    return {program: paths[best_code(language, paths) or ""] for program, paths in programs.items()}


def _files(folder: Path) -> list[Path]:
    """Return all catalogues in a folder, sorted by path."""
    return [path for path in files_in(folder) if _FILE.fullmatch(path.name)]


def _candidates(path: Path) -> list[tuple[str, str]]:
    """Return the possible language codes of a catalogue, each with a program name.

    The code may be the parent folder of LC_MESSAGES, the file name (fr.po), the end of the file
    name (app-fr.po, messages.fr.po), or any folder (locale/fr/guide/start.po). The program name is
    the path without the code.
    """
    match = _FILE.fullmatch(path.name)
    stem = match[1] if match else path.stem
    parents = list(path.parent.parts)
    for place, part in enumerate(parents[1:]):
        if part.upper() == "LC_MESSAGES":
            program = [*parents[:place], *parents[place + 2 :], stem]
            return [(parents[place], "/".join(program))]
    return _codes_in_name(parents, stem) + _codes_in_folders(parents, stem)


def _codes_in_name(parents: list[str], stem: str) -> list[tuple[str, str]]:
    """Return the possible language codes at the end of a file name, each with its program."""
    candidates: list[tuple[str, str]] = []
    marks = re.finditer(r"(?<=[^\W_])[-_.]", stem)
    for start in (0, *(mark.end() for mark in marks)):
        code = stem[start:]
        if not re.fullmatch(_CODE, code):
            continue
        program = "/".join([*parents, stem[: max(start - 1, 0)]])
        candidates.append((code, program.strip("/")))
        # In pt_BR, BR is a region, so the search ends here. In contrast, en-fr may be two
        # languages.
        if _is_known(code) and not code.islower():
            break
    return candidates


def _codes_in_folders(parents: list[str], stem: str) -> list[tuple[str, str]]:
    """Return the folder names that could be codes, innermost first, each with a program name."""
    candidates: list[tuple[str, str]] = []
    for place in reversed(range(len(parents))):
        if re.fullmatch(_CODE, parents[place]):
            program = [*parents[:place], *parents[place + 1 :], stem]
            candidates.append((parents[place], "/".join(program)))
    return candidates


def _match(language: str, path: Path, candidates: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the candidate that matches a language, or two empty strings.

    If the path contains several languages, the header of the file decides.
    """
    fitting = [candidate for candidate in candidates if best_code(language, [candidate[0]])]
    languages = {parse_tag(code).language for code in _known_codes(candidates)}
    if fitting and len(languages) < 2:
        return fitting[0]
    no_match = ("", "")
    if languages and not fitting:
        return no_match
    # Open the file only at this point, because there may be thousands of catalogues.
    header = _header_language(path)
    if header and not best_code(language, [header]):
        return no_match
    by_header = (header, (path.parent / path.stem).as_posix())
    return next(iter(fitting), by_header)


def _known_codes(candidates: list[tuple[str, str]]) -> list[str]:
    return [code for code, _ in candidates if _is_known(code)]


def _is_known(code: str) -> bool:
    return bool(script_of(parse_tag(code)))


def _header_language(path: Path) -> str:
    """Return the language code in a catalogue's header, or "" if there is none."""
    try:
        match = _HEADER_LANGUAGE.search(_header(_content(path)))
    except (OSError, ValueError, struct.error):
        return ""
    return match[1].decode("ascii", "replace") if match else ""


def _header(content: bytes) -> bytes:
    """Return the part of a catalogue that contains the header."""
    order = BYTE_ORDERS.get(content[:4])
    if order is None:
        return content[:HEADER_BYTES]
    # In a .mo file, the header translates the empty message, which is the first one in the table
    # of translations. Its text may be anywhere in the file.
    (table,) = struct.unpack_from(f"{order}I", content, 16)
    length, start = struct.unpack_from(f"{order}2I", content, table)
    return content[start : start + min(length, HEADER_BYTES)]


def report_unread(
    source: str, target: str, folders: Sequence[Path], files: Collection[Path]
) -> None:
    """Name and count the files in the folders that are not read for a language pair, by reason.

    Args:
        source: source language.
        target: target language.
        folders: folders of catalogues.
        files: the catalogues that are read.
    """
    unread: dict[str, list[str]] = {}
    for folder in folders:
        for path in files_in(folder):
            if path not in files:
                reason = _reason_not_read(path, path.relative_to(folder), (source, target))
                unread.setdefault(reason, []).append(str(path.relative_to(folder)))
    place = ", ".join(map(str, folders))
    for reason, names in sorted(unread.items()):
        say(f"{place}: not read for {source}-{target} ({len(names):,}, {reason}): {listed(names)}")


def _reason_not_read(path: Path, name: Path, languages: tuple[str, str]) -> str:
    """Return why `harvest` does not read a file; `name` is its path in the folder."""
    if not _FILE.fullmatch(path.name):
        return "not a catalogue"
    candidates = _candidates(name)
    translations = [language for language in languages if not _is_english(language)]
    if any(_match(language, path, candidates)[0] for language in translations):
        return "another catalogue of the program is read, or it has only one of the languages"
    if _known_codes(candidates) or _header_language(path):
        return f"not in {' or '.join(translations)}"
    return "no language in the path or the header"


def input_files(source: str, target: str, folders: Sequence[Path] = LOCALE_FOLDERS) -> list[Path]:
    """Return the catalogues that `harvest` reads for a language pair.

    Raises:
        InputError: if the languages are equal, or a language has no catalogue.
    """
    translations = [language for language in (source, target) if not _is_english(language)]
    if source == target or not translations:
        raise InputError(f"{source}-{target}: the two languages must be different")
    sides = [catalogues(language, folders) for language in translations]
    programs = set.intersection(*map(set, sides))
    return sorted(side[program] for side in sides for program in programs)


def _is_english(language: str) -> bool:
    """Return whether a language is English, the language of the original messages."""
    return best_code(language, [CATALOGUE_LANGUAGE]) is not None


def harvest(
    source: str, target: str, dropped: Counter, folders: Sequence[Path] = LOCALE_FOLDERS
) -> Iterator[TextPair]:
    """Yield program messages as sentence pairs, program by program.

    Catalogues that cannot be read are skipped, counted and reported.

    Args:
        source: source language.
        target: target language. If neither language is English, messages that are translated into
            both languages are paired.
        dropped: counts the skipped messages and files, by reason.
        folders: folders that contain catalogues.
    """
    sides: list[dict[str, Path] | None] = []
    for language in (source, target):
        if _is_english(language):
            sides.append(None)
        else:
            sides.append(catalogues(language, folders))
    translations = [side for side in sides if side is not None]
    unreadable: list[InputError] = []
    for program in sorted(set.intersection(*map(set, translations))):
        texts: list[dict[str, str] | None] = []
        for side in sides:
            if side is None:
                texts.append(None)
            else:
                texts.append(read_catalogue(side[program], dropped, unreadable))
        yield from _messages(texts)
    for error in unreadable[:MAX_NAMED]:
        say(f"{error} (skipped)")
    if len(unreadable) > MAX_NAMED:
        say(f"{len(unreadable) - MAX_NAMED:,} more catalogues are unreadable (skipped)")


def _messages(texts: Sequence[Mapping[str, str] | None]) -> Iterator[TextPair]:
    """Yield the messages that exist on both sides. A side that is None is the English side."""
    translations = [text for text in texts if text is not None]
    for key in translations[0]:
        if not all(key in text for text in translations):
            continue
        left, right = (_side(text, key) for text in texts)
        yield strip_message(left), strip_message(right)


def _side(text: Mapping[str, str] | None, key: str) -> str:
    """Return the translation of a message; without a catalogue, the message itself."""
    if text is not None:
        return text[key]
    # A message may start with a context, which ends with \x04.
    return key.rpartition("\x04")[2]


def catalogue_language(path: Path, source: str, target: str) -> str:
    """Return the language of one catalogue, which is paired with English.

    Raises:
        InputError: if both or neither of the languages is English, or the catalogue's language
            differs.
    """
    translations = [language for language in (source, target) if not _is_english(language)]
    if len(translations) != 1:
        raise InputError(
            f"{path}: a single catalogue pairs English with one other language; for "
            f"{source}-{target}, use a folder of catalogues"
        )
    named_part = Path(path.name)
    if path.parent.name.upper() == "LC_MESSAGES":
        named_part = Path(*path.parts[-3:])
    codes = _known_codes(_candidates(named_part))
    header = _header_language(path)
    if header:
        codes.append(header)
    language = translations[0]
    if codes and not best_code(language, codes):
        raise InputError(
            f"{path}: the catalogue is in {codes[-1]}, not in {language}; specify the pair "
            "with --lang-pairs"
        )
    return language


def read_messages(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield sentence pairs from one catalogue; see `harvest` for folders of catalogues.

    Raises:
        InputError: if the catalogue cannot be read, or contains no translated message.
    """
    translations = parse_catalogue(path, dropped)
    sides = [None if _is_english(language) else translations for language in (source, target)]
    yield from _messages(sides)
    if not translations:
        raise InputError(
            f"{path} contains no translated messages; use another gettext catalogue (.po or .mo)"
        )


def read_catalogue(
    path: Path, dropped: Counter, unreadable: list[InputError] | None = None
) -> dict[str, str]:
    """Like `parse_catalogue`, but return an empty dict if the catalogue cannot be read.

    Args:
        path: gettext file (.po or .mo), which may be compressed.
        dropped: counts skipped messages, and unreadable files.
        unreadable: receives the error of an unreadable file.

    Raises:
        InputError: if a package that is required for the format is not installed.
    """
    try:
        return parse_catalogue(path, dropped)
    except InputError as error:
        # An unreadable file is only counted, but a missing package would affect all files.
        if "pip install" in str(error):
            raise
        if unreadable is not None:
            unreadable.append(error)
    dropped["unreadable catalogue"] += 1
    return {}


def parse_catalogue(path: Path, dropped: Counter) -> dict[str, str]:
    """Read a catalogue into a dict that maps messages to translations.

    If a message has a context, the key is the context, \\x04 and the message. The singular and one
    plural form of a message are stored as two messages.

    Args:
        path: gettext file (.po or .mo), which may be compressed.
        dropped: counts fuzzy, obsolete and untranslated messages.

    Raises:
        InputError: if the file cannot be read; the message contains the line of a .po file.
    """
    try:
        content = _content(path)
        if ".po" in path.name.lower()[-8:]:
            return _read_po(path, content, dropped)
        return _read_mo(path, content, dropped)
    except InputError:
        raise
    except (OSError, LookupError, ValueError, struct.error) as error:
        raise InputError(
            f"{path}: {error}; save or compile the gettext catalogue (.po or .mo) again"
        ) from None


def _content(path: Path) -> bytes:
    """Return the bytes of a catalogue, after checking its size."""
    is_in_archive = archive_of(path) is not None
    if not is_in_archive and (not path.is_file() or path.stat().st_size > CATALOGUE_BYTES):
        raise ValueError(f"not a file of at most {CATALOGUE_BYTES:,} bytes")
    with reading(path), open_binary(path) as stream:
        content = stream.read(CATALOGUE_BYTES + 1)
    if len(content) > CATALOGUE_BYTES:
        raise InputError(
            f"{path}: larger than {CATALOGUE_BYTES:,} bytes, the maximum for a catalogue; use a "
            "smaller one"
        )
    return content


def _plurals(messages: Sequence[str], forms: Sequence[str], rule: str) -> dict[str, str]:
    """Return the translations of a message's singular and plural.

    If a language has three or more forms, its plural rule determines which forms to use. In a
    language without plural, the only form translates the plural.
    """
    form_of_one = 0
    form_of_many = len(forms) - 1
    if len(forms) > 2:
        form_of_one = _form(_FORM_OF_ONE, rule, form_of_one)
        form_of_many = _form(_LAST_FORM, rule, form_of_many)
    translations = {}
    if len(forms) > 1:
        translations[messages[0]] = forms[min(form_of_one, len(forms) - 1)]
    translations[messages[-1]] = forms[min(form_of_many, len(forms) - 1)]
    return {message: text for message, text in translations.items() if text}


def _form(pattern: re.Pattern[str], rule: str, default: int) -> int:
    """Return the index of the form that a pattern captures in a plural rule, or the default."""
    match = pattern.search(rule)
    if match is None:
        return default
    return int(match[1])


def _plural_rule(header: str) -> str:
    match = _PLURAL_RULE.search(header)
    return match[1][:RULE_CHARACTERS] if match else ""


def _read_mo(path: Path, content: bytes, dropped: Counter) -> dict[str, str]:
    require("polib", "prepare", f"{path}: reading .mo")
    import polib

    _check_entries(content)
    try:
        entries = polib.mofile(content, encoding="utf-8")
    except UnicodeDecodeError:
        # Read the character set in the header instead.
        entries = polib.mofile(content)
    return _translations(entries, dropped)


def _check_entries(content: bytes) -> None:
    """Check where the entries of a .mo file lie. Raise ValueError if it is invalid.

    polib would cut off an entry at the end of the file, and the total size of entries that overlap
    could exceed the memory.
    """
    order = BYTE_ORDERS.get(content[:4])
    if order is None:
        raise ValueError("not a .mo file")
    count, *tables = struct.unpack_from(f"{order}3I", content, 8)
    remaining_bytes = len(content)
    for table in tables:
        for length, start in struct.iter_unpack(f"{order}2I", content[table : table + 8 * count]):
            remaining_bytes -= length
            if start + length >= len(content) or remaining_bytes < 0:
                raise ValueError("an entry points outside the file")


def _read_po(path: Path, content: bytes, dropped: Counter) -> dict[str, str]:
    text, _, _ = _decode_po(path, content)
    return _translations(po_entries(path, text), dropped)


def po_entries(path: Path, text: str) -> Any:
    """Return the entries of a .po file as polib reads them. Line 2 is the first of the text.

    Raises:
        InputError: if polib is not installed, or the text is invalid.
    """
    require("polib", "prepare", f"{path}: reading .po")
    import polib

    try:
        # The newline keeps polib from treating the text as a file name.
        return polib.pofile(f"\n{text}")
    except OSError as error:
        raise _syntax_error(path, text, error) from None


def decoded_po(path: Path) -> tuple[str, str, bytes]:
    """Return the text of a .po file, its encoding, and its byte order mark, which may be empty.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        return _decode_po(path, _content(path))
    except InputError:
        raise
    except (OSError, LookupError, ValueError) as error:
        raise InputError(f"{path}: {error}; save the gettext catalogue as UTF-8 again") from None


def read_entries(
    path: Path, source: str, target: str, dropped: Counter
) -> Iterator[list[TextPair]]:
    """Yield the list of pairs of each entry in a .po file; it may be empty.

    Args:
        path: the file, which may be compressed.
        source: source language.
        target: target language; one of the languages is English.
        dropped: counts fuzzy, obsolete and untranslated messages.

    Raises:
        InputError: if the file cannot be read, or has another language.
    """
    catalogue_language(path, source, target)
    entries = po_entries(path, decoded_po(path)[0])
    rule = _plural_rule_of(entries)
    for entry in entries:
        translations = _entry_translations(entry, rule, dropped)
        sides = [None if _is_english(language) else translations for language in (source, target)]
        yield list(_messages(sides))


def _translations(entries, dropped: Counter) -> dict[str, str]:
    """Map messages to translations, given the catalogue that polib has read."""
    rule = _plural_rule_of(entries)
    translations: dict[str, str] = {}
    for entry in entries:
        translations |= _entry_translations(entry, rule, dropped)
    return translations


def _plural_rule_of(entries) -> str:
    return _plural_rule(f"plural-forms:{entries.metadata.get('Plural-Forms', '')}")


def _entry_translations(entry, rule: str, dropped: Counter) -> dict[str, str]:
    """Map the messages of an entry to translations; without one, count the entry."""
    reason = _reason_to_skip(entry)
    if reason:
        dropped[reason] += 1
        return {}
    context = f"{entry.msgctxt}\x04" if entry.msgctxt else ""
    message = f"{context}{entry.msgid}"
    if not entry.msgid_plural:
        return {message: entry.msgstr}
    forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)]
    return _plurals([message, f"{context}{entry.msgid_plural}"], forms, rule)


def _decode_po(path: Path, content: bytes) -> tuple[str, str, bytes]:
    """Decode a .po file; return its text, its encoding, and its byte order mark."""
    charset = _charset(content, _charset_of_po(content))
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        return content.removeprefix(mark).decode(charset), charset, mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        invalid = content[error.start : error.start + 4].hex(" ")
        raise InputError(
            f"{path}, line {line}: bytes {invalid} are not valid {charset}, the character set in "
            "the header; correct the header, or convert the file"
        ) from None


def _charset(content: bytes, declared: str) -> str:
    """Return UTF-8 if the text is valid UTF-8, otherwise the character set in the header."""
    if content.isascii():
        return declared
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return declared
    return "utf-8"


def _syntax_error(path: Path, text: str, error: OSError) -> InputError:
    """Convert a polib syntax error to an `InputError` with line numbers of the original file."""
    match = _PO_LINE.search(str(error))
    if match is None:
        return InputError(f"{path}: {error}; expected a gettext catalogue")
    number = int(match[1]) - 1
    # For a truncated file, polib may report a line after the last one.
    lines = text.splitlines()[number - 1 : number] or [""]
    return InputError(
        f"{path}, line {number}: {lines[0]!r:.60} is a syntax error"
        f"{f' ({match[2]})' if match[2] else ''}; expected msgid, msgstr or a quoted string: "
        "correct the line (msgfmt -c checks the file)"
    )


def _charset_of_po(content: bytes) -> str:
    """Return the character set in the header of a .po file, or UTF-8 if it has none."""
    header = content[:HEADER_BYTES].decode("ascii", "replace")
    # The header may start on the same line as its keyword.
    header = header.replace('msgstr "', "").replace('"', "").replace("\\n", "\n")
    match = CHARSET.search(header)
    # A template contains the placeholder CHARSET instead of a name.
    if match is None or "CHARSET" in match[1]:
        return "utf-8"
    return match[1]


def _reason_to_skip(entry) -> str:
    """Return why an entry has no usable translation, or "" if it has one."""
    if entry.obsolete:
        return "obsolete"
    # Entries of .mo files have no attribute `fuzzy`.
    if "fuzzy" in entry.flags:
        return "fuzzy"
    forms = [entry.msgstr]
    if entry.msgid_plural:
        forms = list(entry.msgstr_plural.values())
    return "" if any(forms) else "untranslated"
