"""Data of fairseq-preprocess, with and without the script: trained on, exported, and read alike."""

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
    """Text of en-fr, and the same as of en-xx."""
    folder = tmp_path_factory.mktemp("text")
    pairs = toy.sentences(300)
    for split, part in (("train", pairs[:250]), ("valid", pairs[250:])):
        toy.write(folder / split, part)
        toy.write(folder / f"{split}.en-fr", part)
        toy.write(folder / f"{split}.en-xx", part, ("en", "xx"))
    return folder


@pytest.fixture(scope="module")
def model(text):
    """A SentencePiece model of the text as it is."""
    files = [str(text / f"train.{language}") for language in ("en", "fr")]
    options = {"vocab_size": 70, "minloglevel": 2, "model_prefix": str(text / "spm")}
    sentencepiece.SentencePieceTrainer.Train(input=",".join(files), **options)
    return text / "spm.model"


def trained_and_exported(data, folder, *options):
    """The encoder of a training of one update, and what was logged."""
    done = train_here(data, folder / "save", *options, **SHORT)
    assert done.returncode == 0, done.stderr
    export(folder / "save" / "checkpoint_last.pt", folder / "model")
    return SentenceEncoder.from_pretrained(folder / "model", "cpu"), done.stdout


def ids(path):
    """The sentences of a .bin of fairseq-preprocess, each without its end."""
    flat = np.fromfile(path, np.uint16)
    return [part[:-1].tolist() for part in np.split(flat, np.flatnonzero(flat == 2) + 1)[:-1]]


def assert_reads_as_trained(encoder, text, data, name="valid.en-fr.en", change=str):
    lines = [change(line) for line in text.read_text(encoding="utf-8").splitlines()]
    assert [encoded.tolist() for encoded in encoder.tokenizer.encode(lines)] == ids(
        data / f"{name}.bin"
    )


def preprocessed(text, data, *options):
    """What fairseq-preprocess itself makes of text/train and text/valid."""
    names = [word for split in SPLITS for word in (f"--{split}pref", text / split)]
    languages = ("--source-lang", "en", "--target-lang", "fr", "--joined-dictionary")
    run("fairseq_cli.preprocess", *languages, *names, "--destdir", data, *options)
    return data


def pieces_of(text, folder, split):
    for path in (text / f"{part}.{language}" for part in SPLITS for language in ("en", "fr")):
        (folder / path.name).write_text(
            "".join(split(line) + "\n" for line in path.read_text().splitlines())
        )
    return folder


def test_words_need_nothing_more(text, tmp_path):
    data = preprocessed(text, tmp_path / "data")
    encoder, log = trained_and_exported(data, tmp_path)
    assert "text in upper and lower case" in log
    assert_reads_as_trained(encoder, text / "valid.en", data)
    known = encoder.tokenizer.encode(["One"])[0][0]
    unknown = encoder.tokenizer.unknown
    # As in fairseq, every unknown word has one id, and a mark of SentencePiece is an ordinary
    # letter.
    for line in ("xx yy One", "xx\u3000yy One", "▁One ▁ One"):
        assert encoder.tokenizer.encode([line])[0].tolist() == [unknown, unknown, known]
    refused(
        lxsr_here(
            "export", "onnx", "--model", tmp_path / "model", "--output", tmp_path / "o", check=False
        ),
        "BPE",
    )


def test_lower_case_is_seen_in_the_dictionary(text, tmp_path):
    (tmp_path / "lower").mkdir()
    data = preprocessed(pieces_of(text, tmp_path / "lower", str.lower), tmp_path / "data")
    encoder, log = trained_and_exported(data, tmp_path)
    assert "lowercased text" in log
    assert_reads_as_trained(encoder, text / "valid.en", data)


def test_pieces_of_subword_nmt_are_read_as_they_are(text, tmp_path):
    (tmp_path / "pieces").mkdir()

    def split(line):
        return " ".join(
            word[:2] + "@@ " + word[2:] if len(word) > 3 else word for word in line.split()
        )

    data = preprocessed(pieces_of(text, tmp_path / "pieces", split), tmp_path / "data")
    encoder, _ = trained_and_exported(data, tmp_path)
    assert_reads_as_trained(encoder, tmp_path / "pieces" / "valid.en", data)


def test_the_sentencepiece_model_is_named_where_training_starts(text, model, tmp_path):
    (tmp_path / "pieces").mkdir()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    split = lambda line: " ".join(processor.EncodeAsPieces(line))  # noqa: E731
    data = preprocessed(pieces_of(text, tmp_path / "pieces", split), tmp_path / "data")
    done = train_here(data, tmp_path / "without", **SHORT)
    assert f"{data}: " in done.stdout
    assert "--sentencepiece-model" in done.stdout
    checkpoint = tmp_path / "without" / "checkpoint_last.pt"
    done = export(checkpoint, tmp_path / "model", check=False)
    refused(
        done,
        "sentencepiece.model: ",
        "--sentencepiece-model",
    )
    named = {"sentencepiece_model": model}
    # The model is kept if it is named later, or only the first time.
    train_here(data, tmp_path / "later", **SHORT)
    for more in (named, {"max_update": "2"}):
        done = train_here(data, tmp_path / "later", **SHORT | more)
        assert (done.returncode, "--sentencepiece-model" in done.stdout) == (0, False)
        assert (
            tmp_path / "later" / "text" / "sentencepiece.model"
        ).read_bytes() == model.read_bytes()
    # Neither the training nor its data folder says whether the text was lowercased.
    (tmp_path / "without" / "text" / "text.json").unlink()
    refused(
        export(checkpoint, tmp_path / "model", check=False),
        "--sentencepiece-model",
        "--lowercase or",
    )
    for name in (tmp_path / "none", text / "train.en"):
        refused(train_here(data, tmp_path / "save", sentencepiece_model=name, **SHORT), name)
        assert not list((tmp_path / "save").glob("checkpoint*"))
    encoder, log = trained_and_exported(data, tmp_path, "--sentencepiece-model", model)
    assert "has no sentencepiece.model" not in log
    assert_reads_as_trained(encoder, text / "valid.en", data)
    assert (tmp_path / "save" / "text" / "sentencepiece.model").read_bytes() == model.read_bytes()
    assert "sentencepiece_model" not in encoder.config["training"]["options"]


@pytest.mark.parametrize(
    "pieces", [("--vocab-size", "70"), ("--sentencepiece-model",), ("--words",)]
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_script_makes_all_in_one_command(script, text, model, tmp_path, pieces, lowercase):
    if pieces == ("--sentencepiece-model",):
        pieces = (*pieces, model)
    lower = ("--lowercase",) if lowercase else ()
    options = (
        "--trainpref",
        text / "train",
        "--validpref",
        text / "valid",
        "--destdir",
        tmp_path / "data",
    )
    main_here(script, "--pairs", "en-fr", *options, *pieces, *lower)
    encoder, _ = trained_and_exported(tmp_path / "data", tmp_path)
    assert encoder.tokenizer.options.lowercase is lowercase
    assert_reads_as_trained(encoder, text / "valid.en", tmp_path / "data")
    assert_reads_as_trained(encoder, text / "valid.fr", tmp_path / "data", "valid.en-fr.fr")


@pytest.mark.parametrize("pieces", [("--vocab-size", "70"), ("--words", "--nwordssrc", "40")])
def test_several_pairs_share_one_dictionary(script, text, tmp_path, pieces):
    options = (
        "--trainpref",
        text / "train",
        "--validpref",
        text / "valid",
        "--destdir",
        tmp_path / "data",
    )
    # The second time the folder is replaced.
    for _ in range(2):
        main_here(script, "--pairs", "en-fr", "en-xx", *options, *pieces)
    assert len({path.read_bytes() for path in (tmp_path / "data").glob("dict.??.txt")}) == 1
    encoder, log = trained_and_exported(tmp_path / "data", tmp_path)
    assert "en-fr, en-xx" in log
    assert_reads_as_trained(encoder, text / "valid.en-xx.xx", tmp_path / "data", "valid.en-xx.xx")


def test_text_that_cannot_be_read_is_named_at_once(script, text, tmp_path):
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
