"""An index of a corpus on disk, which sentences of any language can search."""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank, single_line
from fairseq_lxsr.files.open import open_file, read_unreplaced, sha256, stamp
from fairseq_lxsr.files.records import open_array, parse_json, sealed
from fairseq_lxsr.files.write import atomic_folder, restore_folder
from fairseq_lxsr.search.options import SearchOptions
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.vectors import (
    build_index,
    check_directions,
    read_index,
    search_index,
    write_index,
)
from fairseq_lxsr.vectors.index import default_lists
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

INDEX_CONFIG, VECTORS_FILE, SENTENCES_FILE = "index.json", "index.faiss", "sentences.txt"
# the first byte and the corpus line of each sentence
OFFSETS_FILE, LINES_FILE = ("offsets.npy", "lines.npy")
FILES = (VECTORS_FILE, SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)
INDEX_FORMAT = 2
STAMPS = "stamps"  # of the files when they were hashed; an index of an earlier version has none

EmbedText = Callable[[Text], np.ndarray]


@dataclass(frozen=True)
class Hit:
    """A found sentence: cosine, or score of a `Reranker`; line number in the corpus; text.

    `line` counts from 0, as Python does; the TSV of `lxsr search --output` counts from 1, as
    editors do.
    """

    score: float
    line: int
    sentence: str

    @property
    def text(self) -> str:
        """The sentence."""
        return self.sentence


class CorpusIndex:
    """Sentences and their vectors, searched by cosine.

        index = CorpusIndex.build("index", ["Un chien.", "Il pleut."], encoder)
        for hit in CorpusIndex.load("index").search("A dog.", k=1):
            print(hit.score, hit.text)

    Vectors of a flat index stay on disk, others are held in memory; a sentence is read from disk
    when it is found. The files are opened once, all together: an index that is built again while
    this one is open changes nothing here.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], vectors: Any, files: dict[str, BinaryIO]
    ):
        """Map open files, whose hashes were compared; they are not needed afterwards."""
        count = config["sentences"]
        self.folder, self.config, self.vectors = folder, config, vectors
        self.offsets, self.lines = (
            _numbers(files[OFFSETS_FILE], count + 1),
            _numbers(files[LINES_FILE], count),
        )
        self._opened = {name: os.fstat(stream.fileno()) for name, stream in files.items()}
        size = self._opened[SENTENCES_FILE].st_size
        if (self.offsets[0], self.offsets[-1]) != (0, size) or (np.diff(self.offsets) < 1).any():
            raise InputError(
                f"{folder / OFFSETS_FILE}: not the places of {SENTENCES_FILE}; build the index again"
            )
        self._text = np.memmap(files[SENTENCES_FILE], np.uint8, "r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model that made the vectors."""
        return self.config["model"]

    def check_model(self, encoder: Any) -> None:
        """Refuse an encoder whose vectors cannot be compared with those of the index."""
        fingerprint = encoder.fingerprint
        if self.fingerprint == fingerprint:
            return
        space = getattr(encoder, "space", fingerprint)
        if space not in (self.fingerprint, self._space):
            raise InputError(
                f"{self.folder} was made with model {self.fingerprint} and this is {fingerprint}; vectors of "
                f"two models cannot be compared unless one is the other's teacher{self._moved()}: name the right "
                "--model or make the index again"
            )

    def _moved(self) -> str:
        """Say where the model of the index was, if it is there no longer and cannot name its
        teacher.
        """
        folder = self.config["model_folder"]
        return (
            ""
            if not folder or Path(folder).exists()
            else f", and the first is no longer at {folder}"
        )

    @cached_property
    def _space(self) -> str:
        """The `space` of the model that the index names, where it is still there; loading it takes
        a moment.
        """
        with suppress(InputError):
            encoder: Any = load(Path(self.config["model_folder"] or "none"))
            if encoder.fingerprint == self.fingerprint:
                return getattr(encoder, "space", self.fingerprint)
        return self.fingerprint

    @property
    def files(self) -> list[Path]:
        """Files of the folder."""
        return [self.folder / name for name in (INDEX_CONFIG, *FILES)]

    @classmethod
    def build(
        cls,
        folder: str | Path,
        sentences: Iterable[str],
        encode: EmbedText | Any,
        fingerprint: str = "",
        kind: str = "flat",
        lists: int | None = None,
        model_folder: str = "",
        first: int = 0,
    ) -> "CorpusIndex":
        """Build an index folder; it appears under its name only when it is complete.

        Args:
            folder: folder to write.
            sentences: any number of sentences; empty ones, and those without a known word, are
                skipped.
            encode: an encoder; or a function that maps sentences and their line numbers to
                embeddings [n, D].
            fingerprint: fingerprint of the model that encodes; that of the encoder.
            kind: as in `vectors.build_index`.
            lists: as in `vectors.build_index`.
            model_folder: path of the model, stored for later searches; that of the encoder.
            first: number of the first sentence in the corpus, from 0.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences is a str; expected a list of sentences")
        fingerprint = fingerprint or getattr(encode, "fingerprint", "")
        if not fingerprint:
            raise InputError(
                "a function without the fingerprint of its model; give both, or an encoder"
            )
        own_folder = getattr(encode, "folder", None)
        model_folder = model_folder or (str(Path(own_folder).resolve()) if own_folder else "")
        with atomic_folder(folder, INDEX_CONFIG, sign='"model_folder"') as work:
            # after the last sentence, its next number is that of the lines
            read = itertools.count(first)
            numbered = (
                (number, sentence) for sentence, number in zip(sentences, read, strict=False)
            )
            lines, offsets, width = _write_blocks(work, numbered, _embedder(encode))
            count = len(lines)
            vectors = np.memmap(
                work / "vectors.raw", dtype=np.float32, mode="r", shape=(count, width)
            )
            write_index(build_index(vectors, kind, lists), work / VECTORS_FILE)
            del vectors
            (work / "vectors.raw").unlink()
            np.save(work / OFFSETS_FILE, offsets)
            np.save(work / LINES_FILE, lines)
            config = {
                "format_version": INDEX_FORMAT,
                "kind": kind,
                "sentences": count,
                "lines": next(read),
                "width": width,
                "model": fingerprint,
                "model_folder": model_folder,
                "files": {name: sha256(work / name) for name in FILES},
                STAMPS: {name: stamp(work / name) for name in FILES},
            }
            (work / INDEX_CONFIG).write_text(
                json.dumps(sealed(config), indent=2) + "\n", encoding="utf-8"
            )
        index = cls.load(folder)
        index._encode = _embedder(encode)
        return index

    def add(self, sentences: Iterable[str]) -> None:
        """Add sentences to the folder, after the others, by building it again: all are encoded by
        the model.

        Raises:
            InputError: for one that does not name its model, if it was not built here; and for an
                index of shards.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences is a str; expected a list of sentences")
        if _read_config(self.folder)["files"] != self.config["files"]:
            raise InputError(
                f"{self.folder}: was built again since it was loaded; load it again, and add then"
            )
        lists = getattr(self.vectors, "nlist", None)
        lists = None if lists == default_lists(self.vectors.ntotal) else lists
        about = (self.config["model"], self.config["kind"], lists, self.config["model_folder"])
        encode = self._own_encode()
        index = CorpusIndex.build(self.folder, chain(self._lines(), sentences), encode, *about)
        self.__dict__ = index.__dict__

    def _lines(self) -> Iterator[str]:
        """Yield the corpus, of an older index up to its last sentence; what was left out is
        empty.
        """
        line = 0
        for start in range(0, len(self), ENCODE_ROWS):
            for number, sentence in self.sentences(
                np.arange(start, min(start + ENCODE_ROWS, len(self)))
            ).values():
                yield from repeat("", number - line)
                yield sentence
                line = number + 1
        yield from repeat("", self.config.get("lines", line) - line)

    _encode: EmbedText | None = None  # of the model; loaded when it is first needed

    def _own_encode(self) -> EmbedText:
        """Load the model that the index names, once."""
        if self._encode is None:
            model = self.config["model_folder"]
            if not model or not Path(model).exists():
                where = (
                    f"its model is no longer at {model}" if model else "it does not name its model"
                )
                raise InputError(
                    f"{self.folder}: {where}; give search the encoder, after the queries"
                )
            encoder = load(model)
            self.check_model(encoder)
            self._encode = encoder.embed
        return self._encode

    @classmethod
    def load(cls, folder: str | Path) -> "CorpusIndex":
        """Load an index folder; a file that is missing, changed or of another kind raises
        `InputError`.
        """
        folder = Path(folder)
        return read_unreplaced(folder / INDEX_CONFIG, lambda: cls._load(folder))

    @classmethod
    def _load(cls, folder: Path) -> "CorpusIndex":
        """Open all files once: what is checked is what is read later, whatever then has their
        names.
        """
        restore_folder(folder)
        with ExitStack() as opened:
            config = _read_config(folder)
            files = {
                name: opened.enter_context(_open_unchanged(folder / name, config)) for name in FILES
            }
            count, width = config["sentences"], config["width"]
            vectors = read_index(files[VECTORS_FILE])
            if (vectors.ntotal, vectors.d) != (count, width):
                raise InputError(
                    f"{folder / VECTORS_FILE}: {vectors.ntotal:,} vectors of width {vectors.d}; expected {count:,} of "
                    f"width {width}: build the index again"
                )
            return cls(folder, config, vectors, files)

    def search(
        self,
        queries: str | Sequence[str],
        encode: Any = None,
        k: int = SearchOptions.k,
        probes: int = SearchOptions.probes,
        reranker: Reranker | None = None,
    ) -> Any:
        """Find the k nearest sentences of every query, nearest first (fewer where the index finds
        fewer).

        Args:
            queries: N sentences to search for; for none the result is empty. One text gives its
                hits alone.
            encode: as in `build`, with the same model; None loads the one that the index names. A
                number is `k`.
            k: number of sentences to find.
            probes: see `vectors.search_index`.
            reranker: scores the `depth` nearest again, of which the k best are returned.

        A query whose embedding is zero (it has no known word) finds nothing; where no other is,
        `InputError` is raised.
        """
        if isinstance(encode, int | np.integer):
            encode, k = None, encode
        if isinstance(queries, str):
            return self.search([queries], encode, k, probes, reranker)[0]
        text = queries if isinstance(queries, Text) else Text(list(queries))
        if not len(text):
            return []
        if hasattr(encode, "fingerprint"):
            self.check_model(encode)
        if reranker and reranker.model != self.fingerprint:
            raise InputError(
                f"rerank by model {reranker.model}, and {self.folder} was made with {self.fingerprint}, whose pieces "
                "are others; search without, or with the model of the index"
            )
        encode = self._own_encode() if encode is None else _embedder(encode)
        embeddings = encode(text)
        some = embeddings.any(axis=1)
        check_directions(embeddings, text.where, zeros=bool(some.any()))
        if not some.all():
            known = Text(list(compress(text, some)))
            hits = iter(self._search(known, embeddings[some], k, probes, reranker))
            return [next(hits) if is_known else [] for is_known in some.tolist()]
        return self._search(text, embeddings, k, probes, reranker)

    def _search(
        self, text: Text, embeddings: FloatArray, k: int, probes: int, reranker: Reranker | None
    ) -> list[list[Hit]]:
        if reranker:
            reranker.check_depth(k)
        cosines, found = self.neighbours(
            embeddings, min(reranker.depth if reranker else k, len(self)), probes
        )
        if reranker:
            cosines, found = reranker.best(text, self._texts, cosines, found)
            cosines, found = cosines[:, :k], found[:, :k]
        known = self.sentences(np.unique(found[found >= 0]))
        return [
            [Hit(score, *known[row]) for score, row in zip(scores, rows, strict=True) if row >= 0]
            for scores, rows in zip(cosines.tolist(), found.tolist(), strict=True)
        ]

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int = SearchOptions.probes
    ) -> tuple[FloatArray, IntArray]:
        """Find the rows of the k nearest sentences: cosines [N, k] and rows [N, k], as
        `vectors.search_index`.
        """
        cosines, found = search_index(self.vectors, embeddings, k, probes)
        self._check_not_overwritten(VECTORS_FILE)
        if found.max(initial=-1) >= len(self):
            raise InputError(
                f"{self.folder / VECTORS_FILE}: names sentences that are not there; build it again"
            )
        return cosines, found

    def _texts(self, rows: IntArray) -> list[str]:
        known = self.sentences(rows)
        return [known[row][1] for row in rows.tolist()]

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        """Read the line number in the corpus and the text of each of these rows [n]."""
        known = {}
        for row in rows.tolist():
            line = (
                self._text[self.offsets[row] : self.offsets[row + 1]]
                .tobytes()
                .decode("utf-8", "replace")
            )
            known[row] = int(self.lines[row]), line.rstrip("\n")
        self._check_not_overwritten(SENTENCES_FILE, OFFSETS_FILE, LINES_FILE)
        return known

    def _check_not_overwritten(self, *names: str) -> None:
        """Refuse what was read where bytes were written into an open file, as `cp` does; replaced
        ones do no harm.
        """
        for name in names:
            before, now, path = self._opened[name], None, self.folder / name
            with suppress(OSError):  # for example because the folder is gone
                now = os.stat(path)
            if now and os.path.samestat(before, now) and _written(before) != _written(now):
                raise InputError(
                    f"{path}: was overwritten while the index was open; load it again, and let `lxsr index` or a "
                    "rename replace the folder"
                )


def _written(about: os.stat_result) -> tuple[int, int]:
    return about.st_size, about.st_mtime_ns


def _embedder(encode: Any) -> EmbedText:
    """Return the function of an encoder of ours or of any other, or the function that was given."""
    if embed := getattr(encode, "embed", None):
        return embed
    return (lambda text: encode.encode(list(text))) if hasattr(encode, "encode") else encode


def _read_config(folder: Path) -> dict[str, Any]:
    """Read index.json."""
    if not (folder / INDEX_CONFIG).is_file():
        why = f"it has no {INDEX_CONFIG}" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: not an index, {why}; make one with `lxsr index`")
    try:
        with open_file(folder / INDEX_CONFIG) as stream:
            config = parse_json(stream.read().decode("utf-8"))
        version = config["format_version"]
        if version == INDEX_FORMAT:
            types = {
                "files": dict,
                "model": str,
                "model_folder": str,
                "sentences": int,
                "width": int,
            }
            for name, kind in types.items():
                if type(config[name]) is not kind:
                    raise TypeError(f"{name} {config[name]!r:.40}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: not an index ({error!r}); make one with `lxsr index`"
        ) from None
    if version != INDEX_FORMAT:
        raise InputError(
            f"{folder}: index of format {version!r:.40}; this version reads format {INDEX_FORMAT}"
        )
    return config


def _open_unchanged(path: Path, config: dict[str, Any]) -> BinaryIO:
    """Open a file that has the hash in index.json.

    Hashing takes longer than a search, so a file that nobody has touched since it was hashed is not
    hashed again.
    """
    stamps = config[STAMPS] if isinstance(config.get(STAMPS), dict) else {}
    with suppress(FileNotFoundError, IsADirectoryError):
        stream = open_file(path)
        if stamp(stream) == stamps.get(path.name) or sha256(stream) == config["files"].get(
            path.name
        ):
            return stream
        stream.close()
    raise InputError(f"{path}: missing or changed since the index was built; build it again")


def _numbers(stream: BinaryIO, count: int) -> np.ndarray:
    """Map a stored array of `count` whole numbers."""
    try:
        array = open_array(stream)
    except ValueError as error:
        raise InputError(
            f"{stream.name}: not a numpy file of numbers ({error}); build the index again"
        ) from None
    if array.shape != (count,) or array.dtype != np.int64:
        raise InputError(
            f"{stream.name}: {array.dtype} of shape {array.shape}; expected {count:,} whole numbers: build the index "
            "again"
        )
    return array


def _blocks(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[list[int], list[str]]]:
    """Yield the line numbers and the text of the lines of a block that are not empty.

    Empty lines count in the size of a block, so that the blocks of a part of the corpus are those
    of the whole.
    """
    remaining = iter(numbered)
    while block := list(islice(remaining, ENCODE_ROWS)):
        kept = [(line, single_line(sentence)) for line, sentence in block if not is_blank(sentence)]
        if kept:
            lines, texts = zip(*kept, strict=True)
            yield list(lines), list(texts)


def _write_blocks(
    work: Path, numbered: Iterable[tuple[int, str]], encode: EmbedText
) -> tuple[np.ndarray, np.ndarray, int]:
    """Write sentences and raw vectors in blocks; return lines [count], byte offsets [count + 1] and
    the width.
    """
    # arrays of blocks: every full garbage collection would go through a list of all lines
    kept: list[np.ndarray] = []
    lengths, width = [np.zeros(1, dtype=np.int64)], 0
    nowhere: Callable[[], None] | None = None  # of sentences none of which has a known word
    with open(work / SENTENCES_FILE, "wb") as text, open(work / "vectors.raw", "wb") as vectors:
        for lines, block in _blocks(numbered):
            sentences_of_block = Text(block, rows=np.array(lines))
            embeddings = np.ascontiguousarray(encode(sentences_of_block), dtype=np.float32)
            check_directions(embeddings, sentences_of_block.where, zeros=True)
            some, width = np.asarray(embeddings.any(axis=1)), embeddings.shape[1]
            if not some.any():
                nowhere = nowhere or partial(check_directions, embeddings, sentences_of_block.where)
                continue
            vectors.write(embeddings[some].tobytes())
            kept.append(np.array(lines, dtype=np.int64)[some])
            written = [text.write(f"{sentence}\n".encode()) for sentence in compress(block, some)]
            lengths.append(np.array(written, dtype=np.int64))
    if not kept:
        if nowhere:
            nowhere()  # refuses the first
        raise InputError("no text to index; expected one sentence a line")
    return np.concatenate(kept), np.concatenate(lengths).cumsum(), width
