"""HTML entities in plain text: where a whole side is written in them, and where the user says."""

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


def test_entities_end_with_a_semicolon_and_have_a_known_name():
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


def test_each_side_is_read_as_it_is_written():
    reader = EntityReader("auto")
    rows = [[number] for number in range(30)]
    pairs = zip(PLAIN, TWICE, rows, strict=True)
    assert list(reader.read(pairs)) == list(zip(PLAIN, PLAIN, rows, strict=True))
    assert (reader.num_unescaped, reader.num_kept) == (30, 0)


def prepare(folder, lines, *options):
    folder.mkdir()
    (folder / "t.tsv").write_text("".join(f"{en}\t{fr}\n" for en, fr in lines))
    words = ("prepare", "--work", folder / "w", "--data", folder / "t.tsv", "--until", "clean")
    sizes = ("--valid-size", 1, "--test-size", 0, "--workers", 1)
    done = lxsr_here(*words, *sizes, *options)
    return done, (folder / "w" / "corpus" / "en-fr" / "train.en").read_text()


def test_prepare_replaces_entities_and_counts_them(tmp_path):
    pairs = toy.sentences(30)
    escaped = [(f"R&amp;D: {en}", fr) for en, fr in pairs]
    done, text = prepare(tmp_path / "all", escaped)
    assert "&amp;" not in text
    assert "R&D: " in text
    assert "HTML entities replaced in 30 pairs" in done.stdout
    mixed = [*escaped[:4], *((f"A & B: {en}", fr) for en, fr in pairs[4:])]
    done, text = prepare(tmp_path / "mixed", mixed)
    assert "R&amp;D" in text
    assert "4 pairs have HTML entities" in done.stderr
    assert "--entities unescape" in done.stderr
    done, text = prepare(tmp_path / "option", mixed, "--entities", "unescape")
    assert "&amp;" not in text
    assert "replaced in 4 pairs" in done.stdout
    done, text = prepare(tmp_path / "kept", escaped, "--entities", "keep")
    assert "R&amp;D" in text
    assert "HTML entities" not in done.stdout + done.stderr
    refused(lxsr_here("prepare", "--entities", "x", check=False), "--entities", "'x'")


@pytest.fixture
def packaged_in_memory(packaged, monkeypatch):
    """Commands take the packaged model from memory, because reading it takes most of a second."""
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", lambda *_, **__: packaged)


@pytest.mark.usefixtures("packaged_in_memory")
def test_pairs_are_scored_as_their_characters(tmp_path):
    rows = "".join(f"{plain}\t{escaped}\n" for plain, escaped in zip(PLAIN, ESCAPED, strict=True))
    (tmp_path / "t.tsv").write_text(rows)
    score = ("score", "--model", "lxsr-static", "--input", tmp_path / "t.tsv")
    done = lxsr_here(*score)
    assert set(done.stdout.split()) == {"1.000000"}
    assert "entities" in done.stderr
    assert float(lxsr_here(*score, "--entities", "keep").stdout.split()[0]) < 0.9
    done = lxsr_here(*score, "--output", "-")
    assert f"1.000000\t{PLAIN[0]}\t{ESCAPED[0]}\n" in done.stdout


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_of_one_text_are_counted():
    reader = EntityReader("auto")
    assert list(reader.read_lines([*TWICE, "plain"])) == [*PLAIN, "plain"]
    assert (reader.num_unescaped, reader.num_kept) == (30, 0)
    reader = EntityReader("keep")
    assert list(reader.read_lines(ESCAPED)) == ESCAPED
    assert (reader.num_unescaped, reader.num_kept) == (0, 30)


@pytest.mark.usefixtures("packaged_in_memory")
def test_embeddings_of_escaped_lines_are_those_of_their_characters(tmp_path):
    text = write_lines(tmp_path / "text", ESCAPED)
    embed = ("embed", "--model", "lxsr-static", "--input", text, "--output")
    done = lxsr_here(*embed, tmp_path / "auto.npy")
    assert "entities, now replaced by characters: 30" in done.stderr
    write_lines(tmp_path / "plain", PLAIN)
    lxsr_here(*embed[:4], tmp_path / "plain", "--output", tmp_path / "plain.npy")
    expected = np.load(tmp_path / "plain.npy")
    assert np.array_equal(np.load(tmp_path / "auto.npy"), expected)
    done = lxsr_here(*embed, tmp_path / "keep.npy", "--entities", "keep")
    assert not np.array_equal(np.load(tmp_path / "keep.npy"), expected)
    assert "entities" not in done.stderr
    # All parts of a text are read alike, also those without entities.
    write_lines(text, [*ESCAPED, "A plain line."])
    parts = []
    for part in ("1/2", "2/2"):
        lxsr_here(*embed, tmp_path / "part.npy", "--shard", part)
        parts.append(np.load(tmp_path / "part.npy"))
    assert np.array_equal(np.concatenate(parts)[:30], expected)


@pytest.mark.usefixtures("packaged_in_memory")
def test_a_text_with_its_embeddings_is_recognised_by_its_lines(tmp_path):
    text = write_lines(tmp_path / "text", ESCAPED)
    folder = tmp_path / "vectors"
    folder.mkdir()
    embed = ("embed", "--model", "lxsr-static", "--input", text)
    lxsr_here(*embed, "--output", folder / "text.npy")
    lxsr_here("index", "--model", folder, "--input", text, "--output", tmp_path / "index")
    lxsr_here(*embed, "--output", folder / "text.npy", "--resume")
    done = lxsr_here(
        *embed, "--output", folder / "text.npy", "--resume", "--entities", "keep", check=False
    )
    refused(done, "text.npy")


@pytest.mark.usefixtures("packaged_in_memory")
def test_an_index_and_its_queries_hold_characters(tmp_path):
    text = write_lines(tmp_path / "text", ESCAPED)
    index = ("index", "--model", "lxsr-static", "--input", text, "--output", tmp_path / "index")
    assert "now replaced by characters: 30" in lxsr_here(*index).stderr
    search = ("search", "--index", tmp_path / "index", "--k", 1, "--output", "-")
    done = lxsr_here(*search, "--input", text)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[3] for row in rows if row[0] == PLAIN[3]] == [PLAIN[3]]
    assert "queries with HTML entities, now replaced by characters: 30" in done.stderr
    done = lxsr_here(*index, "--add", "--entities", "keep")
    assert "entities" not in done.stderr
    done = lxsr_here(*search, "--input", text, "--entities", "keep")
    hits = [line.split("\t") for line in done.stdout.splitlines()]
    assert [hit[2:4] for hit in hits if hit[0] == ESCAPED[3]] == [["34", ESCAPED[3]]]


@pytest.mark.usefixtures("packaged_in_memory")
def test_an_index_reads_entities_next_to_ids(tmp_path):
    rows = [f"id{number}\t{line}" for number, line in enumerate(ESCAPED)]
    text = write_lines(tmp_path / "text", rows)
    index = ("index", "--model", "lxsr-static", "--input", text, "--output", tmp_path / "index")
    assert "now replaced by characters: 30" in lxsr_here(*index, "--columns", "1,2").stderr
    done = lxsr_here(*index, "--columns", "1,2", "--update")
    assert "now replaced by characters: 30" in done.stderr
    done = lxsr_here("search", "--index", tmp_path / "index", "--output", "-", PLAIN[7])
    assert f"\tid7\t{PLAIN[7]}\n" in done.stdout


@pytest.mark.usefixtures("packaged_in_memory")
def test_mined_pairs_hold_characters(tmp_path):
    source = write_lines(tmp_path / "source", ESCAPED)
    target = write_lines(tmp_path / "target", [f"{line} Yes." for line in PLAIN])
    work = ("--work", tmp_path / "work")
    mine = ("mine", "--model", "lxsr-static", "--source", source, "--target", target)
    done = lxsr_here(*mine, "--output", tmp_path / "pairs.tsv", *work)
    assert f"lines of {source} with HTML entities, now replaced by characters: 30" in done.stderr
    rows = (tmp_path / "pairs.tsv").read_text()
    assert f"\t{PLAIN[3]}\t{PLAIN[3]} Yes.\n" in rows
    # The embeddings in the work folder are not those of the lines with entities.
    lxsr_here(*mine, "--output", tmp_path / "kept.tsv", *work, "--entities", "keep")
    assert (tmp_path / "kept.tsv").read_text() != rows
    assert "&amp;" in (tmp_path / "kept.tsv").read_text()
