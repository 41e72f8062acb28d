"""`lxsr index` builds an index of a corpus, `lxsr search` searches it in any language."""

import argparse
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.index_edits import (
    add_id_options,
    add_input_options,
    check_edit,
    counted,
    edit_index,
    left_out,
    naming_ids,
    read_documents,
)
from fairseq_lxsr.cli.options import (
    add_any_model_options,
    add_entities,
    add_options,
    add_ray_options,
    add_truncate_dim,
    filled,
    in_cluster,
    load_any,
    named_languages,
    say_long,
    say_num_long,
    summary,
    workers,
)
from fairseq_lxsr.cli.streams import results
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.entities import EntityReader
from fairseq_lxsr.files.lines import count_lines, is_blank, read_lines, single_line
from fairseq_lxsr.files.records import json_line
from fairseq_lxsr.files.write import atomic_write, refuse_overlap, restore_folder
from fairseq_lxsr.options import FILE_NAME, file_path
from fairseq_lxsr.search import IndexOptions, SearchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.search import CorpusIndex, Hit


def add_parser(verbs) -> None:
    _add_index_parser(verbs)
    _add_search_parser(verbs)


def _add_index_parser(verbs) -> None:
    parser = verbs.add_parser("index", description="Build an index of a corpus.")
    add_any_model_options(
        parser, "with an edit, the model that the index was built with; otherwise required"
    )
    add_language_option(parser)
    add_input_options(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=file_path,
        metavar="FOLDER",
        help="index folder to write or edit",
    )
    add_id_options(parser)
    add_entities(parser)
    add_options(parser, IndexOptions)
    add_truncate_dim(parser, "keep only the first N dimensions; queries are truncated accordingly")
    add_ray_options(parser, "--output then has one segment per shard")
    # `check_edit` sets one of `input` and `articles`.
    parser.set_defaults(run=run_index, input=None, articles=None)


def _add_search_parser(verbs) -> None:
    parser = verbs.add_parser("search", description="Search an index with sentences.")
    parser.add_argument(
        "queries", nargs="*", metavar="SENTENCE", help="a query, in any language of the model"
    )
    parser.add_argument(
        "--index",
        required=True,
        type=file_path,
        metavar="FOLDER",
        help="index folder written by `lxsr index`",
    )
    add_any_model_options(parser, "the model that the index was built with")
    add_language_option(parser)
    parser.add_argument(
        "--input",
        type=FILE_NAME,
        metavar="FILE",
        help="queries, one per line; - for standard input",
    )
    add_entities(parser)
    parser.add_argument(
        "--only-ids",
        type=FILE_NAME,
        metavar="FILE",
        help="search only the sentences with these ids, one per line (default: all)",
    )
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FILE.tsv",
        help="write query, score, id or corpus line number, and sentence to this file instead of "
        "the screen; - for standard output",
    )
    parser.add_argument(
        "--numbered",
        action="store_true",
        help="with --output: begin each row with the line number of the query",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write one JSON object per query, each on one line: the query, its number (from 1) "
        "and its hits, each with score, id (if the index has ids), line (from 1) and text",
    )
    add_options(parser, SearchOptions)
    add_truncate_dim(
        parser,
        "width of the index vectors, to which queries are truncated (default: the width that the "
        "index was built with)",
    )
    parser.set_defaults(run=run_search)


def add_language_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang",
        default="",
        metavar="LANG",
        help="language of the sentences, required if --model specifies several languages",
    )


def run_index(args: argparse.Namespace) -> None:
    from fairseq_lxsr.embeddings import model_files, refuse_idf
    from fairseq_lxsr.files.progress import Progress
    from fairseq_lxsr.search import CorpusIndex
    from fairseq_lxsr.search.passages import with_pieces

    edit = check_edit(args)
    models = args.model or []
    refuse_overlap([args.output], [*(args.inputs or ()), args.ids, *model_files(models)])
    refuse_idf(models)
    if edit:
        counts: Counter[str] = Counter()
        edit_index(args, edit, partial(_load_embedder, args, counts))
        say_num_long(counts["long"])
        return
    if in_cluster(args):
        index_in_cluster(args)
        return
    encoder = load_any(args, show_progress=False, truncate_dim=args.truncate_dim)
    total = count_lines(args.input)
    entities = EntityReader(args.entities)
    sentences, ids = read_documents(args, entities)
    line_counts: Counter[str] = Counter()
    lines = Progress(counted(sentences, line_counts), total=total, desc="index", unit=" sentences")
    encode = with_pieces(text_embedder(args, total, encoder), encoder, encoder.fingerprint)
    with naming_ids(args):
        index = CorpusIndex.build(
            args.output,
            lines,
            encode,
            encoder.fingerprint,
            args.kind,
            model_folder(args),
            ids=ids,
            plain=args.plain,
        )
    say_long(encoder)
    entities.report("lines")
    skipped = left_out(line_counts, len(index))
    print(
        f"{args.output}: {args.kind} index of {contents_of(index)}{skipped}, "
        f"model {encoder.fingerprint}"
    )


def contents_of(index: "CorpusIndex") -> str:
    """Describe what an index contains, for example `2,007 texts, 1,812 passages, with words`."""
    if index.is_plain:
        return f"{len(index):,} texts, one vector each"
    return f"{len(index):,} texts, {index.num_passages:,} of several sentences, with words"


def _load_embedder(
    args: argparse.Namespace, counts: Counter[str], index: "CorpusIndex"
) -> "Callable[[Text], np.ndarray]":
    """Load --model, or else the model of an index, and return a function that embeds sentences.

    The function adds the numbers of empty and long sentences to `counts`.
    """
    from fairseq_lxsr.search.passages import with_pieces

    args.model = args.model or [index_model(index, args.output)]
    encoder = load_any(args, show_progress=False)
    check_model(index, encoder)
    embed = text_embedder(args, count_lines(args.input), encoder, counts)
    return with_pieces(embed, encoder, index.fingerprint)


def index_in_cluster(args: argparse.Namespace) -> None:
    from fairseq_lxsr.cluster import index_shards
    from fairseq_lxsr.search import CorpusIndex

    load = partial(load_any, args, show_progress=False, truncate_dim=args.truncate_dim)
    with workers(args, load) as cluster:
        total = count_lines(args.input)
        entities = EntityReader(args.entities)
        sentences, _ = read_documents(args, entities)
        encode = partial(text_embedder, args, total)
        language = args.lang if named_languages(args) else ""
        options = filled(IndexOptions, args, model_folder=model_folder(args), language=language)
        line_counts: Counter[str] = Counter()
        lines = counted(sentences, line_counts)
        report = index_shards(lines, args.output, encode, cluster, options)
    index = CorpusIndex.load(args.output)
    entities.report("lines")
    say_num_long(cluster.num_long)
    skipped = left_out(line_counts, report["sentences"])
    print(
        f"{args.output}: {args.kind} index of {contents_of(index)}{skipped}, "
        f"model {cluster.model}, {summary(report, cluster)}"
    )


def model_folder(args: argparse.Namespace) -> str:
    """Return the path of the model folder, which the index stores for later searches.

    Return an empty string for one model per language, or for word vectors with an option such as
    `NAME#sum`. Searches then require --model.
    """
    from fairseq_lxsr.embeddings.load import ModelName
    from fairseq_lxsr.encoder.locate import find_model

    name = ModelName.parse(args.model[0])
    if name.language or name.words:
        return ""
    return str(find_model(name.path).resolve())


def text_embedder(
    args: argparse.Namespace,
    total: int | None,
    encoder: "Encoder",
    counts: Counter[str] | None = None,
) -> "Callable[[Text], np.ndarray]":
    """Return a function that embeds text from --input or the command line.

    Args:
        args: options of the command line.
        total: number of lines of --input, if known.
        encoder: the encoder.
        counts: counter for the numbers of empty and long sentences.
    """

    def encode(text: "Text") -> "np.ndarray":
        named = replace(text, language=args.lang, file=args.input or "", total=total)
        return encoder.embed(named, counts)

    return encode


def run_search(args: argparse.Namespace) -> None:
    import numpy as np

    from fairseq_lxsr.embeddings import Text, model_files, refuse_idf
    from fairseq_lxsr.search import CorpusIndex
    from fairseq_lxsr.search.passages import find_passage_ranker
    from fairseq_lxsr.search.reranker import find_reranker

    check_search_options(args)
    refuse_idf(args.model or [])
    index = CorpusIndex.load(args.index)
    check_width(args.truncate_dim, index)
    args.model = args.model or [index_model(index, args.index)]
    outputs = []
    if args.output != "-":
        outputs.append(args.output)
    refuse_overlap(outputs, [args.input, args.only_ids, *index.files, *model_files(args.model)])
    encoder = load_any(args, show_progress=False, truncate_dim=args.truncate_dim)
    check_model(index, encoder)
    entities = EntityReader(args.entities)
    queries = list(args.queries or entities.read_lines(read_lines(args.input)))
    # Blank queries are skipped, but the others keep their line numbers from the input.
    rows = nonblank_rows(queries, args.input or "the command line")
    text = Text([queries[row] for row in rows], rows=np.array(rows))
    encode = text_embedder(args, count_lines(args.input), encoder)
    options = filled(SearchOptions, args)
    results_by_query = index.search(
        text,
        encode,
        options.k,
        find_reranker(encoder, options),
        list(read_lines(args.only_ids)) if args.only_ids else None,
        ranker=find_passage_ranker(encoder),
        score_threshold=options.threshold,
    )
    has_ids = index.config["ids"]
    if args.json:
        write_json(args.output, text, results_by_query, rows, has_ids)
    else:
        numbers = rows if args.numbered else None
        write(args.output, text, results_by_query, numbers, has_ids)
    print_skipped(len(queries), len(rows), results_by_query, options.threshold)
    entities.report("queries")
    say_long(encoder)


def nonblank_rows(queries: list[str], place: str) -> list[int]:
    """Return the indices of the queries that are not blank; raise an error if all are blank."""
    rows = []
    for row, query in enumerate(queries):
        if not is_blank(query):
            rows.append(row)
    if not rows:
        raise InputError(f"{place}: no text; expected sentences to search for")
    return rows


def check_search_options(args: argparse.Namespace) -> None:
    """Raise an error for contradictory options."""
    if bool(args.queries) == bool(args.input):
        raise InputError("specify either sentences to search for, or --input FILE")
    if args.json and args.numbered:
        raise InputError("--json already numbers the queries; omit --numbered")
    if args.numbered and not args.output:
        raise InputError("--numbered requires --output; add --output FILE.tsv")


def check_width(truncate_dim: int | None, index: "CorpusIndex") -> None:
    """Raise an error if --truncate-dim differs from the width of the index."""
    width = index.config["width"]
    if truncate_dim not in (None, width):
        raise InputError(
            f"--truncate-dim {truncate_dim} does not match {index.folder}, whose vectors have "
            f"{width} dimensions; expected {width}: omit it, or build the index again"
        )


def print_skipped(
    num_queries: int,
    num_filled: int,
    results: "Sequence[Sequence[Hit]]",
    threshold: float | None,
) -> None:
    """Print how many queries are empty, and how many have no results."""
    num_empty = num_queries - num_filled
    if num_empty:
        say(f"{num_empty:,} of {num_queries:,} queries skipped (empty)")
    num_lost = sum(not hits for hits in results)
    if num_lost:
        reason = "no known word, or no match"
        if threshold is not None:
            reason = f"no known word, or no score of at least {threshold}"
        say(f"{num_lost:,} of {num_queries:,} queries without results ({reason})")


def check_model(index: "CorpusIndex", encoder: "Encoder") -> None:
    """Raise an error if the index was built with another model.

    Stored embeddings without a description do not record their model. An index of such embeddings
    can only be searched with stored embeddings from the same folder.
    """
    from fairseq_lxsr.embeddings import is_embeddings_folder

    folder = index.config["model_folder"]
    differs = index.fingerprint != encoder.fingerprint
    if (
        differs
        and folder
        and is_embeddings_folder(Path(folder))
        and not list(Path(folder).glob("*.json"))
    ):
        raise InputError(
            f"{index.folder}: the index was built from the vectors in {folder}, where no FILE.json "
            "records the model; use --input FILE with vectors in that folder, or build the index "
            "with a model or from files of `lxsr embed`"
        )
    index.check_model(encoder)


def index_model(index: "CorpusIndex", folder: Path) -> str:
    """Return the model folder that an index was built with.

    Other kinds of models are not loaded automatically, because an index may be untrusted.
    """
    from fairseq_lxsr.embeddings import is_embeddings_folder, is_model_folder

    model = index.config["model_folder"]
    if model:
        restore_folder(model)
    if not model or not Path(model).exists():
        place = model or "an unknown place"
        raise InputError(
            f"{folder}: the model of the index is no longer at {place}; specify the new location "
            "with --model"
        )
    if is_embeddings_folder(Path(model)):
        raise InputError(
            f"{folder}: the index was built from the vectors in {model}; specify the model that "
            "created them with --model NAME"
        )
    if not is_model_folder(Path(model)):
        raise InputError(
            f"{folder}: the index was built with {model}, which is not a model folder of this "
            f"package; if you trust it, specify it with --model {model}"
        )
    return model


def write(
    output: str | None,
    queries: "Sequence[str]",
    results_by_query: list[list["Hit"]],
    numbers: "Sequence[int] | None",
    has_ids: bool,
) -> None:
    """Write the results to a file as TSV, or to the screen as readable text.

    Args:
        output: output file; `-` is standard output, None the screen.
        queries: text of the queries.
        results_by_query: hits of each query.
        numbers: zero-based index of each query, for the first TSV column; None omits the column.
        has_ids: whether the index has ids that the user assigned.
    """
    if output:
        _write_tsv(output, queries, results_by_query, numbers)
        return
    # Raise an error if standard output is closed.
    results()
    for query, hits in zip(queries, results_by_query, strict=True):
        print(query)
        for hit in hits:
            # A passage is named by its id, because it may be long.
            place = f"  {hit.id}" if has_ids or hit.match else ""
            print(f"   {hit.score:.2f}{place}  {hit.match or hit.sentence}")


def _write_tsv(
    output: str,
    queries: "Sequence[str]",
    results_by_query: list[list["Hit"]],
    numbers: "Sequence[int] | None",
) -> None:
    names = [single_line(query) for query in queries]
    if numbers is not None:
        names = [f"{number + 1}\t{name}" for number, name in zip(numbers, names, strict=True)]
    with nullcontext(results()) if output == "-" else atomic_write(output) as stream:
        for name, hits in zip(names, results_by_query, strict=True):
            stream.writelines(_tsv_row(name, hit) for hit in hits)


def _tsv_row(name: str, hit: "Hit") -> str:
    columns = [name, f"{hit.score:.6f}", hit.id, hit.sentence]
    if hit.match:
        columns.append(hit.match)
    return "\t".join(columns) + "\n"


def write_json(
    output: str | None,
    queries: "Sequence[str]",
    results_by_query: list[list["Hit"]],
    numbers: "Sequence[int]",
    has_ids: bool,
) -> None:
    """Write one line of JSON per query; see `write` for the arguments."""
    from fairseq_lxsr.search.corpus import hit_fields

    with nullcontext(results()) if output in (None, "-") else atomic_write(output) as stream:
        for query, hits, number in zip(queries, results_by_query, numbers, strict=True):
            rows = [hit_fields(hit, has_ids) for hit in hits]
            # A command-line argument may contain bytes that are not UTF-8.
            query = query.encode(errors="replace").decode()
            result = {"query": query, "number": number + 1, "hits": rows}
            stream.write(f"{json_line(result)}\n")
