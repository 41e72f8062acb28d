"""Files of embeddings: formats, resuming after interruptions, and damaged files."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import case
from kills import every_kill

from fairseq_lxsr.embeddings import Layout, embed_lines, index_path, read_embeddings
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.embeddings.formats import NPY_HEADER
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json

# Of the vectors of `encode`.
WIDTH = 3
NPY = Layout("npy", "float32", WIDTH)
RAW = Layout("raw", "float32", WIDTH)
# The text: "line 0" to "line 94".
NUM_LINES = 95
LINES = [f"line {number}" for number in range(NUM_LINES)]
MODEL = {"model": "m"}
OTHER_MODEL = {"model": "other"}


def fail_if_called(window: list[str], counts: Counter) -> np.ndarray:
    """Stands for a model that must not be used."""
    pytest.fail("the lines are embedded again")


def with_flipped_bits(content: bytes, position: int, bits: int) -> bytes:
    """The content with some bits of one byte changed."""
    damaged = bytearray(content)
    damaged[position] ^= bits
    return bytes(damaged)


def encode(window: list[str], counts: Counter) -> np.ndarray:
    """Stands for a model: "line N" has the vector (N, 2N, -N), and numbers that end in 7 are long."""
    counts["long"] += sum(line.endswith("7") for line in window)
    numbers = np.array([int(line.split()[1]) for line in window], dtype=np.float32)
    return numbers[:, None] * [1, 2, -1]


def expected_rows() -> np.ndarray:
    """The vectors of all lines."""
    return encode(LINES, Counter())


def interrupt(output: Path) -> None:
    """Write embeddings until an error after 40 lines."""

    def fail(window, counts):
        if window[0] == "line 40":
            raise RuntimeError("power cut")
        return encode(window, counts)

    with pytest.raises(RuntimeError):
        embed_lines(LINES, fail, output, NPY, MODEL)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    """Embed ten lines at a time, and write their rows and progress."""
    monkeypatch.setattr(stream, "WINDOW", 10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_npy_files_have_the_bytes_of_numpy(tmp_path, dtype):
    embed_lines(iter(LINES), encode, tmp_path / "x.npy", Layout("npy", dtype, WIDTH), MODEL)

    np.save(tmp_path / "y.npy", expected_rows().astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()


def test_only_the_embeddings_and_their_description_remain_in_the_folder(tmp_path):
    embed_lines(iter(LINES), encode, tmp_path / "x.npy", NPY, MODEL)

    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]


def test_raw_files_have_only_rows(tmp_path):
    embed_lines(LINES, encode, tmp_path / "x.raw", RAW, MODEL)

    rows = np.fromfile(tmp_path / "x.raw", np.float32).reshape(-1, 3)
    np.testing.assert_array_equal(rows, expected_rows())


def test_the_description_has_sizes_type_model_and_counts(tmp_path):
    description = embed_lines(LINES, encode, tmp_path / "x.raw", RAW, MODEL)

    assert description == parse_json(index_path(tmp_path / "x.raw").read_text())
    assert description["count"] == NUM_LINES
    assert description["dimension"] == 3
    assert description["dtype"] == "float32"
    assert description["model"] == "m"
    # Lines 7, 17, ... 87.
    assert description["long"] == 9
    assert description["empty"] == 0


def test_the_checksum_in_the_description_is_that_of_sha256sum(tmp_path):
    description = embed_lines(LINES, encode, tmp_path / "x.raw", RAW, MODEL)

    command = ["sha256sum", tmp_path / "x.raw"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert description["sha256"] == done.stdout.split()[0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_are_read_by_their_library(tmp_path, dtype):
    from safetensors.numpy import load_file

    path = tmp_path / "x.safetensors"
    embed_lines(iter(LINES), encode, path, Layout("safetensors", dtype, WIDTH), MODEL)

    rows = load_file(path)["embeddings"]
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, expected_rows().astype(dtype))
    assert sorted(os.listdir(tmp_path)) == ["x.safetensors", "x.safetensors.json"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parquet_is_read_by_its_library(tmp_path, dtype):
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    embed_lines(iter(LINES), encode, path, Layout("parquet", dtype, WIDTH), MODEL)

    column = parquet.read_table(path)["embeddings"].combine_chunks()
    rows = column.flatten().to_numpy().reshape(-1, 3)
    np.testing.assert_array_equal(rows, expected_rows().astype(dtype))
    assert sorted(os.listdir(tmp_path)) == ["x.parquet", "x.parquet.json"]


# A program that embeds the lines and kills itself after 40. Its arguments are the output, the
# folder of this test and the format.
KILLED_PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2])]
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.embeddings.formats import NPY_HEADER
from test_embed_lines import LINES, MODEL, encode
stream.WINDOW = 10
def killed(window, counts):
    if window[0] == "line 40":
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(window, counts)
layout = stream.Layout(sys.argv[3], "float32", 3)
stream.embed_lines(LINES, killed, Path(sys.argv[1]), layout, MODEL)
"""


@pytest.mark.parametrize("form", ["npy", "safetensors", "parquet"])
def test_a_killed_run_is_resumed_from_its_progress_to_the_same_bytes(tmp_path, form):
    layout = Layout(form, "float32", WIDTH)
    arguments = [str(tmp_path / "x.npy"), os.path.dirname(__file__), form]
    done = subprocess.run([sys.executable, "-c", KILLED_PROGRAM, *arguments], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    # The kill may have happened while a row was being written.
    with open(tmp_path / "x.npy.partial", "ab") as partial:
        partial.write(b"half a row")
    first_lines_of_windows = []

    def recording_encode(window, counts):
        first_lines_of_windows.append(window[0])
        return encode(window, counts)

    embed_lines(iter(LINES), recording_encode, tmp_path / "x.npy", layout, MODEL, resume=True)

    # The first 40 lines are not embedded again.
    assert first_lines_of_windows == [f"line {number}" for number in (40, 50, 60, 70, 80, 90)]
    embed_lines(LINES, encode, tmp_path / "y.npy", layout, MODEL)
    for suffix in ("", ".json"):
        expected = (tmp_path / f"y.npy{suffix}").read_bytes()
        assert (tmp_path / f"x.npy{suffix}").read_bytes() == expected


def test_resume_does_not_embed_the_lines_of_a_complete_file(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, MODEL)

    description = embed_lines(LINES, fail_if_called, output, NPY, MODEL, resume=True)

    assert description["count"] == NUM_LINES


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(LINES[:-1], r"x\.npy:? .*\b95 .*\b94 lines", id="a line fewer"),
        pytest.param([*LINES[:-1], "other"], r"x\.npy:? .*\b95 .*\b95 lines", id="another line"),
    ],
)
def test_resume_refuses_a_complete_file_of_another_text(tmp_path, lines, message):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, MODEL)

    with pytest.raises(InputError, match=message):
        embed_lines(lines, encode, output, NPY, MODEL, resume=True)


def test_resume_refuses_a_complete_file_of_another_model(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, MODEL)

    with pytest.raises(InputError, match=r"x\.npy\.json: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, output, NPY, OTHER_MODEL, resume=True)


def test_without_resume_a_complete_file_is_replaced(tmp_path):
    output = tmp_path / "x.npy"
    embed_lines(LINES, encode, output, NPY, MODEL)

    embed_lines(LINES[:5], encode, output, NPY, OTHER_MODEL)

    assert np.load(output).shape == (5, 3)


def test_a_run_is_resumed_after_the_disk_was_full(tmp_path, monkeypatch):
    num_writes = 0

    def fsync_of_a_disk_that_fills(_):
        nonlocal num_writes
        num_writes += 1
        # Rows and their progress are written in turn, so this is the fourth window.
        if num_writes == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(stream.os, "fsync", fsync_of_a_disk_that_fills)
        with pytest.raises(OSError, match=r"No space left on device: '.*x\.npy\.partial'"):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL)
    assert not (tmp_path / "x.npy").exists()

    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)

    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected_rows())


def test_a_new_run_removes_the_progress_of_an_earlier_one_before_it_embeds(tmp_path):
    interrupt(tmp_path / "x.npy")
    assert (tmp_path / "x.npy.progress").exists()

    def encode_killed(window, counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_lines(LINES, encode_killed, tmp_path / "x.npy", NPY, OTHER_MODEL)

    assert not (tmp_path / "x.npy.progress").exists()


def test_progress_is_not_resumed_with_fewer_rows_than_it_counts(tmp_path):
    interrupt(tmp_path / "x.npy")
    # The header of npy alone.
    (tmp_path / "x.npy.partial").write_bytes(bytes(NPY_HEADER))

    with pytest.raises(InputError, match=r"x\.npy\.partial: .*\b40 rows.*x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)


def test_a_run_killed_before_the_file_is_renamed_is_completed_without_the_model(
    tmp_path, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stream.Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL)

    embed_lines(LINES, fail_if_called, tmp_path / "x.npy", NPY, MODEL, resume=True)

    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected_rows())
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]


def test_a_folder_is_not_replaced_by_embeddings(tmp_path):
    output = tmp_path

    with pytest.raises(InputError, match=re.escape(str(output))):
        embed_lines(LINES, encode, output, NPY, MODEL)


def test_resume_refuses_progress_of_another_model(tmp_path):
    interrupt(tmp_path / "x.npy")

    with pytest.raises(InputError, match=r"x\.npy\.progress: .*model 'm', now 'other'"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, OTHER_MODEL, resume=True)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(LINES[:30], id="fewer lines than progress"),
        pytest.param(["other", *LINES[1:]], id="another first line"),
    ],
)
def test_resume_refuses_progress_of_another_text(tmp_path, lines):
    interrupt(tmp_path / "x.npy")

    with pytest.raises(InputError, match=r"40 lines.*--resume"):
        embed_lines(lines, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)


def test_resume_refuses_a_damaged_record_of_progress(tmp_path):
    interrupt(tmp_path / "x.npy")
    (tmp_path / "x.npy.progress").write_text("{}")

    with pytest.raises(InputError, match=r"x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)


def test_a_text_without_lines_is_refused_and_no_file_is_written(tmp_path):
    with pytest.raises(InputError, match="no lines"):
        embed_lines([], encode, tmp_path / "x.npy", NPY, MODEL)
    assert list(tmp_path.iterdir()) == []


def test_embeddings_of_another_width_than_the_layout_are_refused_and_no_file_is_written(tmp_path):
    layout = Layout("npy", "float32", WIDTH + 1)

    # A window of ten lines, and vectors of three dimensions.
    with pytest.raises(InputError, match=r"\[10, 3\].*\[10, 4\]"):
        embed_lines(LINES, encode, tmp_path / "x.npy", layout, MODEL)
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_a_complete_file_with_fewer_lines_than_the_given_total(tmp_path):
    embed_lines(LINES[:5], encode, tmp_path / "x.npy", NPY, MODEL)

    with pytest.raises(InputError, match=r"x\.npy:? .*\b5 .*\b95 lines"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True, total=NUM_LINES)


def test_resume_continues_the_progress_and_replaces_an_older_file(tmp_path):
    embed_lines(LINES[:5], encode, tmp_path / "x.npy", NPY, MODEL)
    interrupt(tmp_path / "x.npy")

    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)

    assert np.load(tmp_path / "x.npy").shape == (NUM_LINES, 3)


def test_resume_refuses_a_complete_file_with_an_additional_byte(tmp_path):
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL)
    with open(tmp_path / "x.npy", "ab") as file:
        file.write(b"x")

    with pytest.raises(InputError, match=r"x\.npy:? .*x\.npy\.json"):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)


def assert_is_complete(output: Path, expected_file: Path) -> None:
    """Check that the folder has only the output and its description, as those of the other."""
    assert sorted(os.listdir(output.parent)) == [output.name, f"{output.name}.json"]
    for suffix in ("", ".json"):
        expected = Path(f"{expected_file}{suffix}").read_bytes()
        assert Path(f"{output}{suffix}").read_bytes() == expected


# Each of the ten windows changes files at least twice: it writes rows, and then progress.
FEWEST_CHANGES = 2 * 10


@pytest.mark.parametrize("form", ["npy", pytest.param("parquet", marks=pytest.mark.slow)])
def test_a_run_killed_before_any_change_of_files_is_resumed_to_the_same_bytes(tmp_path, form):
    layout = Layout(form, "float32", WIDTH)
    output = tmp_path / "out" / f"x.{form}"
    uninterrupted = tmp_path / f"y.{form}"
    embed_lines(LINES, encode, uninterrupted, layout, MODEL)

    def resume():
        embed_lines(LINES, encode, output, layout, MODEL, resume=True)

    num_changes = 0
    # A run that is killed before its first change of files, then one before its second, ...
    for num_changes in every_kill(resume):
        with case(f"killed after {num_changes} changes"):
            resume()

            assert_is_complete(output, uninterrupted)
        shutil.rmtree(output.parent)
    assert num_changes > FEWEST_CHANGES


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_a_run_killed_while_it_replaces_a_complete_file_can_be_resumed(tmp_path, form):
    layout = Layout(form, "float32", WIDTH)
    output = tmp_path / "out" / f"x.{form}"
    progress = tmp_path / "out" / f"x.{form}.partial"
    uninterrupted = tmp_path / f"y.{form}"
    embed_lines(LINES, encode, uninterrupted, layout, MODEL)

    def replace():
        embed_lines(LINES, encode, output, layout, MODEL)

    num_changes = 0
    # After each kill, the run is resumed, and the next run replaces its complete file.
    for num_changes in every_kill(replace):
        with case(f"killed after {num_changes} changes"):
            # A file without progress next to it has only rows of one run, and all of them.
            if output.exists() and not progress.exists():
                assert output.read_bytes() == uninterrupted.read_bytes()

            embed_lines(LINES, encode, output, layout, MODEL, resume=True)

            assert_is_complete(output, uninterrupted)
    assert num_changes > FEWEST_CHANGES


def test_a_second_run_of_the_same_file_is_refused_and_the_first_completes(tmp_path):
    def encode_during_a_second_run(window, counts):
        with pytest.raises(InputError, match=r"x\.npy:? .*\(process \d+ on "):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)
        return encode(window, counts)

    embed_lines(LINES, encode_during_a_second_run, tmp_path / "x.npy", NPY, MODEL)

    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected_rows())


@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_stored_embeddings_with_a_flipped_bit_are_refused_or_the_same(tmp_path, name):
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL)
    expected = np.array(read_embeddings(tmp_path / "x.npy"))
    path = tmp_path / name
    content = path.read_bytes()
    # Every fifth byte, because each file is read as a whole.
    positions = range(0, len(content), 5)
    refusals = 0

    for position in positions:
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

    assert refusals > 0.8 * len(positions)


def test_damaged_rows_of_an_interrupted_run_are_not_resumed(tmp_path):
    interrupt(tmp_path / "x.npy")
    partial = tmp_path / "x.npy.partial"
    content = partial.read_bytes()

    # Every seventh byte of the rows.
    for position in range(NPY_HEADER, len(content), 7):
        partial.write_bytes(with_flipped_bits(content, position, 16))
        with pytest.raises(InputError, match=r"x\.npy\.partial: .*x\.npy\.progress"):
            embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)


def test_rows_refused_because_of_damage_are_resumed_once_they_are_restored(tmp_path):
    interrupt(tmp_path / "x.npy")
    partial = tmp_path / "x.npy.partial"
    content = partial.read_bytes()
    partial.write_bytes(with_flipped_bits(content, NPY_HEADER, 16))
    with pytest.raises(InputError):
        embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)

    partial.write_bytes(content)
    embed_lines(LINES, encode, tmp_path / "x.npy", NPY, MODEL, resume=True)

    embed_lines(LINES, encode, tmp_path / "y.npy", NPY, MODEL)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()


@pytest.mark.parametrize(
    "plant",
    [os.symlink, os.link, lambda _, path: os.mkfifo(path)],
    ids=["symlink", "hard link", "pipe"],
)
@pytest.mark.parametrize("end", ["partial", "progress", "whole"])
@pytest.mark.parametrize("resume", [True, False])
def test_links_and_pipes_planted_as_temporary_files_are_replaced_and_not_followed(
    tmp_path, end, resume, plant
):
    """Another user of a shared folder may plant them."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    output = tmp_path / "x.safetensors"
    plant(victim, f"{output}.{end}")

    embed_lines(LINES, encode, output, Layout("safetensors", "float32", WIDTH), {}, resume=resume)

    assert victim.read_bytes() == b"precious"
    assert not output.is_symlink()
    # No hard link to the victim.
    assert output.stat().st_nlink == 1
    assert not os.path.lexists(f"{output}.{end}")
