"""Several data folders, which take turns: their dictionaries, and the teacher of each."""

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
    """Of the same size, so that no id is out of range."""
    first, other = toy_work / "data-bin", shutil.copytree(toy_work / "data-bin", tmp_path / "other")
    (other / "stage.json").unlink()
    for path in other.glob("dict.*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join([lines[1], lines[0], *lines[2:]]), encoding="utf-8")
    done = train_here(os.pathsep.join(map(str, (first, other))), tmp_path / "save", max_update="1")
    refused(done, other / "dict.en.txt", first)


@pytest.mark.parametrize("order", [1, -1])
def test_a_shard_of_the_teacher_may_lack_the_first_pair(tmp_path, order):
    pairs = [("en", "de"), ("en", "fr")][::order]
    shards = [tmp_path / "data-fr", tmp_path / "data-de"]
    for language in ("fr", "de"):
        (tmp_path / language).mkdir()
        np.save(tmp_path / language / f"train.en-{language}.en.npy", np.ones((3, 5), np.float32))
    options = {"teacher_embeddings": os.pathsep.join((str(tmp_path / "fr"), str(tmp_path / "de")))}
    cfg = OmegaConf.merge(OmegaConf.create({"distill_loss": "mse"}), options)
    assert DistillationTerm.build(cfg, Setting(None, pairs, shards)).width == 5


def test_a_criterion_of_another_plugin_is_built(toy_work, monkeypatch):
    built = []
    monkeypatch.setattr(
        "fairseq.criterions.build_criterion", lambda cfg, *others, **_: built.append(cfg._name)
    )
    cfg = OmegaConf.merge(
        OmegaConf.structured(XlingSentConfig), {"data": str(toy_work / "data-bin"), "batch_size": 8}
    )
    XlingSentTask(cfg).build_criterion(OmegaConf.create({"_name": "other_loss"}))
    assert built == ["other_loss"]
