"""Options for search, mining, indexes and pair scoring, in Python and on the command line."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.files.entities import ENTITIES, ENTITIES_HELP
from fairseq_lxsr.options import (
    FINITE,
    INDEX_KINDS,
    MARGINS,
    MINING_KINDS,
    RETRIEVALS,
    SEARCH_PRECISIONS,
    at_least,
    check_fields,
    option,
)

if TYPE_CHECKING:
    from fairseq_lxsr.search.index_config import IndexSettings

# Weight of ordered MaxSim in the reranking score; the cosine has weight 1. For other weights, see
# benchmarks/notebook/study.md.
MAX_SIM_WEIGHT = 1.0


def score_name(depth: int, weight: float = MAX_SIM_WEIGHT) -> str:
    """Return the name of a score, for example `cosine+1*ordered-maxsim-of-10`.

    It is part of signatures, and of the settings of resumable work.

    Args:
        depth: number of candidates that are rescored.
        weight: weight of MaxSim.

    Returns:
        The name.
    """
    return f"cosine+{weight:g}*ordered-maxsim-of-{depth}"


@dataclass(frozen=True, kw_only=True)
class RerankOption:
    """The --rerank option, shared by all commands that can rescore candidates with a `Reranker`."""

    rerank: int = option(
        "rescore the N nearest sentences by comparing word pieces, which finds translations more "
        "reliably, especially in languages that the model represents less well; requires a model "
        "without layers or with gated layers (default: no)",
        0,
        at_least(0),
    )


@dataclass(frozen=True)
class SearchOptions(RerankOption):
    """Options of `CorpusIndex.search`."""

    k: int = option("number of sentences to find", 5, at_least(1))
    threshold: float | None = option(
        "minimum score of a hit; a query without such a hit finds nothing (default: any score)",
        None,
        FINITE,
        metavar="SCORE",
    )


@dataclass(frozen=True)
class IndexOptions:
    """Options for building an index; see `vectors.build_index`.

    Attributes:
        kind: index kind.
        plain: whether each text is a single vector, and words are not stored.
        model_folder: path of the model, stored for later searches.
        language: language of the text, for encoders that depend on it.
    """

    kind: str = option(
        "index type: flat (exact), float16 (finds almost the same as flat, faster, 2.5 D bytes per "
        "vector), int8 (finds nearly the same, faster, 1.5 D bytes per vector)",
        "flat",
        INDEX_KINDS,
    )
    plain: bool = option(
        "store one vector for each text and nothing else; a search then compares only these "
        "vectors (default: also store the sentences of longer texts, and words)",
        False,
    )
    model_folder: str = ""
    language: str = ""

    def settings(self, model: str) -> "IndexSettings":
        """Return the settings of an index whose vectors are those of a model.

        Args:
            model: fingerprint of the model.

        Returns:
            The settings.
        """
        from fairseq_lxsr.search.index_config import IndexSettings

        return IndexSettings(model, self.kind, self.model_folder, self.plain)


@dataclass(frozen=True)
class Mining(RerankOption):
    """Options for mining and selecting pairs; see `vectors.mine`.

    With `rerank`, the scores of a `Reranker` replace the cosines. A pair has the same score in both
    directions, so margins can be computed from these scores instead of cosines.
    """

    k: int = option("number of neighbours per sentence", 4, at_least(1))
    margin: str = option(
        "score of a pair: its cosine compared with the neighbours of both sides", "ratio", MARGINS
    )
    retrieval: str = option(
        "pairs to keep: max (each sentence once), intersect (pairs that are the best in both "
        "directions), fwd or bwd (the best for each source or target sentence), all (the k "
        "candidates of each sentence)",
        "max",
        RETRIEVALS,
    )
    threshold: float | None = option(
        "minimum score (ratio: 1.05 to 1.2 is usual)", None, FINITE, metavar="SCORE"
    )
    top: int | None = option("maximum number of pairs", None, at_least(1))
    precision: str = option(
        "precision of the search; bfloat16 finds the same pairs, faster if the processor supports "
        "it",
        "float32",
        SEARCH_PRECISIONS,
    )
    # Memory limit of the search in MB, in addition to the embeddings.
    memory_mb: int = 128
    kind: str = option(
        "kind of search: flat (exact), binary (compares signs and rescores the best in "
        "int8, several times faster), int8 (a quarter of the memory, slow)",
        "flat",
        MINING_KINDS,
    )
    entities: str = option(ENTITIES_HELP, ENTITIES[0], ENTITIES)
    keep_identical: bool = option(
        "keep pairs of two texts whose sides are identical, apart from case, punctuation and "
        "digits, such as text that was not translated (default: leave out and count)",
        False,
    )

    def check(self) -> None:
        """Raise `InputError` if an option has an invalid value."""
        check_fields(self)
        at_least(1).check("memory_mb", self.memory_mb)

    @property
    def search_options(self) -> dict[str, Any]:
        """Keyword arguments for `vectors.nearest_neighbours`."""
        return {"precision": self.precision, "memory_mb": self.memory_mb}

    @property
    def neighbour_settings(self) -> dict[str, str]:
        """Settings that affect the neighbours, except k. They identify reusable results.

        The result is empty for exact search by cosine, so that work folders of older versions stay
        valid.
        """
        settings = {}
        if self.kind != "flat":
            settings["kind"] = self.kind
        if self.rerank:
            settings["rerank"] = score_name(self.rerank)
        return settings


@dataclass(frozen=True)
class PairScoring:
    """Options for scoring aligned pairs; see `vectors.margin_scores`."""

    margin: str = option(
        "absolute (the cosine), ratio or distance (the cosine compared with the neighbours of both "
        "sides)",
        "absolute",
        MARGINS,
    )
    k: int = option("number of neighbours per sentence", Mining.k, at_least(1))
