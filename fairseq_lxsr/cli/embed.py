"""`lxsr embed`: write the embeddings of text of any length to a file, in constant memory."""

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.cli.options import (
    add_any_model_options,
    add_entities,
    add_ray_options,
    in_cluster,
    load_any,
    named_languages,
    summary,
    workers,
)
from fairseq_lxsr.errors import InputError, SentenceError
from fairseq_lxsr.files.entities import EntityReader, first_lines
from fairseq_lxsr.files.lines import peek, read_lines
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import (
    COMPUTE_DTYPES,
    EMBEDDING_DTYPES,
    EMBEDDING_FORMATS,
    FILE_NAME,
    ON_LONG,
    at_least,
    output_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from fairseq_lxsr.embeddings import Encoder, Layout, Text


def add_parser(verbs) -> None:
    parser = verbs.add_parser("embed", description=__doc__)
    add_any_model_options(parser)
    parser.add_argument(
        "--lang",
        default="",
        metavar="LANG",
        help="language of the input, required if --model specifies several languages",
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        action="extend",
        type=FILE_NAME,
        metavar="FILE",
        help="UTF-8 text, one sentence per line, also compressed (.gz, .bz2, .xz, .zst); several "
        "files are concatenated; - for standard input",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=output_path,
        metavar="FILE",
        help="file for the embeddings; their metadata is written to FILE.json",
    )
    parser.add_argument(
        "--format",
        choices=EMBEDDING_FORMATS,
        help="output format; raw has no header, as LASER's scripts expect (default: from the name "
        "of --output, otherwise npy)",
    )
    parser.add_argument(
        "--output-dtype",
        choices=EMBEDDING_DTYPES,
        default="float32",
        help="data type of the stored values; int8 is calibrated on the first 20,000 lines, binary "
        "stores the sign of each dimension as one bit (default: float32)",
    )
    parser.add_argument(
        "--dtype",
        choices=COMPUTE_DTYPES,
        default="float32",
        help="data type used in computation (default: float32)",
    )
    parser.add_argument("--normalize", action="store_true", help="scale embeddings to unit length")
    parser.add_argument(
        "--truncate-dim", type=at_least(1), metavar="N", help="keep only the first N dimensions"
    )
    parser.add_argument(
        "--on-long",
        choices=ON_LONG,
        default="cut",
        help="how to handle lines longer than the model's limit: cut truncates them, split-mean "
        "averages the embeddings of their parts, error stops (default: cut)",
    )
    add_entities(parser)
    parser.add_argument(
        "--shard",
        type=parse_shard,
        metavar="I/N",
        help="embed only the I-th of N equal parts of the lines, 1/N to N/N",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run; the output is the same as without the interruption",
    )
    add_ray_options(parser, "--output is then a folder of files and shards.json")
    parser.set_defaults(run=run_embed)


def run_embed(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import refuse_idf
    from fairseq_lxsr.embeddings.formats import find_format

    args.format = output_format(args)
    find_format(args.format).check()
    refuse_idf(args.model)
    if in_cluster(args):
        embed_in_cluster(args)
    else:
        embed_here(args)


def embed_here(args: argparse.Namespace) -> None:
    """Embed the lines in this process."""
    from fairseq_lxsr.embeddings import embed_lines, model_files, side_files, width_of

    outputs = [args.output, *side_files(args.output)]
    refuse_overlap(outputs, [*args.input, *model_files(args.model)])
    encoder = load_encoder(args)
    input_length = count_lines(args.input)
    levels, lines = find_levels(args)
    lines, num_lines, first_line = shard_lines(lines, input_length, args.shard)
    # The width of the embeddings is known only after the first line has been embedded.
    line, lines = peek(lines)
    width = width_of(encoder, input_text(args, line, first_line, input_length))
    layout = output_layout(args, width)
    settings = describe(args, encoder.fingerprint, layout, first_line, levels)
    # The embeddings of a model and its teacher share a space, so they can be compared.
    space = getattr(encoder, "space", encoder.fingerprint)
    if space != encoder.fingerprint:
        settings["space"] = space
    metadata = embed_lines(
        lines,
        line_embedder(args, input_length, levels, encoder, first_line),
        args.output,
        layout,
        settings,
        resume=args.resume,
        total=num_lines,
        show_progress=True,
    )
    print_summary(args, metadata, layout)


def print_summary(args: argparse.Namespace, metadata: dict[str, Any], layout: "Layout") -> None:
    from fairseq_lxsr.embeddings import index_path

    print(
        f"{args.output}: {metadata['count']:,} embeddings of width {layout.width}"
        f"{special_lines(metadata)}, model {metadata['model']}, "
        f"described in {index_path(args.output).name}"
    )
    if is_laser_file(layout):
        print(f"options of LASER's scripts for this file: {laser_options(layout)}")
    report_entities(args, metadata)


def special_lines(metadata: dict[str, Any]) -> str:
    """Format the numbers of empty and long lines, for the middle of a message."""
    message = ""
    for kind in ("empty", "long"):
        if metadata[kind]:
            message += f", {metadata[kind]:,} {kind}"
    return message


def report_entities(args: argparse.Namespace, metadata: dict[str, Any]) -> None:
    """Print how many lines contain HTML entities, and whether these were replaced."""
    reader = EntityReader(args.entities)
    reader.num_unescaped = metadata.get("entities_replaced", 0)
    reader.num_kept = metadata.get("entities_kept", 0)
    reader.report("lines")


def embed_in_cluster(args: argparse.Namespace) -> None:
    """Embed the lines in shards, in the workers of a Ray cluster."""
    from fairseq_lxsr.cluster import Embedding, embed_shards
    from fairseq_lxsr.embeddings import model_files

    if args.shard:
        raise InputError(
            "--shard cannot be used with --ray, which splits the text itself; use --ray alone"
        )
    refuse_overlap([args.output], [*args.input, *model_files(args.model)])
    input_length = count_lines(args.input)
    levels, lines = find_levels(args)
    line, lines = peek(lines)
    with workers(args, partial(load_encoder, args)) as cluster:
        layout = output_layout(args, cluster.width_of(input_text(args, line, 0, input_length)))
        settings = describe(args, cluster.model, layout, 0, levels)
        embedder = partial(line_embedder, args, input_length, levels)
        embedding = Embedding(layout, settings, embedder)
        report = embed_shards(lines, args.output, embedding, cluster)
    print(
        f"{args.output}: {report['count']:,} embeddings of width {layout.width}"
        f"{special_lines(report)}, model {cluster.model}, {summary(report, cluster)}"
    )
    report_entities(args, report)


def output_format(args: argparse.Namespace) -> str:
    """Return the output format given by --format or the name of --output (default: npy)."""
    from fairseq_lxsr.embeddings.formats import format_name

    name = None
    # In a cluster, --output is a folder of files.
    if not in_cluster(args):
        name = format_name(args.output)
    if name and args.format and name != args.format:
        raise InputError(
            f"--format {args.format} does not match --output {args.output}, which implies "
            f"{name}; omit --format, or choose another name"
        )
    return args.format or name or "npy"


def load_encoder(args: argparse.Namespace) -> "Encoder":
    """Load the encoder specified by --model, with the computation options."""
    from fairseq_lxsr.embeddings import ModelFolder

    encoder = load_any(args, show_progress=False, dtype=args.dtype, on_long=args.on_long)
    defaults = (COMPUTE_DTYPES[0], ON_LONG[0])
    if (args.dtype, args.on_long) != defaults and not isinstance(encoder, ModelFolder):
        raise InputError(
            f"--dtype {args.dtype} and --on-long {args.on_long} are not supported for --model "
            f"{' '.join(args.model)}; use a model folder of `lxsr export folder`, or omit both"
        )
    return encoder


def output_layout(args: argparse.Namespace, width: int) -> "Layout":
    """Return the layout of the output, given the width of the encoder's embeddings."""
    from fairseq_lxsr.embeddings import Layout

    if args.truncate_dim and args.truncate_dim > width:
        raise InputError(
            f"--truncate-dim {args.truncate_dim} is invalid; expected 1 to {width}, the width of "
            "the model"
        )
    return Layout(args.format, args.output_dtype, args.truncate_dim or width)


def read_inputs(args: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of all inputs."""
    return chain.from_iterable(map(read_lines, args.input))


def find_levels(args: argparse.Namespace) -> tuple[int, Iterator[str]]:
    """Return how many times to replace HTML entities in each line, and all lines of the inputs."""
    beginning, lines = first_lines(read_inputs(args))
    return EntityReader(args.entities).levels_of(beginning), lines


def input_text(
    args: argparse.Namespace, lines: list[str], first_line: int, input_length: int | None
) -> "Text":
    """Return input lines together with their file and line number.

    Args:
        args: the parsed command line.
        lines: consecutive lines of the input.
        first_line: zero-based index of the first line.
        input_length: number of lines in the whole input; None if unknown.
    """
    import numpy as np

    from fairseq_lxsr.embeddings import Text

    # With several inputs, these line numbers count the lines of all files.
    file = ""
    if len(args.input) == 1:
        file = args.input[0]
    return Text(lines, args.lang, file, first_line + np.arange(len(lines)), input_length)


def line_embedder(
    args: argparse.Namespace,
    input_length: int | None,
    levels: int,
    encoder: "Encoder",
    first_line: int,
) -> "Callable[[list[str], Counter[str]], np.ndarray]":
    """Return a function that embeds the input, one window of lines per call.

    Args:
        args: the parsed command line.
        input_length: number of lines in the whole input; None if unknown.
        levels: how many times to replace HTML entities.
        encoder: the encoder.
        first_line: zero-based index of the first line of the first window.
    """
    from fairseq_lxsr.vectors.rows import unit_rows

    def encode(window: list[str], counts: Counter[str]) -> "np.ndarray":
        # `counts` includes the lines of all previous windows.
        start = first_line + counts["lines"]
        entities = EntityReader(args.entities)
        # The metadata file contains a hash of the original lines, so they are not changed.
        sentences = [entities.unescaped(line, levels) for line in window]
        counts["entities_replaced"] += entities.num_unescaped
        counts["entities_kept"] += entities.num_kept
        text = input_text(args, sentences, start, input_length)
        try:
            embeddings = encoder.embed(text, counts)[:, : args.truncate_dim]
        except SentenceError as error:
            row, sentence, problem = error.args
            place = line_place(args.input, start + row)
            raise InputError(f"{place}: {sentence!r:.60}: {problem}") from None
        if args.normalize:
            return unit_rows(embeddings)
        return embeddings

    return encode


def describe(
    args: argparse.Namespace, fingerprint: str, layout: "Layout", first_line: int, levels: int
) -> dict[str, Any]:
    """Return the settings that determine the output, for its metadata file."""
    settings = {
        "model": fingerprint,
        "input": list(map(input_name, args.input)),
        "first_line": first_line + 1,
        "shard": args.shard and "{}/{}".format(*args.shard),
        "computed_in": args.dtype,
        "normalize": args.normalize,
        "on_long": args.on_long,
        "entity_levels": levels or None,
    }
    if args.truncate_dim:
        settings["truncate_dim"] = args.truncate_dim
    if args.dtype == "int8":
        # The int8 scales are computed per batch, so the batch size changes the values slightly.
        settings["batch_size"] = args.batch_size
    if named_languages(args):
        settings["language"] = args.lang
    if is_laser_file(layout):
        settings["laser_options"] = laser_options(layout)
    return settings


def input_name(path: str) -> str:
    """Return the file name of an input without its folder, which may change between runs.

    Return `-` for standard input and pipes.
    """
    if is_stream(path):
        # The name of a pipe such as `<(zcat a.gz)` differs between runs.
        return "-"
    return Path(path).name


def is_laser_file(layout: "Layout") -> bool:
    """Return whether LASER's scripts can read this file layout."""
    return layout.format == "raw" and layout.dtype.startswith("float")


def laser_options(layout: "Layout") -> str:
    """Return the options that LASER's mine_bitexts.py and xsim.py need to read raw embeddings.

    Raw embeddings have no header, so the scripts need the dimension and the type of the values.
    """
    options = f"--dim {layout.width}"
    if layout.dtype == "float16":
        options += " --fp16"
    return options


def is_stream(name: str) -> bool:
    """Return whether an input can be read only once.

    This is true for standard input and for pipes such as `<(zcat a.gz b.gz)`.
    """
    path = Path(name)
    return name == "-" or (path.exists() and not path.is_file() and not path.is_dir())


def count_lines(paths: list[str]) -> int | None:
    """Return the total number of input lines, or None if an input can be read only once."""
    if "-" in paths and len(paths) > 1:
        raise InputError(
            "--input - cannot be combined with files; use either - (standard input) or files"
        )
    if any(map(is_stream, paths)):
        return None
    num_lines = sum(1 for _ in chain.from_iterable(map(read_lines, paths)))
    if not num_lines:
        raise InputError(f"{' '.join(paths)}: empty file; expected one sentence per line")
    return num_lines


def line_place(paths: list[str], number: int) -> str:
    """Return the file and line number of an input line, for messages.

    Args:
        paths: the inputs.
        number: zero-based line index across all inputs.
    """
    if len(paths) == 1:
        return f"{paths[0]}, line {number + 1:,}"
    lines_before = 0
    for path in paths:
        if not Path(path).is_file():
            # A stream has already been consumed, so its lines cannot be counted.
            break
        num_lines = sum(1 for _ in read_lines(path))
        if number < lines_before + num_lines:
            return f"{path}, line {number - lines_before + 1:,}"
        lines_before += num_lines
    return f"line {number + 1:,} of the input"


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard number and the number of shards; used as an argparse `type=`."""
    part, _, parts = text.partition("/")
    try:
        num_parts = int(at_least(1)(parts))
        return int(at_least(1, num_parts)(part)), num_parts
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r:.60} is invalid; expected for example 2/4, the second of four parts"
        ) from None


def shard_lines(
    lines: Iterator[str], input_length: int | None, shard: tuple[int, int] | None
) -> tuple[Iterator[str], int | None, int]:
    """Return the lines of one shard of the input.

    Args:
        lines: lines of the whole input.
        input_length: number of lines; None if unknown.
        shard: shard number, from 1, and number of shards; None for the whole input.

    Returns:
        The lines of the shard, the number of lines (None if unknown), and the zero-based index of
        the first line in the input.
    """
    if shard is None:
        return lines, input_length, 0
    part, num_parts = shard
    if input_length is None:
        raise InputError(
            f"--shard {part}/{num_parts} cannot be used with a stream, whose length is unknown; "
            "use a file"
        )
    start = input_length * (part - 1) // num_parts
    stop = input_length * part // num_parts
    if start == stop:
        raise InputError(
            f"--shard {part}/{num_parts} would be empty, because the input has {input_length:,} "
            "lines; use fewer parts"
        )
    return islice(lines, start, stop), stop - start, start
