"""Scores the documents of a request for a query, as a search of passages does."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import shown
from fairseq_lxsr.files.lines import single_line
from fairseq_lxsr.search.passages import find_passage_ranker
from fairseq_lxsr.search.retrieval import SCORE_DECIMALS
from fairseq_lxsr.search.splitting import windows
from fairseq_lxsr.serve.fields import check_names, checked_texts, refuse_blank
from fairseq_lxsr.serve.queue import EncodingQueue
from fairseq_lxsr.serve.responses import RequestError
from fairseq_lxsr.vectors.rows import FloatArray, IntArray, unit_rows

# Fields of Cohere and Jina that have no effect here: texts are read whole, at one priority.
IGNORED_FIELDS = ("max_tokens_per_doc", "max_chunks_per_doc", "priority", "truncation")
# Number of windows and sentences to embed at a time.
ROWS_AT_ONCE = 2048
# Largest number of comparisons of a word piece of the query with one of the documents.
MOST_COMPARISONS = 2**27
# Score of a document without words, below all others.
NO_SCORE = -1.0


@dataclass(frozen=True)
class RerankRequest:
    """A request in the format of Cohere and Jina.

    Attributes:
        query: text that documents are compared with.
        documents: texts to score.
        top_n: number of results.
        return_documents: whether results contain the texts.
    """

    query: str
    documents: list[str]
    top_n: int
    return_documents: bool

    @classmethod
    def parse(cls, fields: dict[str, Any], max_documents: int) -> "RerankRequest":
        """Check the fields of a request."""
        check_names(
            fields,
            *("query", "documents", "top_n", "return_documents", "model"),
            *IGNORED_FIELDS,
        )
        query = fields.get("query")
        if not isinstance(query, str):
            raise RequestError(400, f"query is {shown(query)}; expected a text", "query")
        refuse_blank([query], "query")
        documents = fields.get("documents")
        if isinstance(documents, list):
            documents = [_text_of(document) for document in documents]
        documents = checked_texts(documents, "documents", max_documents)
        refuse_blank(documents, "documents")
        top_n = fields.get("top_n", len(documents))
        if type(top_n) is not int or top_n < 1:
            raise RequestError(400, f"top_n is {shown(top_n)}; expected at least 1", "top_n")
        return_documents = fields.get("return_documents", False)
        if type(return_documents) is not bool:
            raise RequestError(
                400,
                f"return_documents is {shown(return_documents)}; expected true or false",
                "return_documents",
            )
        return cls(query, documents, top_n, return_documents)


def _text_of(document: Any) -> Any:
    """Return the text of a document, which may be an object with the field `text`."""
    if isinstance(document, dict) and document.keys() == {"text"}:
        return document["text"]
    return document


@dataclass(frozen=True)
class _Windows:
    """Windows of documents, and their parts that have embeddings.

    Attributes:
        documents: document of each window [W].
        sentences: sentences of each window [W].
        rows: windows and sentences to embed [R].
        row_windows: window of each row [R].
    """

    documents: IntArray
    sentences: list[list[str]]
    rows: list[str]
    row_windows: IntArray


def _split(texts: list[str]) -> _Windows:
    """Split documents, each on one line, into windows."""
    documents: list[int] = []
    all_sentences = []
    rows: list[str] = []
    row_windows: list[int] = []
    for document, text in enumerate(texts):
        for window in windows(text):
            sentences = [text[start:stop] for start, stop in window.sentences]
            rows.append(text[window.span[0] : window.span[1]])
            if len(sentences) > 1:
                rows += sentences
            row_windows += [len(documents)] * (len(rows) - len(row_windows))
            documents.append(document)
            all_sentences.append(sentences)
    return _Windows(
        np.array(documents, dtype=np.int64),
        all_sentences,
        rows,
        np.array(row_windows, dtype=np.int64),
    )


async def rerank(
    request: RerankRequest, encoder: SentenceEncoder, queue: EncodingQueue
) -> dict[str, Any]:
    """Score documents by their best windows, and return the fields of a response.

    The score is that of `search.passages`, or the cosine similarity if the model has no word piece
    vectors.
    """
    query = single_line(request.query)
    texts = [single_line(text) for text in request.documents]
    parts = await asyncio.to_thread(_split, texts)
    embedded = await queue.embed([query])
    vectors = embedded.embeddings
    num_query_pieces = int(embedded.lengths[0])
    ranker = find_passage_ranker(encoder)
    if ranker:
        query_ids = ranker.split_queries([query])
        vectors = ranker.query_vectors(query_ids, vectors)
    query_vector = unit_rows(vectors)[0]
    scores: FloatArray = np.full(len(parts.documents), NO_SCORE)
    num_pieces = 0
    for start in range(0, len(parts.rows), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        embedded = await queue.embed(parts.rows[block])
        cosines = unit_rows(embedded.embeddings) @ query_vector
        np.maximum.at(scores, parts.row_windows[block], cosines)
        num_pieces += int(embedded.lengths.sum())
        if num_query_pieces * num_pieces > MOST_COMPARISONS:
            raise RequestError(
                400,
                f"a query of {num_query_pieces:,} word pieces, and too long documents; send a "
                "shorter query, or fewer documents at once",
                "documents",
            )
    if ranker:
        pieces = await queue.run(ranker.split_windows, parts.sentences)
        scores, _ = await queue.run(ranker.score, query_ids[0], pieces, scores)
    document_scores = np.full(len(texts), NO_SCORE)
    np.maximum.at(document_scores, parts.documents, scores)
    document_scores = document_scores.round(SCORE_DECIMALS)
    results = []
    for index in np.argsort(-document_scores, kind="stable")[: request.top_n].tolist():
        result = {"index": index, "relevance_score": float(document_scores[index])}
        if request.return_documents:
            result["document"] = {"text": request.documents[index]}
        results.append(result)
    total = num_query_pieces + num_pieces
    return {"usage": {"prompt_tokens": total, "total_tokens": total}, "results": results}
