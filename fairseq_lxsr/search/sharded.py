"""An index in shards, and the function that opens an index folder of either kind."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import read_unreplaced
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.options import SearchOptions
from fairseq_lxsr.vectors import merge_neighbours
from fairseq_lxsr.vectors.neighbours import shift_ids
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

MANIFEST = "shards.json"
MANIFEST_VERSION = 1


class ShardedIndex(CorpusIndex):
    """Indexes of consecutive corpus parts, built with one model and searched together.

    Shards of kind `flat` return what one index of the complete corpus would return.
    """

    def __init__(self, folder: Path, shards: Sequence[CorpusIndex]):
        self.folder = folder
        self.shards = shards
        # Use the kind of the longest shard, because a short shard may be flat.
        self.config = max(shards, key=len).config
        # First row of each shard, followed by the total number of rows.
        self.starts = np.cumsum([0, *map(len, shards)]).tolist()

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def files(self) -> list[Path]:
        files = [self.folder / MANIFEST]
        for shard in self.shards:
            files += shard.files
        return files

    def add(self, sentences: Iterable[str]) -> None:
        raise InputError(
            f"{self.folder}: sentences cannot be added to an index in shards; build it again"
        )

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int = SearchOptions.probes
    ) -> tuple[FloatArray, IntArray]:
        if not 1 <= k <= len(self):
            raise InputError(
                f"k is {k}; expected 1 to {len(self)}, the number of vectors in the index"
            )
        parts = (
            shift_ids(shard.neighbours(embeddings, min(k, len(shard)), probes), start)
            for shard, start in zip(self.shards, self.starts, strict=False)
        )
        return merge_neighbours(parts, k)

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        sentences: dict[int, tuple[int, str]] = {}
        for shard, start in zip(self.shards, self.starts[:-1], strict=True):
            in_shard = rows[(rows >= start) & (rows < start + len(shard))]
            for row, sentence in shard.sentences(in_shard - start).items():
                sentences[start + row] = sentence
        return sentences


def open_index(folder: str | Path) -> CorpusIndex:
    """Open an index folder of `lxsr index`, with or without shards.

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
            f"{folder}: shards were built with different models; build the index again"
        )
    return ShardedIndex(folder, shards)


def shard_names(folder: Path) -> list[str]:
    """Read the shard names of an index folder, in corpus order."""
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        version = manifest["version"]
        names = [shard["name"] for shard in manifest["shards"]]
        if version != MANIFEST_VERSION:
            raise ValueError(f"version {version!r:.40}")
        if not names or not all(map(_is_shard_name, names)):
            raise ValueError(f"shards {names!r:.80}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a list of shards ({error!r:.120}); build the index again"
        ) from None
    return names


def _is_shard_name(name: object) -> bool:
    """Return whether a value of the manifest is a name within the folder."""
    return isinstance(name, str) and Path(name).name == name
