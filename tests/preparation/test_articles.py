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


def html(text: str) -> list[str]:
    pytest.importorskip("lxml")
    return list(with_headings(html_blocks(text)))


def markdown(text: str) -> list[str]:
    pytest.importorskip("markdown_it")
    return list(with_headings(markdown_blocks(text)))


def write_files(folder, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def passages(*paths) -> dict[str, str]:
    return dict(read_articles(find_articles([str(path) for path in paths])))


def test_empty_lines_separate_paragraphs_of_text():
    lines = ["", "The pool", " opens.", " ", "\u200b", "It\tcloses."]
    assert list(paragraphs(lines)) == ["The pool opens.", "It closes."]
    assert list(paragraphs([])) == []


def test_blocks_of_markdown_follow_their_heading():
    text = (
        "# Pool\n\nOpen\n*daily* &amp; [late](x).\n\n## Prices?\n\n- one coin\n- two `coins`\n\n"
        "| day | hours |\n|---|---|\n| Monday | 10 |\n\n```sh\nls  -l <b>\n```\n"
    )
    assert markdown(text) == [
        "Pool. Open daily & late.",
        "Prices? one coin",
        "Prices? two coins",
        "Prices? day, hours",
        "Prices? Monday, 10",
        "Prices? ls -l <b>",
    ]


def test_headings_without_text_are_passages():
    assert markdown("# Pool\n\n## Hours\n\n## Prices\n\nTwo.\n\nThree.\n\n# End\n") == [
        "Pool",
        "Hours",
        "Prices. Two.",
        "Prices. Three.",
        "End",
    ]


def test_the_title_in_the_metadata_of_markdown_is_a_heading():
    assert markdown('---\ntitle: "Wi-Fi"\ntags: [a]\n---\nSwitch it off.\n') == [
        "Wi-Fi. Switch it off."
    ]
    assert markdown("---\ntags: a\n...\nSwitch it off.\n") == ["Switch it off."]


def test_a_rule_at_the_start_of_markdown_does_not_begin_metadata():
    assert markdown("---\n\nA dog.\n\n---\n\nA cat.\n") == ["A dog.", "A cat."]


def test_html_is_split_into_blocks_that_follow_their_heading():
    text = (
        "<title>Pool &amp; gym</title><style>p {}</style><script>'<p>no</p>'</script>"
        "<template><p>no</p></template><!-- no --><body>Open <b>dai</b>ly.<br>Even&nbsp;now"
        "<h1><div>Prices</div></h1><ul><li>One<li>Two</ul>"
        "<table><tr><th>day<th>hours<tr><td>Monday </td><td> 10&ndash;12</table><img alt='A map'>"
    )
    assert html(text) == [
        "Pool & gym. Open daily. Even now",
        "Prices. One",
        "Prices. Two",
        "Prices. day, hours",
        "Prices. Monday, 10–12",
        "Prices. A map",
    ]


def test_navigation_in_html_is_no_passage():
    links = "<nav><h2>Contents</h2><ul><li><a href='a'>Wi-Fi</a></ul></nav>"
    assert html(f"<h1>Pool</h1>{links}<p>Open daily.</p>{links}") == ["Pool. Open daily."]
    assert html(f"Open{links}daily") == ["Open", "daily"]


def test_damaged_html_is_read_without_an_error():
    assert html("<![foo[x]]>a</h1></template><p>b<p c") == ["a", "b"]
    assert html("<h1>A dog<p>barks")[0].startswith("A dog")
    assert html("") == []
    assert html("<!-- no -->") == []


def test_deeply_nested_html_is_read_without_an_error():
    assert html("<div>" * 5000 + "a dog") == ["a dog"]


def test_the_encoding_that_html_declares_is_ignored():
    assert html('<meta charset="iso-8859-1"><p>café') == ["café"]


def test_files_of_a_folder_are_named_and_sorted(tmp_path, capsys):
    write_files(
        tmp_path / "kb",
        b_txt="One.\n\nTwo.\n",
        a__c_html="<p>Three",
        _hidden_txt="no",
        _git__x_txt="no",
        picture_png="no",
    )
    folder = tmp_path / "kb"
    expected = {"a/c.html#1": "Three", "b.txt#1": "One.", "b.txt#2": "Two."}
    assert list(passages(folder).items()) == list(expected.items())
    message = capsys.readouterr().err
    assert "files not read: 1 (picture.png)" in message
    assert message.count("\n") == 1


def test_files_and_their_folder_give_the_same_ids(tmp_path):
    write_files(tmp_path / "kb", b_txt="One.", a_html="<p>Three", sub__c_txt="Four.")
    kb = tmp_path / "kb"
    assert passages(kb / "b.txt", kb / "a.html", kb / "sub" / "c.txt") == passages(kb)
    assert passages(kb / "b.txt") == {"b.txt#1": "One."}
    assert passages(kb, kb / "b.txt") == passages(kb)


def test_two_folders_keep_their_names(tmp_path):
    write_files(tmp_path, en__a_txt="One.", de__a_txt="Eins.")
    assert passages(tmp_path / "en", tmp_path / "de") == {
        "de/a.txt#1": "Eins.",
        "en/a.txt#1": "One.",
    }


def test_links_and_pipes_in_a_folder_are_not_followed(tmp_path, capsys):
    write_files(tmp_path / "kb", a_txt="One.")
    (tmp_path / "kb" / "loop").symlink_to(tmp_path / "kb")
    (tmp_path / "kb" / "gone.txt").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "kb" / "pipe.txt")
    assert passages(tmp_path / "kb") == {"a.txt#1": "One."}
    assert "gone.txt, pipe.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "place", "problem"),
    [
        ("a.png", b"x", "kb", ".txt"),
        ("a.txt", b"\n \n", "a.txt", "no text"),
        ("a.html", b"<p>caf\xe9", "a.html, line 1", "iconv"),
        ("a.md", "A dog.".encode("utf-16"), "a.md, line 1", "iconv"),
        ("a.txt", b"a " * SENTENCE_BYTES, "a.txt", "longer than"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, place, problem):
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        passages(tmp_path / "kb")
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
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    with pytest.raises(InputError, match=rf"{name} needs {package}, .*pip install"):
        passages(tmp_path / name)
