"""One interface for encoders of all kinds, and the file formats of embeddings."""

from fairseq_lxsr.embeddings.contract import Encoder, Text, embed
from fairseq_lxsr.embeddings.formats import Layout
from fairseq_lxsr.embeddings.load import is_model_folder, load, model_files, refuse_idf
from fairseq_lxsr.embeddings.stored import (
    StoredEmbeddings,
    embedding_files,
    is_embeddings_folder,
    load_embeddings,
    read_embeddings,
)
from fairseq_lxsr.embeddings.systems import (
    ByLanguage,
    LibraryModel,
    ModelFolder,
    check_same_width,
    count_long,
    sentence_transformers_folder,
    width_of,
    with_on_long,
)
from fairseq_lxsr.embeddings.truncated import (
    TruncatedEncoder,
    first_dimensions,
    model_of,
    truncate_dim_of,
    truncated_fingerprint,
)
from fairseq_lxsr.embeddings.word_vectors import WordVectors
from fairseq_lxsr.embeddings.write import embed_lines, index_path, side_files

__all__ = [
    "ByLanguage",
    "Encoder",
    "Layout",
    "LibraryModel",
    "ModelFolder",
    "StoredEmbeddings",
    "Text",
    "TruncatedEncoder",
    "WordVectors",
    "check_same_width",
    "count_long",
    "embed",
    "embed_lines",
    "embedding_files",
    "first_dimensions",
    "index_path",
    "is_embeddings_folder",
    "is_model_folder",
    "load",
    "load_embeddings",
    "model_files",
    "model_of",
    "read_embeddings",
    "refuse_idf",
    "sentence_transformers_folder",
    "side_files",
    "truncate_dim_of",
    "truncated_fingerprint",
    "width_of",
    "with_on_long",
]
