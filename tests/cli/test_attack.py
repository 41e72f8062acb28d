"""Every verb with an odd option or an odd file: it does its work, or ends with one line; inputs
stay as they are.
"""

import os
import random

import pytest

hypothesis = pytest.importorskip("hypothesis")
import odd_texts  # noqa: E402
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

    options = {
        "phases": [hypothesis.Phase.generate],
        "suppress_health_check": list(hypothesis.HealthCheck),
    }

    @hypothesis.settings(
        max_examples=EACH, deadline=None, derandomize=True, database=None, **options
    )
    @hypothesis.given(case=cases(name, inputs))
    def check(case):
        problem = attack(case, inputs, tmp_path / "case")
        assert problem is None, problem

    check()


def test_odd_texts(tmp_path):
    """A sample of every format by every verb that reads text; `python tests/cli/odd_texts.py CASES
    SEED` draws more.
    """
    texts = odd_texts.Attack(odd_texts.write_inputs(tmp_path / "made"), tmp_path / "work")
    for case in random.Random(0).sample(
        odd_texts.cases(), max(3, int(os.environ.get("ATTACK_CASES", "0")) // 4)
    ):
        assert texts.problem(*case) is None, case


def test_a_reader_of_wrong_letters_is_found(tmp_path, monkeypatch):
    """Such an attack that never finds anything would prove nothing."""
    texts = odd_texts.Attack(odd_texts.write_inputs(tmp_path / "made"), tmp_path / "work")
    texts.expected("mine", "odd words", False)
    monkeypatch.setattr(
        "fairseq_lxsr.files.lines._checked", lambda raw, *_: raw.decode("utf-8", "replace").rstrip()
    )
    assert texts.problem("mine", "cp1252", "odd words").startswith("read wrongly without a word")
    monkeypatch.setattr("fairseq_lxsr.files.lines._checked", lambda raw, *_: 1 / 0)
    assert texts.problem("mine", "cp1252", "odd words").startswith("status 1, 0 lines of error")
