"""Tables of sentence pairs: columns, headers, rows without a pair, and CSV."""

import re

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.tables import Table, parse_columns

TWO = [("A red dog.", "Un chien rouge."), ("A cat, asleep.", "Un chat, endormi.")]
TWO_DOGS = ("A dog.", "Un chien.")
THREE = [*TWO, ("No.", "Non.")]


def pairs_and_left_out(folder, name, rows, columns=None, languages=None, end="\n", **options):
    """Write a table and read it; return its pairs and the numbers of other rows by reason."""
    (folder / name).write_bytes(end.join(rows).encode() if isinstance(rows, list) else rows)
    table = Table(folder / name, columns and parse_columns(columns), languages, **options)
    return [row.pair for row in table.rows() if row.pair], dict(table.left_out)


def tabs(*columns):
    """The rows of a table of columns; `source` and `target` mean the sides of `THREE`."""
    sides = {
        "source": [source for source, _ in THREE],
        "target": [target for _, target in THREE],
    }
    cells = [sides[column] if isinstance(column, str) else column for column in columns]
    return ["\t".join(row) for row in zip(*cells, strict=True)]


URLS = ["https://a/1", "http://b.example", "www.c.example"]
SCORES = ["0.8", "nan", "1e-5"]


@pytest.mark.parametrize(
    ("rows", "columns", "num_headers"),
    [
        (tabs("source", "target"), None, 0),
        (tabs("source", "target", ["CC-BY by a", "CC-BY by b", ""]), None, 0),
        # Bitextor.
        (tabs(URLS, URLS, "source", "target", SCORES), None, 0),
        # `lxsr mine`, WikiMatrix, CCMatrix.
        (tabs(SCORES, "source", "target"), None, 0),
        # Tatoeba.
        (tabs(["12", "13", "14"], "source", ["7", "8", "9"], "target"), None, 0),
        (tabs(["eng"] * 3, ["fra"] * 3, "source", "target"), None, 0),
        (tabs(["news-1", "news-2", "x_3"], "source", "target"), None, 0),
        (tabs("target", URLS, "source"), "3,1", 0),
        (["source\ttarget", *tabs("source", "target")], None, 1),
        (["target_text\tsource_text", *tabs("target", "source")], None, 1),
        (["French\tEnglish", *tabs("target", "source")], None, 1),
        (["fra_Latn\teng_Latn", *tabs("target", "source")], None, 1),
        (
            [
                "id\tsentence_fr\tsentence_en\tscore",
                *tabs(["1", "2", "3"], "target", "source", SCORES),
            ],
            None,
            1,
        ),
        (["id\tvon\tnach", *tabs(["1", "2", "3"], "source", "target")], None, 1),
        (["nach\tvon", *tabs("target", "source")], "von,nach", 1),
        (["Nach\tVON", *tabs("target", "source")], "von,1", 1),
        (["score\tsource\ttarget", *tabs(SCORES, "source", "target")], "2,3", 1),
    ],
)
def test_the_columns_of_text_and_the_header_are_recognised(tmp_path, rows, columns, num_headers):
    pairs, left_out = pairs_and_left_out(tmp_path, "x.tsv", rows, columns, ("en", "fr"))

    assert pairs == THREE
    assert left_out.get("header", 0) == num_headers


@pytest.mark.parametrize(
    ("rows", "columns", "is_reported"),
    [
        pytest.param(tabs("source", "target"), None, False, id="first two columns"),
        pytest.param(tabs("target", URLS, "source"), "3,1", False, id="chosen columns"),
        pytest.param(tabs(SCORES, "source", "target"), None, True, id="other columns"),
        pytest.param(["source\ttarget", *tabs("source", "target")], None, True, id="header"),
    ],
)
def test_columns_are_reported_if_they_are_guessed_and_not_the_usual_ones(
    tmp_path, capsys, rows, columns, is_reported
):
    pairs_and_left_out(tmp_path, "x.tsv", rows, columns, ("en", "fr"))

    assert ("x.tsv" in capsys.readouterr().err) == is_reported


def test_a_sentence_with_digits_and_without_spaces_is_text(tmp_path):
    pairs, _ = pairs_and_left_out(tmp_path, "x.tsv", ["我有3只猫。\tI have 3 cats.\t0.9"])

    assert pairs == [("我有3只猫。", "I have 3 cats.")]


def test_a_header_with_codes_of_rare_languages_is_recognised_if_they_are_asked_for(tmp_path):
    """Otherwise, swa and mt may be words."""
    rows = ["swa\tmt", "A b.\tC d."]

    pairs_of_maltese_and_swahili = pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("mt", "sw"))
    pairs_of_english_and_french, _ = pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr"))

    assert pairs_of_maltese_and_swahili == ([("C d.", "A b.")], {"header": 1})
    assert pairs_of_english_and_french == [("swa", "mt"), ("A b.", "C d.")]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(["no\tsi", "la\tit"], id="words like codes"),
        pytest.param(["No\tIt"], id="one row of words like codes"),
        pytest.param(
            ["it is\tno one", "A dog sleeps.\tUn chien dort."], id="phrases with such words"
        ),
        pytest.param(["French toast\tGerman toast"], id="phrases with names of languages"),
        pytest.param(["English\tanglais", "French\tfrançais"], id="list of languages"),
        pytest.param(
            ["Question everything.\tAnswer me!", "No.\tNon."], id="sentences with words of headers"
        ),
        pytest.param(["An answer\tUne réponse", "the\tla"], id="phrases with words of headers"),
    ],
)
def test_pairs_that_resemble_a_header_are_read(tmp_path, rows):
    pairs, left_out = pairs_and_left_out(tmp_path, "x.tsv", rows)

    assert ["\t".join(pair) for pair in pairs] == rows
    assert not left_out


def test_blank_short_and_long_rows_are_left_out_and_counted(tmp_path):
    rows = [
        "",
        "A dog.\tUn chien.",
        # A row without a tab is short.
        "alone",
        "\t ",
        # A row with an empty side is a pair, which the corpus drops.
        "A cat.\t",
        "A bee.\tUne abeille.\tmore",
        # Blank rows at the end do not count.
        "",
        "",
    ]

    pairs, left_out = pairs_and_left_out(tmp_path, "x.tsv", rows)

    assert pairs == [("A dog.", "Un chien."), ("A cat.", "")]
    assert left_out == {"blank": 3, "short": 1, "long": 1}


def test_a_table_of_blank_rows_has_no_pairs(tmp_path):
    assert pairs_and_left_out(tmp_path, "x.tsv", ["", "  "]) == ([], {"blank": 2})


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_a_table_may_begin_with_many_blank_rows(tmp_path, name):
    """Its columns are recognised by rows that are not blank."""
    rows = [*[""] * 150, "A dog.\tUn chien.", ""]

    pairs, left_out = pairs_and_left_out(tmp_path, name, rows)

    assert pairs == [TWO_DOGS]
    assert left_out == {"blank": 150}


def test_rows_over_1_mib_are_counted_if_unreadable_rows_are_skipped(tmp_path):
    overlong = "A dog.\tUn chien." + "." * 2**20
    rows = ["\t".join(TWO[0]), overlong, "\t".join(TWO[1]), overlong]

    pairs, left_out = pairs_and_left_out(
        tmp_path, "x.tsv", rows, is_sentence=True, skip_unreadable=True
    )

    assert pairs == TWO
    assert left_out == {"unreadable": 2}


LATIN_1_ROW = "déjà\tvu\n".encode("latin-1")
NUL_ROW = b"a\0\tb\n"
DAMAGED_TABLE = b"A dog.\tUn chien.\n" + LATIN_1_ROW + NUL_ROW + b"A cat.\tUn chat.\n"


def test_rows_in_another_encoding_and_with_nul_are_counted_if_unreadable_rows_are_skipped(tmp_path):
    _, left_out = pairs_and_left_out(tmp_path, "x.tsv", DAMAGED_TABLE, skip_unreadable=True)

    assert left_out == {"unreadable": 2}


def test_the_first_row_in_another_encoding_is_named_if_unreadable_rows_are_not_skipped(tmp_path):
    # The bytes of "éjà" and a tab.
    with pytest.raises(InputError, match=r"x\.tsv, line 2: bytes e9 6a e0 09"):
        pairs_and_left_out(tmp_path, "x.tsv", DAMAGED_TABLE)


@pytest.mark.parametrize(
    ("name", "rows", "left_out"),
    [
        # A delimiter inside both sentences, also in the first row or at the end of every row.
        ("x.tsv", ["en\tfr", *tabs("source", "target"), "A,\tb\tUn,\tc"], {"header": 1, "long": 1}),
        ("x.tsv", ["A,\tb\tUn,\tc", *tabs("source", "target")], {"long": 1}),
        ("x.tsv", [f"{row}\t" for row in [*tabs("source", "target"), "A,\tb\tc"]], {"long": 1}),
        ("x.csv", [*map('"{0[0]}";"{0[1]}"'.format, THREE), "A; b;Un; c"], {"long": 1}),
        # Blank cells under the header, and a named third column.
        ("x.tsv", ["en\tfr", *tabs("source", "target", ["", "", ""])], {"header": 1}),
        ("x.tsv", ["en\tfr\tnote", *tabs("source", "target", ["", "", "b"])], {"header": 1}),
    ],
)
def test_rows_with_too_many_cells_are_counted_and_not_read(tmp_path, name, rows, left_out):
    assert pairs_and_left_out(tmp_path, name, rows, None, ("en", "fr")) == (THREE, left_out)


@pytest.mark.parametrize(
    "rows",
    [
        # R writes no name for the column of row names.
        pytest.param(["en\tfr", *tabs(["1", "2", "3"], "source", "target")], id="row names"),
        pytest.param(["en\tfr", "A,\tb\tUn,\tc"], id="tabs in sentences"),
        pytest.param(["a b\tc d", "a\tb\tc", "a\tb\tc\td"], id="no header"),
    ],
)
def test_tables_whose_rows_have_more_cells_than_the_first_one_are_refused(tmp_path, rows):
    with pytest.raises(InputError, match=r"x\.tsv, line 1: .*rows with 2 to [34] cells"):
        pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr"))


# Tables of six rows, which have one sentence each, in turn of both languages.
LANGUAGES = ["eng", "fra"] * 3
MIXED = [sentence for pair in THREE for sentence in pair]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(([*"123456"], LANGUAGES, MIXED), id="Tatoeba: number and language"),
        pytest.param((LANGUAGES, MIXED), id="language first"),
        pytest.param((MIXED, LANGUAGES), id="language last"),
        pytest.param((["lang", *LANGUAGES], ["text", *MIXED]), id="header"),
        pytest.param((["en_US", "fr_FR"] * 3, MIXED), id="regions"),
        pytest.param((["English", "French"] * 3, MIXED), id="names of languages"),
        pytest.param((["positive", "negative"] * 3, MIXED), id="labels"),
        # The mark of some databases for a missing value.
        pytest.param((["eng", "\\N", "fra"] * 2, MIXED), id="missing values"),
        pytest.param(([*"123456"], MIXED), id="number"),
    ],
)
def test_tables_with_one_sentence_in_a_row_are_refused(tmp_path, columns):
    rows = ["\t".join(cells) for cells in zip(*columns, strict=True)]
    with pytest.raises(InputError, match=r"x\.tsv, line [12]: .* 1 of them with text"):
        pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr"))


def write_rows_with_codes():
    """Rows of a number, a code and a sentence, twice: en-fr, fr-en, and en-de."""
    codes = [("eng", "fra"), ("fra", "eng"), ("eng", "deu")]
    rows = []
    for number, (pair_of_codes, pair) in enumerate(zip(codes, THREE, strict=True)):
        source_cells = [str(number), pair_of_codes[0], pair[0]]
        target_cells = [str(number + 9), pair_of_codes[1], pair[1]]
        rows.append("\t".join(source_cells + target_cells))
    return rows


def test_columns_of_language_codes_choose_the_rows_and_their_direction(tmp_path):
    pairs, left_out = pairs_and_left_out(
        tmp_path, "x.tsv", write_rows_with_codes(), None, ("en", "fr")
    )

    english_french, french_english, _ = THREE
    assert pairs == [english_french, french_english[::-1]]
    assert left_out == {"other language": 1}


def test_chosen_columns_are_read_without_regard_to_language_codes(tmp_path):
    pairs, left_out = pairs_and_left_out(
        tmp_path, "x.tsv", write_rows_with_codes(), "3,6", ("en", "fr")
    )

    assert pairs == THREE
    assert left_out == {}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(
            ["target_lang\tsource_lang\ttarget\tsource", "fra\teng\tUn.\tOne."], id="codes"
        ),
        # The names of the columns of text count, not the codes.
        pytest.param(["first_lang\tsecond_lang\ten\tfr", "fra\teng\tOne.\tUn."], id="names"),
    ],
)
def test_a_header_says_which_columns_of_codes_and_of_text_belong_together(tmp_path, rows):
    pairs, _ = pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr"))

    assert pairs == [("One.", "Un.")]


@pytest.mark.parametrize(
    "pairs",
    [
        [("Go.", "Va !"), ("Go.", "Marche."), ("Run!", "Cours !"), ("Run!", "Fuyez !")],
        [("OK", "OK"), ("Yes", "Oui"), ("Yes", "Oui"), ("OK", "OK")],
        [("你好", "Hello there"), ("你好", "Hi you"), ("再见", "Good bye"), ("再见", "See you")],
    ],
    ids=["several translations", "both sides", "Chinese without blanks"],
)
def test_repeated_sentences_are_not_taken_for_labels(tmp_path, pairs):
    rows = ["\t".join(pair) for pair in pairs]
    assert pairs_and_left_out(tmp_path, "x.tsv", rows) == (pairs, {})


@pytest.mark.parametrize(
    "header",
    [
        "English words/sentences\tFrench words/sentences",
        "Sentence in English\tSentence in French",
        "English (US)\tFrench (France)",
        "English phrase\tTranslation (French)",
        "Original text\tTranslated text",
        "anglais\tfrançais",
        "Anglais\tFrancais",
        "Englisch\tFranzösisch",
        "английский\tфранцузский",
        "अंग्रेज़ी\tफ़्रेंच",
        "英文\t法文",
        "Tiếng Anh\tTiếng Pháp",
        "Texte en anglais\tTexte en français",
        "Phrase\tTranslation",
        "INPUT\tOUTPUT",
        "Question:\tAnswer:",
        "Satz\tÜbersetzung",
        "frase\ttraducción",
        "原文\t译文",
        "原文\t訳文",
        "Source sentence\tfr",
        "Input text\tTranslation",
        "sentence_a\tsentence_b",
        "Text 1\tText 2",
        "Source (EN)\tTarget (FR)",
        "translation_en\ttranslation_fr",
        "Langue source\tLangue cible",
        "User\tAssistant",
        "from\tto",
        "x\ty",
        "s1\ts2",
    ],
)
def test_headers_in_many_words_and_languages_are_recognised(tmp_path, header):
    """They are headers of tables on the web."""
    rows = [header, *tabs("source", "target")]
    assert pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr")) == (THREE, {"header": 1})


@pytest.mark.parametrize(
    "header", ["français\tanglais", "translation_fr\ttranslation_en", "Text (FR)\tText (EN)"]
)
def test_names_of_languages_decide_the_order_of_columns(tmp_path, header):
    rows = [header, *tabs("target", "source")]
    assert pairs_and_left_out(tmp_path, "x.tsv", rows, None, ("en", "fr")) == (THREE, {"header": 1})


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(
            ["A red dog.,Un chien rouge.", '"A cat, asleep.","Un chat, endormi."'], id="commas"
        ),
        pytest.param(
            ["A red dog.;Un chien rouge.", "A cat, asleep.;Un chat, endormi."], id="semicolons"
        ),
        # Excel's line that names the delimiter; the second pair has a line end in a cell.
        pytest.param(
            ["sep=;", '"A red dog.";"Un chien rouge."', '"A cat,', ' asleep.";"Un chat, endormi."'],
            id="named delimiter",
        ),
        pytest.param(
            [
                '"id","en","fr"',
                "1,A red dog.,Un chien rouge.",
                '2,"A cat, asleep.","Un chat, endormi."',
            ],
            id="header with quotes",
        ),
        pytest.param(
            ["fr;en", "Un chien rouge.;A red dog.", "Un chat, endormi.;A cat, asleep."],
            id="header in other order",
        ),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["Unix", "Windows"])
def test_csv_with_any_delimiter_and_quotes_is_read(tmp_path, rows, end):
    pairs, left_out = pairs_and_left_out(tmp_path, "x.CSV", rows, None, ("en", "fr"), end)
    assert pairs == TWO
    assert left_out.keys() <= {"header"}


def test_doubled_quotes_in_a_quoted_cell_of_csv_are_quotes(tmp_path):
    (tmp_path / "q.csv").write_text('"He said ""no"".",Il dit « non ».\n\n')

    first_row, *_ = Table(tmp_path / "q.csv").rows()

    assert first_row.pair == ('He said "no".', "Il dit « non ».")


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["Unix", "Windows"])
def test_a_carriage_return_within_a_cell_is_a_space(tmp_path, end):
    rows = ["A red\rdog.,Un chien rouge.", '"A cat, asleep.","Un chat,\rendormi."']

    pairs, left_out = pairs_and_left_out(tmp_path, "x.csv", rows, end=end)

    assert pairs == TWO
    assert left_out == {}


@pytest.mark.parametrize(
    ("name", "rows", "columns", "message"),
    [
        (
            "x.tsv",
            ["alone", "alone too"],
            None,
            r"x\.tsv, line 1: 1 column .*'alone'.* 2,.* tabs",
        ),
        (
            "x.tsv",
            ["", "a\tb"],
            "2,3",
            r"x\.tsv, line 2: 2 columns .*'a\\tb'.* 3",
        ),
        (
            "x.tsv",
            ["von\tnach", "a b\tc d"],
            "en,fr",
            r"x\.tsv: .*--columns 'en'.*'von', 'nach'",
        ),
        (
            "x.tsv",
            ["1\t2\tc d", "3\t4\te f"],
            None,
            r"x\.tsv, line 1: '1\\t2\\tc d'.* 3 .* 1 ",
        ),
        (
            "x.tsv",
            ["German\tDutch", "a b\tc d"],
            None,
            r"x\.tsv: .*German, Dutch.* en and fr",
        ),
        ("x.csv", ['a,"b', "c,d"], None, r"x\.csv, line 1: "),
        ("x.csv", ["alone"], None, r"x\.csv, line 1: .*'alone'.* 2,.* commas"),
    ],
)
def test_a_file_that_is_not_a_table_of_pairs_is_refused(tmp_path, name, rows, columns, message):
    with pytest.raises(InputError, match=message):
        pairs_and_left_out(tmp_path, name, rows, columns, ("en", "fr"))


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "0,1", ",", "a,", "1;2"])
def test_invalid_columns_are_refused(text):
    with pytest.raises(InputError, match=f"columns {re.escape(repr(text))}"):
        parse_columns(text)


# By number, by name, or both; names may differ in case.
@pytest.mark.parametrize("columns", ["1,1", "1,01", "en,1", "EN,en"])
def test_the_same_column_for_both_sides_is_refused(tmp_path, columns):
    with pytest.raises(InputError, match=r"x\.tsv: --columns .*1"):
        pairs_and_left_out(tmp_path, "x.tsv", ["en\tfr", *map("\t".join, TWO)], columns)


# By header: the places of the columns with sentences, counted from 0.
HEADERS = {
    "id\ten\tfr": (1, 2),
    "en\ten_score\tfr\tfr_score": (0, 2),
    "en_id\ten\tfr_id\tfr": (1, 3),
    "en_url\tfr_url\ten\tfr": (2, 3),
    "source_lang\ttarget_lang\tsource\ttarget": (2, 3),
    "src_lang\ttgt_lang\tsrc_text\ttgt_text": (2, 3),
    "en\tfr\ten_lang": (0, 1),
}


def example_cell(name, row):
    """What a column of this name has in a row, except sentences."""
    if "id" in name:
        return str(row)
    if "score" in name:
        return f"0.{row}"
    if "url" in name:
        return f"http://a/{row}"
    if name in ("target_lang", "tgt_lang"):
        return "fr"
    return "en"


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("languages", [None, ("en", "fr")], ids=["any languages", "en-fr"])
def test_columns_without_sentences_may_be_named_after_a_language(tmp_path, header, languages):
    source, target = HEADERS[header]
    rows = [header]
    for number, pair in enumerate(TWO):
        cells = [example_cell(name, number) for name in header.split("\t")]
        cells[source], cells[target] = pair
        rows.append("\t".join(cells))

    pairs, _ = pairs_and_left_out(tmp_path, "x.tsv", rows, None, languages)

    assert pairs == TWO
