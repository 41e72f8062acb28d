"""Mining from text files: the pairs of `retrieval.mine`, whatever the interruptions."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.retrieval import mine, nearest_neighbours
from fairseq_lxsr.search import Side, mine_files

RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((90, 12)).astype(np.float32)


class CrashError(Exception):
    """Stands for a power cut."""


def vector(line: str) -> np.ndarray:
    """`s 3` and `t 3` lie close to each other."""
    side, number = line.split()
    noise = np.random.default_rng(int(number) + (1000 if side == "t" else 0)).standard_normal(12)
    return VECTORS[int(number)] + 0.3 * noise


@pytest.fixture
def sides(tmp_path):
    """80 source lines, two repeated and one empty among them, and 60 of the target."""
    source = [f"s {i}" for i in range(80)]
    target = [f"t {i}" for i in range(20, 80)]
    (tmp_path / "a.txt").write_text(
        "\n".join([source[0], source[0], "", *source[1:], source[5], "\u200b"]) + "\n", encoding="utf-8"
    )
    (tmp_path / "b.txt").write_text("\n".join(target) + "\n")

    def encode(lines, rows):
        assert len(lines) == len(rows)
        return np.stack([vector(line) for line in lines])

    return (source, target), tuple(Side(tmp_path / name, encode, "model") for name in ("a.txt", "b.txt"))


def test_pairs_are_those_of_mine(sides, tmp_path):
    (source, target), files = sides
    mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", threshold=1.0)
    expected = mine(*(np.stack([vector(line) for line in lines]) for lines in (source, target))).above(1.0)
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert [(a, b) for _, a, b in rows] == [
        (source[i], target[j]) for i, j in zip(expected.source, expected.target, strict=True)
    ]
    np.testing.assert_allclose([float(score) for score, *_ in rows], expected.scores, atol=1e-5)
    assert sum(a[2:] == b[2:] for _, a, b in rows) > 0.9 * len(rows) > 40


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_the_same_bytes_after_an_interruption_anywhere(sides, tmp_path, monkeypatch, crash_at):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 30)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 50)
    _, files = sides
    mine_files(*files, tmp_path / "whole.tsv", tmp_path / "whole")
    calls = 0

    def count(function):
        def counted(*args, **options):
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise CrashError
            return function(*args, **options)

        return counted

    monkeypatch.setattr("fairseq_lxsr.search.bitext.nearest_neighbours", count(nearest_neighbours))
    counted = [Side(side.path, count(side.encode), side.fingerprint) for side in files]
    with pytest.raises(CrashError):
        mine_files(*counted, tmp_path / "out.tsv", tmp_path / "work")
    assert not (tmp_path / "out.tsv").exists()
    mine_files(*counted, tmp_path / "out.tsv", tmp_path / "work")
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_work_is_used_again_for_another_threshold(sides, tmp_path):
    _, files = sides
    everything = mine_files(*files, tmp_path / "out.tsv", tmp_path / "work")

    def first_only(lines, rows):
        assert len(lines) == 1, "encoded again"
        return files[0].encode(lines, rows)

    asleep = [Side(side.path, first_only, "model") for side in files]
    best = mine_files(*asleep, tmp_path / "out.tsv", tmp_path / "work", top=3)
    assert best.source.tolist() == everything.source[:3].tolist()
    with pytest.raises(InputError, match="from a run with k 4, now 2"):
        mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", k=2)


def test_bad_input(sides, tmp_path):
    _, (good, other) = sides
    zeros = Side(good.path, lambda lines, rows: np.zeros((len(lines), 12)), "zeros")
    with pytest.raises(InputError, match=r"a\.txt, line 1: the embedding of 's 0' is a zero vector"):
        mine_files(zeros, other, tmp_path / "out.tsv", tmp_path / "w1")
    narrow = Side(good.path, lambda lines, rows: np.ones((len(lines), 3)), "narrow")
    with pytest.raises(InputError, match=r"3 wide and those of .* 12"):
        mine_files(narrow, other, tmp_path / "out.tsv", tmp_path / "w2")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"empty\.txt: no text"):
        mine_files(Side(tmp_path / "empty.txt", good.encode, "m"), other, tmp_path / "out.tsv", tmp_path / "w3")
