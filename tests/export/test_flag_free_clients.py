"""Tools open the folder of a model without layers by its path, with no flag and without this package.

Each tool is tested if it is installed.
"""

import sys

import numpy as np
import pytest
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.export import export_sentence_transformers

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


def by_langchain(folder):
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=folder).embed_documents(TEXTS)


def by_embetter(folder):
    from embetter.text import SentenceEncoder as Embetter

    return Embetter(folder).transform(TEXTS)


def by_setfit(folder):
    from setfit import SetFitModel

    return SetFitModel.from_pretrained(folder).model_body.encode(TEXTS)


def by_bertopic(folder):
    from bertopic.backend._utils import select_backend

    return select_backend(folder).embed(TEXTS)


def by_keybert(folder):
    from keybert.backend import SentenceTransformerBackend
    from sentence_transformers import SentenceTransformer

    return SentenceTransformerBackend(SentenceTransformer(folder)).embed(TEXTS)


def by_txtai(folder):
    from txtai import Embeddings

    embeddings = Embeddings(path=folder)
    embeddings.index(TEXTS)
    return [embeddings.transform(text) for text in TEXTS]


CLIENTS = {
    "langchain_huggingface": by_langchain,
    "embetter": by_embetter,
    "setfit": by_setfit,
    "bertopic": by_bertopic,
    "keybert": by_keybert,
    "txtai": by_txtai,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_tool_gives_the_vectors_of_this_package(client, folder_and_vectors, monkeypatch):
    pytest.importorskip(client, exc_type=ImportError)
    folder, expected = folder_and_vectors
    for name in list(sys.modules):
        if name.startswith("fairseq_lxsr"):
            monkeypatch.delitem(sys.modules, name)
    # The package cannot be imported.
    monkeypatch.setitem(sys.modules, "fairseq_lxsr", None)
    np.testing.assert_allclose(np.array(CLIENTS[client](folder)), expected, atol=1e-5)
