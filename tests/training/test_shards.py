"""Several data folders, of which each epoch reads one: their dictionaries and teachers."""

import os
import shutil

import numpy as np
from conftest import refused, train_here
from omegaconf import OmegaConf

from fairseq_lxsr.training.lightweight.task import XlingSentConfig, XlingSentTask
from fairseq_lxsr.training.lightweight.terms.distillation import DistillationTerm
from fairseq_lxsr.training.lightweight.terms.term import Setting


def test_a_shard_with_another_dictionary_is_refused(tmp_path, toy_work):
    first = toy_work / "data-bin"
    second = shutil.copytree(first, tmp_path / "second")
    (second / "stage.json").unlink()
    # The dictionaries have the same size, so that no id is out of range.
    for path in second.glob("dict.*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join([lines[1], lines[0], *lines[2:]]), encoding="utf-8")
    done = train_here(f"{first}{os.pathsep}{second}", tmp_path / "save", max_update="1")
    refused(done, second / "dict.en.txt", first)


def test_a_shard_of_the_teacher_may_lack_the_first_pair(tmp_path):
    for language in ("fr", "de"):
        (tmp_path / language).mkdir()
        np.save(tmp_path / language / f"train.en-{language}.en.npy", np.ones((3, 5), np.float32))
    folders = f"{tmp_path / 'fr'}{os.pathsep}{tmp_path / 'de'}"
    cfg = OmegaConf.create({"distill_loss": "mse", "teacher_embeddings": folders})
    shards = [tmp_path / "data-fr", tmp_path / "data-de"]
    for pairs in ([("en", "de"), ("en", "fr")], [("en", "fr"), ("en", "de")]):
        assert DistillationTerm.build(cfg, Setting(None, pairs, shards)).width == 5


def test_the_task_builds_the_criterion_of_another_plugin(toy_work, monkeypatch):
    names = []

    def build_criterion(cfg, *arguments, **options):
        names.append(cfg._name)

    monkeypatch.setattr("fairseq.criterions.build_criterion", build_criterion)
    options = {"data": str(toy_work / "data-bin"), "batch_size": 8}
    cfg = OmegaConf.merge(OmegaConf.structured(XlingSentConfig), options)
    XlingSentTask(cfg).build_criterion(OmegaConf.create({"_name": "other_loss"}))
    assert names == ["other_loss"]
