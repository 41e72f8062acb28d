"""Files of embeddings: numpy's own bytes, any interruption, any setting."""

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

NPY, RAW = Layout("npy", "float32", 3), Layout("raw", "float32", 3)
LINES = [f"line {i}" for i in range(95)]


def encode(window: list[str], counts: Counter) -> np.ndarray:
    counts["long"] += sum(line.endswith("7") for line in window)
    numbers = np.array([int(line.split()[1]) for line in window], dtype=np.float32)
    return numbers[:, None] * [1, 2, -1]


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_npy_is_what_numpy_writes(tmp_path, dtype):
    embed_lines(iter(LINES), encode, tmp_path / "x.npy", Layout("npy", dtype, 3), {"model": "m"})
    np.save(tmp_path / "y.npy", encode(LINES, Counter()).astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "x.npy.json", "y.npy"}


def test_raw_is_rows_only(tmp_path):
    index = embed_lines(LINES, encode, tmp_path / "x.raw", RAW, {"model": "m"})
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "x.raw", np.float32).reshape(-1, 3), encode(LINES, Counter())
    )
    assert index == parse_json(index_path(tmp_path / "x.raw").read_text())
    assert (index["count"], index["dimension"], index["dtype"], index["model"]) == (
        95,
        3,
        "float32",
        "m",
    )
    assert (index["long"], index["empty"]) == (9, 0)
    hashed = subprocess.run(
        ["sha256sum", tmp_path / "x.raw"], capture_output=True, text=True, check=True
    ).stdout
    assert hashed.split()[0] == index["sha256"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_and_parquet_are_read_by_their_own_libraries(tmp_path, dtype):
    from pyarrow import parquet
    from safetensors.numpy import load_file

    expected = encode(LINES, Counter()).astype(dtype)
    for end in ("safetensors", "parquet"):
        embed_lines(
            iter(LINES), encode, tmp_path / f"x.{end}", Layout(end, dtype, 3), {"model": "m"}
        )
    read = load_file(tmp_path / "x.safetensors")["embeddings"]
    assert read.dtype == expected.dtype
    np.testing.assert_array_equal(read, expected)
    column = parquet.read_table(tmp_path / "x.parquet")["embeddings"].combine_chunks()
    np.testing.assert_array_equal(column.flatten().to_numpy().reshape(-1, 3), expected)
    assert len(list(tmp_path.iterdir())) == 4  # two files and their descriptions


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
def test_goes_on_after_kill_with_the_same_bytes(tmp_path, form):
    layout = Layout(form, "float32", 3)
    arguments = [
        sys.executable,
        "-c",
        SCRIPT,
        str(tmp_path / "x.npy"),
        os.path.dirname(__file__),
        form,
    ]
    assert subprocess.run(arguments, timeout=120).returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    with open(tmp_path / "x.npy.partial", "ab") as partial:
        partial.write(b"half a row that was being written")
    seen = []

    def watched(window, counts):
        seen.append(window[0])
        return encode(window, counts)

    embed_lines(iter(LINES), watched, tmp_path / "x.npy", layout, {"model": "m"}, resume=True)
    assert seen == [f"line {i}" for i in range(40, 95, 10)]
    embed_lines(LINES, encode, tmp_path / "y.npy", layout, {"model": "m"})
    for suffix in ("", ".json"):
        assert (tmp_path / f"x.npy{suffix}").read_bytes() == (
            tmp_path / f"y.npy{suffix}"
        ).read_bytes()


def test_a_complete_file_is_left_alone(tmp_path):
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    untouched = embed_lines(
        LINES,
        lambda *_: pytest.fail("was there"),
        tmp_path / "x.npy",
        NPY,
        {"model": "m"},
        resume=True,
    )
    assert untouched["count"] == 95
    for other in (LINES[:94], [*LINES[:94], "other"]):
        with pytest.raises(InputError, match=r"x\.npy:? .*\b95 .*\b9\d lines"):
            embed_lines(other, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    with pytest.raises(InputError, match=r"x\.npy\.json: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "other"}, resume=True)
    # without resume: anew
    embed_lines(LINES[:5], encode, tmp_path / "x.npy", NPY, {"model": "other"})
    assert np.load(tmp_path / "x.npy").shape == (5, 3)


def interrupted(tmp_path):
    def fail(window, counts):
        if window[0] == "line 40":
            raise RuntimeError("power cut")
        return encode(window, counts)

    with pytest.raises(RuntimeError):
        embed_lines(LINES, fail, tmp_path / "x.npy", NPY, {"model": "m"})


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    written = []

    def full(_):
        written.append(1)
        if len(written) == 7:  # rows and their progress in turn
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(stream.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*x\.npy\.partial'"):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    assert not (tmp_path / "x.npy").exists()
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), encode(LINES, Counter()))


def test_progress_of_another_run_is_not_gone_on_from(tmp_path):
    interrupted(tmp_path)
    left = (tmp_path / "x.npy.progress").read_text()

    def killed(window, counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_lines(LINES, killed, tmp_path / "x.npy", NPY, {"model": "other"})
    assert not (tmp_path / "x.npy.progress").exists()
    (tmp_path / "x.npy.progress").write_text(left)
    (tmp_path / "x.npy.partial").write_bytes(bytes(128))
    with pytest.raises(InputError, match=r"x\.npy\.partial: .*\b40 rows.*x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


def test_killed_before_the_rows_have_their_name(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stream.Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    embed_lines(
        LINES,
        lambda *_: pytest.fail("was there"),
        tmp_path / "x.npy",
        NPY,
        {"model": "m"},
        resume=True,
    )
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), encode(LINES, Counter()))
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "x.npy.json"}


def test_what_is_no_file_is_not_replaced(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        embed_lines(LINES, encode, tmp_path, NPY, {"model": "m"})


def test_what_was_left_must_fit(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(InputError, match=r"x\.npy\.progress: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "other"}, resume=True)
    with pytest.raises(InputError, match=r"40 lines.*--resume"):
        embed_lines(LINES[:30], encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    with pytest.raises(InputError, match=r"40 lines.*--resume"):
        embed_lines(
            ["other", *LINES[1:]], encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True
        )
    (tmp_path / "x.npy.progress").write_text("{}")
    with pytest.raises(InputError, match=r"x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


def test_nothing_to_embed(tmp_path):
    with pytest.raises(InputError, match="no lines"):
        embed_lines([], encode, tmp_path / "x.npy", NPY, {"model": "m"})
    assert list(tmp_path.iterdir()) == []


def test_embeddings_of_another_width_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\[10, 3\].*\[10, 4\]"):
        embed_lines(LINES, encode, tmp_path / "x.npy", Layout("npy", "float32", 4), {"model": "m"})
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_does_not_stand_for_an_interrupted_run(tmp_path):
    embed_lines(LINES[:5], encode, tmp_path / "x.npy", NPY, {"model": "m"})
    with pytest.raises(InputError, match=r"x\.npy:? .*\b5 .*\b95 lines"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True, total=95)
    interrupted(tmp_path)
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
    assert np.load(tmp_path / "x.npy").shape == (95, 3)
    with open(tmp_path / "x.npy", "ab") as spoilt:
        spoilt.write(b"x")
    with pytest.raises(InputError, match=r"x\.npy:? .*x\.npy\.json"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)


@pytest.mark.parametrize("form", ["npy", pytest.param("parquet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("replacing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_bytes_after_a_kill_before_any_change_of_files(tmp_path, form, replacing):
    layout, output = Layout(form, "float32", 3), tmp_path / "out" / "x.npy"
    embed_lines(LINES, encode, tmp_path / "y.npy", layout, {"model": "m"})
    kills = 0
    for kills in every_kill(
        lambda: embed_lines(LINES, encode, output, layout, {"model": "m"}, resume=not replacing)
    ):
        if replacing and output.exists() and not (tmp_path / "out" / "x.npy.partial").exists():
            assert output.read_bytes() == (tmp_path / "y.npy").read_bytes()
        embed_lines(LINES, encode, output, layout, {"model": "m"}, resume=True)
        assert sorted(os.listdir(output.parent)) == ["x.npy", "x.npy.json"], kills
        for end in ("", ".json"):
            assert (
                output.with_name(f"x.npy{end}").read_bytes()
                == (tmp_path / f"y.npy{end}").read_bytes()
            ), kills
        if not replacing:
            shutil.rmtree(output.parent)
    assert kills > 20


def test_two_at_once(tmp_path):
    def second(window, counts):
        with pytest.raises(InputError, match=r"x\.npy:? .*\(process \d+ on "):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"}, resume=True)
        return encode(window, counts)

    embed_lines(LINES, second, tmp_path / "x.npy", NPY, {"model": "m"})
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]


@pytest.mark.parametrize("spoilt", ["x.npy", "x.npy.json"])
def test_stored_embeddings_with_a_flipped_bit_are_refused_or_the_same(tmp_path, spoilt):
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, {"model": "m"})
    good, content, refusals = (
        np.array(read_embeddings(tmp_path / "x.npy")),
        (tmp_path / spoilt).read_bytes(),
        0,
    )
    for place in range(0, len(content), 5):
        (tmp_path / spoilt).write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        try:
            found = read_embeddings(tmp_path / "x.npy")
        except InputError as error:
            assert f"{tmp_path / spoilt}: " in str(error)  # noqa: PT017
            refusals += 1
        else:  # another name for the checksum of the description, or another blank
            assert spoilt == "x.npy.json"
            np.testing.assert_array_equal(found, good)
    assert refusals > 0.16 * len(content)


def test_rows_of_an_interrupted_run_that_are_damaged_are_not_gone_on_from(tmp_path):
    def stopped(window, counts):
        if window[0] == LINES[40]:
            raise ZeroDivisionError
        return encode(window, counts)

    output, partial = tmp_path / "x.npy", tmp_path / "x.npy.partial"
    with pytest.raises(ZeroDivisionError):
        embed_lines(LINES, stopped, output, NPY, {})
    content = partial.read_bytes()
    for place in range(128, len(content), 7):
        partial.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(InputError, match=r"x\.npy\.partial: .*x\.npy\.progress"):
            embed_lines(LINES, encode, output, NPY, {}, resume=True)
    partial.write_bytes(content)
    embed_lines(LINES, encode, output, NPY, {}, resume=True)
    embed_lines(LINES, encode, tmp_path / "y.npy", NPY, {})
    assert output.read_bytes() == (tmp_path / "y.npy").read_bytes()


@pytest.mark.parametrize("end", ["partial", "progress", "whole"])
@pytest.mark.parametrize("resume", [True, False])
def test_what_was_planted_beside_the_output_is_never_used(tmp_path, end, resume):
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
