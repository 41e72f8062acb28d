"""An index of a corpus on disk, which is searched with sentences of any language."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings import (
    Text,
    first_dimensions,
    is_model_folder,
    load,
    model_of,
    truncate_dim_of,
    truncated_fingerprint,
)
from fairseq_lxsr.errors import InputError, check_text_list
from fairseq_lxsr.search.index_folder import (
    EmbedText,
    IndexFolder,
    IndexSettings,
    read_config,
    write_index_folder,
)
from fairseq_lxsr.search.options import SearchOptions
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.search.resumable import ENCODE_ROWS
from fairseq_lxsr.vectors import check_directions
from fairseq_lxsr.vectors.index import default_lists
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


@dataclass(frozen=True)
class Hit:
    """A sentence that a search returns.

    Attributes:
        score: cosine similarity to the query, or the score of a `Reranker`.
        line: line number in the corpus, from 0. The output of `lxsr search` counts from 1.
        sentence: the text of the line.
    """

    score: float
    line: int
    sentence: str

    @property
    def text(self) -> str:
        """Alias of `sentence`."""
        return self.sentence


class CorpusIndex:
    """Sentences and their embeddings, searched by cosine similarity.

        index = CorpusIndex.build("index", ["Un chien.", "Il pleut."], encoder)
        for hit in CorpusIndex.load("index").search("A dog.", k=1):
            print(hit.score, hit.text)

    The vectors of a flat index stay on disk; other kinds are held in memory. Sentences are read
    from disk when a search returns them. An open index does not change if its folder is built
    again.

    Attributes:
        folder: path of the index folder.
        config: description of the index: its kind, model and sizes.
        vectors: index of the vectors, of faiss or `vectors.index.FlatIndex`.
    """

    # Embeds text with the model of the index, which is loaded when it is first needed.
    _encode: EmbedText | None = None

    def __init__(self, stored: IndexFolder):
        self.folder = stored.path
        self.config = stored.config
        self.vectors = stored.vectors
        self._stored = stored

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._stored)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vectors: the model, and options that shortened or rounded them."""
        return self.config["model"]

    @property
    def truncate_dim(self) -> int | None:
        """Number of dimensions that the vectors were cut to; None if they were not cut."""
        return truncate_dim_of(self.fingerprint)

    @property
    def files(self) -> list[Path]:
        """Paths of all files of the index."""
        return self._stored.files

    # -- building

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
        truncate_dim: int | None = None,
    ) -> "CorpusIndex":
        """Build an index folder, which appears under its name only when it is complete.

        An existing index folder is replaced.

        Args:
            folder: folder to write.
            sentences: any number of sentences. Empty ones and those without a known word are
                skipped.
            encode: an encoder; or a function that returns the embeddings [n, D] of sentences, which
                come as `embeddings.Text` with their line numbers.
            fingerprint: fingerprint of the model (default: that of the encoder).
            kind: kind of the index, see `vectors.build_index`.
            lists: number of inverted lists, see `vectors.build_index`.
            model_folder: path of the model, stored for later searches (default: that of the
                encoder).
            first: line number of the first sentence in the corpus, from 0.
            truncate_dim: number of leading dimensions to keep; None keeps all. A search cuts its
                queries alike.

        Returns:
            The index, open.

        Raises:
            InputError: if no sentence has a known word, the sentences are a single string, a
                table, a mapping or a set, the fingerprint is missing, the kind is unknown or does
                not fit the vectors, or `folder` exists and is not an index.
        """
        check_text_list("sentences", sentences)
        fingerprint = fingerprint or getattr(encode, "fingerprint", "")
        if not fingerprint:
            raise InputError(
                "encode is a function, so its model is unknown; pass fingerprint too, or an encoder"
            )
        encoder_folder = getattr(encode, "folder", None)
        if not model_folder and encoder_folder:
            model_folder = str(Path(encoder_folder).resolve())
        if truncate_dim is not None:
            fingerprint = truncated_fingerprint(fingerprint, truncate_dim)
        settings = IndexSettings(fingerprint, kind, lists, model_folder)
        embed = _embed_function(encode)

        def embed_truncated(text: Text) -> FloatArray:
            return first_dimensions(embed(text), truncate_dim)

        write_index_folder(folder, sentences, embed_truncated, settings, first)
        index = cls.load(folder)
        index._encode = embed
        return index

    @classmethod
    def load(cls, folder: str | Path) -> "CorpusIndex":
        """Load an index folder.

        Raises:
            InputError: if a file is missing, changed or of another format.
        """
        return cls(IndexFolder.open(Path(folder)))

    def add(self, sentences: Iterable[str]) -> None:
        """Add sentences after the existing ones.

        The folder is built again: the model encodes all sentences.

        Args:
            sentences: any number of sentences.

        Raises:
            InputError: if the model of the index cannot be loaded, if another program has built the
                folder again since it was loaded, and for an index of shards.
        """
        check_text_list("sentences", sentences)
        if read_config(self.folder)["files"] != self.config["files"]:
            raise InputError(
                f"{self.folder}: was built again since it was loaded; load it again before adding"
            )
        lists = getattr(self.vectors, "nlist", None)
        if lists == default_lists(self.vectors.ntotal):
            # Recompute the default, which grows with the number of sentences.
            lists = None
        index = CorpusIndex.build(
            self.folder,
            chain(self._corpus_lines(), sentences),
            self._load_model(),
            self.config["model"],
            self.config["kind"],
            lists,
            self.config["model_folder"],
            truncate_dim=self.truncate_dim,
        )
        # Turn this object into the new index.
        self.__dict__ = index.__dict__

    def _corpus_lines(self) -> Iterator[str]:
        """Yield the lines of the corpus; those that were skipped are empty.

        An index of an earlier version does not have the number of lines, so its corpus ends with
        the last sentence.
        """
        line = 0
        for start in range(0, len(self), ENCODE_ROWS):
            rows = np.arange(start, min(start + ENCODE_ROWS, len(self)))
            for number, sentence in self.sentences(rows).values():
                yield from repeat("", number - line)
                yield sentence
                line = number + 1
        yield from repeat("", self.config.get("lines", line) - line)

    # -- the model

    def check_model(self, encoder: Any) -> None:
        """Check that the embeddings of an encoder can be compared with those of the index.

        Vectors that were cut or rounded can be compared with those of their model: a search cuts
        its queries as the vectors were cut.

        Raises:
            InputError: if the models differ and none is the teacher of the other.
        """
        fingerprint = encoder.fingerprint
        model = model_of(self.fingerprint)
        if model_of(fingerprint) == model:
            return
        space = model_of(getattr(encoder, "space", fingerprint))
        if space not in (model, self._space):
            raise InputError(
                f"{self.folder}: was made with model {self.fingerprint} and this is {fingerprint}; "
                "embeddings of two models cannot be compared unless one is the teacher of the "
                f"other{self._missing_model()}: use the model of the index, or build it again"
            )

    def _missing_model(self) -> str:
        """Return a note for messages if the model of the index is missing.

        A model that is missing cannot tell who its teacher is.
        """
        folder = self.config["model_folder"]
        if not folder or Path(folder).exists():
            return ""
        return f", and the model of the index is no longer at {folder}"

    @cached_property
    def _space(self) -> str:
        """Fingerprint of the teacher of the index model, or of that model if it has no teacher.

        The model is loaded to ask for its teacher, which takes a moment.
        """
        model = model_of(self.fingerprint)
        folder = Path(self.config["model_folder"])
        if not is_model_folder(folder):
            return model
        with suppress(InputError):
            encoder: Any = load(folder)
            if model_of(encoder.fingerprint) == model:
                return model_of(getattr(encoder, "space", model))
        return model

    def _load_model(self) -> EmbedText:
        """Return the function that embeds text with the model of the index; it is loaded once."""
        if self._encode is None:
            model = self.config["model_folder"]
            if not model or not is_model_folder(Path(model)):
                problem = "does not name its model"
                if model:
                    problem = f"its model is no longer at {model}"
                if model and Path(model).exists():
                    problem = f"its model {model} is not a model folder of this package"
                raise InputError(
                    f"{self.folder}: {problem}; pass the encoder to `search`, after the queries"
                )
            encoder = load(Path(model))
            self.check_model(encoder)
            self._encode = encoder.embed
        return self._encode

    # -- searching

    def search(
        self,
        queries: str | Sequence[str],
        encode: Any = None,
        k: int = SearchOptions.k,
        probes: int = SearchOptions.probes,
        reranker: Reranker | None = None,
    ) -> Any:
        """Find the k nearest sentences of each query.

        Args:
            queries: one sentence, or N sentences.
            encode: an encoder or a function as in `build`, with the same model; None loads the
                model that the index names. A number in this place is `k`.
            k: number of sentences to find.
            probes: number of inverted lists to search, see `vectors.search_index`.
            reranker: scores the nearest `reranker.depth` sentences again; the best k of them are
                returned.

        Returns:
            A list of hits for each query, best first; a single sentence gives its list alone. A
            list has fewer than k hits if the index has fewer than k sentences or if an approximate
            index finds fewer. It is empty if the query has no known word.

        Raises:
            InputError: if no query has a known word, if k or probes is less than 1, if the model of
                `encode` or of the reranker differs from that of the index, or if `encode` is None
                and the model of the index is missing.
        """
        if isinstance(encode, int | np.integer):
            return self.search(queries, None, int(encode), probes, reranker)
        if isinstance(queries, str):
            return self.search([queries], encode, k, probes, reranker)[0]
        check_text_list("queries", queries)
        text = queries if isinstance(queries, Text) else Text(list(queries))
        if not len(text):
            return []
        self._check_encoders(encode, reranker)
        embed = self._load_model() if encode is None else _embed_function(encode)
        embeddings = first_dimensions(embed(text), self.truncate_dim)
        is_known = np.asarray(embeddings.any(axis=1))
        check_directions(embeddings, text.where, zeros=bool(is_known.any()))
        if is_known.all():
            return self._search_known(text, embeddings, k, probes, reranker)
        known_text = Text(list(compress(text, is_known)))
        hits = self._search_known(known_text, embeddings[is_known], k, probes, reranker)
        all_hits: list[list[Hit]] = [[] for _ in text]
        for position, hits_of_query in zip(np.flatnonzero(is_known).tolist(), hits, strict=True):
            all_hits[position] = hits_of_query
        return all_hits

    def _check_encoders(self, encode: Any, reranker: Reranker | None) -> None:
        if hasattr(encode, "fingerprint"):
            self.check_model(encode)
        if reranker and reranker.model != model_of(self.fingerprint):
            raise InputError(
                f"{self.folder}: was made with model {self.fingerprint}, but the reranker uses "
                f"model {reranker.model}, whose word pieces differ; search without reranking, or "
                "with the model of the index"
            )

    def _search_known(
        self, text: Text, embeddings: FloatArray, k: int, probes: int, reranker: Reranker | None
    ) -> list[list[Hit]]:
        """Search with query embeddings [N, D], none of which is zero."""
        depth = k
        if reranker:
            reranker.check_depth(k)
            depth = reranker.depth
        scores, rows = self.neighbours(embeddings, min(depth, len(self)), probes)
        if reranker:
            scores, rows = reranker.best(text, self._texts, scores, rows)
            scores = scores[:, :k]
            rows = rows[:, :k]
        sentences = self.sentences(np.unique(rows[rows >= 0]))
        hits = []
        for scores_of_query, rows_of_query in zip(scores.tolist(), rows.tolist(), strict=True):
            hits_of_query = []
            for score, row in zip(scores_of_query, rows_of_query, strict=True):
                # An approximate index returns -1 for neighbours that it does not find.
                if row >= 0:
                    hits_of_query.append(Hit(score, *sentences[row]))
            hits.append(hits_of_query)
        return hits

    def _texts(self, rows: IntArray) -> list[str]:
        sentences = self.sentences(rows)
        return [sentences[row][1] for row in rows.tolist()]

    def neighbours(
        self, embeddings: FloatArray, k: int, probes: int = SearchOptions.probes
    ) -> tuple[FloatArray, IntArray]:
        """Find the rows of the k nearest sentences of each query.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours, at most the number of sentences.
            probes: number of inverted lists to search.

        Returns:
            Cosines [N, k] in descending order, and rows [N, k], as `vectors.search_index`.
        """
        return self._stored.neighbours(embeddings, k, probes)

    def sentences(self, rows: IntArray) -> dict[int, tuple[int, str]]:
        """Read the line number in the corpus, from 0, and the text of each of these rows [n]."""
        return self._stored.sentences(rows)


def _embed_function(encode: Any) -> EmbedText:
    """Return the embedding function of an encoder; a function is returned unchanged."""
    if embed := getattr(encode, "embed", None):
        return embed
    if hasattr(encode, "encode"):
        # For example a SentenceTransformer, which accepts only lists.
        return lambda text: encode.encode(list(text))
    return encode
