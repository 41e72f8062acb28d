"""Samples of sentences in their contexts, and of mined pairs in the contexts of each other."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.context.dataset import (
    CoherentPairs,
    DocumentCorpus,
    InsertedSentences,
    ReplacedSentences,
)
from fairseq_lxsr.training.context.task import SentContextTask, read_mined

PAD, EOS = 1, 2
OPTIONS = {"padding_idx": PAD, "eos_idx": EOS}


def corpus(language, *documents):
    """A corpus of documents, which are lists of sentences of pieces."""
    sentences = []
    starts = [0]
    for document in documents:
        for pieces in document:
            sentences.append(torch.tensor([*pieces, EOS]))
        starts.append(len(sentences))
    lengths = np.array([len(sentence) for sentence in sentences])
    return DocumentCorpus(language, ListDataset(sentences, lengths), np.array(starts))


def numbered(language, *sizes, first=10):
    """A corpus whose sentences have a single piece: `first`, `first + 1`, ..."""
    documents = []
    piece = first
    for size in sizes:
        documents.append([[number] for number in range(piece, piece + size)])
        piece += size
    return corpus(language, *documents)


def test_contexts_do_not_cross_the_ends_of_documents():
    data = ReplacedSentences([numbered("en", 3, 1, 2)], **OPTIONS)
    sentences = data.places[:, 1].tolist()
    # The document of one sentence has no context.
    assert sorted(sentences) == [0, 1, 2, 4, 5]
    contexts = {0: [10, 11], 1: [10, 11, 12], 2: [11, 12], 4: [14, 15], 5: [14, 15]}
    for index, sentence in enumerate(sentences):
        expected = contexts[sentence]
        first, last = data.corpora[0].around(sentence, 1)
        assert list(range(10 + first, 10 + last)) == expected
        if data[index]["label"]:
            assert data[index]["pieces"].tolist() == expected
    data = ReplacedSentences([numbered("en", 7)], context=2, **OPTIONS)
    for index in np.flatnonzero(data.labels):
        first = max(0, index - 2)
        last = min(7, index + 3)
        assert data[index]["pieces"].tolist() == list(range(10 + first, 10 + last))


def test_half_of_the_sentences_are_replaced_by_another_of_their_language():
    data = ReplacedSentences([numbered("en", 500, 500), numbered("fr", 300, first=2000)], **OPTIONS)
    assert len(data) == 1300
    assert data.labels.mean() == pytest.approx(0.5, abs=0.05)
    assert (data.middles[:, 0] == data.places[:, 0]).all()
    is_replaced = data.middles[:, 1] != data.places[:, 1]
    assert is_replaced.tolist() == (data.labels == 0).tolist()
    # The others are drawn evenly from all English sentences, at any distance.
    is_english = is_replaced & (data.places[:, 0] == 0)
    drawn = data.middles[is_english, 1]
    assert len(set(drawn.tolist())) > 300
    assert drawn.min() < 50
    assert drawn.max() > 950
    distances = (drawn - data.places[is_english, 1]) % 1000
    shares = np.histogram(distances, 4, (0, 1000))[0] / len(distances)
    assert np.abs(shares - 0.25).max() < 0.08


def test_with_negatives_of_the_corpus_sentences_of_all_languages_are_drawn():
    corpora = [
        numbered("en", 500, 500),
        numbered("fr", 300, first=2000),
        numbered("de", 1, 200, first=3000),
    ]
    data = ReplacedSentences(corpora, negatives="corpus", **OPTIONS)
    assert data.labels.tolist() == ReplacedSentences(corpora, **OPTIONS).labels.tolist()
    is_replaced = (data.middles != data.places).any(axis=1)
    assert is_replaced.tolist() == (data.labels == 0).tolist()
    # In each language, sentences of a language are drawn as often as it has sentences.
    expected_shares = np.array([1000, 300, 201]) / 1501
    for language, size in enumerate((1000, 300, 201)):
        drawn_languages = data.middles[is_replaced & (data.places[:, 0] == language), 0]
        shares = np.bincount(drawn_languages, minlength=3) / len(drawn_languages)
        assert np.abs(shares - expected_shares).max() < 0.15
        drawn = data.middles[is_replaced & (data.middles[:, 0] == language), 1]
        assert 0 <= drawn.min() < size / 10
        assert size * 0.9 < drawn.max() < size
    index = int(np.flatnonzero(data.middles[:, 0] != data.places[:, 0])[0])
    language, sentence = data.middles[index]
    first_piece = (10, 2000, 3000)[language]
    assert first_piece + sentence in data[index]["pieces"]
    middles = data.middles.tolist()
    data.set_epoch(2)
    assert data.middles.tolist() != middles


def test_doubled_samples_have_every_sentence_once_replaced_and_once_not():
    data = ReplacedSentences([numbered("en", 20, 1), numbered("fr", 30)], doubled=True, **OPTIONS)
    # The document of one sentence has no context.
    assert len(data) == 2 * 50
    is_replaced = (data.middles != data.places).any(axis=1)
    assert is_replaced.tolist() == (data.labels == 0).tolist()
    expected = [[0, sentence] for sentence in range(20)] + [[1, sentence] for sentence in range(30)]
    assert sorted(data.places[is_replaced].tolist()) == expected
    assert sorted(data.places[~is_replaced].tolist()) == expected
    # In another epoch, other sentences replace them.
    middles = data.middles.tolist()
    data.set_epoch(2)
    assert data.middles[~is_replaced].tolist() == data.places[~is_replaced].tolist()
    assert data.middles.tolist() != middles


def test_the_samples_depend_only_on_seed_and_epoch():
    def draw(epoch, seed=1):
        data = ReplacedSentences([numbered("en", 50)], seed=seed, **OPTIONS)
        data.set_epoch(epoch)
        return data.labels.tolist(), data.middles.tolist(), data.ordered_indices().tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, seed=2)


def test_long_samples_are_cut_and_lengths_are_those_of_the_samples():
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(5):
        lengths = rng.integers(0, 9, 6)
        documents.append([rng.integers(4, 30, length).tolist() for length in lengths])
    corpora = [corpus("en", *documents[:3]), corpus("fr", *documents[3:])]
    mined = CoherentPairs(
        np.array([[0, 3], [0, 17]]), np.array([[1, 0], [1, 11]]), np.array([0.5, 0.25])
    )
    replaced = ReplacedSentences(corpora, max_positions=12, **OPTIONS)
    inserted = InsertedSentences(corpora, mined, max_positions=12, **OPTIONS)
    for data in (replaced, inserted):
        assert data.lengths.tolist() == [len(data[index]["pieces"]) for index in range(len(data))]
        assert sorted(data.ordered_indices()) == np.flatnonzero(data.lengths).tolist()
    assert replaced.lengths.max() == 12
    assert inserted.lengths.max() == 12


def test_each_sentence_of_a_mined_pair_is_put_into_the_context_of_the_other():
    corpora = [numbered("en", 3, 3), corpus("fr", [[50], [51], [52]])]
    mined = CoherentPairs(
        np.array([[0, 1], [0, 3]]), np.array([[1, 2], [1, 0]]), np.array([0.75, 0.5])
    )
    data = InsertedSentences(corpora, mined, **OPTIONS)
    samples = [data[index]["pieces"].tolist() for index in range(4)]
    assert samples == [[10, 52, 12], [50, 14], [51, 11], [13, 51]]
    assert data.labels.tolist() == [0.75, 0.5, 0.75, 0.5]


def test_a_batch_has_the_pieces_and_labels_of_its_samples():
    data = ReplacedSentences([numbered("en", 40)], **OPTIONS)
    batches = data.batch_by_size(data.ordered_indices(), max_sentences=16)
    assert [len(batch) for batch in batches] == [16, 16, 8]
    samples = [data[index] for index in batches[0]]
    batch = data.collater(samples)
    for row, sample in zip(batch["net_input"]["tokens"].tolist(), samples, strict=True):
        pieces = sample["pieces"].tolist()
        assert row[: len(pieces)] == pieces
    assert batch["label"].dtype == torch.float32
    assert batch["label"].tolist() == [sample["label"] for sample in samples]
    assert batch["ntokens"] == sum(data.lengths[index] for index in batches[0])


def test_a_batch_without_samples_is_empty():
    assert ReplacedSentences([numbered("en", 40)], **OPTIONS).collater([]) == {}


@pytest.mark.parametrize("label", ["nan", "inf", "-inf", "x", ""])
def test_a_mined_pair_without_a_cosine_is_refused(tmp_path, label):
    (tmp_path / "mined.tsv").write_text(f"1\t0.5\ten\t0\tfr\t0\n1\t{label}\ten\t0\tfr\t0\n")
    corpora = [DocumentCorpus(language, ["a"], np.array([0, 1])) for language in ("en", "fr")]
    with pytest.raises(InputError, match=r"mined.tsv, line 2: '1\\t"):
        read_mined(tmp_path / "mined.tsv", corpora)


def test_a_second_part_of_the_training_text_is_refused(tmp_path):
    (tmp_path / "train1.en.idx").touch()
    task = SimpleNamespace(
        cfg=SimpleNamespace(mined=None),
        shards=[tmp_path],
        languages=["en"],
        folder_of=lambda split, epoch: tmp_path,
    )
    with pytest.raises(InputError, match=rf"{tmp_path}/train1\.en\.idx: "):
        SentContextTask.load_dataset(task, "train", combine=True)
