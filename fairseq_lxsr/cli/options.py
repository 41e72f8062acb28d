"""The option --model and its values, for every verb that measures, mines or searches."""

import argparse
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import FILE_NAME, Range, at_least, option

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fairseq_lxsr.cluster import Workers
    from fairseq_lxsr.cluster.workers import Load
    from fairseq_lxsr.embeddings import Encoder

Filled = TypeVar("Filled")


OUR_MODEL = (
    "model folder of `lxsr export folder`, or its name where it is one of this package, or the address of its archive, "
    "https://.../NAME.tar.gz#sha256=HEX"
)
ANY_MODEL = (
    f"{OUR_MODEL}; word vectors (.vec, .vec.gz); a folder of sentence-transformers or of a Hugging Face encoder; or a "
    "folder of embeddings, NAME.npy or LASER-raw NAME.raw for a text file NAME. Repeated as LANG=... for languages "
    "that have a model each. After the name of a model folder, #untrained takes random weights; of word vectors, #sum "
    "or #idf combines words otherwise than by the mean; of LASER-raw embeddings, #dim=N is the width (without it 1024)"
)


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for each field of a dataclass that `option` declares: `--lang-pairs` for
    `lang_pairs`.
    """
    hints = get_type_hints(kind)
    for item in fields(kind):
        if not item.metadata.get("help") or item.metadata["only_in_files"]:
            continue
        how: dict[str, Any] = {"help": item.metadata["help"]}
        allowed = item.metadata.get("range")
        if hints[item.name] is bool:
            how["action"] = argparse.BooleanOptionalAction if item.default else "store_true"
        elif "choices" in item.metadata:
            how["choices"] = item.metadata["choices"]
        elif allowed is not None:
            how |= (
                {"type": allowed, "metavar": "N"}
                if isinstance(allowed, Range)
                else {"type": allowed}
            )
        if item.default is MISSING:
            how["required"] = True
        else:
            how["default"] = item.default
            if item.default not in (None, False, ()) and "default" not in how["help"]:
                how["help"] += f" (default: {item.default})"
        if item.metadata["how"].get("nargs") == "+":
            how |= {"action": "extend", "default": []}  # given twice, it has all of them
        parser.add_argument(
            f"--{item.name.replace('_', '-')}", **how | item.metadata.get("how", {})
        )


def filled(kind: type[Filled], args: argparse.Namespace, **others: Any) -> Filled:
    """Fill a dataclass of `add_options` from a parsed command line; `others` are fields that are no
    options of it.
    """
    given = {item.name: getattr(args, item.name) for item in fields(kind) if item.name in args}  # type: ignore[arg-type]
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
        | others
    )


@dataclass(frozen=True)
class Batching:
    """How `embeddings.load` is told to encode."""

    batch_size: int = option("sentences encoded together", 256, at_least(1))
    device: str | None = option(
        "cpu or cuda (default: cuda for layers, where there is one)", None, metavar="NAME"
    )


def add_any_model_options(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --model for any encoder; `default` says in the help what is taken without it."""
    parser.add_argument(
        "--model",
        required=not default,
        action="append",
        type=model_name,
        metavar="[LANG=]PATH",
        help=ANY_MODEL + (f" (default: {default})" if default else ""),
    )
    add_options(parser, Batching)


def model_name(text: str) -> str:
    """Check a value of --model, as `type=` of argparse."""
    from fairseq_lxsr.embeddings.load import (
        ModelName,
    )  # brings numpy, which verbs without --model do not need

    try:
        ModelName.parse(FILE_NAME(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def load_any(args: argparse.Namespace, **options: Any) -> "Encoder":
    """Load the encoder that --model names, see `embeddings.load`; `options` are of our model
    folders.
    """
    from fairseq_lxsr.embeddings import load

    check_language(args)
    return load(args.model, **vars(filled(Batching, args)), **{"show_progress": True} | options)


def named_languages(args: argparse.Namespace) -> list[str]:
    """Return the languages that --model names; the vectors of a text then depend on --lang."""
    from fairseq_lxsr.embeddings.load import parse_names

    return [name.language for name in parse_names(args.model) if name.language]


def check_language(args: argparse.Namespace) -> None:
    """Check that the languages of the text are given where --model names languages, and --lang only
    there.
    """
    named, models = named_languages(args), " ".join(args.model)
    for name, is_used, example in (
        ("lang", True, named[:1]),
        ("lang_pair", True, named[:2]),
        ("lang_pairs", "source" in args and args.source, named[:2]),
    ):
        if named and is_used and name in args and not getattr(args, name):
            given = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--model {models} without {given}; expected the languages of the text, for example {given} "
                + "-".join(example)
            )
    if not named and "lang" in args and args.lang:
        raise InputError(
            f"--lang {args.lang} with --model {models}, which names no language; leave it out"
        )


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
        "--workers",
        type=at_least(1),
        metavar="N",
        help="of --ray (default: one a core; one a GPU with --device cuda)",
    )
    parser.add_argument(
        "--shard-lines", type=at_least(1), metavar="N", help="of --ray (default: 1,000,000)"
    )


def in_cluster(args: argparse.Namespace) -> bool:
    """Return whether the work is done in a cluster."""
    if args.ray is None:
        for option, value in (("--workers", args.workers), ("--shard-lines", args.shard_lines)):
            if value is not None:
                raise InputError(f"{option} {value} without --ray; expected both, or neither")
        return False
    from fairseq_lxsr.cluster.workers import check_address
    from fairseq_lxsr.machine import require

    require("ray", "ray", "--ray")
    check_address(args.ray)
    return True


def workers(args: argparse.Namespace, load: "Load") -> "AbstractContextManager[Workers]":
    """Start the workers that the options name; each loads the encoder."""
    from fairseq_lxsr.cluster import SHARD_LINES, Cluster, connect

    gpu = (args.device or "").startswith("cuda")
    return connect(Cluster(args.ray, args.workers, gpu, args.shard_lines or SHARD_LINES), load)


def summary(done: dict[str, Any], workers: "Workers") -> str:
    """Describe how the work was divided."""
    kept = f" ({done['kept']:,} were there)" if done["kept"] else ""
    return f"{done['shards']:,} shards{kept}, {workers.seconds:,.0f} s of processors in the workers"


def data_first(args: argparse.Namespace) -> None:
    """Find the data of a verb that passes options on: `--max-update 500 DATA` reads as if 500 were
    the data.
    """
    words, others = args.command_line, args.others
    before = words[words.index(args.data) - 1] if args.data in words else ""
    place = (
        others.index(before) + 1 if before.startswith("--") and before in others else len(others)
    )
    if place < len(others) and not others[place].startswith("--"):
        args.data, others[place] = others[place], args.data
