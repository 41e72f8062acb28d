"""Every benchmark runs at its smallest size, and its figures are judged."""

import pytest
from conftest import ROOT

from benchmarks import bench
from benchmarks.corpora import fillers
from benchmarks.speed import growth
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer, read_dictionary


@pytest.fixture(scope="module")
def paths(tmp_path_factory, python_is_a_fork):
    """The inputs of the benchmarks."""
    return bench.Inputs(tmp_path_factory.mktemp("bench"), smoke=True).paths | {"released": None}


SMOKE_ROWS = [name for name, row in bench.ROWS.items() if row.smoke is not None]


@pytest.mark.smoke
@pytest.mark.parametrize("name", SMOKE_ROWS)
def test_a_benchmark_runs_at_its_smallest_size(name, paths):
    row = bench.ROWS[name]
    # Of this machine: a package or a GPU.
    missing = row.missing(paths)
    if missing:
        pytest.skip(missing)

    result = bench.run(name, row, paths, smoke=True)

    assert "failed" not in result, result["failed"]


@pytest.mark.smoke
def test_a_tokenizer_accepts_a_dictionary_with_filler_entries(paths):
    """Benchmarks of full size read one; the smoke runs do not.

    Without fillers, pieces that the SentencePiece model lacks are refused.
    """
    dictionary = paths["model"] / "dict.txt"
    filled = paths["work"] / "filled.txt"
    filled.write_text(dictionary.read_text() + fillers(50_000))

    entries = read_dictionary(filled)
    Tokenizer(paths["model"] / "sentencepiece.model", TextOptions(), entries)


def test_every_benchmark_has_a_row_or_is_listed_as_not_run():
    """A benchmark is a module of benchmarks/ with a command line, except bench.py itself."""
    folder = ROOT / "benchmarks"
    benchmarks = set()
    for path in folder.rglob("*.py"):
        if "__main__" in path.read_text():
            benchmarks.add(".".join(path.relative_to(folder).with_suffix("").parts))
    benchmarks.remove("bench")

    # A benchmark with several rows has names such as `speed.train, bfloat16`.
    with_a_row = {name.split(",")[0] for name in bench.ROWS}

    assert with_a_row == benchmarks - set(bench.NOT_RUN)


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [({"least": 3}, False), ({"least": 2}, True), ({"most": 1.9}, False), ({"most": 2}, True)],
)
def test_a_figure_meets_its_goal_if_it_is_at_least_or_at_most_that(goal, is_met):
    ratio = bench.Figure("ratio", lambda results: results["a"] / results["b"], **goal)

    judged = ratio.judge({"a": 4, "b": 2})

    assert judged["measured"] == 2
    assert judged["met"] == is_met


@pytest.mark.parametrize("power", [1, 1.3, 2])
def test_the_exponent_of_growth_does_not_depend_on_constant_time(power):
    # Seven seconds for any size, and a time that grows with the size to a power.
    seconds = {size: 7 + 1e-3 * size**power for size in (1_000, 5_000, 40_000)}

    exponent = growth.exponent(seconds, least=0.3)

    # It is found by halving, and rounded to two digits.
    assert exponent == pytest.approx(power, abs=0.011)


def test_growth_has_no_exponent_if_the_last_difference_is_smaller_than_the_least():
    seconds = {1_000: 2.0, 10_000: 2.1, 100_000: 2.2}

    assert growth.exponent(seconds, least=0.3) is None
