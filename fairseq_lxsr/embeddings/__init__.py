"""One contract from text to vectors for all encoders, and the file formats of embeddings."""

from fairseq_lxsr.embeddings.formats import Layout
from fairseq_lxsr.embeddings.reranking import Reranker, score_name
from fairseq_lxsr.embeddings.stored_folder import StoredEmbeddings, embedding_files, is_stored, read_embeddings
from fairseq_lxsr.embeddings.stream import embed_lines, index_path, side_files
from fairseq_lxsr.embeddings.systems import (
    ByLanguage,
    LibraryModel,
    ModelFolder,
    check_same_width,
    sentence_transformers_folder,
    width_of,
)
from fairseq_lxsr.embeddings.text import Encoder, Text, embed
from fairseq_lxsr.embeddings.word_vectors import WordVectors

__all__ = [
    "ByLanguage",
    "Encoder",
    "Layout",
    "LibraryModel",
    "ModelFolder",
    "Reranker",
    "StoredEmbeddings",
    "Text",
    "WordVectors",
    "check_same_width",
    "embed",
    "embed_lines",
    "embedding_files",
    "index_path",
    "is_stored",
    "read_embeddings",
    "score_name",
    "sentence_transformers_folder",
    "side_files",
    "width_of",
]
