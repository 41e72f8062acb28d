"""`lxsr report` of a folder in which not everything is what its name says."""

import json
import os
import re

import pytest
import small_model
from conftest import COMPATIBILITY, refused
from conftest import lxsr_here as lxsr

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.report import training_logs
from fairseq_lxsr.evaluation.score import Outcomes, append_scores, from_hits
from fairseq_lxsr.files.lines import RECORD_BYTES

LOG = "train_inner | epoch 001:     50 / 270 loss=14.1, sim=0.0006, num_updates={}, wall=457\n"


def test_files_of_another_kind_are_named_and_left_out(tmp_path):
    append_scores(
        tmp_path / "good.jsonl",
        [from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0])}, {"model": "m"})],
    )
    (tmp_path / "train.log").write_text(LOG.format(50))
    (tmp_path / os.fsdecode(b"\xff.log")).write_text(LOG.format(60))
    bad = {
        "nan.log": LOG.format(50) + 'x | {"loss": "1", "num_updates": "nan"}\n',
        "deep.jsonl": "[" * 200_000,
        "types.jsonl": '{"protocol": 5, "task": [], "values": {}, "settings": {}, "outcomes": {}, "version": ""}',
        "latin.log": "caf\udce9",
        "long.log": "a" * (RECORD_BYTES + 1),
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.log").mkdir()
    done = lxsr("report", tmp_path)
    assert re.search(r" 2 .*logs, 1 ", done.stdout)
    assert (tmp_path / "report.html").is_file()
    named = (line.partition(f"skipped: {tmp_path}/")[2] for line in done.stderr.splitlines())
    assert sorted(re.split("[,:]", name)[0] for name in named) == sorted(bad)


def test_the_packaged_model_and_the_model_of_the_folder_are_named(tmp_path, packaged):
    """A page of a run called every model "trained"."""
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    trained = SentenceEncoder.from_pretrained(folder).fingerprint
    for model in (packaged.fingerprint, trained, f"{trained}-untrained"):
        score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0, 1])}, {"model": model})
        append_scores(tmp_path / "scores.jsonl", [score])
    lxsr("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    for name in (
        f"lxsr-static ({packaged.fingerprint})",
        f"trained model ({trained})",
        f"random weights ({trained}-untrained)",
        "The difference is that of the trained model to lxsr-static",
        "lxsr-static was trained on the demo text",
        "<td>+0.0 (+0.0 to +0.0)</td>",
    ):
        assert name in page, name


def test_text_that_is_named_by_halves_is_refused(tmp_path):
    model = ("--model", COMPATIBILITY / "best.model")
    for half in (("--lang-pairs", "en-fr"), ("--dataset", "flores200-dev")):
        refused(
            lxsr("report", tmp_path, *half, check=False),
            f"{tmp_path}: ",
            "--model",
        )
        refused(lxsr("report", tmp_path, *model, *half, check=False), "--data", "--lang-pairs")


@pytest.mark.parametrize(
    ("config", "update"),
    [
        ({"training": {"updates": 40}}, 40),
        ({"training": {"updates": "40"}}, None),
        ({"training": None}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_exported_update_of_a_run(tmp_path, config, update):
    """The layout of `lxsr run`, below the folder of the report."""
    run = tmp_path / "run"
    for name in ("checkpoints", "model"):
        (run / name).mkdir(parents=True)
    (run / "checkpoints" / "train.log").write_text(LOG.format(50))
    if config is not None:
        (run / "model" / "config.json").write_text(json.dumps(config))
    [log] = training_logs(tmp_path)
    assert log.exported == update
