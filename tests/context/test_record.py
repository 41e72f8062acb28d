"""The record of a work folder of `lxsr train-context`."""

import pytest

from fairseq_lxsr.context.config import ContextConfig
from fairseq_lxsr.context.rounds import RECORD, Rounds
from fairseq_lxsr.errors import InputError


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 200_000, '"x"'])
def test_what_is_no_record_is_named(tmp_path, content):
    (tmp_path / "stage1" / "model").mkdir(parents=True)
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(InputError, match=rf"{RECORD}: not the options of an earlier run"):
        Rounds(ContextConfig({"en": "none", "fr": "none"}, work=str(tmp_path)), lambda: pytest.fail("prepared")).run()
