"""`lxsr score` on the command line."""

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
    rows = [f"{number}\t{source}\t{target}" for number, (source, target) in enumerate(PAIRS)]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def score(where, *arguments, **options):
    return lxsr_here("score", "--model", where / "model", *arguments, **options)


def cosines(folder):
    encoder = SentenceEncoder.from_pretrained(folder / "model")
    source, target = (encoder.encode(list(side)) for side in zip(*PAIRS, strict=True))
    return (
        (source * target).sum(1) / np.linalg.norm(source, axis=1) / np.linalg.norm(target, axis=1)
    )


def test_cosines_of_a_table_of_two_files_and_of_standard_input(folder, monkeypatch):
    table = score(folder, "--input", folder / "pairs.tsv", "--columns", "2,3").stdout
    np.testing.assert_allclose(
        [float(line) for line in table.splitlines()], cosines(folder), atol=1e-5
    )
    assert score(folder, "--source", folder / "s.en", "--target", folder / "s.fr").stdout == table
    stream = io.TextIOWrapper(io.BytesIO((folder / "pairs.tsv").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert score(folder, "--columns", "2,3").stdout == table


@pytest.mark.parametrize("output", ["-", "scored.tsv"])
def test_the_text_beside_the_scores(folder, output):
    done = score(
        folder, "--input", "pairs.tsv", "--columns", "2,3", "--output", output, folder=folder
    )
    text = done.stdout if output == "-" else (folder / output).read_text(encoding="utf-8")
    scores, lines = zip(*(line.split("\t", 1) for line in text.splitlines()), strict=True)
    assert "\n".join(lines) + "\n" == (folder / "pairs.tsv").read_text(encoding="utf-8")
    assert all(re.fullmatch(r"-?[01]\.\d{6}", one) for one in scores)


def test_a_sentence_of_a_file_is_one_cell(folder):
    (folder / "odd").write_text("a\tb\u2028c\rd\n", encoding="utf-8")
    done = score(folder, "--source", folder / "odd", "--target", folder / "odd", "--output", "-")
    assert done.stdout.splitlines() == ["1.000000\ta b c d\ta b c d"]


def test_margins_against_indexes_of_the_text_are_those_of_the_text(folder):
    for side in ("en", "fr"):
        lxsr_here(
            "index",
            "--model",
            folder / "model",
            "--input",
            folder / f"s.{side}",
            "--output",
            folder / side,
        )
    pairs = (
        "--source",
        folder / "s.en",
        "--target",
        folder / "s.fr",
        "--margin",
        "ratio",
        "--k",
        3,
    )
    own = np.array(score(folder, *pairs).stdout.split(), float)
    indexed = np.array(
        score(folder, *pairs, "--index", folder / "en", folder / "fr").stdout.split(), float
    )
    # an index keeps equal sentences, which count once among themselves
    if len(set(PAIRS)) == len(PAIRS):
        np.testing.assert_allclose(own, indexed, rtol=1e-4)
    assert own.shape == (30,)
    assert np.isfinite(own).all()


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
def test_what_is_refused(folder, arguments, fragments):
    (folder / "empty").write_text("")
    refused(
        score(folder, *arguments, "--output", "out.tsv", check=False, folder=folder), *fragments
    )
    assert not (folder / "out.tsv").exists()


def write_odd(folder, *rows):
    """A table with a header, a blank row, a short one and one that is not UTF-8 among two pairs."""
    text = [f"{source}\t{target}".encode() for source, target in PAIRS[:2]]
    (folder / "odd.tsv").write_bytes(
        b"\n".join([b"en\tfr", text[0], b"", b"alone", text[1], *rows, b" ", b""])
    )
    return [line.decode() for line in text]


def test_rows_without_a_pair(folder):
    first, second = write_odd(folder)
    done = score(folder, "--input", "odd.tsv", folder=folder)
    one, two = (f"{value:.6f}" for value in cosines(folder)[:2])
    # line for line
    assert done.stdout.split() == ["score", one, "0.000000", "0.000000", two, "0.000000"]
    assert re.search("3 .*2 blank, 1 short.* 0$", done.stderr, re.MULTILINE)
    assert score(folder, "--input", "odd.tsv", "--skip-bad", folder=folder).stdout.split() == [
        "score",
        one,
        two,
    ]
    done = score(folder, "--input", "odd.tsv", "--output", "-", folder=folder)
    assert done.stdout.splitlines() == ["score\ten\tfr", f"{one}\t{first}", f"{two}\t{second}"]
    assert "2 blank, 1 short" in done.stderr


def test_a_row_that_cannot_be_read_is_refused_or_left_out(folder):
    first, second = write_odd(folder, "d\u00e9j\u00e0\tvu".encode("latin-1"))
    refused(
        score(folder, "--input", "odd.tsv", check=False, folder=folder),
        "odd.tsv, line 6: ",
        "e9 6a e0 09",
    )
    done = score(folder, "--input", "odd.tsv", "--output", "-", "--skip-bad", folder=folder)
    assert [line.split("\t", 1)[1] for line in done.stdout.splitlines()[1:]] == [first, second]
    assert "1 unreadable, 2 blank, 1 short" in done.stderr
    aligned = ("--source", "s.en", "--target", "s.fr", "--skip-bad")
    refused(score(folder, *aligned, check=False, folder=folder), "--skip-bad", "--source")


def test_the_rows_of_a_least_score(folder):
    write_odd(folder)
    everything = score(
        folder, "--input", "pairs.tsv", "--columns", "2,3", "--output", "-", folder=folder
    ).stdout
    rows = everything.splitlines(keepends=True)
    least = sorted(float(row.split("\t")[0]) for row in rows)[15]
    expected = "".join(row for row in rows if float(row.split("\t")[0]) >= least)
    some = ("--threshold", f"{least - 1e-6:.7f}")
    # the numbers of the first column are no text
    done = score(folder, "--input", "pairs.tsv", *some, folder=folder)
    assert done.stdout == expected
    assert f"{len(expected.splitlines())} of 30 " in done.stderr
    done = score(
        folder, "--source", "s.en", "--target", "s.fr", *some, "--output", "best.tsv", folder=folder
    )
    assert (folder / "best.tsv").read_text().count("\n") == len(expected.splitlines())
    assert done.stdout.startswith(f"best.tsv: wrote {len(expected.splitlines())} pairs")
    nothing = score(folder, "--input", "odd.tsv", "--threshold", "-9", folder=folder).stdout
    assert [row.split("\t")[0] == "score" for row in nothing.splitlines()] == [True, False, False]


def test_what_mining_and_scoring_write_is_read_again(folder):
    text = ("--source", "s.en", "--target", "s.fr", "--k", "2", "--output", "mined.tsv")
    lxsr_here("mine", "--model", "model", *text, folder=folder)
    mined = [row.split("\t")[1:] for row in (folder / "mined.tsv").read_text().splitlines()]
    (folder / "cut.tsv").write_text("".join("\t".join(row) + "\n" for row in mined))
    expected = score(folder, "--input", "cut.tsv", folder=folder).stdout
    assert score(folder, "--input", "mined.tsv", folder=folder).stdout == expected
    score(folder, "--input", "mined.tsv", "--output", "scored.tsv", folder=folder)
    assert score(folder, "--input", "scored.tsv", folder=folder).stdout == expected


def test_mined_pairs_are_a_memory_that_can_be_scored(folder):
    pytest.importorskip("defusedxml")
    (folder / "odd.en").write_text("R&D <b>\x01 costs\nred\n", encoding="utf-8")
    (folder / "odd.fr").write_text("R&D <b>\x01 costs\nred.\n", encoding="utf-8")
    text = ("--source", "odd.en", "--target", "odd.fr", "--k", "1", "--keep-identical")
    text = ("mine", "--model", "model", *text, "--output", "mined.tmx")
    refused(lxsr_here(*text, folder=folder, check=False), "mined.tmx", "--lang-pair")
    lxsr_here(*text, "--lang-pair", "en-fr", "--output", "mined.tsv", folder=folder)
    lxsr_here(*text, "--lang-pair", "en-fr", folder=folder)
    assert not (folder / "mined.tmx.work").exists()
    options = ("--lang-pair", "en-fr", "--output", "-")
    done = score(folder, "--input", "mined.tmx", *options, folder=folder)
    rows = [row.split("\t")[1:] for row in done.stdout.splitlines()]
    mined = (folder / "mined.tsv").read_text(encoding="utf-8").replace("\x01", "\ufffd")
    expected = [row.split("\t")[1:] for row in mined.splitlines()]
    assert rows == [row for row in expected if "\ufffd" not in row[0]]
    assert "1 not characters" in done.stderr
    after = (folder / "mined.tmx").read_text(encoding="utf-8")
    assert "<seg>R&amp;D &lt;b&gt;\ufffd costs</seg>" in after


@pytest.mark.parametrize("name", ["t.csv", "T.CSV.gz"])
def test_a_csv_is_written_as_tsv(folder, name):
    text = 'id,English,French\n1,"A dog, red.",Un chien.\n'
    (folder / name).write_bytes(
        gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    )
    rows = score(folder, "--input", name, "--output", "-", folder=folder).stdout.splitlines()
    assert [row.split("\t")[1:] for row in rows] == [
        ["id", "English", "French"],
        ["1", "A dog, red.", "Un chien."],
    ]


@pytest.mark.parametrize("columns", ["", "1", "1,2,3", "0,1", "a,b", "1;2"])
def test_columns_that_are_none(folder, columns):
    refused(
        score(folder, "--input", "pairs.tsv", "--columns", columns, check=False, folder=folder),
        "--columns",
    )


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


def test_a_memory_comes_back_with_scores(folder, memory):
    expected = score(folder, "--source", folder / "s.en", "--target", folder / "s.fr").stdout
    options = ("--input", folder / "m.tmx", "--lang-pair", "en-fr")
    assert score(folder, *options).stdout == expected
    done = score(folder, *options, "--output", folder / "scored.tmx.gz")
    assert "1 language missing" in done.stderr
    after = gzip.decompress((folder / "scored.tmx.gz").read_bytes()).decode()
    scores = re.findall(r'<prop type="x-lxsr-score">(.+?)</prop>', after)
    assert scores == [f"{float(line):.4f}" for line in expected.splitlines()]
    assert re.sub("<prop.+?</prop>", "", after) == memory


def test_a_memory_is_cleaned(folder, memory):
    limit = sorted(cosines(folder))[10] + 1e-6
    options = ("--input", folder / "m.tmx", "--lang-pair", "en-fr", "--threshold", limit)
    done = score(folder, *options, "--output", folder / "clean.tmx")
    assert f"19 of {len(PAIRS)} units score" in done.stderr
    after = (folder / "clean.tmx").read_text(encoding="utf-8")
    assert after.count("<tu>") == 20, "a unit without a translation stays"
    score(folder, *options, "--mark", "--output", folder / "marked.tmx")
    marked = (folder / "marked.tmx").read_text(encoding="utf-8")
    assert re.sub("<prop.+?</prop>", "", marked) == memory
    assert marked.count(f", below {limit:g}</prop>") == 11


@pytest.mark.parametrize(
    ("options", "part"),
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
def test_options_that_do_not_fit_a_memory(folder, memory, options, part):
    done = score(folder, "--input", *options, folder=folder, check=False)
    refused(done, part)
    assert not (folder / "x.tmx").exists()


def test_the_time_left_of_a_memory_is_shown(folder, memory, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    done = score(folder, "--input", "m.tmx", "--lang-pair", "en-fr", folder=folder)
    assert f"/{memory.count('<tu>')} [" in done.stderr
    assert re.search(rf"score: 100%\|.{{10}}\| {len(PAIRS)}/{len(PAIRS)} ", done.stderr)


def test_commands_on_a_terminal_show_their_progress_and_its_end(folder, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    done = score(folder, "--input", folder / "pairs.tsv", "--columns", "2,3")
    assert re.search(rf"score: 100%\|.{{10}}\| {len(PAIRS)}/{len(PAIRS)} ", done.stderr)
    text = ("--source", "s.en", "--target", "s.fr", "--k", "2", "--output", "shown.tsv")
    done = lxsr_here("mine", "--model", "model", *text, folder=folder)
    for step in ("source", "target", "forward", "backward"):
        assert f"{step}: 100%|" in done.stderr
    assert "search:   0%|" in done.stderr, "inside a step, whose blocks take long"
    approximate = ("mine", "--model", "model", *text[:-1], "more.tsv", "--kind", "int8")
    done = lxsr_here(*approximate, folder=folder)
    assert "search:   0%|" in done.stderr
    text = ("--input", "s.en", "--output", "shown")
    done = lxsr_here("index", "--model", "model", *text, folder=folder)
    assert "index: 100%|" in done.stderr
