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


def pairs_and_dropped(path, content, pair=("en", "fr")):
    """Write a file and read it; return its pairs and the counts of dropped units by reason."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    dropped = Counter()
    pairs = list(find_source(str(path), *pair).read(dropped))
    return pairs, dict(dropped)


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        pytest.param(
            'Click <bpt i="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept> now',
            "Click Save now",
            id="begin and end of bold",
        ),
        pytest.param('un<it pos="begin">{b}</it>real', "unreal", id="code in a word"),
        pytest.param('one<ph type="lb"/>two', "one two", id="type line break"),
        pytest.param("one<ph>&lt;br /&gt;</ph>two", "one two", id="HTML line break"),
        pytest.param(
            '<ut>{\\f1 }</ut>see <hi type="b">this</hi> <ph>x<sub>a footnote</sub></ph>line',
            "see this line",
            id="footnote",
        ),
        pytest.param("AT&T &eacute;t&eacute; &#233; &lt;3", "AT&T été é <3", id="entities"),
        pytest.param("<![CDATA[R&D &nbsp; <x>]]>", "R&D &nbsp; <x>", id="CDATA"),
        # A tab of memoQ, and a quote by its code in Windows-1252.
        pytest.param(
            'bold<ph id="2">&lt;mq:ch val=&quot;&#x9;&quot; /&gt;</ph>ok &#146;',
            "bold ok ’",
            id="tab and Windows code",
        ),
    ],
)
def test_mark_up_of_a_segment_is_removed_and_its_text_kept(tmp_path, segment, text):
    assert pairs_and_dropped(tmp_path / "x.tmx", tmx([("en", segment), ("fr", "oui")])) == (
        [(text, "oui")],
        {},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "<f0>Keep</f0> the <a1>lid</a1> closed.", "Keep the lid closed.", id="numbered tags"
        ),
        pytest.param(
            "Two <b>lamps</b> of <a href='x.html'>ours</a>.", "Two lamps of ours.", id="HTML"
        ),
        pytest.param(
            "&lt;i&gt;twice&lt;/i&gt; escaped <!-- hidden -->", "twice escaped", id="escaped twice"
        ),
        pytest.param(
            "<p>One</p><p>two<br>three</p>four<br0/>five",
            "One two three four five",
            id="breaks separate words",
        ),
        pytest.param("H<s0>2</s0>O <f1>open", "H2O open", id="tag in a word, tag not closed"),
        # Text in angle brackets stays.
        pytest.param(
            "Press <Enter> or <Tab> in List<Int32>.",
            "Press <Enter> or <Tab> in List<Int32>.",
            id="names of keys and types",
        ),
        pytest.param(
            "a <b and c> d, I <3 you, <me@x.org>",
            "a <b and c> d, I <3 you, <me@x.org>",
            id="comparisons and addresses",
        ),
    ],
)
@pytest.mark.parametrize("is_cdata", [False, True], ids=["escaped", "CDATA"])
def test_tags_that_are_escaped_in_a_segment_are_removed(tmp_path, text, expected, is_cdata):
    segment = f"<![CDATA[{text}]]>" if is_cdata else escape(text)
    xliff = f"""<xliff version="2.0" srcLang="en" trgLang="fr"><file><unit><segment>
    <source>{segment}</source><target>oui</target></segment></unit></file></xliff>"""

    pairs_of_tmx, _ = pairs_and_dropped(tmp_path / "x.tmx", tmx([("en", segment), ("fr", "oui")]))
    pairs_of_xliff, _ = pairs_and_dropped(tmp_path / "x.xlf", xliff)

    assert pairs_of_tmx == [(expected, "oui")]
    assert pairs_of_xliff == [(expected, "oui")]


# Inline codes that the header of a TMX or of XLIFF 1.2 defines: 5 is a line break, 6 is bold.
DEFINITIONS = """<header><tag-defs><tag id="5"><ph name="br">&lt;br/&gt;</ph></tag>
<tag id="6"><bpt name="cf">&lt;cf bold="True"&gt;</bpt><ept>&lt;/cf&gt;</ept></tag></tag-defs></header>"""
# Inline codes that a unit of XLIFF 2 defines: b is bold, li is an item of a list.
DATA = (
    """<originalData><data id="b">&lt;b&gt;</data><data id="li">&lt;li&gt;</data></originalData>"""
)
EVERY_FORMAT = ("x.tmx", "y.xlf", "z.xlf")


def memories_with_segment(segment):
    """A TMX, an XLIFF 1.2 and an XLIFF 2 with one English segment, translated as `oui`."""
    sides = f"<source>{segment}</source><target>oui</target>"
    return {
        "x.tmx": tmx([("en", segment), ("fr", "oui")]).replace("<body>", f"{DEFINITIONS}<body>"),
        "y.xlf": '<xliff version="1.2"><file source-language="en" target-language="fr">'
        f"{DEFINITIONS}<body><trans-unit>{sides}</trans-unit></body></file></xliff>",
        "z.xlf": '<xliff version="2.0" srcLang="en" trgLang="fr"><file><unit>'
        f"{DATA}<segment>{sides}</segment></unit></file></xliff>",
    }


# In each text, breaks separate the words; other codes, such as bold, are within "twos" or "threes".
@pytest.mark.parametrize(
    ("segment", "text", "names"),
    [
        pytest.param('one<ph type="tab"/>two', "one two", EVERY_FORMAT, id="type tab"),
        pytest.param(
            "one<ph>\\t</ph>two<ut>{\\par }</ut>three<ut>{\\pard }</ut>s",
            "one two threes",
            EVERY_FORMAT,
            id="RTF: tab and paragraph, not its style",
        ),
        pytest.param(
            "one<it pos='end'>&lt;/w:p&gt;</it>two<ph>&lt;w:tab/&gt;</ph>three",
            "one two three",
            EVERY_FORMAT,
            id="Word: paragraph and tab",
        ),
        pytest.param(
            'one<g id="1" ctype="x-li">two</g>three<g ctype="bold">s</g>',
            "one two threes",
            EVERY_FORMAT,
            id="ctype: item, not bold",
        ),
        pytest.param(
            'one<x equiv-text="&lt;br/&gt;"/>two<x ctype="x-html-tab"/>three',
            "one two three",
            EVERY_FORMAT,
            id="equivalent text: line break",
        ),
        pytest.param(
            'one<x id="5"/>two<g id="6">s</g>',
            "one twos",
            ("y.xlf",),
            id="header: line break, not bold",
        ),
        pytest.param(
            'one<pc dataRefStart="li">two</pc>three<ph dataRef="b"/>s',
            "one two threes",
            ("z.xlf",),
            id="unit: item, not bold",
        ),
        pytest.param(
            'one<ph subType="xlf:lb"/>two<cp hex="0009"/>three',
            "one two three",
            EVERY_FORMAT,
            id="subtype line break, tab by its code",
        ),
        pytest.param(
            'one<pc dispStart="&lt;p&gt;">two</pc>three',
            "one two three",
            EVERY_FORMAT,
            id="displayed paragraph",
        ),
    ],
)
def test_inline_codes_that_are_breaks_separate_words(tmp_path, segment, text, names):
    memories = memories_with_segment(segment)
    for name in names:
        pairs, dropped = pairs_and_dropped(tmp_path / name, memories[name])

        assert pairs == [(text, "oui")], name
        assert not dropped
        assert text in list(read_segments(tmp_path / name))


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param([("en", "yes"), ("fr-CA", ""), ("fr-FR", "oui")], id="empty"),
        pytest.param([("en-GB", " "), ("en-US", "yes"), ("fr", "oui")], id="space"),
        pytest.param([("en", "yes"), ("fr", ""), ("fr", "oui")], id="same code"),
        pytest.param([("en", "yes"), ("fr", "&#8203;"), ("fr-BE", "oui")], id="zero-width space"),
    ],
)
def test_a_blank_variant_is_ignored_if_another_has_text(tmp_path, unit):
    assert pairs_and_dropped(tmp_path / "x.tmx", tmx(unit)) == ([("yes", "oui")], {})


def test_each_translation_without_a_region_is_a_pair_and_those_of_a_region_are_counted(tmp_path):
    unit = [("en", "yes"), ("fr", "oui"), ("FR", "si"), ("fr-CA", "ouais"), ("de", "ja")]

    pairs, dropped = pairs_and_dropped(tmp_path / "x.tmx", tmx(unit))
    assert pairs == [("yes", "oui"), ("yes", "si")]
    assert dropped == {"of another region": 1}


def test_a_unit_gives_at_most_100_pairs(tmp_path):
    unit = []
    for code in ("en", "fr"):
        for number in range(40):
            unit.append((code, f"{code} {number}"))

    pairs, dropped = pairs_and_dropped(tmp_path / "x.tmx", tmx(unit))

    # Each of 40 segments could be a pair with each of the other language.
    assert len(pairs) == 100
    assert dropped == {"over 100 translations": 40 * 40 - 100}


@pytest.mark.parametrize(
    ("codes", "pair"),
    [
        pytest.param("eng fra", "en-fr", id="three letters"),
        pytest.param("EN-US FR-FR", "en-fr", id="regions for none"),
        pytest.param("en_GB pt_BR", "en-pt_BR", id="underscores"),
        pytest.param("en pt", "eng-pt_BR", id="no region for one"),
        pytest.param("en zh-Hans-CN", "en-zh", id="usual script"),
        pytest.param("en zh-TW", "en-zho_Hant", id="script of the region"),
        pytest.param("en-US sr-Latn-RS", "en-sr@latin", id="script and region"),
    ],
)
def test_variants_are_recognised_whatever_the_spelling_of_the_code(tmp_path, codes, pair):
    unit = list(zip(codes.split(), ("yes", "oui"), strict=True))
    assert pairs_and_dropped(tmp_path / "x.tmx", tmx(unit), pair.split("-")) == (
        [("yes", "oui")],
        {},
    )


@pytest.mark.parametrize(
    ("codes", "source", "target"),
    [
        pytest.param("en, zh-CN", "en", "zh_TW", id="other script"),
        pytest.param("en, pt-PT", "en", "pt_BR", id="other region"),
        pytest.param("eng, fra", "en", "de", id="other language"),
    ],
)
def test_the_languages_of_a_memory_are_named_if_it_lacks_those_that_are_asked_for(
    tmp_path, codes, source, target
):
    content = tmx([(code, "a") for code in codes.split(", ")])

    with pytest.raises(InputError, match=rf"x\.tmx: .*{source} and {target}\b.*{codes}"):
        pairs_and_dropped(tmp_path / "x.tmx", content, (source, target))


def test_only_20_of_very_many_languages_are_named_and_long_codes_are_cut(tmp_path):
    units = [[(f"q{number}-{'x' * 90}", "a")] for number in range(3000)]

    with pytest.raises(InputError, match=r"2,980 more") as error:
        pairs_and_dropped(tmp_path / "x.tmx", tmx(*units), ("en", "de"))
    assert len(str(error.value)) < 2000


INVALID_CHARACTERS = {
    "code of a control character": "&#x1F;",
    "code 0": "&#0;",
    "code beyond Unicode": "&#xFFFFFFFF;",
    "unknown name": "&unknown;",
    "control character": "\x08",
    "no character": "\ufffe",
    "code of a surrogate": "&#55357;",
}


@pytest.mark.parametrize("name", INVALID_CHARACTERS)
def test_a_unit_with_an_invalid_character_is_dropped_in_every_encoding(tmp_path, name):
    invalid = INVALID_CHARACTERS[name]
    encodings = ["utf-8", "utf-16"]
    # ISO-8859-1 has no U+FFFE.
    if invalid != "\ufffe":
        encodings.append("iso-8859-1")
    valid_unit = [("en", "summer"), ("fr", "été")]
    invalid_unit = [("en", f"bad {invalid}"), ("fr", "x")]
    for encoding in encodings:
        head = f"<?xml version='1.0' encoding='{encoding}'?>"
        content = tmx(valid_unit, invalid_unit, valid_unit, head=head)

        pairs, dropped = pairs_and_dropped(
            tmp_path / "x.tmx", content.encode(encoding, "surrogatepass")
        )

        assert pairs == [("summer", "été")] * 2, encoding
        assert dropped == {"not characters": 1}, encoding


def test_a_unit_with_bytes_of_another_encoding_is_dropped(tmp_path):
    content = tmx([("en", "a"), ("fr", "b")], [("en", "summer"), ("fr", "été")]).encode()
    content = content.replace("été".encode(), "été".encode("latin-1"))

    pairs, dropped = pairs_and_dropped(tmp_path / "x.tmx", content)

    assert pairs == [("a", "b")]
    assert dropped == {"not characters": 1}


def test_entities_are_read_across_the_ends_of_blocks(tmp_path):
    """Expat reads blocks of 64 KiB. Words of 0 to 52 letters put their ends at many places."""
    units = []
    for number in range(3000):
        english = f"{'x' * (number % 53)} &amp; &#233; y"
        units.append([("en", english), ("fr", "&lt;b&gt;")])

    pairs, dropped = pairs_and_dropped(tmp_path / "x.tmx", tmx(*units))

    assert not dropped
    english_without_filling = [english.strip("x ") for english, _ in pairs]
    assert english_without_filling == ["& é y"] * 3000


# An XLIFF 1.2 with PAIRS and four units that are not translated: without target, with an empty one,
# new, and rejected. Its first unit has a proposal too, and its last one two segments.
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


def exchanged(pairs):
    return [(target, source) for source, target in pairs]


# Programs have endings of their own for XLIFF.
@pytest.mark.parametrize("name", ["x.xlf", "x.XLIFF", "x.mqxliff", "x.sdlxliff", "x.xml"])
def test_xliff_1_2_is_read_in_both_directions(tmp_path, name):
    pairs, dropped = pairs_and_dropped(tmp_path / name, XLIFF)
    exchanged_pairs, _ = pairs_and_dropped(tmp_path / name, XLIFF, ("fra", "eng"))

    assert pairs == PAIRS
    assert dropped == {"untranslated": 4}
    assert exchanged_pairs == exchanged(PAIRS)


@pytest.mark.parametrize("name", ["x.xlf", "x.XLIFF", "x.mqxliff", "x.sdlxliff", "x.xml"])
def test_the_languages_of_an_xliff_are_named_if_it_lacks_one_that_is_asked_for(tmp_path, name):
    with pytest.raises(InputError, match=rf"{name}: .*en and de\b.*en-US, fr-FR"):
        pairs_and_dropped(tmp_path / name, XLIFF, ("en", "de"))


@pytest.fixture
def xliff_without_target_language():
    return XLIFF.replace(' target-language="fr-FR"', "")


def test_an_xliff_without_a_target_language_is_read_for_any_language_with_its_source_language(
    tmp_path, xliff_without_target_language
):
    path = tmp_path / "x.xlf"

    pairs, _ = pairs_and_dropped(path, xliff_without_target_language)
    exchanged_pairs, _ = pairs_and_dropped(path, xliff_without_target_language, ("de", "en"))

    assert pairs == PAIRS
    assert exchanged_pairs == exchanged(PAIRS)


def test_an_xliff_without_a_target_language_is_refused_for_two_other_languages(
    tmp_path, xliff_without_target_language
):
    with pytest.raises(InputError, match=r"x\.xlf: .*de and fr\b.*en-US"):
        pairs_and_dropped(tmp_path / "x.xlf", xliff_without_target_language, ("de", "fr"))


def test_the_translated_segments_of_xliff_2_are_read(tmp_path):
    content = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"
    srcLang="en" trgLang="pt-BR"><file id="f">
    <unit id="1"><originalData><data id="d">&lt;br&gt;</data></originalData>
    <segment><source>A <pc id="1">bold</pc> word<ph id="2"/></source>
    <target>Uma palavra <pc id="1">forte</pc></target></segment>
    <ignorable><source> </source></ignorable>
    <segment state="final"><source>Two</source><target>Dois</target></segment>
    <segment><source>No</source></segment></unit>
    </file></xliff>"""
    pairs, dropped = pairs_and_dropped(tmp_path / "x.xlf", content, ("en", "pt_BR"))
    assert pairs == [("A bold word", "Uma palavra forte"), ("Two", "Dois")]
    assert dropped == {"untranslated": 1}


def test_units_of_xliff_1_2_are_left_out_if_the_nearest_translate_attribute_says_no(tmp_path):
    no = " translate='no'"
    yes = " translate='yes'"

    def unit(number, attribute):
        sides = f"<source>A</source><target>B{number}</target>"
        return f"<trans-unit id='{number}'{attribute}>{sides}</trans-unit>"

    group_of_no = f"<group{no}>{unit(1, '')}{unit(2, yes)}</group>"
    before_body = XLIFF.partition("<body>")[0]
    content = f"{before_body}<body>{group_of_no}{unit(3, no)}</body></file></xliff>"

    pairs, dropped = pairs_and_dropped(tmp_path / "x.xlf", content)

    assert pairs == [("A", "B2")]
    assert dropped == {"untranslated": 2}


def test_units_of_xliff_2_are_left_out_if_their_translate_attribute_says_no(tmp_path):
    content = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"
    srcLang="en" trgLang="fr"><file id="f">
    <unit id="1" translate="no"><segment><source>A</source><target>B</target></segment></unit>
    <unit id="2"><segment><source>C</source><target>D</target></segment></unit></file></xliff>"""

    pairs, dropped = pairs_and_dropped(tmp_path / "x.xlf", content)

    assert pairs == [("C", "D")]
    assert dropped == {"untranslated": 1}


def test_an_xliff_that_defines_entities_is_refused(tmp_path):
    """Entities of entities could fill the memory."""
    after_declaration = XLIFF.partition("?>")[2]
    content = f'<!DOCTYPE xliff [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>{after_declaration}'

    with pytest.raises(InputError, match=r"x\.xliff: .*\(a\)"):
        pairs_and_dropped(tmp_path / "x.xliff", content)


def test_the_segments_of_all_languages_of_an_xliff_are_read(tmp_path):
    (tmp_path / "x.xlf").write_text(XLIFF)

    segments = set(read_segments(tmp_path / "x.xlf"))

    for pair in PAIRS:
        assert segments >= set(pair)


def test_the_segments_of_all_languages_of_a_tmx_are_read_alone_or_in_pairs(tmp_path):
    path = tmp_path / "x.tmx"
    path.write_text(tmx([("en", "yes"), ("fr", "oui"), ("de", "ja")]))

    assert list(read_segments(path)) == ["yes", "oui", "ja"]
    assert list(read_memory(path, "de", "en", Counter())) == [("ja", "yes")]


def test_a_cdata_section_is_read_across_the_end_of_a_block(tmp_path):
    """Expat reads blocks of 64 KiB; the reader joins what a block cuts."""
    segment = "R&D &lt; <b> ]] > é &amp;c. <![CDATA[ x"
    start = tmx([("en", "x"), ("fr", "y")]).removesuffix("</body></tmx>")
    unit = tmx([("en", f"<![CDATA[{segment}]]>"), ("fr", "AT&amp;T")]).partition("<body>")[2]
    block_size = 2**16
    # The block ends at each place of the unit, and a few before and after it.
    for end_of_block in range(-12, len(unit) + 13):
        filler = " " * (block_size - len(start) - end_of_block)

        pairs, _ = pairs_and_dropped(tmp_path / "x.tmx", start + filler + unit)

        assert pairs == [("x", "y"), (segment, "AT&T")], end_of_block
