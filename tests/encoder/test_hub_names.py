"""Models by their names on a hub: what is downloaded, the cache, revisions and checksums."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import time
from pathlib import Path

import hub_server
import numpy as np
import pytest
import random_model
from conftest import lxsr_here, python, refused

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
    """A stand-in for the hub, with an empty cache; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    with hub_server.serving(tmp_path / "cache") as server:
        yield server


def close(server):
    """Close the server, and the connection to it that huggingface_hub keeps."""
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ask_again():
    """Forget which models this process has downloaded."""
    hub.download_model.cache_clear()


@pytest.fixture(params=["model", "exported"])
def folder(request):
    """A model folder or an exported folder."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def listing(folder):
    """The file with the checksums of all other files, whose own checksum identifies the model."""
    modules = folder / "modules.json"
    return modules if modules.exists() else folder / "config.json"


# -- downloading


def test_a_name_of_a_hub_loads_the_same_model(server, folder):
    commit = server.add("org/toy", folder)

    encoder = SentenceEncoder.from_pretrained("hub:org/toy")

    expected = SentenceEncoder.from_pretrained(folder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected.encode(TEXTS))
    assert encoder.fingerprint == expected.fingerprint
    # huggingface_hub names the folder after the commit.
    assert encoder.folder.name == commit
    assert name_of(encoder.folder) == "org/toy"


def test_only_data_is_downloaded(server, folder):
    """Not files that could run code, and not the graph of ONNX, which the encoder does not read."""
    code = {"pytorch_model__bin": b"pickled", "modeling__py": b"1 / 0", "x__pkl": b"pickled"}
    server.add("org/toy", folder, **code)

    downloaded = find_model("hub:org/toy")

    files = [path for path in downloaded.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {*hub.DATA_ENDINGS, ".md"}
    assert not (downloaded / "onnx").exists()


def test_a_download_is_reported_with_its_commit(server, model, capsys):
    commit = server.add("org/toy", model)

    folder = find_model("hub:org/toy")

    [line] = [line for line in capsys.readouterr().err.splitlines() if "downloaded" in line]
    for word in ("org/toy", commit, server.url, str(folder)):
        assert word in line


def test_a_model_that_is_in_the_cache_is_not_reported_as_downloaded(server, model, capsys):
    server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    capsys.readouterr()

    ask_again()

    assert find_model("hub:org/toy") == folder
    assert "downloaded" not in capsys.readouterr().err


def test_a_cached_model_needs_no_server_if_the_hub_is_set_offline(server, model, monkeypatch):
    server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    num_requests = len(server.requests)
    ask_again()

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert find_model("hub:org/toy") == folder
    assert len(server.requests) == num_requests


def test_a_model_that_is_not_in_the_cache_is_refused_if_the_hub_is_set_offline(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(InputError, match=r"org/other: .*HF_HUB_OFFLINE"):
        find_model("hub:org/other")

    assert not server.requests


def test_the_environment_names_the_server_and_the_cache(server, model, tmp_path):
    """Runs in a separate process, because huggingface_hub reads the variables on import."""
    server.add("org/toy", model)
    home = tmp_path / "home"
    code = """from fairseq_lxsr import SentenceEncoder
print(SentenceEncoder.from_pretrained("hub:org/toy").folder)"""
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(home)}

    folder = python(code, env=environment | {"HF_HUB_OFFLINE": "0"})
    num_requests = len(server.requests)
    folder_offline = python(code, env=environment | {"HF_HUB_OFFLINE": "1"})

    assert folder.startswith(f"{home}/hub/models--org--toy/snapshots/")
    assert folder_offline == folder
    assert len(server.requests) == num_requests


def test_a_private_model_is_refused_without_a_token(server, model):
    server.add("org/toy", model)
    server.repositories["org/toy"].private = True

    with pytest.raises(InputError, match=rf"org/toy: .*{server.url}.*HF_TOKEN"):
        find_model("hub:org/toy")


def test_a_private_model_is_downloaded_with_the_token_of_the_environment(
    server, model, monkeypatch
):
    server.add("org/toy", model)
    server.repositories["org/toy"].private = True

    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)

    assert (find_model("hub:org/toy") / "config.json").is_file()


# -- revisions


def test_a_process_keeps_the_version_that_it_downloaded_first(server, model, exported):
    server.add("org/toy", model)
    folder = find_model("hub:org/toy")

    newest = server.add("org/toy", exported)

    assert find_model("hub:org/toy") == folder
    assert find_model(f"hub:org/toy@{newest}").name == newest


def test_without_a_revision_the_branch_main_is_downloaded(server, model, exported):
    server.add("org/toy", model, "v1")
    main = server.add("org/toy", exported, "main")

    assert find_model("hub:org/toy").name == main


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("hub:org/toy@v1", {}, id="tag in the name"),
        pytest.param("hub:org/toy", {"revision": "v1"}, id="tag as an option"),
        pytest.param("hub:org/toy@v1", {"revision": "v1"}, id="the same tag in both"),
        pytest.param("hub:org/toy@{commit}", {}, id="commit"),
    ],
)
def test_a_revision_is_a_tag_or_a_commit(server, model, exported, name, options):
    commit = server.add("org/toy", model, "v1")
    server.add("org/toy", exported, "main")

    assert find_model(name.format(commit=commit), **options).name == commit


@pytest.mark.parametrize(
    ("name", "options"), [("hub:org/toy@v2", {}), ("hub:org/toy", {"revision": "v2"})]
)
def test_an_unknown_revision_is_refused(server, model, name, options):
    server.add("org/toy", model, "v1")

    with pytest.raises(InputError, match=r"org/toy: .*'v2'"):
        find_model(name, **options)


def test_two_different_revisions_are_refused(server, model):
    server.add("org/toy", model, "v1")

    with pytest.raises(InputError, match=r"org/toy@v1: .*'main'"):
        find_model("hub:org/toy@v1", revision="main")


# -- names and paths


@pytest.mark.parametrize(
    "name",
    ["run/model", "run/model@v1", "run/model#sha256=" + "0" * 64, Path("run/model")],
    ids=str,
)
def test_a_path_is_never_sent_to_a_hub(server, model, name):
    """A mistyped folder would load a model of whoever has registered its name."""
    server.add("run/model", model)

    with pytest.raises(InputError, match="run/model"):
        find_model(name)

    assert not server.requests


def test_the_message_on_a_missing_folder_says_how_to_name_a_model_of_a_hub(server):
    with pytest.raises(InputError, match="use hub:run/model "):
        find_model("run/model")


def test_a_folder_has_no_revisions(server):
    with pytest.raises(InputError, match=r"'v1'.*hub:ORG/NAME"):
        find_model("run/model", revision="v1")


def test_a_name_means_the_folder_without_hub_and_the_model_of_the_hub_with_it(
    server, model, tmp_path
):
    server.add("run/model", model)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(model)

    assert find_model("run/model").resolve() == model.resolve()
    assert find_model("hub:run/model").resolve() != model.resolve()


@pytest.mark.parametrize("name", ["toy", "", "a/b/c", "org/toy@", "org/", "../toy", "https://a/b"])
def test_a_name_of_a_hub_that_has_not_two_parts_is_refused(server, name):
    with pytest.raises(InputError, match="expected hub:ORG/NAME"):
        find_model(f"hub:{name}")

    assert not server.requests


@pytest.mark.parametrize(
    "name", ["toy", "a/b/c", "./org/toy", "../org/toy", "{tmp_path}/toy", "/toy"]
)
def test_a_name_without_hub_asks_no_server(server, tmp_path, name):
    with pytest.raises(InputError):
        SentenceEncoder.from_pretrained(name.format(tmp_path=tmp_path))

    assert not server.requests


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("lxsr-static", "lxsr-static", id="packaged model"),
        pytest.param("http://127.0.0.1:1/x.zip", "v1", id="archive"),
    ],
)
def test_a_revision_of_a_model_that_is_not_on_a_hub_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        find_model(name, revision="v1")


# -- answers of a server that are wrong or hostile

COMMIT = "a" * 40
# A path to a file outside the cache.
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


@pytest.mark.parametrize(
    "change", [{"lfs": {"oid": EVIL, "size": 1}}, {"xetHash": EVIL}], ids=["lfs", "xetHash"]
)
def test_a_listing_cannot_name_a_file_outside_the_cache(server, model, change):
    server.add("org/toy", model)
    row = {"type": "file", "path": "config.json", "size": 1, "oid": COMMIT}
    server.faults[".*/tree/.*"] = (200, [row | change], {})

    with pytest.raises(InputError, match=r"hub:org/toy: .*hexadecimal"):
        find_model("hub:org/toy")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"<html>please log in</html>", id="a page of a network"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="deeply nested"),
        pytest.param(None, id="null"),
        pytest.param(5, id="number"),
        pytest.param([1, 2], id="numbers"),
        pytest.param({"id": "org/toy"}, id="no commit"),
        pytest.param({"sha": COMMIT}, id="no name"),
        pytest.param({"id": "org/toy", "sha": 5}, id="commit is a number"),
        pytest.param({"id": "org/toy", "sha": EVIL}, id="commit is a path"),
        pytest.param({"id": "org/toy", "sha": COMMIT, "siblings": [5]}, id="file is a number"),
        pytest.param({"id": "org/toy", "sha": COMMIT, "lfs": [5]}, id="lfs is a list"),
    ],
)
# The two addresses with JSON that a download asks: the commit and the list of files.
@pytest.mark.parametrize("path", ["revision", "tree"])
def test_a_malformed_answer_is_refused_in_one_line(server, model, content, path):
    server.add("org/toy", model)
    server.faults[f".*/{path}/.*"] = (200, content, {})

    with pytest.raises(InputError, match=r"hub:org/toy: ") as caught:
        find_model("hub:org/toy")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "status", "message"),
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
def test_an_error_status_of_the_server_has_its_own_message(server, model, path, status, message):
    server.add("org/toy", model)
    server.faults[path] = (status, {"error": "x"}, {})

    with pytest.raises(InputError, match=rf"hub:org/toy: .*{server.url}") as caught:
        find_model("hub:org/toy")

    assert re.search(message, str(caught.value))
    # The server did answer.
    assert "connection" not in str(caught.value)


def test_a_file_that_the_server_lists_and_lacks_is_named(server, model):
    server.add("org/toy", model)
    server.faults[".*/dict.txt"] = (404, {}, {"X_Error_Code": "EntryNotFound"})

    with pytest.raises(InputError, match=r"hub:org/toy: .*dict\.txt.*revision"):
        find_model("hub:org/toy")


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([], id="no files"),
        pytest.param(
            [{"type": "file", "path": "x.png", "size": 1, "oid": COMMIT}], id="only a picture"
        ),
    ],
)
def test_a_repository_without_a_model_is_refused_every_time(server, model, rows):
    commit = server.add("org/toy", model)
    server.faults[".*/tree/.*"] = (200, rows, {})

    # The second time, its empty folder is in the cache.
    for _ in range(2):
        with pytest.raises(InputError, match=rf"hub:org/toy: {server.url}.*no files.*{commit}"):
            find_model("hub:org/toy")


# -- without a network


def stop_waiting(monkeypatch):
    """Let the test fail if anything waits to try again."""
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waits to try again"))


def forget_list_of_files(folder, monkeypatch):
    """Remove the list of files that a download stores: other libraries may not have stored it."""
    shutil.rmtree(folder.parents[1] / "trees")
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})


@pytest.mark.parametrize("with_list_of_files", [True, False])
@pytest.mark.parametrize("name", ["hub:org/toy", "hub:org/toy@{commit}"])
def test_a_cached_model_is_used_at_once_if_the_server_is_down(
    server, model, with_list_of_files, name, monkeypatch
):
    commit = server.add("org/toy", model)
    folder = find_model("hub:org/toy")
    if not with_list_of_files:
        forget_list_of_files(folder, monkeypatch)

    close(server)
    stop_waiting(monkeypatch)
    ask_again()

    assert find_model(name.format(commit=commit)) == folder


def test_a_model_that_is_not_cached_is_refused_at_once_if_the_server_is_down(server, monkeypatch):
    close(server)
    stop_waiting(monkeypatch)

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


def accept_without_answer(server, patch, stack):
    # The port stays open, so that connections are accepted.
    server.shutdown()


def drop_packets(server, patch, stack):
    url = f"http://127.0.0.1:{stack.enter_context(port_without_answer())}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", url)


def refuse_connections(server, patch, stack):
    close(server)


def resolve_no_names(server, patch, stack):
    patch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(20))


@pytest.mark.parametrize(
    "break_network", [accept_without_answer, drop_packets, refuse_connections, resolve_no_names]
)
@pytest.mark.parametrize("revision", ["", "@v1"])
def test_a_cached_model_is_used_at_once_without_a_network(
    server, model, capsys, break_network, revision
):
    commit = server.add("org/toy", model)
    server.repositories["org/toy"].revisions["v1"] = commit
    folder = find_model(f"hub:org/toy{revision}")
    ask_again()
    huggingface_hub.close_session()

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(hub, "CACHED_TIMEOUT", 0.3)
        break_network(server, patch, stack)
        start = time.monotonic()
        cached = find_model(f"hub:org/toy{revision}")
        seconds = time.monotonic() - start

    assert cached == folder
    # Ten times the timeout, for a busy machine.
    assert seconds < 3
    assert f"using cached commit {commit}" in capsys.readouterr().err


def test_a_missing_library_is_named_with_its_installation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)

    with pytest.raises(InputError, match=r"org/toy: .*huggingface_hub.* -m pip install") as caught:
        SentenceEncoder.from_pretrained("hub:org/toy")

    assert "\n" not in str(caught.value)


# -- checksums

WRONG_CHECKSUM = "0" * 64


def test_a_model_with_the_given_checksum_is_loaded(server, folder, listing):
    server.add("org/toy", folder)

    encoder = SentenceEncoder.from_pretrained("hub:org/toy", sha256=sha256_of(listing))

    expected = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


def test_a_name_may_contain_the_checksum_in_letters_of_either_case(server, folder, listing):
    server.add("org/toy", folder)
    checksum = sha256_of(listing)

    assert find_model(f"hub:org/toy#sha256={checksum}").is_dir()
    assert find_model(f"{folder}#sha256={checksum.upper()}") == folder


def test_a_model_with_another_checksum_is_refused(server, folder, listing):
    server.add("org/toy", folder)
    checksum = sha256_of(listing)

    with pytest.raises(InputError, match=rf"{listing.name}: .*{checksum}.*{WRONG_CHECKSUM}"):
        find_model("hub:org/toy", sha256=WRONG_CHECKSUM)


def test_two_checksums_are_refused(server, folder, listing):
    with pytest.raises(InputError, match="use one"):
        find_model(f"hub:org/toy#sha256={WRONG_CHECKSUM}", sha256=sha256_of(listing))


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        pytest.param("hub:org/toy#sha256=0f", None, id="too short"),
        pytest.param("hub:org/toy", "x" * 64, id="not hexadecimal"),
        pytest.param("hub:org/toy", 7, id="number"),
    ],
)
def test_a_checksum_that_has_not_64_hexadecimal_digits_is_refused(server, name, sha256):
    with pytest.raises(InputError, match="64"):
        find_model(name, sha256=sha256)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("model.safetensors", id="changed"),
        # An added file could be read in place of a listed one.
        pytest.param("0_SentenceModule/config.json", id="added in a folder"),
        pytest.param("x.json", id="added"),
    ],
)
def test_the_checksum_covers_every_file_that_is_read(server, folder, listing, name):
    other_content = {name.replace(".", "__"): b"{}"}
    server.add("org/toy", folder, **other_content)

    with pytest.raises(InputError, match=name):
        find_model("hub:org/toy", sha256=sha256_of(listing))


def test_a_folder_without_checksums_cannot_be_identified(tmp_path):
    (tmp_path / "saved").mkdir()
    empty_listing = tmp_path / "saved" / "modules.json"
    empty_listing.write_text("[]")

    with pytest.raises(InputError, match=r"modules.json: .*checksums"):
        find_model(tmp_path / "saved", sha256=sha256_of(empty_listing))


# -- commands


@pytest.fixture(params=[False, True], ids=["plain", "normalized"])
def folder_without_libraries(request, model, tmp_path, monkeypatch):
    """An exported folder and the vectors of TEXTS; no optional library is there to read it."""
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
    encoder = SentenceEncoder.from_pretrained(model)
    export_hub(encoder, tmp_path / "st", normalize=request.param)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: True)
    (tmp_path / "t.en").write_text("\n".join(TEXTS) + "\n")
    return tmp_path / "st", encoder.encode(TEXTS, normalize=request.param)


def test_an_exported_folder_is_embedded_without_other_libraries(folder_without_libraries, tmp_path):
    folder, expected = folder_without_libraries
    output = tmp_path / "t.npy"

    lxsr_here("embed", "--model", folder, "--input", tmp_path / "t.en", "--output", output)

    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)


def test_an_exported_folder_is_searched_without_other_libraries(folder_without_libraries, tmp_path):
    folder, _ = folder_without_libraries
    index = tmp_path / "index"

    lxsr_here("index", "--model", folder, "--input", tmp_path / "t.en", "--output", index)

    assert "one dog" in lxsr_here("search", "--index", index, "one dog").stdout
    # Raises no error: the index is of this model.
    CorpusIndex.load(index).check_model(SentenceEncoder.from_pretrained(folder))


def test_an_exported_folder_cannot_be_given_random_weights(folder_without_libraries, tmp_path):
    """`#untrained` asks for them, for comparison; only a model folder has them."""
    folder, _ = folder_without_libraries
    model = f"{folder}#untrained"
    files = ("--input", tmp_path / "t.en", "--output", tmp_path / "o.npy")

    done = lxsr_here("embed", "--model", model, *files, check=False)

    refused(done, f"--model {model}: option 'untrained' is invalid")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("hub:org/toy", [], id="name"),
        pytest.param("hub:org/toy@main", [], id="revision"),
        pytest.param("hub:org/toy#sha256={checksum}", [], id="checksum"),
        pytest.param("en=hub:org/toy@main", ["--lang", "en"], id="model of a language"),
    ],
)
def test_commands_take_the_name_of_a_model_on_a_hub(server, model, tmp_path, name, options):
    server.add("org/toy", model)
    (tmp_path / "t.en").write_text("one dog\n")
    name = name.format(checksum=sha256_of(model / "config.json"))
    files = ["--input", tmp_path / "t.en", "--output", tmp_path / "t.npy"]

    lxsr_here("embed", "--model", name, *files, *options)

    expected = SentenceEncoder.from_pretrained(model).encode(["one dog"])
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), expected)


def test_an_index_knows_the_commit_of_its_model(server, model, tmp_path):
    commit = server.add("org/toy", model)
    (tmp_path / "t.en").write_text("one dog\n")
    index = tmp_path / "index"

    lxsr_here("index", "--model", "hub:org/toy", "--input", tmp_path / "t.en", "--output", index)

    assert commit in (index / "index.json").read_text()
    assert "one dog" in lxsr_here("search", "--index", index, "one dog").stdout


def test_a_model_that_the_hub_lacks_is_refused_before_anything_is_written(server, tmp_path):
    (tmp_path / "t.en").write_text("one dog\n")
    output = tmp_path / "o.npy"
    files = ("--input", tmp_path / "t.en", "--output", output)

    done = lxsr_here("embed", "--model", "hub:org/none", *files, check=False)

    refused(done, "org/none", server.url)
    assert not output.exists()


def test_a_model_of_a_hub_is_served_under_its_name(server, model):
    server.add("org/toy", model)

    assert default_name(SentenceEncoder.from_pretrained("hub:org/toy"), "") == "org/toy"


def test_no_card_is_written_into_the_cache(server, model):
    commit = server.add("org/toy", model)

    done = lxsr_here("export", "card", "--model", "hub:org/toy", check=False)

    refused(done, "org/toy", commit)
