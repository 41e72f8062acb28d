"""Embeddings in the formats that other tools read."""

from fairseq_lxsr.export.mteb_encoder import MtebEncoder
from fairseq_lxsr.export.onnx_folder import export_onnx
from fairseq_lxsr.export.st_folder import export_sentence_transformers
from fairseq_lxsr.export.stream import Layout, embed_lines, index_path, side_files

__all__ = [
    "Layout",
    "MtebEncoder",
    "embed_lines",
    "export_onnx",
    "export_sentence_transformers",
    "index_path",
    "side_files",
]
