"""A default index: its sentences, its ranking, and its words."""

import json
from typing import NamedTuple

import numpy as np
import pytest
import random_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder, Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.search import CorpusIndex, segment_writer
from fairseq_lxsr.search import passages as ranking
from fairseq_lxsr.search.lexical import LEXICAL_FILES, Postings
from fairseq_lxsr.search.passages import PassageRanker
from fairseq_lxsr.search.retrieval import BEST_SHARE, WORD_WEIGHT
from fairseq_lxsr.search.segment_files import (
    LANGUAGES_FILE,
    PIECE_ENDS_FILE,
    PIECE_TYPE,
    PIECES_FILE,
    SKETCH_FILE,
)
from fairseq_lxsr.search.splitting import passage_rows, sentence_spans, windows

SENTENCES = list(dict.fromkeys(english for english, _ in toy.sentences(300, seed=3)))
# Twenty passages of four sentences, and one that is many windows long.
PASSAGES = [" ".join(SENTENCES[start : start + 4]) for start in range(0, 80, 4)]
LONG = " ".join(SENTENCES[100:260])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_model.write_model(
        tmp_path_factory.mktemp("passages") / "m", gated=True, num_layers=0
    )


@pytest.fixture(scope="module")
def encoder(folder):
    return ModelFolder(SentenceEncoder.from_pretrained(folder))


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "index"
    return CorpusIndex.build(path, [*PASSAGES, LONG], encoder)


# -- sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("A short sentence.", ["A short sentence."]),
        (
            "The dog sleeps in the red house. Where does the black cat sleep now? Nobody knows it today!",
            [
                "The dog sleeps in the red house.",
                "Where does the black cat sleep now?",
                "Nobody knows it today!",
            ],
        ),
        (
            "Dr. A. Smith lives in a large old house in London.",
            ["Dr. A. Smith lives in a large old house in London."],
        ),
        (
            "今天早上下了很大的雨,街上没有人。猫在家里睡觉,狗在外面跑。",
            ["今天早上下了很大的雨,街上没有人。", "猫在家里睡觉,狗在外面跑。"],
        ),
    ],
)
def test_a_text_is_split_into_sentences(text, sentences):
    spans = sentence_spans(text)
    assert [text[start:stop] for start, stop in spans] == sentences


def test_a_code_finds_its_line_among_similar_codes(tmp_path):
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    lines = [f"Part no. AX-{number}, steel" for number in range(100, 200)]
    index = CorpusIndex.build(tmp_path / "parts", lines, encoder)
    all_hits = index.search([f"AX-{number}" for number in range(100, 200)], k=1)
    assert [hit.line for (hit,) in all_hits] == list(range(100))


def test_ends_of_sentences_in_many_scripts():
    texts = {
        "この本は学生にはとても高いです｡|今年は買うことができません｡|図書館が助けてくれるでしょう｡": "",
        "这本书对学生来说真的太贵了\uff0e|他们今年肯定买不起它\uff0e|图书馆可以帮助他们\uff0e": "",
        "「今日はみんなで家に帰りましょう。」|と彼は言いました。": "",
        'He said: "we will all walk home today."|Then they closed the old door.': " ",
        "It opens at ten (not on Mondays, sadly.)|Children enter free of charge.": " ",
        "یہ کتاب طلباء کے لیے بہت مہنگی ہے\u06d4|وہ اس سال اسے نہیں خرید سکتے\u06d4": " ",
        "សៀវភៅនេះថ្លៃណាស់សម្រាប់សិស្សទាំងអស់។|ពួកគេមិនអាចទិញវាបានទេ។": " ",
        "Version 3\uff0e14 is out now and nobody has it.|Use it.": " ",
    }
    for marked_text, separator in texts.items():
        sentences = marked_text.split("|")
        text = separator.join(sentences)
        assert [text[start:stop] for start, stop in sentence_spans(text)] == sentences


@pytest.mark.parametrize("text", [LONG, "a" * 5000, "ab cd " * 1000, "ก" * 3000, "x. " * 900])
def test_windows_cover_a_text_of_any_length(text):
    all_windows = windows(text)
    assert len(all_windows) > 1
    covered = ""
    for window in all_windows:
        for start, stop in window.sentences:
            covered += text[start:stop]
    assert covered.replace(" ", "") == text.replace(" ", "")
    for window in all_windows:
        assert window.span == (window.sentences[0][0], window.sentences[-1][1])
        assert window.span[1] - window.span[0] < 1500
    rows = passage_rows(text)
    assert len(set(rows)) == len(rows)


# -- ranking


class Candidate(NamedTuple):
    """A window of a passage, and its largest cosine with the query."""

    cosine: float
    sentences: list[str]


def reference_scores(encoder, query, candidates):
    """Scores and best sentences of candidates by loops over windows, sentences and pieces."""
    table = encoder.encoder.table
    units = table / np.linalg.norm(table, axis=1, keepdims=True).clip(1e-9)
    ids, _ = encoder.encoder.split([query])
    pieces_of_sentences = []
    windows = []
    for candidate in candidates:
        pieces = [encoder.encoder.split([text])[0] for text in candidate.sentences]
        pieces_of_sentences.append(pieces)
        windows.append(np.concatenate(pieces))
    weights = []
    for piece in ids:
        rarity = max(np.log(piece + 2) - ranking.FREQUENT_PIECES, ranking.SMALLEST_WEIGHT)
        largest = [max(units[window] @ units[piece]) for window in windows]
        share = np.mean([max(cosine, 0) ** 4 for cosine in largest]) + 1 / len(windows)
        weights.append(np.sqrt(np.linalg.norm(table[piece])) * rarity * (1 - np.log(share)))
    weights = np.array(weights) / sum(weights)

    def max_sim(pieces):
        return weights @ (units[ids] @ units[pieces].T).max(axis=1)

    def pairs(pieces):
        if len(ids) == 1:
            return max_sim(pieces)
        total = 0.0
        for i in range(len(ids) - 1):
            best = 0.0
            for j in range(len(pieces) - 1):
                first = units[ids[i]] @ units[pieces[j]]
                second = units[ids[i + 1]] @ units[pieces[j + 1]]
                best = max(best, min(first, second))
            total += (weights[i] + weights[i + 1]) * best
        return total / sum(weights[:-1] + weights[1:])

    results = []
    for candidate, sentences, window in zip(candidates, pieces_of_sentences, windows, strict=True):
        sentence_scores = [max_sim(sentence) for sentence in sentences]
        score = (candidate.cosine + max_sim(window) + max(sentence_scores) + pairs(window)) / 4
        score -= ranking.LENGTH_PENALTY * np.log(len(window))
        results.append((score, int(np.argmax(sentence_scores))))
    return results


def rank(ranker: PassageRanker, query: str, candidates: list[Candidate]):
    """Return the score and the best sentence of each candidate."""
    [query_ids] = ranker.split_queries([query])
    windows = ranker.split_windows([candidate.sentences for candidate in candidates])
    cosines = np.array([candidate.cosine for candidate in candidates])
    scores, sentences = ranker.score(query_ids, windows, cosines)
    return list(zip(scores.tolist(), sentences.tolist(), strict=True))


@pytest.mark.parametrize("query", ["three red dogs", SENTENCES[40], "dog"])
def test_scores_of_candidates_are_the_formula(encoder, query):
    all_candidates = [
        Candidate(0, SENTENCES[:3]),
        Candidate(0.1, SENTENCES[5:6]),
        Candidate(0.2, ["three dogs", "red dogs"]),
        Candidate(0.3, ["dog"]),
        Candidate(0.4, SENTENCES[38:44]),
    ]
    for count in (1, 2, 5):
        candidates = all_candidates[:count]
        ranked = rank(PassageRanker(encoder), query, candidates)
        expected = reference_scores(encoder, query, candidates)
        for result, (score, sentence) in zip(ranked, expected, strict=True):
            assert result[0] == pytest.approx(score, abs=1e-5)
            assert result[1] == sentence


def test_the_block_size_for_long_queries_changes_no_score(encoder, monkeypatch):
    query = " ".join(SENTENCES[40:60])
    candidates = [Candidate(0.1, SENTENCES[:3]), Candidate(0.1, ["dog"])]
    expected = rank(PassageRanker(encoder), query, candidates)
    for size in (1, 40, 1000):
        monkeypatch.setattr(ranking, "LARGEST_BLOCK", size)
        ranked = rank(PassageRanker(encoder), query, candidates)
        for result, expected_result in zip(ranked, expected, strict=True):
            assert result[0] == pytest.approx(expected_result[0], abs=1e-6)
            assert result[1] == expected_result[1]


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_equal_passages_keep_their_order(encoder, tmp_path, kind):
    pytest.importorskip("faiss")
    passages = [PASSAGES[number // 7] for number in range(21)]
    index = CorpusIndex.build(tmp_path / "index", passages, encoder, kind=kind)
    queries = [*SENTENCES[:30], "dog"]
    hits_together = index.search(queries, k=21)
    hits_one_by_one = [index.search(query, k=21) for query in queries]
    for hits in hits_together + hits_one_by_one:
        positions = [(-hit.score, hit.line) for hit in hits]
        assert len(positions) == 21
        assert positions == sorted(positions)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_equal_words_keep_their_order(encoder, tmp_path, kind):
    pytest.importorskip("faiss")
    all_words = " ".join(SENTENCES).split()
    word = next(word for word in all_words if len(encoder.encoder.split([word])[0]) == 1)
    words = CorpusIndex.build(tmp_path / "words", [word] * 5, encoder, kind=kind)
    hits = words.search(word)
    assert [hit.line for hit in hits] == list(range(5))
    assert len({hit.score for hit in hits}) == 1


def test_words_in_the_order_of_the_query_rank_higher(encoder):
    candidates = [Candidate(0.3, ["a dog red three"]), Candidate(0.3, ["a three red dog"])]
    (shuffled, _), (ordered, _) = rank(PassageRanker(encoder), "three red dog", candidates)
    assert ordered > shuffled + 0.02


def test_query_vectors_are_sums_of_piece_vectors_weighted_by_rarity(encoder):
    """Frequent pieces weigh less than in the embedding of a query."""
    table = encoder.encoder.table
    queries = [SENTENCES[3], SENTENCES[40], "\u4e00"]
    embeddings = np.random.default_rng(1).normal(size=(3, table.shape[1])).astype(np.float32)
    ranker = PassageRanker(encoder)
    query_ids = ranker.split_queries(queries)
    vectors = ranker.query_vectors(query_ids, embeddings)
    for query, vector in zip(queries[:2], vectors, strict=False):
        expected = np.zeros(table.shape[1])
        for piece in encoder.encoder.split([query])[0]:
            rarity = max(np.log(piece + 2) - ranking.FREQUENT_PIECES, ranking.SMALLEST_WEIGHT)
            expected += rarity * table[piece] / np.sqrt(np.linalg.norm(table[piece]))
        np.testing.assert_allclose(vector, expected, atol=1e-4)
    # A query without known pieces keeps its embedding.
    assert (vectors[2] == embeddings[2]).all()
    truncated = ranker.query_vectors(query_ids, embeddings[:, :2])
    np.testing.assert_array_equal(truncated[:2], vectors[:2, :2])


def test_windows_and_queries_without_pieces_score_a_quarter_of_the_cosine(encoder):
    """The other three quarters of a score compare pieces."""
    ranker = PassageRanker(encoder)
    texts = [["\u4e00", SENTENCES[0]], ["\u4e00"], SENTENCES[1:3]]
    candidates = [Candidate(0.3, text) for text in texts]
    first, second, third = rank(ranker, SENTENCES[0], candidates)
    assert first[1] == 1
    assert first[0] > third[0]
    assert second == (pytest.approx(0.075), 0)
    ranked = rank(ranker, "\u4e00", candidates)
    assert [score for score, _ in ranked] == pytest.approx([0.075] * 3)
    assert rank(ranker, "dog", []) == []
    empty = Candidate(0.3, [])
    ranked = rank(ranker, SENTENCES[0], [empty, candidates[0], empty, candidates[2], empty])
    assert [ranked[number][0] for number in (0, 2, 4)] == pytest.approx([0.075] * 3)
    assert ranked[1][1] == 1


def test_an_index_with_stored_pieces_has_the_hits_of_one_without(encoder, tmp_path):
    """An index built with a function stores no pieces."""
    texts = [*PASSAGES, LONG]
    ids = [str(number) for number in range(len(texts))]
    stored = CorpusIndex.build(tmp_path / "stored", texts, encoder, ids=ids)
    plain = CorpusIndex.build(
        tmp_path / "plain", texts, encoder.embed, encoder.fingerprint, ids=ids
    )
    assert {path.name for path in stored.files} >= {PIECES_FILE, PIECE_ENDS_FILE}
    assert PIECES_FILE not in {path.name for path in plain.files}
    for edit in (
        lambda edited, encode: None,
        lambda edited, encode: edited.add([SENTENCES[270]], ["new"], encode),
        lambda edited, encode: edited.update(["3"], [PASSAGES[7]], encode),
        lambda edited, encode: edited.delete(["6"]),
        # The segments of `plain` now have pieces only in part.
        lambda edited, encode: edited.add([SENTENCES[280]], ["newer"], encoder),
        lambda edited, encode: edited.compact(encode),
    ):
        edit(stored, encoder)
        edit(plain, encoder.embed)
        queries = [SENTENCES[9], SENTENCES[150], SENTENCES[280]]
        expected = CorpusIndex.load(tmp_path / "plain").search(queries, encoder, k=9)
        hits = CorpusIndex.load(tmp_path / "stored").search(queries, encoder, k=9)
        for hits_of_query, expected_hits in zip(hits, expected, strict=True):
            for hit, expected_hit in zip(hits_of_query, expected_hits, strict=True):
                assert (hit.id, hit.match) == (expected_hit.id, expected_hit.match)
                assert hit.score == pytest.approx(expected_hit.score, abs=1e-6)
    for segment in stored._stored.segments:
        assert segment.description["pieces"]


def test_a_search_with_stored_pieces_splits_only_the_query(encoder, tmp_path, monkeypatch):
    index = CorpusIndex.build(tmp_path / "index", PASSAGES, encoder)
    num_texts = []
    split = SentenceEncoder.split

    def counting_split(self, texts):
        num_texts.append(len(texts))
        return split(self, texts)

    monkeypatch.setattr(SentenceEncoder, "split", counting_split)
    index.search(SENTENCES[9], k=2)
    assert max(num_texts) == 1


@pytest.mark.parametrize(
    ("name", "byte"),
    [(PIECES_FILE, b"\x7f"), (PIECE_ENDS_FILE, b"\x7f"), (LEXICAL_FILES[1], b"\xff")],
)
def test_a_damaged_file_of_pieces_or_words_is_refused(encoder, tmp_path, name, byte):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    with open(folder / "segment-0" / name, "r+b") as stream:
        stream.seek(-1, 2)
        stream.write(byte)
    with pytest.raises(InputError, match=name):
        CorpusIndex.load(folder)


def update_checksum(folder, name):
    """Make a changed file of the first segment valid, as if another program had written it."""
    path = folder / "index.json"
    config = json.loads(path.read_text())
    config["segments"][0]["files"][name] = sha256(folder / "segment-0" / name)
    del config["crc32"]
    path.write_text(json.dumps(config))


def test_pieces_that_the_model_does_not_have_are_refused(encoder, tmp_path):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    pieces_file = folder / "segment-0" / PIECES_FILE
    pieces = np.fromfile(pieces_file, PIECE_TYPE)
    np.full_like(pieces, -1).tofile(pieces_file)
    update_checksum(folder, PIECES_FILE)
    with pytest.raises(InputError, match=r"-1.*build the index again"):
        CorpusIndex.load(folder).search(SENTENCES[9], encoder, k=1)

    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    np.full_like(pieces, 2**31 - 1).tofile(pieces_file)
    update_checksum(folder, PIECES_FILE)
    with pytest.raises(InputError, match=r"2,147,483,647.*build the index again"):
        CorpusIndex.load(folder).search(SENTENCES[9], encoder, k=1)


def test_a_hit_is_a_passage_with_its_best_sentence(index):
    assert not index.is_plain
    assert index.num_passages == 21
    assert len(index) == 21
    assert index.num_rows > 21
    query = SENTENCES[9]
    [first, second] = index.search(query, k=2)
    assert first.text == PASSAGES[2]
    assert first.line == 2
    assert first.match == SENTENCES[9]
    assert first.score > second.score
    assert first.line != second.line


def test_a_sentence_at_the_end_of_a_long_passage_is_its_match(index):
    hits = index.search(SENTENCES[258], k=3)
    assert hits[0].line == 20
    assert SENTENCES[258] in hits[0].match
    assert len({hit.line for hit in hits}) == 3


def test_all_passages_of_a_rounded_index_are_hits(encoder, tmp_path):
    pytest.importorskip("faiss")
    for kind in ("float16", "int8"):
        path = tmp_path / kind
        built = CorpusIndex.build(path, PASSAGES, encoder, kind=kind)
        assert len(built) == 20
        hits = CorpusIndex.load(path).search(SENTENCES[9], encoder, k=50)
        assert hits[0].line == 2
        assert sorted(hit.line for hit in hits) == list(range(20))


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_an_index_with_a_sketch_has_the_hits_of_a_flat_one(encoder, tmp_path, monkeypatch, kind):
    pytest.importorskip("faiss")
    monkeypatch.setattr(segment_writer, "MIN_SKETCH_ROWS", 20)
    ids = [f"note-{number}" for number in range(21)]
    texts = [*PASSAGES, LONG]
    flat = CorpusIndex.build(tmp_path / "flat", texts, encoder, ids=ids)
    index = CorpusIndex.build(tmp_path / "index", texts, encoder, kind=kind, ids=ids)
    assert SKETCH_FILE in {path.name for path in index.files}
    opened = CorpusIndex.load(tmp_path / "index")
    queries = [SENTENCES[9], SENTENCES[150], SENTENCES[250]]
    for condition in (None, ids[::2], ["note-1"], []):
        expected = flat.search(queries, encoder, k=3, where=condition)
        hits = opened.search(queries, encoder, k=3, where=condition)
        for hits_of_query, expected_hits in zip(hits, expected, strict=True):
            scores = [hit.score for hit in hits_of_query]
            expected_scores = [hit.score for hit in expected_hits]
            np.testing.assert_allclose(scores, expected_scores, atol=0.01)
            assert [hit.id for hit in hits_of_query[:1]] == [hit.id for hit in expected_hits[:1]]
    index.delete(["note-2"])
    assert "note-2" not in {hit.id for hit in index.search(SENTENCES[9], k=21)}
    index.compact()
    assert index.search(SENTENCES[150], k=1)[0].id == "note-20"
    assert SKETCH_FILE in {path.name for path in index.files}


def test_a_damaged_sketch_is_refused(encoder, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(segment_writer, "MIN_SKETCH_ROWS", 20)
    folder = tmp_path / "index"
    CorpusIndex.build(folder, [*PASSAGES, LONG], encoder, kind="int8")
    with open(folder / "segment-0" / SKETCH_FILE, "r+b") as stream:
        stream.truncate(100)
    with pytest.raises(InputError, match=SKETCH_FILE):
        CorpusIndex.load(folder)


def test_passages_are_added_and_deleted(encoder, tmp_path):
    ids = [f"note-{number}" for number in range(20)]
    index = CorpusIndex.build(tmp_path / "index", PASSAGES, encoder, ids=ids)
    index.add([LONG, SENTENCES[290]], ids=["long", "short"])
    [hit] = index.search(SENTENCES[258], k=1)
    assert (hit.id, hit.line) == ("long", 20)
    [hit] = index.search(SENTENCES[290], k=1)
    assert (hit.text, hit.match) == (SENTENCES[290], SENTENCES[290])
    index.delete(["long"])
    assert index.search(SENTENCES[258], k=1)[0].id != "long"
    index.update(["note-0"], [f"{SENTENCES[280]} {SENTENCES[281]}"])
    index.compact()
    hits = CorpusIndex.load(tmp_path / "index").search([SENTENCES[280]], encoder, k=1)
    assert hits[0][0].id == "note-0"
    hits = index.search(SENTENCES[280], k=30, where=["note-3", "note-5"])
    assert sorted(hit.id for hit in hits) == ["note-3", "note-5"]


def test_a_model_without_pieces_ranks_by_cosine_and_words(encoder, tmp_path):
    def embed(text):
        return encoder.embed(text)

    index = CorpusIndex.build(tmp_path / "index", PASSAGES, embed, "model")
    hit = index.search(SENTENCES[9], embed, k=1)[0]
    assert (hit.line, hit.match) == (2, SENTENCES[9])
    # The best document by words gets a fifth of its share in the score of words.
    words = index._stored.lexical.nearest(SENTENCES[9], k=1)
    gain = WORD_WEIGHT * (1 - BEST_SHARE) * words.scores[0]
    assert hit.score == pytest.approx(1 + gain, abs=1e-5)


def test_a_passage_without_known_words_is_left_out(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "i", [PASSAGES[0], "", "\u4e00"], encoder)
    assert len(index) == 1


# -- lexical search


def test_a_rare_word_of_the_query_ranks_its_passage_first(encoder, tmp_path):
    passages = [*PASSAGES, f"{SENTENCES[200]} zzyzx {SENTENCES[201]}"]
    index = CorpusIndex.build(tmp_path / "index", passages, encoder)
    assert index.search("zzyzx dog", k=1)[0].line == len(PASSAGES)


def test_a_rare_word_finds_no_passage_that_where_leaves_out(encoder, tmp_path):
    passages = [*PASSAGES, f"{SENTENCES[200]} zzyzx {SENTENCES[201]}"]
    index = CorpusIndex.build(tmp_path / "index", passages, encoder)
    hits = index.search("zzyzx dog", k=3, where=["1", "2"])
    assert sorted(hit.id for hit in hits) == ["1", "2"]


def test_a_flat_index_finds_windows_and_their_nearest_rows(encoder, tmp_path):
    texts = [*PASSAGES[:6], LONG]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder)
    stored = index._stored
    num_windows = sum(len(windows(text)) for text in texts)
    assert len(stored.window_starts) == num_windows + 1
    queries = encoder.embed(Text([SENTENCES[9], SENTENCES[130]]))
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    all_cosines = units @ np.array(stored.segments[0].vectors.index.rows).T
    starts = stored.window_starts
    k = 2
    allowed = np.arange(len(texts)) != 2
    for mask in (None, allowed):
        cosines, rows = stored.nearest_windows(queries, k, allowed=mask)
        for number in range(len(queries)):
            window_cosines = all_cosines[number, starts[:-1]]
            if mask is not None:
                window_cosines = np.where(mask[stored.window_documents], window_cosines, -2)
            nearest = np.argsort(-window_cosines, kind="stable")[: 4 * k]
            nearest = nearest[window_cosines[nearest] > -2]
            expected = {}
            for window in nearest.tolist():
                inside = slice(starts[window], starts[window + 1])
                row = starts[window] + int(all_cosines[number, inside].argmax())
                expected[row] = all_cosines[number, row]
            valid_rows = rows[number][rows[number] >= 0]
            assert sorted(valid_rows.tolist()) == sorted(expected)
            sorted_cosines = sorted(expected.values(), reverse=True)
            np.testing.assert_allclose(cosines[number, : len(expected)], sorted_cosines, rtol=1e-5)


def test_edits_of_an_index_also_edit_its_stored_words(encoder, tmp_path, monkeypatch):
    texts = [*PASSAGES[:6], "The zzyzx is a dog. It barks at the horses."]
    ids = [str(number) for number in range(len(texts))]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder, ids=ids)
    assert {path.name for path in index.files} >= set(LEXICAL_FILES)
    for edit, expected in (
        (lambda: index.add(["A zzyzx sleeps near the dog."], ids=["new"]), {"6", "new"}),
        (lambda: index.update(["3"], ["Two zzyzx and a cat run."]), {"6", "new", "3"}),
        (lambda: index.delete(["6"]), {"new", "3"}),
        (lambda: index.compact(), {"new", "3"}),
    ):
        edit()
        opened = CorpusIndex.load(tmp_path / "index")
        with monkeypatch.context() as patch:
            # A search reads the stored postings and builds none.
            patch.setattr(Postings, "build", None)
            hits = opened.search("zzyzx", encoder, k=len(expected))
        assert {hit.id for hit in hits} == expected


def test_hits_below_the_threshold_are_left_out(index):
    hits = index.search(SENTENCES[9], k=5)
    threshold = hits[2].score
    assert index.search(SENTENCES[9], k=5, score_threshold=threshold) == hits[:3]
    assert index.search([SENTENCES[9], "dog"], k=5, score_threshold=9) == [[], []]
    with pytest.raises(InputError, match=r"score_threshold .*nan"):
        index.search("dog", score_threshold=float("nan"))


@pytest.mark.parametrize("plain", [False, True])
def test_counts_below_one_are_refused(encoder, tmp_path, plain):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], encoder, plain=plain)
    with pytest.raises(InputError, match="k is 0"):
        index.search("dog", k=0)


# -- commands


def write_lines(path, lines):
    path.write_text("\n".join([*lines, ""]))
    return path


def test_the_commands_index_and_search_find_passages(folder, tmp_path):
    text = write_lines(tmp_path / "passages.txt", PASSAGES)
    path = tmp_path / "index"
    query = SENTENCES[9]
    search = ("search", "--index", path, "--k", "1")

    built = lxsr_here("index", "--model", folder, "--input", text, "--output", path)
    assert "20 texts, 20 of several sentences, with words" in built.stdout
    assert (path / "segment-0" / PIECES_FILE).is_file()

    done = lxsr_here(*search, query)
    assert done.stdout.splitlines()[1].endswith(f"  3  {query}")
    done = lxsr_here(*search, "--json", query)
    [hit] = json.loads(done.stdout)["hits"]
    assert (hit["line"], hit["text"], hit["match"]) == (3, PASSAGES[2], query)
    done = lxsr_here(*search, "--output", "-", query)
    cells = done.stdout.rstrip("\n").split("\t")
    assert [cells[0], *cells[2:]] == [query, "3", PASSAGES[2], query]
    done = lxsr_here("search", "--index", path, "--threshold", "9", query)
    assert done.stdout.splitlines() == [query]
    done = lxsr_here(*search, "--rerank", "10", query)
    assert done.stdout.splitlines()[1].endswith(f"  3  {query}")
    done = lxsr_here("search", "--index", path, "--rerank", "1", "--k", "2", "dog", check=False)
    refused(done, "--rerank 1", "2")


def test_a_plain_index_has_one_vector_for_each_text(folder, tmp_path):
    text = write_lines(tmp_path / "passages.txt", [*PASSAGES, "The zzyzx dog sleeps."])
    options = ("index", "--model", folder, "--input", text, "--plain")
    built = lxsr_here(*options, "--output", tmp_path / "plain")
    assert "21 texts, one vector each" in built.stdout
    index = CorpusIndex.load(tmp_path / "plain")
    assert (index.is_plain, index.num_passages, index.num_rows) == (True, 0, 21)
    names = {file.name for file in index.files}
    assert not names & {*LEXICAL_FILES, LANGUAGES_FILE, PIECES_FILE}
    [hit] = index.search(PASSAGES[3], k=1)
    assert (hit.line, hit.match) == (3, "")
    assert hit.score == pytest.approx(1, abs=1e-5)
    # Without a known word, the query has no vector.
    assert index.search("\u4e00") == []


def test_the_command_finds_a_rare_word(folder, tmp_path):
    text = write_lines(tmp_path / "text", [*SENTENCES[:20], "The zzyzx dog sleeps."])
    path = tmp_path / "index"
    built = lxsr_here("index", "--model", folder, "--input", text, "--output", path)
    assert "21 texts, 0 of several sentences, with words" in built.stdout
    done = lxsr_here("search", "--index", path, "--k", "1", "zzyzx dog")
    assert done.stdout.splitlines()[1].endswith("  The zzyzx dog sleeps.")


def test_a_query_in_unknown_letters_finds_the_line_with_the_word(folder, tmp_path):
    word = "\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8"
    lines = ["The pool is shut in winter.", f"Our office in {word} opens on Monday."]
    text = write_lines(tmp_path / "notes.txt", lines)
    path = tmp_path / "index"
    lxsr_here("index", "--model", folder, "--input", text, "--output", path)
    done = lxsr_here("search", "--index", path, "--json", word)
    [hit] = json.loads(done.stdout)["hits"]
    assert hit["line"] == 2
    assert "no known word" not in done.stderr
    index = CorpusIndex.load(path)
    assert [hit.line for hit in index.search(word)] == [1]
    # Together with a query that the model knows.
    assert [hits[0].line for hits in index.search(["the pool in winter", word])] == [0, 1]
    assert index.search(word, where=["1"]) == []


def test_languages_that_do_not_exist_are_refused(encoder, tmp_path):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    np.save(folder / "segment-0" / LANGUAGES_FILE, np.array([1, 200, 0], dtype=np.uint8))
    update_checksum(folder, LANGUAGES_FILE)
    with pytest.raises(InputError, match=r"language 200; .*build the index again"):
        CorpusIndex.load(folder)
