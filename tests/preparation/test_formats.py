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


@pytest.mark.parametrize("packed", [False, True])
def test_the_pairs_of_a_tmx_are_read_in_both_directions(tmp_path, packed):
    path = tmp_path / ("x.tmx.gz" if packed else "x.tmx")
    path.write_bytes(gzip.compress(TMX.encode()) if packed else TMX.encode())
    dropped = Counter()
    source = find_source(str(path), "en", "fr")
    assert list(source.read(dropped)) == [
        ("The dog & cat", "Le chien"),
        ("Two lines", "Deux lignes"),
    ]
    assert dropped == {"language missing": 1}
    assert next(read_units(path, "fr", "en", Counter())) == ("Le chien", "The dog & cat")


def test_the_variant_of_the_region_is_chosen(tmp_path):
    variants = ""
    for code in ("en-GB", "en-US", "en", "zh-CN", "zh-TW"):
        variants += f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>'
    (tmp_path / "x.tmx").write_text(f"<tmx><tu>{variants}</tu></tmx>")
    expected = {"zh_TW": "zh-TW", "zh-tw": "zh-TW", "zh": "zh-CN", "en_GB": "en-GB"}
    for code, segment in expected.items():
        assert list(read_units(tmp_path / "x.tmx", "en", code, Counter())) == [("en", segment)]
    # A region without a variant of its own gets no other region.
    assert not list(read_units(tmp_path / "x.tmx", "en", "zh_HK", Counter()))


def test_a_tmx_with_a_namespace_or_without_a_body_is_read(tmp_path):
    units = "".join(UNIT.format(number) for number in range(3000))
    for text in (
        f'<tmx xmlns="http://www.lisa.org/tmx14"><body>{units}</body></tmx>',
        f"<tmx>{units}</tmx>",
    ):
        (tmp_path / "x.tmx").write_text(text)
        dropped = Counter()
        read = list(read_units(tmp_path / "x.tmx", "en", "fr", dropped))
        assert read == [(f"{number} words", f"{number} mots") for number in range(3000)]
        assert not dropped


@pytest.mark.slow
def test_a_large_tmx_takes_little_memory(tmp_path):
    path = tmp_path / "x.tmx"
    units = "".join(UNIT.format(number) for number in range(10_000))
    path.write_text(f"<tmx><body>{units}</body></tmx>")
    tracemalloc.start()
    assert sum(1 for _ in read_units(path, "en", "fr", Counter())) == 10_000
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


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
    ids=["segment", "header", "comment", "nested", "attributes"],
)
def test_a_tmx_that_would_fill_the_memory_is_refused(tmp_path, content, message):
    (tmp_path / "x.tmx.gz").write_bytes(gzip.compress(content.encode(), 1))
    tracemalloc.start()
    with pytest.raises(InputError, match=message):
        list(read_units(tmp_path / "x.tmx.gz", "en", "fr", Counter()))
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        ("x.tmx", BOMB.encode(), ("defines an entity",)),
        ("x.tmx", TMX[:300].encode(), ("not a TMX file", "line 6")),
        ("x.tmx", b"<tmx><body/></tmx>", ("no translation units",)),
        (
            "x.tmx",
            b'<?xml version="1.0" encoding="Shift_JIS"?><tmx/>',
            ("not a TMX file", "multi-byte"),
        ),
        (
            "x.tmx",
            b'<?xml version="1.0" encoding="nonsense"?><tmx/>',
            ("not a TMX file", "nonsense"),
        ),
        ("x.tmx.gz", gzip.compress(TMX.encode())[:-20], ()),
        (
            "x.tsv",
            b"only one\nagain\n",
            ("x.tsv, line 1", "1 column in 'only one'", "separated by tabs"),
        ),
        (
            "x.tsv",
            "a\tdéjà\n".encode("latin-1"),
            ("x.tsv, line 1", "bytes e9 6a e0 0a at byte 4 are not UTF-8"),
        ),
        ("x.tsv", b"", ("empty file",)),
    ],
)
def test_the_error_of_a_damaged_file_names_it_and_the_problem(tmp_path, name, content, fragments):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(find_source(str(tmp_path / name), "en", "fr").read(Counter()))
    for fragment in (name, *fragments):
        assert fragment in str(caught.value)


def test_carriage_returns_and_byte_order_marks_are_removed(tmp_path):
    (tmp_path / "x.en").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
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


def write_zip(path, **texts):
    with zipfile.ZipFile(path, "w") as packed:
        for name in (
            "__MACOSX/corpus/._train.en",
            "corpus/._train.fr",
            "corpus/.DS_Store",
            "Thumbs.db",
        ):
            packed.writestr(name, b"\0")
        for name, text in texts.items():
            packed.writestr(name.replace("__", "/").replace("_", "."), text)


def test_hidden_files_of_desktop_systems_in_a_zip_are_ignored(tmp_path, capsys):
    write_zip(
        tmp_path / "corpus.zip", corpus__train_en="one\n", corpus__train_fr="un\n", README="a"
    )

    pairs = list(find_source(str(tmp_path / "corpus.zip"), "en", "fr").read(Counter()))

    assert pairs == [("one", "un")]
    assert capsys.readouterr().err == f"{tmp_path}/corpus.zip: not read for en-fr (1): README\n"
    write_zip(tmp_path / "one.tsv.zip", x_tsv="one\tun\n")
    assert list(find_source(f"{tmp_path}/one.tsv.zip", "en", "fr").read(Counter())) == pairs


def test_texts_of_a_zip_that_are_joined_are_named(tmp_path, capsys):
    texts = {
        "corpus__dev_en": "dev",
        "corpus__dev_fr": "dev",
        "corpus__train_en": "train",
        "corpus__train_fr": "train",
    }
    write_zip(tmp_path / "corpus.zip", **texts)

    pairs = list(find_source(str(tmp_path / "corpus.zip"), "en", "fr").read(Counter()))

    assert pairs == [("dev", "dev"), ("train", "train")]
    message = capsys.readouterr().err
    assert "joins 2 texts for en-fr: corpus/dev, corpus/train; " in message
    assert (
        list(find_source(f"{tmp_path}/corpus.zip/corpus/dev", "en", "fr").read(Counter()))
        == pairs[:1]
    )


@pytest.mark.parametrize(
    ("left", "right", "pair"),
    [
        ("x.en", "x.fr", "eng-fra"),
        ("x.eng_Latn", "x.fra_Latn.gz", "en-fr"),
        ("x.en-US.txt", "x.pt-BR.txt.gz", "en-pt_BR"),
        ("x.EN", "x.zh-Hant.TXT", "en-zh_TW"),
        ("x.v2.en", "x.v2.fr", "en-fr"),
    ],
)
@pytest.mark.parametrize("is_zip", [False, True])
def test_aligned_files_are_matched_whatever_the_spelling_of_the_codes(
    tmp_path, left, right, pair, is_zip
):
    name_without_code = left.partition(".e")[0].partition(".E")[0]
    prefix = tmp_path / name_without_code
    write_pair(tmp_path, left, right)
    (tmp_path / "x.de").write_text("nicht\n")
    if is_zip:
        with zipfile.ZipFile(tmp_path / "opus.zip", "w") as packed:
            for name in (left, right, "x.de"):
                packed.write(tmp_path / name, f"deep/{name}")
                (tmp_path / name).unlink()
            packed.writestr("README", "about")
            packed.writestr("x.xml", "<cesAlign/>")
        prefix = tmp_path / "opus.zip"
    source = find_source(str(prefix), *pair.split("-"))
    assert list(source.read(Counter())) == [("one", "un"), ("two", "deux")]
    if is_zip:
        assert [path.name for path in source.files] == ["opus.zip"]
        source = find_source(f"{prefix}/deep/{name_without_code}", *pair.split("-"))
        assert list(source.read(Counter())) == [("one", "un"), ("two", "deux")]
    else:
        assert {path.name for path in source.files} == {left, right}


def test_a_missing_side_is_named_with_the_files_that_exist(tmp_path):
    write_pair(tmp_path, "x.en", "x.pt-PT")
    message = r"x\.pt_BR: no such file .*x\.en, x\.pt-PT.*PREFIX\.en"
    with pytest.raises(InputError, match=message):
        find_source(str(tmp_path / "x"), "en", "pt_BR")
    with pytest.raises(InputError, match=r"x\.en_GB: no such file"):
        find_source(str(tmp_path / "x"), "en", "en_GB")
    with pytest.raises(InputError, match=r"nothing\.en: no such file"):
        find_source(str(tmp_path / "missing" / "nothing"), "en", "fr")
    (tmp_path / "x.docx").write_text("x")
    with pytest.raises(InputError, match=r"x\.docx: .*\.docx.*\.tsv, "):
        find_source(str(tmp_path / "x.docx"), "en", "fr")


def test_a_zip_of_memories_and_tables_is_read_and_others_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("a.tmx", f"<tmx>{UNIT.format(1)}</tmx>")
        packed.writestr("b/c.tsv", "two words\tdeux mots\n")
        packed.writestr("LICENSE", "free")
    assert list(find_source(str(tmp_path / "x.zip"), "en", "fr").read(Counter())) == [
        ("1 words", "1 mots"),
        ("two words", "deux mots"),
    ]
    with pytest.raises(
        InputError,
        match=r"x\.zip/a\.tmx: .*en and de\b.*en, fr",
    ):
        list(find_source(str(tmp_path / "x.zip"), "en", "de").read(Counter()))
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as packed:
        packed.writestr("notes.en", "x")
    with pytest.raises(InputError, match=r"y\.zip: .*en-fr.*'notes\.en'"):
        find_source(str(tmp_path / "y.zip"), "en", "fr")
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
    source = find_source(str(tmp_path / "x.jsonl"), "en", "fr")
    assert list(source.read(dropped)) == [("one", "un"), ("two", "deux")]
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


def test_languages_named_in_a_line_decide_its_direction(tmp_path):
    lines = [
        {"source_lang": "fr", "target_lang": "en", "source": "Un chien", "target": "A dog"},
        {"source_lang": "en", "target_lang": "de", "source": "A dog", "target": "Ein Hund"},
        {"en-US": "", "en-GB": "A cat", "fr": "Un chat"},
        {"en": "A \ud800", "fr": "Un"},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    dropped = Counter()
    source = find_source(str(tmp_path / "x.jsonl"), "en", "fr")
    assert list(source.read(dropped)) == [("A dog", "Un chien"), ("A cat", "Un chat")]
    assert dropped == {"language missing": 1, "not characters": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"en": "a", "de": "b"}', r"x\.jsonl: .*en and fr\b.*de, en"),
        ('{"en": "a", "fr": "b"}\n[1]', r"x\.jsonl, line 2: '\[1\]'"),
        ('{"en": "a", "fr": "b"', r"x\.jsonl, line 1: "),
        ("[" * 100_000, r"x\.jsonl, line 1: "),
        ('{"en": "\\ud800", "fr": "b"}', r"x\.jsonl: "),
        ("", r"x\.jsonl: "),
    ],
)
def test_the_error_of_invalid_json_names_the_line(tmp_path, content, message):
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
