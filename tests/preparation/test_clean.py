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
        pytest.param("_Open file...", "Open file", id="key of a menu, dots"),
        pytest.param("Save &As", "Save As", id="key of a menu, other mark"),
        pytest.param("開く(_O)", "開く", id="key of a menu, Japanese"),
        pytest.param("cannot open '%s': %s\n", "cannot open", id="quoted values"),
        pytest.param("%d of %d files copied", "of files copied", id="numbers"),
        pytest.param("<b>Warning:</b> %(name)s &amp; more", "Warning: & more", id="HTML, name"),
        pytest.param("use ${HOME} or {0}", "use or", id="variables"),
        pytest.param("\\tone\\ntwo", "one two", id="escaped blanks"),
        # These signs mean nothing here.
        pytest.param("a snake_case name", "a snake_case name", id="underscore in a word"),
        pytest.param("100% sure of it", "100% sure of it", id="percent sign"),
    ],
)
def test_a_message_is_reduced_to_its_words(message, words):
    assert clean.strip_message(message) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", 0, id="empty"),
        pytest.param("two words", 2, id="English"),
        # These scripts have blanks between words.
        pytest.param("한국어 단어", 2, id="Korean"),
        pytest.param("भारत है", 2, id="Hindi"),
        pytest.param("⚠ ❶ x", 3, id="signs"),
    ],
)
def test_words_between_blanks_are_counted(text, words):
    assert clean.count_words(text) == words


# Two characters of these scripts count as a word, rounded up.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("日本語ですよ", 6 / 2, id="Japanese"),
        pytest.param("日本語 abc", 4 / 2 + 1, id="Japanese and a word"),
        pytest.param("これは日本語です", 8 / 2, id="Japanese without Chinese characters"),
        # Some of these 11 characters are marks; in full width, they are ten.
        pytest.param("ｷｮｳﾊﾃﾝｷｶﾞｲｲ", 10 / 2, id="half-width kana"),
        pytest.param("ㄅㄆㄇㄈ", 4 / 2, id="Bopomofo"),
        pytest.param("々〇", 2 / 2, id="Chinese signs"),
        pytest.param("ꆈꌠꁱꇖ", 4 / 2, id="Yi"),
        pytest.param("𗀀𗀁", 2 / 2, id="Tangut"),
        pytest.param("𛅰𛅱", 2 / 2, id="Nushu"),
        pytest.param("𰀀𱍐𲀀𳀀", 4 / 2, id="rare Chinese characters"),
    ],
)
def test_two_characters_count_as_a_word_in_east_asian_scripts_without_blanks(text, words):
    assert clean.count_words(text) == words


# Five characters of these scripts count as a word, rounded up.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("ไม่มีอะไรจะพูด", 3, id="Thai, 14"),
        pytest.param("မင်္ဂလာပါ", 2, id="Burmese, 9"),
        pytest.param("ꩠꩡꩢꩣꩤ", 1, id="Burmese extended, 5"),
        pytest.param("བོད་ཡིག་གི་", 3, id="Tibetan, 11"),
        pytest.param("ꦱꦥꦤꦏꦠꦫꦱꦥꦤꦏ", 2, id="Javanese, 10"),
        pytest.param("ລາວລາ", 1, id="Lao, 5"),
        pytest.param("ភាសាខ", 1, id="Khmer, 5"),
        pytest.param("ᨠᨡᨢᨣᨤ", 1, id="Tai Tham, 5"),
    ],
)
def test_five_characters_count_as_a_word_in_southeast_asian_scripts_without_blanks(text, words):
    assert clean.count_words(text) == words


def test_lengths_differ_if_a_side_has_more_than_three_times_the_words():
    three_words = "a b c"

    assert not clean.lengths_differ((three_words, "a " * 9))
    assert clean.lengths_differ((three_words, "a " * 10))


@pytest.mark.parametrize(
    ("pair", "is_mostly_not_letters"),
    [
        pytest.param(("0x1f 0x2e --", "some words here"), True, id="numbers"),
        pytest.param(("", "words"), True, id="empty side"),
        pytest.param(("some words here", "quelques mots ici"), False, id="words"),
        pytest.param(("लड़की आती है", "ไม่มีอะไรจะพูด"), False, id="vowel signs, part of letters"),
    ],
)
def test_pairs_with_a_side_of_mostly_other_characters_than_letters_are_recognised(
    pair, is_mostly_not_letters
):
    assert clean.mostly_not_letters(pair) is is_mostly_not_letters


PAIRS_WITH_VARIANTS_OF_LETTERS = [
    pytest.param("en-ja", "Sony TV is new.", "ＳｏｎｙのＴＶは新しい。", id="full-width Latin"),
    pytest.param("en-ja", "It is nice today.", "ｷｮｳﾊﾃﾝｷｶﾞｲｲﾃﾞｽ", id="half-width kana"),
    pytest.param("en-ja", "A new company.", "㈱ソニーの新しい会社です。", id="sign of companies"),
    pytest.param("en-fr", "The ofﬁce is ofﬂine.", "Le bureau est hors ligne.", id="ligature left"),
    pytest.param("en-fr", "A ﬁnal eﬀect.", "Un effet final déﬁni.", id="ligatures in both"),
    pytest.param("en-fr", "It is 5 µm long.", "Il mesure 5 μm.", id="micro sign, Greek mu"),
    pytest.param("en-de", "Some 10 kΩ are here.", "Hier sind 10 kΩ davon.", id="ohm sign, omega"),
    pytest.param("en-de", "At 273 K it is cold.", "Bei 273 K ist es kalt.", id="kelvin sign, K"),
    pytest.param("en-ar", "Peace be with you.", "ﺳﻼﻡ ﻋﻠﻴﻜﻢ ﺎﻟﺑﻴﺖ", id="Arabic final forms"),
    pytest.param("en-ko", "It is Korean text.", "한국어 텍스트 글", id="Korean in letters"),
    pytest.param("ru-uk", "пункт № 5 статьи", "пункт № 5 статті", id="numero sign"),
]


@pytest.mark.parametrize(("languages", "source", "target"), PAIRS_WITH_VARIANTS_OF_LETTERS)
def test_pairs_with_full_width_letters_ligatures_and_units_pass_all_filters(
    languages, source, target
):
    names = ("length", "ratio", "letters", "identical", "numbers", "characters")
    filters = make_filters(dict.fromkeys(names), tuple(languages.split("-")))

    assert clean.first_failing_filter((source, target), filters) is None


@pytest.mark.parametrize(("languages", "source", "target"), PAIRS_WITH_VARIANTS_OF_LETTERS)
def test_a_text_is_identical_to_its_normal_form(languages, source, target):
    normal_form = unicodedata.normalize("NFKC", target)

    assert clean.identical((target, normal_form))


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param("Δ", id="Greek"),
        pytest.param("ﾊ", id="half-width kana"),
        pytest.param("ﭏ", id="Hebrew ligature"),
        pytest.param("你", id="Chinese"),
        pytest.param("äő", id="Hungarian"),
        # Signs that may occur in French, before letters that may not.
        pytest.param("𝚫Δ", id="Greek after a mathematical letter"),
        pytest.param("№ Ж", id="Russian after a sign"),
    ],
)
def test_letters_that_neither_language_has_are_foreign_in_any_form(foreign):
    has_foreign_letters = make_filters({"characters": None}, ("en", "fr"))["characters"]

    assert has_foreign_letters(("a word", f"un mot {foreign}"))


def test_soft_hyphens_are_ignored():
    pair = ("A re\xadsponsi\xadbili\xadty.", "U\xadn\xade re\xadspon\xadsa\xadbi\xadli\xadté.")

    # Other characters than letters are one of ten, and words are those between blanks.
    assert not clean.mostly_not_letters(pair, share=0.9)
    assert clean.count_words(pair[1]) == 2


def test_a_pair_without_letters_passes_a_share_of_0_unless_a_side_is_empty():
    assert not clean.mostly_not_letters(("1 2", "..."), share=0)
    assert clean.mostly_not_letters(("", "a"), share=0)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(("1,000 files", "1 000 fichiers"), id="thousands with blank"),
        pytest.param(("1,000 files", "1.000 Dateien"), id="thousands with stop"),
        pytest.param(("１，０００円", "1,000 yen"), id="full width"),
        pytest.param(("10,000,000.5 euros", "10 000 000,5 euros"), id="decimals"),
        pytest.param(("3.5 km in 2 days", "2 jours, 3,5 km"), id="other order"),
        pytest.param(("4 of 12", "4 12"), id="two numbers with a blank"),
        pytest.param(("on 12/05/2003 at 10:30", "am 12.05.2003 um 10.30"), id="date and time"),
        pytest.param(("5 m²", "5 m2"), id="exponent as digit"),
        pytest.param(("5 m²", "5 square metres"), id="exponent as word"),
        pytest.param(("half an hour", "½ Stunde"), id="fraction"),
        pytest.param(("① one", "1. one"), id="circled"),
        pytest.param(("٣ files", "3 files"), id="Arabic digit"),
        pytest.param(("none", "aucun"), id="no numbers"),
    ],
)
def test_equal_numbers_in_any_notation_do_not_differ(pair):
    assert not clean.numbers_differ(pair)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(("on 12/05/2003", "am 12.06.2003"), id="another month"),
        pytest.param(("page 12", "page 21"), id="same digits"),
        pytest.param(("page 12", "page"), id="missing"),
    ],
)
def test_other_and_missing_numbers_differ(pair):
    assert clean.numbers_differ(pair)


def test_sides_are_identical_if_they_differ_in_case_punctuation_and_digits():
    assert clean.identical(("Firefox 3!", "firefox 4"))


def test_sides_with_different_words_are_not_identical():
    assert not clean.identical(("Hand", "Main"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("Page 5", "page 7!", id="case, digits and punctuation"),
        pytest.param("e-mail", "E mail", id="hyphen as blank"),
        pytest.param("Ｆull-width, É２ ", "full width é2", id="full width"),
        pytest.param("كِتَـاب", "كتاب", id="Arabic vowels and lengthening"),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_marks(first, second):
    assert clean.comparable(first) == clean.comparable(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("Page 5", "page 12", id="number of digits"),
        pytest.param("e-mail", "email", id="blank"),
        pytest.param("लड़की आती है!", "लड़का आता है", id="Indic vowel signs"),
        pytest.param("...", "!!!", id="punctuation alone"),
    ],
)
def test_texts_with_different_words_are_compared_as_different(first, second):
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
def test_spellings_that_folded_models_read_alike_are_compared_as_equal(text, spelling):
    assert clean.comparable(text) == clean.comparable(spelling)
    # Folding leaves words to compare.
    assert clean.comparable(text) != clean.comparable(f"{text} x")


@pytest.mark.parametrize(
    ("languages", "text"),
    [
        (["fr"], "Où est-ce qu'il naît, 2 œufs ?"),
        (["ru"], "Ёлка, съешь!"),
        (["el"], "Καλημέρα κόσμε"),
        (["zh"], "他说：你好。"),
        (["ja"], "カタカナと漢字"),
        (["en", "ru"], "Привет all"),
    ],
)
def test_letters_of_the_languages_of_a_text_are_not_foreign(languages, text):
    assert clean.foreign_letter(*languages)(text) is None


@pytest.mark.parametrize("language", clean.alphabets())
def test_digits_and_signs_belong_to_every_alphabet(language):
    assert clean.foreign_letter(language)("12 + 3 = 15 … ½ (²) %") is None


def test_the_first_foreign_letter_is_returned():
    assert clean.foreign_letter("en", "fr")("Привет")[0] == "П"
    assert clean.foreign_letter("en", "fr")("ein Wort 中")[0] == "中"
    assert clean.foreign_letter("en", "de")("Łódź")[0] == "Ł"


def test_a_language_without_an_alphabet_is_refused_with_the_list_of_languages():
    klingon = "tlh"

    with pytest.raises(InputError, match=rf"\b{klingon}\b.*\baf, ar"):
        make_filters({"characters": {}}, ("en", klingon))


def test_a_language_without_stop_words_is_refused_with_the_list_of_languages_and_a_method():
    with pytest.raises(InputError, match=r"\bzh\b.*\bar, bg.*py3langid"):
        make_filters({"language": {}}, ("en", "zh"))


def test_a_sentence_is_of_another_language_if_it_has_more_of_its_stop_words():
    assert by_stop_words("the house of the king", "en", "fr")
    assert not by_stop_words("la maison de la reine et du roi", "en", "fr")


def test_a_sentence_without_stop_words_is_of_the_expected_language():
    assert by_stop_words("no such word", "en", "fr")


def test_languages_are_identified_by_py3langid():
    pytest.importorskip("py3langid")
    is_in_language = language_check("py3langid")
    english = "This is certainly an English sentence about the weather."
    french = "Ceci est certainement une phrase française sur le temps qu'il fait."

    assert is_in_language(english, "en", "fr")
    assert not is_in_language(french, "en", "fr")


def test_a_missing_model_of_languages_is_named():
    with pytest.raises(InputError, match=r"'lid\.bin'"):
        language_check("lid.bin")


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        (("one two three", "un deux trois"), None),
        (("one", "un"), "length"),
        (("one two three", "one two three!"), "identical"),
        (("one two three", "un " * 20), "ratio"),
        (("1 2 3 4", "5 6 7 8"), "letters"),
    ],
)
def test_the_first_filter_of_messages_that_a_pair_fails_is_named(pair, name):
    filters = make_filters(clean.MESSAGE_FILTERS, ("en", "fr"))

    assert clean.first_failing_filter(pair, filters) == name


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        # The usual filter would want three words.
        (("one", "un"), None),
        # A French sentence as English text.
        (("le chat et la souris", "un chat"), "language"),
    ],
)
def test_options_of_filters_decide_which_filter_a_pair_fails(pair, name):
    options = {"length": {"shortest": 1}, "language": {"method": "stopwords"}}
    filters = make_filters(options, ("en", "fr"))

    assert clean.first_failing_filter(pair, filters) == name


@pytest.mark.parametrize(("first", "second"), [("length", "ratio"), ("ratio", "length")])
def test_a_dropped_pair_is_counted_under_the_first_filter_that_it_fails(tmp_path, first, second):
    """The filters run in the order in which they are named."""
    pair_that_fails_both = ("word " * 70, "mot")
    toy.write(tmp_path / "text", [*toy.sentences(100), pair_that_fails_both])
    command = ["prepare", "--data", tmp_path / "text", "--work", tmp_path / "work"]
    command += ["--until", "clean", "--workers", 1, "--valid-size", 5, "--test-size", 5]

    result = lxsr_here(*command, "--filters", f"{first},{second}")

    assert f"dropped: 1 {first}\n" in result.stdout


def test_the_help_says_in_which_order_filters_run():
    help_text = " ".join(lxsr_here("prepare", "--help").stdout.split())

    assert "identical, numbers, characters, language, in the order" in help_text


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        pytest.param("", {}, id="none"),
        pytest.param("identical,length", {"identical": {}, "length": {}}, id="no options"),
        pytest.param(
            "length:shortest=1:longest=80",
            {"length": {"shortest": 1, "longest": 80}},
            id="two integers",
        ),
        pytest.param("ratio:ratio=1.5", {"ratio": {"ratio": 1.5}}, id="decimal number"),
        pytest.param(
            "identical,language:method=py3langid",
            {"identical": {}, "language": {"method": "py3langid"}},
            id="text",
        ),
    ],
)
def test_options_of_filters_are_read_from_the_command_line(text, filters):
    options = filters_named(text)

    assert options == filters
    # They are valid options.
    make_filters(options, ("en", "fr"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("length:longest", "'length'.*'longest'.*OPTION=VALUE", id="no value"),
        pytest.param("length:longest=many", "longest 'many'", id="no number"),
        # The message names the options that exist.
        pytest.param("length:min=1", "'length'.*'min'.*shortest", id="unknown option"),
        pytest.param("language:method=lid.bin", r"'lid\.bin'", id="missing model"),
    ],
)
def test_a_wrong_option_of_a_filter_on_the_command_line_is_named(text, message):
    with pytest.raises(InputError, match=message):
        make_filters(filters_named(text), ("en", "fr"))


def test_the_message_for_a_language_without_stop_words_names_an_option_that_works(tmp_path):
    """Galician has no stop words.

    The text has eight pairs and one whose languages are exchanged.
    """
    pytest.importorskip("py3langid")
    english = "This is certainly an English sentence about the weather of today."
    galician = "Esta é certamente unha frase en galego sobre o tempo que fai hoxe na miña terra."
    pairs = [(f"{english} {n * 'x'}", f"{galician} {n * 'x'}") for n in range(8)]
    toy.write(tmp_path / "text", [*pairs, (galician, english)], ("en", "gl"))
    command = ["prepare", "--work", tmp_path / "work", "--lang-pairs", "en-gl"]
    command += ["--data", tmp_path / "text", "--until", "clean", "--workers", 1, "--filters"]

    refused = lxsr_here(*command, "identical,language", check=False)
    suggestion = "language:method=py3langid"
    done = lxsr_here(*command, f"identical,{suggestion}")

    assert refused.returncode == 2
    assert suggestion in refused.stderr
    assert "dropped: 1 language\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # The message names the filters or options that exist.
        pytest.param({"lenght": {}}, "filter 'lenght'.*length", id="unknown filter"),
        pytest.param(
            {"length": {"min": 1}}, "filter 'length': .*'min'.*shortest", id="unknown option"
        ),
        pytest.param(
            {"characters": {"find": "x"}}, "filter 'characters': .*'find'", id="filter without any"
        ),
        pytest.param({"length": {"longest": "80"}}, "longest '80'", id="text for a number"),
        pytest.param(
            {"length": {"longest": 1, "shortest": 2}}, "shortest 2 .*longest 1", id="no length left"
        ),
        pytest.param(
            {"language": {"method": 5}}, "method 5.*stopwords, py3langid", id="unknown method"
        ),
    ],
)
def test_unknown_filters_and_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        make_filters(options, ("en", "fr"))
