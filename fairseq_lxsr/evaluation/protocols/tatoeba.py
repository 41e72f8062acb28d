"""Similarity search by cosine (Artetxe and Schwenk 2019)."""

from fairseq_lxsr.evaluation.protocols.aligned import SimilaritySearch


class Tatoeba(SimilaritySearch):
    """See `evaluation.similarity_search`."""

    name, help = "tatoeba", "similarity search by cosine, error rate both ways"
    reranks = True


PROTOCOL = Tatoeba()
