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
# Sentences of each side that have three words, and differ only in the third.
LONG = 4
BOTH_SIDES = 2 * LONG


class TwoWords:
    """Stands for a model that reads two words: the vector of a text is the sum over its words."""

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
    """Return a long sentence for the numbers below LONG, else one of two words."""
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


ENCODERS = [
    pytest.param(ModelFolder(TwoWords()), id="one model"),
    pytest.param(
        ByLanguage({"en": ModelFolder(TwoWords()), "fr": ModelFolder(TwoWords())}),
        id="a model per language",
    ),
]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("on_long", "all_are_found"), [("cut", False), ("split-mean", True)])
def test_on_long_decides_how_much_of_a_sentence_is_read(text, on_long, all_are_found, encoder):
    plan = plan_of(SentenceRetrieval, text, metric=("nn",), on_long=on_long)

    [[score, _]] = plan.measure(encoder)

    assert (score.values["P@1"] == 100) == all_are_found


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_number_of_long_texts_is_in_the_signature_and_on_standard_error(text, encoder, capsys):
    plan = plan_of(SentenceRetrieval, text, metric=("nn",), on_long="cut")

    [[score, _]] = plan.measure(encoder)

    assert f"|long:cut-{BOTH_SIDES}|text:" in score.signature
    assert re.search(rf"\bxsr: .*: {BOTH_SIDES}\b", capsys.readouterr().err)


@pytest.mark.parametrize("on_long", ["cut", "split-mean", "error"])
def test_nothing_mentions_long_texts_if_there_are_none(text, on_long, capsys):
    for side in ("en", "fr"):
        short_lines = [f"word {number}x\n" for number in range(PAIRS)]
        (text / f"test.{side}").write_text("".join(short_lines))

    [[score, _]] = plan_of(Tatoeba, text, on_long=on_long).measure(ModelFolder(TwoWords()))

    assert "long" not in score.settings
    assert not capsys.readouterr().err


# The place of the first long text. xsr draws its sentences, so its first line is not known.
FIRST_LONG = {
    "bucc": "bucc.test.en, line 1:",
    "sts": "sts.tsv.first, line 1:",
    "mteb-bitext": "test.en, line 1:",
    "tatoeba": "test.en, line 1:",
    "xsim": "test.en, line 1:",
    "xsr": "test.en, line ",
}


def command_of(protocol: str, text) -> tuple:
    """Return the command of a protocol on the texts of the fixture `text`."""
    files = ("--source", text / "test.en", "--target", text / "test.fr")
    if protocol in ("bucc", "sts"):
        files = ("--data", text / protocol, "--lang-pairs", "en-fr")
    # Any file: `two_words` replaces what loads it.
    model = text / "sts.tsv"
    return ("eval", protocol, "--model", model, *files)


@pytest.fixture
def two_words(monkeypatch):
    """Make every command use a model that reads two words."""
    monkeypatch.setattr("fairseq_lxsr.cli.evaluate.load_any", lambda args: ModelFolder(TwoWords()))


@pytest.mark.usefixtures("two_words")
@pytest.mark.parametrize("protocol", FIRST_LONG)
def test_every_retrieval_protocol_has_other_scores_if_it_splits_long_texts(protocol, text):
    command = command_of(protocol, text)

    cut = lxsr_here(*command, "--on-long", "cut").stdout
    split = lxsr_here(*command, "--on-long", "split-mean").stdout

    scores_of_cut, signature_of_cut, _ = cut.partition("|long:cut-")
    scores_of_split, signature_of_split, _ = split.partition("|long:split-mean-")
    assert signature_of_cut
    assert signature_of_split
    assert scores_of_cut != scores_of_split


@pytest.mark.usefixtures("two_words")
@pytest.mark.parametrize("protocol", FIRST_LONG)
def test_every_retrieval_protocol_cuts_long_texts_by_default(protocol, text):
    command = command_of(protocol, text)

    assert lxsr_here(*command).stdout == lxsr_here(*command, "--on-long", "cut").stdout


@pytest.mark.usefixtures("two_words")
@pytest.mark.parametrize(("protocol", "place"), FIRST_LONG.items())
def test_every_retrieval_protocol_can_refuse_long_texts(protocol, place, text):
    done = lxsr_here(*command_of(protocol, text), "--on-long", "error", check=False)

    refused(done, place, "3 pieces")


@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_on_long_is_split_mean_for_documents_and_otherwise_cut(name):
    # XNLI does as the classification of documents.
    has_documents = name in ("mldoc", "passages", "titles", "xnli")

    default = protocols.protocol_class(name).on_long

    assert default == ("split-mean" if has_documents else "cut")


def tatoeba_scores(text, on_long: str) -> list[Score]:
    """Return the scores of both directions, with a model whose fingerprint is `on_long`."""
    encoder = ModelFolder(TwoWords(fingerprint=on_long))
    [scores] = plan_of(Tatoeba, text, on_long=on_long).measure(encoder)
    return scores


def test_scores_with_different_on_long_are_compared(text):
    cut = tatoeba_scores(text, "cut")
    split = tatoeba_scores(text, "split-mean")

    results, notes = compare_runs([cut], [split])

    assert [result.task for result in results] == ["en->fr", "fr->en"]
    assert not notes


def test_the_note_on_two_models_in_a_file_names_how_each_read_long_texts(text):
    cut = tatoeba_scores(text, "cut")
    split = tatoeba_scores(text, "split-mean")

    _, notes = compare_runs([[*cut, *split]], [split])

    assert "cut (long texts: cut)" in notes[0]
    assert "split-mean (long texts: split-mean)" in notes[0]


def test_the_joint_signature_of_tasks_says_none_for_a_task_without_long_texts():
    without_long = {"metric": "m", "text": "t", "model": "x"}
    with_long = {"metric": "m", "long": "cut-3", "text": "t", "model": "x"}
    scores = [
        Score("xsim", "en->fr", {"error": 1.0}, without_long),
        Score("xsim", "en->de", {"error": 1.0}, with_long),
    ]

    assert "|long:none+cut-3|text:t|model:x|" in signatures(scores)


def test_long_texts_are_counted_anew_for_each_measurement(text):
    encoder = ModelFolder(TwoWords())

    [[first, _]] = plan_of(Tatoeba, text).measure(encoder)
    [[second, _]] = plan_of(Tatoeba, text).measure(encoder)

    assert first.settings["long"] == f"cut-{BOTH_SIDES}"
    assert second.settings["long"] == f"cut-{BOTH_SIDES}"
    assert encoder.counts == Counter()
