"""An index in shards: what one index of the whole corpus finds, to the last bit."""

import json
import shutil

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex, ShardedIndex, open_index
from fairseq_lxsr.search.index_folder import IndexFolder

RNG = np.random.default_rng(3)
VECTORS = RNG.standard_normal((300, 16)).astype(np.float32)
VECTORS[100:110] = VECTORS[250:255] = VECTORS[7]  # ties within a shard and across shards
LINES = ["" if number % 50 == 3 else f"line  {number}" for number in range(300)]
QUERIES = [f"line {number}" for number in (7, 0, 104, 299, 150)]


def encode(text):
    return np.stack([VECTORS[int(line.split()[1])] for line in text])


def write_shards(folder, cuts=(0, 90, 97, 300), kind="flat", models=("model",) * 3):
    names = [f"shard{start}" for start in cuts[:-1]]
    for name, start, stop, model in zip(names, cuts[:-1], cuts[1:], models, strict=True):
        CorpusIndex.build(folder / name, LINES[start:stop], encode, model, kind, first=start)
    (folder / "shards.json").write_text(
        json.dumps({"version": 1, "shards": [{"name": name} for name in names]})
    )
    return folder


@pytest.mark.parametrize("k", [1, 5, 12, 294])
def test_finds_what_one_index_finds(tmp_path, k):
    whole = CorpusIndex.build(tmp_path / "whole", LINES, encode, "model")
    sharded = open_index(write_shards(tmp_path / "sharded"))
    assert type(open_index(tmp_path / "whole")) is CorpusIndex
    assert isinstance(sharded, ShardedIndex)
    assert (len(sharded), sharded.fingerprint) == (len(whole), "model")
    assert sharded.search(QUERIES, encode, k) == whole.search(QUERIES, encode, k)
    embeddings = encode(QUERIES)
    with pytest.raises(InputError, match=r"k is 295; .*294"):
        sharded.neighbours(embeddings, 295)
    for one, other in zip(
        sharded.neighbours(embeddings, k), whole.neighbours(embeddings, k), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_search_in_a_part_and_edits(tmp_path):
    whole = CorpusIndex.build(tmp_path / "whole", LINES, encode, "model")
    sharded = open_index(write_shards(tmp_path / "sharded"))
    assert sharded.ids == whole.ids
    for where in ([8, 1, "300", "4"], [], lambda name: name.endswith("1")):
        hits = sharded.search(QUERIES, encode, 294, where=where)
        assert hits == whole.search(QUERIES, encode, 294, where=where)
    edits = (
        lambda: sharded.add(LINES[:1]),
        lambda: sharded.update(["1"], LINES[:1]),
        lambda: sharded.delete(["1"]),
        lambda: sharded.compact(),
    )
    for edit in edits:
        with pytest.raises(InputError, match=r"sharded is an index of 3 shards.*--ray"):
            edit()
    assert sharded.is_current()
    CorpusIndex.load(tmp_path / "sharded" / "shard90").delete(["92"])
    assert not sharded.is_current()
    edited = open_index(tmp_path / "sharded")
    assert edited.ids == [name for name in whole.ids if name != "92"]
    full = whole.search(QUERIES, encode, 294)
    expected = [[hit for hit in hits if hit.line != 91] for hits in full]
    assert edited.search(QUERIES, encode, 294) == expected


def test_ties_are_in_the_order_of_the_corpus_and_every_kind_has_the_nearest(tmp_path):
    hits = open_index(write_shards(tmp_path / "ties")).search(QUERIES[:1], encode, 16)[0]
    assert [hit.line for hit in hits][:14] == [
        7,
        100,
        101,
        102,
        *range(104, 110),
        250,
        251,
        252,
        254,
    ]
    assert hits[0].sentence == "line 7"
    for kind in set(INDEX_KINDS) - {"ivf-pq"}:  # which needs 256 vectors in a shard
        hits = open_index(write_shards(tmp_path / kind, (0, 100, 200, 300), kind)).search(
            QUERIES[1:2], encode, 1
        )[0]
        assert (hits[0].line, hits[0].sentence) == (0, "line 0")


def test_shards_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"mixed: .*model"):
        open_index(write_shards(tmp_path / "mixed", models=("model", "model", "other")))
    folder = write_shards(tmp_path / "sharded")
    manifest = folder / "shards.json"
    bad = (
        "[]",
        "{",
        '{"version": 2, "shards": []}',
        '{"version": 1, "shards": []}',
        '{"version": 1, "shards": [{}]}',
    )
    for text in (
        *bad,
        '{"version": 1, "shards": [{"name": "../x"}]}',
        '{"version": 1, "shards": [{"name": 3}]}',
    ):
        manifest.write_text(text)
        with pytest.raises(InputError, match=r"shards\.json: "):
            open_index(folder)
    manifest.write_text('{"version": 1, "shards": [{"name": "gone"}]}')
    with pytest.raises(InputError, match="gone: not an index"):
        open_index(folder)


def test_shards_that_are_replaced_while_they_are_loaded_are_those_of_one_list(
    tmp_path, monkeypatch
):
    folder, read, seen = write_shards(tmp_path / "sharded"), IndexFolder._open, []

    def replace_then_read(path):
        seen.append(path.name)
        if len(seen) == 2:
            write_shards(folder, cuts=(0, 150, 300), models=("model",) * 2)
            for name in ("shard90", "shard97"):
                shutil.rmtree(folder / name)
        return read(path)

    monkeypatch.setattr(IndexFolder, "_open", replace_then_read)
    index = open_index(folder)
    assert seen[-2:] == ["shard0", "shard150"]
    assert [hits[0].sentence for hits in index.search(QUERIES[:2], encode, 1)] == [
        "line 7",
        "line 0",
    ]
