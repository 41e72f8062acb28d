"""How many threads work may use."""

import pytest

from fairseq_lxsr.machine import usable_threads


@pytest.mark.parametrize(("wanted", "most"), [("1", 1), ("0", 1), ("4,2", 99), ("", 99)])
def test_threads_are_cores_or_what_openmp_may_use(monkeypatch, wanted, most):
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert 1 <= usable_threads() <= most
