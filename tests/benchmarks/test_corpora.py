"""Text of the benchmarks: its kinds are recorded, also for a share of it."""

import json

import numpy as np
import pytest
import toy
from conftest import lxsr_here

from benchmarks import corpora
from fairseq_lxsr.text.data_folder import count_pairs
from fairseq_lxsr.training.corpora import read_corpus


def pack_pairs(folder, name, pairs):
    toy.pack(folder / f"{name}.en", [english for english, _ in pairs])
    toy.pack(folder / f"{name}.fr", [french for _, french in pairs])


@pytest.fixture(scope="module")
def data_bin(tmp_path_factory):
    """The data folder of four files, two of which are of the same kind, `software`."""
    folder = tmp_path_factory.mktemp("corpora")
    pairs = toy.sentences(3000)
    pack_pairs(folder / "train", "multi30k", pairs[:200])
    pack_pairs(folder / "train", "tech.en-fr", pairs[200:900])
    pack_pairs(folder / "large", "ddtp.en-fr", pairs[900:2500])
    pack_pairs(folder / "large", "new.en-fr", pairs[2500:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "lxsr", lxsr_here)
        return corpora.prepare(folder, folder / "work", ["en-fr"], 200, ["train", "large"])


@pytest.fixture(scope="module")
def half_of_data_bin(data_bin):
    """Half of its training pairs."""
    return corpora.subset(data_bin, data_bin.with_name("half"), 0.5)


def sources_of(folder):
    """Return the number of training pairs by source, in the order of the pairs."""
    return json.loads((folder / "train.en-fr.sources.json").read_text())


def test_files_of_one_kind_are_one_source_of_the_prepared_text(data_bin):
    sources = sources_of(data_bin)

    # A file whose kind is not known is a kind by itself.
    assert list(sources) == ["captions", "software", "new"]
    assert sum(sources.values()) == sum(count_pairs(data_bin, "").values())


def test_a_share_of_the_text_records_how_many_chosen_pairs_each_source_has(
    data_bin, half_of_data_bin
):
    counts = list(sources_of(data_bin).values())
    source_of_pair = np.repeat([0, 1, 2], counts)
    chosen = corpora.chosen_rows(sum(counts), 0.5)

    corpus = read_corpus(half_of_data_bin, "train", "en", "fr", num_symbols=10_000)

    assert list(corpus.sources) == ["captions", "software", "new"]
    assert list(corpus.sources.values()) == np.bincount(source_of_pair[chosen]).tolist()


def test_a_share_of_the_text_lacks_the_checksums_of_the_whole(data_bin, half_of_data_bin):
    """They would refuse the smaller files."""
    assert (data_bin / "stage.json").exists()
    assert not (half_of_data_bin / "stage.json").exists()
