"""Embeddings in a byte or a bit a dimension: back within half a step, in every format, whatever the
interruption.
"""

import json
import warnings
from itertools import product

import numpy as np
import pytest

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

WIDTH = 11  # no multiple of eight
EMBEDDINGS = (
    np.random.default_rng(0).standard_normal((50, WIDTH)) * np.arange(1, WIDTH + 1) + 2
).astype(np.float32)
EMBEDDINGS[7] = 0
SIGNS = np.where(EMBEDDINGS > 0, 1, -1) * EMBEDDINGS.any(axis=1, keepdims=True)  # zeros stay zeros
LINES = [str(row) for row in range(50)]


def encode(window, counts=None, embeddings=EMBEDDINGS):
    return embeddings[[int(line) for line in window]]


def write(path, dtype, form="npy", **options):
    return embed_lines(LINES, encode, path, Layout(form, dtype, WIDTH), {"model": "m"}, **options)


def interrupted(path, dtype):
    def crashes(window, counts):
        return encode(window) if int(window[0]) < 30 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        embed_lines(LINES, crashes, path, Layout("npy", dtype, WIDTH), {"model": "m"})


def test_codes_worked_out_by_hand():
    # from -1 to 1.55 a step is 0.01 and 0 has code -28; a dimension without negative values starts
    # at 0
    sample = np.array([[-1, 2.55, 0], [1.55, 0.51, 0]], dtype=np.float32)
    calibration = Calibration.of(sample)
    np.testing.assert_allclose(calibration.step, [0.01, 0.01, 1], rtol=1e-6)
    assert calibration.zero.tolist() == [-28, -128, -128]
    codes = calibration.codes(
        np.array([[-1, 2.55, 0], [0, 0, 0], [9, 1.234, -1]], dtype=np.float32)
    )
    assert codes.tolist() == [[-128, 127, -128], [-28, -128, -128], [127, -5, -128]]
    np.testing.assert_allclose(
        calibration.values(codes), [[-1, 2.55, 0], [0, 0, 0], [1.55, 1.23, 0]], atol=1e-6
    )


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_int8_comes_back_within_half_a_step(tmp_path, form):
    index = write(tmp_path / f"x.{form}", "int8", form)
    read = read_embeddings(tmp_path / f"x.{form}")
    steps = np.array(index["calibration"]["step"])
    assert read.shape == (50, WIDTH)
    assert (np.abs(np.asarray(read) - EMBEDDINGS) <= steps * 0.5001).all()
    np.testing.assert_allclose(steps, np.ptp(EMBEDDINGS, axis=0) / 255, rtol=1e-5)
    assert not read[7:8].any()  # an empty sentence stays zero
    assert index == parse_json((tmp_path / f"x.{form}.json").read_text())


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_binary_comes_back_as_signs(tmp_path, form):
    write(tmp_path / f"x.{form}", "binary", form)
    np.testing.assert_array_equal(read_embeddings(tmp_path / f"x.{form}"), SIGNS)


def test_rows_are_the_bytes_that_any_reader_knows(tmp_path):
    about = write(tmp_path / "x.npy", "int8")["calibration"]
    restored = (np.load(tmp_path / "x.npy").astype(np.float32) - about["zero"]) * np.array(
        about["step"]
    )
    np.testing.assert_allclose(restored, np.asarray(read_embeddings(tmp_path / "x.npy")), rtol=1e-6)
    write(tmp_path / "y.npy", "binary")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.packbits(EMBEDDINGS > 0, axis=1))
    assert [np.load(tmp_path / name).nbytes for name in ("x.npy", "y.npy")] == [50 * WIDTH, 50 * 2]


def test_a_stored_folder_gives_floats(tmp_path):
    write(tmp_path / "x.npy", "int8")
    system = StoredEmbeddings(tmp_path)
    assert system.width == WIDTH
    rows = system.embed(Text(["a", "b"], file="x", rows=np.array([3, 30]), total=50))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, EMBEDDINGS[[3, 30]], atol=0.2)


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_the_same_bytes_after_an_interruption(tmp_path, monkeypatch, dtype):
    """The first window calibrates, and what is beyond it later becomes the nearest code."""
    monkeypatch.setattr(stream, "WINDOW", 10)
    write(tmp_path / "whole.npy", dtype)
    interrupted(tmp_path / "x.npy", dtype)
    write(tmp_path / "x.npy", dtype, resume=True)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    one, other = (
        parse_json((tmp_path / f"{name}.npy.json").read_text()) for name in ("x", "whole")
    )
    assert one == other == write(tmp_path / "x.npy", dtype, resume=True)
    least, most = EMBEDDINGS[:10].min(axis=0), EMBEDDINGS[:10].max(axis=0)
    if dtype == "int8":
        restored = np.asarray(read_embeddings(tmp_path / "x.npy"))
        steps = np.array(one["calibration"]["step"])
        expected = np.clip(EMBEDDINGS, np.minimum(least, 0), np.maximum(most, 0))
        assert (np.abs(restored - expected) <= steps * 1.01).all()


BAD = [*product(("float32", "float16", "int8", "binary"), (np.nan, np.inf)), ("float16", 65_520)]


@pytest.mark.parametrize(("dtype", "value"), BAD)
def test_numbers_that_cannot_be_stored_are_refused(tmp_path, dtype, value):
    bad = EMBEDDINGS.copy()
    bad[3, 2] = value
    with pytest.raises(InputError, match=r"NaN or infinity|65,504"):
        embed_lines(
            LINES,
            lambda window, _: encode(window, embeddings=bad),
            tmp_path / "x.npy",
            Layout("npy", dtype, WIDTH),
            {},
        )
    assert not list(tmp_path.iterdir())


def test_tiny_and_huge_values():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (0, 1e-45, 1e-30, 1e38):
            sample = np.float32([[-size, size]]).T
            calibration = Calibration.from_json(
                json.loads(json.dumps(Calibration.of(sample).to_json())), 1
            )
            np.testing.assert_allclose(
                calibration.values(calibration.codes(sample)), sample, rtol=0.01, atol=1e-43
            )


BAD = [
    ("calibration", None),
    ("calibration", {"zero": [0] * WIDTH}),
    ("calibration", {"zero": [0] * WIDTH, "step": [1] * 3}),
    ("calibration", {"zero": [0.5] * WIDTH, "step": [1] * WIDTH}),
    ("calibration", {"zero": [200] * WIDTH, "step": [1] * WIDTH}),
    ("calibration", {"zero": ["x"] * WIDTH, "step": [1] * WIDTH}),
    *(
        ("calibration", {"zero": [0] * WIDTH, "step": [step] * WIDTH})
        for step in (0, -1, 1e300, 10**400, None, [1])
    ),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_damaged_calibration_is_refused(tmp_path, name, value):
    write(tmp_path / "x.npy", "int8")
    beside = tmp_path / "x.npy.json"
    beside.write_text(json.dumps(parse_json(beside.read_text()) | {name: value}))
    with pytest.raises(InputError, match=r"x\.npy\.json: .*\bx\.npy\b"):
        read_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_codes_without_their_description_are_refused(tmp_path, dtype):
    write(tmp_path / "x.npy", dtype)
    write(tmp_path / "y.npy", {"int8": "binary", "binary": "int8"}[dtype])
    (tmp_path / "y.npy.json").replace(tmp_path / "x.npy.json")  # that of the other kind
    with pytest.raises(InputError, match=r"x\.npy:? .*\bu?int8\b"):
        read_embeddings(tmp_path / "x.npy")
    (tmp_path / "x.npy.json").unlink()
    with pytest.raises(InputError, match=r"x\.npy:? .*\bu?int8\b.*\(50, \d+\)"):
        read_embeddings(tmp_path / "x.npy")


def test_progress_without_calibration_is_not_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 10)
    interrupted(tmp_path / "x.npy", "int8")
    progress = tmp_path / "x.npy.progress"
    record = parse_json(progress.read_text())
    del record["settings"]["calibration"]
    progress.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"x\.npy\.progress: .*calibration.*--resume"):
        write(tmp_path / "x.npy", "int8", resume=True)


@pytest.mark.parametrize("dtype", EMBEDDING_DTYPES)
@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_any_file_is_loaded_as_float32(tmp_path, form, dtype):
    index = write(tmp_path / f"x.{form}", dtype, form)
    loaded = load_embeddings(tmp_path / f"x.{form}", raw_width=WIDTH)
    assert (loaded.dtype, loaded.shape) == (np.float32, (50, WIDTH))
    expected = SIGNS if dtype == "binary" else EMBEDDINGS
    step = np.array(index["calibration"]["step"]) if dtype == "int8" else 0.05
    assert (np.abs(loaded - expected) <= step * 0.5001).all()
    nearest_neighbours(loaded, loaded, 2)


def test_codes_that_numpy_loads_are_not_searched(tmp_path):
    write(tmp_path / "x.npy", "int8")
    with pytest.raises(InputError, match=r"\bint8\b.*load_embeddings"):
        nearest_neighbours(np.load(tmp_path / "x.npy"), EMBEDDINGS, 1)
