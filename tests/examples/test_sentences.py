"""Scripts of examples/pretrained for sentences without a translation: laws.py, sentences.py."""

import json

import numpy as np
import pytest
import toy
from conftest import ROOT, load_script
from random_model import write_model

from fairseq_lxsr import SentenceEncoder

SCRIPTS = ROOT / "examples" / "pretrained"
ARTICLE = "The ministry publishes the list of members every year."
NAMESPACE = "http://docs.oasis-open.org/legaldocml/ns/akn/3.0"
FRENCH = ["le café est fermé", "un café près du musée", "le musée fermé", "près du café"]
ENGLISH = ["the coffee is closed", "a coffee near a museum", "the museum", "near the coffee"]
# Each word of the teacher's sentences is one direction of its space.
TEACHER_WORDS = sorted({word for line in FRENCH + ENGLISH for word in line.split()})


def write_law(folder, name, *contents):
    provisions = [{"content": content} for content in contents]
    (folder / name).write_text(json.dumps({"provisions": provisions}), encoding="utf-8")


@pytest.fixture
def laws():
    return load_script(SCRIPTS / "laws.py")


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["script", *map(str, arguments)])
    script.main()


def test_laws_in_json_give_their_sentences_without_the_numbers_of_items(
    laws, tmp_path, monkeypatch
):
    folder = tmp_path / "laws"
    folder.mkdir()
    write_law(folder, "members.json", f"(1) {ARTICLE}\n2. It may also be read at the ministry.")

    run(laws, monkeypatch, folder, "--output", tmp_path / "en.txt")

    written = set((tmp_path / "en.txt").read_text(encoding="utf-8").splitlines())
    assert written == {ARTICLE, "It may also be read at the ministry."}


def test_laws_in_akoma_ntoso_give_the_paragraphs_of_their_body(laws, tmp_path, monkeypatch):
    folder = tmp_path / "laws"
    folder.mkdir()
    text = f"<meta><p>This sentence describes the file.</p></meta><body><p>{ARTICLE}</p></body>"
    xml = f'<akomaNtoso xmlns="{NAMESPACE}"><act>{text}</act></akomaNtoso>'
    (folder / "main.xml").write_text(xml, encoding="utf-8")

    run(laws, monkeypatch, folder, "--output", tmp_path / "en.txt")

    assert (tmp_path / "en.txt").read_text(encoding="utf-8") == f"{ARTICLE}\n"


def test_a_json_file_without_provisions_is_counted_as_no_law(laws, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "laws"
    folder.mkdir()
    write_law(folder, "members.json", ARTICLE)
    (folder / "index.json").write_text("[]")

    run(laws, monkeypatch, folder, "--output", tmp_path / "en.txt")

    assert "1 sentences of 1 laws; 1 files are no laws" in capsys.readouterr().out


def test_sentences_that_differ_only_in_digits_are_drawn_once(laws):
    first = "The fee for the entry into the list is 20 euros."
    second = "The fee for the entry into the list is 35 euros."

    drawn = laws.draw([first, second], per_law=10, limit=10)

    assert drawn == [first]


def test_a_law_gives_at_most_per_law_sentences(laws):
    endings = ["of the council", "of the court", "of the ministry", "of the parliament"]
    text = "\n".join(f"The secretary keeps the list {ending}." for ending in endings)

    drawn = laws.draw([text], per_law=3, limit=10)

    assert len(drawn) == 3


@pytest.fixture(scope="module")
def sentences():
    return load_script(SCRIPTS / "sentences.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    lines = 60 * (FRENCH + ENGLISH)
    return write_model(folder, pieces="unigram", num_layers=0, gated=True, lines=lines)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Training text as collect.py writes it, French sentences, and the teacher's embeddings."""
    folder = tmp_path_factory.mktemp("text")
    toy.write(folder / "web.en-fr", list(zip(ENGLISH, FRENCH, strict=True)))
    pairs = {"en-fr": {"web": str(folder / "web.en-fr")}}
    (folder / "pairs.yaml").write_text(f"pairs: {json.dumps(pairs)}\n")
    (folder / "laws").mkdir()
    (folder / "laws" / "fr.txt").write_text("\n".join(FRENCH) + "\n", encoding="utf-8")
    vectors = np.zeros((len(FRENCH + ENGLISH), len(TEACHER_WORDS)), dtype=np.float32)
    for row, line in enumerate(FRENCH + ENGLISH):
        for word in line.split():
            vectors[row, TEACHER_WORDS.index(word)] = 1.0
    np.savez(folder / "vectors.npz", texts=np.array(FRENCH + ENGLISH), vectors=vectors)
    return folder


def arguments(model, folders, output):
    return [
        *(model, "--text", folders, "--sentences", folders / "laws", "--languages", "fr"),
        *("--vectors", folders / "vectors.npz", "--updates", "20", "--output", output),
    ]


def test_training_on_sentences_moves_french_towards_the_english_embeddings(
    sentences, model, folders, tmp_path, monkeypatch
):
    before = SentenceEncoder.from_pretrained(model)

    run(sentences, monkeypatch, *arguments(model, folders, tmp_path / "taught"))

    after = SentenceEncoder.from_pretrained(tmp_path / "taught")
    english = before.encode(ENGLISH, normalize_embeddings=True)
    similarity_before = (before.encode(FRENCH, normalize_embeddings=True) * english).sum(axis=1)
    similarity_after = (after.encode(FRENCH, normalize_embeddings=True) * english).sum(axis=1)
    assert similarity_after.mean() > similarity_before.mean()


def test_pieces_of_english_are_not_trained(sentences, model):
    encoder = SentenceEncoder.from_pretrained(model)
    french = sentences.Sentences(encoder, FRENCH)
    english = sentences.Sentences(encoder, ENGLISH)
    only_french = np.setdiff1d(french.pieces, english.pieces)
    only_english = np.setdiff1d(english.pieces, french.pieces)

    trained = sentences.trained_rows(encoder, {"fr": FRENCH, "en": ENGLISH}, {"fr": french})

    assert trained[only_french].all()
    assert not trained[only_english].any()


def test_a_language_without_sentences_is_refused(
    sentences, model, folders, tmp_path, monkeypatch, capsys
):
    options = arguments(model, folders, tmp_path / "taught")
    options[options.index("fr")] = "he"

    with pytest.raises(SystemExit) as stopped:
        run(sentences, monkeypatch, *options)

    assert stopped.value.code == 2
    assert "expected text in 'he'" in capsys.readouterr().err


def test_the_map_undoes_the_mean_difference_of_two_languages(sentences):
    rng = np.random.default_rng(0)
    english = rng.normal(size=(50, 4)).astype(np.float32)
    # In the teacher's space, each French sentence is its translation and the same vector.
    french = english + np.float32([1.0, 2.0, 0.0, -1.0])
    of_model = sentences.unit(english)

    teacher_map = sentences.TeacherMap(english, of_model, {"fr": (french, english, of_model)})

    cosines = (teacher_map(french, "fr") * of_model).sum(axis=1)
    assert cosines.mean() > 0.9
