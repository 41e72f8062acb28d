"""What is read away before text is split: mark-up, blanks in Chinese, look-alikes."""

import itertools
import time

import pytest

from fairseq_lxsr.text.tokenizer import TEXT_VERSION, TextOptions, normalise

LATIN_O = "o"


def read(text: str) -> str:
    return normalise(text, TextOptions(version=TEXT_VERSION))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>H</b>i <i>you</i>, now", "Hi you, now"),
        ("<p class='x'>One.</p><P>Two.</P><br/>Three.", "One. Two. Three."),
        ('a <x id="1"/>b</x> <!-- c --> d', "a b d"),
        ("**Bold**, __bold__, *one*, _two_ and ~~no~~", "Bold, bold, one, two and no"),
        ("## A heading", "A heading"),
        ("The #weather is on #Wetter", "The weather is on Wetter"),
        ("| a | b |\n|---|---|", "a b"),
        ("snake_case and a_b_c", "snake case and a b c"),
        ("Water.[1] Ice,[2,3] snow[12].", "Water. Ice, snow."),
        ("[the page](https://a.bc/d) ![one](a.png)", "the page one"),
        ("See https://a.bc/d?e=f_g. Or not", "See . Or not"),
        ("https://a.bc/d is one", "is one"),
        ("\u6211 \u7231\u3000\u5317\u4eac \uff0c \u597d", "\u6211\u7231\u5317\u4eac\uff0c\u597d"),
        ("\u0e20\u0e32\u200b\u0e29\u0e32", "\u0e20\u0e32\u0e29\u0e32"),
    ],
)
def test_what_is_no_text_is_read_away(text, expected):
    assert read(text) == expected
    assert read(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "List<String> and Map<K, V>",
        "a <b and c> d, x < y > z",
        "cp <source> <target>",
        "C#, F# and issue #5",
        "2**3 and 2*3",
        "[1] is the first, a [12] too",
        "a[i](x) and f[0](y)",
        "https://a.bc/d",
        "\u201cHi.\u201d \u201cBye.\u201d",
        "\ud55c\uad6d \ub9d0",
        "well-known -- or not",
    ],
)
def test_what_may_be_text_stays(text):
    assert read(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M\u043e\u0441\u043a\u0432\u0430", "\u041c\u043e\u0441\u043a\u0432\u0430"),
        ("\u043a" + LATIN_O + "\u0442", "\u043a\u043e\u0442"),
        ("\u0441a" + LATIN_O + "\u043d", "\u0441\u0430\u043e\u043d"),
        ("A\u0398\u0397\u039d\u0391", "\u0391\u0398\u0397\u039d\u0391"),
        ("10 k\u0412\u0442", "10 \u043a\u0412\u0442"),
    ],
)
def test_latin_look_alikes_are_letters_of_their_word(text, expected):
    assert read(text) == expected
    lowered = normalise(text, TextOptions(lowercase=True, version=TEXT_VERSION))
    assert lowered == expected.lower()


@pytest.mark.parametrize(
    "text",
    [
        # Greek ohm and micro signs; Cyrillic endings of Latin words; Greek letters in terms.
        "10 k\u03a9, 10 k\u2126, 5 \u03bcm, 5 \u00b5m, 3 M\u2126",
        "iPhone\u043e\u043c \u0438 USB\u0448\u043a\u0430",
        "TNF\u03b1 and \u0394t",
        "e-mail \u0438 Wi-Fi",
    ],
)
def test_units_and_latin_words_stay_latin(text):
    assert read(text) == text


def test_long_texts_take_little_time():
    """A rule whose time is quadratic takes minutes for one of these texts."""
    parts = (
        "<a ",
        "='",
        "<a ='",
        "<",
        "[",
        "](",
        "[[1",
        "*",
        "*a",
        "_",
        "-",
        "https://a",
        "a",
        "#",
        "~",
    )
    parts += ("\u0430", "\u0430a", "aa\u0430", "\u6211 ", '<a ="', "<!--", "http://")
    for first, second in itertools.product(("", "<a "), parts):
        start = time.process_time()
        read(first + second * 30_000)
        assert time.process_time() - start < 2, (first, second)
