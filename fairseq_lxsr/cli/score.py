"""`lxsr score`: a score for every sentence pair, in the order of the input."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import add_any_model_options, add_options, filled, load_any
from fairseq_lxsr.errors import InputError, naming_option
from fairseq_lxsr.files.lines import MAX_WORDS, read_lines, read_parallel, single_line
from fairseq_lxsr.files.write import atomic_write, refuse_overlap
from fairseq_lxsr.options import FILE_NAME, at_least, file_path
from fairseq_lxsr.search import PairScoring
from fairseq_lxsr.text.languages import split_pair

if TYPE_CHECKING:
    from fairseq_lxsr.search import PairEncoder
    from fairseq_lxsr.search.pairs import Pair, Scored


def add_parser(verbs) -> None:
    parser = verbs.add_parser("score", description=__doc__)
    add_any_model_options(parser)
    parser.add_argument(
        "--input",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="pairs, one a line, columns separated by tabs; - for standard input (default: -)",
    )
    parser.add_argument(
        "--columns",
        type=two_columns,
        metavar="I,J",
        help="columns of the source and of the target sentence, from 1 (default: 1,2)",
    )
    parser.add_argument("--source", type=file_path, metavar="FILE", help="instead of --input: the source sentences")
    parser.add_argument("--target", type=file_path, metavar="FILE", help="with --source: their translations")
    parser.add_argument("--lang-pair", metavar="PAIR", help="the languages, where --model names one for each")
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write the score and, after a tab, the line or the two sentences; - for standard output "
        "(default: scores alone, to standard output)",
    )
    parser.add_argument(
        "--index",
        nargs=2,
        type=file_path,
        metavar=("SOURCE", "TARGET"),
        help="of a margin: index folders of text of both languages (default: the pairs themselves, from a file)",
    )
    add_options(parser, PairScoring)
    parser.set_defaults(run=run_score)


def two_columns(text: str) -> tuple[int, int]:
    """Parse the value of --columns, as `type=` of argparse."""
    parts = text.split(",")
    try:
        source, target = (int(at_least(1)(part)) for part in parts)
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r:.60}; expected two numbers from 1, for example 1,2") from None
    return source, target


def run_score(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from fairseq_lxsr.embeddings import model_files, refuse_idf
    from fairseq_lxsr.search import PairEncoder

    check(args)
    refuse_idf(args.model)
    keep = args.output is not None
    output = args.output if args.output != "-" else None
    refuse_overlap([output], [*inputs(args), *(args.index or ()), *model_files(args.model)])
    languages = split_pair(args.lang_pair, distinct=False) if args.lang_pair else ("", "")
    encode = PairEncoder(load_any(args, show_progress=False), languages)
    count = 0
    with atomic_write(output) if output else nullcontext(sys.stdout) as stream:
        with naming_option("--k"), tqdm(unit=" pairs", disable=None) as bar:
            for block, scores in scored(args, encode):
                for (_, _, line), score in zip(block, scores.tolist(), strict=True):
                    stream.write(f"{score:.6f}\t{line}\n" if keep else f"{score:.6f}\n")
                count += len(block)
                bar.update(len(block))
        if not count:
            raise InputError(f"{' '.join(map(str, inputs(args)))}: no pairs; expected one a line")
    if encode.lost:
        print(f"{encode.lost:,} of {count:,} pairs have a side without a known word: score 0", file=sys.stderr)
    if output:
        print(f"{output}: {count:,} pairs with their scores")


def check(args: argparse.Namespace) -> None:
    """Check options that exclude or need each other."""
    if (args.source is None) != (args.target is None):
        raise InputError("--source without --target, or the other way round; expected both, or --input FILE.tsv")
    if args.source and args.input:
        raise InputError("--input beside --source and --target; expected one or the other")
    if args.source and args.columns:
        raise InputError("--columns beside --source and --target; expected it with --input, whose columns they are")
    if args.index and args.margin == "absolute":
        raise InputError("--index with --margin absolute, which needs none; expected --margin ratio or distance")
    if args.k != PairScoring.k and args.margin == "absolute":
        raise InputError(f"--k {args.k} with --margin absolute, which has no neighbourhoods; leave it out")
    if args.margin != "absolute" and not args.index:
        for path in inputs(args):
            if not Path(path).is_file():
                raise InputError(
                    f"{path}: --margin {args.margin} reads the pairs twice; expected a file, or --index SOURCE TARGET"
                )


def inputs(args: argparse.Namespace) -> list[str | Path]:
    """Return the files of the pairs."""
    return [args.source, args.target] if args.source else [args.input or "-"]


def scored(args: argparse.Namespace, encode: "PairEncoder") -> "Scored":
    """Score all pairs of the input as the options say."""
    from fairseq_lxsr.search import open_index, score_pairs, score_pairs_among_themselves

    options = filled(PairScoring, args)
    if args.margin == "absolute" or args.index:
        indexes = (open_index(args.index[0]), open_index(args.index[1])) if args.index else None
        return score_pairs(read_pairs(args), encode, options, indexes)
    return score_pairs_among_themselves(lambda: read_pairs(args), encode, options)


def read_pairs(args: argparse.Namespace) -> Iterator["Pair"]:
    """Yield source, target and line."""
    if args.source:
        for source, target in read_parallel(args.source, args.target):
            yield source, target, f"{single_line(source)}\t{single_line(target)}"
        return
    name = args.input or "-"
    first, second = args.columns or (1, 2)
    for number, line in enumerate(read_lines(name, 2 * MAX_WORDS), start=1):
        cells = line.split("\t")
        if len(cells) < max(first, second):
            raise InputError(
                f"{name}, line {number:,}: {len(cells)} columns in {line!r:.60}; expected at least "
                f"{max(first, second)}, separated by tabs"
            )
        yield cells[first - 1], cells[second - 1], line
