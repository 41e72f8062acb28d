"""What a configuration names is what the fairseq layer knows."""

import pytest

from fairseq_lxsr.context.rounds import CONTEXT_ARCHITECTURES, ContextConfig
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.context import model as context_transformer


def test_names_are_those_of_the_model():
    assert tuple(context_transformer.CONTEXT_PRESETS) == CONTEXT_ARCHITECTURES


def test_a_work_folder_that_fairseq_would_split_is_refused(tmp_path):
    documents = {"en": "en.txt", "fr": "fr.txt"}
    ContextConfig(documents, work=str(tmp_path))
    with pytest.raises(InputError, match=r"work: .*/a:b/work; expected a path without ':'"):
        ContextConfig(documents, work=str(tmp_path / "a:b" / "work"))
