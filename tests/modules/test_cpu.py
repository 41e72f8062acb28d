"""Data types that the processor computes quickly, according to /proc/cpuinfo."""

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


def test_half_precision_is_chosen_if_the_processor_supports_it(processor):
    # Without /proc/cpuinfo, the answer is None.
    is_supported = None
    if processor is not None:
        is_supported = "avx512_bf16" in processor
    for dtype in cpu.FLAGS:
        assert cpu.cpu_has(dtype) is is_supported
    expected = cpu.faster_dtype() if is_supported else torch.float32
    assert cpu.cpu_autocast_dtype("auto") is expected
    assert cpu.cpu_autocast_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("layers", [0, 1])
def test_encoding_in_a_slow_type_is_warned_of_once(processor, layers, caplog):
    """An encoder without layers has no matrix products, and no warning."""
    copies = NetworkCopies(make_encoder("transformer", num_layers=layers), "cpu")
    for dtype in ("bfloat16", "bfloat16", "float32"):
        copies._model("cpu", dtype)
    is_slow = processor == "fpu avx2" and layers == 1
    messages = [record.message for record in caplog.records]
    assert len(messages) == is_slow
    for message in messages:
        assert "bfloat16" in message


def test_training_in_a_slow_type_is_warned_of(processor, caplog):
    for precision in ("auto", "float32", "bfloat16"):
        cpu.cpu_autocast_dtype(precision)
    assert len(caplog.records) == (processor == "fpu avx2")


FREED_BYTES = """
import torch
from fairseq_lxsr.modules.cpu import trim_memory, tune_cpu

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

tune_cpu()
# Arrays of 1 MiB; those that remain are between freed ones.
arrays = [torch.ones(1 << 18) for _ in range(200)]
del arrays[::2], arrays[::3]
before = resident()
trim_memory()
print(before - resident())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries keep memory in other ways"
)
def test_trim_memory_returns_freed_memory_to_the_system():
    assert int(python(FREED_BYTES)) > 100 * 2**20


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_auto_selects_the_type_that_is_measured_to_be_faster(monkeypatch, caplog, faster):
    """It is measured once per process, and logged."""
    measured = []

    def seconds(dtype, *sizes):
        measured.append(dtype)
        return 1 if dtype is faster else 2

    monkeypatch.setattr(cpu, "_seconds", seconds)
    monkeypatch.setattr(cpu, "cpu_has", lambda dtype: True)
    cpu.faster_dtype.cache_clear()
    with caplog.at_level("INFO"):
        assert cpu.cpu_autocast_dtype("auto") is faster
        assert cpu.cpu_autocast_dtype("auto") is faster
    cpu.faster_dtype.cache_clear()
    assert len(measured) == 2
    assert f"--cpu-precision auto selected {str(faster).removeprefix('torch.')}" in caplog.text
