"""Files that the package has written are read or refused in one line, whatever their damage."""

import contextlib
import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fairseq_lxsr.embeddings import Layout, StoredEmbeddings, Text, WordVectors, embed, embed_lines
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.compare import compare_runs
from fairseq_lxsr.evaluation.score import Outcomes, Score, append_scores, read_scores
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.report import page
from fairseq_lxsr.report.training_log import read_log
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.resumable import Rows, resumable_array

# Warnings of numpy would not help users.
pytestmark = pytest.mark.filterwarnings("error")
hypothesis = pytest.importorskip("hypothesis")
from odd_files import odd_bytes, odd_json  # noqa: E402 (needs hypothesis)

OPTIONS = {"max_examples": 30, "deadline": None, "derandomize": True, "database": None}
bounded = hypothesis.settings(**OPTIONS, suppress_health_check=list(hypothesis.HealthCheck))
LINES = [f"line {number}" for number in range(25)]
LAYOUT = Layout("npy", "float32", 3)
SETTINGS = {"model": "m", "shard": None}


def score(task: str, weights: list[float] | None) -> Score:
    settings = {"metric": "nn", "k": 4, "model": "m"}
    return Score("xsr", task, {"P@1": 50.0}, settings, {"P@1": Outcomes([1, 0, 1], weights)}, "0.1")


SCORES = [score("en->fr", None), score("fr->en", [1, 2, 1.5])]
LOG = """2026-11-21 | INFO | train_inner | {"epoch": 1, "loss": "14.1", "sim": "0.0006", "num_updates": "50"}
2026-11-21 | INFO | valid | {"epoch": 1, "valid_loss": "8.8", "valid_accuracy": "0.97", "valid_num_updates": "60"}
2026-11-21 | INFO | train_inner | epoch 001:     50 / 270 loss=14.1, sim=0.0006, num_updates=50, wall=457
2026-11-21 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.8 | accuracy 0.97 | num_updates 60
"""
refused = partial(contextlib.suppress, InputError)


def odd(test):
    """Run a test with many draws of `data`."""
    return bounded(hypothesis.given(data=hypothesis.strategies.data())(test))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "WINDOW", 10)
        patched.setattr(page, "get_plotlyjs", str)
        yield


def encode(window: list[str], counts: Counter) -> np.ndarray:
    numbers = [1 + int(line.split()[1]) for line in window]
    return np.array(numbers, dtype=np.float32)[:, None] * [1, 2, -1]


@odd
def test_damaged_scores_are_read_or_refused(folder, data):
    path = folder / "s.jsonl"
    documents = [score.as_dict() for score in SCORES]
    path.write_bytes(b"\n".join(data.draw(odd_json(document)) for document in documents))
    with refused():
        scores = read_scores(path)
        page.write_report(folder / "r.html", "title", [], scores, [])
        with refused():
            compare_runs([scores], [SCORES], draws=100)
        with refused():
            compare_runs([SCORES], [scores], draws=100)
    with refused():
        append_scores(path, SCORES)


@odd
def test_damaged_training_logs_are_read_or_refused(folder, data):
    line = data.draw(odd_json({"loss": "14.1", "num_updates": "50", "valid_num_updates": 7.0}))
    path = folder / "train.log"
    path.write_bytes(data.draw(odd_bytes(LOG.encode())) + b"\nINFO | " + line + b"\n")
    with refused():
        curves = read_log(path)
        page.write_report(folder / "r.html", "title", [curves] if curves else [], SCORES, [])


@odd
def test_damaged_embeddings_of_an_interrupted_run_are_resumed_or_refused(folder, data):
    output = folder / "x.npy"
    for path in folder.glob("x.npy*"):
        path.unlink()

    def encode_or_stop(window, counts):
        if window[0] == LINES[20]:
            raise ZeroDivisionError
        return encode(window, counts)

    if data.draw(hypothesis.strategies.booleans()):
        with contextlib.suppress(ZeroDivisionError):
            embed_lines(LINES, encode_or_stop, output, LAYOUT, SETTINGS)
        names = ("x.npy.progress", "x.npy.partial")
    else:
        embed_lines(LINES, encode, output, LAYOUT, SETTINGS)
        names = ("x.npy.json", "x.npy")
    path = folder / data.draw(hypothesis.strategies.sampled_from(sorted(names)))
    damage(path, data)
    with refused():
        description = embed_lines(LINES, encode, output, LAYOUT, SETTINGS, resume=True)
        # They can be formatted as numbers.
        assert f"{description['count']:,} {description['empty']:,} {description['long']:,}"
        assert np.load(output).shape == (25, 3)


def damage(path: Path, data) -> None:
    content = path.read_bytes()
    if path.suffix in (".json", ".progress"):
        path.write_bytes(data.draw(odd_json(json.loads(content))))
    else:
        path.write_bytes(data.draw(odd_bytes(content)))


@odd
def test_damaged_arrays_of_a_work_folder_are_computed_again(folder, data):
    rows = Rows((25, 3), np.float32, {"k": 4, "source": {"text": "x", "model": "m"}})
    array = folder / "rows.npy"
    for path in folder.glob("rows.npy*"):
        path.unlink()
    resumable_array(array, rows, lambda start, stop: 1, block=10)
    damage(data.draw(hypothesis.strategies.sampled_from([array, folder / "rows.npy.json"])), data)
    assert resumable_array(array, rows, lambda start, stop: 1, block=10).shape == (25, 3)


@odd
def test_damaged_stored_embeddings_are_read_or_refused(folder, data):
    kind = data.draw(hypothesis.strategies.sampled_from(["npy", "raw"]))
    stored = folder / "stored"
    stored.mkdir(exist_ok=True)
    for path in stored.iterdir():
        path.unlink()
    embed_lines(LINES, encode, stored / f"text.{kind}", Layout(kind, "float32", 3), {"model": "m"})
    if data.draw(hypothesis.strategies.booleans()):
        (stored / f"text.{kind}.json").unlink()
    damage(data.draw(hypothesis.strategies.sampled_from(sorted(stored.iterdir()))), data)
    encoder = StoredEmbeddings(stored, raw_width=3)
    assert encoder.fingerprint
    with refused():
        assert embed(encoder, Text(LINES, "en", "text")).shape[0] == 25


ODD_ARRAYS = [
    np.zeros(25),
    np.zeros((25, 3, 1)),
    np.zeros((0, 3)),
    np.zeros((25, 0)),
    np.zeros((25, 3)),
    np.ones((25, 3), dtype=int),
    np.ones((25, 3), dtype=complex),
    np.ones((25, 3), dtype=[("a", "f4")]),
    np.full((25, 3), "x"),
    np.full((25, 3), np.nan),
    np.full((25, 3), 1e300),
    np.full((25, 3), None),
    np.array(7.0),
]


@pytest.mark.parametrize("array", ODD_ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_arrays_with_a_wrong_type_shape_or_value_are_refused(tmp_path, array):
    np.save(tmp_path / "text.npy", array)
    with pytest.raises(InputError, match=r"text"):
        embed(StoredEmbeddings(tmp_path), Text(LINES, "en", "text"))


@pytest.fixture(scope="module")
def index(folder):
    encode_window = partial(encode, counts=Counter())
    return CorpusIndex.build(folder / "index", LINES, encode_window, "model", plain=True).folder


@pytest.mark.parametrize("rehashed", [True, False])
@odd
def test_a_damaged_index_is_searched_or_refused(folder, index, data, rehashed):
    """Also if index.json has the checksum of the damaged file."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(index, copy)
    names = ["index.json"]
    names += [f"segment-0/{path.name}" for path in (copy / "segment-0").iterdir()]
    path = copy / data.draw(hypothesis.strategies.sampled_from(sorted(names)))
    if rehashed and path.name == "index.faiss":
        # faiss does not check its files.
        return
    damage(path, data)
    if rehashed and path.name != "index.json":
        config = parse_json((copy / "index.json").read_text())
        config["segments"][0]["files"][path.name] = sha256(path)
        (copy / "index.json").write_text(json.dumps(config))
    with refused():
        corpus_index = CorpusIndex.load(copy)
        # The name of the model must be a path.
        Path(corpus_index.config["model_folder"])
        corpus_index.search(LINES[:3], partial(encode, counts=Counter()), 2)


@odd
def test_damaged_word_vectors_are_read_or_refused(folder, data):
    content = "line 1 2\n0 3 4\nä -1e9 0.5\n"
    has_header = data.draw(hypothesis.strategies.booleans())
    if has_header:
        content = "3 2\n" + content
    path = folder / "w.vec"
    path.write_bytes(data.draw(odd_bytes(content.encode())))
    with refused():
        embed(WordVectors(path), Text(LINES, "en", "text"))


DEPTH = 200_000


@pytest.mark.parametrize(
    "content", ["[" * DEPTH + "]" * DEPTH, '{"counts":' * DEPTH + "1" + "}" * DEPTH], ids=["[", "{"]
)
def test_deeply_nested_json_is_refused(tmp_path, content):
    for name in ("s.jsonl", "train.log", "x.npy.progress", "text.npy.json"):
        (tmp_path / name).write_text(content)
    (tmp_path / "x.npy.partial").touch()
    np.save(tmp_path / "text.npy", np.ones((25, 3), dtype=np.float32))
    with pytest.raises(InputError, match=r"s\.jsonl, line 1"):
        read_scores(tmp_path / "s.jsonl")
    assert read_log(tmp_path / "train.log") is None
    with pytest.raises(InputError, match=r"x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", LAYOUT, SETTINGS, resume=True)
    with pytest.raises(InputError, match=r"text\.npy\.json"):
        embed(StoredEmbeddings(tmp_path), Text(LINES, "en", "text"))


@pytest.mark.parametrize("count", ["nan", "inf", "-1", "1.5", "1e300"])
def test_a_number_of_updates_that_is_not_a_whole_number_is_refused(tmp_path, count):
    (tmp_path / "train.log").write_text(f'{LOG}x | {{"loss": "1", "num_updates": "{count}"}}\n')
    with pytest.raises(InputError, match=r"train\.log, line 5: num_updates "):
        read_log(tmp_path / "train.log")
