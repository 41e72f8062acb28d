"""The options of verbs that work in a Ray cluster: --ray, --workers, --shard-lines."""

import argparse
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.ranges import at_least

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fairseq_lxsr.cluster import Workers
    from fairseq_lxsr.cluster.workers import Load

LOCAL = "local"


def add_ray_options(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the options; `output` says in the help what is written."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="work in shards, in the workers of a Ray cluster: local, processes of this machine (the same as --ray "
        f"alone); auto, the cluster that runs; HOST:PORT or ray://HOST:PORT. {output}; a rerun does what is missing",
    )
    parser.add_argument(
        "--workers", type=at_least(1), metavar="N", help="of --ray (default: one a core; one a GPU with --device cuda)"
    )
    parser.add_argument("--shard-lines", type=at_least(1), metavar="N", help="of --ray (default: 1,000,000)")


def in_cluster(args: argparse.Namespace) -> bool:
    """Return whether the work is done in a cluster.

    Raises:
        InputError: for options of --ray without it, and for an address that is none.
    """
    if args.ray is None:
        for option, value in (("--workers", args.workers), ("--shard-lines", args.shard_lines)):
            if value is not None:
                raise InputError(f"{option} {value} without --ray; expected both, or neither")
        return False
    from fairseq_lxsr.cluster.workers import check_address
    from fairseq_lxsr.optional import require

    require("ray", "ray", "--ray")
    check_address(args.ray)
    return True


def shard_lines(args: argparse.Namespace) -> int:
    from fairseq_lxsr.cluster import SHARD_LINES

    return args.shard_lines or SHARD_LINES


def workers(args: argparse.Namespace, load: "Load") -> "AbstractContextManager[Workers]":
    """Start the workers that the options name; each loads the encoder."""
    from fairseq_lxsr.cluster import Cluster, connect

    gpu = (args.device or "").startswith("cuda")
    return connect(Cluster(args.ray, args.workers, gpu), load)


def summary(done: dict[str, Any], workers: "Workers") -> str:
    """Describe how the work was divided."""
    kept = f" ({done['kept']:,} were there)" if done["kept"] else ""
    return f"{done['shards']:,} shards{kept}, {workers.seconds:,.0f} s of processors in the workers"
