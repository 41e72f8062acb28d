"""Files that the package has written are read or refused with an InputError, whatever their damage.

hypothesis draws the damage: the bytes of a file are cut off, overwritten or replaced, or a value in
its JSON is another one (see odd_files.py).
"""

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
# Lines that are embedded in windows of ten, as vectors of three numbers.
LINES = [f"line {number}" for number in range(25)]
LAYOUT = Layout("npy", "float32", 3)
SETTINGS = {"model": "m", "shard": None}


def score(task: str, weights: list[float] | None) -> Score:
    settings = {"metric": "nn", "k": 4, "model": "m"}
    return Score("xsr", task, {"P@1": 50.0}, settings, {"P@1": Outcomes([1, 0, 1], weights)}, "0.1")


# With and without weights of the sentences.
SCORES = [score("en->fr", None), score("fr->en", [1, 2, 1.5])]
# As fairseq-train writes it with --log-format json and simple.
LOG = """2026-11-21 | INFO | train_inner | {"epoch": 1, "loss": "14.1", "sim": "0.0006", "num_updates": "50"}
2026-11-21 | INFO | valid | {"epoch": 1, "valid_loss": "8.8", "valid_accuracy": "0.97", "valid_num_updates": "60"}
2026-11-21 | INFO | train_inner | epoch 001:     50 / 270 loss=14.1, sim=0.0006, num_updates=50, wall=457
2026-11-21 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.8 | accuracy 0.97 | num_updates 60
"""
# Any other exception than InputError, and any warning of numpy, fails a test.
may_be_refused = partial(contextlib.suppress, InputError)


def with_many_damages(test):
    """Run a test thirty times; each time, `data` draws another damage."""
    return bounded(hypothesis.given(data=hypothesis.strategies.data())(test))


def draw_from(data, choices):
    return data.draw(hypothesis.strategies.sampled_from(choices))


def damage(path: Path, data) -> None:
    """Damage a file; in JSON, also by other values."""
    content = path.read_bytes()
    if path.suffix in (".json", ".progress"):
        path.write_bytes(data.draw(odd_json(json.loads(content))))
    else:
        path.write_bytes(data.draw(odd_bytes(content)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all draws, because hypothesis calls a fixture once for all of them."""
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(autouse=True, scope="module")
def _small():
    """Embed windows of ten lines, and leave 4 MB of JavaScript out of reports."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "WINDOW", 10)
        patched.setattr(page, "get_plotlyjs", str)
        yield


def encode(window: list[str], counts: Counter) -> np.ndarray:
    """Encode "line 4" as [5, 10, -5]."""
    numbers = [1 + int(line.split()[1]) for line in window]
    return np.array(numbers, dtype=np.float32)[:, None] * [1, 2, -1]


@with_many_damages
def test_damaged_scores_are_reported_compared_and_appended_to_or_refused(folder, data):
    path = folder / "s.jsonl"
    documents = [score.as_dict() for score in SCORES]
    path.write_bytes(b"\n".join(data.draw(odd_json(document)) for document in documents))
    with may_be_refused():
        scores = read_scores(path)
        page.write_report(folder / "r.html", "title", [], scores, [])
        with may_be_refused():
            compare_runs([scores], [SCORES], draws=100)
        with may_be_refused():
            compare_runs([SCORES], [scores], draws=100)
    with may_be_refused():
        append_scores(path, SCORES)


@with_many_damages
def test_damaged_training_logs_are_reported_or_refused(folder, data):
    line = data.draw(odd_json({"loss": "14.1", "num_updates": "50", "valid_num_updates": 7.0}))
    path = folder / "train.log"
    path.write_bytes(data.draw(odd_bytes(LOG.encode())) + b"\nINFO | " + line + b"\n")
    with may_be_refused():
        curves = read_log(path)
        page.write_report(folder / "r.html", "title", [curves] if curves else [], SCORES, [])


@with_many_damages
def test_damaged_files_of_an_interrupted_run_are_resumed_to_all_embeddings_or_refused(folder, data):
    output = folder / "x.npy"
    for path in folder.glob("x.npy*"):
        path.unlink()

    def encode_or_stop(window, counts):
        # The last window begins with line 20.
        if window[0] == LINES[20]:
            raise ZeroDivisionError
        return encode(window, counts)

    with contextlib.suppress(ZeroDivisionError):
        embed_lines(LINES, encode_or_stop, output, LAYOUT, SETTINGS)
    damage(folder / draw_from(data, ["x.npy.partial", "x.npy.progress"]), data)

    assert_resumed_or_refused(output)


@with_many_damages
def test_damaged_files_of_a_finished_run_are_resumed_to_all_embeddings_or_refused(folder, data):
    output = folder / "x.npy"
    for path in folder.glob("x.npy*"):
        path.unlink()
    embed_lines(LINES, encode, output, LAYOUT, SETTINGS)
    damage(folder / draw_from(data, ["x.npy", "x.npy.json"]), data)

    assert_resumed_or_refused(output)


def assert_resumed_or_refused(output: Path) -> None:
    """Resume a run; check that it is refused, or that its array and its counts are usable."""
    with may_be_refused():
        description = embed_lines(LINES, encode, output, LAYOUT, SETTINGS, resume=True)
        assert np.load(output).shape == (len(LINES), 3)
        # The command prints these as numbers.
        assert f"{description['count']:,} {description['empty']:,} {description['long']:,}"


@with_many_damages
def test_damaged_arrays_of_a_work_folder_are_computed_again(folder, data):
    rows = Rows((25, 3), np.float32, {"k": 4, "source": {"text": "x", "model": "m"}})
    path = folder / "rows.npy"
    for old_path in folder.glob("rows.npy*"):
        old_path.unlink()

    def compute_ones(start, stop):
        return 1

    resumable_array(path, rows, compute_ones, block=10)
    damage(draw_from(data, [path, folder / "rows.npy.json"]), data)

    array = resumable_array(path, rows, compute_ones, block=10)

    assert array.shape == rows.shape


@with_many_damages
def test_damaged_stored_embeddings_are_read_or_refused(folder, data):
    stored = folder / "stored"
    stored.mkdir(exist_ok=True)
    for path in stored.iterdir():
        path.unlink()
    kind = draw_from(data, ["npy", "raw"])
    embed_lines(LINES, encode, stored / f"text.{kind}", Layout(kind, "float32", 3), {"model": "m"})
    # Embeddings of other programs have no description.
    is_external = data.draw(hypothesis.strategies.booleans())
    if is_external:
        (stored / f"text.{kind}.json").unlink()
    damage(draw_from(data, sorted(stored.iterdir())), data)

    encoder = StoredEmbeddings(stored, raw_width=3)

    # Only the array and its description are read, and not before they are used.
    assert encoder.fingerprint
    with may_be_refused():
        assert len(embed(encoder, Text(LINES, "en", "text"))) == len(LINES)


# Embeddings of LINES are 25 rows of floats that are finite and not all zero.
INVALID_ARRAYS = {
    "one dimension": np.ones(25),
    "three dimensions": np.ones((25, 3, 1)),
    "no dimension": np.array(7.0),
    "no rows": np.ones((0, 3)),
    "no columns": np.ones((25, 0)),
    "zeros": np.zeros((25, 3)),
    "integers": np.ones((25, 3), dtype=int),
    "complex numbers": np.ones((25, 3), dtype=complex),
    "records": np.ones((25, 3), dtype=[("a", "f4")]),
    "text": np.full((25, 3), "x"),
    "objects": np.full((25, 3), None),
    "nan": np.full((25, 3), np.nan),
    "too large for float32": np.full((25, 3), 1e300),
}


@pytest.mark.parametrize("array", INVALID_ARRAYS.values(), ids=INVALID_ARRAYS.keys())
def test_embeddings_with_a_wrong_type_shape_or_value_are_refused(tmp_path, array):
    np.save(tmp_path / "text.npy", array)

    with pytest.raises(InputError, match=r"text"):
        embed(StoredEmbeddings(tmp_path), Text(LINES, "en", "text"))


@pytest.fixture(scope="module")
def index(folder) -> Path:
    """An index of LINES."""
    encode_window = partial(encode, counts=Counter())
    return CorpusIndex.build(folder / "index", LINES, encode_window, "model", plain=True).folder


def copy_of(index: Path) -> Path:
    copy = index.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(index, copy)
    return copy


def load_and_search(index: Path) -> None:
    corpus_index = CorpusIndex.load(index)
    # The name of the model must be a path.
    Path(corpus_index.config["model_folder"])
    corpus_index.search(LINES[:3], partial(encode, counts=Counter()), 2)


@with_many_damages
def test_an_index_with_a_damaged_file_is_searched_or_refused(index, data):
    copy = copy_of(index)
    damage(draw_from(data, [copy / "index.json", *sorted((copy / "segment-0").iterdir())]), data)

    with may_be_refused():
        load_and_search(copy)


@with_many_damages
def test_an_index_with_a_damaged_file_and_its_checksum_is_searched_or_refused(index, data):
    """The checksum in index.json does not reveal the damage, so the content must be checked."""
    copy = copy_of(index)
    # faiss does not check its own files.
    paths = sorted(set((copy / "segment-0").iterdir()) - {copy / "segment-0" / "index.faiss"})
    path = draw_from(data, paths)
    damage(path, data)
    config = parse_json((copy / "index.json").read_text())
    config["segments"][0]["files"][path.name] = sha256(path)
    (copy / "index.json").write_text(json.dumps(config))

    with may_be_refused():
        load_and_search(copy)


@with_many_damages
def test_damaged_word_vectors_are_read_or_refused(folder, data):
    vectors = "line 1 2\n0 3 4\nä -1e9 0.5\n"
    # Some programs write the numbers of words and of columns first.
    header = draw_from(data, ["", "3 2\n"])
    path = folder / "w.vec"
    path.write_bytes(data.draw(odd_bytes(f"{header}{vectors}".encode())))

    with may_be_refused():
        embed(WordVectors(path), Text(LINES, "en", "text"))


# Nested more deeply than Python's parser of JSON can read.
DEPTH = 200_000


@pytest.fixture(
    params=["[" * DEPTH + "]" * DEPTH, '{"counts":' * DEPTH + "1" + "}" * DEPTH],
    ids=["lists", "objects"],
)
def deeply_nested_json(request) -> str:
    return request.param


def test_deeply_nested_json_as_scores_is_refused(tmp_path, deeply_nested_json):
    (tmp_path / "s.jsonl").write_text(deeply_nested_json)

    with pytest.raises(InputError, match=r"s\.jsonl, line 1"):
        read_scores(tmp_path / "s.jsonl")


def test_deeply_nested_json_as_a_training_log_has_no_curves(tmp_path, deeply_nested_json):
    (tmp_path / "train.log").write_text(deeply_nested_json)

    assert read_log(tmp_path / "train.log") is None


def test_deeply_nested_json_as_the_progress_of_a_run_is_refused(tmp_path, deeply_nested_json):
    (tmp_path / "x.npy.progress").write_text(deeply_nested_json)
    (tmp_path / "x.npy.partial").touch()

    with pytest.raises(InputError, match=r"x\.npy\.progress"):
        embed_lines(LINES, encode, tmp_path / "x.npy", LAYOUT, SETTINGS, resume=True)


def test_deeply_nested_json_as_the_description_of_embeddings_is_refused(
    tmp_path, deeply_nested_json
):
    (tmp_path / "text.npy.json").write_text(deeply_nested_json)
    np.save(tmp_path / "text.npy", np.ones((len(LINES), 3), dtype=np.float32))

    with pytest.raises(InputError, match=r"text\.npy\.json"):
        embed(StoredEmbeddings(tmp_path), Text(LINES, "en", "text"))


@pytest.mark.parametrize("count", ["nan", "inf", "-1", "1.5", "1e300"])
def test_a_number_of_updates_that_is_not_a_natural_number_is_refused(tmp_path, count):
    # LOG has four lines.
    (tmp_path / "train.log").write_text(f'{LOG}x | {{"loss": "1", "num_updates": "{count}"}}\n')

    with pytest.raises(InputError, match=r"train\.log, line 5: num_updates "):
        read_log(tmp_path / "train.log")
