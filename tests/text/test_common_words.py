# ruff: noqa: RUF001 (letters of many scripts)
"""The language of a text, guessed from its letters and frequent words."""

import pytest

from fairseq_lxsr.text.common_words import COMMON_WORDS, LABELS, guess_language, script_of

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
    paragraph = PARAGRAPHS[language]
    assert guess_language(paragraph) == language
    assert guess_language(paragraph.upper()) == language
    # Only the first characters are read.
    assert guess_language(paragraph.ljust(400, ".") + "\u4e00" * 500) == language


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("", ""),
        ("42 17 - 3.5 €", ""),
        ("\U0001f680", ""),
        # Letters of a script that is not in the table.
        ("\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8", ""),
        ("Part no. AX-55-210", "Latn"),
        ("Größe XL", "Latn"),
        ("Москва", "Cyrl"),
        ("مرحبا", "Arab"),
        # As many words of one language as of another.
        ("the and of der und ist", "Latn"),
        # One word is not enough.
        ("the", "Latn"),
        # Most letters decide the script.
        ("USB: библиотека открыта", "Cyrl"),
        ("図書館", "zh"),
        ("カタカナ語", "ja"),
    ],
)
def test_a_text_whose_language_is_not_clear_has_the_label_of_its_script(text, label):
    assert guess_language(text) == label


def test_every_label_has_a_script_that_is_a_label():
    assert LABELS[0] == ""
    assert len(set(LABELS)) == len(LABELS) < 256
    assert set(COMMON_WORDS) <= set(LABELS)
    for label in LABELS:
        script = script_of(label)
        assert script in LABELS
        assert script_of(script) == script
    scripts = {"en": "Latn", "ru": "Cyrl", "fa": "Arab", "el": "el", "Latn": "Latn", "": ""}
    for label, script in scripts.items():
        assert script_of(label) == script
