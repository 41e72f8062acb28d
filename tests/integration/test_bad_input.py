"""Every bad input: one line that names it, exit status 2, no traceback, nothing half-written."""

import contextlib
import gzip
import os
import re
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import toy
from conftest import export, lxsr, lxsr_here, refused, train, train_here

from fairseq_lxsr.encoder.checkpoint import read_checkpoint

SPLITS = ("--valid-size", 20, "--test-size", 20)


@pytest.fixture
def text(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(400))
    return tmp_path / "text"


@pytest.fixture
def nothing_left(tmp_path):
    """After the test: the work folder has no half-written file or folder in it."""
    yield
    leftovers = [
        path for path in tmp_path.rglob("*") if ".tmp" in path.name or path.name.startswith(".")
    ]
    assert not leftovers


pytestmark = pytest.mark.usefixtures("nothing_left")


def nothing(folder: Path) -> None:
    """The change of a case that has bad options only."""


def rewritten(name: str, change):
    """The change of a file to what becomes of its bytes."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def removed(name: str):
    return lambda folder: (folder / name).unlink()


def packed(change):
    """French text as a .gz, changed."""

    def replace(folder: Path) -> None:
        plain = folder / "text.fr"
        (folder / "text.fr.gz").write_bytes(change(plain.read_bytes()))
        plain.unlink()

    return replace


def line_17(content: bytes):
    """Another 17th line of a text."""
    return lambda text: b"".join(
        [*text.splitlines(True)[:16], content + b"\n", *text.splitlines(True)[17:]]
    )


def table(folder: Path) -> None:
    """A table in which no row is a pair."""
    (folder / "pairs.tsv").write_text("only one column\n" * 100)


LONGER = rewritten("text.fr", lambda text: text + b"une ligne de trop\n" * 3)
BAD_LINES = [
    (b"caf\xe9 noir", "e9 20 6e 6f"),
    (b"a NUL \x00 here", "column 7"),
]


@pytest.mark.parametrize(
    ("change", "options", "fragments"),
    [
        (removed("text.fr"), (), ("{folder}/text.fr",)),
        (nothing, ("--data", "{folder}/none.tsv"), ("none.tsv",)),
        (lambda folder: toy.write(folder / "text", []), (), ("text.en",)),
        (LONGER, (), ("text.en", "400", "text.fr", "403")),
        *(
            (rewritten("text.fr", line_17(line)), (), ("{folder}/text.fr, line 17", *said))
            for line, *said in BAD_LINES
        ),
        *(
            (
                packed(lambda text, line=line: gzip.compress(line_17(line)(text))),
                (),
                ("text.fr.gz, line 17", *said),
            )
            for line, *said in BAD_LINES
        ),
        (
            packed(lambda text: gzip.compress(text)[:-20]),
            (),
            ("{folder}/text.fr.gz",),
        ),
        (
            table,
            ("--data", "{folder}/pairs.tsv"),
            ("{folder}/pairs.tsv, line 1: ", "'only one"),
        ),
        (nothing, ("--test-size", 300), ("text: 400 ", "--valid-size")),
        (nothing, (*SPLITS, "--vocab-size", 9000), ("9,000",)),
        (nothing, (*SPLITS, "--vocab-size", 12), ("12",)),
    ],
)
def test_text_that_cannot_be_prepared(tmp_path, text, change, options, fragments):
    change(tmp_path)
    words = [str(word).format(folder=tmp_path) for word in options]
    data = () if "--data" in words else ("--data", text)
    done = lxsr_here("prepare", "--work", tmp_path / "work", *data, *words, check=False)
    refused(done, *(fragment.format(folder=tmp_path) for fragment in fragments))
    assert (tmp_path / "work" / "corpus" / "en-fr").exists() == ("--vocab-size" in words)
    assert not (tmp_path / "work" / "subwords").exists()


def test_catalogues_that_are_not_there(tmp_path):
    (tmp_path / "locale").mkdir()
    done = lxsr_here(
        "prepare", "--work", tmp_path / "work", "--locale-dir", tmp_path / "locale", check=False
    )
    refused(done, "'fr'", "--data PREFIX")
    done = lxsr_here("prepare", "--work", tmp_path / "work", "--lang-pairs", "en-qq", check=False)
    refused(done, "'qq'")


def test_a_line_that_is_no_sentence_is_counted(tmp_path, text):
    rewritten("text.fr", line_17(b"word " * 100_000))(tmp_path)
    done = lxsr_here(
        "prepare", "--work", tmp_path / "work", "--data", text, *SPLITS, "--until", "clean"
    )
    assert re.search("dropped.* 1 .*10,000", done.stdout)


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def unequal(folder: Path) -> None:
    for ending in ("bin", "idx"):
        shutil.copy(folder / f"test.en-fr.fr.{ending}", folder / f"train.en-fr.fr.{ending}")


FRENCH = "train.en-fr.fr.bin"
TRANSLATION = "--task xling_translation --arch laser_tiny --criterion xling_translation_loss"
CUT_OFF = rewritten(FRENCH, lambda content: content[:-100])


@pytest.mark.parametrize(
    ("change", "options", "fragments"),
    [
        (nothing, "--lang-pairs en-de", ("en-de", "dict.de.txt")),
        (nothing, "--lang-pairs english", ("'english'",)),
        (nothing, "--encoder-attention-heads 3", ("num_heads 3",)),
        (
            nothing,
            "--hard-negatives swap",
            ("--hard-negatives swap", "--objective ugt"),
        ),
        (
            nothing,
            "--word-dropout 0.1 --objective mlm",
            ("--word-dropout 0.1", "--objective mlm"),
        ),
        (shutil.rmtree, "", ("{data}",)),
        (emptied, "", ("{data}",)),
        (
            rewritten("dict.fr.txt", lambda text: text + b"extra 1\n"),
            "",
            ("dict.fr.txt", "--joined-dictionary"),
        ),
        (removed(FRENCH), "", ("train.en-fr.fr",)),
        (unequal, "", ("900", " en", "200", " fr")),
        (CUT_OFF, "", (f"{{data}}/{FRENCH}",)),
        (CUT_OFF, TRANSLATION, (f"{{data}}/{FRENCH}",)),
    ],
)
def test_training_that_cannot_begin(tmp_path, toy_work, change, options, fragments):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (data / "stage.json").unlink()  # which would find all that is changed
    change(data)
    done = train_here(data, tmp_path / "save", *options.split())
    refused(done, *(fragment.format(data=data) for fragment in fragments))


@pytest.mark.parametrize(
    ("name", "change", "fragment"),
    [
        ("model.safetensors", None, ""),
        ("model.safetensors", lambda content: content[:-4], ""),
        ("sentencepiece.model", lambda content: b"x", ""),
        ("dict.txt", None, ""),
        ("config.json", lambda content: b"{", ""),
        ("config.json", None, ""),
        (
            "config.json",
            lambda content: content.replace(b'version": 1', b'version": 9'),
            "",
        ),
        (
            "config.json",
            lambda content: content.replace(b'version": 1', b'version": 9').replace(b"crc", b""),
            " 9",
        ),
    ],
)
def test_model_folder_that_is_not_whole(tmp_path, toy_model, name, change, fragment):
    model = shutil.copytree(toy_model, tmp_path / "model")
    (rewritten(name, change) if change else removed(name))(model)
    (tmp_path / "in.txt").write_text("a dog\n")
    done = embed(model, tmp_path / "in.txt", tmp_path / "o.npy")
    refused(done, model / name, fragment)
    assert not (tmp_path / "o.npy").exists()


def embed(model, text, output):
    return lxsr_here("embed", "--model", model, "--input", text, "--output", output, check=False)


def test_export_without_what_it_needs(tmp_path, toy_work, toy_checkpoint):
    data, output = shutil.copytree(toy_work / "data-bin", tmp_path / "data"), tmp_path / "model"
    removed("text.json")(data)
    refused(export(toy_checkpoint, output, "--data", data, check=False), "text.json", "--lowercase")
    removed("sentencepiece.model")(data)
    refused(
        export(toy_checkpoint, output, "--data", data, check=False),
        "sentencepiece.model",
        "--sentencepiece-model",
    )
    other = tmp_path / "other.model"
    other.write_text("no model")
    options = ("--data", data, "--lowercase", "--sentencepiece-model", other)
    refused(export(toy_checkpoint, output, *options, check=False), "other.model")
    assert not output.exists()
    output.mkdir()  # a folder that is no model folder
    (output / "chapter1.txt").write_text("words")
    refused(export(toy_checkpoint, output, check=False), output)
    assert (output / "chapter1.txt").read_text() == "words"


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"", ()),
        (b"fine\n\xff\xfe\n", (", line 2", "ff fe")),
        (None, ()),
    ],
)
def test_text_that_cannot_be_embedded(tmp_path, toy_model, content, fragments):
    if content is not None:
        (tmp_path / "in.txt").write_bytes(content)
    refused(
        embed(toy_model, tmp_path / "in.txt", tmp_path / "o.npy"), tmp_path / "in.txt", *fragments
    )
    assert not (tmp_path / "o.npy").exists()


@contextlib.contextmanager
def mounted(folder: Path, options: str):
    """A file system of its own in a folder."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def writers(tmp_path, text, toy_work, toy_model, toy_checkpoint):
    """Runs of what writes into a folder: prepare, embed, export and training."""
    (tmp_path / "in.txt").write_text("a dog sees the cat\n" * 2000)

    def runs(folder: Path):
        options = ("--data", text, *SPLITS, "--vocab-size", 150)
        yield lxsr("prepare", "--work", folder / "work", *options, check=False)
        yield embed(toy_model, tmp_path / "in.txt", folder / "o.npy")
        yield export(toy_checkpoint, folder / "model", check=False)
        yield train(
            toy_work / "data-bin",
            folder / "save",
            "--disable-validation",
            check=False,
            max_epoch="1",
        )

    return runs


def test_full_disk(tmp_path, writers):
    """On a file system of 64 KiB nothing fits, and nothing is left of it."""
    with mounted(tmp_path / "small", "size=64k") as small:
        for done in writers(small):
            refused(done, "No space left on device")
        # the corpus stage fitted and is whole; nothing else is there
        assert {path.parent.name for path in small.rglob("*") if path.is_file()} <= {"en-fr"}


def test_no_write_permission(tmp_path, writers):
    folder = tmp_path / "read-only"
    if os.geteuid():
        folder.mkdir(mode=0o500)
        kept = contextlib.nullcontext(folder)
    else:  # root may write anywhere but on a file system that is mounted read-only
        kept = mounted(folder, "ro")
    with kept:
        for done in writers(folder):
            refused(done, folder)


@pytest.mark.slow
def test_disk_that_fills_up_during_training(tmp_path, toy_work):
    """Training stops before the checkpoint that would not fit; all earlier ones are whole."""
    with mounted(tmp_path / "small", "size=3m") as small:
        done = train(
            toy_work / "data-bin", small, "--disable-validation", check=False, max_epoch="9"
        )
        refused(done, small, "No space left on device")
        names = {path.name for path in small.iterdir()}
        assert {"checkpoint1.pt", "checkpoint2.pt", "checkpoint_last.pt"} <= names
        assert "checkpoint9.pt" not in names
        for path in small.glob("*.pt"):
            read_checkpoint(path)


def test_a_checkpoint_of_another_program(toy_work, tmp_path):
    """fairseq's older models and tasks keep their options as a Namespace."""
    cfg = {
        "model": Namespace(arch="lstm"),
        "task": Namespace(task="translation", data=str(toy_work / "data-bin")),
    }
    torch.save({"model": {"encoder.x": torch.zeros(1)}, "cfg": cfg}, tmp_path / "lstm.pt")
    done = export(tmp_path / "lstm.pt", tmp_path / "model", check=False)
    refused(done, tmp_path / "lstm.pt", "'lstm'")
    done = train(
        toy_work / "data-bin",
        tmp_path / "save",
        check=False,
        restore_file=str(tmp_path / "lstm.pt"),
    )
    refused(done, tmp_path / "lstm.pt", "translation", "xling_sent")
