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


def results(*scores):
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
def test_tasks_of_mteb_have_its_names(protocol, settings, task, values, expected):
    [result] = results(Score(protocol, task, values, settings))
    [metric] = result["metrics"]
    dataset = result["dataset"]
    done = (result["task"]["type"], dataset["type"], dataset["name"], *metric.values())
    assert done == expected


@pytest.mark.parametrize(
    ("task", "metric"), [("en->de", "nn-cosine"), ("de->de", "bm25"), ("de->de", "passages")]
)
def test_questions_that_mteb_measures_otherwise_do_not_have_its_name(task, metric):
    settings = {"dataset": "xquad", "metric": metric}
    [result] = results(Score("passages", task, {"MRR@10": 90}, settings))
    assert result["dataset"] == {"type": "passages", "name": f"passages, xquad, {metric} ({task})"}
    assert result["metrics"] == [{"type": "MRR@10", "value": 90}]


def test_the_languages_of_a_task_are_one_mean():
    means = results(
        Score("xsr", "en->de", {"P@1": 90.0, "P@5": 99.0}, {"metric": "nn-cosine", "queries": 9}),
        Score("xsr", "de->en", {"P@1": 91.0, "P@5": 99.0}, {"metric": "nn-cosine", "queries": 8}),
        Score("xsr", "de->en", {"P@1": 95.0, "P@5": 99.0}, {"metric": "csls-k10"}),
    )
    assert [result["dataset"]["name"] for result in means] == [
        "xsr, nn-cosine (mean of 2)",
        "xsr, csls-k10 (de->en)",
    ]
    assert [result["metrics"] for result in means] == [
        [{"type": "P@1", "value": 90.5}],
        [{"type": "P@1", "value": 95.0}],
    ]


def test_the_card_has_means_in_front_and_rounded_scores_in_its_file(tmp_path):
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    model = SentenceEncoder.from_pretrained(folder).fingerprint
    scores = [
        Score("mteb-bitext", f"{language}->en", {"F1": 100 / 3}, {**TATOEBA, "model": model})
        for language in ("de", "fr")
    ]
    append_scores(tmp_path / "scores.jsonl", scores)
    lxsr_here("export", "card", "--model", folder, "--scores", tmp_path / "scores.jsonl")
    front = (folder / "README.md").read_text().split("---\n")[1]
    line = next(line for line in front.splitlines() if line.startswith("model-index: "))
    [entry] = json.loads(line.removeprefix("model-index: "))
    [result] = entry["results"]
    assert result["metrics"] == [{"type": "f1", "value": 33.33}]
    assert [score.values for score in CardContent.read(folder).scores] == [{"F1": 33.3333}] * 2
