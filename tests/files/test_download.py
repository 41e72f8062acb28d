"""Real downloads from a server of our own that behaves as badly as those of the world."""

import hashlib
import itertools
import os
import resource
import shutil
import ssl
import subprocess
import time
from dataclasses import replace

import pytest
import toy
from archives import tar_of, zip_of
from bad_server import CONTENT, HOSTILE, hostile, serving
from conftest import contents, lxsr_here, refused

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import named_sets as datasets
from fairseq_lxsr.files.connection import ascii_address
from fairseq_lxsr.files.download import download, get_archive
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.preparation.registry import PublicCorpus, find_corpus, get_corpus, registry


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    "troubles",
    [
        [],
        ["drop"],
        ["reset"],
        [429],
        ["drop", "drop", "drop"],
        [503, "drop", 500],
        ["drop", "wrong part"],
        ["longer"],
    ],
)
def test_the_file_arrives_whole_after_any_trouble(server, tmp_path, troubles):
    server.troubles = list(troubles)
    download(server.url, tmp_path / "x", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["x"]
    assert len(server.requests) > len(troubles) or troubles == ["longer"]


def test_a_dropped_connection_is_gone_on_from(server, tmp_path):
    server.troubles = ["drop", "drop"]
    download(server.url, tmp_path / "x")
    half = len(CONTENT) // 2
    assert server.requests == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]
    server.troubles, server.ranges = ["drop"], False  # all of it comes again
    download(server.url, tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == CONTENT


def test_parts_of_two_versions_are_never_mixed(server, tmp_path):
    server.troubles = ["drop", *[503] * 5]
    with pytest.raises(InputError, match=r"503.*\b5\b.*\b256,000\b"):
        download(server.url, tmp_path / "x")
    server.content, server.tag = CONTENT[::-1], '"2"'
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(("left", "asked"), [(1000, 1), (len(CONTENT), 1), (len(CONTENT) + 5, 2)])
def test_an_interrupted_run_is_gone_on_from(server, tmp_path, left, asked):
    (tmp_path / "x.part").write_bytes((CONTENT + b"12345")[:left])
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert server.requests[0] == f"bytes={left}-"
    download(server.url, tmp_path / "x")  # there already
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"size": 7}, r"512,000\b.*\b7\b"),
        ({"checksum": "0" * 64}, hashlib.sha256(CONTENT).hexdigest()),
    ],
)
def test_another_size_or_checksum_is_not_kept(server, tmp_path, expected, message):
    with pytest.raises(InputError, match=message):
        download(server.url, tmp_path / "x", **expected)
    assert not any(path.name == "x" or path.suffix == ".part" for path in tmp_path.iterdir())
    (tmp_path / "x").write_bytes(CONTENT)  # of another place, so it is not removed
    with pytest.raises(InputError, match=rf"x: .*{message}"):
        download(server.url, tmp_path / "x", **expected)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_an_empty_answer(server, tmp_path):
    server.content = b""
    with pytest.raises(InputError, match=r"/corpus: 0\b.*\b7\b"):
        download(server.url, tmp_path / "x", 7)
    assert not list(tmp_path.glob("x*"))
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b""


def test_no_address_and_nobody_answers(server, tmp_path):
    server.troubles = [404]
    with pytest.raises(InputError, match=r"/corpus: 404 Not Found"):
        download(server.url, tmp_path / "x")
    assert len(server.requests) == 1
    server.server_close()
    with pytest.raises(InputError, match=r"/corpus: .*\b5\b"):
        download(server.url, tmp_path / "x")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_costs_a_line(tmp_path, name):
    """Whatever it says, and however slowly, few attempts and little time and memory end with one
    line.
    """
    known = None if name in ("a body for ever", "chunks for ever") else 10
    with hostile(name) as server:
        began, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(InputError) as caught:
            download(server.url, tmp_path / "x.zip", size=known, checksum="0" * 64)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert server.url in str(caught.value)
    assert server.requests <= 12  # 5 attempts, or a redirect 11 times
    assert time.monotonic() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50_000
    assert {path.name for path in tmp_path.iterdir()} <= {"x.zip.part", "x.zip.part.etag"}


def test_what_was_planted_beside_the_target_is_never_used(server, tmp_path):
    """Links, pipes, files with two names, and spoilt validators, where a run leaves its unfinished
    file.
    """
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    plants = (
        lambda path: path.symlink_to(victim),
        lambda path: path.symlink_to(tmp_path / "nowhere"),
        lambda path: path.hardlink_to(victim),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"\xff\0"),
        lambda path: path.write_bytes(b"a\r\nRange: bytes=0-0\r\n"),
        lambda path: path.write_bytes(b""),
    )
    for number, (plant, end) in enumerate(itertools.product(plants, (".part", ".part.etag"))):
        path = tmp_path / f"x{number}"
        if end == ".part.etag":
            path.with_name(f"{path.name}.part").write_bytes(b"of another version")
        plant(path.with_name(f"{path.name}{end}"))
        download(server.url, path, checksum=hashlib.sha256(CONTENT).hexdigest())
        assert (path.read_bytes(), path.is_symlink()) == (CONTENT, False)
        assert victim.read_bytes() == b"precious"
    assert {path.suffix for path in tmp_path.iterdir()} == {""}


def test_a_wrong_part_of_an_earlier_run_is_started_again(server, tmp_path):
    (tmp_path / "x.part").write_bytes(b"of another version")
    download(server.url, tmp_path / "x", checksum=hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_letters_of_any_script_in_an_address(server, tmp_path):
    download(f"{server.url}/\u00e9/\u4f60 x%20?q=\u00e9#part", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert server.paths == ["/corpus/%C3%A9/%E4%BD%A0%20x%20?q=%C3%A9"]
    assert ascii_address("https://b\u00fccher.example:8/x") == "https://xn--bcher-kva.example:8/x"


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate")
def test_https(server, tmp_path, monkeypatch):
    """From a server with a certificate that is trusted, and not from one that is not."""
    pem = tmp_path / "pem"
    new = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *new.split(), "-keyout", pem, "-out", tmp_path / "cert"],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with pytest.raises(InputError, match=r"self.signed certificate"):
        download(url, tmp_path / "x")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    server.troubles = ["drop"]
    download(url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["says nothing", "drips a body", "zeros", "the start of TLS"])
def test_a_hostile_handshake_costs_a_line(tmp_path, name):
    with hostile(name) as server, pytest.raises(InputError, match=r"\b5 attempts\b"):
        download(server.url.replace("http:", "https:"), tmp_path / "x")


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
