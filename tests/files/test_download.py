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
    """A server of CONTENT."""
    with serving() as server:
        yield server


@pytest.mark.parametrize("trouble", ["drop", "reset"])
def test_a_download_is_continued_where_the_connection_ended(server, tmp_path, trouble):
    # Each time, the server sends half of the requested bytes.
    server.troubles = [trouble, trouble]
    half = len(CONTENT) // 2
    three_quarters = half + half // 2

    download(server.url, tmp_path / "x", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

    assert (tmp_path / "x").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["x"]
    # The first request asks for the whole file, without a range.
    assert server.requests == [None, f"bytes={half}-", f"bytes={three_quarters}-"]


def test_a_download_begins_again_if_the_server_cannot_continue_it(server, tmp_path):
    """Without the header Range, the server sends the whole file."""
    server.troubles = ["drop"]
    server.ranges = False

    download(server.url, tmp_path / "x")

    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, len(CONTENT)], ids=["begun", "complete"])
def test_a_partial_file_of_an_interrupted_run_is_continued_at_its_end(server, tmp_path, length):
    (tmp_path / "x.part").write_bytes(CONTENT[:length])

    download(server.url, tmp_path / "x")

    assert (tmp_path / "x").read_bytes() == CONTENT
    assert server.requests == [f"bytes={length}-"]


def test_an_existing_file_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)

    download(server.url, tmp_path / "x", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

    assert (tmp_path / "x").read_bytes() == CONTENT
    assert not server.requests


# Expected sizes and checksums that CONTENT does not have, and the message, which says what it has.
OTHER_FILES = [
    pytest.param({"size": 7}, rf"{len(CONTENT):,} bytes instead of 7\b", id="size"),
    pytest.param(
        {"checksum": "0" * 64},
        f"SHA-256 {hashlib.sha256(CONTENT).hexdigest()} instead of 0000",
        id="checksum",
    ),
]


@pytest.mark.parametrize(("expected", "message"), OTHER_FILES)
def test_a_download_of_another_size_or_checksum_is_refused_and_removed(
    server, tmp_path, expected, message
):
    with pytest.raises(InputError, match=rf"/corpus: {message}"):
        download(server.url, tmp_path / "x", **expected)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("expected", "message"), OTHER_FILES)
def test_an_existing_file_of_another_size_or_checksum_is_refused_and_kept(
    server, tmp_path, expected, message
):
    """It may be a file of the user."""
    (tmp_path / "x").write_bytes(CONTENT)

    with pytest.raises(InputError, match=rf"x: {message}"):
        download(server.url, tmp_path / "x", **expected)

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_an_error_status_of_the_server_is_in_the_message(server, tmp_path):
    server.troubles = [404]

    with pytest.raises(InputError, match=r"/corpus: .*404.*Not Found"):
        download(server.url, tmp_path / "x")


def test_a_failed_download_keeps_the_partial_file_and_names_its_length(server, tmp_path):
    half = len(CONTENT) // 2
    # The server sends half of the file, then an error.
    server.troubles = ["drop", 503]

    with pytest.raises(InputError, match=rf"/corpus: .*503.*\b{half:,} bytes"):
        download(server.url, tmp_path / "x")

    assert (tmp_path / "x.part").read_bytes() == CONTENT[:half]


def test_a_download_without_a_server_is_refused_in_one_line(server, tmp_path):
    server.shutdown()
    server.server_close()

    with pytest.raises(InputError, match=r"/corpus: .*Connection refused.*network") as caught:
        download(server.url, tmp_path / "x")

    assert "\n" not in str(caught.value)


def test_a_link_at_the_name_of_the_partial_file_is_replaced_and_not_followed(server, tmp_path):
    """Another user may have planted it, so that the download overwrites a file of this one."""
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "x.part").symlink_to(tmp_path / "victim")

    download(server.url, tmp_path / "x")

    assert (tmp_path / "x").read_bytes() == CONTENT
    assert not (tmp_path / "x").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"


ENGLISH = "".join(f"{source}\n" for source, _ in toy.sentences(50)).encode()
FRENCH = "".join(f"{target}\n" for _, target in toy.sentences(50)).encode()
TABLE = b"english\tfrench\tlicence\n"


@pytest.fixture(params=["moses.zip", "moses.tgz", "tsv.zip"])
def corpus(request, server) -> PublicCorpus:
    """A corpus of English with French or German, whose archive the server has.

    A `moses` archive has a file for each language, a `tsv` archive a table with the three-letter
    code of the language that is not English as its name.
    """
    form = request.param
    files = {
        "README": b"read me",
        "deep/../../Toy.en-fr.en": ENGLISH,
        "x/Toy.en-fr.fr": FRENCH,
        "fra.txt": TABLE,
    }
    pack = tar_of if form == "moses.tgz" else zip_of
    server.content = pack(*files.items())
    member = "{other3}.txt" if form == "tsv.zip" else "Toy.{first}-{second}.{language}"
    return PublicCorpus(
        name="Toy",
        format=form,
        licence="none",
        about="",
        url=f"{server.url}/{{first}}-{{second}}",
        member=member,
        languages=("fr", "de"),
        partner="en",
    )


def test_the_files_of_a_language_pair_of_a_corpus_are_downloaded_and_unpacked(
    server, corpus, tmp_path
):
    # The archive is continued as other downloads are.
    server.troubles = ["drop"]
    if corpus.format == "tsv.zip":
        expected = {"Toy.en-fr.tsv": TABLE}
    else:
        expected = {"Toy.fr-en.fr": FRENCH, "Toy.fr-en.en": ENGLISH}

    files = get_corpus(corpus, "fr", "en", tmp_path / "out")

    assert [path.name for path in files] == list(expected)
    # Neither the README nor the archive is left.
    assert contents(tmp_path / "out") == expected


def test_a_corpus_is_downloaded_once(server, corpus, tmp_path):
    files = get_corpus(corpus, "fr", "en", tmp_path / "out")

    assert get_corpus(corpus, "fr", "en", tmp_path / "out") == files
    assert len(server.requests) == 1


def test_an_archive_that_another_process_downloads_is_refused(server, tmp_path):
    archive = tmp_path / "x.zip"

    # The lock of the other process.
    with (
        locked(tmp_path / ".x.zip.lock", archive),
        pytest.raises(InputError, match=r"x\.zip: .*process"),
    ):
        get_archive(server.url, archive, {"a": tmp_path / "a"})

    assert not server.requests


def test_an_existing_archive_is_unpacked_and_kept_instead_of_downloaded(server, tmp_path):
    archive = tmp_path / "x.zip"
    archive.write_bytes(zip_of(("a", ENGLISH)))

    get_archive(server.url, archive, {"a": tmp_path / "output"})

    assert (tmp_path / "output").read_bytes() == ENGLISH
    assert archive.is_file()
    assert not server.requests


CORPORA = registry()


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_of_the_registry_has_a_licence_and_a_description(name):
    assert CORPORA[name].licence
    assert CORPORA[name].about


@pytest.mark.parametrize("name", [name for name, corpus in CORPORA.items() if corpus.url])
def test_a_corpus_to_download_has_a_complete_address_and_a_file_for_a_language(name):
    corpus = CORPORA[name]
    partner = corpus.partner or "en"
    language = next(code for code in corpus.languages if code != partner)

    url = corpus.fill(corpus.url, partner, language)
    member = corpus.fill(corpus.member, partner, language, language)

    assert corpus.has(language, partner)
    assert url.startswith("https://")
    # No placeholder is left.
    assert "{" not in url
    # A table has both languages, under any name.
    assert language in member or corpus.format == "tsv.zip"


def test_a_corpus_is_found_by_its_name_and_a_language_pair_that_it_has():
    assert find_corpus("Europarl-v7", "en", "fr") == CORPORA["Europarl-v7"]


def test_the_error_for_a_language_pair_that_a_corpus_lacks_lists_its_languages():
    # All languages of ParaCrawl are paired with English.
    with pytest.raises(InputError, match=r"ParaCrawl-v5: .*fr-de.*bg, cs, .* en$"):
        find_corpus("ParaCrawl-v5", "fr", "de")


def test_the_error_for_an_unknown_corpus_lists_the_corpora_that_have_the_language_pair():
    with pytest.raises(InputError, match=r"'nope': .*fr-de.*Europarl-v8, Tatoeba"):
        find_corpus("nope", "fr", "de")


@pytest.fixture
def flores(server, monkeypatch):
    """The test set FLORES-200, whose archive the server has in the published layout.

    Each file has the code of its language as each of its lines.
    """
    published = datasets.datasets()["flores200-devtest"]
    files = []
    for code in published.codes:
        for part, num_lines in (("dev", 1), ("devtest", published.sentences)):
            name = f"./flores200_dataset/{part}/{code}.{part}"
            files.append((name, f"{code}\n".encode() * num_lines))
    server.content = tar_of(*files, compresslevel=1)
    dataset = replace(
        published,
        url=f"{server.url}/flores200_dataset.tar.gz",
        size=len(server.content),
        sha256=hashlib.sha256(server.content).hexdigest(),
    )
    monkeypatch.setattr(datasets, "datasets", lambda: {dataset.name: dataset})
    return dataset


def test_corpus_get_downloads_a_test_set_by_its_name_and_prints_its_licence(flores, tmp_path):
    output = tmp_path / "out"

    result = lxsr_here("corpus", "get", flores.name, "--output", output)

    # FLORES-200 has 204 combinations of language and script.
    assert f"{flores.name}, 204 languages (licence: CC BY-SA 4.0)" in result.stdout
    # The part `dev` of the archive belongs to another test set.
    assert [path.name for path in output.iterdir()] == ["devtest"]
    assert flores.path(output, "fr").read_text().splitlines()[-1] == "fra_Latn"


def test_corpus_get_downloads_a_test_set_once(server, flores, tmp_path):
    command = ("corpus", "get", flores.name, "--output", tmp_path / "out")

    lxsr_here(*command)
    lxsr_here(*command)

    assert len(server.requests) == 1


def test_corpus_show_prints_the_checksum_of_a_test_set(flores):
    assert flores.sha256 in lxsr_here("corpus", "show", flores.name).stdout


def test_corpus_list_prints_the_test_sets_of_a_language_pair(flores):
    assert flores.name in lxsr_here("corpus", "list", "--lang-pair", "en-fr").stdout


def test_corpus_get_refuses_a_language_pair_for_a_test_set(flores):
    """A test set is downloaded with all its languages."""
    result = lxsr_here("corpus", "get", flores.name, "--lang-pair", "en-fr", check=False)

    refused(result, "--lang-pair")


def test_corpus_get_refuses_a_corpus_without_a_language_pair():
    result = lxsr_here("corpus", "get", "GNOME", check=False)

    refused(result, "GNOME", "--lang-pair")


def test_corpus_get_refuses_a_test_set_of_another_checksum_and_leaves_no_file(
    server, flores, tmp_path
):
    # The archive has one byte more than published.
    server.content += b"1"

    result = lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out", check=False)

    refused(result, flores.url)
    assert contents(tmp_path / "out") == {}
