"""Embeddings in the formats that other tools read."""

from fairseq_lxsr.export.npy import write_npy

__all__ = ["write_npy"]
