"""An index of a corpus on disk, to be searched with sentences in any language."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

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
from fairseq_lxsr.files.open import read_unreplaced
from fairseq_lxsr.files.write import restore_folder
from fairseq_lxsr.options import FINITE, INDEX_KINDS
from fairseq_lxsr.search.documents import Where, checked_where
from fairseq_lxsr.search.edits import (
    Changes,
    add_documents,
    compact_index,
    delete_documents,
    synchronize_documents,
    update_documents,
)
from fairseq_lxsr.search.index_config import INDEX_CONFIG, IndexSettings, read_config
from fairseq_lxsr.search.index_folder import IndexFolder, write_index_folder
from fairseq_lxsr.search.options import SearchOptions
from fairseq_lxsr.search.passages import PassageRanker, find_passage_ranker, with_pieces
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.search.retrieval import Matches, Ranking, Retrieval
from fairseq_lxsr.search.segment_vectors import Mask
from fairseq_lxsr.search.segment_writer import EmbedText
from fairseq_lxsr.vectors import check_directions
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


@dataclass(frozen=True)
class Hit:
    """A sentence found by a search.

    Attributes:
        score: cosine similarity to the query, or the score of a `Reranker`; in an index of
            passages, the score of `search.passages`.
        line: zero-based line index in the corpus. The output of `lxsr search` counts from 1.
        sentence: the text of the line.
        id: id of the sentence. In an index without user-defined ids, it is the one-based line
            number.
        match: the sentence that matched best; empty in an index with one vector for each text.
    """

    score: float
    line: int
    sentence: str
    id: str = ""
    match: str = ""

    @property
    def text(self) -> str:
        """Alias of `sentence`."""
        return self.sentence


def hit_fields(hit: Hit, has_ids: bool = False) -> dict[str, Any]:
    """Return the fields of a hit for JSON, with one-based line numbers.

    The field `match` is only present if the index has sentences of texts.

    Args:
        hit: the hit.
        has_ids: whether to include the id.

    Returns:
        The fields by name.
    """
    fields: dict[str, Any] = {"score": hit.score}
    if has_ids:
        fields["id"] = hit.id
    fields |= {"line": hit.line + 1, "text": hit.text}
    if hit.match:
        fields["match"] = hit.match
    return fields


class CorpusIndex:
    """Sentences and their embeddings, searched by cosine similarity.

        index = CorpusIndex.build("index", ["Un chien.", "Il pleut."], encoder)
        for hit in CorpusIndex.load("index").search("A dog.", k=1):
            print(hit.score, hit.text)

    The vectors of a flat index stay on disk; other kinds are held in memory. Sentences are read
    from disk when a search returns them. An open index does not change if another process edits it
    or builds its folder again. Threads may share it.

    Attributes:
        folder: path of the index folder.
    """

    # Embeds text with the model of the index, which is loaded on first use.
    _encode: EmbedText | None = None
    # The model itself, used to rank passages.
    _model: Any = None

    def __init__(self, stored: IndexFolder):
        self.folder = stored.path
        self._stored = stored

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._stored)

    def __repr__(self) -> str:
        contents = "one vector each" if self.is_plain else "with words"
        return (
            f"<CorpusIndex {self.folder}: {self.config['kind']} index of {len(self):,} texts, "
            f"{contents}, model {self.fingerprint}>"
        )

    @property
    def config(self) -> dict[str, Any]:
        """Description of the index: its kind, model and sizes."""
        return self._stored.config

    @property
    def ids(self) -> list[str]:
        """Ids of all sentences."""
        return self._stored.all_ids

    @property
    def num_rows(self) -> int:
        """Number of vectors, including vectors of deleted sentences."""
        return self._stored.num_rows

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vectors: the model, and options that truncated or rounded them."""
        return self.config["model"]

    @property
    def is_plain(self) -> bool:
        """Whether each sentence is a single vector, and words are not stored."""
        return not self._stored.has_windows

    @property
    def num_passages(self) -> int:
        """Number of texts of several sentences, including deleted texts."""
        return self._stored.num_passages

    @property
    def truncate_dim(self) -> int | None:
        """Number of dimensions that the vectors were truncated to, if any."""
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
        model_folder: str = "",
        first: int = 0,
        truncate_dim: int | None = None,
        ids: Iterable[str | int] | None = None,
        plain: bool = False,
    ) -> "CorpusIndex":
        """Build an index folder, and open it. The folder is written atomically.

        An existing index folder is replaced.

        Args:
            folder: output folder.
            sentences: any number of sentences. Empty ones and those without a known word are
                skipped.
            encode: an encoder, or a function that returns the embeddings [n, D] of sentences. The
                function receives them as `embeddings.Text`, which includes their line numbers.
            fingerprint: model fingerprint (default: the encoder's fingerprint).
            kind: index kind; see `vectors.build_index`.
            model_folder: path of the model, stored for later searches (default: the encoder's
                folder).
            first: zero-based line index of the first sentence in the corpus.
            truncate_dim: number of leading dimensions to keep; None keeps all. A search truncates
                its queries to match.
            ids: id of each sentence, text or integer; None uses the one-based line numbers.
            plain: whether to store only one vector for each text, for searches by cosine
                similarity. By default, the sentences of longer texts have vectors of their own, and
                words are stored, so that a search can combine them; see `search.retrieval`.

        Returns:
            The index, open.

        Raises:
            InputError: if no sentence has a known word, the sentences are a single string, a
                table, a mapping or a set, the ids do not match the sentences, an id appears twice,
                the fingerprint is missing, the kind is unknown, or
                `folder` exists and is not an index.
        """
        check_text_list("sentences", sentences)
        if ids is not None:
            check_text_list("ids", ids)
        if kind not in INDEX_KINDS:
            raise InputError(f"unknown index kind {kind!r}; choose from {', '.join(INDEX_KINDS)}")
        fingerprint, model_folder = _model_of(encode, fingerprint, model_folder)
        if truncate_dim is not None:
            fingerprint = truncated_fingerprint(fingerprint, truncate_dim)
        settings = IndexSettings(fingerprint, kind, model_folder, plain)
        embed = _embed_function(encode)

        def embed_truncated(text: Text) -> FloatArray:
            return first_dimensions(embed(text), truncate_dim)

        embed_rows = with_pieces(embed_truncated, encode, fingerprint)
        write_index_folder(folder, sentences, embed_rows, settings, first, ids=ids)
        index = cls.load(folder)
        index._encode = embed
        index._model = encode
        return index

    @classmethod
    def load(cls, folder: str | Path) -> "CorpusIndex":
        """Load an index folder.

        Args:
            folder: index folder, written by `build` or `lxsr index`.

        Returns:
            The index, open.

        Raises:
            InputError: if a file is missing, changed or of another format.
        """
        return cls(IndexFolder.open(Path(folder)))

    # -- editing

    def add(
        self,
        sentences: Iterable[str],
        ids: Iterable[str | int] | None = None,
        encode: EmbedText | Any = None,
    ) -> int:
        """Add sentences after the existing ones.

        Only the new sentences are encoded. The index on disk changes only after all of them are
        written, so a killed process leaves it unchanged. Edits by several processes wait for each
        other.

            index.add(["Il neige."], ids=["note-17"])

        Args:
            sentences: any number of sentences. Empty ones and those without a known word are
                skipped.
            ids: id of each sentence, if the index was built with ids.
            encode: an encoder or a function, see `build`, with the same model; None loads the model
                that the index records.

        Returns:
            The number of sentences added.

        Raises:
            InputError: if an id exists or appears twice, if ids are missing in an index with ids,
                or given for an index without ids, if the model of the index cannot be loaded, or
                if the index was built again with another model.
        """
        check_text_list("sentences", sentences)
        if ids is not None:
            check_text_list("ids", ids)
        embed = self._embed_documents(encode)
        count = add_documents(self.folder, sentences, ids, embed, self._check_same_model)
        self._stored = IndexFolder.open(self.folder)
        return count

    def update(
        self, ids: Iterable[str | int], sentences: Iterable[str], encode: EmbedText | Any = None
    ) -> int:
        """Replace sentences, which keep their ids and line numbers; see `add`.

            index.update(["note-17"], ["Il neige beaucoup."])

        Args:
            ids: ids of the sentences to replace.
            sentences: the new sentences.
            encode: see `add`.

        Returns:
            The number of sentences replaced.

        Raises:
            InputError: if an id is unknown or appears twice, if a new sentence is empty or has no
                known word, if there is not one sentence for each id, or if `add` would reject the
                model or the index. In these cases, nothing is changed.
        """
        check_text_list("ids", ids)
        check_text_list("sentences", sentences)
        embed = self._embed_documents(encode)
        count = update_documents(self.folder, ids, sentences, embed, self._check_same_model)
        self._stored = IndexFolder.open(self.folder)
        return count

    def synchronize(
        self,
        ids: Iterable[str | int],
        sentences: Iterable[str],
        encode: EmbedText | Any = None,
        covers: Callable[[str], bool] | None = None,
    ) -> Changes:
        """Make the index contain the given sentences; see `add`.

        New sentences are added, changed ones replaced, and the others removed, in one edit. Only
        new and changed sentences are encoded.

            changes = index.synchronize(["note-1", "note-2"], ["It snows.", "It rains."])
            print(changes.added, changes.replaced, changes.removed, changes.unchanged)

        Args:
            ids: ids of the sentences.
            sentences: any number of sentences. Empty ones and those without a known word are
                skipped.
            encode: see `add`.
            covers: returns whether the sentence with an id is to be removed if the id is not
                given; None removes all of them.

        Returns:
            The numbers of changes.

        Raises:
            InputError: if an id is invalid or appears twice, if the index was built without ids,
                or if `add` would reject the model or the index. In these cases, nothing is changed.
        """
        check_text_list("ids", ids)
        check_text_list("sentences", sentences)
        embed = self._embed_documents(encode)
        changes = synchronize_documents(
            self.folder, ids, sentences, embed, self._check_same_model, covers or bool
        )
        self._stored = IndexFolder.open(self.folder)
        return changes

    def delete(self, ids: Iterable[str | int]) -> int:
        """Delete sentences; see `add`.

        Their text stays on disk until the index is compacted.

            index.delete(["note-17"])

        Args:
            ids: ids of the sentences.

        Returns:
            The number of sentences deleted.

        Raises:
            InputError: if an id is unknown or appears twice. In this case, nothing is changed.
        """
        check_text_list("ids", ids)
        count = delete_documents(self.folder, ids)
        self._stored = IndexFolder.open(self.folder)
        return count

    def compact(self, encode: EmbedText | Any = None) -> None:
        """Merge all segments into one, without the deleted sentences.

        Searching a single segment is faster. Edits merge small segments automatically. The
        vectors of a flat index are copied; for other kinds all sentences are encoded again.

        Args:
            encode: see `add`.

        Raises:
            InputError: if the model of the index is needed and cannot be loaded.
        """
        compact_index(self.folder, lambda: self._embed_documents(encode), self._check_same_model)
        self._stored = IndexFolder.open(self.folder)

    def is_current(self) -> bool:
        """Return whether the index on disk is still the one that was opened.

        Returns:
            False if another process has edited or rebuilt the index.

        Raises:
            InputError: if the folder is no longer an index.
        """
        return read_unreplaced(
            self.folder / INDEX_CONFIG, lambda: self._read_config() == self.config
        )

    def _read_config(self) -> dict[str, Any]:
        restore_folder(self.folder)
        return read_config(self.folder)

    def _embed_documents(self, encode: EmbedText | Any) -> EmbedText:
        """Return a function that embeds new sentences."""
        self._check_encoders(encode)
        embed = self._load_model() if encode is None else _embed_function(encode)

        def embed_truncated(text: Text) -> FloatArray:
            return first_dimensions(embed(text), self.truncate_dim)

        if self.is_plain:
            return embed_truncated
        encoder = self._model if encode is None else encode
        return with_pieces(embed_truncated, encoder, self.fingerprint)

    def _check_same_model(self, stored: IndexFolder) -> None:
        model = stored.config["model"]
        if model != self.fingerprint:
            raise InputError(
                f"{self.folder}: the index was rebuilt with model {model} since it was "
                "loaded; load it again"
            )

    # -- the model

    def check_model(self, encoder: Any) -> None:
        """Check that the embeddings of an encoder can be compared with the vectors of the index.

        Truncated or rounded vectors can be compared with embeddings of their model, because a
        search truncates its queries in the same way.

        Args:
            encoder: encoder of the queries.

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
                f"{self.folder}: the index was built with model {self.fingerprint}, not "
                f"{fingerprint}; embeddings of two models cannot be compared unless one is "
                f"the teacher of the other{self._missing_model()}: use the model of the "
                "index, or build it again"
            )

    def _missing_model(self) -> str:
        """Return a note for messages if the model of the index is missing.

        The teacher of a missing model is unknown.
        """
        folder = self.config["model_folder"]
        if not folder or Path(folder).exists():
            return ""
        return f", and the model of the index is no longer at {folder}"

    @cached_property
    def _space(self) -> str:
        """Fingerprint of the index model's teacher, or of the index model if it has no teacher.

        The model is loaded to find its teacher, which can take seconds.
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
        """Return the function that embeds text with the model. The model is loaded on first use."""
        if self._encode is None:
            model = self.config["model_folder"]
            if not model or not is_model_folder(Path(model)):
                problem = "the index does not record its model"
                if model:
                    problem = f"its model is no longer at {model}"
                if model and Path(model).exists():
                    problem = f"its model {model} is not a model folder of this package"
                raise InputError(
                    f"{self.folder}: {problem}; pass the encoder as the second argument of `search`"
                )
            encoder = load(Path(model))
            self.check_model(encoder)
            self._encode = encoder.embed
            self._model = encoder
        return self._encode

    # -- searching

    # A string is also a sequence of strings; type checkers use the first overload that matches.
    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        queries: str,
        encode: Any = None,
        k: int = SearchOptions.k,
        reranker: Reranker | None = None,
        where: Where | None = None,
        ranker: PassageRanker | None = None,
        score_threshold: float | None = None,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        queries: Sequence[str],
        encode: Any = None,
        k: int = SearchOptions.k,
        reranker: Reranker | None = None,
        where: Where | None = None,
        ranker: PassageRanker | None = None,
        score_threshold: float | None = None,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        encode: Any = None,
        k: int = SearchOptions.k,
        reranker: Reranker | None = None,
        where: Where | None = None,
        ranker: PassageRanker | None = None,
        score_threshold: float | None = None,
    ) -> Any:
        """Find the k best texts of each query.

        A plain index ranks texts by cosine similarity. Otherwise words count too, and word pieces
        if the model has a table of them; see `search.retrieval`.

        Args:
            queries: one sentence, or N sentences.
            encode: an encoder or a function, see `build`, with the same model; None loads the model
                that the index records. A number in this position is used as `k`.
            k: number of sentences to find.
            reranker: rescores the best `reranker.depth` sentences, or passages by their best
                sentence; the best k of these are returned.
            where: ids of the sentences that may be found, for example selected by an application in
                its own database; ids that are not in the index are ignored. Or a function that
                takes an id and returns whether its sentence may be found; it is called for all ids.
                None searches all sentences. To use the same ids in several searches, pass `mask`.
            ranker: compares word pieces, unless the index is plain; None creates a ranker from
                `encode`, if that is an encoder, or from the model of the index if `encode` is None.
            score_threshold: minimum score of a hit, so that a question without an answer finds
                nothing; None for any score. For values, see the page Search passages.

        Returns:
            A list of hits for each query, best first; for a single sentence, only its list. A
            list has fewer than k hits if the index has fewer than k sentences that may be found,
            or if scores are below the threshold. A query without a known word finds only texts
            that share a word with it, and nothing in a plain index.

        Raises:
            InputError: if k is less than 1, if the model of `encode` or of the reranker
                differs from the index model, if `encode` is None and the model of the index is
                missing, if `where` is a single string, or if the threshold is not a finite number.
        """
        if isinstance(encode, int | np.integer):
            k = int(encode)
            encode = None
        if isinstance(queries, str):
            options = (k, reranker, where, ranker, score_threshold)
            return self.search([queries], encode, *options)[0]
        if score_threshold is not None:
            FINITE.check("score_threshold", score_threshold)
        check_text_list("queries", queries)
        text = queries if isinstance(queries, Text) else Text(list(queries))
        if not len(text):
            return []
        self._check_encoders(encode, reranker)
        embed = self._load_model() if encode is None else _embed_function(encode)
        embeddings = first_dimensions(embed(text), self.truncate_dim)
        check_directions(embeddings, text.where, zeros=True)
        condition = None if where is None else checked_where(where)
        # Another thread may edit this object meanwhile.
        stored = self._stored
        encoder = self._model if encode is None else encode
        retrieval = Retrieval(stored, _ranking(stored, encoder, ranker, reranker))
        allowed = None if condition is None else stored.allowed(condition)
        matches = retrieval.search(text, embeddings, k, allowed)
        return _above(_hits(stored, retrieval, matches), score_threshold)

    def _check_encoders(self, encode: Any, reranker: Reranker | None = None) -> None:
        if hasattr(encode, "fingerprint"):
            self.check_model(encode)
        if reranker and reranker.model != model_of(self.fingerprint):
            raise InputError(
                f"{self.folder}: the index was built with model {self.fingerprint}, but the "
                f"reranker uses model {reranker.model}, which has different word pieces; "
                "search without reranking, or use the model of the index"
            )

    def mask(self, where: Where, name: str = "where") -> Mask:
        """Return a mask that several searches can use as `where`, until the index is edited.

        Args:
            where: ids or a function; see `search`.
            name: name of this argument for messages.

        Returns:
            The mask.

        Raises:
            InputError: if `where` is a single string, or contains an invalid id.
        """
        return self._stored.allowed(checked_where(where, name))

    def neighbours(self, embeddings: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
        """Find the k nearest vectors of each query.

        Rows are numbered in the order in which sentences were added; rows of deleted sentences
        are not found.

        Args:
            embeddings: query embeddings [N, D].
            k: number of neighbours, at most the number of rows.

        Returns:
            Cosines [N, k] in descending order, and rows [N, k]; see `vectors.search_index`.
        """
        return self._stored.neighbours(embeddings, k)


def _ranking(
    stored: IndexFolder, encoder: Any, ranker: PassageRanker | None, reranker: Reranker | None
) -> Ranking:
    """Return the parts of a score that an index supports."""
    if not stored.has_windows:
        return Ranking(reranker=reranker)
    ranker = ranker or find_passage_ranker(encoder)
    # A teacher or student of the model shares its vectors, but not its word pieces.
    if ranker and ranker.model != stored.model:
        ranker = None
    return Ranking(ranker, words=True, reranker=reranker)


def _hits(stored: IndexFolder, retrieval: Retrieval, matches: Matches) -> list[list[Hit]]:
    """Read the text of the documents found, and return the hits of each query [N]."""
    is_match = matches.documents >= 0
    documents = np.unique(matches.documents[is_match])
    sentences = stored.sentences(documents)
    ids = stored.ids(documents)
    texts: dict[int, str] = {}
    if stored.has_windows:
        rows = np.unique(matches.rows[is_match])
        texts = dict(zip(rows.tolist(), retrieval.row_texts(rows), strict=True))
    hits = []
    for scores, documents_of_query, rows_of_query in zip(
        matches.scores.tolist(), matches.documents.tolist(), matches.rows.tolist(), strict=True
    ):
        hits_of_query = []
        for score, document, row in zip(scores, documents_of_query, rows_of_query, strict=True):
            if document >= 0:
                line, sentence = sentences[document]
                match = texts.get(row, "")
                hits_of_query.append(Hit(score, line, sentence, ids[document], match))
        hits.append(hits_of_query)
    return hits


def _above(hits: list[list[Hit]], score_threshold: float | None) -> list[list[Hit]]:
    """Drop hits with a score below the threshold; None keeps all hits."""
    if score_threshold is None:
        return hits
    return [
        [hit for hit in hits_of_query if hit.score >= score_threshold] for hits_of_query in hits
    ]


def _model_of(encode: Any, fingerprint: str, model_folder: str) -> tuple[str, str]:
    """Return the fingerprint and the folder of a model; those that are empty are the encoder's.

    Raises:
        InputError: if the fingerprint is unknown.
    """
    fingerprint = fingerprint or getattr(encode, "fingerprint", "")
    if not fingerprint:
        raise InputError(
            "encode is a function, so its model is unknown; pass fingerprint too, or an encoder"
        )
    folder = getattr(encode, "folder", None)
    if not model_folder and folder:
        model_folder = str(Path(folder).resolve())
    return fingerprint, model_folder


def _embed_function(encode: Any) -> EmbedText:
    """Return the embedding function of an encoder; a function is returned unchanged."""
    if embed := getattr(encode, "embed", None):
        return embed
    if hasattr(encode, "encode"):
        # The encoder may be a SentenceTransformer, which accepts only lists.
        return lambda text: encode.encode(list(text))
    return encode
