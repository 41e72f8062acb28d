"""Real downloads from a server of our own that behaves as badly as those of the world."""

import hashlib
import io
import os
import random
import tarfile
import zipfile
from dataclasses import replace

import pytest
import toy
from bad_server import CONTENT, serving
from conftest import lxsr_here, refused

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation import named_sets as datasets
from fairseq_lxsr.files import open as files
from fairseq_lxsr.files import unpack as unpacking
from fairseq_lxsr.files.download import download, get_archive
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.unpack import unpack
from fairseq_lxsr.preparation.registry import PublicCorpus, find_corpus, get_corpus, registry

NOISE = random.Random(1).randbytes(50_000)  # does not pack


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    "troubles",
    [[], ["drop"], ["reset"], [429], ["drop", "drop", "drop"], [503, "drop", 500], ["drop", "wrong part"], ["longer"]],
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


def test_an_interrupted_run_is_gone_on_from(server, tmp_path):
    (tmp_path / "x.part").write_bytes(CONTENT[:1000])
    download(server.url, tmp_path / "x")
    assert server.requests == ["bytes=1000-"]
    assert (tmp_path / "x").read_bytes() == CONTENT
    download(server.url, tmp_path / "x")
    assert len(server.requests) == 1  # there already


def test_a_server_without_parts_gives_all_of_it_again(server, tmp_path):
    server.troubles, server.ranges = ["drop"], False
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_parts_of_two_versions_are_never_mixed(server, tmp_path):
    server.troubles = ["drop", *[503] * 5]
    with pytest.raises(InputError, match=r"503.*\(5 attempts\); try again later, 256,000 bytes are kept"):
        download(server.url, tmp_path / "x")
    server.content, server.tag = CONTENT[::-1], '"2"'
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(("left", "asked"), [(len(CONTENT), 1), (len(CONTENT) + 5, 2)])
def test_nothing_is_left_to_fetch_or_too_much_is_there(server, tmp_path, left, asked):
    (tmp_path / "x.part").write_bytes((CONTENT + b"12345")[:left])
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"size": 7}, "512,000 bytes, expected 7"),
        ({"checksum": "0" * 64}, f"SHA-256 {hashlib.sha256(CONTENT).hexdigest()}"),
    ],
)
def test_another_size_or_checksum_is_not_kept(server, tmp_path, expected, message):
    with pytest.raises(InputError, match=message):
        download(server.url, tmp_path / "x", **expected)
    assert not any(path.name == "x" or path.suffix == ".part" for path in tmp_path.iterdir())
    (tmp_path / "x").write_bytes(CONTENT)  # of another place, so it is not removed
    with pytest.raises(InputError, match=rf"x: {message}.*remove it"):
        download(server.url, tmp_path / "x", **expected)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_an_empty_answer(server, tmp_path):
    server.content = b""
    with pytest.raises(InputError, match=r"/corpus: 0 bytes, expected 7; the file has changed"):
        download(server.url, tmp_path / "x", 7)
    assert not list(tmp_path.glob("x*"))
    download(server.url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b""


def test_an_address_that_does_not_exist(server, tmp_path):
    server.troubles = [404]
    with pytest.raises(InputError, match=r"/corpus: 404 Not Found; check the name"):
        download(server.url, tmp_path / "x")
    assert len(server.requests) == 1


def test_nobody_answers(server, tmp_path):
    server.server_close()
    with pytest.raises(InputError, match=r"refused.*\(5 attempts\)"):
        download(server.url, tmp_path / "x")


ENGLISH, FRENCH = (("\n".join(side) + "\n").encode() for side in zip(*toy.sentences(50), strict=True))


def zipped(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return stream.getvalue()


def tarred(files, link=None):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            packed.addfile(info)
    return stream.getvalue()


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("form", ["moses.zip", "moses.tgz", "tsv.zip"])
def test_a_corpus_is_fetched_and_unpacked(server, tmp_path, form):
    names = {
        "README": b"read me",
        "deep/../../Toy.en-fr.en": ENGLISH,
        "x/Toy.en-fr.fr": FRENCH,
        "fra.txt": b"a\tb\tc\n",
    }
    server.content, server.troubles = (tarred if form.endswith("tgz") else zipped)(names), ["drop"]
    member = "{other3}.txt" if form.startswith("tsv") else "Toy.{first}-{second}.{language}"
    corpus = PublicCorpus("Toy", form, "none", "", server.url + "/{first}-{second}", member, ("fr", "de"), "en")
    files = get_corpus(corpus, "fr", "en", tmp_path / "out")
    if form.startswith("tsv"):
        assert [path.name for path in files] == ["Toy.en-fr.tsv"]
        assert files[0].read_bytes() == b"a\tb\tc\n"
    else:
        assert [path.name for path in files] == ["Toy.fr-en.fr", "Toy.fr-en.en"]
        assert [path.read_bytes() for path in files] == [FRENCH, ENGLISH]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(path.name for path in files)
    asked = len(server.requests)
    assert get_corpus(corpus, "fr", "en", tmp_path / "out") == files
    assert len(server.requests) == asked


def test_an_archive_is_fetched_by_one_process(server, tmp_path):
    archive = tmp_path / "x.zip"
    with locked(tmp_path / ".x.zip.lock", archive), pytest.raises(InputError, match=r"x.zip: another run works in it"):
        get_archive(server.url, archive, {"a": tmp_path / "a"})
    assert not server.requests


def test_an_archive_that_the_user_has_is_kept(server, tmp_path):
    (tmp_path / "x.zip").write_bytes(zipped({"a": ENGLISH}))
    get_archive(server.url, tmp_path / "x.zip", {"a": tmp_path / "out"})
    assert (tmp_path / "out").read_bytes() == ENGLISH
    assert (tmp_path / "x.zip").is_file()
    assert not server.requests


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.zip", zipped({"other.txt": b"x"}), "no wanted in it"),
        ("x.tgz", tarred({}, link="wanted"), "no wanted in it"),
        ("x.zip", zipped({"wanted": b"x" * 1000})[:-30], "not a whole archive"),
        ("x.tgz", tarred({"wanted": NOISE})[:-20_000], "not a whole archive"),
        ("x.zip", zipped({"wanted": b"\0" * 20_000_000}), "unpacks to more than 100 times"),
        ("x.tgz", tarred({"wanted": b"\0" * 20_000_000}), "unpacks to more than 100 times"),
        ("x.tgz", flipped(tarred({"wanted": NOISE}), 20_000), "not a whole archive"),
        ("x.zip", b"<html>", "not a whole archive"),
        ("x.tgz", b"<html>", "not a whole archive"),
    ],
)
def test_archives_that_are_not_what_they_should_be(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        unpack(tmp_path / name, {"wanted": tmp_path / "out"})
    assert os.listdir(tmp_path) == [name]


def test_a_bomb_of_many_members_is_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "ARCHIVE_FREE_BYTES", 0)
    (tmp_path / "x.zip").write_bytes(zipped({"a": b"\0" * 100_000, "b": b"\0" * 100_000}))
    ratio = 200_000 / (tmp_path / "x.zip").stat().st_size
    monkeypatch.setattr(files, "MAX_RATIO", int(ratio * 0.75))
    with pytest.raises(InputError, match="unpacks"):
        unpack(tmp_path / "x.zip", {"a": tmp_path / "a", "b": tmp_path / "b"})


def test_the_registry_is_sound():
    corpora = registry()
    assert len(corpora) >= 15
    for corpus in corpora.values():
        assert corpus.licence
        assert corpus.about
        if corpus.url:
            assert corpus.languages
            partner = corpus.partner or "en"
            language = next(code for code in corpus.languages if code != partner)
            assert corpus.has(language, partner)
            filled = corpus.fill(corpus.url, partner, language)
            assert filled.startswith("https://")
            assert "{" not in filled
            assert language in corpus.fill(corpus.member, partner, language, language) or corpus.format == "tsv.zip"
    assert find_corpus("Europarl-v7", "en", "fr").fill("{other}", "en", "fr") == "fr"
    with pytest.raises(InputError, match=r"ParaCrawl-v5 has no fr-de; it has bg, cs, .* with en"):
        find_corpus("ParaCrawl-v5", "fr", "de")
    with pytest.raises(InputError, match=r"'nope': no corpus to download; of fr-de there are Europarl-v8, Tatoeba"):
        find_corpus("nope", "fr", "de")


@pytest.fixture
def flores(server, monkeypatch):
    """A test set of the registry, whose archive a server of our own has in the published layout."""
    real = datasets.datasets()["flores200-devtest"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for code in real.codes:
            for split, lines in (("dev", 1), ("devtest", real.sentences)):
                member = tarfile.TarInfo(f"./flores200_dataset/{split}/{code}.{split}")
                text = f"{code}\n".encode() * lines
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    server.content = packed.getvalue()
    checked = {"size": len(server.content), "sha256": hashlib.sha256(server.content).hexdigest()}
    row = replace(real, url=f"{server.url}/flores200_dataset.tar.gz", **checked)
    monkeypatch.setattr(datasets, "datasets", lambda: {row.name: row})
    return row


def test_a_test_set_is_one_command(server, flores, tmp_path):
    done = lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out")
    assert f"{flores.name}, 204 languages (licence: CC BY-SA 4.0)" in done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["devtest"]
    assert flores.path(tmp_path / "out", "fr").read_text().splitlines()[-1] == "fra_Latn"
    lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out")  # nothing is downloaded again
    assert len(server.requests) == 1
    assert flores.sha256 in lxsr_here("corpus", "show", flores.name).stdout
    assert flores.name in lxsr_here("corpus", "list", "--lang-pair", "en-fr").stdout


def test_a_test_set_that_has_changed_is_not_kept(server, flores, tmp_path):
    server.content += b"1"
    refused(lxsr_here("corpus", "get", flores.name, "--output", tmp_path / "out", check=False), "the file has changed")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_language_pairs_are_of_corpora(flores):
    refused(lxsr_here("corpus", "get", flores.name, "--lang-pair", "en-fr", check=False), "holds all languages")
    refused(lxsr_here("corpus", "get", "GNOME", check=False), "GNOME without --lang-pair; expected one")
