"""Sentence pairs from gettext catalogues; the .mo files have the layout that msgfmt writes."""

import gettext
import os
import struct
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.catalogues import harvest, input_files, read_catalogue
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.splits import HeldOut

PARTS = st.sampled_from(
    [b"msgid", b"msgstr[", b'"\n"', b"#|", b"\\", b"[999999999]", b"charset=rot13", b"\n\n"]
)


def write_catalogue(path, messages, charset="UTF-8", header=""):
    """A .mo file: magic, revision, count, offsets of keys and of texts, both sorted by key."""
    messages = {"": header or f"Content-Type: text/plain; charset={charset}\n"} | messages
    items = sorted((key.encode(charset), text.encode(charset)) for key, text in messages.items())
    start = 28 + 16 * len(items)
    tables = b""
    data = b""
    for side in (0, 1):
        for item in items:
            tables += struct.pack("<II", len(item[side]), start + len(data))
            data += item[side] + b"\0"
    magic = struct.pack("<7I", 0x950412DE, 0, len(items), 28, 28 + 8 * len(items), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(magic + tables + data)


@pytest.fixture
def locale(tmp_path):
    def catalogue(language, program, messages, **options):
        write_catalogue(tmp_path / language / "LC_MESSAGES" / f"{program}.mo", messages, **options)

    catalogue(
        "fr",
        "git",
        {"Open the _file": "Ouvrir le _fichier", "too short": "court", "not translated here": ""},
    )
    catalogue(
        "fr",
        "bash",
        {
            "menu\x04Close the window %s": "Fermer la fenêtre %s",
            "open the file": "ouvrir un fichier",
        },
    )
    catalogue("de", "git", {"Open the _file": "Die _Datei jetzt öffnen"})
    catalogue(
        "de", "tar", {"Extract all the files": "Alle Dateien auspacken bitte"}, charset="ISO-8859-1"
    )
    (tmp_path / "de" / "LC_MESSAGES" / "broken.mo").write_bytes(b"no catalogue")
    return (tmp_path,)


def test_a_large_catalogue_whose_path_names_no_language_is_read(tmp_path):
    """The header of a .mo file comes after all original messages."""
    header = "Content-Type: text/plain; charset=UTF-8\nLanguage: be\n"
    messages = {f"Open the file {number} again": f"Адкрыць {number}" for number in range(3000)}
    write_catalogue(tmp_path / "large.mo", messages, header=header)

    pairs = list(harvest("en", "be", Counter(), [tmp_path]))

    assert dict(pairs) == messages


def test_files_of_a_folder_that_are_not_read_are_listed_by_reason(tmp_path, capsys):
    header = "Content-Type: text/plain; charset=UTF-8\n"
    for name in ("be", "git-de", "none"):
        write_catalogue(tmp_path / f"{name}.mo", {"Open": "x"}, header=header)
    write_catalogue(tmp_path / "deep" / "fr.mo", {"Open": "x"}, header=f"{header}Language: fr\n")
    for name in ("LINGUAS", "own.tmx", "._be.mo", ".DS_Store"):
        (tmp_path / name).write_bytes(b"\0")

    assert find_source(str(tmp_path), "en", "be").files == (tmp_path / "be.mo",)

    assert sorted(capsys.readouterr().err.replace(f"{tmp_path}: ", "").splitlines()) == [
        "not read for en-be (1, no language in the path or the header): none.mo",
        "not read for en-be (2, not a catalogue): LINGUAS, own.tmx",
        "not read for en-be (2, not in be): deep/fr.mo, git-de.mo",
    ]


def test_programs_with_only_one_of_the_languages_are_counted(locale, capsys):
    assert len(find_source(str(locale[0]), "fr", "de").files) == 2
    err = capsys.readouterr().err
    assert (
        "(3, another catalogue of the program is read, or it has only one of the languages)" in err
    )


def test_a_header_in_a_single_line_is_read(tmp_path):
    header = 'msgid ""\nmsgstr "Language: fr\\nContent-Type: text/plain; charset=ISO-8859-1\\n"\n'
    content = f'{header}\nmsgid "Dog"\nmsgstr "Été"\n'
    (tmp_path / "x.po").write_bytes(content.encode("latin-1"))
    assert read_catalogue(tmp_path / "x.po", Counter()) == {"Dog": "Été"}


def test_installed_catalogues_are_read_as_by_python(tmp_path):
    for path in sorted(Path("/usr/share/locale").glob("[a-f]*/LC_MESSAGES/*.mo"))[:40]:
        with open(path, "rb") as stream:
            entries = gettext.GNUTranslations(stream)._catalog
        singular = {}
        plural_texts = set()
        for key, text in entries.items():
            if isinstance(key, tuple):
                plural_texts.add(text)
            elif key and isinstance(key, str) and isinstance(text, str):
                singular[key] = text
        messages = read_catalogue(path, Counter())
        assert singular.items() <= messages.items()
        for key in messages.keys() - singular.keys():
            assert messages[key] in plural_texts

    # Python's module compiles the plural rule to a function; here, it is never run.
    header = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=__import__('os');\n"
    write_catalogue(tmp_path / "x.mo", {"a": "b"}, header=header)
    assert read_catalogue(tmp_path / "x.mo", Counter()) == {"a": "b"}


@pytest.mark.parametrize(
    ("rule", "forms", "expected_forms"),
    [
        ("", ["un", "des"], ["un", "des"]),
        ("nplurals=2; plural=(n > 1);", ["un", "des"], ["un", "des"]),
        ("nplurals=1; plural=0;", ["hitotsu"], [None, "hitotsu"]),
        (
            "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2);",
            ["1", "2", "5"],
            ["1", "5"],
        ),
        (
            "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : "
            "n%100>=11 ? 4 : 5;",
            ["0", "1", "2", "few", "many", "other"],
            ["1", "other"],
        ),
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);",
            list("5123"),
            ["1", "5"],
        ),
        ("nplurals=2; plural=n == 9 ? 9 : 8;", ["un", "des"], ["un", "des"]),
    ],
)
@pytest.mark.parametrize("kind", ["mo", "po"])
def test_the_forms_for_one_and_for_many_become_two_pairs(
    tmp_path, kind, rule, forms, expected_forms
):
    path = tmp_path / f"x.{kind}"
    header = f"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: {rule}\n"
    if kind == "mo":
        joined = "\0".join(forms)
        messages = {"menu\x04one\0many": joined, "%d one\0%d many": joined}
        write_catalogue(path, messages, header=header)
    else:
        content = 'msgid ""\nmsgstr ""\n'
        for line in header.splitlines():
            content += f'"{line}\\n"\n'
        for context, prefix in (('msgctxt "menu"\n', ""), ("", "%d ")):
            content += f'\n{context}msgid "{prefix}one"\nmsgid_plural "{prefix}many"\n'
            for number, form in enumerate(forms):
                content += f'msgstr[{number}] "{form}"\n'
        path.write_text(content)

    messages = read_catalogue(path, Counter())

    expected = {}
    for number, form in zip(("one", "many"), expected_forms, strict=True):
        if form:
            expected[f"menu\x04{number}"] = form
            expected[f"%d {number}"] = form
    assert messages == expected


HEADER_OF_MANY = struct.pack("<7I", 0x950412DE, 0, 500_000, 28, 28, 0, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xde\x12\x04\x95",
        struct.pack("<5I", 0x950412DE, 0, 2**32 - 1, 28, 28),
        struct.pack("<5I", 0x950412DE, 9 << 16, 0, 28, 28),
        struct.pack("<5I", 0x950412DE, 0, 1, 2**32 - 1, 2**32 - 1),
        HEADER_OF_MANY
        + struct.pack("<2I", 4_000_000, 28) * 500_000
        # Four million equal bytes.
        + b"x",
    ],
    ids=["empty", "cut", "count", "revision", "places", "shared"],
)
def test_a_malicious_catalogue_is_counted_as_unreadable(tmp_path, content):
    (tmp_path / "x.mo").write_bytes(content)
    dropped = Counter()
    assert read_catalogue(tmp_path / "x.mo", dropped) == {}
    assert dropped == {"unreadable catalogue": 1}


@pytest.mark.parametrize("name", ["x.po", "x.mo"])
def test_pipes_and_very_large_files_are_counted_as_unreadable(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with open(tmp_path / f"large-{name}", "wb") as stream:
        stream.truncate(1 << 26)
    dropped = Counter()
    assert read_catalogue(tmp_path / name, dropped) == {}
    assert read_catalogue(tmp_path / f"large-{name}", dropped) == {}
    assert dropped == {"unreadable catalogue": 2}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_spoilt_catalogues_are_read_or_counted(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoilt")
    write_catalogue(
        folder / "x.mo", {"one": "un", "two\0twos": "deux\0deuxs", "menu\x04three": "trois"}
    )
    (folder / "x.po").write_text(PO, encoding="utf-8")
    for name in ("x.mo", "x.po"):
        content = bytearray((folder / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(content) - 1))
            end = start + data.draw(st.integers(0, 9))
            content[start:end] = data.draw(st.binary(max_size=4) | PARTS)
        (folder / name).write_bytes(content)
        for message, translation in read_catalogue(folder / name, Counter()).items():
            assert isinstance(message, str)
            assert isinstance(translation, str)


def test_messages_come_in_the_order_of_programs(locale):
    dropped = Counter()
    assert list(harvest("en", "fr", dropped, locale)) == [
        ("Close the window", "Fermer la fenêtre"),
        ("open the file", "ouvrir un fichier"),
        ("Open the file", "Ouvrir le fichier"),
        ("too short", "court"),
    ]
    assert dropped == {"untranslated": 1}


def test_messages_are_filtered_and_repetitions_dropped(locale, tmp_path):
    more = {f"Message of the {'x' * i}": f"Le message du {'x' * i}" for i in range(1, 9)}
    write_catalogue(tmp_path / "fr" / "LC_MESSAGES" / "more.mo", more)
    source = find_source(str(locale[0]), "en", "fr")
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(1, 2))
    assert report["dropped"] == {"untranslated": 1, "length": 1, "repeated": 1}


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


PAIRS = [("Close the window", "Fermer la fenêtre"), ("file", "fichier"), ("files", "fichiers")]
LAYOUTS = [
    "fr.po",
    "po/fr.po",
    "deep/po/fr.po",
    "locale/fr/LC_MESSAGES/app.po",
    "fr/LC_MESSAGES/deep/app.po",
    "locale/fr/library/c-api.po",
    "fr/library.po",
    "fr_FR.po",
    "fr-FR.po",
    "fra.po",
    "app-fr.po",
    "app.fr.po",
    "app_fr.po",
    "messages.fr.po",
    "messages+intl-icu.fr.po",
    "my-plugin-fr_FR.po",
    "my-app-fr.po",
    "module-7.x-1.2.fr.po",
    "fr-rFR/app.po",
    "app-fr-rCA.po",
    "fr@euro/LC_MESSAGES/app.po",
    "fr_FR.UTF-8/LC_MESSAGES/app.po",
    "l10n-kf5/fr/messages/kde/app.po",
    "APP-FR.PO",
]


def test_catalogues_in_any_layout_of_a_source_tree_are_read(tmp_path):
    for number, name in enumerate(LAYOUTS):
        tree = tmp_path / str(number)
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(PO, encoding="utf-8")
        dropped = Counter()
        assert list(find_source(str(tree), "en", "fr").read(dropped)) == PAIRS, name
        assert dropped == {"fuzzy": 1, "untranslated": 1, "obsolete": 1}, name


def test_catalogues_of_the_same_name_in_several_folders_are_all_read(tmp_path):
    for app in ("one", "two", "three"):
        folder = tmp_path / app / "locale" / "fr" / "LC_MESSAGES"
        folder.mkdir(parents=True)
        (folder / "django.po").write_text(PO.replace("Close", app.title()), encoding="utf-8")
    pairs = find_source(str(tmp_path), "en", "fr").read(Counter())
    messages = {message for message, _ in pairs}
    assert messages == {"One the window", "Three the window", "Two the window", "file", "files"}


def test_translations_of_a_message_into_two_languages_are_a_pair(locale):
    pairs = list(harvest("fr", "de", Counter(), locale))
    assert pairs == [("Ouvrir le fichier", "Die Datei jetzt öffnen")]


def test_english_may_be_the_second_language(locale):
    dropped = Counter()
    pairs = list(harvest("de", "en", dropped, locale))
    assert ("Alle Dateien auspacken bitte", "Extract all the files") in pairs
    assert dropped["unreadable catalogue"] == 1


def test_the_unreadable_catalogues_of_a_folder_are_named(locale, capsys):
    list(harvest("de", "en", Counter(), locale))
    (message,) = capsys.readouterr().err.splitlines()
    assert str(locale[0]) in message
    assert "broken.mo: " in message


def test_a_missing_language_is_named_with_those_that_exist(locale):
    with pytest.raises(InputError, match=r"'it'.*\bde, fr\b.*--data PREFIX"):
        input_files("en", "it", locale)
    with pytest.raises(InputError, match="en-en"):
        input_files("en", "en", locale)


@pytest.mark.parametrize(
    ("names", "language", "expected"),
    [
        ("app-fr.po app-de.po", "fr", "app-fr.po"),
        ("fr/what-is.po is/other.po", "is", "is/other.po"),
        ("my/app-fr.po", "fr", "my/app-fr.po"),
        ("fr.po fr_CA.po", "fr", "fr.po"),
        ("fr.po fr_CA.po", "fr_CA", "fr_CA.po"),
        ("pt.po pt_BR.po", "pt_BR", "pt_BR.po"),
        ("django-pt-br.po django-pt.po", "pt_BR", "django-pt-br.po"),
        ("zh_CN.po zh_TW.po", "zho_Hant", "zh_TW.po"),
        ("zh_CN/LC_MESSAGES/a.po zh_TW/LC_MESSAGES/a.po", "zh", "zh_CN/LC_MESSAGES/a.po"),
        ("sr.po sr@latin.po", "sr_Latn", "sr@latin.po"),
        ("hsb/LC_MESSAGES/app.po", "hsb", "hsb/LC_MESSAGES/app.po"),
        ("translation.po", "fr", "translation.po"),
    ],
)
def test_the_catalogue_of_a_language_is_chosen_by_its_name(tmp_path, names, language, expected):
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        header = "Language: fr\\n" if name in ("fr/what-is.po", "translation.po") else ""
        (tmp_path / name).write_text(f'msgid ""\nmsgstr "{header}"\n')
    assert input_files("en", language, (tmp_path,)) == [tmp_path / expected]


def test_a_very_long_plural_rule_is_ignored_quickly(tmp_path):
    header = f"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: {'n==1 && ' * 200_000}\n"
    write_catalogue(tmp_path / "x.mo", {"one\0many": "un\0deux\0des"}, header=header)
    start = time.process_time()
    assert read_catalogue(tmp_path / "x.mo", Counter()) == {"one": "un", "many": "des"}
    assert time.process_time() - start < 5


def test_two_languages_are_paired_if_the_code_ends_the_file_name(tmp_path):
    for code, window in (("fr", "la fenêtre"), ("de", "das Fenster")):
        (tmp_path / f"app-{code}.po").write_text(PO.replace("_fenêtre", window), encoding="utf-8")
    pairs = list(harvest("fr", "de", Counter(), (tmp_path,)))
    assert ("Fermer la la fenêtre", "Fermer la das Fenster") in pairs


@pytest.mark.parametrize("english", ["en", "eng", "en_US", "en-GB"])
def test_every_code_of_english_means_the_messages_themselves(locale, english):
    assert ("Open the file", "Ouvrir le fichier") in list(harvest(english, "fr", Counter(), locale))


def test_a_single_catalogue_is_read_in_both_directions(tmp_path, locale):
    for name in ("fr.po", "x.po", "app-fr.PO", "fr/LC_MESSAGES/app.po"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(PO, encoding="utf-8")
        source = find_source(str(tmp_path / name), "en", "fr")
        assert source.is_messages
        assert list(source.read(Counter())) == PAIRS
        reversed_source = find_source(str(tmp_path / name), "fr", "en")
        reversed_pairs = [(french, english) for english, french in PAIRS]
        assert list(reversed_source.read(Counter())) == reversed_pairs
    compiled = find_source(str(tmp_path / "fr/LC_MESSAGES/git.mo"), "en", "fr")
    assert ("Open the file", "Ouvrir le fichier") in list(compiled.read(Counter()))


def test_a_single_catalogue_of_another_language_is_refused(tmp_path):
    (tmp_path / "fr.po").write_text(PO, encoding="utf-8")
    with pytest.raises(InputError, match=r"fr\.po: .*\bin fr\b.*\bde\b"):
        find_source(str(tmp_path / "fr.po"), "en", "de")
    with pytest.raises(InputError, match=r"fr\.po: .*fr-de"):
        find_source(str(tmp_path / "fr.po"), "fr", "de")
    (tmp_path / "none.po").write_text('msgid ""\nmsgstr ""\n')
    with pytest.raises(InputError, match=r"none\.po"):
        list(find_source(str(tmp_path / "none.po"), "en", "fr").read(Counter()))
