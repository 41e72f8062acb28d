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
# ATTACK_CASES is the number of cases of all commands together, at least one for each.
CASES_PER_COMMAND = max(1, int(os.environ.get("ATTACK_CASES", "60")) // len(COMMANDS))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a valid file of every kind that a command reads."""
    return write_inputs(tmp_path_factory.mktemp("attack"))


def test_every_command_is_attacked_or_excluded_by_name():
    assert set(COMMANDS) | NOT_ATTACKED == all_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_an_odd_option_or_file_works_or_is_refused_in_one_line(
    name, inputs, tmp_path
):
    """`attack` runs a case, and describes what is wrong with its end or its inputs."""
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


@pytest.fixture
def odd_text_attack(tmp_path):
    """Runs commands on texts in odd formats, and describes what is wrong with a result."""
    return odd_texts.Attack(odd_texts.write_inputs(tmp_path / "made"), tmp_path / "work")


def test_text_in_odd_formats_is_read_correctly_or_refused(odd_text_attack):
    """A sample; `python tests/cli/odd_texts.py CASES SEED` draws more."""
    num_cases = max(3, int(os.environ.get("ATTACK_CASES", "0")) // 4)

    for case in random.Random(0).sample(odd_texts.cases(), num_cases):
        assert odd_text_attack.problem(*case) is None, case


# An attack that never fails would prove nothing. `_checked` decodes a line of a file, and refuses
# one that is not UTF-8, as the odd words in the encoding cp1252.
CHECKED = "fairseq_lxsr.files.lines._checked"
REFUSED_CASE = ("mine", "cp1252", "odd words")


@pytest.mark.parametrize(
    ("faulty_check", "problem"),
    [
        pytest.param(
            lambda raw, *_: raw.decode("utf-8", "replace").rstrip(),
            "read wrongly without a message",
            id="wrong text",
        ),
        pytest.param(lambda raw, *_: 1 / 0, "status 1, 0 lines of error", id="exception"),
    ],
)
def test_the_attack_with_odd_texts_detects_a_faulty_reader(
    odd_text_attack, monkeypatch, faulty_check, problem
):
    # The expected result is made by the correct reader.
    odd_text_attack.expected("mine", "odd words", False)

    monkeypatch.setattr(CHECKED, faulty_check)

    assert odd_text_attack.problem(*REFUSED_CASE).startswith(problem)
