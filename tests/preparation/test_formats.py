"""TMX as translation memories have it, and every way in which files of pairs are spoilt."""

import gzip
import tracemalloc
from collections import Counter

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.memories import read_tmx

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
def _needed():
    pytest.importorskip("defusedxml")


@pytest.mark.parametrize("packed", [False, True])
def test_tmx(tmp_path, packed):
    path = tmp_path / ("x.tmx.gz" if packed else "x.tmx")
    path.write_bytes(gzip.compress(TMX.encode()) if packed else TMX.encode())
    dropped = Counter()
    source = find_source(str(path), "en", "fr")
    assert list(source.read(dropped)) == [("The dog & cat", "Le chien"), ("Two lines", "Deux lignes")]
    assert dropped == {"language missing": 1}
    assert next(read_tmx(path, "fr", "en", Counter())) == ("Le chien", "The dog & cat")


def test_regions_of_tmx(tmp_path):
    codes = ("en-GB", "en-US", "en", "zh-CN", "zh-TW")
    variants = "".join(f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in codes)
    (tmp_path / "x.tmx").write_text(f"<tmx><tu>{variants}</tu></tmx>")
    for wanted, found in (("zh_TW", "zh-TW"), ("zh-tw", "zh-TW"), ("zh", "zh-CN"), ("en_GB", "en-GB")):
        assert list(read_tmx(tmp_path / "x.tmx", "en", wanted, Counter())) == [("en", found)]
    assert not list(read_tmx(tmp_path / "x.tmx", "en", "zh_HK", Counter()))


def test_tmx_with_a_namespace_or_without_a_body(tmp_path):
    units = "".join(UNIT.format(i) for i in range(3000))
    for text in (f'<tmx xmlns="http://www.lisa.org/tmx14"><body>{units}</body></tmx>', f"<tmx>{units}</tmx>"):
        (tmp_path / "x.tmx").write_text(text)
        dropped = Counter()
        read = list(read_tmx(tmp_path / "x.tmx", "en", "fr", dropped))
        assert read == [(f"{i} words", f"{i} mots") for i in range(3000)]
        assert not dropped


def test_a_large_tmx_takes_little_memory(tmp_path):
    path = tmp_path / "x.tmx"
    path.write_text("<tmx><body>" + "".join(UNIT.format(i) for i in range(10_000)) + "</body></tmx>")
    tracemalloc.start()
    assert sum(1 for _ in read_tmx(path, "en", "fr", Counter())) == 10_000
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


ATTRIBUTES = f"""<!DOCTYPE tmx [<!ATTLIST tuv lang CDATA "{"x" * 1_000_000}">]><tmx><tu>{"<tuv/>" * 1000}</tu></tmx>"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"<tmx><tu><tuv><seg>{'word ' * 900_000}", "4,194,304 bytes without the end of a <tu>"),
        (f"<tmx><header>{'<x/>' * 50_000}</header></tmx>", "20,001 elements without the end of a <tu>"),
        (f"<tmx><!--{'x' * 5_000_000}--><tu/></tmx>", "4,194,304 bytes without the end of a <tu>"),
        (f"<tmx>{'<x>' * 1_000_000}", "101 elements without the end of a <tu>, 101 of them nested"),
        (ATTRIBUTES, "it declares attributes"),
    ],
    ids=["segment", "header", "comment", "nested", "attributes"],
)
def test_a_tmx_that_would_fill_the_memory_is_refused(tmp_path, content, message):
    (tmp_path / "x.tmx.gz").write_bytes(gzip.compress(content.encode(), 1))
    tracemalloc.start()
    with pytest.raises(InputError, match=message):
        list(read_tmx(tmp_path / "x.tmx.gz", "en", "fr", Counter()))
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        ("x.tmx", BOMB.encode(), ("defines an entity",)),
        ("x.tmx", TMX[:300].encode(), ("not a TMX file", "line 6")),
        ("x.tmx", b"<tmx><body/></tmx>", ("no translation units",)),
        ("x.tmx", b'<?xml version="1.0" encoding="Shift_JIS"?><tmx/>', ("not a TMX file", "multi-byte")),
        ("x.tmx", b'<?xml version="1.0" encoding="nonsense"?><tmx/>', ("not a TMX file", "nonsense")),
        ("x.tmx.gz", gzip.compress(TMX.encode())[:-20], ("not a whole packed file",)),
        ("x.tsv", b"only one\nagain\n", ("x.tsv, line 1", "1 column in 'only one'", "separated by tabs")),
        ("x.tsv", "a\tdéjà\n".encode("latin-1"), ("x.tsv, line 1", "bytes e9 6a e0 0a at byte 4 are not UTF-8")),
        ("x.tsv", b"", ("empty file",)),
    ],
)
def test_spoilt_files(tmp_path, name, content, fragments):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(find_source(str(tmp_path / name), "en", "fr").read(Counter()))
    for fragment in (name, *fragments):
        assert fragment in str(caught.value)


def test_carriage_returns_and_byte_order_marks_go(tmp_path):
    (tmp_path / "x.en").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (tmp_path / "x.fr").write_bytes(b"un\ndeux\n")
    assert list(find_source(str(tmp_path / "x"), "en", "fr").read(Counter())) == [("one", "un"), ("two", "deux")]
    (tmp_path / "x.tsv").write_text("word " * 20_000 + "\tmot\n")  # of any length: left to the filters
    assert len(list(find_source(str(tmp_path / "x.tsv"), "en", "fr").read(Counter()))) == 1


def test_unequal_files_name_the_line_that_stands_alone(tmp_path):
    (tmp_path / "x.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "x.fr").write_text("un\ndeux\n")
    with pytest.raises(InputError, match=r"3 lines and .*x\.fr has 2; .* line 3 stands alone in .*x\.en: 'three'"):
        list(find_source(str(tmp_path / "x"), "en", "fr").read(Counter()))
