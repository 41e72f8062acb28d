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
    """A random model without layers, whose pieces can be compared."""
    folder = random_model.write_model(
        tmp_path_factory.mktemp("rerank") / "m", gated=True, num_layers=0
    )
    return ModelFolder(SentenceEncoder.from_pretrained(folder))


def read(rows):
    """The French sentences with these numbers."""
    return [FRENCH[row] for row in rows]


def ordered_max_sim(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The similarity of two sentences, given as ids of pieces."""
    pieces = [Pieces(side, np.array([len(side)])) for side in (x, y)]
    return float(piece_scores(table, *pieces, np.array([[0]]))[0, 0])


@pytest.mark.parametrize("block_size", [7, 1024], ids=["blocks", "one block"])
def test_scores_are_weighted_means_of_cosine_and_max_sim(encoder, block_size, monkeypatch):
    monkeypatch.setattr(reranking, "QUERY_BLOCK", block_size)
    # Five random candidates and cosines for each of 20 queries.
    ids = np.random.default_rng(0).integers(len(FRENCH), size=(20, 5))
    cosines = np.random.default_rng(1).uniform(-1, 1, size=(20, 5)).astype(np.float32)
    weight = 0.25

    scores = Reranker(encoder, 5, weight).scores(ENGLISH[:20], read, cosines, ids)

    table = encoder.encoder.table
    english = list(encoder.encoder.tokenizer.encode(ENGLISH))
    french = list(encoder.encoder.tokenizer.encode(FRENCH))
    max_sims = np.zeros((20, 5))
    for query in range(20):
        for column in range(5):
            candidate = french[ids[query, column]]
            max_sims[query, column] = ordered_max_sim(table, english[query], candidate)
    expected_scores = (cosines + weight * max_sims) / (1 + weight)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_numpy_and_torch_models_have_the_same_table(encoder):
    """A GPU uses the torch model."""
    model = encoder.encoder
    network, _ = read_model(model.folder, model.config)
    torch_model = SentenceEncoder(network, model.tokenizer, model.config, "cpu")
    np.testing.assert_array_equal(torch_model.table, model.table)


def test_the_best_candidates_come_first_and_missing_ones_last(encoder):
    # The query is candidate 2. The last candidate is missing.
    ids = np.array([[4, 0, 2, -1]])
    cosines = np.array([[0.5, 0.5, 0.5, -np.inf]], dtype=np.float32)

    scores, best = Reranker(encoder, 4, weight=1.0).best([FRENCH[2]], read, cosines, ids)

    assert best[0, 0] == 2
    assert best[0, 3] == -1
    # The mean of the cosine and of MaxSim, which is 1 for a sentence with itself.
    assert scores[0, 0] == pytest.approx((0.5 + 1) / 2)
    assert (np.diff(scores[0]) <= 0).all()


def test_missing_candidates_keep_their_cosines(encoder):
    cosines = np.full((1, 2), -np.inf, dtype=np.float32)
    ids = np.full((1, 2), -1)

    scores = Reranker(encoder, 2).scores(ENGLISH[:1], read, cosines, ids)

    np.testing.assert_array_equal(scores, cosines)


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    """An index of the French sentences."""
    path = tmp_path_factory.mktemp("r") / "index"
    return CorpusIndex.build(path, FRENCH, encoder.embed, encoder.fingerprint, plain=True)


def test_an_index_returns_the_best_of_the_reranked_candidates(encoder, index):
    num_candidates = 9
    reranker = Reranker(encoder, num_candidates)
    queries = ENGLISH[:30]

    all_hits = index.search(queries, encoder.embed, k=2, reranker=reranker)

    query_vectors = normalise_rows(encoder.embed(Text(queries)))
    candidate_vectors = normalise_rows(encoder.embed(Text(FRENCH)))
    cosines, nearest = nearest_neighbours(query_vectors, candidate_vectors, num_candidates)
    scores, ids = reranker.best(queries, read, cosines, nearest)
    hit_ids = [[hit.line for hit in hits] for hits in all_hits]
    hit_scores = [[hit.score for hit in hits] for hits in all_hits]
    assert hit_ids == ids[:, :2].tolist()
    np.testing.assert_allclose(hit_scores, scores[:, :2], atol=1e-6)
    # Without re-ranking, there would be other hits.
    assert hit_ids != nearest[:, :2].tolist()


def test_an_index_refuses_to_rerank_fewer_candidates_than_hits(encoder, index):
    with pytest.raises(InputError, match=r"rerank 9 .*10"):
        index.search(ENGLISH[:30], encoder.embed, k=10, reranker=Reranker(encoder, 9))


def test_an_index_may_have_fewer_sentences_than_are_reranked(encoder, tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", FRENCH[:3], encoder.embed, encoder.fingerprint, plain=True
    )

    hits = index.search(ENGLISH[0], encoder.embed, 5, reranker=Reranker(encoder, 9))

    assert len(hits) == 3


# In both orders, because equal cosines would favour the first sentence.
BOTH_ORDERS = pytest.mark.parametrize(
    "lines", [ENGLISH[:40], ENGLISH[:40][::-1]], ids=["forward", "backward"]
)
RERANKED_METRIC = "cosine+1*ordered-maxsim-of-40"


@BOTH_ORDERS
def test_retrieval_of_sentences_of_equal_cosine_is_right_by_reranking(encoder, lines):
    texts = select([(line, line) for line in lines])

    [score, _] = SentenceRetrieval(rerank=40).scores(texts, ConstantEncoder(encoder.encoder))

    assert score.settings["metric"] == RERANKED_METRIC
    assert score.values["P@1"] == 100


@BOTH_ORDERS
def test_tatoeba_of_sentences_of_equal_cosine_has_no_errors_by_reranking(encoder, lines):
    constant_encoder = ConstantEncoder(encoder.encoder)

    scores = Tatoeba(rerank=40).scores(Text(lines), Text(lines), constant_encoder)

    for score in scores:
        assert score.settings["metric"] == RERANKED_METRIC
        assert score.values["error"] == 0


@BOTH_ORDERS
def test_tatoeba_of_sentences_of_equal_cosine_is_nearly_all_wrong_without_reranking(encoder, lines):
    constant_encoder = ConstantEncoder(encoder.encoder)

    [score, _] = Tatoeba().scores(Text(lines), Text(lines), constant_encoder)

    # In percent. Only the first of 40 is right.
    assert score.values["error"] > 90


class ConstantEncoder(ModelFolder):
    """Has the pieces of a model, and the same embedding for all sentences."""

    def embed(self, text, counts=None):
        return np.ones((len(text), 4), dtype=np.float32)


def test_the_error_for_a_model_that_cannot_rerank_names_its_folder(tmp_path):
    """It has layers and is not gated, so it has no table of pieces to compare."""
    folder = random_model.write_model(tmp_path / "m")
    model_with_layers = ModelFolder(SentenceEncoder.from_pretrained(folder))

    with pytest.raises(InputError, match=f"{folder}: "):
        Reranker(model_with_layers, 10)


def test_a_model_of_another_library_cannot_rerank():
    with pytest.raises(InputError, match=r"rerank: .*model folder"):
        Reranker(LibraryModel(None, "", 4), 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "rerank 0"), ((10, -1), "weight -1")],
    ids=["no candidates", "negative weight"],
)
def test_reranking_no_candidates_or_with_a_negative_weight_is_refused(encoder, arguments, message):
    with pytest.raises(InputError, match=message):
        Reranker(encoder, *arguments)


def test_an_empty_query_is_not_reranked(encoder):
    with pytest.raises(InputError, match="''"):
        Reranker(encoder, 1).scores([""], read, np.ones((1, 1)), np.array([[0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": ("nn", "csls"), "rerank": 10}, "nn,csls"),
        # The protocol has the score P@10.
        ({"rerank": 9}, r"rerank 9 .*10"),
    ],
    ids=["two metrics", "too few"],
)
def test_retrieval_refuses_reranking_of_two_metrics_or_too_few_candidates(
    encoder, options, message
):
    texts = select(zip(ENGLISH, FRENCH, strict=False))

    with pytest.raises(InputError, match=message):
        SentenceRetrieval(**options).scores(texts, encoder)


def test_a_gated_model_with_layers_reranks_by_its_input_vectors(tmp_path):
    encoder = SentenceEncoder.from_pretrained(random_model.write_model(tmp_path / "m", gated=True))
    table = encoder.model.embed_tokens.weight.detach().numpy()
    [english] = encoder.tokenizer.encode([ENGLISH[0]])
    [french] = encoder.tokenizer.encode([FRENCH[0]])
    cosines = np.zeros((1, 1))

    scores = Reranker(ModelFolder(encoder), 1).scores(ENGLISH[:1], read, cosines, np.array([[0]]))

    # With weight 1, a score is the mean of the cosine, which is 0 here, and MaxSim.
    expected = ordered_max_sim(table, english, french) / 2
    np.testing.assert_allclose(scores, [[expected]], atol=1e-5)


@pytest.fixture
def text_files(tmp_path):
    """Files of 60 English and 60 French sentences."""
    english = tmp_path / "en"
    french = tmp_path / "fr"
    english.write_text("\n".join([*ENGLISH[:60], ""]), encoding="utf-8")
    french.write_text("\n".join([*FRENCH[:60], ""]), encoding="utf-8")
    return english, french


@pytest.mark.parametrize("protocol", ["xsr", "tatoeba"])
def test_the_command_eval_reranks_and_names_the_metric(encoder, text_files, protocol):
    english, french = text_files
    files = ("--model", encoder.encoder.folder, "--source", english, "--target", french)

    done = lxsr_here("eval", protocol, *files, "--rerank", 10)

    assert "|metric:cosine+1*ordered-maxsim-of-10|" in done.stdout


@pytest.fixture
def search_command(encoder, text_files, tmp_path):
    """The command that searches the French sentences for two hits."""
    _, french = text_files
    index = tmp_path / "index"
    model = encoder.encoder.folder
    lxsr_here("index", "--model", model, "--input", french, "--output", index)
    return ("search", "--index", index, ENGLISH[0], "--k", 2)


def test_the_command_search_prints_other_hits_with_reranking(search_command):
    lines = lxsr_here(*search_command).stdout.splitlines()
    reranked_lines = lxsr_here(*search_command, "--rerank", 60).stdout.splitlines()

    # The query and two hits.
    assert len(lines) == 3
    assert len(reranked_lines) == 3
    assert lines != reranked_lines


def test_the_command_search_refuses_to_rerank_fewer_candidates_than_hits(search_command):
    done = lxsr_here(*search_command, "--rerank", 1, check=False)

    refused(done, "--rerank 1", "2")


MINED_ENGLISH = ENGLISH[:60]
MINED_FRENCH = FRENCH[:50]


def mining_sides(encoder, folder) -> list[Side]:
    """Both texts to mine, written to files."""
    (folder / "a").write_text("\n".join([*MINED_ENGLISH, ""]), encoding="utf-8")
    (folder / "b").write_text("\n".join([*MINED_FRENCH, ""]), encoding="utf-8")
    return [Side(folder / "a", encoder, "a"), Side(folder / "b", encoder, "b")]


@pytest.mark.parametrize("retrieval", ["max", "all"])
def test_the_margin_of_mined_pairs_uses_reranked_scores(encoder, tmp_path, retrieval):
    k = 3
    depth = 8
    sides = mining_sides(encoder, tmp_path)
    options = Mining(k=k, retrieval=retrieval, rerank=depth)

    pairs = mine_files(*sides, tmp_path / "out.tsv", None, options)

    reranker = Reranker(encoder, depth)
    source_vectors = normalise_rows(encoder.embed(Text(MINED_ENGLISH)))
    target_vectors = normalise_rows(encoder.embed(Text(MINED_FRENCH)))

    def read_english(rows):
        return [MINED_ENGLISH[row] for row in rows]

    cosines, ids = nearest_neighbours(source_vectors, target_vectors, depth)
    forward_scores, forward_ids = reranker.best(MINED_ENGLISH, read, cosines, ids)
    cosines, ids = nearest_neighbours(target_vectors, source_vectors, depth)
    backward_scores, backward_ids = reranker.best(MINED_FRENCH, read_english, cosines, ids)
    expected = mine_neighbours(
        forward_scores[:, :k],
        forward_ids[:, :k],
        backward_scores[:, :k],
        backward_ids[:, :k],
        "ratio",
        retrieval,
    )
    np.testing.assert_array_equal(pairs.source, expected.source)
    np.testing.assert_allclose(pairs.scores, expected.scores, rtol=1e-5)


def test_reranking_changes_the_scores_of_mined_pairs(encoder, tmp_path):
    sides = mining_sides(encoder, tmp_path)

    reranked = mine_files(*sides, tmp_path / "out.tsv", None, Mining(k=3, rerank=8))
    without_reranking = mine_files(*sides, tmp_path / "out.tsv", None, Mining(k=3))

    assert reranked.scores.tolist() != without_reranking.scores.tolist()


def test_neighbours_stored_without_reranking_are_not_used_with_it(encoder, tmp_path):
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    without_reranking = mine_files(*sides, output, work, Mining())

    pairs = mine_files(*sides, output, work, Mining(rerank=9))

    expected = mine_files(*sides, output, None, Mining(rerank=9))
    assert pairs.scores.tolist() == expected.scores.tolist()
    assert pairs.scores.tolist() != without_reranking.scores.tolist()


def test_neighbours_stored_with_the_score_of_an_earlier_version_are_not_used(
    encoder, tmp_path, monkeypatch
):
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    # In the earlier version, the score had another name, and was the cosine.
    with monkeypatch.context() as patch:
        patch.setattr(search_options, "score_name", lambda depth: "that of an earlier version")
        patch.setattr(Reranker, "scores", lambda self, queries, read, cosines, ids: cosines)
        with_earlier_score = mine_files(*sides, output, work, Mining(rerank=9))

    pairs = mine_files(*sides, output, work, Mining(rerank=9))

    expected = mine_files(*sides, output, None, Mining(rerank=9))
    assert pairs.scores.tolist() == expected.scores.tolist()
    assert pairs.scores.tolist() != with_earlier_score.scores.tolist()


def test_the_command_mine_reranks_as_the_function_does(encoder, tmp_path):
    source, target = mining_sides(encoder, tmp_path)
    mine_files(source, target, tmp_path / "expected.tsv", None, Mining(rerank=9))

    files = ("--source", source.path, "--target", target.path, "--output", tmp_path / "out.tsv")
    lxsr_here("mine", "--model", encoder.encoder.folder, *files, "--rerank", 9)

    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "expected.tsv").read_bytes()


def test_mining_refuses_to_rerank_fewer_candidates_than_neighbours(encoder, tmp_path):
    """The default number of neighbours is 4."""
    source, target = mining_sides(encoder, tmp_path)

    with pytest.raises(InputError, match=r"rerank 3 .*4"):
        mine_files(source, target, tmp_path / "out.tsv", None, Mining(rerank=3))


def test_mining_on_a_cluster_refuses_reranking(encoder, tmp_path):
    source, target = mining_sides(encoder, tmp_path)

    with pytest.raises(InputError, match=r"rerank 8 .*cluster"):
        mine_shards(source, target, tmp_path / "out.tsv", None, None, Mining(rerank=8))


def test_mining_with_a_model_for_each_side_refuses_reranking(encoder, tmp_path):
    source, target = mining_sides(encoder, tmp_path)
    folder = random_model.write_model(
        tmp_path / "m", gated=True, num_layers=0, order_coefficients=1
    )
    another_model = ModelFolder(SentenceEncoder.from_pretrained(folder))

    with pytest.raises(InputError, match=r"rerank .*model"):
        mine_files(
            source, Side(target.path, another_model), tmp_path / "out.tsv", None, Mining(rerank=8)
        )


@pytest.fixture
def scored_pairs(monkeypatch):
    """The pairs of sentences that are scored from now on, a set for each search."""
    pairs_of_searches: list[set] = []
    original_scores = Reranker.scores

    def recording_scores(self, queries, read, cosines, ids):
        pairs = set()
        for query, row in zip(queries, ids, strict=True):
            for line in read(row[row >= 0]):
                pairs.add((query, line))
        pairs_of_searches.append(pairs)
        return original_scores(self, queries, read, cosines, ids)

    monkeypatch.setattr(Reranker, "scores", recording_scores)
    return pairs_of_searches


def test_mining_scores_each_pair_once_and_first_tells_their_largest_number(
    encoder, tmp_path, scored_pairs, capsys
):
    sides = mining_sides(encoder, tmp_path)
    depth = 8

    options = Mining(k=3, rerank=depth)
    mine_files(*sides, tmp_path / "out.tsv", None, options, show_progress=True)

    forward, backward = scored_pairs
    assert len(forward) == len(MINED_ENGLISH) * depth
    # The backward search scores only pairs that the forward search has not scored.
    assert forward.isdisjoint({(source, target) for target, source in backward})
    assert len(backward) < len(MINED_FRENCH) * depth
    # (60 + 50) * 8.
    assert re.search(r"--rerank 8\b.*\b880\b", capsys.readouterr().err)


def test_mining_interrupted_before_the_backward_search_scores_only_that(
    encoder, tmp_path, scored_pairs
):
    sides = mining_sides(encoder, tmp_path)
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    mine_files(*sides, output, work, Mining(k=3, rerank=8))
    expected = output.read_bytes()
    forward, backward = scored_pairs
    # What an interruption would leave.
    (work / "backward.npy").unlink()

    mine_files(*sides, output, work, Mining(k=3, rerank=8))

    assert output.read_bytes() == expected
    assert scored_pairs == [forward, backward, backward]


def test_reranking_unpacks_only_the_needed_rows_of_a_packed_table(encoder, monkeypatch):
    def fail_if_called(table):
        raise AssertionError("all rows of the table are unpacked")

    def scores_with(table):
        source = encoder.encoder
        model = SentenceEncoder(Bag(source.size, {TABLE: table}), source.tokenizer, source.config)
        cosines = np.zeros((3, 4), np.float32)
        ids = np.arange(12).reshape(3, 4)
        return Reranker(ModelFolder(model), 4).scores(ENGLISH[:3], read, cosines, ids)

    packed_table = PackedTable(*to_int4(encoder.encoder.table))
    expected = scores_with(packed_table.all_rows())
    monkeypatch.setattr(PackedTable, "all_rows", fail_if_called)

    scores = scores_with(packed_table)

    np.testing.assert_array_equal(scores, expected)
