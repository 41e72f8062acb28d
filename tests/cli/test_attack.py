"""Every command with an odd option or an odd file does its work, or ends with one line of error;
its inputs stay unchanged.
"""

import os
import random

import pytest

hypothesis = pytest.importorskip("hypothesis")
import odd_texts  # noqa: E402
from attack import COMMANDS, NOT_ATTACKED, all_commands, attack, cases, write_inputs  # noqa: E402

# A valid command line takes them 20 s.
SLOW = {"export onnx", "export sentence-transformers"}
CASES_PER_COMMAND = max(1, int(os.environ.get("ATTACK_CASES", "60")) // len(COMMANDS))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("attack"))


def test_every_command_is_attacked():
    assert set(COMMANDS) | NOT_ATTACKED == all_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_an_odd_option_or_file_ends_cleanly(name, inputs, tmp_path):
    if name in SLOW and CASES_PER_COMMAND < 10:
        pytest.skip("only with ATTACK_CASES=2000")

    @hypothesis.settings(
        max_examples=CASES_PER_COMMAND,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=cases(name, inputs))
    def check(case):
        problem = attack(case, inputs, tmp_path / "case")
        assert problem is None, problem

    check()


def test_text_in_odd_formats_is_read_correctly_or_refused(tmp_path):
    """A sample; `python tests/cli/odd_texts.py CASES SEED` draws more."""
    campaign = odd_texts.Attack(odd_texts.write_inputs(tmp_path / "made"), tmp_path / "work")
    number_of_cases = max(3, int(os.environ.get("ATTACK_CASES", "0")) // 4)
    for case in random.Random(0).sample(odd_texts.cases(), number_of_cases):
        assert campaign.problem(*case) is None, case


def test_the_attack_with_odd_texts_detects_a_faulty_reader(tmp_path, monkeypatch):
    """An attack that never fails would prove nothing."""
    campaign = odd_texts.Attack(odd_texts.write_inputs(tmp_path / "made"), tmp_path / "work")
    campaign.expected("mine", "odd words", False)
    checked = "fairseq_lxsr.files.lines._checked"
    monkeypatch.setattr(checked, lambda raw, *_: raw.decode("utf-8", "replace").rstrip())
    problem = campaign.problem("mine", "cp1252", "odd words")
    assert problem.startswith("read wrongly without a message")
    monkeypatch.setattr(checked, lambda raw, *_: 1 / 0)
    problem = campaign.problem("mine", "cp1252", "odd words")
    assert problem.startswith("status 1, 0 lines of error")
