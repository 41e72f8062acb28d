"""HTML entities in plain text: where a whole side is written in them, and where the user says."""

import html

import pytest
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr.preparation.entities import EntityReader, is_escaped, unescape

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
