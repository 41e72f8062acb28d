"""examples/pretrained/panlex.py writes pairs of words of PanLex's dictionaries."""

import zipfile

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_lines

SCRIPT = ROOT / "examples" / "pretrained" / "panlex.py"


def write_estonian_archive(folder, files):
    """Write the archive of Estonian, with words in Norwegian alone."""
    with zipfile.ZipFile(folder / "et-l2.zip", "w") as archive:
        for name, lines in files.items():
            archive.writestr(f"et-no/et-no.{name}.cc.trans", lines)


@pytest.fixture
def pairs_of_words(tmp_path, monkeypatch):
    """A function from the two files of Estonian and Norwegian to the pairs that are written."""
    script = load_script(SCRIPT)
    # Of the languages that have dictionaries with Estonian, only Norwegian.
    monkeypatch.setattr(script, "PARTNERS", {"et": ("nb",)})

    def write_and_read(train, test):
        write_estonian_archive(tmp_path, {"train.5000": train, "test.2000": test})
        script.write_lexicons(tmp_path, tmp_path / "words")
        prefix = tmp_path / "words" / "panlex.nb-et"
        estonian = read_lines(f"{prefix}.et.txt.gz")
        norwegian = read_lines(f"{prefix}.nb.txt.gz")
        return sorted(zip(estonian, norwegian, strict=True))

    return write_and_read


def test_a_pair_of_words_in_several_files_is_written_once(pairs_of_words):
    pairs = pairs_of_words(train="koer\thund\nkoer\tbikkje\n", test="koer\thund\n")

    assert pairs == [("koer", "bikkje"), ("koer", "hund")]


@pytest.mark.parametrize("line", ["maa\tMaa\n", "12\t13\n"], ids=["equal", "numbers"])
def test_equal_words_and_numbers_are_left_out(pairs_of_words, line):
    pairs = pairs_of_words(train=f"koer\thund\n{line}", test="")

    assert pairs == [("koer", "hund")]


def test_an_archive_without_a_language_is_refused(tmp_path):
    # Finnish is missing.
    write_estonian_archive(tmp_path, {"train.5000": "koer\thund\n"})
    options = ("--lexicons", tmp_path, "--output", tmp_path / "words")

    done = main_here(load_script(SCRIPT), *options, check=False)

    refused(done, tmp_path / "et-l2.zip", "et-fi/et-fi.train.5000.cc.trans")
    assert not (tmp_path / "words").exists()
