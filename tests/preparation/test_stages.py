"""Stages: what was made before is kept."""

from fairseq_lxsr.preparation.stages import run_stage


def build(work):
    (work / "text").write_text("text")
    return {"lines": 1}


def test_a_stage_that_a_kill_left_under_its_hidden_name_is_kept(tmp_path, capsys):
    run_stage(tmp_path / "corpus", {}, [], build)
    (tmp_path / "corpus").rename(tmp_path / ".corpus.machine.7.x.old")
    assert run_stage(tmp_path / "corpus", {}, [], build) == {"lines": 1}
    assert capsys.readouterr().out == f"{tmp_path / 'corpus'}: unchanged, kept\n"
