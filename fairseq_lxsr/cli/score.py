"""`lxsr score`: a score for every sentence pair, in the order of the input."""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import add_any_model_options, add_options, filled, load_any
from fairseq_lxsr.cli.streams import results
from fairseq_lxsr.errors import InputError, naming_option, say
from fairseq_lxsr.files.archives import archive_of
from fairseq_lxsr.files.lines import read_parallel, single_line
from fairseq_lxsr.files.write import atomic_write, refuse_overlap
from fairseq_lxsr.options import FILE_NAME, FINITE, file_path
from fairseq_lxsr.preparation.tables import Columns, Row, Table, parse_columns
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
        metavar="FILE",
        help="table of pairs, .tsv or .csv, with a header or without; - for standard input, tabs (default: -)",
    )
    parser.add_argument(
        "--columns",
        type=two_columns,
        metavar="I,J",
        help="columns of the source and of the target sentence, from 1 or by name (default: those that a header names, "
        "else the first two of text)",
    )
    parser.add_argument(
        "--source", type=file_path, metavar="FILE", help="instead of --input: the source sentences"
    )
    parser.add_argument(
        "--target", type=file_path, metavar="FILE", help="with --source: their translations"
    )
    parser.add_argument(
        "--lang-pair", metavar="PAIR", help="the languages, where --model names one for each"
    )
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write the score and, after a tab, the line or the two sentences; - for standard output "
        "(default: scores alone, to standard output)",
    )
    parser.add_argument(
        "--threshold",
        type=FINITE,
        metavar="SCORE",
        help="write the rows of at least this score, as with --output",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out and count rows that cannot be read, and, where scores stand alone, blank and short ones, which "
        "score 0 otherwise",
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


def two_columns(text: str) -> Columns:
    """Parse the value of --columns, as `type=` of argparse."""
    try:
        return parse_columns(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_score(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import model_files, refuse_idf
    from fairseq_lxsr.files.progress import Progress
    from fairseq_lxsr.search import PairEncoder

    check(args)
    refuse_idf(args.model)
    output = args.output if args.output != "-" else None
    refuse_overlap([output], [*inputs(args), *(args.index or ()), *model_files(args.model)])
    languages = split_pair(args.lang_pair, distinct=False) if args.lang_pair else ("", "")
    encode = PairEncoder(load_any(args, show_progress=False), languages)
    rows = InputRows(args)
    with atomic_write(output) if output else nullcontext(results()) as stream:
        with naming_option("--k"), Progress(unit=" pairs", disable=None) as bar:
            for block, scores in scored(args, rows, encode):
                for (_, _, group), score in zip(block, scores.tolist(), strict=True):
                    stream.writelines(rows.lines(group, score))
                bar.update(len(block))
        stream.writelines(rows.lines(rows.last))
        if not rows.pairs:
            raise InputError(f"{' '.join(map(str, inputs(args)))}: no pairs; expected one a line")
    if encode.lost:
        say(f"{encode.lost:,} of {rows.pairs:,} pairs have a side without a known word: score 0")
    rows.say_left_out()
    if args.threshold is not None:
        say(f"{rows.passed:,} of {rows.pairs:,} pairs score {args.threshold:g} or more")
    if output:
        print(f"{output}: {rows.passed:,} pairs with their scores")


def check(args: argparse.Namespace) -> None:
    """Check options that exclude or need each other."""
    if (args.source is None) != (args.target is None):
        raise InputError(
            "--source without --target, or the other way round; expected both, or --input FILE.tsv"
        )
    if args.source and args.input:
        raise InputError("--input beside --source and --target; expected one or the other")
    if args.source and args.columns:
        raise InputError(
            "--columns beside --source and --target; expected it with --input, whose columns they are"
        )
    if args.source and args.skip_bad:
        raise InputError(
            "--skip-bad beside --source and --target; expected it with --input: lines must stay aligned"
        )
    if args.index and args.margin == "absolute":
        raise InputError(
            "--index with --margin absolute, which needs none; expected --margin ratio or distance"
        )
    if args.k != PairScoring.k and args.margin == "absolute":
        raise InputError(
            f"--k {args.k} with --margin absolute, which has no neighbourhoods; leave it out"
        )
    if args.margin != "absolute" and not args.index:
        for path in inputs(args):
            if not Path(path).is_file() and not archive_of(path):
                raise InputError(
                    f"{path}: --margin {args.margin} reads the pairs twice; expected a file, or --index SOURCE TARGET"
                )


def inputs(args: argparse.Namespace) -> list[str | Path]:
    """Return the files of the pairs."""
    return [args.source, args.target] if args.source else [args.input or "-"]


def scored(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> "Scored":
    """Score all pairs of the input as the options say."""
    from fairseq_lxsr.search import open_index, score_pairs, score_pairs_among_themselves

    options = filled(PairScoring, args)
    if args.margin == "absolute" or args.index:
        indexes = (open_index(args.index[0]), open_index(args.index[1])) if args.index else None
        return score_pairs(rows.read(), encode, options, indexes)
    return score_pairs_among_themselves(rows.read, encode, options)


class InputRows:
    """The rows of the input, and the lines that are written of them."""

    def __init__(self, args: argparse.Namespace):
        self.threshold, self.skip_bad = args.threshold, args.skip_bad
        self.scores_alone = args.output is None and args.threshold is None
        self.pairs = self.passed = 0
        self.last: list[Row] = []  # without a pair, after the last pair
        self._files = (args.source, args.target) if args.source else None
        languages = split_pair(args.lang_pair, distinct=False) if args.lang_pair else None
        self.table = Table(args.input or "-", args.columns, languages, True, args.skip_bad)

    def read(self) -> "Iterator[Pair]":
        """Yield source, target, and the row after those without a pair that stand before it."""
        group: list[Row] = []
        for row in self._aligned(*self._files) if self._files else self.table.rows():
            group.append(row)
            if row.pair:
                yield *row.pair, group
                group = []
        self.last = group

    def _aligned(self, source: Path, target: Path) -> Iterator[Row]:
        for pair in read_parallel(source, target):
            yield Row("\t".join(map(single_line, pair)), pair)

    def lines(self, group: list[Row], score: float = 0.0) -> Iterator[str]:
        """Yield the lines of some rows, of which the last may have a pair, which has this score."""
        for row in group:
            if row.why == "header":
                yield "score\n" if self.scores_alone else f"score\t{row.text}\n"
            elif row.pair is None:
                if (
                    self.scores_alone and not self.skip_bad
                ):  # line N of the output is that of line N of the input
                    yield "0.000000\n"
            else:
                self.pairs += 1
                if self.threshold is None or score >= self.threshold:
                    self.passed += 1
                    yield f"{score:.6f}\n" if self.scores_alone else f"{score:.6f}\t{row.text}\n"

    def say_left_out(self) -> None:
        """Say how many rows have no pair."""
        counts = {why: count for why, count in self.table.left_out.items() if why != "header"}
        if counts:
            kinds = ", ".join(f"{count:,} {why}" for why, count in counts.items())
            become = "score 0" if self.scores_alone and not self.skip_bad else "left out"
            say(f"rows without a pair: {sum(counts.values()):,} ({kinds}), {become}")
