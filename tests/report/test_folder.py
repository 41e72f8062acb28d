"""`lxsr report` of folders with damaged files and files of other kinds."""

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
    score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0])}, {"model": "m"})
    append_scores(tmp_path / "good.jsonl", [score])
    (tmp_path / "train.log").write_text(LOG.format(50))
    (tmp_path / os.fsdecode(b"\xff.log")).write_text(LOG.format(60))
    unreadable = {
        "nan.log": LOG.format(50) + 'x | {"loss": "1", "num_updates": "nan"}\n',
        "deep.jsonl": "[" * 200_000,
        "types.jsonl": '{"protocol": 5, "task": [], "values": {}, "settings": {}, "outcomes": {}, "version": ""}',
        "latin.log": "caf\udce9",
        "long.log": "a" * (RECORD_BYTES + 1),
    }
    for name, content in unreadable.items():
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.log").mkdir()

    result = lxsr("report", tmp_path)

    assert re.search(r" 2 .*logs, 1 ", result.stdout)
    assert (tmp_path / "report.html").is_file()
    skipped = []
    for line in result.stderr.splitlines():
        path = line.partition(f"skipped: {tmp_path}/")[2]
        skipped.append(re.split("[,:]", path)[0])
    assert sorted(skipped) == sorted(unreadable)


def test_the_packaged_model_and_the_model_of_the_folder_are_named(tmp_path, packaged):
    """Not every model is the trained one."""
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    trained = SentenceEncoder.from_pretrained(folder).fingerprint
    for model in (packaged.fingerprint, trained, f"{trained}-untrained"):
        score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0, 1])}, {"model": model})
        append_scores(tmp_path / "scores.jsonl", [score])
    lxsr("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    for text in (
        f"lxsr-static ({packaged.fingerprint})",
        f"trained model ({trained})",
        f"random weights ({trained}-untrained)",
        "The difference is that of the trained model to lxsr-static",
        "lxsr-static was trained on the demo text",
        "<td>+0.0 (+0.0 to +0.0)</td>",
    ):
        assert text in page, text


def test_options_of_text_that_need_each_other_are_refused_alone(tmp_path):
    model = ("--model", COMPATIBILITY / "best.model")
    for option in (("--lang-pairs", "en-fr"), ("--dataset", "flores200-dev")):
        result = lxsr("report", tmp_path, *option, check=False)
        refused(result, f"{tmp_path}: ", "--model")
        result = lxsr("report", tmp_path, *model, *option, check=False)
        refused(result, "--data", "--lang-pairs")


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
def test_the_exported_update_is_read_from_the_model_of_the_run(tmp_path, config, update):
    """The run is in a folder below that of the report."""
    run = tmp_path / "run"
    for name in ("checkpoints", "model"):
        (run / name).mkdir(parents=True)
    (run / "checkpoints" / "train.log").write_text(LOG.format(50))
    if config is not None:
        (run / "model" / "config.json").write_text(json.dumps(config))
    [log] = training_logs(tmp_path)
    assert log.exported == update
