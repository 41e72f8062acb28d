"""Embeddings of a teacher next to the text, and pieces that are hidden from the encoder."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pair_batches import MASK, PAD, VOCABULARY, batches_of, corpus, dataset

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.lightweight.parts import teacher
from fairseq_lxsr.training.lightweight.parts.masking import WordDropout, drop_pieces
from fairseq_lxsr.training.lightweight.parts.teacher import (
    TeacherEmbeddings,
    TeacherRows,
    read_teacher,
)
from fairseq_lxsr.training.lightweight.terms.distillation import DistillationTerm, one_teacher
from fairseq_lxsr.training.lightweight.terms.term import Split


def rows(count, start):
    """Rows that have the numbers `start`, `start + 1`, ... in all columns."""
    return np.repeat(np.arange(start, start + count, dtype=np.float16)[:, None], 3, axis=1)


def test_a_batch_has_the_rows_of_its_pairs():
    teachers = [
        TeacherEmbeddings(rows(12, 0), rows(12, 100)),
        TeacherEmbeddings(None, rows(9, 200)),
    ]
    data = dataset(corpus("en-fr", 12), corpus("en-de", 9, seed=1), parts=[TeacherRows(teachers)])
    for indices in batches_of(data, max_sentences=4):
        batch = data.collater([data[index] for index in indices])
        source, target = batch["teacher"][:, 0].chunk(2)
        if indices[0] < 12:
            assert source.tolist() == indices
            assert target.tolist() == [100 + index for index in indices]
        else:
            # The teacher has embedded one side, which is used for both.
            expected = [200 + index - 12 for index in indices]
            assert source.tolist() == expected
            assert target.tolist() == expected


def test_a_batch_without_a_teacher_has_no_rows():
    data = dataset(corpus("en-fr", 3))
    assert "teacher" not in data.collater([data[0]])


def test_each_epoch_reads_the_teacher_of_its_shard(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, start in zip(folders, (0, 100), strict=True):
        folder.mkdir()
        np.save(folder / "train.en-fr.en.npy", rows(12, start))
    term = DistillationTerm("mse", folders, width=3)
    text = corpus("en-fr", 12)
    for epoch, start in ((1, 0), (2, 100), (3, 0)):
        data = dataset(text, parts=term.parts(Split("train", epoch, {("en", "fr"): text})))
        batch = data.collater([data[5]])
        assert batch["teacher"][:, 0].tolist() == [start + 5, start + 5]


PAIR = ("en", "fr")


def save_embeddings(folder, language, array):
    np.save(folder / f"train.en-fr.{language}.npy", array, allow_pickle=True)


def test_a_folder_without_embeddings_of_a_pair_has_no_teacher(tmp_path):
    assert read_teacher(tmp_path, "train", PAIR) is None


def test_embeddings_of_one_side_are_enough(tmp_path):
    save_embeddings(tmp_path, "fr", rows(5, 0))
    assert read_teacher(tmp_path, "train", PAIR, 5).width == 3


def test_embeddings_of_another_number_of_sentences_are_refused(tmp_path):
    save_embeddings(tmp_path, "fr", rows(5, 0))
    with pytest.raises(InputError, match=r"train.en-fr.fr.npy: 5 .* 6 sentences"):
        read_teacher(tmp_path, "train", PAIR, 6)


def test_embeddings_of_two_widths_are_refused(tmp_path):
    save_embeddings(tmp_path, "fr", rows(5, 0))
    save_embeddings(tmp_path, "en", rows(5, 0)[:, :2])
    with pytest.raises(InputError, match=r"en.npy.*\(5, 2\).*fr.npy.*\(5, 3\)"):
        read_teacher(tmp_path, "train", PAIR)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        # An array of objects could run code.
        (np.array([{"code": 1}], dtype=object), "npy"),
        (np.arange(5), r"int64.*\(5,\)"),
        (np.zeros((5, 0), dtype=np.float32), r"float32.*\(5, 0\)"),
    ],
    ids=["objects", "numbers", "no columns"],
)
def test_arrays_that_are_no_embeddings_are_refused(tmp_path, array, problem):
    save_embeddings(tmp_path, "en", array)
    with pytest.raises(InputError, match=rf"train.en-fr.en.npy:? .*{problem}"):
        read_teacher(tmp_path, "train", PAIR)


def test_a_file_of_embeddings_that_is_no_array_is_refused(tmp_path):
    (tmp_path / "train.en-fr.en.npy").write_bytes(b"PK\3\4, and no array")
    with pytest.raises(InputError, match=r"train.en-fr.en.npy"):
        read_teacher(tmp_path, "train", PAIR)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e6 - 1, 70_000])
def test_the_row_and_column_of_a_value_that_no_embedding_has_are_named(
    tmp_path, monkeypatch, dtype, value
):
    """Values must be finite, and at most as large as float16 allows."""
    # Two rows of three values are checked at once, so that the row is not in the first block.
    monkeypatch.setattr("fairseq_lxsr.training.lightweight.parts.teacher.VALUES_AT_ONCE", 8)
    embeddings = rows(7, 0).astype(dtype)
    # The last two overflow to infinity in float16.
    with np.errstate(over="ignore"):
        embeddings[5, 1] = value
    np.save(tmp_path / "train.en-fr.en.npy", embeddings)
    # Rows and columns are counted from one.
    message = r"train.en-fr.en.npy.* (nan|inf|-inf|-1e\+06|70000)\b.*row 6\b.*\b2\b"
    with pytest.raises(InputError, match=message):
        read_teacher(tmp_path, "train", ("en", "fr"))


@pytest.fixture
def shards(tmp_path):
    """Three shards by their names; the first two have the same language pair."""
    folders = {}
    for name, pair in (("a", "en-fr"), ("b", "fr-en"), ("c", "en-de")):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / f"train.{pair}.en.idx").touch()
    return folders


@pytest.fixture
def teachers(tmp_path):
    """Two folders for embeddings of a teacher, t and u."""
    for name in "tu":
        (tmp_path / name).mkdir()
    return {name: tmp_path / name for name in "tu"}


BOTH_PAIRS = [("en", "fr"), ("en", "de")]


def embedding_folders(teachers, names, shards, shard_names, pairs=BOTH_PAIRS):
    """The folders of an option whose value has these teachers, for these shards in their order."""
    option = ":".join(str(teachers[name]) for name in names)
    data = [shards[name] for name in shard_names]
    return teacher.embedding_folders("--option", option, data, pairs)


@pytest.mark.parametrize(
    ("names", "shard_names"),
    [
        ("t", "a"),
        # One folder for two pairs, or for the same shard twice.
        ("t", "ac"),
        ("t", "aa"),
        # A folder for each shard, which may be the same if the pairs differ.
        ("tu", "ab"),
        ("tt", "bc"),
    ],
)
def test_a_folder_of_embeddings_may_serve_shards_with_different_pairs(
    shards, teachers, names, shard_names
):
    folders = embedding_folders(teachers, names, shards, shard_names)
    assert folders == [teachers[name] for name in names]


@pytest.mark.parametrize(("names", "shard_names"), [("t", "ab"), ("tut", "acb")])
def test_a_folder_of_embeddings_for_two_shards_with_the_same_pair_is_refused(
    shards, teachers, names, shard_names
):
    """The shards would use the rows of each other."""
    with pytest.raises(InputError, match=r"--option.*/t\b.*/a\b.*/b\b.* fr-en\b"):
        embedding_folders(teachers, names, shards, shard_names)


def test_two_shards_may_have_the_same_pair_if_it_is_not_used(shards, teachers):
    folders = embedding_folders(teachers, "t", shards, "ab", pairs=[("en", "de")])
    assert folders == [teachers["t"]]


def test_half_of_the_pieces_are_dropped_but_neither_masks_nor_all_of_a_sentence():
    # 198 sentences of seven pieces; the first has a single piece, the second begins with a mask.
    tokens = np.random.default_rng(0).integers(4, MASK, (200, 9))
    tokens[:, 7:] = PAD
    tokens[0, :] = [5, *[PAD] * 8]
    tokens[1, 0] = MASK

    # Side 0, seed 1 and epoch 1.
    dropped = drop_pieces(tokens, np.arange(200), 0, 1, 1, 0.5, VOCABULARY)

    # A piece that is dropped becomes padding.
    assert ((dropped == tokens) | (dropped == PAD)).all()
    assert 0.45 < (dropped[2:, :7] == PAD).mean() < 0.55
    assert (dropped != PAD).any(axis=1).all()
    assert dropped[1, 0] == MASK


def test_dropped_pieces_depend_only_on_index_epoch_and_side():
    tokens = np.random.default_rng(0).integers(4, MASK, (200, 9))
    tokens[:, 7:] = PAD
    indices = np.arange(200)
    dropped = drop_pieces(tokens, indices, 0, 1, 1, 0.5, VOCABULARY)
    single = drop_pieces(tokens[7:8, :8], indices[7:8], 0, 1, 1, 0.5, VOCABULARY)
    assert single[0].tolist() == dropped[7, :8].tolist()
    in_another_epoch = drop_pieces(tokens, indices, 0, 1, 2, 0.5, VOCABULARY)
    assert not np.array_equal(in_another_epoch, dropped)
    of_another_side = drop_pieces(tokens, indices, 1, 1, 1, 0.5, VOCABULARY)
    assert not np.array_equal(of_another_side, dropped)


def test_pieces_are_dropped_only_from_the_input_of_the_encoder():
    data = dataset(corpus("en-fr", 30), parts=[WordDropout(0.5, VOCABULARY)])
    plain = dataset(corpus("en-fr", 30), parts=[])
    batch = data.collater([data[index] for index in range(30)])
    expected = plain.collater([plain[index] for index in range(30)])
    for side in ("source", "target"):
        tokens = expected[f"{side}_tokens"]
        assert batch[f"{side}_tokens"].tolist() == tokens.tolist()
        assert expected["net_input"][side].tolist() == tokens.tolist()
        assert (batch["net_input"][side] == PAD).sum() > (tokens == PAD).sum()


def slow_contrast(student, teacher, widths):
    """Each sentence finds its row of the teacher among those of its side, and the reverse."""
    total = student.new_zeros(())
    for width in widths:
        for side in (slice(0, 3), slice(3, 6)):
            student_units = F.normalize(student[side, :width], dim=1)
            teacher_units = F.normalize(teacher[side, :width], dim=1)
            logits = student_units @ teacher_units.T * 10
            for row in range(3):
                total = total - (logits[row, row] - logits[row].logsumexp(0)) / 2
                total = total - (logits[row, row] - logits[:, row].logsumexp(0)) / 2
    return total


@pytest.mark.parametrize("widths", [(), (4, 2)])
def test_the_loss_contrast_and_its_gradients_are_those_of_the_slow_reference(widths):
    torch.manual_seed(1)
    student = torch.randn(6, 8, dtype=torch.double, requires_grad=True)
    # The teacher has embedded one side, which is used for both.
    teacher = torch.randn(3, 8, dtype=torch.double).repeat(2, 1)
    expected = slow_contrast(student, teacher, (*widths, 8))
    term = DistillationTerm("contrast", [Path("teacher")], 8, 10.0, widths)
    assert term.heads(SimpleNamespace(output_dim=8)) == {}
    loss = term.loss({"outputs": {"distill": student}}, {"teacher": teacher}, training=True)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    [gradient] = torch.autograd.grad(loss, student)
    [expected_gradient] = torch.autograd.grad(expected, student)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_contrast_needs_the_width_of_the_teacher(tmp_path):
    term = DistillationTerm("contrast", [tmp_path], 8)
    with pytest.raises(InputError, match=r"contrast.* 4;.*--encoder-embed-dim 8"):
        term.heads(SimpleNamespace(output_dim=4))


@pytest.fixture
def embeddings_of_two_pairs(tmp_path):
    """A function that writes the descriptions of the embeddings of both pairs."""
    for pair in ("en-fr", "en-de"):
        np.save(tmp_path / f"train.{pair}.en.npy", rows(3, 0))

    def describe(of_french, of_german):
        (tmp_path / "train.en-fr.en.npy.json").write_text(of_french)
        (tmp_path / "train.en-de.en.npy.json").write_text(of_german)

    return describe


@pytest.mark.usefixtures("embeddings_of_two_pairs")
def test_the_teacher_of_embeddings_without_descriptions_is_unknown(tmp_path):
    assert one_teacher([tmp_path], BOTH_PAIRS) is None


def test_embeddings_of_both_pairs_may_be_of_one_teacher(tmp_path, embeddings_of_two_pairs):
    embeddings_of_two_pairs('{"model": "abc"}', '{"model": "abc"}')
    assert one_teacher([tmp_path], BOTH_PAIRS) == "abc"


def test_embeddings_of_two_teachers_are_refused(tmp_path, embeddings_of_two_pairs):
    embeddings_of_two_pairs('{"model": "abc"}', '{"model": "def"}')
    with pytest.raises(InputError, match="abc, def"):
        one_teacher([tmp_path], BOTH_PAIRS)


def test_embeddings_may_be_of_two_models_in_the_space_of_one_teacher(
    tmp_path, embeddings_of_two_pairs
):
    """Such as a teacher and its student, or two students."""
    embeddings_of_two_pairs('{"model": "abc", "space": "abc"}', '{"model": "def", "space": "abc"}')
    assert one_teacher([tmp_path], BOTH_PAIRS) == "abc"


def test_an_invalid_description_of_embeddings_is_refused(tmp_path, embeddings_of_two_pairs):
    embeddings_of_two_pairs('{"model": "abc"}', "[1]")
    with pytest.raises(InputError, match=r"train.en-de.en.npy.json: .*embed the text again"):
        one_teacher([tmp_path], BOTH_PAIRS)
