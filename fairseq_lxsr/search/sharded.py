"""Combines index shards into one index, and opens index folders with or without shards."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import read_unreplaced
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.index_folder import Condition
from fairseq_lxsr.search.options import SearchOptions
from fairseq_lxsr.vectors import merge_neighbours
from fairseq_lxsr.vectors.neighbours import shift_ids
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, check_count

MANIFEST = "shards.json"
MANIFEST_VERSION = 1


class ShardedIndex(CorpusIndex):
    """Indexes of consecutive parts of a corpus, built with the same model and searched together.

    Shards of kind `flat` return the same results as a single index of the whole corpus.
    """

    def __init__(self, folder: Path, shards: Sequence[CorpusIndex]):
        self.folder = folder
        self.shards = shards
        # First row of each shard, followed by the total number of rows.
        self.starts = np.cumsum([0, *(shard.num_rows for shard in shards)]).tolist()

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    @property
    def config(self) -> dict[str, Any]:
        # Use the kind of the longest shard, because a short shard may be flat.
        return max(self.shards, key=len).config

    @property
    def ids(self) -> list[str]:
        ids = []
        for shard in self.shards:
            ids += shard.ids
        return ids

    @property
    def num_rows(self) -> int:
        return self.starts[-1]

    @property
    def files(self) -> list[Path]:
        files = [self.folder / MANIFEST]
        for shard in self.shards:
            files += shard.files
        return files

    def add(
        self,
        sentences: Iterable[str],
        ids: Iterable[str | int] | None = None,
        encode: Any = None,
    ) -> int:
        self._refuse_edit()

    def update(self, ids: Iterable[str | int], sentences: Iterable[str], encode: Any = None) -> int:
        self._refuse_edit()

    def delete(self, ids: Iterable[str | int]) -> int:
        self._refuse_edit()

    def compact(self, encode: Any = None) -> None:
        self._refuse_edit()

    def _refuse_edit(self) -> NoReturn:
        raise InputError(
            f"{self.folder} is an index of {len(self.shards):,} shards, which cannot be edited; "
            "expected an index without shards: build it with `lxsr index` without --ray"
        )

    def is_current(self) -> bool:
        names = [shard.folder.name for shard in self.shards]
        if names != shard_names(self.folder):
            return False
        return all(shard.is_current() for shard in self.shards)

    def allowed(self, where: Condition) -> Any:
        return [shard.allowed(where) for shard in self.shards]

    def neighbours(
        self,
        embeddings: FloatArray,
        k: int,
        probes: int = SearchOptions.probes,
        allowed: Any = None,
    ) -> tuple[FloatArray, IntArray]:
        check_count("k", k, self.num_rows, "vectors in the index")
        masks = allowed or [None] * len(self.shards)
        parts = []
        for shard, start, mask in zip(self.shards, self.starts, masks, strict=False):
            part = shard.neighbours(embeddings, min(k, shard.num_rows), probes, mask)
            parts.append(shift_ids(part, start))
        return merge_neighbours(parts, k)

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        sentences: dict[int, tuple[int, str]] = {}
        for shard, start, in_shard in self._parts(rows):
            for row, sentence in shard.sentences(in_shard).items():
                sentences[start + row] = sentence
        return sentences

    def ids_of(self, rows: IntArray) -> dict[int, str]:
        ids: dict[int, str] = {}
        for shard, start, in_shard in self._parts(rows):
            for row, name in shard.ids_of(in_shard).items():
                ids[start + row] = name
        return ids

    def _parts(self, rows: IntArray) -> Iterator[tuple[CorpusIndex, int, IntArray]]:
        """Yield each shard, the index of its first row, and its rows, counted within the shard."""
        for shard, start in zip(self.shards, self.starts[:-1], strict=True):
            in_shard = rows[(rows >= start) & (rows < start + shard.num_rows)]
            yield shard, start, in_shard - start


def open_index(folder: str | Path) -> CorpusIndex:
    """Open an index folder created by `lxsr index`, with or without shards.

        hits = open_index("index").search("A dog.", k=5)

    Raises:
        InputError: if the folder is not an index, or was changed.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return CorpusIndex.load(folder)
    return read_unreplaced(folder / MANIFEST, lambda: _open_shards(folder))


def _open_shards(folder: Path) -> ShardedIndex:
    shards = [CorpusIndex.load(folder / name) for name in shard_names(folder)]
    models = {(shard.fingerprint, shard.config["width"]) for shard in shards}
    if len(models) != 1:
        raise InputError(
            f"{folder}: the shards were built with different models; build the index again"
        )
    return ShardedIndex(folder, shards)


def shard_names(folder: Path) -> list[str]:
    """Read the shard names of an index folder, in corpus order.

    Raises:
        InputError: if the list of shards is missing or invalid.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        version = manifest["version"]
        names = [shard["name"] for shard in manifest["shards"]]
        if version != MANIFEST_VERSION:
            raise ValueError(f"invalid version: {version!r:.40}")
        if not names or not all(map(_is_shard_name, names)):
            raise ValueError(f"invalid shards: {names!r:.80}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a list of shards ({error!r:.120}); build the index again"
        ) from None
    return names


def _is_shard_name(name: object) -> bool:
    """Return whether a value in the manifest is a valid file name without folders."""
    return isinstance(name, str) and Path(name).name == name
