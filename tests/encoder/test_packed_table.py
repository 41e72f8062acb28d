"""A packed table gives exactly the numbers of the unpacked table."""

import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.locate import MODELS
from fairseq_lxsr.encoder.model_folder import read_config, read_packed_weights, read_weights
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable

MODEL = MODELS / "lxsr-static"
# Several scripts, an empty text and a long one.
SENTENCES = [
    "A dog sleeps on the roof.",
    "Un chien dort sur le toit.",
    "犬が屋根の上で寝ている。",
    "",
    "Собака спит на крыше, " * 40,
]


def unpacked_number_by_number(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the rows of a packed table, each number multiplied by the scale of its row.

    Codes of int8 are the numbers. Codes of uint8 hold two numbers from -8 to 7: the first half of a
    row is in the lower four bits of its bytes, the second half in the upper four.
    """
    table = []
    for row, scale in zip(codes.tolist(), scales, strict=True):
        numbers = row
        if codes.dtype == np.uint8:
            first_half = [byte % 16 - 8 for byte in row]
            second_half = [byte // 16 - 8 for byte in row]
            numbers = first_half + second_half
        table.append([np.float32(number) * scale for number in numbers])
    return np.array(table, np.float32)


def random_table(dtype: str, rows: int = 3000) -> PackedTable:
    """Draw any codes, and scales of many orders of magnitude."""
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    codes = rng.integers(limits.min, limits.max, (rows, 8), dtype, endpoint=True)
    return PackedTable(codes, np.exp(rng.normal(0, 9, rows)).astype(np.float32))


def expected_rows(table: PackedTable) -> np.ndarray:
    return unpacked_number_by_number(table.codes, table.scales)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(0, id="none"),
        pytest.param(1, id="one"),
        pytest.param(700, id="some"),
        # With repetitions: the table has 3,000 rows.
        pytest.param(9000, id="many"),
    ],
)
def test_unpacked_rows_are_exact(dtype, count):
    table = random_table(dtype)
    expected = expected_rows(table)
    ids = np.random.default_rng(2).integers(0, len(expected), count)

    rows, places = table.unpack(ids)

    np.testing.assert_array_equal(rows[places], expected[ids])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_rows_are_exact_if_some_of_them_were_unpacked_before(dtype):
    table = random_table(dtype)
    expected = expected_rows(table)
    table.unpack(np.arange(100))
    ids = np.arange(50, 150)

    rows, places = table.unpack(ids)

    np.testing.assert_array_equal(rows[places], expected[ids])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_all_rows_are_exact(dtype):
    table = random_table(dtype)
    expected = expected_rows(table)
    # All rows are the same before and after some are unpacked.
    for ids in ([], [5, 7]):
        table.unpack(np.array(ids, np.int64))
        np.testing.assert_array_equal(table.all_rows(), expected)

    assert table.shape == expected.shape
    assert table.size == expected.size


def test_threads_get_the_rows_that_they_ask_for():
    table = random_table("uint8", 20000)
    expected = expected_rows(table)

    def rows_are_exact(seed: int) -> bool:
        ids = np.random.default_rng(seed).integers(0, len(expected), 500)
        rows, places = table.unpack(ids)
        return np.array_equal(rows[places], expected[ids])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rows_are_exact, range(100)))


@pytest.mark.parametrize(
    ("code", "scale", "is_finite"),
    [
        pytest.param(7, 1, True, id="usual"),
        # The largest float32 is 3.4e38.
        pytest.param(7, 1e38, False, id="product is too large"),
        pytest.param(7, np.nan, False, id="nan"),
        # The largest code of int8, 127, would be too large, but it is not in the table.
        pytest.param(1, 1e37, True, id="only codes of the table count"),
    ],
)
def test_a_table_is_finite_if_all_products_of_codes_and_scales_are(code, scale, is_finite):
    codes = np.full((2, 3), code, np.int8)
    table = PackedTable(codes, np.array([1, scale], np.float32))

    assert table.isfinite().all() == is_finite


def test_rows_are_divided_after_they_are_scaled():
    """In float32, dividing the scale first would round differently."""
    table = random_table("int8")
    divisor = np.float32(512**0.5)

    divided = PackedTable(table.codes, table.scales, float(divisor))

    expected = expected_rows(table) / divisor
    np.testing.assert_array_equal(divided.all_rows(), expected)


def test_the_divisor_is_pickled():
    table = random_table("int8")
    divided = PackedTable(table.codes, table.scales, 2.0)

    unpickled = pickle.loads(pickle.dumps(divided))

    np.testing.assert_array_equal(unpickled.all_rows(), divided.all_rows())


def test_codes_and_scales_of_a_divided_table_give_nearly_its_rows():
    """Its scales are divided, for those who read them."""
    table = random_table("int8")
    divided = PackedTable(table.codes, table.scales, 512**0.5)

    undivided = PackedTable(divided.codes, divided.scales)

    np.testing.assert_allclose(undivided.all_rows(), divided.all_rows(), rtol=1e-6)


# -- the packaged model, whose table is packed


@pytest.fixture(scope="module")
def unpacked_weights():
    """The weights of the packaged model, with its table in float32."""
    return read_weights(MODEL, read_config(MODEL))


def test_embeddings_equal_those_of_the_unpacked_table(packaged, unpacked_weights):
    bag = Bag(packaged.size, unpacked_weights)
    unpacked = SentenceEncoder(bag, packaged.tokenizer, packaged.config)

    embeddings = packaged.encode(SENTENCES)

    np.testing.assert_array_equal(embeddings, unpacked.encode(SENTENCES))
    # The second time, the rows of the sentences are unpacked already.
    np.testing.assert_array_equal(packaged.encode(SENTENCES), embeddings)


def test_the_table_and_its_size_are_those_of_the_unpacked_table(packaged, unpacked_weights):
    table = unpacked_weights[TABLE]

    np.testing.assert_array_equal(packaged.table, table)
    assert packaged.parameters == table.size


# The file of the packaged model has 27 MB; unpacked, its table would have eight times as many.
PACKED_BYTES = 28e6


def test_a_pickled_encoder_has_the_packed_table(packaged):
    embeddings = packaged.encode(SENTENCES)

    pickled = pickle.dumps(packaged)

    # The tokenizer is in it too.
    assert len(pickled) < PACKED_BYTES + 12e6
    np.testing.assert_array_equal(pickle.loads(pickled).encode(SENTENCES), embeddings)


def test_the_first_sentence_unpacks_only_the_rows_of_its_pieces():
    encoder = SentenceEncoder.from_pretrained("lxsr-static")

    encoder.encode("A dog sleeps on the roof.")

    packed = encoder._bag._weights[TABLE]
    # Its six words and the full stop have a few pieces each.
    assert 0 < packed._row_count < 20
    # There is room for more rows, but not for the table.
    assert packed._rows.nbytes < 2e6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_first_vector_takes_less_than_200_megabytes_of_memory():
    code = (
        "import fairseq_lxsr\n"
        "encoder = fairseq_lxsr.SentenceEncoder.from_pretrained('lxsr-static')\n"
        "encoder.encode('A dog.')\n"
        "print(open('/proc/self/status').read())"
    )

    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    # VmHWM is the largest resident size of the process.
    (kilobytes,) = re.findall(rb"VmHWM:\s*(\d+) kB", result.stdout)
    assert int(kilobytes) * 1024 < 200e6


def test_reading_the_weights_does_not_unpack_them():
    weights = read_packed_weights(MODEL, read_config(MODEL))

    assert isinstance(weights[TABLE], PackedTable)
    assert weights[TABLE].codes.nbytes < PACKED_BYTES
