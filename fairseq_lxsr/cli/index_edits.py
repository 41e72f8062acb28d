"""Edits an index with `lxsr index --add`, `--update`, `--delete` and `--compact`, and reads ids."""

import argparse
from collections import Counter
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.entities import EntityReader
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import FILE_NAME
from fairseq_lxsr.search import IndexOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    from fairseq_lxsr.embeddings import Text
    from fairseq_lxsr.search import CorpusIndex

    LoadEmbedder = Callable[["CorpusIndex"], Callable[[Text], np.ndarray]]

EDITS = ("add", "update", "delete", "compact")


def add_id_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for ids and edits to the parser of `lxsr index`."""
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument(
        "--ids",
        type=FILE_NAME,
        metavar="FILE",
        help="ids of the sentences, one per line (default: the line numbers are the ids)",
    )
    ids.add_argument(
        "--id-column",
        action="store_true",
        help="each line of --input is an id, a tab and a sentence",
    )
    edits = parser.add_mutually_exclusive_group()
    edits.add_argument(
        "--add", action="store_true", help="add the sentences of --input to the index --output"
    )
    edits.add_argument(
        "--update",
        action="store_true",
        help="replace sentences of the index by the sentences of --input that have the same ids",
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

    Returns:
        The edit, or an empty string if an index is to be built.

    Raises:
        InputError: if an option is missing, or conflicts with the edit.
    """
    edits = [name for name in EDITS if getattr(args, name)]
    edit = edits[0] if edits else ""
    if edit in ("delete", "compact"):
        _refuse(args, edit, ("input", "id_column"))
    elif not args.input:
        raise InputError("--input is required: specify a file of sentences")
    _check_ids(args, edit)
    if edit:
        _refuse(args, edit, ("kind", "lists", "passages", "hybrid", "truncate_dim", "ray"))
    elif not args.model:
        raise InputError("--model is required: specify the model that embeds the sentences")
    return edit


def _check_ids(args: argparse.Namespace, edit: str) -> None:
    """Raise `InputError` if the edit requires ids that are missing, or does not support ids."""
    has_ids = bool(args.ids or args.id_column)
    if edit == "compact":
        _refuse(args, edit, ("ids",))
    if edit == "delete" and not args.ids:
        raise InputError("--delete requires --ids FILE, the ids to delete")
    if edit == "update" and not has_ids:
        raise InputError("--update requires ids; add --ids FILE or --id-column")
    if args.ray is not None and has_ids:
        raise InputError(
            "--ray does not support ids, because an index in shards has none; omit --ray or the ids"
        )


def _refuse(args: argparse.Namespace, edit: str, names: tuple[str, ...]) -> None:
    """Raise `InputError` if an option was given that the edit does not use."""
    for name in names:
        value = getattr(args, name)
        if value not in (None, False, getattr(IndexOptions, name, None)):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"--{edit} does not use {option}; omit {option}")


def read_documents(
    args: argparse.Namespace, entities: EntityReader
) -> "tuple[Iterator[str], Iterator[str] | None]":
    """Return the sentences of --input, and their ids or None."""
    if not args.id_column:
        ids = read_lines(args.ids) if args.ids else None
        return entities.read_lines(read_lines(args.input)), ids
    first, second = tee(_split_lines(args.input))
    sentences = entities.read_lines(sentence for _, sentence in first)
    return sentences, (name for name, _ in second)


def _split_lines(path: str) -> "Iterator[tuple[str, str]]":
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        name, tab, sentence = line.partition("\t")
        if not tab:
            raise InputError(
                f"{path}, line {number:,}: {shown(line)} has no tab; expected an id, a tab and a "
                "sentence"
            )
        yield name, sentence


@contextmanager
def naming_ids(args: argparse.Namespace) -> "Iterator[None]":
    """Add the name of the ids file to errors about ids."""
    from fairseq_lxsr.search.documents import IdError

    try:
        yield
    except IdError as error:
        raise InputError(f"{args.ids or args.input}: {error}") from None


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
        elif edit == "update":
            sentences, ids = read_documents(args, entities)
            count = index.update(ids or [], sentences, load_embedder(index))
            print(f"{args.output}: {sentences_of(count)} updated")
        else:
            _add(args, index, load_embedder, entities)
    entities.report("lines")


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


def read_allowed_ids(path: str | None) -> list[str] | None:
    """Read the ids that a search is limited to; without a file, return None, which means all."""
    return None if path is None else list(read_lines(Path(path)))
