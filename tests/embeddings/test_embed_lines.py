"""Files of embeddings: formats, resuming after interruptions, and damaged files."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from kills import every_kill

from fairseq_lxsr.embeddings import Layout, embed_lines, index_path, read_embeddings
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json

NPY = Layout("npy", "float32", 3)
RAW = Layout("raw", "float32", 3)
LINES = [f"line {number}" for number in range(95)]


def fail_if_called(window: list[str], counts: Counter) -> np.ndarray:
    pytest.fail("the lines are embedded again")


def with_flipped_bits(content: bytes, position: int, bits: int) -> bytes:
    damaged = bytearray(content)
    damaged[position] ^= bits
    return bytes(damaged)


def encode(window: list[str], counts: Counter) -> np.ndarray:
    counts["long"] += sum(line.endswith("7") for line in window)
    numbers = np.array([int(line.split()[1]) for line in window], dtype=np.float32)
    return numbers[:, None] * [1, 2, -1]


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_npy_files_have_the_bytes_of_numpy(tmp_path, dtype):
    embed_lines(iter(LINES), encode, tmp_path / "x.npy", Layout("npy", dtype, 3), {"model": "m"})
    np.save(tmp_path / "y.npy", encode(LINES, Counter()).astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "x.npy.json", "y.npy"}


def test_raw_files_have_only_rows(tmp_path):
    embed_lines(LINES, encode, tmp_path / "x.raw", RAW, {"model": "m"})
    rows = np.fromfile(tmp_path / "x.raw", np.float32).reshape(-1, 3)
    np.testing.assert_array_equal(rows, encode(LINES, Counter()))


def test_the_description_has_sizes_counts_and_a_checksum(tmp_path):
    index = embed_lines(LINES, encode, tmp_path / "x.raw", RAW, {"model": "m"})
    assert index == parse_json(index_path(tmp_path / "x.raw").read_text())
    assert (index["count"], index["dimension"]) == (95, 3)
    assert (index["dtype"], index["model"]) == ("float32", "m")
    assert (index["long"], index["empty"]) == (9, 0)
    command = ["sha256sum", tmp_path / "x.raw"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == index["sha256"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_and_parquet_are_read_by_their_libraries(tmp_path, dtype):
    from pyarrow import parquet
    from safetensors.numpy import load_file

    expected = encode(LINES, Counter()).astype(dtype)
    for end in ("safetensors", "parquet"):
        layout = Layout(end, dtype, 3)
        embed_lines(iter(LINES), encode, tmp_path / f"x.{end}", layout, {"model": "m"})
    rows = load_file(tmp_path / "x.safetensors")["embeddings"]
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(rows, expected)
    column = parquet.read_table(tmp_path / "x.parquet")["embeddings"].combine_chunks()
    np.testing.assert_array_equal(column.flatten().to_numpy().reshape(-1, 3), expected)
    # There are two files and their descriptions.
    assert len(list(tmp_path.iterdir())) == 4


SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2])]
from fairseq_lxsr.embeddings import write as stream
from test_embed_lines import LINES, encode
stream.WINDOW = 10
def killed(window, counts):
    if window[0] == "line 40":
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(window, counts)
layout = stream.Layout(sys.argv[3], "float32", 3)
stream.embed_lines(LINES, killed, Path(sys.argv[1]), layout, {"model": "m"})
"""


@pytest.mark.parametrize("form", ["npy", "safetensors", "parquet"])
def test_a_killed_run_is_resumed_to_the_same_bytes(tmp_path, form):
    layout = Layout(form, "float32", 3)
    arguments = [str(tmp_path / "x.npy"), os.path.dirname(__file__), form]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    with open(tmp_path / "x.npy.partial", "ab") as partial:
        partial.write(b"half a row that was being written")
    first_lines = []

    def watched(window, counts):
        first_lines.append(window[0])
        return encode(window, counts)

    embed_lines(iter(LINES), watched, tmp_path / "x.npy", layout, {"model": "m"}, resume=True)
    assert first_lines == [f"line {number}" for number in range(40, 95, 10)]
    embed_lines(LINES, encode, tmp_path / "y.npy", layout, {"model": "m"})
    for suffix in ("", ".json"):
        expected = (tmp_path / f"y.npy{suffix}").read_bytes()
        assert (tmp_path / f"x.npy{suffix}").read_bytes() == expected


def test_resume_leaves_a_complete_file(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, {"model": "m"})
    index = embed_lines(LINES, fail_if_called, output, NPY, {"model": "m"}, resume=True)
    assert index["count"] == 95


def test_resume_refuses_a_complete_file_of_another_text_or_model(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, {"model": "m"})
    for lines in (LINES[:94], [*LINES[:94], "other"]):
        with pytest.raises(InputError, match=r"x\.npy:? .*\b95 .*\b9\d lines"):
            embed_lines(lines, encode, output, NPY, {"model": "m"}, resume=True)
    with pytest.raises(InputError, match=r"x\.npy\.json: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, output, NPY, {"model": "other"}, resume=True)


def test_without_resume_a_complete_file_is_replaced(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, {"model": "m"})
    embed_lines(LINES[:5], encode, output, NPY, {"model": "other"})
    assert np.load(output).shape == (5, 3)


def interrupt(tmp_path):
    """Write embeddings until an error after 40 lines."""

    def fail(window, counts):
        if window[0] == "line 40":
            raise RuntimeError("power cut")
        return encode(window, counts)

    with pytest.raises(RuntimeError):
        embed_lines(LINES, fail, tmp_path / "x.npy", NPY, {"model": "m"})


def test_a_run_is_resumed_after_the_disk_was_full(tmp_path, monkeypatch):
    written = []

    def full(_):
        written.append(1)
        # Rows and their progress are written in turn.
        if len(written) == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(stream.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*x\.npy\.partial'"):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    assert not (tmp_path / "x.npy").exists()
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), encode(LINES, Counter()))


def test_the_rows_of_another_run_are_not_resumed(tmp_path):
    interrupt(tmp_path)
    progress = (tmp_path / "x.npy.progress").read_text()

    def killed(window, counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_lines(LINES, killed, tmp_path / "x.npy", NPY, {"model": "other"})
    assert not (tmp_path / "x.npy.progress").exists()
    (tmp_path / "x.npy.progress").write_text(progress)
    (tmp_path / "x.npy.partial").write_bytes(bytes(128))
    with pytest.raises(InputError, match=r"x\.npy\.partial: .*\b40 rows.*x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


def test_a_run_killed_before_the_file_is_renamed_is_completed(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stream.Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    embed_lines(LINES, fail_if_called, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), encode(LINES, Counter()))
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "x.npy.json"}


def test_a_folder_is_not_replaced_by_embeddings(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        embed_lines(LINES, encode, tmp_path, NPY, {"model": "m"})


def test_resume_refuses_progress_of_another_model_or_text(tmp_path):
    interrupt(tmp_path)
    with pytest.raises(InputError, match=r"x\.npy\.progress: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "other"}, resume=True)
    with pytest.raises(InputError, match=r"40 lines.*--resume"):
        embed_lines(LINES[:30], encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    with pytest.raises(InputError, match=r"40 lines.*--resume"):
        lines = ["other", *LINES[1:]]
        embed_lines(lines, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    (tmp_path / "x.npy.progress").write_text("{}")
    with pytest.raises(InputError, match=r"x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


def test_a_text_without_lines_is_refused(tmp_path):
    with pytest.raises(InputError, match="no lines"):
        embed_lines([], encode, tmp_path / "x.npy", NPY, {"model": "m"})
    assert list(tmp_path.iterdir()) == []


def test_embeddings_of_another_width_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\[10, 3\].*\[10, 4\]"):
        embed_lines(LINES, encode, tmp_path / "x.npy", Layout("npy", "float32", 4), {"model": "m"})
    assert list(tmp_path.iterdir()) == []


def test_resume_continues_the_progress_and_not_an_older_file(tmp_path):
    embed_lines(LINES[:5], encode, tmp_path / "x.npy", NPY, {"model": "m"})
    with pytest.raises(InputError, match=r"x\.npy:? .*\b5 .*\b95 lines"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True, total=95)
    interrupt(tmp_path)
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    assert np.load(tmp_path / "x.npy").shape == (95, 3)
    with open(tmp_path / "x.npy", "ab") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match=r"x\.npy:? .*x\.npy\.json"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


@pytest.mark.parametrize("form", ["npy", pytest.param("parquet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("replacing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_killed_before_any_change_of_files_is_resumed_to_the_same_bytes(
    tmp_path, form, replacing
):
    layout = Layout(form, "float32", 3)
    output = tmp_path / "out" / "x.npy"
    embed_lines(LINES, encode, tmp_path / "y.npy", layout, {"model": "m"})

    def run():
        embed_lines(LINES, encode, output, layout, {"model": "m"}, resume=not replacing)

    kills = 0
    for kills in every_kill(run):
        if replacing and output.exists() and not (tmp_path / "out" / "x.npy.partial").exists():
            assert output.read_bytes() == (tmp_path / "y.npy").read_bytes()
        embed_lines(LINES, encode, output, layout, {"model": "m"}, resume=True)
        assert sorted(os.listdir(output.parent)) == ["x.npy", "x.npy.json"], kills
        for end in ("", ".json"):
            expected = (tmp_path / f"y.npy{end}").read_bytes()
            assert output.with_name(f"x.npy{end}").read_bytes() == expected, kills
        if not replacing:
            shutil.rmtree(output.parent)
    assert kills > 20


def test_two_runs_do_not_write_the_same_file(tmp_path):
    def second(window, counts):
        with pytest.raises(InputError, match=r"x\.npy:? .*\(process \d+ on "):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
        return encode(window, counts)

    embed_lines(LINES, second, tmp_path / "x.npy", NPY, {"model": "m"})
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]


@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_stored_embeddings_with_a_flipped_bit_are_refused_or_the_same(tmp_path, name):
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    expected = np.array(read_embeddings(tmp_path / "x.npy"))
    path = tmp_path / name
    content = path.read_bytes()
    refusals = 0
    for position in range(0, len(content), 5):
        path.write_bytes(with_flipped_bits(content, position, 1))
        try:
            embeddings = read_embeddings(tmp_path / "x.npy")
        except InputError as error:
            assert f"{path}: " in str(error)  # noqa: PT017
            refusals += 1
        else:
            # The bit is in a blank, or in the name of the checksum of the description.
            assert name == "x.npy.json"
            np.testing.assert_array_equal(embeddings, expected)
    assert refusals > 0.16 * len(content)


def test_damaged_rows_of_an_interrupted_run_are_not_resumed(tmp_path):
    interrupt(tmp_path)
    output = tmp_path / "x.npy"
    partial = tmp_path / "x.npy.partial"
    content = partial.read_bytes()
    for position in range(128, len(content), 7):
        partial.write_bytes(with_flipped_bits(content, position, 16))
        with pytest.raises(InputError, match=r"x\.npy\.partial: .*x\.npy\.progress"):
            embed_lines(LINES, encode, output, NPY, {"model": "m"}, resume=True)
    partial.write_bytes(content)
    embed_lines(LINES, encode, output, NPY, {"model": "m"}, resume=True)
    embed_lines(LINES, encode, tmp_path / "y.npy", NPY, {"model": "m"})
    assert output.read_bytes() == (tmp_path / "y.npy").read_bytes()


@pytest.mark.parametrize("end", ["partial", "progress", "whole"])
@pytest.mark.parametrize("resume", [True, False])
def test_planted_links_and_pipes_next_to_the_output_are_not_used(tmp_path, end, resume):
    victim = tmp_path / "victim"
    for number, plant in enumerate((os.symlink, os.link, lambda _, path: os.mkfifo(path))):
        victim.write_bytes(b"precious")
        output = tmp_path / f"x{number}.safetensors"
        plant(victim, f"{output}.{end}")
        embed_lines(LINES, encode, output, Layout("safetensors", "float32", 3), {}, resume=resume)
        assert victim.read_bytes() == b"precious"
        assert not output.is_symlink()
        assert output.stat().st_nlink == 1
        assert not os.path.lexists(f"{output}.{end}")
