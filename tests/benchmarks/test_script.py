"""What the benchmarks have in common."""

import sys

import pytest

from benchmarks import script


def test_a_command_that_fails_ends_the_script_with_what_it_said():
    with pytest.raises(SystemExit, match=r"(?s)-c .*: exit status 3\nhere\nthere"):
        script.run(
            sys.executable,
            "-c",
            "import sys; print('here'); print('there', file=sys.stderr); sys.exit(3)",
        )


def test_results_are_added_to_a_file_that_need_not_be_there(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"
    assert script.read_results(path) == []
    script.add_result(path, {"name": "first"})
    script.add_result(path, {"name": "second"})
    assert script.read_results(path) == [{"name": "first"}, {"name": "second"}]


def test_results_are_written_only_where_a_file_is_named(tmp_path):
    script.write_results(None, {})
    path = tmp_path / "results" / "found.json"
    script.write_results(path, {"found": 1})
    assert path.read_text() == '{\n "found": 1\n}\n'


def test_contestants_take_turns():
    order = []
    seconds = script.take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"]
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}
