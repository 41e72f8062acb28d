"""The description of the packaged model for mteb says what the model is."""

import pytest
from conftest import ROOT, load_script

from fairseq_lxsr.text.languages import parse_tag

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def description():
    pytest.importorskip("mteb")
    return load_script(ROOT / "examples" / "mteb" / "lxsr_models.py").lxsr_static


def test_the_description_for_mteb_has_the_sizes_of_the_model(description, packaged):
    # Without layers, all parameters are embeddings.
    assert description.n_parameters == packaged.parameters
    assert description.n_embedding_parameters == packaged.parameters
    # Four bytes each.
    megabytes = 4 * packaged.parameters / 2**20
    assert description.memory_usage_mb == pytest.approx(megabytes, abs=1)
    assert description.embed_dim[0] == packaged.output_dim
    assert description.max_tokens == packaged.max_seq_length


def test_the_description_for_mteb_has_the_languages_of_the_model(description, packaged):
    # mteb writes a language with its script, such as eng-Latn.
    languages = {parse_tag(code).language for code in description.languages}

    assert languages == set(packaged.languages)


def test_mteb_knows_the_training_data_that_its_description_names(description):
    import mteb

    for name in description.training_datasets:
        assert mteb.get_task(name)
