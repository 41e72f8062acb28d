"""Nearest neighbours in embedding space: numpy and faiss, nothing of ours."""

from fairseq_lxsr.retrieval.neighbours import nearest_neighbours, normalise_rows

__all__ = ["nearest_neighbours", "normalise_rows"]
