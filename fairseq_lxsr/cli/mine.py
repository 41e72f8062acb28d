"""`lxsr mine`: mine sentence pairs from two monolingual files, or paraphrases from one."""

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
    add_truncate_dim,
    filled,
    in_cluster,
    load_any,
    say_long,
    say_num_long,
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
        "--source",
        required=True,
        type=file_path,
        metavar="FILE",
        help="source sentences, one per line",
    )
    parser.add_argument(
        "--target",
        type=file_path,
        metavar="FILE",
        help="sentences in another language, one per line (default: mine paraphrases in --source)",
    )
    parser.add_argument(
        "--lang-pair",
        metavar="PAIR",
        help="languages of source and target, required for .tmx, and if --model specifies "
        "languages",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=output_path,
        metavar="FILE",
        help="table of score, source and target (.tsv), or translation memory (.tmx, with "
        "--lang-pair); optionally .gz; - for standard output",
    )
    parser.add_argument(
        "--work",
        type=file_path,
        metavar="FOLDER",
        help="folder for embeddings and neighbours; an interrupted run resumes from it, and a run "
        "with another threshold reuses them (default: OUTPUT.work, removed at the end)",
    )
    add_options(parser, Mining)
    add_truncate_dim(parser, "compare only the first N dimensions")
    parser.add_argument(
        "--memory",
        type=at_least(1),
        dest="memory_mb",
        default=Mining.memory_mb,
        metavar="MB",
        help=f"memory for the search, in addition to the embeddings (default: {Mining.memory_mb})",
    )
    add_ray_options(parser, "--work must be on a disk that all machines share")
    parser.set_defaults(run=run_mine)


def run_mine(args: argparse.Namespace) -> None:
    if str(args.output) != "-":
        print(f"{args.output}: {write_mined(args)}")
        return
    # The table is written to standard output only when it is complete.
    with tempfile.TemporaryDirectory() as folder:
        args.output = Path(folder) / "pairs.tsv"
        message = write_mined(args)
        with open(args.output, encoding="utf-8", newline="\n") as table:
            shutil.copyfileobj(table, results())
    say(message)


def write_mined(args: argparse.Namespace) -> str:
    """Write the mined pairs to a file, and return a summary for the final message."""
    from fairseq_lxsr.embeddings import model_files, refuse_idf
    from fairseq_lxsr.search import Side, mine_files

    # The folder is next to the output, so an interrupted run can resume without --work.
    work = args.work or args.output.with_name(f"{args.output.name}.work")
    refuse_overlap([args.output, work], [args.source, args.target, *model_files(args.model)])
    refuse_idf(args.model)
    options = filled(Mining, args)
    check_kind(options)
    texts = texts_of(args)
    if in_cluster(args):
        return mine_in_cluster(args, texts, options)
    encoder = load_any(args, truncate_dim=args.truncate_dim)
    sides = [Side(path, encoder, language) for path, language in texts]
    target = sides[1] if len(sides) > 1 else None
    with naming_option("--k"):
        pairs = mine_files(sides[0], target, args.output, args.work, options, show_progress=True)
    say_long(encoder)
    return f"{len(pairs):,} pairs{score_range(pairs)}"


def check_kind(options: Mining) -> None:
    """Raise an error for options that only exact search supports."""
    if options.kind == "flat":
        return
    if options.precision != Mining.precision:
        option = f"--precision {options.precision}"
    elif options.memory_mb != Mining.memory_mb:
        option = f"--memory {options.memory_mb}"
    else:
        return
    raise InputError(f"{option} is not supported with --kind {options.kind}; use --kind flat")


def texts_of(args: argparse.Namespace) -> list[tuple[Path, str]]:
    """Return the source file and the target file, if any, with their languages."""
    languages = ("", "")
    if args.lang_pair:
        languages = split_pair(args.lang_pair, distinct=False)
    if args.target is None and languages[0] != languages[1]:
        raise InputError(
            f"--lang-pair {args.lang_pair} requires --target; without it, use one language, as in "
            "fr-fr"
        )
    texts = [(args.source, languages[0])]
    if args.target is not None:
        texts.append((args.target, languages[1]))
    for path, _ in texts:
        check_file(path)
    return texts


def check_file(path: Path) -> None:
    if path.is_file():
        return
    if archive_of(path):
        problem = " is in an archive; unpack it"
    elif path.exists():
        problem = " is a stream, but must be read more than once; use a file"
    else:
        problem = ": no such file; check the name"
    raise InputError(f"{path}{problem}")


def mine_in_cluster(
    args: argparse.Namespace, texts: list[tuple[Path, str]], options: Mining
) -> str:
    from fairseq_lxsr.cluster import Corpus, mine_shards

    corpora = []
    for path, language in texts:
        num_lines = sum(1 for _ in read_lines(path))
        corpora.append(Corpus(path, language, num_lines, options.entities))
    target = corpora[1] if len(corpora) > 1 else None
    load = partial(load_any, args, show_progress=False, truncate_dim=args.truncate_dim)
    with naming_option("--k"), workers(args, load) as cluster:
        pairs, report = mine_shards(corpora[0], target, args.output, cluster, args.work, options)
    say_num_long(cluster.num_long)
    return f"{len(pairs):,} pairs{score_range(pairs)}, {summary(report, cluster)}"


def score_range(pairs: "MinedPairs") -> str:
    """Return the highest and lowest score, formatted as the end of a message."""
    if not len(pairs):
        return ""
    return f", scores {pairs.scores[0]:.3f} to {pairs.scores[-1]:.3f}"
