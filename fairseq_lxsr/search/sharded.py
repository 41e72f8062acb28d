"""An index folder of shards, and the one call that opens an index of either kind."""

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
    """Indexes of the parts of a corpus, in its order and of one model, searched as one.

    Those of kind `flat` find what one index of all would find.
    """

    def __init__(self, folder: Path, shards: Sequence[CorpusIndex]):
        self.folder, self.shards = folder, shards
        # a short one may be flat beside others with lists
        self.config = max(shards, key=len).config
        # number of the first row of each shard
        self.starts = np.cumsum([0, *map(len, shards)]).tolist()

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def files(self) -> list[Path]:
        return [self.folder / MANIFEST, *(path for shard in self.shards for path in shard.files)]

    def add(self, sentences: Iterable[str]) -> None:
        raise InputError(
            f"{self.folder}: has shards, to which none can be added; make the index again"
        )

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int = SearchOptions.probes
    ) -> tuple[FloatArray, IntArray]:
        if not 1 <= k <= len(self):
            raise InputError(
                f"k is {k}; expected 1 to {len(self)}, the number of vectors in the index"
            )
        parts = zip(self.shards, self.starts, strict=False)
        found = (
            shift_ids(shard.neighbours(embeddings, min(k, len(shard)), probes), start)
            for shard, start in parts
        )
        return merge_neighbours(found, k)

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        known: dict[int, tuple[int, str]] = {}
        for shard, start in zip(self.shards, self.starts[:-1], strict=True):
            here = rows[(rows >= start) & (rows < start + len(shard))]
            known |= {start + row: line for row, line in shard.sentences(here - start).items()}
        return known


def open_index(folder: str | Path) -> CorpusIndex:
    """Load an index folder of `lxsr index`, of one piece or of shards."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return CorpusIndex.load(folder)
    return read_unreplaced(folder / MANIFEST, lambda: _open_shards(folder))


def _open_shards(folder: Path) -> ShardedIndex:
    shards = [CorpusIndex.load(folder / name) for name in shard_names(folder)]
    if len({(shard.fingerprint, shard.config["width"]) for shard in shards}) != 1:
        raise InputError(f"{folder}: shards of several models; make the index again")
    return ShardedIndex(folder, shards)


def shard_names(folder: Path) -> list[str]:
    """Read the names of the shards in a folder, in the order of the text."""
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        version, names = manifest["version"], [shard["name"] for shard in manifest["shards"]]
        if version != MANIFEST_VERSION:
            raise ValueError(f"version {version!r:.40}")
        if not names or not all(
            isinstance(name, str) and Path(name).name == name for name in names
        ):
            raise ValueError(f"shards {names!r:.80}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a list of shards ({error!r:.120}); write it again") from None
    return names
