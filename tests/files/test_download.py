"""Downloads from a server of our own, which drops connections."""

import hashlib
import itertools
import os
from dataclasses import replace

import pytest
import toy
from archives import tar_of, zip_of
from conftest import contents, lxsr_here, refused
from http_server import CONTENT, serving

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import named_sets as datasets
from fairseq_lxsr.files.download import download, get_archive
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.preparation.registry import PublicCorpus, find_corpus, get_corpus, registry


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.mark.parametrize("trouble", ["drop", "reset"])
def test_a_dropped_connection_is_continued(server, tmp_path, trouble):
    server.troubles = [trouble, trouble]
    half = len(CONTENT) // 2
    download(server.url, tmp_path / "x", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["x"]
    assert server.requests == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    server.troubles, server.ranges = ["drop"], False
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, len(CONTENT)])
def test_an_interrupted_run_is_continued(server, tmp_path, length):
    (tmp_path / "x.part").write_bytes(CONTENT[:length])
    for _ in range(2):
        download(server.url, tmp_path / "x")
        assert (tmp_path / "x").read_bytes() == CONTENT
        assert server.requests == [f"bytes={length}-"]


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"size": 7}, r"512,000\b.*\b7\b"),
        ({"checksum": "0" * 64}, hashlib.sha256(CONTENT).hexdigest()),
    ],
)
def test_a_file_of_another_size_or_checksum_is_refused(server, tmp_path, expected, message):
    with pytest.raises(InputError, match=rf"/corpus: .*{message}"):
        download(server.url, tmp_path / "x", **expected)
    assert not os.listdir(tmp_path)
    # A file of the user is refused, and not removed.
    (tmp_path / "x").write_bytes(CONTENT)
    with pytest.raises(InputError, match=rf"x: .*{message}"):
        download(server.url, tmp_path / "x", **expected)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_failed_download_is_one_line_and_keeps_what_it_has(server, tmp_path):
    server.troubles = [404]
    with pytest.raises(InputError, match=r"/corpus: .*404.*Not Found"):
        download(server.url, tmp_path / "x")
    server.troubles = ["drop", 503]
    with pytest.raises(InputError, match=r"/corpus: .*503.*\b256,000 bytes"):
        download(server.url, tmp_path / "x")
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"/corpus: .*Connection refused.*network") as caught:
        download(server.url, tmp_path / "x")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "x.part").read_bytes() == CONTENT[:256_000]


def test_a_link_planted_at_the_partial_file_is_not_followed(server, tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "x.part").symlink_to(tmp_path / "victim")
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert not (tmp_path / "x").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"


ENGLISH, FRENCH = (
    ("\n".join(side) + "\n").encode() for side in zip(*toy.sentences(50), strict=True)
)


@pytest.mark.parametrize("form", ["moses.zip", "moses.tgz", "tsv.zip"])
def test_a_corpus_is_fetched_and_unpacked(server, tmp_path, form):
    names = {
        "README": b"read me",
        "deep/../../Toy.en-fr.en": ENGLISH,
        "x/Toy.en-fr.fr": FRENCH,
        "fra.txt": b"a\tb\tc\n",
    }
    server.content, server.troubles = (
        (tar_of if form.endswith("tgz") else zip_of)(*names.items()),
        ["drop"],
    )
    member = "{other3}.txt" if form.startswith("tsv") else "Toy.{first}-{second}.{language}"
    corpus = PublicCorpus(
        "Toy", form, "none", "", server.url + "/{first}-{second}", member, ("fr", "de"), "en"
    )
    files = get_corpus(corpus, "fr", "en", tmp_path / "out")
    expected = {"Toy.fr-en.fr": FRENCH, "Toy.fr-en.en": ENGLISH}
    if form.startswith("tsv"):
        expected = {"Toy.en-fr.tsv": b"a\tb\tc\n"}
    assert [path.name for path in files] == list(expected)
    assert contents(tmp_path / "out") == expected
    asked = len(server.requests)
    assert get_corpus(corpus, "fr", "en", tmp_path / "out") == files
    assert len(server.requests) == asked


def test_an_archive_is_fetched_by_one_process(server, tmp_path):
    archive = tmp_path / "x.zip"
    with (
        locked(tmp_path / ".x.zip.lock", archive),
        pytest.raises(InputError, match=r"x\.zip: .*process"),
    ):
        get_archive(server.url, archive, {"a": tmp_path / "a"})
    assert not server.requests


def test_an_archive_that_the_user_has_is_kept(server, tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of(("a", ENGLISH)))
    get_archive(server.url, tmp_path / "x.zip", {"a": tmp_path / "out"})
    assert (tmp_path / "out").read_bytes() == ENGLISH
    assert (tmp_path / "x.zip").is_file()
    assert not server.requests


def test_the_registry_is_sound():
    corpora = registry()
    assert len(corpora) >= 15
    for corpus in corpora.values():
        assert all((corpus.licence, corpus.about))
        if corpus.url:
            assert corpus.languages
            partner = corpus.partner or "en"
            language = next(code for code in corpus.languages if code != partner)
            assert corpus.has(language, partner)
            filled = corpus.fill(corpus.url, partner, language)
            assert filled.startswith("https://")
            assert "{" not in filled
            assert (
                language in corpus.fill(corpus.member, partner, language, language)
                or corpus.format == "tsv.zip"
            )
    assert find_corpus("Europarl-v7", "en", "fr").fill("{other}", "en", "fr") == "fr"
    with pytest.raises(InputError, match=r"ParaCrawl-v5: .*fr-de.*bg, cs, .* en$"):
        find_corpus("ParaCrawl-v5", "fr", "de")
    with pytest.raises(InputError, match=r"'nope': .*fr-de.*Europarl-v8, Tatoeba"):
        find_corpus("nope", "fr", "de")


@pytest.fixture
def flores(server, monkeypatch):
    """A test set of the registry, whose archive a server of our own has in the published layout."""
    real = datasets.datasets()["flores200-devtest"]
    parts = itertools.product(real.codes, (("dev", 1), ("devtest", real.sentences)))
    packed = [
        (f"./flores200_dataset/{at}/{code}.{at}", f"{code}\n".encode() * lines)
        for code, (at, lines) in parts
    ]
    server.content = tar_of(*packed, compresslevel=1)
    checked = {"size": len(server.content), "sha256": hashlib.sha256(server.content).hexdigest()}
    row = replace(real, url=f"{server.url}/flores200_dataset.tar.gz", **checked)
    monkeypatch.setattr(datasets, "datasets", lambda: {row.name: row})
    return row


def test_a_test_set_is_one_command(server, flores, tmp_path):
    done = lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out")
    assert f"{flores.name}, 204 languages (licence: CC BY-SA 4.0)" in done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["devtest"]
    assert flores.path(tmp_path / "out", "fr").read_text().splitlines()[-1] == "fra_Latn"
    # nothing is downloaded again
    lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out")
    assert len(server.requests) == 1
    assert flores.sha256 in lxsr_here("corpus", "show", flores.name).stdout
    assert flores.name in lxsr_here("corpus", "list", "--lang-pair", "en-fr").stdout
    refused(
        lxsr_here("corpus", "get", flores.name, "--lang-pair", "en-fr", check=False),
        "--lang-pair",
    )
    refused(lxsr_here("corpus", "get", "GNOME", check=False), "GNOME", "--lang-pair")


def test_a_test_set_that_has_changed_is_not_kept(server, flores, tmp_path):
    server.content += b"1"
    refused(
        lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out", check=False),
        flores.url,
    )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
