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

READ_AS = "語语們们發发現现髮发個个機机業业東东"
TRADITIONAL_TEXTS = ["我們發現了語言", "頭髮", "個 機業, OK", "東 DOG x語y", "no Chinese"]
SIMPLIFIED_TEXTS = ["我们发现了语言", "頭发", "个 机业, OK", "东 DOG x语y", "no Chinese"]


def tokenizer_of(packaged, read_as):
    """The tokenizer of the packaged model, with a table of characters."""
    options = replace(packaged.tokenizer.options, read_as=read_as)
    return Tokenizer(packaged.folder / "sentencepiece.model", options, packaged.tokenizer.symbols)


@pytest.fixture(scope="module")
def plain(packaged):
    return tokenizer_of(packaged, "")


@pytest.fixture(scope="module")
def converting(packaged):
    return tokenizer_of(packaged, READ_AS)


def lists_of_ids(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode(texts)]


def test_each_character_is_read_as_its_simplified_form(plain, converting):
    for version in (PLAIN_VERSION, TEXT_VERSION):
        options = TextOptions(version=version, read_as=READ_AS)
        unread = replace(options, read_as="")
        expected = [normalise(text, unread) for text in SIMPLIFIED_TEXTS]
        assert [normalise(text, options) for text in TRADITIONAL_TEXTS] == expected
    expected = lists_of_ids(plain, SIMPLIFIED_TEXTS)
    assert lists_of_ids(converting, TRADITIONAL_TEXTS) == expected
    assert converting.pieces(TRADITIONAL_TEXTS) == plain.pieces(SIMPLIFIED_TEXTS)
    # The words of long texts are looked up in a table.
    expected = lists_of_ids(plain, [" ".join(SIMPLIFIED_TEXTS) * 60])
    assert lists_of_ids(converting, [" ".join(TRADITIONAL_TEXTS) * 60]) == expected


@pytest.mark.slow
def test_exported_tokenizers_read_simplified_forms(plain, converting):
    symbols = extended_symbols(converting, len(converting.symbols))
    encodings = fast_tokenizer(converting, symbols).encode_batch(TRADITIONAL_TEXTS)
    expected = lists_of_ids(converting, TRADITIONAL_TEXTS)
    assert [encoding.ids for encoding in encodings] == expected
    letters = tokenizer_content(converting)["letters"]
    assert [letters[old] for old in READ_AS[::2]] == list(READ_AS[1::2])
    assert letters.items() >= tokenizer_content(plain)["letters"].items()


def test_the_table_of_characters_is_stored_only_if_there_is_one(tmp_path):
    assert set(json.loads(TextOptions().dumps())) == {"lowercase", "split_han"}
    options = TextOptions(lowercase=True, version=TEXT_VERSION, read_as=READ_AS)
    (tmp_path / "text.json").write_text(options.dumps(), encoding="utf-8")
    assert TextOptions.load(tmp_path / "text.json") == options


def test_an_invalid_table_of_characters_is_refused():
    for read_as in (
        "語",
        "語语們",
        "語语語们",
        "ab",
        "語 ",
        "a語",
        "語\n",
        "é語",
        5,
        None,
        ["語", "语"],
    ):
        with pytest.raises(InputError, match="read_as"):
            TextOptions(read_as=read_as)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["我們", "abc"], (50, 0, 0)),
        (["我们", "我们", "們"], (20, 40, 0)),
        (["中文。", "中x"], (0, 0, 33.33)),
        (["學学"], (50, 50, 0)),
        (["\U00020000\uf900"], (0, 0, 0)),
    ],
)
def test_the_percentages_of_characters_that_are_traditional_simplified_or_unknown(lines, expected):
    percentages = describe_characters(lines, lambda letter: letter == "文")
    assert tuple(percentages.values()) == expected
    assert tuple(percentages) == ("traditional only", "simplified only", "unknown to the pieces")


def test_a_text_without_chinese_characters_has_no_percentages():
    assert describe_characters(["", "abc", "かな"], lambda letter: True) == {}


def test_the_table_is_that_of_opencc():
    pytest.importorskip("opencc")
    table = TextOptions(read_as=simplified_characters()).table
    for old, new in zip("語們髮東臺", "语们发东台", strict=True):
        assert table[ord(old)] == new
    assert len(table) > 4000
    for letter in "我们发现了语言的a。ア国":
        assert ord(letter) not in table


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


def write_text(folder):
    pairs = []
    for number, (english, _) in enumerate(toy.sentences(300)):
        chinese = [CHINESE_WORDS.get(word, "中") for word in english.lower().split()]
        pairs.append((english, f"{''.join(chinese)}。{number}"))
    toy.write(folder, pairs, ("en", "zh"))


def prepare(text, work, *options):
    sizes = ("--vocab-size", 90, "--valid-size", 20, "--test-size", 0)
    files = ("--work", work, "--data", text, "--lang-pairs", "en-zh")
    return lxsr("prepare", *files, *sizes, *options)


def test_prepare_prints_which_chinese_characters_a_text_has(tmp_path):
    write_text(tmp_path / "text")
    done = prepare(tmp_path / "text", tmp_path / "work")
    assert "en-zh: Chinese characters: " in done.stdout
    assert "0.0 % simplified only, 0.0 % unknown to the pieces" in done.stdout
    # Also if the text is already prepared.
    done = prepare(tmp_path / "text", tmp_path / "work")
    assert "0.0 % simplified only" in done.stdout


def test_prepare_learns_pieces_of_simplified_characters(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.preparation.pipeline.require_converter", lambda: None)
    monkeypatch.setattr("fairseq_lxsr.preparation.subwords.simplified_characters", lambda: READ_AS)
    write_text(tmp_path / "text")
    prepare(tmp_path / "text", tmp_path / "work", "--simplify-chinese")
    files = find_text([tmp_path / "work" / "data-bin"])
    assert files.options.read_as == READ_AS
    processor = sentencepiece.SentencePieceProcessor(model_file=str(files.sentencepiece_model))
    letters = set()
    for number in range(len(processor)):
        letters.update(processor.IdToPiece(number))
    assert letters >= set("个们发语机业东")
    assert not letters & set(READ_AS[::2])


def test_simplify_chinese_without_opencc_is_refused_before_text_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    write_text(tmp_path / "text")
    files = ("--work", tmp_path / "work", "--data", tmp_path / "text", "--lang-pairs", "en-zh")
    done = lxsr("prepare", *files, "--simplify-chinese", check=False)
    refused(done, "--simplify-chinese", "opencc", install_command("chinese"))
    assert not (tmp_path / "work").exists()
