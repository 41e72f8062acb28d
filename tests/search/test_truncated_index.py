"""Indexes of vectors that were cut or stored in fewer bytes, searched with the model."""

from types import SimpleNamespace

import numpy as np
import pytest
import toy
from conftest import COMPATIBILITY, lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import load, model_of, truncate_dim_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search import CorpusIndex, PairScoring, score_pairs
from fairseq_lxsr.search.pairs import PairEncoder
from fairseq_lxsr.search.reranker import Reranker

FRENCH = [target for _, target in toy.sentences(40)]
MODEL = COMPATIBILITY / "best.model"
WIDTH = 6


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.fr"
    path.write_text("".join(f"{line}\n" for line in FRENCH), encoding="utf-8")
    return path


def lxsr(verb, *arguments, **options):
    return lxsr_here(verb, "--model", MODEL, *arguments, **options)


@pytest.mark.parametrize(
    "options",
    [
        ["--truncate-dim", WIDTH],
        ["--output-dtype", "int8"],
        ["--output-dtype", "binary"],
        ["--output-dtype", "int8", "--truncate-dim", WIDTH, "--normalize"],
        ["--on-long", "split-mean"],
    ],
)
def test_stored_vectors_are_searched_with_their_model(options, text, tmp_path):
    lxsr("embed", "--input", text, "--output", tmp_path / "vectors" / f"{text.name}.npy", *options)
    index = tmp_path / "index"
    lxsr_here("index", "--model", tmp_path / "vectors", "--input", text, "--output", index)
    # Of eight signs, several sentences have the same.
    num_hits = 5 if "binary" in options else 1
    output = lxsr("search", "--index", index, FRENCH[7], "--k", num_hits).stdout
    assert any(line.endswith(FRENCH[7]) for line in output.splitlines()[1:])


def test_queries_are_cut_to_the_width_of_the_index(encoder, text, tmp_path):
    options = ("--plain", "--truncate-dim", WIDTH)
    lxsr("index", "--input", text, "--output", tmp_path / "index", *options)
    index = CorpusIndex.load(tmp_path / "index")
    assert (index.config["width"], index.truncate_dim) == (WIDTH, WIDTH)
    rows = encoder.encode(FRENCH, truncate_dim=WIDTH, normalize=True)
    nearest = np.argsort(-rows[3] @ rows.T)[:3].tolist()
    assert [hit.line for hit in index.search(FRENCH[3], k=3)] == nearest
    for encode in (encoder, encoder.encode, load(MODEL), load(MODEL, truncate_dim=WIDTH)):
        assert [hit.line for hit in index.search(FRENCH[3], encode, k=3)] == nearest
    output = lxsr_here("search", "--index", tmp_path / "index", FRENCH[3], "--rerank", 5).stdout
    assert FRENCH[3] in output.splitlines()[1]
    search = ("search", "--index", tmp_path / "index", FRENCH[3], "--truncate-dim")
    assert FRENCH[3] in lxsr_here(*search, WIDTH).stdout
    refused(lxsr_here(*search, WIDTH - 1, check=False), f"--truncate-dim {WIDTH - 1}", WIDTH)


def test_an_index_that_is_built_with_truncate_dim_cuts_what_is_added(encoder, tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", FRENCH[:20], encoder, truncate_dim=WIDTH, plain=True
    )
    assert index.search(FRENCH[4], k=1)[0].text == FRENCH[4]
    index.add(FRENCH[20:])
    for opened in (index, CorpusIndex.load(tmp_path / "index")):
        assert opened.truncate_dim == WIDTH
        assert opened.search(FRENCH[30], k=1)[0].text == FRENCH[30]
        assert opened.search(FRENCH[30], k=1, reranker=Reranker(load(MODEL), 5))
    with pytest.raises(InputError, match="truncate_dim 9999"):
        CorpusIndex.build(tmp_path / "wide", FRENCH, encoder, truncate_dim=9999, plain=True)
    assert not (tmp_path / "wide").exists()


def test_pairs_are_scored_with_indexes_that_are_cut(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, truncate_dim=WIDTH, plain=True)
    pairs = [(FRENCH[0], FRENCH[0]), (FRENCH[0], FRENCH[9])]
    options = PairScoring("ratio")
    [(_, scores)] = score_pairs(pairs, PairEncoder(load(MODEL)), options, (index, index))
    assert scores[0] > scores[1]


def test_an_index_that_is_cut_refuses_another_model(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, truncate_dim=WIDTH, plain=True)
    another_model = SimpleNamespace(fingerprint="0123456789ab", embed=encoder.encode)
    with pytest.raises(InputError, match="two models"):
        index.search(FRENCH[0], another_model)


def test_pairs_are_mined_by_the_first_dimensions(text, tmp_path):
    options = ("mine", "--source", text, "--target", text, "--output")
    lxsr(*options, tmp_path / "all.tsv")
    lxsr(*options, tmp_path / "cut.tsv", "--truncate-dim", 2)
    assert (tmp_path / "all.tsv").read_text() != (tmp_path / "cut.tsv").read_text()
    refused(lxsr(*options, tmp_path / "no.tsv", "--truncate-dim", 9999, check=False), "9999")
    assert not (tmp_path / "no.tsv").exists()


@pytest.mark.parametrize(
    ("fingerprint", "model", "truncate_dim"),
    [
        ("0123456789ab", "0123456789ab", None),
        ("0123456789ab-max128", "0123456789ab-max128", None),
        ("0123456789ab-dtype=int8-on_long=split-mean", "0123456789ab", None),
        ("0123456789ab-untrained-truncate_dim=64", "0123456789ab-untrained", 64),
    ],
)
def test_a_fingerprint_tells_the_model_and_the_width(fingerprint, model, truncate_dim):
    assert model_of(fingerprint) == model
    assert truncate_dim_of(fingerprint) == truncate_dim
