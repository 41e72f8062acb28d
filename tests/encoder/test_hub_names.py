"""Models by their names on a hub: what is downloaded, the cache, revisions and checksums."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import random_model
from conftest import lxsr_here, python, refused
from hub_server import serving

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.serve import default_name
from fairseq_lxsr.encoder import hub
from fairseq_lxsr.encoder.locate import find_model, name_of
from fairseq_lxsr.encoder.st_checksums import add_checksums
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_hub
from fairseq_lxsr.export.card import write_card
from fairseq_lxsr.export.st_folder import write_for_st
from fairseq_lxsr.search import CorpusIndex

huggingface_hub = pytest.importorskip("huggingface_hub")

TEXTS = ["one dog", "un chien"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder without layers, with its card."""
    path = tmp_path_factory.mktemp("made") / "made"
    folder = random_model.write_model(path, gated=True, num_layers=0)
    write_card(folder, SentenceEncoder.from_pretrained(folder))
    return folder


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """The same model, as `lxsr export hub --onnx` writes it, but not compared with libraries."""
    folder = tmp_path_factory.mktemp("exported") / "my-model"
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").write_bytes(b"a graph")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
        write_for_st(SentenceEncoder.from_pretrained(model), folder)
    add_checksums(folder)
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "cache") as server:
        yield server


def close(server):
    """Close the server, and the connection to it that huggingface_hub keeps."""
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["model", "exported"])
def test_a_name_of_a_hub_loads_the_same_model(server, request, kind):
    folder = request.getfixturevalue(kind)
    hostile_files = {"pytorch_model__bin": b"pickled", "modeling__py": b"1 / 0", "x__pkl": b"p"}
    commit = server.add("org/toy", folder, **hostile_files)
    encoder = SentenceEncoder.from_pretrained("hub:org/toy")
    expected = SentenceEncoder.from_pretrained(folder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected.encode(TEXTS))
    assert encoder.fingerprint == expected.fingerprint
    assert encoder.folder.name == commit
    assert name_of(encoder.folder) == "org/toy"
    files = [path for path in encoder.folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {*hub.DATA_ENDINGS, ".md"}
    assert not (encoder.folder / "onnx").exists()


def test_a_cached_model_needs_no_server(server, model, monkeypatch):
    server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    num_requests = len(server.requests)
    hub.download_model.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_model("hub:org/toy") == folder
    with pytest.raises(InputError, match=r"org/other: .*HF_HUB_OFFLINE"):
        find_model("hub:org/other")
    assert len(server.requests) == num_requests


def test_a_process_keeps_the_version_that_it_downloaded_first(server, model, exported):
    server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    newest = server.add("org/toy", exported)
    assert find_model("hub:org/toy") == folder
    assert find_model(f"hub:org/toy@{newest}").name == newest


def test_a_revision_is_a_tag_or_a_commit(server, model, exported):
    first = server.add("org/toy", model, "v1")
    second = server.add("org/toy", exported, "main")
    assert find_model("hub:org/toy").name == second
    for name, options in (
        ("hub:org/toy@v1", {}),
        ("hub:org/toy", {"revision": "v1"}),
        ("hub:org/toy@v1", {"revision": "v1"}),
        (f"hub:org/toy@{first}", {}),
    ):
        assert find_model(name, **options).name == first
    for name, options in (("hub:org/toy@v2", {}), ("hub:org/toy", {"revision": "v2"})):
        with pytest.raises(InputError, match=r"org/toy: .*'v2'"):
            find_model(name, **options)
    with pytest.raises(InputError, match=r"org/toy@v1: .*'main'"):
        find_model("hub:org/toy@v1", revision="main")


def test_the_environment_names_the_server_and_the_cache(server, model, tmp_path):
    """Runs in a separate process, because huggingface_hub reads the variables on import."""
    server.add("org/toy", model)
    home = tmp_path / "home"
    code = """from fairseq_lxsr import SentenceEncoder
print(SentenceEncoder.from_pretrained("hub:org/toy").folder)"""
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(home)}
    folder = python(code, env=environment | {"HF_HUB_OFFLINE": "0"})
    assert folder.startswith(f"{home}/hub/models--org--toy/snapshots/")
    num_requests = len(server.requests)
    assert python(code, env=environment | {"HF_HUB_OFFLINE": "1"}) == folder
    assert len(server.requests) == num_requests


def test_a_private_model_needs_the_token_of_the_environment(server, model, monkeypatch):
    server.add("org/toy", model)
    server.repositories["org/toy"].private = True
    with pytest.raises(InputError, match=rf"org/toy: .*{server.url}.*HF_TOKEN"):
        find_model("hub:org/toy")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert (find_model("hub:org/toy") / "config.json").is_file()


def test_a_path_is_never_sent_to_a_hub(server, model, tmp_path):
    """A mistyped folder would load a model of whoever has registered its name."""
    server.add("run/model", model)
    for name in ("run/model", "run/model@v1", "run/model#sha256=" + "0" * 64, Path("run/model")):
        with pytest.raises(InputError, match="run/model"):
            find_model(name)
    with pytest.raises(InputError, match="use hub:run/model "):
        find_model("run/model")
    with pytest.raises(InputError, match=r"'v1'.*hub:ORG/NAME"):
        find_model("run/model", revision="v1")
    assert not server.requests
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(model)
    assert find_model("run/model").resolve() == model.resolve()
    assert find_model("hub:run/model").resolve() != model.resolve()


def test_a_download_is_reported_with_its_commit(server, model, capsys):
    commit = server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    [line] = [line for line in capsys.readouterr().err.splitlines() if "downloaded" in line]
    for word in ("org/toy", commit, server.url, str(folder)):
        assert word in line
    hub.download_model.cache_clear()
    assert find_model("hub:org/toy") == folder
    assert "downloaded" not in capsys.readouterr().err


def test_a_name_of_a_hub_has_two_parts(server):
    for name in ("toy", "", "a/b/c", "org/toy@", "org/", "../toy", "https://a/b"):
        with pytest.raises(InputError, match="expected hub:ORG/NAME"):
            find_model(f"hub:{name}")
    assert not server.requests


COMMIT = "a" * 40
EVIL = "../../../../../evil"
VALID_HEADERS = {"ETag": f'"{COMMIT}"', "X_Repo_Commit": COMMIT}


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": f'"{EVIL}"'},
        {"ETag": f"W/{EVIL}"},
        {"ETag": '"/evil"'},
        {"ETag": r'"..\..\evil"'},
        {"X_Linked_ETag": f'"{EVIL}"'},
        {"X_Repo_Commit": EVIL},
        {"X_Repo_Commit": "main"},
    ],
)
@pytest.mark.parametrize("status", [200, 404])
def test_a_server_cannot_name_a_file_outside_the_cache(server, model, tmp_path, headers, status):
    """The ETags of the server name the files of the cache, and its commits the folders."""
    server.add("org/toy", model)
    server.faults[".*/resolve/.*"] = (status, b"evil", VALID_HEADERS | headers)
    before = set(tmp_path.parent.rglob("*evil*"))
    with pytest.raises(InputError, match=r"hub:org/toy: .*hexadecimal"):
        find_model("hub:org/toy")
    assert set(tmp_path.parent.rglob("*evil*")) == before
    assert not list((tmp_path / "cache").rglob("blobs/*"))


@pytest.mark.parametrize("change", [{"lfs": {"oid": EVIL, "size": 1}}, {"xetHash": EVIL}])
def test_a_listing_cannot_name_a_file_outside_the_cache(server, model, change):
    server.add("org/toy", model)
    row = {"type": "file", "path": "config.json", "size": 1, "oid": COMMIT}
    server.faults[".*/tree/.*"] = (200, [row | change], {})
    with pytest.raises(InputError, match=r"hub:org/toy: .*hexadecimal"):
        find_model("hub:org/toy")


@pytest.mark.parametrize(
    "content",
    [
        b"<html>please log in</html>",
        b"\xff",
        b"[" * 100_000,
        None,
        5,
        [1, 2],
        {"id": "org/toy"},
        {"id": "org/toy", "sha": 5},
        {"id": "org/toy", "sha": EVIL},
        {"id": "org/toy", "sha": COMMIT, "siblings": [5]},
        {"id": "org/toy", "sha": COMMIT, "lfs": [5]},
        {"sha": COMMIT},
    ],
)
@pytest.mark.parametrize("path", ["revision", "tree"])
def test_a_malformed_answer_is_refused_in_one_line(server, model, content, path):
    server.add("org/toy", model)
    server.faults[f".*/{path}/.*"] = (200, content, {})
    with pytest.raises(InputError, match=r"hub:org/toy: ") as caught:
        find_model("hub:org/toy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/models/.*", 429, "refuses more requests.*429.*later"),
        ("/api/models/.*", 500, "status 500.*later"),
        ("/api/models/.*", 503, "status 503.*later"),
        ("/api/models/.*", 418, "status 418"),
        ("/api/models/.*", 401, "no such model.*HF_TOKEN"),
        ("/api/models/.*", 403, "no such model.*HF_TOKEN"),
        (".*/resolve/.*", 403, "no such model.*HF_TOKEN"),
    ],
)
def test_an_error_status_of_the_server_has_its_own_message(server, model, path, status, words):
    server.add("org/toy", model)
    server.faults[path] = (status, {"error": "x"}, {})
    with pytest.raises(InputError, match=rf"hub:org/toy: .*{server.url}") as caught:
        find_model("hub:org/toy")
    assert re.search(words, str(caught.value))
    assert "connection" not in str(caught.value)


def test_a_file_that_the_server_lacks_is_named(server, model):
    server.add("org/toy", model)
    server.faults[".*/dict.txt"] = (404, {}, {"X_Error_Code": "EntryNotFound"})
    with pytest.raises(InputError, match=r"hub:org/toy: .*dict\.txt.*revision"):
        find_model("hub:org/toy")


@pytest.mark.parametrize(
    "rows", [[], [{"type": "file", "path": "x.png", "size": 1, "oid": COMMIT}]]
)
def test_a_listing_without_a_model_is_named(server, model, rows):
    commit = server.add("org/toy", model)
    server.faults[".*/tree/.*"] = (200, rows, {})
    for _ in range(2):
        with pytest.raises(InputError, match=rf"hub:org/toy: {server.url}.*no files.*{commit}"):
            find_model("hub:org/toy")


def test_a_name_without_the_prefix_hub_asks_no_server(server, tmp_path):
    for name in ("toy", "a/b/c", "./org/toy", "../org/toy", str(tmp_path / "toy"), "/toy"):
        with pytest.raises(InputError):
            SentenceEncoder.from_pretrained(name)
    with pytest.raises(InputError, match="lxsr-static"):
        find_model("lxsr-static", revision="v1")
    with pytest.raises(InputError, match="v1"):
        find_model("http://127.0.0.1:1/x.zip", revision="v1")
    assert not server.requests


@pytest.mark.parametrize("with_listing", [True, False])
def test_a_cached_model_is_used_at_once_if_the_server_is_down(
    server, model, tmp_path, with_listing, monkeypatch
):
    """Libraries that filled the cache may not have stored the list of files."""
    commit = server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    close(server)
    if not with_listing:
        shutil.rmtree(folder.parents[1] / "trees")
        monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waits to try again"))
    for name in ("hub:org/toy", f"hub:org/toy@{commit}"):
        hub.download_model.cache_clear()
        assert find_model(name) == folder
    with pytest.raises(InputError, match=r"org/none: .*check the connection"):
        find_model("hub:org/none")


@contextlib.contextmanager
def port_without_answer():
    """A port of this machine that drops what is sent to it, as a firewall does."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # Nobody accepts these connections; further ones get no answer.
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("network", ["hangs", "drops", "closed", "no names"])
@pytest.mark.parametrize("revision", ["", "@v1"])
def test_a_cached_model_is_used_at_once_without_a_network(server, model, capsys, network, revision):
    commit = server.add("org/toy", model)
    server.repositories["org/toy"].revisions["v1"] = commit
    folder = find_model(f"hub:org/toy{revision}")
    hub.download_model.cache_clear()
    huggingface_hub.close_session()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(hub, "CACHED_TIMEOUT", 0.3)
        if network == "hangs":
            # The port stays open, so that connections are accepted.
            server.shutdown()
        elif network == "closed":
            close(server)
        elif network == "drops":
            url = f"http://127.0.0.1:{stack.enter_context(port_without_answer())}"
            patch.setattr("huggingface_hub.constants.ENDPOINT", url)
        else:
            patch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(20))
        start = time.monotonic()
        assert find_model(f"hub:org/toy{revision}") == folder
        assert time.monotonic() - start < 3
    assert f"using cached commit {commit}" in capsys.readouterr().err


def test_a_missing_library_is_named_with_its_installation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    with pytest.raises(InputError, match=r"org/toy: .*huggingface_hub.* -m pip install") as caught:
        SentenceEncoder.from_pretrained("hub:org/toy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["model", "exported"])
def test_a_checksum_identifies_a_model(server, request, kind):
    folder = request.getfixturevalue(kind)
    listing = {"model": "config.json", "exported": "modules.json"}[kind]
    checksum = digest(folder / listing)
    server.add("org/toy", folder)
    expected = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    encoder = SentenceEncoder.from_pretrained("hub:org/toy", sha256=checksum)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    for name in (f"hub:org/toy#sha256={checksum}", f"{folder}#sha256={checksum.upper()}"):
        assert find_model(name)
    wrong = "0" * 64
    with pytest.raises(InputError, match=rf"{listing}: .*{checksum}.*{wrong}"):
        find_model("hub:org/toy", sha256=wrong)
    with pytest.raises(InputError, match="use one"):
        find_model(f"hub:org/toy#sha256={wrong}", sha256=checksum)
    for end, sha256 in (("#sha256=0f", None), ("", "x" * 64), ("", 7)):
        with pytest.raises(InputError, match="64"):
            find_model(f"hub:org/toy{end}", sha256=sha256)


@pytest.mark.parametrize("kind", ["model", "exported"])
@pytest.mark.parametrize("change", ["model.safetensors", "0_SentenceModule/config.json", "x.json"])
def test_the_checksum_covers_every_file_that_is_read(server, request, kind, change):
    """An added file could be read in place of a listed one."""
    folder = request.getfixturevalue(kind)
    checksum = digest(folder / {"model": "config.json", "exported": "modules.json"}[kind])
    server.add("org/toy", folder, **{change.replace(".", "__"): b"{}"})
    with pytest.raises(InputError, match=change):
        find_model("hub:org/toy", sha256=checksum)


def test_a_folder_without_checksums_cannot_be_identified(server, exported, tmp_path):
    (tmp_path / "saved").mkdir()
    listing = tmp_path / "saved" / "modules.json"
    listing.write_text("[]")
    with pytest.raises(InputError, match=r"modules.json: .*checksums"):
        find_model(tmp_path / "saved", sha256=digest(listing))


@pytest.mark.parametrize("normalize", [False, True])
def test_an_exported_folder_needs_no_other_library(model, tmp_path, monkeypatch, normalize):
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
    encoder = SentenceEncoder.from_pretrained(model)
    export_hub(encoder, tmp_path / "st", normalize=normalize)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    (tmp_path / "t.en").write_text("one dog\nun chien\n")
    options = ("--model", tmp_path / "st", "--input", tmp_path / "t.en")
    lxsr_here("embed", *options, "--output", tmp_path / "t.npy")
    expected = encoder.encode(TEXTS, normalize=normalize)
    np.testing.assert_allclose(np.load(tmp_path / "t.npy"), expected, atol=1e-6)
    lxsr_here("index", *options, "--output", tmp_path / "index")
    assert "one dog" in lxsr_here("search", "--index", tmp_path / "index", "one dog").stdout
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    CorpusIndex.load(tmp_path / "index").check_model(opened)
    done = lxsr_here(
        "embed", "--model", f"{tmp_path}/st#untrained", *options[2:], "--output", "o", check=False
    )
    refused(done, "untrained")


def test_commands_take_the_name_of_a_model_on_a_hub(server, model, tmp_path):
    commit = server.add("org/toy", model)
    (tmp_path / "t.en").write_text("one dog\n")
    checksum = digest(model / "config.json")
    inputs = ["--input", tmp_path / "t.en"]
    names = (
        "hub:org/toy",
        "hub:org/toy@main",
        f"hub:org/toy#sha256={checksum}",
        "en=hub:org/toy@main",
    )
    for number, name in enumerate(names):
        language = ["--lang", "en"] if number == 3 else []
        output = tmp_path / f"{number}.npy"
        lxsr_here("embed", "--model", name, *inputs, *language, "--output", output)
        np.testing.assert_array_equal(np.load(output), np.load(tmp_path / "0.npy"))
    lxsr_here("index", "--model", "hub:org/toy", *inputs, "--output", tmp_path / "index")
    assert commit in (tmp_path / "index" / "index.json").read_text()
    assert "one dog" in lxsr_here("search", "--index", tmp_path / "index", "one dog").stdout
    done = lxsr_here(
        "embed", "--model", "hub:org/none", *inputs, "--output", tmp_path / "o.npy", check=False
    )
    refused(done, "org/none", server.url)
    assert not (tmp_path / "o.npy").exists()
    assert default_name(SentenceEncoder.from_pretrained("hub:org/toy"), "") == "org/toy"
    # A card would change the files of the cache.
    refused(lxsr_here("export", "card", "--model", "hub:org/toy", check=False), "org/toy", commit)
