"""Files of sentence pairs in all formats, complete and damaged."""

import gzip
import json
import os
import tracemalloc
import zipfile
from collections import Counter

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.memories import read_units

# A TMX with two pairs of English and French, one of which has French first, and one of German.
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>The <bpt i="1">b</bpt> dog &amp; cat</seg></tuv>
<tuv xml:lang="FR"><seg>Le chien</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Alone</seg></tuv><tuv xml:lang="de"><seg>Allein</seg></tuv></tu>
<tu><tuv lang="fr"><seg>Deux
 lignes</seg></tuv><tuv lang="en"><seg>Two lines</seg></tuv></tu>
</body></tmx>
"""
UNIT = '<tu><tuv xml:lang="en"><seg>{0} words</seg></tuv><tuv xml:lang="fr"><seg>{0} mots</seg></tuv></tu>\n'
BOMB = """<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<tmx><body><tu><tuv xml:lang="en"><seg>&b;</seg></tuv><tuv xml:lang="fr"><seg>x</seg></tuv></tu></body></tmx>"""


@pytest.fixture(autouse=True)
def _xml_parser():
    pytest.importorskip("defusedxml")


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.tmx", TMX.encode()), ("x.tmx.gz", gzip.compress(TMX.encode()))],
    ids=["plain", "gzip"],
)
def test_the_pairs_of_a_tmx_are_read_in_both_directions(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    dropped = Counter()

    pairs = list(find_source(str(path), "en", "fr").read(dropped))
    exchanged_pairs = list(read_units(path, "fr", "en", Counter()))

    assert pairs == [("The dog & cat", "Le chien"), ("Two lines", "Deux lignes")]
    assert dropped == {"language missing": 1}
    assert exchanged_pairs == [("Le chien", "The dog & cat"), ("Deux lignes", "Two lines")]


@pytest.mark.parametrize(
    ("code", "variant"),
    [
        ("zh_TW", "zh-TW"),
        ("zh-tw", "zh-TW"),
        # Without a region, that of the usual script.
        ("zh", "zh-CN"),
        ("en_GB", "en-GB"),
    ],
)
def test_the_variant_of_the_region_is_chosen(tmp_path, code, variant):
    write_variants(tmp_path / "x.tmx")

    assert list(read_units(tmp_path / "x.tmx", "en", code, Counter())) == [("en", variant)]


def test_a_region_without_a_variant_of_its_own_gets_no_other_region(tmp_path):
    write_variants(tmp_path / "x.tmx")

    assert not list(read_units(tmp_path / "x.tmx", "en", "zh_HK", Counter()))


def write_variants(path):
    """A TMX of one unit, each of whose segments is its code."""
    variants = ""
    for code in ("en-GB", "en-US", "en", "zh-CN", "zh-TW"):
        variants += f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>'
    path.write_text(f"<tmx><tu>{variants}</tu></tmx>")


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            '<tmx xmlns="http://www.lisa.org/tmx14"><body>{}</body></tmx>', id="namespace"
        ),
        pytest.param("<tmx>{}</tmx>", id="no body"),
    ],
)
def test_a_tmx_with_a_namespace_or_without_a_body_is_read(tmp_path, template):
    # Several blocks of a file.
    units = "".join(UNIT.format(number) for number in range(3000))
    (tmp_path / "x.tmx").write_text(template.format(units))
    dropped = Counter()

    pairs = list(read_units(tmp_path / "x.tmx", "en", "fr", dropped))

    assert pairs == [(f"{number} words", f"{number} mots") for number in range(3000)]
    assert not dropped


@pytest.mark.slow
def test_a_large_tmx_takes_little_memory(tmp_path):
    path = tmp_path / "x.tmx"
    units = "".join(UNIT.format(number) for number in range(10_000))
    path.write_text(f"<tmx><body>{units}</body></tmx>")

    tracemalloc.start()
    num_pairs = sum(1 for _ in read_units(path, "en", "fr", Counter()))
    _, most_memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert num_pairs == 10_000
    # The file has more bytes.
    assert most_memory < 1_000_000


# A default value of a million characters for each of a thousand elements.
ATTRIBUTES = f"""<!DOCTYPE tmx [<!ATTLIST tuv lang CDATA "{"x" * 1_000_000}">]><tmx><tu>{"<tuv/>" * 1000}</tu></tmx>"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"<tmx><tu><tuv><seg>{'word ' * 900_000}", r"x\.tmx\.gz: .*4,194,304 "),
        (
            f"<tmx><header>{'<x/>' * 50_000}</header></tmx>",
            r"x\.tmx\.gz: .*20,001 ",
        ),
        (f"<tmx><!--{'x' * 5_000_000}--><tu/></tmx>", r"x\.tmx\.gz: .*4,194,304 "),
        (f"<tmx>{'<x>' * 1_000_000}", r"x\.tmx\.gz: .*101 .*101 "),
        (ATTRIBUTES, r"x\.tmx\.gz: .*attribute"),
    ],
    # The numbers of the messages are the limits: 4 MiB of text, 20,001 elements, 101 levels.
    ids=["segment", "header", "comment", "nested", "attributes"],
)
def test_a_tmx_that_would_fill_the_memory_is_refused(tmp_path, content, message):
    (tmp_path / "x.tmx.gz").write_bytes(gzip.compress(content.encode(), 1))

    tracemalloc.start()
    with pytest.raises(InputError, match=message):
        list(read_units(tmp_path / "x.tmx.gz", "en", "fr", Counter()))
    _, most_memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # Most of it is a limit of 4 MiB for each text, several times.
    assert most_memory < 60_000_000


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        pytest.param("x.tmx", BOMB.encode(), ["defines an entity"], id="entities of entities"),
        # The cut is in the sixth line.
        pytest.param("x.tmx", TMX[:300].encode(), ["not a TMX file", "line 6"], id="cut TMX"),
        pytest.param("x.tmx", b"<tmx><body/></tmx>", ["no translation units"], id="empty TMX"),
        pytest.param(
            "x.tmx",
            b'<?xml version="1.0" encoding="Shift_JIS"?><tmx/>',
            ["not a TMX file", "multi-byte"],
            id="encoding that is not read",
        ),
        pytest.param(
            "x.tmx",
            b'<?xml version="1.0" encoding="nonsense"?><tmx/>',
            ["not a TMX file", "nonsense"],
            id="unknown encoding",
        ),
        pytest.param("x.tmx.gz", gzip.compress(TMX.encode())[:-20], [], id="cut gzip"),
        pytest.param(
            "x.tsv",
            b"only one\nagain\n",
            ["x.tsv, line 1", "1 column in 'only one'", "separated by tabs"],
            id="table of one column",
        ),
        # The four bytes from the first é to the end of the line.
        pytest.param(
            "x.tsv",
            "a\tdéjà\n".encode("latin-1"),
            ["x.tsv, line 1", "bytes e9 6a e0 0a at byte 4 are not UTF-8"],
            id="table in Latin-1",
        ),
        pytest.param("x.tsv", b"", ["empty file"], id="empty table"),
    ],
)
def test_the_error_of_a_damaged_file_names_it_and_the_problem(tmp_path, name, content, fragments):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(find_source(str(tmp_path / name), "en", "fr").read(Counter()))
    for fragment in (name, *fragments):
        assert fragment in str(caught.value)


def test_carriage_returns_and_byte_order_marks_are_removed(tmp_path):
    (tmp_path / "x.en").write_bytes("one\r\ntwo\r\n".encode("utf-8-sig"))
    (tmp_path / "x.fr").write_bytes(b"un\ndeux\n")
    pairs = list(find_source(str(tmp_path / "x"), "en", "fr").read(Counter()))
    assert pairs == [("one", "un"), ("two", "deux")]


def test_lines_of_any_length_are_read(tmp_path):
    """The filters decide what is too long."""
    (tmp_path / "x.tsv").write_text("word " * 20_000 + "\tmot\n")
    assert len(list(find_source(str(tmp_path / "x.tsv"), "en", "fr").read(Counter()))) == 1


def test_the_first_line_without_a_translation_is_named(tmp_path):
    (tmp_path / "x.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "x.fr").write_text("un\ndeux\n")
    with pytest.raises(InputError, match=r"3 .*x\.fr .*2.* line 3 .*x\.en: 'three'"):
        list(find_source(str(tmp_path / "x"), "en", "fr").read(Counter()))


def write_pair(folder, left, right):
    for name, text in ((left, "one\ntwo\n"), (right, "un\ndeux\n")):
        content = text.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
        (folder / name).write_bytes(content)


# Files that macOS and Windows add to archives.
HIDDEN_FILES = (
    "__MACOSX/corpus/._train.en",
    "corpus/._train.fr",
    "corpus/.DS_Store",
    "Thumbs.db",
)


def write_zip_with_hidden_files(path, texts: dict[str, str]):
    with zipfile.ZipFile(path, "w") as packed:
        for name in HIDDEN_FILES:
            packed.writestr(name, b"\0")
        for name, text in texts.items():
            packed.writestr(name, text)


def pairs_of(path):
    return list(find_source(str(path), "en", "fr").read(Counter()))


def test_hidden_files_of_desktop_systems_in_a_zip_are_ignored(tmp_path, capsys):
    texts = {"corpus/train.en": "one\n", "corpus/train.fr": "un\n", "README": "a"}
    write_zip_with_hidden_files(tmp_path / "corpus.zip", texts)

    pairs = pairs_of(tmp_path / "corpus.zip")

    assert pairs == [("one", "un")]
    # Other files that are not read are named.
    assert capsys.readouterr().err == f"{tmp_path}/corpus.zip: not read for en-fr (1): README\n"


def test_a_zip_of_one_table_is_read(tmp_path):
    write_zip_with_hidden_files(tmp_path / "one.tsv.zip", {"x.tsv": "one\tun\n"})

    assert pairs_of(tmp_path / "one.tsv.zip") == [("one", "un")]


TWO_TEXTS = {
    "corpus/dev.en": "dev",
    "corpus/dev.fr": "dev",
    "corpus/train.en": "train",
    "corpus/train.fr": "train",
}


def test_the_texts_of_a_zip_are_joined_and_named(tmp_path, capsys):
    write_zip_with_hidden_files(tmp_path / "corpus.zip", TWO_TEXTS)

    pairs = pairs_of(tmp_path / "corpus.zip")

    assert pairs == [("dev", "dev"), ("train", "train")]
    message = capsys.readouterr().err
    assert "joins 2 texts for en-fr: corpus/dev, corpus/train; " in message


def test_one_text_of_a_zip_is_read_by_its_prefix_in_the_zip(tmp_path):
    write_zip_with_hidden_files(tmp_path / "corpus.zip", TWO_TEXTS)

    assert pairs_of(tmp_path / "corpus.zip/corpus/dev") == [("dev", "dev")]


# Names of two files with the same prefix, their prefix, and a pair of languages.
FILES_OF_A_PAIR = pytest.mark.parametrize(
    ("left", "right", "prefix", "pair"),
    [
        pytest.param("x.en", "x.fr", "x", "eng-fra", id="other codes"),
        pytest.param("x.eng_Latn", "x.fra_Latn.gz", "x", "en-fr", id="scripts, gzip"),
        pytest.param("x.en-US.txt", "x.pt-BR.txt.gz", "x", "en-pt_BR", id="regions, .txt"),
        pytest.param("x.EN", "x.zh-Hant.TXT", "x", "en-zh_TW", id="capitals"),
        pytest.param("x.v2.en", "x.v2.fr", "x.v2", "en-fr", id="stop in prefix"),
    ],
)


@FILES_OF_A_PAIR
def test_aligned_files_are_matched_whatever_the_spelling_of_the_codes(
    tmp_path, left, right, prefix, pair
):
    write_pair(tmp_path, left, right)
    # Another language of the same text.
    (tmp_path / "x.de").write_text("nicht\n")

    source = find_source(str(tmp_path / prefix), *pair.split("-"))

    assert list(source.read(Counter())) == [("one", "un"), ("two", "deux")]
    # The files that are read are those of the pair.
    assert {path.name for path in source.files} == {left, right}


def write_opus_zip(folder, left, right):
    """Write an archive of OPUS with a pair of files and others that are not of this pair."""
    write_pair(folder, left, right)
    with zipfile.ZipFile(folder / "opus.zip", "w") as packed:
        for name in (left, right):
            packed.write(folder / name, f"deep/{name}")
        # Another language of the same text.
        packed.writestr("deep/x.de", "nicht\n")
        packed.writestr("README", "about")
        packed.writestr("x.xml", "<cesAlign/>")
    return folder / "opus.zip"


@FILES_OF_A_PAIR
@pytest.mark.parametrize("place", ["zip", "prefix in zip"])
def test_aligned_files_in_a_zip_are_matched_whatever_the_spelling_of_the_codes(
    tmp_path, left, right, prefix, pair, place
):
    path = write_opus_zip(tmp_path, left, right)
    if place == "prefix in zip":
        path = path / "deep" / prefix

    source = find_source(str(path), *pair.split("-"))

    assert list(source.read(Counter())) == [("one", "un"), ("two", "deux")]


@FILES_OF_A_PAIR
@pytest.mark.parametrize("place", ["zip", "prefix in zip"])
def test_the_file_of_a_source_in_a_zip_is_the_zip(tmp_path, left, right, prefix, pair, place):
    path = write_opus_zip(tmp_path, left, right)
    if place == "prefix in zip":
        path = path / "deep" / prefix

    source = find_source(str(path), *pair.split("-"))

    assert [file.name for file in source.files] == ["opus.zip"]


@pytest.mark.parametrize("language", ["pt_BR", "en_GB"])
def test_a_missing_side_is_named(tmp_path, language):
    """Portuguese is there, but of another region."""
    write_pair(tmp_path, "x.en", "x.pt-PT")

    with pytest.raises(InputError, match=rf"x\.{language}: no such file"):
        find_source(str(tmp_path / "x"), "en", language)


def test_a_missing_side_is_named_with_the_files_that_exist(tmp_path):
    write_pair(tmp_path, "x.en", "x.pt-PT")

    message = r"x\.pt_BR: no such file .*x\.en, x\.pt-PT.*PREFIX\.en"
    with pytest.raises(InputError, match=message):
        find_source(str(tmp_path / "x"), "en", "pt_BR")


def test_the_first_of_two_missing_sides_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.en: no such file"):
        find_source(str(tmp_path / "missing" / "nothing"), "en", "fr")


def test_a_file_of_another_format_is_refused_with_the_formats_that_are_read(tmp_path):
    (tmp_path / "x.docx").write_text("x")

    with pytest.raises(InputError, match=r"x\.docx: .*\.docx.*\.tsv, "):
        find_source(str(tmp_path / "x.docx"), "en", "fr")


@pytest.fixture
def zip_of_memory_and_table(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("a.tmx", f"<tmx>{UNIT.format(1)}</tmx>")
        packed.writestr("b/c.tsv", "two words\tdeux mots\n")
        packed.writestr("LICENSE", "free")
    return tmp_path / "x.zip"


def test_the_memories_and_tables_of_a_zip_are_read(zip_of_memory_and_table):
    assert pairs_of(zip_of_memory_and_table) == [
        ("1 words", "1 mots"),
        ("two words", "deux mots"),
    ]


def test_a_memory_in_a_zip_without_a_language_is_named_with_its_languages(zip_of_memory_and_table):
    source = find_source(str(zip_of_memory_and_table), "en", "de")

    with pytest.raises(InputError, match=r"x\.zip/a\.tmx: .*en and de\b.*en, fr"):
        list(source.read(Counter()))


def test_a_zip_without_a_pair_of_files_is_refused_with_the_files_that_it_has(tmp_path):
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as packed:
        packed.writestr("notes.en", "x")

    with pytest.raises(InputError, match=r"y\.zip: .*en-fr.*'notes\.en'"):
        find_source(str(tmp_path / "y.zip"), "en", "fr")


def test_a_file_that_is_only_named_like_a_zip_is_refused(tmp_path):
    (tmp_path / "z.zip").write_bytes(b"no archive")

    with pytest.raises(InputError, match=r"z\.zip: "):
        find_source(str(tmp_path / "z.zip"), "en", "fr")


@pytest.mark.parametrize(
    "keys",
    ["en fr", "eng_Latn fra_Latn", "source target", "src tgt", "en_text fr_text", "EN fr-FR"],
)
def test_lines_of_json_are_read_by_any_spelling_of_their_keys(tmp_path, keys):
    left, right = keys.split()
    lines = [
        {left: "one", right: "un", "id": 7},
        {"translation": {left: "two", right: "deux"}},
        {left: "alone", right: None},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    dropped = Counter()

    pairs = list(find_source(str(tmp_path / "x.jsonl"), "en", "fr").read(dropped))

    assert pairs == [("one", "un"), ("two", "deux")]
    # The third line has no French, and the fourth is empty.
    assert dropped == {"language missing": 1, "empty side": 1}


@pytest.mark.parametrize(
    "names",
    [
        {"source_lang": "en", "target_lang": "fr"},
        {"src_lang": "en-US", "tgt_lang": "fr-FR"},
        {"source_language": "English", "target_language": "French"},
        {"sourceLang": "eng_Latn", "targetLang": "fra_Latn"},
        {"srclang": "EN", "trglang": "FR"},
        {"en_lang": "eng", "fr_lang": "fra"},
        {"original_locale": "en_GB", "translation_locale": "fr_CA"},
    ],
)
def test_keys_that_name_languages_are_not_read_as_text(tmp_path, names):
    lines = [
        {**names, "source": "A dog", "target": "Un chien"},
        {"source": "A cat", "target": "Un chat", **names},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    source = find_source(str(tmp_path / "x.jsonl"), "en", "fr")
    assert list(source.read(Counter())) == [("A dog", "Un chien"), ("A cat", "Un chat")]


@pytest.mark.parametrize(
    ("line", "pairs", "reasons"),
    [
        pytest.param(
            {"source_lang": "fr", "target_lang": "en", "source": "Un chien", "target": "A dog"},
            [("A dog", "Un chien")],
            {},
            id="other direction",
        ),
        pytest.param(
            {"source_lang": "en", "target_lang": "de", "source": "A dog", "target": "Ein Hund"},
            [],
            {"language missing": 1},
            id="other language",
        ),
        pytest.param(
            {"en-US": "", "en-GB": "A cat", "fr": "Un chat"},
            [("A cat", "Un chat")],
            {},
            id="first of two variants is empty",
        ),
        pytest.param(
            {"en": "A \ud800", "fr": "Un"}, [], {"not characters": 1}, id="lone surrogate"
        ),
    ],
)
def test_languages_and_text_of_a_line_of_json_decide_its_pair_or_why_it_is_dropped(
    tmp_path, line, pairs, reasons
):
    pair_of_another_line = ("A bird", "Un oiseau")
    other_line = dict(zip(("en", "fr"), pair_of_another_line, strict=True))
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(other_line)}\n")
    dropped = Counter()

    read_pairs = list(find_source(str(tmp_path / "x.jsonl"), "en", "fr").read(dropped))

    assert read_pairs == [*pairs, pair_of_another_line]
    assert dropped == reasons


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            '{"en": "a", "de": "b"}', r"x\.jsonl: .*en and fr\b.*de, en", id="other language"
        ),
        pytest.param('{"en": "a", "fr": "b"}\n[1]', r"x\.jsonl, line 2: '\[1\]'", id="list"),
        pytest.param('{"en": "a", "fr": "b"', r"x\.jsonl, line 1: ", id="cut"),
        pytest.param("[" * 100_000, r"x\.jsonl, line 1: ", id="deeply nested"),
        pytest.param('{"en": "\\ud800", "fr": "b"}', r"x\.jsonl: ", id="only lone surrogates"),
        pytest.param("", r"x\.jsonl: ", id="empty"),
    ],
)
def test_the_error_of_json_lines_names_the_file_and_the_invalid_line(tmp_path, content, message):
    (tmp_path / "x.jsonl").write_text(content)

    with pytest.raises(InputError, match=message):
        list(find_source(str(tmp_path / "x.jsonl"), "en", "fr").read(Counter()))


@pytest.mark.parametrize("name", ["p.tsv", "p.tmx", "p.jsonl", "p.po", "p"])
def test_a_pipe_is_refused_by_name(tmp_path, name):
    os.mkfifo(tmp_path / name)
    if name == "p":
        os.mkfifo(tmp_path / "p.en")
        os.mkfifo(tmp_path / "p.fr")
    with pytest.raises(InputError, match=r"/p(\.\w+)? .*pipe"):
        find_source(str(tmp_path / name), "en", "fr")
