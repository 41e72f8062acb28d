"""Texts longer than a model reads: every protocol has --on-long, and the signature has their number."""

import re
from collections import Counter

import numpy as np
import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.embeddings import ByLanguage, ModelFolder
from fairseq_lxsr.errors import SentenceError
from fairseq_lxsr.evaluation import protocols
from fairseq_lxsr.evaluation.compare import compare_runs
from fairseq_lxsr.evaluation.protocols.similarity_search import Tatoeba
from fairseq_lxsr.evaluation.protocols.xsr import SentenceRetrieval
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import signatures

PAIRS = 12
# Sentences of each side that differ only after the second word.
LONG = 4


class TwoWords:
    """Stands for a model that reads two words."""

    output_dim = 64
    max_seq_length = 2

    def __init__(self, fingerprint="two"):
        self.fingerprint = fingerprint

    def encode(self, text, counts, on_long="cut"):
        lines = [line.split() for line in text]
        counts.update(long=sum(len(line) > 2 for line in lines))
        if on_long == "error" and counts["long"]:
            row = next(row for row, line in enumerate(lines) if len(line) > 2)
            raise SentenceError(row, text[row], "3 pieces; expected at most 2")
        rows = []
        for line in lines:
            words = line if on_long == "split-mean" else line[:2]
            rows.append(np.sum([self.vector(word) for word in words], axis=0))
        return np.stack(rows).astype(np.float32)

    @staticmethod
    def vector(word):
        return np.random.default_rng(list(word.encode())).normal(size=64)


def sentence(number):
    return f"the same {number}x" if number < LONG else f"word {number}x"


@pytest.fixture
def text(tmp_path):
    """A folder with the same sentences as files of two languages, in the formats of all protocols."""
    lines = [sentence(number) for number in range(PAIRS)]
    for language in ("en", "fr"):
        (tmp_path / f"test.{language}").write_text("\n".join(lines) + "\n")
        for part in ("training", "test"):
            rows = [f"{language}-{number}\t{line}\n" for number, line in enumerate(lines)]
            (tmp_path / f"bucc.{part}.{language}").write_text("".join(rows))
    gold = [f"en-{number}\tfr-{number}\n" for number in range(PAIRS)]
    for part in ("training", "test"):
        (tmp_path / f"bucc.{part}.gold").write_text("".join(gold))
    rated = [f"{line}\t{lines[0]}\t{number % 5}\n" for number, line in enumerate(lines)]
    (tmp_path / "sts.tsv").write_text("".join(rated))
    return tmp_path


def plan_of(kind, text, **options):
    source = str(text / "test.en")
    target = str(text / "test.fr")
    return kind(source=source, target=target, lang_pairs="en-fr", **options).plan()


@pytest.mark.parametrize("on_long", ["cut", "split-mean"])
def test_on_long_decides_how_much_of_a_sentence_is_read(text, on_long, capsys):
    plan = plan_of(SentenceRetrieval, text, metric=("nn",), on_long=on_long)
    by_language = ByLanguage({"en": ModelFolder(TwoWords()), "fr": ModelFolder(TwoWords())})
    for encoder in (ModelFolder(TwoWords()), by_language):
        [[score, _]] = plan.measure(encoder)
        assert (score.values["P@1"] == 100) == (on_long == "split-mean")
        assert f"|long:{on_long}-{2 * LONG}|text:" in score.signature
        assert re.search(rf"\bxsr: .*: {2 * LONG}\b", capsys.readouterr().err)


def test_the_signature_does_not_mention_long_texts_if_there_are_none(text, capsys):
    for side in ("en", "fr"):
        (text / f"test.{side}").write_text("".join(f"word {number}x\n" for number in range(PAIRS)))
    for on_long in ("cut", "split-mean", "error"):
        [[score, _]] = plan_of(Tatoeba, text, on_long=on_long).measure(ModelFolder(TwoWords()))
        assert "long" not in score.settings
    assert not capsys.readouterr().err


FIRST_LONG = {
    "bucc": "bucc.test.en, line 1:",
    "sts": "sts.tsv.first, line 1:",
    "mteb-bitext": "test.en, line 1:",
    "tatoeba": "test.en, line 1:",
    "xsim": "test.en, line 1:",
    "xsr": "test.en, line ",
}


@pytest.mark.parametrize("name", FIRST_LONG)
def test_every_retrieval_protocol_has_the_option_on_long(name, text, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.cli.evaluate.load_any", lambda args: ModelFolder(TwoWords()))
    files = ("--source", text / "test.en", "--target", text / "test.fr")
    if name in ("bucc", "sts"):
        files = ("--data", text / name, "--lang-pairs", "en-fr")
    # The file is not loaded as a model, because load_any is replaced.
    command = ("eval", name, "--model", text / "sts.tsv", *files)
    cut = lxsr_here(*command, "--on-long", "cut").stdout
    whole = lxsr_here(*command, "--on-long", "split-mean").stdout
    assert "|long:cut-" in cut
    assert "|long:split-mean-" in whole
    assert lxsr_here(*command).stdout == cut
    cut_values = cut.partition("|long:")[0]
    whole_values = whole.partition("|long:")[0]
    assert cut_values != whole_values
    refused(lxsr_here(*command, "--on-long", "error", check=False), FIRST_LONG[name], "3 pieces")


def test_on_long_is_split_mean_for_documents_and_else_cut():
    for name in protocols.PROTOCOLS:
        default = "split-mean" if name in ("mldoc", "passages", "titles", "xnli") else "cut"
        assert protocols.protocol_class(name).on_long == default


def test_scores_with_different_on_long_are_compared(text):
    cut_encoder = ModelFolder(TwoWords("cut"))
    whole_encoder = ModelFolder(TwoWords("split-mean"))
    [cut] = plan_of(Tatoeba, text, on_long="cut").measure(cut_encoder)
    [whole] = plan_of(Tatoeba, text, on_long="split-mean").measure(whole_encoder)
    results, notes = compare_runs([cut], [whole])
    assert [result.task for result in results] == ["en->fr", "fr->en"]
    assert not notes
    # A side with two models gets a note, which names the setting of each.
    _, notes = compare_runs([[*cut, *whole]], [whole])
    assert "cut (long texts: cut)" in notes[0]
    assert "split-mean (long texts: split-mean)" in notes[0]


def test_signatures_of_tasks_with_and_without_long_texts():
    short = {"metric": "m", "text": "t", "model": "x"}
    long = {"metric": "m", "long": "cut-3", "text": "t", "model": "x"}
    scores = [
        Score("xsim", "en->fr", {"error": 1.0}, short),
        Score("xsim", "en->de", {"error": 1.0}, long),
    ]
    assert "|long:none+cut-3|text:t|model:x|" in signatures(scores)


def test_long_texts_are_counted_for_each_measurement(text):
    encoder = ModelFolder(TwoWords())
    for _ in range(2):
        [[score, _]] = plan_of(Tatoeba, text).measure(encoder)
        assert score.settings["long"] == f"cut-{2 * LONG}"
    assert encoder.counts == Counter()
