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
    return CorpusIndex.build(tmp_path / "index", TEXTS, encoder, ids=["a", "b", "c"], plain=True)


@pytest.fixture(autouse=True)
def _short_poll(monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.live.POLL_SECONDS", 0.02)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def first_hit(address):
    """The text nearest to `Two blue birds.`"""
    status, answer = ask(f"{address}/search", {"query": "Two blue birds.", "k": 1})
    assert status == 200, answer
    return answer["results"][0]["hits"][0]["snippet"]


def test_edits_and_a_new_index_are_served_without_a_failed_request(encoder, index):
    with serving(encoder, index, port=0) as address:
        answers = []
        stop = threading.Event()

        def search():
            while not stop.is_set():
                answers.append(first_hit(address))

        thread = threading.Thread(target=search)
        thread.start()
        edited = CorpusIndex.load(index.folder)
        edited.add(["Two blue birds!"], ["d"], encoder)
        wait_for(lambda: ask(f"{address}/health")[1]["sentences"] == 4)
        edited.delete(["c"])
        wait_for(lambda: first_hit(address) == "Two blue birds!")
        CorpusIndex.build(index.folder, ["Two blue birds?", *TEXTS[:1]], encoder, plain=True)
        wait_for(lambda: first_hit(address) == "Two blue birds?")
        stop.set()
        thread.join()
    assert set(answers) == {"Two blue birds.", "Two blue birds!", "Two blue birds?"}


def test_searches_fail_while_the_index_is_removed(encoder, index):
    with serving(encoder, index) as address:
        shutil.rmtree(index.folder)
        wait_for(lambda: ask(f"{address}/search", {"query": "a"})[0] == 503)
        assert ask(f"{address}/health")[1]["sentences"] == 0
        CorpusIndex.build(index.folder, ["One red dog."], encoder, plain=True)
        wait_for(lambda: ask(f"{address}/search", {"query": "a"})[0] == 200)


def test_a_new_index_of_another_model_is_not_served(encoder, index, caplog):
    another_model = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)
    with serving(encoder, index) as address:
        CorpusIndex.build(index.folder, ["Two blue birds?"], another_model, plain=True)
        wait_for(lambda: "embeddings of two models" in caplog.text)
        time.sleep(0.1)
        # The message is not repeated.
        assert caplog.text.count("embeddings of two models") == 1
        assert first_hit(address) == "Two blue birds."


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
def test_a_signal_reloads_the_index(encoder, index, monkeypatch):
    from fairseq_lxsr.serve.live import LiveIndex

    monkeypatch.setattr("fairseq_lxsr.serve.live.POLL_SECONDS", 1000)

    async def reload():
        live = LiveIndex(CorpusIndex.load(index.folder), encoder)
        async with live.following():
            index.delete(["a"])
            assert len(live.current()) == 3
            os.kill(os.getpid(), signal.SIGHUP)
            while len(live.current()) == 3:
                await asyncio.sleep(0.01)
            assert len(live.current()) == 2

    asyncio.run(asyncio.wait_for(reload(), 20))


def test_requests_edit_the_index(encoder, index):
    key = {"Authorization": "Bearer secret"}
    with serving(encoder, index, api_key="secret", allow_edits=True) as address:

        def edit(name, **fields):
            return ask(f"{address}/index/{name}", fields, **key)

        texts = ["Two blue birds!", "", "Four dogs."]
        assert edit("add", texts=texts, ids=["d", "e", 7]) == (200, {"added": 2, "sentences": 5})
        assert edit("update", texts=["One cat."], ids=["a"])[1] == {"updated": 1, "sentences": 5}
        assert edit("delete", ids=["c"]) == (200, {"deleted": 1, "sentences": 4})
        assert edit("compact") == (200, {"compacted": True, "sentences": 4})
        query = {"query": "Two blue birds!", "k": 1}
        hit = ask(f"{address}/search", query, **key)[1]["results"][0]["hits"][0]
        assert (hit["id"], hit["line"], hit["snippet"]) == ("d", 4, "Two blue birds!")
        results = ask(f"{address}/search", query | {"only_ids": ["a", "x"]}, **key)[1]["results"]
        assert [hit["id"] for hit in results[0]["hits"]] == ["a"]
    assert CorpusIndex.load(index.folder).ids == ["b", "d", "7", "a"]


def test_invalid_edits_are_refused_and_change_nothing(encoder, index):
    key = {"Authorization": "Bearer secret"}
    with serving(encoder, index, api_key="secret", allow_edits=True) as address:
        for name, fields, value in (
            ("add", {"texts": ["One."], "ids": ["b"]}, "'b'"),
            ("add", {"texts": ["One."]}, "ids"),
            ("add", {"texts": ["One."], "ids": "x"}, "'x'"),
            ("update", {"texts": ["One."], "ids": ["x"]}, "'x'"),
            ("update", {"texts": ["One."]}, "None"),
            ("delete", {"ids": ["b", "x"]}, "'x'"),
            ("delete", {"ids": [1.5]}, "1.5"),
            ("compact", {"ids": []}, "ids"),
        ):
            check_error(ask(f"{address}/index/{name}", fields, **key), 400, value)
        assert ask(f"{address}/index/delete", {"ids": ["b"]})[0] == 401
    assert CorpusIndex.load(index.folder).ids == ["a", "b", "c"]


def test_edits_need_the_option_and_the_option_a_key(encoder, index):
    with serving(encoder, index) as address:
        assert ask(f"{address}/index/delete", {"ids": ["b"]})[0] == 404
    done = lxsr_here("serve", "--index", index.folder, "--allow-edits", check=False)
    refused(done, "--allow-edits")
