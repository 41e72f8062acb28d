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
    """A random model without layers."""
    return random_model.write_model(
        tmp_path_factory.mktemp("passages") / "m", gated=True, num_layers=0
    )


@pytest.fixture(scope="module")
def encoder(folder):
    return ModelFolder(SentenceEncoder.from_pretrained(folder))


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    """An index of PASSAGES, in lines 0 to 19, and LONG, in line 20."""
    path = tmp_path_factory.mktemp("index") / "index"
    return CorpusIndex.build(path, [*PASSAGES, LONG], encoder)


def file_names(index):
    return {path.name for path in index.files}


# -- sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("A short sentence.", ["A short sentence."], id="one"),
        pytest.param(
            "The dog sleeps in the red house. Where does the black cat sleep now? Nobody knows it today!",
            [
                "The dog sleeps in the red house.",
                "Where does the black cat sleep now?",
                "Nobody knows it today!",
            ],
            id="three",
        ),
        # These dots do not end a sentence.
        pytest.param(
            "Dr. A. Smith lives in a large old house in London.",
            ["Dr. A. Smith lives in a large old house in London."],
            id="abbreviations",
        ),
        pytest.param(
            "今天早上下了很大的雨,街上没有人。猫在家里睡觉,狗在外面跑。",
            ["今天早上下了很大的雨,街上没有人。", "猫在家里睡觉,狗在外面跑。"],
            id="chinese",
        ),
    ],
)
def test_a_text_is_split_into_sentences(text, sentences):
    assert [text[start:stop] for start, stop in sentence_spans(text)] == sentences


def test_a_code_finds_its_line_among_similar_codes(tmp_path):
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    codes = [f"AX-{number}" for number in range(100, 200)]
    lines = [f"Part no. {code}, steel" for code in codes]
    index = CorpusIndex.build(tmp_path / "parts", lines, encoder)

    hits_of_codes = index.search(codes, k=1)

    assert [hits[0].text for hits in hits_of_codes] == lines


@pytest.mark.parametrize(
    ("marked_text", "separator"),
    # Sentences with | between them, in place of the separator.
    [
        pytest.param(
            "この本は学生にはとても高いです｡|今年は買うことができません｡|図書館が助けてくれるでしょう｡",
            "",
            id="halfwidth stop",
        ),
        pytest.param(
            "这本书对学生来说真的太贵了\uff0e|他们今年肯定买不起它\uff0e|图书馆可以帮助他们\uff0e",
            "",
            id="fullwidth dot",
        ),
        pytest.param(
            "「今日はみんなで家に帰りましょう。」|と彼は言いました。", "", id="japanese quote"
        ),
        pytest.param(
            'He said: "we will all walk home today."|Then they closed the old door.',
            " ",
            id="english quote",
        ),
        pytest.param(
            "It opens at ten (not on Mondays, sadly.)|Children enter free of charge.",
            " ",
            id="parentheses",
        ),
        pytest.param(
            "یہ کتاب طلباء کے لیے بہت مہنگی ہے\u06d4|وہ اس سال اسے نہیں خرید سکتے\u06d4",
            " ",
            id="urdu",
        ),
        pytest.param("សៀវភៅនេះថ្លៃណាស់សម្រាប់សិស្សទាំងអស់។|ពួកគេមិនអាចទិញវាបានទេ។", " ", id="khmer"),
        # The dot in a number ends no sentence.
        pytest.param(
            "Version 3\uff0e14 is out now and nobody has it.|Use it.", " ", id="fullwidth number"
        ),
    ],
)
def test_sentences_end_at_the_full_stops_of_many_scripts(marked_text, separator):
    sentences = marked_text.split("|")
    text = separator.join(sentences)

    assert [text[start:stop] for start, stop in sentence_spans(text)] == sentences


LONG_TEXTS = {
    "sentences": LONG,
    "one word": "a" * 5000,
    "no full stop": "ab cd " * 1000,
    "no spaces": "ก" * 3000,
    "short sentences": "x. " * 900,
}


@pytest.mark.parametrize("kind", LONG_TEXTS)
def test_the_windows_of_a_long_text_have_all_of_it_in_less_than_1500_characters_each(kind):
    text = LONG_TEXTS[kind]

    all_windows = windows(text)

    assert len(all_windows) > 1
    covered = ""
    for window in all_windows:
        first_start = window.sentences[0][0]
        last_stop = window.sentences[-1][1]
        assert window.span == (first_start, last_stop)
        assert last_stop - first_start < 1500
        for start, stop in window.sentences:
            covered += text[start:stop]
    assert covered.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("kind", LONG_TEXTS)
def test_the_rows_of_a_long_text_are_different(kind):
    rows = passage_rows(LONG_TEXTS[kind])

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


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("query", ["three red dogs", SENTENCES[40], "dog"])
def test_scores_and_best_sentences_of_candidates_are_those_of_the_formula(encoder, query, count):
    candidates = [
        Candidate(0, SENTENCES[:3]),
        Candidate(0.1, SENTENCES[5:6]),
        Candidate(0.2, ["three dogs", "red dogs"]),
        Candidate(0.3, ["dog"]),
        Candidate(0.4, SENTENCES[38:44]),
    ][:count]

    ranked = rank(PassageRanker(encoder), query, candidates)

    expected = reference_scores(encoder, query, candidates)
    for (score, sentence), (expected_score, expected_sentence) in zip(
        ranked, expected, strict=True
    ):
        assert score == pytest.approx(expected_score, abs=1e-5)
        assert sentence == expected_sentence


@pytest.mark.parametrize("block_size", [1, 40, 1000])
def test_the_block_size_for_long_queries_changes_no_score(encoder, monkeypatch, block_size):
    query = " ".join(SENTENCES[40:60])
    candidates = [Candidate(0.1, SENTENCES[:3]), Candidate(0.1, ["dog"])]
    expected = rank(PassageRanker(encoder), query, candidates)

    monkeypatch.setattr(ranking, "LARGEST_BLOCK", block_size)
    ranked = rank(PassageRanker(encoder), query, candidates)

    for (score, sentence), (expected_score, expected_sentence) in zip(
        ranked, expected, strict=True
    ):
        assert score == pytest.approx(expected_score, abs=1e-6)
        assert sentence == expected_sentence


@pytest.mark.parametrize("is_together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_passages_with_equal_scores_are_hits_in_their_order(encoder, tmp_path, kind, is_together):
    pytest.importorskip("faiss")
    # Three passages, seven times each.
    passages = [passage for passage in PASSAGES[:3] for _ in range(7)]
    index = CorpusIndex.build(tmp_path / "index", passages, encoder, kind=kind)
    queries = [*SENTENCES[:30], "dog"]

    if is_together:
        hits_of_queries = index.search(queries, k=21)
    else:
        hits_of_queries = [index.search(query, k=21) for query in queries]

    for hits in hits_of_queries:
        assert len(hits) == 21
        order = [(-hit.score, hit.line) for hit in hits]
        assert order == sorted(order)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_passages_of_the_same_piece_have_equal_scores_and_are_hits_in_their_order(
    encoder, tmp_path, kind
):
    pytest.importorskip("faiss")
    all_words = " ".join(SENTENCES).split()
    # A word of a single piece.
    word = next(word for word in all_words if len(encoder.encoder.split([word])[0]) == 1)
    index = CorpusIndex.build(tmp_path / "words", [word] * 5, encoder, kind=kind)

    hits = index.search(word)

    assert [hit.line for hit in hits] == [0, 1, 2, 3, 4]
    assert len({hit.score for hit in hits}) == 1


def test_words_in_the_order_of_the_query_score_higher_than_the_same_in_another_order(encoder):
    in_another_order = Candidate(0.3, ["a dog red three"])
    in_order = Candidate(0.3, ["a three red dog"])

    ranked = rank(PassageRanker(encoder), "three red dog", [in_another_order, in_order])

    (score_in_another_order, _), (score_in_order, _) = ranked
    assert score_in_order > score_in_another_order + 0.02


# The model knows no piece of this text.
UNKNOWN = "\u4e00"


def test_query_vectors_are_sums_of_piece_vectors_weighted_by_rarity(encoder):
    """Frequent pieces weigh less than in the embedding of a query."""
    table = encoder.encoder.table
    ranker = PassageRanker(encoder)
    queries = [SENTENCES[3], SENTENCES[40]]
    embeddings = np.random.default_rng(1).normal(size=(2, table.shape[1])).astype(np.float32)

    vectors = ranker.query_vectors(ranker.split_queries(queries), embeddings)

    for query, vector in zip(queries, vectors, strict=True):
        expected = np.zeros(table.shape[1])
        for piece in encoder.encoder.split([query])[0]:
            # Pieces are numbered from the most frequent one.
            rarity = max(np.log(piece + 2) - ranking.FREQUENT_PIECES, ranking.SMALLEST_WEIGHT)
            expected += rarity * table[piece] / np.sqrt(np.linalg.norm(table[piece]))
        np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_a_query_without_known_pieces_keeps_its_embedding_as_its_vector(encoder):
    width = encoder.encoder.table.shape[1]
    ranker = PassageRanker(encoder)
    embeddings = np.random.default_rng(1).normal(size=(1, width)).astype(np.float32)

    vectors = ranker.query_vectors(ranker.split_queries([UNKNOWN]), embeddings)

    np.testing.assert_array_equal(vectors, embeddings)


def test_query_vectors_have_the_width_of_the_embeddings(encoder):
    width = encoder.encoder.table.shape[1]
    ranker = PassageRanker(encoder)
    query_ids = ranker.split_queries([SENTENCES[3], SENTENCES[40]])
    embeddings = np.random.default_rng(1).normal(size=(2, width)).astype(np.float32)
    vectors = ranker.query_vectors(query_ids, embeddings)

    truncated = ranker.query_vectors(query_ids, embeddings[:, :2])

    np.testing.assert_array_equal(truncated, vectors[:, :2])


# The other three quarters of a score compare pieces.
COSINE = 0.3
QUARTER = pytest.approx(COSINE / 4)


def test_a_window_without_known_pieces_scores_a_quarter_of_its_cosine(encoder):
    candidates = [Candidate(COSINE, [UNKNOWN]), Candidate(COSINE, [])]

    ranked = rank(PassageRanker(encoder), SENTENCES[0], candidates)

    assert ranked == [(QUARTER, 0), (QUARTER, 0)]


def test_for_a_query_without_known_pieces_all_windows_score_a_quarter_of_their_cosine(encoder):
    candidates = [Candidate(COSINE, SENTENCES[:1]), Candidate(COSINE, [UNKNOWN])]

    ranked = rank(PassageRanker(encoder), UNKNOWN, candidates)

    assert [score for score, _ in ranked] == [QUARTER, QUARTER]


def test_sentences_and_windows_without_pieces_do_not_shift_the_best_sentence(encoder):
    empty = Candidate(COSINE, [])
    with_query = Candidate(COSINE, [UNKNOWN, SENTENCES[0]])
    without_query = Candidate(COSINE, SENTENCES[1:3])

    ranked = rank(
        PassageRanker(encoder), SENTENCES[0], [empty, with_query, empty, without_query, empty]
    )

    score_with_query, best_sentence = ranked[1]
    score_without_query, _ = ranked[3]
    # The query is the second sentence of its window.
    assert best_sentence == 1
    assert score_with_query > score_without_query


def test_no_candidates_have_no_scores(encoder):
    assert rank(PassageRanker(encoder), "dog", []) == []


def assert_same_hits(all_hits, all_expected_hits, tolerance):
    """Check that ids and matches are the same, and scores nearly the same."""
    for hits, expected_hits in zip(all_hits, all_expected_hits, strict=True):
        for hit, expected in zip(hits, expected_hits, strict=True):
            assert hit.id == expected.id
            assert hit.match == expected.match
            assert hit.score == pytest.approx(expected.score, abs=tolerance)


# Texts 0 to 20, with their numbers as ids.
EDITED_TEXTS = [*PASSAGES, LONG]
EDITED_IDS = [str(number) for number in range(len(EDITED_TEXTS))]


@pytest.fixture
def index_with_pieces(encoder, tmp_path):
    """An index of EDITED_TEXTS that stores pieces, as it is built with an encoder."""
    index = CorpusIndex.build(tmp_path / "with", EDITED_TEXTS, encoder, ids=EDITED_IDS)
    assert file_names(index) >= {PIECES_FILE, PIECE_ENDS_FILE}
    return index


@pytest.fixture
def index_without_pieces(encoder, tmp_path):
    """An index of EDITED_TEXTS that stores no pieces, as it is built with a function."""
    index = CorpusIndex.build(
        tmp_path / "without", EDITED_TEXTS, encoder.embed, encoder.fingerprint, ids=EDITED_IDS
    )
    assert PIECES_FILE not in file_names(index)
    return index


def edits_of(index, encode, encoder):
    """Return functions that edit an index in turn; all but one edit encode with `encode`."""
    return [
        lambda: index.add([SENTENCES[270]], ["new"], encode),
        lambda: index.update(["3"], [PASSAGES[7]], encode),
        lambda: index.delete(["6"]),
        # With the encoder, so that even an index without pieces has some in one of its segments.
        lambda: index.add([SENTENCES[280]], ["newer"], encoder),
        lambda: index.compact(encode),
    ]


def test_stored_pieces_change_no_hit_before_or_after_any_edit(
    encoder, index_with_pieces, index_without_pieces
):
    # Sentences of a passage, of LONG, and of a text that is added.
    queries = [SENTENCES[9], SENTENCES[150], SENTENCES[280]]

    def check_hits():
        hits = CorpusIndex.load(index_with_pieces.folder).search(queries, encoder, k=9)
        expected = CorpusIndex.load(index_without_pieces.folder).search(queries, encoder, k=9)
        assert_same_hits(hits, expected, tolerance=1e-6)

    check_hits()
    for edit_with_pieces, edit_without_pieces in zip(
        edits_of(index_with_pieces, encoder, encoder),
        edits_of(index_without_pieces, encoder.embed, encoder),
        strict=True,
    ):
        edit_with_pieces()
        edit_without_pieces()

        check_hits()


def test_an_index_with_stored_pieces_has_them_in_every_segment_after_its_edits(
    encoder, index_with_pieces
):
    for edit in edits_of(index_with_pieces, encoder, encoder):
        edit()

        for segment in index_with_pieces._stored.segments:
            assert segment.description["pieces"]


def test_a_search_with_stored_pieces_splits_only_the_query_into_pieces(
    encoder, tmp_path, monkeypatch
):
    index = CorpusIndex.build(tmp_path / "index", PASSAGES, encoder)
    num_texts_of_calls = []
    split = SentenceEncoder.split

    def counting_split(self, texts):
        num_texts_of_calls.append(len(texts))
        return split(self, texts)

    monkeypatch.setattr(SentenceEncoder, "split", counting_split)

    index.search(SENTENCES[9], k=2)

    assert max(num_texts_of_calls) == 1


@pytest.mark.parametrize(
    ("name", "last_byte"),
    # Bytes that the files do not end with.
    [(PIECES_FILE, b"\x7f"), (PIECE_ENDS_FILE, b"\x7f"), (LEXICAL_FILES[1], b"\xff")],
    ids=["pieces", "ends", "words"],
)
def test_the_error_for_a_damaged_file_of_pieces_or_words_names_it(
    encoder, tmp_path, name, last_byte
):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    path = folder / "segment-0" / name
    path.write_bytes(path.read_bytes()[:-1] + last_byte)

    with pytest.raises(InputError, match=name):
        CorpusIndex.load(folder)


def update_checksum(folder, name):
    """Make a changed file of the first segment valid, as if another program had written it."""
    path = folder / "index.json"
    config = json.loads(path.read_text())
    config["segments"][0]["files"][name] = sha256(folder / "segment-0" / name)
    del config["crc32"]
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("piece", "message"), [(-1, "-1"), (2**31 - 1, "2,147,483,647")], ids=["negative", "largest"]
)
def test_the_error_for_stored_pieces_that_the_model_does_not_have_names_them(
    encoder, tmp_path, piece, message
):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    pieces_file = folder / "segment-0" / PIECES_FILE
    pieces = np.fromfile(pieces_file, PIECE_TYPE)
    np.full_like(pieces, piece).tofile(pieces_file)
    update_checksum(folder, PIECES_FILE)

    with pytest.raises(InputError, match=rf"{message}.*build the index again"):
        CorpusIndex.load(folder).search(SENTENCES[9], encoder, k=1)


def test_an_index_of_passages_has_more_rows_than_passages(index):
    """There is a row for each sentence."""
    assert not index.is_plain
    assert len(index) == 21
    assert index.num_passages == 21
    assert index.num_rows > 21


def test_a_hit_is_a_passage_with_its_best_sentence(index):
    # The second of four sentences in the third passage.
    query = SENTENCES[9]

    first, second = index.search(query, k=2)

    assert first.text == PASSAGES[2]
    assert first.line == 2
    assert first.match == query
    assert second.line != first.line
    assert second.score < first.score


def test_a_sentence_at_the_end_of_a_long_passage_is_its_match_and_passages_are_hits_once(index):
    # LONG has the sentences 100 to 259.
    hits = index.search(SENTENCES[258], k=3)

    assert hits[0].line == 20
    assert SENTENCES[258] in hits[0].match
    assert len({hit.line for hit in hits}) == 3


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_all_passages_of_a_rounded_index_are_hits_if_as_many_are_asked_for(encoder, tmp_path, kind):
    pytest.importorskip("faiss")
    CorpusIndex.build(tmp_path / "index", PASSAGES, encoder, kind=kind)

    hits = CorpusIndex.load(tmp_path / "index").search(SENTENCES[9], encoder, k=50)

    # The sentence is in the third passage.
    assert hits[0].line == 2
    assert sorted(hit.line for hit in hits) == list(range(len(PASSAGES)))


# The ids of PASSAGES and LONG in an index with a sketch.
SKETCH_IDS = [f"note-{number}" for number in range(21)]


@pytest.fixture
def build_with_sketch(encoder, tmp_path, monkeypatch):
    """A function that builds an index of PASSAGES and LONG with a sketch, small as it is."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(segment_writer, "MIN_SKETCH_ROWS", 20)

    def build(kind):
        index = CorpusIndex.build(
            tmp_path / "index", [*PASSAGES, LONG], encoder, kind=kind, ids=SKETCH_IDS
        )
        assert SKETCH_FILE in file_names(index)
        return index

    return build


@pytest.mark.parametrize(
    "condition",
    [None, SKETCH_IDS[::2], ["note-1"], []],
    ids=["all texts", "every second text", "one text", "no text"],
)
@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_an_index_with_a_sketch_has_the_first_hit_and_the_scores_of_a_flat_one(
    encoder, tmp_path, build_with_sketch, kind, condition
):
    index = CorpusIndex.load(build_with_sketch(kind).folder)
    flat = CorpusIndex.build(tmp_path / "flat", [*PASSAGES, LONG], encoder, ids=SKETCH_IDS)
    # Sentences of the third passage, and of the first and the last third of LONG.
    queries = [SENTENCES[9], SENTENCES[150], SENTENCES[250]]

    all_hits = index.search(queries, encoder, k=3, where=condition)

    all_expected_hits = flat.search(queries, encoder, k=3, where=condition)
    for hits, expected_hits in zip(all_hits, all_expected_hits, strict=True):
        scores = [hit.score for hit in hits]
        expected_scores = [hit.score for hit in expected_hits]
        # Vectors are rounded, and those of the flat index are not.
        np.testing.assert_allclose(scores, expected_scores, atol=0.01)
        if expected_hits:
            # Rounding may exchange the hits that follow, whose scores are close to each other.
            assert hits[0].id == expected_hits[0].id


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_an_index_of_passages_with_a_sketch_is_edited_and_compacted(build_with_sketch, kind):
    index = build_with_sketch(kind)

    index.delete(["note-2"])
    assert "note-2" not in {hit.id for hit in index.search(SENTENCES[9], k=21)}

    index.compact()
    # The sentence is in LONG, the last text.
    assert index.search(SENTENCES[150], k=1)[0].id == "note-20"
    assert SKETCH_FILE in file_names(index)


def test_the_error_for_a_damaged_sketch_of_passages_names_its_file(build_with_sketch):
    index = build_with_sketch("int8")
    with open(index.folder / "segment-0" / SKETCH_FILE, "r+b") as stream:
        stream.truncate(100)

    with pytest.raises(InputError, match=SKETCH_FILE):
        CorpusIndex.load(index.folder)


@pytest.fixture
def editable_index(encoder, tmp_path):
    """An index of PASSAGES with the ids note-0 to note-19."""
    ids = [f"note-{number}" for number in range(20)]
    return CorpusIndex.build(tmp_path / "editable", PASSAGES, encoder, ids=ids)


def test_added_passages_are_found_by_their_sentences(editable_index):
    editable_index.add([LONG, SENTENCES[290]], ids=["long", "short"])

    [long_hit] = editable_index.search(SENTENCES[258], k=1)
    [short_hit] = editable_index.search(SENTENCES[290], k=1)
    assert long_hit.id == "long"
    assert long_hit.line == 20
    assert short_hit.text == SENTENCES[290]
    assert short_hit.match == SENTENCES[290]


def test_a_deleted_passage_is_no_hit(editable_index):
    editable_index.add([LONG], ids=["long"])

    editable_index.delete(["long"])

    assert editable_index.search(SENTENCES[258], k=1)[0].id != "long"


def test_an_updated_passage_is_found_by_its_new_text_after_compaction(editable_index, encoder):
    editable_index.update(["note-0"], [f"{SENTENCES[280]} {SENTENCES[281]}"])
    editable_index.compact()

    loaded = CorpusIndex.load(editable_index.folder)
    [[hit]] = loaded.search([SENTENCES[280]], encoder, k=1)
    assert hit.id == "note-0"


def test_all_passages_with_the_given_ids_are_hits(editable_index):
    hits = editable_index.search(SENTENCES[280], k=30, where=["note-3", "note-5"])

    assert sorted(hit.id for hit in hits) == ["note-3", "note-5"]


def test_a_model_without_pieces_ranks_by_cosine_and_words(encoder, tmp_path):
    def embed(text):
        return encoder.embed(text)

    index = CorpusIndex.build(tmp_path / "index", PASSAGES, embed, "model")

    [hit] = index.search(SENTENCES[9], embed, k=1)

    # The sentence is in the third passage.
    assert hit.line == 2
    assert hit.match == SENTENCES[9]
    # The cosine to the sentence itself is 1. The best document by words gets a part of its share
    # in the score of words.
    words = index._stored.lexical.nearest(SENTENCES[9], k=1)
    gain = WORD_WEIGHT * (1 - BEST_SHARE) * words.scores[0]
    assert hit.score == pytest.approx(1 + gain, abs=1e-5)


def test_texts_without_known_words_are_left_out_of_an_index(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", [PASSAGES[0], "", UNKNOWN], encoder)

    assert len(index) == 1


# -- lexical search


@pytest.fixture
def index_with_rare_word(encoder, tmp_path):
    """An index of PASSAGES, and a last one with the word zzyzx."""
    passages = [*PASSAGES, f"{SENTENCES[200]} zzyzx {SENTENCES[201]}"]
    return CorpusIndex.build(tmp_path / "index", passages, encoder)


def test_a_rare_word_of_the_query_ranks_its_passage_first(index_with_rare_word):
    [hit] = index_with_rare_word.search("zzyzx dog", k=1)

    assert hit.line == len(PASSAGES)


def test_a_rare_word_finds_no_passage_that_is_not_allowed(index_with_rare_word):
    hits = index_with_rare_word.search("zzyzx dog", k=3, where=["1", "2"])

    assert sorted(hit.id for hit in hits) == ["1", "2"]


@pytest.mark.parametrize("has_condition", [False, True], ids=["all", "allowed"])
def test_a_flat_index_finds_the_nearest_windows_and_the_nearest_row_in_each(
    encoder, tmp_path, has_condition
):
    """The first row of a window is its whole text, and the others its sentences."""
    k = 2
    texts = [*PASSAGES[:6], LONG]
    stored = CorpusIndex.build(tmp_path / "index", texts, encoder)._stored
    starts = stored.window_starts
    assert len(starts) == sum(len(windows(text)) for text in texts) + 1
    queries = encoder.embed(Text([SENTENCES[9], SENTENCES[130]]))
    allowed = None
    is_allowed_window = np.ones(len(starts) - 1, dtype=bool)
    if has_condition:
        # Without the passage of the first query.
        allowed = np.arange(len(texts)) != 2
        is_allowed_window = allowed[stored.window_documents]

    cosines, rows = stored.nearest_windows(queries, k, allowed=allowed)

    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    all_cosines = units @ np.array(stored.segments[0].vectors.index.rows).T
    for query in range(len(queries)):
        window_cosines = np.where(is_allowed_window, all_cosines[query, starts[:-1]], -np.inf)
        # Four times as many windows as passages are asked for.
        nearest_windows = np.argsort(-window_cosines, kind="stable")[: 4 * k]
        expected_rows = []
        for window in nearest_windows.tolist():
            if is_allowed_window[window]:
                inside = slice(starts[window], starts[window + 1])
                expected_rows.append(starts[window] + int(all_cosines[query, inside].argmax()))
        found_rows = rows[query][rows[query] >= 0]
        assert sorted(found_rows.tolist()) == sorted(expected_rows)
        expected_cosines = -np.sort(-all_cosines[query, expected_rows])
        found_cosines = cosines[query, : len(expected_rows)]
        np.testing.assert_allclose(found_cosines, expected_cosines, rtol=1e-5)


def test_edits_of_an_index_also_edit_its_stored_words(encoder, tmp_path, monkeypatch):
    texts = [*PASSAGES[:6], "The zzyzx is a dog. It barks at the horses."]
    ids = [str(number) for number in range(len(texts))]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder, ids=ids)
    assert file_names(index) >= set(LEXICAL_FILES)
    # Edits, and the ids of the texts with the word zzyzx after each.
    edits = (
        (lambda: index.add(["A zzyzx sleeps near the dog."], ids=["new"]), {"6", "new"}),
        (lambda: index.update(["3"], ["Two zzyzx and a cat run."]), {"6", "new", "3"}),
        (lambda: index.delete(["6"]), {"new", "3"}),
        (lambda: index.compact(), {"new", "3"}),
    )
    for edit, expected_ids in edits:
        edit()

        loaded = CorpusIndex.load(tmp_path / "index")
        with monkeypatch.context() as patch:
            # A search reads the stored postings and builds none.
            patch.setattr(Postings, "build", None)
            hits = loaded.search("zzyzx", encoder, k=len(expected_ids))
        assert {hit.id for hit in hits} == expected_ids


def test_hits_below_the_threshold_are_left_out(index):
    hits = index.search(SENTENCES[9], k=5)
    third_score = hits[2].score

    above = index.search(SENTENCES[9], k=5, score_threshold=third_score)

    # A hit at the threshold stays.
    assert above == hits[:3]


def test_no_query_has_hits_above_a_threshold_that_no_score_reaches(index):
    assert index.search([SENTENCES[9], "dog"], k=5, score_threshold=9) == [[], []]


def test_a_threshold_that_is_no_number_is_refused(index):
    with pytest.raises(InputError, match=r"score_threshold .*nan"):
        index.search("dog", score_threshold=float("nan"))


@pytest.mark.parametrize("plain", [False, True])
def test_a_search_for_no_hits_is_refused(encoder, tmp_path, plain):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], encoder, plain=plain)

    with pytest.raises(InputError, match="k is 0"):
        index.search("dog", k=0)


# -- commands


def write_lines(path, lines):
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture
def index_command(folder, tmp_path):
    """The finished command that builds an index of PASSAGES in `index`."""
    text = write_lines(tmp_path / "passages.txt", PASSAGES)
    return lxsr_here("index", "--model", folder, "--input", text, "--output", tmp_path / "index")


def test_the_command_index_prints_the_number_of_texts_and_stores_pieces(index_command, tmp_path):
    assert "20 texts, 20 of several sentences, with words" in index_command.stdout
    assert (tmp_path / "index" / "segment-0" / PIECES_FILE).is_file()


# This sentence is in PASSAGES[2], and so in line 3.
QUERY = SENTENCES[9]


@pytest.mark.usefixtures("index_command")
@pytest.mark.parametrize("options", [(), ("--rerank", "10")], ids=["plain", "rerank"])
def test_the_command_search_prints_the_line_and_the_best_sentence(tmp_path, options):
    search = ("search", "--index", tmp_path / "index", "--k", "1")

    done = lxsr_here(*search, *options, QUERY)

    # The first line of the output is the query.
    _, hit, *_ = done.stdout.splitlines()
    assert hit.endswith(f"  3  {QUERY}")


@pytest.mark.usefixtures("index_command")
def test_the_command_search_prints_passage_and_sentence_as_json(tmp_path):
    done = lxsr_here("search", "--index", tmp_path / "index", "--k", "1", "--json", QUERY)

    [hit] = json.loads(done.stdout)["hits"]
    assert hit["line"] == 3
    assert hit["text"] == PASSAGES[2]
    assert hit["match"] == QUERY


@pytest.mark.usefixtures("index_command")
def test_the_command_search_writes_query_score_line_passage_and_sentence(tmp_path):
    done = lxsr_here("search", "--index", tmp_path / "index", "--k", "1", "--output", "-", QUERY)

    query, _, line, text, match = done.stdout.rstrip("\n").split("\t")
    assert query == QUERY
    assert line == "3"
    assert text == PASSAGES[2]
    assert match == QUERY


@pytest.mark.usefixtures("index_command")
def test_the_command_search_prints_only_the_query_if_no_hit_reaches_the_threshold(tmp_path):
    done = lxsr_here("search", "--index", tmp_path / "index", "--threshold", "9", QUERY)

    assert done.stdout.splitlines() == [QUERY]


@pytest.mark.usefixtures("index_command")
def test_the_command_search_refuses_to_rerank_fewer_passages_than_hits(tmp_path):
    search = ("search", "--index", tmp_path / "index", "--rerank", "1", "--k", "2")

    done = lxsr_here(*search, "dog", check=False)

    refused(done, "--rerank 1", "2")


@pytest.fixture
def plain_index_command(folder, tmp_path):
    """The finished command that builds a plain index of PASSAGES and another text in `plain`."""
    text = write_lines(tmp_path / "passages.txt", [*PASSAGES, "The zzyzx dog sleeps."])
    options = ("--model", folder, "--input", text, "--output", tmp_path / "plain")
    return lxsr_here("index", "--plain", *options)


def test_a_plain_index_has_one_vector_for_each_text_and_neither_words_nor_pieces(
    plain_index_command, tmp_path
):
    index = CorpusIndex.load(tmp_path / "plain")

    assert "21 texts, one vector each" in plain_index_command.stdout
    assert index.is_plain
    assert index.num_passages == 0
    assert index.num_rows == 21
    assert file_names(index).isdisjoint({*LEXICAL_FILES, LANGUAGES_FILE, PIECES_FILE})


@pytest.mark.usefixtures("plain_index_command")
def test_a_hit_of_a_plain_index_is_a_whole_text_and_its_cosine(tmp_path):
    [hit] = CorpusIndex.load(tmp_path / "plain").search(PASSAGES[3], k=1)

    assert hit.line == 3
    assert hit.match == ""
    assert hit.score == pytest.approx(1, abs=1e-5)


@pytest.mark.usefixtures("plain_index_command")
def test_a_query_without_a_known_word_has_no_hits_in_a_plain_index(tmp_path):
    assert CorpusIndex.load(tmp_path / "plain").search(UNKNOWN) == []


def test_the_command_search_finds_a_rare_word(folder, tmp_path):
    text = write_lines(tmp_path / "text", [*SENTENCES[:20], "The zzyzx dog sleeps."])
    index = tmp_path / "index"

    built = lxsr_here("index", "--model", folder, "--input", text, "--output", index)
    done = lxsr_here("search", "--index", index, "--k", "1", "zzyzx dog")

    assert "21 texts, 0 of several sentences, with words" in built.stdout
    _, hit, *_ = done.stdout.splitlines()
    assert hit.endswith("  The zzyzx dog sleeps.")


# Tbilisi, in letters that the model does not know.
TBILISI = "\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8"


@pytest.fixture
def office_index(folder, tmp_path):
    """The folder of an index of two lines, of which the second has TBILISI."""
    lines = ["The pool is shut in winter.", f"Our office in {TBILISI} opens on Monday."]
    text = write_lines(tmp_path / "notes.txt", lines)
    lxsr_here("index", "--model", folder, "--input", text, "--output", tmp_path / "index")
    return tmp_path / "index"


def test_the_command_search_finds_a_word_in_unknown_letters(office_index):
    done = lxsr_here("search", "--index", office_index, "--json", TBILISI)

    [hit] = json.loads(done.stdout)["hits"]
    assert hit["line"] == 2
    assert "no known word" not in done.stderr


def test_a_query_in_unknown_letters_finds_the_line_with_the_word(office_index):
    index = CorpusIndex.load(office_index)

    assert [hit.line for hit in index.search(TBILISI)] == [1]


def test_queries_in_known_and_unknown_letters_are_searched_together(office_index):
    index = CorpusIndex.load(office_index)

    hits_of_queries = index.search(["the pool in winter", TBILISI])

    assert [hits[0].line for hits in hits_of_queries] == [0, 1]


def test_a_query_in_unknown_letters_finds_no_line_that_is_not_allowed(office_index):
    assert CorpusIndex.load(office_index).search(TBILISI, where=["1"]) == []


def test_the_error_for_a_stored_language_that_does_not_exist_has_its_number(encoder, tmp_path):
    folder = tmp_path / "index"
    CorpusIndex.build(folder, PASSAGES[:3], encoder)
    # There are fewer than 200 languages.
    languages = np.array([1, 200, 0], dtype=np.uint8)
    np.save(folder / "segment-0" / LANGUAGES_FILE, languages)
    update_checksum(folder, LANGUAGES_FILE)

    with pytest.raises(InputError, match=r"language 200; .*build the index again"):
        CorpusIndex.load(folder)
