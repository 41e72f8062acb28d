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
    """Files with a question each in two sets, and a sentence in Chinese and in Latvian."""
    (tmp_path / "miracl-ko.tsv").write_text("7#0\t누가\n")
    (tmp_path / "mrtydi-ko.txt.gz").write_bytes(gzip.compress("1\t어디\n".encode()))
    (tmp_path / "zh-CN").mkdir()
    (tmp_path / "zh-CN" / "wiki.txt").write_text("他是谁\n")
    (tmp_path / "lv.txt").write_text("Labdien!\n")
    (tmp_path / "test").write_text("Labi\n")
    return tmp_path


def run_script(script, sources, check=True):
    options = ("--questions", sources, "--sentences", sources, "--exclude", sources / "test")
    return main_here(script, *options, "--output", sources, check=check)


def test_each_kind_of_text_has_a_list_of_all_its_sources(script, sources):
    run_script(script, sources)

    assert (sources / "questions" / "ko.txt").read_text() == "누가\n어디\n"
    assert (sources / "monolingual" / "zh.txt").read_text() == "他是谁\n"
    assert (sources / "everyday" / "lv.txt").read_text() == "Labdien!\n"


def test_text_for_evaluation_is_left_out_with_any_punctuation(script, sources):
    (sources / "lv.txt").write_text("Labdien!\nLabi.\n")

    run_script(script, sources)

    assert (sources / "everyday" / "lv.txt").read_text() == "Labdien!\n"


def test_a_question_of_both_sets_is_listed_once(script, sources):
    (sources / "mrtydi-ko.txt.gz").write_bytes(gzip.compress("1\t어디\n2\t누가\n".encode()))

    run_script(script, sources)

    assert (sources / "questions" / "ko.txt").read_text() == "누가\n어디\n"


@pytest.mark.parametrize(
    "line", ["", "长" * 200, "他\x02是"], ids=["empty", "long", "control-character"]
)
def test_an_unusable_line_is_left_out(script, sources, line):
    (sources / "zh-CN" / "wiki.txt").write_text(f"{line}\n他是谁\n")

    run_script(script, sources)

    assert (sources / "monolingual" / "zh.txt").read_text() == "他是谁\n"


def test_of_several_spellings_of_a_sentence_the_last_one_is_listed(script, sources):
    (sources / "zh-CN" / "wiki.txt").write_text("他是谁。\n他是谁\n")

    run_script(script, sources)

    assert (sources / "monolingual" / "zh.txt").read_text() == "他是谁\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # A blank that does not break, and a narrow one.
        ("Qui est-il\u00a0?", ["Qui est-il ?"]),
        ("Qui êtes-vous\u202f?", ["Qui êtes-vous ?"]),
        # A mark of the direction from right to left.
        ("من هو\u200f؟", ["من هو\u200f؟"]),
        # A control character.
        ("Who?\x07", []),
    ],
    ids=["no-break", "narrow", "direction", "control"],
)
def test_blanks_are_normalised_and_marks_of_direction_stay(script, tmp_path, line, expected):
    script.write_lines(tmp_path / "list", [line], ())

    assert (tmp_path / "list").read_text(encoding="utf-8").splitlines() == expected


def test_a_question_without_a_number_is_refused_before_writing(script, sources):
    (sources / "miracl-ko.tsv").write_text("7#0 언제?\n")

    done = run_script(script, sources, check=False)

    refused(done, "miracl-ko.tsv, line 1")
    assert not (sources / "questions").exists()


def test_a_missing_source_is_refused_before_writing(script, sources):
    (sources / "zh-CN" / "wiki.txt").unlink()

    done = run_script(script, sources, check=False)

    refused(done, "wiki.txt: ")
    assert not (sources / "questions").exists()
