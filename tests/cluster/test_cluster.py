"""A local Ray cluster of two workers gives the results of one machine, even if a worker is killed."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import random_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr.cluster import (
    Cluster,
    Corpus,
    Embedding,
    connect,
    embed_shards,
    index_shards,
    mine_shards,
)
from fairseq_lxsr.cluster.shards import finish_shards, make_shard
from fairseq_lxsr.cluster.workers import Workers, run_missing
from fairseq_lxsr.embeddings import (
    Layout,
    ModelFolder,
    StoredEmbeddings,
    Text,
    index_path,
    width_of,
)
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.files.records import Record
from fairseq_lxsr.search import IndexOptions
from fairseq_lxsr.search.index_config import read_config

ray = pytest.importorskip("ray")

# Lines of a text; a shard has 30.
LINES = 100
RAY = ("--ray", "--workers", 2, "--shard-lines", 30)


@pytest.fixture(scope="module")
def cluster():
    """A running Ray, which takes seconds to start."""
    # Addresses of sockets must be short.
    folder = tempfile.mkdtemp(prefix="r-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, _temp_dir=folder, **options)
        yield
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def workers(work, cluster):
    """Two workers for all commands; starting one takes a second of a core."""
    model = work / "m" / "model"

    def load():
        return ModelFolder(SentenceEncoder.from_pretrained(model), show_progress=False)

    with connect(Cluster(count=2, shard_lines=30), load) as pool:
        yield pool


@pytest.fixture
def shared(workers, monkeypatch):
    """Make commands use the running workers."""

    @contextlib.contextmanager
    def connect_to_workers(cluster, load):
        assert cluster == Cluster("local", 2, shard_lines=30)
        workers.seconds = 0.0
        workers.num_long = 0
        yield workers

    monkeypatch.setattr("fairseq_lxsr.cluster.connect", connect_to_workers)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with a model without layers and two texts with empty and repeated lines."""
    folder = tmp_path_factory.mktemp("cluster")
    random_model.write_model(folder / "m", gated=True, num_layers=0, order_coefficients=1)
    pairs = toy.sentences(LINES, seed=4)
    for name, side in (("en", 0), ("fr", 1)):
        lines = [pair[side] for pair in pairs]
        lines[5] = ""
        lines[40] = lines[3]
        lines[-3] = f" {lines[2]}"
        (folder / f"text.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def embed(work, output, *options):
    files = ("--input", work / "text.en", work / "text.fr", "--output", output)
    return lxsr_here("embed", "--model", work / "m" / "model", *files, *options)


def mine(work, output, *options, check=True):
    files = ("--source", work / "text.en", "--target", work / "text.fr", "--output", output)
    return lxsr_here("mine", "--model", work / "m" / "model", *files, *options, check=check)


def index(work, output, *options, check=True):
    files = ("--input", work / "text.fr", "--output", output)
    return lxsr_here("index", "--model", work / "m" / "model", *files, *options, check=check)


def corpora(work) -> list[Corpus]:
    return [Corpus(work / f"text.{name}", "", LINES) for name in ("en", "fr")]


def shards_done(done) -> tuple[int, int]:
    """Return the number of shards of a run, and of those that an earlier run had finished."""
    match = re.search(r"\b(\d+) shards(?: \((\d+) )?", done.stdout)
    return int(match[1]), int(match[2] or 0)


def times(folder: Path) -> dict[str, int]:
    return {name: (folder / f"{name}.npy").stat().st_mtime_ns for name in names(folder)}


def names(folder: Path) -> list[str]:
    return [shard["name"] for shard in json.loads((folder / "shards.json").read_text())["shards"]]


def segment_names(folder: Path) -> list[str]:
    return [segment["folder"] for segment in read_config(folder)["segments"]]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_embeddings_equal_those_of_one_machine(work, tmp_path, dtype):
    options = ("--format", "raw", "--output-dtype", dtype)
    embed(work, tmp_path / "whole.raw", *options)
    done = embed(work, tmp_path / "shards", *options, *RAY)
    files = [tmp_path / "shards" / f"{name}.raw" for name in names(tmp_path / "shards")]
    if dtype == "float32":
        content = b"".join(path.read_bytes() for path in files)
        assert content == (tmp_path / "whole.raw").read_bytes()
    # All shards have the calibration of the first one, or none.
    calibrations = [json.loads(index_path(path).read_text()).get("calibration") for path in files]
    assert all(calibration == calibrations[0] for calibration in calibrations)
    sizes = [path.stat().st_size for path in files]
    assert sizes == sorted(sizes, reverse=True)
    assert re.search(r"\b200 .*\b32\b", done.stdout)
    assert shards_done(done) == (7, 0)
    # The text of the shards is removed.
    assert {path.suffix for path in (tmp_path / "shards").iterdir()} == {".raw", ".json", ""}


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_rerun_makes_only_missing_shards(work, tmp_path):
    embed(work, tmp_path / "o", *RAY)
    before = times(tmp_path / "o")
    missing = names(tmp_path / "o")[3]
    (tmp_path / "o" / f"{missing}.npy").unlink()
    assert shards_done(embed(work, tmp_path / "o", *RAY)) == (7, 6)
    after = times(tmp_path / "o")
    assert {name for name in after if after[name] != before[name]} == {missing}
    # Shards of other settings have other names, and replace the old ones.
    assert shards_done(embed(work, tmp_path / "o", *RAY, "--normalize")) == (7, 0)
    assert not set(names(tmp_path / "o")) & set(before)
    assert len(list((tmp_path / "o").glob("*.npy"))) == 7
    # Another command does not use the folder.
    files = sorted(tmp_path.rglob("*"))
    refused(index(work, tmp_path / "o", *RAY, check=False), "/o exists")
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("kind", "search_options"), [("flat", ("--plain",)), ("int8", ("--plain",)), ("flat", ())]
)
def test_an_index_gives_the_results_of_one_machine(work, tmp_path, kind, search_options):
    options = ("--kind", kind, *search_options)
    index(work, tmp_path / "whole", *options)
    done = index(work, tmp_path / "shards", *options, *RAY)
    assert re.search(rf"\b{kind}\b.*\b99\b", done.stdout)
    hits = {}
    for name in ("whole", "shards"):
        search = ("--input", work / "text.en", "--output", tmp_path / "hits.tsv", "--k", 5)
        lxsr_here("search", "--index", tmp_path / name, *search)
        hits[name] = (tmp_path / "hits.tsv").read_text().splitlines()
    for hit in hits["shards"]:
        assert 1 <= int(hit.split("\t")[2]) <= 100
    pairs = tmp_path / "pairs.tsv"
    lines = [f"{source}\t{target}\n" for source, target in toy.sentences(20, seed=4)]
    pairs.write_text("".join(lines))
    score = ("score", "--model", work / "m" / "model", "--input", pairs, "--margin", "ratio")
    scores = {}
    for name in ("whole", "shards"):
        index_folder = tmp_path / name
        scores[name] = lxsr_here(*score, "--index", index_folder, index_folder).stdout
    # The calibration of int8 depends on the shards.
    if kind == "flat":
        assert hits["shards"] == hits["whole"]
        assert scores["shards"] == scores["whole"]
    assert shards_done(index(work, tmp_path / "shards", *options, *RAY)) == (4, 4)


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("kind", ["flat", "binary"])
def test_mined_pairs_equal_those_of_one_machine(work, tmp_path, kind):
    options = ("--retrieval", "all", "--kind", kind)
    shards_options = (*options, *RAY, "--work", tmp_path / "work")
    mine(work, tmp_path / "whole.tsv", *options, "--k", 3)
    done = mine(work, tmp_path / "shards.tsv", *shards_options, "--k", 3)
    pairs = (tmp_path / "shards.tsv").read_text()
    # Binary codes give approximate neighbours, which depend on the shards.
    if kind == "flat":
        assert pairs == (tmp_path / "whole.tsv").read_text()
    assert len(pairs.splitlines()) > 200
    assert shards_done(done) == (8, 0)
    rerun = mine(work, tmp_path / "rerun.tsv", *shards_options, "--k", 3)
    assert shards_done(rerun) == (8, 16)
    # Another k needs other neighbours of the same embeddings.
    rerun = mine(work, tmp_path / "rerun.tsv", *shards_options, "--k", 2)
    assert shards_done(rerun) == (8, 8)


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_pairs_within_one_text_equal_those_of_one_machine(work, tmp_path):
    text = tmp_path / "text"
    english = (work / "text.en").read_text(encoding="utf-8")
    french = (work / "text.fr").read_text(encoding="utf-8")
    text.write_text(english + french)
    command = ("mine", "--model", work / "m" / "model", "--source", text, "--k", 3)
    lxsr_here(*command, "--output", tmp_path / "whole.tsv")
    whole = (tmp_path / "whole.tsv").read_text()
    for row in whole.splitlines():
        _, source, target = row.split("\t")
        assert source != target
    for name, options in (("alone", ()), ("twice", ("--target", text))):
        lxsr_here(*command, *options, "--output", tmp_path / name, *RAY)
        assert (tmp_path / name).read_text() == whole
    done = lxsr_here(*command, "--lang-pair", "en-fr", "--output", tmp_path / "o", check=False)
    refused(done, "--lang-pair en-fr", "--target")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_truncated_texts_are_counted(tmp_path, monkeypatch):
    """Two of the 40 lines are longer than the 64 positions of a model with layers."""
    model = random_model.write_model(tmp_path / "layers")
    text = tmp_path / "text"
    lines = [pair[0] for pair in toy.sentences(40, seed=4)]
    lines[3] = " ".join(lines[:20])
    lines[35] = " ".join(lines[20:])
    text.write_text("".join(f"{line}\n" for line in lines))
    words = ("--model", model, *RAY)

    def load():
        return ModelFolder(SentenceEncoder.from_pretrained(model), show_progress=False)

    with connect(Cluster(count=1, shard_lines=30), load) as pool:

        @contextlib.contextmanager
        def connect_to_pool(cluster, load):
            pool.num_long = 0
            yield pool

        monkeypatch.setattr("fairseq_lxsr.cluster.connect", connect_to_pool)
        done = lxsr_here("index", *words, "--input", text, "--output", tmp_path / "index")
        assert "truncated: 2" in done.stderr
        done = lxsr_here("mine", *words, "--source", text, "--output", tmp_path / "pairs.tsv")
        assert "truncated: 2" in done.stderr
        done = lxsr_here("embed", *words, "--input", text, "--output", tmp_path / "vectors")
        assert ", 2 long, " in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_entities_are_replaced_like_on_one_machine(work, tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"The &quot;dog&quot; {number}\n" for number in range(40)))
    model = ("--model", work / "m" / "model")
    count = "now replaced by characters: 40"
    index = ("index", *model, "--input", text, "--output", tmp_path / "index")
    assert count in lxsr_here(*index, *RAY).stderr
    done = lxsr_here("search", "--index", tmp_path / "index", "--k", 1, 'The "dog" 31')
    assert done.stdout.endswith('  The "dog" 31\n')
    for name, options in (("whole.tsv", ()), ("shards.tsv", RAY)):
        mine = ("mine", *model, "--source", text, "--output", tmp_path / name)
        assert count in lxsr_here(*mine, *options).stderr
    pairs = (tmp_path / "whole.tsv").read_text()
    assert pairs == (tmp_path / "shards.tsv").read_text()
    assert "&" not in pairs
    embed = ("embed", *model, "--input", text, "--output")
    assert count in lxsr_here(*embed, tmp_path / "vectors", *RAY).stderr
    lxsr_here(*embed, tmp_path / "whole.npy")
    shards = [np.load(tmp_path / "vectors" / f"{name}.npy") for name in names(tmp_path / "vectors")]
    assert np.array_equal(np.concatenate(shards), np.load(tmp_path / "whole.npy"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_mining_without_work_folder_leaves_only_the_pairs(work, tmp_path):
    mine(work, tmp_path / "out.tsv", *RAY)
    assert [path.name for path in tmp_path.iterdir()] == ["out.tsv"]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_texts_that_cannot_be_mined_are_refused_before_any_work(work, tmp_path):
    # Of the 100 lines, some are empty or repeated.
    refused(mine(work, tmp_path / "o", *RAY, "--k", 99, check=False), "--k", "99")
    empty = tmp_path / "empty"
    empty.write_text("\n")
    refused(mine(work, tmp_path / "o", *RAY, "--source", empty, check=False), "empty: ")
    # Stored vectors of two widths cannot be compared.
    stored = tmp_path / "stored"
    stored.mkdir()
    np.save(stored / "text.en.npy", np.ones((LINES, 3), np.float32))
    np.save(stored / "text.fr.npy", np.ones((LINES, 4), np.float32))
    width = partial(width_of, StoredEmbeddings(stored))
    pool = SimpleNamespace(model="m", shard_lines=30, width_of=width)
    with pytest.raises(InputError, match=r"text\.en\b.*\b3\b.*text\.fr\b.*\b4\b"):
        mine_shards(*corpora(work), tmp_path / "o", pool)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "stored"}


def test_temporary_folders_of_killed_workers_are_removed(tmp_path):
    shard = make_shard(tmp_path / "00000", (range(1), ["a dog"]), {})
    shard.stem.mkdir()
    (tmp_path / f".{shard.stem.name}.another-host.77.abc.tmp").mkdir()
    (tmp_path / ".mine").touch()
    finish_shards(tmp_path, {}, [(shard, {})])
    assert {path.name for path in tmp_path.iterdir()} == {shard.stem.name, "shards.json", ".mine"}


def deadly(work: Path, folder: Path, times: int):
    """Return a function that loads an encoder, whose process is killed in the middle of a shard.

    It is killed that many times; each time it writes a file into FOLDER/died.
    """
    model = work / "m" / "model"
    died = folder / "died"
    died.mkdir()

    def load():
        from fairseq_lxsr.search import bitext

        bitext.ENCODE_ROWS = 10

        class Deadly(ModelFolder):
            def embed(self, text, counts=None):
                if 70 < text.rows[0] < 90 and len(list(died.iterdir())) < times:
                    (died / str(time.time_ns())).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().embed(text, counts)

        return Deadly(SentenceEncoder.from_pretrained(model), show_progress=False)

    return load


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_pairs_are_the_same_after_a_worker_was_killed(work, tmp_path):
    mine(work, tmp_path / "whole.tsv")
    with connect(Cluster(count=2, shard_lines=30), deadly(work, tmp_path, 1)) as workers:
        mine_shards(*corpora(work), tmp_path / "out.tsv", workers)
    assert len(list((tmp_path / "died").iterdir())) == 1
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_shard_on_which_three_workers_die_is_named(work, tmp_path):
    message = r"shard source-00002-\w+, lines 63 to 92 of .*text\.en: .*\b3\b"
    with (
        pytest.raises(InputError, match=message),
        connect(Cluster(count=1, shard_lines=30), deadly(work, tmp_path, 99)) as workers,
    ):
        mine_shards(*corpora(work), tmp_path / "out.tsv", workers)
    assert len(list((tmp_path / "died").iterdir())) == 3
    # Finished shards stay for a rerun.
    assert len(list((tmp_path / "out.tsv.work").glob("source-*.npy"))) >= 2


@pytest.mark.slow
def test_an_error_of_a_worker_names_the_shard(workers, tmp_path):
    def embedder(encoder):
        return encoder.embed

    with pytest.raises(InputError, match=r"^shard 0000\d-\w+, lines \d+ to \d+: .*'ball'"):
        index_shards(["a dog"] * 60, tmp_path / "i", embedder, workers, IndexOptions("ball"))
    assert not (tmp_path / "i" / "index.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_empty_text_is_refused(work, tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    options = ("--input", "-", "--output", tmp_path / "o", "--output-dtype", dtype, *RAY)
    refused(lxsr_here("embed", "--model", work / "m" / "model", *options, check=False))
    assert not (tmp_path / "o" / "shards.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_missing_model_is_refused_before_writing(work, tmp_path):
    text = "--input", work / "text.en", "--output", tmp_path / "o", "--ray", "--workers", 1
    done = lxsr_here("embed", "--model", tmp_path / "none", *text, check=False)
    refused(done, "the model: ", str(tmp_path / "none"))
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_unreachable_clusters_missing_gpus_and_full_folders_are_refused(work, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    text = "--model", work / "m" / "model", "--input", work / "text.en", "--output", tmp_path / "o"
    for options, message in (
        (("--ray", "127.0.0.1:9"), "--ray 127.0.0.1:9: "),
        (("--ray", "h:99999"), "--ray h:99999: "),
        (("--ray", "--device", "cuda"), "GPU"),
        (("--ray", "--workers", 1, "--output", tmp_path / "full"), tmp_path / "full"),
    ):
        refused(lxsr_here("embed", *text, *options, check=False), message)
    assert list(tmp_path.rglob("*")) == [tmp_path / "full", tmp_path / "full" / "mine"]


def test_options_of_ray_are_refused_without_ray(work, tmp_path, monkeypatch):
    text = "--model", work / "m" / "model", "--input", work / "text.en", "--output", tmp_path / "o"
    for options, message in (
        (("--workers", 2), "--workers 2"),
        (("--shard-lines", 2), "--shard-lines 2"),
        (("--ray", "--shard", "1/2"), "--shard"),
        (("--ray", "x"), "--ray 'x'"),
    ):
        refused(lxsr_here("embed", *text, *options, check=False), message)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    done = mine(work, tmp_path / "o", "--ray", check=False)
    refused(done, "--ray", install_command("ray"))
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_closed_after_the_end_starts_no_worker(monkeypatch):
    started = []
    killed = []

    class Actor:
        def __init__(self):
            started.append(self)
            self.run = SimpleNamespace(remote=lambda task: object())

    monkeypatch.setattr(ray, "kill", killed.append)
    monkeypatch.setattr(ray, "wait", lambda references, **options: (references[:1], references[1:]))
    monkeypatch.setattr(ray, "get", lambda reference, **options: ({}, 0.0, 0))
    workers = Workers(Actor, 2, Path())
    run = workers.run([SimpleNamespace(name="first"), SimpleNamespace(name="second")])
    next(run)
    workers.end()
    run.close()
    assert len(started) == 2
    assert set(killed) == set(started)


def test_the_progress_of_missing_shards_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    tasks = [SimpleNamespace(is_done=lambda done=done: done) for done in (False, True, False)]
    assert run_missing(tasks, SimpleNamespace(run=lambda missing: missing)) == 2
    assert re.search(r"run: 100%\|.{10}\| 2/2 ", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_benchmark_has_the_same_results_with_and_without_ray(work, tmp_path):
    from benchmarks.speed import cluster

    # Workers cannot import benchmarks/.
    ray.cloudpickle.register_pickle_by_value(cluster)
    text = ["--source", str(work / "text.en"), "--target", str(work / "text.fr")]
    options = ["--lines", "60", "--workers", "1", "--output", str(tmp_path / "o.json")]
    cluster.main(["--model", str(work / "m" / "model"), *text, *options])
    rows = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert len(rows) == 6
    assert len({(row["verb"], row["result"]) for row in rows}) == 3


def damaged_versions(path: Path) -> list[bytes]:
    """Return the content of a file cut off, empty, and with a flipped bit."""
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 4
    return [content[: len(content) // 2], b"", bytes(flipped)]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("verb", "names_of"), [(embed, names), (index, segment_names)])
def test_a_damaged_shard_is_made_again(work, tmp_path, verb, names_of):
    verb(work, tmp_path / "o", *RAY)
    shard = names_of(tmp_path / "o")[1]
    contents = {}
    for path in (tmp_path / "o").rglob("*"):
        if shard in str(path) and path.is_file():
            contents[path] = path.read_bytes()
    for path in contents:
        for content in damaged_versions(path):
            path.write_bytes(content)
            done = verb(work, tmp_path / "o", *RAY)
            count = len(names_of(tmp_path / "o"))
            assert shards_done(done) == (count, count - 1)
            assert shard in done.stderr
            # Of an index, segment.json has the times.
            changed = {file.name for file in contents if file.read_bytes() != contents[file]}
            assert changed <= {"segment.json"}


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("kind", ["flat", "binary"])
def test_damaged_files_of_the_work_folder_are_made_again(work, tmp_path, kind):
    options = ("--work", tmp_path / "work", "--kind", kind, "--k", 3)
    mine(work, tmp_path / "o.tsv", *options, *RAY)
    expected = (tmp_path / "o.tsv").read_bytes()
    for path in sorted((tmp_path / "work").glob("source-00001-*")):
        for content in damaged_versions(path):
            path.write_bytes(content)
            done = mine(work, tmp_path / "o.tsv", *options, *RAY)
            assert (tmp_path / "o.tsv").read_bytes() == expected
            assert path.stem.split(".")[0] in done.stderr or path.suffix == ".txt"
            assert path.read_bytes() != content


@pytest.mark.slow
def test_damaged_rows_of_a_killed_worker_are_embedded_again(work, workers, tmp_path):
    def embedder(encoder, first):
        return lambda lines, counts: encoder.embed(Text(lines), counts)

    embedding = Embedding(Layout("npy", "float32", 32), {"model": workers.model}, embedder)
    lines = [line for line, _ in toy.sentences(LINES, seed=4)]
    embed_shards(lines, tmp_path / "o", embedding, workers)
    path = tmp_path / "o" / f"{names(tmp_path / 'o')[1]}.npy"
    content = path.read_bytes()
    # Progress of 30 lines with a wrong checksum, and rows that are cut off.
    partial_content = content[:1000] + bytes(len(content) - 1000)
    path.with_name(f"{path.name}.partial").write_bytes(partial_content)
    layout = {"format": "npy", "dtype": "float32", "dimension": 32, "first_line": 31}
    progress = Record({**embedding.settings, **layout}, {"lines": 30, "crc32": 7})
    progress.write(path.with_name(f"{path.name}.progress"))
    path.unlink()
    embed_shards(lines, tmp_path / "o", embedding, workers)
    assert path.read_bytes() == content


def test_a_cluster_without_machines_is_refused_in_one_line(monkeypatch):
    """Ray would wait for a machine for ever."""
    waits = []

    def wait(references, timeout):
        waits.append(timeout)
        return [], references

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    actor = SimpleNamespace(run=SimpleNamespace(remote=lambda task: object()))
    workers = Workers(lambda: actor, 1, Path.cwd())
    alive = iter([[True, False], [False, True], [False, False]])
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": is_alive} for is_alive in next(alive)])
    with pytest.raises(InputError, match="--ray: no machine of the cluster is left"):
        workers.load()
    assert len(waits) == 3


def test_a_cluster_that_does_not_start_is_refused_in_one_line(monkeypatch):
    def init(*arguments, **options):
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    message = "--ray local: .*timed out during startup"
    with pytest.raises(InputError, match=message), connect(Cluster(), lambda: None):
        pass


def test_notices_of_ray_are_not_shown(monkeypatch, capfd):
    from ray._private import worker

    from fairseq_lxsr.cluster.workers import silence_notices

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    silence_notices()
    notice = {"lines": ["The node has been marked dead"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(notice, ignore_prefix=False)
    assert capfd.readouterr() == ("", "")
