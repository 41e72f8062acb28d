"""Scores are written into translation memories and catalogues without any other change."""

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
# By file name: the text, what is written into its first and second unit, and the number of units.
FILES = {
    "a.tmx": (TMX, PROP, PROP, 4),
    "a.xlf": (XLIFF_1, NOTE_1, NOTE_1, 3),
    "b.xliff": (XLIFF_2, f"<x:notes>{NOTE_2}</x:notes>", NOTE_2, 3),
    "fr.po": (PO, COMMENT, COMMENT, 4),
}
NAN = math.nan


def fill(text, first="", second="", encoding="UTF-8"):
    """Replace the places in the text; the text has braces of its own, too."""
    text = text.replace("{first}", first)
    text = text.replace("{second}", second)
    return text.replace("{encoding}", encoding)


def write_scores(path, content, scores, **options):
    path.write_bytes(content)
    stream = io.BytesIO()
    write_scored(path, stream, Marking(scores, **options))
    return stream.getvalue()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_the_scores_are_added_or_replaced(name, newline, tmp_path):
    text, first, second, count = FILES[name]
    before = fill(text).replace("\n", newline).encode()
    no_scores = [NAN] * (count - 2)

    after = write_scores(tmp_path / name, before, [0.91236, -0.25, *no_scores])
    expected = fill(text, first.format("0.9124"), second.format("-0.2500"))
    assert after == expected.replace("\n", newline).encode()

    scores = [0.5, 0.25, *no_scores]
    replaced = write_scores(tmp_path / name, after, scores, threshold=0.3, mark=True)
    expected = fill(text, first.format("0.5000"), second.format("0.2500, below 0.3"))
    assert replaced == expected.replace("\n", newline).encode()

    assert write_scores(tmp_path / name, before, [NAN] * count) == before


@pytest.mark.parametrize("name", FILES)
def test_units_with_scores_have_the_same_pairs_as_before(name, tmp_path):
    text, *_, count = FILES[name]
    path = tmp_path / name
    path.write_text(fill(text))
    units = list(pairs_by_unit(path, "en", "fr", Counter()))
    assert len(units) == count
    assert [bool(pairs) for pairs in units] == [True, True] + [False] * (count - 2)
    path.write_bytes(write_scores(path, path.read_bytes(), [1, 1, *[NAN] * (count - 2)]))
    assert list(pairs_by_unit(path, "en", "fr", Counter())) == units


@pytest.mark.parametrize("name", FILES)
def test_units_below_the_threshold_are_left_out(name, tmp_path):
    text, *_, count = FILES[name]
    path = tmp_path / name
    before = fill(text)
    path.write_text(before)
    units = list(pairs_by_unit(path, "en", "fr", Counter()))
    after = write_scores(path, before.encode(), [0.2, 0.3, *[NAN] * (count - 2)], threshold=0.3)
    path.write_bytes(after)
    assert list(pairs_by_unit(path, "en", "fr", Counter())) == units[1:]
    lines = [line for line in after.decode().splitlines() if "lxsr-score" not in line]
    assert set(lines) <= set(before.splitlines())
    # No line of spaces is left where a unit was.
    assert not any(line and not line.strip() for line in lines)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "iso-8859-1"])
def test_the_encoding_of_the_file_is_kept(encoding, tmp_path):
    declared = {"utf-8-sig": "UTF-8", "utf-16-be": "UTF-16"}.get(encoding, encoding)
    before = fill(TMX, encoding=declared).encode(encoding)
    after = write_scores(tmp_path / "a.tmx", before, [1, 0.5, NAN, NAN])
    values = (PROP.format("1.0000"), PROP.format("0.5000"))
    assert after == fill(TMX, *values, declared).encode(encoding)
    mark = b"\xef\xbb\xbf"
    after = write_scores(tmp_path / "fr.po", mark + fill(PO).encode(), [1, 0.5, NAN, NAN])
    assert after.startswith(mark + b"# head")
    text = PO.replace("UTF-8", "latin1")
    after = write_scores(tmp_path / "fr.po", fill(text).encode("latin-1"), [1, 0.5, NAN, NAN])
    expected = fill(text, COMMENT.format("1.0000"), COMMENT.format("0.5000"))
    assert after.decode("latin-1") == expected


def test_a_large_memory_is_copied_in_blocks(tmp_path):
    """Units end at every position of a block."""
    units = []
    scores = []
    for number in range(5_000):
        english = "é" * (number % 97) + " a"
        units.append(
            f'<tu><tuv xml:lang="en"><seg>{english}</seg></tuv>'
            f'<tuv xml:lang="fr"><seg>b{number}</seg></tuv></tu>\n'
        )
        scores.append(number / 5_000)
    path = tmp_path / "a.tmx"
    before = f'<tmx version="1.4"><body>{"".join(units)}</body></tmx>'

    after = write_scores(path, before.encode(), scores)

    assert after.decode().count("x-lxsr-score") == 5_000
    score = '<prop type="x-lxsr-score">0.4000</prop>'
    assert f"<tu>{score}{units[2000].removeprefix('<tu>')}" in after.decode()
    pairs = list(read_units(path, "en", "fr", Counter()))
    path.write_bytes(after)
    assert list(read_units(path, "en", "fr", Counter())) == pairs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (fill(TMX).replace("</body>", ""), "mismatched tag"),
        ('<!DOCTYPE tmx [<!ENTITY e "x">]><tmx><tu>&e;</tu></tmx>', "entity e"),
        (fill(TMX).replace("R&amp;D", "R&D"), "cannot be copied"),
        ("<tmx><tu/></tmx>", "1 units; expected 4"),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx><tu/></tmx>', "cannot be copied"),
    ],
)
def test_a_memory_that_cannot_be_copied_is_refused(content, message, tmp_path):
    with pytest.raises(InputError, match=message):
        write_scores(tmp_path / "a.tmx", content.encode(), [1, 1, NAN, NAN])
