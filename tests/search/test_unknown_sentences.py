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


def write_lines(path, lines):
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    write_lines(tmp_path / "en", [*UNKNOWN[:3], *ENGLISH, *UNKNOWN])
    write_lines(tmp_path / "fr", [*FRENCH, *UNKNOWN[2:], "ខ្មែរ"])
    write_lines(tmp_path / "known.en", ENGLISH)
    write_lines(tmp_path / "known.fr", FRENCH)
    return tmp_path


def score_by_pair(path):
    scores = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        score, source, target = line.split("\t")
        scores[source, target] = float(score)
    return scores


@pytest.mark.parametrize(
    ("kind", "retrieval", "rerank"),
    [
        ("flat", "max", 0),
        ("flat", "fwd", 0),
        ("flat", "all", 0),
        ("flat", "intersect", 0),
        ("flat", "max", 4),
        ("int8", "max", 0),
        ("int8", "fwd", 0),
        ("int8", "all", 0),
        ("int8", "intersect", 0),
        ("binary", "max", 0),
        ("binary", "fwd", 0),
        ("binary", "all", 0),
        ("binary", "intersect", 0),
    ],
)
def test_mined_pairs_have_no_unknown_sentence_and_the_scores_without_them(
    encoder, files, kind, retrieval, rerank, capsys
):
    options = Mining(k=2, kind=kind, retrieval=retrieval, rerank=rerank)
    output = files / "out.tsv"
    mine_files(
        Side(files / "known.en", encoder),
        Side(files / "known.fr", encoder),
        output,
        options=options,
    )
    expected_scores = score_by_pair(output)
    capsys.readouterr()

    mine_files(Side(files / "en", encoder), Side(files / "fr", encoder), output, options=options)

    scores = score_by_pair(output)
    tolerance = 1e-6 if kind == "flat" else 0.05
    if kind == "flat" or retrieval == "max":
        assert scores.keys() == expected_scores.keys() != set()
    for pair, score in scores.items():
        assert not set(pair) & set(UNKNOWN)
        if pair in expected_scores:
            assert score == pytest.approx(expected_scores[pair], abs=tolerance)
    messages = capsys.readouterr().err.splitlines()
    [source_message] = [line for line in messages if "source" in line]
    [target_message] = [line for line in messages if "target" in line]
    assert re.findall(r"\d+", source_message) == ["5", "10"]
    assert re.findall(r"\d+", target_message) == ["4", "8"]


def test_pairs_within_one_text_have_no_unknown_sentence(encoder, files):
    options = Mining(k=3, retrieval="all")
    mine_files(Side(files / "en", encoder), None, files / "out.tsv", options=options)
    pairs = score_by_pair(files / "out.tsv")
    assert pairs
    for pair in pairs:
        assert not set(pair) & set(UNKNOWN)


def test_pairs_of_vectors_have_no_zero_vector():
    rows = np.eye(5, dtype=np.float32)[[0, 1, 2]] + 0.1
    zeros = np.zeros((2, 5), dtype=np.float32)
    for retrieval in ("max", "fwd", "bwd", "intersect", "all"):
        pairs = mine(
            np.concatenate([zeros, rows]), np.concatenate([rows, zeros]), 3, retrieval=retrieval
        )
        assert set(pairs.source) == {2, 3, 4}
        assert set(pairs.target) == {0, 1, 2}


def test_an_unknown_sentence_is_no_hit_and_an_unknown_query_has_none(encoder, files, tmp_path):
    lines = (files / "en").read_text(encoding="utf-8").splitlines()
    index = CorpusIndex.build(tmp_path / "index", lines, encoder.embed, "model", plain=True)
    assert len(index) == len(ENGLISH)
    queries = [*UNKNOWN, "Le chat dort.", *UNKNOWN, "J'aime le thé"]
    hits = dict(zip(queries, index.search(queries, encoder.embed, k=10), strict=True))
    for query in UNKNOWN:
        assert hits[query] == []
    for query in ("Le chat dort.", "J'aime le thé"):
        assert len(hits[query]) == 5
    best = hits["Le chat dort."][0]
    assert (best.sentence, best.line) == (ENGLISH[0], 3)
    assert hits["J'aime le thé"][0].sentence == ENGLISH[1]


def test_pairs_with_an_unknown_sentence_score_zero_and_are_counted(encoder):
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


def test_the_commands_print_the_number_of_unknown_sentences(files):
    options = ("--model", "lxsr-static", "--input", files / "en", "--output")
    done = lxsr_here("index", *options, files / "index")
    assert re.search(r"\b5 .*\b1 .*\b8 ", done.stdout)
    done = lxsr_here("embed", *options, files / "en.npy")
    assert re.search(r"\b14 .*\b256\b.*\b9 ", done.stdout)
    done = lxsr_here("search", "--index", files / "index", "--k", 1, "Le chat dort.", "🚀")
    assert ENGLISH[0] in done.stdout
    assert re.findall(r"\d+", done.stderr) == ["1", "2"]
    done = lxsr_here("search", "--index", files / "index", "--k", 1, "გამარ", "🚀")
    assert re.findall(r"\d+", done.stderr) == ["2", "2"]


def test_an_index_of_unknown_sentences_only_is_refused(tmp_path):
    text = tmp_path / "ka"
    write_lines(text, UNKNOWN[:2])
    index = tmp_path / "index"
    options = ("--model", "lxsr-static", "--input", text, "--output", index)
    done = lxsr_here("index", *options, check=False)
    refused(done, "line 1: ", "'გამარჯობა'")
    assert not index.exists()


def test_unknown_sentences_of_a_shard_are_not_above_known_ones_of_another(tmp_path):
    options = Mining(k=2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        queries = rng.normal(size=(3, 2)).astype(np.float32)
        candidates = rng.normal(size=(6, 2)).astype(np.float32)
        candidates[rng.permutation(6)[:3]] = 0

        def search_shards(rows, candidates=candidates):
            neighbours = []
            for start in (0, 2, 4):
                search_shard = searcher(candidates[start : start + 2], options)
                neighbours.append(shift_ids(search_shard(rows), start))
            return merge_neighbours(neighbours, options.k)

        settings = {"k": options.k, "seed": seed}
        search = searcher(candidates, options)
        neighbours = find_neighbours(tmp_path / "whole", queries, search, settings)
        merged = find_neighbours(tmp_path / "shards", queries, search_shards, settings)

        np.testing.assert_array_equal(merged, neighbours)
        known_candidates = candidates[candidates.any(axis=1)]
        cosines = normalise_rows(queries) @ normalise_rows(known_candidates).T
        expected_cosines = -np.sort(-cosines, axis=1)[:, :2]
        np.testing.assert_allclose(neighbours["cosines"], expected_cosines, atol=1e-6)
