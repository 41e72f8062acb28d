"""`lxsr embed`: text in, embeddings out; of any length, in constant memory."""

import argparse
import importlib.util
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import DTYPES, EMBEDDING_DTYPES, EMBEDDING_FORMATS, ON_LONG
from fairseq_lxsr.cli.models import add_model_options, load_encoder, model_files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import read_lines, refuse_overlap
from fairseq_lxsr.ranges import FILE_NAME, at_least, file_path

if TYPE_CHECKING:
    import numpy as np

    from fairseq_lxsr.export import Layout


def add_parser(verbs) -> None:
    parser = verbs.add_parser("embed", description=__doc__)
    add_model_options(parser)
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        type=FILE_NAME,
        metavar="FILE",
        help="UTF-8 text, one sentence a line, .gz or .zst too, several one after the other; - for standard input",
    )
    parser.add_argument(
        "--output", required=True, type=file_path, metavar="FILE", help="embeddings; FILE.json describes them"
    )
    parser.add_argument(
        "--format",
        choices=EMBEDDING_FORMATS,
        default="npy",
        help="npy; raw: rows alone, as LASER's scripts read them; safetensors; parquet (default: npy)",
    )
    parser.add_argument(
        "--output-dtype", choices=EMBEDDING_DTYPES, default="float32", help="of the file (default: float32)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the computation (default: float32)")
    parser.add_argument("--normalize", action="store_true", help="embeddings of length one")
    parser.add_argument("--truncate-dim", type=at_least(1), metavar="N", help="keep the first N dimensions")
    parser.add_argument(
        "--on-long",
        choices=ON_LONG,
        default="cut",
        help="lines longer than the model reads: keep the beginning, the mean over all parts, or stop (default: cut)",
    )
    parser.add_argument(
        "--shard", type=part_of_parts, metavar="I/N", help="only the I-th of N equal parts of the lines, 1/N to N/N"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on after an interruption; the same bytes as without one"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from fairseq_lxsr.export import Layout, embed_lines, index_path, side_files

    if args.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError("--format parquet needs pyarrow; install it with `pip install pyarrow`")
    refuse_overlap([args.output, *side_files(args.output)], [*args.input, *model_files([args.model])])
    encoder = load_encoder(args.model, args)
    total = count_lines(args.input)
    lines, total, first = shard(chain.from_iterable(map(read_lines, args.input)), total, args.shard)

    def encode(window: list[str], counts: Counter[str]) -> "np.ndarray":
        options = {"dtype": args.dtype, "normalize": args.normalize, "truncate_dim": args.truncate_dim}
        try:
            return encoder.encode(window, args.batch_size, on_long=args.on_long, counts=counts, **options)
        except InputError as error:
            if args.on_long != "error":
                raise
            raise InputError(f"counted from line {first + counts['lines'] + 1:,} of the input: {error}") from None

    layout = Layout(args.format, args.output_dtype, args.truncate_dim or encoder.embed_dim)
    settings = {
        "model": encoder.fingerprint + ("-untrained" if args.untrained else ""),
        "input": ["-" if is_stream(name) else Path(name).name for name in args.input],
        "first_line": first + 1,
        "shard": args.shard and "{}/{}".format(*args.shard),
        "computed_in": args.dtype,
        "normalize": args.normalize,
        "on_long": args.on_long,
    }
    if args.dtype == "int8":
        settings["batch_size"] = args.batch_size  # its scales are those of a batch
    if layout.format == "raw":
        settings["laser_options"] = laser_options(layout)
    index = embed_lines(
        lines, encode, args.output, layout, settings, resume=args.resume, total=total, show_progress=True
    )
    met = "".join(f", {index[name]:,} {name}" for name in ("empty", "long") if index[name])
    print(
        f"{args.output}: {index['count']:,} embeddings of width {layout.width}{met}, model {index['model']}, "
        f"described in {index_path(args.output).name}"
    )
    if layout.format == "raw":
        print(f"LASER's scripts read it with {laser_options(layout)}")


def laser_options(layout: "Layout") -> str:
    """What the scripts of LASER (mine_bitexts.py, xsim.py) must be told of raw embeddings: nothing is in the file."""
    return f"--dim {layout.width}" + (" --fp16" if layout.dtype == "float16" else "")


def is_stream(name: str) -> bool:
    """Whether an input can be read only once: standard input, or a pipe such as `<(zcat a.gz b.gz)`."""
    return name == "-" or (Path(name).exists() and not Path(name).is_file() and not Path(name).is_dir())


def count_lines(paths: list[str]) -> int | None:
    """Lines of all inputs together; None where one is read only once."""
    if "-" in paths and len(paths) > 1:
        raise InputError("standard input (-) beside files; expected one or the other")
    if any(map(is_stream, paths)):
        return None
    count = sum(1 for _ in chain.from_iterable(map(read_lines, paths)))
    if not count:
        raise InputError(f"{' '.join(paths)}: empty file; expected one sentence a line")
    return count


def part_of_parts(text: str) -> tuple[int, int]:
    """The value of --shard, as `type=` of argparse."""
    part, _, parts = text.partition("/")
    try:
        count = int(at_least(1)(parts))
        return int(at_least(1, count)(part)), count
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r:.60}; expected for example 2/4, the second of four parts") from None


def shard(
    lines: Iterator[str], total: int | None, which: tuple[int, int] | None
) -> tuple[Iterator[str], int | None, int]:
    """The lines of one part, their number where it is known, and the first one's from 0."""
    if which is None:
        return lines, total, 0
    part, parts = which
    if total is None:
        raise InputError("--shard of a stream, whose length is not known; give a file")
    start, stop = (total * count // parts for count in (part - 1, part))
    return islice(lines, start, stop), stop - start, start
