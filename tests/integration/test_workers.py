"""Two training processes on the CPU, and candidates gathered over both."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, TRAIN_OPTIONS

from fairseq_lxsr.checkpoint import read_checkpoint

GATHER = """
import sys, torch, torch.distributed as dist
from fairseq_lxsr.terms._gather import gather_rows
from fairseq_lxsr.losses import alignment_loss
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.manual_seed(0)
u, v = torch.randn(5, 4), torch.randn(5, 4)
rows = [slice(0, 3), slice(3, 5)][rank]  # batches of unequal size
mine = [x[rows].clone().requires_grad_() for x in (u, v)]
loss = alignment_loss(*mine, candidates=gather_rows(*mine, capacity=3))
loss.backward()
torch.save([loss.detach(), mine[0].grad, mine[1].grad], sys.argv[3])
dist.barrier()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_both(commands) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    for process in running:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output[-3000:]


def test_gathered_loss_and_gradients_equal_one_big_batch(tmp_path):
    from fairseq_lxsr.losses import alignment_loss

    port = free_port()
    run_both([[sys.executable, "-c", GATHER, str(rank), str(port), str(tmp_path / f"{rank}.pt")] for rank in (0, 1)])
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.manual_seed(0)
    u, v = (torch.randn(5, 4).requires_grad_() for _ in range(2))
    expected = alignment_loss(u, v)
    expected.backward()
    torch.testing.assert_close(parts[0][0] + parts[1][0], expected.detach())
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), u.grad)
    torch.testing.assert_close(torch.cat([part[2] for part in parts]), v.grad)


def train_both(data, save_dir, options: dict[str, str], *flags) -> None:
    """fairseq-train in two processes that make one model."""
    port = free_port()
    words = [word for item in (TRAIN_OPTIONS | options).items() for word in item]
    distributed = (
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", "--distributed-world-size", "2"),
        *("--distributed-no-spawn", "--distributed-init-method", f"tcp://127.0.0.1:{port}"),
    )
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), "--cpu", "--save-dir", str(save_dir)]
    run_both(
        [*command, *words, *distributed, "--no-epoch-checkpoints", *flags, "--distributed-rank", str(rank)]
        for rank in (0, 1)
    )


@pytest.mark.parametrize("flags", [(), ("--gather-negatives",)])
def test_two_processes_train_one_model(tmp_path, toy_work, flags):
    train_both(toy_work / "data-bin", tmp_path, {"--max-epoch": "2"}, *flags)
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    # 900 pairs in 29 batches of 32, dealt to two, two epochs
    assert state["optimizer_history"][-1]["num_updates"] == 30


@pytest.mark.parametrize("arch", ["laser_tiny", "tlaser_tiny"])
def test_two_processes_train_one_translation_model(tmp_path, toy_work, arch):
    options = {
        "--task": "xling_translation",
        "--criterion": "xling_translation_loss",
        "--constraint": "norm",
        "--arch": arch,
        "--max-epoch": "1",
    }
    train_both(toy_work / "data-bin", tmp_path, options)
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    # two directions of 900 pairs, 29 batches of 32 each, dealt to two
    assert state["optimizer_history"][-1]["num_updates"] == 29
    assert all(value.isfinite().all() for value in state["model"].values())
