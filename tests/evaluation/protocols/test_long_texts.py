"""Texts longer than a model reads: every protocol has --on-long, and its signature says how many
there were.
"""

import re
from collections import Counter

import numpy as np
import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.embeddings import ByLanguage, ModelFolder
from fairseq_lxsr.errors import SentenceError
from fairseq_lxsr.evaluation import protocols
from fairseq_lxsr.evaluation.compare import compare
from fairseq_lxsr.evaluation.protocols.similarity_search import Tatoeba
from fairseq_lxsr.evaluation.protocols.xsr import SentenceRetrieval
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import signatures

PAIRS = 12
LONG = 4  # sentences of each side, which differ only after what the model reads


class TwoWords:
    """Stands for a model that reads two words."""

    output_dim, max_seq_length = 64, 2

    def __init__(self, fingerprint="two"):
        self.fingerprint = fingerprint

    def encode(self, text, counts, on_long="cut"):
        lines = [line.split() for line in text]
        counts.update(long=sum(len(line) > 2 for line in lines))
        if on_long == "error" and counts["long"]:
            row = next(row for row, line in enumerate(lines) if len(line) > 2)
            raise SentenceError(row, text[row], "3 pieces; expected at most 2")
        read = [line if on_long == "split-mean" else line[:2] for line in lines]
        return np.stack(
            [np.sum([self.vector(word) for word in line], axis=0) for line in read]
        ).astype(np.float32)

    @staticmethod
    def vector(word):
        return np.random.default_rng(list(word.encode())).normal(size=64)


def sentence(number):
    return f"the same {number}x" if number < LONG else f"word {number}x"


@pytest.fixture
def text(tmp_path):
    """Aligned files of two languages, which are one language, and what other protocols read."""
    lines = [sentence(number) for number in range(PAIRS)]
    for language in ("en", "fr"):
        (tmp_path / f"test.{language}").write_text("\n".join(lines) + "\n")
        for part in ("training", "test"):
            rows = [f"{language}-{number}\t{line}\n" for number, line in enumerate(lines)]
            (tmp_path / f"bucc.{part}.{language}").write_text("".join(rows))
    for part in ("training", "test"):
        (tmp_path / f"bucc.{part}.gold").write_text(
            "".join(f"en-{n}\tfr-{n}\n" for n in range(PAIRS))
        )
    (tmp_path / "sts.tsv").write_text(
        "".join(f"{line}\t{lines[0]}\t{n % 5}\n" for n, line in enumerate(lines))
    )
    return tmp_path


def measured(text, kind, **options):
    scores = kind(
        source=str(text / "test.en"), target=str(text / "test.fr"), lang_pairs="en-fr", **options
    )
    return scores.plan()


@pytest.mark.parametrize("on_long", ["cut", "split-mean"])
def test_sentences_that_differ_only_late(text, on_long, capsys):
    plan = measured(text, SentenceRetrieval, metric=("nn",), on_long=on_long)
    both = ByLanguage({"en": ModelFolder(TwoWords()), "fr": ModelFolder(TwoWords())})
    for encoder in (ModelFolder(TwoWords()), both):
        [[score, _]] = plan.measure(encoder)
        assert (score.values["P@1"] == 100) == (on_long == "split-mean")
        assert f"|long:{on_long}-{2 * LONG}|text:" in score.signature
        assert re.search(rf"\bxsr: .*: {2 * LONG}\b", capsys.readouterr().err)


def test_a_score_without_long_texts_is_signed_as_before(text, capsys):
    for side in ("en", "fr"):
        (text / f"test.{side}").write_text("".join(f"word {number}x\n" for number in range(PAIRS)))
    for on_long in ("cut", "split-mean", "error"):
        [[score, _]] = measured(text, Tatoeba, on_long=on_long).measure(ModelFolder(TwoWords()))
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
def test_every_retrieval_protocol_reads_long_texts_as_it_is_told(name, text, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.cli.evaluate.load_any", lambda args: ModelFolder(TwoWords()))
    files = ("--source", text / "test.en", "--target", text / "test.fr")
    if name in ("bucc", "sts"):
        files = ("--data", text / name, "--lang-pairs", "en-fr")
    command = ("eval", name, "--model", text / "sts.tsv", *files)  # which is not loaded
    cut, whole = (lxsr_here(*command, "--on-long", how).stdout for how in ("cut", "split-mean"))
    assert "|long:cut-" in cut
    assert "|long:split-mean-" in whole
    assert lxsr_here(*command).stdout == cut  # the default
    assert cut.partition("|long:")[0] != whole.partition("|long:")[0]  # the values
    refused(
        lxsr_here(*command, "--on-long", "error", check=False),
        FIRST_LONG[name],
        "3 pieces",
    )


def test_every_protocol_has_the_option():
    for name in protocols.PROTOCOLS:
        default = "split-mean" if name in ("mldoc", "passages", "titles", "xnli") else "cut"
        assert protocols.protocol_class(name).on_long == default


def test_scores_of_models_that_read_differently_are_compared(text):
    plans = {how: measured(text, Tatoeba, on_long=how) for how in ("cut", "split-mean")}
    [cut], [whole] = (list(plan.measure(ModelFolder(TwoWords(how)))) for how, plan in plans.items())
    results, notes = compare(cut, whole)
    assert [result.task for result in results] == ["en->fr", "fr->en"]
    assert not notes
    _, notes = compare([*cut, *whole], whole)
    assert "cut (long texts: cut)" in notes[0]
    assert "split-mean (long texts: split-mean)" in notes[0]


def test_signatures_of_tasks_with_and_without_long_texts():
    scores = [
        Score("xsim", task, {"error": 1.0}, {"metric": "m", **long, "text": "t", "model": "x"})
        for task, long in (("en->fr", {}), ("en->de", {"long": "cut-3"}))
    ]
    assert "|long:none+cut-3|text:t|model:x|" in signatures(scores)


def test_counts_are_those_of_one_measurement(text):
    encoder = ModelFolder(TwoWords())
    for _ in range(2):
        [[score, _]] = measured(text, Tatoeba).measure(encoder)
        assert score.settings["long"] == f"cut-{2 * LONG}"
    assert encoder.counts == Counter()
