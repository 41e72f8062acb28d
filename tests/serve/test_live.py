"""A server whose index is rebuilt, edited and removed on disk, or edited by requests."""

import asyncio
import os
import shutil
import signal
import threading
import time

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused
from test_serve import ask, needs_server, serving

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


def best(address, query="Two blue birds."):
    status, answer = ask(f"{address}/search", {"query": query, "k": 1})
    assert status == 200, answer
    return answer["results"][0]["hits"][0]["snippet"]


def test_edits_and_a_new_index_are_taken_up_without_a_request_lost(encoder, index):
    with serving(encoder, index, port=0) as address:
        answers = []
        stop = threading.Event()

        def search():
            while not stop.is_set():
                answers.append(best(address))

        thread = threading.Thread(target=search)
        thread.start()
        other = CorpusIndex.load(index.folder)
        other.add(["Two blue birds!"], ["d"], encoder)
        wait_for(lambda: ask(f"{address}/health")[1]["sentences"] == 4)
        other.delete(["c"])
        wait_for(lambda: best(address) == "Two blue birds!")
        CorpusIndex.build(index.folder, ["Two blue birds?", *TEXTS[:1]], encoder, plain=True)
        wait_for(lambda: best(address) == "Two blue birds?")
        shutil.rmtree(index.folder)
        stop.set()
        thread.join()
        wait_for(lambda: ask(f"{address}/search", {"query": "a"})[0] == 503)
        assert ask(f"{address}/health")[1]["sentences"] == 0
        CorpusIndex.build(index.folder, ["One red dog."], encoder, plain=True)
        wait_for(lambda: ask(f"{address}/search", {"query": "a"})[0] == 200)
    assert set(answers) == {"Two blue birds.", "Two blue birds!", "Two blue birds?"}


def test_an_index_of_another_model_is_not_taken_up(encoder, index, caplog):
    other = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)
    with serving(encoder, index) as address:
        CorpusIndex.build(index.folder, ["Two blue birds?"], other, plain=True)
        wait_for(lambda: "embeddings of two models" in caplog.text)
        time.sleep(0.1)
        assert caplog.text.count("embeddings of two models") == 1
        assert best(address) == "Two blue birds."


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


def test_edits_by_requests(encoder, index):
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
        only = ask(f"{address}/search", query | {"only_ids": ["a", "x"]}, **key)[1]["results"]
        assert [hit["id"] for hit in only[0]["hits"]] == ["a"]
        wrong = [
            ("add", {"texts": ["One."], "ids": ["b"]}, "'b'"),
            ("add", {"texts": ["One."]}, "ids"),
            ("add", {"texts": ["One."], "ids": "x"}, "'x'"),
            ("update", {"texts": ["One."], "ids": ["x"]}, "'x'"),
            ("update", {"texts": ["One."]}, "None"),
            ("delete", {"ids": ["b", "x"]}, "'x'"),
            ("delete", {"ids": [1.5]}, "1.5"),
            ("compact", {"ids": []}, "ids"),
        ]
        for name, fields, value in wrong:
            status, answer = edit(name, **fields)
            assert status == 400
            assert value in answer["error"]["message"]
        assert ask(f"{address}/index/delete", {"ids": ["b"]})[0] == 401
    assert CorpusIndex.load(index.folder).ids == ["b", "d", "7", "a"]


def test_edits_need_a_key_and_an_option(encoder, index, tmp_path):
    with serving(encoder, index) as address:
        assert ask(f"{address}/index/delete", {"ids": ["b"]})[0] == 404
    done = lxsr_here("serve", "--index", index.folder, "--allow-edits", check=False)
    refused(done, "--allow-edits")
