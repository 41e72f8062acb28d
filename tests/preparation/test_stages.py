"""Stages: what was made before is kept."""

from fairseq_lxsr.preparation.stages import run_stage


def build(work):
    (work / "text").write_text("text")
    return {"lines": 1}


def test_a_stage_that_a_kill_left_under_its_hidden_name_is_kept(tmp_path):
    run_stage(tmp_path / "corpus", {}, [], build)
    (tmp_path / "corpus").rename(tmp_path / ".corpus.machine.7.x.old")
    said = []
    assert run_stage(tmp_path / "corpus", {}, [], build, said.append) == {"lines": 1}
    assert said == [f"{tmp_path / 'corpus'}: unchanged, kept"]
