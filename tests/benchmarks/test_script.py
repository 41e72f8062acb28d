"""Helpers of the benchmarks: commands, files of results, and timing in turns."""

import sys

import pytest

from benchmarks import script


def test_a_command_that_fails_ends_the_script_with_its_output():
    code = "import sys; print('output'); print('error', file=sys.stderr); sys.exit(3)"

    with pytest.raises(SystemExit) as stop:
        script.run(sys.executable, "-c", code)

    # A line with the command comes first.
    assert str(stop.value).rstrip().endswith(": exit status 3\noutput\nerror")


def test_a_file_that_does_not_exist_has_no_results(tmp_path):
    assert script.read_results(tmp_path / "runs.jsonl") == []


def test_results_are_appended_to_a_new_or_old_file(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"

    script.add_result(path, {"name": "first"})
    script.add_result(path, {"name": "second"})

    assert script.read_results(path) == [{"name": "first"}, {"name": "second"}]


def test_results_are_written_as_indented_json(tmp_path):
    path = tmp_path / "results" / "speed.json"

    script.write_results(path, {"seconds": 1})

    assert path.read_text() == '{\n "seconds": 1\n}\n'


def test_results_without_a_file_are_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    script.write_results(None, {"seconds": 1})

    assert list(tmp_path.iterdir()) == []


def test_compared_functions_are_called_and_timed_in_turns():
    calls = []
    functions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}

    seconds = script.take_turns(functions, 2)

    assert calls == ["a", "b", "a", "b"]
    # A time of each call.
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
