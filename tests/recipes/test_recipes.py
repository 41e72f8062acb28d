"""Recipes: their options in fairseq-train, options that replace them, schedules, and `lxsr train`."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, case, lxsr, lxsr_here, refused, train_here
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.fixed_schedule import FixedLRSchedule
from fairseq_options import read_by_fairseq

import fairseq_lxsr
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.recipes import FOLDER, Recipe, names, override, read_recipe, train_command
from fairseq_lxsr.text.data_folder import count_pairs

# It has 49 pairs.
DATA = ROOT / "tests" / "golden" / "compatibility" / "data"


class Recorder(FairseqOptimizer):
    """An optimizer without weights that records the learning rate."""

    rate = 0.0

    def __init__(self):
        """Without the parameters that fairseq passes."""

    def set_lr(self, lr):
        self.rate = lr

    def get_lr(self):
        return self.rate


def is_same(value, expected) -> bool:
    """Whether a value of fairseq is that of a recipe, which may be a number in a list or a tuple."""
    text = str(value).strip("[]")
    try:
        return text in (str(expected), f"({expected})") or float(text) == float(expected)
    except ValueError:
        return False


def print_command(*arguments) -> list[str]:
    """The words of the command that `lxsr train --print` prints."""
    return shlex.split(lxsr_here("train", DATA, *arguments, "--print").stdout)


def value_of(command, option):
    """The value of an option that is in the command once."""
    assert command.count(option) == 1, (option, command)
    return command[command.index(option) + 1]


def test_fairseq_reads_every_option_of_a_recipe():
    for name in names():
        with case(name):
            recipe = read_recipe(name)
            assert recipe.description
            assert recipe.source
            options = vars(read_by_fairseq(train_command(recipe, str(DATA), ["--cpu"])))
            for option, value in recipe.options.items():
                assert is_same(options[option.replace("-", "_")], value), (option, value)
            # The best epoch of LASER and T-LASER is chosen after the training.
            is_laser = options["arch"] in ("laser_1", "laser_5", "laser_6", "tlaser_base")
            assert options["no_epoch_checkpoints"] == (not is_laser)


def test_every_file_without_an_underscore_is_a_recipe():
    assert {"best", "paper", "laser_1", "tlaser", "ctlaser"} <= set(names())
    files = {path.stem for path in FOLDER.glob("*.yaml")}
    assert {name for name in files if not name.startswith("_")} == set(names())


def test_recipes_are_listed_with_a_description():
    lines = lxsr_here("recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == names()
    for line in lines:
        assert len(line.split()) > 2
    result = lxsr_here("train", DATA, "--recipe", "papr", check=False)
    refused(result, "--recipe 'papr'", ", ".join(names()))


def test_paper_has_the_settings_of_mao_et_al():
    recipe = read_recipe("paper")
    settings = {
        "arch": "lxsr_base",
        "objective": "ugt",
        "target-weights": "types",
        "batch-size": 128,
        "lr": 0.001,
        "gen-weight": 1,
        "align-weight": 2,
        "sim-weight": 2,
        "max-positions": 200,
        "dropout": 0.1,
        "max-epoch": 12,
    }
    assert recipe.options.items() >= settings.items()
    warmup_epochs = recipe.warmup * 12
    assert warmup_epochs == 3
    recipe_of_italian = read_recipe("paper_it")
    assert recipe_of_italian.options["max-epoch"] == 30
    warmup_epochs = recipe_of_italian.warmup * 30
    assert warmup_epochs == 6


def test_ctlaser_has_the_settings_of_li_and_mak():
    settings = {
        "arch": "tlaser_base",
        "lr": 0.0005,
        "dropout": 0.3,
        "label-smoothing": 0.1,
        "warmup-updates": 4000,
        "constraint": "norm",
        "constraint-weight": 0.25,
        "negative-weight": 0.5,
        "negatives": 20,
        "max-epoch": 20,
        "no-epoch-checkpoints": False,
    }
    assert read_recipe("ctlaser").options.items() >= settings.items()


# The settings of all recipes of the code of Li and Mak.
SYMBOLS = {"encoder-append-eos": True, "target-bos": True}
LASER_SIZES = {"encoder-embed-dim": 512, "decoder-embed-dim": 512, "decoder-input-feeding": True}


def test_laser_released_has_the_settings_of_the_released_code():
    settings = {**SYMBOLS, **LASER_SIZES, "label-smoothing": 0, "lr": 0.001}
    assert read_recipe("laser_1_released").options.items() >= settings.items()
    settings = {**SYMBOLS, **LASER_SIZES, "arch": "laser_6", "constraint": "norm_of_mean"}
    assert read_recipe("claser_6_released").options.items() >= settings.items()


def test_ctlaser_released_has_the_settings_of_the_released_script():
    """The script is new_vastai_0801_bigt2t_noshr_5lan_2xtitan_tfm.bash."""
    options = read_recipe("ctlaser_released").options
    settings = {
        **SYMBOLS,
        "lr": 0.0005,
        "warmup-updates": 4000,
        "warmup-init-lr": "1e-7",
        "label-smoothing": 0.1,
        "dropout": 0.3,
        "weight-decay": "1e-4",
        "adam-betas": "(0.9, 0.98)",
        "max-epoch": 50,
        "max-positions": 2000,
        "constraint": "norm_of_mean",
        "constraint-weight": 0.25,
        "negative-weight": 0.5,
        "negatives": 20,
        "decoder-lang-at": "memory",
        "init-weights": "released",
    }
    assert options.items() >= settings.items()
    assert options["max-tokens"] * options["update-freq"] == 128_000


@pytest.mark.parametrize(
    ("options", "expected", "absent"),
    [
        ([], ["--word-dropout 0.1", "--no-epoch-checkpoints"], []),
        (["--word-dropout", "0"], ["--word-dropout 0"], ["word-dropout 0.1"]),
        (["--word-dropout=0.3", "--fp16"], ["--word-dropout 0.3", "--fp16"], []),
        (["--lr", "0.1", "--lr", "0.2"], ["--lr 0.2"], ["--lr 0.1"]),
        (["--adam-betas", "(0.9, 0.99)"], ["--adam-betas (0.9, 0.99)"], []),
        (["--clip-norm", "-1"], ["--clip-norm -1"], []),
        (["--no-word-dropout"], [], ["--word-dropout"]),
        (["--no-no-epoch-checkpoints"], [], ["epoch-checkpoints"]),
        (
            ["--no-word-dropout", "--word-dropout", "0.2"],
            ["--word-dropout 0.2"],
            ["--no-word-dropout", "dropout 0.1"],
        ),
        (["--no-save"], ["--no-save"], []),
        (["--max-sentences", "64"], ["--batch-size 64"], ["1024", "max-sentences"]),
        (["--max-epoch", "3"], ["--max-epoch 3"], ["--max-update"]),
        (
            ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", "500"],
            ["--warmup-updates 500"],
            ["--warmup-updates 2", "--total-num-update"],
        ),
    ],
)
def test_given_options_replace_those_of_the_recipe(options, expected, absent):
    words = print_command("--recipe", "best", "--cpu", *options)
    assert words[:2] == ["fairseq-train", str(DATA)]
    assert value_of(words, "--user-dir") == str(Path(fairseq_lxsr.__file__).parent.absolute())
    command = " ".join(words)
    for text in expected:
        assert f" {text}" in command
    for text in absent:
        assert text not in command


@pytest.mark.parametrize(
    ("recipe", "options", "total", "warmup"),
    [
        ("best", "", 1000, 100),
        ("best", "--max-update 30", 30, 3),
        ("best", "--max-update 30 --warmup-updates 7", 30, 7),
        ("best", "--max-update 30 --total-num-update 200", 200, 20),
        ("best", "--max-epoch 20 --batch-size 10", 20 * 5, 10),
        ("best", "--max-epoch 20 --max-update 15", 15, 1),
        ("paper_small", "--lr-scheduler polynomial_decay --no-warmup-updates", 1500, 150),
    ],
)
def test_the_schedule_of_the_learning_rate_follows_the_length(recipe, options, total, warmup):
    command = print_command("--recipe", recipe, "--cpu", *options.split())
    assert value_of(command, "--total-num-update") == str(total)
    assert value_of(command, "--warmup-updates") == str(warmup)


@pytest.mark.parametrize(
    ("recipe", "options", "warmup"),
    [
        ("paper", "", 3),
        ("paper", "--batch-size 10", 15),
        ("paper", "--batch-size 10 --drop-last", 12),
        ("paper", "--batch-size 10 --update-freq 2", 9),
        ("paper", "--batch-size 10 --skip-remainder-batch", 12),
        ("paper", "--batch-size 10 --update-freq 3 --skip-remainder-batch", 3),
        ("paper", "--batch-size 10 --lang-pairs fr-en", 15),
        ("paper", "--max-update 100", 25),
        ("paper_it", "--batch-size 49", 6),
        ("paper", "--max-update 100 --warmup-updates 7", 7),
    ],
)
def test_the_learning_rate_of_the_paper_rises_for_three_epochs_and_is_then_constant(
    recipe, options, warmup
):
    """No version of the paper says that it falls after the warm-up."""
    command = train_command(read_recipe(recipe), str(DATA), ["--cpu", *options.split()])
    schedule = FixedLRSchedule(read_by_fairseq(command), Recorder())
    rates = [schedule.step_update(update) for update in range(4 * warmup)]
    rising = [1e-3 * (update + 1) / warmup for update in range(warmup)]
    assert rates == pytest.approx([*rising, *[1e-3] * (3 * warmup)])


def set_number_of_pairs(monkeypatch, pairs):
    def count_pairs(folder, languages):
        return {"en-fr": pairs}

    monkeypatch.setattr("fairseq_lxsr.recipes.count_pairs", count_pairs)


@pytest.mark.parametrize(
    ("pairs", "updates", "interval"),
    [
        (49, 1000, 100),
        (5_000, 1000, 20),
        (17_000, 1000, 5),
        (50_000, 1350, 2),
        (170_000, 2500, 1),
        (10**6, 10_000, 1),
    ],
)
def test_the_number_of_pairs_decides_the_length_and_the_validations(
    monkeypatch, pairs, updates, interval
):
    set_number_of_pairs(monkeypatch, pairs)
    command = train_command(read_recipe("best"), "data", ["--cpu"])
    assert value_of(command, "--max-update") == str(updates)
    assert value_of(command, "--validate-interval") == str(interval)
    assert value_of(command, "--save-interval") == str(interval)
    options = ["--cpu", "--max-update", str(10 * updates)]
    command = train_command(read_recipe("best"), "data", options)
    assert value_of(command, "--max-update") == str(10 * updates)
    assert int(value_of(command, "--save-interval")) >= 10 * interval


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ("--max-update 7", {"interval": "1", "interval-updates": "1"}),
        ("--validate-interval 3", {"interval": "3"}),
        ("--validate-interval-updates 50", {"interval": "20", "interval-updates": "50"}),
        ("--validate-interval 3 --save-interval 4", {"interval": "4"}),
        ("--update-freq 1,2", {"interval": "33"}),
    ],
)
def test_every_validated_checkpoint_is_saved(monkeypatch, options, saved):
    set_number_of_pairs(monkeypatch, 5_000)
    command = train_command(read_recipe("best"), "data", ["--cpu", *options.split()])
    for unit in ("interval", "interval-updates"):
        if unit in saved:
            assert value_of(command, f"--save-{unit}") == saved[unit]
        else:
            assert f"--save-{unit}" not in command


@pytest.mark.parametrize("pairs", [12_000_000, 10**8])
def test_a_large_text_is_validated_every_1000_updates(monkeypatch, pairs):
    """It is read less than ten times, so that validation after epochs would be too rare."""
    set_number_of_pairs(monkeypatch, pairs)
    command = train_command(read_recipe("best"), "data", ["--cpu"])
    assert value_of(command, "--save-interval-updates") == "1000"
    assert value_of(command, "--validate-interval-updates") == "1000"
    assert value_of(command, "--keep-interval-updates") == "1"


def test_an_epoch_is_one_shard(monkeypatch):
    """10,000 updates are 102 epochs of 98, with a validation after every tenth."""
    set_number_of_pairs(monkeypatch, 10**5)
    command = train_command(read_recipe("best"), ":".join(["data"] * 10), ["--cpu"])
    assert value_of(command, "--save-interval") == "10"


def test_the_length_grows_with_the_number_of_pairs(monkeypatch):
    lengths = []
    for pairs in (20_000, 40_000, 100_000, 400_000, 10**7):
        set_number_of_pairs(monkeypatch, pairs)
        command = train_command(read_recipe("best"), "data", ["--cpu"])
        lengths.append(int(value_of(command, "--max-update")))
    assert lengths == sorted(set(lengths))
    assert lengths[0] > 1000
    assert lengths[-1] == 10_000


def test_the_chosen_length_is_reported():
    message = lxsr_here("train", DATA, "--print", "--recipe", "best", "--cpu").stderr
    assert re.search(r"\b49 .*\b1,000 .*\b100\b", message)


@pytest.mark.parametrize(
    "option", ["--max-tokens 320", "--sampling-temperature 5", "--source-temperature inf"]
)
def test_an_option_that_makes_the_number_of_updates_unknown_is_refused(option):
    recipe = read_recipe("paper")
    with pytest.raises(InputError, match=f"--max-epoch .*{option}.*--max-update"):
        train_command(recipe, str(DATA), option.split())
    assert "30" in train_command(recipe, str(DATA), ["--max-update", "30", *option.split()])


@pytest.mark.parametrize("device", [[], ["--cpu"]])
def test_workers_and_shards_change_the_number_of_updates(device):
    options = ["--batch-size", "10", "--distributed-world-size", "4", *device]
    command = train_command(read_recipe("paper"), f"{DATA}:{DATA}", options)
    # 5 batches for 4 workers are 2 updates, and 3 epochs of them the warm-up.
    assert value_of(command, "--warmup-updates") == "6"


@pytest.mark.parametrize(
    ("name", "milestone", "epochs"), [("released", 3, 12), ("released_it", 6, 30)]
)
def test_the_learning_rate_of_the_released_code_at_every_update(name, milestone, epochs):
    """It rises until update 1,999, and MultiStepLR divides it by ten from the milestone on."""
    options = read_by_fairseq(train_command(read_recipe(name), str(DATA), ["--cpu"]))
    assert options.max_epoch == epochs
    schedule = FixedLRSchedule(options, Recorder())
    update = 0
    for epoch in range(epochs):
        schedule.step_begin_epoch(epoch + 1)
        for _ in range(400):
            schedule.step_update(update)
            warmup = min(1, (update + 1) / 1999)
            decay = 0.1 if epoch >= milestone else 1
            assert schedule.optimizer.rate == 1e-3 * decay * warmup, update
            update += 1


def test_the_released_code_differs_from_the_paper_in_these_options():
    paper = read_recipe("paper").options
    released = read_recipe("released").options
    changes = {name for name, value in released.items() if value != paper.get(name)}
    assert changes == {
        "amsgrad",
        "attention-dropout",
        "batches",
        "decoupled-weight-decay",
        "drop-last",
        "init-weights",
        "layer-norm-eps",
        "lr",
        "sim-reduction",
        "target-ids",
        "target-overlap",
        "warmup-updates",
    }
    command = print_command("--recipe", "released", "--cpu")
    assert value_of(command, "--lr") == "0.001, 0.001, 0.001, 0.0001"
    assert "--total-num-update" not in command


def test_recipes_may_set_the_rate_of_embeddings_and_the_first_branches():
    for name in ("paper", "released"):
        assert not {"embed-lr-scale", "init-branches"} & read_recipe(name).options.keys(), name
    recipe = read_recipe("paper")
    options = override(recipe.options, {"embed-lr-scale": 10, "init-branches": "zero"})
    command = train_command(replace(recipe, options=options), str(DATA), ["--cpu"])
    options_of_fairseq = read_by_fairseq(command)
    assert options_of_fairseq.embed_lr_scale == 10
    assert str(options_of_fairseq.init_branches) == "zero"


@pytest.mark.slow
def test_the_recipe_of_the_released_code_trains(tmp_path, toy_work):
    """Two updates with all its options, and a validation."""
    data = toy_work / "data-bin"
    options = ["--arch", "lxsr_tiny", "--max-update", "2"]
    _, *flags = train_command(read_recipe("released"), str(data), options)
    result = train_here(data, tmp_path, *flags, optimizer="torch_adam")
    assert not result.returncode, result.stderr[-2000:]
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["cfg"]["model"]["layer_norm_eps"] == 1e-12
    assert state["last_optimizer_state"]["param_groups"][0]["amsgrad"]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--recipe", "papr"), ("--recipe 'papr'",)),
        (("--recipe", "_common"), ("--recipe '_common'",)),
        (("--recipe", "../recipes/best"), ("../recipes/best",)),
        (("--recipe", "best", "other"), ("'other'",)),
        (("--recipe", "best", "--max-update", "many"), ("--max-update 'many'",)),
        (("--recipe", "best", "--max-update", "0"), ("--max-update 0",)),
        (("--recipe", "best", "--no-max-update"), ("--max-update", "--max-epoch")),
        (
            ("--recipe", "paper", "--no-batch-size", "--max-tokens", "900"),
            ("--max-epoch", "--batch-size"),
        ),
        (("--recipe", "paper", "--lang-pairs", "en-de"), (str(DATA), "en-de")),
    ],
)
def test_wrong_options_are_refused(arguments, fragments):
    refused(lxsr_here("train", DATA, *arguments, "--print", check=False), *fragments)


@pytest.mark.parametrize(
    "content",
    [{"warmup": 1.5}, {"warmup": "long"}, {"options": ["lr"]}, {"options": {"lr": [1, 2]}}],
)
def test_a_recipe_with_values_of_wrong_types_is_refused(content):
    with pytest.raises(InputError, match=next(iter(content))):
        Recipe(**content)


def test_a_recipe_for_an_existing_model_warns_without_one(tmp_path):
    words = ("train", DATA, "--print", "--recipe", "best_layers")
    warning = lxsr_here(*words).stderr
    assert "--finetune-from-model" in warning
    assert re.search(r"\bbest\b", warning)
    for option in ("--finetune-from-model", "--restore-file"):
        assert not lxsr_here(*words, option, "checkpoint.pt").stderr
    (tmp_path / "checkpoint_last.pt").touch()
    assert not lxsr_here(*words, "--save-dir", tmp_path).stderr
    message = lxsr_here("train", DATA, "--print", "--recipe", "best").stderr
    assert "--finetune-from-model" not in message
    assert read_recipe("best_layers").finetunes in names()


def test_without_fairseq_the_error_names_the_command_that_installs_it(monkeypatch):
    find_spec = importlib.util.find_spec

    def find_all_but_fairseq(name):
        return None if name == "fairseq_cli" else find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_fairseq)
    result = lxsr_here("train", DATA, "--recipe", "ctlaser", check=False)
    refused(result, install_command("train"), "fairseq.txt")


def test_only_pairs_of_the_chosen_languages_are_counted(tmp_path):
    words = ("train", DATA, "--print", "--recipe", "best", "--cpu")
    assert re.search(r"\b49 pairs\b.*\b1,000\b", lxsr_here(*words).stderr)
    assert re.search(r"\b0 pairs\b", lxsr_here(*words, "--lang-pairs", "en-de").stderr)


def test_a_missing_data_folder_is_refused_before_fairseq_starts(tmp_path):
    save_dir = tmp_path / "checkpoints"
    for data in (tmp_path / "none", f"{DATA}{os.pathsep}{tmp_path / 'none'}"):
        result = lxsr_here("train", data, "--recipe", "best", "--save-dir", save_dir, check=False)
        refused(result, tmp_path / "none")
        assert "INFO" not in result.stdout
    assert not save_dir.exists()


def test_the_exit_status_is_that_of_fairseq_train(tmp_path):
    options = ("--lang-pairs", "en-xx", "--cpu", "--save-dir", tmp_path)
    result = lxsr("train", DATA, "--recipe", "best", *options, check=False)
    refused(result, "--lang-pairs en-xx")
    # Hydra's advice to fairseq is not shown.
    assert "hydra" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output", ["fairseq-train ", "train_inner"])
def test_an_interrupt_ends_training_with_one_line(tmp_path, output):
    """While fairseq is imported, and in training."""
    options = ["--cpu", "--encoder-embed-dim", "8", "--log-interval", "1"]
    options += ["--max-update", "100000", "--num-workers", "0", "--save-dir", str(tmp_path)]
    options += ["--init-embeddings", "random", "--log-format", "simple"]
    command = [sys.executable, "-W", "ignore", "-m", "fairseq_lxsr.cli.main"]
    command += ["train", str(DATA), "--recipe", "best", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
        assert any(output in line for line in iter(process.stdout.readline, ""))
        if output == "fairseq-train ":
            time.sleep(1.5)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if "interrupted" in line]) == 1


def test_pairs_are_counted_without_fairseq(tmp_path):
    assert count_pairs(DATA) == count_pairs(DATA, "en-de,fr-en") == {"en-fr": 49}
    assert count_pairs(DATA, "en-de") == count_pairs(tmp_path) == {}
