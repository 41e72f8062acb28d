"""An index of a corpus in shards, each an index of its own; a search merges what it finds in all of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.retrieval import merge_neighbours
from fairseq_lxsr.retrieval.neighbours import FloatArray, IntArray
from fairseq_lxsr.search.corpus_index import CorpusIndex
from fairseq_lxsr.stored import parse_json

MANIFEST = "shards.json"
MANIFEST_VERSION = 1


class ShardedIndex(CorpusIndex):
    """Indexes of the parts of a corpus, searched as one; those of kind `flat` find what one index of all would find.

    Args:
        folder: the folder of the shards.
        shards: their indexes, in the order of the corpus; all of one model.
    """

    def __init__(self, folder: Path, shards: Sequence[CorpusIndex]):
        self.folder, self.shards = folder, shards
        self.config = max(shards, key=len).config  # a short one may be flat beside others with lists
        self.starts = np.cumsum([0, *map(len, shards)]).tolist()  # number of the first row of each shard

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def files(self) -> list[Path]:
        return [self.folder / MANIFEST, *(path for shard in self.shards for path in shard.files)]

    def neighbours(self, embeddings: FloatArray, k: int, probes: int = 32) -> tuple[FloatArray, IntArray]:
        if not 1 <= k <= len(self):
            raise InputError(f"k is {k}; expected 1 to {len(self)}, the number of vectors in the index")
        return merge_neighbours(
            (self._neighbours(number, embeddings, k, probes) for number in range(len(self.shards))), k
        )

    def _neighbours(self, number: int, embeddings: FloatArray, k: int, probes: int) -> tuple[FloatArray, IntArray]:
        shard = self.shards[number]
        cosines, found = shard.neighbours(embeddings, min(k, len(shard)), probes)
        return cosines, np.where(found < 0, found, found + self.starts[number])

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        known: dict[int, tuple[int, str]] = {}
        for shard, start in zip(self.shards, self.starts[:-1], strict=True):
            here = rows[(rows >= start) & (rows < start + len(shard))]
            known |= {start + row: line for row, line in shard.sentences(here - start).items()}
        return known


def open_index(folder: str | Path) -> CorpusIndex:
    """Load an index folder of `lxsr index`, of one piece or of shards.

    Raises:
        InputError: as `CorpusIndex.load`, and for a list of shards that is none, or of several models.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return CorpusIndex.load(folder)
    shards = [CorpusIndex.load(folder / name) for name in shard_names(folder)]
    if len({(shard.fingerprint, shard.config["width"]) for shard in shards}) != 1:
        raise InputError(f"{folder}: shards of several models; make the index again")
    return ShardedIndex(folder, shards)


def shard_names(folder: Path) -> list[str]:
    """Read the names of the shards in a folder, in the order of the text.

    Raises:
        InputError: for a file that is no list of shards.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        version, names = manifest["version"], [shard["name"] for shard in manifest["shards"]]
        if version != MANIFEST_VERSION:
            raise ValueError(f"version {version!r:.40}")
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError(f"shards {names!r:.80}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a list of shards ({error!r:.120}); write it again") from None
    return names
