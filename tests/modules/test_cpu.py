"""What the processor computes quickly, as /proc/cpuinfo says."""

import platform

import pytest
import torch
from conftest import python
from token_batches import make_encoder

from fairseq_lxsr.encoder.torch_network import NetworkCopies
from fairseq_lxsr.modules import cpu


@pytest.fixture(
    params=["fpu avx2", "fpu avx512_bf16 avx512_fp16", None], ids=["old", "new", "unknown"]
)
def processor(request, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "CPUINFO", str(tmp_path / "cpuinfo"))
    if request.param:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {request.param}\n")
    return request.param


def test_what_a_processor_has(processor):
    expected = None if processor is None else "512" in processor
    assert [cpu.cpu_has(dtype) for dtype in cpu.FLAGS] == [expected, expected]
    assert cpu.cpu_autocast_dtype("auto") is (cpu.faster_dtype() if expected else torch.float32)
    assert cpu.cpu_autocast_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("layers", [0, 1])
def test_a_slow_type_is_warned_of(processor, layers, caplog):
    """Once, when the copy is made, and not for an encoder without products."""
    copies = NetworkCopies(make_encoder("transformer", num_layers=layers), "cpu")
    for _ in range(2):
        copies._model("cpu", "bfloat16")
    copies._model("cpu", "float32")
    warned = [record.message for record in caplog.records]
    assert len(warned) == (processor == "fpu avx2" and layers == 1)
    assert all("bfloat16" in message for message in warned)


def test_training_in_a_slow_type_is_warned_of(processor, caplog):
    for precision in ("auto", "float32", "bfloat16"):
        cpu.cpu_autocast_dtype(precision)
    assert len(caplog.records) == (processor == "fpu avx2")


KEEPING = """
import torch
from fairseq_lxsr.modules.cpu import trim_memory, tune_cpu

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

tune_cpu()
parts = [torch.ones(1 << 18) for _ in range(200)]  # 1 MiB each
del parts[::2], parts[::3]  # what is left lies between what is free
kept = resident()
trim_memory()
print(kept - resident())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries keep memory in other ways"
)
def test_freed_memory_is_given_back():
    assert int(python(KEEPING)) > 100 * 2**20


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_auto_is_the_type_that_is_measured_faster(monkeypatch, caplog, faster):
    """Once a process, and said."""
    calls = []
    monkeypatch.setattr(
        cpu, "_seconds", lambda dtype, *sizes: calls.append(dtype) or 1 + (dtype is not faster)
    )
    monkeypatch.setattr(cpu, "cpu_has", lambda dtype: True)
    cpu.faster_dtype.cache_clear()
    with caplog.at_level("INFO"):
        assert [cpu.cpu_autocast_dtype("auto") for _ in range(2)] == [faster] * 2
    cpu.faster_dtype.cache_clear()
    assert len(calls) == 2
    assert f"--cpu-precision auto selected {str(faster).removeprefix('torch.')}" in caplog.text
