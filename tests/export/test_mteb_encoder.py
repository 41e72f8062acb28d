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
    """A task of mteb: find the English translations of the French sentences of PAIRS."""
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
def test_the_encoder_is_one_of_mteb_with_the_fingerprint_as_its_revision(toy_model):
    models = pytest.importorskip("mteb.models")

    model = MtebEncoder.from_pretrained(toy_model, device="cpu")

    assert isinstance(model, models.EncoderProtocol)
    assert model.mteb_model_meta.revision == model.encoder.fingerprint


@pytest.mark.slow
def test_the_score_of_mteb_is_the_share_of_nearest_translations(task, toy_model):
    import mteb

    encoder = SentenceEncoder.from_pretrained(toy_model)
    english = encoder.encode([english for english, _ in PAIRS], normalize=True)
    french = encoder.encode([french for _, french in PAIRS], normalize=True)
    _, nearest = nearest_neighbours(french, english, 1)
    is_translation = nearest[:, 0] == np.arange(len(PAIRS))

    model = MtebEncoder.from_pretrained(toy_model, device="cpu")
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)

    [scores] = result.task_results[0].scores["test"]
    assert scores["accuracy"] == pytest.approx(is_translation.mean())


@pytest.fixture
def registered_name(toy_model, monkeypatch):
    """The name of the toy model, which is registered as a model of mteb."""
    implementations = pytest.importorskip("mteb.models.model_implementations")
    meta = MtebEncoder.from_pretrained(toy_model, device="cpu").mteb_model_meta
    monkeypatch.setitem(implementations.MODEL_REGISTRY, meta.name, meta)
    return meta.name


@pytest.mark.slow
def test_mteb_opens_a_registered_model_by_its_name(registered_name):
    import mteb

    assert mteb.get_model(registered_name, device="cpu").name == registered_name


@pytest.mark.slow
def test_the_name_of_a_model_for_mteb_is_that_of_its_folder_after_that_of_the_package(
    registered_name, toy_model
):
    assert registered_name == f"fairseq-lxsr/{toy_model.name}"


@pytest.mark.slow
def test_mteb_knows_the_languages_of_a_registered_model(registered_name):
    import mteb

    model = mteb.get_model(registered_name, device="cpu")

    # The toy model was trained on en-fr.
    assert {"eng-Latn", "fra-Latn"} <= set(model.mteb_model_meta.languages)


@pytest.mark.slow
def test_results_of_a_registered_model_are_cached_by_mteb(task, registered_name, tmp_path):
    import mteb
    from mteb.cache import ResultCache

    model = mteb.get_model(registered_name, device="cpu")
    cache = ResultCache(tmp_path)

    result = mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results[0]

    revision = model.mteb_model_meta.revision
    folder = tmp_path / "results" / registered_name.replace("/", "__") / revision
    assert (folder / "ToyBitext.json").is_file()
    assert json.loads((folder / "model_meta.json").read_text())["name"] == registered_name
    [cached] = cache.load_results([registered_name], ["ToyBitext"], validate_and_filter=False)
    assert cached.task_results[0].get_score() == pytest.approx(result.get_score())


# Their cosines are those of the triangle with sides 3, 4 and 5.
FIRST = np.array([[3.0, 4.0], [0.0, 0.0]])
SECOND = np.array([[4.0, 3.0], [1.0, 0.0]])


@pytest.mark.slow
def test_the_similarity_for_mteb_is_the_cosine_and_zero_for_a_vector_of_zeros(toy_model):
    model = MtebEncoder.from_pretrained(toy_model, device="cpu")

    matrix = model.similarity(FIRST, SECOND)
    pairs = model.similarity_pairwise(FIRST, SECOND)

    np.testing.assert_allclose(matrix, [[(3 * 4 + 4 * 3) / 25, 3 / 5], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(pairs, [(3 * 4 + 4 * 3) / 25, 0], atol=1e-6)
