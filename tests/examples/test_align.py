"""examples/align: vecalign and Bertalign, with stand-ins for both, and the scores of document pairs."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import small_model
import toy
from conftest import ROOT, checked, load_script, main_here, refused

from fairseq_lxsr.vectors import normalise_rows

FOLDER = ROOT / "examples" / "align"
# Stand-ins for the functions of both tools that compare alignments with a gold standard.
MEASURE = """
from ast import literal_eval

def read_alignments(path):
    return [tuple(map(literal_eval, line.split(":")[:2])) for line in open(path)]

def score_multiple(gold, found):
    return [left == right for left, right in zip(gold, found)]

log_final_scores = print
"""
# A stand-in for the alignment: each source sentence with its nearest target sentence.
NEAREST = """
def align(source, target):
    return [([i], [int(j)]) for i, j in enumerate((source @ target.T).argmax(1))]
"""
# The modules of vecalign read and write these files, and check embeddings like its read_in_embeddings.
VECALIGN = {
    "__init__.py": NEAREST,
    "overlap.py": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-n", type=int)
parser.add_argument("-i", nargs="+")
parser.add_argument("-o")
args = parser.parse_args()
found = {"PAD"}
for path in args.i:
    lines = [line.strip() or "BLANK_LINE" for line in open(path, encoding="utf-8")]
    found |= {" ".join(lines[i : i + n])[:10000] for n in range(1, args.n + 1) for i in range(len(lines) - n + 1)}
with open(args.o, "w", encoding="utf-8") as file:
    file.writelines(line + "\\n" for line in sorted(found))
""",
    "vecalign.py": """
import argparse
import numpy as np
from . import align
parser = argparse.ArgumentParser()
parser.add_argument("-a", type=int)
for name in ("-s", "-t"):
    parser.add_argument(name)
for name in ("--src_embed", "--tgt_embed"):
    parser.add_argument(name, nargs=2)
args = parser.parse_args()

def read(document, text, vectors):
    lines = [line.strip() for line in open(text, encoding="utf-8")]
    assert len(set(lines)) == len(lines)
    numbers = np.fromfile(vectors, np.float32)
    assert numbers.size % len(lines) == 0
    rows = numbers.reshape(len(lines), -1)
    sentences = [line.strip() or "BLANK_LINE" for line in open(document, encoding="utf-8")]
    assert " ".join(sentences[: args.a])[:10000] in lines
    found = rows[[lines.index(sentence) for sentence in sentences]]
    return found / np.linalg.norm(found, axis=1, keepdims=True)

for left, right in align(read(args.s, *args.src_embed), read(args.t, *args.tgt_embed)):
    print(f"{left}:{right}:0.500000")
""",
    "dp_utils.py": MEASURE,
    "score.py": MEASURE,
}
# The modules of Bertalign import each other in this way.
BERTALIGN = {
    "__init__.py": NEAREST
    + """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("LaBSE")
""",
    "aligner.py": """
import numpy as np
from googletrans import Translator
from sentence_splitter import SentenceSplitter
from bertalign import align, model

def detect_lang(text):
    raise ConnectionError(text)

class Bertalign:
    def __init__(self, source, target, max_align, is_split):
        assert is_split and max_align == 5
        assert detect_lang(source)
        self.sides = [model.encode(text.splitlines()) for text in (source, target)]
        assert all(np.allclose(np.linalg.norm(side, axis=1), 1, atol=1e-5) for side in self.sides)

    def align_sents(self):
        self.result = align(*self.sides)
""",
    "eval.py": MEASURE,
}


def run_script(name: str, *words, **options):
    """Run a script of the example in this process."""
    return main_here(load_script(FOLDER / f"{name}.py"), *words, **options)


@pytest.fixture
def install_tool(tmp_path, monkeypatch):
    """A function that writes a stand-in of a tool where this and new processes import it."""

    def install(name: str, files: dict[str, str]) -> None:
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        monkeypatch.syspath_prepend(folder.parent)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), str(ROOT)]))

    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("vecalign", "bertalign", "googletrans", "sentence_splitter"):
            del sys.modules[name]


@pytest.fixture
def documents(tmp_path) -> Path:
    """A folder with two documents of five lines, and with their reversed copies.

    The second one has a blank line, and a Unicode line separator, which does not end a line.
    """
    english = [source for source, _ in toy.sentences(9)]
    first = english[:5]
    second = [english[5], "", english[6], english[7], f"{english[8]}\u2028Yes."]
    write_lines(tmp_path / "a.en", first)
    write_lines(tmp_path / "b.en", second)
    write_lines(tmp_path / "a.back", first[::-1])
    write_lines(tmp_path / "b.back", second[::-1])
    # The alignment of the first line alone.
    (tmp_path / "gold").write_text("[0]:[4]\n")
    return tmp_path


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def align(folder: Path, tool: str) -> tuple[list[str], list[str], str]:
    """Return the alignments of both documents, and the last line that the script has printed."""
    model = small_model.write_folder(folder / "model", gated=True, num_layers=0)
    texts = ("--source", "a.en", "b.en", "--target", "a.back", "b.back", "--gold", "gold", "gold")
    done = run_script("align", tool, "--model", model, *texts, "--output", "out", folder=folder)
    first = (folder / "out" / "a.en.align").read_text().splitlines()
    second = (folder / "out" / "b.en.align").read_text().splitlines()
    return first, second, done.stdout.splitlines()[-1]


# Line N of a document is the line 4 - N of its reversed copy.
REVERSED = ["[0]:[4]", "[1]:[3]", "[2]:[2]", "[3]:[1]", "[4]:[0]"]


def test_vecalign_aligns_each_line_by_the_embeddings_of_the_model(install_tool, documents):
    install_tool("vecalign", VECALIGN)

    first, second, comparison = align(documents, "vecalign")

    # The stand-in has the same cost for all.
    assert first == [f"{alignment}:0.500000" for alignment in REVERSED]
    assert second == [f"{alignment}:0.500000" for alignment in REVERSED]
    # The gold standard of each document has one alignment instead of five.
    assert comparison == "[False, False]"


def test_bertalign_aligns_each_line_with_text_by_the_model_without_a_server(
    install_tool, documents
):
    install_tool("bertalign", BERTALIGN)

    first, second, _ = align(documents, "bertalign")

    assert first == REVERSED
    # The second line of this document is blank.
    assert second == [alignment for alignment in REVERSED if alignment != "[1]:[3]"]


@pytest.mark.parametrize(
    ("tool", "is_installed", "texts", "message"),
    [
        ("vecalign", False, "--source a b --target c", "vecalign is not installed"),
        ("vecalign", True, "--source a b --target c", "different numbers of files"),
        # Both would be written to out/a.align.
        ("vecalign", True, "--source x/a y/a --target b c", "--source"),
        # There is no model m.
        ("bertalign", True, "--source a --target b", "m: "),
    ],
    ids=["no-tool", "numbers", "same-name", "no-model"],
)
def test_a_missing_tool_or_model_and_files_that_do_not_match_are_refused(
    monkeypatch, tool, is_installed, texts, message
):
    module = load_script(FOLDER / "align.py")
    monkeypatch.setattr(module, "find_spec", lambda name: name if is_installed else None)
    options = ("--model", "m", *texts.split(), "--output", "out")

    done = main_here(module, tool, *options, check=False)

    refused(done, message)


@pytest.fixture
def document_pairs():
    """The script document_pairs.py."""
    return load_script(FOLDER / "document_pairs.py")


def test_bimax_is_the_mean_of_the_largest_cosines_of_sentences_in_both_directions(document_pairs):
    # Source documents of two sentences and of one; target documents of one sentence and of two.
    source = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    target = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    cosines = [[1, 0.8, 0], [0, 0.6, 1], [0.6, 0.96, 0.8]]
    np.testing.assert_allclose(source @ target.T, cosines, rtol=1e-6)

    scores = document_pairs.bimax(source, target, [2, 1], [1, 2])

    # From the source document to the target document, and back.
    first_and_first = ((1 + 0) / 2 + 1) / 2
    first_and_second = ((0.8 + 1) / 2 + (0.8 + 1) / 2) / 2
    second_and_first = (0.6 + 0.6) / 2
    second_and_second = (0.96 + (0.96 + 0.8) / 2) / 2
    expected = [[first_and_first, first_and_second], [second_and_first, second_and_second]]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_mean_margin_is_the_margin_of_mined_pairs_averaged_over_the_sentences_of_both_documents(
    document_pairs,
):
    # Both sides have the same twelve sentences, so the pair of each is itself.
    vectors = normalise_rows(np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32))
    mined = document_pairs.mine(vectors, vectors)
    assert sorted(zip(mined.source, mined.target, strict=True)) == [(row, row) for row in range(12)]
    margins = mined.scores[np.argsort(mined.source)]

    # Source documents of 5, 4 and 3 sentences; the second target document has the last 7.
    scores = document_pairs.mean_margin(vectors, vectors, [5, 4, 3], [5, 7])

    # A margin counts for both sentences of a pair; a sentence without a pair counts as 0.
    np.testing.assert_allclose(scores[0, 0], 2 * margins[:5].sum() / (5 + 5), rtol=1e-5)
    np.testing.assert_allclose(scores[1, 1], 2 * margins[5:9].sum() / (4 + 7), rtol=1e-5)
    np.testing.assert_allclose(scores[2, 1], 2 * margins[9:].sum() / (3 + 7), rtol=1e-5)
    # No pair lies in both documents.
    assert scores[0, 1] == 0


@pytest.fixture
def model(tmp_path):
    return small_model.write_folder(tmp_path / "model", gated=True, num_layers=0)


@pytest.fixture
def documents_of_three_sentences() -> list[str]:
    lines = [source for source, _ in toy.sentences(60)]
    return ["\n".join(lines[start : start + 3]) for start in range(0, 60, 3)]


def write_documents(path: Path, texts: list[str]) -> None:
    """Write documents, separated by two empty lines."""
    path.write_text("\n\n\n".join(texts) + "\n")


@pytest.mark.parametrize("score", ["bimax", "margin", "mean"])
def test_each_document_is_paired_with_its_copy_in_another_order(
    score, tmp_path, model, documents_of_three_sentences
):
    order = np.random.default_rng(1).permutation(20)
    write_documents(tmp_path / "a", documents_of_three_sentences)
    write_documents(tmp_path / "b", [documents_of_three_sentences[row] for row in order])
    options = ("--model", model, "--score", score, "--source", "a", "--target", "b")

    done = run_script("document_pairs", *options, folder=tmp_path)

    # A line has the score and the numbers of both documents, from 1.
    numbers = [line.split("\t")[1:] for line in done.stdout.splitlines()]
    expected = [(row + 1, number) for number, row in enumerate(order, start=1)]
    assert sorted((int(source), int(target)) for source, target in numbers) == sorted(expected)


@pytest.mark.parametrize("score", ["bimax", "margin", "mean"])
def test_the_accuracies_of_identical_documents_are_100_percent(
    score, tmp_path, model, documents_of_three_sentences
):
    write_documents(tmp_path / "a", documents_of_three_sentences)
    options = ("--model", model, "--score", score, "--source", "a", "--target", "a")

    done = run_script("document_pairs", *options, "--aligned", folder=tmp_path)

    accuracies = "source to target 100.0%, target to source 100.0%, one to one 100.0%"
    assert done.stdout == f"{score}: {accuracies}\n"


def test_a_missing_model_is_refused_in_one_line(tmp_path, model):
    (tmp_path / "a").write_text("a line\n")
    options = ("--model", f"{model}-none", "--source", "a", "--target", "a")

    done = run_script("document_pairs", *options, check=False, folder=tmp_path)

    refused(done, "model-none")
    [_] = done.stderr.splitlines()


def test_documents_without_text_are_refused_with_the_usage(tmp_path, model):
    (tmp_path / "a").write_text("\n\n")
    options = ("--model", model, "--source", "a", "--target", "a")

    done = run_script("document_pairs", *options, check=False, folder=tmp_path)

    refused(done, "no text")
    assert done.stderr.startswith("usage: ")


def test_small_documents_have_the_sentences_of_so_many_groups_that_have_both_sides(tmp_path):
    (tmp_path / "a").write_text("0\n1\n2\n3\n4\n")
    (tmp_path / "b").write_text("A\nB\nC\nD\n")
    # The second group has no target sentence; the last one does not fill a document.
    (tmp_path / "g").write_text("[0, 1]:[0]\n[2]:[]\n[3]:[1, 2]\n[4]:[3]\n")
    # The same document twice.
    options = "--source a a --target b b --gold g g --groups 2 --output small"

    done = run_script("make_documents", *options.split(), folder=tmp_path)

    assert (tmp_path / "small.source").read_text() == "0\n1\n3\n\n0\n1\n3\n"
    assert (tmp_path / "small.target").read_text() == "A\nB\nC\n\nA\nB\nC\n"
    assert done.stdout == "small.source, small.target: 2 documents\n"


def make_documents(folder: Path, gold: str, groups: int = 1):
    """Make documents of four source lines, one empty, and three target lines, one blank."""
    (folder / "a").write_text("0\n\n2\n3\n")
    (folder / "b").write_text("A\nB\n \n")
    (folder / "g").write_text(gold)
    options = f"--source a --target b --gold g --groups {groups} --output small"
    return run_script("make_documents", *options.split(), check=False, folder=folder)


def test_blank_lines_of_a_group_do_not_end_a_document(tmp_path):
    # The second and the last group have only blank lines on a side.
    gold = "[0, 1, 2]:[0]\n[1]:[1]\n[3]:[1, 2]\n[3]:[2]\n"

    checked(make_documents(tmp_path, gold))

    assert (tmp_path / "small.source").read_text() == "0\n2\n\n3\n"
    assert (tmp_path / "small.target").read_text() == "A\n\nB\n"


@pytest.mark.parametrize(
    "line",
    ["0:[0]", "[0]", "[0]:[3]", "[-1]:[0]", "", "[0:[0]"],
    ids=["no-list", "one-side", "line-3-of-3", "negative", "empty", "no-bracket"],
)
def test_a_line_that_does_not_align_lines_of_both_texts_is_refused(tmp_path, line):
    done = make_documents(tmp_path, f"[0]:[0]\n{line}\n")

    refused(done, f"make_documents.py: error: g, line 2: {line!r}; ", " 4 and 3 lines")


def test_zero_groups_are_refused(tmp_path):
    done = make_documents(tmp_path, "[0]:[0]\n", groups=0)

    refused(done, "--groups 0;")
