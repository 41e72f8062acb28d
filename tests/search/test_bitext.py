"""Mining from text files: the pairs of `retrieval.mine`, whatever the interruptions."""

import functools
import itertools
import shutil

import numpy as np
import pytest
from kills import every_kill

from fairseq_lxsr.embeddings import ByLanguage, StoredEmbeddings
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.search import Mining, Side, mine_files
from fairseq_lxsr.search.bitext import write_pairs
from fairseq_lxsr.vectors import MinedPairs, mine, nearest_neighbours

WORK_FILES = {
    ".lxsr-work",
    "source.npy",
    "source.npy.json",
    "target.npy",
    "target.npy.json",
    "forward.npy",
    "forward.npy.json",
    "backward.npy",
    "backward.npy.json",
}
SOURCE = [f"s {i}" for i in range(80)]
TARGET = [f"t {i}" for i in range(20, 80)]
VECTORS = np.random.default_rng(0).standard_normal((90, 12)).astype(np.float32)


@functools.cache
def vector(line: str) -> np.ndarray:
    """`s 3` and `t 3` lie close to each other."""
    side, number = line.split()
    noise = np.random.default_rng(int(number) + (1000 if side == "t" else 0)).standard_normal(12)
    return VECTORS[int(number)] + 0.3 * noise


def vectors(lines):
    return np.stack([vector(line) for line in lines])


class FunctionEncoder:
    """An encoder that calls a function of sentences and their line numbers."""

    def __init__(self, encode, fingerprint="model", width=12):
        self.encode = encode
        self.fingerprint = fingerprint
        self.width = width

    def embed(self, text, counts=None):
        return np.asarray(self.encode(text.lines, text.rows), dtype=np.float32)


def with_encoder(side, encode, fingerprint="model", width=12):
    """The same text with another encoder."""
    return Side(side.path, FunctionEncoder(encode, fingerprint, width))


def must_not_encode(lines, rows):
    pytest.fail("sentences are encoded")


@pytest.fixture
def files(tmp_path):
    """80 distinct source lines, with two repetitions and empty lines, and 60 target lines."""
    lines = [SOURCE[0], SOURCE[0], "", *SOURCE[1:], SOURCE[5], "\u200b"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(TARGET) + "\n")

    def encode(lines, rows):
        assert len(lines) == len(rows)
        return vectors(lines)

    encoder = FunctionEncoder(encode)
    return Side(tmp_path / "a.txt", encoder), Side(tmp_path / "b.txt", encoder)


def test_mined_files_have_the_pairs_of_mined_vectors(files, tmp_path):
    expected = mine(vectors(SOURCE), vectors(TARGET)).above(1.0)

    mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.0))

    rows = rows_of(tmp_path / "out.tsv")
    assert len(rows) > 40
    num_translations = 0
    for (score, source, target), i, j, expected_score in zip(
        rows, expected.source, expected.target, expected.scores, strict=True
    ):
        assert (source, target) == (SOURCE[i], TARGET[j])
        assert float(score) == pytest.approx(expected_score, abs=1e-5)
        num_translations += source[2:] == target[2:]
    assert num_translations > 0.9 * len(rows)


def test_tabs_and_line_ends_in_a_sentence_become_spaces(tmp_path):
    pair = MinedPairs(np.ones(1), np.zeros(1, int), np.zeros(1, int))
    write_pairs(tmp_path / "out.tsv", pair, ["a\rb\u2028c"], ["d\te\x85 f"], ("en", "fr"))
    assert (tmp_path / "out.tsv").read_text().splitlines() == ["1.000000\ta b c\td e f"]


# The sides of each pair have the same letters.
COPIES = [("Install Lua.", "install lua"), ("Version 1.2", "Version 1.3"), ("…", "…")]


@pytest.fixture
def files_with_copies(files, tmp_path):
    """Texts that end with three untranslated lines, which lie closest to each other."""
    for number, side in enumerate(files):
        lines = side.path.read_text("utf-8").splitlines()
        lines += [copy[number] for copy in COPIES]
        side.path.write_text("\n".join(lines), "utf-8")

    def embed(line):
        for row, copy in enumerate(COPIES):
            if line in copy:
                return 9 * VECTORS[80 + row]
        return vector(line)

    def encode(lines, rows):
        return np.stack([embed(line) for line in lines])

    return [with_encoder(side, encode) for side in files]


def test_untranslated_copies_are_left_out_and_counted(files_with_copies, tmp_path, capsys):
    output = tmp_path / "out.tsv"
    every_pair = mine_files(*files_with_copies, output, None, Mining(keep_identical=True))
    assert {tuple(pair) for _, *pair in rows_of(output)} >= set(COPIES)
    assert "identical" not in capsys.readouterr().err

    pairs = mine_files(*files_with_copies, output, None)
    assert len(pairs) == len(every_pair) - len(COPIES)
    assert not {tuple(pair) for _, *pair in rows_of(output)} & set(COPIES)
    assert f"3 of {len(every_pair)} pairs are identical" in capsys.readouterr().err

    # Copies do not count among the best pairs, and copies below the threshold are not counted.
    best = mine_files(*files_with_copies, output, None, Mining(top=5))
    assert best.source.tolist() == pairs.source[:5].tolist()
    capsys.readouterr()
    mine_files(*files_with_copies, output, None, Mining(threshold=100.0))
    assert "identical" not in capsys.readouterr().err


def test_within_one_text_pairs_with_the_same_letters_are_mined(files_with_copies, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("\n".join([*SOURCE, *COPIES[0], *COPIES[1]]))
    mine_files(Side(path, files_with_copies[0].encoder), None, tmp_path / "out.tsv")
    assert {tuple(pair) for _, *pair in rows_of(tmp_path / "out.tsv")} >= set(COPIES[:2])


def test_an_interrupted_run_is_continued_to_the_same_bytes(files, tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 30)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 50)
    mine_files(*files, tmp_path / "whole.tsv", tmp_path / "whole")
    calls = itertools.count(1)
    failing_call = 0

    def failing(function):
        def call(*arguments, **options):
            # The error stands for a power cut.
            if next(calls) == failing_call:
                raise ZeroDivisionError
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(
        "fairseq_lxsr.search.bitext.nearest_neighbours", failing(nearest_neighbours)
    )
    sides = [with_encoder(side, failing(side.encoder.encode)) for side in files]
    for failing_call in range(1, 8):
        calls = itertools.count(1)
        output = tmp_path / str(failing_call) / "out.tsv"
        work = tmp_path / str(failing_call) / "work"
        with pytest.raises(ZeroDivisionError):
            mine_files(*sides, output, work)
        assert not output.exists()
        mine_files(*sides, output, work)
        assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes(), failing_call


@pytest.mark.parametrize("keep_work", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_same_bytes_after_a_kill_before_any_change_of_files(
    files, tmp_path, monkeypatch, keep_work
):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 50)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 60)
    assert len(mine_files(*files, tmp_path / "whole.tsv", None)) > 40
    folder = tmp_path / "out"
    output = folder / "out.tsv"
    work = None
    expected_names = {"out.tsv"}
    if keep_work:
        work = folder / "work"
        expected_names = {"out.tsv", "work"}
    kills = 0
    for kills in every_kill(lambda: mine_files(*files, output, work)):
        mine_files(*files, output, work)
        assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes(), kills
        names = {path.name for path in folder.rglob("*")}
        assert names - WORK_FILES == expected_names, kills
        shutil.rmtree(folder)
    assert kills > 30


def test_other_options_use_the_stored_vectors(files, tmp_path):
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    all_pairs = mine_files(*files, output, work)
    sides = [with_encoder(side, must_not_encode) for side in files]

    best = mine_files(*sides, output, work, Mining(top=3))
    with_two_neighbours = mine_files(*sides, output, work, Mining(k=2))

    assert best.source.tolist() == all_pairs.source[:3].tolist()
    expected = mine_files(*files, output, None, Mining(k=2))
    np.testing.assert_array_equal(with_two_neighbours.scores, expected.scores)
    assert expected.scores.tolist() != all_pairs.scores.tolist()


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_an_approximate_search_mines_nearly_the_pairs_of_the_exact_one(files, tmp_path, kind):
    """Both use the same work folder, but not the same neighbours."""

    def mine_kind(name):
        options = Mining(threshold=1.2, kind=name)
        return mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", options)

    exact = mine_kind("flat")
    approximate = mine_kind(kind)

    assert approximate.scores.tolist() != exact.scores.tolist()
    exact_pairs = set(zip(exact.source, exact.target, strict=True))
    common_pairs = exact_pairs & set(zip(approximate.source, approximate.target, strict=True))
    assert len(common_pairs) > 0.95 * len(exact) > 30
    np.testing.assert_allclose(approximate.scores[:20], exact.scores[:20], atol=0.05)


def test_a_refused_option_is_named_and_nothing_is_written(files, tmp_path):
    options = [
        {"k": 1000},
        {"k": 0},
        {"margin": "none"},
        {"retrieval": "none"},
        {"kind": "ivf"},
        {"precision": "none"},
        {"k": True},
        {"top": True},
        {"top": 1.5},
        {"rerank": None},
        {"threshold": float("nan")},
        {"memory_mb": 0},
        {"memory_mb": True},
        {"entities": "all"},
    ]
    for option in options:
        [name] = option
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            mine_files(*files, tmp_path / "out" / "out.tsv", None, Mining(**option))
        assert not (tmp_path / "out").exists()


def test_options_may_be_numpy_numbers(files, tmp_path):
    options = Mining(k=np.int64(3), top=np.int32(2), threshold=np.float32(0.1))
    assert len(mine_files(*files, tmp_path / "out.tsv", None, options)) == 2


def test_an_output_that_cannot_be_written_is_refused_before_any_work(files, tmp_path, monkeypatch):
    sides = [with_encoder(side, must_not_encode) for side in files]
    # The library that compresses .zst is not installed.
    monkeypatch.setattr(
        "fairseq_lxsr.files.open.importlib.import_module", lambda name: __import__("no_such_module")
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        mine_files(*sides, tmp_path / "folder")
    with pytest.raises(InputError, match=r"out\.tsv\.zst"):
        mine_files(*sides, tmp_path / "out.tsv.zst")
    with pytest.raises(OSError, match=r"a\.txt"):
        mine_files(*sides, tmp_path / "a.txt" / "out.tsv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "folder"]


def test_stored_embeddings_of_two_widths_are_refused_before_any_work(files, tmp_path):
    widths = {"a.txt": 12, "b.txt": 5}
    for folder, names in (("both", ["a.txt", "b.txt"]), ("en", ["a.txt"]), ("fr", ["b.txt"])):
        (tmp_path / folder).mkdir()
        for name in names:
            num_lines = len(list(read_lines(tmp_path / name)))
            np.save(tmp_path / folder / f"{name}.npy", np.ones((num_lines, widths[name])))
    one_folder = StoredEmbeddings(tmp_path / "both")
    english = StoredEmbeddings(tmp_path / "en")
    french = StoredEmbeddings(tmp_path / "fr")
    for encoder in (one_folder, ByLanguage({"en": english, "fr": french})):
        source = Side(files[0].path, encoder, "en")
        target = Side(files[1].path, encoder, "fr")
        with pytest.raises(InputError, match=r"a\.txt\b.*\b12\b.*b\.txt\b.*\b5\b"):
            mine_files(source, target, tmp_path / "out" / "out.tsv")
    assert not (tmp_path / "out").exists()


def test_only_the_text_with_a_changed_encoder_is_encoded_again(files, tmp_path):
    english, french = files
    encoded = []

    def encode_with_nan(lines, rows):
        encoded.append(("english with nan", len(lines)))
        vectors = english.encoder.encode(lines, rows)
        vectors[rows == 7] = np.nan
        return vectors

    def encode_french(lines, rows):
        encoded.append(("french", len(lines)))
        return french.encoder.encode(lines, rows)

    source = with_encoder(french, encode_french)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    with pytest.raises(InputError, match=r"a\.txt, line 8: "):
        mine_files(source, with_encoder(english, encode_with_nan, "faulty"), output, work)
    mine_files(source, with_encoder(english, english.encoder.encode, "corrected"), output, work)
    assert encoded == [("french", 60), ("english with nan", 80)]


def test_a_second_run_with_the_same_output_is_refused(files, tmp_path):
    source, target = files

    def encode_during_a_second_run(lines, rows):
        if len(lines) > 1:
            with pytest.raises(InputError, match=r"work: .*\(process \d+ on "):
                mine_files(source, target, tmp_path / "out.tsv")
        return source.encoder.encode(lines, rows)

    mine_files(with_encoder(source, encode_during_a_second_run), target, tmp_path / "out.tsv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "out.tsv"]


def test_texts_that_cannot_be_mined_are_refused_and_leave_no_work_folder(files, tmp_path):
    source, target = files
    (tmp_path / "empty.txt").write_text("\n\n")

    def zeros(lines, rows):
        return np.zeros((len(lines), 12))

    def three_columns(lines, rows):
        return np.ones((len(lines), 3))

    for side, message in (
        (with_encoder(source, zeros), r"line 1: .*'s 0'"),
        (with_encoder(source, three_columns, width=3), r"\b3\b.*\b12\b"),
        (Side(tmp_path / "empty.txt", source.encoder), r"empty\.txt: no text"),
    ):
        with pytest.raises(InputError, match=message):
            mine_files(side, target, tmp_path / "out.tsv", tmp_path / "work")
        assert not (tmp_path / "work").exists()


def rows_of(path):
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_within_one_text_each_sentence_is_in_at_most_one_pair(files, tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 30)
    path = tmp_path / "both.txt"
    # The last lines look like others of the text.
    lines = [*SOURCE, *TARGET, f" {SOURCE[3]}", "s  4", "s\u00ad 5", ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    side = Side(path, files[0].encoder)
    options = Mining(threshold=1.0)

    mined = mine_files(side, None, tmp_path / "out.tsv", tmp_path / "work", options)

    expected = mine(vectors([*SOURCE, *TARGET])).above(1.0)
    np.testing.assert_array_equal(mined.source, expected.source)
    np.testing.assert_array_equal(mined.target, expected.target)
    sentences = []
    for _, source, target in rows_of(tmp_path / "out.tsv"):
        sentences += [source, target]
    assert len(set(sentences)) == len(sentences) > 80
    # The same text given twice, also in another order, is one text.
    (tmp_path / "reversed.txt").write_text("\n".join([*TARGET[::-1], *SOURCE[::-1]]))
    for name in ("both.txt", "reversed.txt"):
        target_side = Side(tmp_path / name, side.encoder)
        mine_files(side, target_side, tmp_path / "two_sides.tsv", None, options)
        assert (tmp_path / "two_sides.tsv").read_bytes() == (tmp_path / "out.tsv").read_bytes()


def test_neighbours_of_two_texts_are_not_used_within_one(files, tmp_path):
    source, target = files
    mine_files(source, target, tmp_path / "two.tsv", tmp_path / "work")
    mine_files(source, None, tmp_path / "one.tsv", tmp_path / "work")
    mine_files(source, None, tmp_path / "without_work.tsv")
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "without_work.tsv").read_bytes()


def test_one_text_in_two_languages_or_models_is_refused(files, tmp_path):
    source = files[0]
    in_french = Side(source.path, source.encoder, "fr")
    with_another_model = with_encoder(source, source.encoder.encode, "another")
    for target in (in_french, with_another_model):
        with pytest.raises(InputError, match=r"a\.txt .*a\.txt"):
            mine_files(source, target, tmp_path / "out.tsv")
    assert not list(tmp_path.glob("out*"))


def test_more_neighbours_than_other_lines_are_refused(files, tmp_path):
    with pytest.raises(InputError, match=r"k is 80; .*79"):
        mine_files(files[0], None, tmp_path / "out.tsv", None, Mining(k=80))
    assert not list(tmp_path.glob("out*"))
