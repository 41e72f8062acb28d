"""Downloads from a local server that drops connections."""

import hashlib
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
    server.troubles = ["drop"]
    server.ranges = False
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, len(CONTENT)])
def test_an_interrupted_download_is_continued_once(server, tmp_path, length):
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


def test_a_failed_download_is_one_line_and_keeps_the_partial_file(server, tmp_path):
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


ENGLISH = "".join(f"{source}\n" for source, _ in toy.sentences(50)).encode()
FRENCH = "".join(f"{target}\n" for _, target in toy.sentences(50)).encode()


@pytest.mark.parametrize("form", ["moses.zip", "moses.tgz", "tsv.zip"])
def test_a_corpus_is_fetched_and_unpacked(server, tmp_path, form):
    names = {
        "README": b"read me",
        "deep/../../Toy.en-fr.en": ENGLISH,
        "x/Toy.en-fr.fr": FRENCH,
        "fra.txt": b"a\tb\tc\n",
    }
    pack = tar_of if form.endswith("tgz") else zip_of
    server.content = pack(*names.items())
    server.troubles = ["drop"]
    if form.startswith("tsv"):
        member = "{other3}.txt"
        expected = {"Toy.en-fr.tsv": b"a\tb\tc\n"}
    else:
        member = "Toy.{first}-{second}.{language}"
        expected = {"Toy.fr-en.fr": FRENCH, "Toy.fr-en.en": ENGLISH}
    url = server.url + "/{first}-{second}"
    corpus = PublicCorpus("Toy", form, "none", "", url, member, ("fr", "de"), "en")

    files = get_corpus(corpus, "fr", "en", tmp_path / "out")

    assert [path.name for path in files] == list(expected)
    assert contents(tmp_path / "out") == expected
    number_of_requests = len(server.requests)
    assert get_corpus(corpus, "fr", "en", tmp_path / "out") == files
    assert len(server.requests) == number_of_requests


def test_an_archive_is_fetched_by_one_process_at_a_time(server, tmp_path):
    archive = tmp_path / "x.zip"
    with (
        locked(tmp_path / ".x.zip.lock", archive),
        pytest.raises(InputError, match=r"x\.zip: .*process"),
    ):
        get_archive(server.url, archive, {"a": tmp_path / "a"})
    assert not server.requests


def test_an_existing_archive_is_used_and_kept(server, tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of(("a", ENGLISH)))
    get_archive(server.url, tmp_path / "x.zip", {"a": tmp_path / "out"})
    assert (tmp_path / "out").read_bytes() == ENGLISH
    assert (tmp_path / "x.zip").is_file()
    assert not server.requests


def test_the_corpora_of_the_registry_have_a_licence_languages_and_addresses():
    corpora = registry()
    assert len(corpora) >= 15
    for corpus in corpora.values():
        assert all((corpus.licence, corpus.about))
        if corpus.url:
            assert corpus.languages
            partner = corpus.partner or "en"
            language = next(code for code in corpus.languages if code != partner)
            assert corpus.has(language, partner)
            url = corpus.fill(corpus.url, partner, language)
            assert url.startswith("https://")
            assert "{" not in url
            member = corpus.fill(corpus.member, partner, language, language)
            assert language in member or corpus.format == "tsv.zip"


def test_corpora_are_found_by_name_and_language_pair():
    assert find_corpus("Europarl-v7", "en", "fr").fill("{other}", "en", "fr") == "fr"
    with pytest.raises(InputError, match=r"ParaCrawl-v5: .*fr-de.*bg, cs, .* en$"):
        find_corpus("ParaCrawl-v5", "fr", "de")
    with pytest.raises(InputError, match=r"'nope': .*fr-de.*Europarl-v8, Tatoeba"):
        find_corpus("nope", "fr", "de")


@pytest.fixture
def flores(server, monkeypatch):
    """A test set of the registry, whose archive the server has in the published layout."""
    published = datasets.datasets()["flores200-devtest"]
    files = []
    for code in published.codes:
        for part, lines in (("dev", 1), ("devtest", published.sentences)):
            files.append(
                (f"./flores200_dataset/{part}/{code}.{part}", f"{code}\n".encode() * lines)
            )
    server.content = tar_of(*files, compresslevel=1)
    dataset = replace(
        published,
        url=f"{server.url}/flores200_dataset.tar.gz",
        size=len(server.content),
        sha256=hashlib.sha256(server.content).hexdigest(),
    )
    monkeypatch.setattr(datasets, "datasets", lambda: {dataset.name: dataset})
    return dataset


def test_a_test_set_is_downloaded_once_by_its_name(server, flores, tmp_path):
    get = ("corpus", "get", flores.name, "--output", tmp_path / "out")
    output = lxsr_here(*get).stdout
    assert f"{flores.name}, 204 languages (licence: CC BY-SA 4.0)" in output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["devtest"]
    assert flores.path(tmp_path / "out", "fr").read_text().splitlines()[-1] == "fra_Latn"
    lxsr_here(*get)
    assert len(server.requests) == 1


def test_test_sets_are_shown_and_listed(flores):
    assert flores.sha256 in lxsr_here("corpus", "show", flores.name).stdout
    assert flores.name in lxsr_here("corpus", "list", "--lang-pair", "en-fr").stdout


def test_a_language_pair_is_for_corpora_and_not_for_test_sets(flores):
    result = lxsr_here("corpus", "get", flores.name, "--lang-pair", "en-fr", check=False)
    refused(result, "--lang-pair")
    refused(lxsr_here("corpus", "get", "GNOME", check=False), "GNOME", "--lang-pair")


def test_a_test_set_with_another_checksum_is_refused(server, flores, tmp_path):
    server.content += b"1"
    result = lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out", check=False)
    refused(result, flores.url)
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file()
