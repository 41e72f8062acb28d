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

# A line of the log of fairseq-train; its field is the number of updates.
LOG_LINE = "train_inner | epoch 001:     50 / 270 loss=14.1, sim=0.0006, num_updates={}, wall=457\n"
NOT_UTF8 = b"\xff"
# Files that cannot be read, by their names.
UNREADABLE = {
    "nan.log": LOG_LINE.format(50).encode() + b'x | {"loss": "1", "num_updates": "nan"}\n',
    "latin.log": b"caf" + NOT_UTF8,
    "long.log": b"a" * (RECORD_BYTES + 1),
    # Python's parser refuses so many levels.
    "deep.jsonl": b"[" * 200_000,
    "types.jsonl": (
        b'{"protocol": 5, "task": [], "values": {}, "settings": {}, "outcomes": {}, "version": ""}'
    ),
}


def write_logs_and_scores(folder):
    """Two logs, one of which has a name that is not UTF-8, and a file of scores."""
    (folder / "train.log").write_text(LOG_LINE.format(50))
    (folder / os.fsdecode(NOT_UTF8 + b".log")).write_text(LOG_LINE.format(60))
    score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0])}, {"model": "m"})
    append_scores(folder / "scores.jsonl", [score])


def test_unreadable_files_are_named_and_left_out_of_the_report(tmp_path):
    write_logs_and_scores(tmp_path)
    for name, content in UNREADABLE.items():
        (tmp_path / name).write_bytes(content)

    result = lxsr("report", tmp_path)

    # Two logs and a file of scores.
    assert re.search(r" 2 .*logs, 1 ", result.stdout)
    assert (tmp_path / "report.html").is_file()
    skipped_names = []
    for line in result.stderr.splitlines():
        path_and_reason = line.partition(f"skipped: {tmp_path}/")[2]
        skipped_names.append(re.split("[,:]", path_and_reason)[0])
    assert sorted(skipped_names) == sorted(UNREADABLE)


def test_pipes_and_folders_named_like_logs_and_scores_are_left_out_without_a_word(tmp_path):
    write_logs_and_scores(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.log").mkdir()

    result = lxsr("report", tmp_path)

    assert re.search(r" 2 .*logs, 1 ", result.stdout)
    assert result.stderr == ""


def test_the_packaged_model_the_trained_model_and_its_random_weights_are_named_and_compared(
    tmp_path, packaged
):
    """The folder has the trained model, so the score of its fingerprint is that of the training."""
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    trained = SentenceEncoder.from_pretrained(folder).fingerprint
    untrained = f"{trained}-untrained"
    for model in (packaged.fingerprint, trained, untrained):
        score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0, 1])}, {"model": model})
        append_scores(tmp_path / "scores.jsonl", [score])

    lxsr("report", tmp_path)

    page = (tmp_path / "report.html").read_text()
    for text in (
        f"lxsr-static ({packaged.fingerprint})",
        f"trained model ({trained})",
        f"random weights ({untrained})",
        "The difference is that of the trained model to lxsr-static",
        "lxsr-static was trained on the demo text",
        # All models have the same outcomes.
        "<td>+0.0 (+0.0 to +0.0)</td>",
    ):
        assert text in page, text


TEXT_OPTIONS = pytest.mark.parametrize(
    "text_option", [("--lang-pairs", "en-fr"), ("--dataset", "flores200-dev")], ids=lambda o: o[0]
)


@TEXT_OPTIONS
def test_text_for_the_map_is_refused_if_no_model_can_embed_it(tmp_path, text_option):
    result = lxsr("report", tmp_path, *text_option, check=False)

    refused(result, f"{tmp_path}: ", "--model")


@TEXT_OPTIONS
def test_only_one_of_the_two_options_of_a_text_for_the_map_is_refused(tmp_path, text_option):
    """--data or --dataset names a text, --lang-pairs its languages."""
    model = COMPATIBILITY / "best.model"

    result = lxsr("report", tmp_path, "--model", model, *text_option, check=False)

    refused(result, "--data", "--lang-pairs")


@pytest.mark.parametrize(
    ("config", "update"),
    [
        pytest.param({"training": {"updates": 40}}, 40, id="number"),
        pytest.param({"training": {"updates": "40"}}, None, id="text"),
        pytest.param({"training": None}, None, id="no training"),
        pytest.param([], None, id="list"),
    ],
)
def test_the_exported_update_is_read_from_the_model_next_to_the_checkpoints(
    tmp_path, config, update
):
    """The run is in a folder below that of the report."""
    write_run(tmp_path / "run")
    (tmp_path / "run" / "model" / "config.json").write_text(json.dumps(config))

    [log] = training_logs(tmp_path)

    assert log.exported == update


def test_a_run_without_a_model_has_no_exported_update(tmp_path):
    write_run(tmp_path / "run")

    [log] = training_logs(tmp_path)

    assert log.exported is None


def write_run(run):
    """A log next to checkpoints, and a folder for the model, which is empty."""
    for name in ("checkpoints", "model"):
        (run / name).mkdir(parents=True)
    (run / "checkpoints" / "train.log").write_text(LOG_LINE.format(50))
