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
from fairseq_lxsr.clients.bertalign import BertalignEncoder
from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.errors import InputError

# A small trained model.
MODEL = str(COMPATIBILITY / "best.model")
TEXTS = [
    "One red dog sees the cat.",
    "Un chien rouge voit le chat.",
    "Two blue birds hear the fish.",
]
# The text that searches look for.
BIRDS = TEXTS[2]
# A tool must not cut it into parts.
LONG = " ".join(TEXTS * 20)


@pytest.fixture(scope="module")
def unit_vectors():
    """The embeddings of the texts and of the long text, by the package itself."""
    encoder = SentenceEncoder.from_pretrained(MODEL)
    return encoder.encode([*TEXTS, LONG], normalize=True)


def test_importing_clients_does_not_import_numpy():
    assert python("import sys, fairseq_lxsr.clients; print('numpy' in sys.modules)") == "False\n"


def test_a_class_whose_tool_is_missing_is_refused_with_the_command_to_install_it(monkeypatch):
    # None is how Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "langchain_core.embeddings", None)
    monkeypatch.delitem(sys.modules, "fairseq_lxsr.clients.langchain", raising=False)

    with pytest.raises(InputError, match=r"langchain_core.* pip install langchain-core"):
        _ = clients.LangChainEmbeddings


def test_an_unknown_class_is_refused_with_the_names_of_all_classes():
    with pytest.raises(AttributeError, match=r"'Other'.* BertalignEncoder, Chroma"):
        _ = clients.Other


@pytest.mark.parametrize(
    "texts", ["a dog", {"text": TEXTS}, set(TEXTS)], ids=["str", "dict", "set"]
)
def test_a_value_that_is_no_list_of_texts_is_refused_with_its_type(texts):
    type_name = type(texts).__name__

    with pytest.raises(InputError, match=type_name):
        shared.unit_vectors(MODEL, texts)
    with pytest.raises(InputError, match=type_name):
        Text(texts)


# -- LangChain


def test_langchain_embeds_documents_like_the_package(unit_vectors):
    pytest.importorskip("langchain_core")

    vectors = clients.LangChainEmbeddings(MODEL).embed_documents([*TEXTS, LONG])

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_langchain_embeds_a_query_in_the_given_dimensions():
    pytest.importorskip("langchain_core")

    vector = clients.LangChainEmbeddings(MODEL, dimensions=4).embed_query("a dog")

    assert len(vector) == 4


def test_langchain_embeds_no_documents_as_an_empty_list():
    pytest.importorskip("langchain_core")

    assert clients.LangChainEmbeddings(MODEL).embed_documents([]) == []


def test_a_vector_store_of_langchain_finds_a_text():
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(TEXTS, clients.LangChainEmbeddings(MODEL))
    [document] = store.similarity_search(BIRDS, k=1)

    assert document.page_content == BIRDS


# -- LlamaIndex


def test_llama_index_embeds_texts_like_the_package(unit_vectors):
    pytest.importorskip("llama_index.core")

    embedding = clients.LlamaIndexEmbedding(model_name=MODEL)
    vectors = embedding.get_text_embedding_batch([*TEXTS, LONG])

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_llama_index_embeds_a_query_in_the_given_dimensions():
    pytest.importorskip("llama_index.core")

    embedding = clients.LlamaIndexEmbedding(model_name=MODEL, dimensions=4)

    assert len(embedding.get_query_embedding("a dog")) == 4


def test_an_index_of_llama_index_finds_a_text():
    core = pytest.importorskip("llama_index.core")
    embedding = clients.LlamaIndexEmbedding(model_name=MODEL)
    documents = [core.Document(text=text) for text in TEXTS]

    index = core.VectorStoreIndex.from_documents(documents, embed_model=embedding)
    [node] = index.as_retriever(similarity_top_k=1).retrieve(BIRDS)

    assert node.text == BIRDS


# -- Haystack


def test_haystack_embeds_copies_of_documents_like_the_package(unit_vectors):
    haystack = pytest.importorskip("haystack")
    # The last one has no content.
    documents = [haystack.Document(content=text) for text in (*TEXTS, None)]

    embedded = clients.HaystackDocumentEmbedder(MODEL).run(documents)["documents"]

    vectors = [document.embedding for document in embedded]
    np.testing.assert_allclose(vectors[:3], unit_vectors[:3], atol=1e-6)
    assert not np.any(vectors[3])
    assert documents[0].embedding is None


@pytest.fixture
def haystack_pipeline():
    """A pipeline of Haystack that finds the nearest of the texts."""
    haystack = pytest.importorskip("haystack")
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    documents = [haystack.Document(content=text) for text in TEXTS]
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(clients.HaystackDocumentEmbedder(MODEL).run(documents)["documents"])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embed", clients.HaystackTextEmbedder(MODEL))
    pipeline.add_component("find", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embed.embedding", "find.query_embedding")
    return pipeline


def test_a_pipeline_of_haystack_finds_a_text(haystack_pipeline):
    results = haystack_pipeline.run({"embed": {"text": BIRDS}})

    [document] = results["find"]["documents"]
    assert document.content == BIRDS


def test_a_pipeline_of_haystack_is_saved_with_the_name_of_the_model(haystack_pipeline):
    import haystack

    text = haystack_pipeline.dumps()
    loaded = haystack.Pipeline.loads(text, **unsafe_option(haystack))

    assert loaded.get_component("embed").model == MODEL


def unsafe_option(haystack):
    """Return the option, in newer versions, to load components of other packages from a file."""
    import inspect

    if "unsafe" in inspect.signature(haystack.Pipeline.loads).parameters:
        return {"unsafe": True}
    return {}


# -- Chroma


def test_chroma_embeds_texts_like_the_package(unit_vectors):
    pytest.importorskip("chromadb")

    vectors = clients.ChromaEmbeddingFunction(MODEL)([*TEXTS, LONG])

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_a_collection_of_chroma_is_opened_with_its_stored_function(tmp_path):
    chromadb = pytest.importorskip("chromadb")
    client = chromadb.PersistentClient(tmp_path / "chroma")
    function = clients.ChromaEmbeddingFunction(MODEL)
    collection = client.create_collection("notes", embedding_function=function)
    collection.add(ids=["dog", "chien", "birds"], documents=TEXTS)

    # No function is given.
    opened = chromadb.PersistentClient(tmp_path / "chroma").get_collection("notes")
    hits = opened.query(query_texts=[BIRDS], n_results=1)

    assert hits["ids"] == [["birds"]]
    assert hits["distances"][0][0] == pytest.approx(0, abs=5e-6)


# -- LanceDB


def test_lancedb_embeds_texts_like_the_package(unit_vectors):
    pytest.importorskip("lancedb")

    function = clients.LanceEmbeddingFunction.create(model=MODEL)
    vectors = function.compute_source_embeddings([*TEXTS, LONG])

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_a_table_of_lancedb_is_opened_with_its_stored_function(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    from lancedb.pydantic import LanceModel, Vector

    function = clients.LanceEmbeddingFunction.create(model=MODEL)

    class Note(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()  # type: ignore[valid-type]

    table = lancedb.connect(tmp_path / "lance").create_table("notes", schema=Note)
    table.add([{"text": text} for text in TEXTS])

    # No function is given.
    opened = lancedb.connect(tmp_path / "lance").open_table("notes")
    [row] = opened.search(BIRDS).limit(1).to_list()

    assert row["text"] == BIRDS


# -- scikit-learn


def test_scikit_learn_embeds_texts_like_the_package(unit_vectors):
    pytest.importorskip("sklearn")
    texts = np.array([*TEXTS, LONG], dtype=object)

    vectors = clients.SentenceVectors(MODEL).fit_transform(texts)

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_scikit_learn_embeds_a_column_of_a_table():
    pytest.importorskip("sklearn")
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS})

    vectors = clients.SentenceVectors(MODEL).transform(table["text"])

    assert len(vectors) == len(TEXTS)


def test_scikit_learn_refuses_a_table_and_a_single_text():
    pytest.importorskip("sklearn")
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS})
    vectors = clients.SentenceVectors(MODEL)

    with pytest.raises(InputError, match="DataFrame"):
        vectors.transform(table)
    with pytest.raises(InputError, match="str"):
        vectors.transform("a dog")


def test_scikit_learn_copies_the_parameters_and_knows_the_number_of_features(unit_vectors):
    sklearn = pytest.importorskip("sklearn")
    vectors = clients.SentenceVectors(MODEL)

    copy = sklearn.base.clone(vectors)

    assert copy.get_params() == {"model": MODEL, "dimensions": None}
    assert len(vectors.get_feature_names_out()) == unit_vectors.shape[1]


def test_scikit_learn_chooses_the_dimensions_with_which_a_classifier_is_best():
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    sentences = [source for source, _ in toy.sentences(200)]
    has_dog = ["dog" in sentence for sentence in sentences]
    pipeline = make_pipeline(clients.SentenceVectors(MODEL), LogisticRegression(C=100))

    search = GridSearchCV(pipeline, {"sentencevectors__dimensions": [2, None]})
    search.fit(sentences, has_dog)

    # All dimensions tell more than two.
    assert search.best_params_ == {"sentencevectors__dimensions": None}
    # A sentence has no dog in 25 of 36 cases, which is 0.69.
    assert search.score(sentences, has_dog) > 0.7


# -- OpusFilter and OpusCleaner

PAIRS = toy.sentences(20)


def cosines_of(pairs):
    encoder = SentenceEncoder.from_pretrained(MODEL)
    source = encoder.encode([pair[0] for pair in pairs], normalize=True)
    target = encoder.encode([pair[1] for pair in pairs], normalize=True)
    return (source * target).sum(axis=1)


def pairs_above(pairs, threshold):
    cosines = cosines_of(pairs)
    return [pair for pair, cosine in zip(pairs, cosines, strict=True) if cosine >= threshold]


def threshold_in_the_middle(pairs) -> float:
    """Return a threshold between the cosines of two halves of the pairs."""
    # A little more than the median, so that rounding cannot matter.
    return float(np.median(cosines_of(pairs))) + 1e-4


@pytest.fixture
def opusfilter_in_chunks(monkeypatch):
    """The filter of OpusFilter, which embeds 7 pairs at once: the last chunk of 20 is smaller."""
    pytest.importorskip("opusfilter")
    from fairseq_lxsr.clients import opusfilter

    monkeypatch.setattr(opusfilter, "PAIRS_AT_ONCE", 7)
    return clients.LxsrFilter(model=MODEL, threshold=threshold_in_the_middle(PAIRS))


def test_opusfilter_scores_pairs_by_their_cosines(opusfilter_in_chunks):
    scores = list(opusfilter_in_chunks.score(PAIRS))

    np.testing.assert_allclose(scores, cosines_of(PAIRS), atol=1e-5)


def test_opusfilter_separates_pairs_at_the_threshold(opusfilter_in_chunks):
    above = pairs_above(PAIRS, opusfilter_in_chunks.threshold)

    kept = list(opusfilter_in_chunks.filter(iter(PAIRS)))
    removed = list(opusfilter_in_chunks.filterfalse(iter(PAIRS)))

    assert kept == above
    assert removed == [pair for pair in PAIRS if pair not in above]


def environment():
    """Return an environment in which a program imports this package and finds `lxsr`."""
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PATH": path,
    }


def test_the_program_opusfilter_keeps_pairs_above_the_threshold(tmp_path):
    pytest.importorskip("opusfilter")
    threshold = threshold_in_the_middle(PAIRS)
    # The first step of the example, with our filter alone.
    config = yaml.safe_load((ROOT / "examples" / "cleaning" / "opusfilter.yaml").read_text())
    [step, *_] = config["steps"]
    [lxsr_filter, _] = step["parameters"]["filters"]
    lxsr_filter["LxsrFilter"] |= {"model": MODEL, "threshold": threshold}
    step["parameters"]["filters"] = [lxsr_filter]
    config["steps"] = [step]
    (tmp_path / "filter.yaml").write_text(yaml.safe_dump(config))
    toy.write(tmp_path / "dirty", PAIRS)

    program = shutil.which("opusfilter", path=Path(sys.executable).parent)
    command = [program, "filter.yaml"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=120)

    kept = (tmp_path / "clean.fr").read_text().splitlines()
    assert kept == [target for _, target in pairs_above(PAIRS, threshold)]


def pipeline_of_opuscleaner():
    """Return the filters of the example, of which the first is ours."""
    return json.loads((ROOT / "examples" / "cleaning" / "opuscleaner.filters.json").read_text())


def test_the_filter_of_opuscleaner_runs_lxsr_score():
    definition = json.loads((clients.filters_of_opuscleaner() / "lxsr.json").read_text())

    assert definition["command"].endswith('lxsr score --model "$MODEL"')


def test_the_example_of_opuscleaner_sets_all_parameters_of_the_filter():
    definition = json.loads((clients.filters_of_opuscleaner() / "lxsr.json").read_text())
    lxsr_filter, *_ = pipeline_of_opuscleaner()["filters"]

    assert lxsr_filter["parameters"].keys() == definition["parameters"].keys()


def test_opuscleaner_keeps_pairs_above_the_threshold(tmp_path):
    """OpusCleaner needs an older Pydantic, so it is in another environment, found by PATH."""
    program = shutil.which("opuscleaner-clean")
    if program is None:
        pytest.skip("no OpusCleaner on PATH")
    lines = [f"{source}\t{target}\n" for source, target in PAIRS]
    (tmp_path / "dirty.tsv").write_text("".join(lines))
    pipeline = pipeline_of_opuscleaner()
    pipeline["filters"][0]["parameters"] = {"MODEL": MODEL, "THRESHOLD": 0.9}
    (tmp_path / "filters.json").write_text(json.dumps(pipeline))

    filters = f"{clients.filters_of_opuscleaner()}/*.json"
    command = [program, "--filters", filters, "--input", "dirty.tsv", "--output", "clean.tsv"]
    command += ["filters.json", "en", "fr"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)

    above = [f"{source}\t{target}" for source, target in pairs_above(PAIRS, 0.9)]
    assert (tmp_path / "clean.tsv").read_text().splitlines() == above
    # Some are kept, some removed.
    assert 0 < len(above) < len(PAIRS)


# -- Bertalign


def test_bertalign_aligns_sentences_by_the_packaged_model():
    """tests/examples/test_align.py runs a stand-in for Bertalign."""
    if find_spec("bertalign") is None:
        pytest.skip("Bertalign is not installed")
    from fairseq_lxsr.clients.bertalign import bertalign_with

    # The last English sentence has no translation.
    english = """The dog sleeps in the house.
It rains in Paris.
My sister bought a red car.
We eat bread."""
    french = """Le chien dort dans la maison.
Il pleut à Paris.
Ma sœur a acheté une voiture rouge."""

    aligner = bertalign_with("lxsr-static").Bertalign(english, french, is_split=True)
    aligner.align_sents()

    alignments = [(list(map(int, left)), list(map(int, right))) for left, right in aligner.result]
    assert alignments == [([0], [0]), ([1], [1]), ([2], [2]), ([3], [])]


def test_the_encoder_for_bertalign_embeds_texts_like_the_package(unit_vectors):
    vectors = BertalignEncoder(MODEL).encode([*TEXTS, LONG])

    np.testing.assert_allclose(vectors, unit_vectors, atol=1e-6)


def test_the_encoder_for_bertalign_embeds_an_empty_text_as_zeros():
    assert not BertalignEncoder(MODEL).encode("").any()


def test_encoders_for_bertalign_with_the_same_model_read_it_once():
    first = BertalignEncoder(MODEL)
    second = BertalignEncoder(MODEL)

    assert first.encoder.encoder is second.encoder.encoder
