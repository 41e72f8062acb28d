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

# 300 sentences, an empty line, and a line longer than the model reads: 302 lines.
LINES = [*(english for english, _ in toy.sentences(300, seed=3)), "", "the dog " * 200]
# Numbers of an embedding of the toy model.
WIDTH = 32


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in.txt"


@pytest.fixture(scope="module")
def expected(toy_model):
    """The embeddings of LINES by the encoder."""
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

    result = embed(toy_model, "--input", truncated, "--output", output, check=False)

    refused(result, truncated)
    assert not output.exists()


def test_standard_input_is_embedded(toy_model, text, expected, tmp_path):
    command = [forked_commands() / "lxsr", "embed", "--model", toy_model, "--input", "-"]
    command += ["--output", tmp_path / "out.npy"]

    with open(text) as stream:
        subprocess.run(command, stdin=stream, check=True, timeout=120)

    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


@pytest.fixture
def embed_pipe(toy_model, text, tmp_path):
    """A function that embeds the text from a named pipe, which can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_and_embed(*options):
        writer = subprocess.Popen(["dd", f"if={text}", f"of={pipe}"], stderr=subprocess.DEVNULL)
        output = ("--output", tmp_path / "out.npy")
        result = embed(toy_model, "--input", pipe, *output, *options, check=False)
        writer.kill()
        writer.wait()
        return result

    return write_and_embed


def test_a_pipe_is_embedded(embed_pipe, expected, tmp_path):
    result = embed_pipe()

    assert "302 embeddings" in result.stdout
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_a_pipe_may_be_embedded_with_resume(embed_pipe):
    assert embed_pipe("--resume").returncode == 0


def test_a_pipe_is_refused_if_a_shard_is_asked_for(embed_pipe):
    """Its lines would have to be counted first."""
    refused(embed_pipe("--shard", "1/2"), "--shard 1/2")


def test_mining_refuses_a_pipe(toy_model, text, tmp_path):
    """It would read the text twice."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    options = ("--source", pipe, "--target", text, "--output", tmp_path / "out.tsv")

    result = lxsr("mine", "--model", toy_model, *options, check=False)

    refused(result, pipe)


def test_a_raw_file_has_the_embeddings_as_laser_reads_them(toy_model, text, expected, tmp_path):
    output = tmp_path / "out.raw"

    result = embed(toy_model, "--input", text, "--output", output, "--format", "raw")

    assert f"302 embeddings of width {WIDTH}, 1 empty, 1 long" in result.stdout
    # The option of LASER's programs.
    assert f"--dim {WIDTH}\n" in result.stdout
    embeddings = np.fromfile(output, "<f4").reshape(-1, WIDTH)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


def test_a_raw_file_has_a_description_beside_it(toy_model, text, tmp_path):
    output = tmp_path / "out.raw"

    embed(toy_model, "--input", text, "--output", output, "--format", "raw")

    description = json.loads((tmp_path / "out.raw.json").read_text())
    assert description["laser_options"] == f"--dim {WIDTH}"
    assert description["count"] == len(LINES)
    assert description["dimension"] == WIDTH
    assert description["dtype"] == "float32"
    assert description["format"] == "raw"
    assert description["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert description["model"] == SentenceEncoder.from_pretrained(toy_model).fingerprint


def test_embeddings_are_truncated_then_normalised_and_written_as_float16(toy_model, text, tmp_path):
    options = ["--output-dtype", "float16", "--normalize", "--truncate-dim", 8]
    options += ["--dtype", "bfloat16"]

    embed(toy_model, "--input", text, "--output", tmp_path / "half.npy", *options)

    half = np.load(tmp_path / "half.npy", mmap_mode="r")
    assert half.dtype == np.float16
    assert half.shape == (len(LINES), 8)
    # The embedding of the empty line is zero.
    lengths = np.linalg.norm(half[:300].astype(float), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-3)


def test_shards_together_have_all_embeddings(toy_model, text, expected, tmp_path):
    shards = []
    for number in (1, 2, 3):
        output = tmp_path / f"{number}.npy"
        embed(toy_model, "--input", text, "--output", output, "--shard", f"{number}/3")
        shards.append(np.load(output))

    # A third of 302 lines each.
    assert [len(shard) for shard in shards] == [100, 101, 101]
    np.testing.assert_allclose(np.concatenate(shards), expected, atol=1e-5)
    # The number of the line, from 1.
    assert json.loads((tmp_path / "2.npy.json").read_text())["first_line"] == 101


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_a_killed_or_interrupted_run_is_resumed_to_the_same_bytes(
    toy_model, tmp_path, number, status
):
    """It is killed while it waits for more input, after it has written a part of the embeddings."""
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

    # The rest of it, and a run that is not killed.
    whole = tmp_path / "whole.npy"
    for arguments in ((output, "--resume"), (whole,)):
        with open(text) as stream:
            command = [forked_commands() / "lxsr", *words, *arguments]
            subprocess.run(command, stdin=stream, check=True, timeout=120)

    assert output.read_bytes() == whole.read_bytes()
    files = ["long.txt", "out.npy", "out.npy.json", "whole.npy", "whole.npy.json"]
    assert sorted(os.listdir(tmp_path)) == files


@pytest.mark.parametrize("option", ["cut", "split-mean"])
def test_a_line_of_60_000_words_is_embedded_and_counted_as_long(toy_model, tmp_path, option):
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
        # More than the width of the embeddings.
        (("--truncate-dim", 99), ("--truncate-dim 99", "32")),
        # The last line is long.
        (("--on-long", "error"), ("in.txt, line 302: 'the dog",)),
        # Outputs that are the input, a folder, the folder of the input, and no file.
        (("--output", "{text}"), ("in.txt",)),
        (("--output", "{folder}"), ("folder",)),
        (("--output", "{folder}/.."), ("in.txt",)),
        (("--output", "/dev/null"), ("/dev/null",)),
    ],
)
def test_wrong_options_are_refused_and_no_file_is_written(
    toy_model, text, tmp_path, options, fragments
):
    content = text.read_bytes()
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [str(word).format(text=text, folder=folder) for word in options]

    command = ("--input", text, "--output", tmp_path / "o.npy", *words)
    result = embed(toy_model, *command, check=False)

    refused(result, *fragments)
    assert text.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["folder", "in.txt"]


def test_an_int8_run_is_not_resumed_with_another_batch_size(toy_model, text, tmp_path):
    """Embeddings of int8 depend on the other sentences of their batch."""
    options = ("--input", text, "--output", tmp_path / "o.npy", "--dtype", "int8")
    embed(toy_model, *options, "--batch-size", 8)

    result = embed(toy_model, *options, "--batch-size", 16, "--resume", check=False)

    refused(result, "batch_size", "8", "16")
