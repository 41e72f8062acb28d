"""What a configuration names is what the fairseq layer knows."""

from fairseq_lxsr.context.config import ARCHITECTURES
from fairseq_lxsr.models import context_transformer


def test_names_are_those_of_the_model():
    assert tuple(context_transformer.ARCHITECTURES) == ARCHITECTURES
