"""HTML entities in plain text are replaced if a whole side is written with them, or if asked for."""

import html

import numpy as np
import pytest
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.entities import EntityReader, is_escaped, unescape

# Thirty sentences with all characters that programs escape, and how they are escaped once and twice.
PLAIN = [f'Tom & Jerry say "it\'s {number} < {number + 1}".' for number in range(30)]
ESCAPED = [html.escape(text) for text in PLAIN]
TWICE = [html.escape(text) for text in ESCAPED]


def test_known_entities_with_a_semicolon_are_replaced_and_similar_text_is_kept():
    text = "AT&T &copy=1 &nosuchname; &lt;b&gt; cl&eacute; &#8217; &#x2019;&#39;"
    assert unescape(text) == "AT&T &copy=1 &nosuchname; <b> clé \u2019 \u2019'"


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(ESCAPED, id="once"),
        pytest.param(TWICE, id="twice"),
        pytest.param([*ESCAPED, PLAIN[0]], id="one bare line in 31"),
        # Nowhere in the text is the apostrophe escaped.
        pytest.param(["R&amp;D isn't here.", "It's late."], id="apostrophe"),
    ],
)
def test_a_text_is_escaped_if_characters_that_it_has_as_entities_are_hardly_ever_bare(texts):
    assert is_escaped(texts)


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(PLAIN, id="plain"),
        pytest.param(["A plain sentence."], id="nothing to escape"),
        pytest.param([*PLAIN, *ESCAPED[:3]], id="few escaped lines"),
        # Texts about entities.
        pytest.param(["R&amp;D", "R & D"], id="bare ampersand"),
        pytest.param(["He said &quot;yes&quot;.", 'He said "no".'], id="bare quotation marks"),
    ],
)
def test_a_text_is_not_escaped_if_it_has_no_entities_or_the_bare_characters_too(texts):
    assert not is_escaped(texts)


def test_entities_are_replaced_in_the_side_of_the_pairs_that_is_escaped():
    reader = EntityReader("auto")
    # What comes after the two sentences of a pair is kept.
    scores = [f"0.{number}" for number in range(30)]
    pairs = zip(PLAIN, TWICE, scores, strict=True)

    unescaped = list(reader.read(pairs))

    assert unescaped == list(zip(PLAIN, PLAIN, scores, strict=True))
    assert reader.num_unescaped == 30
    assert reader.num_kept == 0


def prepare(folder, pairs, *options):
    """Prepare pairs; return the result of the command and the English training text."""
    folder.mkdir()
    write_lines(folder / "t.tsv", [f"{english}\t{french}" for english, french in pairs])
    command = ["prepare", "--work", folder / "w", "--data", folder / "t.tsv", "--until", "clean"]
    command += ["--valid-size", 1, "--test-size", 0, "--workers", 1, *options]
    result = lxsr_here(*command)
    return result, (folder / "w" / "corpus" / "en-fr" / "train.en").read_text()


PAIRS = toy.sentences(30)
ESCAPED_PAIRS = [(f"R&amp;D: {english}", french) for english, french in PAIRS]
# Four of thirty pairs have an entity; the others have the bare character.
MIXED_PAIRS = ESCAPED_PAIRS[:4] + [(f"A & B: {english}", french) for english, french in PAIRS[4:]]


def test_prepare_replaces_entities_of_an_escaped_text_and_counts_the_pairs(tmp_path):
    result, text = prepare(tmp_path / "work", ESCAPED_PAIRS)

    assert "&amp;" not in text
    assert "R&D: " in text
    assert "HTML entities replaced in 30 pairs" in result.stdout


def test_prepare_keeps_entities_and_names_the_option_if_only_some_pairs_have_them(tmp_path):
    result, text = prepare(tmp_path / "work", MIXED_PAIRS)

    assert "R&amp;D" in text
    assert "4 pairs have HTML entities" in result.stderr
    assert "--entities unescape" in result.stderr


def test_prepare_with_entities_unescape_replaces_them_if_only_some_pairs_have_them(tmp_path):
    result, text = prepare(tmp_path / "work", MIXED_PAIRS, "--entities", "unescape")

    assert "&amp;" not in text
    assert "replaced in 4 pairs" in result.stdout


def test_prepare_with_entities_keep_keeps_them_without_a_message(tmp_path):
    result, text = prepare(tmp_path / "work", ESCAPED_PAIRS, "--entities", "keep")

    assert "R&amp;D" in text
    assert "HTML entities" not in result.stdout + result.stderr


def test_an_unknown_value_of_the_option_entities_is_refused():
    result = lxsr_here("prepare", "--entities", "x", check=False)

    refused(result, "--entities", "'x'")


@pytest.fixture
def packaged_in_memory(packaged, monkeypatch):
    """Commands take the packaged model from memory, because reading it takes most of a second."""
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", lambda *_, **__: packaged)


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def escaped_text(tmp_path):
    """A file of the thirty escaped sentences."""
    return write_lines(tmp_path / "text", ESCAPED)


@pytest.fixture
def score_command(tmp_path):
    """The command that scores pairs of a plain and the same escaped sentence."""
    rows = [f"{plain}\t{escaped}" for plain, escaped in zip(PLAIN, ESCAPED, strict=True)]
    table = write_lines(tmp_path / "t.tsv", rows)
    return ("score", "--model", "lxsr-static", "--input", table)


@pytest.mark.usefixtures("packaged_in_memory")
def test_score_replaces_entities_before_it_compares_the_sentences(score_command):
    result = lxsr_here(*score_command)

    # Without entities, both sentences of each pair are the same, and their cosine is one.
    assert result.stdout.split() == ["1.000000"] * len(PLAIN)


@pytest.mark.usefixtures("packaged_in_memory")
def test_score_says_that_it_has_replaced_entities(score_command):
    result = lxsr_here(*score_command)

    assert "entities, now replaced by characters" in result.stderr


@pytest.mark.usefixtures("packaged_in_memory")
def test_score_with_entities_keep_compares_the_entities(score_command):
    result = lxsr_here(*score_command, "--entities", "keep")

    scores = [float(score) for score in result.stdout.split()]
    # Far from one, the score of equal sentences.
    assert max(scores) < 0.9


@pytest.mark.usefixtures("packaged_in_memory")
def test_score_writes_the_text_with_its_entities_next_to_the_score(score_command):
    result = lxsr_here(*score_command, "--output", "-")

    assert f"1.000000\t{PLAIN[0]}\t{ESCAPED[0]}\n" in result.stdout


def test_lines_whose_entities_are_replaced_are_counted():
    reader = EntityReader("auto")

    assert list(reader.read_lines([*TWICE, "plain"])) == [*PLAIN, "plain"]
    assert (reader.num_unescaped, reader.num_kept) == (30, 0)


def test_lines_whose_entities_are_kept_are_counted():
    reader = EntityReader("keep")

    assert list(reader.read_lines([*ESCAPED, "plain"])) == [*ESCAPED, "plain"]
    assert (reader.num_unescaped, reader.num_kept) == (0, 30)


def embed(text, *options):
    """Embed a text file; return the vectors and the messages of the command."""
    output = text.with_suffix(".npy")
    command = ("embed", "--model", "lxsr-static", "--input", text, "--output", output)
    messages = lxsr_here(*command, *options).stderr
    return np.load(output), messages


@pytest.fixture
def plain_vectors(packaged_in_memory, tmp_path) -> np.ndarray:
    """The vectors of the thirty plain sentences."""
    vectors, _ = embed(write_lines(tmp_path / "plain", PLAIN))
    return vectors


def test_embed_replaces_entities_and_counts_the_lines(plain_vectors, escaped_text):
    vectors, messages = embed(escaped_text)

    assert np.array_equal(vectors, plain_vectors)
    assert "entities, now replaced by characters: 30" in messages


def test_embed_with_entities_keep_makes_other_vectors_without_a_message(
    plain_vectors, escaped_text
):
    vectors, messages = embed(escaped_text, "--entities", "keep")

    assert not np.array_equal(vectors, plain_vectors)
    assert "entities" not in messages


def test_embed_replaces_entities_in_each_shard_of_a_text(plain_vectors, tmp_path):
    """The whole text decides, so that all shards are read in the same way."""
    text = write_lines(tmp_path / "text", [*ESCAPED, "A plain line."])

    first, _ = embed(text, "--shard", "1/2")
    second, _ = embed(text, "--shard", "2/2")

    vectors = np.concatenate((first, second))
    assert np.array_equal(vectors[:30], plain_vectors)


@pytest.fixture
def embed_command(packaged_in_memory, escaped_text, tmp_path):
    """The command that has stored the vectors of the escaped text in a folder."""
    output = tmp_path / "vectors" / "text.npy"
    command = ("embed", "--model", "lxsr-static", "--input", escaped_text, "--output", output)
    lxsr_here(*command)
    return command


def test_stored_vectors_of_a_text_with_entities_can_be_indexed(
    embed_command, escaped_text, tmp_path
):
    """They are stored with the checksum of the text with its entities."""
    vectors = tmp_path / "vectors"

    lxsr_here("index", "--model", vectors, "--input", escaped_text, "--output", tmp_path / "index")


def test_embed_is_resumed_only_with_the_same_treatment_of_entities(embed_command):
    lxsr_here(*embed_command, "--resume")

    result = lxsr_here(*embed_command, "--resume", "--entities", "keep", check=False)

    refused(result, "text.npy")


@pytest.fixture
def index_command(packaged_in_memory, escaped_text, tmp_path):
    """The command that indexes the escaped text."""
    output = tmp_path / "index"
    return ("index", "--model", "lxsr-static", "--input", escaped_text, "--output", output)


def search_nearest(index, queries, *options):
    """Search an index for each line of a file.

    Returns:
        The number and text of the nearest line by the text of the query, and the messages.
    """
    command = ("search", "--index", index, "--k", 1, "--output", "-", "--input", queries)
    result = lxsr_here(*command, *options)
    nearest = {}
    for row in result.stdout.splitlines():
        query, _, number, sentence = row.split("\t")[:4]
        nearest[query] = (number, sentence)
    return nearest, result.stderr


def test_index_and_search_replace_entities_and_count_the_lines(
    index_command, escaped_text, tmp_path
):
    result = lxsr_here(*index_command)
    nearest, messages = search_nearest(tmp_path / "index", escaped_text)

    assert "now replaced by characters: 30" in result.stderr
    assert "queries with HTML entities, now replaced by characters: 30" in messages
    assert nearest[PLAIN[0]] == ("1", PLAIN[0])


def test_index_and_search_with_entities_keep_find_the_lines_with_entities(
    index_command, escaped_text, tmp_path
):
    lxsr_here(*index_command)
    # The same thirty lines again, with their entities, are lines 31 to 60.
    result = lxsr_here(*index_command, "--add", "--entities", "keep")

    nearest, _ = search_nearest(tmp_path / "index", escaped_text, "--entities", "keep")

    assert "entities" not in result.stderr
    assert nearest[ESCAPED[0]] == ("31", ESCAPED[0])


@pytest.mark.usefixtures("packaged_in_memory")
def test_index_replaces_entities_in_a_column_of_texts_next_to_ids(tmp_path):
    rows = [f"id{number}\t{line}" for number, line in enumerate(ESCAPED)]
    table = write_lines(tmp_path / "table", rows)
    output = tmp_path / "index"
    index = ("index", "--model", "lxsr-static", "--input", table, "--output", output)

    # Column 1 has the ids, column 2 the texts.
    new = lxsr_here(*index, "--columns", "1,2")
    updated = lxsr_here(*index, "--columns", "1,2", "--update")
    search = lxsr_here("search", "--index", output, "--output", "-", PLAIN[7])

    assert "now replaced by characters: 30" in new.stderr
    assert "now replaced by characters: 30" in updated.stderr
    # The id, the sentence, and the text that is shown, which is the same.
    assert f"\tid7\t{PLAIN[7]}\t{PLAIN[7]}\n" in search.stdout


@pytest.fixture
def mine_command(packaged_in_memory, escaped_text, tmp_path):
    """The command that mines pairs of an escaped sentence and the plain one with a word more.

    It keeps the embeddings in a work folder for the next run.
    """
    target = write_lines(tmp_path / "target", [f"{line} Yes." for line in PLAIN])
    options = ("--source", escaped_text, "--target", target, "--work", tmp_path / "work")
    return ("mine", "--model", "lxsr-static", *options)


def test_mine_replaces_entities_and_counts_the_lines(mine_command, escaped_text, tmp_path):
    result = lxsr_here(*mine_command, "--output", tmp_path / "pairs.tsv")

    message = f"lines of {escaped_text} with HTML entities, now replaced by characters: 30"
    assert message in result.stderr
    assert f"\t{PLAIN[3]}\t{PLAIN[3]} Yes.\n" in (tmp_path / "pairs.tsv").read_text()


def test_mine_with_entities_keep_embeds_again_what_it_has_embedded_without_entities(
    mine_command, tmp_path
):
    lxsr_here(*mine_command, "--output", tmp_path / "pairs.tsv")

    lxsr_here(*mine_command, "--output", tmp_path / "kept.tsv", "--entities", "keep")

    scores = scores_of(tmp_path / "pairs.tsv")
    scores_with_entities = scores_of(tmp_path / "kept.tsv")
    assert "&amp;" in (tmp_path / "kept.tsv").read_text()
    assert scores_with_entities != scores


def scores_of(pairs) -> list[str]:
    """Return the first column of a file of mined pairs."""
    return [row.split("\t")[0] for row in pairs.read_text().splitlines()]
