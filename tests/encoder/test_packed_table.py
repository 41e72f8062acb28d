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
SENTENCES = [
    "A dog sleeps on the roof.",
    "Un chien dort sur le toit.",
    "犬が屋根の上で寝ている。",
    "",
    "Собака спит на крыше, " * 40,
]


def reference(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Unpack a table row by row, with single numbers of float32."""
    table = []
    for row, scale in zip(codes.tolist(), scales, strict=True):
        if codes.dtype == np.uint8:
            row = [*(byte % 16 - 8 for byte in row), *(byte // 16 - 8 for byte in row)]
        table.append([np.float32(code) * scale for code in row])
    return np.array(table, np.float32)


def random_table(dtype: str, rows: int = 3000) -> PackedTable:
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    codes = rng.integers(limits.min, limits.max, (rows, 8), dtype, endpoint=True)
    return PackedTable(codes, np.exp(rng.normal(0, 9, rows)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_unpacked_rows_are_exact(dtype):
    table = random_table(dtype)
    expected = reference(table.codes, table.scales)
    rng = np.random.default_rng(2)
    for size in (0, 1, 5, 700, 9000):
        ids = rng.integers(0, len(expected), size)
        rows, places = table.unpack(ids)
        np.testing.assert_array_equal(rows[places], expected[ids])
    np.testing.assert_array_equal(table.all_rows(), expected)
    rows, places = table.unpack(ids)
    np.testing.assert_array_equal(rows[places], expected[ids])
    assert table.shape == expected.shape
    assert table.size == expected.size


def test_threads_get_the_rows_that_they_ask_for():
    table = random_table("uint8", 20000)
    expected = reference(table.codes, table.scales)

    def rows_are_exact(seed: int) -> bool:
        ids = np.random.default_rng(seed).integers(0, len(expected), 500)
        rows, places = table.unpack(ids)
        return np.array_equal(rows[places], expected[ids])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rows_are_exact, range(100)))


@pytest.mark.parametrize(("scale", "expected"), [(1, True), (1e38, False), (np.nan, False)])
def test_isfinite_checks_the_products_of_codes_and_scales(scale, expected):
    codes = np.full((2, 3), 7, np.int8)
    table = PackedTable(codes, np.array([1, scale], np.float32))
    assert table.isfinite().all() == expected


def test_isfinite_checks_codes_that_are_in_the_table():
    # 1 * 1e37 is finite in float32; with the largest code, 127 * 1e37 would not be.
    codes = np.ones((2, 3), np.int8)
    assert PackedTable(codes, np.array([1, 1e37], np.float32)).isfinite().all()


def test_rows_are_divided_after_they_are_scaled():
    table = random_table("int8")
    divisor = np.float32(512**0.5)
    divided = PackedTable(table.codes, table.scales, float(divisor))
    expected = reference(table.codes, table.scales) / divisor
    np.testing.assert_array_equal(divided.all_rows(), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(divided)).all_rows(), expected)
    np.testing.assert_allclose(
        PackedTable(divided.codes, divided.scales).all_rows(), expected, rtol=1e-6
    )


def test_embeddings_equal_those_of_the_unpacked_table(packaged):
    config = read_config(MODEL)
    weights = read_weights(MODEL, config)
    plain = SentenceEncoder(Bag(packaged.size, weights), packaged.tokenizer, config)
    embeddings = packaged.encode(SENTENCES)
    np.testing.assert_array_equal(embeddings, plain.encode(SENTENCES))
    np.testing.assert_array_equal(packaged.table, weights[TABLE])
    np.testing.assert_array_equal(packaged.encode(SENTENCES), embeddings)
    assert packaged.parameters == weights[TABLE].size


def test_a_pickled_encoder_has_the_packed_table(packaged):
    embeddings = packaged.encode(SENTENCES)
    data = pickle.dumps(packaged)
    assert len(data) < 40e6
    np.testing.assert_array_equal(pickle.loads(data).encode(SENTENCES), embeddings)


def test_the_first_sentence_unpacks_few_rows():
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    encoder.encode("A dog sleeps on the roof.")
    packed = encoder._bag._weights[TABLE]
    assert 0 < packed._row_count < 20
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
    (peak,) = re.findall(rb"VmHWM:\s*(\d+) kB", result.stdout)
    assert int(peak) * 1024 < 200e6


def test_reading_the_weights_does_not_unpack_them():
    weights = read_packed_weights(MODEL, read_config(MODEL))
    assert isinstance(weights[TABLE], PackedTable)
    assert weights[TABLE].codes.nbytes < 28e6
