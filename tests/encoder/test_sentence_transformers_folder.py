"""Folders of sentence-transformers that are not an export of this package are refused."""

import json

import pytest
import small_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_sentence_transformers

pytest.importorskip("tokenizers")


def test_a_normalizer_without_strip(tmp_path):
    encoder = SentenceEncoder.from_pretrained(
        small_model.write_folder(tmp_path / "model", num_layers=0, gated=True), "cpu"
    )
    export_sentence_transformers(encoder, tmp_path / "st")
    SentenceEncoder.from_pretrained(tmp_path / "st")
    path = tmp_path / "st" / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    steps = description["normalizer"]["normalizers"]
    steps[:] = [step for step in steps if step["type"] != "Strip"]
    path.write_text(json.dumps(description), encoding="utf-8")
    small_model.drop_checksums(tmp_path / "st")
    with pytest.raises(InputError, match=f"{tmp_path}/st: .*Strip"):
        SentenceEncoder.from_pretrained(tmp_path / "st")
