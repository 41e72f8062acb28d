"""Helpers of the benchmarks: commands, files of results, and timing in turns."""

import sys

import pytest

from benchmarks import script


def test_a_command_that_fails_ends_the_script_with_its_output():
    code = "import sys; print('output'); print('error', file=sys.stderr); sys.exit(3)"
    with pytest.raises(SystemExit, match=r"(?s)-c .*: exit status 3\noutput\nerror"):
        script.run(sys.executable, "-c", code)


def test_results_are_appended_to_a_new_or_old_file(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"
    assert script.read_results(path) == []
    script.add_result(path, {"name": "first"})
    script.add_result(path, {"name": "second"})
    assert script.read_results(path) == [{"name": "first"}, {"name": "second"}]


def test_results_are_written_only_if_a_file_is_named(tmp_path):
    script.write_results(None, {})
    path = tmp_path / "results" / "speed.json"
    script.write_results(path, {"seconds": 1})
    assert path.read_text() == '{\n "seconds": 1\n}\n'


def test_contestants_take_turns():
    order = []
    seconds = script.take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"]
    assert seconds.keys() == {"a", "b"}
    assert len(seconds["a"]) == len(seconds["b"]) == 2
