"""`lxsr index` makes an index of a corpus, `lxsr search` looks for sentences of any language in it."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import INDEX_KINDS
from fairseq_lxsr.cli.models import add_batch_options, load_encoder, model_files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write, is_blank, read_lines, refuse_overlap
from fairseq_lxsr.ranges import FILE_NAME, at_least, file_path

if TYPE_CHECKING:
    from fairseq_lxsr.search import Hit


def add_parser(verbs) -> None:
    _add_index_parser(verbs)
    _add_search_parser(verbs)


def _add_index_parser(verbs) -> None:
    parser = verbs.add_parser("index", description="Make an index of a corpus.")
    parser.add_argument(
        "--model", required=True, type=FILE_NAME, metavar="FOLDER", help="model folder of `lxsr export-model`"
    )
    add_batch_options(parser)
    parser.add_argument(
        "--input", required=True, type=FILE_NAME, metavar="FILE", help="sentences, one a line; - for standard input"
    )
    parser.add_argument("--output", required=True, type=file_path, metavar="FOLDER", help="index folder to write")
    parser.add_argument(
        "--kind",
        choices=INDEX_KINDS,
        default="flat",
        help="flat: exact; float16: half the memory, slow; ivf: faster, finds nearly all; ivf-pq: D/8 bytes a vector "
        "(default: flat)",
    )
    parser.add_argument("--lists", type=at_least(1), metavar="N", help="of ivf and ivf-pq (default: 4 sqrt(sentences))")
    parser.set_defaults(run=run_index, untrained=False)


def _add_search_parser(verbs) -> None:
    parser = verbs.add_parser("search", description="Search an index with sentences.")
    parser.add_argument("queries", nargs="*", metavar="SENTENCE", help="of any language the model knows")
    parser.add_argument("--index", required=True, type=file_path, metavar="FOLDER", help="index folder of `lxsr index`")
    parser.add_argument(
        "--model", type=FILE_NAME, metavar="FOLDER", help="model folder (default: the one that the index was made with)"
    )
    parser.add_argument("--input", type=FILE_NAME, metavar="FILE", help="queries, one a line; - for standard input")
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write query, score, line of the corpus, sentence here, not to the screen",
    )
    parser.add_argument("--k", type=at_least(1), default=5, metavar="N", help="sentences to find (default: 5)")
    parser.add_argument(
        "--probes",
        type=at_least(1),
        default=32,
        metavar="N",
        help="lists of ivf to look at; more finds more (default: 32)",
    )
    add_batch_options(parser)
    parser.set_defaults(run=run_search, untrained=False)


def run_index(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from fairseq_lxsr.retrieval.index import check_kind
    from fairseq_lxsr.search import CorpusIndex

    refuse_overlap([args.output], [args.input, *model_files([args.model])])
    encoder = load_encoder(args.model, args)
    check_kind(args.kind, args.lists, encoder.embed_dim)
    encode = partial(encoder.encode, batch_size=args.batch_size)
    lines = tqdm(read_lines(args.input), desc="index", unit=" sentences", disable=None)
    folder = str(Path(args.model).resolve())
    index = CorpusIndex.build(args.output, lines, encode, encoder.fingerprint, args.kind, args.lists, folder)
    print(f"{args.output}: {args.kind} index of {len(index):,} sentences, model {encoder.fingerprint}")


def run_search(args: argparse.Namespace) -> None:
    from fairseq_lxsr.search import CorpusIndex

    if bool(args.queries) == bool(args.input):
        raise InputError("expected sentences to look for, or --input FILE, one of the two")
    index = CorpusIndex.load(args.index)
    model = args.model or index.config["model_folder"]
    if not model or not (args.model or Path(model).is_dir()):
        raise InputError(
            f"{args.index}: its model is no longer at {model or 'the place it does not name'}; name it, --model"
        )
    refuse_overlap([args.output], [args.input, *index.files, *model_files([model])])
    encoder = load_encoder(model, args)
    if encoder.fingerprint != index.fingerprint:
        raise InputError(
            f"{args.index} was made with model {index.fingerprint} and this is {encoder.fingerprint}; vectors of two "
            "models cannot be compared: name the right --model or make the index again"
        )
    queries = [line for line in (args.queries or read_lines(args.input)) if not is_blank(line)]
    if not queries:
        raise InputError(f"{args.input or 'the command line'}: no text; expected sentences to look for")
    encode = partial(encoder.encode, batch_size=args.batch_size)
    found = index.search(queries, encode, args.k, args.probes)
    write(args.output, queries, found)


def write(output: str | None, queries: list[str], found: list[list["Hit"]]) -> None:
    """TSV to a file, or for reading to the screen."""
    if output:
        with atomic_write(output) as stream:
            for query, hits in zip(queries, found, strict=True):
                clean = query.replace("\t", " ")
                stream.writelines(f"{clean}\t{hit.score:.6f}\t{hit.line + 1}\t{hit.sentence}\n" for hit in hits)
        return
    for query, hits in zip(queries, found, strict=True):
        print(query, *(f"   {hit.score:.2f}  {hit.sentence}" for hit in hits), sep="\n")
