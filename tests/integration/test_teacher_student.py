"""Training with embeddings of the text beside it, through the real commands: of a teacher, and to find near pairs."""

import numpy as np
import pytest
from conftest import export, lxsr, refused, train, train_here, validations

from fairseq_lxsr import SentenceEncoder

ALONE = {"objective": "none", "gen_weight": "0", "align_weight": "0", "sim_weight": "0"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, toy_work, toy_model):
    """Embeddings of both sides of the training text."""
    folder = tmp_path_factory.mktemp("teacher")
    for language in ("en", "fr"):
        text, output = toy_work / "corpus" / "en-fr" / f"train.{language}", folder / f"train.en-fr.{language}.npy"
        lxsr("embed", "--model", toy_model, "--input", text, "--output", output)
    return folder


def trained(done, name: str) -> list[float]:
    """A figure of every epoch of training."""
    lines = [line for line in done.stdout.splitlines() if "| train |" in line]
    return [float(line.split(f"| {name} ")[1].split()[0]) for line in lines]


def test_a_student_of_another_width_learns_from_the_teacher_alone(tmp_path, toy_work, teacher):
    data, flags = toy_work / "data-bin", ("--teacher-embeddings", teacher, "--no-epoch-checkpoints")
    options = {**ALONE, "encoder_embed_dim": "16", "encoder_layers": "0", "max_epoch": "8", "lr": "0.02"}
    done = train(data, tmp_path / "student", "--gated", *flags, **options)
    distill = trained(done, "distill")
    assert distill[-1] < 0.6 * distill[0]
    assert validations(done)[-1] > 0.5  # of 32: chance is 0.03
    checkpoint = tmp_path / "student" / "checkpoint_last.pt"
    export(checkpoint, tmp_path / "model")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").encode(["One red dog."]).shape == (1, 16)
    # without a teacher there is no projection any more, and with one of another width a new one
    aligned = {"objective": "none", "sim_weight": "0", "encoder_embed_dim": "16", "encoder_layers": "1"}
    start = ("--gated", "--finetune-from-model", checkpoint, "--no-save")
    assert validations(train(data, tmp_path / "next", *start, **aligned, max_epoch="1"))[-1] > 0.5


@pytest.mark.parametrize("form", ["cosine", "similarity"])
def test_other_losses_beside_align_and_a_teacher_of_one_side(tmp_path, toy_work, teacher, form):
    np.save(tmp_path / "train.en-fr.en.npy", np.load(teacher / "train.en-fr.en.npy").astype(np.float16))
    flags = ("--teacher-embeddings", tmp_path, "--distill-loss", form, "--no-save")
    options = {"objective": "none", "sim_weight": "0", "align_similarity": "cosine", "align_temperature": "0.1"}
    done = train(toy_work / "data-bin", tmp_path, *flags, **options, max_epoch="1", encoder_layers="1")
    assert trained(done, "distill")
    assert trained(done, "align")


def test_near_pairs_are_put_together_and_are_harder_to_tell_apart(tmp_path, toy_work, teacher):
    """Their negatives are the nearest of all text; processes that load change nothing."""
    options = {"objective": "none", "sim_weight": "0", "encoder_layers": "0", "max_epoch": "2"}
    flags = ("--disable-validation", "--no-save", "--gated")
    near = ("--batches", "near", "--near-embeddings", teacher, "--num-workers", "0")
    last = {}
    for name, more in (("length", ()), ("near", near), ("near in processes", (*near, "--num-workers", "2"))):
        done = train(toy_work / "data-bin", tmp_path, *flags, *more, **options)
        last[name] = trained(done, "align")
        assert ("cells of near pairs" in done.stdout) == (name != "length")
    assert last["near"] == last["near in processes"]
    assert last["near"][1] > 1.1 * last["length"][1]


NEAR = "--batches near --near-embeddings"


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--teacher-embeddings {folder}/none", ("none: no such folder",)),
        ("--teacher-embeddings {folder}", ("train.en-fr.en.npy", "lxsr embed")),
        ("--teacher-embeddings {folder}/short", ("899 rows", "900")),
        ("--batches near", ("without --near-embeddings", "lxsr embed")),
        ("--near-embeddings {teacher}", ("--near-embeddings with --batches length",)),
        (f"{NEAR} {{folder}}", ("train.en-fr.en.npy", "lxsr embed")),
        (f"{NEAR} a:b", ("2 folders; expected 1",)),
        (f"{NEAR} {{folder}}/none", ("none: no such folder; make it with",)),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(tmp_path, toy_work, teacher, options, fragments):
    (tmp_path / "short").mkdir()
    np.save(tmp_path / "short" / "train.en-fr.en.npy", np.zeros((899, 4), np.float32))
    words = options.format(folder=tmp_path, teacher=teacher).split()
    refused(train_here(toy_work / "data-bin", tmp_path, *words), *fragments)
