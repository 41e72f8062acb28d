"""Adds, updates and deletes documents of an index on disk, and compacts it.

An edit writes new segments, and then replaces index.json, which lists them. If the
process is killed, the index is either unchanged or completely edited; the next edit removes files
that index.json does not list.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError, check_strings, shown
from fairseq_lxsr.files.lines import is_blank, single_line
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_write, editing_folder, naming, sync, sync_one
from fairseq_lxsr.search.documents import Block, IdError, blocks, checked_ids
from fairseq_lxsr.search.index_config import (
    DELETED_NAME,
    INDEX_CONFIG,
    SEGMENT_NAME,
    config_text,
    read_config,
)
from fairseq_lxsr.search.index_folder import PATIENCE, IndexFolder
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.search.segment import Segment
from fairseq_lxsr.search.segment_writer import EmbedText, SegmentWriter

# A new segment is merged with the previous segment, unless the latter is at least this many times
# larger. An index of N rows then has at most about log(N) / log(8) segments, and an edit copies few
# rows.
SIZE_RATIO = 8
# Compact a flat index if more than this fraction of its documents is deleted.
DELETED_SHARE = 0.5
# Number of documents to copy at a time.
COPIED_DOCUMENTS = 4096

Check = Callable[[IndexFolder], None]


def add_documents(
    path: Path,
    sentences: Iterable[str],
    ids: Iterable[str | int] | None,
    embed: EmbedText,
    check: Check,
) -> int:
    """Add documents after the existing ones.

    Args:
        path: index folder.
        sentences: texts. Empty ones and those without a known word are skipped.
        ids: ids of the documents; None if the ids of the index are line numbers.
        embed: computes embeddings.
        check: called with the current index; raises an error if `embed` does not match it.

    Returns:
        The number of documents added.

    Raises:
        InputError: if an id is invalid or already exists, or if the number of ids is wrong.
    """
    with editing(path, check) as edit:
        edit.check_has_ids(ids is not None)
        with edit.new_segment() as writer:
            next_line = edit.next_line
            for block in blocks(sentences, ids, next_line):
                edit.refuse_existing(block)
                writer.embed(block, embed)
                next_line = block.next_line
        edit.next_line = next_line
        edit.append(writer)
        edit.commit()
    return writer.num_documents


def update_documents(
    path: Path, ids: Iterable[str | int], sentences: Iterable[str], embed: EmbedText, check: Check
) -> int:
    """Replace the texts of documents, which keep their ids and line numbers.

    Args:
        path: index folder.
        ids: ids of the documents.
        sentences: the new texts.
        embed: computes embeddings.
        check: called with the current index; raises an error if `embed` does not match it.

    Returns:
        The number of documents updated.

    Raises:
        InputError: if an id is unknown or appears twice, if there is not one sentence for each id,
            or if a sentence is empty or has no known word. In these cases, nothing is changed.
    """
    names = list(checked_ids(ids))
    texts = list(sentences)
    check_strings("sentences", texts)
    if len(names) != len(texts):
        raise IdError(
            f"{len(names):,} ids for {len(texts):,} sentences; expected one id for each sentence"
        )
    with editing(path, check) as edit:
        numbers = edit.numbers_of(names)
        replaced = edit.index.sentences(numbers)
        lines = [replaced[number][0] for number in numbers.tolist()]
        with edit.new_segment() as writer:
            for start in range(0, len(names), ENCODE_ROWS):
                part = slice(start, start + ENCODE_ROWS)
                block = _replacing_block(names[part], texts[part], lines[part], start)
                if not edit.index.config["ids"]:
                    block = Block(block.sentences, block.lines, block.places, None, 0)
                _refuse_unknown(writer.embed(block, embed), names[part], texts[part])
        edit.delete(numbers)
        edit.append(writer)
        edit.commit()
    return len(names)


@dataclass
class Changes:
    """Numbers of documents that a synchronization added, replaced, removed and left unchanged."""

    added: int = 0
    replaced: int = 0
    removed: int = 0
    unchanged: int = 0


def synchronize_documents(
    path: Path,
    ids: Iterable[str | int],
    sentences: Iterable[str],
    embed: EmbedText,
    check: Check,
    covers: Callable[[str], bool],
) -> Changes:
    """Make an index contain the given documents. Only new and changed texts are embedded.

    Args:
        path: index folder.
        ids: ids of the documents.
        sentences: texts. Empty ones and those without a known word are skipped.
        embed: computes embeddings.
        check: called with the current index; raises an error if `embed` does not match it.
        covers: returns whether a document of the index is to be removed if its id is not given.

    Returns:
        The numbers of changes.

    Raises:
        InputError: if an id is invalid or appears twice, or if the index has no ids. In these
            cases, nothing is changed.
    """
    changes = Changes()
    with editing(path, check) as edit:
        edit.check_has_ids(True)
        numbers = edit.index.numbers
        missing = set(filter(covers, numbers))
        replaced: list[str] = []
        with edit.new_segment() as writer:
            for block in blocks(sentences, ids, 0):
                missing.difference_update(block.ids or ())
                changed = edit.changed_part(block)
                changes.unchanged += len(block.sentences) - len(changed.sentences)
                is_written = writer.embed(changed, embed)
                # A changed text without a known word is removed, not replaced.
                for name, is_known in zip(changed.ids or (), is_written.tolist(), strict=True):
                    if name not in numbers:
                        changes.added += is_known
                    elif is_known:
                        replaced.append(name)
                    else:
                        missing.add(name)
        changes.replaced = len(replaced)
        changes.removed = len(missing)
        if changes.added or replaced or missing:
            edit.delete(edit.numbers_of([*replaced, *missing]))
            edit.append(writer)
            edit.commit()
    return changes


def _replacing_block(names: list[str], texts: list[str], lines: list[int], start: int) -> Block:
    for name, text in zip(names, texts, strict=True):
        if is_blank(text):
            raise InputError(
                f"id {shown(name)}: the new text is empty; use a different text, or delete the id"
            )
    sentences = [single_line(text) for text in texts]
    places = list(range(start, start + len(texts)))
    return Block(sentences, lines, places, names, 0)


def _refuse_unknown(is_written: Any, names: list[str], texts: list[str]) -> None:
    if not is_written.all():
        number = int(is_written.argmin())
        raise InputError(
            f"id {shown(names[number])}: the new text {texts[number]!r:.60} contains no known "
            "words; use a different text, or delete the id"
        )


def delete_documents(path: Path, ids: Iterable[str | int]) -> int:
    """Delete documents from an index folder.

    Args:
        path: index folder.
        ids: ids of the documents.

    Returns:
        The number of documents deleted.

    Raises:
        InputError: if an id is unknown or appears twice; in this case, nothing is changed.
    """
    names = list(checked_ids(ids))
    with editing(path) as edit:
        edit.delete(edit.numbers_of(names))
        edit.commit()
    return len(names)


def compact_index(path: Path, load_model: Callable[[], EmbedText], check: Check) -> None:
    """Write all documents that are not deleted into one segment of the index kind.

    The vectors of flat segments are copied. If a segment stores rounded vectors, the model embeds
    all documents again.

    Args:
        path: index folder.
        load_model: returns the function that computes embeddings; called only if it is needed.
        check: called with the current index; raises an error if the model does not match it.
    """
    with editing(path, check) as edit:
        embed = None
        if not edit.is_flat:
            embed = load_model()
        if edit.merge_all(embed):
            edit.commit()


@contextmanager
def editing(path: Path, check: Check | None = None) -> Iterator["Edit"]:
    """Open an index for an edit; wait up to ten minutes if another process edits it.

    Args:
        path: index folder.
        check: called with the open index before the edit; raises `InputError` to refuse it.

    Yields:
        The edit, whose `commit` makes it visible.

    Raises:
        InputError: if the index cannot be read, or another process does not finish in time.
    """
    with editing_folder(path, PATIENCE) as folder, naming(folder):
        index = IndexFolder.open(folder)
        if check:
            check(index)
        edit = Edit(index)
        remove_unlisted(folder)
        try:
            yield edit
        finally:
            # A file that is left over is removed by the next edit.
            with contextlib.suppress(InputError):
                remove_unlisted(folder)


def remove_unlisted(folder: Path) -> None:
    """Remove the files of replaced segments and of edits that were interrupted.

    Args:
        folder: an index folder that no other process edits.
    """
    config = read_config(folder)
    listed = {segment["folder"] for segment in config["segments"]}
    if config["deleted"]:
        listed.add(config["deleted"]["file"])
    for path in list(folder.iterdir()):
        is_part = SEGMENT_NAME.fullmatch(path.name) or DELETED_NAME.fullmatch(path.name)
        if not is_part or path.name in listed:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Edit:
    """Changes to an index, which `commit` makes visible together.

    Attributes:
        index: the index before the edit.
        next_line: zero-based line index of the next document.
    """

    def __init__(self, index: IndexFolder):
        self.index = index
        self._folder = index.path
        self._config = index.config
        self._segments = list(index.segments)
        self._deleted = index.deleted
        self._next = index.config["next"]
        self.next_line = index.config["lines"]

    # -- checks

    def check_has_ids(self, has_ids: bool) -> None:
        """Check that documents come with ids if and only if the index has ids."""
        if has_ids and not self._config["ids"]:
            raise InputError(
                f"{self._folder}: the index was built without ids, so its ids are line "
                "numbers; add sentences without ids, or build the index again with ids"
            )
        if not has_ids and self._config["ids"]:
            raise InputError(
                f"{self._folder}: the index has ids; expected an id for each new sentence"
            )

    def refuse_existing(self, block: Block) -> None:
        """Raise `InputError` if the index already contains one of the ids."""
        for name in block.ids or ():
            if name in self.index.numbers:
                raise InputError(
                    f"{self._folder}: the index already contains the id {shown(name)}; update "
                    "it, or choose another id"
                )

    def numbers_of(self, names: Sequence[str]) -> np.ndarray:
        """Return the numbers of documents, given their ids."""
        numbers = []
        for name in names:
            number = self.index.numbers.get(name)
            if number is None:
                raise InputError(
                    f"{self._folder}: the index does not contain the id {shown(name)}; use "
                    "ids of documents in the index"
                )
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def changed_part(self, block: Block) -> Block:
        """Return the documents of a block with ids that are new, or have another text."""
        names = block.ids or []
        numbers = self.index.numbers
        documents = [numbers[name] for name in names if name in numbers]
        stored = self.index.sentences(np.array(documents, dtype=np.int64))
        changed_names: list[str] = []
        changed = Block([], [], [], changed_names, 0)
        for name, sentence, place in zip(names, block.sentences, block.places, strict=True):
            if name in numbers:
                line, stored_sentence = stored[numbers[name]]
                if stored_sentence == sentence:
                    continue
            else:
                line = self.next_line
                self.next_line += 1
            changed.sentences.append(sentence)
            changed.lines.append(line)
            changed.places.append(place)
            changed_names.append(name)
        return changed

    # -- changes

    def new_segment(self) -> SegmentWriter:
        """Return a writer for a new segment folder."""
        folder = self._folder / f"segment-{self._next}"
        self._next += 1
        folder.mkdir(self._folder.stat().st_mode & 0o777)
        return SegmentWriter(folder, self._config["plain"])

    def append(self, writer: SegmentWriter) -> None:
        """Append a new segment, unless it is empty, and merge it with small previous segments."""
        if not writer.num_documents:
            return
        self._segments.append(self._finish(writer, "flat"))
        first = len(self._segments) - 1
        size = writer.num_documents
        while first > 0 and self._may_merge(self._segments[first - 1], size):
            first -= 1
            size += self._segments[first].num_documents
        if first < len(self._segments) - 1:
            self._merge(first, "flat", None)

    def delete(self, numbers: np.ndarray) -> None:
        """Mark documents as deleted."""
        self._deleted = np.union1d(self._deleted, numbers)

    @property
    def is_flat(self) -> bool:
        """Whether all segments store the vectors unrounded, so that they can be copied."""
        return all(segment.vectors.is_flat for segment in self._segments)

    def merge_all(self, embed: EmbedText | None = None) -> bool:
        """Merge all segments into one segment of the index kind.

        Args:
            embed: computes the vectors again; None copies them.

        Returns:
            Whether the segments were rewritten.
        """
        if len(self._segments) == 1 and not len(self._deleted):
            return False
        self._merge(0, self._config["kind"], embed)
        return True

    def commit(self) -> None:
        """Make the changes visible, by replacing index.json.

        If more than `DELETED_SHARE` of the documents are deleted, a flat index is compacted first.
        """
        total = sum(segment.num_documents for segment in self._segments)
        if self.is_flat and len(self._deleted) > DELETED_SHARE * total:
            self.merge_all()
            total = sum(segment.num_documents for segment in self._segments)
        config = {
            **self._config,
            "lines": self.next_line,
            "sentences": total - len(self._deleted),
            "segments": [segment.current_description for segment in self._segments],
            "deleted": None,
        }
        if len(self._deleted):
            config["deleted"] = self._write_deleted()
        config["next"] = self._next
        for segment in self._segments:
            if segment not in self.index.segments:
                sync(segment.path)
        sync_one(self._folder)
        with atomic_write(self._folder / INDEX_CONFIG) as stream:
            stream.write(config_text(config))
        # The edit is already visible, so an error here must not be reported as a failed edit.
        with contextlib.suppress(OSError):
            sync_one(self._folder)

    # -- segments

    def _finish(self, writer: SegmentWriter, kind: str) -> Segment:
        """Write the vectors of a new segment, and open it."""
        mode = (self._folder / INDEX_CONFIG).stat().st_mode & 0o777
        description = writer.finish(kind, mode)
        return Segment(self._folder, description, {**self._config, "width": writer.width})

    def _may_merge(self, segment: Segment, size: int) -> bool:
        """Return whether a segment is small enough to be merged with `size` new documents."""
        return segment.vectors.is_flat and segment.num_documents < SIZE_RATIO * size

    def _merge(self, first: int, kind: str, embed: EmbedText | None = None) -> None:
        """Merge all segments from index `first` on, without deleted documents."""
        start = sum(segment.num_documents for segment in self._segments[:first])
        with self.new_segment() as writer:
            first_document = start
            for segment in self._segments[first:]:
                is_alive = np.ones(segment.num_documents, dtype=bool)
                is_inside = self._deleted >= first_document
                is_inside &= self._deleted < first_document + segment.num_documents
                is_alive[self._deleted[is_inside] - first_document] = False
                _copy(segment, np.flatnonzero(is_alive), writer, embed, self._config["ids"])
                first_document += segment.num_documents
        self._deleted = self._deleted[self._deleted < start]
        self._segments = self._segments[:first]
        if not writer.num_documents:
            return
        self._segments.append(self._finish(writer, kind))

    def _write_deleted(self) -> dict[str, str]:
        """Write the numbers of the deleted documents, and return the name and hash of the file."""
        name = f"deleted-{self._next}.npy"
        self._next += 1
        path = self._folder / name
        np.save(path, self._deleted)
        sync(path)
        return {"file": name, "sha256": sha256(path)}


def _copy(
    segment: Segment,
    documents: np.ndarray,
    writer: SegmentWriter,
    embed: EmbedText | None,
    has_ids: bool,
) -> None:
    """Copy documents with their vectors, or compute new vectors with `embed`."""
    for start in range(0, len(documents), COPIED_DOCUMENTS):
        numbers = documents[start : start + COPIED_DOCUMENTS]
        lines, sentences = zip(*segment.sentences(numbers), strict=True)
        ids = list(segment.ids_of(numbers)) if has_ids else None
        if embed:
            texts = [sentence.decode("utf-8", "replace").rstrip("\n") for sentence in sentences]
            writer.embed(Block(texts, list(lines), list(lines), ids, 0), embed)
            continue
        rows, content = segment.rows_of(numbers)
        vectors = segment.vectors.index.rows[rows]
        pieces = segment.row_pieces(rows)
        writer.write(vectors, sentences, np.array(lines), ids, content, pieces)
