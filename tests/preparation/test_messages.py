"""Harvesting from catalogues written here, as msgfmt lays them out."""

import struct
from collections import Counter

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.messages import harvest, input_files


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


def test_messages_in_order_of_program(locale):
    dropped = Counter()
    assert list(harvest("en", "fr", dropped, locale)) == [
        ("Close the window", "Fermer la fenêtre"),
        ("open the file", "ouvrir un fichier"),
        ("Open the file", "Ouvrir le fichier"),
        ("not translated here", ""),
        ("too short", "court"),
    ]
    assert not +dropped


def test_they_are_cleaned_and_each_is_used_once(locale, tmp_path):
    more = {f"Message of the {'x' * i}": f"Le message du {'x' * i}" for i in range(1, 9)}
    write_catalogue(tmp_path / "fr" / "LC_MESSAGES" / "more.mo", more)
    source = find_source(None, "en", "fr", locale)
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, valid_size=1, test_size=2)
    assert report["dropped"] == {"empty side": 1, "length": 1, "repeated": 1}


PO = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgctxt "menu"
msgid "Close the _window"
msgstr "Fermer la _fenêtre"

#, fuzzy
msgid "Open the file"
msgstr "Fermer le fichier"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d fichier"
msgstr[1] "%d fichiers"

msgid "not yet"
msgstr ""

#~ msgid "long ago"
#~ msgstr "il y a longtemps"
"""


@pytest.mark.parametrize("name", ["po/fr.po", "locale/fr/LC_MESSAGES/app.po", "deep/po/fr.po"])
def test_catalogues_of_a_source_tree(tmp_path, name):
    pytest.importorskip("polib")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(PO, encoding="utf-8")
    dropped = Counter()
    assert list(find_source(str(tmp_path), "en", "fr").read(dropped)) == [("Close the window", "Fermer la fenêtre")]
    assert dropped == {"fuzzy": 1, "plural": 1, "untranslated": 1, "obsolete": 1}


def test_two_languages_that_are_not_english_meet_in_the_message(locale):
    dropped = Counter()
    assert list(harvest("fr", "de", dropped, locale)) == [("Ouvrir le fichier", "Die Datei jetzt öffnen")]


def test_english_may_stand_second_and_other_charsets_are_read(locale):
    assert ("Alle Dateien auspacken bitte", "Extract all the files") in list(harvest("de", "en", Counter(), locale))


def test_language_that_is_not_there_is_named_with_those_that_are(locale):
    with pytest.raises(InputError, match=r"'it'.*\(it has de, fr\).*--data PREFIX"):
        input_files("en", "it", locale)
    with pytest.raises(InputError, match="two different languages"):
        input_files("en", "en", locale)


def test_catalogues_of_one_name_in_several_places(tmp_path):
    pytest.importorskip("polib")
    for app in ("one", "two", "three"):
        path = tmp_path / app / "locale" / "fr" / "LC_MESSAGES" / "django.po"
        path.parent.mkdir(parents=True)
        path.write_text(PO.replace("Close", app.title()), encoding="utf-8")
    read = find_source(str(tmp_path), "en", "fr").read(Counter())
    assert sorted(source for source, _ in read) == ["One the window", "Three the window", "Two the window"]


@pytest.mark.parametrize("content", [b"", b"\xde\x12\x04\x95\0\0"])
def test_a_cut_off_catalogue_is_counted(locale, tmp_path, content):
    (tmp_path / "fr" / "LC_MESSAGES" / "git.mo").write_bytes(content)
    dropped = Counter()
    assert len(list(harvest("en", "fr", dropped, locale))) == 2
    assert dropped["unreadable catalogue"] == 1
