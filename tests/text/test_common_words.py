# ruff: noqa: RUF001 (letters of many scripts)
"""The language of a text, guessed from its letters and frequent words."""

import pytest

from fairseq_lxsr.text.common_words import (
    COMMON_WORDS,
    LABELS,
    READ_CHARACTERS,
    guess_language,
    script_of,
)

PARAGRAPHS = {
    "en": "The library is open from Monday to Friday, and the books are on the first floor.",
    "de": "Die Bibliothek ist von Montag bis Freitag geöffnet, und die Bücher sind im ersten Stock.",
    "fr": "La bibliothèque est ouverte du lundi au vendredi, et les livres sont dans la grande salle.",
    "es": "La biblioteca está abierta de lunes a viernes, y los libros están en el primer piso.",
    "it": "La biblioteca è aperta dal lunedì al venerdì, e i libri sono nella sala della torre.",
    "pl": "Biblioteka jest otwarta od poniedziałku do piątku, ale nie w święta, że tak powiem.",
    "fi": "Kirjasto on avoinna maanantaista perjantaihin, mutta ei pyhinä, ja se on myös ilmainen.",
    "tr": "Kütüphane pazartesiden cumaya kadar açık ve bu kitaplar için bir salon var.",
    "ru": "Библиотека открыта с понедельника по пятницу, и книги лежат на первом этаже, но не в зале.",
    "uk": "Бібліотека відкрита з понеділка по п'ятницю, і книги лежать на першому поверсі, але не в залі.",
    "ar": "المكتبة مفتوحة من الاثنين إلى الجمعة، والكتب في القاعة على اليمين.",
    "fa": "کتابخانه از دوشنبه تا جمعه باز است و کتاب ها در سالن بزرگ این ساختمان را دارد.",
    "el": "Η βιβλιοθήκη είναι ανοιχτή από Δευτέρα έως Παρασκευή.",
    "he": "הספרייה פתוחה מיום שני עד יום שישי.",
    "hi": "पुस्तकालय सोमवार से शुक्रवार तक खुला रहता है।",
    "th": "ห้องสมุดเปิดวันจันทร์ถึงวันศุกร์",
    "ja": "図書館は月曜日から金曜日まで開いています。",
    "ko": "도서관은 월요일부터 금요일까지 열려 있습니다.",
    "zh": "图书馆周一至周五开放,书在一楼。",
}


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_the_language_of_a_paragraph_is_guessed(language):
    assert guess_language(PARAGRAPHS[language]) == language


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_the_language_of_a_paragraph_in_capitals_is_guessed(language):
    assert guess_language(PARAGRAPHS[language].upper()) == language


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_only_the_beginning_of_a_long_text_decides_its_language(language):
    beginning = PARAGRAPHS[language].ljust(READ_CHARACTERS, ".")
    longer_chinese_text = "一" * 500

    assert guess_language(beginning + longer_chinese_text) == language


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("42 17 - 3.5 €", id="numbers"),
        pytest.param("\N{ROCKET}", id="emoji"),
        pytest.param("თბილისი", id="Georgian, a script without label"),
    ],
)
def test_a_text_without_letters_of_a_known_script_has_the_empty_label(text):
    assert guess_language(text) == ""


@pytest.mark.parametrize(
    ("text", "script"),
    [
        pytest.param("Part no. AX-55-210", "Latn", id="no frequent word"),
        pytest.param("Größe XL", "Latn", id="no frequent word, with accents"),
        pytest.param("Москва", "Cyrl", id="one Cyrillic word"),
        pytest.param("مرحبا", "Arab", id="one Arabic word"),
        pytest.param("the", "Latn", id="one frequent word is not enough"),
        pytest.param("the and of der und ist", "Latn", id="as much English as German"),
        pytest.param("USB: библиотека открыта", "Cyrl", id="most letters are Cyrillic"),
    ],
)
def test_a_text_whose_language_is_not_clear_has_the_label_of_its_script(text, script):
    assert guess_language(text) == script


@pytest.mark.parametrize(("text", "language"), [("図書館", "zh"), ("カタカナ語", "ja")])
def test_a_single_word_is_japanese_only_if_it_has_kana(text, language):
    assert guess_language(text) == language


def test_labels_are_distinct_and_their_numbers_fit_into_a_byte():
    """An index stores the number of a label in one byte; 0 is the empty label."""
    assert LABELS[0] == ""
    assert len(set(LABELS)) == len(LABELS)
    assert len(LABELS) <= 256


def test_every_language_with_common_words_is_a_label():
    assert set(COMMON_WORDS) <= set(LABELS)


def test_the_script_of_every_label_is_a_label_too():
    for label in LABELS:
        script = script_of(label)

        assert script in LABELS
        assert script_of(script) == script


@pytest.mark.parametrize(
    ("label", "script"),
    [
        pytest.param("en", "Latn", id="Latin"),
        pytest.param("ru", "Cyrl", id="Cyrillic"),
        pytest.param("fa", "Arab", id="Arabic"),
        pytest.param("el", "el", id="the only language of its script"),
        pytest.param("Latn", "Latn", id="a script"),
        pytest.param("", "", id="empty label"),
    ],
)
def test_the_script_of_a_label(label, script):
    assert script_of(label) == script
