"""Ids and texts from the columns of CSV, TSV and JSON lines."""

import re

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.columns import column_names, read_columns
from fairseq_lxsr.preparation.tables import parse_column_list

CSV = 'id, question,answer\r\n1,"When?","At ten.\nOn Mondays, it is shut."\r\n\r\n2,"How much, please",Five coins\r\n'
JSON = '{"id": 1, "title": null, "text": "A dog\\nbarks."}\n\n{"id": "x", "title": "Cats", "text": "sleep"}\n'


def read(path, columns: str) -> list[tuple[str, str]]:
    return list(read_columns(path, parse_column_list(columns)))


def test_columns_of_csv_are_read_by_name(tmp_path):
    path = tmp_path / "faq.csv"
    path.write_text(CSV)
    assert column_names(path) == ["id", "question", "answer"]
    assert read(path, "id,Answer") == [
        ("1", "At ten. On Mondays, it is shut."),
        ("2", "Five coins"),
    ]
    assert read(path, "id,question,answer")[1] == ("2", "How much, please. Five coins")
    assert read(path, "question") == [("1", "When?"), ("2", "How much, please")]


def test_keys_of_json_lines_are_read_as_columns(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text(JSON)
    assert column_names(path) == ["id", "title", "text"]
    assert read(path, "id,title,text") == [("1", "A dog barks."), ("x", "Cats. sleep")]
    assert read(path, "text") == [("1", "A dog barks."), ("2", "sleep")]


def test_columns_given_by_number_mean_that_the_first_row_is_text(tmp_path):
    path = tmp_path / "notes"
    path.write_text("a dog\tx\t7\n")
    assert read(path, "3,1") == [("7", "a dog")]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("x.csv", "id,text\n1,a\n", "id,body", "x.csv: unknown --columns 'body'"),
        ("x.csv", "id,text\n1\n", "id,text", "x.csv, line 2: 1 columns"),
        ("x.csv", "id,text\n", "id,text", "x.csv: no rows"),
        ("x.csv", 'id,text\n1,"a\n', "id,text", "x.csv, line 2: invalid CSV row"),
        ("x.jsonl", "", "text", "x.jsonl: no rows"),
        (
            "x.jsonl",
            '{"text": "a"}\n{"body": "b"}\n',
            "text",
            "x.jsonl, line 2: unknown --columns 'text'",
        ),
        ("x.jsonl", '{"text": ["a"]}\n', "text", "x.jsonl, line 1: 'text' is ['a']"),
        ("x.jsonl", "a dog\n", "text", "x.jsonl, line 1: 'a dog' is not a JSON object"),
        ("x.jsonl", '["a dog"]\n', "text", "x.jsonl, line 1: "),
        ("x.jsonl", '{"text": "a"}\n', "1", "x.jsonl, line 1: unknown --columns 1"),
    ],
)
def test_the_line_or_column_that_cannot_be_read_is_named(tmp_path, name, content, columns, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path / name, columns)


@pytest.mark.parametrize("columns", ["", "a,,b", "0"])
def test_invalid_lists_of_columns_are_refused(columns):
    with pytest.raises(InputError, match="columns"):
        parse_column_list(columns)
