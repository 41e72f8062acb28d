"""A sentence without a known word is no hit and in no pair; it scores 0, and is counted."""

import itertools
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
# The model knows no piece of these texts: scripts, symbols and invisible characters.
UNKNOWN = ["გამარჯობა", "🚀", "Բարեւ ձեզ", "\u00ad", "\ue000!", "வணக்கம்"]


@pytest.fixture(scope="module")
def encoder():
    return load("lxsr-static")


def write_lines(path, lines):
    """Write each text as a line."""
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    """A folder with texts that have unknown sentences, and the same without them."""
    write_lines(tmp_path / "en", [*UNKNOWN[:3], *ENGLISH, *UNKNOWN])
    write_lines(tmp_path / "fr", [*FRENCH, *UNKNOWN[2:], "ខ្មែរ"])
    write_lines(tmp_path / "known.en", ENGLISH)
    write_lines(tmp_path / "known.fr", FRENCH)
    return tmp_path


def score_by_pair(path):
    """The scores of mined pairs, by source and target sentence."""
    scores = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        score, source, target = line.split("\t")
        scores[source, target] = float(score)
    return scores


def mined_scores(folder, source, target, encoder, options):
    """Mine two files of the folder, and return the scores of the pairs."""
    output = folder / "out.tsv"
    sides = (Side(folder / source, encoder), Side(folder / target, encoder))
    mine_files(*sides, output, options=options)
    return score_by_pair(output)


@pytest.mark.parametrize(
    ("kind", "retrieval", "rerank"),
    [
        *itertools.product(("flat", "int8", "binary"), ("max", "fwd", "all", "intersect"), (0,)),
        ("flat", "max", 4),
    ],
)
def test_mined_pairs_have_no_unknown_sentence_and_the_scores_without_them(
    encoder, files, kind, retrieval, rerank
):
    options = Mining(k=2, kind=kind, retrieval=retrieval, rerank=rerank)
    expected_scores = mined_scores(files, "known.en", "known.fr", encoder, options)

    scores = mined_scores(files, "en", "fr", encoder, options)

    for pair in scores:
        assert set(pair).isdisjoint(UNKNOWN)
    # Approximate searches may find other neighbours, and round cosines.
    tolerance = 1e-6 if kind == "flat" else 0.05
    if kind == "flat" or retrieval == "max":
        assert scores.keys() == expected_scores.keys()
        assert scores
    for pair in scores.keys() & expected_scores.keys():
        assert scores[pair] == pytest.approx(expected_scores[pair], abs=tolerance)


@pytest.mark.parametrize("kind", ["flat", "int8", "binary"])
def test_mining_prints_the_number_of_unknown_and_of_distinct_sentences_of_each_side(
    encoder, files, kind, capsys
):
    mined_scores(files, "en", "fr", encoder, Mining(k=2, kind=kind))

    messages = capsys.readouterr().err.splitlines()
    [source_message] = [line for line in messages if "source" in line]
    [target_message] = [line for line in messages if "target" in line]
    # English has the 6 unknown sentences, of which the one without a visible character is no
    # sentence, and 5 known ones. French has 5, also with that one, and 4 known ones.
    assert re.findall(r"\d+", source_message) == ["5", "10"]
    assert re.findall(r"\d+", target_message) == ["4", "8"]


def test_pairs_within_one_text_have_no_unknown_sentence(encoder, files):
    options = Mining(k=3, retrieval="all")

    mine_files(Side(files / "en", encoder), None, files / "out.tsv", options=options)

    pairs = score_by_pair(files / "out.tsv")
    assert pairs
    for pair in pairs:
        assert set(pair).isdisjoint(UNKNOWN)


@pytest.mark.parametrize("retrieval", ["max", "fwd", "bwd", "intersect", "all"])
def test_pairs_of_vectors_have_no_zero_vector(retrieval):
    # Three vectors in different directions, after two zero vectors in the source, before them in
    # the target.
    vectors = np.eye(5, dtype=np.float32)[:3] + 0.1
    zeros = np.zeros((2, 5), dtype=np.float32)
    source = np.concatenate([zeros, vectors])
    target = np.concatenate([vectors, zeros])

    pairs = mine(source, target, 3, retrieval=retrieval)

    assert set(pairs.source) == {2, 3, 4}
    assert set(pairs.target) == {0, 1, 2}


def test_an_unknown_sentence_is_no_hit_and_an_unknown_query_has_none(encoder, files, tmp_path):
    lines = (files / "en").read_text(encoding="utf-8").splitlines()
    index = CorpusIndex.build(tmp_path / "index", lines, encoder.embed, "model", plain=True)
    queries = [*UNKNOWN, "Le chat dort.", *UNKNOWN, "J'aime le thé"]

    hits_of_queries = index.search(queries, encoder.embed, k=10)

    assert len(index) == len(ENGLISH)
    hits = dict(zip(queries, hits_of_queries, strict=True))
    for query in UNKNOWN:
        assert hits[query] == []
    # All known sentences, the translation first.
    for query, translation in (("Le chat dort.", ENGLISH[0]), ("J'aime le thé", ENGLISH[1])):
        assert len(hits[query]) == len(ENGLISH)
        assert hits[query][0].sentence == translation
    # Three unknown lines come before.
    assert hits["Le chat dort."][0].line == 3


def test_pairs_with_an_unknown_sentence_score_zero_and_are_counted(encoder):
    encode = PairEncoder(encoder)
    both_unknown = (UNKNOWN[0], "សួស្តី", "")
    target_unknown = ("a cat", UNKNOWN[1], "")
    equal_unknown = (UNKNOWN[2], UNKNOWN[2], "")
    known = ("a cat", "un chat", "")

    _, scores = next(score_pairs([both_unknown, target_unknown, equal_unknown, known], encode))

    assert scores[:3].tolist() == [0, 0, 0]
    assert scores[3] > 0.5
    assert encode.unknown_pairs == 3


def test_the_command_index_prints_the_number_of_unknown_sentences(files):
    options = ("--model", "lxsr-static", "--input", files / "en", "--output", files / "index")

    done = lxsr_here("index", *options)

    # 5 known sentences, an empty line (of an invisible character) and 8 without a known word.
    assert re.search(r"\b5 .*\b1 .*\b8 ", done.stdout)


def test_the_command_embed_prints_the_number_of_unknown_sentences(files):
    options = ("--model", "lxsr-static", "--input", files / "en", "--output", files / "en.npy")

    done = lxsr_here("embed", *options)

    # 14 embeddings of width 256, of which 9 are of lines that are empty or have no known word.
    assert re.search(r"\b14 .*\b256\b.*\b9 ", done.stdout)


@pytest.mark.parametrize(
    ("queries", "num_unknown"),
    [(("Le chat dort.", "🚀"), "1"), (("გამარ", "🚀"), "2")],
    ids=["one", "all"],
)
def test_the_command_search_prints_the_number_of_unknown_queries(files, queries, num_unknown):
    options = ("--model", "lxsr-static", "--input", files / "en", "--output", files / "index")
    lxsr_here("index", *options)

    done = lxsr_here("search", "--index", files / "index", "--k", 1, *queries)

    # Of two queries.
    assert re.findall(r"\d+", done.stderr) == [num_unknown, "2"]
    # The translation of the known query is found.
    assert (ENGLISH[0] in done.stdout) == ("Le chat dort." in queries)


def test_the_error_for_an_index_of_unknown_sentences_only_names_the_first(tmp_path):
    write_lines(tmp_path / "ka", UNKNOWN[:2])
    index = tmp_path / "index"

    options = ("--model", "lxsr-static", "--input", tmp_path / "ka", "--output", index)
    done = lxsr_here("index", *options, check=False)

    refused(done, "line 1: ", "'გამარჯობა'")
    assert not index.exists()


@pytest.mark.parametrize("seed", range(20))
def test_unknown_sentences_of_a_shard_are_not_above_known_ones_of_another(tmp_path, seed):
    """A shard with fewer known sentences than neighbours returns unknown ones."""
    options = Mining(k=2)
    settings = {"k": options.k}
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(3, 2)).astype(np.float32)
    candidates = rng.normal(size=(6, 2)).astype(np.float32)
    # Half of the candidates are unknown.
    candidates[rng.permutation(6)[:3]] = 0

    def search_shards(rows):
        """Search three shards of two candidates each."""
        neighbours_of_shards = []
        for start in (0, 2, 4):
            search_shard = searcher(candidates[start : start + 2], options)
            neighbours_of_shards.append(shift_ids(search_shard(rows), start))
        return merge_neighbours(neighbours_of_shards, options.k)

    search_whole = searcher(candidates, options)
    whole = find_neighbours(tmp_path / "whole", queries, search_whole, settings)
    merged = find_neighbours(tmp_path / "shards", queries, search_shards, settings)

    np.testing.assert_array_equal(merged, whole)
    known_candidates = candidates[candidates.any(axis=1)]
    cosines = normalise_rows(queries) @ normalise_rows(known_candidates).T
    largest_cosines = -np.sort(-cosines, axis=1)[:, : options.k]
    np.testing.assert_allclose(whole["cosines"], largest_cosines, atol=1e-6)
