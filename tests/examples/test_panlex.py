"""examples/pretrained/panlex.py writes pairs of words of PanLex's dictionaries."""

import zipfile

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_lines

SCRIPT = ROOT / "examples" / "pretrained" / "panlex.py"


@pytest.fixture
def script(monkeypatch):
    module = load_script(SCRIPT)
    monkeypatch.setattr(module, "PARTNERS", {"et": ("nb",)})
    return module


def archive(folder, files):
    with zipfile.ZipFile(folder / "et-l2.zip", "w") as archive:
        for name, lines in files.items():
            archive.writestr(f"et-no/et-no.{name}.cc.trans", lines)


def test_distinct_pairs_of_words_are_written(script, tmp_path):
    train = "koer\thund\nkoer\tbikkje\nmaa\tMaa\n12\t13\n"
    archive(tmp_path, {"train.5000": train, "test.2000": "koer\thund\n"})
    script.write_lexicons(tmp_path, tmp_path / "words")
    prefix = tmp_path / "words" / "panlex.nb-et"
    pairs = zip(read_lines(f"{prefix}.et.txt.gz"), read_lines(f"{prefix}.nb.txt.gz"), strict=True)
    # Words that are equal, and numbers, are left out.
    assert sorted(pairs) == [("koer", "bikkje"), ("koer", "hund")]


def test_an_archive_without_a_language_is_refused(tmp_path):
    archive(tmp_path, {"train.5000": "koer\thund\n"})
    script = load_script(SCRIPT)
    options = ("--lexicons", tmp_path, "--output", tmp_path / "words")
    done = main_here(script, *options, check=False)
    refused(done, tmp_path / "et-l2.zip", "et-fi/et-fi.train.5000.cc.trans")
    assert not (tmp_path / "words").exists()
