"""Training in two processes on the CPU, with candidates gathered from both."""

import json
import shutil
import socket
import subprocess

import pytest
import torch
from conftest import ROOT, TRAIN_OPTIONS, forked_commands, forked_environment, wait_until

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.losses import alignment_loss

# One of two processes: its rank, a port, the file for the results, and the cases.
GATHER = """
import json, sys, torch, torch.distributed as dist
from types import SimpleNamespace
from fairseq_lxsr.training.lightweight.terms.alignment import AlignmentTerm

rank = int(sys.argv[1])
address = f"tcp://127.0.0.1:{sys.argv[2]}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
cfg = SimpleNamespace(
    align_weight=1, align_similarity="inner", align_temperature=1, hard_negatives="none",
    matryoshka=None, gather_negatives=True, batch_size=3,
)
term = AlignmentTerm(cfg, SimpleNamespace(vocabulary=None))
# Batches of different sizes.
rows = [slice(0, 3), slice(3, 5)][rank]
results = []
for pair_numbers, dummy_rank in json.loads(sys.argv[4]):
    torch.manual_seed(0)
    source = torch.randn(5, 4)[rows].clone().requires_grad_()
    target = torch.randn(5, 4)[rows].clone().requires_grad_()
    batch = {"pair_number": torch.tensor(pair_numbers)[rows]}
    if rank == dummy_rank:
        batch["is_dummy"] = True
    output = {"embeddings": {"source": source, "target": target}}
    loss = term.loss(output, batch, training=True)
    # As fairseq does with batches that are only there to keep processes in step.
    (loss * (rank != dummy_rank)).backward()
    results.append([loss.detach(), source.grad, target.grad])
torch.save(results, sys.argv[3])
dist.barrier()
dist.destroy_process_group()
"""
# Numbers of five pairs, of which the first worker has three.
DIFFERENT = [0, 1, 2, 3, 4]
# The first pair of both workers is the same.
REPEATED = [7, 1, 2, 7, 4]
# The numbers, and the worker whose batch is only there to keep both in step.
CASES = [(DIFFERENT, None), (REPEATED, None), (DIFFERENT, 1), (DIFFERENT, 0), (REPEATED, 1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_python(arguments) -> subprocess.Popen:
    # Killing this process kills the fork.
    command = [forked_commands() / "python", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=forked_environment(), **pipes)


def wait_for(process: subprocess.Popen, status: int = 0) -> str:
    """Wait for the end of a process with this exit status; return its output."""
    output, _ = process.communicate(timeout=200)
    assert process.returncode == status, output[-3000:]
    return output


def run_all(commands) -> None:
    """Run Python with several lists of arguments at once."""
    processes = [start_python(command) for command in commands]
    for process in processes:
        wait_for(process)


def slow_alignment(source, target, pair_numbers, dummy_rank) -> list[torch.Tensor]:
    """Reference: the loss of each worker, one sentence at a time."""
    workers = [0, 0, 0, 1, 1]
    losses = [source.new_zeros(()), source.new_zeros(())]
    for queries, candidates in ((source, target), (target, source)):
        for query in range(5):
            indices = []
            for candidate in range(5):
                is_other_pair = pair_numbers[candidate] != pair_numbers[query]
                is_real = workers[candidate] != dummy_rank
                if candidate == query or (is_real and is_other_pair):
                    indices.append(candidate)
            scores = torch.stack([queries[query] @ candidates[index] for index in indices])
            log_probabilities = scores.log_softmax(0)
            worker = workers[query]
            losses[worker] = losses[worker] - log_probabilities[indices.index(query)]
    return losses


@pytest.mark.slow
def test_the_loss_of_gathered_candidates_and_its_gradients_equal_the_slow_reference(tmp_path):
    port = str(free_port())
    files = [tmp_path / "0.pt", tmp_path / "1.pt"]
    commands = []
    for rank, file in enumerate(files):
        commands.append(["-c", GATHER, str(rank), port, str(file), json.dumps(CASES)])

    run_all(commands)

    first, second = (torch.load(file, weights_only=True) for file in files)
    for (pair_numbers, dummy_rank), *results in zip(CASES, first, second, strict=True):
        torch.manual_seed(0)
        source = torch.randn(5, 4).requires_grad_()
        target = torch.randn(5, 4).requires_grad_()
        losses = slow_alignment(source, target, pair_numbers, dummy_rank)
        if (pair_numbers, dummy_rank) == CASES[0]:
            # The same as one batch of all pairs.
            torch.testing.assert_close(sum(losses), alignment_loss(source, target))
        sum(loss for rank, loss in enumerate(losses) if rank != dummy_rank).backward()
        # A result is the loss of a worker, and the gradients of its source and target sentences.
        for loss, result in zip(losses, results, strict=True):
            torch.testing.assert_close(result[0], loss.detach())
        torch.testing.assert_close(torch.cat([result[1] for result in results]), source.grad)
        torch.testing.assert_close(torch.cat([result[2] for result in results]), target.grad)


def train_command(data, save_dir, options: dict[str, str], *flags) -> list[str]:
    words = [word for item in (TRAIN_OPTIONS | options).items() for word in item]
    command = ["-m", "fairseq_cli.train", str(data), "--cpu", "--save-dir", str(save_dir)]
    return [*command, *words, "--no-epoch-checkpoints", *flags]


def two_workers(command: list[str]) -> list[list[str]]:
    """The commands of two processes that train one model."""
    command = [*command, "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    command += ["--distributed-world-size", "2", "--distributed-no-spawn"]
    command += ["--distributed-init-method", f"tcp://127.0.0.1:{free_port()}"]
    return [[*command, "--distributed-rank", "0"], [*command, "--distributed-rank", "1"]]


@pytest.mark.slow
def test_two_workers_train_like_one_with_twice_the_batch(tmp_path, toy_work):
    """Losses, gradients, weights and moments are the same.

    Batches differ in size between the workers:

    - The last of 15 updates in epoch 1 has 4 of 900 pairs: 4 for one worker, none for the other.
    - The last of 2 updates in epoch 2 has 36 of 100 pairs: 32 and 4.
    - Validation on 100 pairs has batches of 48, 48 and 4: 24 each, then 4 and none.
    """
    shards = [toy_work / "data-bin", tmp_path / "second"]
    shutil.copytree(*shards)
    # The manifest names the files that are renamed here.
    (shards[1] / "stage.json").unlink()
    for path in shards[1].glob("valid.*"):
        path.replace(path.with_name(path.name.replace("valid", "train")))
    options = {
        "--max-update": "20",
        "--curriculum": "9",
        "--dropout": "0",
        "--sim-weight": "0",
        "--log-interval": "1",
        "--log-format": "json",
        # The bias of the keys has a gradient of zero; Adam would scale its rounding errors.
        "--adam-eps": "1e-4",
    }
    data = ":".join(str(shard) for shard in shards)

    def command(name, batch_size, valid_batch_size):
        sizes = {
            "--batch-size": str(batch_size),
            "--batch-size-valid": str(valid_batch_size),
            "--log-file": str(tmp_path / f"{name}.log"),
        }
        return train_command(data, tmp_path / name, options | sizes, "--gather-negatives")

    run_all([*two_workers(command("two", 32, 24)), command("one", 64, 48)])

    log_of_one = read_log(tmp_path / "one.log")
    log_of_two = read_log(tmp_path / "two.log")
    # 20 updates and 3 validations.
    assert len(log_of_two) == 23
    assert log_of_two.keys() == log_of_one.keys()
    for step, figures in log_of_one.items():
        assert log_of_two[step] == pytest.approx(figures, rel=1e-4, abs=1e-3), step
    state_of_one = read_checkpoint(tmp_path / "one" / "checkpoint_last.pt")
    state_of_two = read_checkpoint(tmp_path / "two" / "checkpoint_last.pt")
    weights_of_two = state_of_two["model"]
    torch.testing.assert_close(weights_of_two, state_of_one["model"], rtol=1e-3, atol=1e-5)
    moments_of_one = state_of_one["last_optimizer_state"]["state"]
    moments_of_two = state_of_two["last_optimizer_state"]["state"]
    for key, moments in moments_of_one.items():
        mean_gradient = moments_of_two[key]["exp_avg"]
        torch.testing.assert_close(mean_gradient, moments["exp_avg"], rtol=1e-3, atol=1e-5)


def read_log(path) -> dict[tuple[str, str], dict[str, float]]:
    """Losses and norm of the gradient of each update, and losses of each validation."""
    steps = {}
    for line in path.read_text().splitlines():
        if not line.startswith('{"epoch"') or "train_loss" in line:
            continue
        figures = json.loads(line)
        if "valid_loss" in figures:
            prefix = "valid_"
            names = ["valid_loss", "valid_gen", "valid_align"]
        else:
            prefix = ""
            names = ["loss", "gen", "align", "gnorm"]
        step = (prefix, figures[f"{prefix}num_updates"])
        steps[step] = {name: float(figures[name]) for name in names}
    return steps


@pytest.mark.slow
def test_after_the_kill_of_a_worker_the_other_ends_with_an_error_and_the_run_can_be_resumed(
    tmp_path, toy_work
):
    def start(updates):
        options = {"--max-update": str(updates), "--save-interval-updates": "10"}
        command = train_command(toy_work / "data-bin", tmp_path, options, "--disable-validation")
        return [start_python(worker) for worker in two_workers(command)]

    # Killed after the first checkpoint, which is that of update 10.
    last = tmp_path / "checkpoint_last.pt"
    survivor, killed = start(100_000)
    wait_until(last.exists, killed, seconds=200)
    killed.kill()
    killed.communicate()
    output = wait_for(survivor, status=2)
    assert "Traceback" not in output
    assert ": error: " in output
    updates = read_checkpoint(last)["optimizer_history"][-1]["num_updates"]
    assert updates >= 10

    # Resumed for two updates more.
    for process in start(updates + 2):
        wait_for(process)
    assert read_checkpoint(last)["optimizer_history"][-1]["num_updates"] == updates + 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["laser_tiny", "tlaser_tiny"])
def test_two_processes_train_one_translation_model(tmp_path, toy_work, arch):
    options = {
        "--task": "xling_translation",
        "--criterion": "xling_translation_loss",
        "--constraint": "norm",
        "--arch": arch,
        "--max-epoch": "1",
    }

    run_all(two_workers(train_command(toy_work / "data-bin", tmp_path, options)))

    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    # Two directions of 900 pairs are 58 batches of 32, for two workers.
    assert state["optimizer_history"][-1]["num_updates"] == 29
    for value in state["model"].values():
        assert value.isfinite().all()
