"""Bad input ends a command with exit status 2 and one line that names it, and leaves no files."""

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
    """Check after the test that no temporary file or folder is left."""
    yield
    for path in tmp_path.rglob("*"):
        assert ".tmp" not in path.name
        assert not path.name.startswith(".")


pytestmark = pytest.mark.usefixtures("nothing_left")


# Each of these functions changes a folder with text.en and text.fr, 400 lines each, or returns a
# function that does.


def change_nothing(folder: Path) -> None:
    """For cases whose options are wrong."""


def rewrite(name: str, change):
    """Replace the content of a file by `change(content)`."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def pack_french(change):
    """Replace the French text by a .gz with the bytes `change(content)`."""

    def replace(folder: Path) -> None:
        plain = folder / "text.fr"
        (folder / "text.fr.gz").write_bytes(change(plain.read_bytes()))
        plain.unlink()

    return replace


def with_line_17(content: bytes):
    """A function that replaces the 17th line of a text."""

    def replace(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        lines[16] = content + b"\n"
        return b"".join(lines)

    return replace


def write_table_of_one_column(folder: Path) -> None:
    (folder / "pairs.tsv").write_text("only one column\n" * 100)


INVALID_UTF8 = with_line_17(b"caf\xe9 noir")
NUL = with_line_17(b"a NUL \x00 here")
THREE_LINES_MORE = rewrite("text.fr", lambda text: text + b"une ligne de trop\n" * 3)


@pytest.mark.parametrize(
    ("change", "options", "fragments"),
    [
        # Missing, empty and unequal files.
        (remove("text.fr"), (), ("{folder}/text.fr",)),
        (change_nothing, ("--data", "{folder}/none.tsv"), ("none.tsv",)),
        (lambda folder: toy.write(folder / "text", []), (), ("text.en",)),
        (THREE_LINES_MORE, (), ("text.en", "400", "text.fr", "403")),
        # Bytes that are no text, in plain and in packed files. The message shows the first bytes:
        # those of "é" in Latin-1, of a blank, "n" and "o".
        (rewrite("text.fr", INVALID_UTF8), (), ("{folder}/text.fr, line 17", "e9 20 6e 6f")),
        (rewrite("text.fr", NUL), (), ("{folder}/text.fr, line 17", "column 7")),
        (
            pack_french(lambda text: gzip.compress(INVALID_UTF8(text))),
            (),
            ("text.fr.gz, line 17", "e9 20 6e 6f"),
        ),
        (
            pack_french(lambda text: gzip.compress(NUL(text))),
            (),
            ("text.fr.gz, line 17", "column 7"),
        ),
        # A packed file that is cut off.
        (
            pack_french(lambda text: gzip.compress(text)[:-20]),
            (),
            ("{folder}/text.fr.gz",),
        ),
        (
            write_table_of_one_column,
            ("--data", "{folder}/pairs.tsv"),
            ("{folder}/pairs.tsv, line 1: ", "'only one"),
        ),
        # With the default of --valid-size, 400 pairs are too few.
        (change_nothing, ("--test-size", 300), ("text: 400 ", "--valid-size")),
        # More pieces than the text has, and fewer than letters.
        (change_nothing, (*SPLITS, "--vocab-size", 9000), ("9,000",)),
        (change_nothing, (*SPLITS, "--vocab-size", 12), ("12",)),
    ],
)
def test_text_that_cannot_be_prepared_is_refused_before_the_stage_that_it_concerns(
    tmp_path, text, change, options, fragments
):
    change(tmp_path)
    words = [str(word).format(folder=tmp_path) for word in options]
    data = () if "--data" in words else ("--data", text)

    result = lxsr_here("prepare", "--work", tmp_path / "work", *data, *words, check=False)

    refused(result, *(fragment.format(folder=tmp_path) for fragment in fragments))
    # The number of pieces concerns the second stage.
    assert (tmp_path / "work" / "corpus" / "en-fr").exists() == ("--vocab-size" in words)
    assert not (tmp_path / "work" / "subwords").exists()


def test_a_folder_of_translations_without_the_language_is_refused(tmp_path):
    (tmp_path / "locale").mkdir()
    options = ("--work", tmp_path / "work", "--data", tmp_path / "locale")

    result = lxsr_here("prepare", *options, check=False)

    refused(result, "'fr'", "--data PREFIX")


def test_a_language_without_translations_on_this_machine_is_refused(tmp_path):
    """Without --data, the text is that of installed programs."""
    options = ("--work", tmp_path / "work", "--lang-pairs", "en-qq")

    result = lxsr_here("prepare", *options, check=False)

    refused(result, "'qq'")


def test_a_pair_with_a_line_longer_than_10_000_characters_is_dropped_and_counted(tmp_path, text):
    make_longer = rewrite("text.fr", with_line_17(b"word " * 100_000))
    make_longer(tmp_path)
    options = ("--work", tmp_path / "work", "--data", text, *SPLITS, "--until", "clean")

    result = lxsr_here("prepare", *options)

    assert re.search("dropped.* 1 .*10,000", result.stdout)


def remove_all_files(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def shorten_french(folder: Path) -> None:
    """Replace the French training text by the shorter test text."""
    for ending in ("bin", "idx"):
        shutil.copy(folder / f"test.en-fr.fr.{ending}", folder / f"train.en-fr.fr.{ending}")


FRENCH = "train.en-fr.fr.bin"
TRANSLATION = "--task xling_translation --arch laser_tiny --criterion xling_translation_loss"
CUT_FRENCH = rewrite(FRENCH, lambda content: content[:-100])


@pytest.mark.parametrize(
    ("change", "options", "fragments"),
    [
        (change_nothing, "--lang-pairs en-de", ("en-de", "dict.de.txt")),
        (change_nothing, "--lang-pairs english", ("'english'",)),
        (change_nothing, "--encoder-attention-heads 3", ("num_heads 3",)),
        (
            change_nothing,
            "--hard-negatives swap",
            ("--hard-negatives swap", "--objective ugt"),
        ),
        (
            change_nothing,
            "--word-dropout 0.1 --objective mlm",
            ("--word-dropout 0.1", "--objective mlm"),
        ),
        # No folder, no files, and files that do not belong together.
        (shutil.rmtree, "", ("{data}",)),
        (remove_all_files, "", ("{data}",)),
        (
            rewrite("dict.fr.txt", lambda text: text + b"extra 1\n"),
            "",
            ("dict.fr.txt", "--joined-dictionary"),
        ),
        (remove(FRENCH), "", ("train.en-fr.fr",)),
        # 900 training pairs, and 200 for the test.
        (shorten_french, "", ("900", " en", "200", " fr")),
        (CUT_FRENCH, "", (f"{{data}}/{FRENCH}",)),
        (CUT_FRENCH, TRANSLATION, (f"{{data}}/{FRENCH}",)),
    ],
)
def test_data_and_options_that_cannot_be_trained_with_are_refused(
    tmp_path, toy_work, change, options, fragments
):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    # Its checksums would reveal every change.
    (data / "stage.json").unlink()
    change(data)

    result = train_here(data, tmp_path / "save", *options.split())

    refused(result, *(fragment.format(data=data) for fragment in fragments))


@pytest.mark.parametrize(
    # No change: the file is missing.
    ("name", "change", "fragment"),
    [
        ("model.safetensors", None, ""),
        ("model.safetensors", lambda content: content[:-4], ""),
        ("sentencepiece.model", lambda content: b"x", ""),
        ("dict.txt", None, ""),
        ("config.json", lambda content: b"{", ""),
        ("config.json", None, ""),
        # A change that does not fit the checksum, and one without a checksum.
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
def test_a_missing_or_damaged_file_of_a_model_is_named(tmp_path, toy_model, name, change, fragment):
    model = shutil.copytree(toy_model, tmp_path / "model")
    (rewrite(name, change) if change else remove(name))(model)
    (tmp_path / "in.txt").write_text("a dog\n")

    result = embed(model, tmp_path / "in.txt", tmp_path / "o.npy")

    refused(result, model / name, fragment)
    assert not (tmp_path / "o.npy").exists()


def embed(model, text, output):
    return lxsr_here("embed", "--model", model, "--input", text, "--output", output, check=False)


@pytest.mark.parametrize(
    ("name", "option"),
    [("text.json", "--lowercase"), ("sentencepiece.model", "--sentencepiece-model")],
)
def test_export_names_the_option_that_replaces_a_missing_file(
    tmp_path, toy_work, toy_checkpoint, name, option
):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (data / name).unlink()

    result = export(toy_checkpoint, tmp_path / "model", "--data", data, check=False)

    refused(result, name, option)
    assert not (tmp_path / "model").exists()


def test_export_names_an_invalid_sentencepiece_model(tmp_path, toy_work, toy_checkpoint):
    data = shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (data / "text.json").unlink()
    (data / "sentencepiece.model").unlink()
    invalid = tmp_path / "invalid.model"
    invalid.write_text("no model")
    options = ("--data", data, "--lowercase", "--sentencepiece-model", invalid)

    result = export(toy_checkpoint, tmp_path / "model", *options, check=False)

    refused(result, "invalid.model")
    assert not (tmp_path / "model").exists()


def test_export_does_not_replace_a_folder_of_other_files(tmp_path, toy_checkpoint):
    output = tmp_path / "model"
    output.mkdir()
    (output / "chapter1.txt").write_text("words")

    result = export(toy_checkpoint, output, check=False)

    refused(result, output)
    assert (output / "chapter1.txt").read_text() == "words"


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"", ()),
        (b"fine\n\xff\xfe\n", (", line 2", "ff fe")),
        (None, ()),
    ],
    ids=["empty", "no-utf-8", "no-file"],
)
def test_text_that_cannot_be_embedded_is_refused(tmp_path, toy_model, content, fragments):
    if content is not None:
        (tmp_path / "in.txt").write_bytes(content)

    result = embed(toy_model, tmp_path / "in.txt", tmp_path / "o.npy")

    refused(result, tmp_path / "in.txt", *fragments)
    assert not (tmp_path / "o.npy").exists()


@contextlib.contextmanager
def mounted(folder: Path, options: str):
    """Mount a file system in a new folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def write_all(tmp_path, text, toy_work, toy_model, toy_checkpoint):
    """A function that prepares, embeds, exports and trains in a folder, and yields each result."""
    (tmp_path / "in.txt").write_text("a dog sees the cat\n" * 2000)

    def runs(folder: Path):
        options = ("--data", text, *SPLITS, "--vocab-size", 150)
        yield lxsr("prepare", "--work", folder / "work", *options, check=False)
        yield embed(toy_model, tmp_path / "in.txt", folder / "o.npy")
        yield export(toy_checkpoint, folder / "model", check=False)
        options = {"check": False, "max_epoch": "1"}
        yield train(toy_work / "data-bin", folder / "save", "--disable-validation", **options)

    return runs


def test_a_full_disk_gives_one_line_of_error_and_leaves_no_partial_files(tmp_path, write_all):
    with mounted(tmp_path / "small", "size=64k") as small:
        for result in write_all(small):
            refused(result, "No space left on device")
        files = [path for path in small.rglob("*") if path.is_file()]
        # At most the stage of the corpus fits, and is complete.
        assert {path.parent.name for path in files} <= {"en-fr"}


def test_a_folder_without_write_permission_is_named(tmp_path, write_all):
    folder = tmp_path / "read-only"
    if os.geteuid():
        folder.mkdir(mode=0o500)
        read_only = contextlib.nullcontext(folder)
    else:
        # root may write anywhere except on a file system that is mounted read-only.
        read_only = mounted(folder, "ro")

    with read_only:
        for result in write_all(folder):
            refused(result, folder)


@pytest.mark.slow
def test_training_on_a_disk_that_fills_up_keeps_whole_checkpoints(tmp_path, toy_work):
    """It stops before the checkpoint that would not fit. There is room for two to eight."""
    with mounted(tmp_path / "small", "size=3m") as small:
        result = train(
            toy_work / "data-bin", small, "--disable-validation", check=False, max_epoch="9"
        )
        refused(result, small, "No space left on device")
        names = {path.name for path in small.iterdir()}
        assert {"checkpoint1.pt", "checkpoint2.pt", "checkpoint_last.pt"} <= names
        assert "checkpoint9.pt" not in names
        for path in small.glob("*.pt"):
            read_checkpoint(path)


@pytest.fixture
def lstm_checkpoint(toy_work, tmp_path):
    """A checkpoint of another model and task of fairseq, whose options are a Namespace."""
    cfg = {
        "model": Namespace(arch="lstm"),
        "task": Namespace(task="translation", data=str(toy_work / "data-bin")),
    }
    torch.save({"model": {"encoder.x": torch.zeros(1)}, "cfg": cfg}, tmp_path / "lstm.pt")
    return tmp_path / "lstm.pt"


def test_a_checkpoint_of_another_fairseq_model_is_not_exported(lstm_checkpoint, tmp_path):
    result = export(lstm_checkpoint, tmp_path / "model", check=False)

    refused(result, lstm_checkpoint, "'lstm'")


def test_training_does_not_start_from_a_checkpoint_of_another_fairseq_task(
    lstm_checkpoint, toy_work, tmp_path
):
    options = {"check": False, "restore_file": str(lstm_checkpoint)}

    result = train(toy_work / "data-bin", tmp_path / "save", **options)

    refused(result, lstm_checkpoint, "translation", "xling_sent")
