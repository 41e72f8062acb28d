"""Harvesting from catalogues written here, as msgfmt lays them out."""

import struct
from collections import Counter

import pytest

from fairseq_lxsr.errors import InputError
from preprocess.gettext_harvest import harvest, input_files


def write_catalogue(path, messages, charset="UTF-8"):
    """A .mo file: magic, revision, count, offsets of keys and of texts, both sorted by key."""
    messages = {"": f"Content-Type: text/plain; charset={charset}\n"} | messages
    items = sorted((key.encode(charset), text.encode(charset)) for key, text in messages.items())
    position = 28 + 16 * len(items)
    tables, data = ([], []), b""
    for side in (0, 1):
        for item in items:
            tables[side].append(struct.pack("<II", len(item[side]), position + len(data)))
            data += item[side] + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(items), 28, 28 + 8 * len(items), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + b"".join(tables[0]) + b"".join(tables[1]) + data)


@pytest.fixture
def locale(tmp_path):
    def catalogue(language, program, messages, **options):
        write_catalogue(tmp_path / language / "LC_MESSAGES" / f"{program}.mo", messages, **options)

    catalogue("fr", "git", {"Open the _file": "Ouvrir le _fichier", "too short": "court", "not translated here": ""})
    catalogue(
        "fr", "bash", {"menu\x04Close the window %s": "Fermer la fenêtre %s", "open the file": "ouvrir un fichier"}
    )
    catalogue("de", "git", {"Open the _file": "Die _Datei jetzt öffnen"})
    catalogue("de", "tar", {"Extract all the files": "Alle Dateien auspacken bitte"}, charset="ISO-8859-1")
    (tmp_path / "de" / "LC_MESSAGES" / "broken.mo").write_bytes(b"no catalogue")
    return (tmp_path,)


def test_messages_in_order_of_program_cleaned_and_one_to_one(locale):
    dropped = Counter()
    assert list(harvest("en", "fr", dropped, locale)) == [
        ("Close the window", "Fermer la fenêtre"),
        ("open the file", "ouvrir un fichier"),
    ]
    assert dropped == {"length": 2, "repeated side": 1}


def test_two_languages_that_are_not_english_meet_in_the_message(locale):
    assert list(harvest("fr", "de", Counter(), locale)) == [("Ouvrir le fichier", "Die Datei jetzt öffnen")]


def test_english_may_stand_second_and_other_charsets_are_read(locale):
    assert ("Alle Dateien auspacken bitte", "Extract all the files") in list(harvest("de", "en", Counter(), locale))


def test_language_that_is_not_there_is_named_with_those_that_are(locale):
    with pytest.raises(InputError, match=r"'it'.*\(it has de, fr\).*--data PREFIX"):
        input_files("en", "it", locale)
    with pytest.raises(InputError, match="two different languages"):
        input_files("en", "en", locale)
