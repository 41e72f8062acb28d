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
from fairseq_lxsr.cli.run import DEMO, SHORT_PAIRS_BELOW, Run, _program, verdict
from fairseq_lxsr.evaluation.score import Outcomes, Score, read_scores
from fairseq_lxsr.files.lines import read_parallel


def test_the_text_of_the_demo_is_small_and_has_a_licence():
    assert DEMO.stat().st_size < 1_000_000
    about = DEMO.with_name("demo.en-fr.txt").read_text(encoding="utf-8")
    assert "tatoeba.org" in about
    assert "manythings.org/anki" in about
    assert "Creative Commons Attribution 2.0" in about


def test_a_run_on_a_python_that_cannot_import_fairseq_is_refused_before_it_prepares_text(
    tmp_path, monkeypatch
):
    # Every supported version of Python is too new then.
    monkeypatch.setattr("fairseq_lxsr.cli.train.TOO_NEW", (3, 11))

    result = lxsr_here("run", "demo", "--work", "work", check=False, folder=tmp_path)

    refused(result, "fairseq")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("is_activated", "program"), [(True, "lxsr"), (False, ".venv/bin/lxsr")])
def test_printed_commands_name_a_program_that_the_shell_finds(
    tmp_path, monkeypatch, is_activated, program
):
    """A virtual environment that is not activated, as after `make demo`, is not in PATH."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "lxsr"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(programs) if is_activated else "")
    monkeypatch.chdir(tmp_path)

    assert _program() == program


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
    """Return P@1, in percent, of the first score of a file."""
    return read_scores(path)[0].values["P@1"]


def test_training_raises_the_precision_by_more_than_20_points(finished_run):
    _, work, _ = finished_run

    trained = precision(work / "trained.jsonl")
    untrained = precision(work / "untrained.jsonl")

    assert trained > untrained + 20


def test_the_last_table_has_the_random_the_packaged_and_the_trained_model_with_reranking(
    finished_run,
):
    _, _, output = finished_run

    # A row has the name of a system and three numbers.
    rows = [line for line in output.splitlines() if re.search(r"(\d+\.\d +){2}\d+\.\d$", line)]
    systems = [re.split("  +", row)[0] for row in rows]
    assert systems == [
        "random weights",
        "lxsr-static",
        "lxsr-static, --rerank 10",
        "trained",
        "trained, --rerank 10",
    ]


def test_a_run_prints_the_difference_from_the_model_of_the_package_and_how_to_search(finished_run):
    _, work, output = finished_run

    assert re.search(r"lxsr-static.*points, 95 % interval [-+]", output)
    assert f"lxsr search --index {work / 'index'} --rerank 10" in output


def scores_with_hits(num_hits):
    """Scores of 100 sentences in each direction, of which `num_hits` have been found."""
    outcomes = Outcomes([1] * num_hits + [0] * (100 - num_hits))
    scores = []
    for direction in ("en->xx", "xx->en"):
        settings = {"metric": "nn-cosine"}
        scores.append(Score("xsr", direction, {}, settings, {"P@1": outcomes}))
    return scores


@pytest.mark.parametrize(
    ("trained_hits", "packaged_hits", "conclusion"),
    [
        (90, 50, "The trained model is better"),
        # A difference of one sentence may be chance.
        (50, 51, "as good without this training"),
        (50, 90, "better without this training"),
    ],
)
def test_the_verdict_says_whether_the_trained_model_is_better(
    trained_hits, packaged_hits, conclusion
):
    trained = scores_with_hits(trained_hits)
    packaged = scores_with_hits(packaged_hits)

    assert conclusion in verdict(trained, packaged)


def test_the_conclusion_of_the_demo_says_that_the_packaged_model_was_trained_on_its_text(tmp_path):
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
    # Neither titles of steps nor the commands and logs of fairseq.
    for word in ("==", "fairseq", "INFO"):
        assert word not in result.stdout
    assert result.stderr == ""
    assert checkpoint.stat().st_mtime_ns == time_of_training


def write_cyrillic_text(prefix, num_pairs):
    """Write pairs of English and a language `xx`, whose letters are unknown to the models."""
    cyrillic = "абвгдежзийклмнопрстуфхцчшщ"
    letters = str.maketrans("abcdefghijklmnopqrstuvwxyz", cyrillic)
    pairs = []
    for source, target in toy.sentences(num_pairs):
        pairs.append((source, target.lower().translate(letters)))
    toy.write(prefix, pairs, ("en", "xx"))


@pytest.fixture(scope="module")
def run_from_model(tmp_path_factory):
    """A run that adds a language to a model: its folder, its command and its output.

    The folder has the text `text`, the model `old` and the work folder `work`.
    """
    folder = tmp_path_factory.mktemp("from")
    small_model.write_folder(folder / "old", num_layers=0, gated=True)
    write_cyrillic_text(folder / "text", 800)
    command = ["run", folder / "text", "--lang-pair", "en-xx", "--work", folder / "work"]
    command += ["--from", folder / "old"]
    command += ["--vocab-size", 60, "--max-update", 3, "--cpu", "--num-workers", 0]
    return folder, command, lxsr(*command).stdout


@pytest.mark.slow
def test_a_language_is_added_to_a_model(run_from_model):
    folder, _, output = run_from_model

    assert f"from {folder / 'old'}" in output
    assert precision(folder / "work" / "trained.jsonl") > 50


@pytest.mark.slow
def test_a_rerun_of_a_run_from_a_model_trains_nothing(run_from_model):
    folder, command, _ = run_from_model
    checkpoint = folder / "work" / "checkpoints" / "checkpoint_best.pt"
    time_of_training = checkpoint.stat().st_mtime_ns

    lxsr(*command)

    assert checkpoint.stat().st_mtime_ns == time_of_training


@pytest.mark.slow
def test_a_run_from_a_model_with_layers_is_refused(run_from_model):
    folder, _, _ = run_from_model
    layers = small_model.write_folder(folder / "layers")
    text = ("run", folder / "text", "--lang-pair", "en-xx")

    result = lxsr(*text, "--work", folder / "other", "--from", layers, check=False)

    assert result.returncode == 2
    assert str(layers) in result.stderr


def name_languages(model, pairs):
    """Write into the configuration of a model which language pairs it was trained on."""
    config = json.loads((model / "config.json").read_text())
    del config["crc32"]
    config["training"] = {"lang_pairs": pairs}
    (model / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def student_run(tmp_path_factory):
    """A run that trains a student of a new language: its folder and its output.

    The folder has the text `text`, the teacher `old`, which reads English, and the work folder
    `work`.
    """
    folder = tmp_path_factory.mktemp("student")
    teacher = small_model.write_folder(folder / "old", num_layers=0, gated=True)
    name_languages(teacher, "en-fr")
    write_cyrillic_text(folder / "text", 1200)
    command = ["run", folder / "text", *STUDENT_OPTIONS, "--work", folder / "work"]
    return folder, lxsr(*command, "--teacher", teacher).stdout


STUDENT_OPTIONS = ["--lang-pair", "en-xx", "--vocab-size", 200, "--max-update", 30]
STUDENT_OPTIONS += ["--cpu", "--num-workers", 0]


@pytest.mark.slow
def test_a_student_learns_a_new_language_and_is_searched_with_its_teacher(student_run):
    folder, output = student_run

    # 200 pairs are held out for the test; by chance, half a percent would be right.
    assert precision(folder / "work" / "trained.jsonl") > 20
    index = folder / "work" / "index"
    assert f"lxsr search --index {index} --model {folder / 'old'} 'Where" in output


@pytest.fixture(scope="module")
def search_of_student(student_run):
    """The command that searches sentences of the student with queries of the teacher."""
    folder, _ = student_run
    text = folder / "work" / "corpus" / "en-xx" / "test.xx"
    index = folder / "index"
    lxsr_here("index", "--model", folder / "work" / "model", "--input", text, "--output", index)
    return ("search", "--index", index, "--model", folder / "old", "--k", 1)


@pytest.mark.slow
def test_queries_of_the_teacher_find_translations_of_the_student(student_run, search_of_student):
    folder, _ = student_run
    corpus = folder / "work" / "corpus" / "en-xx"
    queries = (corpus / "test.en").read_text().splitlines()[:20]
    translations = (corpus / "test.xx").read_text().splitlines()[:20]

    output = lxsr_here(*search_of_student, *queries).stdout

    # A line with the query, and a line with its result.
    results = output.splitlines()[1::2]
    num_hits = 0
    for result, translation in zip(results, translations, strict=True):
        num_hits += result.strip().endswith(f"  {translation}")
    # By chance, 0.1 of the 20 would be right.
    assert num_hits > 2


@pytest.mark.slow
def test_results_of_the_student_cannot_be_reranked_with_the_teacher(search_of_student):
    result = lxsr_here(*search_of_student, "--rerank", 5, "a dog", check=False)

    _, _, index, *_ = search_of_student
    refused(result, "rerank", str(index))


@pytest.mark.slow
def test_a_rerun_of_a_student_without_its_teacher_is_refused(student_run):
    folder, _ = student_run
    command = ["run", folder / "text", *STUDENT_OPTIONS, "--work", folder / "work"]

    assert lxsr(*command, check=False).returncode == 2


@pytest.mark.slow
def test_a_model_that_reads_both_languages_is_refused_as_a_teacher(student_run):
    """It can be trained further, with --from."""
    folder, _ = student_run
    model = folder / "work" / "model"
    command = ("run", folder / "text", "--lang-pair", "en-xx", "--teacher", model)

    refused(lxsr_here(*command, check=False), f"--teacher {model} ", "en-xx", f"--from {model}")


@pytest.fixture
def model_without_training(tmp_path):
    """A model of random weights, whose folder records no training, and so no languages."""
    return small_model.write_folder(tmp_path / "old", num_layers=0, gated=True)


def test_a_teacher_whose_languages_are_unknown_is_refused(tmp_path, model_without_training):
    teacher = model_without_training
    # It is refused before the text is read.
    missing_text = tmp_path / "text"
    command = ("run", missing_text, "--lang-pair", "en-xx", "--teacher", teacher)

    result = lxsr_here(*command, check=False)

    refused(result, f"--teacher {teacher} ", "languages")


def test_a_teacher_and_a_model_to_train_further_exclude_each_other(
    tmp_path, model_without_training
):
    model = model_without_training
    # They are refused before the text is read.
    missing_text = tmp_path / "text"
    command = ("run", missing_text, "--teacher", model, "--from", model)

    result = lxsr_here(*command, check=False)

    refused(result, "--from", "--teacher")


@pytest.fixture
def started_verbs(monkeypatch):
    """The words of each verb that a run starts, by the verb; the run does nothing itself."""
    verbs = {}
    monkeypatch.setattr(
        "fairseq_lxsr.cli.run.Run._lxsr",
        lambda _run, verb, *words, **_: verbs.update({verb: words}),
    )
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.count_pairs", lambda _run: 30_000)
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.evaluate", lambda _run: None)
    monkeypatch.setattr("fairseq_lxsr.cli.run.Run.can_rerank", lambda _run: True)
    return verbs


def valid_sizes_of(words) -> list[str]:
    """Return the values of --valid-size, of which the last one counts."""
    sizes = []
    for option, value in itertools.pairwise(words):
        if option == "--valid-size":
            sizes.append(str(value))
    return sizes


# The demo holds out 500 pairs; for other text, `lxsr prepare` has a default.
@pytest.mark.parametrize(("data", "sizes"), [("text", []), ("demo", ["500"])])
def test_a_run_holds_pairs_out_and_exports_the_best_checkpoint(
    data, sizes, tmp_path, started_verbs
):
    lxsr_here("run", data, "--work", tmp_path)

    assert valid_sizes_of(started_verbs["prepare"]) == sizes
    assert tmp_path / "checkpoints" / "checkpoint_best.pt" in started_verbs["export"]
    # fairseq-train keeps the checkpoint with the lowest validation loss unless told otherwise.
    assert "--best-checkpoint-metric" not in started_verbs["train"]


@pytest.mark.parametrize(("data", "sizes"), [("text", ["0"]), ("demo", ["500", "0"])])
def test_a_run_without_validation_holds_no_pairs_out_and_exports_the_last_checkpoint(
    data, sizes, tmp_path, started_verbs
):
    lxsr_here("run", data, "--work", tmp_path, "--disable-validation")

    assert valid_sizes_of(started_verbs["prepare"]) == sizes
    assert tmp_path / "checkpoints" / "checkpoint_last.pt" in started_verbs["export"]
    assert "--best-checkpoint-metric" not in started_verbs["train"]


FEW_PAIRS = SHORT_PAIRS_BELOW // 4
MANY_PAIRS = SHORT_PAIRS_BELOW * 2


@pytest.fixture
def prepared_run(tmp_path, monkeypatch):
    """A function that makes a run with options and a number of pairs, and lets it choose."""
    monkeypatch.chdir(tmp_path)
    for language in ("en", "xx"):
        (tmp_path / f"words.{language}").write_text("word\n")

    def make_run(num_pairs, *options) -> Run:
        run = Run.from_args(parse(["run", "text", "--lang-pair", "en-xx", *options]))
        monkeypatch.setattr(run, "count_pairs", lambda: num_pairs)
        run.check()
        run.choose_training()
        return run

    return make_run


def test_a_run_of_few_pairs_uses_short_pairs_and_names_the_option_against_them(
    prepared_run, capsys
):
    assert prepared_run(FEW_PAIRS).short_pairs
    assert "--no-short-pairs" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--short-pairs",), ("--dictionary", "words")])
def test_a_run_of_many_pairs_uses_short_pairs_only_if_asked_for(prepared_run, options, capsys):
    assert not prepared_run(MANY_PAIRS).short_pairs
    assert prepared_run(MANY_PAIRS, *options).short_pairs
    assert "--no-short-pairs" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--no-short-pairs",),
        ("--recipe", "paper"),
        ("--from", "lxsr-static"),
        # Languages without spaces between words.
        ("--lang-pair", "en-ja"),
        ("--lang-pair", "zh_TW-en"),
    ],
    ids=["no", "recipe", "from", "ja", "zh"],
)
def test_a_run_of_few_pairs_uses_no_short_pairs_with_these_options(prepared_run, options, capsys):
    assert not prepared_run(FEW_PAIRS, *options).short_pairs
    assert "--no-short-pairs" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        # Options that exclude each other.
        (("--short-pairs", "--from", "lxsr-static"), "--from"),
        (("--near-batches", "--from", "lxsr-static"), "--from"),
        (("--near-batches", "--max-epoch", "3"), "--max-epoch"),
        (("--dictionary", "none", "--no-short-pairs"), "--no-short-pairs"),
        # A missing file.
        (("--dictionary", "none"), "none.en"),
    ],
)
def test_options_of_short_pairs_that_cannot_be_used_are_refused_before_any_work(
    options, fragment, tmp_path
):
    result = lxsr_here("run", "demo", "--work", tmp_path / "work", *options, check=False)

    refused(result, options[0], fragment)
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

    # The first model is trained on the text; the second also on short pairs, half of its updates
    # with near batches.
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
    # The first model has aligned the words of the text to short pairs.
    corpus = work / "short" / "corpus" / "en-fr"
    pairs = list(read_parallel(corpus / "train.en", corpus / "train.fr"))
    assert ("red dog", "chien rouge") in pairs
    # How many pairs are of each source; some words of the dictionary may be held out.
    sources = json.loads((work / "short/data-bin/train.en-fr.sources.json").read_text())
    assert list(sources) == ["text", "short", "dictionary"]
    assert sources["short"] > 200
    assert 0 < sources["dictionary"] <= len(dictionary)
    assert precision(work / "trained.jsonl") > 50


@pytest.fixture
def evaluated_run(tmp_path, monkeypatch):
    """A function that evaluates a run from the model `old` of which one system fails.

    It returns the names of the systems in the table.
    """

    def evaluate_with_failure_of(failing) -> list[str]:
        run = Run.from_args(parse(["run", "text", "--work", str(tmp_path), "--from", "old"]))
        tables = []

        def evaluate_system(system, quiet):
            if system.file == failing:
                raise SystemExit(2)

        monkeypatch.setattr(run, "can_rerank", lambda: False)
        monkeypatch.setattr(run, "_print_scores", tables.append)
        monkeypatch.setattr(run, "_evaluate_system", evaluate_system)
        run.evaluate()
        return [system.file for system in tables[0]]

    return evaluate_with_failure_of


def test_the_old_model_is_left_out_of_the_table_if_it_cannot_read_the_text(evaluated_run, capsys):
    assert evaluated_run("before") == ["package", "trained"]
    assert "old is left out" in capsys.readouterr().err


def test_a_run_ends_with_an_error_if_the_trained_model_cannot_read_the_text(evaluated_run):
    with pytest.raises(SystemExit):
        evaluated_run("trained")


def test_another_language_pair_than_that_of_the_demo_is_refused():
    result = lxsr_here("run", "demo", "--lang-pair", "en-de", check=False)

    refused(result, "--lang-pair en-de")


def test_a_work_folder_with_checkpoints_of_another_command_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()

    result = lxsr_here("run", "demo", "--work", tmp_path, check=False)

    refused(result, f"{tmp_path} has checkpoints", "--work")


def test_a_run_without_its_text_ends_with_status_2(tmp_path):
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
        # Without another word, the value of the option is the data.
        (["--lr", "1"], "1", ["--lr"]),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("verb", ["run", "train"])
def test_options_of_fairseq_may_stand_before_or_after_the_data(verb, words, data, fairseq_options):
    args = parse([verb, *words])
    data_first(args)

    assert args.data == data
    assert args.others == fairseq_options


@pytest.mark.parametrize("option", ["--no-save", "--save-dir=elsewhere", "--no-last-checkpoints"])
def test_options_that_leave_no_checkpoint_to_export_are_refused(tmp_path, option):
    result = lxsr_here("run", "demo", "--work", tmp_path / "work", option, check=False)

    refused(result, option)
    assert not (tmp_path / "work").exists()
