"""`lxsr export hub --push` and `push_to_hub`, with a stand-in for the hub."""

import json

import numpy as np
import pytest
from conftest import contents, lxsr_here, refused
from hub_server import TOKEN, Repository, serving
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.hub import download_model
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_hub, push_to_hub

TEXTS = ["one dog", "un chien"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("push") / "r", gated=True, num_layers=0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The comparison with the library takes seconds, and is tested elsewhere.
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
    with serving(tmp_path / "cache") as server:
        yield server


@pytest.fixture
def token(server, monkeypatch):
    # After `server`, which removes the variable.
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def exported(model, folder, *options, **arguments):
    """Run `lxsr export hub` in a folder."""
    words = ("export", "hub", "--model", model, "--output", "out", *options)
    return lxsr_here(*words, folder=folder, **arguments)


def files_of(server, name, revision="main"):
    repository = server.repositories[name]
    return repository.commits[repository.resolve(revision)]


@pytest.mark.usefixtures("token")
def test_a_model_is_pushed_and_loaded(server, model, tmp_path):
    done = exported(model, tmp_path, "--push", "org/toy", "--private")
    repository = server.repositories["org/toy"]
    assert repository.private
    assert repository.revisions["main"] in done.stdout
    pushed = files_of(server, "org/toy")
    assert pushed == contents(tmp_path / "out")
    assert b'SentenceEncoder.from_pretrained("hub:org/toy")' in pushed["README.md"]
    assert b'StaticModel.from_pretrained("org/toy")' in pushed["README.md"]
    expected = SentenceEncoder.from_pretrained(model).encode(TEXTS)
    pinned = done.stdout.split()[-1]
    assert pinned.startswith("hub:org/toy#sha256=")
    for name in ("hub:org/toy", pinned):
        encoder = SentenceEncoder.from_pretrained(name)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


@pytest.mark.usefixtures("token")
def test_a_push_replaces_the_files_of_an_earlier_model_only(server, model, tmp_path):
    earlier = {"0_SentenceModule/config.json": b"{}", "onnx/model.onnx": b"o", "web.png": b"p"}
    server.repositories["org/toy"] = Repository()
    server.repositories["org/toy"].commit(earlier | {"README.md": b"old"})
    exported(model, tmp_path, "--push", "org/toy")
    pushed = files_of(server, "org/toy")
    assert not pushed.keys() & {"0_SentenceModule/config.json", "onnx/model.onnx"}
    assert pushed["web.png"] == b"p"
    assert pushed["README.md"] != b"old"
    assert not server.repositories["org/toy"].private


@pytest.mark.usefixtures("token")
def test_a_private_model_is_not_pushed_to_a_public_repository(server, model, tmp_path):
    server.repositories["org/toy"] = Repository()
    server.repositories["org/toy"].commit({"README.md": b"public"})
    done = exported(model, tmp_path, "--push", "org/toy", "--private", check=False)
    refused(done, "org/toy", "public", server.url)
    assert files_of(server, "org/toy") == {"README.md": b"public"}


@pytest.mark.usefixtures("token")
def test_a_revision_is_pushed_to_its_branch(server, model, tmp_path):
    server.repositories["org/toy"] = Repository()
    server.repositories["org/toy"].commit({"README.md": b"main"})
    options = ("--push", "org/toy", "--revision", "v2")
    done = exported(model, tmp_path, *options)
    assert files_of(server, "org/toy") == {"README.md": b"main"}
    assert "model.safetensors" in files_of(server, "org/toy", "v2")
    assert "hub:org/toy@v2#sha256=" in done.stdout
    assert download_model("org/toy", "v2").name == server.repositories["org/toy"].revisions["v2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--push", "toy"], ["'toy'", "ORG/NAME"]),
        (["--push", "org/toy@v1"], ["'org/toy@v1'", "ORG/NAME"]),
        (["--push", "org/toy"], ["org/toy", "HF_TOKEN"]),
        (["--private"], ["--private", "--push"]),
        (["--revision", "v1"], ["--revision", "--push"]),
    ],
)
def test_invalid_options_of_a_push_are_refused_before_writing(
    server, model, tmp_path, options, words
):
    done = exported(model, tmp_path, *options, check=False)
    refused(done, *words)
    assert not (tmp_path / "out").exists()
    assert not server.requests


def test_after_a_refused_push_the_folder_can_be_pushed_again(server, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    done = exported(model, tmp_path, "--push", "org/toy", check=False)
    refused(done, "org/toy", server.url, "401")
    assert json.loads((tmp_path / "out" / "modules.json").read_text())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert server.repositories == {}
    push_to_hub("out", "org/toy")
    assert "model.safetensors" in files_of(server, "org/toy")
    with pytest.raises(InputError, match="none"):
        push_to_hub("none", "org/toy")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"org/toy.*HF_HUB_OFFLINE"):
        push_to_hub("out", "org/toy")


def test_a_push_without_huggingface_hub_names_its_installation(model, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    with pytest.raises(InputError, match=r"org/toy: .*huggingface_hub.* -m pip install"):
        push_to_hub("out", "org/toy")


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("path", ["/api/repos/create", ".*/preupload/.*", ".*/commit/.*", ".*"])
@pytest.mark.parametrize("content", [None, 5, "text", [1], {}, {"files": 5}, b"[" * 99_999])
def test_a_malformed_answer_is_refused_in_one_line(server, model, tmp_path, path, content):
    export_hub(SentenceEncoder.from_pretrained(model), "out")
    server.faults[path] = (200, content, {})
    with pytest.raises(InputError, match=rf"org/toy: .*{server.url}") as caught:
        push_to_hub("out", "org/toy")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("token")
def test_a_hub_that_hangs_is_not_awaited(server, model, monkeypatch):
    export_hub(SentenceEncoder.from_pretrained(model), "out")
    monkeypatch.setattr("fairseq_lxsr.encoder.hub.UPLOAD_TIMEOUT", 0.2)
    # The port stays open, so that connections are accepted, but nobody answers.
    server.shutdown()
    with pytest.raises(InputError, match=rf"org/toy: .*{server.url}.*timed out"):
        push_to_hub("out", "org/toy")
