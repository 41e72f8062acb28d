"""Training with embeddings of the text beside it, through the real commands: of a teacher, and to
find near pairs.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import export, lxsr, refused, train, train_here, validations

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.training.lightweight.parts.teacher_text import DrawnTeacherTexts, TeacherText

ALONE = {"objective": "none", "gen_weight": "0", "align_weight": "0", "sim_weight": "0"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, toy_work, toy_model):
    """Embeddings of both sides of the training text."""
    folder = tmp_path_factory.mktemp("teacher")
    for language in ("en", "fr"):
        text, output = (
            toy_work / "corpus" / "en-fr" / f"train.{language}",
            folder / f"train.en-fr.{language}.npy",
        )
        lxsr("embed", "--model", toy_model, "--input", text, "--output", output)
    return folder


def trained(done, name: str) -> list[float]:
    """A figure of every epoch of training."""
    lines = [line for line in done.stdout.splitlines() if "| train |" in line]
    return [float(line.split(f"| {name} ")[1].split()[0]) for line in lines]


@pytest.mark.slow
def test_a_student_of_another_width_learns_from_the_teacher_alone(tmp_path, toy_work, teacher):
    data, flags = toy_work / "data-bin", ("--teacher-embeddings", teacher, "--no-epoch-checkpoints")
    options = {
        **ALONE,
        "encoder_embed_dim": "16",
        "encoder_layers": "0",
        "max_epoch": "4",
        "lr": "0.02",
    }
    done = train(data, tmp_path / "student", "--gated", *flags, **options)
    distill = trained(done, "distill")
    assert distill[-1] < 0.6 * distill[0]
    assert validations(done)[-1] > 0.5  # of 32: chance is 0.03
    checkpoint = tmp_path / "student" / "checkpoint_last.pt"
    export(checkpoint, tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["One red dog."]).shape == (
        1,
        16,
    )
    # without a teacher there is no projection any more, and with one of another width a new one
    aligned = {
        "objective": "none",
        "sim_weight": "0",
        "encoder_embed_dim": "16",
        "encoder_layers": "1",
    }
    start = ("--gated", "--finetune-from-model", checkpoint, "--no-save")
    assert validations(train(data, tmp_path / "next", *start, **aligned, max_epoch="1"))[-1] > 0.5


@pytest.mark.parametrize("form", ["cosine", "similarity", "contrast"])
def test_other_losses_beside_align_and_a_teacher_of_one_side(tmp_path, toy_work, teacher, form):
    np.save(
        tmp_path / "train.en-fr.en.npy", np.load(teacher / "train.en-fr.en.npy").astype(np.float16)
    )
    flags = ("--teacher-embeddings", tmp_path, "--distill-loss", form)
    options = {
        "objective": "none",
        "sim_weight": "0",
        "align_similarity": "cosine",
        "align_temperature": "0.1",
    }
    short = {"max_update": "2", "encoder_layers": "1"}
    flags += ("--no-save", "--disable-validation")
    done = train(toy_work / "data-bin", tmp_path, *flags, **options, **short)
    assert trained(done, "distill")
    assert trained(done, "align")


@pytest.mark.slow
def test_near_pairs_are_put_together_and_are_harder_to_tell_apart(tmp_path, toy_work, teacher):
    """Their negatives are the nearest of all text; processes that load change nothing."""
    options = {"objective": "none", "sim_weight": "0", "encoder_layers": "0", "max_epoch": "2"}
    flags = ("--disable-validation", "--no-save", "--gated")
    near = ("--batches", "near", "--near-embeddings", teacher, "--num-workers", "0")
    last = {}
    for name, more in (
        ("length", ()),
        ("near", near),
        ("near in processes", (*near, "--num-workers", "2")),
    ):
        done = train(toy_work / "data-bin", tmp_path, *flags, *more, **options)
        last[name] = trained(done, "align")
        assert ("grouping near pairs" in done.stdout) == (name != "length")
    assert last["near"] == last["near in processes"]
    assert last["near"][1] > 1.1 * last["length"][1]


@pytest.fixture(scope="module")
def words(tmp_path_factory, toy_work):
    """Every word of the training text, and embeddings of a teacher: a direction of its own for
    each.
    """
    folder = tmp_path_factory.mktemp("words")
    for language in ("en", "fr"):
        text = (toy_work / "corpus" / "en-fr" / f"train.{language}").read_text().lower().split()
        found = sorted({word.strip(".") for word in text} - {""})
        (folder / f"{language}.txt").write_text(
            "".join(f"{word}\n" for word in [*found, "\U0001f680"])
        )
        rows = np.random.default_rng(len(found)).standard_normal((len(found) + 1, 24))
        np.save(folder / f"{language}.npy", rows.astype(np.float16))
    return folder


@pytest.mark.slow
def test_words_find_the_teachers_embeddings_of_them(tmp_path, toy_work, words):
    """Beside align; processes that load change nothing, and the projection is not exported."""
    options = {
        "objective": "none",
        "sim_weight": "0",
        "encoder_layers": "0",
        "max_epoch": "3",
        "lr": "0.02",
    }
    flags = ("--disable-validation", "--gated", "--no-epoch-checkpoints", "--teacher-text", words)
    done = [
        train(
            toy_work / "data-bin", tmp_path / workers, *flags, "--num-workers", workers, **options
        )
        for workers in ("0", "2")
    ]
    teach = trained(done[0], "teach")
    assert teach == trained(done[1], "teach")
    assert teach[-1] < 0.7 * teach[0]
    export(tmp_path / "0" / "checkpoint_last.pt", tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["One red dog."]).any()


def test_texts_are_a_function_of_the_pair(words):
    """The teacher's row is that of the text; a text without a known piece is never drawn."""
    ids, ends = np.arange(100, 110), np.array([2, 3, 7, 10])
    texts = [
        TeacherText(ids, ends, np.arange(4.0)[:, None]),
        TeacherText(ids[:2], ends[:1], np.array([[9.0]])),
    ]
    data = SimpleNamespace(
        seed=1, epoch=3, max_positions=3, padding_idx=1, padded_width=lambda longest: longest
    )

    def draw(index):
        batch = {"net_input": {}}
        DrawnTeacherTexts(texts)(batch, SimpleNamespace(dataset=data, index=np.array(index)))
        return batch["net_input"]["teacher_text"], batch["teacher_text"][:, 0]

    tokens, rows = draw(range(64))
    again, same = draw([5, 40])
    assert same.tolist() == rows[[5, 40]].tolist()
    assert set(rows) == {0, 1, 2, 3, 9}
    of_row = {
        0: [100, 101, 1],
        1: [102, 1, 1],
        2: [103, 104, 105],
        3: [107, 108, 109],
        9: [100, 101, 1],
    }
    assert [row.tolist() for row in tokens] == [of_row[row] for row in rows.tolist()]
    assert [row.tolist() for row in again] == [
        of_row[row][: again.shape[1]] for row in same.tolist()
    ]


NEAR = "--batches near --near-embeddings"


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--teacher-embeddings {folder}/none", ("{folder}/none: ",)),
        ("--teacher-embeddings {folder}", ("train.en-fr.en.npy",)),
        ("--teacher-embeddings {folder}/short", ("899", "900")),
        ("--teacher-text {folder}", ("--teacher-text", ".txt")),
        ("--teacher-text-weight 2", ("--teacher-text-weight 2", "--teacher-text")),
        ("--batches near", ("--batches near", "--near-embeddings")),
        ("--near-embeddings {teacher}", ("--near-embeddings", "--batches length")),
        (f"{NEAR} {{folder}}", ("train.en-fr.en.npy",)),
        (f"{NEAR} a:b", ("2 ", "1")),
        (f"{NEAR} {{folder}}/none", ("{folder}/none: ",)),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(tmp_path, toy_work, teacher, options, fragments):
    (tmp_path / "short").mkdir()
    np.save(tmp_path / "short" / "train.en-fr.en.npy", np.zeros((899, 4), np.float32))
    words = options.format(folder=tmp_path, teacher=teacher).split()
    places = [fragment.format(folder=tmp_path) for fragment in fragments]
    refused(train_here(toy_work / "data-bin", tmp_path, *words), *places)
