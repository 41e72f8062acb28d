"""Options of `--batches near`, and the groups of near pairs that they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_lxsr.datasets.near import NearPairs
from fairseq_lxsr.datasets.pairs import PairCorpus
from fairseq_lxsr.datasets.teacher import embedding_folders, read_teacher, teacher_files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.ranges import at_least

NEAR_SIZE = 32


@dataclass
class NearOptions(FairseqDataclass):
    near_embeddings: Optional[str] = field(
        default=None,
        metadata={
            "help": "of --batches near: folder with a model's embeddings of the training text, train.SRC-TGT.LANG.npy, "
            "of either language or both, a row for each sentence"
        },
    )
    near_size: int = field(
        default=NEAR_SIZE, metadata={"help": "of --batches near: pairs of a group", "range": at_least(2)}
    )


def near_folders(cfg: Any, shards: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[Path]:
    """Check options that need each other, and return the folders of the embeddings, none without near batches.

    Raises:
        InputError: naming the options.
    """
    is_near = str(cfg.batches) == "near"
    for option, is_set in (("embeddings", cfg.near_embeddings), ("size", cfg.near_size != NEAR_SIZE)):
        if is_set and not is_near:
            raise InputError(f"--near-{option} with --batches {cfg.batches}; expected --batches near")
    if not is_near:
        return []
    if not cfg.near_embeddings:
        raise InputError("--batches near without --near-embeddings; make them with `lxsr embed` by a trained model")
    return embedding_folders("--near-embeddings", cfg.near_embeddings, shards, pairs)


def near_pairs(cfg: Any, folder: Path, corpora: Mapping[tuple[str, str], PairCorpus]) -> list[NearPairs]:
    """Read the embeddings of the training text, and make cells of each corpus.

    Raises:
        InputError: for a corpus without embeddings.
    """
    found = []
    for pair, corpus in corpora.items():
        count = len(corpus.source)
        embeddings = read_teacher(folder, "train", pair, count)
        if embeddings is None:
            raise InputError(f"{folder}: has no {teacher_files('train', pair)}; make them with `lxsr embed`")
        found.append(NearPairs(embeddings, count, cfg.near_size, cfg.seed))
    return found
