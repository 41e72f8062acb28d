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
    add_ray_options,
    in_cluster,
    load_any,
    named_languages,
    summary,
    workers,
)
from fairseq_lxsr.errors import InputError, SentenceError
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
        "--lang", default="", metavar="LANG", help="of the text, where --model names several"
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        action="extend",
        type=FILE_NAME,
        metavar="FILE",
        help="UTF-8 text, one sentence a line, .gz, .bz2, .xz or .zst too, several one after the other; - for standard "
        "input",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=output_path,
        metavar="FILE",
        help="embeddings, and FILE.json",
    )
    parser.add_argument(
        "--format",
        choices=EMBEDDING_FORMATS,
        help="npy; raw: rows alone, as LASER's scripts read them; safetensors; parquet (default: what the name of "
        "--output says, else npy)",
    )
    parser.add_argument(
        "--output-dtype",
        choices=EMBEDDING_DTYPES,
        default="float32",
        help="of the file: int8, a byte a dimension, calibrated on the first 20,000 lines; binary, signs alone, eight "
        "to a byte (default: float32)",
    )
    parser.add_argument(
        "--dtype",
        choices=COMPUTE_DTYPES,
        default="float32",
        help="of computation (default: float32)",
    )
    parser.add_argument("--normalize", action="store_true", help="embeddings of length one")
    parser.add_argument(
        "--truncate-dim", type=at_least(1), metavar="N", help="keep the first N dimensions"
    )
    parser.add_argument(
        "--on-long",
        choices=ON_LONG,
        default="cut",
        help="lines longer than the model reads: keep the beginning, the mean over all parts, or stop (default: cut)",
    )
    parser.add_argument(
        "--shard",
        type=part_of_parts,
        metavar="I/N",
        help="only the I-th of N equal parts of the lines, 1/N to N/N",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on after an interruption; the bytes are the same"
    )
    add_ray_options(parser, "--output is then a folder of files and shards.json")
    parser.set_defaults(run=run_embed)


def run_embed(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import (
        embed_lines,
        index_path,
        model_files,
        refuse_idf,
        side_files,
        width_of,
    )
    from fairseq_lxsr.embeddings.formats import find_format

    args.format = format_of_output(args)
    find_format(args.format).check()
    refuse_idf(args.model)
    if in_cluster(args):
        run_in_cluster(args)
        return
    refuse_overlap([args.output, *side_files(args.output)], [*args.input, *model_files(args.model)])
    encoder = load_embedder(args)
    total = count_input(args.input)
    lines, some, first = shard(chain.from_iterable(map(read_lines, args.input)), total, args.shard)
    line, lines = peek(lines)
    layout = layout_of(args, width_of(encoder, text_of(args, line, first, total)))
    settings = describe(args, encoder.fingerprint, layout, first)
    space = getattr(encoder, "space", encoder.fingerprint)
    settings |= {"space": space} if space != encoder.fingerprint else {}
    encode = embedder(args, total, encoder, first)
    how = {"resume": args.resume, "total": some, "show_progress": True}
    index = embed_lines(lines, encode, args.output, layout, settings, **how)
    met = "".join(f", {index[name]:,} {name}" for name in ("empty", "long") if index[name])
    print(
        f"{args.output}: {index['count']:,} embeddings of width {layout.width}{met}, model {index['model']}, "
        f"described in {index_path(args.output).name}"
    )
    if is_of_laser(layout):
        print(f"LASER's scripts read it with {laser_options(layout)}")


def run_in_cluster(args: argparse.Namespace) -> None:
    from fairseq_lxsr.cluster import Embedding, embed_shards
    from fairseq_lxsr.embeddings import model_files

    if args.shard:
        raise InputError(
            "--shard with --ray, which cuts the text itself; expected one or the other"
        )
    refuse_overlap([args.output], [*args.input, *model_files(args.model)])
    total = count_input(args.input)
    line, lines = peek(chain.from_iterable(map(read_lines, args.input)))
    with workers(args, partial(load_embedder, args)) as those:
        layout = layout_of(args, those.width_of(text_of(args, line, 0, total)))
        settings = describe(args, those.model, layout, 0)
        how = Embedding(layout, settings, partial(embedder, args, total))
        done = embed_shards(lines, args.output, how, those)
    print(
        f"{args.output}: {done['count']:,} embeddings of width {layout.width}, model {those.model}, "
        f"{summary(done, those)}"
    )


def format_of_output(args: argparse.Namespace) -> str:
    """Return the format that --format or the name of --output says, else npy."""
    from fairseq_lxsr.embeddings.formats import format_name

    # in a cluster, --output is a folder
    named = None if in_cluster(args) else format_name(args.output)
    if named and args.format and named != args.format:
        raise InputError(
            f"--format {args.format} with --output {args.output}, the name of {named}; expected the same"
        )
    return args.format or named or "npy"


def load_embedder(args: argparse.Namespace) -> "Encoder":
    """Load the encoder that --model names, with the options of the computation."""
    from fairseq_lxsr.embeddings import ModelFolder

    encoder = load_any(args, show_progress=False, dtype=args.dtype, on_long=args.on_long)
    if not isinstance(encoder, ModelFolder) and (args.dtype, args.on_long) != (
        COMPUTE_DTYPES[0],
        ON_LONG[0],
    ):
        raise InputError(
            f"--dtype {args.dtype}, --on-long {args.on_long} with --model {' '.join(args.model)}; expected a model "
            "folder of `lxsr export folder`"
        )
    return encoder


def layout_of(args: argparse.Namespace, width: int) -> "Layout":
    """Return the layout of the output, given the width of the embeddings of the text."""
    from fairseq_lxsr.embeddings import Layout

    if args.truncate_dim and args.truncate_dim > width:
        raise InputError(
            f"--truncate-dim {args.truncate_dim}; expected 1 to {width}, the width of the model"
        )
    return Layout(args.format, args.output_dtype, args.truncate_dim or width)


def text_of(args: argparse.Namespace, lines: list[str], first: int, total: int | None) -> "Text":
    """Return lines of the input from number `first`, from 0, with their origin; `total` is None
    where it is unknown.
    """
    import numpy as np

    from fairseq_lxsr.embeddings import Text

    file = args.input[0] if len(args.input) == 1 else ""
    return Text(lines, args.lang, file, first + np.arange(len(lines)), total)


def embedder(
    args: argparse.Namespace, total: int | None, encoder: "Encoder", first: int
) -> "Callable[[list[str], Counter[str]], np.ndarray]":
    """Return a function from windows of lines, the first of number `first`, to embeddings, as the
    options say.
    """
    from fairseq_lxsr.vectors.rows import unit_rows

    def encode(window: list[str], counts: Counter[str]) -> "np.ndarray":
        start = first + counts["lines"]
        try:
            embeddings = encoder.embed(text_of(args, window, start, total), counts)[
                :, : args.truncate_dim
            ]
        except SentenceError as error:
            row, sentence, why = error.args
            raise InputError(f"{place(args.input, start + row)}: {sentence!r:.60}: {why}") from None
        return unit_rows(embeddings) if args.normalize else embeddings

    return encode


def describe(
    args: argparse.Namespace, fingerprint: str, layout: "Layout", first: int
) -> dict[str, Any]:
    """Collect all settings that the bytes depend on, for the description beside the output."""
    settings = {
        "model": fingerprint,
        "input": ["-" if is_stream(name) else Path(name).name for name in args.input],
        "first_line": first + 1,
        "shard": args.shard and "{}/{}".format(*args.shard),
        "computed_in": args.dtype,
        "normalize": args.normalize,
        "on_long": args.on_long,
    }
    if args.truncate_dim:
        settings["truncate_dim"] = args.truncate_dim
    if args.dtype == "int8":
        settings["batch_size"] = args.batch_size  # int8 scales are computed per batch
    if named_languages(args):
        settings["language"] = args.lang
    if is_of_laser(layout):
        settings["laser_options"] = laser_options(layout)
    return settings


def is_of_laser(layout: "Layout") -> bool:
    """Return whether LASER's scripts can read a file."""
    return layout.format == "raw" and layout.dtype.startswith("float")


def laser_options(layout: "Layout") -> str:
    """Return the options of LASER's scripts (mine_bitexts.py, xsim.py) for raw embeddings, which
    have no header.
    """
    return f"--dim {layout.width}" + (" --fp16" if layout.dtype == "float16" else "")


def is_stream(name: str) -> bool:
    """Return whether an input can be read only once: standard input, or a pipe such as `<(zcat a.gz
    b.gz)`.
    """
    return name == "-" or (
        Path(name).exists() and not Path(name).is_file() and not Path(name).is_dir()
    )


def count_input(paths: list[str]) -> int | None:
    """Count the lines of all inputs together; return None where one can be read only once."""
    if "-" in paths and len(paths) > 1:
        raise InputError("standard input (-) beside files; expected one or the other")
    if any(map(is_stream, paths)):
        return None
    count = sum(1 for _ in chain.from_iterable(map(read_lines, paths)))
    if not count:
        raise InputError(f"{' '.join(paths)}: empty file; expected one sentence a line")
    return count


def place(paths: list[str], number: int) -> str:
    """Name the file and the line of a line of all inputs together, from 0; after a stream its
    number alone.
    """
    if len(paths) == 1:
        return f"{paths[0]}, line {number + 1:,}"
    before = 0
    for path in paths:
        if not Path(path).is_file():
            break
        count = sum(1 for _ in read_lines(path))
        if number < before + count:
            return f"{path}, line {number - before + 1:,}"
        before += count
    return f"line {number + 1:,} of the input"


def part_of_parts(text: str) -> tuple[int, int]:
    """Parse the value of --shard, as `type=` of argparse."""
    part, _, parts = text.partition("/")
    try:
        count = int(at_least(1)(parts))
        return int(at_least(1, count)(part)), count
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r:.60}; expected for example 2/4, the second of four parts"
        ) from None


def shard(
    lines: Iterator[str], total: int | None, which: tuple[int, int] | None
) -> tuple[Iterator[str], int | None, int]:
    """Return the lines of one part, their number where it is known, and the number of the first
    line from 0.
    """
    if which is None:
        return lines, total, 0
    part, parts = which
    if total is None:
        raise InputError("--shard of a stream, whose length is not known; give a file")
    start, stop = (total * count // parts for count in (part - 1, part))
    if start == stop:
        raise InputError(
            f"--shard {part}/{parts}: this part of {total:,} lines is empty; expected fewer parts"
        )
    return islice(lines, start, stop), stop - start, start
