"""Classes for other tools, with the tools themselves."""

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
    """That of a program that finds this package, and `lxsr`."""
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PATH": path,
    }


@pytest.fixture(scope="module")
def expected():
    encoder = SentenceEncoder.from_pretrained(MODEL)
    return encoder.encode([*TEXTS, LONG], normalize=True)


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys, fairseq_lxsr.clients; print([name for name in sys.modules if 'numpy' in name])"
    )
    assert python(code) == "[]\n"


def test_a_tool_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core.embeddings", None)
    monkeypatch.delitem(sys.modules, "fairseq_lxsr.clients.langchain", raising=False)
    with pytest.raises(InputError, match=r"langchain_core.* pip install langchain-core"):
        _ = clients.LangChainEmbeddings
    with pytest.raises(AttributeError, match=r"'Other'.* BertalignEncoder, Chroma"):
        _ = clients.Other


@pytest.mark.parametrize("texts", ["a dog", {"text": TEXTS}, set(TEXTS)])
def test_what_is_not_a_list_of_texts_is_refused(texts):
    kind = type(texts).__name__
    with pytest.raises(InputError, match=kind):
        shared.unit_vectors(MODEL, texts)
    with pytest.raises(InputError, match=kind):
        Text(texts)


def test_langchain(expected):
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    embeddings = clients.LangChainEmbeddings(MODEL)
    np.testing.assert_allclose(embeddings.embed_documents([*TEXTS, LONG]), expected, atol=1e-6)
    assert len(clients.LangChainEmbeddings(MODEL, dimensions=4).embed_query(TEXTS[0])) == 4
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    assert store.similarity_search(TEXTS[2], k=1)[0].page_content == TEXTS[2]
    assert embeddings.embed_documents([]) == []


def test_llama_index(expected):
    core = pytest.importorskip("llama_index.core")
    embedding = clients.LlamaIndexEmbedding(model_name=MODEL)
    np.testing.assert_allclose(
        embedding.get_text_embedding_batch([*TEXTS, LONG]), expected, atol=1e-6
    )
    documents = [core.Document(text=text) for text in TEXTS]
    index = core.VectorStoreIndex.from_documents(documents, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=1).retrieve(TEXTS[2])
    assert found[0].text == TEXTS[2]
    assert (
        len(clients.LlamaIndexEmbedding(model_name=MODEL, dimensions=4).get_query_embedding("a"))
        == 4
    )


def test_haystack(expected):
    haystack = pytest.importorskip("haystack")
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    documents = [
        *(haystack.Document(content=text) for text in TEXTS),
        haystack.Document(content=None),
    ]
    found = clients.HaystackDocumentEmbedder(MODEL).run(documents)["documents"]
    np.testing.assert_allclose([one.embedding for one in found[:3]], expected[:3], atol=1e-6)
    assert documents[0].embedding is None
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(found[:3])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embed", clients.HaystackTextEmbedder(MODEL))
    pipeline.add_component("find", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embed.embedding", "find.query_embedding")
    again = haystack.Pipeline.loads(pipeline.dumps(), **trusting(haystack))
    assert again.get_component("embed").model == MODEL
    assert pipeline.run({"embed": {"text": TEXTS[2]}})["find"]["documents"][0].content == TEXTS[2]


def trusting(haystack):
    """Haystack imports no other packages than its own from a file, unless they are named."""
    import inspect

    named = "unsafe" in inspect.signature(haystack.Pipeline.loads).parameters
    return {"unsafe": True} if named else {}


def test_chroma(expected, tmp_path):
    """A collection that is opened again finds the function, and its options, by the name that it
    stores.
    """
    chromadb = pytest.importorskip("chromadb")
    function = clients.ChromaEmbeddingFunction(MODEL)
    np.testing.assert_allclose(function([*TEXTS, LONG]), expected, atol=1e-6)
    collection = chromadb.PersistentClient(tmp_path / "chroma").create_collection(
        "notes", embedding_function=function
    )
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    again = chromadb.PersistentClient(tmp_path / "chroma").get_collection("notes")
    found = again.query(query_texts=[TEXTS[2]], n_results=1)
    assert (found["ids"], round(found["distances"][0][0], 5)) == ([["c"]], 0)


def test_lancedb(expected, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    from lancedb.pydantic import LanceModel, Vector

    function = clients.LanceEmbeddingFunction.create(model=MODEL)
    np.testing.assert_allclose(
        function.compute_source_embeddings([*TEXTS, LONG]), expected, atol=1e-6
    )

    class Note(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()  # type: ignore[valid-type]

    table = lancedb.connect(tmp_path / "lance").create_table("notes", schema=Note)
    table.add([{"text": text} for text in TEXTS])
    again = lancedb.connect(tmp_path / "lance").open_table("notes")
    assert again.search(TEXTS[2]).limit(1).to_list()[0]["text"] == TEXTS[2]


def test_scikit_learn(expected):
    """A classifier learns from one language, in a pipeline that is copied and searched like
    others.
    """
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
    pairs = toy.sentences(200)
    labels = ["dog" in source for source, _ in pairs]
    search = GridSearchCV(
        make_pipeline(vectors, LogisticRegression(C=100)),
        {"sentencevectors__dimensions": [2, None]},
    )
    search.fit([source for source, _ in pairs], labels)
    assert search.best_params_ == {"sentencevectors__dimensions": None}
    assert search.score([source for source, _ in pairs], labels) > 0.7


def test_opusfilter(tmp_path):
    pytest.importorskip("opusfilter")
    from fairseq_lxsr.clients import opusfilter

    pairs = toy.sentences(20)
    encoder = SentenceEncoder.from_pretrained(MODEL)
    source, target = (encoder.encode(side, normalize=True) for side in zip(*pairs, strict=True))
    cosines = (source * target).sum(1)
    threshold = float(np.median(cosines)) + 1e-4
    kept = [pair for pair, cosine in zip(pairs, cosines, strict=True) if cosine >= threshold]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opusfilter, "PAIRS_AT_ONCE", 7)
        filters = clients.LxsrFilter(model=MODEL, threshold=threshold)
        np.testing.assert_allclose(list(filters.score(pairs)), cosines, atol=1e-5)
        assert list(filters.filter(iter(pairs))) == kept
        assert len(kept) + len(list(filters.filterfalse(iter(pairs)))) == 20
    config = yaml.safe_load((ROOT / "examples" / "cleaning" / "opusfilter.yaml").read_text())
    config["steps"] = config["steps"][:1]
    (ours, _) = config["steps"][0]["parameters"]["filters"]
    ours["LxsrFilter"] |= {"model": MODEL, "threshold": threshold}
    config["steps"][0]["parameters"]["filters"] = [ours]
    toy.write(tmp_path / "dirty", pairs)
    (tmp_path / "filter.yaml").write_text(yaml.safe_dump(config))
    program = shutil.which("opusfilter", path=Path(sys.executable).parent)
    subprocess.run(
        [program, "filter.yaml"], cwd=tmp_path, env=environment(), check=True, timeout=120
    )
    assert (tmp_path / "clean.fr").read_text().splitlines() == [target for _, target in kept]


def test_the_filter_of_opuscleaner_runs_a_command_of_ours():
    filters = json.loads((clients.filters_of_opuscleaner() / "lxsr.json").read_text())
    pipeline = json.loads((ROOT / "examples" / "cleaning" / "opuscleaner.filters.json").read_text())
    assert filters["command"].endswith('lxsr score --model "$MODEL"')
    assert pipeline["filters"][0]["parameters"].keys() == filters["parameters"].keys()


def test_opuscleaner(tmp_path):
    """OpusCleaner wants an older Pydantic than others: its programs, of another environment, are
    found by PATH.
    """
    program = shutil.which("opuscleaner-clean")
    if program is None:
        pytest.skip("no OpusCleaner on PATH")
    pairs = toy.sentences(20)
    (tmp_path / "dirty.tsv").write_text(
        "".join(f"{source}\t{target}\n" for source, target in pairs)
    )
    pipeline = json.loads((ROOT / "examples" / "cleaning" / "opuscleaner.filters.json").read_text())
    pipeline["filters"][0]["parameters"] = {"MODEL": MODEL, "THRESHOLD": 0.9}
    (tmp_path / "filters.json").write_text(json.dumps(pipeline))
    command = [
        program,
        "--filters",
        f"{clients.filters_of_opuscleaner()}/*.json",
        "--input",
        "dirty.tsv",
    ]
    subprocess.run(
        [*command, "--output", "clean.tsv", "filters.json", "en", "fr"],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    encoder = SentenceEncoder.from_pretrained(MODEL)
    source, target = (encoder.encode(side, normalize=True) for side in zip(*pairs, strict=True))
    cosines = (source * target).sum(1)
    kept = [
        f"{source}\t{target}"
        for (source, target), cosine in zip(pairs, cosines, strict=True)
        if cosine >= 0.9
    ]
    assert (tmp_path / "clean.tsv").read_text().splitlines() == kept
    assert 0 < len(kept) < 20


def test_bertalign():
    """With Bertalign itself; tests/examples/test_align.py has a stand-in of it."""
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
    found = [([int(i) for i in left], [int(i) for i in right]) for left, right in aligner.result]
    assert found == [([0], [0]), ([1], [1]), ([2], [2]), ([3], [])]


def test_bertalign_encoder(expected):
    from fairseq_lxsr.clients.bertalign import BertalignEncoder

    encoders = BertalignEncoder(MODEL), BertalignEncoder(MODEL)
    assert encoders[0].encoder.encoder is encoders[1].encoder.encoder
    np.testing.assert_allclose(encoders[0].encode([*TEXTS, LONG]), expected, atol=1e-6)
    assert not encoders[0].encode("").any()
