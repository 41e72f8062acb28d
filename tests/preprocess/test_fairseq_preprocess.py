"""Models trained on data of fairseq-preprocess read text as it was split for the training."""

import numpy as np
import pytest
import sentencepiece
import toy
from conftest import ROOT, export, load_script, lxsr_here, main_here, refused, run, train_here

from fairseq_lxsr import SentenceEncoder

# Training options for one update.
ONE_UPDATE = {"max_update": "1", "lr_scheduler": "fixed", "warmup_updates": None}
SPLITS = ("train", "valid")
pytestmark = pytest.mark.usefixtures("python_is_a_fork")


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "preprocess" / "fairseq_preprocess.py")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Files of 250 training pairs and 50 validation pairs.

    The files are train.en, train.fr and so on, and train.en-fr.en and so on. The files of en-xx are
    copies of those of en-fr, as a second pair of languages.
    """
    folder = tmp_path_factory.mktemp("text")
    pairs = toy.sentences(300)
    for split, part in (("train", pairs[:250]), ("valid", pairs[250:])):
        toy.write(folder / split, part)
        toy.write(folder / f"{split}.en-fr", part)
        toy.write(folder / f"{split}.en-xx", part, ("en", "xx"))
    return folder


@pytest.fixture(scope="module")
def model(text):
    """A SentencePiece model of the text in upper and lower case."""
    files = [str(text / f"train.{language}") for language in ("en", "fr")]
    options = {"vocab_size": 70, "minloglevel": 2, "model_prefix": str(text / "spm")}
    sentencepiece.SentencePieceTrainer.Train(input=",".join(files), **options)
    return text / "spm.model"


def train_and_export(data, folder, *options):
    """The encoder of a training of one update, and the log."""
    result = train_here(data, folder / "save", *options, **ONE_UPDATE)
    assert result.returncode == 0, result.stderr
    export(folder / "save" / "checkpoint_last.pt", folder / "model")
    return SentenceEncoder.from_pretrained(folder / "model", "cpu"), result.stdout


def read_ids(path):
    """The ids of each sentence in a .bin of fairseq-preprocess, without the end of the sentence."""
    ids = np.fromfile(path, np.uint16)
    end_of_sentence = 2
    ends = np.flatnonzero(ids == end_of_sentence)
    sentences = []
    start = 0
    for end in ends:
        sentences.append(ids[start:end].tolist())
        start = end + 1
    return sentences


def assert_has_ids_of_training_data(encoder, text, data, name="valid.en-fr.en"):
    """Check that the encoder gives the lines of a text the ids that they have in the data."""
    lines = text.read_text(encoding="utf-8").splitlines()
    ids = [sentence.tolist() for sentence in encoder.tokenizer.encode(lines)]
    assert ids == read_ids(data / f"{name}.bin")


def run_fairseq_preprocess(text, data):
    """Run fairseq-preprocess itself on text/train and text/valid."""
    options = ["--source-lang", "en", "--target-lang", "fr", "--joined-dictionary"]
    for split in SPLITS:
        options += [f"--{split}pref", text / split]
    run("fairseq_cli.preprocess", *options, "--destdir", data)
    return data


def write_pieces(text, folder, split_line):
    """Write the text of all files, with each line split into pieces."""
    folder.mkdir()
    for split in SPLITS:
        for language in ("en", "fr"):
            name = f"{split}.{language}"
            lines = (text / name).read_text().splitlines()
            (folder / name).write_text("".join(f"{split_line(line)}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def words_data(text, tmp_path_factory):
    """Data that fairseq-preprocess splits at spaces."""
    return run_fairseq_preprocess(text, tmp_path_factory.mktemp("words") / "data")


@pytest.fixture(scope="module")
def words_training(words_data, tmp_path_factory):
    """The folder of a training on words, its encoder, and its log."""
    folder = tmp_path_factory.mktemp("training")
    encoder, log = train_and_export(words_data, folder)
    return folder, encoder, log


def test_a_model_of_words_gives_text_the_ids_of_its_training_data(words_training, words_data, text):
    _, encoder, log = words_training

    assert "text in upper and lower case" in log
    assert_has_ids_of_training_data(encoder, text / "valid.en", words_data)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("xx yy One", id="unknown words"),
        pytest.param("xx\u3000yy One", id="ideographic space"),
        # It begins words for SentencePiece, and is an ordinary letter here.
        pytest.param("▁One ▁ One", id="mark of SentencePiece"),
    ],
)
def test_all_unknown_words_of_a_model_of_words_have_one_id_as_in_fairseq(words_training, line):
    _, encoder, _ = words_training
    tokenizer = encoder.tokenizer
    [[id_of_one]] = tokenizer.encode(["One"])

    [ids] = tokenizer.encode([line])

    # Only the last of the three words is known.
    assert ids.tolist() == [tokenizer.unknown, tokenizer.unknown, id_of_one]


def test_a_model_of_words_cannot_be_exported_to_onnx(words_training, tmp_path):
    """That export reads BPE only."""
    folder, _, _ = words_training
    command = ("export", "onnx", "--model", folder / "model", "--output", tmp_path / "onnx")

    refused(lxsr_here(*command, check=False), "BPE")


def test_text_is_lowercased_if_the_dictionary_has_no_capitals(text, tmp_path):
    lowercased_text = write_pieces(text, tmp_path / "lower", str.lower)
    data = run_fairseq_preprocess(lowercased_text, tmp_path / "data")

    encoder, log = train_and_export(data, tmp_path)

    assert "lowercased text" in log
    # The text with capitals.
    assert_has_ids_of_training_data(encoder, text / "valid.en", data)


def split_like_subword_nmt(line):
    """Split long words after two letters, with the mark of subword-nmt: `house` is `ho@@ use`."""
    pieces = []
    for word in line.split():
        if len(word) > 3:
            pieces += [f"{word[:2]}@@", word[2:]]
        else:
            pieces.append(word)
    return " ".join(pieces)


def test_text_split_by_subword_nmt_is_read_as_words(text, tmp_path):
    pieces = write_pieces(text, tmp_path / "pieces", split_like_subword_nmt)
    data = run_fairseq_preprocess(pieces, tmp_path / "data")

    encoder, _ = train_and_export(data, tmp_path)

    # The encoder gets text that is split already.
    assert_has_ids_of_training_data(encoder, pieces / "valid.en", data)


@pytest.fixture(scope="module")
def sentencepiece_data(text, model, tmp_path_factory):
    """Data of pieces, without their SentencePiece model."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def split_line(line):
        return " ".join(processor.EncodeAsPieces(line))

    return run_fairseq_preprocess(
        write_pieces(text, folder / "pieces", split_line), folder / "data"
    )


def test_a_training_without_the_sentencepiece_model_says_which_option_names_it(
    sentencepiece_data, tmp_path
):
    result = train_here(sentencepiece_data, tmp_path, **ONE_UPDATE)

    assert f"{sentencepiece_data}: " in result.stdout
    assert "--sentencepiece-model" in result.stdout


def test_a_training_without_the_sentencepiece_model_cannot_be_exported(
    sentencepiece_data, tmp_path
):
    train_here(sentencepiece_data, tmp_path / "save", **ONE_UPDATE)

    result = export(tmp_path / "save" / "checkpoint_last.pt", tmp_path / "model", check=False)

    refused(result, "sentencepiece.model: ", "--sentencepiece-model")


def test_an_export_without_text_options_asks_for_the_model_and_for_the_case_of_the_text(
    sentencepiece_data, tmp_path
):
    train_here(sentencepiece_data, tmp_path / "save", **ONE_UPDATE)
    # It says whether the text was lowercased.
    (tmp_path / "save" / "text" / "text.json").unlink()

    result = export(tmp_path / "save" / "checkpoint_last.pt", tmp_path / "model", check=False)

    refused(result, "--sentencepiece-model", "--lowercase or")


def test_a_resumed_training_may_name_the_sentencepiece_model_and_the_next_one_has_it(
    sentencepiece_data, model, tmp_path
):
    train_here(sentencepiece_data, tmp_path, **ONE_UPDATE)
    options_with_model = ONE_UPDATE | {"sentencepiece_model": model}
    options_of_next = ONE_UPDATE | {"max_update": "2"}

    for options in (options_with_model, options_of_next):
        result = train_here(sentencepiece_data, tmp_path, **options)

        assert result.returncode == 0
        # The log no longer asks for the model.
        assert "--sentencepiece-model" not in result.stdout
        saved_model = tmp_path / "text" / "sentencepiece.model"
        assert saved_model.read_bytes() == model.read_bytes()


def test_a_missing_or_invalid_sentencepiece_model_is_named_before_training(
    sentencepiece_data, text, tmp_path
):
    missing = tmp_path / "missing"
    text_file = text / "train.en"
    for path in (missing, text_file):
        options = ONE_UPDATE | {"sentencepiece_model": path}

        result = train_here(sentencepiece_data, tmp_path / "save", **options)

        refused(result, path)
        assert not list((tmp_path / "save").glob("checkpoint*"))


def test_a_training_with_the_sentencepiece_model_saves_it_and_gives_text_the_ids_of_its_data(
    sentencepiece_data, text, model, tmp_path
):
    options = ("--sentencepiece-model", model)

    encoder, log = train_and_export(sentencepiece_data, tmp_path, *options)

    assert "has no sentencepiece.model" not in log
    assert_has_ids_of_training_data(encoder, text / "valid.en", sentencepiece_data)
    saved_model = tmp_path / "save" / "text" / "sentencepiece.model"
    assert saved_model.read_bytes() == model.read_bytes()
    # The path is of no use on another machine.
    assert "sentencepiece_model" not in encoder.config["training"]["options"]


def script_options(text, data):
    """Options of the script: where the text is, and where the data goes."""
    return ["--trainpref", text / "train", "--validpref", text / "valid", "--destdir", data]


@pytest.mark.parametrize("pieces", ["new model", "existing model", "words"])
@pytest.mark.parametrize("lowercase", [True, False], ids=["lower case", "both cases"])
def test_a_model_trained_on_data_of_the_script_gives_text_the_ids_of_the_data(
    script, text, model, tmp_path, pieces, lowercase
):
    data = tmp_path / "data"
    options_of_pieces = {
        "new model": ["--vocab-size", "70"],
        "existing model": ["--sentencepiece-model", model],
        "words": ["--words"],
    }
    options = [*script_options(text, data), *options_of_pieces[pieces]]
    if lowercase:
        options.append("--lowercase")

    main_here(script, "--pairs", "en-fr", *options)

    encoder, _ = train_and_export(data, tmp_path)
    assert encoder.tokenizer.options.lowercase is lowercase
    assert_has_ids_of_training_data(encoder, text / "valid.en", data)
    assert_has_ids_of_training_data(encoder, text / "valid.fr", data, "valid.en-fr.fr")


PIECES_OR_WORDS = pytest.mark.parametrize(
    "pieces",
    [("--vocab-size", "70"), ("--words", "--nwordssrc", "40")],
    ids=["pieces", "words"],
)


@PIECES_OR_WORDS
def test_several_pairs_of_languages_share_one_dictionary(script, text, tmp_path, pieces):
    data = tmp_path / "data"

    main_here(script, "--pairs", "en-fr", "en-xx", *script_options(text, data), *pieces)

    dictionaries = {path.name: path.read_bytes() for path in data.glob("dict.??.txt")}
    assert dictionaries.keys() == {"dict.en.txt", "dict.fr.txt", "dict.xx.txt"}
    assert len(set(dictionaries.values())) == 1
    encoder, log = train_and_export(data, tmp_path)
    assert "en-fr, en-xx" in log
    assert_has_ids_of_training_data(encoder, text / "valid.en-xx.xx", data, "valid.en-xx.xx")


@PIECES_OR_WORDS
def test_a_second_call_of_the_script_replaces_its_folder(script, text, tmp_path, pieces):
    data = tmp_path / "data"
    options = (*script_options(text, data), *pieces)
    main_here(script, "--pairs", "en-fr", "en-xx", *options)

    main_here(script, "--pairs", "en-fr", *options)

    assert not list(data.glob("*xx*"))


@pytest.fixture
def refused_script(script, text, tmp_path):
    """A function that checks that the script refuses its options and writes no data."""

    def check(
        *fragments, pairs="en-fr", train=text / "train", valid=text / "valid", pieces=("--words",)
    ):
        data = tmp_path / "data"
        options = ("--trainpref", train, "--validpref", valid, "--destdir", data)
        result = main_here(script, "--pairs", pairs, *options, *pieces, check=False)
        refused(result, *fragments)
        assert not data.exists()

    return check


def test_the_script_names_all_missing_files(refused_script, tmp_path):
    missing_files = ("a.en, ", "a.fr, ", "b.en, ", "b.fr: ")
    refused_script(*missing_files, train=tmp_path / "a", valid=tmp_path / "b")


def test_the_script_names_files_with_different_numbers_of_lines(refused_script, tmp_path):
    (tmp_path / "short.en").write_text("one line\n")
    (tmp_path / "short.fr").write_text("deux\nlignes\n")

    refused_script("short.en and ", "short.fr: ", train=tmp_path / "short")


def test_the_script_refuses_pieces_of_sentencepiece_as_words(refused_script, tmp_path):
    (tmp_path / "pieces.en").write_text("▁one ▁line\n")
    (tmp_path / "pieces.fr").write_text("▁une ▁ligne\n")

    refused_script("--words: ", train=tmp_path / "pieces")


def test_the_script_refuses_a_single_language_as_pair(refused_script):
    refused_script("--pairs fr", pairs="fr")


def test_the_script_names_an_option_that_fairseq_preprocess_refuses(refused_script):
    refused_script("fairseq-preprocess: ", "--nonsense", pieces=("--words", "--nonsense"))


def test_the_script_refuses_more_pieces_than_the_text_has(refused_script):
    refused_script("--vocab-size 9,000: ", pieces=("--vocab-size", "9000"))


def test_the_script_names_a_missing_sentencepiece_model(refused_script, tmp_path):
    missing = tmp_path / "missing"

    refused_script("missing: ", pieces=("--sentencepiece-model", missing))
