import gzip
import itertools
import json
import os

import numpy as np
import pytest
from fairseq.data import data_utils

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.documents import binarise_documents, iter_documents, make_documents
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer, normalise, read_dictionary
from fairseq_lxsr.training.context.task import read_documents as read_corpora

STORY = "One dog.\nTwo  dogs.\n\n\nA cat sees the dog.\n\n   \nThe end.\nNo more.\n"


def test_empty_lines_separate_documents(tmp_path):
    (tmp_path / "a.txt").write_text(STORY)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as stream:
        stream.write("\nAnother.\n")
    documents = [["One dog.", "Two dogs."], ["A cat sees the dog."], ["The end.", "No more."]]

    assert list(iter_documents(tmp_path / "a.txt", "en")) == documents
    # All files of a folder, also compressed ones.
    assert list(iter_documents(tmp_path, "en")) == [*documents, ["Another."]]


@pytest.mark.parametrize(
    "blank", ["", " \t", "\u200b", "\ufeff", "\u2060", "\u200e\u200f", "\u00ad", "\u3164", "\r"]
)
def test_a_line_of_invisible_characters_ends_a_document(tmp_path, blank):
    (tmp_path / "a.txt").write_text(
        f"Hello.\n{blank}\nSecond.\n{blank}\n\nThird.\n", encoding="utf-8"
    )
    assert list(iter_documents(tmp_path / "a.txt", "en")) == [["Hello."], ["Second."], ["Third."]]


@pytest.mark.parametrize(
    "first", ["{1} is a reference.", "{name}, hello", "{", "{ a: b }", '{"quoted"} text', "{}"]
)
def test_text_may_begin_with_a_brace(tmp_path, first):
    (tmp_path / "a.txt").write_text(f"{first}\nBye.\n\nSecond.\n")
    assert list(iter_documents(tmp_path / "a.txt", "en")) == [[first, "Bye."], ["Second."]]


TEXT_WITH_ABBREVIATION = "Dr. Smith has one. It is new."


@pytest.mark.parametrize("language", ["en", "eng", "en_US"])
def test_abbreviations_do_not_end_sentences_whatever_the_spelling_of_the_code(tmp_path, language):
    pytest.importorskip("sentencex")
    (tmp_path / "wiki").write_text(json.dumps({"text": TEXT_WITH_ABBREVIATION}) + "\n")

    (document,) = iter_documents(tmp_path / "wiki", language)

    assert document == ["Dr. Smith has one.", "It is new."]


@pytest.mark.parametrize("language", ["zh-Hans-CN", "no_such_language"])
def test_text_is_split_without_loss_in_languages_with_other_or_no_rules(tmp_path, language):
    pytest.importorskip("sentencex")
    (tmp_path / "wiki").write_text(json.dumps({"text": TEXT_WITH_ABBREVIATION}) + "\n")

    (document,) = iter_documents(tmp_path / "wiki", language)

    without_blanks = "".join(document).replace(" ", "")
    assert without_blanks == TEXT_WITH_ABBREVIATION.replace(" ", "")


def test_documents_in_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe .*pipe"):
        make_documents(tmp_path / "work", {"en": tmp_path / "pipe"}, 1, 1)


def test_each_page_of_wikiextractor_with_text_is_a_document_of_sentences(tmp_path):
    pytest.importorskip("sentencex")
    folder = tmp_path / "AA"
    folder.mkdir()
    pages = [
        {"id": "1", "title": "Dog", "text": "Dogs bark. Dr. Smith has one.\nSection. It is new."},
        {"id": "2", "title": "Nothing", "text": "\n"},
        {"id": "3", "title": "Cat", "text": "Cats do not."},
    ]
    (folder / "wiki_00").write_text("".join(json.dumps(page) + "\n" for page in pages))

    assert list(iter_documents(tmp_path, "en")) == [
        ["Dogs bark.", "Dr. Smith has one.", "Section.", "It is new."],
        ["Cats do not."],
    ]


@pytest.mark.parametrize("line", ['{"title": "Dog"}', '{"text": null}'], ids=["no text", "null"])
def test_a_line_of_wikiextractor_without_a_text_is_named(tmp_path, line):
    pytest.importorskip("sentencex")
    (tmp_path / "wiki_00").write_text(f"{line}\n")

    with pytest.raises(InputError, match=r"wiki_00, line 1: .*WikiExtractor"):
        list(iter_documents(tmp_path, "en"))


def test_lone_surrogates_of_wikiextractor_are_question_marks(tmp_path):
    pytest.importorskip("sentencex")
    (tmp_path / "wiki_00").write_text('{"text": "A dog \\ud83d runs."}\n')

    assert list(iter_documents(tmp_path / "wiki_00", "en")) == [["A dog ? runs."]]


def test_a_missing_file_is_named_with_its_language(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt: .*\ben\b"):
        list(iter_documents(tmp_path / "none.txt", "en"))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")

    with pytest.raises(InputError, match=r"empty\.txt: "):
        list(iter_documents(tmp_path / "empty.txt", "en"))


def test_a_file_of_one_document_is_refused_if_one_is_held_out(tmp_path):
    (tmp_path / "one.txt").write_text("One.\n")

    # It has 1 document, of which 1 would be held out.
    with pytest.raises(InputError, match=r"one\.txt: .*1 .*1 "):
        make_documents(tmp_path / "work", {"en": tmp_path / "one.txt"}, valid_documents=1, seed=1)

    assert not (tmp_path / "work").exists()


TWO_MEGABYTE_WORD = "x" * 2_000_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"one\n\n{TWO_MEGABYTE_WORD}\n", id="text"),
        pytest.param(json.dumps({"text": TWO_MEGABYTE_WORD}) + "\n", id="WikiExtractor"),
    ],
)
def test_a_line_over_1_mib_is_named_by_its_beginning(tmp_path, text):
    (tmp_path / "x.txt").write_text(text)

    # 1,048,576 is 1 MiB.
    message = r"x\.txt: .*'xxxxxxxxxxxxxxxxxxxx'.* 1,048,576"
    with pytest.raises(InputError, match=message):
        list(iter_documents(tmp_path / "x.txt", "en"))


TEN_CHARACTERS = "a sentence"


def test_the_line_with_which_a_document_becomes_too_long_is_named(tmp_path):
    (tmp_path / "x.txt").write_text(f"{TEN_CHARACTERS}\n" * 30)

    with pytest.raises(InputError, match=r"x\.txt, line 11: .* 100 "):
        list(iter_documents(tmp_path / "x.txt", "en", max_characters=100))


def test_a_text_may_be_longer_than_a_document(tmp_path):
    (tmp_path / "x.txt").write_text(f"{TEN_CHARACTERS}\n\n" * 30)

    documents = list(iter_documents(tmp_path / "x.txt", "en", max_characters=100))

    assert len(documents) == 30


@pytest.fixture
def prepared(tmp_path):
    """A folder with documents, subwords and data; the texts by language; a report of the documents.

    The 30 documents of each language have 1, 2, 3 or 4 numbered sentences; five are held out.
    """
    sources = {}
    for language, word in (("en", "dog"), ("zh", "犬")):
        sources[language] = tmp_path / f"{language}.txt"
        with open(sources[language], "w", encoding="utf-8") as stream:
            for number in range(30):
                for row in range(number % 4 + 1):
                    stream.write(f"{word} {row} of document {number}\n")
                stream.write("\n")
    report = make_documents(tmp_path / "documents", sources, 5, seed=1)
    train_subwords(
        tmp_path / "subwords", [tmp_path / "documents"], SubwordOptions(90, split_han=True)
    )
    binarise_documents(
        tmp_path / "data", tmp_path / "documents", list(sources), tmp_path / "subwords", workers=1
    )
    return tmp_path, sources, report


def test_whole_documents_are_held_out_and_counted(prepared):
    folder, sources, report = prepared
    for language, source in sources.items():
        documents = []
        for split, count in (("train", 25), ("valid", 5)):
            lines = (folder / "documents" / f"{split}.{language}").read_text().splitlines()
            starts = np.load(folder / "documents" / f"starts.{split}.{language}.npy")
            # The lines at which documents start, and the number of all lines.
            assert starts[0] == 0
            assert starts[-1] == len(lines)
            assert len(starts) - 1 == count
            assert report[language][f"{split} documents"] == count
            for start, end in itertools.pairwise(starts):
                documents.append(lines[start:end])
        # No document is lost or cut.
        assert sorted(documents) == sorted(iter_documents(source, language))


def test_binarised_sentences_are_the_encoded_lines_of_the_text(prepared):
    folder, sources, _ = prepared
    data = folder / "data"
    symbols = read_dictionary(data / "dict.txt")
    options = TextOptions.load(data / "text.json")
    tokenizer = Tokenizer(data / "sentencepiece.model", options, symbols)
    for language in sources:
        sentences = data_utils.load_indexed_dataset(str(data / f"train.{language}"), None)
        lines = (folder / "documents" / f"train.{language}").read_text().splitlines()
        assert len(sentences) == len(lines)
        for sentence, line in zip(sentences, lines, strict=True):
            *ids, _end_of_sentence = sentence.tolist()
            [expected_ids] = tokenizer.encode([line])
            assert ids == expected_ids.tolist()
        starts = np.load(data / f"train.{language}.documents.npy")
        assert starts[-1] == len(lines)


def test_each_document_is_whole_in_one_shard(prepared):
    folder, sources, _ = prepared
    stages = folder / "documents", list(sources), folder / "subwords"
    symbols = len(read_dictionary(folder / "data" / "dict.txt"))
    binarise_documents(folder / "shards", *stages, workers=1, shards=3)
    shards = [folder / "shards" / str(number) for number in range(3)]
    for language in sources:
        whole = read_corpora([folder / "data"], "train", language, symbols)
        joined = read_corpora(shards, "train", language, symbols)
        np.testing.assert_array_equal(joined.starts, whole.starts)
        for number, sentence in enumerate(whole.sentences):
            assert joined.sentences[number].tolist() == sentence.tolist()
        sizes = []
        for shard in shards:
            sizes.append(len(read_corpora([shard], "train", language, symbols).sentences))
        # The longest document has four sentences.
        assert max(sizes) - min(sizes) <= 4
        has_validation = [(shard / f"valid.{language}.idx").exists() for shard in shards]
        assert has_validation == [True, False, False]


def test_more_shards_than_training_documents_are_refused(prepared):
    folder, sources, _ = prepared
    stages = folder / "documents", list(sources), folder / "subwords"

    with pytest.raises(InputError, match=r"train\.\w+: 25 .* 26 "):
        binarise_documents(folder / "shards", *stages, workers=1, shards=26)


def test_documents_are_kept_if_their_texts_and_options_are_unchanged(prepared, capsys):
    folder, sources, _ = prepared
    capsys.readouterr()

    make_documents(folder / "documents", sources, 5, seed=1)

    assert "unchanged, kept" in capsys.readouterr().out


def test_documents_are_made_again_if_the_texts_are_exchanged(prepared, capsys):
    folder, sources, _ = prepared
    exchanged = {"en": sources["zh"], "zh": sources["en"]}
    capsys.readouterr()

    make_documents(folder / "documents", exchanged, 5, seed=1)

    assert "unchanged, kept" not in capsys.readouterr().out


def test_documents_are_made_again_if_another_number_is_held_out(prepared, capsys):
    folder, sources, _ = prepared
    capsys.readouterr()

    make_documents(folder / "documents", sources, 4, seed=1)

    assert "unchanged, kept" not in capsys.readouterr().out


def test_data_are_made_again_if_the_starts_of_documents_have_changed(prepared):
    folder, sources, _ = prepared
    starts = folder / "documents" / "starts.train.en.npy"
    changed = np.load(starts)
    changed[1:-1] = np.arange(1, len(changed) - 1)
    np.save(starts, changed)

    binarise_documents(
        folder / "data", folder / "documents", list(sources), folder / "subwords", workers=1
    )

    np.testing.assert_array_equal(np.load(folder / "data" / "train.en.documents.npy"), changed)


def test_the_data_of_documents_have_the_text_options_of_their_subwords(prepared):
    folder, _, _ = prepared

    assert TextOptions.load(folder / "data" / "text.json").split_han


def test_chinese_characters_are_separated_with_the_option():
    assert normalise("高俅Ab，㐀c", TextOptions(split_han=True)) == "高 俅 Ab， 㐀 c"


def test_chinese_characters_are_not_separated_without_the_option():
    assert normalise("高俅", TextOptions()) == "高俅"
