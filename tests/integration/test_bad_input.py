"""Every bad input: one line that names it, exit status 2, no traceback, nothing half-written."""

import gzip
import os
import shutil
import subprocess
from argparse import Namespace

import pytest
import torch
import toy
from conftest import lxsr, lxsr_here, refused, run, train, train_here

from fairseq_lxsr.encoder.checkpoint import read_checkpoint


def prepare(work, data, *options):
    return lxsr("prepare", "--work", work, "--data", data, *options, check=False)


@pytest.fixture
def text(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(400))
    return tmp_path / "text"


SMALL = ("--valid-size", 20, "--test-size", 20, "--vocab-size", 150)


@pytest.fixture
def nothing_left(tmp_path):
    """After the test: the work folder has no half-written file or folder in it."""
    yield
    leftovers = [path for path in tmp_path.rglob("*") if ".tmp" in path.name or path.name.startswith(".")]
    assert not leftovers


pytestmark = pytest.mark.usefixtures("nothing_left")


def spoil_line(path, number, content: bytes):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = content + b"\n"
    path.write_bytes(b"".join(lines))


def test_missing_file(tmp_path, text):
    (tmp_path / "text.fr").unlink()
    refused(prepare(tmp_path / "work", text), f"{text}.fr", "no such file")
    refused(prepare(tmp_path / "work", tmp_path / "none.tsv"), "none.tsv", "no such file")
    assert not (tmp_path / "work" / "corpus" / "en-fr").exists()


def test_empty_file(tmp_path, text):
    for language in ("en", "fr"):
        (tmp_path / f"text.{language}").write_text("")
    refused(prepare(tmp_path / "work", text), "text.en", "empty file")


def test_unequal_line_counts(tmp_path, text):
    with open(tmp_path / "text.fr", "a") as stream:
        stream.write("une ligne de trop\n" * 3)
    refused(prepare(tmp_path / "work", text), "text.en has 400 lines", "text.fr has 403")


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"caf\xe9 noir", ("bytes e9 20 6e 6f", "not UTF-8")),
        (b"a NUL \x00 here", ("NUL character at column 7",)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_line_is_named(tmp_path, text, content, fragments, packed):
    path = tmp_path / "text.fr"
    spoil_line(path, 17, content)
    if packed:
        (tmp_path / "text.fr.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = tmp_path / "text.fr.gz"
    refused(prepare(tmp_path / "work", text), f"{path}, line 17", *fragments)


def test_a_line_that_is_no_sentence_is_counted(tmp_path, text):
    spoil_line(tmp_path / "text.fr", 17, b"word " * 100_000)
    done = lxsr("clean", "--work", tmp_path / "work", "--data", text, *SMALL[:4])
    assert "dropped: 1 over 10,000 words" in done.stdout


def test_gzip_cut_off(tmp_path, text):
    packed = tmp_path / "text.fr.gz"
    packed.write_bytes(gzip.compress((tmp_path / "text.fr").read_bytes())[:-20])
    (tmp_path / "text.fr").unlink()
    refused(prepare(tmp_path / "work", text), packed, "not a whole packed file")


def test_tsv_without_a_tab(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{en}\t{fr}\n" for en, fr in toy.sentences(100)) + "only one column\n")
    refused(prepare(tmp_path / "work", path), f"{path}, line 101", "only one column", "no tab")


def test_too_little_text(tmp_path, text):
    refused(prepare(tmp_path / "work", text, "--test-size", 300), "400 usable sentence pairs", "smaller --valid-size")


def test_vocabulary_size_the_corpus_cannot_give(tmp_path, text):
    refused(prepare(tmp_path / "work", text, *SMALL[:4], "--vocab-size", 9000), "9,000", "at most")
    refused(prepare(tmp_path / "work", text, *SMALL[:4], "--vocab-size", 12), "12", "too small")
    assert not (tmp_path / "work" / "subwords").exists()


def test_machine_without_catalogues(tmp_path):
    empty = tmp_path / "locale"
    empty.mkdir()
    done = lxsr("prepare", "--work", tmp_path / "work", "--locale-dir", empty, check=False)
    refused(done, "'fr'", "no gettext catalogues", "--data PREFIX")


def test_unknown_language(tmp_path, toy_work):
    done = lxsr("clean", "--work", tmp_path / "work", "--lang-pairs", "en-qq", check=False)
    refused(done, "'qq'", "this machine has no gettext catalogues of it")
    done = train_here(toy_work / "data-bin", tmp_path / "save", lang_pairs="en-de")
    refused(done, "en-de", "dict.de.txt", "the languages there are: en, fr")
    done = train_here(toy_work / "data-bin", tmp_path / "save", lang_pairs="english")
    refused(done, "'english'", "SRC-TGT")


def test_dictionary_that_is_not_joined(tmp_path, toy_work):
    shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    with open(tmp_path / "data" / "dict.fr.txt", "a") as stream:
        stream.write("extra 1\n")
    refused(train_here(tmp_path / "data", tmp_path / "save"), "dict.fr.txt", "--joined-dictionary")


def test_a_width_that_the_heads_do_not_divide(tmp_path, toy_work):
    done = train_here(toy_work / "data-bin", tmp_path / "save", encoder_attention_heads="3")
    refused(done, "num_heads 3", "expected")


def test_negatives_that_masks_would_tell_apart(tmp_path, toy_work):
    done = train_here(toy_work / "data-bin", tmp_path / "save", "--hard-negatives", "swap")
    refused(done, "--hard-negatives swap with --objective ugt", "expected none")
    done = train_here(toy_work / "data-bin", tmp_path / "save", "--word-dropout", "0.1", objective="mlm")
    refused(done, "--word-dropout 0.1 with --objective mlm")


def test_data_that_is_not_there(tmp_path, toy_work):
    refused(train_here(tmp_path / "none", tmp_path / "save"), tmp_path / "none", "no such data folder")
    (tmp_path / "bare").mkdir()
    refused(train_here(tmp_path / "bare", tmp_path / "save"), tmp_path / "bare", "fairseq-preprocess")
    shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    (tmp_path / "data" / "train.en-fr.fr.bin").unlink()
    refused(train_here(tmp_path / "data", tmp_path / "save"), "train.en-fr.fr", "no such file")


def test_data_of_unequal_sides(tmp_path, toy_work):
    shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    for ending in ("bin", "idx"):
        shutil.copy(tmp_path / "data" / f"test.en-fr.fr.{ending}", tmp_path / "data" / f"train.en-fr.fr.{ending}")
    refused(train_here(tmp_path / "data", tmp_path / "save"), "900 sentences in en", "200 in fr")


@pytest.mark.parametrize("task", ["xling_sent", "xling_translation"])
def test_data_cut_off(tmp_path, toy_work, task):
    options = {"task": task, "arch": "laser_tiny", "criterion": f"{task}_loss"} if task != "xling_sent" else {}
    shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    path = tmp_path / "data" / "train.en-fr.fr.bin"
    path.write_bytes(path.read_bytes()[:-100])
    refused(train_here(tmp_path / "data", tmp_path / "save", **options), path, "cut off")


@pytest.mark.parametrize(
    ("name", "change", "fragment"),
    [
        ("model.safetensors", lambda path: path.unlink(), "not whole"),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-4]), "differs"),
        ("sentencepiece.model", lambda path: path.write_bytes(b"x"), "differs"),
        ("dict.txt", lambda path: path.unlink(), "not whole"),
        ("config.json", lambda path: path.write_text("{"), "not the description of a model folder"),
        ("config.json", lambda path: path.unlink(), "no such file, so the folder is no model"),
        (
            "config.json",
            lambda path: path.write_text(path.read_text().replace('version": 1', 'version": 9')),
            "format 9",
        ),
    ],
)
def test_model_folder_that_is_not_whole(tmp_path, toy_model, name, change, fragment):
    shutil.copytree(toy_model, tmp_path / "model")
    change(tmp_path / "model" / name)
    (tmp_path / "in.txt").write_text("a dog\n")
    done = lxsr(
        "embed",
        "--model",
        tmp_path / "model",
        "--input",
        tmp_path / "in.txt",
        "--output",
        tmp_path / "o.npy",
        check=False,
    )
    refused(done, tmp_path / "model" / name, fragment)
    assert not (tmp_path / "o.npy").exists()


def test_export_without_what_it_needs(tmp_path, toy_work, toy_checkpoint):
    shutil.copytree(toy_work / "data-bin", tmp_path / "data")
    export = (
        "export",
        "folder",
        "--checkpoint",
        toy_checkpoint,
        "--output",
        tmp_path / "model",
        "--data",
        tmp_path / "data",
    )
    (tmp_path / "data" / "text.json").unlink()
    refused(lxsr(*export, check=False), "text.json", "--lowercase")
    (tmp_path / "data" / "sentencepiece.model").unlink()
    refused(lxsr(*export, check=False), "sentencepiece.model", "--sentencepiece-model")
    (tmp_path / "other.model").write_text("no model")
    refused(lxsr(*export, "--lowercase", "--sentencepiece-model", tmp_path / "other.model", check=False), "other.model")
    assert not (tmp_path / "model").exists()


def test_export_does_not_replace_what_is_no_model_folder(tmp_path, toy_checkpoint):
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.txt").write_text("words")
    refused(
        lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", precious, check=False),
        precious,
        "not replaced",
    )
    assert (precious / "chapter1.txt").read_text() == "words"


def test_embed_bad_text(tmp_path, toy_model):
    embed = ("embed", "--model", toy_model, "--output", tmp_path / "o.npy", "--input")
    (tmp_path / "empty.txt").write_text("")
    refused(lxsr(*embed, tmp_path / "empty.txt", check=False), "empty.txt", "empty file")
    (tmp_path / "latin.txt").write_bytes(b"fine\n\xff\xfe\n")
    refused(lxsr(*embed, tmp_path / "latin.txt", check=False), "latin.txt, line 2", "ff fe")
    refused(lxsr(*embed, tmp_path / "none.txt", check=False), "none.txt", "no such file")
    assert not (tmp_path / "o.npy").exists()


def test_eval_bad_text(tmp_path, toy_model):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("un\n")
    evaluate = ("eval", "xsr", "--model", toy_model, "--source", tmp_path / "a.txt", "--target")
    refused(lxsr(*evaluate, tmp_path / "b.txt", check=False), "a.txt has 2 lines", "b.txt has 1")
    refused(lxsr(*evaluate, tmp_path / "a.txt", check=False), "2 usable sentence pairs", "at least 10")


def test_full_disk(tmp_path, text, toy_work, toy_model, toy_checkpoint):
    """On a file system of 64 KiB nothing fits, and nothing is left of it."""
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
    if mount.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        refused(prepare(small / "work", text, *SMALL), "No space left on device")
        lines = tmp_path / "in.txt"
        lines.write_text("a dog sees the cat\n" * 2000)
        refused(
            lxsr("embed", "--model", toy_model, "--input", lines, "--output", small / "o.npy", check=False),
            "No space left",
        )
        refused(
            lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", small / "model", check=False), "space"
        )
        refused(
            train(toy_work / "data-bin", small / "save", "--disable-validation", check=False, max_epoch="1"), "space"
        )
        # the corpus stage fitted and is whole; nothing else is there
        assert {path.parent.name for path in small.rglob("*") if path.is_file()} <= {"en-fr"}
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_disk_that_fills_up_during_training(tmp_path, toy_work):
    """Training stops before the checkpoint that would not fit; all earlier ones are whole."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        done = train(toy_work / "data-bin", small, "--disable-validation", check=False, max_epoch="9")
        refused(done, small, "No space left on device for a checkpoint")
        names = {path.name for path in small.iterdir()}
        assert {"checkpoint1.pt", "checkpoint2.pt", "checkpoint_last.pt"} <= names
        assert "checkpoint9.pt" not in names
        for path in small.glob("*.pt"):
            read_checkpoint(path)
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@pytest.fixture
def read_only(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    # root may write anywhere but on a file system that is mounted read-only
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a read-only file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_no_write_permission(tmp_path, read_only, text, toy_work, toy_model, toy_checkpoint):
    lines = tmp_path / "in.txt"
    lines.write_text("a dog\n")
    refused(prepare(read_only / "work", text, *SMALL), read_only)
    refused(
        lxsr("embed", "--model", toy_model, "--input", lines, "--output", read_only / "o.npy", check=False), read_only
    )
    refused(
        lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", read_only / "model", check=False),
        read_only,
    )
    refused(
        train(toy_work / "data-bin", read_only / "save", "--disable-validation", check=False, max_epoch="1"), read_only
    )


def test_command_line_mistakes_are_named():
    for arguments in ([], ["embed"], ["clean", "--lang-pairs", "en"], ["clean", "--lang-pairs", "en-en"]):
        done = run("fairseq_lxsr.cli.main", *arguments, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_a_checkpoint_of_another_program(toy_work, tmp_path):
    """fairseq's older models and tasks keep their options as a Namespace."""
    cfg = {"model": Namespace(arch="lstm"), "task": Namespace(task="translation", data=str(toy_work / "data-bin"))}
    torch.save({"model": {"encoder.x": torch.zeros(1)}, "cfg": cfg}, tmp_path / "lstm.pt")
    done = lxsr_here(
        "export", "folder", "--checkpoint", tmp_path / "lstm.pt", "--output", tmp_path / "model", check=False
    )
    refused(done, tmp_path / "lstm.pt", "a checkpoint of 'lstm'", "laser, tlaser, transformer")
    done = train(toy_work / "data-bin", tmp_path / "save", check=False, restore_file=str(tmp_path / "lstm.pt"))
    refused(done, tmp_path / "lstm.pt", "trained by --task translation, not xling_sent")
