"""Normalization of text, dictionaries, and ids of word pieces."""

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


def test_blanks_become_single_spaces():
    options = TextOptions()
    assert normalise("  Two\tblanks \u00a0 here\u2028", options) == "Two blanks here"
    assert normalise("a\x00b\x1fc\u200bd", options) == "a b c d"
    assert normalise("", options) == ""
    assert normalise(" \n ", options) == ""


def test_letters_become_lower_case_only_with_the_option():
    assert normalise("Ein GROSSER Hund", TextOptions(lowercase=True)) == "ein grosser hund"
    assert normalise("Ein GROSSER Hund", TextOptions(lowercase=False)) == "Ein GROSSER Hund"


@pytest.mark.parametrize(
    ("last_code", "min_count"),
    [(0x33FF, 100), pytest.param(sys.maxunicode, 4000, marks=pytest.mark.slow)],
)
def test_texts_are_normalised_together_as_separately(last_code, min_count):
    options = TextOptions(True, version=TEXT_VERSION)
    first_version = TextOptions(True)
    # The last code is a lone surrogate.
    texts = [f"É{chr(code)}A" for code in (*range(last_code + 1), 0xD800)]
    expected = [normalise(text, options) for text in texts]
    assert normalise_all(texts, options) == expected
    # Texts that the first version reads differently need steps of their own.
    num_different = 0
    for text, normalised in zip(texts, expected, strict=True):
        if normalised != normalise(text, first_version):
            num_different += 1
            assert normalise_all([text], options) == [normalised], ascii(text)
    assert num_different > min_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("كَتَبَ الطّالِبُ", "كتب الطالب"),
        ("قـــال", "قال"),
        ("رَحْمٰن", "رحمن"),
        ("ذهابًا", "ذهابا"),
        # Hamza and madda stay, as letters and as marks.
        ("أُمّة", "أمة"),
        ("قُرآن", "قرآن"),
        ("\u0627\u0655 \u0627\u0653", "\u0627\u0655 \u0627\u0653"),
        ("می\u200cرود", "می\u200cرود"),
        ("\ufe76\ufc60ب", "ب"),
        ("شكراﴽ ذﱛ رﱜ ىﱝ ىﲐ ـﳙ", "شكراا ذذ رر ىى ىى \u0647"),
        ("שָׁלוֹם e\u0301", "שָׁלוֹם e\u0301"),
    ],
)
def test_the_version_of_new_folders_removes_arabic_vowel_marks(text, expected):
    assert normalise(text, TextOptions(version=TEXT_VERSION)) == expected
    assert normalise_all([text], TextOptions(version=TEXT_VERSION)) == [expected]
    assert normalise(text, TextOptions()) == text


def test_unknown_versions_are_refused_in_one_line():
    for version in (2, 5, 0):
        with pytest.raises(InputError, match=r"^text version .* is not supported; expected 4: .*$"):
            TextOptions(version=version)


def test_no_printable_character_but_the_space_is_a_blank():
    characters = "".join(chr(code) for code in range(sys.maxunicode + 1))
    blanks = set("".join(_BLANKS.findall(characters))) - {" "}
    # Surrogates are blanks.
    assert len(blanks) > 2000
    for blank in blanks:
        assert not blank.isprintable()


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
def test_pieces_without_letters_and_digits_are_punctuation(piece, expected):
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
    ids_of_special_symbols = {0, 1, 2}
    assert not set(ids.tolist()) & ids_of_special_symbols


def test_a_dictionary_with_any_line_ends_is_read(tmp_path):
    path = tmp_path / "dict.txt"
    lines = ["▁the 12", "é 1", "\u00a0 -3", "\u2028 1", "<x> 999999999999999999"]
    expected = [*SPECIAL, "▁the", "é", "\u00a0", "\u2028", "<x>"]
    for content in ("\n".join(lines), "\n".join([*lines, ""]), "\r\n".join([*lines, ""])):
        path.write_text(content, encoding="utf-8", newline="")
        assert read_dictionary(path) == expected


def test_a_dictionary_whose_lines_have_several_blanks_is_read(tmp_path):
    """It is read line by line, any other dictionary as a whole."""
    path = tmp_path / "dict.txt"
    path.write_text("a b 1\nc 1 #fairseq:overwrite\n\ufeff 1\n", encoding="utf-8")
    assert read_dictionary(path) == [*SPECIAL, "a b", "c", "\ufeff"]


def test_the_invalid_line_of_a_dictionary_is_named(tmp_path):
    path = tmp_path / "dict.txt"
    for content, message in (
        (b"a x\n", "line 1"),
        (b"a 1 2\n5\n", "line 2"),
        (b"a 1\nb 1\0\n", "line 2"),
        (b"a 1\n\xff 1\n", "line 2"),
        (b"a 1\nb 1234567890123456789\n", "line 2"),
        (b"a 1\nb\n", "line 2"),
        (b"a 1\n\n", "line 2"),
        (b"a 1\nb 1\na 1\n", "'a'"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_dictionary(path)


def test_a_byte_order_mark_is_no_part_of_a_dictionary(tmp_path):
    (tmp_path / "dict.txt").write_bytes(b"\xef\xbb\xbfa 1\n")
    assert read_dictionary(tmp_path / "dict.txt") == [*SPECIAL, "a"]


def test_the_dictionary_of_the_packaged_model_is_not_read_line_by_line(monkeypatch):
    """Reading line by line would take most of the time to the first vector."""
    path = MODELS / "lxsr-static" / "dict.txt"
    expected = [line.rsplit(" ", 1)[0] for line in read_lines(path)]
    monkeypatch.setattr(tokenizer_module, "read_lines", None)
    assert read_dictionary(path) == [*SPECIAL, *expected]


def test_ids_of_a_dictionary_in_the_order_of_the_pieces_need_no_search(toy_model):
    path = toy_model / "sentencepiece.model"
    symbols = read_dictionary(toy_model / "dict.txt")
    pieces = Tokenizer(path, TextOptions(), symbols).all_pieces()
    ids = tokenizer_module._ids_in_order(symbols, pieces)
    assert ids.tolist() == tokenizer_module._ids_in_any_order(symbols, pieces).tolist()
    # Dictionaries in another order are searched.
    swapped = [*symbols[:-2], symbols[-1], symbols[-2]]
    assert tokenizer_module._ids_in_order(swapped, pieces) is None
    assert tokenizer_module._ids_in_order([*symbols, *symbols], pieces) is None
    ids = Tokenizer(path, TextOptions(), swapped).piece_ids
    assert ids.tolist()[-2:] == [len(symbols) - 1, len(symbols) - 2]
