"""HTML entities in plain text are replaced if a whole side is written with them, or if asked for."""

import html

import numpy as np
import pytest
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.entities import EntityReader, is_escaped, unescape

PLAIN = [f'Tom & Jerry say "it\'s {number} < {number + 1}".' for number in range(30)]
ESCAPED = [html.escape(text) for text in PLAIN]
TWICE = [html.escape(text) for text in ESCAPED]


def test_only_known_entities_with_a_semicolon_are_replaced():
    text = "AT&T &copy=1 &nosuchname; &lt;b&gt; cl&eacute; &#8217; &#x2019;&#39;"
    assert unescape(text) == "AT&T &copy=1 &nosuchname; <b> clé \u2019 \u2019'"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (PLAIN, False),
        (ESCAPED, True),
        (TWICE, True),
        (["A plain sentence."] * 9, False),
        # A few lines of a text that is not escaped, or a text about entities.
        (PLAIN + ESCAPED[:3], False),
        (["R&amp;D", "R & D"], False),
        (['He said &quot;yes&quot;, "no" & "perhaps".', 'A "b".'], False),
        # A single bare character among many lines.
        (ESCAPED + PLAIN[:1], True),
        # The apostrophe is not escaped anywhere.
        (["R&amp;D isn't here.", "It's late."], True),
    ],
)
def test_a_text_is_escaped_if_no_line_has_the_bare_characters(texts, expected):
    assert is_escaped(texts) is expected


def test_entities_of_one_side_are_replaced_if_only_it_has_them():
    reader = EntityReader("auto")
    rows = [[number] for number in range(30)]
    pairs = zip(PLAIN, TWICE, rows, strict=True)
    assert list(reader.read(pairs)) == list(zip(PLAIN, PLAIN, rows, strict=True))
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
MIXED_PAIRS = ESCAPED_PAIRS[:4] + [(f"A & B: {english}", french) for english, french in PAIRS[4:]]


def test_prepare_replaces_entities_and_counts_them(tmp_path):
    result, text = prepare(tmp_path / "work", ESCAPED_PAIRS)
    assert "&amp;" not in text
    assert "R&D: " in text
    assert "HTML entities replaced in 30 pairs" in result.stdout


def test_prepare_names_the_option_if_only_some_pairs_have_entities(tmp_path):
    result, text = prepare(tmp_path / "auto", MIXED_PAIRS)
    assert "R&amp;D" in text
    assert "4 pairs have HTML entities" in result.stderr
    assert "--entities unescape" in result.stderr
    result, text = prepare(tmp_path / "unescape", MIXED_PAIRS, "--entities", "unescape")
    assert "&amp;" not in text
    assert "replaced in 4 pairs" in result.stdout


def test_prepare_keeps_entities_if_asked(tmp_path):
    result, text = prepare(tmp_path / "keep", ESCAPED_PAIRS, "--entities", "keep")
    assert "R&amp;D" in text
    assert "HTML entities" not in result.stdout + result.stderr


def test_an_unknown_treatment_of_entities_is_refused():
    refused(lxsr_here("prepare", "--entities", "x", check=False), "--entities", "'x'")


@pytest.fixture
def packaged_in_memory(packaged, monkeypatch):
    """Commands take the packaged model from memory, because reading it takes most of a second."""
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", lambda *_, **__: packaged)


@pytest.mark.usefixtures("packaged_in_memory")
def test_score_replaces_entities_for_the_score_and_writes_the_text_unchanged(tmp_path):
    rows = [f"{plain}\t{escaped}" for plain, escaped in zip(PLAIN, ESCAPED, strict=True)]
    table = write_lines(tmp_path / "t.tsv", rows)
    score = ("score", "--model", "lxsr-static", "--input", table)
    result = lxsr_here(*score)
    assert set(result.stdout.split()) == {"1.000000"}
    assert "entities" in result.stderr
    assert float(lxsr_here(*score, "--entities", "keep").stdout.split()[0]) < 0.9
    assert f"1.000000\t{rows[0]}\n" in lxsr_here(*score, "--output", "-").stdout


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_with_entities_are_counted():
    reader = EntityReader("auto")
    assert list(reader.read_lines([*TWICE, "plain"])) == [*PLAIN, "plain"]
    assert reader.num_unescaped == 30
    assert reader.num_kept == 0
    reader = EntityReader("keep")
    assert list(reader.read_lines(ESCAPED)) == ESCAPED
    assert reader.num_unescaped == 0
    assert reader.num_kept == 30


@pytest.mark.usefixtures("packaged_in_memory")
def test_embed_replaces_entities(tmp_path):
    def embed(text, name, *options):
        command = ("embed", "--model", "lxsr-static", "--input", text, "--output", tmp_path / name)
        messages = lxsr_here(*command, *options).stderr
        return np.load(tmp_path / name), messages

    text = write_lines(tmp_path / "text", ESCAPED)
    plain = write_lines(tmp_path / "plain", PLAIN)
    expected, _ = embed(plain, "plain.npy")

    embeddings, messages = embed(text, "auto.npy")
    assert np.array_equal(embeddings, expected)
    assert "entities, now replaced by characters: 30" in messages

    embeddings, messages = embed(text, "keep.npy", "--entities", "keep")
    assert not np.array_equal(embeddings, expected)
    assert "entities" not in messages

    # The whole text decides, so that all shards are read in the same way.
    write_lines(text, [*ESCAPED, "A plain line."])
    first, _ = embed(text, "shard.npy", "--shard", "1/2")
    second, _ = embed(text, "shard.npy", "--shard", "2/2")
    assert np.array_equal(np.concatenate((first, second))[:30], expected)


@pytest.mark.usefixtures("packaged_in_memory")
def test_stored_embeddings_fit_a_text_with_entities(tmp_path):
    text = write_lines(tmp_path / "text", ESCAPED)
    folder = tmp_path / "vectors"
    folder.mkdir()
    embed = ("embed", "--model", "lxsr-static", "--input", text, "--output", folder / "text.npy")
    lxsr_here(*embed)
    lxsr_here("index", "--model", folder, "--input", text, "--output", tmp_path / "index")
    lxsr_here(*embed, "--resume")
    refused(lxsr_here(*embed, "--resume", "--entities", "keep", check=False), "text.npy")


@pytest.mark.usefixtures("packaged_in_memory")
def test_index_and_search_replace_entities(tmp_path):
    text = write_lines(tmp_path / "text", ESCAPED)
    index = ("index", "--model", "lxsr-static", "--input", text, "--output", tmp_path / "index")
    assert "now replaced by characters: 30" in lxsr_here(*index).stderr

    def search(*options):
        command = ("search", "--index", tmp_path / "index", "--k", 1, "--output", "-")
        result = lxsr_here(*command, "--input", text, *options)
        rows = {}
        for line in result.stdout.splitlines():
            query, _, number, sentence = line.split("\t")[:4]
            rows[query] = (number, sentence)
        return rows, result.stderr

    rows, messages = search()
    assert rows[PLAIN[3]] == ("4", PLAIN[3])
    assert "queries with HTML entities, now replaced by characters: 30" in messages

    # The same lines again, unchanged, are lines 31 to 60.
    assert "entities" not in lxsr_here(*index, "--add", "--entities", "keep").stderr
    rows, _ = search("--entities", "keep")
    assert rows[ESCAPED[3]] == ("34", ESCAPED[3])


@pytest.mark.usefixtures("packaged_in_memory")
def test_index_replaces_entities_in_columns_next_to_ids(tmp_path):
    rows = [f"id{number}\t{line}" for number, line in enumerate(ESCAPED)]
    text = write_lines(tmp_path / "text", rows)
    index = ("index", "--model", "lxsr-static", "--input", text, "--output", tmp_path / "index")
    assert "now replaced by characters: 30" in lxsr_here(*index, "--columns", "1,2").stderr
    result = lxsr_here(*index, "--columns", "1,2", "--update")
    assert "now replaced by characters: 30" in result.stderr
    result = lxsr_here("search", "--index", tmp_path / "index", "--output", "-", PLAIN[7])
    assert f"\tid7\t{PLAIN[7]}\t{PLAIN[7]}\n" in result.stdout


@pytest.mark.usefixtures("packaged_in_memory")
def test_mine_replaces_entities(tmp_path):
    source = write_lines(tmp_path / "source", ESCAPED)
    target = write_lines(tmp_path / "target", [f"{line} Yes." for line in PLAIN])
    work = ("--work", tmp_path / "work")
    mine = ("mine", "--model", "lxsr-static", "--source", source, "--target", target)
    result = lxsr_here(*mine, "--output", tmp_path / "pairs.tsv", *work)
    assert f"lines of {source} with HTML entities, now replaced by characters: 30" in result.stderr
    rows = (tmp_path / "pairs.tsv").read_text()
    assert f"\t{PLAIN[3]}\t{PLAIN[3]} Yes.\n" in rows
    # The embeddings in the work folder are not those of the lines with entities.
    lxsr_here(*mine, "--output", tmp_path / "kept.tsv", *work, "--entities", "keep")
    assert (tmp_path / "kept.tsv").read_text() != rows
    assert "&amp;" in (tmp_path / "kept.tsv").read_text()
