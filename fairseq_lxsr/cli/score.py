"""`lxsr score`: score every sentence pair, in the order of the input."""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import (
    add_any_model_options,
    add_entities,
    add_options,
    filled,
    load_any,
    say_long,
)
from fairseq_lxsr.cli.streams import results
from fairseq_lxsr.errors import InputError, naming_option, say
from fairseq_lxsr.files.archives import archive_of
from fairseq_lxsr.files.entities import EntityReader
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
        help="table of pairs, .tsv or .csv, with or without a header; - for standard input, "
        "separated by tabs (default: -)",
    )
    parser.add_argument(
        "--columns",
        type=two_columns,
        metavar="I,J",
        help="columns of source and target, by number from 1 or by name (default: the columns that "
        "a header names, or the first two with text)",
    )
    parser.add_argument(
        "--source", type=file_path, metavar="FILE", help="source sentences, instead of --input"
    )
    parser.add_argument("--target", type=file_path, metavar="FILE", help="translations of --source")
    parser.add_argument(
        "--lang-pair",
        metavar="PAIR",
        help="languages of source and target, required if --model specifies languages",
    )
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write the score, a tab, and the input line or both sentences; - for standard output "
        "(default: scores only, to standard output)",
    )
    parser.add_argument(
        "--threshold",
        type=FINITE,
        metavar="SCORE",
        help="write only rows with at least this score, formatted as for --output",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="skip and count rows that cannot be read; without --output, also skip blank and short "
        "rows, which would score 0",
    )
    parser.add_argument(
        "--index",
        nargs=2,
        type=file_path,
        metavar=("SOURCE", "TARGET"),
        help="for margins: index folders of text in both languages (default: margins among the "
        "pairs themselves, which must be in a file)",
    )
    add_entities(parser)
    add_options(parser, PairScoring)
    parser.set_defaults(run=run_score)


def two_columns(text: str) -> Columns:
    """Parse the value of --columns; used as an argparse `type=`."""
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
    languages = ("", "")
    if args.lang_pair:
        languages = split_pair(args.lang_pair, distinct=False)
    encoder = load_any(args, show_progress=False)
    encode = PairEncoder(encoder, languages)
    rows = InputRows(args)
    with atomic_write(output) if output else nullcontext(results()) as stream:
        with naming_option("--k"), Progress(unit=" pairs", disable=None) as bar:
            for block, scores in scored(args, rows, encode):
                for (_, _, group), score in zip(block, scores.tolist(), strict=True):
                    stream.writelines(rows.lines(group, score))
                bar.update(len(block))
        stream.writelines(rows.lines(rows.last))
        if not rows.pairs:
            files = " ".join(map(str, inputs(args)))
            raise InputError(f"{files}: no pairs; expected one per line")
    print_summary(args, rows, encode)
    say_long(encoder)
    if output:
        print(f"{output}: wrote {rows.passed:,} pairs with their scores")


def print_summary(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> None:
    if encode.unknown_pairs:
        say(
            f"{encode.unknown_pairs:,} of {rows.pairs:,} pairs have a side without a known word, "
            "and score 0"
        )
    rows.entities.report("pairs")
    rows.say_left_out()
    if args.threshold is not None:
        say(f"{rows.passed:,} of {rows.pairs:,} pairs score {args.threshold:g} or more")


def check(args: argparse.Namespace) -> None:
    """Raise an error for options that contradict each other or require another option."""
    if (args.source is None) != (args.target is None):
        raise InputError("only one of --source and --target; specify both, or --input FILE.tsv")
    if args.source:
        check_aligned_files(args)
    if args.margin == "absolute":
        check_without_margin(args)
    # Margins need the neighbours of every pair, so a stream would have to be read twice.
    elif not args.index:
        for path in inputs(args):
            if not Path(path).is_file() and not archive_of(path):
                raise InputError(
                    f"{path}: --margin {args.margin} reads the pairs twice; use a file, or "
                    "--index SOURCE TARGET"
                )


def check_aligned_files(args: argparse.Namespace) -> None:
    """Raise an error for options that only apply to a table."""
    if args.input:
        raise InputError(
            "--input cannot be combined with --source and --target; use one or the other"
        )
    if args.columns:
        raise InputError("--columns does not apply to --source and --target; use it with --input")
    if args.skip_bad:
        raise InputError(
            "--skip-bad cannot be used with --source and --target, whose lines must stay aligned; "
            "use --input"
        )


def check_without_margin(args: argparse.Namespace) -> None:
    """Raise an error for options that only apply to margin scores."""
    if args.index:
        raise InputError("--margin absolute does not use --index; use --margin ratio or distance")
    if args.k != PairScoring.k:
        raise InputError(f"--margin absolute does not use --k {args.k}; omit --k")


def inputs(args: argparse.Namespace) -> list[str | Path]:
    """Return the input files that contain the pairs."""
    if args.source:
        return [args.source, args.target]
    return [args.input or "-"]


def scored(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> "Scored":
    """Score all pairs of the input, in blocks."""
    from fairseq_lxsr.search import CorpusIndex, score_pairs, score_pairs_among_themselves

    options = filled(PairScoring, args)
    if args.margin == "absolute" or args.index:
        indexes = None
        if args.index:
            indexes = (CorpusIndex.load(args.index[0]), CorpusIndex.load(args.index[1]))
        return score_pairs(rows.read(), encode, options, indexes)
    return score_pairs_among_themselves(rows.read, encode, options)


class InputRows:
    """Reads the input rows, and formats the output lines for them.

    Attributes:
        pairs: number of pairs for which `lines` has been called.
        passed: number of these pairs that reach the threshold.
        last: the rows after the last pair, which contain no pair.
    """

    def __init__(self, args: argparse.Namespace):
        self.threshold = args.threshold
        self.skip_bad = args.skip_bad
        self.scores_alone = args.output is None and args.threshold is None
        self.pairs = 0
        self.passed = 0
        self.last: list[Row] = []
        self._files = (args.source, args.target) if args.source else None
        languages = None
        if args.lang_pair:
            languages = split_pair(args.lang_pair, distinct=False)
        self.entities = EntityReader(args.entities)
        self.table = Table(args.input or "-", args.columns, languages, True, args.skip_bad)

    def read(self) -> "Iterator[Pair]":
        """Yield source, target, and a list of the skipped rows before each pair and its own row."""
        # For margins, the pairs are read twice. The new reader counts their entities from 0.
        self.entities = EntityReader(self.entities.choice)
        return self.entities.read(self._read_rows())

    def _read_rows(self) -> "Iterator[Pair]":
        group: list[Row] = []
        rows = self.table.rows()
        if self._files:
            rows = self._aligned(*self._files)
        for row in rows:
            group.append(row)
            if row.pair:
                yield *row.pair, group
                group = []
        self.last = group

    def _aligned(self, source: Path, target: Path) -> Iterator[Row]:
        for pair in read_parallel(source, target):
            yield Row("\t".join(map(single_line, pair)), pair)

    def lines(self, group: list[Row], score: float = 0.0) -> Iterator[str]:
        """Yield the output lines for some rows; `score` belongs to the pair in the last row."""
        for row in group:
            if row.why == "header":
                yield self._line("score", row.text)
            elif row.pair is None:
                if self._keeps_line_numbers:
                    yield "0.000000\n"
            else:
                self.pairs += 1
                if self.threshold is None or score >= self.threshold:
                    self.passed += 1
                    yield self._line(f"{score:.6f}", row.text)

    @property
    def _keeps_line_numbers(self) -> bool:
        """Return whether line N of the output corresponds to line N of the input."""
        return self.scores_alone and not self.skip_bad

    def _line(self, score: str, text: str) -> str:
        if self.scores_alone:
            return f"{score}\n"
        return f"{score}\t{text}\n"

    def say_left_out(self) -> None:
        """Print how many rows contain no pair."""
        counts = self.table.left_out.copy()
        del counts["header"]
        if counts:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
            outcome = "left out"
            if self._keeps_line_numbers:
                outcome = "score 0"
            say(f"rows without a pair: {counts.total():,} ({kinds}), {outcome}")
