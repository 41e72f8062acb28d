"""Articles as passages: the paragraphs of text, Markdown and HTML, and the files of a folder."""

import os

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import SENTENCE_BYTES
from fairseq_lxsr.preparation.articles import (
    find_articles,
    html_blocks,
    markdown_blocks,
    paragraphs,
    read_articles,
    with_headings,
)


def html_passages(text: str) -> list[str]:
    pytest.importorskip("lxml")
    return list(with_headings(html_blocks(text)))


def markdown_passages(text: str) -> list[str]:
    pytest.importorskip("markdown_it")
    return list(with_headings(markdown_blocks(text)))


def write_files(folder, files: dict[str, str]) -> None:
    """Write the texts of files, by their paths in the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def passages_by_id(*paths) -> dict[str, str]:
    """The passages of files and folders, by their ids: the path of a file and a number."""
    return dict(read_articles(find_articles([str(path) for path in paths])))


def test_empty_lines_separate_paragraphs_of_text():
    zero_width_space = "\u200b"
    lines = ["", "The pool", " opens.", " ", zero_width_space, "It\tcloses."]

    assert list(paragraphs(lines)) == ["The pool opens.", "It closes."]


def test_a_text_without_lines_has_no_paragraphs():
    assert list(paragraphs([])) == []


def test_blocks_of_markdown_follow_their_heading_and_lose_their_marks():
    text = (
        "# Pool\n\nOpen\n*daily* &amp; [late](x).\n\n"
        "## Prices?\n\n- one coin\n- two `coins`\n\n"
        "| day | hours |\n|---|---|\n| Monday | 10 |\n\n"
        "```sh\nls  -l <b>\n```\n"
    )

    assert markdown_passages(text) == [
        "Pool. Open daily & late.",
        # A heading with a mark at its end needs no full stop.
        "Prices? one coin",
        "Prices? two coins",
        "Prices? day, hours",
        "Prices? Monday, 10",
        "Prices? ls -l <b>",
    ]


def test_a_heading_without_text_is_a_passage():
    text = "# Pool\n\n## Hours\n\n## Prices\n\nTwo.\n\nThree.\n\n# End\n"

    assert markdown_passages(text) == [
        "Pool",
        "Hours",
        "Prices. Two.",
        "Prices. Three.",
        "End",
    ]


@pytest.mark.parametrize(
    ("metadata", "passage"),
    [
        pytest.param(
            '---\ntitle: "Wi-Fi"\ntags: [a]\n---\n', "Wi-Fi. Switch it off.", id="with title"
        ),
        # YAML may end with dots.
        pytest.param("---\ntags: a\n...\n", "Switch it off.", id="without title"),
    ],
)
def test_of_the_metadata_of_markdown_only_the_title_is_read_as_a_heading(metadata, passage):
    assert markdown_passages(f"{metadata}Switch it off.\n") == [passage]


def test_a_rule_at_the_start_of_markdown_does_not_begin_metadata():
    assert markdown_passages("---\n\nA dog.\n\n---\n\nA cat.\n") == ["A dog.", "A cat."]


def test_html_is_split_into_blocks_that_follow_their_heading():
    text = (
        "<title>Pool &amp; gym</title>"
        "<body>Open <b>dai</b>ly.<br>Even&nbsp;now"
        "<h1><div>Prices</div></h1><ul><li>One<li>Two</ul>"
        "<table><tr><th>day<th>hours<tr><td>Monday </td><td> 10&ndash;12</table>"
        "<img alt='A map'>"
    )

    assert html_passages(text) == [
        "Pool & gym. Open daily. Even now",
        "Prices. One",
        "Prices. Two",
        "Prices. day, hours",
        "Prices. Monday, 10–12",
        "Prices. A map",
    ]


@pytest.mark.parametrize(
    "invisible",
    [
        "<style>p {}</style>",
        "<script>'<p>no</p>'</script>",
        "<template><p>no</p></template>",
        "<!-- no -->",
    ],
    ids=["style", "script", "template", "comment"],
)
def test_what_a_browser_does_not_show_of_html_is_no_passage(invisible):
    assert html_passages(f"<title>Pool</title>{invisible}<body>Open") == ["Pool. Open"]


NAVIGATION = "<nav><h2>Contents</h2><ul><li><a href='a'>Wi-Fi</a></ul></nav>"


def test_navigation_in_html_is_neither_passage_nor_heading():
    text = f"<h1>Pool</h1>{NAVIGATION}<p>Open daily.</p>{NAVIGATION}"

    assert html_passages(text) == ["Pool. Open daily."]


def test_navigation_in_html_separates_passages():
    assert html_passages(f"Open{NAVIGATION}daily") == ["Open", "daily"]


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        pytest.param("<![foo[x]]>a</h1></template><p>b<p c", ["a", "b"], id="damaged"),
        pytest.param("", [], id="empty"),
        pytest.param("<!-- no -->", [], id="only a comment"),
        # More levels than Python's stack has.
        pytest.param("<div>" * 5000 + "a dog", ["a dog"], id="deeply nested"),
        # A file is UTF-8, whatever it says.
        pytest.param('<meta charset="iso-8859-1"><p>café', ["café"], id="other encoding"),
    ],
)
def test_unusual_html_is_read_without_an_error(text, passages):
    assert html_passages(text) == passages


def test_a_heading_that_html_does_not_close_begins_a_passage():
    """What follows is part of it for some versions of lxml only."""
    first_passage = html_passages("<h1>A dog<p>barks")[0]

    assert first_passage.startswith("A dog")


def test_passages_of_a_folder_are_sorted_and_have_the_path_and_a_number(tmp_path):
    folder = tmp_path / "kb"
    write_files(folder, {"b.txt": "One.\n\nTwo.\n", "a/c.html": "<p>Three"})

    passages = passages_by_id(folder)

    assert list(passages.items()) == [
        ("a/c.html#1", "Three"),
        ("b.txt#1", "One."),
        ("b.txt#2", "Two."),
    ]


def test_files_of_other_kinds_are_named_and_hidden_files_are_not(tmp_path, capsys):
    folder = tmp_path / "kb"
    text_files = {"b.txt": "One."}
    hidden_files = {".hidden.txt": "no", ".git/x.txt": "no"}
    other_files = {"picture.png": "no"}
    write_files(folder, text_files | hidden_files | other_files)

    passages = passages_by_id(folder)

    assert passages == {"b.txt#1": "One."}
    [message] = capsys.readouterr().err.splitlines()
    assert "files not read: 1 (picture.png)" in message


def test_files_and_their_folder_give_the_same_ids(tmp_path):
    kb = tmp_path / "kb"
    write_files(kb, {"b.txt": "One.", "a.html": "<p>Three", "sub/c.txt": "Four."})

    passages_of_files = passages_by_id(kb / "b.txt", kb / "a.html", kb / "sub" / "c.txt")

    assert passages_of_files == passages_by_id(kb)


def test_the_id_of_a_single_file_is_its_name(tmp_path):
    write_files(tmp_path, {"b.txt": "One."})

    assert passages_by_id(tmp_path / "b.txt") == {"b.txt#1": "One."}


def test_a_file_given_twice_is_read_once(tmp_path):
    write_files(tmp_path / "kb", {"b.txt": "One.", "a.html": "<p>Three"})

    passages = passages_by_id(tmp_path / "kb", tmp_path / "kb" / "b.txt")

    assert passages == {"a.html#1": "Three", "b.txt#1": "One."}


def test_ids_of_two_folders_begin_with_the_names_of_the_folders(tmp_path):
    write_files(tmp_path, {"en/a.txt": "One.", "de/a.txt": "Eins."})

    assert passages_by_id(tmp_path / "en", tmp_path / "de") == {
        "de/a.txt#1": "Eins.",
        "en/a.txt#1": "One.",
    }


def test_links_and_pipes_in_a_folder_are_not_read_but_named(tmp_path, capsys):
    write_files(tmp_path / "kb", {"a.txt": "One."})
    # Following this link would never end.
    (tmp_path / "kb" / "loop").symlink_to(tmp_path / "kb")
    (tmp_path / "kb" / "gone.txt").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "kb" / "pipe.txt")

    assert passages_by_id(tmp_path / "kb") == {"a.txt#1": "One."}

    assert "gone.txt, pipe.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "place", "problem"),
    [
        # The message lists the kinds of files that are read.
        pytest.param("a.png", b"x", "kb", ".txt", id="folder without text files"),
        pytest.param("a.txt", b"\n \n", "a.txt", "no text", id="blank"),
        # The message names iconv, which converts encodings.
        pytest.param(
            "a.html", "<p>café".encode("latin-1"), "a.html, line 1", "iconv", id="Latin-1"
        ),
        pytest.param("a.md", "A dog.".encode("utf-16"), "a.md, line 1", "iconv", id="UTF-16"),
        pytest.param("a.txt", b"a " * SENTENCE_BYTES, "a.txt", "longer than", id="too long"),
    ],
)
def test_a_folder_or_file_that_cannot_be_read_is_named_with_the_problem(
    tmp_path, name, content, place, problem
):
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / name).write_bytes(content)

    with pytest.raises(InputError) as error:
        passages_by_id(tmp_path / "kb")

    assert place in str(error.value)
    assert problem in str(error.value)


def test_a_missing_file_is_named_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^kb: no such file or folder"):
        find_articles(["kb"])


@pytest.mark.parametrize(("name", "package"), [("a.md", "markdown_it"), ("a.html", "lxml")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch, tmp_path, name, package
):
    (tmp_path / name).write_text("a dog\n")
    # No optional package is installed.
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)

    with pytest.raises(InputError, match=rf"{name} needs {package}, .*pip install"):
        passages_by_id(tmp_path / name)
