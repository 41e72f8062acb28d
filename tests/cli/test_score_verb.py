"""`lxsr score`: scores of pairs in files, tables and translation memories."""

import gzip
import io
import re
import sys

import numpy as np
import pytest
import small_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder

PAIRS = toy.sentences(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    small_model.write_folder(folder / "model")
    toy.write(folder / "s", PAIRS)
    with open(folder / "pairs.tsv", "w", encoding="utf-8") as stream:
        for number, (source, target) in enumerate(PAIRS):
            stream.write(f"{number}\t{source}\t{target}\n")
    return folder


def score(folder, *arguments, check=True):
    """Run `lxsr score` in a folder with its model."""
    return lxsr_here("score", "--model", "model", *arguments, check=check, folder=folder)


def cosines(folder):
    encoder = SentenceEncoder.from_pretrained(folder / "model")
    source = encoder.encode([source for source, _ in PAIRS])
    target = encoder.encode([target for _, target in PAIRS])
    lengths = np.linalg.norm(source, axis=1) * np.linalg.norm(target, axis=1)
    return (source * target).sum(1) / lengths


def test_scores_of_a_table_two_files_and_standard_input_are_the_cosines(folder, monkeypatch):
    table = score(folder, "--input", "pairs.tsv", "--columns", "2,3").stdout
    scores = [float(line) for line in table.splitlines()]
    np.testing.assert_allclose(scores, cosines(folder), atol=1e-5)

    assert score(folder, "--source", "s.en", "--target", "s.fr").stdout == table

    stream = io.TextIOWrapper(io.BytesIO((folder / "pairs.tsv").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert score(folder, "--columns", "2,3").stdout == table


@pytest.mark.parametrize("output", ["-", "scored.tsv"])
def test_the_rows_of_the_table_follow_their_scores(folder, output):
    result = score(folder, "--input", "pairs.tsv", "--columns", "2,3", "--output", output)
    table = result.stdout if output == "-" else (folder / output).read_text(encoding="utf-8")
    rows = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    for line, row in zip(table.splitlines(), rows, strict=True):
        number, _, text = line.partition("\t")
        assert text == row
        assert re.fullmatch(r"-?[01]\.\d{6}", number)


def test_tabs_and_ends_of_lines_in_a_sentence_become_spaces(folder):
    (folder / "odd").write_text("a\tb\u2028c\rd\n", encoding="utf-8")
    result = score(folder, "--source", "odd", "--target", "odd", "--output", "-")
    assert result.stdout.splitlines() == ["1.000000\ta b c d\ta b c d"]


def test_margins_against_indexes_of_the_text_equal_those_within_the_text(folder):
    for side in ("en", "fr"):
        command = ("index", "--model", "model", "--input", f"s.{side}", "--output", side)
        lxsr_here(*command, folder=folder)
    options = ("--source", "s.en", "--target", "s.fr", "--margin", "ratio", "--k", 3)
    within_text = np.array(score(folder, *options).stdout.split(), float)
    indexed = np.array(score(folder, *options, "--index", "en", "fr").stdout.split(), float)
    assert within_text.shape == (30,)
    assert np.isfinite(within_text).all()
    # An index has repeated sentences several times, the text counts them once.
    if len(set(PAIRS)) == len(PAIRS):
        np.testing.assert_allclose(within_text, indexed, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (
            ("--input", "pairs.tsv", "--columns", "2,4"),
            ("pairs.tsv, line 1: ", "3", "4"),
        ),
        (("--input", "empty"), ("empty: ",)),
        (("--source", "s.en"), ("--source", "--target")),
        (
            ("--source", "s.en", "--target", "s.fr", "--input", "pairs.tsv"),
            ("--input", "--source"),
        ),
        (("--input", "pairs.tsv", "--index", "s.en", "s.fr"), ("--index", "--margin absolute")),
        (
            ("--input", "pairs.tsv", "--columns", "2,3", "--k", "9"),
            ("--k 9", "--margin absolute"),
        ),
        (("--margin", "ratio"), ("-: ", "--margin ratio")),
        (
            ("--input", "pairs.tsv", "--columns", "2,3", "--margin", "ratio", "--k", "31"),
            ("--k: ", "31"),
        ),
    ],
)
def test_wrong_options_and_input_are_refused(folder, arguments, fragments):
    (folder / "empty").write_text("")
    refused(score(folder, *arguments, "--output", "out.tsv", check=False), *fragments)
    assert not (folder / "out.tsv").exists()


def write_odd_table(folder, *rows):
    """A table with a header, two pairs, two blank rows, a short one, and `rows` of bytes.

    Returns:
        The rows of the two pairs.
    """
    first, second = ("\t".join(pair) for pair in PAIRS[:2])
    lines = [b"en\tfr", first.encode(), b"", b"alone", second.encode(), *rows, b" ", b""]
    (folder / "odd.tsv").write_bytes(b"\n".join(lines))
    return first, second


def test_rows_without_a_pair_have_the_score_zero_or_are_left_out(folder):
    first, second = write_odd_table(folder)
    first_score, second_score = (f"{value:.6f}" for value in cosines(folder)[:2])

    # Without the text, there is one score per row of the table.
    result = score(folder, "--input", "odd.tsv")
    rows = result.stdout.split()
    assert rows == ["score", first_score, "0.000000", "0.000000", second_score, "0.000000"]
    assert re.search("3 .*2 blank, 1 short.* 0$", result.stderr, re.MULTILINE)

    result = score(folder, "--input", "odd.tsv", "--skip-bad")
    assert result.stdout.split() == ["score", first_score, second_score]

    result = score(folder, "--input", "odd.tsv", "--output", "-")
    rows = ["score\ten\tfr", f"{first_score}\t{first}", f"{second_score}\t{second}"]
    assert result.stdout.splitlines() == rows
    assert "2 blank, 1 short" in result.stderr


def test_an_unreadable_row_is_refused_or_left_out(folder):
    first, second = write_odd_table(folder, "d\u00e9j\u00e0\tvu".encode("latin-1"))
    result = score(folder, "--input", "odd.tsv", check=False)
    refused(result, "odd.tsv, line 6: ", "e9 6a e0 09")

    result = score(folder, "--input", "odd.tsv", "--output", "-", "--skip-bad")
    rows = result.stdout.splitlines()[1:]
    assert [row.partition("\t")[2] for row in rows] == [first, second]
    assert "1 unreadable, 2 blank, 1 short" in result.stderr

    result = score(folder, "--source", "s.en", "--target", "s.fr", "--skip-bad", check=False)
    refused(result, "--skip-bad", "--source")


def test_rows_below_the_threshold_are_left_out(folder):
    table = score(folder, "--input", "pairs.tsv", "--columns", "2,3", "--output", "-").stdout
    rows = table.splitlines(keepends=True)
    scores = [float(row.partition("\t")[0]) for row in rows]
    lowest = sorted(scores)[15]
    expected = [row for row, value in zip(rows, scores, strict=True) if value >= lowest]
    threshold = ("--threshold", f"{lowest - 1e-6:.7f}")

    # The first column has numbers, and is not taken for text.
    result = score(folder, "--input", "pairs.tsv", *threshold)
    assert result.stdout == "".join(expected)
    assert f"{len(expected)} of 30 " in result.stderr

    files = ("--source", "s.en", "--target", "s.fr", "--output", "best.tsv")
    result = score(folder, *files, *threshold)
    assert (folder / "best.tsv").read_text().count("\n") == len(expected)
    assert result.stdout.startswith(f"best.tsv: wrote {len(expected)} pairs")


def test_the_header_is_written_with_the_rows_above_a_threshold(folder):
    write_odd_table(folder)
    header, *rows = score(folder, "--input", "odd.tsv", "--threshold", "-9").stdout.splitlines()
    assert header.startswith("score\t")
    assert len(rows) == 2
    assert not any(row.startswith("score\t") for row in rows)


def test_the_tables_of_mine_and_score_are_read_as_input(folder):
    mine = ("mine", "--model", "model", "--source", "s.en", "--target", "s.fr", "--k", "2")
    lxsr_here(*mine, "--output", "mined.tsv", folder=folder)
    with open(folder / "cut.tsv", "w") as stream:
        for row in (folder / "mined.tsv").read_text().splitlines():
            stream.write(row.partition("\t")[2] + "\n")
    expected = score(folder, "--input", "cut.tsv").stdout

    assert score(folder, "--input", "mined.tsv").stdout == expected

    score(folder, "--input", "mined.tsv", "--output", "scored.tsv")
    assert score(folder, "--input", "scored.tsv").stdout == expected


def test_a_mined_translation_memory_can_be_scored(folder):
    """Characters that XML cannot have are replaced."""
    pytest.importorskip("defusedxml")
    (folder / "odd.en").write_text("R&D <b>\x01 costs\nred\n", encoding="utf-8")
    (folder / "odd.fr").write_text("R&D <b>\x01 costs\nred.\n", encoding="utf-8")
    mine = ["mine", "--model", "model", "--source", "odd.en", "--target", "odd.fr", "--k", "1"]
    mine += ["--keep-identical", "--output", "mined.tmx"]
    refused(lxsr_here(*mine, folder=folder, check=False), "mined.tmx", "--lang-pair")
    lxsr_here(*mine, "--lang-pair", "en-fr", "--output", "mined.tsv", folder=folder)

    lxsr_here(*mine, "--lang-pair", "en-fr", folder=folder)

    assert not (folder / "mined.tmx.work").exists()
    content = (folder / "mined.tmx").read_text(encoding="utf-8")
    assert "<seg>R&amp;D &lt;b&gt;\ufffd costs</seg>" in content
    result = score(folder, "--input", "mined.tmx", "--lang-pair", "en-fr", "--output", "-")
    pairs = [row.partition("\t")[2] for row in result.stdout.splitlines()]
    expected = []
    for row in (folder / "mined.tsv").read_text(encoding="utf-8").splitlines():
        pair = row.partition("\t")[2]
        if "\x01" not in pair:
            expected.append(pair)
    assert pairs == expected
    assert "1 not characters" in result.stderr


@pytest.mark.parametrize("name", ["t.csv", "T.CSV.gz"])
def test_the_rows_of_a_csv_are_written_as_tsv(folder, name):
    content = b'id,English,French\n1,"A dog, red.",Un chien.\n'
    if name.endswith("gz"):
        content = gzip.compress(content)
    (folder / name).write_bytes(content)
    rows = score(folder, "--input", name, "--output", "-").stdout.splitlines()
    header, row = (row.split("\t") for row in rows)
    assert header[1:] == ["id", "English", "French"]
    assert row[1:] == ["1", "A dog, red.", "Un chien."]


@pytest.mark.parametrize("columns", ["", "1", "1,2,3", "0,1", "a,b", "1;2"])
def test_invalid_columns_are_refused(folder, columns):
    result = score(folder, "--input", "pairs.tsv", "--columns", columns, check=False)
    refused(result, "--columns")


@pytest.fixture
def memory(folder):
    """A memory with the pairs, and a unit without a translation."""
    pytest.importorskip("defusedxml")
    units = [
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="fr"><seg>{target}</seg></tuv></tu>\n'
        for source, target in PAIRS
    ]
    units.insert(3, '<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>\n')
    text = f'<tmx version="1.4"><header/><body>\n{"".join(units)}</body></tmx>\n'
    (folder / "m.tmx").write_text(text, encoding="utf-8")
    return text


def test_scores_are_added_to_a_translation_memory(folder, memory):
    expected = score(folder, "--source", "s.en", "--target", "s.fr").stdout
    options = ("--input", "m.tmx", "--lang-pair", "en-fr")
    assert score(folder, *options).stdout == expected
    result = score(folder, *options, "--output", "scored.tmx.gz")
    assert "1 language missing" in result.stderr
    content = gzip.decompress((folder / "scored.tmx.gz").read_bytes()).decode()
    scores = re.findall(r'<prop type="x-lxsr-score">(.+?)</prop>', content)
    assert scores == [f"{float(line):.4f}" for line in expected.splitlines()]
    assert re.sub("<prop.+?</prop>", "", content) == memory


def test_units_of_a_memory_below_the_threshold_are_removed_or_marked(folder, memory):
    """A unit without a translation stays."""
    limit = sorted(cosines(folder))[10] + 1e-6
    options = ("--input", "m.tmx", "--lang-pair", "en-fr", "--threshold", limit)

    result = score(folder, *options, "--output", "clean.tmx")
    assert f"19 of {len(PAIRS)} units score" in result.stderr
    assert (folder / "clean.tmx").read_text(encoding="utf-8").count("<tu>") == 20

    score(folder, *options, "--mark", "--output", "marked.tmx")
    marked = (folder / "marked.tmx").read_text(encoding="utf-8")
    assert re.sub("<prop.+?</prop>", "", marked) == memory
    assert marked.count(f", below {limit:g}</prop>") == 11


def test_a_unit_with_an_empty_translation_stays_without_a_score(folder):
    empty = '<tu><tuv xml:lang="en"><seg>A dog.</seg></tuv><tuv xml:lang="fr"><seg/></tuv></tu>\n'
    dog = empty.replace("<seg/>", "<seg>Un chien.</seg>")
    text = f'<tmx version="1.4"><header/><body>\n{dog}{empty}</body></tmx>\n'
    (folder / "todo.tmx").write_text(text, encoding="utf-8")
    options = ("--input", "todo.tmx", "--lang-pair", "en-fr", "--threshold", -1)
    result = score(folder, *options, "--output", "done.tmx")
    assert "1 empty" in result.stderr
    content = (folder / "done.tmx").read_text(encoding="utf-8")
    assert content.count("x-lxsr-score") == 1
    assert empty in content


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (("m.tmx",), "--lang-pair"),
        (("m.tmx", "--lang-pair", "en-fr", "--columns", "1,2"), "--columns"),
        (("m.tmx", "--lang-pair", "en-fr", "--output", "x.xlf"), "x.xlf"),
        (("m.tmx", "--lang-pair", "en-fr", "--output", "x.tmx", "--mark"), "--mark"),
        (("m.tmx", "--lang-pair", "en-de", "--output", "x.tmx"), "m.tmx: no pairs"),
        (("pairs.tsv", "--output", "x.tmx"), "--output"),
        (("pairs.tsv", "--mark"), "--mark"),
    ],
)
def test_options_that_do_not_fit_a_memory_are_refused(folder, memory, options, fragment):
    refused(score(folder, "--input", *options, check=False), fragment)
    assert not (folder / "x.tmx").exists()


def test_the_time_left_of_a_memory_is_shown(folder, memory, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    done = score(folder, "--input", "m.tmx", "--lang-pair", "en-fr")
    assert f"/{memory.count('<tu>')} [" in done.stderr
    assert re.search(rf"score: 100%\|.{{10}}\| {len(PAIRS)}/{len(PAIRS)} ", done.stderr)


def test_the_progress_of_each_step_is_shown_on_a_terminal(folder, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    messages = score(folder, "--input", "pairs.tsv", "--columns", "2,3").stderr
    assert re.search(rf"score: 100%\|.{{10}}\| {len(PAIRS)}/{len(PAIRS)} ", messages)

    mine = ("mine", "--model", "model", "--source", "s.en", "--target", "s.fr", "--k", "2")
    messages = lxsr_here(*mine, "--output", "shown.tsv", folder=folder).stderr
    for step in ("source", "target", "forward", "backward"):
        assert f"{step}: 100%|" in messages
    # Within a step, since its blocks take long.
    assert "search:   0%|" in messages

    approximate = (*mine, "--output", "more.tsv", "--kind", "int8")
    assert "search:   0%|" in lxsr_here(*approximate, folder=folder).stderr

    index = ("index", "--model", "model", "--input", "s.en", "--output", "shown")
    assert "index: 100%|" in lxsr_here(*index, folder=folder).stderr
