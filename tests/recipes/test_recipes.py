"""Recipes: what fairseq-train reads of each, options in their place, the schedule, and `lxsr train`
as users run it.
"""

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

DATA = ROOT / "tests" / "golden" / "compatibility" / "data"  # 49 pairs


class Recorder(FairseqOptimizer):
    """What a schedule needs of an optimizer."""

    rate = 0.0

    def __init__(self):
        """No weights."""

    def set_lr(self, lr):
        self.rate = lr

    def get_lr(self):
        return self.rate


def same(read, stated) -> bool:
    """Whether fairseq's value is that of a recipe: lists and tuples of one, numbers as text."""
    text = str(read).strip("[]")
    try:
        return text in (str(stated), f"({stated})") or float(text) == float(stated)
    except ValueError:
        return False


def printed(*arguments) -> list[str]:
    done = lxsr_here("train", DATA, *arguments, "--print")
    return shlex.split(done.stdout)


def value_of(command, option):
    """What follows an option that stands there once."""
    assert command.count(option) == 1, (option, command)
    return command[command.index(option) + 1]


def test_fairseq_reads_every_option_of_a_recipe():
    for name in names():
        with case(name):
            recipe = read_recipe(name)
            assert recipe.description
            assert recipe.source
            read = vars(read_by_fairseq(train_command(recipe, str(DATA), ["--cpu"])))
            for option, value in recipe.options.items():
                assert same(read[option.replace("-", "_")], value), (option, value)
            # of the LASER family the best epoch is chosen afterwards
            assert read["no_epoch_checkpoints"] == (
                read["arch"] not in ("laser_1", "laser_5", "laser_6", "tlaser_base")
            )


def test_every_recipe_is_named_once_and_what_is_shared_is_no_recipe():
    assert {"best", "paper", "laser_1", "tlaser", "ctlaser"} <= set(names())
    files = {path.stem for path in FOLDER.glob("*.yaml")}
    assert {name for name in files if not name.startswith("_")} == set(names())
    listed = lxsr_here("recipes").stdout.splitlines()
    assert [line.split()[0] for line in listed] == names()
    assert all(len(line.split()) > 2 for line in listed)
    unknown = lxsr_here("train", DATA, "--recipe", "papr", check=False)
    refused(unknown, "--recipe 'papr'", ", ".join(names()))


def test_settings_of_the_papers():
    paper, more, ctlaser = (read_recipe(name) for name in ("paper", "paper_it", "ctlaser"))
    mao = {
        "arch": "lxsr_base",
        "objective": "ugt",
        "target-weights": "types",
        "batch-size": 128,
        "lr": 0.001,
    }
    mao |= {
        "gen-weight": 1,
        "align-weight": 2,
        "sim-weight": 2,
        "max-positions": 200,
        "dropout": 0.1,
        "max-epoch": 12,
    }
    assert paper.options.items() >= mao.items()
    assert (paper.warmup * 12, more.options["max-epoch"], more.warmup * 30) == (3, 30, 6)  # epochs
    li = {
        "arch": "tlaser_base",
        "lr": 0.0005,
        "dropout": 0.3,
        "label-smoothing": 0.1,
        "warmup-updates": 4000,
    }
    li |= {"constraint": "norm", "constraint-weight": 0.25, "negative-weight": 0.5, "negatives": 20}
    assert (
        ctlaser.options.items() >= (li | {"max-epoch": 20, "no-epoch-checkpoints": False}).items()
    )


def test_settings_of_the_code_of_li_and_mak():
    """Those of new_vastai_0801_bigt2t_noshr_5lan_2xtitan_tfm.bash, and the networks that
    tests/models compares.
    """
    laser, claser, ctlaser = (
        read_recipe(f"{name}_released").options for name in ("laser_1", "claser_6", "ctlaser")
    )
    widths = {"encoder-embed-dim": 512, "decoder-embed-dim": 512, "decoder-input-feeding": True}
    read = {"encoder-append-eos": True, "target-bos": True}
    assert laser.items() >= (widths | read | {"label-smoothing": 0, "lr": 0.001}).items()
    assert (
        claser.items()
        >= (widths | read | {"arch": "laser_6", "constraint": "norm_of_mean"}).items()
    )
    script = {
        "lr": 0.0005,
        "warmup-updates": 4000,
        "warmup-init-lr": "1e-7",
        "label-smoothing": 0.1,
        "dropout": 0.3,
    }
    script |= {
        "weight-decay": "1e-4",
        "adam-betas": "(0.9, 0.98)",
        "max-epoch": 50,
        "max-positions": 2000,
    }
    script |= {
        "constraint": "norm_of_mean",
        "constraint-weight": 0.25,
        "negative-weight": 0.5,
        "negatives": 20,
    }
    assert (
        ctlaser.items()
        >= (script | read | {"decoder-lang-at": "memory", "init-weights": "released"}).items()
    )
    assert ctlaser["max-tokens"] * ctlaser["update-freq"] == 128_000


@pytest.mark.parametrize(
    ("own", "there", "not_there"),
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
            *(["--warmup-updates 500"], ["--warmup-updates 2", "--total-num-update"]),
        ),
    ],
)
def test_own_options_replace_those_of_the_recipe(own, there, not_there):
    words = printed("--recipe", "best", "--cpu", *own)
    assert words[:2] == ["fairseq-train", str(DATA)]
    assert value_of(words, "--user-dir") == str(Path(fairseq_lxsr.__file__).parent.absolute())
    command = " ".join(words)
    assert all(f" {text}" in command for text in there), command
    assert not any(text in command for text in not_there), command


# --max-update or --max-epoch, of a folder of 49 pairs; updates in all, updates of warm-up
@pytest.mark.parametrize(
    ("recipe", "own", "total", "warmup"),
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
def test_learning_rate_follows_the_length(recipe, own, total, warmup):
    command = printed("--recipe", recipe, "--cpu", *own.split())
    assert (value_of(command, "--total-num-update"), value_of(command, "--warmup-updates")) == (
        str(total),
        str(warmup),
    )


# --max-update or --max-epoch, of a folder of 49 pairs; updates of warm-up
@pytest.mark.parametrize(
    ("recipe", "own", "warmup"),
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
def test_learning_rate_of_the_paper_rises_for_three_epochs_and_stays(recipe, own, warmup):
    """No version of the paper prints a fall after the warm-up."""
    words = read_by_fairseq(train_command(read_recipe(recipe), str(DATA), ["--cpu", *own.split()]))
    schedule = FixedLRSchedule(words, Recorder())
    rates = [schedule.step_update(update) for update in range(4 * warmup)]
    rising = [1e-3 * (update + 1) / warmup for update in range(warmup)]
    assert rates == pytest.approx([*rising, *[1e-3] * (3 * warmup)])


@pytest.mark.parametrize(
    ("pairs", "updates", "every"),
    [
        (49, 1000, 100),
        (5_000, 1000, 20),
        (17_000, 1000, 5),
        (50_000, 1350, 2),
        (170_000, 2500, 1),
        (10**6, 10_000, 1),
    ],
)
def test_length_and_validation_by_the_number_of_pairs(monkeypatch, pairs, updates, every):
    monkeypatch.setattr(
        "fairseq_lxsr.recipes.count_pairs", lambda folder, languages: {"en-fr": pairs}
    )
    command = train_command(read_recipe("best"), "data", ["--cpu"])
    for option, value in (
        ("max-update", updates),
        ("validate-interval", every),
        ("save-interval", every),
    ):
        assert value_of(command, f"--{option}") == str(value)
    own = train_command(read_recipe("best"), "data", ["--cpu", "--max-update", str(10 * updates)])
    assert value_of(own, "--max-update") == str(10 * updates)
    assert value_of(own, "--save-interval") == str(
        max(10 * every, int(value_of(own, "--save-interval")))
    )


@pytest.mark.parametrize(
    ("own", "saved"),
    [
        ("--max-update 7", {"interval": "1", "interval-updates": "1"}),
        ("--validate-interval 3", {"interval": "3"}),
        ("--validate-interval-updates 50", {"interval": "20", "interval-updates": "50"}),
        ("--validate-interval 3 --save-interval 4", {"interval": "4"}),
        ("--update-freq 1,2", {"interval": "33"}),
    ],
)
def test_what_is_validated_is_saved(monkeypatch, own, saved):
    monkeypatch.setattr(
        "fairseq_lxsr.recipes.count_pairs", lambda folder, languages: {"en-fr": 5_000}
    )
    command = train_command(read_recipe("best"), "data", ["--cpu", *own.split()])
    found = {
        unit: value_of(command, f"--save-{unit}")
        for unit in ("interval", "interval-updates")
        if f"--save-{unit}" in command
    }
    assert found == saved


@pytest.mark.parametrize(("pairs", "shards"), [(12_000_000, 1), (10**8, 1), (10**5, 10)])
def test_a_training_is_validated_ten_times(monkeypatch, pairs, shards):
    """Of a text that is read less than ten times, after so many updates; an epoch reads one
    shard.
    """
    monkeypatch.setattr(
        "fairseq_lxsr.recipes.count_pairs", lambda folder, languages: {"en-fr": pairs}
    )
    command = train_command(read_recipe("best"), ":".join(["data"] * shards), ["--cpu"])
    if shards > 1:
        assert value_of(command, "--save-interval") == "10"  # 10,000 updates in 102 epochs of 98
    else:
        assert (
            value_of(command, "--save-interval-updates")
            == value_of(command, "--validate-interval-updates")
            == "1000"
        )
        assert value_of(command, "--keep-interval-updates") == "1"


def test_length_between_the_measured_sizes_grows(monkeypatch):
    lengths = []
    for pairs in (20_000, 40_000, 100_000, 400_000, 10**7):
        monkeypatch.setattr(
            "fairseq_lxsr.recipes.count_pairs", lambda folder, languages, n=pairs: {"en-fr": n}
        )
        lengths.append(
            int(value_of(train_command(read_recipe("best"), "data", ["--cpu"]), "--max-update"))
        )
    assert lengths == sorted(set(lengths))
    assert (lengths[0] > 1000, lengths[-1]) == (True, 10_000)


def test_the_chosen_length_is_said():
    message = lxsr_here("train", DATA, "--print", "--recipe", "best", "--cpu").stderr
    assert re.search(r"\b49 .*\b1,000 .*\b100\b", message)


@pytest.mark.parametrize(
    "option", ["--max-tokens 320", "--sampling-temperature 5", "--source-temperature inf"]
)
def test_a_length_that_is_not_known_beforehand_is_refused(option):
    with pytest.raises(InputError, match=f"--max-epoch .*{option}.*--max-update"):
        train_command(read_recipe("paper"), str(DATA), option.split())
    assert "30" in train_command(
        read_recipe("paper"), str(DATA), ["--max-update", "30", *option.split()]
    )


@pytest.mark.parametrize("device", [[], ["--cpu"]])
def test_length_by_workers_and_shards(device):
    recipe, own = (
        read_recipe("paper"),
        ["--batch-size", "10", "--distributed-world-size", "4", *device],
    )
    command = train_command(recipe, f"{DATA}:{DATA}", own)
    assert value_of(command, "--warmup-updates") == "6"  # 5 batches for 4 workers are 2 updates


@pytest.mark.parametrize(
    ("name", "milestone", "epochs"), [("released", 3, 12), ("released_it", 6, 30)]
)
def test_learning_rate_of_the_released_code_at_every_update(name, milestone, epochs):
    """Their warm-up rises to update 1,999, and MultiStepLR divides by ten from the milestone on."""
    words = read_by_fairseq(train_command(read_recipe(name), str(DATA), ["--cpu"]))
    schedule = FixedLRSchedule(words, Recorder())
    updates, rates = 0, []
    for epoch in range(words.max_epoch):
        schedule.step_begin_epoch(epoch + 1)
        for _ in range(400):
            schedule.step_update(updates)
            rates.append((schedule.optimizer.rate, epoch))
            updates += 1
    assert words.max_epoch == epochs
    for update, (rate, epoch) in enumerate(rates):
        assert rate == 1e-3 * 0.1 ** (epoch >= milestone) * min(1, (update + 1) / 1999), update


def test_what_the_released_code_changes():
    paper, released = read_recipe("paper"), read_recipe("released")
    changed = {
        name for name in released.options if released.options[name] != paper.options.get(name)
    }
    assert changed == {
        *(
            "sim-reduction",
            "target-ids",
            "target-overlap",
            "batches",
            "drop-last",
            "attention-dropout",
        ),
        *("layer-norm-eps", "init-weights", "decoupled-weight-decay", "amsgrad"),
        *("lr", "warmup-updates"),
    }
    command = printed("--recipe", "released", "--cpu")
    assert value_of(command, "--lr") == "0.001, 0.001, 0.001, 0.0001"
    assert "--total-num-update" not in command


def test_a_recipe_may_set_the_rate_of_embeddings_and_the_first_branches():
    for name in ("paper", "released"):
        assert not {"embed-lr-scale", "init-branches"} & read_recipe(name).options.keys(), name
    recipe = read_recipe("paper")
    options = override(recipe.options, {"embed-lr-scale": 10, "init-branches": "zero"})
    command = train_command(replace(recipe, options=options), str(DATA), ["--cpu"])
    words = read_by_fairseq(command)
    assert (words.embed_lr_scale, str(words.init_branches)) == (10, "zero")


@pytest.mark.slow
def test_released_trains(tmp_path, toy_work):
    """Two updates of every option that the recipe has, through fairseq-train, with its
    validation.
    """
    data, own = toy_work / "data-bin", ["--arch", "lxsr_tiny", "--max-update", "2"]
    command = train_command(read_recipe("released"), str(data), own)
    done = train_here(data, tmp_path, *command[1:], optimizer="torch_adam")
    assert not done.returncode, done.stderr[-2000:]
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
def test_bad_options_are_refused(arguments, fragments):
    refused(lxsr_here("train", DATA, *arguments, "--print", check=False), *fragments)


@pytest.mark.parametrize(
    "content",
    [{"warmup": 1.5}, {"warmup": "long"}, {"options": ["lr"]}, {"options": {"lr": [1, 2]}}],
)
def test_recipe_of_other_types_is_refused(content):
    with pytest.raises(InputError, match=next(iter(content))):
        Recipe(**content)


def test_a_recipe_that_goes_on_from_a_checkpoint_says_so_without_one(tmp_path):
    warning = "--finetune-from-model"
    words = ("train", DATA, "--print", "--recipe", "best_layers")
    message = lxsr_here(*words).stderr
    assert warning in message
    assert re.search(r"\bbest\b", message)
    for option in ("--finetune-from-model", "--restore-file"):
        assert not lxsr_here(*words, option, "checkpoint.pt").stderr
    (tmp_path / "checkpoint_last.pt").touch()
    assert not lxsr_here(*words, "--save-dir", tmp_path).stderr
    assert warning not in lxsr_here("train", DATA, "--print", "--recipe", "best").stderr
    assert read_recipe("best_layers").finetunes in names()


def test_without_fairseq_one_line_says_how_to_get_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "fairseq_cli" else find_spec(name)
    )
    refused(
        lxsr_here("train", DATA, "--recipe", "ctlaser", check=False),
        install_command("train"),
        "fairseq.txt",
    )


def test_pairs_are_counted_of_the_languages_that_are_trained(tmp_path):
    words = ("train", DATA, "--print", "--recipe", "best", "--cpu")
    assert re.search(r"\b49 pairs\b.*\b1,000\b", lxsr_here(*words).stderr)
    assert re.search(r"\b0 pairs\b", lxsr_here(*words, "--lang-pairs", "en-de").stderr)


def test_a_missing_data_folder_is_refused_before_fairseq_starts(tmp_path):
    save_dir = tmp_path / "checkpoints"
    for data in (tmp_path / "none", f"{DATA}{os.pathsep}{tmp_path / 'none'}"):
        done = lxsr_here("train", data, "--recipe", "best", "--save-dir", save_dir, check=False)
        refused(done, tmp_path / "none")
        assert "INFO" not in done.stdout
    assert not save_dir.exists()


def test_exit_status_is_that_of_fairseq_train(tmp_path):
    bad = ("--lang-pairs", "en-xx", "--cpu", "--save-dir", tmp_path)
    done = lxsr("train", DATA, "--recipe", "best", *bad, check=False)
    refused(done, "--lang-pairs en-xx")
    assert "hydra" not in done.stderr  # its advice to fairseq


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["fairseq-train ", "train_inner"])
def test_an_interrupt_ends_training_with_one_line(tmp_path, shown):
    """While fairseq is imported, and in training."""
    more = [
        "--cpu",
        "--encoder-embed-dim",
        "8",
        "--log-interval",
        "1",
        "--max-update",
        "100000",
        "--num-workers",
        "0",
    ]
    own = (*more, "--init-embeddings", "random", "--save-dir", tmp_path, "--log-format", "simple")
    words = map(str, ("train", DATA, "--recipe", "best", *own))
    command = [sys.executable, "-W", "ignore", "-m", "fairseq_lxsr.cli.main", *words]
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert any(shown in line for line in iter(process.stdout.readline, ""))
        if shown.startswith("fairseq"):
            time.sleep(1.5)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if "interrupted" in line]) == 1


def test_pairs_are_counted_without_fairseq(tmp_path):
    assert count_pairs(DATA) == count_pairs(DATA, "en-de,fr-en") == {"en-fr": 49}
    assert count_pairs(DATA, "en-de") == count_pairs(tmp_path) == {}
