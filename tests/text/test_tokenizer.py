"""Normalization of text, dictionaries, and ids of word pieces."""

import sys

import pytest

from fairseq_lxsr.encoder.locate import MODELS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text import tokenizer as tokenizer_module
from fairseq_lxsr.text.tokenizer import (
    _BLANKS,
    BOS,
    EOS,
    PAD,
    PLAIN_VERSION,
    SPECIAL,
    TEXT_VERSION,
    TextOptions,
    Tokenizer,
    is_punctuation,
    normalise,
    normalise_all,
    read_dictionary,
)

NO_BREAK_SPACE = "\u00a0"
LINE_SEPARATOR = "\u2028"
ZERO_WIDTH_SPACE = "\u200b"
BYTE_ORDER_MARK = "\ufeff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"  Two\tblanks {NO_BREAK_SPACE} here{LINE_SEPARATOR}", "Two blanks here"),
        # Control characters are blanks too.
        (f"a\x00b\x1fc{ZERO_WIDTH_SPACE}d", "a b c d"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_blanks_become_single_spaces_and_those_at_the_ends_are_removed(text, expected):
    assert normalise(text, TextOptions()) == expected


@pytest.mark.parametrize(
    ("lowercase", "expected"), [(True, "ein grosser hund"), (False, "Ein GROSSER Hund")]
)
def test_letters_become_lower_case_only_with_the_option(lowercase, expected):
    assert normalise("Ein GROSSER Hund", TextOptions(lowercase=lowercase)) == expected


LONE_SURROGATE = "\ud800"
LAST_BMP_BLOCK_WITH_SYMBOLS = 0x33FF


@pytest.mark.parametrize(
    "last_code",
    [
        pytest.param(LAST_BMP_BLOCK_WITH_SYMBOLS, id="without Chinese"),
        pytest.param(sys.maxunicode, id="all", marks=pytest.mark.slow),
    ],
)
def test_texts_with_any_character_are_normalised_together_as_separately(last_code):
    options = TextOptions(lowercase=True, version=TEXT_VERSION)
    characters = [*map(chr, range(last_code + 1)), LONE_SURROGATE]
    # Capitals around the character must become small.
    texts = [f"É{character}A" for character in characters]

    normalised_together = normalise_all(texts, options)

    assert normalised_together == [normalise(text, options) for text in texts]


@pytest.mark.parametrize(
    ("last_code", "min_texts"),
    [
        pytest.param(LAST_BMP_BLOCK_WITH_SYMBOLS, 100, id="without Chinese"),
        pytest.param(sys.maxunicode, 4000, id="all", marks=pytest.mark.slow),
    ],
)
def test_single_texts_that_the_plain_version_reads_differently_are_normalised_by_the_new_version(
    last_code, min_texts
):
    """`normalise_all` takes the faster plain version for all other texts."""
    options = TextOptions(lowercase=True, version=TEXT_VERSION)
    plain_options = TextOptions(lowercase=True)
    texts = [f"É{chr(code)}A" for code in range(last_code + 1)]
    normalised_texts = normalise_all(texts, options)
    plain_texts = normalise_all(texts, plain_options)
    different_texts = []
    for text, normalised, plain in zip(texts, normalised_texts, plain_texts, strict=True):
        if normalised != plain:
            different_texts.append(text)
    # Fewer would mean that the search for them is wrong.
    assert len(different_texts) > min_texts

    for text in different_texts:
        [normalised] = normalise_all([text], options)

        assert normalised == normalise(text, options), ascii(text)


# Texts with vowel marks, and the same texts without.
ARABIC_TEXTS = {
    "vowels": ("كَتَبَ الطّالِبُ", "كتب الطالب"),
    "nunation": ("ذهابًا", "ذهابا"),
    "small alef": ("رَحْمٰن", "رحمن"),
    "lengthening": ("قـــال", "قال"),
    "vowels, but not hamza": ("أُمّة", "أمة"),
    "vowels, but not madda": ("قُرآن", "قرآن"),
    # Characters for marks above nothing, and for a letter with its marks.
    "marks as characters": ("\ufe76\ufc60ب", "ب"),
    "letters with marks": ("شكراﴽ ذﱛ رﱜ ىﱝ ىﲐ ـﳙ", "شكراا ذذ رر ىى ىى \u0647"),
}


@pytest.mark.parametrize("name", ARABIC_TEXTS)
def test_the_version_of_new_folders_removes_arabic_vowel_marks(name):
    text, text_without_marks = ARABIC_TEXTS[name]
    options = TextOptions(version=TEXT_VERSION)

    assert normalise(text, options) == text_without_marks
    assert normalise_all([text], options) == [text_without_marks]


@pytest.mark.parametrize("name", ARABIC_TEXTS)
def test_the_plain_version_keeps_arabic_vowel_marks(name):
    text, _ = ARABIC_TEXTS[name]

    assert normalise(text, TextOptions(version=PLAIN_VERSION)) == text


@pytest.mark.parametrize(
    "text",
    [
        # These marks distinguish letters.
        pytest.param("\u0627\u0655 \u0627\u0653", id="hamza and madda as marks"),
        pytest.param("می\u200cرود", id="Persian with a non-joiner"),
        pytest.param("שָׁלוֹם e\u0301", id="Hebrew vowels and an accent"),
    ],
)
@pytest.mark.parametrize("version", [PLAIN_VERSION, TEXT_VERSION])
def test_both_versions_keep_all_other_marks(text, version):
    options = TextOptions(version=version)

    assert normalise(text, options) == text
    assert normalise_all([text], options) == [text]


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(0, id="never one"),
        pytest.param(2, id="no longer read"),
        pytest.param(5, id="newer than this package"),
    ],
)
def test_unknown_versions_are_refused_in_one_line(version):
    with pytest.raises(InputError, match=r"^text version .* is not supported; expected 4: .*$"):
        TextOptions(version=version)


def test_no_printable_character_but_the_space_is_a_blank():
    """`normalise` need not look for blanks in printable text without double spaces."""
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    blanks = set("".join(_BLANKS.findall(characters)))

    # The 2,048 surrogates are blanks, as SentencePiece refuses them.
    assert len(blanks) > 2048
    for blank in blanks - {" "}:
        assert not blank.isprintable()


@pytest.mark.parametrize(
    ("piece", "is_without_letters_and_digits"),
    [
        ("▁,", True),
        ("...", True),
        ("▁", True),
        ("▁_", True),
        ("▁a", False),
        ("é", False),
        ("七", False),
        ("3", False),
    ],
)
def test_pieces_without_letters_and_digits_are_punctuation(piece, is_without_letters_and_digits):
    assert is_punctuation(piece) is is_without_letters_and_digits


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<s> <pad> </s> <unk> <mask>", id="special symbols"),
        pytest.param("日本語 text", id="unknown letters"),
        pytest.param(f"{LONE_SURROGATE} lone surrogate", id="lone surrogate"),
        pytest.param("a" * 5000, id="long word"),
    ],
)
def test_any_text_becomes_ids_of_the_dictionary_other_than_bos_pad_and_eos(toy_model, text):
    symbols = read_dictionary(toy_model / "dict.txt")
    tokenizer = Tokenizer(toy_model / "sentencepiece.model", TextOptions(), symbols)

    [ids] = tokenizer.encode([text])

    assert len(ids) > 0
    assert ids.max() < len(symbols)
    symbols_of_text = {symbols[number] for number in ids}
    assert not symbols_of_text & {BOS, PAD, EOS}


@pytest.mark.parametrize(
    ("line_end", "last_line_end"),
    [
        pytest.param("\n", "\n", id="Unix"),
        pytest.param("\n", "", id="none after the last line"),
        pytest.param("\r\n", "\r\n", id="Windows"),
    ],
)
def test_a_dictionary_with_any_line_ends_is_read(tmp_path, line_end, last_line_end):
    """No symbol is a line end to fairseq, not even Unicode's line separator."""
    path = tmp_path / "dict.txt"
    symbols = ["▁the", "é", NO_BREAK_SPACE, LINE_SEPARATOR, "<x>"]
    # Counts of any size and sign.
    counts = [12, 1, -3, 1, 999_999_999_999_999_999]
    lines = [f"{symbol} {count}" for symbol, count in zip(symbols, counts, strict=True)]

    path.write_text(line_end.join(lines) + last_line_end, encoding="utf-8", newline="")

    assert read_dictionary(path) == [*SPECIAL, *symbols]


def test_a_dictionary_whose_lines_have_several_blanks_is_read(tmp_path):
    """Such a dictionary is read line by line, any other as a whole."""
    path = tmp_path / "dict.txt"
    path.write_text(
        f"a b 1\nc 1 #fairseq:overwrite\n{BYTE_ORDER_MARK} 1\n",
        encoding="utf-8",
    )

    assert read_dictionary(path) == [*SPECIAL, "a b", "c", BYTE_ORDER_MARK]


@pytest.mark.parametrize(
    ("content", "number"),
    [
        pytest.param(b"a x\n", 1, id="count is no number"),
        pytest.param(b"a 1\nb\n", 2, id="no count"),
        # The first line is the symbol "a 1" with the count 2.
        pytest.param(b"a 1 2\n5\n", 2, id="no symbol"),
        pytest.param(b"a 1\n\n", 2, id="empty line"),
        pytest.param(b"a 1\nb 1\0\n", 2, id="NUL"),
        pytest.param(b"a 1\n\xff 1\n", 2, id="no UTF-8"),
        pytest.param(b"a 1\nb 1234567890123456789\n", 2, id="count of 19 digits"),
    ],
)
def test_the_number_of_an_invalid_line_of_a_dictionary_is_named(tmp_path, content, number):
    path = tmp_path / "dict.txt"
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"line {number}"):
        read_dictionary(path)


def test_a_symbol_that_a_dictionary_has_twice_is_named(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 1\nb 1\na 1\n")

    with pytest.raises(InputError, match="'a'"):
        read_dictionary(path)


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_a_dictionary(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text(f"{BYTE_ORDER_MARK}a 1\n", encoding="utf-8")

    assert read_dictionary(path) == [*SPECIAL, "a"]


def test_the_dictionary_of_the_packaged_model_is_not_read_line_by_line(monkeypatch):
    """Reading line by line would take most of the time to the first vector."""
    path = MODELS / "lxsr-static" / "dict.txt"
    symbols = [line.rsplit(" ", 1)[0] for line in read_lines(path)]
    # Reading line by line would raise an error now.
    monkeypatch.setattr(tokenizer_module, "read_lines", None)

    assert read_dictionary(path) == [*SPECIAL, *symbols]


@pytest.fixture
def toy_symbols(toy_model):
    """The dictionary of the toy model, which has the order of its pieces."""
    return read_dictionary(toy_model / "dict.txt")


@pytest.fixture
def toy_pieces(toy_model, toy_symbols):
    path = toy_model / "sentencepiece.model"
    return Tokenizer(path, TextOptions(), toy_symbols).all_pieces()


def test_ids_of_a_dictionary_in_the_order_of_the_pieces_are_found_without_a_search(
    toy_symbols, toy_pieces
):
    ids = tokenizer_module._ids_in_order(toy_symbols, toy_pieces)

    searched_ids = tokenizer_module._ids_in_any_order(toy_symbols, toy_pieces)
    assert ids.tolist() == searched_ids.tolist()


def test_ids_of_a_dictionary_in_another_order_are_searched(toy_model, toy_symbols, toy_pieces):
    *others, second_last, last = toy_symbols
    swapped_symbols = [*others, last, second_last]

    tokenizer = Tokenizer(toy_model / "sentencepiece.model", TextOptions(), swapped_symbols)

    assert tokenizer_module._ids_in_order(swapped_symbols, toy_pieces) is None
    assert toy_pieces[-2:] == [second_last, last]
    last_id = len(toy_symbols) - 1
    assert tokenizer.piece_ids.tolist()[-2:] == [last_id, last_id - 1]


def test_ids_of_a_dictionary_of_more_symbols_than_pieces_are_searched(toy_symbols, toy_pieces):
    longer_symbols = [*toy_symbols, *toy_symbols]

    assert tokenizer_module._ids_in_order(longer_symbols, toy_pieces) is None
