"""Change embeddings after training, so that no direction and no word piece dominates.

python examples/pretrained/whiten.py CHECKPOINT --corpus work/static/corpus \
    --output FOLDER/checkpoint_last.pt

Directions of large variance in the embeddings of the text are shortened: each is divided by its
variance to the power of 0.1. That is a fifth of the way to whitening (Su et al. 2021, "Whitening
sentence representations"). The lengths of the vectors of word pieces are raised to the power of
0.85. Only the vectors of word pieces change.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from average import copy_text

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.encoder.model_folder import TEACHER
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.export.folder import export_checkpoint
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write

VECTORS = "encoder.embed_tokens.weight"
# Degree of whitening: 0 leaves the directions unchanged, 1 gives all the same variance.
WHITENED = 0.2
# Exponent of the lengths of the piece vectors.
LENGTHS = 0.85
# Number of lines per side of a language pair.
LINES = 3000
# Minimum variance relative to the largest; smaller ones are raised to it.
LEAST = 1e-6


def sentences(corpus: Path) -> Iterator[str]:
    """Yield the first training sentences of each language pair."""
    files = sorted(corpus.glob("*-*/train.*"))
    if not files:
        raise InputError(f"{corpus}: no SRC-TGT/train.LANG; expected the corpus/ of `lxsr prepare`")
    for file in files:
        if file.suffix[1:] in file.parent.name.split("-"):
            yield from itertools.islice(read_lines(file), LINES)


def changed(vectors: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Return vectors that are partly whitened, with more equal lengths.

    Args:
        vectors: vectors of the word pieces [V, D].
        embeddings: sentence embeddings, whose covariance is used [N, D].
    """
    if len(np.unique(embeddings, axis=0)) < 2:
        raise InputError(
            "--corpus: no two sentences with different embeddings; expected the training text"
        )
    variances, directions = np.linalg.eigh(np.cov(embeddings.T))
    factors = variances.clip(LEAST * variances[-1]) ** (-WHITENED / 2)
    vectors = vectors @ (directions * factors) @ directions.T
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.where(lengths > 0, lengths, 1) ** (LENGTHS - 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint of a model without layers"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder corpus/ of lxsr prepare",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="checkpoint to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("whiten.py"), tempfile.TemporaryDirectory() as work:
        model = export_checkpoint(args.checkpoint, Path(work) / "model")
        encoder = SentenceEncoder.from_pretrained(model)
        is_bag = getattr(encoder.size, "is_bag", False)
        if not is_bag or encoder.size.order_coefficients:
            raise InputError(
                f"{args.checkpoint}: a model with layers or order coefficients;"
                " expected a model without them"
            )
        embeddings = encoder.encode(list(sentences(args.corpus)), normalize=True)
        checkpoint = read_checkpoint(args.checkpoint)
        vectors = changed(checkpoint["model"][VECTORS].double().numpy(), embeddings)
        checkpoint["model"][VECTORS] = torch.from_numpy(vectors).float()
        # The embeddings are no longer near those of a teacher.
        checkpoint["task_state"].pop(TEACHER, None)
        checkpoint["extra_state"].pop("ema", None)
        copy_text(args.checkpoint, args.output)
        with atomic_write(args.output, "wb") as stream:
            torch.save(checkpoint | {"last_optimizer_state": None}, stream)


if __name__ == "__main__":
    main()
