"""`lxsr mine`: two monolingual files in, scored sentence pairs out; of one file, its
paraphrases.
"""

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import (
    add_any_model_options,
    add_options,
    add_ray_options,
    filled,
    in_cluster,
    load_any,
    summary,
    workers,
)
from fairseq_lxsr.cli.streams import results
from fairseq_lxsr.errors import InputError, naming_option, say
from fairseq_lxsr.files.archives import archive_of
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import at_least, file_path, output_path
from fairseq_lxsr.search import Mining
from fairseq_lxsr.text.languages import split_pair

if TYPE_CHECKING:
    from fairseq_lxsr.vectors import MinedPairs


def add_parser(verbs) -> None:
    parser = verbs.add_parser("mine", description=__doc__)
    add_any_model_options(parser)
    parser.add_argument(
        "--source", required=True, type=file_path, metavar="FILE", help="sentences, one a line"
    )
    parser.add_argument(
        "--target",
        type=file_path,
        metavar="FILE",
        help="sentences of another language (default: pairs within --source, none with itself, each once)",
    )
    parser.add_argument(
        "--lang-pair", metavar="PAIR", help="their languages, where --model names one for each"
    )
    parser.add_argument(
        "--output",
        required=True,
        type=output_path,
        metavar="FILE.tsv",
        help="score, source, target (.gz too); - for standard output",
    )
    parser.add_argument(
        "--work",
        type=file_path,
        metavar="FOLDER",
        help="keeps embeddings and neighbours, to go on after an interruption or to try another threshold "
        "(default: OUTPUT.work, removed at the end)",
    )
    add_options(parser, Mining)
    parser.add_argument(
        "--memory",
        type=at_least(1),
        dest="memory_mb",
        default=Mining.memory_mb,
        metavar="MB",
        help=f"for the search, beside the embeddings (default: {Mining.memory_mb})",
    )
    add_ray_options(parser, "--work must be on a disk of all machines")
    parser.set_defaults(run=run_mine)


def run_mine(args: argparse.Namespace) -> None:
    if str(args.output) != "-":
        print(f"{args.output}: {write_mined(args)}")
        return
    with tempfile.TemporaryDirectory() as folder:  # where nobody looks for a half-written table
        args.output = Path(folder) / "pairs.tsv"
        said = write_mined(args)
        with open(args.output, encoding="utf-8", newline="\n") as table:
            shutil.copyfileobj(table, results())
    say(said)


def write_mined(args: argparse.Namespace) -> str:
    """Write the pairs to a file, and describe them."""
    from fairseq_lxsr.embeddings import model_files, refuse_idf
    from fairseq_lxsr.search import Side, mine_files

    work = args.work or args.output.with_name(f"{args.output.name}.work")
    refuse_overlap([args.output, work], [args.source, args.target, *model_files(args.model)])
    refuse_idf(args.model)
    options = filled(Mining, args)
    for option, value, default in (
        ("--precision", options.precision, Mining.precision),
        ("--memory", options.memory_mb, Mining.memory_mb),
    ):
        if options.kind != "flat" and value != default:
            raise InputError(
                f"{option} {value} with --kind {options.kind}; expected it with --kind flat alone"
            )
    languages = split_pair(args.lang_pair, distinct=False) if args.lang_pair else ("", "")
    files = [args.source] if args.target is None else [args.source, args.target]
    if len(files) == 1 and len(set(languages)) > 1:
        raise InputError(
            f"--lang-pair {args.lang_pair} without --target; expected one language, as in fr-fr"
        )
    for path in files:
        if not path.is_file():
            why = (
                "is read more than once; expected a file"
                if path.exists()
                else "no such file; check the name"
            )
            raise InputError(
                f"{path}: {'is in an archive; unpack it' if archive_of(path) else why}"
            )
    if in_cluster(args):
        return mine_in_cluster(args, list(zip(files, languages, strict=False)), options)
    encoder = load_any(args)
    source, *others = (
        Side(path, encoder, language) for path, language in zip(files, languages, strict=False)
    )
    target = others[0] if others else None
    with naming_option("--k"):
        pairs = mine_files(source, target, args.output, args.work, options, show_progress=True)
    return f"{len(pairs):,} pairs{score_range(pairs)}"


def mine_in_cluster(
    args: argparse.Namespace, texts: list[tuple[Path, str]], options: Mining
) -> str:
    from fairseq_lxsr.cluster import Corpus, mine_shards

    source, *others = (
        Corpus(path, language, sum(1 for _ in read_lines(path))) for path, language in texts
    )
    target = others[0] if others else None
    with naming_option("--k"), workers(args, partial(load_any, args, show_progress=False)) as those:
        pairs, done = mine_shards(source, target, args.output, those, args.work, options)
    return f"{len(pairs):,} pairs{score_range(pairs)}, {summary(done, those)}"


def score_range(pairs: "MinedPairs") -> str:
    """Describe the scores of the pairs, for the last line."""
    return f", scores {pairs.scores[0]:.3f} to {pairs.scores[-1]:.3f}" if len(pairs) else ""
