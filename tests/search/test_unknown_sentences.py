"""A sentence without a known word is no hit and in no pair; it scores 0, and is counted."""

import re

import numpy as np
import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.embeddings import load
from fairseq_lxsr.search import CorpusIndex, Mining, Side, mine_files
from fairseq_lxsr.search.bitext import find_neighbours, searcher
from fairseq_lxsr.search.pairs import PairEncoder, score_pairs
from fairseq_lxsr.vectors import merge_neighbours, mine, normalise_rows
from fairseq_lxsr.vectors.neighbours import shift_ids

ENGLISH = [
    "The cat sleeps on the sofa.",
    "I like tea.",
    "He is in Paris today.",
    "We have two children.",
    "It rains.",
]
FRENCH = [
    "Le chat dort sur le canapé.",
    "J'aime le thé.",
    "Il est à Paris aujourd'hui.",
    "Nous avons deux enfants.",
]
UNKNOWN = ["გამარჯობა", "🚀", "Բարեւ ձեզ", "\u00ad", "\ue000!", "வணக்கம்"]


@pytest.fixture(scope="module")
def encoder():
    return load("lxsr-static")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "en").write_text(
        "\n".join([*UNKNOWN[:3], *ENGLISH, *UNKNOWN]) + "\n", encoding="utf-8"
    )
    (tmp_path / "fr").write_text(
        "\n".join([*FRENCH, *UNKNOWN[2:], "ខ្មែរ"]) + "\n", encoding="utf-8"
    )
    (tmp_path / "known.en").write_text("\n".join(ENGLISH) + "\n")
    (tmp_path / "known.fr").write_text("\n".join(FRENCH) + "\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["flat", "int8", "binary"])
@pytest.mark.parametrize(
    ("retrieval", "rerank"), [("max", 0), ("fwd", 0), ("all", 0), ("intersect", 0), ("max", 4)]
)
def test_it_is_in_no_pair_and_changes_no_other(encoder, files, kind, retrieval, rerank, capsys):
    if rerank and kind != "flat":
        pytest.skip("reranks what any kind finds")
    options = Mining(k=2, kind=kind, retrieval=retrieval, rerank=rerank)

    def mined(one, other):
        sides = [Side(files / name, encoder) for name in (one, other)]
        mine_files(*sides, files / "out.tsv", options=options)
        lines = (files / "out.tsv").read_text(encoding="utf-8").splitlines()
        return {tuple(pair): float(score) for score, *pair in (line.split("\t") for line in lines)}

    found, expected = mined("en", "fr"), mined("known.en", "known.fr")
    if kind == "flat" or retrieval == "max":
        assert found.keys() == expected.keys() != set()
    for pair, score in found.items():
        assert score == pytest.approx(
            expected.get(pair, score), abs=1e-6 if kind == "flat" else 0.05
        )
        assert not set(pair) & set(UNKNOWN)
    messages = capsys.readouterr().err.splitlines()
    (source_message,) = [line for line in messages if "source" in line]
    (target_message,) = [line for line in messages if "target" in line]
    assert re.findall(r"\d+", source_message) == ["5", "10"]
    assert re.findall(r"\d+", target_message) == ["4", "8"]


def test_it_is_in_no_pair_of_arrays_or_within_one_text(encoder, files):
    mine_files(
        Side(files / "en", encoder), None, files / "out.tsv", options=Mining(k=3, retrieval="all")
    )
    for line in (files / "out.tsv").read_text(encoding="utf-8").splitlines():
        assert not set(line.split("\t")) & set(UNKNOWN)
    rows = np.eye(5, dtype=np.float32)[[0, 1, 2]] + 0.1
    zeros = np.zeros((2, 5), dtype=np.float32)
    for retrieval in ("max", "fwd", "bwd", "intersect", "all"):
        pairs = mine(
            np.concatenate([zeros, rows]), np.concatenate([rows, zeros]), 3, retrieval=retrieval
        )
        assert set(pairs.source) == {2, 3, 4}
        assert set(pairs.target) == {0, 1, 2}


def test_it_is_no_hit_and_finds_nothing(encoder, files, tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index",
        (files / "en").read_text().splitlines(),
        encoder.embed,
        "model",
        plain=True,
    )
    assert len(index) == len(ENGLISH)
    hits = index.search(["🚀", "Le chat dort.", *UNKNOWN, "J'aime le thé"], encoder.embed, k=10)
    assert [len(found) for found in hits] == [0, 5, *(0 for _ in UNKNOWN), 5]
    assert (hits[1][0].sentence, hits[1][0].line) == (ENGLISH[0], 3)
    assert hits[-1][0].sentence == ENGLISH[1]


def test_it_scores_nothing(encoder):
    encode = PairEncoder(encoder)
    pairs = [
        (UNKNOWN[0], "សួស្តី", ""),
        ("a cat", UNKNOWN[1], ""),
        (UNKNOWN[2], UNKNOWN[2], ""),
        ("a cat", "un chat", ""),
    ]
    _, scores = next(score_pairs(pairs, encode))
    assert scores[:3].tolist() == [0, 0, 0]
    assert scores[3] > 0.5
    assert encode.unknown_pairs == 3


def test_the_command_says_how_many(files):
    command = ("--model", "lxsr-static", "--input", files / "en", "--output")
    done = lxsr_here("index", *command, files / "index")
    assert re.search(r"\b5 .*\b1 .*\b8 ", done.stdout)
    done = lxsr_here("embed", *command, files / "en.npy")
    assert re.search(r"\b14 .*\b256\b.*\b9 ", done.stdout)
    done = lxsr_here("search", "--index", files / "index", "--k", 1, "Le chat dort.", "🚀")
    assert ENGLISH[0] in done.stdout
    assert re.findall(r"\d+", done.stderr) == ["1", "2"]
    done = lxsr_here("search", "--index", files / "index", "--k", 1, "გამარ", "🚀")
    assert re.findall(r"\d+", done.stderr) == ["2", "2"]
    (files / "ka").write_text("\n".join(UNKNOWN[:2]) + "\n", encoding="utf-8")
    done = lxsr_here(
        "index",
        "--model",
        "lxsr-static",
        "--input",
        files / "ka",
        "--output",
        files / "ix",
        check=False,
    )
    refused(done, "line 1: ", "'გამარჯობა'")
    assert not (files / "ix").exists()


@pytest.mark.parametrize("seed", range(20))
def test_shards_find_what_one_search_finds(tmp_path, seed):
    """A shard of few known sentences does not put its unknown ones before those of another."""
    rng = np.random.default_rng(seed)
    queries, candidates = (
        rng.normal(size=(3, 2)).astype(np.float32),
        rng.normal(size=(6, 2)).astype(np.float32),
    )
    candidates[rng.permutation(6)[:3]] = 0
    options, parts = Mining(k=2), (slice(0, 2), slice(2, 4), slice(4, 6))

    def of_shards(rows):
        found = (shift_ids(searcher(candidates[part], options)(rows), part.start) for part in parts)
        return merge_neighbours(found, options.k)

    one, sharded = (
        find_neighbours(tmp_path / name, queries, search, {"k": options.k})
        for name, search in (("one", searcher(candidates, options)), ("sharded", of_shards))
    )
    np.testing.assert_array_equal(one, sharded)
    known = candidates.any(axis=1)
    cosines = normalise_rows(queries) @ normalise_rows(candidates[known]).T
    np.testing.assert_allclose(one["cosines"], -np.sort(-cosines, axis=1)[:, :2], atol=1e-6)
