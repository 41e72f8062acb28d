"""Traditional Chinese is read as simplified Chinese where the text options say so."""

import json
from dataclasses import replace

import pytest
import sentencepiece
import toy
from conftest import lxsr_here as lxsr
from conftest import refused

from fairseq_lxsr.encoder.exported_pieces import extended_symbols
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.export.fast_tokenizer import fast_tokenizer
from fairseq_lxsr.export.web_page import tokenizer_content
from fairseq_lxsr.text.chinese import describe_characters, simplified_characters
from fairseq_lxsr.text.data_folder import find_text
from fairseq_lxsr.text.tokenizer import (
    PLAIN_VERSION,
    TEXT_VERSION,
    TextOptions,
    Tokenizer,
    normalise,
)
from fairseq_lxsr.text.words import SHORT_TEXT_BYTES

# The characters of a table, traditional and simplified. The text option `read_as` is all pairs in a
# row: 語语們们...
TRADITIONAL_CHARACTERS = "語們發現髮個機業東"
SIMPLIFIED_CHARACTERS = "语们发现发个机业东"
READ_AS = "".join(map("".join, zip(TRADITIONAL_CHARACTERS, SIMPLIFIED_CHARACTERS, strict=True)))
# The same texts with the replacements of the table; 頭 is traditional, but not in the table.
TRADITIONAL_TEXTS = ["我們發現了語言", "頭髮", "個 機業, OK", "東 DOG x語y", "no Chinese"]
SIMPLIFIED_TEXTS = ["我们发现了语言", "頭发", "个 机业, OK", "东 DOG x语y", "no Chinese"]


def tokenizer_with(packaged, read_as):
    """The tokenizer of the packaged model, with a table of characters."""
    options = replace(packaged.tokenizer.options, read_as=read_as)
    return Tokenizer(packaged.folder / "sentencepiece.model", options, packaged.tokenizer.symbols)


@pytest.fixture(scope="module")
def tokenizer_without_table(packaged):
    return tokenizer_with(packaged, read_as="")


@pytest.fixture(scope="module")
def tokenizer_with_table(packaged):
    return tokenizer_with(packaged, READ_AS)


def lists_of_ids(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode(texts)]


@pytest.mark.parametrize("version", [PLAIN_VERSION, TEXT_VERSION])
def test_traditional_text_is_normalised_to_simplified_text(version):
    options = TextOptions(version=version, read_as=READ_AS)
    options_without_table = TextOptions(version=version)

    normalised_texts = [normalise(text, options) for text in TRADITIONAL_TEXTS]

    expected = [normalise(text, options_without_table) for text in SIMPLIFIED_TEXTS]
    assert normalised_texts == expected


def test_traditional_text_has_the_pieces_and_ids_of_simplified_text(
    tokenizer_with_table, tokenizer_without_table
):
    ids = lists_of_ids(tokenizer_with_table, TRADITIONAL_TEXTS)
    pieces = tokenizer_with_table.pieces(TRADITIONAL_TEXTS)

    assert ids == lists_of_ids(tokenizer_without_table, SIMPLIFIED_TEXTS)
    assert pieces == tokenizer_without_table.pieces(SIMPLIFIED_TEXTS)


def test_long_traditional_text_has_the_ids_of_simplified_text(
    tokenizer_with_table, tokenizer_without_table
):
    """A text of more than SHORT_TEXT_BYTES is looked up word by word, in other code."""
    repetitions = 60
    long_traditional_text = " ".join(TRADITIONAL_TEXTS) * repetitions
    long_simplified_text = " ".join(SIMPLIFIED_TEXTS) * repetitions
    assert len(long_simplified_text.encode()) > SHORT_TEXT_BYTES

    ids = lists_of_ids(tokenizer_with_table, [long_traditional_text])

    assert ids == lists_of_ids(tokenizer_without_table, [long_simplified_text])


@pytest.mark.slow
def test_the_exported_fast_tokenizer_reads_simplified_forms(tokenizer_with_table):
    symbols = extended_symbols(tokenizer_with_table, len(tokenizer_with_table.symbols))

    encodings = fast_tokenizer(tokenizer_with_table, symbols).encode_batch(TRADITIONAL_TEXTS)

    expected = lists_of_ids(tokenizer_with_table, TRADITIONAL_TEXTS)
    assert [encoding.ids for encoding in encodings] == expected


@pytest.mark.slow
def test_the_tokenizer_of_an_exported_web_page_has_the_table_and_all_other_replacements(
    tokenizer_with_table, tokenizer_without_table
):
    replacements = tokenizer_content(tokenizer_with_table)["letters"]

    for traditional, simplified in zip(TRADITIONAL_CHARACTERS, SIMPLIFIED_CHARACTERS, strict=True):
        assert replacements[traditional] == simplified
    other_replacements = tokenizer_content(tokenizer_without_table)["letters"]
    assert replacements.items() >= other_replacements.items()


def test_text_options_without_a_table_of_characters_store_none():
    stored = json.loads(TextOptions().dumps())

    assert set(stored) == {"lowercase", "split_han"}


def test_text_options_with_a_table_of_characters_are_loaded_as_stored(tmp_path):
    options = TextOptions(lowercase=True, version=TEXT_VERSION, read_as=READ_AS)
    path = tmp_path / "text.json"

    path.write_text(options.dumps(), encoding="utf-8")

    assert TextOptions.load(path) == options


@pytest.mark.parametrize(
    "read_as",
    [
        pytest.param("語", id="one character"),
        pytest.param("語语們", id="odd number"),
        pytest.param("語语語们", id="two replacements"),
        pytest.param("ab", id="Latin letters"),
        pytest.param("a語", id="Latin first"),
        pytest.param("é語", id="accented Latin first"),
        pytest.param("語 ", id="space"),
        pytest.param("語\n", id="line end"),
        pytest.param(5, id="number"),
        pytest.param(None, id="null"),
        pytest.param(["語", "语"], id="list"),
    ],
)
def test_an_invalid_table_of_characters_is_refused(read_as):
    with pytest.raises(InputError, match="read_as"):
        TextOptions(read_as=read_as)


@pytest.mark.parametrize(
    ("lines", "traditional_only", "simplified_only", "unknown"),
    [
        # Characters that both scripts have, as 我 and 中, count only in the total.
        pytest.param(["我們", "abc"], 50, 0, 0, id="1 of 2 traditional"),
        pytest.param(["我们", "我们", "們"], 20, 40, 0, id="1 of 5 traditional, 2 simplified"),
        pytest.param(["學学"], 50, 50, 0, id="1 of 2 each"),
        pytest.param(["中文。", "中x"], 0, 0, 33.33, id="1 of 3 unknown"),
        pytest.param(["\U00020000\uf900"], 0, 0, 0, id="rare characters of neither script"),
    ],
)
def test_the_percentages_of_characters_that_are_traditional_simplified_or_unknown(
    lines, traditional_only, simplified_only, unknown
):
    percentages = describe_characters(lines, is_unknown=lambda character: character == "文")

    assert percentages == {
        "traditional only": traditional_only,
        "simplified only": simplified_only,
        "unknown to the pieces": unknown,
    }


def test_a_text_without_chinese_characters_has_no_percentages():
    lines = ["", "abc", "かな"]

    percentages = describe_characters(lines, is_unknown=lambda character: True)

    assert percentages == {}


def test_the_table_of_opencc_has_traditional_characters_and_no_others():
    pytest.importorskip("opencc")

    table = TextOptions(read_as=simplified_characters()).table

    for traditional, simplified in zip("語們髮東臺", "语们发东台", strict=True):
        assert table[ord(traditional)] == simplified
    # OpenCC had 5,119 such characters when this was written.
    assert len(table) > 4000
    for character in "我们发现了语言的a。ア国":
        assert ord(character) not in table


# Each word of the toy corpus becomes one traditional character; other words become 中.
CHINESE_WORDS = {
    "the": "個",
    "dog": "們",
    "cat": "發",
    "red": "語",
    "blue": "機",
    "sees": "業",
    "one": "東",
    "two": "學",
}


def write_traditional_text(folder):
    pairs = []
    for number, (english, _) in enumerate(toy.sentences(300)):
        chinese = [CHINESE_WORDS.get(word, "中") for word in english.lower().split()]
        pairs.append((english, f"{''.join(chinese)}。{number}"))
    toy.write(folder, pairs, ("en", "zh"))


def prepare_english_and_chinese(text, work, *options):
    sizes = ("--vocab-size", 90, "--valid-size", 20, "--test-size", 0)
    files = ("--work", work, "--data", text, "--lang-pairs", "en-zh")
    return lxsr("prepare", *files, *sizes, *options)


def test_prepare_prints_which_chinese_characters_a_text_has(tmp_path):
    write_traditional_text(tmp_path / "text")

    first = prepare_english_and_chinese(tmp_path / "text", tmp_path / "work")
    # Now the text is already prepared.
    second = prepare_english_and_chinese(tmp_path / "text", tmp_path / "work")

    assert "en-zh: Chinese characters: " in first.stdout
    # The text has no simplified characters, and the pieces are learnt from it.
    assert "0.0 % simplified only, 0.0 % unknown to the pieces" in first.stdout
    assert "0.0 % simplified only" in second.stdout


def test_prepare_learns_pieces_of_simplified_characters(tmp_path, monkeypatch):
    # A small table stands for that of OpenCC, which need not be installed.
    monkeypatch.setattr("fairseq_lxsr.preparation.pipeline.require_converter", lambda: None)
    monkeypatch.setattr("fairseq_lxsr.preparation.subwords.simplified_characters", lambda: READ_AS)
    write_traditional_text(tmp_path / "text")

    prepare_english_and_chinese(tmp_path / "text", tmp_path / "work", "--simplify-chinese")

    files = find_text([tmp_path / "work" / "data-bin"])
    assert files.options.read_as == READ_AS
    processor = sentencepiece.SentencePieceProcessor(model_file=str(files.sentencepiece_model))
    characters = set()
    for number in range(len(processor)):
        characters.update(processor.IdToPiece(number))
    # The simplified forms of CHINESE_WORDS; 學 is not in the table.
    assert characters >= set("个们发语机业东")
    assert not characters & set(TRADITIONAL_CHARACTERS)


def test_simplify_chinese_without_opencc_is_refused_before_text_is_read(tmp_path, monkeypatch):
    # OpenCC is not installed.
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    write_traditional_text(tmp_path / "text")
    files = ("--work", tmp_path / "work", "--data", tmp_path / "text", "--lang-pairs", "en-zh")

    done = lxsr("prepare", *files, "--simplify-chinese", check=False)

    refused(done, "--simplify-chinese", "opencc", install_command("chinese"))
    assert not (tmp_path / "work").exists()
