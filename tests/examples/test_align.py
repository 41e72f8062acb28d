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
MEASURE = """
from ast import literal_eval

def read_alignments(path):
    return [tuple(map(literal_eval, line.split(":")[:2])) for line in open(path)]

def score_multiple(gold, found):
    return [left == right for left, right in zip(gold, found)]

log_final_scores = print
"""
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


def script(name: str, *words, **options):
    """Run a script of the example in this process."""
    return main_here(load_script(FOLDER / f"{name}.py"), *words, **options)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Write a stand-in of a tool into a folder from which this and new processes import."""

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
def documents(tmp_path) -> dict[str, list[str]]:
    """Two documents and their reversed copies; one has a blank line and a Unicode line separator."""
    english = [source for source, _ in toy.sentences(9)]
    texts = {
        "a.en": english[:5],
        "b.en": [english[5], "", *english[6:8], f"{english[8]}\u2028Yes."],
    }
    for name, lines in texts.items():
        write_lines(tmp_path / name, lines)
        write_lines(tmp_path / name.replace("en", "back"), lines[::-1])
    (tmp_path / "gold").write_text("[0]:[4]\n")
    return texts


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def align(folder: Path, tool: str) -> tuple[list[str], list[str], str]:
    """Return the alignments of both documents, and the last line that the script has printed."""
    model = small_model.write_folder(folder / "model", gated=True, num_layers=0)
    texts = ("--source", "a.en", "b.en", "--target", "a.back", "b.back", "--gold", "gold", "gold")
    done = script("align", tool, "--model", model, *texts, "--output", "out", folder=folder)
    first = (folder / "out" / "a.en.align").read_text().splitlines()
    second = (folder / "out" / "b.en.align").read_text().splitlines()
    return first, second, done.stdout.splitlines()[-1]


def test_vecalign_reads_the_embeddings_of_the_model(tool, documents, tmp_path):
    tool("vecalign", VECALIGN)
    expected = [f"[{row}]:[{4 - row}]:0.500000" for row in range(5)]
    assert align(tmp_path, "vecalign") == (expected, expected, "[False, False]")


def test_bertalign_uses_the_model_and_no_server(tool, documents, tmp_path):
    tool("bertalign", BERTALIGN)
    first, second, _ = align(tmp_path, "bertalign")
    assert first == [f"[{row}]:[{4 - row}]" for row in range(5)]
    # The numbers are those of the lines of the file, of which one is blank.
    assert second == [f"[{row}]:[{4 - row}]" for row in (0, 2, 3, 4)]


@pytest.mark.parametrize(
    ("tool", "is_installed", "texts", "message"),
    [
        ("vecalign", False, "--source a b --target c", "vecalign is not installed"),
        ("vecalign", True, "--source a b --target c", "different numbers of files"),
        ("vecalign", True, "--source x/a y/a --target b c", "--source"),
        ("bertalign", True, "--source a --target b", "m: "),
    ],
)
def test_missing_tools_files_and_models_are_refused(
    monkeypatch, tool, is_installed, texts, message
):
    module = load_script(FOLDER / "align.py")
    monkeypatch.setattr(module, "find_spec", lambda name: name if is_installed else None)
    options = ("--model", "m", *texts.split(), "--output", "out")
    refused(main_here(module, tool, *options, check=False), message)


def test_scores_of_document_pairs_by_hand():
    pairs = load_script(FOLDER / "document_pairs.py")
    source = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    target = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    # The cosines are 1 .8 0 / 0 .6 1 / .6 .96 .8. The source documents have two sentences and one,
    # the target documents one sentence and two.
    scores = pairs.bimax(source, target, [2, 1], [1, 2])
    expected = [
        [((1 + 0) / 2 + 1) / 2, ((0.8 + 1) / 2 + (0.8 + 1) / 2) / 2],
        [0.6, (0.96 + (0.96 + 0.8) / 2) / 2],
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_mean_margin_counts_each_mined_pair_once():
    pairs = load_script(FOLDER / "document_pairs.py")
    vectors = normalise_rows(np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32))
    scores = pairs.mean_margin(vectors, vectors, [5, 4, 3], [5, 7])
    mined = pairs.mine(vectors, vectors)
    assert (mined.source == mined.target).all()
    assert len(mined) == 12
    margins = mined.scores[np.argsort(mined.source)]
    np.testing.assert_allclose(scores[0], [margins[:5].mean(), 0], rtol=1e-5)
    expected = [2 * margins[5:9].sum(), 2 * margins[9:].sum()]
    np.testing.assert_allclose(scores[1:, 1] * [4 + 7, 3 + 7], expected, rtol=1e-5)


@pytest.fixture
def model(tmp_path):
    return small_model.write_folder(tmp_path / "model", gated=True, num_layers=0)


@pytest.mark.parametrize("score", ["bimax", "margin", "mean"])
def test_shuffled_documents_find_themselves(score, tmp_path, model):
    lines = [source for source, _ in toy.sentences(60)]
    texts = ["\n".join(lines[start : start + 3]) for start in range(0, 60, 3)]
    order = np.random.default_rng(1).permutation(20)
    shuffled = [texts[row] for row in order]
    (tmp_path / "a").write_text("\n\n\n".join(texts) + "\n")
    (tmp_path / "b").write_text("\n\n\n".join(shuffled) + "\n")
    words = ("document_pairs", "--model", model, "--score", score, "--source", "a", "--target")
    done = script(*words, "b", folder=tmp_path)
    sources = []
    for line in done.stdout.splitlines():
        _, source, target = line.split("\t")
        assert int(source) == order[int(target) - 1] + 1
        sources.append(int(source))
    assert sorted(sources) == list(range(1, 21))
    done = script(*words, "a", "--aligned", folder=tmp_path)
    accuracies = "source to target 100.0%, target to source 100.0%, one to one 100.0%"
    assert done.stdout == f"{score}: {accuracies}\n"


def test_a_missing_model_is_refused_in_one_line(tmp_path, model):
    (tmp_path / "a").write_text("a line\n")
    words = ("--model", f"{model}-none", "--source", "a", "--target", "a")
    done = script("document_pairs", *words, check=False, folder=tmp_path)
    refused(done, "model-none")
    assert len(done.stderr.splitlines()) == 1


def test_documents_without_text_are_refused_with_the_usage(tmp_path, model):
    (tmp_path / "a").write_text("\n\n")
    words = ("--model", model, "--source", "a", "--target", "a")
    done = script("document_pairs", *words, check=False, folder=tmp_path)
    refused(done, "no text")
    assert len(done.stderr.splitlines()) == 3


def test_small_documents_keep_aligned_groups_together(tmp_path):
    (tmp_path / "a").write_text("0\n1\n2\n3\n4\n")
    (tmp_path / "b").write_text("A\nB\nC\nD\n")
    (tmp_path / "g").write_text("[0, 1]:[0]\n[2]:[]\n[3]:[1, 2]\n[4]:[3]\n")
    words = "--source a a --target b b --gold g g --groups 2 --output small"
    done = script("make_documents", *words.split(), folder=tmp_path)
    assert (tmp_path / "small.source").read_text() == "0\n1\n3\n\n0\n1\n3\n"
    assert (tmp_path / "small.target").read_text() == "A\nB\nC\n\nA\nB\nC\n"
    assert done.stdout == "small.source, small.target: 2 documents\n"


def make_documents(folder: Path, gold: str, groups: int = 1):
    (folder / "a").write_text("0\n\n2\n3\n")
    (folder / "b").write_text("A\nB\n \n")
    (folder / "g").write_text(gold)
    words = f"--source a --target b --gold g --groups {groups} --output small"
    return script("make_documents", *words.split(), check=False, folder=folder)


def test_empty_lines_do_not_end_a_document(tmp_path):
    checked(make_documents(tmp_path, "[0, 1, 2]:[0]\n[1]:[1]\n[3]:[1, 2]\n[3]:[2]\n"))
    assert (tmp_path / "small.source").read_text() == "0\n2\n\n3\n"
    assert (tmp_path / "small.target").read_text() == "A\n\nB\n"


def test_alignments_outside_the_text_are_refused(tmp_path):
    for line in ("0:[0]", "[0]", "[0]:[3]", "[-1]:[0]", "", "[0:[0]"):
        done = make_documents(tmp_path, f"[0]:[0]\n{line}\n")
        refused(done, f"make_documents.py: error: g, line 2: {line!r}; ", " 4 and 3 lines")


def test_zero_groups_are_refused(tmp_path):
    refused(make_documents(tmp_path, "[0]:[0]\n", groups=0), "--groups 0;")
