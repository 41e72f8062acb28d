"""`lxsr embed` as a user runs it: any input, any format, killed and resumed."""

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import toy
from conftest import ROOT, forked_commands, refused, wait_until
from conftest import lxsr_here as lxsr

from fairseq_lxsr import SentenceEncoder

LINES = [*(english for english, _ in toy.sentences(300, seed=3)), "", "the dog " * 200]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in.txt"


@pytest.fixture(scope="module")
def expected(toy_model):
    return SentenceEncoder.from_pretrained(toy_model).encode(LINES)


def embed(model, *arguments, check=True):
    return lxsr("embed", "--model", model, *arguments, check=check)


def test_standard_input_packed_files_and_several_files(toy_model, text, expected, tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    output = tmp_path / "out.npy"
    with gzip.open(tmp_path / "a.gz", "wb") as stream:
        stream.write(text.read_bytes()[:1000].rsplit(b"\n", 1)[0] + b"\n")
    first = len(gzip.decompress((tmp_path / "a.gz").read_bytes()))
    (tmp_path / "b.zst").write_bytes(zstd.compress(text.read_bytes()[first:]))
    embed(toy_model, "--input", tmp_path / "a.gz", tmp_path / "b.zst", "--output", output)
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)
    command = [forked_commands() / "lxsr", "embed", "--model", toy_model, "--input", "-"]
    with open(text) as stream:
        subprocess.run(
            [*command, "--output", tmp_path / "std.npy"], stdin=stream, check=True, timeout=120
        )
    np.testing.assert_allclose(np.load(tmp_path / "std.npy"), expected, atol=1e-5)
    (tmp_path / "b.zst").write_bytes((tmp_path / "b.zst").read_bytes()[:-20])
    refused(
        embed(toy_model, "--input", tmp_path / "b.zst", "--output", output, check=False),
        tmp_path / "b.zst",
    )


def test_a_pipe_is_read_once(toy_model, text, expected, tmp_path):
    pipe, output = tmp_path / "pipe", tmp_path / "out.npy"
    os.mkfifo(pipe)

    def embedded(*options):
        feeding = subprocess.Popen(["dd", f"if={text}", f"of={pipe}"], stderr=subprocess.DEVNULL)
        done = embed(toy_model, "--input", pipe, "--output", output, *options, check=False)
        feeding.kill()
        feeding.wait()
        return done

    assert "302 embeddings" in embedded().stdout
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)
    assert embedded("--resume").returncode == 0
    refused(embedded("--shard", "1/2"), "--shard 1/2")
    done = lxsr(
        "mine",
        "--model",
        toy_model,
        "--source",
        pipe,
        "--target",
        text,
        "--output",
        output,
        check=False,
    )
    refused(done, pipe)


def test_formats_and_index(toy_model, text, expected, tmp_path):
    done = embed(toy_model, "--input", text, "--output", tmp_path / "out.raw", "--format", "raw")
    assert "302 embeddings of width 32, 1 empty, 1 long" in done.stdout
    np.testing.assert_allclose(
        np.fromfile(tmp_path / "out.raw", "<f4").reshape(-1, 32), expected, atol=1e-5
    )
    assert "--dim 32\n" in done.stdout
    index = json.loads((tmp_path / "out.raw.json").read_text())
    assert index["laser_options"] == "--dim 32"
    assert (index["count"], index["dimension"], index["dtype"], index["format"]) == (
        302,
        32,
        "float32",
        "raw",
    )
    assert index["sha256"] == hashlib.sha256((tmp_path / "out.raw").read_bytes()).hexdigest()
    assert index["model"] == SentenceEncoder.from_pretrained(toy_model).fingerprint
    options = (
        "--output-dtype",
        "float16",
        "--normalize",
        "--truncate-dim",
        8,
        "--dtype",
        "bfloat16",
    )
    embed(toy_model, "--input", text, "--output", tmp_path / "half.npy", *options)
    half = np.load(tmp_path / "half.npy", mmap_mode="r")
    assert (half.dtype, half.shape) == (np.float16, (302, 8))
    np.testing.assert_allclose(np.linalg.norm(half[:300].astype(float), axis=1), 1, atol=1e-3)


def test_shards_are_the_whole(toy_model, text, expected, tmp_path):
    for part in (1, 2, 3):
        embed(
            toy_model, "--input", text, "--output", tmp_path / f"{part}.npy", "--shard", f"{part}/3"
        )
    parts = [np.load(tmp_path / f"{part}.npy") for part in (1, 2, 3)]
    assert [len(part) for part in parts] == [100, 101, 101]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-5)
    assert json.loads((tmp_path / "2.npy.json").read_text())["first_line"] == 101


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_killed_and_resumed(toy_model, tmp_path, sent, status):
    """Killed while it waits for the rest of the second window; then the bytes of an uninterrupted
    run.
    """
    text, output = tmp_path / "long.txt", tmp_path / "out.npy"
    text.write_text("".join(f"{line}\n" for line in LINES[:300] * 70))
    words = ["embed", "--model", toy_model, "--input", "-", "--output"]
    command, pipe = [sys.executable, "-m", "fairseq_lxsr.cli.main", *words, output], subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stderr=pipe, text=True)
    process.stdin.write(text.read_text())
    process.stdin.flush()
    wait_until((tmp_path / "out.npy.progress").exists, process)
    process.send_signal(sent)
    process.wait(60)
    _, errors = process.communicate()
    assert process.returncode == status, errors
    assert not output.exists()
    for name, *options in ((output, "--resume"), (tmp_path / "whole.npy",)):
        with open(text) as stream:
            command = [forked_commands() / "lxsr", *words, name, *options]
            subprocess.run(command, stdin=stream, check=True, timeout=120)
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [
        "long.txt",
        "out.npy",
        "out.npy.json",
        "whole.npy",
        "whole.npy.json",
    ]


@pytest.mark.parametrize("way", ["cut", "split-mean"])
def test_a_line_of_any_number_of_words(toy_model, tmp_path, way):
    (tmp_path / "in.txt").write_text(f"the dog\n{'the dog sees ' * 20_000}\nlast\n")
    done = embed(
        toy_model, "--input", tmp_path / "in.txt", "--output", tmp_path / "o.npy", "--on-long", way
    )
    assert "3 embeddings" in done.stdout
    assert "1 long" in done.stdout


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("--shard", "4/3"), ("--shard", "4/3")),
        (("--truncate-dim", 99), ("--truncate-dim 99", "32")),
        (("--on-long", "error"), ("in.txt, line 302: 'the dog",)),
        (("--output", "{text}"), ("in.txt",)),
        (("--output", "{folder}"), ("folder",)),
        (("--output", "{folder}/.."), ("in.txt",)),
        (("--output", "/dev/null"), ("/dev/null",)),
    ],
)
def test_what_is_refused(toy_model, text, tmp_path, options, fragments):
    before, folder = text.read_bytes(), tmp_path / "folder"
    folder.mkdir()
    words = [str(word).format(text=text, folder=folder) for word in options]
    refused(
        embed(toy_model, "--input", text, "--output", tmp_path / "o.npy", *words, check=False),
        *fragments,
    )
    assert text.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["folder", "in.txt"]


def test_another_batch_size_of_int8_is_not_gone_on_with(toy_model, text, tmp_path):
    options = ("--input", text, "--output", tmp_path / "o.npy", "--dtype", "int8")
    embed(toy_model, *options, "--batch-size", 8)
    done = embed(toy_model, *options, "--batch-size", 16, "--resume", check=False)
    refused(done, "batch_size", "8", "16")
