"""Data types that the processor computes quickly, according to /proc/cpuinfo."""

import platform

import pytest
import torch
from conftest import python
from token_batches import make_encoder

from fairseq_lxsr.encoder.torch_network import NetworkCopies
from fairseq_lxsr.modules import cpu

NO_HALF_PRECISION = "fpu avx2"
HALF_PRECISION = "fpu avx512_bf16 avx512_fp16"


def write_cpuinfo(folder, monkeypatch, flags):
    """Let `cpu` read the flags from a file of its own; None if the system has no such file."""
    path = folder / "cpuinfo"
    monkeypatch.setattr(cpu, "CPUINFO", str(path))
    if flags is not None:
        path.write_text(f"processor : 0\nflags : {flags}\n")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [(NO_HALF_PRECISION, False), (HALF_PRECISION, True), (None, None)],
    ids=["old", "new", "unknown"],
)
def test_cpu_has_reads_the_flags_of_the_processor(flags, expected, dtype, tmp_path, monkeypatch):
    write_cpuinfo(tmp_path, monkeypatch, flags)
    assert cpu.cpu_has(dtype) is expected


@pytest.mark.parametrize(
    "flags", [NO_HALF_PRECISION, HALF_PRECISION, None], ids=["old", "new", "unknown"]
)
def test_precision_bfloat16_is_used_on_any_processor(flags, tmp_path, monkeypatch):
    write_cpuinfo(tmp_path, monkeypatch, flags)
    assert cpu.cpu_autocast_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("flags", [NO_HALF_PRECISION, None], ids=["old", "unknown"])
def test_precision_auto_is_float32_on_a_processor_without_bfloat16(flags, tmp_path, monkeypatch):
    write_cpuinfo(tmp_path, monkeypatch, flags)
    assert cpu.cpu_autocast_dtype("auto") is torch.float32


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16], ids=str)
def test_precision_auto_is_the_type_that_is_measured_to_be_faster(
    faster, tmp_path, monkeypatch, caplog
):
    """On a processor with bfloat16, it is measured once per process, and logged."""
    write_cpuinfo(tmp_path, monkeypatch, HALF_PRECISION)
    measured_types = []

    def measure(dtype):
        """Instead of timing products: one second for the faster type, two for the other."""
        measured_types.append(dtype)
        return 1 if dtype is faster else 2

    monkeypatch.setattr(cpu, "_seconds", measure)
    cpu.faster_dtype.cache_clear()
    with caplog.at_level("INFO"):
        first_dtype = cpu.cpu_autocast_dtype("auto")
        second_dtype = cpu.cpu_autocast_dtype("auto")
    # Other tests must not get the result of this measurement.
    cpu.faster_dtype.cache_clear()

    assert first_dtype is faster
    assert second_dtype is faster
    assert measured_types == [torch.float32, torch.bfloat16]
    name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[faster]
    assert f"--cpu-precision auto selected {name};" in caplog.text


@pytest.mark.parametrize(
    ("flags", "num_layers", "number_of_warnings"),
    [
        (NO_HALF_PRECISION, 1, 1),
        # An encoder without layers multiplies no matrices.
        (NO_HALF_PRECISION, 0, 0),
        (HALF_PRECISION, 1, 0),
        (None, 1, 0),
    ],
    ids=["old", "old, no layers", "new", "unknown"],
)
def test_encoding_in_a_type_that_is_slow_on_this_processor_is_warned_of_once(
    flags, num_layers, number_of_warnings, tmp_path, monkeypatch, caplog
):
    write_cpuinfo(tmp_path, monkeypatch, flags)
    copies = NetworkCopies(make_encoder("transformer", num_layers=num_layers), "cpu")

    # Get the network of each type, as `encode` does; float32 is never slow.
    for dtype in ("bfloat16", "bfloat16", "float32"):
        copies._model("cpu", dtype)

    warnings = [message for message in caplog.messages if "bfloat16 is slower" in message]
    assert len(warnings) == number_of_warnings
    assert len(caplog.messages) == number_of_warnings


@pytest.mark.parametrize(
    ("flags", "number_of_warnings"),
    [(NO_HALF_PRECISION, 1), (HALF_PRECISION, 0), (None, 0)],
    ids=["old", "new", "unknown"],
)
def test_training_in_a_type_that_is_slow_on_this_processor_is_warned_of(
    flags, number_of_warnings, tmp_path, monkeypatch, caplog
):
    write_cpuinfo(tmp_path, monkeypatch, flags)
    # Only the last is slow: `auto` does not choose a slow type.
    for precision in ("auto", "float32", "bfloat16"):
        cpu.cpu_autocast_dtype(precision)
    assert len(caplog.messages) == number_of_warnings


# Prints by how many bytes `trim_memory` makes the process smaller.
FREED_BYTES = """
import torch
from fairseq_lxsr.modules.cpu import trim_memory, tune_cpu

PAGE_BYTES = 4096

def resident_bytes():
    resident_pages = open("/proc/self/statm").read().split()[1]
    return int(resident_pages) * PAGE_BYTES

tune_cpu()
# 200 arrays of 1 MiB (float32). Delete every second one, and every third one of the rest, so that
# the others lie between freed ones.
arrays = [torch.ones(1 << 18) for _ in range(200)]
del arrays[::2], arrays[::3]
before = resident_bytes()
trim_memory()
print(before - resident_bytes())
"""
MEBIBYTE = 2**20


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries keep memory in other ways"
)
def test_trim_memory_returns_freed_memory_to_the_system():
    # 134 arrays of 1 MiB are freed.
    assert int(python(FREED_BYTES)) > 100 * MEBIBYTE
