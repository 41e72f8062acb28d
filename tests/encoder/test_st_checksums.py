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
    """An exported folder, for sentence-transformers or for a hub."""
    # The comparison by sentence-transformers takes seconds to import it.
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda _: True)
    model = small_model.write_folder(tmp_path / "model", num_layers=0, gated=True)
    export = request.param
    export(SentenceEncoder.from_pretrained(model, "cpu"), tmp_path / "st")
    return tmp_path / "st"


# Files that an encoder reads, or that sentence-transformers reads.
FILES = [
    "model.safetensors",
    "tokenizer.json",
    "config.json",
    "config_sentence_transformers.json",
    "lxsr/dict.txt",
    "lxsr/config.json",
    "lxsr/sentencepiece.model",
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_a_changed_bit_is_named(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"{path}: checksum"):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()

    with pytest.raises(InputError, match=f"{folder}.*{name}"):
        SentenceEncoder.from_pretrained(folder)


def test_an_unchanged_folder_is_read(folder):
    assert SentenceEncoder.from_pretrained(folder).encode("a dog").any()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        pytest.param('"files"', '"filet"', id="files"),
        pytest.param('"crc32"', '"crc33"', id="crc32"),
        pytest.param('"fairseq-lxsr"', '"fairseq-lxss"', id="fairseq-lxsr"),
    ],
)
def test_checksums_with_a_changed_letter_are_refused(folder, text, changed):
    """modules.json has a checksum of itself."""
    path = folder / "modules.json"
    content = path.read_text()
    assert text in content
    path.write_text(content.replace(text, changed))

    with pytest.raises(InputError, match=f"{path}: "):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize("last", [-9, 0], ids=["cut", "empty"])
def test_cut_checksums_are_refused(folder, last):
    path = folder / "modules.json"
    path.write_text(path.read_text()[:last])

    with pytest.raises(InputError, match=f"{path}: "):
        SentenceEncoder.from_pretrained(folder)


def test_a_changed_folder_without_checksums_is_read(folder):
    """sentence-transformers drops the checksums when it saves a folder."""
    small_model.drop_checksums(folder)
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")

    assert SentenceEncoder.from_pretrained(folder).encode("a dog").any()


@pytest.fixture
def installed_version(monkeypatch):
    """Return a function that makes a version of sentence-transformers the installed one."""
    monkeypatch.setattr(sentence_transformers_folder, "require", lambda *_: None)

    def install(version: str) -> None:
        monkeypatch.setattr(sentence_transformers_folder.metadata, "version", lambda _: version)

    return install


def test_versions_that_run_code_of_a_folder_are_refused(installed_version):
    installed_version("5.1.2")

    with pytest.raises(InputError, match=r"models/x: .* 5.1.2 .*pip install"):
        require_library("models/x:")


def test_versions_that_run_no_code_of_a_folder_are_accepted(installed_version):
    installed_version("6.0.0")

    require_library("models/x:")
