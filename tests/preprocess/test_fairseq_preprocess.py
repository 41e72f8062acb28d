"""Models trained on data of fairseq-preprocess read text as it was split for the training."""

import numpy as np
import pytest
import sentencepiece
import toy
from conftest import ROOT, export, load_script, lxsr_here, main_here, refused, run, train_here

from fairseq_lxsr import SentenceEncoder

SHORT = {"max_update": "1", "lr_scheduler": "fixed", "warmup_updates": None}
SPLITS = ("train", "valid")
pytestmark = pytest.mark.usefixtures("python_is_a_fork")


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "preprocess" / "fairseq_preprocess.py")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text of en-fr, and the same text named en-xx."""
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
    result = train_here(data, folder / "save", *options, **SHORT)
    assert result.returncode == 0, result.stderr
    export(folder / "save" / "checkpoint_last.pt", folder / "model")
    return SentenceEncoder.from_pretrained(folder / "model", "cpu"), result.stdout


def read_ids(path):
    """The ids of each sentence in a .bin of fairseq-preprocess, without the end of the sentence."""
    ids = np.fromfile(path, np.uint16)
    ends = np.flatnonzero(ids == 2)
    sentences = []
    start = 0
    for end in ends:
        sentences.append(ids[start:end].tolist())
        start = end + 1
    return sentences


def assert_reads_as_trained(encoder, text, data, name="valid.en-fr.en"):
    """Check that the encoder gives the lines of a text the ids that the training has had."""
    lines = text.read_text(encoding="utf-8").splitlines()
    ids = [sentence.tolist() for sentence in encoder.tokenizer.encode(lines)]
    assert ids == read_ids(data / f"{name}.bin")


def preprocess(text, data):
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


def test_a_model_of_words_reads_words(text, tmp_path):
    data = preprocess(text, tmp_path / "data")
    encoder, log = train_and_export(data, tmp_path)
    assert "text in upper and lower case" in log
    assert_reads_as_trained(encoder, text / "valid.en", data)
    known_id = encoder.tokenizer.encode(["One"])[0][0]
    unknown = encoder.tokenizer.unknown
    # As in fairseq, all unknown words have one id, and the mark of SentencePiece is an ordinary
    # letter.
    for line in ("xx yy One", "xx\u3000yy One", "▁One ▁ One"):
        assert encoder.tokenizer.encode([line])[0].tolist() == [unknown, unknown, known_id]
    command = ("export", "onnx", "--model", tmp_path / "model", "--output", tmp_path / "o")
    refused(lxsr_here(*command, check=False), "BPE")


def test_lower_case_is_recognised_by_the_dictionary(text, tmp_path):
    pieces = write_pieces(text, tmp_path / "lower", str.lower)
    data = preprocess(pieces, tmp_path / "data")
    encoder, log = train_and_export(data, tmp_path)
    assert "lowercased text" in log
    assert_reads_as_trained(encoder, text / "valid.en", data)


def split_like_subword_nmt(line):
    pieces = []
    for word in line.split():
        if len(word) > 3:
            pieces += [f"{word[:2]}@@", word[2:]]
        else:
            pieces.append(word)
    return " ".join(pieces)


def test_pieces_of_subword_nmt_are_read_as_words(text, tmp_path):
    pieces = write_pieces(text, tmp_path / "pieces", split_like_subword_nmt)
    data = preprocess(pieces, tmp_path / "data")
    encoder, _ = train_and_export(data, tmp_path)
    assert_reads_as_trained(encoder, pieces / "valid.en", data)


@pytest.fixture(scope="module")
def sentencepiece_data(text, model, tmp_path_factory):
    """Data of pieces, without their SentencePiece model."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def split_line(line):
        return " ".join(processor.EncodeAsPieces(line))

    return preprocess(write_pieces(text, folder / "pieces", split_line), folder / "data")


def test_a_training_without_the_sentencepiece_model_cannot_be_exported(
    sentencepiece_data, tmp_path
):
    result = train_here(sentencepiece_data, tmp_path / "save", **SHORT)
    assert f"{sentencepiece_data}: " in result.stdout
    assert "--sentencepiece-model" in result.stdout
    checkpoint = tmp_path / "save" / "checkpoint_last.pt"
    result = export(checkpoint, tmp_path / "model", check=False)
    refused(result, "sentencepiece.model: ", "--sentencepiece-model")
    # Now it is unknown, too, whether the text was lowercased.
    (tmp_path / "save" / "text" / "text.json").unlink()
    result = export(checkpoint, tmp_path / "model", check=False)
    refused(result, "--sentencepiece-model", "--lowercase or")


def test_the_sentencepiece_model_may_be_named_when_training_is_resumed(
    sentencepiece_data, model, tmp_path
):
    train_here(sentencepiece_data, tmp_path, **SHORT)
    # The second of these runs uses the model that the first has saved.
    for options in ({"sentencepiece_model": model}, {"max_update": "2"}):
        result = train_here(sentencepiece_data, tmp_path, **SHORT | options)
        assert result.returncode == 0
        assert "--sentencepiece-model" not in result.stdout
        saved_model = tmp_path / "text" / "sentencepiece.model"
        assert saved_model.read_bytes() == model.read_bytes()


def test_an_invalid_sentencepiece_model_is_named(sentencepiece_data, text, tmp_path):
    for path in (tmp_path / "none", text / "train.en"):
        options = SHORT | {"sentencepiece_model": path}
        refused(train_here(sentencepiece_data, tmp_path / "save", **options), path)
        assert not list((tmp_path / "save").glob("checkpoint*"))


def test_a_training_with_the_sentencepiece_model_reads_its_pieces(
    sentencepiece_data, text, model, tmp_path
):
    options = ("--sentencepiece-model", model)
    encoder, log = train_and_export(sentencepiece_data, tmp_path, *options)
    assert "has no sentencepiece.model" not in log
    assert_reads_as_trained(encoder, text / "valid.en", sentencepiece_data)
    saved_model = tmp_path / "save" / "text" / "sentencepiece.model"
    assert saved_model.read_bytes() == model.read_bytes()
    assert "sentencepiece_model" not in encoder.config["training"]["options"]


@pytest.mark.parametrize(
    "pieces", [("--vocab-size", "70"), ("--sentencepiece-model",), ("--words",)]
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_script_makes_data_with_all_files(script, text, model, tmp_path, pieces, lowercase):
    data = tmp_path / "data"
    options = ["--trainpref", text / "train", "--validpref", text / "valid", "--destdir", data]
    options += pieces
    if pieces == ("--sentencepiece-model",):
        options.append(model)
    if lowercase:
        options.append("--lowercase")
    main_here(script, "--pairs", "en-fr", *options)
    encoder, _ = train_and_export(data, tmp_path)
    assert encoder.tokenizer.options.lowercase is lowercase
    assert_reads_as_trained(encoder, text / "valid.en", data)
    assert_reads_as_trained(encoder, text / "valid.fr", data, "valid.en-fr.fr")


@pytest.mark.parametrize("pieces", [("--vocab-size", "70"), ("--words", "--nwordssrc", "40")])
def test_several_pairs_share_one_dictionary(script, text, tmp_path, pieces):
    data = tmp_path / "data"
    options = ["--trainpref", text / "train", "--validpref", text / "valid", "--destdir", data]
    # The second call replaces the folder.
    for _ in range(2):
        main_here(script, "--pairs", "en-fr", "en-xx", *options, *pieces)
    assert len({path.read_bytes() for path in data.glob("dict.??.txt")}) == 1
    encoder, log = train_and_export(data, tmp_path)
    assert "en-fr, en-xx" in log
    assert_reads_as_trained(encoder, text / "valid.en-xx.xx", data, "valid.en-xx.xx")


def test_text_and_options_that_cannot_be_used_are_named(script, text, tmp_path):
    (tmp_path / "short.en").write_text("one line\n")
    (tmp_path / "short.fr").write_text("deux\nlignes\n")
    (tmp_path / "marked.en").write_text("▁one ▁line\n")
    (tmp_path / "marked.fr").write_text("▁une ▁ligne\n")

    def check(
        *fragments, pairs="en-fr", train=text / "train", valid=text / "valid", pieces=("--words",)
    ):
        options = ("--trainpref", train, "--validpref", valid, "--destdir", tmp_path / "data")
        refused(main_here(script, "--pairs", pairs, *options, *pieces, check=False), *fragments)
        assert not (tmp_path / "data").exists()

    missing = ("a.en, ", "a.fr, ", "b.en, ", "b.fr: ")
    check(*missing, train=tmp_path / "a", valid=tmp_path / "b")
    check("short.en and ", "short.fr: ", train=tmp_path / "short")
    check("--pairs fr", pairs="fr")
    check("--words: ", train=tmp_path / "marked")
    check("fairseq-preprocess: ", "--nonsense", pieces=("--words", "--nonsense"))
    check("--vocab-size 9,000: ", pieces=("--vocab-size", "9000"))
    check("none: ", pieces=("--sentencepiece-model", tmp_path / "none"))
