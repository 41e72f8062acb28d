"""`lxsr score`: score every sentence pair, in the order of the input."""

import argparse
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
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
from fairseq_lxsr.files.lines import count_lines, read_parallel, single_line
from fairseq_lxsr.files.write import atomic_write, check_writable, refuse_overlap
from fairseq_lxsr.options import FILE_NAME, FINITE, file_path
from fairseq_lxsr.preparation.formats import ending_of
from fairseq_lxsr.preparation.scored_memories import (
    SCORED,
    Marking,
    count_units,
    pairs_by_unit,
    write_scored,
)
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
        help="table of pairs, .tsv or .csv, with or without a header, or a translation memory, "
        f"{', '.join(SCORED)}; - for standard input, separated by tabs (default: -)",
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
        help="languages of source and target, required if --model specifies languages, and for a "
        "translation memory",
    )
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE",
        help="write the score, a tab, and the input line or both sentences; - for standard output; "
        "or a copy of the translation memory of --input, with scores "
        "(default: scores only, to standard output)",
    )
    parser.add_argument(
        "--threshold",
        type=FINITE,
        metavar="SCORE",
        help="write only rows or units with at least this score, formatted as for --output",
    )
    parser.add_argument(
        "--mark",
        action="store_true",
        help="in a copy of a translation memory, keep units below --threshold, and mark them",
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
    if is_copied(args):
        write_copy(args, rows, encode)
    else:
        with atomic_write(output) if output else nullcontext(results()) as stream:
            for block, scores in scored_blocks(args, rows, encode):
                for (_, _, group), score in zip(block, scores.tolist(), strict=True):
                    stream.writelines(rows.lines(group, score))
            stream.writelines(rows.lines(rows.last))
            check_pairs(args, rows.pairs)
    print_summary(args, rows, encode)
    say_long(encoder)
    if output:
        count = rows.pairs if args.mark else rows.passed
        print(f"{output}: wrote {count:,} {rows.kind} with their scores")


def write_copy(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> None:
    """Copy a translation memory with the scores of its units."""
    check_writable(Path(args.output))
    scores = array("f")
    for _, block_scores in scored_blocks(args, rows, encode):
        scores.extend(block_scores.tolist())
    check_pairs(args, len(scores))
    unit_scores = rows.scores_of_units(scores)
    with atomic_write(args.output, "wb") as stream:
        write_scored(Path(args.input), stream, Marking(unit_scores, args.threshold, args.mark))
    rows.count_units(unit_scores)


def scored_blocks(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> "Scored":
    """Score all pairs of the input in blocks, with a progress bar."""
    from fairseq_lxsr.files.progress import Progress

    if is_memory(args.input):
        total = count_units(Path(args.input)) or None
    else:
        total = count_lines(args.source or args.input)
    with naming_option("--k"), Progress(total=total, desc="score", unit=" pairs") as bar:
        for block, scores in scored(args, rows, encode):
            yield block, scores
            bar.update(len(block))
        # Units without a pair and skipped rows are not scored.
        bar.total = bar.n


def check_pairs(args: argparse.Namespace, count: int) -> None:
    """Raise an error if the input has no pairs."""
    if count:
        return
    expected = "one per line"
    if is_memory(args.input):
        expected = f"units with text in both languages of {args.lang_pair}"
    files = " ".join(map(str, inputs(args)))
    raise InputError(f"{files}: no pairs; expected {expected}")


def print_summary(args: argparse.Namespace, rows: "InputRows", encode: "PairEncoder") -> None:
    if encode.unknown_pairs:
        say(
            f"{encode.unknown_pairs:,} of {rows.pairs:,} pairs have a side without a known word, "
            "and score 0"
        )
    rows.entities.report("pairs")
    rows.say_left_out()
    if args.threshold is not None:
        say(f"{rows.passed:,} of {rows.pairs:,} {rows.kind} score {args.threshold:g} or more")


def check(args: argparse.Namespace) -> None:
    """Raise an error for options that contradict each other or require another option."""
    if (args.source is None) != (args.target is None):
        raise InputError("only one of --source and --target; specify both, or --input FILE.tsv")
    if args.source:
        check_aligned_files(args)
    if is_memory(args.input):
        check_memory(args)
    elif args.mark or is_memory(args.output):
        raise InputError(
            "--mark and --output of a translation memory require such a file as --input; use "
            "--output FILE.tsv, without --mark"
        )
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


def is_memory(name: str | None) -> bool:
    """Return whether a file is a translation memory or a .po file, by its name."""
    return name is not None and ending_of(name) in SCORED


def is_copied(args: argparse.Namespace) -> bool:
    """Return whether the output is a copy of the memory with scores, and not a table."""
    return is_memory(args.output)


def check_memory(args: argparse.Namespace) -> None:
    """Raise an error for options that do not apply to a translation memory."""
    if not args.lang_pair:
        raise InputError(f"--input {args.input} requires --lang-pair, such as en-fr")
    if args.columns or args.skip_bad:
        raise InputError(
            f"--columns and --skip-bad do not apply to {args.input}; use them with a table"
        )
    ending = ending_of(args.input)
    if is_memory(args.output) and ending_of(args.output) != ending:
        raise InputError(
            f"--output {args.output} is not of the format of --input; expected {ending} or .tsv"
        )
    if args.mark and (not is_copied(args) or args.threshold is None):
        raise InputError(f"--mark requires --threshold, and --output FILE{ending}")


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
        kind: what is counted: pairs, or units if a translation memory is copied.
    """

    def __init__(self, args: argparse.Namespace):
        self.threshold = args.threshold
        self.skip_bad = args.skip_bad
        self.scores_alone = args.output is None and args.threshold is None
        self.pairs = 0
        self.passed = 0
        self.last: list[Row] = []
        self.kind = "pairs"
        self._files = (args.source, args.target) if args.source else None
        languages = None
        if args.lang_pair:
            languages = split_pair(args.lang_pair, distinct=False)
        self._memory = None
        if is_memory(args.input) and languages:
            self._memory = (Path(args.input), *languages)
        self._dropped: Counter[str] = Counter()
        # Number of pairs of each unit.
        self._counts = array("l")
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
        elif self._memory:
            rows = self._units(*self._memory)
        for row in rows:
            group.append(row)
            if row.pair:
                yield *row.pair, group
                group = []
        self.last = group

    def _aligned(self, source: Path, target: Path) -> Iterator[Row]:
        for pair in read_parallel(source, target):
            yield Row("\t".join(map(single_line, pair)), pair)

    def _units(self, path: Path, source: str, target: str) -> Iterator[Row]:
        self._dropped.clear()
        self._counts = array("l")
        for pairs in pairs_by_unit(path, source, target, self._dropped):
            self._counts.append(len(pairs))
            for pair in pairs:
                yield Row("\t".join(map(single_line, pair)), pair)

    def scores_of_units(self, scores: Sequence[float]) -> "array[float]":
        """Return the lowest score of the pairs of each unit; NaN for a unit without a pair."""
        unit_scores = array("f")
        start = 0
        for count in self._counts:
            unit_scores.append(min(scores[start : start + count], default=math.nan))
            start += count
        return unit_scores

    def count_units(self, scores: Sequence[float]) -> None:
        """Count units instead of pairs for the summary, given their scores."""
        self.kind = "units"
        self.pairs = len(scores) - sum(map(math.isnan, scores))
        self.passed = self.pairs
        if self.threshold is not None:
            self.passed = sum(score >= self.threshold for score in scores)

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
        if self._memory:
            counts = self._dropped
        if counts.total():
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
            outcome = "left out"
            if self._memory:
                outcome = "not scored"
            elif self._keeps_line_numbers:
                outcome = "score 0"
            say(f"rows without a pair: {counts.total():,} ({kinds}), {outcome}")
