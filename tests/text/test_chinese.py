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
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer, normalise

READ_AS = "語语們们發发現现髮发個个機机業业東东"
TRADITIONAL = ["我們發現了語言", "頭髮", "個 機業, OK", "東 DOG x語y", "no Chinese"]
SIMPLIFIED = ["我们发现了语言", "頭发", "个 机业, OK", "东 DOG x语y", "no Chinese"]


@pytest.fixture(scope="module")
def tokenizers(packaged):
    """Those of the packaged model, without the option and with it."""
    options, symbols, model = (
        packaged.tokenizer.options,
        packaged.tokenizer.symbols,
        packaged.folder / "sentencepiece.model",
    )
    plain, converting = (
        Tokenizer(model, replace(options, read_as=read_as), symbols) for read_as in ("", READ_AS)
    )
    return plain, converting


def test_each_character_is_read_as_its_simplified_form(tokenizers):
    plain, converting = tokenizers
    for version in (1, 3):
        options = TextOptions(version=version, read_as=READ_AS)
        assert [normalise(text, options) for text in TRADITIONAL] == SIMPLIFIED
    expected = [ids.tolist() for ids in plain.encode(SIMPLIFIED)]
    assert [ids.tolist() for ids in converting.encode(TRADITIONAL)] == expected
    assert converting.pieces(TRADITIONAL) == plain.pieces(SIMPLIFIED)
    long = [" ".join(TRADITIONAL) * 60]  # by the table of words
    assert (
        converting.encode(long)[0].tolist() == plain.encode([" ".join(SIMPLIFIED) * 60])[0].tolist()
    )


@pytest.mark.slow
def test_exports_read_the_same(tokenizers):
    plain, converting = tokenizers
    symbols = extended_symbols(converting, len(converting.symbols))
    fast = fast_tokenizer(converting, symbols)
    expected = [ids.tolist() for ids in converting.encode(TRADITIONAL)]
    assert [encoding.ids for encoding in fast.encode_batch(TRADITIONAL)] == expected
    letters = tokenizer_content(converting)["letters"]
    assert [letters[old] for old in READ_AS[::2]] == list(READ_AS[1::2])
    assert letters.items() >= tokenizer_content(plain)["letters"].items()


def test_the_option_is_stored_and_only_where_it_is_used(tmp_path):
    # as in folders without it
    assert set(json.loads(TextOptions().dumps())) == {"lowercase", "split_han"}
    options = TextOptions(lowercase=True, version=3, read_as=READ_AS)
    (tmp_path / "text.json").write_text(options.dumps(), encoding="utf-8")
    assert TextOptions.load(tmp_path / "text.json") == options


@pytest.mark.parametrize(
    "read_as",
    ["語", "語语們", "語语語们", "ab", "語 ", "a語", "語\n", "é語", 5, None, ["語", "语"]],
)
def test_what_is_no_table_is_refused(read_as):
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
def test_what_the_characters_of_a_text_are(lines, expected):
    found = describe_characters(lines, lambda letter: letter == "文")
    assert tuple(found.values()) == expected
    assert tuple(found) == ("traditional only", "simplified only", "unknown to the pieces")


def test_a_text_without_chinese_characters_has_nothing_to_describe():
    assert describe_characters(["", "abc", "かな"], lambda letter: True) == {}


def test_the_table_is_that_of_opencc():
    pytest.importorskip("opencc")
    table = TextOptions(read_as=simplified_characters()).table
    assert {old: table[ord(old)] for old in "語們髮東臺"} == dict(
        zip("語們髮東臺", "语们发东台", strict=True)
    )
    assert len(table) > 4000
    assert not {ord(letter) for letter in "我们发现了语言的a。ア国"} & table.keys()


def write_text(folder, languages=("en", "zh")):
    words = dict(
        zip(
            ["the", "dog", "cat", "red", "blue", "sees", "one", "two"],
            "個們發語機業東學",
            strict=True,
        )
    )
    pairs = [
        (en, "".join(words.get(word, "中") for word in en.lower().split()) + "。")
        for en, _ in toy.sentences(300)
    ]
    pairs = [(en, zh + str(number)) for number, (en, zh) in enumerate(pairs)]
    toy.write(folder / "text", pairs, languages)


def test_prepare_says_what_the_characters_are_and_converts_them(tmp_path, monkeypatch):
    write_text(tmp_path)
    sizes = (
        "--data",
        tmp_path / "text",
        "--lang-pairs",
        "en-zh",
        "--vocab-size",
        90,
        "--valid-size",
        20,
    )
    done = lxsr("prepare", "--work", tmp_path / "plain", "--test-size", 0, *sizes)
    assert "en-zh: Chinese characters: " in done.stdout
    assert "0.0 % simplified only, 0.0 % unknown to the pieces" in done.stdout
    again = lxsr("prepare", "--work", tmp_path / "plain", "--test-size", 0, *sizes)
    assert "0.0 % simplified only" in again.stdout
    monkeypatch.setattr("fairseq_lxsr.preparation.pipeline.require_converter", lambda: None)
    monkeypatch.setattr("fairseq_lxsr.preparation.subwords.simplified_characters", lambda: READ_AS)
    done = lxsr(
        "prepare", "--work", tmp_path / "work", "--test-size", 0, *sizes, "--simplify-chinese"
    )
    files = find_text([tmp_path / "work" / "data-bin"])
    assert files.options.read_as == READ_AS
    processor = sentencepiece.SentencePieceProcessor(model_file=str(files.sentencepiece_model))
    letters = {letter for number in range(len(processor)) for letter in processor.IdToPiece(number)}
    assert letters >= set("个们发语机业东")
    assert not letters & set(READ_AS[::2])


def test_without_the_package_nothing_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    write_text(tmp_path)
    command = (
        "prepare",
        "--work",
        tmp_path / "work",
        "--data",
        tmp_path / "text",
        "--lang-pairs",
        "en-zh",
    )
    done = lxsr(*command, "--simplify-chinese", check=False)
    refused(done, "--simplify-chinese", "opencc", install_command("chinese"))
    assert not (tmp_path / "work").exists()
