"""Registry of the protocols of `lxsr eval`."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_lxsr.evaluation.protocols.protocol import Protocol

# Module, class and help text of every protocol. Only the module of the requested protocol is
# imported, because protocol modules import numpy, and some also torch.
PROTOCOLS = {
    "bucc": ("bucc", "Bucc", "mining of translations in monolingual text: F1, in several forms"),
    "minimal-pairs": (
        "minimal_pairs",
        "MinimalPairs",
        "minimal pairs: how often a translation is closer to the true sentence than to an altered "
        "one",
    ),
    "mldoc": ("documents", "MLDoc", "document classification across languages"),
    "mteb-bitext": (
        "mteb_bitext",
        "MtebBitext",
        "bitext mining as in mteb: weighted F1 and accuracy, in one direction",
    ),
    "passages": (
        "passages",
        "Passages",
        "passage retrieval: MRR@10, R@1, R@10 and nDCG@10 of the paragraphs found for questions",
    ),
    "sts": (
        "sts",
        "Similarity",
        "semantic textual similarity: Spearman and Pearson correlation of the cosine similarity",
    ),
    "tatoeba": (
        "similarity_search",
        "Tatoeba",
        "similarity search by cosine: error rate in both directions",
    ),
    "titles": ("documents", "Titles", "title classification across languages"),
    "xnli": ("xnli", "Xnli", "natural language inference across languages"),
    "xsim": (
        "similarity_search",
        "Xsim",
        "similarity search by margin: error rate in both directions",
    ),
    "xsim++": (
        "xsim_plus_plus",
        "XsimPlusPlus",
        "xsim with hard negatives among the candidates: error rate by type, in one direction",
    ),
    "xsr": ("xsr", "SentenceRetrieval", "sentence retrieval: P@1, P@5 and P@10 in both directions"),
}


def protocol_class(name: str) -> "type[Protocol]":
    """Import a protocol by its name, for example xsim.

    Args:
        name: name of the protocol in `lxsr eval`.

    Returns:
        The class.
    """
    module, class_name, _ = PROTOCOLS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
