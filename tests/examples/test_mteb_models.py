"""The description of the packaged model for mteb says what the model is."""

import pytest
from conftest import ROOT, load_script

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.text.languages import parse_tag


@pytest.mark.slow
def test_the_description_for_mteb_is_that_of_the_model():
    mteb = pytest.importorskip("mteb")
    meta = load_script(ROOT / "examples" / "mteb" / "lxsr_models.py").lxsr_static
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    assert meta.n_parameters == meta.n_embedding_parameters == encoder.parameters
    assert meta.memory_usage_mb == pytest.approx(4 * encoder.parameters / 2**20, abs=1)
    assert meta.embed_dim[0] == encoder.output_dim
    assert meta.max_tokens == encoder.max_seq_length
    assert {parse_tag(code).language for code in meta.languages} == set(encoder.languages)
    for name in meta.training_datasets:
        assert mteb.get_task(name)
