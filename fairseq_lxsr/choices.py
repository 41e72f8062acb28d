"""Choices of options; they stand here so that a parser can name them without importing torch or numpy."""

import pkgutil
from pathlib import Path


def modules_of(*folder: str, without: str = "") -> tuple[str, ...]:
    """Return the sorted names of the modules in a folder of this package without importing them."""
    path = Path(__file__).parent.joinpath(*folder)
    return tuple(module.name for module in pkgutil.iter_modules([str(path)]) if module.name != without)


DTYPES = ("float32", "bfloat16", "float16", "int8")  # precisions of the computation
CPU_PRECISIONS = ("float32", "bfloat16", "auto")  # precisions of training
WEIGHT_TYPES = ("float32", "float16", "bfloat16")  # types of weights
STORED_TYPES = (*WEIGHT_TYPES, "int8")  # types of weights on disk
POOLINGS = ("mean", "mean_max")  # functions of modules/pooling.py
ON_LONG = ("cut", "split-mean", "error")
WORD_WEIGHTS = ("mean", "sum", "idf")

EMBEDDING_FORMATS = modules_of("embeddings", "formats", without="format")
EMBEDDING_DTYPES = ("float32", "float16", "int8", "binary")
INDEX_KINDS = ("flat", "float16", "int8", "binary", "ivf", "ivf-pq")
MINING_KINDS = ("flat", "int8", "binary")  # that find k neighbours of every sentence

SEARCH_PRECISIONS = ("float32", "bfloat16")
MARGINS = ("ratio", "distance", "absolute")
RETRIEVALS = ("max", "intersect", "fwd", "bwd", "all")
# ways to rank candidates, as named in options and in signatures of scores
METRICS = {"nn": "nn-cosine", "csls": "csls-k10", "margin": "margin-ratio-k4-of-100"}

# what is called BUCC: threshold learned on another part, threshold chosen on the same part, and mteb's two, without one
BUCC_FORMS = ("learned", "oracle", "mteb-v2", "mteb-v1")
BUCC_PARTS = ("sample", "training", "test")

CLASSIFIERS = ("mlp", "linear")
XNLI_PRESETS = ("laser", "wang")
TIES = ("first", "last")  # epoch kept of several that are equally good

DRAWS = 1000  # draws of the bootstrap
