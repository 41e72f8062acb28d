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
    """A server of archives; the cache of downloads is the empty folder `cache`."""
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
    """Return the files of the cache of the fixture `server`."""
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


# -- models of the package


def test_a_model_of_the_package_is_found_by_its_name_in_every_folder(
    model_folder, model_name, tmp_path, monkeypatch
):
    (tmp_path / model_name).mkdir()
    monkeypatch.chdir(tmp_path)

    encoder = SentenceEncoder.from_pretrained(model_name)

    expected = SentenceEncoder.from_pretrained(model_folder).encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


def test_a_path_with_the_name_of_a_packaged_model_is_a_path(model_name, tmp_path, monkeypatch):
    """The folder is empty, so it has no config.json."""
    (tmp_path / model_name).mkdir()
    monkeypatch.chdir(tmp_path)

    for path in (f"./{model_name}", Path(model_name)):
        with pytest.raises(InputError, match=r"config\.json"):
            SentenceEncoder.from_pretrained(path)


@pytest.mark.parametrize("name", pretrained.model_names())
def test_a_packaged_model_needs_no_torch(name):
    encoder = SentenceEncoder.from_pretrained(name)

    # A network of numpy.
    assert isinstance(encoder._bag, Bag)


@pytest.mark.parametrize("name", pretrained.model_names())
def test_a_packaged_model_is_small_and_has_no_other_files(name):
    files = [path for path in (pretrained.MODELS / name).iterdir() if path.is_file()]

    assert {path.name for path in files} == {*MODEL_FILES, *CARD_FILES}
    # The wheel contains them.
    assert sum(path.stat().st_size for path in files) < 34e6


@pytest.mark.parametrize("name", pretrained.model_names())
def test_a_packaged_model_has_a_card_with_sources_and_scores(name):
    encoder = SentenceEncoder.from_pretrained(name)

    card = (pretrained.MODELS / name / CARD_FILE).read_text(encoding="utf-8")

    assert "| source | licence | attribution | pairs |" in card
    # The signatures of the scores are those of this model.
    assert f"model:{encoder.fingerprint}" in card
    assert "Signatures" in card


# Three sentences and their translations, in the same order.
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
        nearest = cosines.argmax(axis=1).tolist()
        assert nearest == [0, 1, 2], (source, target)


@pytest.mark.parametrize("kind", [str, Path])
def test_an_unknown_name_is_refused_with_the_names_of_the_package(model_name, kind):
    with pytest.raises(InputError, match=rf"lxsr-toi: .*\({model_name}\)"):
        SentenceEncoder.from_pretrained(kind("lxsr-toi"))


def test_a_path_with_the_name_of_a_packaged_model_that_does_not_exist_is_refused(model_name):
    with pytest.raises(InputError, match=rf"{model_name}: .*\({model_name}\)"):
        SentenceEncoder.from_pretrained(Path(model_name))


def test_a_command_refuses_an_unknown_name_with_the_names_of_the_package(model_name, tmp_path):
    files = ("--input", "none", "--output", tmp_path / "o.npy")

    done = lxsr_here("embed", "--model", "lxsr-toi", *files, check=False)

    refused(done, "lxsr-toi", model_name)


@pytest.fixture
def text(tmp_path):
    """The prefix of two aligned files, t.en and t.fr."""
    toy.write(tmp_path / "t", toy.sentences(20))
    return tmp_path / "t"


# Other tests run these commands with the path of a folder.
@pytest.mark.parametrize(
    "command",
    [
        "embed --model {name} --input {text}.en --output {output}.npy",
        "index --model {name} --input {text}.en --output {output}",
        "mine --model en={name} --model fr={name} --lang-pair en-fr --source {text}.en "
        "--target {text}.fr --output {output}.tsv",
        "score --model {name} --source {text}.en --target {text}.fr --output {output}.tsv",
        "eval xsr --model {name} --source {text}.en --target {text}.fr",
        "export card --model {name}",
        "export web --model {name} --input {text}.en --output {output}",
    ],
    ids=["embed", "index", "mine", "score", "eval", "card", "web"],
)
def test_a_command_takes_the_name_of_a_packaged_model(model_name, text, tmp_path, command):
    words = command.format(name=model_name, text=text, output=tmp_path / "output").split()

    done = lxsr_here(*words, check=False)

    assert done.returncode == 0, done.stderr


def test_search_finds_the_packaged_model_of_an_index(model_name, text, tmp_path):
    index = ("--model", model_name, "--input", f"{text}.en", "--output", tmp_path / "index")
    lxsr_here("index", *index)

    done = lxsr_here("search", "--index", tmp_path / "index", "--k", "1", "one dog")

    # The query and one sentence.
    assert len(done.stdout.splitlines()) == 2


def test_mteb_has_the_name_of_a_packaged_model(model_name):
    assert MtebEncoder.from_pretrained(model_name).name == f"fairseq-lxsr/{model_name}"


# -- archives


def test_an_archive_gives_the_vectors_of_its_model(model_folder, server):
    encoder = SentenceEncoder.from_pretrained(address(server, archive_of(model_folder)))

    expected = SentenceEncoder.from_pretrained(model_folder).encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert encoder.folder.name == "lxsr-toy"


def test_an_interrupted_download_is_continued(model_folder, server):
    model = address(server, archive_of(model_folder))
    server.troubles = ["drop"]

    folder = pretrained.find_model(model)

    # The second request continues the download that the server dropped.
    assert len(server.requests) == 2
    assert contents(folder) == contents(model_folder)


def test_an_archive_is_downloaded_once(model_folder, server):
    model = address(server, archive_of(model_folder))

    first = pretrained.find_model(model)
    second = pretrained.find_model(model)

    assert second == first
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "options", [("--model", "{model}"), ("--model", "en={model}", "--lang", "en")]
)
def test_commands_use_the_archive_in_the_cache(model_folder, server, tmp_path, options):
    model = address(server, archive_of(model_folder))
    pretrained.find_model(model)
    (tmp_path / "t.en").write_text("one dog\n")

    words = [word.format(model=model) for word in options]
    lxsr_here("index", *words, "--input", tmp_path / "t.en", "--output", tmp_path / "index")

    assert len(server.requests) == 1


def test_the_cache_has_the_files_of_the_archive_and_a_record(model_folder, server, tmp_path):
    pretrained.find_model(address(server, archive_of(model_folder)))

    names = [pretrained.CACHE_RECORD, *(path.name for path in model_folder.iterdir())]
    assert sorted(path.name for path in cached_files(tmp_path)) == sorted(names)


def test_two_threads_download_an_archive_once(model_folder, server):
    model = address(server, archive_of(model_folder))

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(pretrained.find_model, [model] * 2)

    assert first == second
    assert len(server.requests) == 1


def test_an_archive_may_be_named_like_the_lock_of_the_cache(model_folder, server):
    model = address(server, archive_of(model_folder), "lock.tar.gz")

    assert pretrained.find_model(model).name == "lock"


def test_a_file_in_the_place_of_a_cached_model_is_refused(model_folder, server, tmp_path):
    content = archive_of(model_folder)
    checksum = hashlib.sha256(content).hexdigest()
    place = tmp_path / "cache" / "fairseq-lxsr" / "models" / checksum / "taken"
    place.parent.mkdir(parents=True)
    place.touch()

    with pytest.raises(InputError, match=r"taken .*config\.json"):
        pretrained.find_model(address(server, content, "taken.tar.gz"))


# -- a cache that was changed. Each function damages the folder of a cached model; `scratch` is for
# other files.


def replace_by_another_model(folder: Path, scratch: Path) -> None:
    shutil.rmtree(folder)
    random_model.write_model(scratch / "another", gated=True, num_layers=0, embed_dim=24).rename(
        folder
    )


def replace_by_a_link(folder: Path, scratch: Path) -> None:
    shutil.copytree(folder, scratch / "elsewhere")
    folder.rename(scratch / "moved")
    folder.symlink_to(scratch / "elsewhere")


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


DAMAGES = [
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
]


@pytest.fixture(params=DAMAGES)
def damaged_model(request, model_folder, server, tmp_path):
    """The address of a model whose folder in the cache was damaged, and the folder."""
    model = address(server, archive_of(model_folder))
    folder = pretrained.find_model(model)
    (tmp_path / "scratch").mkdir()
    request.param(folder, tmp_path / "scratch")
    server.requests.clear()
    return model, folder


def test_a_damaged_cache_is_downloaded_again_once(damaged_model, model_folder, server):
    model, folder = damaged_model

    assert pretrained.find_model(model) == folder

    assert server.requests
    assert contents(folder) == contents(model_folder)
    assert not folder.is_symlink()
    # The repaired cache needs no further request.
    server.requests.clear()
    assert pretrained.find_model(model) == folder
    assert not server.requests


def test_a_damaged_cache_is_not_used_if_the_download_fails(damaged_model, model_folder, server):
    model, folder = damaged_model
    server.troubles = [404]

    with pytest.raises(InputError, match="404"):
        pretrained.find_model(model)

    # It is repaired when the server has the archive again.
    assert pretrained.find_model(model) == folder
    assert contents(folder) == contents(model_folder)


# -- what is refused


def test_a_missing_home_folder_is_refused_with_the_variables(model_folder, server, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    # The database of users does not know the user, as in some containers.
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])

    with pytest.raises(InputError, match=r"\bHOME.*XDG_CACHE_HOME"):
        pretrained.find_model(address(server, b"x"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        pytest.param("http://127.0.0.1:1/x.tar.gz", "Connection refused", id="no server"),
        pytest.param("http://127.0.0.1:1/\u00e9/x.tar.gz", "ascii", id="not ASCII"),
        pytest.param("http://[::1/x.tar.gz", "Invalid IPv6 URL", id="bracket is missing"),
        pytest.param("http://127.0.0.1:x/x.zip", "port", id="port is a letter"),
        pytest.param("http:///x.zip", "NAME.tar.gz", id="no host"),
        pytest.param("http://:80/x.zip", "check the URL", id="only a port"),
        pytest.param("http://a\0b/x.zip", "control characters", id="control character"),
        pytest.param("http://1.2.3.4.5/x.zip", "not known", id="five numbers"),
    ],
)
def test_a_mistyped_address_is_refused_in_one_line(server, address, message):
    with pytest.raises(InputError, match=message) as caught:
        pretrained.find_model(f"{address}#sha256={'0' * 64}")

    assert "\n" not in str(caught.value)


VALID_FRAGMENT = "#sha256=" + "0" * 64


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        pytest.param("lxsr-toy.tar.gz", "", id="no checksum"),
        pytest.param("lxsr-toy.tar.gz", "#sha256=", id="empty checksum"),
        pytest.param("lxsr-toy.tar.gz", "#sha256=" + "0" * 63, id="short checksum"),
        pytest.param("lxsr-toy.tar.gz", "#sha256=" + "g" * 64, id="not hexadecimal"),
        pytest.param("lxsr-toy.tar.gz", "#md5=" + "0" * 64, id="other checksum"),
        pytest.param("lxsr-toy.bin", VALID_FRAGMENT, id="no archive"),
        pytest.param("...tar.gz", VALID_FRAGMENT, id="name of dots"),
        pytest.param(".tar.gz", VALID_FRAGMENT, id="no name"),
    ],
)
def test_an_address_without_archive_or_checksum_is_refused(server, tmp_path, name, fragment):
    model = f"{server.url}/{name}{fragment}"

    with pytest.raises(InputError, match=r"https://\.\.\./NAME\.tar\.gz#sha256="):
        SentenceEncoder.from_pretrained(model)

    assert not server.requests
    assert not cached_files(tmp_path)


@pytest.fixture
def assert_refused(server, model_folder, tmp_path):
    """Return a function that checks that a command refuses an archive and does not cache it."""

    def assert_refused(model: str, message: str) -> None:
        files = ("--input", model_folder / "README.md", "--output", tmp_path / "o")
        done = lxsr_here("embed", "--model", model, *files, check=False)
        refused(done, server.url, message)
        # The message names the address, not a place that does not exist any more.
        assert "/cache/" not in done.stderr
        assert not cached_files(tmp_path)
        assert not (tmp_path / "o").exists()

    return assert_refused


@pytest.mark.parametrize("name", ["config.json", "README.md", "scores.json"])
def test_an_archive_without_a_file_of_a_model_is_refused(
    assert_refused, model_folder, server, name
):
    assert_refused(address(server, archive_of(model_folder, name)), name)


def test_an_archive_with_a_changed_dictionary_is_refused(assert_refused, model_folder, server):
    changed = archive_of(model_folder, dictionary_end=b"x 1\n")

    assert_refused(address(server, changed), "dict.txt")


def test_a_download_that_is_no_archive_is_refused(assert_refused, server):
    assert_refused(address(server, b"<html>"), "archive")


def test_an_archive_with_another_checksum_is_refused(assert_refused, model_folder, server):
    right, separator, _ = address(server, archive_of(model_folder)).partition("#sha256=")

    assert_refused(f"{right}{separator}{'0' * 64}", "0000")


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        pytest.param("", ".cache", id="empty"),
        pytest.param("relative", ".cache", id="relative"),
        pytest.param("{home}/x", "x", id="absolute"),
    ],
)
def test_the_cache_folder_is_that_of_xdg_cache_home_if_absolute(
    monkeypatch, tmp_path, value, folder
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value.format(home=tmp_path))

    assert pretrained.cache_folder() == tmp_path / folder / "fairseq-lxsr" / "models"
