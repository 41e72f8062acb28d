"""Classes for other tools work in the tools; each is tested if the tool is installed."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import toy
import yaml
from conftest import COMPATIBILITY, ROOT, python

from fairseq_lxsr import SentenceEncoder, clients
from fairseq_lxsr.clients import shared
from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError

MODEL = str(COMPATIBILITY / "best.model")
TEXTS = [
    "One red dog sees the cat.",
    "Un chien rouge voit le chat.",
    "Two blue birds hear the fish.",
]
LONG = " ".join(TEXTS * 20)


def environment():
    """Return an environment in which a program imports this package and finds `lxsr`."""
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PATH": path,
    }


@pytest.fixture(scope="module")
def expected():
    encoder = SentenceEncoder.from_pretrained(MODEL)
    return encoder.encode([*TEXTS, LONG], normalize=True)


def test_importing_clients_does_not_import_numpy():
    assert python("import sys, fairseq_lxsr.clients; print('numpy' in sys.modules)") == "False\n"


def test_a_missing_tool_is_named_with_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core.embeddings", None)
    monkeypatch.delitem(sys.modules, "fairseq_lxsr.clients.langchain", raising=False)
    with pytest.raises(InputError, match=r"langchain_core.* pip install langchain-core"):
        _ = clients.LangChainEmbeddings
    with pytest.raises(AttributeError, match=r"'Other'.* BertalignEncoder, Chroma"):
        _ = clients.Other


def test_values_that_are_no_list_of_texts_are_refused():
    for texts in ("a dog", {"text": TEXTS}, set(TEXTS)):
        type_name = type(texts).__name__
        with pytest.raises(InputError, match=type_name):
            shared.unit_vectors(MODEL, texts)
        with pytest.raises(InputError, match=type_name):
            Text(texts)


def test_langchain_embeds_and_searches(expected):
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    embeddings = clients.LangChainEmbeddings(MODEL)
    np.testing.assert_allclose(embeddings.embed_documents([*TEXTS, LONG]), expected, atol=1e-6)
    assert len(clients.LangChainEmbeddings(MODEL, dimensions=4).embed_query(TEXTS[0])) == 4
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    assert store.similarity_search(TEXTS[2], k=1)[0].page_content == TEXTS[2]
    assert embeddings.embed_documents([]) == []


def test_llama_index_embeds_and_searches(expected):
    core = pytest.importorskip("llama_index.core")
    embedding = clients.LlamaIndexEmbedding(model_name=MODEL)
    vectors = embedding.get_text_embedding_batch([*TEXTS, LONG])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    documents = [core.Document(text=text) for text in TEXTS]
    index = core.VectorStoreIndex.from_documents(documents, embed_model=embedding)
    [node] = index.as_retriever(similarity_top_k=1).retrieve(TEXTS[2])
    assert node.text == TEXTS[2]
    short = clients.LlamaIndexEmbedding(model_name=MODEL, dimensions=4)
    assert len(short.get_query_embedding("a")) == 4


def test_haystack_embeds_and_searches_in_a_saved_pipeline(expected):
    haystack = pytest.importorskip("haystack")
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    documents = [haystack.Document(content=text) for text in (*TEXTS, None)]
    embedded = clients.HaystackDocumentEmbedder(MODEL).run(documents)["documents"]
    vectors = [document.embedding for document in embedded[:3]]
    np.testing.assert_allclose(vectors, expected[:3], atol=1e-6)
    assert documents[0].embedding is None
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(embedded[:3])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embed", clients.HaystackTextEmbedder(MODEL))
    pipeline.add_component("find", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embed.embedding", "find.query_embedding")
    loaded = haystack.Pipeline.loads(pipeline.dumps(), **unsafe_option(haystack))
    assert loaded.get_component("embed").model == MODEL
    results = pipeline.run({"embed": {"text": TEXTS[2]}})
    assert results["find"]["documents"][0].content == TEXTS[2]


def unsafe_option(haystack):
    """Return the option, in newer versions, to load components of other packages from a file."""
    import inspect

    if "unsafe" in inspect.signature(haystack.Pipeline.loads).parameters:
        return {"unsafe": True}
    return {}


def test_chroma_opens_a_collection_with_its_stored_function(expected, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    function = clients.ChromaEmbeddingFunction(MODEL)
    np.testing.assert_allclose(function([*TEXTS, LONG]), expected, atol=1e-6)
    client = chromadb.PersistentClient(tmp_path / "chroma")
    collection = client.create_collection("notes", embedding_function=function)
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    opened = chromadb.PersistentClient(tmp_path / "chroma").get_collection("notes")
    hits = opened.query(query_texts=[TEXTS[2]], n_results=1)
    assert hits["ids"] == [["c"]]
    assert hits["distances"][0][0] == pytest.approx(0, abs=5e-6)


def test_lancedb_opens_a_table_with_its_stored_function(expected, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    from lancedb.pydantic import LanceModel, Vector

    function = clients.LanceEmbeddingFunction.create(model=MODEL)
    vectors = function.compute_source_embeddings([*TEXTS, LONG])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)

    class Note(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()  # type: ignore[valid-type]

    table = lancedb.connect(tmp_path / "lance").create_table("notes", schema=Note)
    table.add([{"text": text} for text in TEXTS])
    opened = lancedb.connect(tmp_path / "lance").open_table("notes")
    assert opened.search(TEXTS[2]).limit(1).to_list()[0]["text"] == TEXTS[2]


def test_scikit_learn_searches_parameters_of_a_pipeline(expected):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    vectors = clients.SentenceVectors(MODEL)
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS})
    for texts in (table, "a dog"):
        with pytest.raises(InputError, match=type(texts).__name__):
            vectors.transform(texts)
    assert len(vectors.transform(table["text"])) == len(TEXTS)
    np.testing.assert_allclose(
        vectors.fit_transform(np.array([*TEXTS, LONG], dtype=object)), expected, atol=1e-6
    )
    assert sklearn.base.clone(vectors).get_params() == {"model": MODEL, "dimensions": None}
    assert len(vectors.get_feature_names_out()) == expected.shape[1]
    sentences = [source for source, _ in toy.sentences(200)]
    labels = ["dog" in sentence for sentence in sentences]
    search = GridSearchCV(
        make_pipeline(vectors, LogisticRegression(C=100)),
        {"sentencevectors__dimensions": [2, None]},
    )
    search.fit(sentences, labels)
    assert search.best_params_ == {"sentencevectors__dimensions": None}
    assert search.score(sentences, labels) > 0.7


def cosines_of(pairs):
    encoder = SentenceEncoder.from_pretrained(MODEL)
    source = encoder.encode([pair[0] for pair in pairs], normalize=True)
    target = encoder.encode([pair[1] for pair in pairs], normalize=True)
    return (source * target).sum(axis=1)


def pairs_above(pairs, threshold):
    cosines = cosines_of(pairs)
    return [pair for pair, cosine in zip(pairs, cosines, strict=True) if cosine >= threshold]


def test_opusfilter_keeps_pairs_above_the_threshold(tmp_path):
    pytest.importorskip("opusfilter")
    from fairseq_lxsr.clients import opusfilter

    pairs = toy.sentences(20)
    cosines = cosines_of(pairs)
    threshold = float(np.median(cosines)) + 1e-4
    expected = pairs_above(pairs, threshold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opusfilter, "PAIRS_AT_ONCE", 7)
        filters = clients.LxsrFilter(model=MODEL, threshold=threshold)
        np.testing.assert_allclose(list(filters.score(pairs)), cosines, atol=1e-5)
        assert list(filters.filter(iter(pairs))) == expected
        assert len(expected) + len(list(filters.filterfalse(iter(pairs)))) == 20
    config = yaml.safe_load((ROOT / "examples" / "cleaning" / "opusfilter.yaml").read_text())
    config["steps"] = config["steps"][:1]
    (lxsr_filter, _) = config["steps"][0]["parameters"]["filters"]
    lxsr_filter["LxsrFilter"] |= {"model": MODEL, "threshold": threshold}
    config["steps"][0]["parameters"]["filters"] = [lxsr_filter]
    toy.write(tmp_path / "dirty", pairs)
    (tmp_path / "filter.yaml").write_text(yaml.safe_dump(config))
    program = shutil.which("opusfilter", path=Path(sys.executable).parent)
    command = [program, "filter.yaml"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=120)
    clean = (tmp_path / "clean.fr").read_text().splitlines()
    assert clean == [target for _, target in expected]


def test_the_filter_of_opuscleaner_runs_lxsr_score():
    filters = json.loads((clients.filters_of_opuscleaner() / "lxsr.json").read_text())
    pipeline = json.loads((ROOT / "examples" / "cleaning" / "opuscleaner.filters.json").read_text())
    assert filters["command"].endswith('lxsr score --model "$MODEL"')
    assert pipeline["filters"][0]["parameters"].keys() == filters["parameters"].keys()


def test_opuscleaner_keeps_pairs_above_the_threshold(tmp_path):
    """OpusCleaner needs an older Pydantic, so it is in another environment, found by PATH."""
    program = shutil.which("opuscleaner-clean")
    if program is None:
        pytest.skip("no OpusCleaner on PATH")
    pairs = toy.sentences(20)
    lines = [f"{source}\t{target}\n" for source, target in pairs]
    (tmp_path / "dirty.tsv").write_text("".join(lines))
    pipeline = json.loads((ROOT / "examples" / "cleaning" / "opuscleaner.filters.json").read_text())
    pipeline["filters"][0]["parameters"] = {"MODEL": MODEL, "THRESHOLD": 0.9}
    (tmp_path / "filters.json").write_text(json.dumps(pipeline))
    filters = f"{clients.filters_of_opuscleaner()}/*.json"
    command = [program, "--filters", filters, "--input", "dirty.tsv", "--output", "clean.tsv"]
    command += ["filters.json", "en", "fr"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    expected = [f"{source}\t{target}" for source, target in pairs_above(pairs, 0.9)]
    assert (tmp_path / "clean.tsv").read_text().splitlines() == expected
    assert 0 < len(expected) < 20


def test_bertalign_aligns_sentences():
    """tests/examples/test_align.py runs a stand-in for Bertalign."""
    if find_spec("bertalign") is None:
        pytest.skip("Bertalign is not installed")
    from fairseq_lxsr.clients.bertalign import bertalign_with

    source = [
        "The dog sleeps in the house.",
        "It rains in Paris.",
        "My sister bought a red car.",
        "We eat bread.",
    ]
    target = [
        "Le chien dort dans la maison.",
        "Il pleut à Paris.",
        "Ma sœur a acheté une voiture rouge.",
    ]
    aligner = bertalign_with("lxsr-static").Bertalign(
        "\n".join(source), "\n".join(target), is_split=True
    )
    aligner.align_sents()
    alignments = [(list(map(int, left)), list(map(int, right))) for left, right in aligner.result]
    assert alignments == [([0], [0]), ([1], [1]), ([2], [2]), ([3], [])]


def test_encoders_for_bertalign_share_their_model(expected):
    from fairseq_lxsr.clients.bertalign import BertalignEncoder

    first = BertalignEncoder(MODEL)
    second = BertalignEncoder(MODEL)
    assert first.encoder.encoder is second.encoder.encoder
    np.testing.assert_allclose(first.encode([*TEXTS, LONG]), expected, atol=1e-6)
    assert not first.encode("").any()
