import itertools
import re
import unicodedata

import pytest
import toy
from conftest import lxsr_here

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation import clean
from fairseq_lxsr.preparation.clean import make_filters
from fairseq_lxsr.preparation.config import filters_named
from fairseq_lxsr.preparation.language_id import by_stop_words, language_check


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("_Open file...", "Open file"),
        ("Save &As", "Save As"),
        ("cannot open '%s': %s\n", "cannot open"),
        ("%d of %d files copied", "of files copied"),
        ("<b>Warning:</b> %(name)s &amp; more", "Warning: & more"),
        ("use ${HOME} or {0}", "use or"),
        ("開く(_O)", "開く"),
        ("a snake_case name", "a snake_case name"),
        ("100% sure of it", "100% sure of it"),
        ("\\tone\\ntwo", "one two"),
    ],
)
def test_message_to_words(message, words):
    assert clean.strip_message(message) == words


def test_words_of_scripts_without_blanks_are_counted_by_characters_and_what_is_no_letter():
    assert clean.count_words("two words") == 2
    assert clean.count_words("日本語 abc") == 3  # two characters a word
    assert clean.count_words("これは日本語です") == 4
    assert clean.count_words("ไม่มีอะไรจะพูด") == 3  # five signs a word
    assert clean.count_words("မင်္ဂလာပါ") == 2
    assert clean.count_words("") == 0
    assert not clean.lengths_differ(("a b c", "a b c d e f g h i"))
    assert clean.lengths_differ(("a b c", "a " * 10))
    for pair, expected in (
        *(
            (("0x1f 0x2e --", "some words here"), True),
            (("some words here", "quelques mots ici"), False),
        ),
        *(
            (("", "words"), True),
            (("लड़की आती है", "ไม่มีอะไรจะพูด"), False),
        ),  # vowel signs belong to letters
    ):
        assert clean.mostly_not_letters(pair) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("日本語ですよ", 3),
        ("ｷｮｳﾊﾃﾝｷｶﾞｲｲ", 5),  # half-width kana, ten when they are full
        ("ㄅㄆㄇㄈ", 2),  # Bopomofo
        ("々〇", 1),
        ("ꆈꌠꁱꇖ", 2),  # Yi
        ("𗀀𗀁", 1),  # Tangut
        ("𛅰𛅱", 1),  # Nushu
        ("𰀀𱍐𲀀𳀀", 2),  # Han
        ("བོད་ཡིག་གི་", 3),  # Tibetan
        ("ꦱꦥꦤꦏꦠꦫꦱꦥꦤꦏ", 2),  # Javanese
        ("ລາວລາ", 1),
        ("ភាសាខ", 1),
        ("ꩠꩡꩢꩣꩤ", 1),  # of Burmese, extended
        ("ᨠᨡᨢᨣᨤ", 1),  # Tai Tham
        ("한국어 단어", 2),  # Korean has blanks
        ("भारत है", 2),
        ("⚠ ❶ x", 3),
    ],
)
def test_words_by_characters_in_every_script_without_blanks(text, words):
    assert clean.count_words(text) == words


FORMS = [
    ("en-ja", "Sony TV is new.", "ＳｏｎｙのＴＶは新しい。"),
    ("en-ja", "It is nice today.", "ｷｮｳﾊﾃﾝｷｶﾞｲｲﾃﾞｽ"),
    ("en-ja", "A new company.", "㈱ソニーの新しい会社です。"),
    ("en-fr", "The ofﬁce is ofﬂine.", "Le bureau est hors ligne."),
    ("en-fr", "A ﬁnal eﬀect.", "Un effet final déﬁni."),
    ("en-fr", "It is 5 µm long.", "Il mesure 5 μm."),
    ("en-de", "Some 10 kΩ are here.", "Hier sind 10 kΩ davon."),
    ("en-de", "At 273 K it is cold.", "Bei 273 K ist es kalt."),
    ("en-ar", "Peace be with you.", "ﺳﻼﻡ ﻋﻠﻴﻜﻢ ﺎﻟﺑﻴﺖ"),
    ("en-ko", "It is Korean text.", "한국어 텍스트 글"),
    ("ru-uk", "пункт № 5 статьи", "пункт № 5 статті"),
]


@pytest.mark.parametrize(("languages", "source", "target"), FORMS)
def test_forms_of_letters_are_these_letters(languages, source, target):
    pair = tuple(languages.split("-"))
    filters = make_filters(
        dict.fromkeys(("length", "ratio", "letters", "identical", "numbers", "characters")), pair
    )
    assert clean.first_failing_filter((source, target), filters) is None
    assert filters["identical"]((target, unicodedata.normalize("NFKC", target)))


def test_other_letters_stay_foreign_in_any_form():
    characters = make_filters({"characters": None}, ("en", "fr"))["characters"]
    for foreign in ("Δ", "ﾊ", "ﭏ", "你", "äő", "𝚫Δ", "№ Ж"):
        assert characters(("a word", f"un mot {foreign}"))


def test_soft_hyphens_are_neither_words_nor_signs():
    pair = ("A re­sponsi­bili­ty.", "U­n­e re­spon­sa­bi­li­té.")
    assert not clean.mostly_not_letters(pair, share=0.9)
    assert not clean.mostly_not_letters(("1 2", "..."), share=0)
    assert clean.mostly_not_letters(("", "a"), share=0)
    assert clean.count_words(pair[1]) == 2


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("１，０００円", "1,000 yen"), False),
        (("5 m²", "5 m2"), False),
        (("5 m²", "5 square metres"), False),
        (("half an hour", "½ Stunde"), False),
        (("① one", "1. one"), False),
        (("1,000 files", "1 000 fichiers"), False),
        (("10,000,000.5 euros", "10 000 000,5 euros"), False),
        (("4 of 12", "4 12"), False),
        (("1,000 files", "1.000 Dateien"), False),
        (("3.5 km in 2 days", "2 jours, 3,5 km"), False),
        (("on 12/05/2003 at 10:30", "am 12.05.2003 um 10.30"), False),
        (("on 12/05/2003", "am 12.06.2003"), True),
        (("page 12", "page 21"), True),
        (("page 12", "page"), True),
        (("٣ files", "3 files"), False),
        (("none", "aucun"), False),
    ],
)
def test_numbers(pair, expected):
    assert clean.numbers_differ(pair) is expected


def test_identical_but_for_case_punctuation_and_digits():
    assert clean.identical(("Firefox 3!", "firefox 4"))
    assert not clean.identical(("Hand", "Main"))
    assert clean.comparable("  Ｆull-width, É２ ") == "full width é0"
    assert clean.comparable("लड़की आती है!") != clean.comparable("लड़का आता है")
    assert clean.comparable("...") != clean.comparable("!!!")
    assert clean.comparable("كِتَـاب") == clean.comparable("كتاب")
    assert clean.comparable("Page 5") == clean.comparable("page 7!") != clean.comparable("page 12")
    assert clean.comparable("e-mail") == clean.comparable("E mail") != clean.comparable("email")


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("Știința este frumoasă", "Ştiinţa este frumoasă"),
        ("Ещё один ёж", "ЕЩЕ ОДИН ЕЖ"),
        ("Η Αθήνα είναι μεγάλη", "Η ΑΘΗΝΑ ΕΙΝΑΙ ΜΕΓΑΛΗ"),
        ("كتب أحمد إلى الإمام", "كتب احمد الى الامام"),
        ("کتاب یک", "كتاب يك"),
        ("ılık su", "ILIK SU"),
        ("l’œuvre", "L'oeuvre"),
        ("लड़का हूँ", "लडका हूं"),
        ("שָׁלוֹם", "שלום"),
        ("แม่น้ำ", "เเม่นํ้า"),
        ("hoà bình", "HÒA BÌNH"),
    ],
)
def test_spellings_that_folded_models_read_alike_are_equal(text, spelling):
    assert clean.comparable(text) == clean.comparable(spelling) != clean.comparable(f"{text} x")


def test_alphabets_of_many_languages_hold_their_own_text():
    own = {"fr": "Où est-ce qu'il naît, 2 œufs ?", "ru": "Ёлка, съешь!", "el": "Καλημέρα κόσμε"}
    own |= {"zh": "他说：你好。", "ja": "カタカナと漢字"}
    assert len(clean.alphabets()) > 60
    for language, text in own.items():
        assert clean.foreign_letter(language)(text) is None, language
    for language in clean.alphabets():
        assert clean.foreign_letter(language)("12 + 3 = 15 … ½ (²) %") is None
        assert re.compile(f"[{clean.alphabets()[language]}]")
    assert clean.foreign_letter("en", "ru")("Привет all") is None
    for languages, text, foreign in (
        ("en-fr", "Привет", "П"),
        ("en-fr", "ein Wort 中", "中"),
        ("en-de", "Łódź", "Ł"),
    ):
        assert clean.foreign_letter(*languages.split("-"))(text)[0] == foreign


def test_a_language_that_a_filter_does_not_know_is_refused():
    with pytest.raises(InputError, match=r"\btlh\b.*\baf, ar"):
        make_filters({"characters": {}}, ("en", "tlh"))
    with pytest.raises(InputError, match=r"\bzh\b.*\bar, bg.*py3langid"):
        make_filters({"language": {}}, ("en", "zh"))


def test_stop_words_tell_the_languages_of_a_pair_apart():
    assert by_stop_words("the house of the king", "en", "fr")
    assert not by_stop_words("la maison de la reine et du roi", "en", "fr")
    assert by_stop_words("no such word", "en", "fr")


def test_language_identification_by_other_means():
    pytest.importorskip("py3langid")
    check = language_check("py3langid")
    assert check("This is certainly an English sentence about the weather.", "en", "fr")
    assert not check(
        "Ceci est certainement une phrase française sur le temps qu'il fait.", "en", "fr"
    )
    with pytest.raises(InputError, match=r"'lid\.bin'"):
        language_check("lid.bin")


def test_filters_in_order_with_options():
    filters = make_filters(clean.MESSAGE_FILTERS, ("en", "fr"))
    objections = {
        ("one two three", "un deux trois"): None,
        ("one", "un"): "length",
        ("one two three", "one two three!"): "identical",
        ("one two three", "un " * 20): "ratio",
        ("1 2 3 4", "5 6 7 8"): "letters",
    }
    assert {pair: clean.first_failing_filter(pair, filters) for pair in objections} == objections
    milder = make_filters(
        {"length": {"shortest": 1}, "language": {"method": "stopwords"}}, ("en", "fr")
    )
    assert clean.first_failing_filter(("one", "un"), milder) is None
    assert clean.first_failing_filter(("le chat et la souris", "un chat"), milder) == "language"


def test_filters_run_in_the_order_in_which_they_are_named(tmp_path):
    """The help says so, and what is dropped is counted under the first."""
    toy.write(tmp_path / "text", [*toy.sentences(100), ("word " * 70, "mot")])
    sizes = (
        "--data",
        tmp_path / "text",
        "--until",
        "clean",
        "--valid-size",
        5,
        "--test-size",
        5,
        "--workers",
        1,
    )
    for names in itertools.permutations(("length", "ratio")):
        done = lxsr_here(
            "prepare", "--work", tmp_path / names[0], *sizes, "--filters", ",".join(names)
        )
        assert f"dropped: 1 {names[0]}\n" in done.stdout
    said = " ".join(lxsr_here("prepare", "--help").stdout.split())
    assert "identical, numbers, characters, language, in the order" in said


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("identical,length", {"identical": {}, "length": {}}),
        ("length:shortest=1:longest=80", {"length": {"shortest": 1, "longest": 80}}),
        ("ratio:ratio=1.5", {"ratio": {"ratio": 1.5}}),
        (
            "identical,language:method=py3langid",
            {"identical": {}, "language": {"method": "py3langid"}},
        ),
        ("", {}),
    ],
)
def test_options_of_filters_on_the_command_line(text, filters):
    assert filters_named(text) == filters
    make_filters(filters, ("en", "fr"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length:longest", "'length'.*'longest'.*OPTION=VALUE"),
        ("length:longest=many", "longest 'many'"),
        ("length:min=1", "'length'.*'min'.*shortest"),
        ("language:method=lid.bin", r"'lid\.bin'"),
    ],
)
def test_wrong_options_of_filters_on_the_command_line(text, message):
    with pytest.raises(InputError, match=message):
        make_filters(filters_named(text), ("en", "fr"))


def test_the_message_for_a_language_without_stop_words_names_an_option_that_works(tmp_path):
    """Galician has no stop words."""
    pytest.importorskip("py3langid")
    english = "This is certainly an English sentence about the weather of today."
    galician = "Esta é certamente unha frase en galego sobre o tempo que fai hoxe na miña terra."
    pairs = [(f"{english} {n * 'x'}", f"{galician} {n * 'x'}") for n in range(8)]
    toy.write(tmp_path / "text", [*pairs, (galician, english)], ("en", "gl"))
    command = ["prepare", "--work", tmp_path / "work", "--lang-pairs", "en-gl"]
    command += ["--data", tmp_path / "text", "--until", "clean", "--workers", 1, "--filters"]
    refused = lxsr_here(*command, "identical,language", check=False)
    assert refused.returncode == 2
    named = re.search(r"language:method=py3langid", refused.stderr)[0]
    assert "dropped: 1 language\n" in lxsr_here(*command, f"identical,{named}").stdout


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"lenght": {}}, "filter 'lenght'.*length"),
        ({"length": {"min": 1}}, "filter 'length': .*'min'.*shortest"),
        ({"length": {"longest": "80"}}, "longest '80'"),
        ({"length": {"longest": 1, "shortest": 2}}, "shortest 2 .*longest 1"),
        ({"characters": {"find": "x"}}, "filter 'characters': .*'find'"),
        ({"language": {"method": 5}}, "method 5.*stopwords, py3langid"),
    ],
)
def test_unknown_filters_and_options(chosen, message):
    with pytest.raises(InputError, match=message):
        make_filters(chosen, ("en", "fr"))
