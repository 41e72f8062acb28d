"""A server whose index is built again, edited and removed on disk, or edited by requests."""

import asyncio
import os
import shutil
import signal
import threading
import time

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused
from serve.test_serve import ask, check_error, needs_server, serving

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

pytestmark = needs_server
TEXTS = ["One red dog sees the cat.", "Un chien rouge voit le chat.", "Two blue birds."]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture
def index(encoder, tmp_path):
    """An index of TEXTS with the ids a, b and c."""
    return CorpusIndex.build(tmp_path / "index", TEXTS, encoder, ids=["a", "b", "c"], plain=True)


@pytest.fixture(autouse=True)
def _short_poll(monkeypatch):
    """Let servers look for a changed index often."""
    monkeypatch.setattr("fairseq_lxsr.serve.live.POLL_SECONDS", 0.02)


def wait_for(condition):
    """Wait until the condition is true, 20 seconds at most."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def first_hit(address):
    """Search for `Two blue birds.`, and return the nearest text."""
    status, content = ask(f"{address}/search", {"query": "Two blue birds.", "k": 1})
    assert status == 200, content
    return content["results"][0]["hits"][0]["snippet"]


def num_sentences(address):
    """The number of sentences in the index that is served."""
    return ask(f"{address}/health")[1]["sentences"]


def search_status(address):
    """The HTTP status of a search."""
    return ask(f"{address}/search", {"query": "a"})[0]


def test_edits_on_disk_and_a_new_index_are_served_without_a_failed_request(encoder, index):
    with serving(encoder, index, port=0) as address:
        hits = []
        stop = threading.Event()

        def search_again_and_again():
            while not stop.is_set():
                # It fails for any other status than 200.
                hits.append(first_hit(address))

        thread = threading.Thread(target=search_again_and_again)
        thread.start()
        edited = CorpusIndex.load(index.folder)
        # The text d is served next to the text that it resembles, c,
        edited.add(["Two blue birds!"], ["d"], encoder)
        wait_for(lambda: num_sentences(address) == 4)
        # then without it,
        edited.delete(["c"])
        wait_for(lambda: first_hit(address) == "Two blue birds!")
        # and then a new index in the same folder.
        CorpusIndex.build(index.folder, ["Two blue birds?", *TEXTS[:1]], encoder, plain=True)
        wait_for(lambda: first_hit(address) == "Two blue birds?")
        stop.set()
        thread.join()

    assert set(hits) == {"Two blue birds.", "Two blue birds!", "Two blue birds?"}


def test_searches_have_status_503_after_the_index_is_removed_until_a_new_one_is_built(
    encoder, index
):
    with serving(encoder, index) as address:
        shutil.rmtree(index.folder)
        wait_for(lambda: search_status(address) == 503)
        assert num_sentences(address) == 0

        CorpusIndex.build(index.folder, ["One red dog."], encoder, plain=True)
        wait_for(lambda: search_status(address) == 200)


def test_a_new_index_of_another_model_is_reported_once_and_not_served(encoder, index, caplog):
    message = "embeddings of two models"
    another_model = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)
    with serving(encoder, index) as address:
        CorpusIndex.build(index.folder, ["Two blue birds?"], another_model, plain=True)

        wait_for(lambda: message in caplog.text)

        # The server looks for changes five more times.
        time.sleep(0.1)
        assert caplog.text.count(message) == 1
        # This is a text of the first index.
        assert first_hit(address) == "Two blue birds."


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
def test_sighup_reloads_the_index_before_the_next_look_at_the_disk(encoder, index, monkeypatch):
    # The server would not notice the change by itself.
    monkeypatch.setattr("fairseq_lxsr.serve.live.POLL_SECONDS", 1000)
    from fairseq_lxsr.serve.live import LiveIndex

    async def delete_and_signal():
        live = LiveIndex(CorpusIndex.load(index.folder), encoder)
        async with live.following():
            index.delete(["a"])
            assert len(live.current()) == 3

            os.kill(os.getpid(), signal.SIGHUP)

            while len(live.current()) == 3:
                await asyncio.sleep(0.01)
            assert len(live.current()) == 2

    asyncio.run(asyncio.wait_for(delete_and_signal(), 20))


KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def address(encoder, index):
    """A server of the index that requests with KEY may edit."""
    with serving(encoder, index, api_key="secret", allow_edits=True) as address:
        yield address


def edit(address, name, **fields):
    """Send an edit, and return the status and the content of the answer."""
    return ask(f"{address}/index/{name}", fields, **KEY)


def ids_on_disk(index):
    return CorpusIndex.load(index.folder).ids


def test_a_request_adds_texts_that_are_not_empty_and_finds_them(address, index):
    texts = ["Two blue birds!", "", "Four dogs."]

    answer = edit(address, "add", texts=texts, ids=["d", "e", 7])

    assert answer == (200, {"added": 2, "sentences": 5})
    assert ids_on_disk(index) == ["a", "b", "c", "d", "7"]
    _, content = ask(f"{address}/search", {"query": "Two blue birds!", "k": 1}, **KEY)
    [hit] = content["results"][0]["hits"]
    assert hit["id"] == "d"
    assert hit["line"] == 4
    assert hit["snippet"] == "Two blue birds!"


def test_a_request_updates_a_text_which_becomes_the_last(address, index):
    answer = edit(address, "update", texts=["One cat."], ids=["a"])

    assert answer == (200, {"updated": 1, "sentences": 3})
    assert ids_on_disk(index) == ["b", "c", "a"]


def test_a_request_deletes_a_text(address, index):
    answer = edit(address, "delete", ids=["c"])

    assert answer == (200, {"deleted": 1, "sentences": 2})
    assert ids_on_disk(index) == ["a", "b"]


def test_a_request_compacts_an_edited_index_without_changing_its_texts(address, index):
    edit(address, "update", texts=["One cat."], ids=["a"])
    edit(address, "delete", ids=["c"])

    answer = edit(address, "compact")

    assert answer == (200, {"compacted": True, "sentences": 2})
    assert ids_on_disk(index) == ["b", "a"]


def test_a_search_after_edits_finds_only_the_given_ids(address):
    edit(address, "update", texts=["One cat."], ids=["a"])

    # No text has the id x.
    query = {"query": "Two blue birds!", "k": 1, "only_ids": ["a", "x"]}
    _, content = ask(f"{address}/search", query, **KEY)

    assert [hit["id"] for hit in content["results"][0]["hits"]] == ["a"]


@pytest.mark.parametrize(
    ("name", "fields", "value"),
    [
        pytest.param("add", {"texts": ["One."], "ids": ["b"]}, "'b'", id="add known id"),
        pytest.param("add", {"texts": ["One."]}, "ids", id="add without ids"),
        pytest.param("add", {"texts": ["One."], "ids": "x"}, "'x'", id="add ids no list"),
        pytest.param("update", {"texts": ["One."], "ids": ["x"]}, "'x'", id="update unknown id"),
        pytest.param("update", {"texts": ["One."]}, "None", id="update without ids"),
        pytest.param("delete", {"ids": ["b", "x"]}, "'x'", id="delete unknown id"),
        pytest.param("delete", {"ids": [1.5]}, "1.5", id="delete float"),
        pytest.param("compact", {"ids": []}, "ids", id="compact with ids"),
    ],
)
def test_the_error_for_an_invalid_edit_names_the_value_and_the_index_is_unchanged(
    address, index, name, fields, value
):
    answer = edit(address, name, **fields)

    check_error(answer, 400, value)
    assert ids_on_disk(index) == ["a", "b", "c"]


def test_an_edit_without_the_key_is_refused_and_the_index_is_unchanged(address, index):
    status, _ = ask(f"{address}/index/delete", {"ids": ["b"]})

    assert status == 401
    assert ids_on_disk(index) == ["a", "b", "c"]


def test_a_server_without_the_option_for_edits_has_no_such_paths(encoder, index):
    with serving(encoder, index) as address:
        status, _ = ask(f"{address}/index/delete", {"ids": ["b"]})

    assert status == 404


def test_the_option_for_edits_needs_a_key(index):
    done = lxsr_here("serve", "--index", index.folder, "--allow-edits", check=False)

    refused(done, "--allow-edits")
