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


@pytest.mark.smoke
@pytest.mark.parametrize(
    "name", [name for name, row in bench.ROWS.items() if row.smoke is not None]
)
def test_a_benchmark_runs(name, paths):
    missing = bench.ROWS[name].missing(paths)
    if missing:
        pytest.skip(missing)
    result = bench.run(name, bench.ROWS[name], paths, smoke=True)
    assert "failed" not in result, result["failed"]


@pytest.mark.smoke
def test_a_tokenizer_reads_a_dictionary_with_fillers(paths):
    """Benchmarks of full size read one; the smoke runs do not."""
    dictionary = paths["model"] / "dict.txt"
    filled = paths["work"] / "filled.txt"
    filled.write_text(dictionary.read_text() + fillers(50_000))
    Tokenizer(paths["model"] / "sentencepiece.model", TextOptions(), read_dictionary(filled))


def test_every_benchmark_has_a_row():
    """A benchmark is a module of benchmarks/ with a command line, except bench.py itself."""
    folder = ROOT / "benchmarks"
    programs = set()
    for path in folder.rglob("*.py"):
        if "__main__" in path.read_text():
            programs.add(".".join(path.relative_to(folder).with_suffix("").parts))
    assert {name.split(",")[0] for name in bench.ROWS} == programs - {"bench", *bench.NOT_RUN}


@pytest.mark.parametrize(
    ("goal", "met"),
    [({"least": 3}, False), ({"least": 2}, True), ({"most": 1.9}, False), ({"most": 2}, True)],
)
def test_a_figure_is_judged_by_its_goal(goal, met):
    figure = bench.Figure("ratio", lambda results: results["a"] / results["b"], **goal)
    judged = figure.judge({"a": 4, "b": 2})
    assert (judged["measured"], judged["met"]) == (2, met)


@pytest.mark.parametrize("power", [1, 1.3, 2])
def test_the_exponent_of_growth_ignores_constant_time(power):
    seconds = {size: 7 + 1e-3 * size**power for size in (1_000, 5_000, 40_000)}
    assert growth.exponent(seconds, least=0.3) == pytest.approx(power, abs=0.011)


def test_there_is_no_exponent_if_the_time_hardly_grows():
    """The last two times differ by less than `least` seconds."""
    assert growth.exponent({1_000: 2.0, 10_000: 2.1, 100_000: 2.2}, least=0.3) is None
