"""Two training processes on the CPU, and candidates gathered over both."""

import json
import shutil
import socket
import subprocess

import pytest
import torch
from conftest import ROOT, TRAIN_OPTIONS, forked_commands, forked_environment, wait_until

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.losses import alignment_loss

GATHER = """
import json, sys, torch, torch.distributed as dist
from types import SimpleNamespace
from fairseq_lxsr.training.lightweight.terms.alignment import AlignmentTerm
rank, port, cases = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
options = {"align_weight": 1, "align_similarity": "inner", "align_temperature": 1, "hard_negatives": "none"}
cfg = SimpleNamespace(**options, matryoshka=None, gather_negatives=True, batch_size=3)
term, results = AlignmentTerm(cfg, SimpleNamespace(vocabulary=None)), []
for numbers, dummy in cases:
    torch.manual_seed(0)
    rows = [slice(0, 3), slice(3, 5)][rank]  # batches of unequal size
    u, v = (torch.randn(5, 4)[rows].clone().requires_grad_() for _ in range(2))
    batch = {"pair_number": torch.tensor(numbers)[rows], **({"is_dummy": True} if rank == dummy else {})}
    loss = term.loss({"embeddings": {"source": u, "target": v}}, batch, training=True)
    (loss * (rank != dummy)).backward()  # as fairseq does
    results.append([loss.detach(), u.grad, v.grad])
torch.save(results, sys.argv[3])
dist.barrier()
dist.destroy_process_group()
"""
DIFFERENT, SAME = [0, 1, 2, 3, 4], [7, 1, 2, 7, 4]  # or the first pair of both workers is the same
CASES = [(DIFFERENT, None), (SAME, None), (DIFFERENT, 1), (DIFFERENT, 0), (SAME, 1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def started(command) -> subprocess.Popen:
    words = [forked_commands() / "python", *command]  # killing it kills the fork
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, cwd=ROOT, env=forked_environment(), **pipes)


def ended(process: subprocess.Popen, status: int = 0) -> str:
    """What a process has said when it has ended as it must."""
    output, _ = process.communicate(timeout=200)
    assert process.returncode == status, output[-3000:]
    return output


def run_all(commands) -> None:
    for process in [started(command) for command in commands]:
        ended(process)


def slow_alignment(u, v, numbers, dummy) -> list[torch.Tensor]:
    """Reference: the loss of each worker, one sentence at a time."""
    worker = [0, 0, 0, 1, 1]
    totals = [u.new_zeros(()) for _ in range(2)]
    for queries, candidates in ((u, v), (v, u)):
        for i in range(5):
            seen = [
                j for j in range(5) if j == i or (worker[j] != dummy and numbers[j] != numbers[i])
            ]
            scores = torch.stack([queries[i] @ candidates[j] for j in seen])
            totals[worker[i]] = totals[worker[i]] - scores.log_softmax(0)[seen.index(i)]
    return totals


@pytest.mark.slow
def test_gathered_loss_and_gradients_equal_the_slow_reference(tmp_path):
    port, cases = str(free_port()), json.dumps(CASES)
    run_all(
        [["-c", GATHER, str(rank), port, str(tmp_path / f"{rank}.pt"), cases] for rank in (0, 1)]
    )
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for (numbers, dummy), *found in zip(CASES, *parts, strict=True):
        torch.manual_seed(0)
        u, v = (torch.randn(5, 4).requires_grad_() for _ in range(2))
        expected = slow_alignment(u, v, numbers, dummy)
        if (numbers, dummy) == CASES[0]:  # one big batch
            torch.testing.assert_close(sum(expected), alignment_loss(u, v))
        sum(loss for rank, loss in enumerate(expected) if rank != dummy).backward()
        torch.testing.assert_close(
            [part[0] for part in found], [loss.detach() for loss in expected]
        )
        torch.testing.assert_close(torch.cat([part[1] for part in found]), u.grad)
        torch.testing.assert_close(torch.cat([part[2] for part in found]), v.grad)


def train_command(data, save_dir, options: dict[str, str], *flags) -> list[str]:
    words = [word for item in (TRAIN_OPTIONS | options).items() for word in item]
    command = ["-m", "fairseq_cli.train", str(data), "--cpu", "--save-dir", str(save_dir)]
    return [*command, *words, "--no-epoch-checkpoints", *flags]


def two_workers(command: list[str]) -> list[list[str]]:
    """The commands of two processes that make one model."""
    backend = (
        "--distributed-backend",
        "gloo",
        "--ddp-backend",
        "legacy_ddp",
        "--distributed-world-size",
        "2",
    )
    address = (
        "--distributed-no-spawn",
        "--distributed-init-method",
        f"tcp://127.0.0.1:{free_port()}",
    )
    return [[*command, *backend, *address, "--distributed-rank", str(rank)] for rank in (0, 1)]


@pytest.mark.slow
def test_two_workers_equal_one_with_twice_the_batch(tmp_path, toy_work):
    shards = toy_work / "data-bin", tmp_path / "second"
    shutil.copytree(*shards)
    (shards[1] / "stage.json").unlink()  # it names the files that change their names here
    for path in shards[1].glob("valid.*"):
        path.replace(path.with_name(path.name.replace("valid", "train")))
    # the last of 15 steps in epoch 1 has 4 of 900 pairs, for two workers 4 and none; the last of 2
    # steps in epoch 2 36 of 100, for two workers 32 and 4; validation on 100 pairs 48, 48 and 4,
    # for two workers 24, 24, 4 and none
    options = {
        "--max-update": "20",
        "--curriculum": "9",
        "--dropout": "0",
        "--sim-weight": "0",
        "--log-interval": "1",
    }
    # the bias of the keys has a gradient of zero; Adam would scale its rounding errors
    options["--adam-eps"] = "1e-4"

    def command(name, factor):
        own = {
            "--batch-size": str(factor * 32),
            "--batch-size-valid": str(factor * 24),
            "--log-format": "json",
        }
        own["--log-file"] = str(tmp_path / f"{name}.log")
        return train_command(
            ":".join(map(str, shards)), tmp_path / name, options | own, "--gather-negatives"
        )

    run_all([*two_workers(command("two", 1)), command("one", 2)])
    two, one = (read_log(tmp_path / f"{name}.log") for name in ("two", "one"))
    assert len(two) == 20 + 3  # updates, and validations
    assert two.keys() == one.keys()
    for step, figures in one.items():
        assert two[step] == pytest.approx(figures, rel=1e-4, abs=1e-3), step
    two, one = (read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("two", "one"))
    torch.testing.assert_close(two["model"], one["model"], rtol=1e-3, atol=1e-5)
    two, one = (state["last_optimizer_state"]["state"] for state in (two, one))
    for key in one:  # means of the gradients of the updates
        torch.testing.assert_close(two[key]["exp_avg"], one[key]["exp_avg"], rtol=1e-3, atol=1e-5)


def read_log(path) -> dict[tuple[str, str], dict[str, float]]:
    """Losses and norm of the gradient of each update, and losses of each validation."""
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith('{"epoch"') and "train_loss" not in line:
            figures = json.loads(line)
            kind = "valid_" if "valid_loss" in figures else ""
            names = [
                f"{kind}{name}" for name in ("loss", "gen", "align", *([] if kind else ["gnorm"]))
            ]
            found[kind, figures[f"{kind}num_updates"]] = {
                name: float(figures[name]) for name in names
            }
    return found


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_which_goes_on_from_its_last_checkpoint(tmp_path, toy_work):
    def start(updates):
        options = {"--max-update": str(updates), "--save-interval-updates": "10"}
        command = train_command(toy_work / "data-bin", tmp_path, options, "--disable-validation")
        return [started(worker) for worker in two_workers(command)]

    last, (left, killed) = tmp_path / "checkpoint_last.pt", start(100_000)
    wait_until(last.exists, killed, seconds=200)
    killed.kill()
    killed.communicate()
    output = ended(left, status=2)
    assert "Traceback" not in output
    assert ": error: " in output
    before = read_checkpoint(last)["optimizer_history"][-1]["num_updates"]
    assert before >= 10
    for process in start(before + 2):
        ended(process)
    assert read_checkpoint(last)["optimizer_history"][-1]["num_updates"] == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["laser_tiny", "tlaser_tiny"])
def test_two_processes_train_one_translation_model(tmp_path, toy_work, arch):
    options = {
        "--task": "xling_translation",
        "--criterion": "xling_translation_loss",
        "--constraint": "norm",
    }
    options |= {"--arch": arch, "--max-epoch": "1"}
    run_all(two_workers(train_command(toy_work / "data-bin", tmp_path, options)))
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    # two directions of 900 pairs, 29 batches of 32 each, dealt to two
    assert state["optimizer_history"][-1]["num_updates"] == 29
    assert all(value.isfinite().all() for value in state["model"].values())
