import sys

import pytest

from fairseq_lxsr.encoder.locate import MODELS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text import tokenizer as tokenizer_module
from fairseq_lxsr.text.tokenizer import (
    _BLANKS,
    SPECIAL,
    TEXT_VERSION,
    TextOptions,
    Tokenizer,
    is_punctuation,
    normalise,
    normalise_all,
    read_dictionary,
)


def test_normalisation():
    blanks = "  Two\tblanks \u00a0 here\u2028"
    for text, expected in (
        (blanks, "Two blanks here"),
        ("a\x00b\x1fc\u200bd", "a b c d"),
        ("", ""),
        (" \n ", ""),
    ):
        assert normalise(text, TextOptions()) == expected
    assert normalise("Ein GROSSER Hund", TextOptions(lowercase=True)) == "ein grosser hund"
    assert normalise("Ein GROSSER Hund", TextOptions(lowercase=False)) == "Ein GROSSER Hund"


@pytest.mark.parametrize(
    ("last", "least"), [(0x33FF, 100), pytest.param(sys.maxunicode, 4000, marks=pytest.mark.slow)]
)
def test_texts_together_are_read_as_alone(last, least):
    """What the two versions read differently is looked for; a lone surrogate stops nothing."""
    newer, older = TextOptions(True, version=TEXT_VERSION), TextOptions(True)
    texts = [f"É{chr(code)}A" for code in (*range(last + 1), 0xD800)]
    alone = [normalise(text, newer) for text in texts]
    differing = [
        text for text, read in zip(texts, alone, strict=True) if read != normalise(text, older)
    ]
    assert len(differing) > least
    for text in differing:
        assert normalise_all([text], newer) == [normalise(text, newer)], ascii(text)
    assert normalise_all(texts, newer) == alone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("كَتَبَ الطّالِبُ", "كتب الطالب"),
        ("قـــال", "قال"),
        ("رَحْمٰن", "رحمن"),
        ("ذهابًا", "ذهابا"),
        ("أُمّة", "أمة"),  # hamza and madda stay, as letters and as marks
        ("قُرآن", "قرآن"),
        ("\u0627\u0655 \u0627\u0653", "\u0627\u0655 \u0627\u0653"),
        ("می\u200cرود", "می\u200cرود"),
        ("\ufe76\ufc60ب", "ب"),
        ("شكراﴽ ذﱛ رﱜ ىﱝ ىﲐ ـﳙ", "شكراا ذذ رر ىى ىى \u0647"),
        ("שָׁלוֹם e\u0301", "שָׁלוֹם e\u0301"),
    ],
)
def test_arabic_without_vowel_marks_unless_the_data_is_plain(text, expected):
    assert normalise(text, TextOptions(version=3)) == expected
    assert normalise_all([text], TextOptions(version=3)) == [expected]
    assert normalise(text, TextOptions()) == text


@pytest.mark.parametrize("version", [2, 5, 0])
def test_other_versions_are_refused_in_one_line(version):
    with pytest.raises(InputError, match=r"^text version .* is not supported; expected 4: .*$"):
        TextOptions(version=version)


def test_every_blank_is_looked_for():
    blanks = "".join(_BLANKS.findall("".join(map(chr, range(sys.maxunicode + 1))))).replace(" ", "")
    assert len(blanks) > 2000  # with surrogates
    assert [blank for blank in blanks if blank.isprintable()] == []


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("▁,", True),
        ("...", True),
        ("▁", True),
        ("▁a", False),
        ("七", False),
        ("3", False),
        ("é", False),
        ("▁_", True),
    ],
)
def test_punctuation(piece, expected):
    assert is_punctuation(piece) is expected


@pytest.mark.parametrize(
    "text", ["<s> <pad> </s> <unk> <mask>", "日本語 text", "\ud800 lone surrogate", "a" * 5000]
)
def test_any_text_becomes_ids_of_the_dictionary(toy_model, text):
    symbols = read_dictionary(toy_model / "dict.txt")
    tokenizer = Tokenizer(toy_model / "sentencepiece.model", TextOptions(), symbols)
    ids = tokenizer.encode([text.encode("utf-8", "replace").decode()])[0]
    assert len(ids) > 0
    assert ids.max() < len(symbols)
    assert not set(ids.tolist()) & {0, 1, 2}  # never <s>, <pad>, </s>


@pytest.mark.parametrize(
    ("content", "fragment"),
    [("a 1\nb\n", "line 2"), ("a 1\nb 1\na 1\n", "'a'"), ("a x\n", "line 1")],
)
def test_bad_dictionary_is_refused(tmp_path, content, fragment):
    (tmp_path / "dict.txt").write_text(content)
    with pytest.raises(InputError, match=fragment):
        read_dictionary(tmp_path / "dict.txt")


def test_dictionary_is_read_as_a_whole_and_line_by_line(tmp_path):
    """Both ways give the same symbols; only lines with one blank are read as a whole."""
    plain = "▁the 12\né 1\n\u00a0 -3\n\u2028 1\n<x> 999999999999999999\n"
    expected = ["▁the", "é", "\u00a0", "\u2028", "<x>"]
    for number, content in enumerate([plain, plain.rstrip("\n"), plain.replace("\n", "\r\n")]):
        path = tmp_path / f"{number}.txt"
        path.write_text(content, encoding="utf-8", newline="")
        assert read_dictionary(path) == [*SPECIAL, *expected]
    blanks = tmp_path / "blanks.txt"
    blanks.write_text("a b 1\nc 1 #fairseq:overwrite\n\ufeff 1\n", encoding="utf-8")
    assert read_dictionary(blanks) == [*SPECIAL, "a b", "c", "\ufeff"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a 1 2\n5\n", 2),
        (b"a 1\nb 1\0\n", 2),
        (b"a 1\n\xff 1\n", 2),
        (b"a 1\nb 1234567890123456789\n", 2),
        (b"a 1\nb\n", 2),
        (b"a 1\n\n", 2),
    ],
)
def test_the_invalid_line_of_a_dictionary_is_named(tmp_path, content, line):
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(InputError, match=f"line {line}"):
        read_dictionary(tmp_path / "dict.txt")


def test_a_byte_order_mark_is_no_part_of_a_dictionary(tmp_path):
    (tmp_path / "dict.txt").write_bytes(b"\xef\xbb\xbfa 1\n")
    assert read_dictionary(tmp_path / "dict.txt") == [*SPECIAL, "a"]


def test_no_loop_over_the_dictionary_of_the_packaged_model(monkeypatch):
    """Reading line by line would take most of the time to the first vector."""
    monkeypatch.setattr(tokenizer_module, "read_lines", None)
    symbols = read_dictionary(MODELS / "lxsr-static" / "dict.txt")
    monkeypatch.undo()
    lines = read_lines(MODELS / "lxsr-static" / "dict.txt")
    assert symbols == [*SPECIAL, *(line.rsplit(" ", 1)[0] for line in lines)]


def test_a_dictionary_in_the_order_of_the_pieces_is_compared_without_a_search(toy_model):
    symbols = read_dictionary(toy_model / "dict.txt")
    pieces = Tokenizer(toy_model / "sentencepiece.model", TextOptions(), symbols).all_pieces()
    quick = tokenizer_module._ids_in_order(symbols, pieces)
    assert quick.tolist() == tokenizer_module._ids_in_any_order(symbols, pieces).tolist()
    swapped = [*symbols[:-2], symbols[-1], symbols[-2]]
    assert tokenizer_module._ids_in_order(swapped, pieces) is None
    assert tokenizer_module._ids_in_order([*symbols, *symbols], pieces) is None
    slow = Tokenizer(toy_model / "sentencepiece.model", TextOptions(), swapped).piece_ids
    assert slow.tolist()[-2:] == [len(symbols) - 1, len(symbols) - 2]
