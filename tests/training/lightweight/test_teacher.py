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


def test_invalid_files_of_embeddings_are_refused(tmp_path):
    pair = ("en", "fr")
    english = tmp_path / "train.en-fr.en.npy"
    french = tmp_path / "train.en-fr.fr.npy"
    assert read_teacher(tmp_path, "train", pair) is None
    np.save(french, rows(5, 0))
    assert read_teacher(tmp_path, "train", pair, 5).width == 3
    with pytest.raises(InputError, match=r"train.en-fr.fr.npy: 5 .* 6 sentences"):
        read_teacher(tmp_path, "train", pair, 6)
    np.save(english, rows(5, 0)[:, :2])
    with pytest.raises(InputError, match=r"en.npy.*\(5, 2\).*fr.npy.*\(5, 3\)"):
        read_teacher(tmp_path, "train", pair)
    # An array of objects could run code.
    np.save(english, np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"train.en-fr.en.npy:? .*npy"):
        read_teacher(tmp_path, "train", pair)
    np.save(english, np.arange(5))
    with pytest.raises(InputError, match=r"train.en-fr.en.npy:? .*int64.*\(5,\)"):
        read_teacher(tmp_path, "train", pair)
    english.write_bytes(b"PK\3\4, and no array")
    with pytest.raises(InputError, match=r"train.en-fr.en.npy"):
        read_teacher(tmp_path, "train", pair)
    np.save(english, np.zeros((5, 0), dtype=np.float32))
    french.unlink()
    with pytest.raises(InputError, match=r"float32.*\(5, 0\)"):
        read_teacher(tmp_path, "train", pair)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_row_and_column_of_a_value_that_no_embedding_has_are_named(
    tmp_path, monkeypatch, dtype
):
    monkeypatch.setattr("fairseq_lxsr.training.lightweight.parts.teacher.VALUES_AT_ONCE", 8)
    for value in (np.nan, np.inf, -np.inf, -1e6 - 1, 70_000):
        embeddings = rows(7, 0).astype(dtype)
        with np.errstate(over="ignore"):
            embeddings[5, 1] = value
        np.save(tmp_path / "train.en-fr.en.npy", embeddings)
        message = r"train.en-fr.en.npy.* (nan|inf|-inf|-1e\+06|70000)\b.*row 6\b.*\b2\b"
        with pytest.raises(InputError, match=message):
            read_teacher(tmp_path, "train", ("en", "fr"))


def test_a_folder_of_embeddings_for_two_shards_with_the_same_pair_is_refused(tmp_path):
    """The shards would use the rows of each other."""
    shards = {}
    for name, pair in (("a", "en-fr"), ("b", "fr-en"), ("c", "en-de")):
        shards[name] = tmp_path / name
        shards[name].mkdir()
        (shards[name] / f"train.{pair}.en.idx").touch()
    t = tmp_path / "t"
    u = tmp_path / "u"
    t.mkdir()
    u.mkdir()
    pairs = [("en", "fr"), ("en", "de")]
    for folders, names in (([t], "a"), ([t], "ac"), ([t], "aa"), ([t, u], "ab"), ([t, t], "bc")):
        option = ":".join(str(folder) for folder in folders)
        data = [shards[name] for name in names]
        assert teacher.embedding_folders("--option", option, data, pairs) == folders
    # Shards a and b have the same pair, unless it is not used.
    data = [shards["a"], shards["b"]]
    assert teacher.embedding_folders("--option", str(t), data, [("en", "de")]) == [t]
    message = r"--option.*/t\b.*/a\b.*/b\b.* fr-en\b"
    with pytest.raises(InputError, match=message):
        teacher.embedding_folders("--option", str(t), data, pairs)
    data = [shards["a"], shards["c"], shards["b"]]
    with pytest.raises(InputError, match=message):
        teacher.embedding_folders("--option", f"{t}:{u}:{t}", data, pairs)


def test_half_of_the_pieces_are_dropped_but_neither_masks_nor_all_of_a_sentence():
    tokens = np.random.default_rng(0).integers(4, MASK, (200, 9))
    tokens[:, 7:] = PAD
    tokens[0, :] = [5, *[PAD] * 8]
    tokens[1, 0] = MASK
    dropped = drop_pieces(tokens, np.arange(200), 0, 1, 1, 0.5, VOCABULARY)
    assert ((dropped == tokens) | (dropped == PAD)).all()
    assert (dropped != PAD).any(axis=1).all()
    assert 0.45 < (dropped[2:, :7] == PAD).mean() < 0.55
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


def test_embeddings_of_all_pairs_must_be_in_the_space_of_one_teacher(tmp_path):
    pairs = [("en", "fr"), ("en", "de")]
    french = tmp_path / "train.en-fr.en.npy.json"
    german = tmp_path / "train.en-de.en.npy.json"
    np.save(tmp_path / "train.en-fr.en.npy", rows(3, 0))
    np.save(tmp_path / "train.en-de.en.npy", rows(3, 0))
    assert one_teacher([tmp_path], pairs) is None
    french.write_text('{"model": "abc"}')
    german.write_text('{"model": "abc"}')
    assert one_teacher([tmp_path], pairs) == "abc"
    german.write_text('{"model": "def"}')
    with pytest.raises(InputError, match="abc, def"):
        one_teacher([tmp_path], pairs)
    # The models may be a teacher and its student, or two students.
    french.write_text('{"model": "abc", "space": "abc"}')
    german.write_text('{"model": "def", "space": "abc"}')
    assert one_teacher([tmp_path], pairs) == "abc"
    german.write_text("[1]")
    with pytest.raises(InputError, match=r"train.en-de.en.npy.json: .*embed the text again"):
        one_teacher([tmp_path], pairs)
