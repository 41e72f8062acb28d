"""`lxsr embed`: kinds of input, formats of output, shards, and runs that are killed and resumed."""

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


def test_several_compressed_files_are_embedded_as_one_text(toy_model, text, expected, tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    output = tmp_path / "out.npy"
    content = text.read_bytes()
    end_of_first = content.rindex(b"\n", 0, 1000) + 1
    first = tmp_path / "a.gz"
    second = tmp_path / "b.zst"
    first.write_bytes(gzip.compress(content[:end_of_first]))
    second.write_bytes(zstd.compress(content[end_of_first:]))

    embed(toy_model, "--input", first, second, "--output", output)

    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)


def test_a_truncated_zstandard_file_is_refused(toy_model, text, tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    truncated = tmp_path / "text.zst"
    truncated.write_bytes(zstd.compress(text.read_bytes())[:-20])
    output = tmp_path / "out.npy"
    refused(embed(toy_model, "--input", truncated, "--output", output, check=False), truncated)
    assert not output.exists()


def test_standard_input_is_embedded(toy_model, text, expected, tmp_path):
    command = [forked_commands() / "lxsr", "embed", "--model", toy_model, "--input", "-"]
    command += ["--output", tmp_path / "out.npy"]
    with open(text) as stream:
        subprocess.run(command, stdin=stream, check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_a_pipe_is_embedded_or_refused_where_it_would_be_read_twice(
    toy_model, text, expected, tmp_path
):
    pipe = tmp_path / "pipe"
    output = tmp_path / "out.npy"
    os.mkfifo(pipe)

    def embed_pipe(*options):
        writer = subprocess.Popen(["dd", f"if={text}", f"of={pipe}"], stderr=subprocess.DEVNULL)
        result = embed(toy_model, "--input", pipe, "--output", output, *options, check=False)
        writer.kill()
        writer.wait()
        return result

    assert "302 embeddings" in embed_pipe().stdout
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)
    assert embed_pipe("--resume").returncode == 0
    refused(embed_pipe("--shard", "1/2"), "--shard 1/2")
    mine = ("mine", "--model", toy_model, "--source", pipe, "--target", text, "--output", output)
    refused(lxsr(*mine, check=False), pipe)


def test_a_raw_file_has_a_description_with_the_options_of_laser(
    toy_model, text, expected, tmp_path
):
    output = tmp_path / "out.raw"
    result = embed(toy_model, "--input", text, "--output", output, "--format", "raw")
    assert "302 embeddings of width 32, 1 empty, 1 long" in result.stdout
    assert "--dim 32\n" in result.stdout
    embeddings = np.fromfile(output, "<f4").reshape(-1, 32)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)
    description = json.loads((tmp_path / "out.raw.json").read_text())
    assert description["laser_options"] == "--dim 32"
    assert description["count"] == 302
    assert description["dimension"] == 32
    assert description["dtype"] == "float32"
    assert description["format"] == "raw"
    assert description["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert description["model"] == SentenceEncoder.from_pretrained(toy_model).fingerprint


def test_embeddings_are_normalised_truncated_and_written_as_float16(toy_model, text, tmp_path):
    options = ["--output-dtype", "float16", "--normalize", "--truncate-dim", 8]
    options += ["--dtype", "bfloat16"]
    embed(toy_model, "--input", text, "--output", tmp_path / "half.npy", *options)
    half = np.load(tmp_path / "half.npy", mmap_mode="r")
    assert half.dtype == np.float16
    assert half.shape == (302, 8)
    lengths = np.linalg.norm(half[:300].astype(float), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-3)


def test_shards_together_have_all_embeddings(toy_model, text, expected, tmp_path):
    shards = []
    for number in (1, 2, 3):
        output = tmp_path / f"{number}.npy"
        embed(toy_model, "--input", text, "--output", output, "--shard", f"{number}/3")
        shards.append(np.load(output))
    assert [len(shard) for shard in shards] == [100, 101, 101]
    np.testing.assert_allclose(np.concatenate(shards), expected, atol=1e-5)
    assert json.loads((tmp_path / "2.npy.json").read_text())["first_line"] == 101


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_a_killed_run_is_resumed_to_the_same_bytes(toy_model, tmp_path, number, status):
    """It is killed while it waits for the rest of the second window."""
    text = tmp_path / "long.txt"
    output = tmp_path / "out.npy"
    text.write_text("".join(f"{line}\n" for line in LINES[:300] * 70))
    words = ["embed", "--model", toy_model, "--input", "-", "--output"]
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", *words, output]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, **pipes)
    process.stdin.write(text.read_text())
    process.stdin.flush()
    wait_until((tmp_path / "out.npy.progress").exists, process)
    process.send_signal(number)
    process.wait(60)
    _, errors = process.communicate()
    assert process.returncode == status, errors
    assert not output.exists()

    whole = tmp_path / "whole.npy"
    for arguments in ((output, "--resume"), (whole,)):
        with open(text) as stream:
            command = [forked_commands() / "lxsr", *words, *arguments]
            subprocess.run(command, stdin=stream, check=True, timeout=120)
    assert output.read_bytes() == whole.read_bytes()
    files = ["long.txt", "out.npy", "out.npy.json", "whole.npy", "whole.npy.json"]
    assert sorted(os.listdir(tmp_path)) == files


@pytest.mark.parametrize("option", ["cut", "split-mean"])
def test_a_line_of_any_number_of_words_is_embedded(toy_model, tmp_path, option):
    text = tmp_path / "in.txt"
    text.write_text(f"the dog\n{'the dog sees ' * 20_000}\nlast\n")
    output = tmp_path / "o.npy"
    result = embed(toy_model, "--input", text, "--output", output, "--on-long", option)
    assert "3 embeddings" in result.stdout
    assert "1 long" in result.stdout


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
def test_wrong_options_are_refused(toy_model, text, tmp_path, options, fragments):
    content = text.read_bytes()
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [str(word).format(text=text, folder=folder) for word in options]
    command = ("--input", text, "--output", tmp_path / "o.npy", *words)
    refused(embed(toy_model, *command, check=False), *fragments)
    assert text.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["folder", "in.txt"]


def test_an_int8_run_is_not_resumed_with_another_batch_size(toy_model, text, tmp_path):
    options = ("--input", text, "--output", tmp_path / "o.npy", "--dtype", "int8")
    embed(toy_model, *options, "--batch-size", 8)
    result = embed(toy_model, *options, "--batch-size", 16, "--resume", check=False)
    refused(result, "batch_size", "8", "16")
