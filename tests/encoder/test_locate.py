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
def made(tmp_path_factory):
    """A model folder without layers, with its card."""
    path = tmp_path_factory.mktemp("made") / "made"
    folder = random_model.write_model(path, gated=True, num_layers=0, order_coefficients=1)
    write_card(folder, SentenceEncoder.from_pretrained(folder))
    return folder


@pytest.fixture
def named(made, tmp_path, monkeypatch):
    """The name of a model in the package."""
    monkeypatch.setattr(pretrained, "MODELS", tmp_path / "package")
    shutil.copytree(made, tmp_path / "package" / "lxsr-toy")
    return "lxsr-toy"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as server:
        yield server


def packed(folder: Path, *without: str, change: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(path for path in folder.iterdir() if path.name not in without):
            content = path.read_bytes() + (change if path.name == "dict.txt" else b"")
            member = tarfile.TarInfo(f"lxsr-toy/{path.name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def address(server, content: bytes, name: str = "lxsr-toy.tar.gz") -> str:
    server.content = content
    return f"{server.url}/{name}#sha256={hashlib.sha256(content).hexdigest()}"


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_model_of_the_package_is_found_by_its_name(made, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / named).mkdir()  # a name means the same in every folder; ./NAME is a path
    expected = SentenceEncoder.from_pretrained(made).encode(TEXTS)
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(named).encode(TEXTS), expected)
    for path in (f"./{named}", Path(named)):
        with pytest.raises(InputError, match=r"config\.json"):
            SentenceEncoder.from_pretrained(path)


@pytest.mark.parametrize("name", pretrained.model_names())
def test_a_model_of_the_package_is_whole_and_small(name):
    """It loads without torch, says whose text it was trained on, and has scores of itself."""
    encoder = SentenceEncoder.from_pretrained(name)
    assert isinstance(encoder._bag, Bag)
    files = [path for path in (pretrained.MODELS / name).iterdir() if path.is_file()]
    assert {path.name for path in files} == {*MODEL_FILES, *CARD_FILES}
    assert sum(path.stat().st_size for path in files) < 30e6
    card = (pretrained.MODELS / name / CARD_FILE).read_text(encoding="utf-8")
    for fragment in (
        "| source | licence | attribution | pairs |",
        f"model:{encoder.fingerprint}",
        "Signatures:",
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


def test_a_translation_is_nearest_in_every_pair_of_many_languages(packaged):
    vectors = {
        language: packaged.encode(lines, normalize=True) for language, lines in SENTENCES.items()
    }
    for (source, one), (target, other) in itertools.product(vectors.items(), repeat=2):
        assert (one @ other.T).argmax(axis=1).tolist() == [0, 1, 2], (source, target)


def test_an_unknown_name_lists_the_known(named, tmp_path):
    for unknown in ("lxsr-toi", Path(named)):
        with pytest.raises(InputError, match=rf"{unknown}: .*\({named}\)"):
            SentenceEncoder.from_pretrained(unknown)
    done = lxsr_here(
        "embed",
        "--model",
        "lxsr-toi",
        "--input",
        "none",
        "--output",
        tmp_path / "o.npy",
        check=False,
    )
    refused(done, "lxsr-toi", named)


def test_every_command_takes_a_name(named, tmp_path):
    """What each does with a path is tested elsewhere."""
    for language, lines in zip(("en", "fr"), zip(*toy.sentences(20), strict=True), strict=True):
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n")
    sides, one = (
        ["--source", tmp_path / "t.en", "--target", tmp_path / "t.fr"],
        ["--input", tmp_path / "t.en"],
    )
    lxsr_here("embed", "--model", named, *one, "--output", tmp_path / "t.npy")
    lxsr_here("index", "--model", named, *one, "--output", tmp_path / "index")
    assert (
        lxsr_here("search", "--index", tmp_path / "index", "--k", "1", "one dog").stdout.count("\n")
        == 2
    )
    models = ["--model", f"en={named}", "--model", f"fr={named}", "--lang-pair", "en-fr"]
    lxsr_here("mine", *models, *sides, "--output", tmp_path / "pairs.tsv")
    lxsr_here("score", "--model", named, *sides, "--output", tmp_path / "scores.tsv")
    lxsr_here("eval", "xsr", "--model", named, *sides)
    lxsr_here("export", "card", "--model", named)
    lxsr_here("export", "web", "--model", named, *one, "--output", tmp_path / "web")
    assert MtebEncoder.from_pretrained(named).name == f"fairseq-lxsr/{named}"


def test_an_archive_is_fetched_once(made, server, tmp_path):
    model = address(server, packed(made))
    server.troubles = ["drop"]
    expected = SentenceEncoder.from_pretrained(made).encode(TEXTS)
    for again in range(2):
        encoder = SentenceEncoder.from_pretrained(model)
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
        assert len(server.requests) == 2, again  # the second goes on where the first was dropped
    assert encoder.folder.name == "lxsr-toy"
    names = [pretrained.CACHE_RECORD, *(path.name for path in made.iterdir())]
    assert sorted(path.name for path in kept(tmp_path)) == sorted(names)
    (tmp_path / "t.en").write_text("one dog\n")
    options = ["--input", tmp_path / "t.en"]
    lxsr_here("index", "--model", model, *options, "--output", tmp_path / "index")
    lxsr_here(
        "index", "--model", f"en={model}", "--lang", "en", *options, "--output", tmp_path / "other"
    )
    assert len(server.requests) == 2


def test_two_that_need_an_archive_at_once_fetch_it_once(made, server):
    model = address(server, packed(made))
    with ThreadPoolExecutor(2) as threads:
        folders = set(threads.map(pretrained.find_model, [model] * 2))
    assert len(folders) == len(server.requests) == 1


def test_names_that_the_cache_has_already(made, server, tmp_path):
    assert pretrained.find_model(address(server, packed(made), "lock.tar.gz")).name == "lock"
    model = address(server, packed(made), "taken.tar.gz")
    taken = tmp_path / "cache" / "fairseq-lxsr" / "models" / model[-64:] / "taken"
    taken.parent.mkdir(exist_ok=True)  # packed in another second, the archive has another checksum
    taken.touch()
    with pytest.raises(InputError, match=r"taken .*config\.json"):
        pretrained.find_model(model)


def another_model(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    random_model.write_model(tmp_path / "another", gated=True, num_layers=0, embed_dim=24).rename(
        folder
    )


def a_link(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "elsewhere")


def a_flipped_bit(folder: Path, _: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def the_entry_of_another_archive(folder: Path, _: Path) -> None:
    record = json.loads((folder.parent / pretrained.CACHE_RECORD).read_text())
    (folder.parent / pretrained.CACHE_RECORD).write_text(json.dumps(record | {"archive": "0" * 64}))


def planted_beside(folder: Path, _: Path) -> None:
    shutil.copytree(folder, folder.with_name(f".{folder.name}.host.1.old"))
    (folder.parent / ".archive.tar.gz").write_bytes(b"planted")
    shutil.rmtree(folder)


SPOILT = {
    "truncated": lambda folder, _: os.truncate(folder / "model.safetensors", 1000),
    "a file less": lambda folder, _: (folder / "dict.txt").unlink(),
    "no config": lambda folder, _: (folder / "config.json").unlink(),
    "empty": lambda folder, _: [path.unlink() for path in folder.iterdir()],
    "another card": lambda folder, _: (folder / "README.md").write_text("owned"),
    "no record": lambda folder, _: (folder.parent / pretrained.CACHE_RECORD).unlink(),
    "a spoilt record": lambda folder, _: (folder.parent / pretrained.CACHE_RECORD).write_bytes(
        b"[" * 99_999
    ),
    **{
        do.__name__: do
        for do in (
            another_model,
            a_link,
            a_flipped_bit,
            the_entry_of_another_archive,
            planted_beside,
        )
    },
}


@pytest.mark.parametrize("name", SPOILT)
def test_the_checksum_holds_for_every_load(made, server, tmp_path, name):
    """What is in the cache and was not in the archive is fetched again, or refused where nobody
    answers.
    """
    model = address(server, packed(made))
    folder = pretrained.find_model(model)
    asked = len(server.requests)
    for troubles in ([404], []):
        SPOILT[name](folder, tmp_path / f"{len(troubles)}")
        server.troubles = troubles
        if troubles:
            with pytest.raises(InputError, match="404"):
                pretrained.find_model(model)
            server.troubles = []
        assert pretrained.find_model(model) == folder
        assert len(server.requests) > asked
        asked = len(server.requests)
        assert contents(folder) == contents(made)
        assert not folder.is_symlink()
        assert pretrained.find_model(model) == folder
        assert len(server.requests) == asked  # healed


def test_no_home(made, server, monkeypatch):
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
def test_a_mistyped_address_is_one_line(server, address, message):
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
    assert not kept(tmp_path)


WRONG = {
    "another file": (lambda made: packed(made), "0" * 64, "0000"),
    "not a model": (
        lambda made: packed(made, "config.json"),
        None,
        "config.json",
    ),
    "no card": (
        lambda made: packed(made, "README.md"),
        None,
        "README.md",
    ),
    "no scores": (
        lambda made: packed(made, "scores.json"),
        None,
        "scores.json",
    ),
    "changed": (
        lambda made: packed(made, change=b"x 1\n"),
        None,
        "dict.txt",
    ),
    "not an archive": (lambda made: b"<html>", None, "archive"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_model_is_refused_and_not_kept(made, server, tmp_path, name):
    content, checksum, message = WRONG[name]
    model = address(server, content(made))
    if checksum:
        model = f"{model[:-64]}{checksum}"
    done = lxsr_here(
        "embed",
        "--model",
        model,
        "--input",
        made / "README.md",
        "--output",
        tmp_path / "o",
        check=False,
    )
    refused(done, server.url, message)
    assert "/cache/" not in done.stderr
    assert not kept(tmp_path)
    assert not (tmp_path / "o").exists()


def test_the_cache_lies_where_the_system_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, folder in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "x"), "x")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert pretrained.cache_folder() == tmp_path / folder / "fairseq-lxsr" / "models"
