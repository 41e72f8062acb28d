"""Options of mining, search, indexes and scores of pairs: the same for Python and for the command
line.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import (
    FINITE,
    INDEX_KINDS,
    MARGINS,
    MINING_KINDS,
    RETRIEVALS,
    SEARCH_PRECISIONS,
    at_least,
    option,
)

if TYPE_CHECKING:
    from fairseq_lxsr.vectors import MinedPairs

MAX_SIM_WEIGHT = 1.0  # of ordered MaxSim beside the cosine; benchmarks/notebook/study.md has others


def score_name(depth: int, weight: float = MAX_SIM_WEIGHT) -> str:
    """Return the name of a score, for signatures and for work that is resumed:
    `cosine+1*ordered-maxsim-of-10`.
    """
    return f"cosine+{weight:g}*ordered-maxsim-of-{depth}"


@dataclass(frozen=True, kw_only=True)
class RerankOption:
    """The option of everything that can score the nearest again, by a `Reranker`."""

    rerank: int = option(
        "score the N nearest again by their pieces, of a model without layers or with gated ones (default: no)",
        0,
        at_least(0),
    )


@dataclass(frozen=True)
class SearchOptions(RerankOption):
    """Options of `CorpusIndex.search`."""

    k: int = option("sentences to find", 5, at_least(1))
    probes: int = option("lists of ivf to look at; more finds more", 32, at_least(1))


@dataclass(frozen=True)
class IndexOptions:
    """How an index is made, see `vectors.build_index`.

    Args:
        kind: kind of the index; a shard of fewer sentences than it is learnt from, as the last may
            be, is flat.
        lists: number of inverted lists; None for 4 sqrt(sentences).
        model_folder: path of the model, stored for later searches.
        language: language of the text, where the vectors depend on it.
    """

    kind: str = option(
        "flat: exact; float16: half the memory, slow; int8: a quarter, slow; binary: by signs, the best again in int8, "
        "fast, 1.1 D bytes a vector; ivf: faster, finds nearly all; ivf-pq: D/8 bytes a vector",
        "flat",
        INDEX_KINDS,
    )
    lists: int | None = option("of ivf and ivf-pq (default: 4 sqrt(sentences))", None, at_least(1))
    model_folder: str = ""
    language: str = ""


@dataclass(frozen=True)
class Mining(RerankOption):
    """Options of the search for pairs, and of the selection among them; see `vectors.mine`.

    With `rerank`, the scores of a `Reranker` take the place of cosines. A pair has the same score
    from both sides, so that margins are computed as they are from cosines.
    """

    k: int = option("size of the neighbourhoods", 4, at_least(1))
    margin: str = option(
        "score of a pair: its cosine against those of the neighbours of both", "ratio", MARGINS
    )
    retrieval: str = option(
        "max: each sentence once; intersect: pairs that are the best both ways; fwd, bwd: the best for every source, "
        "target sentence; all: the k candidates of every sentence",
        "max",
        RETRIEVALS,
    )
    threshold: float | None = option(
        "least score (ratio: 1.05 to 1.2 is usual)", None, FINITE, metavar="SCORE"
    )
    top: int | None = option("at most N pairs", None, at_least(1))
    precision: str = option(
        "of the search; bfloat16 finds the same, faster where the processor has it",
        "float32",
        SEARCH_PRECISIONS,
    )
    memory_mb: int = 128  # for the search, beside the embeddings
    kind: str = option(
        "search: flat, exact; binary, by signs, the best again in int8, several times as fast; int8, a quarter of the "
        "memory, slow",
        "flat",
        MINING_KINDS,
    )

    def check(self) -> None:
        """Check the options that have a few values."""
        for item in fields(self):
            value, known = getattr(self, item.name), item.metadata.get("choices")
            if known and value not in known:
                raise InputError(f"{item.name} {value!r}; expected one of {', '.join(known)}")

    @property
    def search_options(self) -> dict[str, Any]:
        """Options of `vectors.nearest_neighbours`."""
        return {"precision": self.precision, "memory_mb": self.memory_mb}

    @property
    def neighbour_settings(self) -> dict[str, str]:
        """What the neighbours depend on beside k; nothing for exact search by cosine, as in older
        work folders.
        """
        kind = {} if self.kind == "flat" else {"kind": self.kind}
        return kind | ({"rerank": score_name(self.rerank)} if self.rerank else {})

    def select(self, pairs: "MinedPairs") -> "MinedPairs":
        """Select among the pairs by `threshold` and `top`."""
        pairs = pairs if self.threshold is None else pairs.above(self.threshold)
        return pairs if self.top is None else pairs.first(self.top)


@dataclass(frozen=True)
class PairScoring:
    """How pairs that are aligned already are scored, see `vectors.margin_scores`."""

    margin: str = option(
        "absolute: the cosine; ratio, distance: against the neighbours of both", "absolute", MARGINS
    )
    k: int = option("size of the neighbourhoods", Mining.k, at_least(1))
