"""Embeddings of a teacher beside the text, and pieces that the encoder does not see."""

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
    return np.repeat(np.arange(start, start + count, dtype=np.float16)[:, None], 3, axis=1)


def test_every_pair_gets_its_own_rows():
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
            assert source.tolist() == target.tolist() == [188 + index for index in indices]
    assert "teacher" not in dataset(corpus("en-fr", 3)).collater([data[0]])


def test_shards_and_the_folders_of_their_teachers_take_turns(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        np.save(folder / "train.en-fr.en.npy", rows(12, 100 * number))
    term = DistillationTerm("mse", folders, width=3)
    for epoch, first in ((1, 0), (2, 100), (3, 0)):
        text = corpus("en-fr", 12)
        data = dataset(text, parts=term.parts(Split("train", epoch, {("en", "fr"): text})))
        assert data.collater([data[5]])["teacher"][:, 0].tolist() == [first + 5] * 2


def test_files_are_checked(tmp_path):
    pair = ("en", "fr")
    assert read_teacher(tmp_path, "train", pair) is None
    np.save(tmp_path / "train.en-fr.fr.npy", rows(5, 0))
    assert read_teacher(tmp_path, "train", pair, 5).width == 3
    with pytest.raises(InputError, match=r"train.en-fr.fr.npy: 5 .* 6 sentences"):
        read_teacher(tmp_path, "train", pair, 6)
    np.save(tmp_path / "train.en-fr.en.npy", rows(5, 0)[:, :2])
    with pytest.raises(InputError, match=r"en.npy.*\(5, 2\).*fr.npy.*\(5, 3\)"):
        read_teacher(tmp_path, "train", pair)
    packed = np.array([{"code": 1}], dtype=object)
    for array, message in ((packed, "npy"), (np.arange(5), r"int64.*\(5,\)")):
        np.save(tmp_path / "train.en-fr.en.npy", array, allow_pickle=True)
        with pytest.raises(InputError, match=rf"train.en-fr.en.npy:? .*{message}"):
            read_teacher(tmp_path, "train", pair)
    (tmp_path / "train.en-fr.en.npy").write_bytes(b"PK\3\4, and no array")
    with pytest.raises(InputError, match=r"train.en-fr.en.npy"):
        read_teacher(tmp_path, "train", pair)
    np.save(tmp_path / "train.en-fr.en.npy", np.zeros((5, 0), dtype=np.float32))
    (tmp_path / "train.en-fr.fr.npy").unlink()
    with pytest.raises(InputError, match=r"float32.*\(5, 0\)"):
        read_teacher(tmp_path, "train", pair)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e6 - 1, 70_000])
def test_a_row_that_is_no_embedding_is_named(tmp_path, monkeypatch, dtype, value):
    monkeypatch.setattr("fairseq_lxsr.training.lightweight.parts.teacher.VALUES_AT_ONCE", 8)
    embeddings = rows(7, 0).astype(dtype)
    with np.errstate(over="ignore"):
        embeddings[5, 1] = value
    np.save(tmp_path / "train.en-fr.en.npy", embeddings)
    message = r"train.en-fr.en.npy.* (nan|inf|-inf|-1e\+06|70000)\b.*row 6\b.*\b2\b"
    with pytest.raises(InputError, match=message):
        read_teacher(tmp_path, "train", ("en", "fr"))


def test_a_folder_for_several_shards_with_the_same_pair_is_refused(tmp_path):
    """Shards of the same size would take each other's rows."""
    for shard, name in (
        ("a", "en-fr"),
        ("b", "fr-en"),
        ("c", "en-de"),
        ("t", "none"),
        ("u", "none"),
    ):
        (tmp_path / shard).mkdir()
        (tmp_path / shard / f"train.{name}.en.idx").touch()
    a, b, c, t, u = (tmp_path / name for name in "abctu")
    pairs = [("en", "fr"), ("en", "de")]
    for value, shards in (
        (t, [a]),
        (t, [a, c]),
        (t, [a, a]),
        (f"{t}:{u}", [a, b]),
        (f"{t}:{t}", [b, c]),
    ):
        value = str(value)
        assert teacher.embedding_folders("--option", value, shards, pairs) == [
            Path(name) for name in value.split(":")
        ]
    assert teacher.embedding_folders("--option", str(t), [a, b], pairs[1:]) == [t]
    for value, shards in ((f"{t}", [a, b]), (f"{t}:{u}:{t}", [a, c, b])):
        with pytest.raises(
            InputError,
            match=r"--option.*/t\b.*/a\b.*/b\b.* fr-en\b",
        ):
            teacher.embedding_folders("--option", value, shards, pairs)


def test_pieces_are_left_out_whatever_the_batch_and_never_all():
    tokens = np.random.default_rng(0).integers(4, MASK, (200, 9))
    tokens[:, 7:] = PAD
    tokens[0, :] = [5, *[PAD] * 8]
    tokens[1, 0] = MASK
    index = np.arange(200)
    left = drop_pieces(tokens, index, 0, 1, 1, 0.5, VOCABULARY)
    assert ((left == tokens) | (left == PAD)).all()
    assert (left != PAD).any(axis=1).all()
    assert 0.45 < (left[2:, :7] == PAD).mean() < 0.55
    assert left[1, 0] == MASK
    alone = drop_pieces(tokens[7:8, :8], index[7:8], 0, 1, 1, 0.5, VOCABULARY)
    assert alone[0].tolist() == left[7, :8].tolist()
    assert not np.array_equal(left, drop_pieces(tokens, index, 0, 1, 2, 0.5, VOCABULARY))
    assert not np.array_equal(left, drop_pieces(tokens, index, 1, 1, 1, 0.5, VOCABULARY))


def test_only_what_the_encoder_reads_is_left_out():
    data, whole = (
        dataset(corpus("en-fr", 30), parts=parts) for parts in ([WordDropout(0.5, VOCABULARY)], [])
    )
    batch, expected = (
        part.collater([part[index] for index in range(30)]) for part in (data, whole)
    )
    for side in ("source", "target"):
        assert batch[f"{side}_tokens"].tolist() == expected[f"{side}_tokens"].tolist()
        assert (batch["net_input"][side] == PAD).sum() > (expected["net_input"][side] == PAD).sum()
        assert expected["net_input"][side].tolist() == expected[f"{side}_tokens"].tolist()


@pytest.mark.parametrize("widths", [(), (4, 2)])
def test_contrast_equals_its_slow_reference(widths):
    """A sentence at a time looks for the teacher's embedding of it among those of its side, and the
    other way round.
    """
    torch.manual_seed(1)
    student = torch.randn(6, 8, dtype=torch.double, requires_grad=True)
    # the teacher knows one side, so that its rows stand for both
    teacher = torch.randn(3, 8, dtype=torch.double).repeat(2, 1)
    expected = student.new_zeros(())
    for width in {*widths, 8}:
        for side in (slice(0, 3), slice(3, 6)):
            ours, theirs = (F.normalize(rows[side, :width], dim=1) for rows in (student, teacher))
            for row in range(3):
                for one, others in ((ours, theirs), (theirs, ours)):
                    logits = torch.stack([one[row] @ other * 10 for other in others])
                    expected = expected - (logits[row] - logits.logsumexp(0)) / 2
    term = DistillationTerm("contrast", [Path("teacher")], 8, 10.0, widths)
    assert term.heads(SimpleNamespace(output_dim=8)) == {}
    loss = term.loss({"outputs": {"distill": student}}, {"teacher": teacher}, training=True)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    ours, theirs = (torch.autograd.grad(value, student)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_contrast_needs_the_width_of_the_teacher_and_knows_its_model(tmp_path):
    term = DistillationTerm("contrast", [tmp_path], 8)
    with pytest.raises(InputError, match=r"contrast.* 4;.*--encoder-embed-dim 8"):
        term.heads(SimpleNamespace(output_dim=4))
    pairs = [("en", "fr"), ("en", "de")]
    names = ("train.en-fr.en.npy", "train.en-de.en.npy")
    for name in names:
        np.save(tmp_path / name, rows(3, 0))
    assert one_teacher([tmp_path], pairs) is None
    for name in names:
        (tmp_path / f"{name}.json").write_text('{"model": "abc"}')
    assert one_teacher([tmp_path], pairs) == "abc"
    (tmp_path / "train.en-de.en.npy.json").write_text('{"model": "def"}')
    with pytest.raises(InputError, match="abc, def"):
        one_teacher([tmp_path], pairs)
    # students of one teacher, or it and a student
    for name, model in zip(names, ("abc", "def"), strict=True):
        (tmp_path / f"{name}.json").write_text(f'{{"model": "{model}", "space": "abc"}}')
    assert one_teacher([tmp_path], pairs) == "abc"
    (tmp_path / "train.en-de.en.npy.json").write_text("[1]")
    with pytest.raises(InputError, match=r"train.en-de.en.npy.json: .*embed the text again"):
        one_teacher([tmp_path], pairs)
