"""Embeddings with a byte or a bit per dimension are restored within half a step, in every format."""

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

# No multiple of eight, so that the last byte of a row of bits is not full.
WIDTH = 11
NUM_ROWS = 50
# The row of a sentence without words, which is a zero vector.
ZERO_ROW = 7
EMBEDDINGS = np.random.default_rng(0).standard_normal((NUM_ROWS, WIDTH))
# Dimensions have different ranges, which are not symmetric around 0.
EMBEDDINGS = (EMBEDDINGS * np.arange(1, WIDTH + 1) + 2).astype(np.float32)
EMBEDDINGS[ZERO_ROW] = 0
SIGNS = np.where(EMBEDDINGS > 0, 1, -1)
# A zero vector has no signs.
SIGNS[ZERO_ROW] = 0
# The text of a line is the number of its row.
LINES = [str(row) for row in range(NUM_ROWS)]


def encode(window, counts=None, embeddings=EMBEDDINGS):
    """The embeddings of some of the lines."""
    return embeddings[[int(line) for line in window]]


def write(path, dtype, form="npy", **options):
    """Write the embeddings of all lines with `embed_lines`, and return their description."""
    return embed_lines(LINES, encode, path, Layout(form, dtype, WIDTH), {"model": "m"}, **options)


def interrupt(path, dtype):
    """Write embeddings until an error after 30 lines."""

    def crash(window, counts):
        if int(window[0]) >= 30:
            raise ZeroDivisionError
        return encode(window)

    with pytest.raises(ZeroDivisionError):
        embed_lines(LINES, crash, path, Layout("npy", dtype, WIDTH), {"model": "m"})


def steps_of(description):
    """The difference between the values of adjacent int8 codes, for each dimension."""
    return np.array(description["calibration"]["step"])


@pytest.fixture
def calibration():
    """The calibration by two vectors of three dimensions.

    The 256 codes from -128 to 127 are spread over the range of a dimension and 0:
    dimension 0 is from -1 to 1.55, so a step is 2.55 / 255 = 0.01, and 0 is 100 steps above -1;
    dimension 1 is positive, so its range is from 0 to 2.55;
    dimension 2 is always 0, for which any step would do.
    """
    return Calibration.of(np.array([[-1, 2.55, 0], [1.55, 0.51, 0]], dtype=np.float32))


def test_the_calibration_spreads_256_codes_over_the_range_of_a_dimension_and_zero(calibration):
    np.testing.assert_allclose(calibration.step, [0.01, 0.01, 1], rtol=1e-6)
    assert calibration.zero.tolist() == [-128 + 100, -128, -128]


@pytest.mark.parametrize(
    ("vector", "codes", "restored"),
    [
        pytest.param([-1, 2.55, 0], [-128, 127, -128], [-1, 2.55, 0], id="ends of the ranges"),
        pytest.param([0, 0, 0], [-28, -128, -128], [0, 0, 0], id="zero"),
        # 9 is above the first range, -1 below the third; 1.234 is nearest to 123 steps.
        pytest.param([9, 1.234, -1], [127, -5, -128], [1.55, 1.23, 0], id="clipped and rounded"),
    ],
)
def test_codes_and_restored_values_are_those_computed_by_hand(calibration, vector, codes, restored):
    computed_codes = calibration.codes(np.array([vector], dtype=np.float32))

    assert computed_codes.tolist() == [codes]
    np.testing.assert_allclose(calibration.values(computed_codes), [restored], atol=1e-6)


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_int8_is_restored_within_half_a_step_of_the_range(tmp_path, form):
    description = write(tmp_path / f"x.{form}", "int8", form)

    restored = np.asarray(read_embeddings(tmp_path / f"x.{form}"))

    steps = steps_of(description)
    # The 256 codes have 255 steps between them.
    ranges = EMBEDDINGS.max(axis=0) - EMBEDDINGS.min(axis=0)
    np.testing.assert_allclose(steps, ranges / 255, rtol=1e-5)
    assert restored.shape == (NUM_ROWS, WIDTH)
    # Half a step, and a little for rounding in float32.
    assert (np.abs(restored - EMBEDDINGS) <= steps * 0.5001).all()
    assert not restored[ZERO_ROW].any()


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_the_description_of_int8_embeddings_is_stored_next_to_them(tmp_path, form):
    description = write(tmp_path / f"x.{form}", "int8", form)

    assert parse_json((tmp_path / f"x.{form}.json").read_text()) == description


@pytest.mark.parametrize("form", EMBEDDING_FORMATS)
def test_binary_is_restored_as_signs(tmp_path, form):
    write(tmp_path / f"x.{form}", "binary", form)

    restored = read_embeddings(tmp_path / f"x.{form}")

    np.testing.assert_array_equal(restored, SIGNS)


def test_numpy_and_the_description_restore_int8_embeddings(tmp_path):
    calibration = write(tmp_path / "x.npy", "int8")["calibration"]

    codes = np.load(tmp_path / "x.npy")
    restored = (codes.astype(np.float32) - calibration["zero"]) * np.array(calibration["step"])

    # One byte per dimension.
    assert codes.nbytes == NUM_ROWS * WIDTH
    expected = np.asarray(read_embeddings(tmp_path / "x.npy"))
    np.testing.assert_allclose(restored, expected, rtol=1e-6)


def test_binary_embeddings_are_the_bits_of_numpy_for_positive_values(tmp_path):
    write(tmp_path / "x.npy", "binary")

    bits = np.load(tmp_path / "x.npy")

    # The 11 bits of a row take two bytes.
    assert bits.nbytes == NUM_ROWS * 2
    np.testing.assert_array_equal(bits, np.packbits(EMBEDDINGS > 0, axis=1))


def test_a_system_of_stored_codes_returns_the_restored_rows_as_floats(tmp_path):
    description = write(tmp_path / "x.npy", "int8")
    system = StoredEmbeddings(tmp_path)
    rows = np.array([3, 30])

    embeddings = system.embed(Text(["a", "b"], file="x", rows=rows, total=NUM_ROWS))

    assert system.width == WIDTH
    assert embeddings.dtype == np.float32
    assert (np.abs(embeddings - EMBEDDINGS[rows]) <= steps_of(description) * 0.5001).all()


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_codes_and_description_are_the_same_bytes_after_an_interruption(
    tmp_path, monkeypatch, dtype
):
    # Embed ten lines at a time, so that the interrupted run has written 30.
    monkeypatch.setattr(stream, "WINDOW", 10)
    write(tmp_path / "whole.npy", dtype)
    interrupt(tmp_path / "x.npy", dtype)

    write(tmp_path / "x.npy", dtype, resume=True)

    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    description = parse_json((tmp_path / "x.npy.json").read_text())
    assert description == parse_json((tmp_path / "whole.npy.json").read_text())


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_resuming_complete_codes_returns_their_description(tmp_path, dtype):
    description = write(tmp_path / "x.npy", dtype)

    assert write(tmp_path / "x.npy", dtype, resume=True) == description


def test_values_beyond_the_range_of_the_first_window_get_the_nearest_code(tmp_path, monkeypatch):
    """The calibration is made with the first window, as the others are not known yet."""
    window = 10
    monkeypatch.setattr(stream, "WINDOW", window)

    description = write(tmp_path / "x.npy", "int8")

    restored = np.asarray(read_embeddings(tmp_path / "x.npy"))
    smallest = np.minimum(EMBEDDINGS[:window].min(axis=0), 0)
    largest = np.maximum(EMBEDDINGS[:window].max(axis=0), 0)
    expected = np.clip(EMBEDDINGS, smallest, largest)
    # The ends of the range are rounded to a code as well, so the error may be a whole step.
    assert (np.abs(restored - expected) <= steps_of(description) * 1.01).all()


# No type can store NaN and infinity, and the largest float16 is 65,504.
UNSTORABLE = [*product(("float32", "float16", "int8", "binary"), (np.nan, np.inf))]
UNSTORABLE += [("float16", 65_520)]


@pytest.mark.parametrize(("dtype", "value"), UNSTORABLE)
def test_numbers_that_cannot_be_stored_are_refused_and_no_file_remains(tmp_path, dtype, value):
    embeddings = EMBEDDINGS.copy()
    embeddings[3, 2] = value

    def encode_window(window, counts):
        return encode(window, embeddings=embeddings)

    with pytest.raises(InputError, match=r"NaN or infinity|65,504"):
        embed_lines(LINES, encode_window, tmp_path / "x.npy", Layout("npy", dtype, WIDTH), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "size",
    # Zero, the smallest number of float32, a tiny one, nearly the largest.
    [0, 1e-45, 1e-30, 1e38],
)
def test_tiny_and_huge_values_are_restored_without_warnings(size):
    sample = np.float32([[-size], [size]])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = json.dumps(Calibration.of(sample).to_json())
        calibration = Calibration.from_json(json.loads(stored), 1)
        restored = calibration.values(calibration.codes(sample))

    np.testing.assert_allclose(restored, sample, rtol=0.01, atol=1e-43)


VALID_ZERO = [0] * WIDTH
VALID_STEP = [1] * WIDTH
DAMAGED_CALIBRATIONS = {
    "none": None,
    "no step": {"zero": VALID_ZERO},
    "too few steps": {"zero": VALID_ZERO, "step": [1] * 3},
    "zero no integer": {"zero": [0.5] * WIDTH, "step": VALID_STEP},
    "zero above 127": {"zero": [200] * WIDTH, "step": VALID_STEP},
    "zero text": {"zero": ["x"] * WIDTH, "step": VALID_STEP},
    "step zero": {"zero": VALID_ZERO, "step": [0] * WIDTH},
    "step negative": {"zero": VALID_ZERO, "step": [-1] * WIDTH},
    "step above float32": {"zero": VALID_ZERO, "step": [1e300] * WIDTH},
    "step above float64": {"zero": VALID_ZERO, "step": [10**400] * WIDTH},
    "step null": {"zero": VALID_ZERO, "step": [None] * WIDTH},
    "step list": {"zero": VALID_ZERO, "step": [[1]] * WIDTH},
}


@pytest.mark.parametrize("damage", DAMAGED_CALIBRATIONS)
def test_the_error_for_a_damaged_calibration_names_the_description_and_the_file(tmp_path, damage):
    description = write(tmp_path / "x.npy", "int8")
    damaged = description | {"calibration": DAMAGED_CALIBRATIONS[damage]}
    (tmp_path / "x.npy.json").write_text(json.dumps(damaged))

    with pytest.raises(InputError, match=r"x\.npy\.json: .*\bx\.npy\b"):
        read_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize(("dtype", "other_dtype"), [("int8", "binary"), ("binary", "int8")])
def test_codes_with_the_description_of_another_type_are_refused(tmp_path, dtype, other_dtype):
    write(tmp_path / "x.npy", dtype)
    write(tmp_path / "y.npy", other_dtype)
    (tmp_path / "y.npy.json").replace(tmp_path / "x.npy.json")

    # numpy knows int8 and, for binary, uint8.
    with pytest.raises(InputError, match=r"x\.npy:? .*\bu?int8\b"):
        read_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("dtype", "stored"),
    # Binary is stored as 2 bytes for the 11 bits of a row.
    [("int8", r"\bint8\b.*\(50, 11\)"), ("binary", r"\buint8\b.*\(50, 2\)")],
    ids=["int8", "binary"],
)
def test_the_error_for_codes_without_a_description_has_their_type_and_shape(
    tmp_path, dtype, stored
):
    write(tmp_path / "x.npy", dtype)
    (tmp_path / "x.npy.json").unlink()

    with pytest.raises(InputError, match=rf"x\.npy:? .*{stored}"):
        read_embeddings(tmp_path / "x.npy")


def test_progress_without_calibration_is_not_resumed(tmp_path, monkeypatch):
    # Embed ten lines at a time, so that the interrupted run has made progress.
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
def test_load_embeddings_gives_searchable_float32_for_every_format_and_type(tmp_path, form, dtype):
    description = write(tmp_path / f"x.{form}", dtype, form)

    # A raw file does not have its width.
    loaded = load_embeddings(tmp_path / f"x.{form}", raw_width=WIDTH)

    assert loaded.dtype == np.float32
    assert loaded.shape == (NUM_ROWS, WIDTH)
    expected = SIGNS if dtype == "binary" else EMBEDDINGS
    # float16 rounds values below 64 by less than this.
    tolerance = 0.025
    if dtype == "int8":
        # Half a step, and a little for rounding in float32.
        tolerance = steps_of(description) * 0.5001
    assert (np.abs(loaded - expected) <= tolerance).all()
    # A search does not refuse them, as it refuses codes.
    nearest_neighbours(loaded, loaded, 2)


def test_a_search_refuses_codes_loaded_by_numpy_and_names_load_embeddings(tmp_path):
    write(tmp_path / "x.npy", "int8")
    codes = np.load(tmp_path / "x.npy")

    with pytest.raises(InputError, match=r"\bint8\b.*load_embeddings"):
        nearest_neighbours(codes, EMBEDDINGS, 1)
