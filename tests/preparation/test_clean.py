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
def test_a_message_is_reduced_to_its_words(message, words):
    assert clean.strip_message(message) == words


def test_words_of_scripts_without_spaces_are_counted_by_their_characters():
    assert clean.count_words("two words") == 2
    # Two characters of Chinese or Japanese count as a word.
    assert clean.count_words("日本語 abc") == 3
    assert clean.count_words("これは日本語です") == 4
    # Five characters of Thai count as a word.
    assert clean.count_words("ไม่มีอะไรจะพูด") == 3
    assert clean.count_words("မင်္ဂလာပါ") == 2
    assert clean.count_words("") == 0


def test_lengths_differ_from_a_ratio_on():
    assert not clean.lengths_differ(("a b c", "a b c d e f g h i"))
    assert clean.lengths_differ(("a b c", "a " * 10))


def test_pairs_of_which_a_side_is_mostly_not_letters_are_recognised():
    assert clean.mostly_not_letters(("0x1f 0x2e --", "some words here"))
    assert clean.mostly_not_letters(("", "words"))
    assert not clean.mostly_not_letters(("some words here", "quelques mots ici"))
    # Vowel signs belong to letters.
    assert not clean.mostly_not_letters(("लड़की आती है", "ไม่มีอะไรจะพูด"))


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
def test_words_are_counted_in_every_script_without_spaces(text, words):
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
def test_full_width_letters_and_ligatures_count_as_letters_of_the_language(
    languages, source, target
):
    pair = tuple(languages.split("-"))
    names = ("length", "ratio", "letters", "identical", "numbers", "characters")
    filters = make_filters(dict.fromkeys(names), pair)
    assert clean.first_failing_filter((source, target), filters) is None
    assert filters["identical"]((target, unicodedata.normalize("NFKC", target)))


def test_foreign_letters_are_foreign_in_any_form():
    characters = make_filters({"characters": None}, ("en", "fr"))["characters"]
    for foreign in ("Δ", "ﾊ", "ﭏ", "你", "äő", "𝚫Δ", "№ Ж"):
        assert characters(("a word", f"un mot {foreign}"))


def test_soft_hyphens_are_ignored():
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
def test_numbers_are_compared_in_any_notation(pair, expected):
    assert clean.numbers_differ(pair) is expected


def test_sides_are_identical_if_they_differ_in_case_punctuation_and_digits():
    assert clean.identical(("Firefox 3!", "firefox 4"))
    assert not clean.identical(("Hand", "Main"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Page 5", "page 7!"),
        # A hyphen is a blank.
        ("e-mail", "E mail"),
        ("Ｆull-width, É２ ", "full width é2"),
        # Arabic vowel points and the tatweel.
        ("كِتَـاب", "كتاب"),
    ],
)
def test_texts_that_are_compared_as_equal(first, second):
    assert clean.comparable(first) == clean.comparable(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The number of digits counts.
        ("Page 5", "page 12"),
        ("e-mail", "email"),
        # Indic vowel signs.
        ("लड़की आती है!", "लड़का आता है"),
        # Texts of punctuation alone.
        ("...", "!!!"),
    ],
)
def test_texts_that_are_compared_as_different(first, second):
    assert clean.comparable(first) != clean.comparable(second)


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


def test_text_has_only_letters_of_the_alphabet_of_its_language():
    texts = {
        "fr": "Où est-ce qu'il naît, 2 œufs ?",
        "ru": "Ёлка, съешь!",
        "el": "Καλημέρα κόσμε",
        "zh": "他说：你好。",
        "ja": "カタカナと漢字",
    }
    for language, text in texts.items():
        assert clean.foreign_letter(language)(text) is None, language
    assert clean.foreign_letter("en", "ru")("Привет all") is None


def test_digits_and_signs_belong_to_every_alphabet():
    assert len(clean.alphabets()) > 60
    for language, alphabet in clean.alphabets().items():
        assert clean.foreign_letter(language)("12 + 3 = 15 … ½ (²) %") is None
        assert re.compile(f"[{alphabet}]")


def test_the_first_foreign_letter_is_named():
    assert clean.foreign_letter("en", "fr")("Привет")[0] == "П"
    assert clean.foreign_letter("en", "fr")("ein Wort 中")[0] == "中"
    assert clean.foreign_letter("en", "de")("Łódź")[0] == "Ł"


def test_a_language_that_a_filter_does_not_support_is_refused():
    with pytest.raises(InputError, match=r"\btlh\b.*\baf, ar"):
        make_filters({"characters": {}}, ("en", "tlh"))
    with pytest.raises(InputError, match=r"\bzh\b.*\bar, bg.*py3langid"):
        make_filters({"language": {}}, ("en", "zh"))


def test_stop_words_tell_the_languages_of_a_pair_apart():
    assert by_stop_words("the house of the king", "en", "fr")
    assert not by_stop_words("la maison de la reine et du roi", "en", "fr")
    assert by_stop_words("no such word", "en", "fr")


def test_languages_are_identified_by_py3langid():
    pytest.importorskip("py3langid")
    check = language_check("py3langid")
    english = "This is certainly an English sentence about the weather."
    french = "Ceci est certainement une phrase française sur le temps qu'il fait."
    assert check(english, "en", "fr")
    assert not check(french, "en", "fr")
    with pytest.raises(InputError, match=r"'lid\.bin'"):
        language_check("lid.bin")


def test_the_first_failing_filter_is_named():
    filters = make_filters(clean.MESSAGE_FILTERS, ("en", "fr"))
    objections = {
        ("one two three", "un deux trois"): None,
        ("one", "un"): "length",
        ("one two three", "one two three!"): "identical",
        ("one two three", "un " * 20): "ratio",
        ("1 2 3 4", "5 6 7 8"): "letters",
    }
    for pair, name in objections.items():
        assert clean.first_failing_filter(pair, filters) == name
    options = {"length": {"shortest": 1}, "language": {"method": "stopwords"}}
    filters = make_filters(options, ("en", "fr"))
    assert clean.first_failing_filter(("one", "un"), filters) is None
    assert clean.first_failing_filter(("le chat et la souris", "un chat"), filters) == "language"


def test_filters_run_in_the_order_in_which_they_are_named(tmp_path):
    """The help says so, and a dropped pair is counted under the first filter that it fails."""
    toy.write(tmp_path / "text", [*toy.sentences(100), ("word " * 70, "mot")])
    command = ["prepare", "--data", tmp_path / "text", "--until", "clean", "--workers", 1]
    command += ["--valid-size", 5, "--test-size", 5]
    for first, second in (("length", "ratio"), ("ratio", "length")):
        result = lxsr_here(*command, "--work", tmp_path / first, "--filters", f"{first},{second}")
        assert f"dropped: 1 {first}\n" in result.stdout
    help_text = " ".join(lxsr_here("prepare", "--help").stdout.split())
    assert "identical, numbers, characters, language, in the order" in help_text


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
def test_options_of_filters_are_read_from_the_command_line(text, filters):
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
def test_a_wrong_option_of_a_filter_on_the_command_line_is_named(text, message):
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
    suggestion = re.search(r"language:method=py3langid", refused.stderr)[0]
    assert "dropped: 1 language\n" in lxsr_here(*command, f"identical,{suggestion}").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lenght": {}}, "filter 'lenght'.*length"),
        ({"length": {"min": 1}}, "filter 'length': .*'min'.*shortest"),
        ({"length": {"longest": "80"}}, "longest '80'"),
        ({"length": {"longest": 1, "shortest": 2}}, "shortest 2 .*longest 1"),
        ({"characters": {"find": "x"}}, "filter 'characters': .*'find'"),
        ({"language": {"method": 5}}, "method 5.*stopwords, py3langid"),
    ],
)
def test_unknown_filters_and_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        make_filters(options, ("en", "fr"))
