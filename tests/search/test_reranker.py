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

PAIRS = toy.sentences(120, seed=5)
ENGLISH = list(dict.fromkeys(english for english, _ in PAIRS))
FRENCH = list(dict.fromkeys(french for _, french in PAIRS))
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


@pytest.mark.parametrize("block_size", [7, 1024])
def test_scores_are_weighted_means_of_cosine_and_max_sim(encoder, block_size, monkeypatch):
    monkeypatch.setattr(reranking, "QUERY_BLOCK", block_size)
    ids = np.random.default_rng(0).integers(len(FRENCH), size=(20, 5))
    cosines = np.random.default_rng(1).uniform(-1, 1, size=(20, 5)).astype(np.float32)

    scores = Reranker(encoder, 5, 0.25).scores(ENGLISH[:20], read, cosines, ids)

    table = encoder.encoder.table
    english = list(encoder.encoder.tokenizer.encode(ENGLISH))
    french = list(encoder.encoder.tokenizer.encode(FRENCH))
    max_sims = np.zeros((20, 5))
    for query in range(20):
        for column in range(5):
            candidate = french[ids[query, column]]
            max_sims[query, column] = ordered_max_sim(table, english[query], candidate)
    np.testing.assert_allclose(scores, (cosines + 0.25 * max_sims) / 1.25, atol=1e-5)


def test_numpy_and_torch_models_have_the_same_table(encoder):
    """A GPU uses the torch model."""
    model = encoder.encoder
    network, _ = read_model(model.folder, model.config)
    torch_model = SentenceEncoder(network, model.tokenizer, model.config, "cpu")
    np.testing.assert_array_equal(torch_model.table, model.table)


def test_the_best_candidates_come_first_and_missing_ones_last(encoder):
    ids = np.array([[4, 0, 2, -1]])
    cosines = np.array([[0.5, 0.5, 0.5, -np.inf]], dtype=np.float32)
    scores, best = Reranker(encoder, 4, 1.0).best([FRENCH[2]], read, cosines, ids)
    assert (best[0, 0], best[0, 3]) == (2, -1)
    assert scores[0, 0] == pytest.approx(0.75)
    assert (np.diff(scores[0]) <= 0).all()


def test_missing_candidates_keep_their_cosines(encoder):
    cosines = np.full((1, 2), -np.inf, dtype=np.float32)
    scores = Reranker(encoder, 2).scores(ENGLISH[:1], read, cosines, np.full((1, 2), -1))
    np.testing.assert_array_equal(scores, cosines)


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    return CorpusIndex.build(
        tmp_path_factory.mktemp("r") / "index",
        FRENCH,
        encoder.embed,
        encoder.fingerprint,
        plain=True,
    )


def test_an_index_returns_the_best_of_the_reranked_candidates(encoder, index):
    reranker = Reranker(encoder, 9)
    queries = ENGLISH[:30]

    all_hits = index.search(queries, encoder.embed, k=2, reranker=reranker)

    query_vectors = normalise_rows(encoder.embed(Text(queries)))
    candidate_vectors = normalise_rows(encoder.embed(Text(FRENCH)))
    cosines, nearest = nearest_neighbours(query_vectors, candidate_vectors, 9)
    scores, ids = reranker.best(queries, read, cosines, nearest)
    assert [[hit.line for hit in hits] for hits in all_hits] == ids[:, :2].tolist()
    assert ids[:, :2].tolist() != nearest[:, :2].tolist()
    actual_scores = [[hit.score for hit in hits] for hits in all_hits]
    np.testing.assert_allclose(actual_scores, scores[:, :2], atol=1e-6)
    with pytest.raises(InputError, match=r"rerank 9 .*10"):
        index.search(queries, encoder.embed, k=10, reranker=reranker)


def test_an_index_may_have_fewer_sentences_than_are_reranked(encoder, tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", FRENCH[:3], encoder.embed, encoder.fingerprint, plain=True
    )
    hits = index.search(ENGLISH[0], encoder.embed, 5, reranker=Reranker(encoder, 9))
    assert len(hits) == 3


def test_protocols_rerank_sentences_of_equal_cosine(encoder):
    constant_encoder = ConstantEncoder(encoder.encoder)
    sentences = ENGLISH[:40]
    # In both orders, because equal cosines would favour the first sentence.
    for lines in (sentences, sentences[::-1]):
        texts = select([(line, line) for line in lines])
        [score, _] = SentenceRetrieval(rerank=40).scores(texts, constant_encoder)
        assert score.settings["metric"] == "cosine+1*ordered-maxsim-of-40"
        assert score.values["P@1"] == 100
        for direction in Tatoeba(rerank=40).scores(Text(lines), Text(lines), constant_encoder):
            assert direction.values["error"] == 0
            assert direction.settings["metric"] == "cosine+1*ordered-maxsim-of-40"
        [without_reranking, _] = Tatoeba().scores(Text(lines), Text(lines), constant_encoder)
        assert without_reranking.values["error"] > 90


class ConstantEncoder(ModelFolder):
    """Has the pieces of a model, and the same embedding for all sentences."""

    def embed(self, text, counts=None):
        return np.ones((len(text), 4), dtype=np.float32)


def test_encoders_depths_and_weights_that_cannot_rerank_are_refused(encoder, tmp_path):
    folder = random_model.write_model(tmp_path / "m")
    model_with_layers = ModelFolder(SentenceEncoder.from_pretrained(folder))
    with pytest.raises(InputError, match=f"{folder}: "):
        Reranker(model_with_layers, 10)
    with pytest.raises(InputError, match=r"rerank: .*model folder"):
        Reranker(LibraryModel(None, "", 4), 10)
    with pytest.raises(InputError, match="rerank 0"):
        Reranker(encoder, 0)
    with pytest.raises(InputError, match="weight -1"):
        Reranker(encoder, 10, -1)
    with pytest.raises(InputError, match="''"):
        Reranker(encoder, 1).scores([""], read, np.ones((1, 1)), np.array([[0]]))


def test_protocols_refuse_reranking_of_two_metrics_or_too_few_candidates(encoder):
    texts = select(zip(ENGLISH, FRENCH, strict=False))
    with pytest.raises(InputError, match="nn,csls"):
        SentenceRetrieval(metric=("nn", "csls"), rerank=10).scores(texts, encoder)
    with pytest.raises(InputError, match=r"rerank 9 .*10"):
        SentenceRetrieval(rerank=9).scores(texts, encoder)


def test_a_gated_model_with_layers_is_reranked_by_its_input_vectors(tmp_path):
    encoder = SentenceEncoder.from_pretrained(random_model.write_model(tmp_path / "m", gated=True))
    table = encoder.model.embed_tokens.weight.detach().numpy()
    [english] = encoder.tokenizer.encode([ENGLISH[0]])
    [french] = encoder.tokenizer.encode([FRENCH[0]])
    cosines = np.zeros((1, 1))
    scores = Reranker(ModelFolder(encoder), 1).scores(ENGLISH[:1], read, cosines, np.array([[0]]))
    # With weight 1, a score is the mean of the cosine, which is 0 here, and MaxSim.
    expected = ordered_max_sim(table, english, french) / 2
    np.testing.assert_allclose(scores, [[expected]], atol=1e-5)


def test_the_commands_eval_and_search_rerank(encoder, tmp_path):
    model = encoder.encoder.folder
    english = tmp_path / "en"
    french = tmp_path / "fr"
    english.write_text("\n".join([*ENGLISH[:60], ""]), encoding="utf-8")
    french.write_text("\n".join([*FRENCH[:60], ""]), encoding="utf-8")
    for verb in ("xsr", "tatoeba"):
        files = ("--model", model, "--source", english, "--target", french)
        done = lxsr_here("eval", verb, *files, "--rerank", 10)
        assert "|metric:cosine+1*ordered-maxsim-of-10|" in done.stdout
    index = tmp_path / "index"
    lxsr_here("index", "--model", model, "--input", french, "--output", index)
    search = ("search", "--index", index, ENGLISH[0], "--k", 2)
    lines = lxsr_here(*search).stdout.splitlines()
    reranked_lines = lxsr_here(*search, "--rerank", 60).stdout.splitlines()
    assert len(lines) == len(reranked_lines) == 3
    assert lines != reranked_lines
    refused(lxsr_here(*search, "--rerank", 1, check=False), "--rerank 1", "2")


MINED_ENGLISH = ENGLISH[:60]
MINED_FRENCH = FRENCH[:50]


def mining_sides(encoder, folder) -> list[Side]:
    (folder / "a").write_text("\n".join([*MINED_ENGLISH, ""]), encoding="utf-8")
    (folder / "b").write_text("\n".join([*MINED_FRENCH, ""]), encoding="utf-8")
    return [Side(folder / "a", encoder, "a"), Side(folder / "b", encoder, "b")]


@pytest.mark.parametrize("retrieval", ["max", "all"])
def test_the_margin_of_mined_pairs_uses_reranked_scores(encoder, tmp_path, retrieval):
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"

    pairs = mine_files(*sides, output, None, Mining(k=3, retrieval=retrieval, rerank=8))

    reranker = Reranker(encoder, 8)
    source_vectors = normalise_rows(encoder.embed(Text(MINED_ENGLISH)))
    target_vectors = normalise_rows(encoder.embed(Text(MINED_FRENCH)))

    def read_english(rows):
        return [MINED_ENGLISH[row] for row in rows]

    cosines, ids = nearest_neighbours(source_vectors, target_vectors, 8)
    forward_scores, forward_ids = reranker.best(MINED_ENGLISH, read, cosines, ids)
    cosines, ids = nearest_neighbours(target_vectors, source_vectors, 8)
    backward_scores, backward_ids = reranker.best(MINED_FRENCH, read_english, cosines, ids)
    expected = mine_neighbours(
        forward_scores[:, :3],
        forward_ids[:, :3],
        backward_scores[:, :3],
        backward_ids[:, :3],
        "ratio",
        retrieval,
    )
    np.testing.assert_array_equal(pairs.source, expected.source)
    np.testing.assert_allclose(pairs.scores, expected.scores, rtol=1e-5)
    without_reranking = mine_files(*sides, output, None, Mining(k=3))
    assert pairs.scores.tolist() != without_reranking.scores.tolist()


def test_neighbours_of_another_score_are_not_used_for_reranking(encoder, tmp_path, monkeypatch):
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    without_reranking = mine_files(*sides, output, work, Mining())
    expected = mine_files(*sides, output, None, Mining(rerank=9))
    with monkeypatch.context() as patch:
        patch.setattr(search_options, "score_name", lambda depth: "that of an earlier version")
        patch.setattr(Reranker, "scores", lambda self, queries, read, cosines, ids: cosines)
        with_earlier_score = mine_files(*sides, output, work, Mining(rerank=9))

    pairs = mine_files(*sides, output, work, Mining(rerank=9))

    assert pairs.scores.tolist() == expected.scores.tolist()
    assert pairs.scores.tolist() != without_reranking.scores.tolist()
    assert pairs.scores.tolist() != with_earlier_score.scores.tolist()


def test_the_command_mine_reranks(encoder, tmp_path):
    source, target = mining_sides(encoder, tmp_path)
    mine_files(source, target, tmp_path / "expected.tsv", None, Mining(rerank=9))
    files = ("--source", source.path, "--target", target.path, "--output", tmp_path / "out.tsv")
    lxsr_here("mine", "--model", encoder.encoder.folder, *files, "--rerank", 9)
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "expected.tsv").read_bytes()


def test_mining_refuses_reranking_with_two_models_a_cluster_or_too_few_candidates(
    encoder, tmp_path
):
    source, target = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    with pytest.raises(InputError, match=r"rerank 3 .*4"):
        mine_files(source, target, output, None, Mining(rerank=3))
    with pytest.raises(InputError, match=r"rerank 8 .*cluster"):
        mine_shards(source, target, output, None, None, Mining(rerank=8))
    folder = random_model.write_model(
        tmp_path / "m", gated=True, num_layers=0, order_coefficients=1
    )
    another_model = ModelFolder(SentenceEncoder.from_pretrained(folder))
    with pytest.raises(InputError, match=r"rerank .*model"):
        mine_files(source, Side(target.path, another_model), output, None, Mining(rerank=8))


def test_mining_scores_each_pair_once_and_first_tells_their_number(
    encoder, tmp_path, monkeypatch, capsys
):
    scored_pairs: list[set] = []
    original = Reranker.scores

    def recording_scores(self, queries, read, cosines, ids):
        pairs = set()
        for query, row in zip(queries, ids, strict=True):
            for line in read(row[row >= 0]):
                pairs.add((query, line))
        scored_pairs.append(pairs)
        return original(self, queries, read, cosines, ids)

    monkeypatch.setattr(Reranker, "scores", recording_scores)
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"

    mine_files(*sides, output, work, Mining(k=3, rerank=8), show_progress=True)

    forward, backward = scored_pairs
    assert len(forward) == 60 * 8
    assert not forward & {(source, target) for target, source in backward}
    assert len(backward) < 50 * 8
    assert re.search(r"--rerank 8\b.*\b880\b", capsys.readouterr().err)
    # After an interruption before the backward search, only that is scored.
    (work / "backward.npy").unlink()
    expected = output.read_bytes()
    mine_files(*sides, output, work, Mining(k=3, rerank=8))
    assert output.read_bytes() == expected
    assert len(scored_pairs) == 3


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
