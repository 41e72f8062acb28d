"""`lxsr index` makes an index of a corpus, `lxsr search` looks for sentences of any language in
it.
"""

import argparse
import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
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
    named_languages,
    summary,
    workers,
)
from fairseq_lxsr.cli.streams import results
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.lines import is_blank, peek, read_lines, single_line
from fairseq_lxsr.files.write import atomic_write, refuse_overlap, restore_folder
from fairseq_lxsr.options import FILE_NAME, file_path
from fairseq_lxsr.search import IndexOptions, SearchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.search import CorpusIndex, Hit


def add_parser(verbs) -> None:
    _add_index_parser(verbs)
    _add_search_parser(verbs)


def _add_index_parser(verbs) -> None:
    parser = verbs.add_parser("index", description="Make an index of a corpus.")
    add_any_model_options(parser)
    add_language_option(parser)
    parser.add_argument(
        "--input",
        required=True,
        type=FILE_NAME,
        metavar="FILE",
        help="sentences, one a line; - for standard input",
    )
    parser.add_argument(
        "--output", required=True, type=file_path, metavar="FOLDER", help="index folder to write"
    )
    add_options(parser, IndexOptions)
    add_ray_options(parser, "--output then has an index for each shard")
    parser.set_defaults(run=run_index)


def _add_search_parser(verbs) -> None:
    parser = verbs.add_parser("search", description="Search an index with sentences.")
    parser.add_argument(
        "queries", nargs="*", metavar="SENTENCE", help="of any language the model knows"
    )
    parser.add_argument(
        "--index",
        required=True,
        type=file_path,
        metavar="FOLDER",
        help="index folder of `lxsr index`",
    )
    add_any_model_options(parser, "the one that the index was made with")
    add_language_option(parser)
    parser.add_argument(
        "--input", type=FILE_NAME, metavar="FILE", help="queries, one a line; - for standard input"
    )
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write query, score, line of the corpus, sentence here, not to the screen; - for standard output",
    )
    parser.add_argument(
        "--numbered", action="store_true", help="with --output: first column, the line of the query"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="a line of JSON for each query: query, number from 1, and hits with score, line from 1, text",
    )
    add_options(parser, SearchOptions)
    parser.set_defaults(run=run_search)


def add_language_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang", default="", metavar="LANG", help="of the sentences, where --model names several"
    )


def run_index(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import model_files, refuse_idf, width_of
    from fairseq_lxsr.files.progress import Progress
    from fairseq_lxsr.search import CorpusIndex
    from fairseq_lxsr.vectors.index import check_kind

    refuse_overlap([args.output], [args.input, *model_files(args.model)])
    refuse_idf(args.model)
    if in_cluster(args):
        index_in_cluster(args)
        return
    encoder = load_any(args, show_progress=False)
    total = count(args.input)
    line, lines = peek(read_lines(args.input))
    check_kind(args.kind, args.lists, width_of(encoder, first_text(args, line, total)))
    read: Counter[str] = Counter()
    lines = Progress(counted(lines, read), desc="index", unit=" sentences", disable=None)
    encode = text_embedder(args, total, encoder)
    how = (args.kind, args.lists, model_folder(args))
    index = CorpusIndex.build(args.output, lines, encode, encoder.fingerprint, *how)
    print(
        f"{args.output}: {args.kind} index of {len(index):,} sentences{left_out(read, len(index))}, "
        f"model {encoder.fingerprint}"
    )


def index_in_cluster(args: argparse.Namespace) -> None:
    from fairseq_lxsr.cluster import index_shards
    from fairseq_lxsr.vectors.index import check_kind

    with workers(args, partial(load_any, args, show_progress=False)) as those:
        total = count(args.input)
        line, lines = peek(read_lines(args.input))
        check_kind(args.kind, args.lists, those.width_of(first_text(args, line, total)))
        encode = partial(text_embedder, args, total)
        language = args.lang if named_languages(args) else ""
        options = filled(IndexOptions, args, model_folder=model_folder(args), language=language)
        read: Counter[str] = Counter()
        done = index_shards(counted(lines, read), args.output, encode, those, options)
    print(
        f"{args.output}: {args.kind} index of {done['sentences']:,} sentences{left_out(read, done['sentences'])}, "
        f"model {those.model}, {summary(done, those)}"
    )


def counted(lines: "Iterable[str]", counts: Counter[str]) -> "Iterator[str]":
    """Yield lines and count them, and those that are empty."""
    for line in lines:
        counts["lines"] += 1
        counts["empty"] += is_blank(line)
        yield line


def left_out(read: Counter[str], kept: int) -> str:
    """Say how many of the lines that were read are empty or have no known word, where some are."""
    unknown = read["lines"] - read["empty"] - kept
    empty = f", {read['empty']:,} empty" if read["empty"] else ""
    return empty + (f", {unknown:,} without a known word" if unknown else "")


def model_folder(args: argparse.Namespace) -> str:
    """Return the model for later searches; none for several or for `NAME#...`, whose searches need
    --model.
    """
    from fairseq_lxsr.embeddings.load import ModelName
    from fairseq_lxsr.encoder.locate import find_model

    name = ModelName.parse(args.model[0])
    return "" if name.language or name.words else str(find_model(name.path).resolve())


def count(path: str | None) -> int | None:
    """Count the lines of a file; return None for what can be read only once, and without a file."""
    return sum(1 for _ in read_lines(path)) if path and Path(path).is_file() else None


def first_text(args: argparse.Namespace, line: list[str], total: int | None) -> "Text":
    """Return the first line of --input with its origin, which says how wide the embeddings are."""
    import numpy as np

    from fairseq_lxsr.embeddings import Text

    return Text(line, args.lang, args.input, np.arange(len(line)), total)


def text_embedder(
    args: argparse.Namespace, total: int | None, encoder: "Encoder"
) -> "Callable[[Text], np.ndarray]":
    """Return a function that embeds text of --input or of the command line.

    Args:
        args: options of the command line.
        total: number of lines of --input, where it is known.
        encoder: the encoder.
    """

    def encode(text: "Text") -> "np.ndarray":
        return encoder.embed(replace(text, language=args.lang, file=args.input or "", total=total))

    return encode


def run_search(args: argparse.Namespace) -> None:
    import numpy as np

    from fairseq_lxsr.embeddings import Text, model_files, refuse_idf
    from fairseq_lxsr.search import open_index
    from fairseq_lxsr.search.reranker import find_reranker

    if bool(args.queries) == bool(args.input):
        raise InputError("expected sentences to look for, or --input FILE, one of the two")
    if args.json and args.numbered:
        raise InputError("--numbered with --json, which numbers the queries; leave it out")
    if args.numbered and not args.output:
        raise InputError(
            "--numbered without --output; expected --output FILE.tsv, whose first column it is"
        )
    refuse_idf(args.model or [])
    index = open_index(args.index)
    kind = str(index.config.get("kind", ""))
    if args.probes != SearchOptions.probes and not kind.startswith("ivf"):
        raise InputError(
            f"--probes {args.probes} with an index of kind {kind}, which has no lists; leave it out"
        )
    args.model = args.model or [index_model(index, args.index)]
    refuse_overlap(
        [args.output if args.output != "-" else None],
        [args.input, *index.files, *model_files(args.model)],
    )
    encoder = load_any(args, show_progress=False)
    check_model(index, encoder)
    queries = list(args.queries or read_lines(args.input))
    rows = [row for row, line in enumerate(queries) if not is_blank(line)]
    if not rows:
        raise InputError(
            f"{args.input or 'the command line'}: no text; expected sentences to look for"
        )
    text = Text([queries[row] for row in rows], rows=np.array(rows))
    encode, options = text_embedder(args, count(args.input), encoder), filled(SearchOptions, args)
    found = index.search(text, encode, options.k, options.probes, find_reranker(encoder, options))
    if args.json:
        write_json(args.output, text, found, rows)
    else:
        write(args.output, text, found, rows if args.numbered else None)
    if len(rows) < len(queries):
        say(f"{len(queries) - len(rows):,} of {len(queries):,} queries are empty: left out")
    if lost := sum(not hits for hits in found):
        say(
            f"{lost:,} of {len(queries):,} queries have no known word or no neighbour: nothing found"
        )


def check_model(index: "CorpusIndex", encoder: "Encoder") -> None:
    """Refuse a model other than that of the index; the one of stored embeddings without a
    description is not known.
    """
    from fairseq_lxsr.embeddings import is_stored

    made_of = index.config["model_folder"]
    differs = index.fingerprint != encoder.fingerprint
    if differs and made_of and is_stored(Path(made_of)) and not list(Path(made_of).glob("*.json")):
        raise InputError(
            f"{index.folder}: made of the vectors in {made_of}, of which no FILE.json says the model; expected --input "
            "FILE whose vectors are there too, or an index by a model or of what `lxsr embed` writes"
        )
    index.check_model(encoder)


def index_model(index: "CorpusIndex", folder: Path) -> str:
    """Return the model that an index was made with."""
    model = index.config["model_folder"]
    if model:
        restore_folder(model)
    if not model or not Path(model).exists():
        raise InputError(
            f"{folder}: its model is no longer at {model or 'the place it does not name'}; name --model"
        )
    return model


def write(
    output: str | None,
    queries: "Sequence[str]",
    found: list[list["Hit"]],
    numbers: "Sequence[int] | None",
) -> None:
    """Write TSV to a file, or readable text to the screen; `numbers` of the queries, from 0, begin
    the TSV's rows.
    """
    if output:
        names = [single_line(query) for query in queries]
        if numbers is not None:
            names = [f"{number + 1}\t{name}" for number, name in zip(numbers, names, strict=True)]
        with nullcontext(results()) if output == "-" else atomic_write(output) as stream:
            for name, hits in zip(names, found, strict=True):
                stream.writelines(
                    f"{name}\t{hit.score:.6f}\t{hit.line + 1}\t{hit.sentence}\n" for hit in hits
                )
        return
    results()  # refuses standard output that is closed
    for query, hits in zip(queries, found, strict=True):
        print(query, *(f"   {hit.score:.2f}  {hit.sentence}" for hit in hits), sep="\n")


def write_json(
    output: str | None, queries: "Sequence[str]", found: list[list["Hit"]], numbers: "Sequence[int]"
) -> None:
    """Write a line of JSON for each query, to a file or to standard output."""
    with nullcontext(results()) if output in (None, "-") else atomic_write(output) as stream:
        for query, hits, number in zip(queries, found, numbers, strict=True):
            rows = [{"score": hit.score, "line": hit.line + 1, "text": hit.text} for hit in hits]
            query = query.encode(errors="replace").decode()  # an argument that was not UTF-8
            stream.write(
                json.dumps({"query": query, "number": number + 1, "hits": rows}, ensure_ascii=False)
                + "\n"
            )
