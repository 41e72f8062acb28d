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

# Lines of a text. A shard has 30, so a text has 4 shards, and both texts in one have 7.
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
        # Line 6 is empty.
        lines[5] = ""
        # Lines 41 and 98 repeat lines of another shard, one of them with a space.
        lines[40] = lines[3]
        lines[-3] = f" {lines[2]}"
        (folder / f"text.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def embed(work, output, *options):
    """Embed both texts, one after the other."""
    files = ("--input", work / "text.en", work / "text.fr", "--output", output)
    return lxsr_here("embed", "--model", work / "m" / "model", *files, *options)


def mine(work, output, *options, check=True):
    """Mine pairs of the English and the French text."""
    files = ("--source", work / "text.en", "--target", work / "text.fr", "--output", output)
    return lxsr_here("mine", "--model", work / "m" / "model", *files, *options, check=check)


def index(work, output, *options, check=True):
    """Index the French text."""
    files = ("--input", work / "text.fr", "--output", output)
    return lxsr_here("index", "--model", work / "m" / "model", *files, *options, check=check)


def corpora(work) -> list[Corpus]:
    return [Corpus(work / f"text.{name}", "", LINES) for name in ("en", "fr")]


def shards_done(done) -> tuple[int, int]:
    """Return the number of shards of a run, and of those that an earlier run had finished."""
    match = re.search(r"\b(\d+) shards(?: \((\d+) )?", done.stdout)
    return int(match[1]), int(match[2] or 0)


def times_of_shards(folder: Path) -> dict[str, int]:
    """Return when the embeddings of each shard were written, by its name."""
    return {name: (folder / f"{name}.npy").stat().st_mtime_ns for name in shard_names(folder)}


def shard_names(folder: Path) -> list[str]:
    return [shard["name"] for shard in json.loads((folder / "shards.json").read_text())["shards"]]


def segment_names(folder: Path) -> list[str]:
    return [segment["folder"] for segment in read_config(folder)["segments"]]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_shards_of_a_text_have_the_embeddings_of_one_machine_in_its_order(
    work, tmp_path, dtype
):
    options = ("--format", "raw", "--output-dtype", dtype)
    embed(work, tmp_path / "whole.raw", *options)

    result = embed(work, tmp_path / "shards", *options, *RAY)

    assert re.search(r"\b200 .*\b32\b", result.stdout)
    assert shards_done(result) == (7, 0)
    files = [tmp_path / "shards" / f"{name}.raw" for name in shard_names(tmp_path / "shards")]
    # Six full shards and the last one.
    sizes = [path.stat().st_size for path in files]
    assert sizes == sorted(sizes, reverse=True)
    # On one machine, int8 is calibrated by other lines.
    if dtype == "float32":
        content = b"".join(path.read_bytes() for path in files)
        assert content == (tmp_path / "whole.raw").read_bytes()
    # All shards have the calibration of the first one, or none.
    calibrations = [json.loads(index_path(path).read_text()).get("calibration") for path in files]
    assert all(calibration == calibrations[0] for calibration in calibrations)
    # The text of the shards is removed.
    assert {path.suffix for path in (tmp_path / "shards").iterdir()} == {".raw", ".json", ""}


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_rerun_of_embed_makes_only_the_missing_shard(work, tmp_path):
    output = tmp_path / "o"
    embed(work, output, *RAY)
    before = times_of_shards(output)
    missing = shard_names(output)[3]
    (output / f"{missing}.npy").unlink()

    result = embed(work, output, *RAY)

    assert shards_done(result) == (7, 6)
    after = times_of_shards(output)
    assert {name for name in after if after[name] != before[name]} == {missing}


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_rerun_of_embed_with_other_settings_replaces_all_shards(work, tmp_path):
    output = tmp_path / "o"
    embed(work, output, *RAY)
    names_before = set(shard_names(output))

    result = embed(work, output, *RAY, "--normalize")

    assert shards_done(result) == (7, 0)
    # They have other names, and the old ones are removed.
    assert not set(shard_names(output)) & names_before
    assert len(list(output.glob("*.npy"))) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_folder_of_embedded_shards_is_refused_as_an_index_and_not_changed(work, tmp_path):
    embed(work, tmp_path / "o", *RAY)
    files = sorted(tmp_path.rglob("*"))

    result = index(work, tmp_path / "o", *RAY, check=False)

    refused(result, "/o exists")
    assert sorted(tmp_path.rglob("*")) == files


def search_and_score(work, folder) -> tuple[list[str], str]:
    """Search an index for each line of the English text, and score pairs by margins against it.

    Returns:
        The rows of the results, and the scores.
    """
    hits = folder.with_suffix(".tsv")
    search = ("--input", work / "text.en", "--output", hits, "--k", 5)
    lxsr_here("search", "--index", folder, *search)
    pairs = folder.with_suffix(".pairs.tsv")
    rows = [f"{source}\t{target}\n" for source, target in toy.sentences(20, seed=4)]
    pairs.write_text("".join(rows))
    score = ("score", "--model", work / "m" / "model", "--input", pairs, "--margin", "ratio")
    return hits.read_text().splitlines(), lxsr_here(*score, "--index", folder, folder).stdout


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("options", [("--plain",), ()], ids=["plain", "words"])
def test_an_index_of_shards_has_the_results_and_scores_of_one_machine(work, tmp_path, options):
    index(work, tmp_path / "whole", "--kind", "flat", *options)

    result = index(work, tmp_path / "shards", "--kind", "flat", *options, *RAY)

    # One of the 100 lines is empty.
    assert re.search(r"\bflat\b.*\b99\b", result.stdout)
    results = search_and_score(work, tmp_path / "shards")
    assert results == search_and_score(work, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_an_index_of_rounded_shards_finds_lines_of_the_text(work, tmp_path):
    """The calibration of int8 depends on the shards, so its results may be others."""
    result = index(work, tmp_path / "shards", "--kind", "int8", "--plain", *RAY)

    assert re.search(r"\bint8\b.*\b99\b", result.stdout)
    hits, _ = search_and_score(work, tmp_path / "shards")
    # Columns: query, score, line of the text, sentence.
    lines = [int(hit.split("\t")[2]) for hit in hits]
    assert set(lines) <= set(range(1, LINES + 1))


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "options",
    [("--kind", "flat", "--plain"), ("--kind", "int8", "--plain"), ("--kind", "flat")],
    ids=["flat", "int8", "words"],
)
def test_a_rerun_of_index_makes_no_finished_shard_again(work, tmp_path, options):
    index(work, tmp_path / "o", *options, *RAY)

    result = index(work, tmp_path / "o", *options, *RAY)

    assert shards_done(result) == (4, 4)


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_mined_pairs_equal_those_of_one_machine(work, tmp_path):
    options = ("--retrieval", "all", "--kind", "flat", "--k", 3)
    mine(work, tmp_path / "whole.tsv", *options)

    mine(work, tmp_path / "shards.tsv", *options, *RAY)

    assert (tmp_path / "shards.tsv").read_text() == (tmp_path / "whole.tsv").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("kind", ["flat", "binary"])
def test_a_rerun_of_mine_makes_only_what_other_settings_need(work, tmp_path, kind):
    options = ("--retrieval", "all", "--kind", kind, *RAY, "--work", tmp_path / "work")

    first = mine(work, tmp_path / "o.tsv", *options, "--k", 3)
    num_pairs = len((tmp_path / "o.tsv").read_text().splitlines())
    same = mine(work, tmp_path / "o.tsv", *options, "--k", 3)
    other_k = mine(work, tmp_path / "o.tsv", *options, "--k", 2)

    # More than two pairs for each of about 100 lines.
    assert num_pairs > 200
    # Each of the two texts has four shards, which are embedded, and then searched.
    assert shards_done(first) == (8, 0)
    assert shards_done(same) == (8, 16)
    # Another k needs other neighbours of the same embeddings.
    assert shards_done(other_k) == (8, 8)


@pytest.fixture
def mine_one_text(work, tmp_path):
    """The command that mines pairs within one text, which has the English and the French lines."""
    text = tmp_path / "text"
    english = (work / "text.en").read_text(encoding="utf-8")
    french = (work / "text.fr").read_text(encoding="utf-8")
    text.write_text(english + french)
    return ("mine", "--model", work / "m" / "model", "--source", text, "--k", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("is_target", [False, True], ids=["source", "source and target"])
def test_pairs_within_one_text_equal_those_of_one_machine(tmp_path, mine_one_text, is_target):
    target = ("--target", tmp_path / "text") if is_target else ()
    lxsr_here(*mine_one_text, "--output", tmp_path / "whole.tsv")

    lxsr_here(*mine_one_text, *target, "--output", tmp_path / "shards.tsv", *RAY)

    pairs = (tmp_path / "shards.tsv").read_text()
    assert pairs == (tmp_path / "whole.tsv").read_text()
    # No sentence is paired with itself.
    for row in pairs.splitlines():
        _, source, target_sentence = row.split("\t")
        assert source != target_sentence


@pytest.mark.slow
def test_a_language_pair_is_refused_for_pairs_within_one_text(tmp_path, mine_one_text):
    options = ("--lang-pair", "en-fr", "--output", tmp_path / "o")

    refused(lxsr_here(*mine_one_text, *options, check=False), "--lang-pair en-fr", "--target")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_texts_that_are_longer_than_the_model_can_read_are_counted(tmp_path, monkeypatch):
    """Two of the 40 lines are longer than the 64 positions of a model with layers.

    They are in different shards.
    """
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
def test_index_replaces_entities_in_all_shards(work, tmp_path, escaped_text):
    model = ("--model", work / "m" / "model")
    output = ("--output", tmp_path / "index")

    result = lxsr_here("index", *model, "--input", escaped_text, *output, *RAY)

    assert ALL_REPLACED in result.stderr
    # It is in the second shard.
    search = lxsr_here("search", "--index", tmp_path / "index", "--k", 1, 'The "dog" 31')
    assert search.stdout.endswith('  The "dog" 31\n')


@pytest.fixture
def escaped_text(tmp_path):
    """A text of 40 lines, all with HTML entities."""
    text = tmp_path / "text"
    text.write_text("".join(f"The &quot;dog&quot; {number}\n" for number in range(40)))
    return text


ALL_REPLACED = "now replaced by characters: 40"


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_mine_replaces_entities_as_on_one_machine(work, tmp_path, escaped_text):
    mine = ("mine", "--model", work / "m" / "model", "--source", escaped_text, "--output")

    whole = lxsr_here(*mine, tmp_path / "whole.tsv")
    shards = lxsr_here(*mine, tmp_path / "shards.tsv", *RAY)

    assert ALL_REPLACED in whole.stderr
    assert ALL_REPLACED in shards.stderr
    pairs = (tmp_path / "shards.tsv").read_text()
    assert pairs == (tmp_path / "whole.tsv").read_text()
    assert "&" not in pairs


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_embed_replaces_entities_as_on_one_machine(work, tmp_path, escaped_text):
    embed = ("embed", "--model", work / "m" / "model", "--input", escaped_text, "--output")
    output = tmp_path / "shards"
    lxsr_here(*embed, tmp_path / "whole.npy")

    result = lxsr_here(*embed, output, *RAY)

    assert ALL_REPLACED in result.stderr
    shards = [np.load(output / f"{name}.npy") for name in shard_names(output)]
    assert np.array_equal(np.concatenate(shards), np.load(tmp_path / "whole.npy"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_mining_without_a_work_folder_leaves_only_the_pairs(work, tmp_path):
    mine(work, tmp_path / "out.tsv", *RAY)

    assert [path.name for path in tmp_path.iterdir()] == ["out.tsv"]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_more_neighbours_than_there_are_sentences_are_refused_before_any_work(work, tmp_path):
    # Of the 100 lines, one is empty and two are repeated.
    refused(mine(work, tmp_path / "o", *RAY, "--k", 99, check=False), "--k", "99")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_text_without_sentences_is_refused_before_any_work(work, tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")

    refused(mine(work, tmp_path / "o", *RAY, "--source", empty, check=False), "empty: ")
    assert list(tmp_path.iterdir()) == [empty]


def test_stored_vectors_of_different_widths_are_refused_before_any_work(work, tmp_path):
    stored = tmp_path / "stored"
    stored.mkdir()
    np.save(stored / "text.en.npy", np.ones((LINES, 3), np.float32))
    np.save(stored / "text.fr.npy", np.ones((LINES, 4), np.float32))
    width = partial(width_of, StoredEmbeddings(stored))
    pool = SimpleNamespace(model="m", shard_lines=30, width_of=width)
    with pytest.raises(InputError, match=r"text\.en\b.*\b3\b.*text\.fr\b.*\b4\b"):
        mine_shards(*corpora(work), tmp_path / "o", pool)
    assert list(tmp_path.iterdir()) == [stored]


def test_temporary_folders_of_killed_workers_are_removed_and_other_hidden_files_kept(tmp_path):
    shard = make_shard(tmp_path / "00000", (range(1), ["a dog"]), {})
    shard.stem.mkdir()
    (tmp_path / f".{shard.stem.name}.another-host.77.abc.tmp").mkdir()
    (tmp_path / ".mine").touch()

    finish_shards(tmp_path, {}, [(shard, {})])

    assert {path.name for path in tmp_path.iterdir()} == {shard.stem.name, "shards.json", ".mine"}


def killed_encoder_loader(work: Path, folder: Path, times: int):
    """Return a function that loads an encoder, whose process is killed in the middle of a shard.

    It is killed that many times, between lines 70 and 90; each time it writes a file into
    FOLDER/died.
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
def test_mined_pairs_are_the_same_if_a_worker_is_killed(work, tmp_path):
    mine(work, tmp_path / "whole.tsv")
    load = killed_encoder_loader(work, tmp_path, times=1)

    with connect(Cluster(count=2, shard_lines=30), load) as workers:
        mine_shards(*corpora(work), tmp_path / "out.tsv", workers)

    assert len(list((tmp_path / "died").iterdir())) == 1
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.fixture(scope="module")
def failed_mining(work, cluster, tmp_path_factory):
    """The folder of a mining whose workers were all killed on the third shard, and its error."""
    folder = tmp_path_factory.mktemp("failed")
    more_often_than_it_is_tried = 99
    load = killed_encoder_loader(work, folder, times=more_often_than_it_is_tried)
    with (
        pytest.raises(InputError) as caught,
        connect(Cluster(count=1, shard_lines=30), load) as workers,
    ):
        mine_shards(*corpora(work), folder / "out.tsv", workers)
    return folder, str(caught.value)


@pytest.mark.slow
def test_a_shard_is_given_up_after_three_workers_were_killed_on_it(failed_mining):
    folder, _ = failed_mining

    assert len(list((folder / "died").iterdir())) == 3


@pytest.mark.slow
def test_the_error_names_the_shard_that_was_given_up_its_lines_and_the_number_of_tries(
    failed_mining,
):
    """A shard has 30 sentences. Without line 6, which is empty, the first one has lines 1 to 31.

    Without line 41, which is repeated, the second one has lines 32 to 62. The third one has none
    to leave out: its 30 lines are 63 to 92.
    """
    _, message = failed_mining

    assert re.search(
        r"shard source-00002-\w+, lines 63 to 92 of .*text\.en: failed 3 times\b", message
    )


@pytest.mark.slow
def test_shards_that_were_finished_before_the_error_stay_for_a_rerun(failed_mining):
    folder, _ = failed_mining

    # A single worker has finished the first two shards before the third.
    assert len(list((folder / "out.tsv.work").glob("source-*.npy"))) >= 2


@pytest.mark.slow
def test_an_error_of_a_worker_names_the_shard_and_leaves_no_index(workers, tmp_path):
    def embedder(encoder):
        return encoder.embed

    # There is no kind of index with the name `ball`.
    with pytest.raises(InputError, match=r"^shard 0000\d-\w+, lines \d+ to \d+: .*'ball'"):
        index_shards(["a dog"] * 60, tmp_path / "i", embedder, workers, IndexOptions("ball"))
    assert not (tmp_path / "i" / "index.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_empty_standard_input_is_refused_and_leaves_no_shards(
    work, tmp_path, dtype, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    options = ("--input", "-", "--output", tmp_path / "o", "--output-dtype", dtype, *RAY)
    refused(lxsr_here("embed", "--model", work / "m" / "model", *options, check=False))
    assert not (tmp_path / "o" / "shards.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_missing_model_is_refused_and_no_folder_made(work, tmp_path):
    text = "--input", work / "text.en", "--output", tmp_path / "o", "--ray", "--workers", 1
    done = lxsr_here("embed", "--model", tmp_path / "none", *text, check=False)
    refused(done, "the model: ", str(tmp_path / "none"))
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        # No Ray answers at this port, or at a port of this number.
        (("--ray", "127.0.0.1:9"), "--ray 127.0.0.1:9: "),
        (("--ray", "h:99999"), "--ray h:99999: "),
        (("--ray", "--device", "cuda"), "GPU"),
    ],
    ids=["no Ray", "no port", "no GPU"],
)
def test_a_cluster_that_cannot_be_used_is_refused_and_no_folder_made(
    work, tmp_path, options, message
):
    result = embed_english(work, tmp_path / "o", *options)

    refused(result, message)
    assert list(tmp_path.iterdir()) == []


def embed_english(work, output, *options):
    """Embed the English text, which is to be refused."""
    text = ("--model", work / "m" / "model", "--input", work / "text.en", "--output", output)
    return lxsr_here("embed", *text, *options, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_folder_with_a_file_of_the_user_is_refused_as_output_and_kept(work, tmp_path):
    (tmp_path / "mine").touch()

    result = embed_english(work, tmp_path, "--ray", "--workers", 1)

    refused(result, tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", 2), "--workers 2"),
        (("--shard-lines", 2), "--shard-lines 2"),
        (("--ray", "--shard", "1/2"), "--shard"),
        # Not an address, which has a port.
        (("--ray", "x"), "--ray 'x'"),
    ],
    ids=["workers", "lines", "shard", "address"],
)
def test_options_of_a_cluster_that_cannot_be_used_are_refused(work, tmp_path, options, message):
    refused(embed_english(work, tmp_path / "o", *options), message)
    assert list(tmp_path.iterdir()) == []


def test_the_error_for_a_missing_package_ray_says_how_to_install_it(work, tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)

    result = mine(work, tmp_path / "o", "--ray", check=False)

    refused(result, "--ray", install_command("ray"))
    assert list(tmp_path.iterdir()) == []


def test_workers_that_end_during_a_run_are_killed_and_not_started_again(monkeypatch):
    """Ray is replaced by actors that finish each task at once."""
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

    # Both workers at the beginning, and none after the end.
    assert len(started) == 2
    assert set(killed) == set(started)


def test_the_progress_counts_only_shards_that_are_not_done(monkeypatch, capsys):
    # Progress is shown as on a terminal.
    monkeypatch.setattr("fairseq_lxsr.files.progress.can_overwrite", lambda: True)
    tasks = [SimpleNamespace(is_done=lambda done=done: done) for done in (False, True, False)]
    workers = SimpleNamespace(run=lambda missing: missing)

    num_missing = run_missing(tasks, workers)

    # Of the three shards, one is done. The progress has a bar of ten characters.
    assert num_missing == 2
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
    # Three verbs, each with and without Ray, and one result of each verb.
    assert len(rows) == 6
    assert len({row["verb"] for row in rows}) == 3
    assert len({(row["verb"], row["result"]) for row in rows}) == 3


def damaged_versions(path: Path) -> list[bytes]:
    """Return the content of a file cut off, empty, and with a flipped bit."""
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 4
    return [content[: len(content) // 2], b"", bytes(flipped)]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("verb", "names_of"), [(embed, shard_names), (index, segment_names)], ids=["embed", "index"]
)
def test_a_rerun_names_a_damaged_shard_and_makes_only_it_again(work, tmp_path, verb, names_of):
    verb(work, tmp_path / "o", *RAY)
    names = names_of(tmp_path / "o")
    shard = names[1]
    contents = {}
    for path in (tmp_path / "o").rglob("*"):
        if shard in str(path) and path.is_file():
            contents[path] = path.read_bytes()

    for path in contents:
        for content in damaged_versions(path):
            path.write_bytes(content)

            result = verb(work, tmp_path / "o", *RAY)

            assert shards_done(result) == (len(names), len(names) - 1)
            assert shard in result.stderr
            # Of an index, segment.json has the times.
            changed = {file.name for file in contents if file.read_bytes() != contents[file]}
            assert changed <= {"segment.json"}


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("kind", ["flat", "binary"])
def test_mine_makes_damaged_files_of_its_work_folder_again_and_has_the_same_pairs(
    work, tmp_path, kind
):
    options = ("--work", tmp_path / "work", "--kind", kind, "--k", 3)
    mine(work, tmp_path / "o.tsv", *options, *RAY)
    expected = (tmp_path / "o.tsv").read_bytes()
    for path in sorted((tmp_path / "work").glob("source-00001-*")):
        for content in damaged_versions(path):
            path.write_bytes(content)

            result = mine(work, tmp_path / "o.tsv", *options, *RAY)

            assert (tmp_path / "o.tsv").read_bytes() == expected
            assert path.read_bytes() != content
            # The damaged shard is named, except for its text.
            shard = path.name.split(".")[0]
            assert shard in result.stderr or path.suffix == ".txt"


@pytest.mark.slow
def test_damaged_rows_of_a_killed_worker_are_embedded_again(workers, tmp_path):
    def embedder(encoder, first):
        return lambda lines, counts: encoder.embed(Text(lines), counts)

    embedding = Embedding(Layout("npy", "float32", 32), {"model": workers.model}, embedder)
    lines = [line for line, _ in toy.sentences(LINES, seed=4)]
    embed_shards(lines, tmp_path / "o", embedding, workers)
    # The second shard, which begins with line 31.
    path = tmp_path / "o" / f"{shard_names(tmp_path / 'o')[1]}.npy"
    content = path.read_bytes()
    # What a killed worker leaves: rows that are zero after the first 1,000 bytes, and progress of
    # all 30 lines with a checksum that is not theirs.
    partial_content = content[:1000] + bytes(len(content) - 1000)
    path.with_name(f"{path.name}.partial").write_bytes(partial_content)
    layout = {"format": "npy", "dtype": "float32", "dimension": 32, "first_line": 31}
    progress = Record({**embedding.settings, **layout}, {"lines": 30, "crc32": 7})
    progress.write(path.with_name(f"{path.name}.progress"))
    path.unlink()

    embed_shards(lines, tmp_path / "o", embedding, workers)

    assert path.read_bytes() == content


def test_a_run_is_refused_once_no_machine_of_the_cluster_is_left(monkeypatch):
    """Ray would wait for a machine for ever. It is replaced by one whose tasks never end."""
    waits = []

    def wait(references, timeout):
        waits.append(timeout)
        return [], references

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    actor = SimpleNamespace(run=SimpleNamespace(remote=lambda task: object()))
    workers = Workers(lambda: actor, 1, Path.cwd())
    # After each wait: which of the two machines is alive.
    alive = iter([[True, False], [False, True], [False, False]])
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": is_alive} for is_alive in next(alive)])

    with pytest.raises(InputError, match="--ray: no machine of the cluster is left"):
        workers.load()

    assert len(waits) == 3


def test_the_first_line_of_the_error_of_a_cluster_that_does_not_start_is_shown(monkeypatch):
    def init(*arguments, **options):
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    message = "--ray local: .*timed out during startup"

    with pytest.raises(InputError, match=message) as caught, connect(Cluster(), lambda: None):
        pass

    assert "More" not in str(caught.value)


def test_notices_of_ray_are_not_shown(monkeypatch, capfd):
    from ray._private import worker

    from fairseq_lxsr.cluster.workers import silence_notices

    # Restore the function of Ray, which the package replaces, at the end of the test.
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    silence_notices()
    notice = {"lines": ["The node has been marked dead"], "pid": "raylet", "is_err": False}

    worker.print_to_stdstream(notice, ignore_prefix=False)

    assert capfd.readouterr() == ("", "")
