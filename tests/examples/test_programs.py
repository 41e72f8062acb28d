"""examples/pretrained/programs.py pairs texts of programs in packages of Debian."""

import re
import struct
import zipfile

import pytest
from conftest import ROOT, load_script, main_here, refused
from test_names import catalogue, write

from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.preparation.clean import alphabets

# Files in the archives of Firefox and Thunderbird; {} is the code of the language.
PROPERTIES = "chrome/{0}/locale/{0}/global/text.properties"
FTL = "localization/{}/toolkit/text.ftl"
BRAND = "localization/{}/branding/brand.ftl"
FIREFOX = "usr/lib/firefox-esr"
CHINESE_PAK = "usr/lib/chromium/locales/zh-CN.pak"
CHINESE_CATALOGUE = "usr/lib/libreoffice/program/resource/zh_CN/LC_MESSAGES/cui.mo"
LANGPACK = f"{FIREFOX}/browser/extensions/langpack-{{}}@firefox-esr.mozilla.org.xpi"


# The message `_Open` of the context `stock`, as catalogues write it.
STOCK_OPEN = "stock\x04_Open"


def pak(texts, aliases=(), version=5, encoding=1):
    """Return a .pak file of numbered texts, and of aliases: pairs of a number and an index."""
    header = struct.pack("<IB3xHH", version, encoding, len(texts), len(aliases))
    start = len(header) + 6 * (len(texts) + 1) + 4 * len(aliases)
    table = b""
    content = b""
    for number, text in texts.items():
        table += struct.pack("<HI", number, start + len(content))
        content += text if isinstance(text, bytes) else text.encode()
    table += struct.pack("<HI", 0, start + len(content))
    for alias in aliases:
        table += struct.pack("<HH", *alias)
    return header + table + content


def write_archive(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as stream:
        for name, text in files.items():
            stream.writestr(name, text)


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "examples" / "pretrained" / "programs.py")


@pytest.fixture(scope="module")
def words(script):
    """By language, the translation of `Open` in all programs: the first letters of its alphabet."""
    letters = alphabets()
    return {language: letters[language][:3] for language in script.LANGUAGES}


@pytest.fixture
def root(tmp_path, script, words):
    """The files of all packages, in which each program has the text `Open` alone."""
    return write_packages(tmp_path, script, words)


@pytest.fixture(scope="module")
def written(tmp_path_factory, script, words):
    """The files of all packages, for which the script has been run."""
    folder = write_packages(tmp_path_factory.mktemp("programs"), script, words)
    run_script(script, folder)
    return folder


def write_packages(folder, script, words):
    write(folder / script.CHROMIUM_FILE.format("en-US"), pak({1: "Open"}))
    english = {"firefox": "browser/omni.ja", "thunderbird": "omni.ja"}
    for name, file in english.items():
        program = script.MOZILLA[name]
        for path in program.english:
            text = "open = Open" if path.endswith(file) else ""
            write_archive(folder / path, {PROPERTIES.format("en-US"): text})
    for language, word in words.items():
        for code in script.CHROMIUM_CODES.get(language, [language]):
            write(folder / script.CHROMIUM_FILE.format(code), pak({1: word}))
        for code in script.MOZILLA_CODES.get(language, [language]):
            for program in script.MOZILLA.values():
                files = {PROPERTIES.format(code): f"open = {word}"}
                write_archive(folder / program.translation.format(code), files)
        for code in script.LIBREOFFICE_CODES.get(language, [language]):
            catalogues = folder / script.LIBREOFFICE_FOLDER.format(code)
            write(catalogues / "cui.mo", catalogue({STOCK_OPEN: word}))
    return folder


def run_script(script, root, check=True):
    return main_here(script, "--root", root, "--output", root / "text", check=check)


def written_pairs(root, source, language):
    """Return the sorted pairs of English and a language that the script has written."""
    files = [root / "text" / f"{source}.en-{language}.{code}.txt.gz" for code in ("en", language)]
    return sorted(read_parallel(*files))


@pytest.mark.parametrize("source", ["chromium", "firefox", "thunderbird", "libreoffice"])
def test_pairs_of_a_program_are_written_in_all_its_languages(script, written, words, source):
    # Such as chromium.en-et.et.txt.gz.
    files = (written / "text").glob(f"{source}.*")
    languages = {file.name.split(".")[1].removeprefix("en-") for file in files}
    assert languages == {*script.LANGUAGES} - {*script.LACKING.get(source, [])}
    assert written_pairs(written, source, "et") == [("Open", words["et"])]


def test_portuguese_of_chromium_is_only_that_of_brazil(script, tmp_path):
    write(tmp_path / script.CHROMIUM_FILE.format("pt-BR"), pak({1: "abrir"}))
    write(tmp_path / script.CHROMIUM_FILE.format("pt-PT"), pak({1: "ficheiro"}))

    pairs = script.chromium_pairs({1: "Open"}, tmp_path, "pt")

    assert list(pairs) == [("Open", "abrir")]


def test_portuguese_of_firefox_is_that_of_brazil_and_of_portugal(script, root):
    write_archive(root / LANGPACK.format("pt-BR"), {PROPERTIES.format("pt-BR"): "open = abrir"})
    write_archive(root / LANGPACK.format("pt-PT"), {PROPERTIES.format("pt-PT"): "open = ficheiro"})

    run_script(script, root)

    assert written_pairs(root, "firefox", "pt") == [("Open", "abrir"), ("Open", "ficheiro")]


def test_serbian_of_libreoffice_is_in_both_scripts(script, tmp_path):
    cyrillic = tmp_path / script.LIBREOFFICE_FOLDER.format("sr")
    latin = tmp_path / script.LIBREOFFICE_FOLDER.format("sr@latin")
    write(cyrillic / "cui.mo", catalogue({STOCK_OPEN: "Отвори"}))
    write(latin / "cui.mo", catalogue({STOCK_OPEN: "Otvori"}))

    pairs = script.cleaned(script.libreoffice_pairs(tmp_path, "sr"), "sr")

    assert sorted(pairs) == [("Open", "Otvori"), ("Open", "Отвори")]


def test_texts_of_a_pak_file_are_read(script, tmp_path):
    """Bytes that are no UTF-8, such as those of a packed file, are replaced."""
    write(tmp_path / "et.pak", pak({7: "Open", 9: "Tühista", 12: b"\x1f\x8b"}))

    texts = script.read_pak(tmp_path / "et.pak")

    assert texts == {7: "Open", 9: "Tühista", 12: "\x1f\ufffd"}


def test_an_alias_in_a_pak_file_has_the_text_of_the_resource_at_its_index(script, tmp_path):
    # Number 20 is the second text.
    write(tmp_path / "et.pak", pak({7: "Open", 9: "Tühista"}, aliases=[(20, 1)]))

    texts = script.read_pak(tmp_path / "et.pak")

    assert texts == {7: "Open", 9: "Tühista", 20: "Tühista"}


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("# a = comment\n! b = comment\n\n", {}),
        ("open=Open\n", {"open": "Open"}),
        # Blanks before and after the name, and a colon.
        ("  close : Close it \n", {"close": "Close it "}),
        # A line that continues.
        ("long = one \\\n    two\n", {"long": "one two"}),
        # A letter, the end of a line, and a backslash.
        ("escaped = a\\u00E9\\n\\\\b\n", {"escaped": "aé \\b"}),
        ("url=x=y:z\n", {"url": "x=y:z"}),
        ("no message\n", {}),
    ],
    ids=["comments", "equals-sign", "colon", "two-lines", "escaped", "signs", "none"],
)
def test_messages_of_a_properties_file_are_read(script, text, messages):
    assert script.read_properties(text) == messages


# A name of a product that depends on the grammatical case.
CASED_TERM = """\
-cased = { $case ->
   *[nom] Kontakt
    [gen] Kontaktu
 }
"""


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        # Terms, known before or defined here, and a text in quotation marks.
        (
            '-vendor = Mozilla\nopen = Open { -brand } by { -vendor } { "{" }\n',
            {"open": "Open Firefox by Mozilla {"},
        ),
        # Attributes; a variable becomes a blank.
        (
            "open = Open\n    .label = Open { $name }\n    .accesskey = O\n",
            {"open": "Open", "open.label": "Open  ", "open.accesskey": "O"},
        ),
        # Of several forms, the one with a star.
        (
            "count = { $n ->\n    [one] one file\n   *[other] { $n } files\n }\n",
            {"count": "  files"},
        ),
        # The case of a term is not known.
        (f"{CASED_TERM}case = {{ -cased(case: 'gen') }}{{ -cased }}\n", {}),
        ("# comment\nthis is no message\n", {}),
    ],
    ids=["terms", "attributes", "forms", "case", "none"],
)
def test_messages_of_ftl_are_read(script, text, messages):
    pytest.importorskip("fluent.syntax")

    assert script.read_ftl(text, {"brand": "Firefox"}) == messages


def test_terms_of_ftl_are_added_to_those_that_are_known(script):
    pytest.importorskip("fluent.syntax")
    terms = {"brand": "Firefox"}

    script.read_ftl(f"-vendor = Mozilla\n{CASED_TERM}", terms)

    assert terms == {"brand": "Firefox", "vendor": "Mozilla", "cased": "Kontakt"}


@pytest.fixture
def pairs_of_firefox(script, tmp_path):
    """A function from the files of both English archives and of the German one to the pairs."""

    def pair(first_english, second_english, german):
        first, second = (tmp_path / path for path in script.MOZILLA["firefox"].english)
        write_archive(first, first_english)
        write_archive(second, second_english)
        write_archive(tmp_path / LANGPACK.format("de"), german)
        english = script.read_archives([first, second], "en-US")
        return sorted(script.mozilla_pairs(english, tmp_path, script.MOZILLA["firefox"], "de"))

    return pair


ENGLISH_FILE = PROPERTIES.format("en-US")
GERMAN_FILE = PROPERTIES.format("de")


def test_messages_of_archives_are_paired_by_their_file_and_name(pairs_of_firefox):
    """A language pack has the files of the second English archive in its folder browser."""
    pairs = pairs_of_firefox(
        {ENGLISH_FILE: "file=File"},
        {ENGLISH_FILE.replace("global", "browser"): "file=Folder"},
        {
            GERMAN_FILE: "file=Datei",
            "browser/" + GERMAN_FILE.replace("global", "browser"): "file=Ordner\nmore=mehr",
        },
    )

    assert pairs == [("File", "Datei"), ("Folder", "Ordner")]


@pytest.mark.parametrize("name", ["file.accesskey", "file.commandkey", "file-key", "box.style"])
def test_a_keyboard_shortcut_and_a_style_are_no_messages_of_an_archive(pairs_of_firefox, name):
    english = {ENGLISH_FILE: f"file=File\n{name}=ab\n"}
    german = {GERMAN_FILE: f"file=Datei\n{name}=xab\n"}

    assert pairs_of_firefox(english, {}, german) == [("File", "Datei")]


def test_files_of_other_kinds_have_no_messages_of_an_archive(pairs_of_firefox):
    english = {ENGLISH_FILE: "file=File", "de/file.txt": "file=Text"}
    german = {GERMAN_FILE: "file=Datei", "de/file.txt": "file=Inhalt"}

    assert pairs_of_firefox(english, {}, german) == [("File", "Datei")]


def test_the_name_of_a_product_may_be_in_another_file_of_the_archive(script, tmp_path):
    pytest.importorskip("fluent.syntax")
    files = {FTL.format("et"): "about = { -brand } info", BRAND.format("et"): "-brand = Firefox"}
    write_archive(tmp_path / "et.xpi", files)

    texts = script.read_archives([tmp_path / "et.xpi"], "et")

    assert texts == {"localization/toolkit/text.ftl about": "Firefox info"}


def test_a_missing_library_is_named_with_the_file_that_needs_it(script, root, monkeypatch):
    write_archive(root / LANGPACK.format("et"), {FTL.format("et"): "open = Ava"})
    monkeypatch.setattr(script, "is_missing", lambda module: module == "fluent.syntax")

    done = run_script(script, root, check=False)

    refused(done, "langpack-et@", FTL.format("et"), "pip install fluent.syntax")
    assert not (root / "text").exists()


@pytest.mark.parametrize(
    ("message", "translation", "expected"),
    [
        # What is before \x04 is the context.
        (STOCK_OPEN, "A_va", [("Open", "Ava")]),
        # The placeholder of the product becomes its name.
        (
            "page|label\x04Close %PRODUCTNAME",
            "Sulge %PRODUCTNAME",
            [("Close LibreOffice", "Sulge LibreOffice")],
        ),
        # Singular and plural.
        (
            "page|rows\x04%1 row\0%1 rows",
            "%1 rida\0%1 rida kokku",
            [("row", "rida"), ("rows", "rida kokku")],
        ),
        ("page|empty\x04Not translated", "", []),
    ],
    ids=["context", "product", "plural", "empty"],
)
def test_messages_of_catalogues_are_read(script, tmp_path, message, translation, expected):
    folder = tmp_path / script.LIBREOFFICE_FOLDER.format("et")
    write(folder / "cui.mo", catalogue({message: translation}))
    # Another catalogue of the language.
    write(folder / "sw.mo", catalogue({"stock\x04_Help": "A_bi"}))

    pairs = script.cleaned(script.libreoffice_pairs(tmp_path, "et"), "et")

    assert sorted(pairs) == sorted([*expected, ("Help", "Abi")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Tags and entities.
        ("Open <b>new</b>\u00a0window<br/>\n now", "Open new window now"),
        ("1 < 2 <None>", "1 < 2"),
        ("Q&amp;A &hellip; &#38; &copy", "QA … & copy"),
    ],
)
def test_markup_is_removed(script, text, expected):
    assert script.clean(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Delete $1here, ${user.name}, $(ARG1) and $name.", "Delete here,, and."),
        ("%s of %1$S: %1 %%name%% %title% %SCRIPTNAME.", "of :."),
        ("%s文件", "文件"),
        ("{ $name } has #1 files, PKCS#11", "has files, PKCS#11"),
        # Percent signs of numbers stay.
        ("%100 suurendus, 50 % ja 7%", "%100 suurendus, 50 % ja 7%"),
        # Brackets and quotation marks around a placeholder, or around nothing, go with it.
        ('Open “$1” ($2) or "%S".', "Open or."),
        ("Type (“$1”), 类型“ ”的", "Type, 类型 的"),
        ("Delete '$1', 'a' 'b' and “ ”...", "Delete, 'a' 'b' and ..."),
        ("ההעלאה של ״%S״ \uff08$1\uff09「{0}」 נדחתה", "ההעלאה של נדחתה"),
    ],
)
def test_placeholders_are_removed(script, text, expected):
    assert script.clean(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A letter in brackets.
        ("打开(&O)…", "打开…"),
        ("開く (_O):", "開く"),
        # A sign before a letter.
        ("E&xit", "Exit"),
        ("Fo~rmat & &View", "Format & View"),
        ("_File", "File"),
        # Not if there are two of them.
        ("E_xport _ as", "E_xport _ as"),
        ("MY_LONG_NAME", "MY_LONG_NAME"),
    ],
)
def test_signs_of_keyboard_shortcuts_are_removed(script, text, expected):
    assert script.clean(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Marks of direction, and the colon at the end.
        ("\u200eName\u200f :", "Name"),
        ("名称\uff1a", "名称"),
        # A mark that Persian words need.
        ("می\u200cشود", "می\u200cشود"),
    ],
)
def test_marks_of_direction_and_a_colon_at_the_end_are_removed(script, text, expected):
    assert script.clean(text) == expected


@pytest.mark.parametrize(
    ("english", "text", "is_kept"),
    [
        ("Open", "Ava", True),
        # Equal, except case.
        ("OK", "ok", False),
        # A single letter in English; in another language, it may be a word.
        ("A", "Ava", False),
        ("and", "y", True),
        # No letter.
        ("Open", "1.0", False),
        # Addresses.
        ("See http://a.b", "Vaata", False),
        ("files", "https://a.b", False),
        # Several forms.
        ("{n, plural, one file}", "fail", False),
        ("file", "{n, plural, fail}", False),
        # A character that could not be read, and half of one.
        ("Open", "Ava\ufffd", False),
        ("Open", f"Ava{chr(0xD83D)}", False),
        # Less than four times as long, if 8 characters are added to both: (83 + 8) / (15 + 8) = 3.96.
        ("word " * 3, "s" * 83, True),
        ("word " * 3, "s" * 84, False),
        # At most 600 characters.
        ("w" * 200, "s" * 600, True),
        ("w" * 200, "s" * 601, False),
    ],
)
def test_a_pair_without_a_usable_translation_is_left_out(script, english, text, is_kept):
    letters_of_language = re.compile("[a-z]")

    assert script.is_kept(english, text, letters_of_language) == is_kept


def test_a_pair_that_differs_only_in_case_and_shortcuts_is_kept_once(script):
    pairs = [("_Open", "פתיחה"), ("open", "פתיחה"), ("Open", "לפתוח")]

    cleaned = script.cleaned(iter(pairs), "he")

    assert sorted(cleaned) == [("Open", "לפתוח"), ("Open", "פתיחה")]


def test_a_pair_whose_translation_has_no_letter_of_its_language_is_left_out(script):
    pairs = [("Open it", "Opened"), ("Open", "פתיחה")]

    assert script.cleaned(iter(pairs), "he") == [("Open", "פתיחה")]


def test_pairs_are_in_a_random_order_that_does_not_depend_on_that_of_the_files(script):
    pairs = [(f"word {number}", f"מילה {number}") for number in range(20)]

    cleaned = script.cleaned(iter(pairs), "he")

    assert sorted(cleaned) == sorted(pairs)
    assert cleaned != sorted(pairs)
    assert script.cleaned(reversed(pairs), "he") == cleaned


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (CHINESE_PAK, None, "zh-CN.pak: No such file"),
        (CHINESE_PAK, b"no", "zh-CN.pak: error('unpack_from"),
        (CHINESE_PAK, pak({1: "a"}, version=4), "version 4, encoding 1"),
        (CHINESE_PAK, pak({1: "a"}, encoding=2), "version 5, encoding 2"),
        (CHINESE_PAK, pak({1: "abc"})[:-1], "ValueError('cut off')"),
        # An alias of the sixth text.
        (CHINESE_PAK, pak({1: "a"}, [(2, 5)]), "zh-CN.pak: IndexError"),
        (CHINESE_PAK, pak({}), "zh-CN.pak: no texts; expected"),
        # English has no text of that number.
        (CHINESE_PAK, pak({2: "文"}), "no pairs of chromium in en-zh;"),
        (f"{FIREFOX}/omni.ja", None, "omni.ja: No such file"),
        (LANGPACK.format("zh-CN"), b"no", "langpack-zh-CN@firefox-esr.mozilla.org.xpi: BadZipFile"),
        (CHINESE_CATALOGUE, None, "no catalogues;"),
        (CHINESE_CATALOGUE, b"no", "not a .mo file"),
    ],
)
def test_a_missing_or_invalid_package_is_refused_before_writing(
    script, root, file, content, message
):
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_bytes(content)

    done = run_script(script, root, check=False)

    refused(done, root, message)
    assert not (root / "text").exists()


def test_text_of_an_archive_that_is_not_utf_8_is_refused(script, root):
    write_archive(root / LANGPACK.format("de"), {PROPERTIES.format("de"): b"open=\xfc"})

    done = run_script(script, root, check=False)

    refused(done, "langpack-de@", "UnicodeDecodeError")
    assert not (root / "text").exists()
