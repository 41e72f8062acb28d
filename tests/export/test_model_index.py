"""The scores in the metadata of a card: one mean per task, by MTEB's names where it has the task."""

import json

import pytest
import small_model
from conftest import lxsr_here

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.export.card_content import CardContent
from fairseq_lxsr.export.model_index import model_index

TATOEBA = {"dataset": "tatoeba-v1", "metric": "nn-cosine"}
STS = {"dataset": "stsb-multi-mt", "metric": "cosine"}
XQUAD = {"dataset": "xquad", "metric": "nn-cosine"}


def index_results(*scores):
    """Return the results of scores in the metadata of the card of a model."""
    [entry] = model_index("m", scores)
    assert entry["name"] == "m"
    return entry["results"]


@pytest.mark.parametrize(
    ("protocol", "settings", "task", "values", "expected"),
    [
        (
            "mteb-bitext",
            TATOEBA,
            "de->en",
            {"F1": 95.333, "accuracy": 96},
            ("BitextMining", "mteb/tatoeba-bitext-mining", "MTEB Tatoeba (de->en)", "f1", 95.33),
        ),
        (
            "sts",
            STS,
            "de-de",
            {"Spearman": 69.5, "Pearson": 70.9},
            (
                "STS",
                "mteb/stsb_multi_mt",
                "MTEB STSBenchmarkMultilingualSTS (de-de)",
                "cosine_spearman",
                69.5,
            ),
        ),
        (
            "passages",
            XQUAD,
            "de->de",
            {"MRR@10": 74, "nDCG@10": 78.3},
            ("Retrieval", "google/xquad", "MTEB XQuADRetrieval (de->de)", "ndcg_at_10", 78.3),
        ),
    ],
)
def test_tasks_of_mteb_have_its_names_and_its_main_score(
    protocol, settings, task, values, expected
):
    task_type, dataset, name, metric, value = expected

    [result] = index_results(Score(protocol, task, values, settings))

    assert result["task"]["type"] == task_type
    assert result["dataset"]["type"] == dataset
    assert result["dataset"]["name"] == name
    assert result["metrics"] == [{"type": metric, "value": value}]


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        # mteb has no questions across languages, and ranks by cosine similarity.
        ("en->de", "nn-cosine"),
        ("de->de", "bm25"),
        ("de->de", "passages"),
    ],
)
def test_questions_that_mteb_measures_otherwise_do_not_have_its_name(task, metric):
    settings = {"dataset": "xquad", "metric": metric}

    [result] = index_results(Score("passages", task, {"MRR@10": 90}, settings))

    assert result["dataset"] == {"type": "passages", "name": f"passages, xquad, {metric} ({task})"}
    assert result["metrics"] == [{"type": "MRR@10", "value": 90}]


def test_the_main_score_of_a_metric_is_the_mean_over_language_pairs():
    nn = {"metric": "nn-cosine"}
    csls = {"metric": "csls-k10"}

    mean_of_nn, score_of_csls = index_results(
        Score("xsr", "en->de", {"P@1": 90.0, "P@5": 99.0}, nn | {"queries": 9}),
        Score("xsr", "de->en", {"P@1": 91.0, "P@5": 99.0}, nn | {"queries": 8}),
        Score("xsr", "de->en", {"P@1": 95.0, "P@5": 99.0}, csls),
    )

    assert mean_of_nn["dataset"]["name"] == "xsr, nn-cosine (mean of 2)"
    assert mean_of_nn["metrics"] == [{"type": "P@1", "value": (90 + 91) / 2}]
    assert score_of_csls["dataset"]["name"] == "xsr, csls-k10 (de->en)"
    assert score_of_csls["metrics"] == [{"type": "P@1", "value": 95}]


@pytest.fixture
def carded_folder(tmp_path):
    """A model folder whose card has an F1 of a third for German and for French."""
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    settings = TATOEBA | {"model": SentenceEncoder.from_pretrained(folder).fingerprint}
    scores = [
        Score("mteb-bitext", f"{language}->en", {"F1": 100 / 3}, settings)
        for language in ("de", "fr")
    ]
    append_scores(tmp_path / "scores.jsonl", scores)
    lxsr_here("export", "card", "--model", folder, "--scores", tmp_path / "scores.jsonl")
    return folder


def test_the_front_matter_of_a_card_has_the_mean_with_two_decimals(carded_folder):
    _, front_matter, _ = (carded_folder / "README.md").read_text().split("---\n", 2)
    [line] = [line for line in front_matter.splitlines() if line.startswith("model-index: ")]

    [entry] = json.loads(line.removeprefix("model-index: "))

    [result] = entry["results"]
    assert result["metrics"] == [{"type": "f1", "value": 33.33}]


def test_the_folder_has_each_score_with_four_decimals(carded_folder):
    german, french = CardContent.read(carded_folder).scores

    assert german.values == {"F1": 33.3333}
    assert french.values == {"F1": 33.3333}
