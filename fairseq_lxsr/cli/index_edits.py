"""Edits an index with `lxsr index --add`, `--update`, `--delete` and `--compact`, and reads ids."""

import argparse
import os
from collections import Counter
from contextlib import contextmanager
from itertools import tee
from typing import TYPE_CHECKING

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.files.entities import EntityReader
from fairseq_lxsr.files.lines import read_lines, single_line
from fairseq_lxsr.options import FILE_NAME
from fairseq_lxsr.preparation.articles import (
    EXPECTED,
    find_articles,
    has_paragraphs,
    place_of,
    read_articles,
)
from fairseq_lxsr.preparation.columns import column_names, needs_columns, read_columns
from fairseq_lxsr.preparation.tables import Column, parse_column_list
from fairseq_lxsr.search import IndexOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    from fairseq_lxsr.embeddings import Text
    from fairseq_lxsr.search import CorpusIndex

    LoadEmbedder = Callable[["CorpusIndex"], Callable[[Text], np.ndarray]]

EDITS = ("add", "update", "delete", "compact")


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the text to the parser of `lxsr index`."""
    parser.add_argument(
        "--input",
        dest="inputs",
        nargs="+",
        action="extend",
        type=FILE_NAME,
        metavar="FILE",
        help="a text file, with one text per line; - for standard input; a table, see --columns; "
        f"or articles: a folder, several files, Markdown or HTML ({EXPECTED}), whose paragraphs "
        "get the ids FILE#1, FILE#2, ...",
    )
    parser.add_argument(
        "--paragraphs",
        action="store_true",
        help="read a single text file like the files of a folder: empty lines separate its texts",
    )
    parser.add_argument(
        "--columns",
        type=column_list,
        metavar="I,J",
        help="columns of a .csv or .jsonl file, or else of a table with tabs, by number from 1 or "
        "by a name in the first row: the id and the text (further columns are joined to the text), "
        "or the text only",
    )


def column_list(text: str) -> "tuple[Column, ...]":
    """Parse the value of --columns; used as an argparse `type=`."""
    try:
        return parse_column_list(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_id_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for ids and edits to the parser of `lxsr index`."""
    parser.add_argument(
        "--ids",
        type=FILE_NAME,
        metavar="FILE",
        help="ids of the sentences, one per line (default: the line numbers are the ids)",
    )
    edits = parser.add_mutually_exclusive_group()
    edits.add_argument(
        "--add", action="store_true", help="add the sentences of --input to the index --output"
    )
    edits.add_argument(
        "--update",
        action="store_true",
        help="replace sentences of the index by the sentences of --input that have the same ids; "
        "with articles, also add what is new, and remove what is gone from the folder or files",
    )
    edits.add_argument(
        "--delete", action="store_true", help="delete the sentences with the given --ids"
    )
    edits.add_argument(
        "--compact",
        action="store_true",
        help="merge the index into one segment, without deleted sentences",
    )


def check_edit(args: argparse.Namespace) -> str:
    """Check the options of an edit, and return its name.

    Set `args.input` to a file with one text per line, or `args.articles` to the files of articles.

    Returns:
        The edit, or an empty string if an index is to be built.

    Raises:
        InputError: if an option is missing, or conflicts with the edit.
    """
    edits = [name for name in EDITS if getattr(args, name)]
    edit = edits[0] if edits else ""
    if edit in ("delete", "compact"):
        _refuse(args, edit, ("inputs", "paragraphs", "columns"))
    elif not args.inputs:
        raise InputError("--input is required: specify a file of sentences")
    else:
        _check_inputs(args)
    _check_ids(args, edit)
    if edit:
        _refuse(args, edit, ("kind", "plain", "truncate_dim", "ray"))
    elif not args.model:
        raise InputError("--model is required: specify the model that embeds the sentences")
    return edit


def _check_inputs(args: argparse.Namespace) -> None:
    """Decide how --input is read, and refuse options that do not apply."""
    if args.columns:
        if args.paragraphs or args.ids or len(args.inputs) > 1:
            raise InputError(
                "--columns cannot be combined with --paragraphs, --ids or several files"
            )
    elif args.paragraphs or has_paragraphs(args.inputs):
        if args.ids:
            raise InputError(
                f"{place_of(args.inputs)}: paragraphs get their ids from the files; omit --ids"
            )
        args.articles = find_articles(args.inputs)
    else:
        args.input = args.inputs[0]
        _refuse_table(args.input)


def _refuse_table(path: str) -> None:
    """Raise `InputError` if a file is a table, whose text is found only with --columns."""
    if not needs_columns(path):
        return
    names = list(map(single_line, column_names(path)))
    if not names:
        raise InputError(f"{path}: empty file; expected a header and rows")
    raise InputError(
        f"{path} is a table; choose the columns of id and text with --columns, for "
        f"example --columns {','.join(names[:2])}: the names are {listed(names)}"
    )


def _check_ids(args: argparse.Namespace, edit: str) -> None:
    """Raise `InputError` if the edit requires ids that are missing, or does not support ids."""
    has_ids = bool(args.ids or args.articles or (args.columns and len(args.columns) > 1))
    if edit == "compact":
        _refuse(args, edit, ("ids",))
    if edit == "delete" and not args.ids:
        raise InputError("--delete requires --ids FILE, the ids to delete")
    if edit == "update" and not has_ids:
        raise InputError("--update requires ids; add --ids FILE or --columns")
    if args.ray is not None and has_ids:
        raise InputError(
            "--ray does not support ids, because an index in shards has none; omit --ray or the ids"
        )


def _refuse(args: argparse.Namespace, edit: str, names: tuple[str, ...]) -> None:
    """Raise `InputError` if an option was given that the edit does not use."""
    for name in names:
        value = getattr(args, name)
        if value not in (None, False, getattr(IndexOptions, name, None)):
            option = f"--{name.replace('_', '-')}".replace("--inputs", "--input")
            raise InputError(f"--{edit} does not use {option}; omit {option}")


def read_documents(
    args: argparse.Namespace, entities: EntityReader
) -> "tuple[Iterator[str], Iterator[str] | None]":
    """Return the texts of --input, and their ids or None."""
    if args.articles:
        documents = read_articles(args.articles)
    elif args.columns:
        documents = read_columns(args.inputs[0], args.columns)
    else:
        ids = read_lines(args.ids) if args.ids else None
        return entities.read_lines(read_lines(args.input)), ids
    first, second = tee(documents)
    sentences = entities.read_lines(sentence for _, sentence in first)
    if args.columns and len(args.columns) == 1:
        return sentences, None
    return sentences, (name for name, _ in second)


@contextmanager
def naming_ids(args: argparse.Namespace) -> "Iterator[None]":
    """Add the name of the ids file to errors about ids."""
    from fairseq_lxsr.search.documents import IdError

    try:
        yield
    except IdError as error:
        raise InputError(f"{args.ids or listed(args.inputs)}: {error}") from None


def edit_index(args: argparse.Namespace, edit: str, load_embedder: "LoadEmbedder") -> None:
    """Change an index on disk.

    Args:
        args: options of the command line.
        edit: one of `EDITS`.
        load_embedder: loads the model of an index, and returns the function that embeds text.
    """
    from fairseq_lxsr.search import CorpusIndex

    index = CorpusIndex.load(args.output)
    entities = EntityReader(args.entities)
    with naming_ids(args):
        if edit == "delete":
            count = index.delete(list(read_lines(args.ids)))
            print(f"{args.output}: {sentences_of(count)} deleted, {len(index):,} left")
        elif edit == "compact":
            encode = load_embedder(index) if args.model else None
            index.compact(encode)
            print(f"{args.output}: {sentences_of(len(index))} in one segment")
        elif edit == "update" and args.articles:
            _synchronize(args, index, load_embedder, entities)
        elif edit == "update":
            sentences, ids = read_documents(args, entities)
            count = index.update(ids or [], sentences, load_embedder(index))
            print(f"{args.output}: {sentences_of(count)} updated")
        else:
            _add(args, index, load_embedder, entities)
    entities.report("lines")


def _synchronize(
    args: argparse.Namespace,
    index: "CorpusIndex",
    load_embedder: "LoadEmbedder",
    entities: EntityReader,
) -> None:
    from fairseq_lxsr.files.progress import Progress

    has_folder = any(map(os.path.isdir, args.inputs))

    def covers(name: str) -> bool:
        file, _, number = name.rpartition("#")
        return file in args.articles or (has_folder and number.isdecimal())

    if has_folder:
        check_same_folder(args, index)
    sentences, ids = read_documents(args, entities)
    line_counts: Counter[str] = Counter()
    lines = Progress(counted(sentences, line_counts), desc="index", unit=" texts", disable=None)
    changes = index.synchronize(ids or [], lines, load_embedder(index), covers)
    present = changes.added + changes.replaced + changes.unchanged
    skipped = left_out(line_counts, present)
    print(
        f"{args.output}: {changes.added:,} added, {changes.replaced:,} replaced, "
        f"{changes.removed:,} removed, {changes.unchanged:,} unchanged{skipped}, "
        f"{len(index):,} in the index"
    )


def check_same_folder(args: argparse.Namespace, index: "CorpusIndex") -> None:
    """Raise an error if a folder has no file of an index, which an update would then empty."""
    files = {name.rpartition("#")[0] for name in index.ids} - {""}
    if files and files.isdisjoint(args.articles):
        raise InputError(
            f"{listed(args.inputs)}: none of its files is in {args.output}, which has "
            f"{min(files)}; use the folder that the index was built from, or --add"
        )


def _add(
    args: argparse.Namespace,
    index: "CorpusIndex",
    load_embedder: "LoadEmbedder",
    entities: EntityReader,
) -> None:
    sentences, ids = read_documents(args, entities)
    line_counts: Counter[str] = Counter()
    count = index.add(counted(sentences, line_counts), ids, load_embedder(index))
    skipped = left_out(line_counts, count)
    print(f"{args.output}: {sentences_of(count)} added{skipped}, {len(index):,} in the index")


def sentences_of(count: int) -> str:
    """Format a number of sentences, for example `1,234 sentences`."""
    return "1 sentence" if count == 1 else f"{count:,} sentences"


def counted(lines: "Iterable[str]", counts: Counter[str]) -> "Iterator[str]":
    """Yield the lines unchanged; count all of them under `lines`, and blank ones under `empty`."""
    from fairseq_lxsr.files.lines import is_blank

    for line in lines:
        counts["lines"] += 1
        counts["empty"] += is_blank(line)
        yield line


def left_out(line_counts: Counter[str], num_indexed: int) -> str:
    """Describe how many lines are empty or without a known word, for the end of a message."""
    num_empty = line_counts["empty"]
    num_unknown = line_counts["lines"] - num_empty - num_indexed
    message = ""
    if num_empty:
        message += f", {num_empty:,} empty"
    if num_unknown:
        message += f", {num_unknown:,} without a known word"
    return message
