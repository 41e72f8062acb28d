"""Embeddings with a byte or a bit per dimension are restored within half a step, in every format."""

import json
import warnings
from itertools import product

import numpy as np
import pytest
from conftest import case

from fairseq_lxsr.embeddings import (
    Layout,
    StoredEmbeddings,
    Text,
    embed_lines,
    load_embeddings,
    read_embeddings,
)
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.embeddings.codes import Calibration
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.options import EMBEDDING_DTYPES, EMBEDDING_FORMATS
from fairseq_lxsr.vectors import nearest_neighbours

# No multiple of eight.
WIDTH = 11
EMBEDDINGS = np.random.default_rng(0).standard_normal((50, WIDTH)) * np.arange(1, WIDTH + 1) + 2
EMBEDDINGS = EMBEDDINGS.astype(np.float32)
EMBEDDINGS[7] = 0
SIGNS = np.where(EMBEDDINGS > 0, 1, -1)
# A zero vector has no signs.
SIGNS[7] = 0
LINES = [str(row) for row in range(50)]


def encode(window, counts=None, embeddings=EMBEDDINGS):
    return embeddings[[int(line) for line in window]]


def write(path, dtype, form="npy", **options):
    return embed_lines(LINES, encode, path, Layout(form, dtype, WIDTH), {"model": "m"}, **options)


def interrupt(path, dtype):
    """Write embeddings until an error after 30 lines."""

    def crash(window, counts):
        if int(window[0]) >= 30:
            raise ZeroDivisionError
        return encode(window)

    with pytest.raises(ZeroDivisionError):
        embed_lines(LINES, crash, path, Layout("npy", dtype, WIDTH), {"model": "m"})


def test_codes_by_hand():
    # From -1 to 1.55 a step is 0.01, and 0 has the code -28. A dimension without negative values
    # begins at 0.
    sample = np.array([[-1, 2.55, 0], [1.55, 0.51, 0]], dtype=np.float32)
    calibration = Calibration.of(sample)
    np.testing.assert_allclose(calibration.step, [0.01, 0.01, 1], rtol=1e-6)
    assert calibration.zero.tolist() == [-28, -128, -128]
    values = np.array([[-1, 2.55, 0], [0, 0, 0], [9, 1.234, -1]], dtype=np.float32)
    codes = calibration.codes(values)
    assert codes.tolist() == [[-128, 127, -128], [-28, -128, -128], [127, -5, -128]]
    restored = [[-1, 2.55, 0], [0, 0, 0], [1.55, 1.23, 0]]
    np.testing.assert_allclose(calibration.values(codes), restored, atol=1e-6)


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_int8_is_restored_within_half_a_step(tmp_path, form):
    index = write(tmp_path / f"x.{form}", "int8", form)
    restored = read_embeddings(tmp_path / f"x.{form}")
    steps = np.array(index["calibration"]["step"])
    assert restored.shape == (50, WIDTH)
    assert (np.abs(np.asarray(restored) - EMBEDDINGS) <= steps * 0.5001).all()
    np.testing.assert_allclose(steps, np.ptp(EMBEDDINGS, axis=0) / 255, rtol=1e-5)
    # The vector of an empty sentence stays zero.
    assert not restored[7:8].any()
    assert index == parse_json((tmp_path / f"x.{form}.json").read_text())


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_binary_is_restored_as_signs(tmp_path, form):
    write(tmp_path / f"x.{form}", "binary", form)
    np.testing.assert_array_equal(read_embeddings(tmp_path / f"x.{form}"), SIGNS)


def test_numpy_alone_restores_the_rows(tmp_path):
    calibration = write(tmp_path / "x.npy", "int8")["calibration"]
    codes = np.load(tmp_path / "x.npy")
    assert codes.nbytes == 50 * WIDTH
    restored = (codes.astype(np.float32) - calibration["zero"]) * np.array(calibration["step"])
    np.testing.assert_allclose(restored, np.asarray(read_embeddings(tmp_path / "x.npy")), rtol=1e-6)
    write(tmp_path / "y.npy", "binary")
    bits = np.load(tmp_path / "y.npy")
    assert bits.nbytes == 50 * 2
    np.testing.assert_array_equal(bits, np.packbits(EMBEDDINGS > 0, axis=1))


def test_stored_codes_are_embedded_as_floats(tmp_path):
    write(tmp_path / "x.npy", "int8")
    system = StoredEmbeddings(tmp_path)
    assert system.width == WIDTH
    rows = system.embed(Text(["a", "b"], file="x", rows=np.array([3, 30]), total=50))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, EMBEDDINGS[[3, 30]], atol=0.2)


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_codes_are_the_same_bytes_after_an_interruption(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(stream, "WINDOW", 10)
    write(tmp_path / "whole.npy", dtype)
    interrupt(tmp_path / "x.npy", dtype)
    write(tmp_path / "x.npy", dtype, resume=True)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    index = parse_json((tmp_path / "x.npy.json").read_text())
    assert index == parse_json((tmp_path / "whole.npy.json").read_text())
    # The file is complete, so that nothing is left to write.
    assert index == write(tmp_path / "x.npy", dtype, resume=True)


def test_values_beyond_the_range_of_the_first_window_get_the_nearest_code(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 10)
    index = write(tmp_path / "x.npy", "int8")
    restored = np.asarray(read_embeddings(tmp_path / "x.npy"))
    steps = np.array(index["calibration"]["step"])
    smallest = np.minimum(EMBEDDINGS[:10].min(axis=0), 0)
    largest = np.maximum(EMBEDDINGS[:10].max(axis=0), 0)
    expected = np.clip(EMBEDDINGS, smallest, largest)
    assert (np.abs(restored - expected) <= steps * 1.01).all()


UNSTORABLE = [*product(("float32", "float16", "int8", "binary"), (np.nan, np.inf))]
UNSTORABLE += [("float16", 65_520)]


@pytest.mark.parametrize(("dtype", "value"), UNSTORABLE)
def test_numbers_that_cannot_be_stored_are_refused(tmp_path, dtype, value):
    embeddings = EMBEDDINGS.copy()
    embeddings[3, 2] = value

    def encode_window(window, counts):
        return encode(window, embeddings=embeddings)

    with pytest.raises(InputError, match=r"NaN or infinity|65,504"):
        embed_lines(LINES, encode_window, tmp_path / "x.npy", Layout("npy", dtype, WIDTH), {})
    assert not list(tmp_path.iterdir())


def test_tiny_and_huge_values_are_restored_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (0, 1e-45, 1e-30, 1e38):
            sample = np.float32([[-size], [size]])
            stored = json.dumps(Calibration.of(sample).to_json())
            calibration = Calibration.from_json(json.loads(stored), 1)
            restored = calibration.values(calibration.codes(sample))
            np.testing.assert_allclose(restored, sample, rtol=0.01, atol=1e-43)


def test_a_damaged_calibration_is_refused(tmp_path):
    write(tmp_path / "x.npy", "int8")
    index_file = tmp_path / "x.npy.json"
    index = parse_json(index_file.read_text())
    damaged = [
        None,
        {"zero": [0] * WIDTH},
        {"zero": [0] * WIDTH, "step": [1] * 3},
        {"zero": [0.5] * WIDTH, "step": [1] * WIDTH},
        {"zero": [200] * WIDTH, "step": [1] * WIDTH},
        {"zero": ["x"] * WIDTH, "step": [1] * WIDTH},
    ]
    for step in (0, -1, 1e300, 10**400, None, [1]):
        damaged.append({"zero": [0] * WIDTH, "step": [step] * WIDTH})
    for calibration in damaged:
        index_file.write_text(json.dumps(index | {"calibration": calibration}))
        message = r"x\.npy\.json: .*\bx\.npy\b"
        with case(calibration), pytest.raises(InputError, match=message):
            read_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_codes_without_their_description_are_refused(tmp_path, dtype):
    write(tmp_path / "x.npy", dtype)
    write(tmp_path / "y.npy", {"int8": "binary", "binary": "int8"}[dtype])
    # The description is that of the other type.
    (tmp_path / "y.npy.json").replace(tmp_path / "x.npy.json")
    with pytest.raises(InputError, match=r"x\.npy:? .*\bu?int8\b"):
        read_embeddings(tmp_path / "x.npy")
    (tmp_path / "x.npy.json").unlink()
    with pytest.raises(InputError, match=r"x\.npy:? .*\bu?int8\b.*\(50, \d+\)"):
        read_embeddings(tmp_path / "x.npy")


def test_progress_without_calibration_is_not_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 10)
    interrupt(tmp_path / "x.npy", "int8")
    progress = tmp_path / "x.npy.progress"
    record = parse_json(progress.read_text())
    del record["settings"]["calibration"]
    progress.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"x\.npy\.progress: .*calibration.*--resume"):
        write(tmp_path / "x.npy", "int8", resume=True)


@pytest.mark.parametrize("dtype", EMBEDDING_DTYPES)
@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_load_embeddings_gives_float32_for_every_format_and_type(tmp_path, form, dtype):
    index = write(tmp_path / f"x.{form}", dtype, form)
    loaded = load_embeddings(tmp_path / f"x.{form}", raw_width=WIDTH)
    assert (loaded.dtype, loaded.shape) == (np.float32, (50, WIDTH))
    expected = SIGNS if dtype == "binary" else EMBEDDINGS
    tolerance = 0.025  # of float16
    if dtype == "int8":
        tolerance = np.array(index["calibration"]["step"]) * 0.5001  # half a step, and rounding
    assert (np.abs(loaded - expected) <= tolerance).all()
    # A search takes them.
    nearest_neighbours(loaded, loaded, 2)


def test_a_search_refuses_codes_that_numpy_has_loaded(tmp_path):
    write(tmp_path / "x.npy", "int8")
    with pytest.raises(InputError, match=r"\bint8\b.*load_embeddings"):
        nearest_neighbours(np.load(tmp_path / "x.npy"), EMBEDDINGS, 1)
