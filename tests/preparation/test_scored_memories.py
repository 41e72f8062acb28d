"""Scores in translation memories and catalogues: everything else of the file stays as it was."""

import io
import math
from collections import Counter

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.memories import read_units
from fairseq_lxsr.preparation.scored_memories import Marking, pairs_by_unit, write_scored

pytest.importorskip("defusedxml")
pytest.importorskip("polib")

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<!-- <tu> of nobody -->
<tmx version='1.4'><header srclang="en"/><body>
  <tu tuid="1"
      changedate='2020'>{first}
    <note>R&amp;D &#233; <![CDATA[</tu>]]></note>
    <tuv xml:lang="en"><seg>One <bpt i="1">&lt;b></bpt>é<ept i="1"/>.</seg></tuv>
    <tuv xml:lang="fr" ><seg>Un.</seg></tuv>
  </tu>
  <tu>{second}<tuv xml:lang="en"><seg>Two</seg></tuv><tuv xml:lang="fr"><seg>Deux</seg></tuv>
    <tuv xml:lang="fr"><seg>Trois</seg></tuv></tu>
  <tu tuid="3"><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
  <tu/>
</body></tmx>
"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:y="y">
<file source-language="en" target-language="fr" original="a"><body><group>
<trans-unit id="1"><source>One</source><target state="final">Un</target>{first}<alt-trans><target>Une</target>
</alt-trans><y:more/></trans-unit>
<trans-unit id="2"><source>Two</source><target>Deux</target>{second}</trans-unit></group>
<trans-unit id="3"><source>new</source></trans-unit>
</body></file></xliff>
"""
XLIFF_2 = """<x:xliff version="2.0" xmlns:x="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="fr">
<x:file id="f">
<x:unit id="1">{first}<x:segment><x:source>One</x:source><x:target>Un</x:target></x:segment></x:unit>
<x:unit id="2"><x:notes>{second}<x:note>by hand</x:note></x:notes><x:originalData/><x:segment><x:source>Two</x:source>
<x:target>Deux</x:target></x:segment></x:unit>
<x:unit id="3"><x:segment><x:source>Three</x:source></x:segment></x:unit>
</x:file></x:xliff>
"""
PO = """# head
msgid ""
msgstr ""
"Language: fr\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

{first}# translator
#: a.c:1
msgid "One é"
msgstr "Un"

{second}msgid "Two"
msgid_plural "Twos"
msgstr[0] "Deux"
msgstr[1] ""
"Trois"

#, fuzzy
msgid "x"
msgstr "y"

#~ msgid "old"
#~ msgstr "vieux"
"""
PROP = '<prop type="x-lxsr-score">{}</prop>'
NOTE_1 = '<note from="lxsr-score">{}</note>'
NOTE_2 = '<x:note category="lxsr-score">{}</x:note>'
COMMENT = "# lxsr-score: {}\n"
# A file, its text, what is written into its first and second unit, and its number of units.
FILES = {
    "a.tmx": (TMX, PROP, PROP, 4),
    "a.xlf": (XLIFF_1, NOTE_1, NOTE_1, 3),
    "b.xliff": (XLIFF_2, f"<x:notes>{NOTE_2}</x:notes>", NOTE_2, 3),
    "fr.po": (PO, COMMENT, COMMENT, 4),
}
NAN = math.nan


def filled(text, first="", second="", encoding="UTF-8"):
    for place, value in (("first", first), ("second", second), ("encoding", encoding)):
        text = text.replace(f"{{{place}}}", value)
    return text


def scored(path, content, scores, **options):
    path.write_bytes(content)
    stream = io.BytesIO()
    write_scored(path, stream, Marking(scores, **options))
    return stream.getvalue()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_scores_are_all_that_changes(name, newline, tmp_path):
    text, first, second, count = FILES[name]
    before = filled(text).replace("\n", newline).encode()
    scores = [0.91236, -0.25, *[NAN] * (count - 2)]
    after = scored(tmp_path / name, before, scores)
    expected = filled(text, first.format("0.9124"), second.format("-0.2500"))
    assert after == expected.replace("\n", newline).encode()
    again = scored(tmp_path / name, after, [0.5, 0.25, *scores[2:]], threshold=0.3, mark=True)
    expected = filled(text, first.format("0.5000"), second.format("0.2500, below 0.3"))
    assert again == expected.replace("\n", newline).encode(), "a second score replaces the first"
    assert scored(tmp_path / name, before, [NAN] * count) == before


@pytest.mark.parametrize("name", FILES)
def test_units_have_the_same_pairs_before_and_after(name, tmp_path):
    text, *_, count = FILES[name]
    path = tmp_path / name
    path.write_text(filled(text))
    units = list(pairs_by_unit(path, "en", "fr", Counter()))
    assert len(units) == count
    assert [bool(pairs) for pairs in units] == [True, True] + [False] * (count - 2)
    path.write_bytes(scored(path, path.read_bytes(), [1, 1, *[NAN] * (count - 2)]))
    assert list(pairs_by_unit(path, "en", "fr", Counter())) == units


@pytest.mark.parametrize("name", FILES)
def test_units_below_the_threshold_are_left_out(name, tmp_path):
    text, *_, count = FILES[name]
    path = tmp_path / name
    before = filled(text)
    path.write_text(before)
    units = list(pairs_by_unit(path, "en", "fr", Counter()))
    after = scored(path, before.encode(), [0.2, 0.3, *[NAN] * (count - 2)], threshold=0.3)
    path.write_bytes(after)
    assert list(pairs_by_unit(path, "en", "fr", Counter())) == units[1:]
    lines = [line for line in after.decode().splitlines() if "lxsr-score" not in line]
    assert set(lines) <= set(before.splitlines())
    assert not any(line and not line.strip() for line in lines), "no indent is left over"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "iso-8859-1"])
def test_the_encoding_stays(encoding, tmp_path):
    declared = {"utf-8-sig": "UTF-8", "utf-16-be": "UTF-16"}.get(encoding, encoding)
    before = filled(TMX, encoding=declared).encode(encoding)
    after = scored(tmp_path / "a.tmx", before, [1, 0.5, NAN, NAN])
    values = (PROP.format("1.0000"), PROP.format("0.5000"))
    assert after == filled(TMX, *values, declared).encode(encoding)
    mark = b"\xef\xbb\xbf"
    after = scored(tmp_path / "fr.po", mark + filled(PO).encode(), [1, 0.5, NAN, NAN])
    assert after.startswith(mark + b"# head")
    text = filled(PO).replace("UTF-8", "latin1").encode("latin-1")
    after = scored(tmp_path / "fr.po", text, [1, 0.5, NAN, NAN])
    assert filled(PO, COMMENT.format("1.0000"), COMMENT.format("0.5000")).replace(
        "UTF-8", "latin1"
    ) == after.decode("latin-1")


def test_a_large_memory_is_copied_in_pieces(tmp_path):
    """Units end at every position of the blocks that are read."""
    units = [
        f'<tu><tuv xml:lang="en"><seg>{"é" * (i % 97)} a</seg></tuv>'
        f'<tuv xml:lang="fr"><seg>b{i}</seg></tuv></tu>\n'
        for i in range(5_000)
    ]
    before = f'<tmx version="1.4"><body>{"".join(units)}</body></tmx>'
    after = scored(tmp_path / "a.tmx", before.encode(), [i / 5_000 for i in range(5_000)])
    unit = '<prop type="x-lxsr-score">0.4000</prop>'
    assert after.decode().count("x-lxsr-score") == 5_000
    assert f"<tu>{unit}{units[2000].removeprefix('<tu>')}" in after.decode()
    path = tmp_path / "a.tmx"
    pairs = list(read_units(path, "en", "fr", Counter()))
    path.write_bytes(after)
    assert list(read_units(path, "en", "fr", Counter())) == pairs


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (filled(TMX).replace("</body>", ""), "mismatched tag"),
        ('<!DOCTYPE tmx [<!ENTITY e "x">]><tmx><tu>&e;</tu></tmx>', "entity e"),
        (filled(TMX).replace("R&amp;D", "R&D"), "cannot be copied"),
        ("<tmx><tu/></tmx>", "1 units; expected 4"),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx><tu/></tmx>', "cannot be copied"),
    ],
)
def test_what_cannot_be_copied_is_refused(content, part, tmp_path):
    with pytest.raises(InputError, match=part):
        scored(tmp_path / "a.tmx", content.encode(), [1, 1, NAN, NAN])
