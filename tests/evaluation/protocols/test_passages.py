"""Passage retrieval: measures, file formats, pools of languages, codes, and BM25."""

import gzip
import json

import numpy as np
import pytest
import random_model
from conftest import COMPATIBILITY, lxsr_here, refused
from golden_vectors import Vectors

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder, Text
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.passage_sets import read_codes, read_passage_set, read_xquad
from fairseq_lxsr.evaluation.pools import Pool, make_pool
from fairseq_lxsr.evaluation.protocols.passages import Passages, ranking_outcomes
from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.options import PASSAGE_METRICS

# q3 has no relevant passage, so it is not scored.
QUERIES = {"q1": "which dog barks", "q2": "where does it rain", "q3": "nothing relevant"}
PASSAGES = {"a": "the dog barks", "b": "it rains in Spain", "c": "cats"}
# The first query is nearest to its passage a; the second is nearest to c, and second to its b.
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
    """Tables of queries, passages and relevant passages: a for q1, and b for q2."""
    write_tsv(tmp_path / "q.tsv", QUERIES.items())
    write_tsv(tmp_path / "p.tsv", PASSAGES.items())
    write_tsv(tmp_path / "r.tsv", [("q1", "a"), ("q2", "b")])
    return tuple(str(tmp_path / name) for name in ("q.tsv", "p.tsv", "r.tsv"))


@pytest.fixture
def beir(tmp_path):
    """A BEIR folder: passage a is relevant for q1, and b and c for q2.

    Every passage has the title T, and c is graded 0 for q1, which is not relevant.
    """
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
    """Write XQuAD in a language: a paragraph and a question for each context, in this order."""
    paragraphs = []
    for number in order:
        question = {"id": f"id{number}", "question": f"{language}  question\n{number}"}
        paragraphs.append({"context": contexts[number], "qas": [question]})
    content = {"data": [{"paragraphs": paragraphs}]}
    (folder / f"xquad.{language}.json").write_text(json.dumps(content, indent=1))


def read_written_xquad(folder, query_language, passage_language):
    """Read the test set that `write_xquad` wrote."""
    languages = (query_language, passage_language)
    questions, paragraphs = (folder / f"xquad.{language}.json" for language in languages)
    return read_xquad(questions, paragraphs, languages)


# -- measures


@pytest.fixture
def binary_outcomes():
    """Outcomes of two queries: the first has one of its two relevant passages at rank 2, the other
    one not among the ten; the second has none of its relevant passages.
    """
    first_ranking = [5, 3, 4, *range(10, 17)]
    # An index returned only seven passages; -1 fills the rest.
    second_ranking = [*range(7), -1, -1, -1]
    retrieved = np.array([first_ranking, second_ranking])
    return ranking_outcomes(retrieved, [{3: 1.0, 9: 1.0}, {8: 1.0}])


def test_mrr_is_the_inverse_rank_of_the_first_relevant_passage_or_zero(binary_outcomes):
    assert binary_outcomes["MRR@10"].hits == [1 / 2, 0]


def test_recall_is_the_part_of_the_relevant_passages_among_the_first(binary_outcomes):
    assert binary_outcomes["R@1"].hits == [0, 0]
    assert binary_outcomes["R@10"].hits == [1 / 2, 0]


def test_ndcg_is_the_gain_at_rank_2_divided_by_the_gain_of_ranks_1_and_2(binary_outcomes):
    gain = 1 / np.log2(3)
    ideal_gain = 1 + 1 / np.log2(3)

    mean = (gain / ideal_gain + 0) / 2
    assert binary_outcomes["nDCG@10"].value == pytest.approx(100 * mean, abs=0.01)


def test_only_ndcg_weighs_passages_by_their_grades():
    """The passage of grade 1 is before that of grade 3."""
    outcomes = ranking_outcomes(np.array([[1, 0]]), [{0: 3.0, 1: 1.0}])

    assert outcomes["R@1"].value == 50
    assert outcomes["R@10"].value == 100
    gain = 1 + 3 / np.log2(3)
    ideal_gain = 3 + 1 / np.log2(3)
    assert outcomes["nDCG@10"].value == pytest.approx(100 * gain / ideal_gain, abs=0.01)


# -- tables and BEIR folders


def options_of(files) -> dict[str, str]:
    """Return the options for the tables of the fixture `files`."""
    return dict(zip(("queries", "passages", "relevant"), files, strict=True))


def test_queries_without_a_relevant_passage_are_left_out(files):
    test_set = read_passage_set(files, ("en", "en"))

    assert test_set.queries.lines == [QUERIES["q1"], QUERIES["q2"]]


def test_tables_are_scored_by_nearest_neighbour(files):
    """The passages of the two queries are at ranks 1 and 2."""
    protocol = Passages(**options_of(files), lang_pairs="en-en")

    [[score]] = protocol.plan().measure(Vectors(VECTORS))

    assert score.task == "en->en"
    assert score.values["MRR@10"] == 100 * (1 + 1 / 2) / 2
    assert score.values["R@1"] == 50


def test_the_signature_has_metric_numbers_and_model(files):
    [[score]] = Passages(**options_of(files)).plan().measure(Vectors(VECTORS))

    numbers = "queries:2|passages:3|distractors:0|relevant:2"
    assert score.signature.startswith(f"passages|metric:nn-cosine|{numbers}|text:")
    assert "|model:golden|" in score.signature


def test_bm25_finds_words_and_is_signed_as_the_model(files):
    protocol = Passages(**options_of(files), metric=("nn", "bm25"))

    _, [score] = protocol.plan().measure(Vectors(VECTORS))

    assert score.task == "queries->passages"
    assert score.values["R@1"] == 100
    assert score.signature.startswith("passages|metric:bm25-k1.5-b0.75|")
    assert "|model:bm25|" in score.signature


def test_the_ranking_of_an_index_is_measured(files, tmp_path):
    folder = random_model.write_model(tmp_path / "m", gated=True, num_layers=0)
    encoder = ModelFolder(SentenceEncoder.from_pretrained(folder))
    protocol = Passages(**options_of(files), metric=("passages",))

    [[score]] = protocol.plan().measure(encoder)

    assert score.signature.startswith(f"passages|metric:{PASSAGE_METRICS['passages']}|")
    # The weights are random, but the index returns all three passages.
    assert score.values["R@10"] == 100


def test_a_model_without_word_pieces_is_refused_for_the_ranking_of_an_index(files):
    protocol = Passages(**options_of(files), metric=("passages",))

    with pytest.raises(InputError, match=r"passages: .*word piece"):
        list(protocol.plan().measure(Vectors(VECTORS)))


def test_a_beir_folder_is_scored_with_titles_and_relevant_grades(beir):
    titled = {f"T {text}": VECTORS[text] for text in PASSAGES.values()}

    [[score]] = Passages(data=str(beir)).plan().measure(Vectors(VECTORS | titled))

    # One for q1 and two for q2; the grade 0 is not relevant.
    assert score.settings["relevant"] == 3
    assert score.values["MRR@10"] == 100
    # The first passage of q2 is c, which is half of its relevant passages.
    assert score.values["R@1"] == 100 * (1 + 1 / 2) / 2


def write_beir(folder, passages, queries, relevant) -> None:
    """Write a BEIR folder of passages and queries by identifier, and relevant (query, passage)."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", passages), ("queries", queries)):
        lines = [json.dumps({"_id": id_, "text": text}) for id_, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    write_tsv(folder / "qrels" / "test.tsv", [(*pair, "1") for pair in relevant])


METRICS = ("nn", "passages", "bm25")


def beir_score(folder, encoder, metric: str = "nn", **options):
    """Return the score of a BEIR folder."""
    protocol = Passages(data=str(folder), metric=(metric,), **options)
    [[score]] = protocol.plan().measure(ModelFolder(encoder))
    return score


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_passage_is_never_found(tmp_path, packaged, metric):
    passages = {"d1": "", "d2": "A dog barks.", "d3": " "}
    relevant = [("q1", "d2"), ("q1", "d3")]
    write_beir(tmp_path / "set", passages, {"q1": "a dog"}, relevant)

    score = beir_score(tmp_path / "set", packaged, metric)

    # d2 is first, and the empty d3 is not found.
    assert score.values["MRR@10"] == 100
    assert score.values["R@10"] == 50
    assert "|empty:2|" in score.signature


@pytest.mark.parametrize("metric", METRICS)
def test_a_query_does_not_find_the_passage_with_its_identifier(tmp_path, packaged, metric):
    """As in BEIR: t1 is both a passage and a query, which must find t2."""
    passages = {"t1": "a dog barks", "t2": "the dog barks", "t3": "a cat sleeps"}
    queries = {"t1": "a dog barks", "q2": "a cat sleeps"}
    write_beir(tmp_path / "set", passages, queries, [("t1", "t2"), ("q2", "t3")])

    score = beir_score(tmp_path / "set", packaged, metric)

    assert score.values["MRR@10"] == 100
    assert "|excluded:1|" in score.signature


def test_ten_passages_are_left_if_one_is_excluded(tmp_path, packaged):
    """All of d0 to d9 and q have the text of the query, and q is excluded, so d0 is in the ten."""
    passages = {f"d{number}": "a dog barks" for number in range(10)}
    passages["d10"] = "the cat sleeps"
    passages["q"] = "a dog barks"
    write_beir(tmp_path / "set", passages, {"q": "a dog barks"}, [("q", "d0")])

    score = beir_score(tmp_path / "set", packaged)

    assert score.values["R@10"] == 100


def test_a_relevant_passage_that_is_missing_counts_for_recall(tmp_path, packaged):
    found = ("q1", "d1")
    missing = ("q1", "gone")
    write_beir(tmp_path / "set", {"d1": "A dog barks."}, {"q1": "a dog"}, [found, missing])
    # A distractor must not take the place of the missing passage.
    (tmp_path / "more.txt").write_text("A cat.\nA house.\n")

    score = beir_score(tmp_path / "set", packaged, distractors=str(tmp_path / "more.txt"))

    assert score.values["R@10"] == 50
    assert "|relevant:2|missing:1|" in score.signature


def test_a_beir_folder_whose_relevant_passages_are_all_missing_is_refused(tmp_path, packaged):
    write_beir(tmp_path / "set", {"d1": "A dog."}, {"q1": "a dog"}, [("q1", "x")])

    with pytest.raises(InputError, match=r"test\.tsv: none of the 1 "):
        beir_score(tmp_path / "set", packaged)


def test_a_query_may_find_a_passage_with_its_identifier_in_tables(files, tmp_path):
    """Other than in a BEIR folder, the identifiers of queries and passages are unrelated."""
    write_tsv(tmp_path / "q.tsv", [("1", "which dog barks")])
    write_tsv(tmp_path / "p.tsv", [("1", "the dog barks"), ("2", "cats")])
    write_tsv(tmp_path / "r.tsv", [("1", "1")])

    [[score]] = Passages(**options_of(files)).plan().measure(Vectors(VECTORS))

    assert score.values["R@1"] == 100


@pytest.fixture
def xquad_folder(tmp_path):
    """XQuAD in English, and in German with its two paragraphs in the other order."""
    write_xquad(tmp_path, "en", ["a dog", "a  cat"])
    write_xquad(tmp_path, "de", ["ein Hund", "eine Katze"], order=(1, 0))
    return tmp_path


def test_xquad_is_read_across_languages_by_the_identifiers_of_questions(xquad_folder):
    test_set = read_written_xquad(xquad_folder, "en", "de")

    assert test_set.queries.lines == ["en question 0", "en question 1"]
    assert test_set.passages.lines == ["eine Katze", "ein Hund"]
    # The dog is the second German passage.
    assert test_set.relevant == [{1: 1.0}, {0: 1.0}]


def test_xquad_is_read_within_a_language_with_single_spaces(xquad_folder):
    test_set = read_written_xquad(xquad_folder, "en", "en")

    assert test_set.passages.lines == ["a dog", "a cat"]


# -- collections of several languages

LANGUAGES = ("en", "de", "fr")


def write_languages(folder) -> dict[str, str]:
    """Write three passages and their queries in three languages, and return the options.

    The passages of the French file are in the reverse order.
    """
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


def topic_vector(text: str) -> list[float]:
    """Return a vector in which the topic has a weight of 1 and the language of 0.1."""
    language, *_, topic = text.split()
    vector = [0.0] * 6
    vector[("dog", "rain", "cat").index(topic)] = 1.0
    vector[3 + LANGUAGES.index(language)] = 0.1
    return vector


@pytest.fixture
def topics():
    """The encoder of the texts of `write_languages`: the same topics are near in all languages."""
    texts = [f"{language} {topic}" for language in LANGUAGES for topic in ("dog", "rain", "cat")]
    texts += [text.replace(" ", " the ") for text in texts]
    return Vectors({text: topic_vector(text) for text in texts})


def read_languages(folder) -> list:
    """Return the test sets that `write_languages` writes, in each language."""
    options = write_languages(folder)
    sets = []
    for language in LANGUAGES:
        names = [options[name].replace("{lang}", language) for name in ("queries", "passages")]
        sets.append(read_passage_set((*names, options["relevant"]), (language, language)))
    return sets


def test_each_text_of_a_pool_one_is_in_the_language_that_the_pool_says(tmp_path):
    pool = make_pool(read_languages(tmp_path), "one", seed=2)

    # Every text begins with its language.
    assert [text.split()[0] for text in pool.passages.lines] == pool.passage_languages
    assert [text.split()[0] for text in pool.queries.lines] == pool.query_languages


def test_passages_of_a_pool_are_in_the_order_of_the_first_language(tmp_path):
    """The French file has another order."""
    pool = make_pool(read_languages(tmp_path), "one", seed=2)

    # Every text ends with its topic.
    assert [text.split()[-1] for text in pool.passages.lines] == ["dog", "rain", "cat"]
    assert pool.relevant == [{0: 1.0}, {1: 1.0}, {2: 1.0}]


def test_the_seed_decides_the_languages_of_a_pool(tmp_path):
    sets = read_languages(tmp_path)

    pools = [tuple(make_pool(sets, "one", seed).passages.lines) for seed in range(20)]

    assert make_pool(sets, "one", seed=2) == make_pool(sets, "one", seed=2)
    # Three passages in three languages can be drawn in 27 ways.
    assert len(set(pools)) > 5


def test_a_pool_scores_queries_with_a_passage_in_their_language_and_others_apart(tmp_path, topics):
    # All queries are English, so those with an English passage are the first task.
    options = write_languages(tmp_path) | {"lang_pairs": "en-en,en-de"}
    # "en rain" is nearest to "cat" and second to "rain".
    topics.vectors["en rain"] = [0, 0.5, 1, 0, 0, 0]

    [scores] = Passages(**options, pool="one", seed=5).plan().measure(topics)

    same_language, two_languages = scores
    assert same_language.task == "same language"
    assert two_languages.task == "two languages"
    # Together, the tasks have the three queries, of which one has its passage second.
    assert same_language.settings["queries"] + two_languages.settings["queries"] == 3
    hits = same_language.outcomes["MRR@10"].hits + two_languages.outcomes["MRR@10"].hits
    assert sorted(hits) == [0.5, 1, 1]


def test_the_signature_of_a_pool_has_its_kind_languages_and_seed(tmp_path, topics):
    options = write_languages(tmp_path) | {"lang_pairs": "en-en,en-de"}

    [[score, _]] = Passages(**options, pool="one", seed=5).plan().measure(topics)

    assert "|pool:one|languages:en->en,de|seed:5|queries:" in score.signature


def test_any_copy_of_the_passage_counts_in_a_pool_of_all_languages(tmp_path, topics):
    options = write_languages(tmp_path) | {"lang_pairs": "en-de,en-en,en-fr"}
    # The nearest passage of "en rain" is the German "dog", the next ones are copies of "rain".
    topics.vectors["en rain"] = [1, 0.99, 0, 0, 0.2, 0]

    [[score]] = Passages(**options, pool="all").plan().measure(topics)

    assert score.task == "any language"
    # Three passages in three languages.
    assert score.settings["passages"] == 9
    assert score.outcomes["R@1"].hits == [1, 0, 1]
    assert score.outcomes["R@10"].hits == [1, 1, 1]


def test_a_pool_of_all_languages_counts_first_passages_in_the_language_of_the_query(
    tmp_path, topics
):
    options = write_languages(tmp_path) | {"lang_pairs": "en-de,en-en,en-fr"}
    topics.vectors["en rain"] = [1, 0.99, 0, 0, 0.2, 0]

    [[score]] = Passages(**options, pool="all").plan().measure(topics)

    # The first passage of "en rain" is German, the others are English.
    assert score.outcomes["same-language@1"].hits == [1, 0, 1]


def test_copies_of_a_passage_count_once_where_the_first_of_them_is():
    text = Text(["a"])
    pool = Pool(text, text, [], kind="all", passage_languages=["en", "en", "de", "de"])
    # Passages 2 and 3 are the German copies of 0 and 1; 4 is a distractor, and -1 an empty place.
    retrieved = np.array([[3, 1, 0, 4, -1, 2]])

    first_copies = pool.first_copies(retrieved)

    # 3 has the number of its English copy, 1; its copy behind it and the copy of 0 are removed.
    assert first_copies.tolist() == [[1, -1, 0, 4, -1, -1]]


def test_languages_of_a_pool_with_different_identifiers_are_refused(tmp_path, topics):
    options = write_languages(tmp_path)
    # German has the passage p9, which English lacks.
    write_tsv(tmp_path / "p.de.tsv", [("p1", "de the dog"), ("p2", "x"), ("p3", "x"), ("p9", "x")])

    with pytest.raises(InputError, match=r"p\.en\.tsv and .*p\.de\.tsv: identifier 'p9'"):
        list(Passages(**options, pool="one").plan().measure(topics))


def test_paragraphs_of_xquad_in_a_pool_are_in_the_order_of_the_first_language(xquad_folder):
    sets = [read_written_xquad(xquad_folder, language, language) for language in ("en", "de")]

    pool = make_pool(sets, "all", seed=1)

    assert pool.passages.lines == ["a dog", "a cat", "ein Hund", "eine Katze"]
    assert pool.relevant == [{0: 1.0}, {1: 1.0}]


# -- codes


def test_codes_are_words_with_a_digit_that_one_passage_has(tmp_path):
    passages = [
        # 12 is in two passages.
        ("1", "Part AX-55-210, 12 in stock (see 4.5)."),
        # The case of AX-55-211 does not count, so it is in two passages.
        ("2", "Part ax-55-211, 12 in stock"),
        # Chinese has no spaces around numbers.
        ("3", "AX-55-211 在2007年 since"),
    ]
    write_tsv(tmp_path / "p.tsv", passages)

    test_set = read_codes(tmp_path / "p.tsv")

    assert test_set.queries.lines == ["AX-55-210", "4.5", "2007"]
    assert test_set.relevant == [{0: 1.0}, {0: 1.0}, {2: 1.0}]


def test_bm25_finds_codes(tmp_path, packaged):
    parts = [(str(number), f"Part no. AX-{number}, steel") for number in range(100, 120)]
    write_tsv(tmp_path / "p.tsv", parts)
    protocol = Passages(passages=str(tmp_path / "p.tsv"), codes=True, metric=("bm25",))

    [[score]] = protocol.plan().measure(ModelFolder(packaged))

    assert score.values["R@1"] == 100
    # A query for the code of each part.
    assert "|made:codes|queries:20|" in score.signature


def test_a_collection_without_codes_is_refused(tmp_path):
    write_tsv(tmp_path / "p.tsv", [("1", "a dog"), ("2", "a cat")])

    with pytest.raises(InputError, match=r"p\.tsv: no codes"):
        read_codes(tmp_path / "p.tsv")


# -- the command


def test_the_command_adds_distractors_to_the_passages(tmp_path):
    write_xquad(tmp_path, "en", ["one red dog sees the cat", "two blue mice hear a horse"])
    (tmp_path / "more.txt").write_text("three birds\nfour fish\n")
    output = tmp_path / "scores.jsonl"

    words = ["--model", COMPATIBILITY / "best.model", "--dataset", "xquad", "--data", tmp_path]
    words += ["--lang-pairs", "en-en", "--distractors", tmp_path / "more.txt", "--output", output]
    done = lxsr_here("eval", "passages", *words)

    # Two paragraphs and two distractors.
    assert "passages|dataset:xquad|metric:nn-cosine|queries:2|passages:4|" in done.stdout
    [score] = read_scores(output)
    assert score.settings["distractors"] == 2
    assert score.task == "en->en"


@pytest.mark.parametrize(
    ("file", "content", "place", "value"),
    [
        pytest.param("q.tsv", "q1 without tab\n", "line 1", "q1 without tab", id="no tab"),
        pytest.param("p.tsv", "a\tx\na\ty\n", "p.tsv", "'a'", id="passage twice"),
        pytest.param("r.tsv", "q1\ta\nq9\ta\n", "line 2", "q9", id="unknown query"),
        pytest.param("r.tsv", "q1\tz\n", "line 1", "'z'", id="unknown passage"),
        pytest.param("r.tsv", "q1\ta\t1\nq2\tb\tgood\n", "line 2", "good", id="grade is text"),
        pytest.param("r.tsv", "q1\ta\t0\n", "r.tsv", "relevant", id="only grades of 0"),
        pytest.param("r.tsv", "q1\n", "line 1", "q1", id="no passage"),
    ],
)
def test_invalid_tables_are_refused(files, tmp_path, file, content, place, value):
    (tmp_path / file).write_text(content)

    with pytest.raises(InputError) as error:
        read_passage_set(files)

    assert place in str(error.value)
    assert value in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("x", id="not JSON"),
        pytest.param("[]", id="not an object"),
        pytest.param('{"data": 3}', id="data is a number"),
        pytest.param('{"data": [{"paragraphs": [{}]}]}', id="paragraph without text"),
    ],
)
def test_invalid_xquad_is_refused(tmp_path, content):
    (tmp_path / "xquad.en.json").write_text(content)

    with pytest.raises(InputError, match=r"xquad\.en\.json"):
        read_written_xquad(tmp_path, "en", "en")


def refuse_passages(words, *expected) -> None:
    """Check that `lxsr eval passages` refuses options with a message that names the expected."""
    command = ("eval", "passages", "--model", COMPATIBILITY / "best.model", *words)
    refused(lxsr_here(*command, check=False), *expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--queries", "q.tsv"], ("--passages", "--data"), id="queries alone"),
        pytest.param(["--codes"], ("--codes", "--passages"), id="codes of what"),
        pytest.param(
            ["--codes", "--passages", "p.{lang}.tsv"],
            ("p.{lang}.tsv", "--lang-pairs"),
            id="no language to fill in",
        ),
        pytest.param(["--dataset", "xquad"], ("--data", "--lang-pairs"), id="XQuAD without data"),
    ],
)
def test_missing_options_are_refused(words, expected):
    refuse_passages(words, *expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--data", "folder"], ("--data",), id="tables and a folder"),
        pytest.param(
            ["--lang-pairs", "en-fr,en-de"],
            ("p.tsv", "2", "{lang}"),
            id="two pairs and one table",
        ),
        pytest.param(["--pool", "one"], ("--pool one", "--lang-pairs"), id="pool of one language"),
        pytest.param(["--codes"], ("--codes", "--queries"), id="queries and codes"),
        pytest.param(["--metric", "bm26"], ("bm26", "bm25"), id="unknown metric"),
    ],
)
def test_options_that_do_not_suit_given_tables_are_refused(files, words, expected):
    queries, passages, relevant = files
    tables = ["--queries", queries, "--passages", passages, "--relevant", relevant]

    refuse_passages([*tables, *words], *expected)


def test_a_folder_that_is_not_of_beir_is_refused(tmp_path):
    refuse_passages(["--data", tmp_path], "queries.jsonl", tmp_path)


def test_a_folder_without_files_of_xquad_is_refused(tmp_path):
    options = ["--dataset", "xquad", "--data", tmp_path, "--lang-pairs", "en-xx"]

    refuse_passages(options, "xquad.en.json")
