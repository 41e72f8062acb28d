"""examples/pretrained/programs.py pairs texts of programs in packages of Debian."""

import re
import struct
import zipfile

import pytest
from conftest import ROOT, load_script, main_here, refused
from test_names import catalogue, write

from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.preparation.clean import alphabets

PROPERTIES = "chrome/{0}/locale/{0}/global/text.properties"
FTL = "localization/{}/toolkit/text.ftl"
BRAND = "localization/{}/branding/brand.ftl"
FIREFOX = "usr/lib/firefox-esr"
LANGPACK = f"{FIREFOX}/browser/extensions/langpack-{{}}@firefox-esr.mozilla.org.xpi"


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


def archive(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as stream:
        for name, text in files.items():
            stream.writestr(name, text)


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "programs.py")


@pytest.fixture
def letters(script):
    """A word of each language in its letters."""
    letters = alphabets()
    return {language: letters[language][:3] for language in script.LANGUAGES}


@pytest.fixture
def root(tmp_path, script, letters):
    """All packages, with one text in each program."""
    write(tmp_path / script.CHROMIUM_FILE.format("en-US"), pak({1: "Open"}))
    english = {"firefox": "browser/omni.ja", "thunderbird": "omni.ja"}
    for name, file in english.items():
        program = script.MOZILLA[name]
        for path in program.english:
            text = "open = Open" if path.endswith(file) else ""
            archive(tmp_path / path, {PROPERTIES.format("en-US"): text})
    for language, word in letters.items():
        for code in script.CHROMIUM_CODES.get(language, [language]):
            write(tmp_path / script.CHROMIUM_FILE.format(code), pak({1: word}))
        for code in script.MOZILLA_CODES.get(language, [language]):
            for program in script.MOZILLA.values():
                files = {PROPERTIES.format(code): f"open = {word}"}
                archive(tmp_path / program.translation.format(code), files)
        for code in script.LIBREOFFICE_CODES.get(language, [language]):
            folder = tmp_path / script.LIBREOFFICE_FOLDER.format(code)
            write(folder / "cui.mo", catalogue({"stock\x04_Open": word}))
    return tmp_path


def make(script, root, check=True):
    return main_here(script, "--root", root, "--output", root / "text", check=check)


def read(root, source, language):
    files = [root / "text" / f"{source}.en-{language}.{code}.txt.gz" for code in ("en", language)]
    return sorted(read_parallel(*files))


def test_each_program_has_its_languages(script, root, letters):
    make(script, root)
    for source in ("chromium", "firefox", "thunderbird", "libreoffice"):
        files = (root / "text").glob(f"{source}.*")
        languages = {file.name.split(".")[1].removeprefix("en-") for file in files}
        assert languages == {*script.LANGUAGES} - {*script.LACKING.get(source, [])}
        assert read(root, source, "et") == [("Open", letters["et"])]


def test_brazilian_and_european_portuguese_and_both_scripts_of_serbian(script, root):
    write(root / script.CHROMIUM_FILE.format("pt-PT"), pak({1: "ficheiro"}))
    archive(root / LANGPACK.format("pt-BR"), {PROPERTIES.format("pt-BR"): "open = abrir"})
    archive(root / LANGPACK.format("pt-PT"), {PROPERTIES.format("pt-PT"): "open = ficheiro"})
    latin = root / script.LIBREOFFICE_FOLDER.format("sr@latin")
    write(latin / "cui.mo", catalogue({"stock\x04_Open": "Otvori"}))
    make(script, root)
    assert len(read(root, "chromium", "pt")) == 1
    assert ("Open", "ficheiro") not in read(root, "chromium", "pt")
    assert read(root, "firefox", "pt") == [("Open", "abrir"), ("Open", "ficheiro")]
    assert ("Open", "Otvori") in read(root, "libreoffice", "sr")
    assert len(read(root, "libreoffice", "sr")) == 2


def test_texts_and_aliases_of_a_pak_file_are_read(script, tmp_path):
    """An alias has the text of another resource, given by its index."""
    texts = {7: "Open", 9: "Tühista", 12: b"\x1f\x8b"}
    write(tmp_path / "et.pak", pak(texts, aliases=[(20, 1)]))
    assert script.read_pak(tmp_path / "et.pak") == {
        7: "Open",
        9: "Tühista",
        12: "\x1f\ufffd",
        20: "Tühista",
    }


def test_messages_of_a_properties_file_are_read(script):
    text = (
        "# a = comment\n! b = comment\n\nopen=Open\n  close : Close it \n"
        "long = one \\\n    two\nescaped = a\\u00E9\\n\\\\b\nurl=x=y:z\nnone\n"
    )
    assert script.read_properties(text) == {
        "open": "Open",
        "close": "Close it ",
        "long": "one two",
        "escaped": "aé \\b",
        "url": "x=y:z",
    }


def test_messages_and_terms_of_ftl_are_read(script):
    pytest.importorskip("fluent.syntax")
    terms = {"brand": "Firefox"}
    text = (
        "# comment\n-vendor = Mozilla\n"
        "-cased = { $case ->\n   *[nom] Kontakt\n    [gen] Kontaktu\n }\n"
        'open = Open { -brand } by { -vendor } { "{" }\n'
        "    .label = Open { $name }\n    .accesskey = O\n"
        "count = { $n ->\n    [one] one file\n   *[other] { $n } files\n }\n"
        "case = { -cased(case: 'gen') }{ -cased }\n"
        "this is no message\n"
    )
    assert script.read_ftl(text, terms) == {
        "open": "Open Firefox by Mozilla {",
        "open.label": "Open  ",
        "open.accesskey": "O",
        "count": "  files",
    }
    assert terms == {"brand": "Firefox", "vendor": "Mozilla", "cased": "Kontakt"}


def test_messages_of_archives_are_paired_by_their_file(script, root):
    """A language pack has the files of the second English archive in its folder browser.

    Keyboard shortcuts, style sheets and files of other kinds are left out.
    """
    first, second = (root / path for path in script.MOZILLA["firefox"].english)
    keys = "file.accesskey=ab\nfile.commandkey=cd\nfile-key=ef\nbox.style=width: 9em\n"
    archive(first, {PROPERTIES.format("en-US"): f"file=File\n{keys}", "de/file.txt": "file=Text"})
    archive(second, {PROPERTIES.format("en-US").replace("global", "browser"): "file=Folder\n"})
    german = PROPERTIES.format("de")
    files = {
        german: f"file=Datei\n{keys.replace('=', '=x')}",
        "browser/" + german.replace("global", "browser"): "file=Ordner\nmore=mehr",
        "de/file.txt": "file=Inhalt",
    }
    archive(root / LANGPACK.format("de"), files)
    pairs = script.mozilla_pairs(
        script.read_archives([first, second], "en-US"), root, script.MOZILLA["firefox"], "de"
    )
    assert sorted(pairs) == [("File", "Datei"), ("Folder", "Ordner")]


def test_names_of_products_are_read_from_other_files(script, tmp_path):
    pytest.importorskip("fluent.syntax")
    files = {FTL.format("et"): "about = { -brand } info", BRAND.format("et"): "-brand = Firefox"}
    archive(tmp_path / "et.xpi", files)
    texts = script.read_archives([tmp_path / "et.xpi"], "et")
    assert texts == {"localization/toolkit/text.ftl about": "Firefox info"}


def test_a_missing_package_is_named(script, root, monkeypatch):
    archive(root / LANGPACK.format("et"), {FTL.format("et"): "open = Ava"})
    monkeypatch.setattr(script, "is_missing", lambda module: module == "fluent.syntax")
    refused(
        make(script, root, check=False),
        "langpack-et@",
        FTL.format("et"),
        "pip install fluent.syntax",
    )
    assert not (root / "text").exists()


def test_messages_of_catalogues_are_read_without_context(script, root):
    """The placeholder of the product becomes its name."""
    messages = {
        "stock\x04_Open": "A_va",
        "page|label\x04Close %PRODUCTNAME": "Sulge %PRODUCTNAME",
        "page|rows\x04%1 row\0%1 rows": "%1 rida\0%1 rida kokku",
        "page|empty\x04Not translated": "",
    }
    folder = root / script.LIBREOFFICE_FOLDER.format("et")
    write(folder / "cui.mo", catalogue(messages))
    write(folder / "sw.mo", catalogue({"stock\x04_Help": "A_bi"}))
    make(script, root)
    assert read(root, "libreoffice", "et") == [
        ("Close LibreOffice", "Sulge LibreOffice"),
        ("Help", "Abi"),
        ("Open", "Ava"),
        ("row", "rida"),
        ("rows", "rida kokku"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Open <b>new</b>\u00a0window<br/>\n now", "Open new window now"),
        ("1 < 2 <None>", "1 < 2"),
        ("Q&amp;A &hellip; &#38; &copy", "QA … & copy"),
        ("Delete $1here, ${user.name}, $(ARG1) and $name.", "Delete here,, and."),
        ("%s of %1$S: %1 %%name%% %title% %SCRIPTNAME.", "of :."),
        ("%s文件", "文件"),
        ("%100 suurendus, 50 % ja 7%", "%100 suurendus, 50 % ja 7%"),
        ("{ $name } has #1 files, PKCS#11", "has files, PKCS#11"),
        ("打开(&O)…", "打开…"),
        ("開く (_O):", "開く"),
        ("E&xit", "Exit"),
        ("Fo~rmat & &View", "Format & View"),
        ("_File", "File"),
        ("E_xport _ as", "E_xport _ as"),
        ("MY_LONG_NAME", "MY_LONG_NAME"),
        ('Open “$1” ($2) or "%S".', "Open or."),
        ("Type (“$1”), 类型“ ”的", "Type, 类型 的"),
        ("Delete '$1', 'a' 'b' and “ ”...", "Delete, 'a' 'b' and ..."),
        ("ההעלאה של ״%S״ \uff08$1\uff09「{0}」 נדחתה", "ההעלאה של נדחתה"),
        ("\u200eName\u200f :", "Name"),
        ("名称\uff1a", "名称"),
        ("می\u200cشود", "می\u200cشود"),
    ],
)
def test_markup_placeholders_and_shortcuts_are_removed(script, text, expected):
    assert script.clean(text) == expected


@pytest.mark.parametrize(
    ("english", "text", "is_kept"),
    [
        ("Open", "Ava", True),
        ("OK", "ok", False),
        ("A", "Ava", False),
        ("and", "y", True),
        ("Open", "1.0", False),
        ("See http://a.b", "Vaata", False),
        ("files", "https://a.b", False),
        ("{n, plural, one file}", "fail", False),
        ("file", "{n, plural, fail}", False),
        ("Open", "Ava\ufffd", False),
        ("Open", f"Ava{chr(0xD83D)}", False),
        ("word " * 3, "s" * 83, True),
        ("word " * 3, "s" * 84, False),
        ("w" * 200, "s" * 600, True),
        ("w" * 200, "s" * 601, False),
    ],
)
def test_pairs_without_a_usable_translation_are_left_out(script, english, text, is_kept):
    assert script.is_kept(english, text, re.compile("[a-z]")) == is_kept


def test_pairs_are_distinct_and_have_a_letter_of_their_language(script):
    pairs = [("_Open", "פתיחה"), ("open", "פתיחה"), ("Open", "לפתוח"), ("Open it", "Opened")]
    pairs += [(f"word {number}", f"מילה {number}") for number in range(20)]
    cleaned = script.cleaned(iter(pairs), "he")
    assert len(cleaned) == 22
    assert [pair for pair in sorted(cleaned) if "pen" in pair[0]] == [
        ("Open", "לפתוח"),
        ("Open", "פתיחה"),
    ]
    assert cleaned != sorted(cleaned)
    assert cleaned == script.cleaned(reversed(pairs), "he")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("usr/lib/chromium/locales/zh-CN.pak", None, "zh-CN.pak: No such file"),
        ("usr/lib/chromium/locales/zh-CN.pak", b"no", "zh-CN.pak: error('unpack_from"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({1: "a"}, version=4), "version 4, encoding 1"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({1: "a"}, encoding=2), "version 5, encoding 2"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({1: "abc"})[:-1], "ValueError('cut off')"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({1: "a"}, [(2, 5)]), "zh-CN.pak: IndexError"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({}), "zh-CN.pak: no texts; expected"),
        ("usr/lib/chromium/locales/zh-CN.pak", pak({2: "文"}), "no pairs of chromium in en-zh;"),
        (f"{FIREFOX}/omni.ja", None, "omni.ja: No such file"),
        (LANGPACK.format("zh-CN"), b"no", "langpack-zh-CN@firefox-esr.mozilla.org.xpi: BadZipFile"),
        ("usr/lib/libreoffice/program/resource/zh_CN/LC_MESSAGES/cui.mo", None, "no catalogues;"),
        ("usr/lib/libreoffice/program/resource/zh_CN/LC_MESSAGES/cui.mo", b"no", "not a .mo file"),
    ],
)
def test_a_missing_or_invalid_package_is_refused_before_writing(
    script, root, file, content, message
):
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_bytes(content)
    refused(make(script, root, check=False), root, message)
    assert not (root / "text").exists()


def test_text_of_an_archive_that_is_not_utf_8_is_refused(script, root):
    archive(root / LANGPACK.format("de"), {PROPERTIES.format("de"): b"open=\xfc"})
    refused(make(script, root, check=False), "langpack-de@", "UnicodeDecodeError")
    assert not (root / "text").exists()
