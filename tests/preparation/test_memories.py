"""Translation memories as programs write them: TMX and XLIFF with mark-up, several translations
and damage.
"""

from collections import Counter
from xml.sax.saxutils import escape

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.memories import read_memory, read_segments

pytest.importorskip("defusedxml")


def tmx(*units, head='<?xml version="1.0" encoding="UTF-8"?>'):
    """A TMX of units, each a list of (code, segment)."""
    content = f"{head}<tmx version='1.4'><body>"
    for unit in units:
        variants = [f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit]
        content += f"<tu>{''.join(variants)}</tu>"
    return f"{content}</body></tmx>"


def read(path, content, pair=("en", "fr")):
    """Write a file and read it; return its pairs and the counts of dropped units by reason."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    dropped = Counter()
    pairs = list(find_source(str(path), *pair).read(dropped))
    return pairs, dict(dropped)


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ('Click <bpt i="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept> now', "Click Save now"),
        ('un<it pos="begin">{b}</it>real', "unreal"),
        ('one<ph type="lb"/>two', "one two"),
        ("one<ph>&lt;br /&gt;</ph>two", "one two"),
        (
            '<ut>{\\f1 }</ut>see <hi type="b">this</hi> <ph>x<sub>a footnote</sub></ph>line',
            "see this line",
        ),
        ("AT&T &eacute;t&eacute; &#233; &lt;3", "AT&T été é <3"),
        ("<![CDATA[R&D &nbsp; <x>]]>", "R&D &nbsp; <x>"),
        ('bold<ph id="2">&lt;mq:ch val=&quot;&#x9;&quot; /&gt;</ph>ok &#146;', "bold ok ’"),
    ],
)
def test_mark_up_of_a_segment_is_removed_and_its_text_kept(tmp_path, segment, text):
    assert read(tmp_path / "x.tmx", tmx([("en", segment), ("fr", "oui")])) == ([(text, "oui")], {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<f0>Keep</f0> the <a1>lid</a1> closed.", "Keep the lid closed."),
        ("Two <b>lamps</b> of <a href='x.html'>ours</a>.", "Two lamps of ours."),
        ("&lt;i&gt;twice&lt;/i&gt; escaped <!-- hidden -->", "twice escaped"),
        ("<p>One</p><p>two<br>three</p>four<br0/>five", "One two three four five"),
        ("H<s0>2</s0>O <f1>open", "H2O open"),
        # Text in angle brackets.
        ("Press <Enter> or <Tab> in List<Int32>.", "Press <Enter> or <Tab> in List<Int32>."),
        ("a <b and c> d, I <3 you, <me@x.org>", "a <b and c> d, I <3 you, <me@x.org>"),
    ],
)
def test_escaped_tags_are_removed(tmp_path, text, expected):
    for segment in (escape(text), f"<![CDATA[{text}]]>"):
        content = tmx([("en", segment), ("fr", "oui")])
        assert read(tmp_path / "x.tmx", content) == ([(expected, "oui")], {})
        content = f"""<xliff version="2.0" srcLang="en" trgLang="fr"><file><unit><segment>
        <source>{segment}</source><target>oui</target></segment></unit></file></xliff>"""
        assert read(tmp_path / "x.xlf", content) == ([(expected, "oui")], {})


DEFINITIONS = """<header><tag-defs><tag id="5"><ph name="br">&lt;br/&gt;</ph></tag>
<tag id="6"><bpt name="cf">&lt;cf bold="True"&gt;</bpt><ept>&lt;/cf&gt;</ept></tag></tag-defs></header>"""
DATA = (
    """<originalData><data id="b">&lt;b&gt;</data><data id="li">&lt;li&gt;</data></originalData>"""
)


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ('one<ph type="tab"/>two', "one two"),
        ("one<ph>\\t</ph>two<ut>{\\par }</ut>three<ut>{\\pard }</ut>s", "one two threes"),
        ("one<it pos='end'>&lt;/w:p&gt;</it>two<ph>&lt;w:tab/&gt;</ph>three", "one two three"),
        ('one<g id="1" ctype="x-li">two</g>three<g ctype="bold">s</g>', "one two threes"),
        ('one<x equiv-text="&lt;br/&gt;"/>two<x ctype="x-html-tab"/>three', "one two three"),
        # Contents that the header or the unit defines.
        ('one<x id="5"/>two<g id="6">s</g>', "one twos"),
        ('one<pc dataRefStart="li">two</pc>three<ph dataRef="b"/>s', "one two threes"),
        ('one<ph subType="xlf:lb"/>two<cp hex="0009"/>three', "one two three"),
        ('one<pc dispStart="&lt;p&gt;">two</pc>three', "one two three"),
    ],
)
def test_inline_codes_that_are_breaks_separate_words(tmp_path, segment, text):
    sides = f"<source>{segment}</source><target>oui</target>"
    files = {
        "x.tmx": tmx([("en", segment), ("fr", "oui")]).replace("<body>", f"{DEFINITIONS}<body>"),
        "y.xlf": '<xliff version="1.2"><file source-language="en" target-language="fr">'
        f"{DEFINITIONS}<body><trans-unit>{sides}</trans-unit></body></file></xliff>",
        "z.xlf": '<xliff version="2.0" srcLang="en" trgLang="fr"><file><unit>'
        f"{DATA}<segment>{sides}</segment></unit></file></xliff>",
    }
    if "dataRef" in segment:
        del files["x.tmx"], files["y.xlf"]
    elif 'id="5"' in segment:
        del files["x.tmx"], files["z.xlf"]
    for name, content in files.items():
        assert read(tmp_path / name, content) == ([(text, "oui")], {})
        assert text in list(read_segments(tmp_path / name))


@pytest.mark.parametrize(
    "unit",
    [
        [("en", "yes"), ("fr-CA", ""), ("fr-FR", "oui")],
        [("en-GB", " "), ("en-US", "yes"), ("fr", "oui")],
        [("en", "yes"), ("fr", ""), ("fr", "oui")],
        [("en", "yes"), ("fr", "&#8203;"), ("fr-BE", "oui")],
    ],
)
def test_a_blank_variant_is_ignored_if_another_has_text(tmp_path, unit):
    assert read(tmp_path / "x.tmx", tmx(unit)) == ([("yes", "oui")], {})


def test_each_translation_of_a_sentence_is_a_pair(tmp_path):
    unit = [("en", "yes"), ("fr", "oui"), ("FR", "si"), ("fr-CA", "ouais"), ("de", "ja")]
    pairs, dropped = read(tmp_path / "x.tmx", tmx(unit))
    assert pairs == [("yes", "oui"), ("yes", "si")]
    assert dropped == {"of another region": 1}


def test_a_unit_gives_at_most_100_pairs(tmp_path):
    unit = []
    for code in ("en", "fr"):
        for number in range(40):
            unit.append((code, f"{code} {number}"))
    pairs, dropped = read(tmp_path / "x.tmx", tmx(unit))
    assert len(pairs) == 100
    assert dropped == {"over 100 translations": 1500}


@pytest.mark.parametrize(
    ("codes", "pair"),
    [
        ("eng fra", "en-fr"),
        ("EN-US FR-FR", "en-fr"),
        ("en_GB pt_BR", "en-pt_BR"),
        ("en pt", "eng-pt_BR"),
        ("en zh-Hans-CN", "en-zh"),
        ("en zh-TW", "en-zho_Hant"),
        ("en-US sr-Latn-RS", "en-sr@latin"),
    ],
)
def test_variants_are_recognised_whatever_the_spelling_of_the_code(tmp_path, codes, pair):
    unit = list(zip(codes.split(), ("yes", "oui"), strict=True))
    assert read(tmp_path / "x.tmx", tmx(unit), pair.split("-")) == ([("yes", "oui")], {})


@pytest.mark.parametrize(
    ("codes", "source", "target"),
    [("en, zh-CN", "en", "zh_TW"), ("en, pt-PT", "en", "pt_BR"), ("eng, fra", "en", "de")],
)
def test_the_languages_of_a_memory_are_named_if_others_are_asked_for(
    tmp_path, codes, source, target
):
    content = tmx([(code, "a") for code in codes.split(", ")])
    with pytest.raises(InputError, match=rf"x\.tmx: .*{source} and {target}\b.*{codes}"):
        read(tmp_path / "x.tmx", content, (source, target))


def test_only_some_of_very_many_languages_are_named(tmp_path):
    units = [[(f"q{number}-{'x' * 90}", "a")] for number in range(3000)]
    with pytest.raises(InputError, match=r"2,980 more") as error:
        read(tmp_path / "x.tmx", tmx(*units), ("en", "de"))
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    "invalid", ["&#x1F;", "&#0;", "&#xFFFFFFFF;", "&unknown;", "\x08", "\ufffe", "&#55357;"]
)
def test_a_unit_with_an_invalid_character_is_dropped(tmp_path, invalid):
    encodings = ["utf-8", "utf-16"]
    # ISO-8859-1 has no U+FFFE.
    if invalid != "\ufffe":
        encodings.append("iso-8859-1")
    valid_unit = [("en", "summer"), ("fr", "été")]
    invalid_unit = [("en", f"bad {invalid}"), ("fr", "x")]
    for encoding in encodings:
        head = f"<?xml version='1.0' encoding='{encoding}'?>"
        content = tmx(valid_unit, invalid_unit, valid_unit, head=head)
        pairs, dropped = read(tmp_path / "x.tmx", content.encode(encoding, "surrogatepass"))
        assert pairs == [("summer", "été")] * 2, encoding
        assert dropped == {"not characters": 1}, encoding


def test_a_unit_with_bytes_of_another_encoding_is_dropped(tmp_path):
    content = tmx([("en", "a"), ("fr", "b")], [("en", "summer"), ("fr", "E")]).encode()
    content = content.replace(b"E<", b"\xe9t\xe9<")
    assert read(tmp_path / "x.tmx", content) == ([("a", "b")], {"not characters": 1})


def test_references_are_read_across_the_ends_of_blocks(tmp_path):
    units = []
    for number in range(3000):
        english = f"{'x' * (number % 53)} &amp; &#233; y"
        units.append([("en", english), ("fr", "&lt;b&gt;")])
    pairs, dropped = read(tmp_path / "x.tmx", tmx(*units))
    assert not dropped
    assert [english.strip("x ") for english, _ in pairs] == ["& é y"] * 3000


XLIFF = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:mq="MQXliff">
<file original="a" source-language="en-US" target-language="fr-FR" datatype="x"><header><note>no</note></header>
<body><group><trans-unit id="1"><source>Press <g id="1">OK</g><x id="2" ctype="lb"/>twice</source>
<target>Deux fois</target>
<alt-trans><source>Press</source><target>Appuyez</target></alt-trans></trans-unit></group>
<trans-unit id="2"><source>none</source></trans-unit><trans-unit id="3"><source>empty</source><target/></trans-unit>
<trans-unit id="4"><source>new</source><target state="new">new</target></trans-unit>
<trans-unit id="5" mq:status="Rejected"><source>bad</source><target>mauvais</target></trans-unit>
<trans-unit id="new" mq:status="ManuallyConfirmed"><source><bpt id="1">{}</bpt>Bold<ept id="1">{}</ept></source>
<target><bpt id="1">{}</bpt>Gras<ept id="1">{}</ept></target></trans-unit>
<trans-unit id="6"><source>One. Two.</source>
<seg-source><mrk mtype="seg" mid="1">One.</mrk> <mrk mtype="seg" mid="2">Two.</mrk></seg-source>
<target><mrk mtype="seg" mid="1">Un.</mrk> <mrk mtype="seg" mid="2">Deux.</mrk></target></trans-unit>
</body></file></xliff>"""
PAIRS = [("Press OK twice", "Deux fois"), ("Bold", "Gras"), ("One.", "Un."), ("Two.", "Deux.")]


def test_xliff_1_2_is_read_in_both_directions(tmp_path):
    """Under any of its endings."""
    french_english = [(french, english) for english, french in PAIRS]
    for name in ("x.xlf", "x.XLIFF", "x.mqxliff", "x.sdlxliff", "x.xml"):
        assert read(tmp_path / name, XLIFF) == (PAIRS, {"untranslated": 4}), name
        assert read(tmp_path / name, XLIFF, ("fra", "eng"))[0] == french_english, name
        with pytest.raises(InputError, match=rf"{name}: .*en and de\b.*en-US, fr-FR"):
            read(tmp_path / name, XLIFF, ("en", "de"))


def test_an_xliff_without_a_target_language_is_read(tmp_path):
    content = XLIFF.replace(' target-language="fr-FR"', "")
    assert read(tmp_path / "x.xlf", content)[0] == PAIRS
    swapped = [(target, source) for source, target in PAIRS]
    assert read(tmp_path / "x.xlf", content, ("de", "en"))[0] == swapped
    with pytest.raises(InputError, match=r"x\.xlf: .*de and fr\b.*en-US"):
        read(tmp_path / "x.xlf", content, ("de", "fr"))


def test_xliff_2_is_read(tmp_path):
    content = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"
    srcLang="en" trgLang="pt-BR"><file id="f">
    <unit id="1"><originalData><data id="d">&lt;br&gt;</data></originalData>
    <segment><source>A <pc id="1">bold</pc> word<ph id="2"/></source>
    <target>Uma palavra <pc id="1">forte</pc></target></segment>
    <ignorable><source> </source></ignorable>
    <segment state="final"><source>Two</source><target>Dois</target></segment>
    <segment><source>No</source></segment></unit>
    </file></xliff>"""
    pairs, dropped = read(tmp_path / "x.xlf", content, ("en", "pt_BR"))
    assert pairs == [("A bold word", "Uma palavra forte"), ("Two", "Dois")]
    assert dropped == {"untranslated": 1}


def test_the_nearest_translate_attribute_of_xliff_decides(tmp_path):
    unit = "<trans-unit id='{0}'{1}><source>A</source><target>B{0}</target></trans-unit>"
    no = " translate='no'"
    yes = " translate='yes'"
    group = f"<group{no}>{unit.format(1, '')}{unit.format(2, yes)}</group>"
    content = XLIFF.partition("<body>")[0]
    content += f"<body>{group}{unit.format(3, no)}</body></file></xliff>"
    assert read(tmp_path / "x.xlf", content) == ([("A", "B2")], {"untranslated": 2})
    content = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"
    srcLang="en" trgLang="fr"><file id="f">
    <unit id="1" translate="no"><segment><source>A</source><target>B</target></segment></unit>
    <unit id="2"><segment><source>C</source><target>D</target></segment></unit></file></xliff>"""
    assert read(tmp_path / "x.xlf", content) == ([("C", "D")], {"untranslated": 1})


def test_an_xliff_that_defines_entities_is_refused(tmp_path):
    content = '<!DOCTYPE xliff [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + XLIFF.partition("?>")[2]
    with pytest.raises(InputError, match=r"x\.xliff: .*\(a\)"):
        read(tmp_path / "x.xliff", content)


def test_the_sentences_of_all_languages_are_read(tmp_path):
    (tmp_path / "x.xlf").write_text(XLIFF)
    segments = list(read_segments(tmp_path / "x.xlf"))
    for pair in PAIRS:
        assert set(pair) <= set(segments)
    (tmp_path / "x.tmx").write_text(tmx([("en", "yes"), ("fr", "oui"), ("de", "ja")]))
    assert list(read_segments(tmp_path / "x.tmx")) == ["yes", "oui", "ja"]
    assert list(read_memory(tmp_path / "x.tmx", "de", "en", Counter())) == [("ja", "yes")]


def test_a_cdata_section_is_read_across_the_end_of_a_block(tmp_path):
    """Expat reads blocks of 64 KiB; the reader joins what a block cuts."""
    segment = "R&D &lt; <b> ]] > é &amp;c. <![CDATA[ x"
    start = tmx([("en", "x"), ("fr", "y")]).removesuffix("</body></tmx>")
    unit = tmx([("en", f"<![CDATA[{segment}]]>"), ("fr", "AT&amp;T")]).partition("<body>")[2]
    for end_of_block in range(-12, len(unit) + 13):
        filler = " " * (2**16 - len(start) - end_of_block)
        pairs, _ = read(tmp_path / "x.tmx", start + filler + unit)
        assert pairs == [("x", "y"), (segment, "AT&T")], end_of_block
