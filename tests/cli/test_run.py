"""`lxsr run`: one command from text to scores."""

import itertools
import json
import re

import pytest
import small_model
import toy
from conftest import lxsr, lxsr_here, refused

from fairseq_lxsr.cli.main import parse
from fairseq_lxsr.cli.options import data_first
from fairseq_lxsr.cli.run import DEMO, Run, _program, verdict
from fairseq_lxsr.evaluation.score import Outcomes, Score, read_scores
from fairseq_lxsr.files.lines import read_parallel


def test_the_text_of_the_demo_is_small_and_has_a_licence():
    assert DEMO.stat().st_size < 1_000_000
    about = DEMO.with_name("demo.en-fr.txt").read_text(encoding="utf-8")
    assert "tatoeba.org" in about
    assert "manythings.org/anki" in about
    assert "Creative Commons Attribution 2.0" in about


def test_without_fairseq_nothing_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.cli.train.TOO_NEW", (3, 11))
    refused(lxsr_here("run", "demo", "--work", "work", check=False, folder=tmp_path), "fairseq")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("activated", [True, False])
def test_printed_commands_name_a_program_that_the_shell_finds(tmp_path, monkeypatch, activated):
    """Also if the virtual environment is not activated, as after `make demo`."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "lxsr"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(programs) if activated else "")
    monkeypatch.chdir(tmp_path)
    assert _program() == ("lxsr" if activated else ".venv/bin/lxsr")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A command of a run, its work folder and its output."""
    folder = tmp_path_factory.mktemp("run")
    toy.write(folder / "text", toy.sentences(1200), ("en", "xx"))
    command = ["run", folder / "text", "--lang-pair", "en-xx", "--work", folder / "work"]
    command += ["--vocab-size", 200, "--max-update", 8, "--encoder-embed-dim", 32]
    command += ["--no-short-pairs", "--cpu", "--num-workers", 0]
    return command, folder / "work", lxsr(*command).stdout


def precision(path):
    return read_scores(path)[0].values["P@1"]


def test_training_improves_the_scores(finished_run):
    _, work, _ = finished_run
    assert precision(work / "trained.jsonl") > precision(work / "untrained.jsonl") + 20


def test_the_last_table_compares_with_the_model_of_the_package(finished_run):
    """Both are also re-ranked; one sentence says which is better."""
    _, work, output = finished_run
    rows = [line for line in output.splitlines() if re.search(r"(\d+\.\d +){2}\d+\.\d$", line)]
    assert [re.split("  +", row)[0] for row in rows] == [
        "random weights",
        "lxsr-static",
        "lxsr-static, --rerank 10",
        "trained",
        "trained, --rerank 10",
    ]
    assert re.search(r"lxsr-static.*points, 95 % interval [-+]", output)
    assert f"lxsr search --index {work / 'index'} --rerank 10" in output


def scores_with_hits(hits):
    """Scores of 100 sentences in each direction, of which `hits` have been found."""
    outcomes = Outcomes([1] * hits + [0] * (100 - hits))
    scores = []
    for direction in ("en->xx", "xx->en"):
        settings = {"metric": "nn-cosine"}
        scores.append(Score("xsr", direction, {}, settings, {"P@1": outcomes}))
    return scores


@pytest.mark.parametrize(
    ("trained", "packaged", "conclusion"),
    [
        (90, 50, "The trained model is better"),
        (50, 51, "as good without this training"),
        (50, 90, "better without this training"),
    ],
)
def test_the_verdict_says_which_model_is_better(trained, packaged, conclusion):
    assert conclusion in verdict(scores_with_hits(trained), scores_with_hits(packaged))


def test_the_packaged_model_is_not_compared_on_its_own_training_text(tmp_path):
    """This has the sentences of the demo."""
    run = Run.from_args(parse(["run", "demo", "--work", str(tmp_path)]))
    assert "lxsr-static was trained on" in run.conclusion([], [])


@pytest.mark.slow
def test_a_quiet_rerun_trains_nothing_and_prints_only_scores(finished_run):
    """In processes that import everything themselves, because imports print warnings too."""
    command, work, _ = finished_run
    checkpoint = work / "checkpoints" / "checkpoint_best.pt"
    time_of_training = checkpoint.stat().st_mtime_ns
    result = lxsr(*command, "--quiet", preloaded=())
    assert "lxsr-static, --rerank 10" in result.stdout
    assert result.stderr == ""
    for word in ("==", "fairseq", "INFO"):
        assert word not in result.stdout
    assert checkpoint.stat().st_mtime_ns == time_of_training


def write_cyrillic_text(prefix, number):
    """Pairs of English and a language `xx`, whose letters are unknown to the models."""
    letters = {ord("a") + index: 0x430 + index for index in range(26)}
    pairs = []
    for source, target in toy.sentences(number):
        pairs.append((source, target.lower().translate(letters)))
    toy.write(prefix, pairs, ("en", "xx"))


@pytest.mark.slow
def test_a_language_is_added_to_a_model_and_a_rerun_trains_nothing(tmp_path):
    small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    write_cyrillic_text(tmp_path / "text", 800)
    text = ["run", tmp_path / "text", "--lang-pair", "en-xx"]
    command = [*text, "--work", tmp_path / "work", "--from", tmp_path / "old"]
    command += ["--vocab-size", 60, "--max-update", 3, "--cpu", "--num-workers", 0]

    assert f"from {tmp_path / 'old'}" in lxsr(*command).stdout
    assert precision(tmp_path / "work" / "trained.jsonl") > 50

    checkpoint = tmp_path / "work" / "checkpoints" / "checkpoint_best.pt"
    time_of_training = checkpoint.stat().st_mtime_ns
    lxsr(*command)
    assert checkpoint.stat().st_mtime_ns == time_of_training

    layers = small_model.write_folder(tmp_path / "layers")
    result = lxsr(*text, "--work", tmp_path / "other", "--from", layers, check=False)
    assert result.returncode == 2
    assert str(layers) in result.stderr


@pytest.mark.slow
def test_a_student_of_a_new_language_is_searched_by_queries_of_its_teacher(tmp_path):
    teacher = small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    text = tmp_path / "text"
    pair = ("--lang-pair", "en-xx")
    result = lxsr_here("run", text, *pair, "--teacher", teacher, check=False)
    refused(result, f"--teacher {teacher} ")
    name_languages(teacher, "en-fr")
    write_cyrillic_text(text, 1200)
    work = tmp_path / "work"
    options = ["--vocab-size", 200, "--max-update", 30, "--cpu", "--num-workers", 0]

    output = lxsr("run", text, *pair, "--work", work, "--teacher", teacher, *options).stdout

    assert f"lxsr search --index {work / 'index'} --model {teacher} 'Where" in output
    # Chance is 1.
    assert precision(work / "trained.jsonl") > 20

    corpus = work / "corpus" / "en-xx"
    index = tmp_path / "index"
    lxsr_here("index", "--model", work / "model", "--input", corpus / "test.xx", "--output", index)
    search = ("search", "--index", index, "--model", teacher, "--k", 1)
    queries = (corpus / "test.en").read_text().splitlines()
    translations = (corpus / "test.xx").read_text().splitlines()
    results = lxsr_here(*search, *queries[:20]).stdout.splitlines()[1::2]
    number_of_hits = 0
    for line, translation in zip(results, translations, strict=False):
        number_of_hits += line.strip().endswith(f"  {translation}")
    assert number_of_hits > 2

    result = lxsr_here(*search, "--rerank", 5, queries[0], check=False)
    refused(result, "rerank", str(index))
    # A rerun without the teacher.
    assert lxsr("run", text, *pair, "--work", work, *options, check=False).returncode == 2
    model = work / "model"
    result = lxsr_here("run", text, *pair, "--teacher", model, check=False)
    refused(result, f"--teacher {model} ", "en-xx", f"--from {model}")
    result = lxsr_here("run", text, "--teacher", teacher, "--from", teacher, check=False)
    refused(result, "--from", "--teacher")


def name_languages(model, pairs):
    """Write into the configuration of a model which language pairs it was trained on."""
    config = json.loads((model / "config.json").read_text())
    del config["crc32"]
    config["training"] = {"lang_pairs": pairs}
    (model / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("data", "flags", "sizes", "checkpoint"),
    [
        ("text", (), [], "best"),
        ("text", ("--disable-validation",), ["0"], "last"),
        ("demo", (), ["500"], "best"),
        ("demo", ("--disable-validation",), ["500", "0"], "last"),
    ],
)
def test_without_validation_all_text_is_trained_on_and_the_last_checkpoint_exported(
    data, flags, sizes, checkpoint, tmp_path, monkeypatch
):
    calls = {}
    monkeypatch.setattr(
        "fairseq_lxsr.cli.run.Run._lxsr",
        lambda _run, verb, *words, **_: calls.update({verb: words}),
    )
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.count_pairs", lambda _run: 30_000)
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.evaluate", lambda _run: None)
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.can_rerank", lambda _run: True)
    lxsr_here("run", data, "--work", tmp_path, *flags)
    valid_sizes = []
    for option, value in itertools.pairwise(calls["prepare"]):
        if option == "--valid-size":
            valid_sizes.append(str(value))
    assert valid_sizes == sizes
    assert tmp_path / "checkpoints" / f"checkpoint_{checkpoint}.pt" in calls["export"]
    # fairseq-train keeps the checkpoint with the lowest validation loss unless told otherwise.
    assert "--best-checkpoint-metric" not in calls["train"]


@pytest.mark.parametrize(
    ("pairs", "flags", "has_short_pairs"),
    [
        (5_000, (), True),
        (5_000, ("--no-short-pairs",), False),
        (30_000, (), False),
        (30_000, ("--short-pairs",), True),
        (5_000, ("--recipe", "paper"), False),
        (5_000, ("--from", "lxsr-static"), False),
        (30_000, ("--dictionary", "words"), True),
        (5_000, ("--lang-pair", "en-ja"), False),
        (5_000, ("--lang-pair", "zh_TW-en"), False),
    ],
)
def test_short_pairs_are_chosen_by_the_number_of_pairs(
    pairs, flags, has_short_pairs, tmp_path, monkeypatch, capsys
):
    """The message names the option that turns them off."""
    monkeypatch.chdir(tmp_path)
    for language in ("en", "xx"):
        (tmp_path / f"words.{language}").write_text("word\n")
    run = Run.from_args(parse(["run", "text", "--lang-pair", "en-xx", *flags]))
    monkeypatch.setattr(run, "count_pairs", lambda: pairs)
    run.check()
    run.choose_training()
    assert run.short_pairs == has_short_pairs
    assert ("--no-short-pairs" in capsys.readouterr().err) == (has_short_pairs and not flags)


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (("--short-pairs", "--from", "lxsr-static"), "--from"),
        (("--near-batches", "--from", "lxsr-static"), "--from"),
        (("--near-batches", "--max-epoch", "3"), "--max-epoch"),
        (("--dictionary", "none"), "none.en"),
        (("--dictionary", "none", "--no-short-pairs"), "--no-short-pairs"),
    ],
)
def test_options_that_exclude_each_other_are_refused(flags, value, tmp_path):
    result = lxsr_here("run", "demo", "--work", tmp_path / "work", *flags, check=False)
    refused(result, flags[0], value)
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_first_model_finds_short_pairs_for_a_training_with_near_batches(tmp_path):
    toy.write(tmp_path / "text", toy.sentences(1200))
    dictionary = [(f"{word} indeed", f"{word} vraiment") for word in toy.NOUNS]
    toy.write(tmp_path / "words", dictionary)
    work = tmp_path / "work"
    command = ["run", tmp_path / "text", "--work", work, "--dictionary", tmp_path / "words"]
    command += ["--near-batches", "--max-update", 40, "--encoder-embed-dim", 32]
    command += ["--batch-size", 128, "--cpu", "--num-workers", 0]

    output = lxsr(*command).stdout

    trainings = [line for line in output.splitlines() if line.startswith("fairseq-train ")]
    first, second, near = trainings
    assert re.search(r"--max-update 40\b", first)
    assert re.search(r"--max-update 20\b", second)
    assert re.search(r"--max-update 20\b", near)
    assert "--source-temperature 5" not in first
    assert "--source-temperature 5" in second
    assert "--source-temperature 5" in near
    assert "--batches near" not in first
    assert "--batches near" not in second
    assert "--batches near" in near
    corpus = work / "short" / "corpus" / "en-fr"
    pairs = list(read_parallel(corpus / "train.en", corpus / "train.fr"))
    assert ("red dog", "chien rouge") in pairs
    sources = json.loads((work / "short/data-bin/train.en-fr.sources.json").read_text())
    assert list(sources) == ["text", "short", "dictionary"]
    assert sources["short"] > 200
    assert 0 < sources["dictionary"] <= len(toy.NOUNS)
    assert precision(work / "trained.jsonl") > 50


def test_a_model_that_cannot_read_the_text_is_left_out_of_the_table(tmp_path, monkeypatch, capsys):
    """The trained model must be able to read it."""
    run = Run.from_args(parse(["run", "text", "--work", str(tmp_path), "--from", "old"]))
    tables = []
    monkeypatch.setattr(run, "can_rerank", lambda: False)
    monkeypatch.setattr(run, "_print_scores", tables.append)

    def fail_for(name):
        def evaluate(system, quiet):
            if system.file == name:
                raise SystemExit(2)

        monkeypatch.setattr(run, "_evaluate_system", evaluate)

    fail_for("before")
    run.evaluate()
    assert [system.file for system in tables[0]] == ["package", "trained"]
    assert "old is left out" in capsys.readouterr().err
    fail_for("trained")
    with pytest.raises(SystemExit):
        run.evaluate()


def test_a_wrong_pair_existing_checkpoints_and_missing_text_are_refused(tmp_path):
    refused(lxsr_here("run", "demo", "--lang-pair", "en-de", check=False), "--lang-pair en-de")
    (tmp_path / "checkpoints").mkdir()
    result = lxsr_here("run", "demo", "--work", tmp_path, check=False)
    refused(result, f"{tmp_path} has checkpoints", "--work")
    result = lxsr_here("run", tmp_path / "none", "--work", tmp_path / "work", check=False)
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("words", "data", "fairseq_options"),
    [
        (["--max-update", "5", "x"], "x", ["--max-update", "5"]),
        (["--max-update", "5", "x", "--cpu"], "x", ["--max-update", "5", "--cpu"]),
        (["--cpu", "x", "--max-update", "5"], "x", ["--cpu", "--max-update", "5"]),
        (["--lr=1", "x", "--cpu"], "x", ["--lr=1", "--cpu"]),
        (["x", "--lr", "1", "--cpu"], "x", ["--lr", "1", "--cpu"]),
        (["--recipe", "best", "x", "--lr", "1"], "x", ["--lr", "1"]),
        (["--lr", "1"], "1", ["--lr"]),
    ],
)
def test_options_of_fairseq_may_stand_before_the_data(words, data, fairseq_options):
    for verb in ("run", "train"):
        args = parse([verb, *words])
        data_first(args)
        assert args.data == data
        assert args.others == fairseq_options


@pytest.mark.parametrize("option", ["--no-save", "--save-dir=elsewhere", "--no-last-checkpoints"])
def test_options_that_leave_nothing_to_export_are_refused(tmp_path, option):
    result = lxsr_here("run", "demo", "--work", tmp_path / "work", option, check=False)
    refused(result, option)
    assert not (tmp_path / "work").exists()
