# ruff: noqa: RUF001 (letters of many scripts)
"""What is read away before text is split: mark-up, blanks in Chinese, look-alikes."""

import itertools
import time

import pytest

from fairseq_lxsr.text.tokenizer import TEXT_VERSION, TextOptions, normalise


def normalise_with_reading(text: str) -> str:
    """Normalize text with the version of new data, the only one that reads mark-up away."""
    return normalise(text, TextOptions(version=TEXT_VERSION))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("<b>H</b>i <i>you</i>, now", "Hi you, now", id="tags in words"),
        pytest.param(
            "<p class='x'>One.</p><P>Two.</P><br/>Three.", "One. Two. Three.", id="tags of blocks"
        ),
        pytest.param('a <x id="1"/>b</x> <!-- c --> d', "a b d", id="unknown tags, comment"),
        pytest.param(
            "**Bold**, __bold__, *one*, _two_ and ~~no~~",
            "Bold, bold, one, two and no",
            id="Markdown emphasis",
        ),
        pytest.param("## A heading", "A heading", id="Markdown heading"),
        pytest.param("| a | b |\n|---|---|", "a b", id="Markdown table"),
        pytest.param(
            "[the page](https://a.bc/d) ![one](a.png)", "the page one", id="Markdown links"
        ),
        pytest.param(
            "The #weather is on #Wetter", "The weather is on Wetter", id="number signs of tags"
        ),
        pytest.param("snake_case and a_b_c", "snake case and a b c", id="underscores"),
        pytest.param("Water.[1] Ice,[2,3] snow[12].", "Water. Ice, snow.", id="footnotes"),
        pytest.param("See https://a.bc/d?e=f_g. Or not", "See . Or not", id="address in a text"),
        pytest.param("https://a.bc/d is one", "is one", id="address first"),
        pytest.param("我 爱\u3000北京 ， 好", "我爱北京，好", id="blanks in Chinese"),
        pytest.param("ภา\u200bษา", "ภาษา", id="zero-width space in Thai"),
    ],
)
def test_what_is_no_text_is_read_away_and_a_second_reading_changes_nothing(text, expected):
    first_reading = normalise_with_reading(text)
    second_reading = normalise_with_reading(first_reading)

    assert first_reading == expected
    assert second_reading == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("List<String> and Map<K, V>", id="types, no tags"),
        pytest.param("a <b and c> d, x < y > z", id="comparisons, no tags"),
        pytest.param("cp <source> <target>", id="names of arguments, no tags"),
        pytest.param("C#, F# and issue #5", id="number signs"),
        pytest.param("2**3 and 2*3", id="powers and products, no emphasis"),
        pytest.param("[1] is the first, a [12] too", id="numbers that follow no word"),
        pytest.param("a[i](x) and f[0](y)", id="code, no links"),
        pytest.param("https://a.bc/d", id="address without other text"),
        pytest.param("“Hi.” “Bye.”", id="blank between quotes"),
        pytest.param("한국 말", id="blank in Korean"),
        pytest.param("well-known -- or not", id="hyphen and dash"),
    ],
)
def test_what_may_be_text_stays(text):
    assert normalise_with_reading(text) == text


LATIN_A = "a"
LATIN_CAPITAL_A = "A"
LATIN_CAPITAL_M = "M"
LATIN_K = "k"
LATIN_O = "o"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(LATIN_CAPITAL_M + "осква", "Москва", id="Russian, first letter"),
        pytest.param("к" + LATIN_O + "т", "кот", id="Russian, in the middle"),
        pytest.param("с" + LATIN_A + LATIN_O + "н", "саон", id="Russian, two letters"),
        pytest.param(LATIN_CAPITAL_A + "ΘΗΝΑ", "ΑΘΗΝΑ", id="Greek"),
        pytest.param("10 " + LATIN_K + "Вт", "10 кВт", id="Russian unit"),
    ],
)
@pytest.mark.parametrize("lowercase", [False, True])
def test_latin_look_alikes_in_greek_and_cyrillic_words_are_letters_of_the_script(
    text, expected, lowercase
):
    normalised = normalise(text, TextOptions(lowercase, version=TEXT_VERSION))

    assert normalised == (expected.lower() if lowercase else expected)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("10 k\N{GREEK CAPITAL LETTER OMEGA}, 3 M\N{OHM SIGN}", id="ohm"),
        pytest.param("5 \N{GREEK SMALL LETTER MU}m, 5 \N{MICRO SIGN}m", id="micro"),
        pytest.param("iPhoneом и USBшка", id="Latin words with Russian endings"),
        pytest.param("TNFα and Δt", id="Greek letters in terms"),
        pytest.param("e-mail и Wi-Fi", id="Latin words in Russian text"),
    ],
)
def test_units_and_latin_words_stay_latin(text):
    assert normalise_with_reading(text) == text


def test_long_texts_take_little_time():
    """A rule whose time is quadratic would take minutes for one of these texts.

    Each text repeats the beginning of something that a rule looks for, and never its end.
    """
    tags = ("<a ", '<a ="', "<a ='", "='", "<", "<!--")
    links_and_addresses = ("[", "](", "[[1", "http://", "https://a")
    emphasis = ("*", "*a", "_", "-", "#", "~")
    cyrillic_a = "а"
    words = ("a", cyrillic_a, cyrillic_a + "a", "aa" + cyrillic_a, "我 ")
    repeated_parts = (*tags, *links_and_addresses, *emphasis, *words)
    for beginning, part in itertools.product(("", "<a "), repeated_parts):
        text = beginning + part * 30_000

        start = time.process_time()
        normalise_with_reading(text)
        seconds = time.process_time() - start

        assert seconds < 2, (beginning, part)
