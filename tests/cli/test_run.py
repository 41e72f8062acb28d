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


def test_the_text_of_the_demo_is_small_and_says_its_licence():
    assert DEMO.stat().st_size < 1_000_000
    about = DEMO.with_name("demo.en-fr.txt").read_text(encoding="utf-8")
    assert all(
        word in about
        for word in ("tatoeba.org", "manythings.org/anki", "Creative Commons Attribution 2.0")
    )


def test_without_fairseq_nothing_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.cli.train.TOO_NEW", (3, 11))
    refused(lxsr_here("run", "demo", "--work", "work", check=False, folder=tmp_path), "fairseq")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("activated", [True, False])
def test_printed_commands_can_be_typed(tmp_path, monkeypatch, activated):
    """Without the environment of Python on the path, as after `make demo`."""
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
def finished(tmp_path_factory):
    """A command of a run, its work folder and its output."""
    folder = tmp_path_factory.mktemp("run")
    toy.write(folder / "text", toy.sentences(1200), ("en", "xx"))
    words = ["run", folder / "text", "--lang-pair", "en-xx", "--work", folder / "work"]
    words += ["--vocab-size", 200, "--max-update", 8, "--encoder-embed-dim", 32]
    words += ["--no-short-pairs", "--cpu", "--num-workers", 0]
    return words, folder / "work", lxsr(*words).stdout


def test_from_text_to_scores(finished):
    _, work, said = finished
    assert f"lxsr search --index {work / 'index'}" in said
    before, after = (read_scores(work / f"{name}.jsonl") for name in ("untrained", "trained"))
    assert after[0].values["P@1"] > before[0].values["P@1"] + 20


def test_the_last_table_compares_with_the_model_of_the_package(finished):
    """Both are also re-ranked; one sentence says which is better."""
    _, work, said = finished
    table = [line for line in said.splitlines() if re.search(r"(\d+\.\d +){2}\d+\.\d$", line)]
    assert [re.split("  +", line)[0] for line in table] == [
        "random weights",
        "lxsr-static",
        "lxsr-static, --rerank 10",
        "trained",
        "trained, --rerank 10",
    ]
    assert re.search(r"lxsr-static.*points, 95 % interval [-+]", said)
    assert f"lxsr search --index {work / 'index'} --rerank 10" in said


@pytest.mark.parametrize(
    ("trained", "packaged", "said"),
    [
        (90, 50, "The trained model is better"),
        (50, 51, "as good without this training"),
        (50, 90, "better without this training"),
    ],
)
def test_it_is_said_when_the_packaged_model_is_as_good(trained, packaged, said):
    def scores(right):
        hits = Outcomes([1] * right + [0] * (100 - right))
        names = ("en->xx", "xx->en")
        settings = {"metric": "nn-cosine"}
        return [Score("xsr", name, {}, settings, {"P@1": hits}) for name in names]

    assert said in verdict(scores(trained), scores(packaged))


def test_the_packaged_model_is_not_judged_on_text_that_it_was_trained_on(tmp_path):
    """The sentences of the demo are among its training text."""
    run = Run.from_args(parse(["run", "demo", "--work", str(tmp_path)]))
    assert "lxsr-static was trained on" in run.conclusion([], [])


@pytest.mark.slow
def test_a_quiet_rerun_trains_nothing_and_prints_scores_alone(finished):
    """In processes that import everything themselves, because imports print warnings too."""
    words, work, _ = finished
    checkpoint = work / "checkpoints" / "checkpoint_best.pt"
    written = checkpoint.stat().st_mtime_ns
    done = lxsr(*words, "--quiet", preloaded=())
    assert "lxsr-static, --rerank 10" in done.stdout
    assert done.stderr == ""
    assert not [word for word in ("==", "fairseq", "INFO") if word in done.stdout]
    assert checkpoint.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_language_is_added_to_a_model_and_again(tmp_path):
    """Its letters are unknown to the model; a rerun trains nothing."""
    small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    letters = {ord("a") + number: 0x430 + number for number in range(26)}
    pairs = [(one, two.lower().translate(letters)) for one, two in toy.sentences(800)]
    toy.write(tmp_path / "text", pairs, ("en", "xx"))
    words = [
        "run",
        tmp_path / "text",
        "--lang-pair",
        "en-xx",
        "--work",
        tmp_path / "work",
        "--from",
        tmp_path / "old",
    ]
    words += ["--vocab-size", 60, "--max-update", 3, "--cpu", "--num-workers", 0]
    said = lxsr(*words).stdout
    assert f"from {tmp_path / 'old'}" in said
    assert read_scores(tmp_path / "work" / "trained.jsonl")[0].values["P@1"] > 50
    made = (tmp_path / "work" / "checkpoints" / "checkpoint_best.pt").stat().st_mtime_ns
    lxsr(*words)
    assert (tmp_path / "work" / "checkpoints" / "checkpoint_best.pt").stat().st_mtime_ns == made
    layers = small_model.write_folder(tmp_path / "layers")
    words = (
        "run",
        tmp_path / "text",
        "--lang-pair",
        "en-xx",
        "--work",
        tmp_path / "other",
        "--from",
        layers,
    )
    done = lxsr(*words, check=False)
    assert done.returncode == 2
    assert str(layers) in done.stderr


@pytest.mark.slow
def test_a_model_of_one_more_language_in_the_space_of_its_teacher(tmp_path):
    """Text of the new language is found by queries that the teacher encodes; a rerun without it is
    refused.
    """
    teacher = small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)
    nameless = lxsr_here("run", "text", "--lang-pair", "en-xx", "--teacher", teacher, check=False)
    refused(nameless, f"--teacher {teacher} ")
    config = json.loads((teacher / "config.json").read_text())
    del config["crc32"]
    (teacher / "config.json").write_text(json.dumps(config | {"training": {"lang_pairs": "en-fr"}}))
    letters = {ord("a") + number: 0x430 + number for number in range(26)}
    toy.write(
        tmp_path / "text",
        [(one, two.lower().translate(letters)) for one, two in toy.sentences(1200)],
        ("en", "xx"),
    )
    words = [
        "run",
        tmp_path / "text",
        "--lang-pair",
        "en-xx",
        "--work",
        tmp_path / "work",
        "--teacher",
        teacher,
    ]
    words += ["--vocab-size", 200, "--max-update", 30, "--cpu", "--num-workers", 0]
    said = lxsr(*words).stdout
    model, index = tmp_path / "work" / "model", tmp_path / "index"
    assert f"lxsr search --index {tmp_path / 'work' / 'index'} --model {teacher} 'Where" in said
    assert read_scores(tmp_path / "work" / "trained.jsonl")[0].values["P@1"] > 20  # chance is 1
    english, new = (
        (tmp_path / f"work/corpus/en-xx/test.{side}").read_text().splitlines()
        for side in ("en", "xx")
    )
    lxsr_here(
        "index",
        "--model",
        model,
        "--input",
        tmp_path / "work/corpus/en-xx/test.xx",
        "--output",
        index,
    )
    found = lxsr_here(
        "search", "--index", index, "--model", teacher, "--k", 1, *english[:20]
    ).stdout.splitlines()
    assert (
        sum(
            line.strip().endswith(f"  {text}") for line, text in zip(found[1::2], new, strict=False)
        )
        > 2
    )
    again = lxsr_here(
        "search",
        "--index",
        index,
        "--model",
        teacher,
        "--rerank",
        5,
        "--k",
        1,
        english[0],
        check=False,
    )
    refused(again, "rerank", str(index))
    others = lxsr(*words[:6], *words[8:], check=False)
    assert others.returncode == 2
    trained = lxsr_here(
        "run", tmp_path / "text", "--lang-pair", "en-xx", "--teacher", model, check=False
    )
    refused(trained, f"--teacher {model} ", "en-xx", f"--from {model}")
    both = lxsr_here("run", tmp_path / "text", "--teacher", teacher, "--from", teacher, check=False)
    refused(both, "--from", "--teacher")


@pytest.mark.parametrize(
    ("data", "flags", "sizes", "checkpoint"),
    [
        ("text", (), [], "best"),
        ("text", ("--disable-validation",), ["0"], "last"),
        ("demo", (), ["500"], "best"),
        ("demo", ("--disable-validation",), ["500", "0"], "last"),
    ],
)
def test_without_validation_all_text_trains_and_the_last_checkpoint_is_taken(
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
    given = calls["prepare"]
    assert [
        str(value) for option, value in itertools.pairwise(given) if option == "--valid-size"
    ] == sizes
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
    """What is chosen is said with the option that turns it off."""
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
def test_training_that_cannot_be_is_refused(flags, value, tmp_path):
    done = lxsr_here("run", "demo", "--work", tmp_path / "work", *flags, check=False)
    refused(done, flags[0], value)
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_short_pairs_are_cut_by_a_first_model_and_near_batches_follow(tmp_path):
    """The text of the second training has three sources, and its second half near batches."""
    toy.write(tmp_path / "text", toy.sentences(1200))
    toy.write(tmp_path / "words", [(f"{word} indeed", f"{word} vraiment") for word in toy.NOUNS])
    work = tmp_path / "work"
    words = ["run", tmp_path / "text", "--work", work, "--dictionary", tmp_path / "words"]
    words += ["--near-batches", "--max-update", 40, "--encoder-embed-dim", 32]
    words += ["--batch-size", 128, "--cpu", "--num-workers", 0]
    said = lxsr(*words).stdout
    commands = [line for line in said.splitlines() if line.startswith("fairseq-train ")]
    assert ["--batches near" in command for command in commands] == [False, False, True]
    assert ["--source-temperature 5" in command for command in commands] == [False, True, True]
    updates = [re.search(r"--max-update (\d+)", command)[1] for command in commands]
    assert updates == ["40", "20", "20"]
    corpus = work / "short" / "corpus" / "en-fr"
    pairs = list(read_parallel(corpus / "train.en", corpus / "train.fr"))
    assert ("red dog", "chien rouge") in pairs
    sources = json.loads((work / "short/data-bin/train.en-fr.sources.json").read_text())
    assert list(sources) == ["text", "short", "dictionary"]
    assert sources["short"] > 200
    assert 0 < sources["dictionary"] <= len(toy.NOUNS)
    assert read_scores(work / "trained.jsonl")[0].values["P@1"] > 50


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


def test_what_cannot_be_run_is_refused(tmp_path):
    refused(lxsr_here("run", "demo", "--lang-pair", "en-de", check=False), "--lang-pair en-de")
    (tmp_path / "checkpoints").mkdir()
    refused(
        lxsr_here("run", "demo", "--work", tmp_path, check=False),
        f"{tmp_path} has checkpoints",
        "--work",
    )
    none = lxsr_here("run", tmp_path / "none", "--work", tmp_path / "work", check=False)
    assert none.returncode == 2


@pytest.mark.parametrize(
    ("words", "data", "others"),
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
def test_options_of_fairseq_may_stand_before_the_data(words, data, others):
    for verb in ("run", "train"):
        args = parse([verb, *words])
        data_first(args)
        assert (args.data, args.others) == (data, others)


@pytest.mark.parametrize("option", ["--no-save", "--save-dir=elsewhere", "--no-last-checkpoints"])
def test_options_that_leave_nothing_to_export_are_refused(tmp_path, option):
    done = lxsr_here("run", "demo", "--work", tmp_path / "work", option, check=False)
    refused(done, option)
    assert not (tmp_path / "work").exists()
