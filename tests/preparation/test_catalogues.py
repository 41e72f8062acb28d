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

# Bytes that mean something in a .po file.
PARTS = st.sampled_from(
    [b"msgid", b"msgstr[", b'"\n"', b"#|", b"\\", b"[999999999]", b"charset=rot13", b"\n\n"]
)


MO_HEADER_BYTES = 28


def mo_header(count, place_of_keys, place_of_texts, revision=0):
    """The first 28 bytes of a .mo file: a magic number, and the numbers of its tables."""
    magic_number = 0x950412DE
    return struct.pack("<7I", magic_number, revision, count, place_of_keys, place_of_texts, 0, 0)


def write_catalogue(path, messages, charset="UTF-8", header=""):
    """A .mo file: a header, tables with the places of keys and of texts, and these, sorted by key.

    In a key, \\x04 follows a context. \\0 separates the singular from the plural, in a key and in a
    text.
    """
    messages = {"": header or f"Content-Type: text/plain; charset={charset}\n"} | messages
    items = sorted((key.encode(charset), text.encode(charset)) for key, text in messages.items())
    start = MO_HEADER_BYTES + 16 * len(items)
    tables = b""
    data = b""
    for side in (0, 1):
        for item in items:
            tables += struct.pack("<II", len(item[side]), start + len(data))
            data += item[side] + b"\0"
    place_of_texts = MO_HEADER_BYTES + 8 * len(items)
    magic = mo_header(len(items), MO_HEADER_BYTES, place_of_texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(magic + tables + data)


@pytest.fixture
def locale(tmp_path):
    """Folders of installed catalogues: git in French and German, bash in French, tar in German.

    A German catalogue is broken. An underscore marks the key of a menu.
    """

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


def test_the_language_of_a_large_catalogue_is_read_from_its_header(tmp_path):
    """Its path names none, and the header comes after all original messages."""
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
    no_catalogues = ("LINGUAS", "own.tmx")
    # Nobody expects them to be read, so they are not listed.
    hidden_files = ("._be.mo", ".DS_Store")
    for name in (*no_catalogues, *hidden_files):
        (tmp_path / name).write_bytes(b"\0")

    source = find_source(str(tmp_path), "en", "be")

    assert source.files == (tmp_path / "be.mo",)
    assert sorted(capsys.readouterr().err.replace(f"{tmp_path}: ", "").splitlines()) == [
        "not read for en-be (1, no language in the path or the header): none.mo",
        "not read for en-be (2, not a catalogue): LINGUAS, own.tmx",
        "not read for en-be (2, not in be): deep/fr.mo, git-de.mo",
    ]


def test_catalogues_of_programs_with_only_one_of_two_languages_are_not_read_but_counted(
    locale, capsys
):
    [folder] = locale

    source = find_source(str(folder), "fr", "de")

    # Those of git. Only one language has bash, tar and the broken catalogue.
    read_files = [path.relative_to(folder).as_posix() for path in source.files]
    assert sorted(read_files) == ["de/LC_MESSAGES/git.mo", "fr/LC_MESSAGES/git.mo"]
    assert (
        "(3, another catalogue of the program is read, or it has only one of the languages)"
        in capsys.readouterr().err
    )


def test_a_po_file_whose_header_is_a_single_line_is_read_in_its_encoding(tmp_path):
    header = 'msgid ""\nmsgstr "Language: fr\\nContent-Type: text/plain; charset=ISO-8859-1\\n"\n'
    content = f'{header}\nmsgid "Dog"\nmsgstr "Été"\n'
    (tmp_path / "x.po").write_bytes(content.encode("latin-1"))

    assert read_catalogue(tmp_path / "x.po", Counter()) == {"Dog": "Été"}


def read_by_python(path):
    """The messages of a .mo file that have one form, and the texts of all plural forms."""
    with open(path, "rb") as stream:
        entries = gettext.GNUTranslations(stream)._catalog
    singular = {}
    plural_texts = set()
    for key, text in entries.items():
        # Python's key of a plural form is the message and a number.
        if isinstance(key, tuple):
            plural_texts.add(text)
        elif key and isinstance(key, str) and isinstance(text, str):
            singular[key] = text
    return singular, plural_texts


def test_installed_catalogues_are_read_as_by_python(tmp_path):
    # 40 are enough. A machine without any has nothing to compare.
    for path in sorted(Path("/usr/share/locale").glob("[a-f]*/LC_MESSAGES/*.mo"))[:40]:
        singular, plural_texts = read_by_python(path)

        messages = read_catalogue(path, Counter())

        assert singular.items() <= messages.items()
        for key in messages.keys() - singular.keys():
            assert messages[key] in plural_texts


def test_a_plural_rule_with_python_code_is_not_run(tmp_path):
    """Python's module compiles the plural rule to a function."""
    marker = tmp_path / "was_run"
    rule = f"plural=__import__('pathlib').Path('{marker}').touch();"
    header = f"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; {rule}\n"
    write_catalogue(tmp_path / "x.mo", {"a": "b"}, header=header)

    assert read_catalogue(tmp_path / "x.mo", Counter()) == {"a": "b"}
    assert not marker.exists()


def write_plural_forms(path, rule, forms):
    """A .mo or .po file with one message twice, with a context and with a number in its text."""
    header = f"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: {rule}\n"
    if path.suffix == ".mo":
        joined = "\0".join(forms)
        messages = {"menu\x04one\0many": joined, "%d one\0%d many": joined}
        write_catalogue(path, messages, header=header)
        return
    content = 'msgid ""\nmsgstr ""\n'
    for line in header.splitlines():
        content += f'"{line}\\n"\n'
    for context, prefix in (('msgctxt "menu"\n', ""), ("", "%d ")):
        content += f'\n{context}msgid "{prefix}one"\nmsgid_plural "{prefix}many"\n'
        for number, form in enumerate(forms):
            content += f'msgstr[{number}] "{form}"\n'
    path.write_text(content)


RUSSIAN_RULE = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2);"
ARABIC_RULE = (
    "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : "
    "n%100>=11 ? 4 : 5;"
)
SLOVENIAN_RULE = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"


# Each form of a rule has a number as its name for which it is used.
@pytest.mark.parametrize(
    ("rule", "forms", "form_for_one", "form_for_many"),
    [
        pytest.param("", ["un", "des"], "un", "des", id="no rule"),
        pytest.param("nplurals=2; plural=(n > 1);", ["un", "des"], "un", "des", id="French"),
        pytest.param("nplurals=1; plural=0;", ["hitotsu"], None, "hitotsu", id="Japanese"),
        pytest.param(RUSSIAN_RULE, ["1", "2", "5"], "1", "5", id="Russian"),
        pytest.param(
            ARABIC_RULE, ["0", "1", "2", "few", "many", "other"], "1", "other", id="Arabic"
        ),
        # The form for five comes first.
        pytest.param(SLOVENIAN_RULE, ["5", "1", "2", "3"], "1", "5", id="Slovenian"),
        pytest.param(
            "nplurals=2; plural=n == 9 ? 9 : 8;", ["un", "des"], "un", "des", id="missing forms"
        ),
    ],
)
@pytest.mark.parametrize("kind", ["mo", "po"])
def test_the_forms_for_one_and_for_many_become_two_pairs(
    tmp_path, kind, rule, forms, form_for_one, form_for_many
):
    write_plural_forms(tmp_path / f"x.{kind}", rule, forms)

    messages = read_catalogue(tmp_path / f"x.{kind}", Counter())

    expected = {"menu\x04many": form_for_many, "%d many": form_for_many}
    # A language without plural has only the form for many.
    if form_for_one is not None:
        expected |= {"menu\x04one": form_for_one, "%d one": form_for_one}
    assert messages == expected


LARGEST_NUMBER = 2**32 - 1
# 500,000 messages, all of which have the same four million bytes: terabytes of text from a small file.
MANY_MESSAGES = 500_000
SHARED_MESSAGES = (
    mo_header(MANY_MESSAGES, MO_HEADER_BYTES, MO_HEADER_BYTES)
    + struct.pack("<2I", 8 * MANY_MESSAGES, MO_HEADER_BYTES) * MANY_MESSAGES
    + b"x"
)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(mo_header(0, 28, 28)[:4], id="cut"),
        pytest.param(mo_header(LARGEST_NUMBER, 28, 28), id="too many messages"),
        pytest.param(mo_header(0, 28, 28, revision=9 << 16), id="unknown revision"),
        pytest.param(mo_header(1, LARGEST_NUMBER, LARGEST_NUMBER), id="tables outside the file"),
        pytest.param(SHARED_MESSAGES, id="messages that share their bytes"),
    ],
)
def test_a_malicious_catalogue_is_counted_as_unreadable(tmp_path, content):
    (tmp_path / "x.mo").write_bytes(content)
    dropped = Counter()

    assert read_catalogue(tmp_path / "x.mo", dropped) == {}
    assert dropped == {"unreadable catalogue": 1}


@pytest.mark.parametrize("name", ["x.po", "x.mo"])
def test_a_pipe_is_counted_as_unreadable(tmp_path, name):
    os.mkfifo(tmp_path / name)
    dropped = Counter()

    assert read_catalogue(tmp_path / name, dropped) == {}
    assert dropped == {"unreadable catalogue": 1}


@pytest.mark.parametrize("name", ["x.po", "x.mo"])
def test_a_file_of_64_megabytes_is_counted_as_unreadable(tmp_path, name):
    """It is larger than any real catalogue."""
    with open(tmp_path / name, "wb") as stream:
        stream.truncate(64 * 2**20)
    dropped = Counter()

    assert read_catalogue(tmp_path / name, dropped) == {}
    assert dropped == {"unreadable catalogue": 1}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_catalogues_with_changed_bytes_raise_no_error_and_give_texts_only(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoilt")
    write_catalogue(
        folder / "x.mo", {"one": "un", "two\0twos": "deux\0deuxs", "menu\x04three": "trois"}
    )
    (folder / "x.po").write_text(PO, encoding="utf-8")
    for name in ("x.mo", "x.po"):
        content = bytearray((folder / name).read_bytes())
        # Replace one to four parts of the file.
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(content) - 1))
            end = start + data.draw(st.integers(0, 9))
            content[start:end] = data.draw(st.binary(max_size=4) | PARTS)
        (folder / name).write_bytes(content)

        for message, translation in read_catalogue(folder / name, Counter()).items():
            assert isinstance(message, str)
            assert isinstance(translation, str)


def test_messages_come_in_the_order_of_programs_and_untranslated_ones_are_counted(locale):
    dropped = Counter()

    pairs = list(harvest("en", "fr", dropped, locale))

    # bash before git, and then by message.
    assert pairs == [
        ("Close the window", "Fermer la fenêtre"),
        ("open the file", "ouvrir un fichier"),
        ("Open the file", "Ouvrir le fichier"),
        ("too short", "court"),
    ]
    assert dropped == {"untranslated": 1}


def test_a_corpus_of_messages_drops_untranslated_short_and_repeated_ones(locale, tmp_path):
    # Enough messages for a corpus.
    more = {f"Message of the {'x' * i}": f"Le message du {'x' * i}" for i in range(1, 9)}
    write_catalogue(tmp_path / "fr" / "LC_MESSAGES" / "more.mo", more)
    source = find_source(str(locale[0]), "en", "fr")

    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(1, 2))

    # "not translated here", "too short", and "open the file" in two catalogues.
    assert report["dropped"] == {"untranslated": 1, "length": 1, "repeated": 1}


# Three messages, one of which has a plural. A draft, an untranslated and an old one are not read.
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
# Names of catalogues in the source trees of programs.
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_catalogues_in_any_layout_of_a_source_tree_are_read(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(PO, encoding="utf-8")

    pairs = list(find_source(str(tmp_path), "en", "fr").read(Counter()))

    assert pairs == PAIRS


def test_drafts_and_untranslated_and_old_messages_are_counted(tmp_path):
    (tmp_path / "fr.po").write_text(PO, encoding="utf-8")
    dropped = Counter()

    list(find_source(str(tmp_path), "en", "fr").read(dropped))

    assert dropped == {"fuzzy": 1, "untranslated": 1, "obsolete": 1}


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

    # Only "Open the file" is in both languages.
    assert pairs == [("Ouvrir le fichier", "Die Datei jetzt öffnen")]


def test_english_may_be_the_second_language(locale):
    pairs = list(harvest("de", "en", Counter(), locale))

    assert ("Alle Dateien auspacken bitte", "Extract all the files") in pairs


def test_the_unreadable_catalogues_of_a_folder_are_counted_and_named(locale, capsys):
    dropped = Counter()

    list(harvest("de", "en", dropped, locale))

    assert dropped["unreadable catalogue"] == 1
    (message,) = capsys.readouterr().err.splitlines()
    assert str(locale[0]) in message
    assert "broken.mo: " in message


def test_a_missing_language_is_named_with_those_that_exist(locale):
    with pytest.raises(InputError, match=r"'it'.*\bde, fr\b.*--data PREFIX"):
        input_files("en", "it", locale)


def test_a_pair_of_the_same_language_is_refused(locale):
    with pytest.raises(InputError, match="en-en"):
        input_files("en", "en", locale)


@pytest.mark.parametrize(
    ("names", "language", "expected"),
    [
        pytest.param("app-fr.po app-de.po", "fr", "app-fr.po", id="end of the name"),
        # "is" and "my" are Icelandic and Burmese.
        pytest.param("fr/what-is.po is/other.po", "is", "is/other.po", id="folder before name"),
        pytest.param("my/app-fr.po", "fr", "my/app-fr.po", id="name if the folder is another"),
        pytest.param("fr.po fr_CA.po", "fr", "fr.po", id="no region"),
        pytest.param("fr.po fr_CA.po", "fr_CA", "fr_CA.po", id="region"),
        pytest.param("pt.po pt_BR.po", "pt_BR", "pt_BR.po", id="region of another language"),
        pytest.param(
            "django-pt-br.po django-pt.po", "pt_BR", "django-pt-br.po", id="region after dash"
        ),
        pytest.param("zh_CN.po zh_TW.po", "zho_Hant", "zh_TW.po", id="script of the region"),
        pytest.param(
            "zh_CN/LC_MESSAGES/a.po zh_TW/LC_MESSAGES/a.po",
            "zh",
            "zh_CN/LC_MESSAGES/a.po",
            id="usual script",
        ),
        pytest.param("sr.po sr@latin.po", "sr_Latn", "sr@latin.po", id="script after @"),
        pytest.param(
            "hsb/LC_MESSAGES/app.po", "hsb", "hsb/LC_MESSAGES/app.po", id="code of three letters"
        ),
    ],
)
def test_the_catalogue_of_a_language_is_chosen_by_its_name(tmp_path, names, language, expected):
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        # For this name, the path is ambiguous without it.
        header = "Language: fr\\n" if name == "fr/what-is.po" else ""
        (tmp_path / name).write_text(f'msgid ""\nmsgstr "{header}"\n')

    assert input_files("en", language, (tmp_path,)) == [tmp_path / expected]


def test_a_catalogue_whose_name_has_no_language_is_chosen_by_its_header(tmp_path):
    (tmp_path / "translation.po").write_text('msgid ""\nmsgstr "Language: fr\\n"\n')

    assert input_files("en", "fr", (tmp_path,)) == [tmp_path / "translation.po"]


def test_a_very_long_plural_rule_is_ignored_quickly(tmp_path):
    """Without a rule, the first form is for one, and the last for many."""
    header = f"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: {'n==1 && ' * 200_000}\n"
    write_catalogue(tmp_path / "x.mo", {"one\0many": "un\0deux\0des"}, header=header)

    start = time.process_time()
    messages = read_catalogue(tmp_path / "x.mo", Counter())
    seconds = time.process_time() - start

    assert messages == {"one": "un", "many": "des"}
    assert seconds < 5


def test_two_languages_are_paired_if_the_code_ends_the_file_name(tmp_path):
    for code, translation in (("fr", "Fermer la fenêtre"), ("de", "Das Fenster schließen")):
        content = PO.replace("Fermer la _fenêtre", translation)
        (tmp_path / f"app-{code}.po").write_text(content, encoding="utf-8")

    pairs = list(harvest("fr", "de", Counter(), (tmp_path,)))

    assert ("Fermer la fenêtre", "Das Fenster schließen") in pairs


@pytest.mark.parametrize("english", ["en", "eng", "en_US", "en-GB"])
def test_every_code_of_english_means_the_messages_themselves(locale, english):
    assert ("Open the file", "Ouvrir le fichier") in list(harvest(english, "fr", Counter(), locale))


@pytest.mark.parametrize("name", ["fr.po", "x.po", "app-fr.PO", "fr/LC_MESSAGES/app.po"])
def test_a_single_catalogue_is_read_in_both_directions(tmp_path, name):
    """Whether its name says its language or not."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(PO, encoding="utf-8")

    source = find_source(str(path), "en", "fr")
    reversed_source = find_source(str(path), "fr", "en")

    assert source.is_messages
    assert list(source.read(Counter())) == PAIRS
    reversed_pairs = [(french, english) for english, french in PAIRS]
    assert list(reversed_source.read(Counter())) == reversed_pairs


def test_a_single_compiled_catalogue_is_read(locale):
    [folder] = locale

    source = find_source(str(folder / "fr/LC_MESSAGES/git.mo"), "en", "fr")

    assert ("Open the file", "Ouvrir le fichier") in list(source.read(Counter()))


def test_a_single_catalogue_of_another_language_is_refused(tmp_path):
    (tmp_path / "fr.po").write_text(PO, encoding="utf-8")

    with pytest.raises(InputError, match=r"fr\.po: .*\bin fr\b.*\bde\b"):
        find_source(str(tmp_path / "fr.po"), "en", "de")


def test_a_single_catalogue_is_refused_for_a_pair_without_english(tmp_path):
    """Its messages are English."""
    (tmp_path / "fr.po").write_text(PO, encoding="utf-8")

    with pytest.raises(InputError, match=r"fr\.po: .*fr-de"):
        find_source(str(tmp_path / "fr.po"), "fr", "de")


def test_a_single_catalogue_without_messages_is_refused(tmp_path):
    (tmp_path / "none.po").write_text('msgid ""\nmsgstr ""\n')
    source = find_source(str(tmp_path / "none.po"), "en", "fr")

    with pytest.raises(InputError, match=r"none\.po"):
        list(source.read(Counter()))
