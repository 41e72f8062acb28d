"""Recipes: their options in fairseq-train, options that replace them, schedules, and `lxsr train`."""

import importlib.util
import itertools
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
from conftest import ROOT, lxsr, lxsr_here, refused, train_here
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.fixed_schedule import FixedLRSchedule
from fairseq_options import read_by_fairseq

import fairseq_lxsr
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.recipes import FOLDER, Recipe, names, override, read_recipe, train_command
from fairseq_lxsr.text.data_folder import count_pairs

# Data of NUM_PAIRS pairs of en-fr.
DATA = ROOT / "tests" / "golden" / "compatibility" / "data"
NUM_PAIRS = 49


class Recorder(FairseqOptimizer):
    """An optimizer without weights that records the learning rate."""

    rate = 0.0

    def __init__(self):
        """Without the parameters that fairseq passes."""

    def set_lr(self, lr):
        self.rate = lr

    def get_lr(self):
        return self.rate


def is_value_of_recipe(value, expected) -> bool:
    """Whether fairseq read the value of a recipe, perhaps as a list or a tuple of one number."""
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


@pytest.fixture(params=names())
def recipe(request):
    """Each of the recipes."""
    return read_recipe(request.param)


def read_recipe_by_fairseq(recipe) -> dict[str, object]:
    return vars(read_by_fairseq(train_command(recipe, str(DATA), ["--cpu"])))


def test_every_recipe_has_a_description_and_a_source(recipe):
    assert recipe.description
    assert recipe.source


def test_fairseq_reads_every_option_of_a_recipe(recipe):
    options = read_recipe_by_fairseq(recipe)

    for option, value in recipe.options.items():
        value_of_fairseq = options[option.replace("-", "_")]
        assert is_value_of_recipe(value_of_fairseq, value), (option, value)


def test_only_recipes_of_laser_and_tlaser_save_every_epoch(recipe):
    """Their best epoch is chosen after the training."""
    options = read_recipe_by_fairseq(recipe)

    is_laser = options["arch"] in ("laser_1", "laser_5", "laser_6", "tlaser_base")
    assert options["no_epoch_checkpoints"] == (not is_laser)


def test_every_file_without_an_underscore_is_a_recipe():
    files = {path.stem for path in FOLDER.glob("*.yaml")}

    assert set(names()) == {name for name in files if not name.startswith("_")}
    # The main recipes of the documents.
    assert set(names()) >= {"best", "paper", "laser_1", "tlaser", "ctlaser"}


def test_recipes_are_listed_with_a_description():
    lines = lxsr_here("recipes").stdout.splitlines()

    listed_names = []
    for line in lines:
        name, *words_of_description = line.split()
        listed_names.append(name)
        assert len(words_of_description) >= 2
    assert listed_names == names()


# Number of epochs of each recipe, and how many of them the warm-up takes.
@pytest.mark.parametrize(
    ("name", "epochs", "warmup_epochs"),
    [
        pytest.param("paper", 12, 3, id="most languages"),
        pytest.param("paper_it", 30, 6, id="Italian"),
    ],
)
def test_the_paper_recipes_have_the_epochs_and_the_warmup_of_mao_et_al(name, epochs, warmup_epochs):
    recipe = read_recipe(name)

    assert recipe.options["max-epoch"] == epochs
    assert recipe.warmup * epochs == warmup_epochs


def test_paper_has_the_settings_of_mao_et_al():
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
    }

    assert read_recipe("paper").options.items() >= settings.items()


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


def test_laser_1_released_has_the_settings_of_the_code_of_li_and_mak():
    settings = {**SYMBOLS, **LASER_SIZES, "label-smoothing": 0, "lr": 0.001}

    assert read_recipe("laser_1_released").options.items() >= settings.items()


def test_claser_6_released_has_the_settings_of_the_code_of_li_and_mak():
    settings = {**SYMBOLS, **LASER_SIZES, "arch": "laser_6", "constraint": "norm_of_mean"}

    assert read_recipe("claser_6_released").options.items() >= settings.items()


def test_ctlaser_released_has_the_settings_of_the_script_of_li_and_mak():
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
    # The tokens of an update, on one or more GPUs.
    assert options["max-tokens"] * options["update-freq"] == 128_000


def test_the_command_of_a_recipe_calls_fairseq_with_the_data_and_this_package():
    words = print_command("--recipe", "best", "--cpu")

    assert words[:2] == ["fairseq-train", str(DATA)]
    assert value_of(words, "--user-dir") == str(Path(fairseq_lxsr.__file__).parent.absolute())


# The recipe `best` has the options --word-dropout 0.1, --no-epoch-checkpoints, --batch-size 1024,
# a decay of the learning rate, and a length that the number of pairs decides.
@pytest.mark.parametrize(
    ("options", "expected", "absent"),
    [
        pytest.param(
            [], ["--word-dropout 0.1", "--no-epoch-checkpoints"], [], id="those of the recipe"
        ),
        pytest.param(
            ["--word-dropout", "0"], ["--word-dropout 0"], ["word-dropout 0.1"], id="value"
        ),
        pytest.param(
            ["--word-dropout=0.3", "--fp16"],
            ["--word-dropout 0.3", "--fp16"],
            ["word-dropout 0.1"],
            id="value after =, new flag",
        ),
        pytest.param(
            ["--lr", "0.1", "--lr", "0.2"], ["--lr 0.2"], ["--lr 0.1"], id="last of two values"
        ),
        pytest.param(
            ["--adam-betas", "(0.9, 0.99)"], ["--adam-betas (0.9, 0.99)"], [], id="value with space"
        ),
        pytest.param(["--clip-norm", "-1"], ["--clip-norm -1"], [], id="negative value"),
        pytest.param(["--no-word-dropout"], [], ["--word-dropout"], id="no value"),
        pytest.param(["--no-no-epoch-checkpoints"], [], ["epoch-checkpoints"], id="no flag"),
        pytest.param(
            ["--no-word-dropout", "--word-dropout", "0.2"],
            ["--word-dropout 0.2"],
            ["--no-word-dropout", "dropout 0.1"],
            id="no value, then a value",
        ),
        pytest.param(["--no-save"], ["--no-save"], [], id="flag of fairseq that begins with no"),
        pytest.param(
            ["--max-sentences", "64"],
            ["--batch-size 64"],
            ["1024", "max-sentences"],
            id="another name of an option",
        ),
        pytest.param(["--max-epoch", "3"], ["--max-epoch 3"], ["--max-update"], id="length"),
        pytest.param(
            ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", "500"],
            ["--warmup-updates 500"],
            ["--warmup-updates 2", "--total-num-update"],
            id="schedule",
        ),
    ],
)
def test_given_options_replace_those_of_the_recipe(options, expected, absent):
    command = " ".join(print_command("--recipe", "best", "--cpu", *options))

    for text in expected:
        assert f" {text}" in command
    for text in absent:
        assert text not in command


# `best` makes 1,000 updates on this data, `paper_small` 1,500.
@pytest.mark.parametrize(
    ("recipe", "options", "total", "warmup"),
    [
        pytest.param("best", "", 1000, 100, id="recipe"),
        pytest.param("best", "--max-update 30", 30, 3, id="updates"),
        pytest.param("best", "--max-update 30 --warmup-updates 7", 30, 7, id="given warm-up"),
        pytest.param(
            "best", "--max-update 30 --total-num-update 200", 200, 20, id="given end of the decay"
        ),
        # 5 batches of at most 10 of the 49 pairs.
        pytest.param("best", "--max-epoch 20 --batch-size 10", 20 * 5, 10, id="epochs"),
        pytest.param("best", "--max-epoch 20 --max-update 15", 15, 1, id="updates before epochs"),
        pytest.param(
            "paper_small",
            "--lr-scheduler polynomial_decay --no-warmup-updates",
            1500,
            150,
            id="given schedule",
        ),
    ],
)
def test_the_learning_rate_falls_until_the_end_after_a_warmup_of_a_tenth(
    recipe, options, total, warmup
):
    command = print_command("--recipe", recipe, "--cpu", *options.split())

    assert value_of(command, "--total-num-update") == str(total)
    assert value_of(command, "--warmup-updates") == str(warmup)


# The warm-up takes 3 of the 12 epochs of `paper`. 49 pairs are 1 batch, or 5 batches of at most 10.
@pytest.mark.parametrize(
    ("recipe", "options", "warmup"),
    [
        pytest.param("paper", "", 3 * 1, id="one batch an epoch"),
        pytest.param("paper", "--batch-size 10", 3 * 5, id="5 batches"),
        pytest.param("paper", "--batch-size 10 --lang-pairs fr-en", 3 * 5, id="other direction"),
        # Without the last batch, of 9 pairs.
        pytest.param("paper", "--batch-size 10 --drop-last", 3 * 4, id="4 full batches"),
        pytest.param("paper", "--batch-size 10 --skip-remainder-batch", 3 * 4, id="no remainder"),
        pytest.param("paper", "--batch-size 10 --update-freq 2", 3 * 3, id="2 batches an update"),
        pytest.param(
            "paper",
            "--batch-size 10 --update-freq 3 --skip-remainder-batch",
            3 * 1,
            id="3 batches an update, no remainder",
        ),
        pytest.param("paper", "--max-update 100", 100 // 4, id="a quarter of given updates"),
        pytest.param("paper", "--max-update 100 --warmup-updates 7", 7, id="given"),
        pytest.param("paper_it", "--batch-size 49", 6 * 1, id="6 epochs for Italian"),
    ],
)
def test_the_learning_rate_of_the_paper_rises_in_the_warmup_and_is_then_constant(
    recipe, options, warmup
):
    """No version of the paper says that it falls after the warm-up."""
    command = train_command(read_recipe(recipe), str(DATA), ["--cpu", *options.split()])
    schedule = FixedLRSchedule(read_by_fairseq(command), Recorder())
    highest_rate = 0.001
    constant_updates = 3 * warmup

    rates = [schedule.step_update(update) for update in range(warmup + constant_updates)]

    rising_rates = [highest_rate * (update + 1) / warmup for update in range(warmup)]
    constant_rates = [highest_rate] * constant_updates
    assert rates == pytest.approx(rising_rates + constant_rates)


def set_number_of_pairs(monkeypatch, pairs):
    """Let every data folder have this number of pairs of en-fr."""

    def count_pairs(folder, languages):
        return {"en-fr": pairs}

    monkeypatch.setattr("fairseq_lxsr.recipes.count_pairs", count_pairs)


# The file of the recipe gives the updates for 17,000, 50,000, 170,000 and 1,000,000 pairs.
@pytest.mark.parametrize(
    ("pairs", "updates"),
    [
        (49, 1000),
        (5_000, 1000),
        (17_000, 1000),
        (50_000, 1350),
        (170_000, 2500),
        (1_000_000, 10_000),
    ],
)
def test_the_number_of_pairs_decides_the_number_of_updates(monkeypatch, pairs, updates):
    set_number_of_pairs(monkeypatch, pairs)

    command = train_command(read_recipe("best"), "data", ["--cpu"])

    assert value_of(command, "--max-update") == str(updates)


# An epoch has PAIRS / 1024 updates, rounded up.
@pytest.mark.parametrize(
    ("pairs", "epochs_between_validations"),
    [
        pytest.param(49, 100, id="1000 updates, 1 an epoch"),
        pytest.param(5_000, 20, id="1000 updates, 5 an epoch"),
        pytest.param(17_000, 5, id="1000 updates, 17 an epoch"),
        pytest.param(50_000, 2, id="1350 updates, 49 an epoch"),
        pytest.param(170_000, 1, id="2500 updates, 167 an epoch"),
        pytest.param(1_000_000, 1, id="10000 updates, 977 an epoch"),
    ],
)
def test_training_validates_and_saves_at_least_ten_times(
    monkeypatch, pairs, epochs_between_validations
):
    set_number_of_pairs(monkeypatch, pairs)

    command = train_command(read_recipe("best"), "data", ["--cpu"])

    assert value_of(command, "--validate-interval") == str(epochs_between_validations)
    assert value_of(command, "--save-interval") == str(epochs_between_validations)


def test_a_longer_training_validates_and_saves_as_often_as_a_short_one(monkeypatch):
    set_number_of_pairs(monkeypatch, 5_000)
    # As above, 5 updates an epoch.
    command = train_command(read_recipe("best"), "data", ["--cpu", "--max-update", "1000"])
    assert value_of(command, "--save-interval") == "20"

    command = train_command(read_recipe("best"), "data", ["--cpu", "--max-update", "10000"])

    assert value_of(command, "--max-update") == "10000"
    assert value_of(command, "--save-interval") == "200"


# Without options, the 5 updates of an epoch are validated every 20 epochs.
@pytest.mark.parametrize(
    ("options", "save_interval", "save_interval_updates"),
    [
        pytest.param("--max-update 7", "1", "1", id="fewer than ten updates"),
        pytest.param("--validate-interval 3", "3", None, id="given in epochs"),
        pytest.param("--validate-interval-updates 50", "20", "50", id="given in updates"),
        pytest.param("--validate-interval 3 --save-interval 4", "4", None, id="both given"),
        # 2 batches an update are 3 updates an epoch.
        pytest.param("--update-freq 1,2", "33", None, id="2 batches an update"),
    ],
)
def test_every_validated_checkpoint_is_saved_unless_an_option_says_otherwise(
    monkeypatch, options, save_interval, save_interval_updates
):
    set_number_of_pairs(monkeypatch, 5_000)

    command = train_command(read_recipe("best"), "data", ["--cpu", *options.split()])

    assert value_of(command, "--save-interval") == save_interval
    if save_interval_updates is None:
        assert "--save-interval-updates" not in command
    else:
        assert value_of(command, "--save-interval-updates") == save_interval_updates


@pytest.mark.parametrize("pairs", [12_000_000, 100_000_000])
def test_a_large_text_is_validated_and_saved_every_1000_updates(monkeypatch, pairs):
    """Its first epoch is not over after 10,000 updates, so no epoch would be validated."""
    set_number_of_pairs(monkeypatch, pairs)

    command = train_command(read_recipe("best"), "data", ["--cpu"])

    assert value_of(command, "--validate-interval-updates") == "1000"
    assert value_of(command, "--save-interval-updates") == "1000"
    # Only the last of these checkpoints stays.
    assert value_of(command, "--keep-interval-updates") == "1"


def test_an_epoch_is_one_of_several_shards(monkeypatch):
    """A shard of 100,000 pairs is 98 updates, so 10,000 updates are 102 epochs."""
    pairs_of_a_shard = 100_000
    set_number_of_pairs(monkeypatch, pairs_of_a_shard)
    ten_shards = ":".join(["data"] * 10)

    command = train_command(read_recipe("best"), ten_shards, ["--cpu"])

    # Ten validations.
    assert value_of(command, "--save-interval") == "10"


def test_the_length_grows_with_the_number_of_pairs_from_1000_to_10000_updates(monkeypatch):
    """Between the numbers in the file of the recipe, too."""
    lengths = []
    for pairs in (20_000, 40_000, 100_000, 400_000, 10_000_000):
        set_number_of_pairs(monkeypatch, pairs)
        command = train_command(read_recipe("best"), "data", ["--cpu"])
        lengths.append(int(value_of(command, "--max-update")))

    for shorter, longer in itertools.pairwise(lengths):
        assert shorter < longer
    assert lengths[0] > 1000
    assert lengths[-1] == 10_000


def test_the_number_of_pairs_the_updates_and_the_warmup_are_reported():
    result = lxsr_here("train", DATA, "--print", "--recipe", "best", "--cpu")

    assert re.search(rf"\b{NUM_PAIRS} pairs\b.*\b1,000 .*\b100\b", result.stderr)


@pytest.mark.parametrize(
    "option",
    [
        pytest.param("--max-tokens 320", id="batches of tokens"),
        pytest.param("--sampling-temperature 5", id="sampled pairs of languages"),
        pytest.param("--source-temperature inf", id="sampled sources"),
    ],
)
def test_epochs_whose_number_of_updates_is_unknown_are_refused(option):
    """The recipe gives 12 epochs, and the warm-up is a part of their updates."""
    with pytest.raises(InputError, match=f"--max-epoch .*{option}.*--max-update"):
        train_command(read_recipe("paper"), str(DATA), option.split())


@pytest.mark.parametrize(
    "option", ["--max-tokens 320", "--sampling-temperature 5", "--source-temperature inf"]
)
def test_a_given_number_of_updates_needs_no_countable_epochs(option):
    options = ["--max-update", "30", *option.split()]

    command = train_command(read_recipe("paper"), str(DATA), options)

    assert value_of(command, "--max-update") == "30"


@pytest.mark.parametrize("device", [[], ["--cpu"]], ids=["GPU", "CPU"])
def test_workers_divide_the_updates_of_an_epoch_which_is_one_shard(device):
    two_shards = f"{DATA}:{DATA}"
    options = ["--batch-size", "10", "--distributed-world-size", "4", *device]

    command = train_command(read_recipe("paper"), two_shards, options)

    # The 5 batches of a shard are 2 updates of 4 workers, and the warm-up takes 3 epochs.
    assert value_of(command, "--warmup-updates") == str(3 * 2)


@pytest.mark.parametrize(
    ("name", "milestone", "epochs"), [("released", 3, 12), ("released_it", 6, 30)]
)
def test_the_released_recipes_have_the_learning_rates_of_the_released_code(name, milestone, epochs):
    """It rises until update 1,999, and MultiStepLR divides it by ten from the milestone on."""
    options = read_by_fairseq(train_command(read_recipe(name), str(DATA), ["--cpu"]))
    schedule = FixedLRSchedule(options, Recorder())
    # So that the warm-up ends within an epoch, after the milestone of `released`.
    updates_per_epoch = 400

    update = 0
    for epoch in range(epochs):
        schedule.step_begin_epoch(epoch + 1)
        for _ in range(updates_per_epoch):
            schedule.step_update(update)

            warmup = min(1, (update + 1) / 1999)
            decay = 0.1 if epoch >= milestone else 1
            assert schedule.optimizer.rate == 1e-3 * decay * warmup, update
            update += 1
    assert options.max_epoch == epochs


def test_the_released_code_differs_from_the_paper_in_these_options():
    paper = read_recipe("paper").options
    released = read_recipe("released").options

    different_options = {name for name, value in released.items() if value != paper.get(name)}

    assert different_options == {
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


def test_the_command_of_the_released_code_has_a_learning_rate_for_each_epoch_and_no_total():
    command = print_command("--recipe", "released", "--cpu")

    assert value_of(command, "--lr") == "0.001, 0.001, 0.001, 0.0001"
    assert "--total-num-update" not in command


@pytest.mark.parametrize("name", ["paper", "released"])
def test_the_paper_and_the_released_code_do_not_change_the_rate_of_embeddings_or_the_first_branches(
    name,
):
    options = read_recipe(name).options

    assert "embed-lr-scale" not in options
    assert "init-branches" not in options


def test_recipes_may_set_the_rate_of_embeddings_and_the_first_branches():
    recipe = read_recipe("paper")
    options = override(recipe.options, {"embed-lr-scale": 10, "init-branches": "zero"})
    changed_recipe = replace(recipe, options=options)

    command = train_command(changed_recipe, str(DATA), ["--cpu"])

    options_of_fairseq = read_by_fairseq(command)
    assert options_of_fairseq.embed_lr_scale == 10
    assert str(options_of_fairseq.init_branches) == "zero"


@pytest.mark.slow
def test_a_training_by_the_recipe_of_the_released_code_has_its_epsilon_and_its_optimizer(
    tmp_path, toy_work
):
    """Two updates with all its options, and a validation."""
    data = toy_work / "data-bin"
    options = ["--arch", "lxsr_tiny", "--max-update", "2"]
    _, *flags = train_command(read_recipe("released"), str(data), options)

    result = train_here(data, tmp_path, *flags, optimizer="torch_adam")

    assert not result.returncode, result.stderr[-2000:]
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["cfg"]["model"]["layer_norm_eps"] == 1e-12
    assert state["last_optimizer_state"]["param_groups"][0]["amsgrad"]


def test_an_unknown_recipe_is_refused_with_the_names_of_all_recipes():
    result = lxsr_here("train", DATA, "--recipe", "papr", "--print", check=False)

    refused(result, "--recipe 'papr'", ", ".join(names()))


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # A file of options that several recipes share is no recipe.
        pytest.param("--recipe _common", ["--recipe '_common'"], id="shared options"),
        pytest.param("--recipe ../recipes/best", ["../recipes/best"], id="path"),
        pytest.param("--recipe best other", ["'other'"], id="second folder"),
        pytest.param(
            "--recipe best --max-update many", ["--max-update 'many'"], id="no number of updates"
        ),
        pytest.param("--recipe best --max-update 0", ["--max-update 0"], id="0 updates"),
        pytest.param(
            "--recipe best --no-max-update", ["--max-update", "--max-epoch"], id="no length"
        ),
        pytest.param(
            "--recipe paper --no-batch-size --max-tokens 900",
            ["--max-epoch", "--batch-size"],
            id="uncountable batches",
        ),
        pytest.param(
            "--recipe paper --lang-pairs en-de", [str(DATA), "en-de"], id="pair without data"
        ),
    ],
)
def test_wrong_options_are_refused_by_name(arguments, fragments):
    result = lxsr_here("train", DATA, *arguments.split(), "--print", check=False)

    refused(result, *fragments)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("warmup", 1.5, id="more than the whole training"),
        pytest.param("warmup", "long", id="no number"),
        pytest.param("options", ["lr"], id="list of options"),
        pytest.param("options", {"lr": [1, 2]}, id="list of values"),
    ],
)
def test_a_recipe_with_an_invalid_field_is_refused_with_its_name(field, value):
    with pytest.raises(InputError, match=field):
        Recipe(**{field: value})


def warnings_of_printed_command(recipe, *options) -> str:
    """What `lxsr train --print` says on standard error."""
    return lxsr_here("train", DATA, "--print", "--recipe", recipe, *options).stderr


def test_a_recipe_for_an_existing_model_warns_without_one():
    warning = warnings_of_printed_command("best_layers")

    assert "--finetune-from-model" in warning
    # The recipe of the existing model.
    assert re.search(r"\bbest\b", warning)
    assert read_recipe("best_layers").finetunes == "best"
    assert "best" in names()


@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file"])
def test_a_recipe_for_an_existing_model_does_not_warn_with_one(option):
    assert not warnings_of_printed_command("best_layers", option, "checkpoint.pt")


def test_a_recipe_for_an_existing_model_does_not_warn_when_a_training_is_resumed(tmp_path):
    (tmp_path / "checkpoint_last.pt").touch()

    assert not warnings_of_printed_command("best_layers", "--save-dir", tmp_path)


def test_a_recipe_for_a_new_model_does_not_ask_for_an_existing_one():
    assert "--finetune-from-model" not in warnings_of_printed_command("best")


def test_without_fairseq_the_error_names_the_command_that_installs_it(monkeypatch):
    find_spec = importlib.util.find_spec

    def find_all_but_fairseq(name):
        return None if name == "fairseq_cli" else find_spec(name)

    # As if fairseq were not installed.
    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_fairseq)

    result = lxsr_here("train", DATA, "--recipe", "ctlaser", check=False)

    refused(result, install_command("train"), "fairseq.txt")


def test_only_pairs_of_the_chosen_languages_decide_the_length():
    all_pairs = warnings_of_printed_command("best", "--cpu")
    pairs_of_absent_language = warnings_of_printed_command("best", "--cpu", "--lang-pairs", "en-de")

    assert re.search(rf"\b{NUM_PAIRS} pairs\b.*\b1,000\b", all_pairs)
    assert re.search(r"\b0 pairs\b", pairs_of_absent_language)


@pytest.mark.parametrize("first_shards", [[], [str(DATA)]], ids=["only folder", "second shard"])
def test_a_missing_data_folder_is_refused_before_fairseq_starts(tmp_path, first_shards):
    missing = tmp_path / "missing"
    data = os.pathsep.join([*first_shards, str(missing)])
    save_dir = tmp_path / "checkpoints"

    result = lxsr_here("train", data, "--recipe", "best", "--save-dir", save_dir, check=False)

    refused(result, missing)
    # fairseq would print its log and create the folder.
    assert "INFO" not in result.stdout
    assert not save_dir.exists()


def test_lxsr_train_shows_an_error_that_fairseq_train_finds_as_its_own(tmp_path):
    """`lxsr train` only counts the pairs of DATA; that it has no language xx, fairseq-train finds."""
    options = ("--lang-pairs", "en-xx", "--cpu", "--save-dir", tmp_path)

    result = lxsr("train", DATA, "--recipe", "best", *options, check=False)

    refused(result, "--lang-pairs en-xx")
    # Hydra's advice to the authors of fairseq is not shown.
    assert "hydra" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line_before_the_interrupt", "seconds_before_the_interrupt"),
    [
        # lxsr prints the command, and fairseq is imported for several seconds.
        pytest.param("fairseq-train ", 1.5, id="while fairseq is imported"),
        pytest.param("train_inner", 0, id="in training"),
    ],
)
def test_an_interrupt_ends_training_with_one_line(
    tmp_path, line_before_the_interrupt, seconds_before_the_interrupt
):
    small_model = ["--cpu", "--encoder-embed-dim", "8", "--init-embeddings", "random"]
    # So long that it does not end before the interrupt.
    length = ["--max-update", "100000"]
    log = ["--log-interval", "1", "--log-format", "simple"]
    options = [*small_model, *length, *log, "--num-workers", "0", "--save-dir", str(tmp_path)]
    command = [sys.executable, "-W", "ignore", "-m", "fairseq_lxsr.cli.main"]
    command += ["train", str(DATA), "--recipe", "best", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
        lines = iter(process.stdout.readline, "")
        assert any(line_before_the_interrupt in line for line in lines)
        time.sleep(seconds_before_the_interrupt)
        # As Ctrl-C, which interrupts all processes of a terminal.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if "interrupted" in line]) == 1


def test_pairs_of_a_data_folder_are_counted_in_both_directions():
    assert count_pairs(DATA) == {"en-fr": NUM_PAIRS}
    assert count_pairs(DATA, "en-de,fr-en") == {"en-fr": NUM_PAIRS}


def test_a_data_folder_without_the_chosen_languages_has_no_pairs(tmp_path):
    empty_folder = tmp_path

    assert count_pairs(DATA, "en-de") == {}
    assert count_pairs(empty_folder) == {}
