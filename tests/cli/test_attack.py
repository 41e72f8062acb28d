"""Every verb with an odd option or an odd file: it does its work, or ends with one line; inputs stay as they are."""

import os

import pytest

hypothesis = pytest.importorskip("hypothesis")
from attack import COMMANDS, NOT_ATTACKED, all_commands, attack, cases, write_inputs  # noqa: E402 (needs hypothesis)

SLOW = {"export onnx", "export sentence-transformers"}  # a case that they take lasts 20 s
EACH = max(1, int(os.environ.get("ATTACK_CASES", "60")) // len(COMMANDS))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("attack"))


def test_every_command_is_attacked():
    assert set(COMMANDS) | NOT_ATTACKED == all_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_attack(name, inputs, tmp_path):
    if name in SLOW and EACH < 10:
        pytest.skip("by hand, with ATTACK_CASES=2000")

    options = {"phases": [hypothesis.Phase.generate], "suppress_health_check": list(hypothesis.HealthCheck)}

    @hypothesis.settings(max_examples=EACH, deadline=None, derandomize=True, database=None, **options)
    @hypothesis.given(case=cases(name, inputs))
    def check(case):
        problem = attack(case, inputs, tmp_path / "case")
        assert problem is None, problem

    check()
