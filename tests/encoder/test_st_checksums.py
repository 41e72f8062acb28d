"""The files of a sentence-transformers export are compared with the checksums in its modules.json."""

import pytest
import small_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder import sentence_transformers_folder
from fairseq_lxsr.encoder.sentence_transformers_folder import require_library
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_hub, export_sentence_transformers

pytest.importorskip("tokenizers")


@pytest.fixture(params=[export_sentence_transformers, export_hub])
def folder(request, tmp_path, monkeypatch):
    # The comparison by sentence-transformers takes seconds to import it.
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda _: True)
    model = small_model.write_folder(tmp_path / "model", num_layers=0, gated=True)
    request.param(SentenceEncoder.from_pretrained(model, "cpu"), tmp_path / "st")
    return tmp_path / "st"


FILES = [
    "model.safetensors",
    "tokenizer.json",
    "config.json",
    "config_sentence_transformers.json",
    "lxsr/dict.txt",
    "lxsr/config.json",
    "lxsr/sentencepiece.model",
]


def test_a_changed_or_missing_file_is_named(folder):
    for name in FILES:
        path = folder / name
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{path}: checksum"):
            SentenceEncoder.from_pretrained(folder)
        path.unlink()
        with pytest.raises(InputError, match=f"{folder}.*{name}"):
            SentenceEncoder.from_pretrained(folder)
        path.write_bytes(content)
    assert SentenceEncoder.from_pretrained(folder).encode("a dog").any()


def test_damaged_checksums_are_refused(folder):
    path = folder / "modules.json"
    content = path.read_text()
    for damaged in (
        content.replace('"files"', '"filet"'),
        content.replace('"crc32"', '"crc33"'),
        content.replace('"fairseq-lxsr"', '"fairseq-lxss"'),
        content[:-9],
        "",
    ):
        path.write_text(damaged)
        with pytest.raises(InputError, match=f"{path}: "):
            SentenceEncoder.from_pretrained(folder)


def test_a_folder_without_checksums_is_read(folder):
    """sentence-transformers drops them when it saves a folder."""
    small_model.drop_checksums(folder)
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert SentenceEncoder.from_pretrained(folder).encode("a dog").any()


@pytest.mark.parametrize(("version", "is_old"), [("5.1.2", True), ("6.0.0", False)])
def test_versions_that_run_code_of_a_folder_are_refused(monkeypatch, version, is_old):
    monkeypatch.setattr(sentence_transformers_folder, "require", lambda *_: None)
    monkeypatch.setattr(sentence_transformers_folder.metadata, "version", lambda _: version)
    if is_old:
        with pytest.raises(InputError, match=rf"models/x: .* {version} .*pip install"):
            require_library("models/x:")
    else:
        require_library("models/x:")
