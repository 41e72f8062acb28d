"""A model by its name in the package, by its path, and by the address of its archive."""

import hashlib
import io
import itertools
import json
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import random_model
import toy
from conftest import contents, lxsr_here, refused
from http_server import serving

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder import locate as pretrained
from fairseq_lxsr.encoder.model_folder import CARD_FILE, CARD_FILES, MODEL_FILES
from fairseq_lxsr.encoder.numpy_network import Bag
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import MtebEncoder
from fairseq_lxsr.export.card import write_card

TEXTS = ["one dog", "un chien"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A model folder without layers, with its card."""
    path = tmp_path_factory.mktemp("models") / "model"
    folder = random_model.write_model(path, gated=True, num_layers=0, order_coefficients=1)
    write_card(folder, SentenceEncoder.from_pretrained(folder))
    return folder


@pytest.fixture
def model_name(model_folder, tmp_path, monkeypatch):
    """The name of a model in the package."""
    monkeypatch.setattr(pretrained, "MODELS", tmp_path / "package")
    shutil.copytree(model_folder, tmp_path / "package" / "lxsr-toy")
    return "lxsr-toy"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as server:
        yield server


def archive_of(folder: Path, *left_out: str, dictionary_end: bytes = b"") -> bytes:
    """Pack a model folder, without some files and with an addition to its dictionary."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            if path.name in left_out:
                continue
            content = path.read_bytes()
            if path.name == "dict.txt":
                content += dictionary_end
            member = tarfile.TarInfo(f"lxsr-toy/{path.name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def address(server, content: bytes, name: str = "lxsr-toy.tar.gz") -> str:
    """Serve an archive; return its address with its checksum."""
    server.content = content
    return f"{server.url}/{name}#sha256={hashlib.sha256(content).hexdigest()}"


def cached_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_model_of_the_package_is_found_by_its_name(
    model_folder, model_name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # A name means the same in every folder; ./NAME is a path.
    (tmp_path / model_name).mkdir()
    expected = SentenceEncoder.from_pretrained(model_folder).encode(TEXTS)
    np.testing.assert_array_equal(
        SentenceEncoder.from_pretrained(model_name).encode(TEXTS), expected
    )
    for path in (f"./{model_name}", Path(model_name)):
        with pytest.raises(InputError, match=r"config\.json"):
            SentenceEncoder.from_pretrained(path)


@pytest.mark.parametrize("name", pretrained.model_names())
def test_a_packaged_model_is_small_and_has_a_card_with_sources_and_scores(name):
    encoder = SentenceEncoder.from_pretrained(name)
    assert isinstance(encoder._bag, Bag)
    files = [path for path in (pretrained.MODELS / name).iterdir() if path.is_file()]
    assert {path.name for path in files} == {*MODEL_FILES, *CARD_FILES}
    assert sum(path.stat().st_size for path in files) < 34e6
    card = (pretrained.MODELS / name / CARD_FILE).read_text(encoding="utf-8")
    for fragment in (
        "| source | licence | attribution | pairs |",
        f"model:{encoder.fingerprint}",
        "Signatures",
    ):
        assert fragment in card


SENTENCES = {
    "en": [
        "The meeting begins at nine.",
        "Where can I buy a ticket?",
        "It rained all day yesterday.",
    ],
    "fr": [
        "La réunion commence à neuf heures.",
        "Où puis-je acheter un billet ?",
        "Hier, il a plu toute la journée.",
    ],
    "de": [
        "Die Sitzung beginnt um neun Uhr.",
        "Wo kann ich eine Karte kaufen?",
        "Gestern hat es den ganzen Tag geregnet.",
    ],
    "es": [
        "La reunión empieza a las nueve.",
        "¿Dónde puedo comprar un billete?",
        "Ayer llovió todo el día.",
    ],
    "it": [
        "La riunione comincia alle nove.",
        "Dove posso comprare un biglietto?",
        "Ieri è piovuto tutto il giorno.",
    ],
    "pt": [
        "A reunião começa às nove.",
        "Onde posso comprar um bilhete?",
        "Ontem choveu o dia inteiro.",
    ],
    "ru": ["Встреча начинается в девять.", "Где можно купить билет?", "Вчера весь день шёл дождь."],
    "zh": ["会议九点开始。", "我在哪里可以买到票?", "昨天下了一整天的雨。"],
    "ja": ["会議は九時に始まります。", "切符はどこで買えますか。", "昨日は一日中雨が降った。"],
}


def test_the_packaged_model_finds_translations_in_all_language_pairs(packaged):
    embeddings = {}
    for language, lines in SENTENCES.items():
        embeddings[language] = packaged.encode(lines, normalize=True)
    for source, target in itertools.product(SENTENCES, repeat=2):
        cosines = embeddings[source] @ embeddings[target].T
        assert cosines.argmax(axis=1).tolist() == [0, 1, 2], (source, target)


def test_an_unknown_name_is_refused_with_the_names_of_the_package(model_name, tmp_path):
    for unknown in ("lxsr-toi", Path(model_name)):
        with pytest.raises(InputError, match=rf"{unknown}: .*\({model_name}\)"):
            SentenceEncoder.from_pretrained(unknown)
    files = ("--input", "none", "--output", tmp_path / "o.npy")
    done = lxsr_here("embed", "--model", "lxsr-toi", *files, check=False)
    refused(done, "lxsr-toi", model_name)


def test_every_command_takes_the_name_of_a_packaged_model(model_name, tmp_path):
    """Other tests run the commands with the path of a folder."""
    toy.write(tmp_path / "t", toy.sentences(20))
    sides = ["--source", tmp_path / "t.en", "--target", tmp_path / "t.fr"]
    text = ["--input", tmp_path / "t.en"]
    lxsr_here("embed", "--model", model_name, *text, "--output", tmp_path / "t.npy")
    lxsr_here("index", "--model", model_name, *text, "--output", tmp_path / "index")
    done = lxsr_here("search", "--index", tmp_path / "index", "--k", "1", "one dog")
    assert done.stdout.count("\n") == 2
    models = ["--model", f"en={model_name}", "--model", f"fr={model_name}", "--lang-pair", "en-fr"]
    lxsr_here("mine", *models, *sides, "--output", tmp_path / "pairs.tsv")
    lxsr_here("score", "--model", model_name, *sides, "--output", tmp_path / "scores.tsv")
    lxsr_here("eval", "xsr", "--model", model_name, *sides)
    lxsr_here("export", "card", "--model", model_name)
    lxsr_here("export", "web", "--model", model_name, *text, "--output", tmp_path / "web")
    assert MtebEncoder.from_pretrained(model_name).name == f"fairseq-lxsr/{model_name}"


def test_an_archive_is_downloaded_once_and_continued_if_interrupted(model_folder, server, tmp_path):
    model = address(server, archive_of(model_folder))
    server.troubles = ["drop"]
    expected = SentenceEncoder.from_pretrained(model_folder).encode(TEXTS)
    for _ in range(2):
        encoder = SentenceEncoder.from_pretrained(model)
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
        # The second request continues the download that the server dropped.
        assert len(server.requests) == 2
    assert encoder.folder.name == "lxsr-toy"
    names = [pretrained.CACHE_RECORD, *(path.name for path in model_folder.iterdir())]
    assert sorted(path.name for path in cached_files(tmp_path)) == sorted(names)
    (tmp_path / "t.en").write_text("one dog\n")
    options = ["--input", tmp_path / "t.en"]
    lxsr_here("index", "--model", model, *options, "--output", tmp_path / "index")
    lxsr_here(
        "index", "--model", f"en={model}", "--lang", "en", *options, "--output", tmp_path / "other"
    )
    assert len(server.requests) == 2


def test_two_threads_download_an_archive_once(model_folder, server):
    model = address(server, archive_of(model_folder))
    with ThreadPoolExecutor(2) as threads:
        folders = set(threads.map(pretrained.find_model, [model] * 2))
    assert len(folders) == len(server.requests) == 1


def test_archives_may_be_named_like_files_of_the_cache(model_folder, server, tmp_path):
    assert (
        pretrained.find_model(address(server, archive_of(model_folder), "lock.tar.gz")).name
        == "lock"
    )
    model = address(server, archive_of(model_folder), "taken.tar.gz")
    existing = tmp_path / "cache" / "fairseq-lxsr" / "models" / model[-64:] / "taken"
    # The archive has another checksum, and so another folder, if it was packed in another second.
    existing.parent.mkdir(exist_ok=True)
    existing.touch()
    with pytest.raises(InputError, match=r"taken .*config\.json"):
        pretrained.find_model(model)


def replace_by_another_model(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    random_model.write_model(tmp_path / "another", gated=True, num_layers=0, embed_dim=24).rename(
        folder
    )


def replace_by_a_link(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "elsewhere")


def flip_a_bit(folder: Path, _: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def truncate_the_weights(folder: Path, _: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def delete_the_dictionary(folder: Path, _: Path) -> None:
    (folder / "dict.txt").unlink()


def delete_the_config(folder: Path, _: Path) -> None:
    (folder / "config.json").unlink()


def delete_all_files(folder: Path, _: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def change_the_card(folder: Path, _: Path) -> None:
    (folder / "README.md").write_text("owned")


def delete_the_record(folder: Path, _: Path) -> None:
    (folder.parent / pretrained.CACHE_RECORD).unlink()


def damage_the_record(folder: Path, _: Path) -> None:
    (folder.parent / pretrained.CACHE_RECORD).write_bytes(b"[" * 99_999)


def record_another_archive(folder: Path, _: Path) -> None:
    record = json.loads((folder.parent / pretrained.CACHE_RECORD).read_text())
    (folder.parent / pretrained.CACHE_RECORD).write_text(json.dumps(record | {"archive": "0" * 64}))


def plant_hidden_copies(folder: Path, _: Path) -> None:
    shutil.copytree(folder, folder.with_name(f".{folder.name}.host.1.old"))
    (folder.parent / ".archive.tar.gz").write_bytes(b"planted")
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage",
    [
        replace_by_another_model,
        replace_by_a_link,
        flip_a_bit,
        truncate_the_weights,
        delete_the_dictionary,
        delete_the_config,
        delete_all_files,
        change_the_card,
        delete_the_record,
        damage_the_record,
        record_another_archive,
        plant_hidden_copies,
    ],
)
def test_a_damaged_cache_is_downloaded_again_or_refused(model_folder, server, tmp_path, damage):
    model = address(server, archive_of(model_folder))
    folder = pretrained.find_model(model)
    num_requests = len(server.requests)
    for troubles in ([404], []):
        damage(folder, tmp_path / f"{len(troubles)}")
        server.troubles = troubles
        if troubles:
            with pytest.raises(InputError, match="404"):
                pretrained.find_model(model)
            server.troubles = []
        assert pretrained.find_model(model) == folder
        assert len(server.requests) > num_requests
        num_requests = len(server.requests)
        assert contents(folder) == contents(model_folder)
        assert not folder.is_symlink()
        # The repaired cache needs no further request.
        assert pretrained.find_model(model) == folder
        assert len(server.requests) == num_requests


def test_a_missing_home_folder_is_refused_with_the_variables(model_folder, server, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    with pytest.raises(InputError, match=r"\bHOME.*XDG_CACHE_HOME"):
        pretrained.find_model(address(server, b"x"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1/x.tar.gz", "Connection refused"),
        ("http://127.0.0.1:1/\u00e9/x.tar.gz", "ascii"),
        ("http://[::1/x.tar.gz", "Invalid IPv6 URL"),
        ("http://127.0.0.1:x/x.zip", "port"),
        ("http:///x.zip", "NAME.tar.gz"),
        ("http://:80/x.zip", "check the URL"),
        ("http://a\0b/x.zip", "control characters"),
        ("http://1.2.3.4.5/x.zip", "not known"),
    ],
)
def test_a_mistyped_address_is_refused_in_one_line(server, address, message):
    with pytest.raises(InputError, match=message) as caught:
        pretrained.find_model(f"{address}#sha256={'0' * 64}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("lxsr-toy.tar.gz", ""),
        ("lxsr-toy.tar.gz", "#sha256="),
        ("lxsr-toy.tar.gz", "#sha256=" + "0" * 63),
        ("lxsr-toy.tar.gz", "#md5=" + "0" * 64),
        ("lxsr-toy.tar.gz", "#sha256=" + "g" * 64),
        ("lxsr-toy.bin", "#sha256=" + "0" * 64),
        ("...tar.gz", "#sha256=" + "0" * 64),
        (".tar.gz", "#sha256=" + "0" * 64),
    ],
)
def test_an_address_without_archive_or_checksum_is_refused(server, tmp_path, name, fragment):
    model = f"{server.url}/{name}{fragment}"
    with pytest.raises(InputError, match=r"https://\.\.\./NAME\.tar\.gz#sha256="):
        SentenceEncoder.from_pretrained(model)
    assert not server.requests
    assert not cached_files(tmp_path)


def test_an_archive_without_a_valid_model_is_refused_and_not_cached(model_folder, server, tmp_path):
    files = ("--input", model_folder / "README.md", "--output", tmp_path / "o")

    def assert_refused(model, message):
        done = lxsr_here("embed", "--model", model, *files, check=False)
        refused(done, server.url, message)
        assert "/cache/" not in done.stderr
        assert not cached_files(tmp_path)
        assert not (tmp_path / "o").exists()

    for name in ("config.json", "README.md", "scores.json"):
        assert_refused(address(server, archive_of(model_folder, name)), name)
    changed = archive_of(model_folder, dictionary_end=b"x 1\n")
    assert_refused(address(server, changed), "dict.txt")
    assert_refused(address(server, b"<html>"), "archive")
    model = address(server, archive_of(model_folder))
    wrong_checksum = "0" * 64
    assert_refused(f"{model[:-64]}{wrong_checksum}", "0000")


def test_the_cache_folder_is_that_of_xdg_cache_home_if_absolute(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, folder in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "x"), "x")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert pretrained.cache_folder() == tmp_path / folder / "fairseq-lxsr" / "models"
