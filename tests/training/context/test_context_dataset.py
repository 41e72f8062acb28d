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
    # Documents of the sentences 0 to 2, 3, and 4 to 5, whose pieces are 10 to 12, 13, and 14 to 15.
    data = ReplacedSentences([numbered("en", 3, 1, 2)], **OPTIONS)
    # The single sentence of its document has no context.
    pieces_around = {0: [10, 11], 1: [10, 11, 12], 2: [11, 12], 4: [14, 15], 5: [14, 15]}
    sentences = data.places[:, 1].tolist()
    assert sorted(sentences) == list(pieces_around)
    for index, sentence in enumerate(sentences):
        first, last = data.corpora[0].around(sentence, 1)
        assert list(range(10 + first, 10 + last)) == pieces_around[sentence]
        # Samples with label 1 are sentences in their own context.
        if data[index]["label"]:
            assert data[index]["pieces"].tolist() == pieces_around[sentence]


def test_a_context_has_the_given_number_of_sentences_on_each_side():
    # A document of seven sentences, whose pieces are 10 to 16.
    data = ReplacedSentences([numbered("en", 7)], context=2, **OPTIONS)
    for index in np.flatnonzero(data.labels):
        first = max(0, index - 2)
        last = min(7, index + 3)
        assert data[index]["pieces"].tolist() == list(range(10 + first, 10 + last))


def is_replaced(data):
    """Whether the sentence in the middle of each sample is another than that of the context."""
    return (data.middles != data.places).any(axis=1)


@pytest.fixture
def english_and_french():
    """1,000 English sentences in two documents, and 300 French ones."""
    corpora = [numbered("en", 500, 500), numbered("fr", 300, first=2000)]
    return ReplacedSentences(corpora, **OPTIONS)


def test_half_of_the_sentences_are_replaced_and_have_label_0(english_and_french):
    data = english_and_french
    assert len(data) == 1300
    assert data.labels.mean() == pytest.approx(0.5, abs=0.05)
    assert is_replaced(data).tolist() == (data.labels == 0).tolist()


def test_sentences_are_replaced_by_those_of_their_language(english_and_french):
    data = english_and_french
    assert (data.middles[:, 0] == data.places[:, 0]).all()


def test_replacements_are_drawn_evenly_from_all_sentences_at_any_distance(english_and_french):
    data = english_and_french
    is_english = is_replaced(data) & (data.places[:, 0] == 0)
    drawn = data.middles[is_english, 1]
    # About 500 draws of 1,000 sentences.
    assert len(set(drawn.tolist())) > 300
    assert drawn.min() < 50
    assert drawn.max() > 950
    distances = (drawn - data.places[is_english, 1]) % 1000
    shares_of_quarters = np.histogram(distances, 4, (0, 1000))[0] / len(distances)
    assert np.abs(shares_of_quarters - 1 / 4).max() < 0.08


# The number of sentences of English, French and German.
SIZES = (1000, 300, 201)


@pytest.fixture
def three_languages():
    """Corpora of three languages; a German document has a single sentence."""
    return [
        numbered("en", 500, 500),
        numbered("fr", 300, first=2000),
        numbered("de", 1, 200, first=3000),
    ]


def test_negatives_of_the_corpus_change_no_label(three_languages):
    data = ReplacedSentences(three_languages, negatives="corpus", **OPTIONS)
    default_data = ReplacedSentences(three_languages, **OPTIONS)
    assert data.labels.tolist() == default_data.labels.tolist()
    assert is_replaced(data).tolist() == (data.labels == 0).tolist()


@pytest.mark.parametrize("language", [0, 1, 2], ids=["en", "fr", "de"])
def test_negatives_of_the_corpus_are_drawn_evenly_from_sentences_of_all_languages(
    three_languages, language
):
    data = ReplacedSentences(three_languages, negatives="corpus", **OPTIONS)
    # What replaces sentences of the language: languages are drawn as often as they have sentences.
    drawn_languages = data.middles[is_replaced(data) & (data.places[:, 0] == language), 0]
    shares = np.bincount(drawn_languages, minlength=3) / len(drawn_languages)
    expected_shares = np.array(SIZES) / sum(SIZES)
    assert np.abs(shares - expected_shares).max() < 0.15
    # What the sentences of the language replace: they are of the whole corpus.
    drawn = data.middles[is_replaced(data) & (data.middles[:, 0] == language), 1]
    size = SIZES[language]
    assert 0 <= drawn.min() < size / 10
    assert size * 0.9 < drawn.max() < size


def test_a_negative_of_another_language_is_in_its_sample(three_languages):
    data = ReplacedSentences(three_languages, negatives="corpus", **OPTIONS)
    index = int(np.flatnonzero(data.middles[:, 0] != data.places[:, 0])[0])
    language, sentence = data.middles[index]
    first_piece = (10, 2000, 3000)[language]
    assert first_piece + sentence in data[index]["pieces"]


def test_doubled_samples_have_every_sentence_once_replaced_and_once_not():
    # The document of one sentence has no context.
    data = ReplacedSentences([numbered("en", 20, 1), numbered("fr", 30)], doubled=True, **OPTIONS)
    all_places = [[0, sentence] for sentence in range(20)] + [
        [1, sentence] for sentence in range(30)
    ]
    assert len(data) == 2 * len(all_places)
    assert is_replaced(data).tolist() == (data.labels == 0).tolist()
    assert sorted(data.places[is_replaced(data)].tolist()) == all_places
    assert sorted(data.places[~is_replaced(data)].tolist()) == all_places


@pytest.mark.parametrize(
    "options", [{"doubled": True}, {"negatives": "corpus"}], ids=["doubled", "corpus"]
)
def test_in_another_epoch_other_sentences_are_drawn(options):
    data = ReplacedSentences([numbered("en", 20, 1), numbered("fr", 30)], **options, **OPTIONS)
    first_epoch = data.middles.tolist()
    data.set_epoch(2)
    assert data.middles.tolist() != first_epoch
    # Samples with label 1 keep their own sentence.
    assert is_replaced(data).tolist() == (data.labels == 0).tolist()


def test_the_samples_depend_only_on_seed_and_epoch():
    def labels_sentences_and_order(epoch, seed=1):
        data = ReplacedSentences([numbered("en", 50)], seed=seed, **OPTIONS)
        data.set_epoch(epoch)
        return data.labels.tolist(), data.middles.tolist(), data.ordered_indices().tolist()

    first_epoch = labels_sentences_and_order(1)
    assert labels_sentences_and_order(1) == first_epoch
    assert labels_sentences_and_order(2) != first_epoch
    assert labels_sentences_and_order(1, seed=2) != first_epoch


@pytest.fixture(params=["replaced", "inserted"])
def data_of_random_lengths(request):
    """Samples of either kind of up to 12 pieces, of sentences of 0 to 8."""
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(5):
        lengths = rng.integers(0, 9, 6)
        documents.append([rng.integers(4, 30, length).tolist() for length in lengths])
    corpora = [corpus("en", *documents[:3]), corpus("fr", *documents[3:])]
    if request.param == "replaced":
        return ReplacedSentences(corpora, max_positions=12, **OPTIONS)
    # Pairs of English and French sentences, and their cosines.
    mined = CoherentPairs(
        np.array([[0, 3], [0, 17]]), np.array([[1, 0], [1, 11]]), np.array([0.5, 0.25])
    )
    return InsertedSentences(corpora, mined, max_positions=12, **OPTIONS)


def test_the_lengths_are_those_of_the_samples_which_are_cut(data_of_random_lengths):
    data = data_of_random_lengths
    lengths = [len(data[index]["pieces"]) for index in range(len(data))]
    assert data.lengths.tolist() == lengths
    assert max(lengths) == 12


def test_only_samples_with_pieces_are_in_the_order_of_an_epoch(data_of_random_lengths):
    data = data_of_random_lengths
    assert sorted(data.ordered_indices()) == np.flatnonzero(data.lengths).tolist()


def test_each_sentence_of_a_mined_pair_is_put_into_the_context_of_the_other():
    # English documents of the pieces 10, 11, 12 and 13, 14, 15, and a French one of 50, 51, 52.
    corpora = [numbered("en", 3, 3), numbered("fr", 3, first=50)]
    # Language and sentence of both sides of two pairs, (11, 52) and (13, 50), and their cosines.
    mined = CoherentPairs(
        np.array([[0, 1], [0, 3]]), np.array([[1, 2], [1, 0]]), np.array([0.75, 0.5])
    )

    data = InsertedSentences(corpora, mined, **OPTIONS)

    samples = [data[index]["pieces"].tolist() for index in range(4)]
    # First the French sentences in English contexts, then the reverse.
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


@pytest.mark.parametrize("cosine", ["nan", "inf", "-inf", "x", ""])
def test_a_mined_pair_whose_cosine_is_no_number_is_refused(tmp_path, cosine):
    # CSLS score, cosine, and language and sentence of both sides.
    (tmp_path / "mined.tsv").write_text(f"1\t0.5\ten\t0\tfr\t0\n1\t{cosine}\ten\t0\tfr\t0\n")
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
