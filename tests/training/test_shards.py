"""Several data folders, of which each epoch reads one: their dictionaries and teachers."""

import os
import shutil

import numpy as np
import pytest
from conftest import refused, train_here
from omegaconf import OmegaConf

from fairseq_lxsr.training.lightweight.task import XlingSentConfig, XlingSentTask
from fairseq_lxsr.training.lightweight.terms.distillation import DistillationTerm
from fairseq_lxsr.training.lightweight.terms.term import Setting


def test_a_shard_with_another_dictionary_is_refused(tmp_path, toy_work):
    first = toy_work / "data-bin"
    second = shutil.copytree(first, tmp_path / "second")
    # Its checksums would find the change first.
    (second / "stage.json").unlink()
    # Exchange two entries, so that the dictionaries have the same size, and no id is out of range.
    for path in second.glob("dict.*.txt"):
        first_line, second_line, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join([second_line, first_line, *lines]), encoding="utf-8")

    done = train_here(f"{first}{os.pathsep}{second}", tmp_path / "save", max_update="1")

    refused(done, second / "dict.en.txt", first)


@pytest.mark.parametrize(
    "pairs",
    [[("en", "de"), ("en", "fr")], [("en", "fr"), ("en", "de")]],
    ids=["lacks first", "has first"],
)
def test_a_shard_of_the_teacher_may_lack_a_language_pair(tmp_path, pairs):
    """The first shard has only English and French, the second only English and German."""
    width = 5
    for language in ("fr", "de"):
        (tmp_path / language).mkdir()
        embeddings = np.ones((3, width), np.float32)
        np.save(tmp_path / language / f"train.en-{language}.en.npy", embeddings)
    folders = f"{tmp_path / 'fr'}{os.pathsep}{tmp_path / 'de'}"
    cfg = OmegaConf.create({"distill_loss": "mse", "teacher_embeddings": folders})
    shards = [tmp_path / "data-fr", tmp_path / "data-de"]

    term = DistillationTerm.build(cfg, Setting(None, pairs, shards))

    assert term.width == width


def test_the_task_builds_the_criterion_of_another_plugin(toy_work, monkeypatch):
    built_criterions = []

    def record_criterion(cfg, *arguments, **options):
        built_criterions.append(cfg._name)

    monkeypatch.setattr("fairseq.criterions.build_criterion", record_criterion)
    options = {"data": str(toy_work / "data-bin"), "batch_size": 8}
    cfg = OmegaConf.merge(OmegaConf.structured(XlingSentConfig), options)

    XlingSentTask(cfg).build_criterion(OmegaConf.create({"_name": "other_loss"}))

    assert built_criterions == ["other_loss"]
