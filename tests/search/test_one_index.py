"""One index, whoever wrote its segments: a process, edits of it, or shards on a cluster.

Each test is for default indexes and for plain ones.
"""

import os
import random

import numpy as np
import pytest
import random_model
import toy

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cluster import index_shards
from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.search import CorpusIndex, IndexOptions
from fairseq_lxsr.search.index_config import config_text, read_config
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.text.common_words import LABELS

SENTENCES = list(dict.fromkeys(english for english, _ in toy.sentences(300, seed=3)))
ENGLISH = [" ".join(SENTENCES[start : start + 3]) for start in range(0, 240, 3)]
FRENCH = [french for _, french in toy.sentences(80, seed=4)]
# Texts of several sentences in English, in French, and with words that do not tell the language.
TEXTS = []
for number in range(80):
    if number % 3 == 0:
        TEXTS.append(ENGLISH[number])
    elif number % 3 == 1:
        TEXTS.append(f"{FRENCH[number]} Il est dans la rue avec les autres.")
    else:
        TEXTS.append(FRENCH[number])
QUERIES = [
    SENTENCES[9],
    "Which red dog follows the cat?",
    "mouse",
    # The model knows no word like zzyzx.
    f"{SENTENCES[100]} zzyzx",
    FRENCH[4],
    "zzyzx",
]


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch):
    """Save the time of flushing files to the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A random model without layers."""
    path = tmp_path_factory.mktemp("model") / "m"
    folder = random_model.write_model(path, gated=True, num_layers=0)
    return ModelFolder(SentenceEncoder.from_pretrained(folder), show_progress=False)


class LocalWorkers:
    """Runs the tasks of a cluster in this process."""

    shard_lines = 30

    def __init__(self, encoder):
        self._encoder = encoder
        self.model = encoder.fingerprint

    def run(self, tasks):
        for task in tasks:
            yield task, task(lambda: self._encoder)


def embed_of(encoder):
    return encoder.embed


def build_shards(folder, texts, encoder, **options):
    """Build an index in shards, as workers of a cluster do."""
    options["model_folder"] = str(encoder.encoder.folder)
    index_shards(texts, folder, embed_of, LocalWorkers(encoder), IndexOptions(**options))
    return CorpusIndex.load(folder)


def all_hits(index, encoder, condition=None):
    """The hits of all QUERIES, without re-ranking and with it."""
    hits = []
    for reranker in (None, Reranker(encoder, 12)):
        hits.append(index.search(QUERIES, encoder, k=8, reranker=reranker, where=condition))
    return hits


def folder_names(index):
    return {path.name for path in index.folder.iterdir() if path.is_dir()}


def test_the_texts_of_these_tests_have_labels_of_several_languages(encoder, tmp_path):
    """So the tests below compare the searches of several languages."""
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder)

    # Latn is the label of a text of which only the script is known.
    labels = {LABELS[number] for number in index._stored.segments[0].languages}
    assert labels >= {"en", "fr", "Latn"}
    # Such texts belong to the largest language of their script.
    assert len(set(index._stored.languages)) == 2


# -- shards


@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_an_index_in_shards_has_the_ids_and_hits_of_one_index(encoder, tmp_path, plain):
    # With lines that are not indexed: empty, blank, and without a known word.
    texts = ["", *TEXTS[:40], " ", "\u4e00", *TEXTS[40:]]

    whole = CorpusIndex.build(tmp_path / "whole", texts, encoder, plain=plain)
    shards = build_shards(tmp_path / "shards", texts, encoder, plain=plain)

    # 83 lines in shards of 30.
    assert len(shards.config["segments"]) == 3
    assert len(shards) == len(whole)
    assert shards.ids == whole.ids
    for condition in (None, whole.ids[::3], [], lambda id_: id_.endswith("7")):
        assert all_hits(shards, encoder, condition) == all_hits(whole, encoder, condition)


EDITS = (
    lambda index: index.add(TEXTS[70:]),
    lambda index: index.update(["5", "40"], [f"{SENTENCES[280]} zzyzx", SENTENCES[281]]),
    lambda index: index.delete(["1", "33", "75"]),
    lambda index: index.compact(),
)


@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_an_index_in_shards_has_the_hits_of_one_index_after_each_edit(encoder, tmp_path, plain):
    whole = CorpusIndex.build(tmp_path / "whole", TEXTS[:70], encoder, plain=plain)
    shards = build_shards(tmp_path / "shards", TEXTS[:70], encoder, plain=plain)

    for edit in EDITS:
        edit(whole)
        edit(shards)

        assert all_hits(shards, encoder) == all_hits(whole, encoder)
    assert shards.ids == whole.ids
    assert shards.is_current()


@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_compaction_removes_the_folders_of_shards_but_not_from_an_open_index(
    encoder, tmp_path, plain
):
    shards = build_shards(tmp_path / "shards", TEXTS[:70], encoder, plain=plain)
    reader = CorpusIndex.load(shards.folder)
    hits_before = all_hits(reader, encoder)

    for edit in EDITS:
        edit(shards)

    # The last edit is a compaction.
    assert folder_names(shards) == {shards.config["segments"][0]["folder"]}
    assert not reader.is_current()
    assert all_hits(reader, encoder) == hits_before


def test_a_new_build_in_shards_replaces_an_edited_index_and_its_files(encoder, tmp_path):
    shards = build_shards(tmp_path / "shards", TEXTS, encoder)
    expected = all_hits(shards, encoder)
    shards.add([SENTENCES[280]])
    shards.delete(["3"])

    rebuilt = build_shards(tmp_path / "shards", TEXTS, encoder)

    assert all_hits(rebuilt, encoder) == expected
    listed = {segment["folder"] for segment in rebuilt.config["segments"]}
    names = {path.name for path in rebuilt.folder.iterdir() if not path.name.startswith(".")}
    assert names == {"index.json", *listed}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors on Linux")
def test_an_index_of_2000_segments_takes_few_descriptors(encoder, tmp_path):
    """Systems often allow a process 1024."""
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:1], encoder)
    config = read_config(index.folder)
    # The same segment 2000 times.
    [segment] = config["segments"]
    config |= {"segments": [segment] * 2000, "sentences": 2000}
    (index.folder / "index.json").write_text(config_text(config))
    num_files_before = len(os.listdir("/proc/self/fd"))

    loaded = CorpusIndex.load(index.folder)
    hits = loaded.search(SENTENCES[0], encoder, k=5)

    assert len(loaded) == 2000
    assert len(hits) == 5
    assert len(os.listdir("/proc/self/fd")) < num_files_before + 10


# -- words, re-ranking and conditions


@pytest.mark.parametrize(
    ("query", "only_hit"),
    # Without a known word, a query has no vector, and finds sentences by their words alone.
    [("zzyzx horse", False), ("zzyzx", True)],
    ids=["known and unknown", "unknown"],
)
def test_a_word_that_the_model_does_not_know_finds_its_sentence(encoder, tmp_path, query, only_hit):
    sentences = [*SENTENCES[:150], "The zzyzx sleeps near the horse."]
    index = CorpusIndex.build(tmp_path / "index", sentences, encoder)

    hits = index.search(query, encoder, k=len(sentences))

    assert hits[0].line == 150
    if only_hit:
        assert len(hits) == 1


def test_deleted_passages_do_not_count_in_the_weights_of_words(encoder, tmp_path):
    # The word ferry is in all of the deleted passages, and in one of the others.
    old = [f"The ferry number {number} leaves the old harbour at noon." for number in range(40)]
    new = ["The ferry to the island sails in winter.", "The pool is closed in winter.", *TEXTS]
    ids = [f"note-{number}" for number in range(len(old) + len(new))]
    edited = CorpusIndex.build(tmp_path / "edited", old + new, encoder, ids=ids)
    edited.delete(ids[: len(old)])
    fresh = CorpusIndex.build(tmp_path / "fresh", new, encoder, ids=ids[len(old) :])

    hits = edited.search("Is the ferry closed?", encoder)

    expected_hits = fresh.search("Is the ferry closed?", encoder)
    assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in expected_hits]


@pytest.mark.parametrize("query", QUERIES[:3], ids=["sentence", "question", "word"])
def test_passages_are_reranked_by_their_best_sentence(encoder, tmp_path, query):
    index = CorpusIndex.build(tmp_path / "index", TEXTS[:20], encoder)
    num_candidates = 10
    reranker = Reranker(encoder, num_candidates, weight=0.5)

    hits = index.search(query, encoder, k=4, reranker=reranker)

    # A candidate of one sentence has no match.
    candidates = index.search(query, encoder, k=num_candidates)
    best_sentences = [hit.match or hit.text for hit in candidates]

    def read(rows):
        return [best_sentences[row] for row in rows]

    scores = np.array([[hit.score for hit in candidates]])
    [reranked_scores] = reranker.scores([query], read, scores, np.arange(num_candidates)[None])
    order = np.argsort(-reranked_scores, kind="stable")[:4]
    assert [hit.id for hit in hits] == [candidates[number].id for number in order]
    matches = [hit.match or hit.text for hit in hits]
    assert matches == [best_sentences[number] for number in order]
    np.testing.assert_allclose([hit.score for hit in hits], reranked_scores[order], rtol=1e-6)


ALLOWED_IDS = [str(number) for number in range(1, 40)]


@pytest.mark.parametrize(
    "condition", [ALLOWED_IDS, lambda id_: int(id_) < 40], ids=["ids", "function"]
)
@pytest.mark.parametrize("is_reranked", [False, True], ids=["ranked", "reranked"])
@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_all_documents_that_fulfil_a_condition_are_hits_with_any_ranking(
    encoder, tmp_path, plain, is_reranked, condition
):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=plain)
    index.delete(["2"])
    options = {"k": len(TEXTS)}
    if is_reranked:
        options["reranker"] = Reranker(encoder, len(TEXTS))
    # The last has no known word, and so no vector.
    for query in QUERIES[:-1]:
        hits = index.search(query, encoder, where=condition, **options)

        assert {hit.id for hit in hits} == set(ALLOWED_IDS) - {"2"}
        # In a default index, a score depends on the candidates.
        if plain:
            hits_without_condition = index.search(query, encoder, **options)
            assert hits == [hit for hit in hits_without_condition if hit.id in ALLOWED_IDS]


# -- random edits


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "float16", "int8"])
@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_random_edits_give_the_hits_of_a_new_index_to_the_last_bit(encoder, tmp_path, kind, plain):
    """Rounded kinds only after compaction, because edits do not round vectors."""
    pytest.importorskip("faiss")
    rng = random.Random(1)
    pool = SENTENCES if plain else TEXTS
    options = {"kind": kind, "plain": plain}
    # The texts that the index must have, by their ids, which are line numbers.
    texts = {str(number + 1): text for number, text in enumerate(pool[:40])}
    index = build_shards(tmp_path / "index", texts.values(), encoder, **options)
    next_line = 41
    num_compared = 0
    for number in range(60):
        edit = rng.choice(["add", "update", "delete", "compact"])
        ids = rng.sample(sorted(texts), min(rng.randint(1, 6), len(texts)))
        if edit == "add":
            new = rng.choices(pool, k=rng.randint(1, 6))
            index.add(new)
            texts |= {str(next_line + place): text for place, text in enumerate(new)}
            next_line += len(new)
        elif edit == "update":
            new = rng.choices([*pool, "A zzyzx dog sleeps. It sees the mouse."], k=len(ids))
            index.update(ids, new)
            # An updated document is the last in the index; hits with equal scores are in its order.
            for id_, text in zip(ids, new, strict=True):
                del texts[id_]
                texts[id_] = text
        elif edit == "delete" and len(texts) > 20:
            index.delete(ids)
            for id_ in ids:
                del texts[id_]
        elif edit == "compact":
            index.compact()
        is_compact = len(index.config["segments"]) == 1 and index.config["deleted"] is None
        if kind != "flat" and not (edit == "compact" and is_compact):
            continue
        assert list(texts) == index.ids
        new_index = CorpusIndex.build(
            tmp_path / "new", texts.values(), encoder, ids=list(texts), **options
        )
        half_of_ids = set(rng.sample(sorted(texts), len(texts) // 2))
        for condition in (None, half_of_ids):
            hits = without_lines(all_hits(index, encoder, condition))
            assert hits == without_lines(all_hits(new_index, encoder, condition)), (number, edit)
            num_compared += 1
    # Of 60 edits, about a quarter are compactions.
    assert num_compared >= 20


def without_lines(all_hits):
    """Scores, ids, texts and matches in one list; a new index has different line numbers."""
    results = []
    for hits_of_ranking in all_hits:
        for hits in hits_of_ranking:
            results.append([(hit.score, hit.id, hit.text, hit.match) for hit in hits])
    return results
