"""examples/pretrained/monolingual.py lists questions and sentences for the teacher."""

import gzip

import pytest
from conftest import ROOT, load_script, main_here, refused


@pytest.fixture
def script(monkeypatch):
    """The script, with two files of questions and one of sentences."""
    script = load_script(ROOT / "examples" / "pretrained" / "monolingual.py")
    monkeypatch.setattr(script, "QUESTIONS", {"ko": ["miracl-{}.tsv", "mrtydi-{}.txt.gz"]})
    folders = {"monolingual": {"zh": ["zh-CN/wiki.txt"]}, "everyday": {"lv": ["lv.txt"]}}
    monkeypatch.setattr(script, "FOLDERS", folders)
    return script


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "miracl-ko.tsv").write_text("7#0\t언제?\n8#0\t누가 \n")
    (tmp_path / "mrtydi-ko.txt.gz").write_bytes(gzip.compress("1\t어디\n2\t누가\n".encode()))
    (tmp_path / "zh-CN").mkdir()
    (tmp_path / "zh-CN" / "wiki.txt").write_text(
        f"他是谁。\n他是谁\n\n{'长' * 200}\n他\x02是\n他不是。\n"
    )
    (tmp_path / "lv.txt").write_text("Labdien!\nLabi.\n")
    (tmp_path / "test").write_text("언제\n他不是!\nLabi\n")
    return tmp_path


def make(script, sources, check=True):
    words = ("--questions", sources, "--sentences", sources, "--exclude", sources / "test")
    return main_here(script, *words, "--output", sources, check=check)


def test_distinct_texts_are_listed_without_those_for_evaluation(script, sources):
    """Long and empty texts, and those with control characters, are left out.

    Of several spellings of a sentence the last one is listed.
    """
    make(script, sources)
    assert (sources / "questions" / "ko.txt").read_text() == "누가\n어디\n"
    assert (sources / "monolingual" / "zh.txt").read_text() == "他是谁\n"
    assert (sources / "everyday" / "lv.txt").read_text() == "Labdien!\n"


def test_blanks_are_normalised_and_marks_of_direction_stay(script, tmp_path):
    lines = ["Qui est-il\u00a0?", "Qui êtes-vous\u202f?", "من هو\u200f؟", "Who?\x07"]
    script.write_lines(tmp_path / "x", lines, ())
    assert (tmp_path / "x").read_text(encoding="utf-8").splitlines() == [
        "Qui est-il ?",
        "Qui êtes-vous ?",
        "من هو\u200f؟",
    ]


def test_a_missing_or_invalid_source_is_refused_before_writing(script, sources):
    (sources / "miracl-ko.tsv").write_text("7#0 언제?\n")
    refused(make(script, sources, check=False), "miracl-ko.tsv, line 1")
    (sources / "zh-CN" / "wiki.txt").unlink()
    refused(make(script, sources, check=False), "wiki.txt: ")
    assert not (sources / "questions").exists()
