"""Options shared by several subcommands, such as --model and --ray, or declared in dataclasses."""

import argparse
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.entities import ENTITIES, ENTITIES_HELP
from fairseq_lxsr.options import FILE_NAME, Range, at_least, option

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fairseq_lxsr.cluster import Workers
    from fairseq_lxsr.cluster.workers import LoadEncoder
    from fairseq_lxsr.embeddings import Encoder

Filled = TypeVar("Filled")


OUR_MODEL = (
    "model folder from `lxsr export folder`, name of a model in this package, name of a model on a "
    "hub, hub:ORG/NAME or hub:ORG/NAME@REVISION, or URL of an archive, "
    "https://.../NAME.tar.gz#sha256=HEX"
)
ANY_MODEL = (
    f"{OUR_MODEL}; word vectors (.vec, .vec.gz); a sentence-transformers folder or a Hugging "
    "Face encoder folder; or a folder of embeddings, NAME.npy or LASER-raw NAME.raw for a text "
    "file NAME. Repeat it as LANG=... to use one model per language. A model folder with "
    "#untrained gets random weights; word vectors with #sum or #idf combine words by sum "
    "or by weighted mean instead of the mean; LASER-raw embeddings with #dim=N have the width N "
    "instead of 1024"
)


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add a command-line option for each dataclass field declared with `option`.

    The field `lang_pairs` becomes the option `--lang-pairs`.
    """
    hints = get_type_hints(kind)
    for item in fields(kind):
        if item.metadata.get("help") and not item.metadata["only_in_files"]:
            name = f"--{item.name.replace('_', '-')}"
            parser.add_argument(name, **_argument_options(item, hints[item.name]))


def _argument_options(item: Field, hint: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a dataclass field."""
    options: dict[str, Any] = {"help": item.metadata["help"]}
    allowed = item.metadata.get("range")
    if hint is bool:
        options["action"] = "store_true"
        if item.default:
            # An option that is on by default also has the form --no-NAME.
            options["action"] = argparse.BooleanOptionalAction
    elif "choices" in item.metadata:
        options["choices"] = item.metadata["choices"]
    elif allowed is not None:
        options["type"] = allowed
        if isinstance(allowed, Range):
            options["metavar"] = "N"
    if item.default is MISSING:
        options["required"] = True
    else:
        options["default"] = item.default
        if item.default not in (None, False, ()) and "default" not in options["help"]:
            options["help"] += f" (default: {item.default})"
    if item.metadata["arguments"].get("nargs") == "+":
        # If an option is given twice, its values are combined.
        options["action"] = "extend"
        options["default"] = []
    return options | item.metadata["arguments"]


def filled(kind: type[Filled], args: argparse.Namespace, **other_fields: Any) -> Filled:
    """Create an instance of a dataclass from the options that `add_options` added to the parser.

    Args:
        kind: the dataclass.
        args: the parsed command line.
        other_fields: values of fields that are not options of this command line.
    """
    values = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in args:
            value = getattr(args, item.name)
            # The fields are tuples, because the dataclasses are immutable.
            if isinstance(value, list):
                value = tuple(value)
            values[item.name] = value
    return kind(**values | other_fields)


@dataclass(frozen=True)
class Batching:
    """Batch size and device for encoding, passed to `embeddings.load`."""

    batch_size: int = option("number of sentences to encode at once", 256, at_least(1))
    device: str | None = option(
        "cpu or cuda (default: cuda for models with layers, if available)", None, metavar="NAME"
    )


def add_any_model_options(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --model for any encoder; `default` describes the default model in the help."""
    description = ANY_MODEL
    if default:
        description += f" (default: {default})"
    parser.add_argument(
        "--model",
        required=not default,
        action="append",
        type=model_name,
        metavar="[LANG=]PATH",
        help=description,
    )
    add_options(parser, Batching)


def add_truncate_dim(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --truncate-dim, with `meaning` as its help text."""
    parser.add_argument("--truncate-dim", type=at_least(1), metavar="N", help=meaning)


def add_entities(parser: argparse.ArgumentParser) -> None:
    """Add --entities, for `EntityReader`."""
    parser.add_argument(
        "--entities",
        choices=ENTITIES,
        default=ENTITIES[0],
        help=f"{ENTITIES_HELP} (default: {ENTITIES[0]})",
    )


def model_name(text: str) -> str:
    """Check a value of --model; used as an argparse `type=`."""
    # Imported here because it imports numpy, which subcommands without --model do not need.
    from fairseq_lxsr.embeddings.load import ModelName

    try:
        ModelName.parse(FILE_NAME(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def load_any(args: argparse.Namespace, **options: Any) -> "Encoder":
    """Load the encoder specified by --model; `options` are passed to `embeddings.load`."""
    from fairseq_lxsr.embeddings import load

    check_language(args)
    return load(args.model, **vars(filled(Batching, args)), **{"show_progress": True} | options)


def say_long(encoder: "Encoder") -> None:
    """Report how many texts were truncated, if any, because they are too long for the model."""
    from fairseq_lxsr.embeddings import count_long

    say_num_long(count_long(encoder))


def say_num_long(count: int) -> None:
    """Report a number of truncated texts, if there are any."""
    if count:
        say(f"texts that are too long for the model, and were truncated: {count:,}")


def named_languages(args: argparse.Namespace) -> list[str]:
    """Return the languages in --model, if it specifies a model for each language."""
    from fairseq_lxsr.embeddings.load import parse_names

    return [name.language for name in parse_names(args.model) if name.language]


def check_language(args: argparse.Namespace) -> None:
    """Raise an error unless the text language is given exactly when --model specifies languages."""
    languages = named_languages(args)
    models = " ".join(args.model)
    if not languages:
        if "lang" in args and args.lang:
            raise InputError(
                f"--lang {args.lang} with --model {models}, which does not specify languages; omit "
                "--lang"
            )
        return
    examples = {"lang": languages[:1], "lang_pair": languages[:2]}
    if "source" in args and args.source:
        examples["lang_pairs"] = languages[:2]
    for name, example in examples.items():
        if name in args and not getattr(args, name):
            option_name = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--model {models} requires {option_name}, the languages of the text, for "
                f"example {option_name} {'-'.join(example)}"
            )


LOCAL = "local"


def add_ray_options(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the options of a Ray cluster; `output` describes the outputs in the help."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="process the text in shards on Ray workers: local for processes on this machine (as "
        "--ray without ADDRESS), auto for the running cluster, HOST:PORT or ray://HOST:PORT. "
        f"{output}; a rerun computes only missing shards",
    )
    parser.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="number of Ray workers (default: one per core; with --device cuda one per GPU)",
    )
    parser.add_argument(
        "--shard-lines",
        type=at_least(1),
        metavar="N",
        help="lines per shard, with --ray (default: 1,000,000)",
    )


def in_cluster(args: argparse.Namespace) -> bool:
    """Check the Ray options, and return whether --ray is given."""
    if args.ray is None:
        for option, value in (("--workers", args.workers), ("--shard-lines", args.shard_lines)):
            if value is not None:
                raise InputError(f"{option} {value} requires --ray; use both, or neither")
        return False
    from fairseq_lxsr.cluster.workers import check_address
    from fairseq_lxsr.machine import require

    # Check the address before counting the text and loading models, which take longer.
    require("ray", "ray", "--ray")
    check_address(args.ray)
    return True


def workers(args: argparse.Namespace, load: "LoadEncoder") -> "AbstractContextManager[Workers]":
    """Start the Ray workers; each of them loads the encoder."""
    from fairseq_lxsr.cluster import SHARD_LINES, Cluster, connect

    # Ray assigns a separate GPU to each worker only if the worker requests one.
    gpu = (args.device or "").startswith("cuda")
    return connect(Cluster(args.ray, args.workers, gpu, args.shard_lines or SHARD_LINES), load)


def summary(done: dict[str, Any], workers: "Workers") -> str:
    """Return the number of shards and the worker time, formatted as the end of a message."""
    reused = ""
    if done["kept"]:
        reused = f" ({done['kept']:,} of an earlier run)"
    return f"{done['shards']:,} shards{reused}, {workers.seconds:,.0f} s of CPU time in the workers"


def data_first(args: argparse.Namespace) -> None:
    """Correct the data argument of a subcommand that passes options on to another program.

    argparse does not know those options, so it takes 500 for the data in `--max-update 500 DATA`.
    If the word before the data is such an option, the data and the word after it are exchanged.
    """
    words = args.command_line
    passed_on = args.others
    if args.data not in words:
        return
    preceding = words[words.index(args.data) - 1]
    if not preceding.startswith("--") or preceding not in passed_on:
        return
    position = passed_on.index(preceding) + 1
    if position < len(passed_on) and not passed_on[position].startswith("--"):
        value = args.data
        args.data = passed_on[position]
        passed_on[position] = value
