"""Passage retrieval: measures, file formats, pools of languages, codes, and BM25."""

import gzip
import json

import numpy as np
import pytest
import random_model
from conftest import COMPATIBILITY, case, lxsr_here, refused
from golden_vectors import Vectors

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder, Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.passage_sets import read_codes, read_passage_set, read_xquad
from fairseq_lxsr.evaluation.pools import Pool, make_pool
from fairseq_lxsr.evaluation.protocols.passages import Passages, ranking_outcomes
from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.options import PASSAGE_METRICS

QUERIES = {"q1": "which dog barks", "q2": "where does it rain", "q3": "nothing relevant"}
PASSAGES = {"a": "the dog barks", "b": "it rains in Spain", "c": "cats"}
VECTORS = {
    "which dog barks": [1, 0, 0],
    "where does it rain": [0, 1, 0.9],
    "the dog barks": [1, 0.1, 0],
    "it rains in Spain": [0, 1, 0],
    "cats": [0, 1, 1],
}


def write_tsv(path, rows) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    write_tsv(tmp_path / "q.tsv", QUERIES.items())
    write_tsv(tmp_path / "p.tsv", PASSAGES.items())
    write_tsv(tmp_path / "r.tsv", [("q1", "a"), ("q2", "b")])
    return tuple(str(tmp_path / name) for name in ("q.tsv", "p.tsv", "r.tsv"))


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": name, "title": "T", "text": text} for name, text in PASSAGES.items()]
    lines = "".join(f"{json.dumps(row)}\n" for row in passages)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    lines = "".join(f"{json.dumps(row)}\n" for row in queries)
    (folder / "queries.jsonl").write_text(lines)
    header = ("query-id", "corpus-id", "score")
    rows = [header, ("q1", "a", "2"), ("q1", "c", "0"), ("q2", "b", "1"), ("q2", "c", "1")]
    write_tsv(folder / "qrels" / "test.tsv", rows)
    return folder


def write_xquad(folder, language: str, contexts, order=(0, 1)) -> None:
    paragraphs = []
    for number in order:
        question = {"id": f"id{number}", "question": f"{language}  question\n{number}"}
        paragraphs.append({"context": contexts[number], "qas": [question]})
    content = {"data": [{"paragraphs": paragraphs}]}
    (folder / f"xquad.{language}.json").write_text(json.dumps(content, indent=1))


def xquad(folder, query_language, passage_language):
    """Read the test set that `write_xquad` wrote."""
    languages = (query_language, passage_language)
    questions, paragraphs = (folder / f"xquad.{language}.json" for language in languages)
    return read_xquad(questions, paragraphs, languages)


def test_measures_of_ten_ranked_passages():
    """Query 1 has one of its two relevant passages at rank 2, query 2 none among the ten."""
    retrieved = np.array([[5, 3, 4, *range(10, 17)], [*range(7), -1, -1, -1]])
    outcomes = ranking_outcomes(retrieved, [{3: 1.0, 9: 1.0}, {8: 1.0}])
    assert outcomes["MRR@10"].hits == [0.5, 0]
    assert outcomes["R@1"].hits == [0, 0]
    assert outcomes["R@10"].hits == [0.5, 0]
    # The gain is 1 / log2(3), the ideal gain 1 + 1 / log2(3).
    assert outcomes["nDCG@10"].value == pytest.approx(100 * 0.63093 / 1.63093 / 2, abs=0.01)


def test_measures_of_graded_relevance_and_fewer_passages_than_ten():
    outcomes = ranking_outcomes(np.array([[1, 0]]), [{0: 3.0, 1: 1.0}])
    assert outcomes["R@10"].value == 100
    assert outcomes["R@1"].value == 50
    expected = (1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3))
    assert outcomes["nDCG@10"].value == pytest.approx(100 * expected, abs=0.01)


def test_tables_are_scored_and_signed(files):
    test = read_passage_set(files, ("en", "en"))
    assert test.queries.lines == list(QUERIES.values())[:2]
    protocol = Passages(queries=files[0], passages=files[1], relevant=files[2], lang_pairs="en-en")
    [[score]] = protocol.plan().measure(Vectors(VECTORS))
    assert score.task == "en->en"
    assert score.values["MRR@10"] == 75
    assert score.values["R@1"] == 50
    start = "passages|metric:nn-cosine|queries:2|passages:3|distractors:0|relevant:2|text:"
    assert score.signature.startswith(start)
    assert "|model:golden|" in score.signature


def test_bm25_finds_words(files):
    options = dict(zip(("queries", "passages", "relevant"), files, strict=True))
    protocol = Passages(**options, metric=("nn", "bm25"))
    _, [score] = protocol.plan().measure(Vectors(VECTORS))
    assert score.task == "queries->passages"
    assert score.values["R@1"] == 100
    assert score.signature.startswith("passages|metric:bm25-k1.5-b0.75|")
    assert "|model:bm25|" in score.signature


def test_the_ranking_of_an_index_is_measured(files, tmp_path):
    folder = random_model.write_model(tmp_path / "m", gated=True, num_layers=0)
    encoder = ModelFolder(SentenceEncoder.from_pretrained(folder))
    options = dict(zip(("queries", "passages", "relevant"), files, strict=True))
    protocol = Passages(**options, metric=("passages",))
    [[score]] = protocol.plan().measure(encoder)
    assert score.signature.startswith(f"passages|metric:{PASSAGE_METRICS['passages']}|")
    # Each query is found: the index returns all three passages.
    assert score.values["R@10"] == 100
    with pytest.raises(InputError, match=r"passages: .*word piece"):
        list(protocol.plan().measure(Vectors(VECTORS)))


def test_a_beir_folder_is_scored_with_titles_and_graded_relevance(beir):
    titled = {f"T {text}": VECTORS[text] for text in PASSAGES.values()}
    [[score]] = Passages(data=str(beir)).plan().measure(Vectors(VECTORS | titled))
    assert score.settings["relevant"] == 3
    # The first passage of query 2 is c, which is one of its two relevant passages.
    assert score.values["MRR@10"] == 100
    assert score.values["R@1"] == 75


def write_beir(folder, passages, queries, relevant) -> None:
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", passages), ("queries", queries)):
        lines = [json.dumps({"_id": id_, "text": text}) for id_, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    write_tsv(folder / "qrels" / "test.tsv", [(*pair, "1") for pair in relevant])


METRICS = ("nn", "passages", "bm25")


def beir_score(folder, encoder, metric: str = "nn", **options):
    protocol = Passages(data=str(folder), metric=(metric,), **options)
    [[score]] = protocol.plan().measure(ModelFolder(encoder))
    return score


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_passage_is_never_found(tmp_path, packaged, metric):
    write_beir(
        tmp_path / "set",
        {"d1": "", "d2": "A dog barks.", "d3": " "},
        {"q1": "a dog"},
        [("q1", "d2"), ("q1", "d3")],
    )
    score = beir_score(tmp_path / "set", packaged, metric)
    assert score.values["MRR@10"] == 100
    assert score.values["R@10"] == 50
    assert "|empty:2|" in score.signature


@pytest.mark.parametrize("metric", METRICS)
def test_a_query_does_not_find_the_passage_with_its_identifier(tmp_path, packaged, metric):
    write_beir(
        tmp_path / "set",
        {"t1": "a dog barks", "t2": "the dog barks", "t3": "a cat sleeps"},
        {"t1": "a dog barks", "q2": "a cat sleeps"},
        [("t1", "t2"), ("q2", "t3")],
    )
    score = beir_score(tmp_path / "set", packaged, metric)
    assert score.values["MRR@10"] == 100
    assert "|excluded:1|" in score.signature


def test_eleven_passages_are_ranked_if_one_is_excluded(tmp_path, packaged):
    passages = {f"d{number}": "a dog barks" for number in range(10)}
    passages["d10"] = "the cat sleeps"
    passages["q"] = "a dog barks"
    write_beir(tmp_path / "set", passages, {"q": "a dog barks"}, [("q", "d0")])
    assert beir_score(tmp_path / "set", packaged).values["R@10"] == 100


def test_a_relevant_passage_that_is_missing_counts_for_recall(tmp_path, packaged):
    relevant = [("q1", "d1"), ("q1", "gone")]
    write_beir(tmp_path / "set", {"d1": "A dog barks."}, {"q1": "a dog"}, relevant)
    (tmp_path / "more.txt").write_text("A cat.\nA house.\n")
    score = beir_score(tmp_path / "set", packaged, distractors=str(tmp_path / "more.txt"))
    assert score.values["R@10"] == 50
    assert "|relevant:2|missing:1|" in score.signature


def test_a_beir_folder_whose_relevant_passages_are_all_missing_is_refused(tmp_path, packaged):
    write_beir(tmp_path / "set", {"d1": "A dog."}, {"q1": "a dog"}, [("q1", "x")])
    with pytest.raises(InputError, match=r"test\.tsv: none of the 1 "):
        beir_score(tmp_path / "set", packaged)


def test_a_query_may_have_the_identifier_of_its_passage_in_tables(files, tmp_path):
    write_tsv(tmp_path / "q.tsv", [("1", "which dog barks")])
    write_tsv(tmp_path / "p.tsv", [("1", "the dog barks"), ("2", "cats")])
    write_tsv(tmp_path / "r.tsv", [("1", "1")])
    protocol = Passages(queries=files[0], passages=files[1], relevant=files[2])
    [[score]] = protocol.plan().measure(Vectors(VECTORS))
    assert score.values["R@1"] == 100


def test_xquad_is_read_within_and_across_languages(tmp_path):
    write_xquad(tmp_path, "en", ["a dog", "a  cat"])
    write_xquad(tmp_path, "de", ["ein Hund", "eine Katze"], order=(1, 0))
    test = xquad(tmp_path, "en", "de")
    assert test.queries.lines == ["en question 0", "en question 1"]
    assert test.passages.lines == ["eine Katze", "ein Hund"]
    assert test.relevant == [{1: 1.0}, {0: 1.0}]
    assert xquad(tmp_path, "en", "en").passages.lines == ["a dog", "a cat"]


# -- collections of several languages

LANGUAGES = ("en", "de", "fr")


def write_languages(folder) -> dict[str, str]:
    """Write three passages and their queries in three languages, and return the options."""
    topics = {"dog": "1", "rain": "2", "cat": "3"}
    for language in LANGUAGES:
        queries = [(f"q{number}", f"{language} {topic}") for topic, number in topics.items()]
        passages = [(f"p{number}", f"{language} the {topic}") for topic, number in topics.items()]
        write_tsv(folder / f"q.{language}.tsv", queries)
        write_tsv(folder / f"p.{language}.tsv", passages[::-1] if language == "fr" else passages)
    write_tsv(folder / "r.tsv", [(f"q{number}", f"p{number}") for number in topics.values()])
    return {
        "queries": str(folder / "q.{lang}.tsv"),
        "passages": str(folder / "p.{lang}.tsv"),
        "relevant": str(folder / "r.tsv"),
        "lang_pairs": "en-en,de-de,fr-fr",
    }


def by_topic(text: str) -> list[float]:
    """Return a vector in which the topic has a weight of 1 and the language of 0.1."""
    language, *_, topic = text.split()
    vector = [0.0] * 6
    vector[("dog", "rain", "cat").index(topic)] = 1.0
    vector[3 + LANGUAGES.index(language)] = 0.1
    return vector


@pytest.fixture
def topics():
    texts = [f"{language} {topic}" for language in LANGUAGES for topic in ("dog", "rain", "cat")]
    texts += [text.replace(" ", " the ") for text in texts]
    return Vectors({text: by_topic(text) for text in texts})


def test_each_passage_of_a_pool_is_in_one_language(tmp_path):
    options = write_languages(tmp_path)
    sets = []
    for language in LANGUAGES:
        names = [options[name].replace("{lang}", language) for name in ("queries", "passages")]
        sets.append(read_passage_set((*names, options["relevant"]), (language, language)))
    pool = make_pool(sets, "one", seed=2)
    # The passages are in the order of the first language, also those of the French file.
    assert [text.split()[-1] for text in pool.passages.lines] == ["dog", "rain", "cat"]
    assert [text[:2] for text in pool.passages.lines] == pool.passage_languages
    assert [text[:2] for text in pool.queries.lines] == pool.query_languages
    assert pool.relevant == [{0: 1.0}, {1: 1.0}, {2: 1.0}]
    assert make_pool(sets, "one", seed=2) == pool
    draws = {tuple(make_pool(sets, "one", seed).passages.lines) for seed in range(20)}
    assert len(draws) > 5


def test_a_pool_scores_queries_with_a_passage_in_their_language_and_others_apart(tmp_path, topics):
    # All queries are English, so those with an English passage are the first task.
    options = write_languages(tmp_path) | {"lang_pairs": "en-en,en-de"}
    protocol = Passages(**options, pool="one", seed=5)
    # "en rain" has the vector of "cat", so that its passage is second or third.
    topics.vectors["en rain"] = [0, 0.5, 1, 0, 0, 0]
    [scores] = protocol.plan().measure(topics)
    same_language, two_languages = scores
    assert (same_language.task, two_languages.task) == ("same language", "two languages")
    assert same_language.settings["queries"] + two_languages.settings["queries"] == 3
    hits = same_language.outcomes["MRR@10"].hits + two_languages.outcomes["MRR@10"].hits
    assert sorted(hits) == [0.5, 1, 1]
    assert "|pool:one|languages:en->en,de|seed:5|queries:" in same_language.signature


def test_any_copy_counts_in_a_pool_of_all_languages(tmp_path, topics):
    options = write_languages(tmp_path) | {"lang_pairs": "en-de,en-en,en-fr"}
    # The nearest passage is the German copy of another topic, the next ones are right.
    topics.vectors["en rain"] = [1, 0.99, 0, 0, 0.2, 0]
    [[score]] = Passages(**options, pool="all").plan().measure(topics)
    assert score.task == "any language"
    assert score.settings["passages"] == 9
    assert score.outcomes["R@1"].hits == [1, 0, 1]
    assert score.outcomes["R@10"].hits == [1, 1, 1]
    assert score.outcomes["same-language@1"].hits == [1, 0, 1]


def test_copies_of_a_passage_count_once():
    text = Text(["a"])
    pool = Pool(text, text, [], kind="all", passage_languages=["en", "en", "de", "de"])
    # Passages 2 and 3 are the German copies of 0 and 1; 4 is a distractor, and -1 an empty place.
    first_copies = pool.first_copies(np.array([[3, 1, 0, 4, -1, 2]]))
    # The better copy counts, under the number of the English one.
    assert first_copies.tolist() == [[1, -1, 0, 4, -1, -1]]


def test_languages_of_a_pool_have_the_same_identifiers(tmp_path, topics):
    options = write_languages(tmp_path)
    write_tsv(tmp_path / "p.de.tsv", [("p1", "de the dog"), ("p2", "x"), ("p3", "x"), ("p9", "x")])
    with pytest.raises(InputError, match=r"p\.en\.tsv and .*p\.de\.tsv: identifier 'p9'"):
        list(Passages(**options, pool="one").plan().measure(topics))


def test_xquad_in_a_pool(tmp_path):
    write_xquad(tmp_path, "en", ["a dog", "a cat"])
    write_xquad(tmp_path, "de", ["ein Hund", "eine Katze"], order=(1, 0))
    sets = [xquad(tmp_path, language, language) for language in ("en", "de")]
    pool = make_pool(sets, "all", seed=1)
    assert pool.passages.lines == ["a dog", "a cat", "ein Hund", "eine Katze"]
    assert pool.relevant == [{0: 1.0}, {1: 1.0}]


# -- codes


def test_codes_are_words_with_a_digit_that_one_passage_has(tmp_path):
    write_tsv(
        tmp_path / "p.tsv",
        [
            ("1", "Part AX-55-210, 12 in stock (see 4.5)."),
            ("2", "Part ax-55-211, 12 in stock"),
            ("3", "AX-55-211 在2007年 since"),
        ],
    )
    test = read_codes(tmp_path / "p.tsv")
    assert test.queries.lines == ["AX-55-210", "4.5", "2007"]
    assert test.relevant == [{0: 1.0}, {0: 1.0}, {2: 1.0}]


def test_bm25_finds_codes(tmp_path, packaged):
    lines = [(str(number), f"Part no. AX-{number}, steel") for number in range(100, 120)]
    write_tsv(tmp_path / "p.tsv", lines)
    protocol = Passages(passages=str(tmp_path / "p.tsv"), codes=True, metric=("bm25",))
    [[score]] = protocol.plan().measure(ModelFolder(packaged))
    assert score.values["R@1"] == 100
    assert "|made:codes|queries:20|" in score.signature


def test_a_collection_without_codes_is_refused(tmp_path):
    write_tsv(tmp_path / "p.tsv", [("1", "a dog"), ("2", "a cat")])
    with pytest.raises(InputError, match=r"p\.tsv: no codes"):
        read_codes(tmp_path / "p.tsv")


def test_the_command_adds_distractors(tmp_path):
    write_xquad(tmp_path, "en", ["one red dog sees the cat", "two blue mice hear a horse"])
    (tmp_path / "more.txt").write_text("three birds\nfour fish\n")
    output = tmp_path / "scores.jsonl"
    words = ["--model", COMPATIBILITY / "best.model", "--dataset", "xquad", "--data", tmp_path]
    words += ["--lang-pairs", "en-en", "--distractors", tmp_path / "more.txt", "--output", output]
    done = lxsr_here("eval", "passages", *words)
    assert "passages|dataset:xquad|metric:nn-cosine|queries:2|passages:4|" in done.stdout
    [score] = read_scores(output)
    assert score.settings["distractors"] == 2
    assert score.task == "en->en"


@pytest.mark.parametrize(
    ("file", "content", "place", "value"),
    [
        ("q.tsv", "q1 without tab\n", "line 1", "q1 without tab"),
        ("p.tsv", "a\tx\na\ty\n", "p.tsv", "'a'"),
        ("r.tsv", "q1\ta\nq9\ta\n", "line 2", "q9"),
        ("r.tsv", "q1\tz\n", "line 1", "'z'"),
        ("r.tsv", "q1\ta\t1\nq2\tb\tgood\n", "line 2", "good"),
        ("r.tsv", "q1\ta\t0\n", "r.tsv", "relevant"),
        ("r.tsv", "q1\n", "line 1", "q1"),
    ],
)
def test_invalid_tables_are_refused(files, tmp_path, file, content, place, value):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError) as error:
        read_passage_set(files)
    assert place in str(error.value)
    assert value in str(error.value)


def test_invalid_xquad_is_refused(tmp_path):
    for content in ("[]", '{"data": 3}', '{"data": [{"paragraphs": [{}]}]}', "x"):
        (tmp_path / "xquad.en.json").write_text(content)
        with case(content), pytest.raises(InputError, match=r"xquad\.en\.json"):
            xquad(tmp_path, "en", "en")


def test_missing_and_contradictory_options_are_refused(files, tmp_path):
    tables = ["--queries", files[0], "--passages", files[1], "--relevant", files[2]]
    for words, *expected in (
        (["--queries", files[0]], "--passages", "--data"),
        ([*tables, "--data", tmp_path], "--data"),
        (["--data", tmp_path], "queries.jsonl", tmp_path),
        ([*tables, "--lang-pairs", "en-fr,en-de"], "p.tsv", "2", "{lang}"),
        ([*tables, "--pool", "one"], "--pool one", "--lang-pairs"),
        ([*tables, "--codes"], "--codes", "--queries"),
        (["--codes"], "--codes", "--passages"),
        (["--codes", "--passages", "p.{lang}.tsv"], "p.{lang}.tsv", "--lang-pairs"),
        (["--dataset", "xquad"], "--data", "--lang-pairs"),
        (["--dataset", "xquad", "--data", tmp_path, "--lang-pairs", "en-xx"], "xquad.en.json"),
        ([*tables, "--metric", "bm26"], "bm26", "bm25"),
    ):
        model = ("--model", COMPATIBILITY / "best.model")
        refused(lxsr_here("eval", "passages", *model, *words, check=False), *expected)
