"""Ids and texts from the columns of CSV, TSV and JSON lines."""

import re

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.columns import column_names, read_columns
from fairseq_lxsr.preparation.tables import parse_column_list

CSV = 'id, question,answer\r\n1,"When?","At ten.\nOn Mondays, it is shut."\r\n\r\n2,"How much, please",Five coins\r\n'
JSON = '{"id": 1, "title": null, "text": "A dog\\nbarks."}\n\n{"id": "x", "title": "Cats", "text": "sleep"}\n'


def passages(path, columns: str) -> list[tuple[str, str]]:
    """The id and the text of each row, from columns named as on the command line."""
    return list(read_columns(path, parse_column_list(columns)))


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "faq.csv"
    path.write_text(CSV)
    return path


@pytest.fixture
def json_file(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text(JSON)
    return path


def test_the_columns_of_csv_are_those_of_its_first_row(csv_file):
    assert column_names(csv_file) == ["id", "question", "answer"]


def test_the_columns_of_json_lines_are_their_keys(json_file):
    assert column_names(json_file) == ["id", "title", "text"]


def test_columns_of_csv_are_read_by_name_whatever_their_case(csv_file):
    assert passages(csv_file, "id,Answer") == [
        ("1", "At ten. On Mondays, it is shut."),
        ("2", "Five coins"),
    ]


def test_keys_of_json_lines_are_read_as_columns(json_file):
    assert passages(json_file, "id,text") == [("1", "A dog barks."), ("x", "sleep")]


def test_the_texts_of_several_columns_are_joined_as_sentences(csv_file, json_file):
    # The question has a mark at its end; the title of the first object is null.
    assert passages(csv_file, "id,question,answer") == [
        ("1", "When? At ten. On Mondays, it is shut."),
        ("2", "How much, please. Five coins"),
    ]
    assert passages(json_file, "id,title,text") == [("1", "A dog barks."), ("x", "Cats. sleep")]


def test_without_a_column_of_ids_the_rows_are_numbered(csv_file, json_file):
    assert passages(csv_file, "question") == [("1", "When?"), ("2", "How much, please")]
    assert passages(json_file, "text") == [("1", "A dog barks."), ("2", "sleep")]


def test_columns_given_by_number_mean_that_the_first_row_is_text(tmp_path):
    path = tmp_path / "notes"
    path.write_text("a dog\tx\t7\n")

    # The id is in the third column, and the text in the first.
    assert passages(path, "3,1") == [("7", "a dog")]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        pytest.param(
            "x.csv",
            "id,text\n1,a\n",
            "id,body",
            "x.csv: unknown --columns 'body'",
            id="no such column",
        ),
        pytest.param(
            "x.csv", "id,text\n1\n", "id,text", "x.csv, line 2: 1 columns", id="short row"
        ),
        pytest.param("x.csv", "id,text\n", "id,text", "x.csv: no rows", id="only names"),
        pytest.param(
            "x.csv",
            'id,text\n1,"a\n',
            "id,text",
            "x.csv, line 2: invalid CSV row",
            id="open quote",
        ),
        pytest.param("x.jsonl", "", "text", "x.jsonl: no rows", id="empty JSON lines"),
        pytest.param(
            "x.jsonl",
            '{"text": "a"}\n{"body": "b"}\n',
            "text",
            "x.jsonl, line 2: unknown --columns 'text'",
            id="no such key",
        ),
        pytest.param(
            "x.jsonl",
            '{"text": ["a"]}\n',
            "text",
            "x.jsonl, line 1: 'text' is ['a']",
            id="list as text",
        ),
        pytest.param(
            "x.jsonl",
            "a dog\n",
            "text",
            "x.jsonl, line 1: 'a dog' is not a JSON object",
            id="no JSON",
        ),
        pytest.param("x.jsonl", '["a dog"]\n', "text", "x.jsonl, line 1: ", id="list"),
        pytest.param(
            "x.jsonl",
            '{"text": "a"}\n',
            "1",
            "x.jsonl, line 1: unknown --columns 1",
            id="number for a key",
        ),
    ],
)
def test_the_line_or_column_that_cannot_be_read_is_named(tmp_path, name, content, columns, message):
    (tmp_path / name).write_text(content)

    with pytest.raises(InputError, match=re.escape(message)):
        passages(tmp_path / name, columns)


# Columns are counted from 1.
@pytest.mark.parametrize("columns", ["", "a,,b", "0"], ids=["none", "empty name", "number 0"])
def test_invalid_lists_of_columns_are_refused(columns):
    with pytest.raises(InputError, match="columns"):
        parse_column_list(columns)
