"""mteb evaluates an encoder of this package on a small task."""

import json

import numpy as np
import pytest
import toy

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.export import MtebEncoder
from fairseq_lxsr.vectors import nearest_neighbours

PAIRS = toy.sentences(50, seed=4)


@pytest.fixture(scope="module")
def task():
    mteb = pytest.importorskip("mteb")
    datasets = pytest.importorskip("datasets")
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining

    class ToyBitext(AbsTaskBitextMining):
        metadata = TaskMetadata(
            name="ToyBitext",
            description="sentences made for this test",
            dataset={"path": "none", "revision": "1"},
            type="BitextMining",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs={"default": ["eng-Latn", "fra-Latn"]},
            main_score="f1",
        )

        def load_data(self, **_):
            rows = [{"sentence1": english, "sentence2": french} for english, french in PAIRS]
            test = datasets.Dataset.from_list(rows)
            self.dataset = {"default": datasets.DatasetDict(test=test)}
            self.data_loaded = True

    assert mteb
    return ToyBitext()


@pytest.mark.slow
def test_the_score_of_mteb_is_the_share_of_nearest_translations(task, toy_model):
    import mteb
    from mteb.models import EncoderProtocol

    model = MtebEncoder.from_pretrained(toy_model, device="cpu")
    assert isinstance(model, EncoderProtocol)
    assert model.mteb_model_meta.revision == model.encoder.fingerprint
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    score = result.task_results[0].scores["test"][0]["accuracy"]
    encoder = SentenceEncoder.from_pretrained(toy_model)
    english = encoder.encode([pair[0] for pair in PAIRS], normalize=True)
    french = encoder.encode([pair[1] for pair in PAIRS], normalize=True)
    _, nearest = nearest_neighbours(french, english, 1)
    assert score == pytest.approx((nearest[:, 0] == np.arange(50)).mean())


@pytest.mark.slow
def test_results_of_a_registered_model_are_cached_by_mteb(task, toy_model, tmp_path, monkeypatch):
    import mteb
    from mteb.cache import ResultCache
    from mteb.models.model_implementations import MODEL_REGISTRY

    meta = MtebEncoder.from_pretrained(toy_model, device="cpu").mteb_model_meta
    monkeypatch.setitem(MODEL_REGISTRY, meta.name, meta)
    model = mteb.get_model(meta.name, device="cpu")
    assert model.name == meta.name == f"fairseq-lxsr/{toy_model.name}"
    assert {"eng-Latn", "fra-Latn"} <= set(meta.languages)
    cache = ResultCache(tmp_path)
    result = mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results[0]
    folder = tmp_path / "results" / meta.name.replace("/", "__") / meta.revision
    files = {path.name for path in folder.iterdir()}
    assert {"ToyBitext.json", "model_meta.json"} <= files
    assert json.loads((folder / "model_meta.json").read_text())["name"] == meta.name
    [loaded] = cache.load_results([meta.name], ["ToyBitext"], validate_and_filter=False)
    assert loaded.task_results[0].get_score() == pytest.approx(result.get_score())


@pytest.mark.slow
def test_the_similarity_for_mteb_is_the_cosine(toy_model):
    model = MtebEncoder.from_pretrained(toy_model, device="cpu")
    first = np.array([[3.0, 4.0], [0.0, 0.0]])
    second = np.array([[4.0, 3.0], [1.0, 0.0]])
    np.testing.assert_allclose(model.similarity(first, second), [[0.96, 0.6], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(first, second), [0.96, 0], atol=1e-6)
