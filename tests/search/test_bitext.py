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

ARRAYS = ("source", "target", "forward", "backward")
WORK = {".lxsr-work", *(f"{name}.npy{end}" for name in ARRAYS for end in ("", ".json"))}
SOURCE, TARGET = [f"s {i}" for i in range(80)], [f"t {i}" for i in range(20, 80)]
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((90, 12)).astype(np.float32)


@functools.cache
def vector(line: str) -> np.ndarray:
    """`s 3` and `t 3` lie close to each other."""
    side, number = line.split()
    noise = np.random.default_rng(int(number) + (1000 if side == "t" else 0)).standard_normal(12)
    return VECTORS[int(number)] + 0.3 * noise


class Encodes:
    """An encoder out of a function of sentences and the numbers of their lines."""

    def __init__(self, encode, fingerprint="model", width=12):
        self.encode, self.fingerprint, self.width = encode, fingerprint, width

    def embed(self, text, counts=None):
        return np.asarray(self.encode(text.lines, text.rows), dtype=np.float32)


def replaced(side, encode, fingerprint="model", width=12):
    """The same text with another encoder."""
    return Side(side.path, Encodes(encode, fingerprint, width))


@pytest.fixture
def files(tmp_path):
    """80 source lines, two repeated and one empty among them, and 60 of the target."""
    lines = [SOURCE[0], SOURCE[0], "", *SOURCE[1:], SOURCE[5], "\u200b"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(TARGET) + "\n")

    def encode(lines, rows):
        assert len(lines) == len(rows)
        return np.stack([vector(line) for line in lines])

    return tuple(Side(tmp_path / name, Encodes(encode)) for name in ("a.txt", "b.txt"))


def test_pairs_are_those_of_mine(files, tmp_path):
    mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.0))
    expected = mine(
        *(np.stack([vector(line) for line in lines]) for lines in (SOURCE, TARGET))
    ).above(1.0)
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    pairs = zip(expected.source, expected.target, strict=True)
    assert [(a, b) for _, a, b in rows] == [(SOURCE[i], TARGET[j]) for i, j in pairs]
    np.testing.assert_allclose([float(score) for score, *_ in rows], expected.scores, atol=1e-5)
    assert sum(a[2:] == b[2:] for _, a, b in rows) > 0.9 * len(rows) > 40
    one = MinedPairs(np.ones(1), np.zeros(1, int), np.zeros(1, int))
    # a sentence is one cell
    write_pairs(tmp_path / "out.tsv", one, ["a\rb\u2028c"], ["d\te\x85 f"], ("en", "fr"))
    assert (tmp_path / "out.tsv").read_text().splitlines() == ["1.000000\ta b c\td e f"]


COPIES = [("Install Lua.", "install lua"), ("Version 1.2", "Version 1.3"), ("…", "…")]


@pytest.fixture
def files_with_copies(files, tmp_path):
    """Texts of which three lines are not translated, and lie closest to each other."""
    for number, side in enumerate(files):
        lines = [*side.path.read_text("utf-8").splitlines(), *(copy[number] for copy in COPIES)]
        side.path.write_text("\n".join(lines), "utf-8")

    def embed(line):
        for row, copy in enumerate(COPIES):
            if line in copy:
                return 9 * VECTORS[80 + row]
        return vector(line)

    return [replaced(side, lambda lines, _: np.stack([*map(embed, lines)])) for side in files]


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


def test_within_one_text_pairs_with_the_same_letters_are_kept(files_with_copies, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("\n".join(itertools.chain(SOURCE, *COPIES[:2])))
    mine_files(Side(path, files_with_copies[0].encoder), None, tmp_path / "out.tsv")
    assert {tuple(pair) for _, *pair in rows_of(tmp_path / "out.tsv")} >= set(COPIES[:2])


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_the_same_bytes_after_an_interruption_anywhere(files, tmp_path, monkeypatch, crash_at):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 30)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 50)
    mine_files(*files, tmp_path / "whole.tsv", tmp_path / "whole")
    calls = itertools.count(1)

    def count(function):
        def counted(*args, **options):
            if next(calls) == crash_at:
                raise ZeroDivisionError  # stands for a power cut
            return function(*args, **options)

        return counted

    monkeypatch.setattr("fairseq_lxsr.search.bitext.nearest_neighbours", count(nearest_neighbours))
    counted = [replaced(side, count(side.encoder.encode)) for side in files]
    with pytest.raises(ZeroDivisionError):
        mine_files(*counted, tmp_path / "out.tsv", tmp_path / "work")
    assert not (tmp_path / "out.tsv").exists()
    mine_files(*counted, tmp_path / "out.tsv", tmp_path / "work")
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.parametrize("keep", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_same_bytes_after_a_kill_before_any_change_of_files(files, tmp_path, monkeypatch, keep):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 50)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 60)
    assert len(mine_files(*files, tmp_path / "whole.tsv", None)) > 40
    out = tmp_path / "out"
    output, work = out / "out.tsv", out / "work" if keep else None
    kills = 0
    for kills in every_kill(lambda: mine_files(*files, output, work)):
        mine_files(*files, output, work)
        assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes(), kills
        left = {path.name for path in out.rglob("*")}
        assert left - WORK == {"out.tsv", "work"} - ({"work"} if not keep else set()), kills
        shutil.rmtree(out)
    assert kills > 30


def test_work_is_used_again_for_another_threshold(files, tmp_path):
    everything = mine_files(*files, tmp_path / "out.tsv", tmp_path / "work")
    asleep = [replaced(side, lambda *_: pytest.fail("encoded again")) for side in files]
    best = mine_files(*asleep, tmp_path / "out.tsv", tmp_path / "work", Mining(top=3))
    assert best.source.tolist() == everything.source[:3].tolist()
    two = mine_files(*asleep, tmp_path / "out.tsv", tmp_path / "work", Mining(k=2))
    again = mine_files(*files, tmp_path / "out.tsv", None, Mining(k=2))
    np.testing.assert_array_equal(two.scores, again.scores)
    assert two.scores.tolist() != everything.scores.tolist()


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_pairs_of_an_approximate_search_are_nearly_those_of_the_exact_one(files, tmp_path, kind):
    """In a work folder of the exact search, too, whose neighbours are not taken for those of the
    other.
    """
    exact, found = (
        mine_files(
            *files, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.2, kind=name)
        )
        for name in ("flat", kind)
    )
    assert found.scores.tolist() != exact.scores.tolist()
    both = set(zip(exact.source, exact.target, strict=True)) & set(
        zip(found.source, found.target, strict=True)
    )
    assert len(both) > 0.95 * len(exact) > 30
    np.testing.assert_allclose(found.scores[:20], exact.scores[:20], atol=0.05)


@pytest.mark.parametrize(
    "options",
    [
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
    ],
)
def test_a_refused_option_leaves_nothing(files, tmp_path, options):
    with pytest.raises(InputError, match=rf"\b{next(iter(options))}\b"):
        mine_files(*files, tmp_path / "out" / "out.tsv", None, Mining(**options))
    assert not (tmp_path / "out").exists()


def test_numbers_of_numpy_are_options(files, tmp_path):
    options = Mining(k=np.int64(3), top=np.int32(2), threshold=np.float32(0.1))
    assert len(mine_files(*files, tmp_path / "out.tsv", None, options)) == 2


def test_an_output_that_cannot_be_written_is_refused_before_any_work(files, tmp_path, monkeypatch):
    asleep = [replaced(side, lambda *_: pytest.fail("encoded")) for side in files]
    monkeypatch.setattr(
        "fairseq_lxsr.files.open.importlib.import_module", lambda name: __import__("no_such_module")
    )
    (tmp_path / "folder").mkdir()
    for name, error in (
        ("folder", InputError),
        ("out.tsv.zst", InputError),
        ("a.txt/out.tsv", OSError),
    ):
        with pytest.raises(error, match=name.split("/")[0]):
            mine_files(*asleep, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "folder"]


def test_stored_embeddings_of_two_widths_are_refused_before_any_work(files, tmp_path):
    for folder, names in (("stored", "ab"), ("en", "a"), ("fr", "b")):
        (tmp_path / folder).mkdir()
        for name in names:
            rows = np.ones(
                (len(list(read_lines(tmp_path / f"{name}.txt"))), 12 if name == "a" else 5)
            )
            np.save(tmp_path / folder / f"{name}.txt.npy", rows)
    stored, english, french = (StoredEmbeddings(tmp_path / name) for name in ("stored", "en", "fr"))
    for encoder in (stored, ByLanguage({"en": english, "fr": french})):
        sides = (
            Side(side.path, encoder, language)
            for side, language in zip(files, ("en", "fr"), strict=True)
        )
        with pytest.raises(InputError, match=r"a\.txt\b.*\b12\b.*b\.txt\b.*\b5\b"):
            mine_files(*sides, tmp_path / "out" / "out.tsv")
    assert not (tmp_path / "out").exists()


def test_a_mended_embedding_is_computed_anew_and_nothing_else(files, tmp_path):
    good, other = files
    encoded = []

    def spoilt(lines, rows):
        encoded.append(("spoilt", len(lines)))
        return good.encoder.encode(lines, rows) + np.where(rows == 7, np.nan, 0)[:, None]

    def watched(lines, rows):
        encoded.append(("other", len(lines)))
        return other.encoder.encode(lines, rows)

    target, arguments = replaced(other, watched), (tmp_path / "out.tsv", tmp_path / "work")
    with pytest.raises(InputError, match=r"a\.txt, line 8: "):
        mine_files(target, replaced(good, spoilt, "spoilt"), *arguments)
    mine_files(target, replaced(good, good.encoder.encode, "mended"), *arguments)
    assert encoded == [("other", 60), ("spoilt", 80)]


def test_two_at_once(files, tmp_path):
    one, other = files

    def encode(lines, rows):
        if len(lines) > 1:
            with pytest.raises(InputError, match=r"work: .*\(process \d+ on "):
                mine_files(one, other, tmp_path / "out.tsv")
        return one.encoder.encode(lines, rows)

    mine_files(replaced(one, encode), other, tmp_path / "out.tsv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "out.tsv"]


def test_bad_input(files, tmp_path):
    good, other = files
    (tmp_path / "empty.txt").write_text("\n\n")

    def zeros(lines, rows):
        return np.zeros((len(lines), 12))

    for bad, message in (
        (replaced(good, zeros), r"line 1: .*'s 0'"),
        (
            replaced(good, lambda lines, _: np.ones((len(lines), 3)), width=3),
            r"\b3\b.*\b12\b",
        ),
        (Side(tmp_path / "empty.txt", good.encoder), r"empty\.txt: no text"),
    ):
        with pytest.raises(InputError, match=message):
            mine_files(bad, other, tmp_path / "out.tsv", tmp_path / "work")
        assert not (tmp_path / "work").exists()


def rows_of(path):
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_pairs_within_one_text(files, tmp_path, monkeypatch):
    """Alone, twice, under another name and in another order; with another interruption at every
    block.
    """
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 30)
    path = tmp_path / "both.txt"
    path.write_text(
        "\n".join([*SOURCE, *TARGET, f" {SOURCE[3]}", "s  4", "s\u00ad 5", ""]), encoding="utf-8"
    )
    (tmp_path / "turned.txt").write_text("\n".join([*TARGET[::-1], *SOURCE[::-1]]))
    side = Side(path, files[0].encoder)
    found = mine_files(side, None, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.0))
    expected = mine(np.stack([vector(line) for line in (*SOURCE, *TARGET)])).above(1.0)
    np.testing.assert_array_equal((found.source, found.target), (expected.source, expected.target))
    pairs = [pair for _, *pair in rows_of(tmp_path / "out.tsv")]
    assert all(a != b for a, b in pairs)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) > 40
    assert len({line for pair in pairs for line in pair}) == 2 * len(pairs)  # each sentence once
    for name in ("both.txt", "turned.txt"):
        other = Side(tmp_path / name, side.encoder)
        mine_files(side, other, tmp_path / "again.tsv", None, Mining(threshold=1.0))
        assert (tmp_path / "again.tsv").read_bytes() == (tmp_path / "out.tsv").read_bytes()


def test_neighbours_of_two_texts_are_not_taken_for_those_within_one(files, tmp_path):
    side, other = files
    mine_files(side, other, tmp_path / "two.tsv", tmp_path / "work")
    mine_files(side, None, tmp_path / "one.tsv", tmp_path / "work")
    mine_files(side, None, tmp_path / "alone.tsv")
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "alone.tsv").read_bytes()


def test_one_text_in_two_languages_is_refused(files, tmp_path):
    side = files[0]
    for other in (
        Side(side.path, side.encoder, "fr"),
        replaced(side, side.encoder.encode, "another"),
    ):
        with pytest.raises(
            InputError,
            match=r"a\.txt .*a\.txt",
        ):
            mine_files(side, other, tmp_path / "out.tsv")
    with pytest.raises(InputError, match=r"k is 80; .*79"):
        mine_files(side, None, tmp_path / "out.tsv", None, Mining(k=80))
    assert not list(tmp_path.glob("out*"))
