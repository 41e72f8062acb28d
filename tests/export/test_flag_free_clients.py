"""Tools open the folder of a model without layers by its path, with no flag and without this package.

Each tool is tested if it is installed.
"""

import sys

import numpy as np
import pytest
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.export import export_sentence_transformers

# Known words, a letter that the model does not know, one letter, and repeated words.
TEXTS = ["the red dog sees a cat", "One Dog ☃ eats", "a", "the dog " * 8]


@pytest.fixture(scope="module")
def folder_and_vectors(tmp_path_factory):
    """An exported folder, and the expected vectors; of length one, as some of the tools scale them."""
    pytest.importorskip("sentence_transformers")
    work = tmp_path_factory.mktemp("static")
    model = write_model(work / "random", gated=True, num_layers=0)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    export_sentence_transformers(encoder, work / "st", normalize=True)
    return str(work / "st"), encoder.encode(TEXTS, normalize=True)


def embed_by_langchain(folder):
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=folder).embed_documents(TEXTS)


def embed_by_embetter(folder):
    from embetter.text import SentenceEncoder as Embetter

    return Embetter(folder).transform(TEXTS)


def embed_by_setfit(folder):
    from setfit import SetFitModel

    return SetFitModel.from_pretrained(folder).model_body.encode(TEXTS)


def embed_by_bertopic(folder):
    from bertopic.backend._utils import select_backend

    return select_backend(folder).embed(TEXTS)


def embed_by_keybert(folder):
    from keybert.backend import SentenceTransformerBackend
    from sentence_transformers import SentenceTransformer

    return SentenceTransformerBackend(SentenceTransformer(folder)).embed(TEXTS)


def embed_by_txtai(folder):
    from txtai import Embeddings

    embeddings = Embeddings(path=folder)
    embeddings.index(TEXTS)
    return [embeddings.transform(text) for text in TEXTS]


# By the module whose import decides whether the tool is installed.
CLIENTS = {
    "langchain_huggingface": embed_by_langchain,
    "embetter": embed_by_embetter,
    "setfit": embed_by_setfit,
    "bertopic": embed_by_bertopic,
    "keybert": embed_by_keybert,
    "txtai": embed_by_txtai,
}


@pytest.fixture
def without_this_package(folder_and_vectors, monkeypatch):
    """Make every import of this package fail, after the fixture that needs it."""
    for name in list(sys.modules):
        if name.startswith("fairseq_lxsr"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fairseq_lxsr", None)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.usefixtures("without_this_package")
def test_a_tool_gives_the_vectors_of_this_package_without_it(client, folder_and_vectors):
    pytest.importorskip(client, exc_type=ImportError)
    folder, expected = folder_and_vectors

    embeddings = CLIENTS[client](folder)

    np.testing.assert_allclose(np.array(embeddings), expected, atol=1e-5)
