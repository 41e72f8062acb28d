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
    """A folder with a small model, and PAIRS as files s.en and s.fr and as a table with numbers."""
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
    """Return the cosine of each of PAIRS."""
    encoder = SentenceEncoder.from_pretrained(folder / "model")
    source = encoder.encode([source for source, _ in PAIRS])
    target = encoder.encode([target for _, target in PAIRS])
    lengths = np.linalg.norm(source, axis=1) * np.linalg.norm(target, axis=1)
    return (source * target).sum(1) / lengths


TABLE = ("--input", "pairs.tsv", "--columns", "2,3")
FILES = ("--source", "s.en", "--target", "s.fr")


@pytest.mark.parametrize("pairs", [TABLE, FILES], ids=["table", "files"])
def test_the_score_of_a_pair_is_its_cosine(folder, pairs):
    scores = [float(line) for line in score(folder, *pairs).stdout.splitlines()]

    np.testing.assert_allclose(scores, cosines(folder), atol=1e-5)


def test_a_table_on_standard_input_has_the_scores_of_the_file(folder, monkeypatch):
    expected = score(folder, *TABLE).stdout
    stream = io.TextIOWrapper(io.BytesIO((folder / "pairs.tsv").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)

    assert score(folder, "--columns", "2,3").stdout == expected


@pytest.mark.parametrize("output", ["-", "scored.tsv"], ids=["standard output", "file"])
def test_a_table_is_written_with_the_score_of_each_row_in_a_new_first_column(folder, output):
    result = score(folder, *TABLE, "--output", output)

    table = result.stdout if output == "-" else (folder / output).read_text(encoding="utf-8")
    rows = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    for scored_row, row in zip(table.splitlines(), rows, strict=True):
        number, _, text = scored_row.partition("\t")
        assert re.fullmatch(r"-?[01]\.\d{6}", number)
        assert text == row


def test_tabs_and_ends_of_lines_in_a_sentence_become_spaces(folder):
    (folder / "odd").write_text("a\tb\u2028c\rd\n", encoding="utf-8")

    result = score(folder, "--source", "odd", "--target", "odd", "--output", "-")

    assert result.stdout.splitlines() == ["1.000000\ta b c d\ta b c d"]


def test_margins_against_indexes_of_the_text_equal_those_within_the_text(folder):
    # An index has repeated sentences several times, the text counts them once.
    assert len(set(PAIRS)) == len(PAIRS)
    for side in ("en", "fr"):
        command = ("index", "--model", "model", "--input", f"s.{side}", "--output", side)
        lxsr_here(*command, folder=folder)
    options = (*FILES, "--margin", "ratio", "--k", 3)

    within_text = np.array(score(folder, *options).stdout.split(), float)
    indexed = np.array(score(folder, *options, "--index", "en", "fr").stdout.split(), float)

    assert within_text.shape == (len(PAIRS),)
    assert np.isfinite(within_text).all()
    np.testing.assert_allclose(within_text, indexed, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # The table has three columns.
        (("--input", "pairs.tsv", "--columns", "2,4"), ("pairs.tsv, line 1: ", "3", "4")),
        (("--input", "empty"), ("empty: ",)),
        (("--source", "s.en"), ("--source", "--target")),
        ((*FILES, "--input", "pairs.tsv"), ("--input", "--source")),
        # Only a margin uses neighbours and an index, and the default is none.
        (("--input", "pairs.tsv", "--index", "s.en", "s.fr"), ("--index", "--margin absolute")),
        ((*TABLE, "--k", "9"), ("--k 9", "--margin absolute")),
        # A margin reads the text twice, but there are only 30 sentences.
        (("--margin", "ratio"), ("-: ", "--margin ratio")),
        ((*TABLE, "--margin", "ratio", "--k", "31"), ("--k: ", "31")),
    ],
    ids=["column", "empty", "one side", "two inputs", "index", "k", "stdin", "large k"],
)
def test_wrong_options_and_input_are_refused_without_an_output(folder, arguments, fragments):
    (folder / "empty").write_text("")

    result = score(folder, *arguments, "--output", "out.tsv", check=False)

    refused(result, *fragments)
    assert not (folder / "out.tsv").exists()


@pytest.mark.parametrize("columns", ["", "1", "1,2,3", "0,1", "a,b", "1;2"])
def test_columns_that_are_not_two_positive_numbers_are_refused(folder, columns):
    result = score(folder, "--input", "pairs.tsv", "--columns", columns, check=False)

    refused(result, "--columns")


# The rows of the two pairs of the next table.
FIRST_ROW, SECOND_ROW = ("\t".join(pair) for pair in PAIRS[:2])


def write_table_with_bad_rows(folder, *more_rows: bytes) -> None:
    """Write odd.tsv: a header, two pairs, two blank rows, a row with one column, and `more_rows`."""
    rows = [b"en\tfr", FIRST_ROW.encode(), b"", b"alone", SECOND_ROW.encode(), *more_rows, b" "]
    (folder / "odd.tsv").write_bytes(b"\n".join([*rows, b""]))


@pytest.fixture
def two_scores(folder) -> list[str]:
    """The scores of the first two pairs, as `lxsr score` writes them."""
    return [f"{value:.6f}" for value in cosines(folder)[:2]]


def test_scores_without_the_text_are_one_a_row_and_zero_for_rows_without_a_pair(folder, two_scores):
    write_table_with_bad_rows(folder)

    result = score(folder, "--input", "odd.tsv")

    first, second = two_scores
    # The rows are: header, pair, blank, short, pair, blank.
    assert result.stdout.split() == ["score", first, "0.000000", "0.000000", second, "0.000000"]
    assert re.search("3 .*2 blank, 1 short.* 0$", result.stderr, re.MULTILINE)


def test_skip_bad_leaves_rows_without_a_pair_out_of_the_scores(folder, two_scores):
    write_table_with_bad_rows(folder)

    result = score(folder, "--input", "odd.tsv", "--skip-bad")

    assert result.stdout.split() == ["score", *two_scores]


def test_a_table_is_written_without_the_rows_that_have_no_pair(folder, two_scores):
    write_table_with_bad_rows(folder)

    result = score(folder, "--input", "odd.tsv", "--output", "-")

    first, second = two_scores
    rows = ["score\ten\tfr", f"{first}\t{FIRST_ROW}", f"{second}\t{SECOND_ROW}"]
    assert result.stdout.splitlines() == rows
    assert "2 blank, 1 short" in result.stderr


# A row that is not UTF-8, and the bytes from é to the tab, with which the message shows it.
UNREADABLE_ROW = "déjà\tvu".encode("latin-1")
UNREADABLE_BYTES = "éjà\t".encode("latin-1").hex(" ")


def test_a_row_that_is_not_utf8_is_refused_with_its_number(folder):
    write_table_with_bad_rows(folder, UNREADABLE_ROW)

    result = score(folder, "--input", "odd.tsv", check=False)

    # After the header, two pairs, a blank and a short row.
    refused(result, "odd.tsv, line 6: ", UNREADABLE_BYTES)


def test_skip_bad_leaves_out_a_row_that_is_not_utf8(folder, two_scores):
    write_table_with_bad_rows(folder, UNREADABLE_ROW)

    result = score(folder, "--input", "odd.tsv", "--output", "-", "--skip-bad")

    first, second = two_scores
    rows = ["score\ten\tfr", f"{first}\t{FIRST_ROW}", f"{second}\t{SECOND_ROW}"]
    assert result.stdout.splitlines() == rows
    assert "1 unreadable, 2 blank, 1 short" in result.stderr


def test_skip_bad_is_refused_for_two_files(folder):
    """A line left out of one file would shift its other lines."""
    result = score(folder, *FILES, "--skip-bad", check=False)

    refused(result, "--skip-bad", "--source")


@pytest.fixture
def better_half(folder) -> tuple[list[str], tuple[str, str]]:
    """The rows of the better half of the table, with their scores, and the threshold for them."""
    rows = score(folder, *TABLE, "--output", "-").stdout.splitlines(keepends=True)
    scores = [float(row.partition("\t")[0]) for row in rows]
    lowest = sorted(scores)[len(scores) // 2]
    best_rows = [row for row, value in zip(rows, scores, strict=True) if value >= lowest]
    # The scores are rounded to six digits.
    return best_rows, ("--threshold", f"{lowest - 1e-6:.7f}")


def test_rows_of_a_table_below_the_threshold_are_left_out(folder, better_half):
    best_rows, threshold = better_half

    # Without --columns, the first column is not taken for text, as it has numbers.
    result = score(folder, "--input", "pairs.tsv", *threshold)

    assert result.stdout == "".join(best_rows)
    assert f"{len(best_rows)} of {len(PAIRS)} " in result.stderr


def test_pairs_of_two_files_below_the_threshold_are_left_out_of_the_output(folder, better_half):
    best_rows, threshold = better_half

    result = score(folder, *FILES, "--output", "best.tsv", *threshold)

    assert len((folder / "best.tsv").read_text().splitlines()) == len(best_rows)
    assert result.stdout.startswith(f"best.tsv: wrote {len(best_rows)} pairs")


def test_the_header_of_a_table_is_written_with_the_rows_above_a_threshold(folder, two_scores):
    write_table_with_bad_rows(folder)

    # No cosine is below -1.
    result = score(folder, "--input", "odd.tsv", "--threshold", "-9")

    first, second = two_scores
    rows = ["score\ten\tfr", f"{first}\t{FIRST_ROW}", f"{second}\t{SECOND_ROW}"]
    assert result.stdout.splitlines() == rows


def test_the_first_column_of_the_tables_of_mine_and_score_is_not_read_as_text(folder):
    """It has their scores."""
    mine = ("mine", "--model", "model", *FILES, "--k", "2", "--output", "mined.tsv")
    lxsr_here(*mine, folder=folder)
    mined_rows = (folder / "mined.tsv").read_text().splitlines()
    without_scores = [row.partition("\t")[2] for row in mined_rows]
    (folder / "cut.tsv").write_text("\n".join(without_scores) + "\n")
    expected = score(folder, "--input", "cut.tsv").stdout

    scores_of_mined = score(folder, "--input", "mined.tsv").stdout
    score(folder, "--input", "mined.tsv", "--output", "scored.tsv")
    scores_of_scored = score(folder, "--input", "scored.tsv").stdout

    assert scores_of_mined == expected
    assert scores_of_scored == expected


@pytest.fixture
def mine_command(folder):
    """The command that mines a pair with mark-up and a control character, and a plain pair."""
    pytest.importorskip("defusedxml")
    (folder / "odd.en").write_text("R&D <b>\x01 costs\nred\n", encoding="utf-8")
    (folder / "odd.fr").write_text("R&D <b>\x01 costs\nred.\n", encoding="utf-8")
    texts = ("--source", "odd.en", "--target", "odd.fr", "--keep-identical")
    return ("mine", "--model", "model", *texts, "--k", "1")


def test_mine_refuses_a_translation_memory_without_its_languages(folder, mine_command):
    result = lxsr_here(*mine_command, "--output", "mined.tmx", folder=folder, check=False)

    refused(result, "mined.tmx", "--lang-pair")


def test_mine_writes_a_translation_memory_with_a_sign_for_characters_that_xml_lacks(
    folder, mine_command
):
    lxsr_here(*mine_command, "--lang-pair", "en-fr", "--output", "mined.tmx", folder=folder)

    content = (folder / "mined.tmx").read_text(encoding="utf-8")
    assert "<seg>R&amp;D &lt;b&gt;\ufffd costs</seg>" in content
    # The work folder is removed at the end.
    assert not (folder / "mined.tmx.work").exists()


def test_score_reads_a_mined_memory_without_the_pairs_that_have_the_sign(folder, mine_command):
    lxsr_here(*mine_command, "--lang-pair", "en-fr", "--output", "mined.tmx", folder=folder)

    result = score(folder, "--input", "mined.tmx", "--lang-pair", "en-fr", "--output", "-")

    pairs = [row.partition("\t")[2] for row in result.stdout.splitlines()]
    assert pairs == ["red\tred."]
    assert "1 not characters" in result.stderr


@pytest.mark.parametrize("name", ["t.csv", "T.CSV.gz"])
def test_the_rows_of_a_csv_are_written_as_tsv(folder, name):
    content = b'id,English,French\n1,"A dog, red.",Un chien.\n'
    if name.endswith("gz"):
        content = gzip.compress(content)
    (folder / name).write_bytes(content)

    rows = score(folder, "--input", name, "--output", "-").stdout.splitlines()

    # The first column has the score.
    header, row = (row.split("\t") for row in rows)
    assert header == ["score", "id", "English", "French"]
    assert row[1:] == ["1", "A dog, red.", "Un chien."]


def unit(source: str, target: str) -> str:
    """Return a unit of a translation memory in English and French."""
    return (
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv>'
        f'<tuv xml:lang="fr"><seg>{target}</seg></tuv></tu>\n'
    )


UNIT_WITHOUT_FRENCH = '<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>\n'


def memory_of(units: list[str]) -> str:
    return f'<tmx version="1.4"><header/><body>\n{"".join(units)}</body></tmx>\n'


def without_scores(memory: str) -> str:
    return re.sub("<prop.+?</prop>", "", memory)


@pytest.fixture
def memory(folder):
    """The translation memory m.tmx of PAIRS and of a unit without a translation, as a text."""
    pytest.importorskip("defusedxml")
    units = [unit(source, target) for source, target in PAIRS]
    units.insert(3, UNIT_WITHOUT_FRENCH)
    text = memory_of(units)
    (folder / "m.tmx").write_text(text, encoding="utf-8")
    return text


MEMORY = ("--input", "m.tmx", "--lang-pair", "en-fr")


@pytest.mark.usefixtures("memory")
def test_a_translation_memory_has_the_scores_of_its_pairs(folder):
    assert score(folder, *MEMORY).stdout == score(folder, *FILES).stdout


def test_scores_are_added_to_the_units_of_a_translation_memory_that_have_a_translation(
    folder, memory
):
    result = score(folder, *MEMORY, "--output", "scored.tmx.gz")

    content = gzip.decompress((folder / "scored.tmx.gz").read_bytes()).decode()
    scores = re.findall(r'<prop type="x-lxsr-score">(.+?)</prop>', content)
    assert scores == [f"{cosine:.4f}" for cosine in cosines(folder)]
    assert without_scores(content) == memory
    assert "1 language missing" in result.stderr


@pytest.fixture
def threshold_above_11_pairs(folder) -> float:
    """A threshold that 11 of the 30 pairs do not reach."""
    return sorted(cosines(folder))[10] + 1e-6


@pytest.mark.usefixtures("memory")
def test_units_of_a_memory_below_the_threshold_are_removed(folder, threshold_above_11_pairs):
    options = ("--threshold", threshold_above_11_pairs, "--output", "clean.tmx")

    result = score(folder, *MEMORY, *options)

    assert "19 of 30 units score" in result.stderr
    content = (folder / "clean.tmx").read_text(encoding="utf-8")
    # The unit without a translation stays.
    assert content.count("<tu>") == 19 + 1
    assert UNIT_WITHOUT_FRENCH in content


def test_mark_keeps_the_units_of_a_memory_below_the_threshold_and_marks_them(
    folder, memory, threshold_above_11_pairs
):
    options = ("--threshold", threshold_above_11_pairs, "--mark", "--output", "marked.tmx")

    score(folder, *MEMORY, *options)

    marked = (folder / "marked.tmx").read_text(encoding="utf-8")
    assert without_scores(marked) == memory
    assert marked.count(f", below {threshold_above_11_pairs:g}</prop>") == 11


def test_a_unit_with_an_empty_translation_stays_without_a_score(folder):
    empty = unit("A dog.", "")
    (folder / "todo.tmx").write_text(memory_of([unit("A dog.", "Un chien."), empty]))
    options = ("--input", "todo.tmx", "--lang-pair", "en-fr", "--threshold", -1)

    result = score(folder, *options, "--output", "done.tmx")

    content = (folder / "done.tmx").read_text(encoding="utf-8")
    assert content.count("x-lxsr-score") == 1
    assert empty in content
    assert "1 empty" in result.stderr


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        # A memory needs its languages, which it must have, and has no columns.
        (("m.tmx",), "--lang-pair"),
        (("m.tmx", "--lang-pair", "en-de", "--output", "x.tmx"), "m.tmx: no pairs"),
        (("m.tmx", "--lang-pair", "en-fr", "--columns", "1,2"), "--columns"),
        # Its output is of the same format.
        (("m.tmx", "--lang-pair", "en-fr", "--output", "x.xlf"), "x.xlf"),
        (("pairs.tsv", "--output", "x.tmx"), "--output"),
        # Only units of a memory below a threshold can be marked.
        (("m.tmx", "--lang-pair", "en-fr", "--output", "x.tmx", "--mark"), "--mark"),
        (("pairs.tsv", "--mark"), "--mark"),
    ],
    ids=["none", "language", "columns", "format", "table", "no threshold", "no memory"],
)
def test_options_that_do_not_fit_a_memory_are_refused(folder, options, fragment):
    result = score(folder, "--input", *options, check=False)

    refused(result, fragment)
    assert not (folder / "x.tmx").exists()
    assert not (folder / "x.xlf").exists()


@pytest.fixture
def on_terminal(monkeypatch):
    """Show progress, as on a terminal."""
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)


# The bar, and the number of pairs.
FULL_SCORE_BAR = rf"score: 100%\|.{{10}}\| {len(PAIRS)}/{len(PAIRS)} "


@pytest.mark.usefixtures("on_terminal")
def test_score_shows_how_many_units_of_a_memory_are_read_and_scored(folder, memory):
    messages = score(folder, *MEMORY).stderr

    assert f"/{memory.count('<tu>')} [" in messages
    assert re.search(FULL_SCORE_BAR, messages)


@pytest.mark.usefixtures("on_terminal")
def test_score_shows_how_many_pairs_of_a_table_are_scored(folder):
    assert re.search(FULL_SCORE_BAR, score(folder, *TABLE).stderr)


@pytest.mark.usefixtures("on_terminal")
def test_mine_shows_the_progress_of_each_step_and_within_a_search(folder):
    mine = ("mine", "--model", "model", *FILES, "--k", "2", "--output", "shown.tsv")

    messages = lxsr_here(*mine, folder=folder).stderr

    for step in ("source", "target", "forward", "backward"):
        assert f"{step}: 100%|" in messages
    # A block of a search can take long.
    assert "search:   0%|" in messages


@pytest.mark.usefixtures("on_terminal")
def test_mine_with_rounded_vectors_shows_the_progress_within_a_search(folder):
    mine = ("mine", "--model", "model", *FILES, "--k", "2", "--output", "rounded.tsv")

    messages = lxsr_here(*mine, "--kind", "int8", folder=folder).stderr

    assert "search:   0%|" in messages


@pytest.mark.usefixtures("on_terminal")
def test_index_shows_its_progress(folder):
    index = ("index", "--model", "model", "--input", "s.en", "--output", "shown")

    assert "index: 100%|" in lxsr_here(*index, folder=folder).stderr
