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
    """Documents of sentences of pieces."""
    sentences = [torch.tensor([*sentence, EOS]) for document in documents for sentence in document]
    starts = np.cumsum([0, *map(len, documents)])
    return DocumentCorpus(
        language, ListDataset(sentences, np.array(list(map(len, sentences)))), starts
    )


def numbered(language, *sizes, first=10):
    """Every sentence is one piece of its own: `first` and the number of the sentence."""
    pieces = iter(range(first, first + 2000))
    return corpus(language, *[[[next(pieces)] for _ in range(size)] for size in sizes])


def test_contexts_end_where_their_document_does():
    data = ReplacedSentences([numbered("en", 3, 1, 2)], **OPTIONS)
    positive = {int(place[1]): data[index] for index, place in enumerate(data.places)}
    assert sorted(positive) == [0, 1, 2, 4, 5]  # the document of one sentence has no context
    contexts = {0: [10, 11], 1: [10, 11, 12], 2: [11, 12], 4: [14, 15], 5: [14, 15]}
    for sentence, expected in contexts.items():
        first, last = data.corpora[0].around(sentence, 1)
        assert list(range(10 + first, 10 + last)) == expected
        if positive[sentence]["label"]:
            assert positive[sentence]["pieces"].tolist() == expected
    data = ReplacedSentences([numbered("en", 7)], context=2, **OPTIONS)
    for index in np.flatnonzero(data.labels):
        expected = [10 + other for other in range(max(0, index - 2), min(7, index + 3))]
        assert data[index]["pieces"].tolist() == expected


def test_half_are_replaced_by_another_sentence_of_the_same_language():
    data = ReplacedSentences([numbered("en", 500, 500), numbered("fr", 300, first=2000)], **OPTIONS)
    assert len(data) == 1300
    assert data.labels.mean() == pytest.approx(0.5, abs=0.05)
    seen = set()
    for index in range(len(data)):
        language, sentence = data.places[index]
        middle = data.middles[index]
        assert middle[0] == language
        assert (middle[1] == sentence) == bool(data.labels[index])
        if not data.labels[index] and language == 0:
            seen.add(int(middle[1]))
    assert len(seen) > 300  # of all sentences, not of a few
    steps = (data.middles - data.places)[data.labels == 0, 1][: len(seen)] % 1000
    # however far away
    assert np.abs(np.histogram(steps, 4, (0, 1000))[0] / len(steps) - 0.25).max() < 0.08
    assert min(seen) < 50
    assert max(seen) > 950


def test_half_are_replaced_by_a_sentence_of_the_whole_corpus_on_request():
    corpora = [
        numbered("en", 500, 500),
        numbered("fr", 300, first=2000),
        numbered("de", 1, 200, first=3000),
    ]
    data = ReplacedSentences(corpora, negatives="corpus", **OPTIONS)
    own = ReplacedSentences(corpora, **OPTIONS)
    replaced = data.labels == 0
    assert data.labels.tolist() == own.labels.tolist()
    assert data.middles[~replaced].tolist() == data.places[~replaced].tolist()
    assert (data.middles != data.places)[replaced].any(axis=1).all()
    share = np.array([1000, 300, 201]) / 1501
    for language in range(3):  # each is drawn as often as it has sentences, wherever it is put
        middles = data.middles[replaced & (data.places[:, 0] == language), 0]
        assert np.abs(np.bincount(middles, minlength=3) / len(middles) - share).max() < 0.15
    for language, size in enumerate((1000, 300, 201)):
        drawn = data.middles[replaced & (data.middles[:, 0] == language), 1]
        assert 0 <= drawn.min() < size / 10
        assert size * 0.9 < drawn.max() < size
    index = int(np.flatnonzero(replaced & (data.middles[:, 0] != data.places[:, 0]))[0])
    language, sentence = data.middles[index]
    assert (10, 2000, 3000)[language] + sentence in data[index]["pieces"]
    before = data.middles.tolist()
    data.set_epoch(2)
    assert data.middles.tolist() != before


def test_both_samples_of_every_sentence_on_request():
    data = ReplacedSentences([numbered("en", 20, 1), numbered("fr", 30)], doubled=True, **OPTIONS)
    assert len(data) == 2 * 50  # the document of one sentence has no context
    samples = sorted(zip(map(tuple, data.places.tolist()), data.labels.tolist(), strict=True))
    places = [(0, sentence) for sentence in range(20)] + [(1, sentence) for sentence in range(30)]
    assert samples == [(place, label) for place in places for label in (0.0, 1.0)]
    stays = (data.middles == data.places).all(axis=1)
    assert stays.tolist() == (data.labels > 0).tolist()
    first = data.middles.tolist()
    data.set_epoch(2)
    assert data.middles[stays].tolist() == data.places[stays].tolist()
    assert data.middles.tolist() != first  # other sentences take their places in another epoch


def test_a_function_of_seed_and_epoch():
    def draw(epoch, seed=1):
        data = ReplacedSentences([numbered("en", 50)], seed=seed, **OPTIONS)
        data.set_epoch(epoch)
        return data.labels.tolist(), data.middles.tolist(), data.ordered_indices().tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, seed=2)


def test_lengths_are_those_of_the_samples_and_long_ones_are_cut():
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(4, 30, rng.integers(0, 9)).tolist() for _ in range(6)] for _ in range(5)
    ]
    corpora = [corpus("en", *documents[:3]), corpus("fr", *documents[3:])]
    mined = CoherentPairs(
        np.array([[0, 3], [0, 17]]), np.array([[1, 0], [1, 11]]), np.array([0.5, 0.25])
    )
    options = {"max_positions": 12} | OPTIONS
    for data in (
        ReplacedSentences(corpora, **options),
        InsertedSentences(corpora, mined, **options),
    ):
        assert data.lengths.tolist() == [len(data[index]["pieces"]) for index in range(len(data))]
        assert data.lengths.max() == 12
        assert sorted(data.ordered_indices()) == np.flatnonzero(data.lengths).tolist()


def test_both_sentences_of_a_mined_pair_stand_in_the_context_of_the_other():
    corpora = [numbered("en", 3, 3), corpus("fr", [[50], [51], [52]])]
    mined = CoherentPairs(
        np.array([[0, 1], [0, 3]]), np.array([[1, 2], [1, 0]]), np.array([0.75, 0.5])
    )
    data = InsertedSentences(corpora, mined, **OPTIONS)
    assert [data[index]["pieces"].tolist() for index in range(4)] == [
        [10, 52, 12],
        [50, 14],
        [51, 11],
        [13, 51],
    ]
    assert data.labels.tolist() == [0.75, 0.5, 0.75, 0.5]


def test_batches():
    data = ReplacedSentences([numbered("en", 40)], **OPTIONS)
    batches = data.batch_by_size(data.ordered_indices(), max_sentences=16)
    assert [len(batch) for batch in batches] == [16, 16, 8]
    batch = data.collater([data[index] for index in batches[0]])
    assert batch["net_input"]["tokens"].shape == (16, 3)
    assert batch["label"].dtype == torch.float32
    assert batch["ntokens"] == sum(data.lengths[index] for index in batches[0])
    assert data.collater([]) == {}


@pytest.mark.parametrize("label", ["nan", "inf", "-inf", "x", ""])
def test_a_mined_pair_without_a_cosine_is_refused(tmp_path, label):
    (tmp_path / "mined.tsv").write_text(f"1\t0.5\ten\t0\tfr\t0\n1\t{label}\ten\t0\tfr\t0\n")
    corpora = [DocumentCorpus(language, ["a"], np.array([0, 1])) for language in ("en", "fr")]
    with pytest.raises(InputError, match=r"mined.tsv, line 2: '1\\t"):
        read_mined(tmp_path / "mined.tsv", corpora)


def test_further_parts_of_a_split_are_refused(tmp_path):
    (tmp_path / "train1.en.idx").touch()
    task = SimpleNamespace(
        cfg=SimpleNamespace(mined=None),
        shards=[tmp_path],
        languages=["en"],
        folder_of=lambda split, epoch: tmp_path,
    )
    with pytest.raises(InputError, match=rf"{tmp_path}/train1\.en\.idx: "):
        SentContextTask.load_dataset(task, "train", combine=True)
