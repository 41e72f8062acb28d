"""`lxsr export hub --push` and `push_to_hub`, with a stand-in for the hub."""

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
    """A model folder without layers."""
    return write_model(tmp_path_factory.mktemp("push") / "r", gated=True, num_layers=0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A stand-in for the hub without repositories; the working directory is `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    # The comparison with the library takes seconds, and is tested elsewhere.
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
    with serving(tmp_path / "cache") as server:
        yield server


@pytest.fixture
def token(server, monkeypatch):
    """The token that the stand-in accepts."""
    # After `server`, which removes the variable.
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def export_for_hub(model, folder, *options, **arguments):
    """Run `lxsr export hub` in a folder; the exported folder is its subfolder `out`."""
    words = ("export", "hub", "--model", model, "--output", "out", *options)
    return lxsr_here(*words, folder=folder, **arguments)


def files_of(server, name, revision="main") -> dict[str, bytes]:
    """Return the files of a repository at a revision."""
    repository = server.repositories[name]
    return repository.commits[repository.resolve(revision)]


def add_repository(server, files: dict[str, bytes]) -> Repository:
    """Make the public repository org/toy with a commit of files."""
    repository = Repository()
    repository.commit(files)
    server.repositories["org/toy"] = repository
    return repository


@pytest.mark.usefixtures("token")
def test_a_push_commits_the_files_of_the_exported_folder(server, model, tmp_path):
    done = export_for_hub(model, tmp_path, "--push", "org/toy")

    assert files_of(server, "org/toy") == contents(tmp_path / "out")
    # The output names the commit.
    assert server.repositories["org/toy"].revisions["main"] in done.stdout


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize(("options", "is_private"), [((), False), (("--private",), True)])
def test_a_new_repository_is_private_only_with_the_option(
    server, model, tmp_path, options, is_private
):
    export_for_hub(model, tmp_path, "--push", "org/toy", *options)

    assert server.repositories["org/toy"].private == is_private


@pytest.mark.usefixtures("token")
def test_the_card_of_a_pushed_model_has_code_with_its_name(server, model, tmp_path):
    export_for_hub(model, tmp_path, "--push", "org/toy")

    card = files_of(server, "org/toy")["README.md"].decode()
    assert 'SentenceEncoder.from_pretrained("hub:org/toy")' in card
    assert 'StaticModel.from_pretrained("org/toy")' in card


@pytest.mark.usefixtures("token")
def test_a_pushed_model_is_loaded_by_its_name_and_by_the_printed_checksum(server, model, tmp_path):
    done = export_for_hub(model, tmp_path, "--push", "org/toy")

    name_with_checksum = done.stdout.split()[-1]
    assert name_with_checksum.startswith("hub:org/toy#sha256=")
    expected = SentenceEncoder.from_pretrained(model).encode(TEXTS)
    for name in ("hub:org/toy", name_with_checksum):
        encoder = SentenceEncoder.from_pretrained(name)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


@pytest.mark.usefixtures("token")
def test_a_push_replaces_the_files_of_an_earlier_model_only(server, model, tmp_path):
    # Files that an export with layers and a graph wrote, and a picture.
    files_of_a_model = {"0_SentenceModule/config.json": b"{}", "onnx/model.onnx": b"o"}
    add_repository(server, files_of_a_model | {"README.md": b"old", "web.png": b"picture"})

    export_for_hub(model, tmp_path, "--push", "org/toy")

    pushed = files_of(server, "org/toy")
    assert not pushed.keys() & files_of_a_model.keys()
    assert pushed["README.md"] != b"old"
    assert pushed["web.png"] == b"picture"


@pytest.mark.usefixtures("token")
def test_a_private_model_is_not_pushed_to_a_public_repository(server, model, tmp_path):
    add_repository(server, {"README.md": b"public"})

    done = export_for_hub(model, tmp_path, "--push", "org/toy", "--private", check=False)

    refused(done, "org/toy", "public", server.url)
    assert files_of(server, "org/toy") == {"README.md": b"public"}


@pytest.mark.usefixtures("token")
def test_a_revision_is_pushed_to_its_branch(server, model, tmp_path):
    repository = add_repository(server, {"README.md": b"main"})

    done = export_for_hub(model, tmp_path, "--push", "org/toy", "--revision", "v2")

    assert files_of(server, "org/toy") == {"README.md": b"main"}
    assert "model.safetensors" in files_of(server, "org/toy", "v2")
    assert "hub:org/toy@v2#sha256=" in done.stdout
    assert download_model("org/toy", "v2").name == repository.revisions["v2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--push", "toy"], ["'toy'", "ORG/NAME"], id="no organisation"),
        pytest.param(["--push", "org/toy@v1"], ["'org/toy@v1'", "ORG/NAME"], id="with a revision"),
        pytest.param(["--push", "org/toy"], ["org/toy", "HF_TOKEN"], id="no token"),
        pytest.param(["--private"], ["--private", "--push"], id="private without push"),
        pytest.param(["--revision", "v1"], ["--revision", "--push"], id="revision without push"),
    ],
)
def test_invalid_options_of_a_push_are_refused_before_writing(
    server, model, tmp_path, options, words
):
    done = export_for_hub(model, tmp_path, *options, check=False)

    refused(done, *words)
    assert not (tmp_path / "out").exists()
    assert not server.requests


def test_a_folder_whose_push_was_refused_can_be_pushed_again(server, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    done = export_for_hub(model, tmp_path, "--push", "org/toy", check=False)
    refused(done, "org/toy", server.url, "401")
    assert server.repositories == {}

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    push_to_hub("out", "org/toy")

    assert files_of(server, "org/toy") == contents(tmp_path / "out")


@pytest.mark.usefixtures("token")
def test_a_push_of_a_missing_folder_is_refused():
    with pytest.raises(InputError, match="none"):
        push_to_hub("none", "org/toy")


@pytest.mark.usefixtures("token")
def test_a_push_is_refused_if_the_hub_is_set_offline(model, monkeypatch):
    export_hub(SentenceEncoder.from_pretrained(model), "out")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(InputError, match=r"org/toy.*HF_HUB_OFFLINE"):
        push_to_hub("out", "org/toy")


def test_a_push_without_huggingface_hub_names_its_installation(model, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)

    with pytest.raises(InputError, match=r"org/toy: .*huggingface_hub.* -m pip install"):
        push_to_hub("out", "org/toy")


# The addresses that a push asks in turn, and all of them at once.
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
def test_a_push_to_a_hub_that_hangs_ends_after_the_timeout(server, model, monkeypatch):
    export_hub(SentenceEncoder.from_pretrained(model), "out")
    monkeypatch.setattr("fairseq_lxsr.encoder.hub.UPLOAD_TIMEOUT", 0.2)
    # The port stays open, so that connections are accepted, but nobody answers.
    server.shutdown()

    with pytest.raises(InputError, match=rf"org/toy: .*{server.url}.*timed out"):
        push_to_hub("out", "org/toy")
