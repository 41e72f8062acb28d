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
    """A file with the lines of FRENCH."""
    path = tmp_path_factory.mktemp("text") / "text.fr"
    path.write_text("".join(f"{line}\n" for line in FRENCH), encoding="utf-8")
    return path


def lxsr_with_model(verb, *arguments, **options):
    """Run a command with the model."""
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
    ids=["cut", "int8", "binary", "cut int8", "split"],
)
def test_a_line_finds_itself_in_an_index_of_stored_vectors_by_their_model(options, text, tmp_path):
    stored = tmp_path / "vectors"
    index = tmp_path / "index"
    files = ("--input", text, "--output", stored / f"{text.name}.npy")
    lxsr_with_model("embed", *files, *options)
    lxsr_here("index", "--model", stored, "--input", text, "--output", index)
    # Several sentences may have the same eight signs.
    num_hits = 5 if "binary" in options else 1

    done = lxsr_with_model("search", "--index", index, FRENCH[7], "--k", num_hits)

    # The first line of the output is the query.
    hits = done.stdout.splitlines()[1:]
    assert any(hit.endswith(FRENCH[7]) for hit in hits)


@pytest.fixture
def cut_index(text, tmp_path):
    """The folder of a plain index with vectors of WIDTH dimensions."""
    options = ("--plain", "--truncate-dim", WIDTH)
    lxsr_with_model("index", "--input", text, "--output", tmp_path / "index", *options)
    return tmp_path / "index"


@pytest.fixture
def nearest_lines(encoder):
    """The lines nearest to FRENCH[3] by vectors of WIDTH dimensions."""
    rows = encoder.encode(FRENCH, truncate_dim=WIDTH, normalize=True)
    return np.argsort(-rows[3] @ rows.T)[:3].tolist()


def test_an_index_that_is_cut_tells_its_width(cut_index):
    index = CorpusIndex.load(cut_index)

    assert index.config["width"] == WIDTH
    assert index.truncate_dim == WIDTH


def test_queries_are_cut_to_the_width_of_the_index(cut_index, nearest_lines):
    hits = CorpusIndex.load(cut_index).search(FRENCH[3], k=3)

    assert [hit.line for hit in hits] == nearest_lines


def test_queries_of_any_encoder_of_the_model_are_cut_to_the_width_of_the_index(
    cut_index, nearest_lines, encoder
):
    index = CorpusIndex.load(cut_index)
    for encode in (encoder, encoder.encode, load(MODEL), load(MODEL, truncate_dim=WIDTH)):
        hits = index.search(FRENCH[3], encode, k=3)

        assert [hit.line for hit in hits] == nearest_lines


@pytest.mark.parametrize(
    "options", [("--rerank", 5), ("--truncate-dim", WIDTH)], ids=["rerank", "same width"]
)
def test_the_command_search_cuts_queries_to_the_width_of_the_index(cut_index, options):
    done = lxsr_here("search", "--index", cut_index, FRENCH[3], *options)

    # The first line of the output is the query.
    _, first_hit, *_ = done.stdout.splitlines()
    assert FRENCH[3] in first_hit


def test_the_command_search_refuses_another_width_than_that_of_the_index(cut_index):
    search = ("search", "--index", cut_index, FRENCH[3], "--truncate-dim", WIDTH - 1)

    done = lxsr_here(*search, check=False)

    refused(done, f"--truncate-dim {WIDTH - 1}", WIDTH)


@pytest.mark.parametrize("is_loaded", [False, True], ids=["edited", "loaded"])
def test_an_index_that_is_built_with_truncate_dim_cuts_what_is_added(encoder, tmp_path, is_loaded):
    index = CorpusIndex.build(
        tmp_path / "index", FRENCH[:20], encoder, truncate_dim=WIDTH, plain=True
    )
    index.add(FRENCH[20:])
    if is_loaded:
        index = CorpusIndex.load(tmp_path / "index")

    assert index.truncate_dim == WIDTH
    # The first was built, the second added.
    assert index.search(FRENCH[4], k=1)[0].text == FRENCH[4]
    assert index.search(FRENCH[30], k=1)[0].text == FRENCH[30]
    assert index.search(FRENCH[30], k=1, reranker=Reranker(load(MODEL), 5))


def test_an_index_of_more_dimensions_than_the_model_has_is_refused_and_not_written(
    encoder, tmp_path
):
    with pytest.raises(InputError, match="truncate_dim 9999"):
        CorpusIndex.build(tmp_path / "wide", FRENCH, encoder, truncate_dim=9999, plain=True)
    assert not (tmp_path / "wide").exists()


def test_pairs_are_scored_with_indexes_that_are_cut(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, truncate_dim=WIDTH, plain=True)
    equal_pair = (FRENCH[0], FRENCH[0])
    unequal_pair = (FRENCH[0], FRENCH[9])
    encode = PairEncoder(load(MODEL))

    blocks = score_pairs([equal_pair, unequal_pair], encode, PairScoring("ratio"), (index, index))

    [(_, scores)] = blocks
    assert scores[0] > scores[1]


def test_an_index_that_is_cut_refuses_another_model(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, truncate_dim=WIDTH, plain=True)
    another_model = SimpleNamespace(fingerprint="0123456789ab", embed=encoder.encode)

    with pytest.raises(InputError, match="two models"):
        index.search(FRENCH[0], another_model)


def test_mining_by_the_first_dimensions_finds_other_scores(text, tmp_path):
    files = ("--source", text, "--target", text, "--output")
    lxsr_with_model("mine", *files, tmp_path / "all.tsv")

    lxsr_with_model("mine", *files, tmp_path / "cut.tsv", "--truncate-dim", 2)

    assert (tmp_path / "all.tsv").read_text() != (tmp_path / "cut.tsv").read_text()


def test_mining_by_more_dimensions_than_the_model_has_is_refused_and_nothing_is_written(
    text, tmp_path
):
    files = ("--source", text, "--target", text, "--output", tmp_path / "out.tsv")

    done = lxsr_with_model("mine", *files, "--truncate-dim", 9999, check=False)

    refused(done, "9999")
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize(
    ("fingerprint", "model", "truncate_dim"),
    [
        pytest.param("0123456789ab", "0123456789ab", None, id="model"),
        # A limit of pieces and missing training belong to the model, the options after them do not.
        pytest.param("0123456789ab-max128", "0123456789ab-max128", None, id="limit"),
        pytest.param(
            "0123456789ab-dtype=int8-on_long=split-mean", "0123456789ab", None, id="options"
        ),
        pytest.param(
            "0123456789ab-untrained-truncate_dim=64", "0123456789ab-untrained", 64, id="width"
        ),
    ],
)
def test_a_fingerprint_tells_the_model_and_the_width(fingerprint, model, truncate_dim):
    assert model_of(fingerprint) == model
    assert truncate_dim_of(fingerprint) == truncate_dim
