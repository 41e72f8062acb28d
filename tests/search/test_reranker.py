"""Re-ranking from text: over an index, in protocols, and what is refused."""

import re

import numpy as np
import pytest
import random_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cluster import mine_shards
from fairseq_lxsr.embeddings import LibraryModel, ModelFolder, Text
from fairseq_lxsr.encoder.model_folder import to_int4
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.encoder.torch_network import read_model
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.similarity_search import Tatoeba
from fairseq_lxsr.evaluation.protocols.xsr import SentenceRetrieval, select
from fairseq_lxsr.search import CorpusIndex, Mining, Side, mine_files
from fairseq_lxsr.search import options as search_options
from fairseq_lxsr.search import reranker as reranking
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import (
    Pieces,
    mine_neighbours,
    nearest_neighbours,
    normalise_rows,
    piece_scores,
)

ENGLISH, FRENCH = (
    list(dict.fromkeys(side)) for side in zip(*toy.sentences(120, seed=5), strict=True)
)
FRENCH[3] = "le chien " * 50  # longer than the model reads


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = random_model.write_model(
        tmp_path_factory.mktemp("rerank") / "m", gated=True, num_layers=0
    )
    return ModelFolder(SentenceEncoder.from_pretrained(folder))


def read(rows):
    return [FRENCH[row] for row in rows]


def ordered_max_sim(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    pieces = [Pieces(side, np.array([len(side)])) for side in (x, y)]
    return float(piece_scores(table, *pieces, np.array([[0]]))[0, 0])


@pytest.mark.parametrize("queries", [7, 1024])
def test_scores_are_cosine_and_max_sim(encoder, queries, monkeypatch):
    monkeypatch.setattr(reranking, "QUERY_BLOCK", queries)
    ids = np.random.default_rng(0).integers(len(FRENCH), size=(20, 5))
    cosines = np.random.default_rng(1).uniform(-1, 1, size=(20, 5)).astype(np.float32)
    scores = Reranker(encoder, 5, 0.25).scores(ENGLISH[:20], read, cosines, ids)
    tokenizer, table = encoder.encoder.tokenizer, encoder.encoder.table
    x, y = (list(tokenizer.encode(side)) for side in (ENGLISH, FRENCH))
    expected = [
        [ordered_max_sim(table, x[query], y[row]) for row in rows] for query, rows in enumerate(ids)
    ]
    np.testing.assert_allclose(scores, (cosines + 0.25 * np.array(expected)) / 1.25, atol=1e-5)
    # as on a GPU, which torch takes it to
    network, _ = read_model(encoder.encoder.folder, encoder.encoder.config)
    other = SentenceEncoder(network, tokenizer, encoder.encoder.config, "cpu")
    np.testing.assert_array_equal(other.table, table)


def test_the_best_come_first_and_what_was_not_found_last(encoder):
    ids = np.array([[4, 0, 2, -1]])
    cosines = np.array([[0.5, 0.5, 0.5, -np.inf]], dtype=np.float32)
    scores, best = Reranker(encoder, 4, 1.0).best([FRENCH[2]], read, cosines, ids)
    assert (best[0, 0], best[0, 3]) == (2, -1)
    assert scores[0, 0] == pytest.approx(0.75)
    assert (np.diff(scores[0]) <= 0).all()
    nothing = np.full((1, 2), -np.inf, dtype=np.float32)
    np.testing.assert_array_equal(
        Reranker(encoder, 2).scores(ENGLISH[:1], read, nothing, np.full((1, 2), -1)), nothing
    )


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    return CorpusIndex.build(
        tmp_path_factory.mktemp("r") / "index",
        FRENCH,
        encoder.embed,
        encoder.fingerprint,
        plain=True,
    )


def test_an_index_returns_the_best_of_more(encoder, index):
    reranker, queries = Reranker(encoder, 9), ENGLISH[:30]
    found = index.search(queries, encoder.embed, k=2, reranker=reranker)
    vectors = [normalise_rows(encoder.embed(Text(side))) for side in (queries, FRENCH)]
    cosines, nearest = nearest_neighbours(*vectors, 9)
    scores, ids = reranker.best(queries, read, cosines, nearest)
    assert (
        [[hit.line for hit in hits] for hits in found]
        == ids[:, :2].tolist()
        != nearest[:, :2].tolist()
    )
    np.testing.assert_allclose(
        [[hit.score for hit in hits] for hits in found], scores[:, :2], atol=1e-6
    )
    with pytest.raises(InputError, match=r"rerank 9 .*10"):
        index.search(queries, encoder.embed, k=10, reranker=reranker)


def test_fewer_sentences_than_are_reranked(encoder, tmp_path):
    few = CorpusIndex.build(
        tmp_path / "few", FRENCH[:3], encoder.embed, encoder.fingerprint, plain=True
    )
    assert len(few.search(ENGLISH[:1], encoder.embed, 5, reranker=Reranker(encoder, 9))[0]) == 3


@pytest.mark.parametrize("order", [1, -1])
def test_protocols_rank_again(encoder, order):
    """MaxSim alone finds a sentence among others of equal cosine, at any place."""
    pairs = list(zip(ENGLISH[:40], ENGLISH[:40], strict=True))[::order]
    alike = SimpleEncoder(encoder)
    texts = select(pairs)
    [score, _] = SentenceRetrieval(rerank=40).scores(texts, alike)
    assert score.settings["metric"] == "cosine+1*ordered-maxsim-of-40"
    assert score.values["P@1"] == 100
    source, target = (Text([pair[side] for pair in pairs]) for side in (0, 1))
    for errors in Tatoeba(rerank=40).scores(source, target, alike):
        assert (errors.values["error"], errors.settings["metric"]) == (
            0,
            "cosine+1*ordered-maxsim-of-40",
        )
    assert Tatoeba().scores(source, target, alike)[0].values["error"] > 90


class SimpleEncoder(ModelFolder):
    """Pieces of a model, and embeddings that are all alike."""

    def __init__(self, encoder: ModelFolder):
        super().__init__(encoder.encoder)

    def embed(self, text, counts=None):
        return np.ones((len(text), 4), dtype=np.float32)


def test_what_cannot_be_ranked_again_is_refused(encoder, tmp_path):
    folder = random_model.write_model(tmp_path / "m")
    layered = ModelFolder(SentenceEncoder.from_pretrained(folder))
    expected = {
        f"{folder}: ": (layered, 10),
        "rerank: .*model folder": (LibraryModel(None, "", 4), 10),
        "rerank 0": (encoder, 0),
        "weight -1": (encoder, 10, -1),
    }
    for message, arguments in expected.items():
        with pytest.raises(InputError, match=message):
            Reranker(*arguments)
    with pytest.raises(InputError, match="''"):
        Reranker(encoder, 1).scores([""], read, np.ones((1, 1)), np.array([[0]]))
    texts = select(zip(ENGLISH, FRENCH, strict=False))
    with pytest.raises(InputError, match="nn,csls"):
        SentenceRetrieval(metric=("nn", "csls"), rerank=10).scores(texts, encoder)
    with pytest.raises(InputError, match=r"rerank 9 .*10"):
        SentenceRetrieval(rerank=9).scores(texts, encoder)


def test_gated_layers_are_ranked_by_the_vectors_they_read(tmp_path):
    encoder = SentenceEncoder.from_pretrained(random_model.write_model(tmp_path / "m", gated=True))
    table = encoder.model.embed_tokens.weight.detach().numpy()
    x, y = (encoder.tokenizer.encode([text])[0] for text in (ENGLISH[0], FRENCH[0]))
    scores = Reranker(ModelFolder(encoder), 1).scores(
        ENGLISH[:1], read, np.zeros((1, 1)), np.array([[0]])
    )
    np.testing.assert_allclose(scores, [[ordered_max_sim(table, x, y) / 2]], atol=1e-5)


def test_commands(encoder, tmp_path):
    """`--rerank` of index, xsr and tatoeba from the command line."""
    model = encoder.encoder.folder
    for name, side in (("en", ENGLISH), ("fr", FRENCH)):
        (tmp_path / name).write_text("\n".join(side[:60]) + "\n", encoding="utf-8")
    files = ("--model", model, "--source", tmp_path / "en", "--target", tmp_path / "fr")
    for verb in ("xsr", "tatoeba"):
        assert (
            "|metric:cosine+1*ordered-maxsim-of-10|"
            in lxsr_here("eval", verb, *files, "--rerank", 10).stdout
        )
    lxsr_here("index", "--model", model, "--input", tmp_path / "fr", "--output", tmp_path / "index")
    search = ("search", "--index", tmp_path / "index", ENGLISH[0], "--k", 2)
    lines = [lxsr_here(*search, *more).stdout.splitlines() for more in ((), ("--rerank", 60))]
    assert len(lines[0]) == len(lines[1]) == 3
    assert lines[0] != lines[1]
    refused(lxsr_here(*search, "--rerank", 1, check=False), "--rerank 1", "2")


def mining_sides(encoder, folder) -> list[Side]:
    for name, lines in (("a", ENGLISH[:60]), ("b", FRENCH[:50])):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [Side(folder / name, encoder, name) for name in "ab"]


@pytest.mark.parametrize("retrieval", ["max", "all"])
def test_mining_by_margin_over_the_scores(encoder, tmp_path, retrieval):
    sides, reranker = mining_sides(encoder, tmp_path), Reranker(encoder, 8)
    pairs = mine_files(
        *sides, tmp_path / "out.tsv", None, Mining(k=3, retrieval=retrieval, rerank=8)
    )
    lines = ENGLISH[:60], FRENCH[:50]
    vectors = [normalise_rows(encoder.embed(Text(side))) for side in lines]
    ways = []
    for one, other in ((0, 1), (1, 0)):
        near = nearest_neighbours(vectors[one], vectors[other], 8)
        best = reranker.best(
            lines[one], lambda rows, side=lines[other]: [side[row] for row in rows], *near
        )
        ways += [array[:, :3] for array in best]
    expected = mine_neighbours(*ways, "ratio", retrieval)
    np.testing.assert_array_equal(pairs.source, expected.source)
    np.testing.assert_allclose(pairs.scores, expected.scores, rtol=1e-5)
    assert (
        pairs.scores.tolist()
        != mine_files(*sides, tmp_path / "out.tsv", None, Mining(k=3)).scores.tolist()
    )


def test_what_was_mined_without_or_by_another_score_is_not_taken(encoder, tmp_path, monkeypatch):
    sides, work = mining_sides(encoder, tmp_path), tmp_path / "work"
    without = mine_files(*sides, tmp_path / "out.tsv", work, Mining())
    expected = mine_files(*sides, tmp_path / "out.tsv", None, Mining(rerank=9))
    with monkeypatch.context() as before:
        before.setattr(search_options, "score_name", lambda depth: "that of an earlier version")
        before.setattr(Reranker, "scores", lambda self, queries, read, cosines, ids: cosines)
        other = mine_files(*sides, tmp_path / "out.tsv", work, Mining(rerank=9))
    again = mine_files(*sides, tmp_path / "out.tsv", work, Mining(rerank=9))
    assert again.scores.tolist() == expected.scores.tolist()
    assert again.scores.tolist() not in (without.scores.tolist(), other.scores.tolist())
    lxsr = (
        "mine",
        "--model",
        encoder.encoder.folder,
        "--source",
        tmp_path / "a",
        "--target",
        tmp_path / "b",
    )
    lxsr_here(*lxsr, "--output", tmp_path / "by_command.tsv", "--rerank", 9)
    assert (tmp_path / "by_command.tsv").read_bytes() == (tmp_path / "out.tsv").read_bytes()


def test_mining_refuses_two_models_and_too_few(encoder, tmp_path):
    sides = mining_sides(encoder, tmp_path)
    with pytest.raises(InputError, match=r"rerank 3 .*4"):
        mine_files(*sides, tmp_path / "out.tsv", None, Mining(rerank=3))
    other = random_model.write_model(tmp_path / "m", gated=True, num_layers=0, order_coefficients=1)
    with pytest.raises(InputError, match=r"rerank 8 .*cluster"):
        mine_shards(*sides, tmp_path / "out.tsv", None, None, Mining(rerank=8))
    sides[1] = Side(sides[1].path, ModelFolder(SentenceEncoder.from_pretrained(other)))
    with pytest.raises(InputError, match=r"rerank .*model"):
        mine_files(*sides, tmp_path / "out.tsv", None, Mining(rerank=8))


def test_a_mutual_pair_is_scored_once_and_the_cost_is_said_first(
    encoder, tmp_path, monkeypatch, capsys
):
    scored: list[set] = []

    def scores(self, queries, read, cosines, ids):
        new = {
            (query, line)
            for query, near in zip(queries, ids, strict=True)
            for line in read(near[near >= 0])
        }
        scored.append(new)
        return original(self, queries, read, cosines, ids)

    original = Reranker.scores
    monkeypatch.setattr(Reranker, "scores", scores)
    sides = mining_sides(encoder, tmp_path)
    mine_files(
        *sides, tmp_path / "out.tsv", tmp_path / "work", Mining(k=3, rerank=8), show_progress=True
    )
    forward, backward = scored
    assert len(forward) == 60 * 8
    assert not forward & {(source, target) for target, source in backward}
    assert len(backward) < 50 * 8
    assert re.search(r"--rerank 8\b.*\b880\b", capsys.readouterr().err)
    (tmp_path / "work" / "backward.npy").unlink()  # as after an interruption between the two
    before = (tmp_path / "out.tsv").read_bytes()
    mine_files(*sides, tmp_path / "out.tsv", tmp_path / "work", Mining(k=3, rerank=8))
    assert (tmp_path / "out.tsv").read_bytes() == before
    assert len(scored) == 3


def test_only_the_needed_rows_of_a_packed_table_are_unpacked(encoder, monkeypatch):
    def refuse_all_rows(table):
        raise AssertionError("all rows of the table are unpacked")

    def scores_with(table):
        source = encoder.encoder
        model = SentenceEncoder(Bag(source.size, {TABLE: table}), source.tokenizer, source.config)
        cosines = np.zeros((3, 4), np.float32)
        ids = np.arange(12).reshape(3, 4)
        return Reranker(ModelFolder(model), 4).scores(ENGLISH[:3], read, cosines, ids)

    table = PackedTable(*to_int4(encoder.encoder.table))
    expected = scores_with(table.all_rows())
    monkeypatch.setattr(PackedTable, "all_rows", refuse_all_rows)
    np.testing.assert_array_equal(scores_with(table), expected)
