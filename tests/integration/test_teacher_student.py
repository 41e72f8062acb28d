"""Training with stored embeddings of the text: those of a teacher, and those that find near pairs."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import export, lxsr, refused, train, train_here, validations

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.training.lightweight.parts.teacher_text import DrawnTeacherTexts, TeacherText

# No term of the loss but that of the teacher.
ALONE = {"objective": "none", "gen_weight": "0", "align_weight": "0", "sim_weight": "0"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, toy_work, toy_model):
    """A folder with embeddings of both sides of the training text, by the toy model."""
    folder = tmp_path_factory.mktemp("teacher")
    for language in ("en", "fr"):
        text = toy_work / "corpus" / "en-fr" / f"train.{language}"
        output = folder / f"train.en-fr.{language}.npy"
        lxsr("embed", "--model", toy_model, "--input", text, "--output", output)
    return folder


def losses(result, name: str) -> list[float]:
    """The mean of a term of the loss in each epoch of training."""
    values = []
    for line in result.stdout.splitlines():
        if "| train |" in line:
            values.append(float(line.split(f"| {name} ")[1].split()[0]))
    return values


@pytest.fixture(scope="module")
def student(tmp_path_factory, toy_work, teacher):
    """The last checkpoint and the output of a student of width 16; the teacher's is 32."""
    folder = tmp_path_factory.mktemp("student")
    flags = ("--gated", "--teacher-embeddings", teacher, "--no-epoch-checkpoints")
    options = {
        **ALONE,
        "encoder_embed_dim": "16",
        "encoder_layers": "0",
        "max_epoch": "4",
        "lr": "0.02",
    }
    result = train(toy_work / "data-bin", folder, *flags, **options)
    return folder / "checkpoint_last.pt", result


@pytest.mark.slow
def test_a_student_of_another_width_learns_from_the_teacher_alone(student):
    _, result = student

    distill = losses(result, "distill")

    assert distill[-1] < 0.6 * distill[0]
    # Of 32 pairs; chance is 0.03.
    assert validations(result)[-1] > 0.5


@pytest.mark.slow
def test_a_student_is_exported_in_its_own_width(student, tmp_path):
    checkpoint, _ = student

    export(checkpoint, tmp_path / "model")

    encoder = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert encoder.encode(["One red dog."]).shape == (1, 16)


@pytest.mark.slow
def test_a_training_without_a_teacher_may_start_from_a_student(student, toy_work, tmp_path):
    """Without the projection to the width of the teacher."""
    checkpoint, _ = student
    flags = ("--gated", "--finetune-from-model", checkpoint, "--no-save")
    options = {
        "objective": "none",
        "sim_weight": "0",
        "encoder_embed_dim": "16",
        "encoder_layers": "1",
        "max_epoch": "1",
    }

    result = train(toy_work / "data-bin", tmp_path, *flags, **options)

    # The accuracy of the student is not lost.
    assert validations(result)[-1] > 0.5


@pytest.mark.parametrize("form", ["cosine", "similarity", "contrast"])
def test_a_distillation_loss_trains_beside_align_with_a_teacher_of_one_side(
    tmp_path, toy_work, teacher, form
):
    # English alone, in float16.
    embeddings = np.load(teacher / "train.en-fr.en.npy").astype(np.float16)
    np.save(tmp_path / "train.en-fr.en.npy", embeddings)
    flags = ["--teacher-embeddings", tmp_path, "--distill-loss", form]
    flags += ["--no-save", "--disable-validation"]
    options = {
        "objective": "none",
        "sim_weight": "0",
        "align_similarity": "cosine",
        "align_temperature": "0.1",
        "max_update": "2",
        "encoder_layers": "1",
    }

    result = train(toy_work / "data-bin", tmp_path, *flags, **options)

    assert losses(result, "distill")
    assert losses(result, "align")


@pytest.mark.slow
def test_batches_of_near_pairs_have_a_higher_loss(tmp_path, toy_work, teacher):
    """The pairs of a batch are nearest neighbours, which are harder to tell apart.

    The number of loading processes makes no difference.
    """
    options = {"objective": "none", "sim_weight": "0", "encoder_layers": "0", "max_epoch": "2"}

    def train_with(*flags):
        flags = ("--disable-validation", "--no-save", "--gated", *flags)
        return train(toy_work / "data-bin", tmp_path, *flags, **options)

    near = ("--batches", "near", "--near-embeddings", teacher, "--num-workers")
    by_length = train_with()
    in_one_process = train_with(*near, "0")
    in_processes = train_with(*near, "2")

    assert "grouping near pairs" not in by_length.stdout
    assert "grouping near pairs" in in_one_process.stdout
    assert "grouping near pairs" in in_processes.stdout
    assert losses(in_one_process, "align") == losses(in_processes, "align")
    # In the second epoch.
    assert losses(in_one_process, "align")[1] > 1.1 * losses(by_length, "align")[1]


@pytest.fixture(scope="module")
def words(tmp_path_factory, toy_work):
    """Every word of the training text, with a random vector as the embedding of a teacher."""
    folder = tmp_path_factory.mktemp("words")
    for language in ("en", "fr"):
        text = (toy_work / "corpus" / "en-fr" / f"train.{language}").read_text().lower()
        vocabulary = sorted({word.strip(".") for word in text.split()} - {""})
        vectors = np.random.default_rng(len(vocabulary)).standard_normal((len(vocabulary) + 1, 24))
        # No text of the corpus has the last one.
        lines = [f"{word}\n" for word in [*vocabulary, "\U0001f680"]]
        (folder / f"{language}.txt").write_text("".join(lines))
        np.save(folder / f"{language}.npy", vectors.astype(np.float16))
    return folder


@pytest.mark.slow
def test_words_learn_the_embeddings_of_the_teacher(tmp_path, toy_work, words):
    """The number of loading processes makes no difference, and the projection is not exported."""
    options = {
        "objective": "none",
        "sim_weight": "0",
        "encoder_layers": "0",
        "max_epoch": "3",
        "lr": "0.02",
    }
    flags = ["--disable-validation", "--gated", "--no-epoch-checkpoints", "--teacher-text", words]
    results = []
    for workers in ("0", "2"):
        folder = tmp_path / workers
        options["num_workers"] = workers
        results.append(train(toy_work / "data-bin", folder, *flags, **options))

    teach = losses(results[0], "teach")
    assert teach == losses(results[1], "teach")
    assert teach[-1] < 0.7 * teach[0]
    export(tmp_path / "0" / "checkpoint_last.pt", tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["One red dog."]).any()


# Two lists of texts. The first has four, of 2, 1, 4 and 3 pieces, whose embeddings are the numbers 0
# to 3; the second has one text, with the embedding 9.
IDS = np.arange(100, 110)
ENDS = np.array([2, 3, 7, 10])
TEXTS = [
    TeacherText(IDS, ENDS, np.arange(4.0)[:, None]),
    TeacherText(IDS[:2], ENDS[:1], np.array([[9.0]])),
]
PADDING = 1
# The pieces of each text by its embedding, cut at three.
PIECES = {
    0: [100, 101, PADDING],
    1: [102, PADDING, PADDING],
    2: [103, 104, 105],
    3: [107, 108, 109],
    9: [100, 101, PADDING],
}


def drawn_texts(pairs):
    """Return the pieces and the embedding of the text that is drawn for each pair of a batch."""
    data = SimpleNamespace(
        seed=1, epoch=3, max_positions=3, padding_idx=PADDING, padded_width=lambda longest: longest
    )
    batch = {"net_input": {}}
    DrawnTeacherTexts(TEXTS)(batch, SimpleNamespace(dataset=data, index=np.array(pairs)))
    return batch["net_input"]["teacher_text"].tolist(), batch["teacher_text"][:, 0].tolist()


def test_texts_of_all_lists_of_the_teacher_are_drawn_with_their_embeddings():
    # More pairs than texts.
    pieces, embeddings = drawn_texts(range(64))

    assert set(embeddings) == PIECES.keys()
    assert pieces == [PIECES[embedding] for embedding in embeddings]


def test_the_text_of_the_teacher_that_is_drawn_for_a_pair_does_not_depend_on_the_batch():
    _, embeddings = drawn_texts(range(64))

    pieces_of_two, embeddings_of_two = drawn_texts([5, 40])

    assert embeddings_of_two == [embeddings[5], embeddings[40]]
    # A smaller batch has less padding.
    for pieces, embedding in zip(pieces_of_two, embeddings_of_two, strict=True):
        assert pieces == PIECES[embedding][: len(pieces)]


NEAR = "--batches near --near-embeddings"


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--teacher-text {folder}", ("--teacher-text", ".txt")),
        ("--teacher-text-weight 2", ("--teacher-text-weight 2", "--teacher-text")),
        ("--batches near", ("--batches near", "--near-embeddings")),
        ("--near-embeddings {teacher}", ("--near-embeddings", "--batches length")),
    ],
)
def test_options_of_embeddings_without_the_option_that_they_need_are_refused(
    tmp_path, toy_work, teacher, options, fragments
):
    words = options.format(folder=tmp_path, teacher=teacher).split()

    result = train_here(toy_work / "data-bin", tmp_path, *words)

    refused(result, *fragments)


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--teacher-embeddings {folder}/none", ("{folder}/none: ",)),
        ("--teacher-embeddings {folder}", ("train.en-fr.en.npy",)),
        # 899 embeddings for 900 pairs.
        ("--teacher-embeddings {folder}/short", ("899", "900")),
        (f"{NEAR} {{folder}}", ("train.en-fr.en.npy",)),
        # Two folders for one folder of data.
        (f"{NEAR} a:b", ("2 ", "1")),
        (f"{NEAR} {{folder}}/none", ("{folder}/none: ",)),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(tmp_path, toy_work, options, fragments):
    (tmp_path / "short").mkdir()
    np.save(tmp_path / "short" / "train.en-fr.en.npy", np.zeros((899, 4), np.float32))
    words = options.format(folder=tmp_path).split()

    result = train_here(toy_work / "data-bin", tmp_path, *words)

    refused(result, *(fragment.format(folder=tmp_path) for fragment in fragments))
