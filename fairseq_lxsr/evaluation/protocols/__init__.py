"""Protocols of `lxsr eval`: a module and a row of the table each."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_lxsr.evaluation.protocols.protocol import Protocol

# for each protocol: its module, its class and its help; only the module of the protocol that is run
# is imported, which brings numpy, and for some torch
PROTOCOLS = {
    "bucc": ("bucc", "Bucc", "mining of hidden translations, F1, in the forms that are reported"),
    "minimal-pairs": (
        "minimal_pairs",
        "MinimalPairs",
        "is the true sentence nearer than one that differs a little",
    ),
    "mldoc": ("documents", "MLDoc", "document classification across languages"),
    "mteb-bitext": (
        "mteb_bitext",
        "MtebBitext",
        "bitext mining as mteb: weighted F1 and accuracy, in one direction",
    ),
    "sts": (
        "sts",
        "Similarity",
        "similarity as people rate it: Spearman and Pearson correlation of the cosine",
    ),
    "tatoeba": (
        "similarity_search",
        "Tatoeba",
        "similarity search by cosine, error rate both ways",
    ),
    "titles": ("documents", "Titles", "title classification across languages"),
    "xnli": ("xnli", "Xnli", "natural language inference across languages"),
    "xsim": ("similarity_search", "Xsim", "similarity search by margin, error rate both ways"),
    "xsim++": (
        "xsim_plus_plus",
        "XsimPlusPlus",
        "xsim among changed sentences, error rate by type, in one direction",
    ),
    "xsr": ("xsr", "SentenceRetrieval", "sentence retrieval, P@1, P@5, P@10 both ways"),
}


def protocol_class(name: str) -> "type[Protocol]":
    """Import a protocol of the table."""
    module, kind, _ = PROTOCOLS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)
