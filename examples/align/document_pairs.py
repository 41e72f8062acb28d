"""Find which documents translate each other, from the embeddings of their sentences.

python document_pairs.py --model MODEL --source docs.de --target docs.fr > pairs.tsv

A file has one sentence per line, and an empty line between documents. The output has one line per
pair, best pairs first: the score, and the numbers of the source and the target document, from 1.
Every document occurs at most once. With --aligned, document i of the source is assumed to translate
document i of the target, and the accuracy is printed instead.
"""

import argparse
import signal
from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import is_blank, read_lines
from fairseq_lxsr.vectors import MinedPairs, mine, normalise_rows, one_to_one

# The number of sentences of each document.
Sizes = Sequence[int]


def bimax(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by BiMax (Wang, Utsuro and Nagata 2025, Findings of EMNLP).

    Args:
        source: unit-length embeddings of all source sentences, in order, [N, D].
        target: unit-length embeddings of all target sentences, in order, [M, D].
        source_sizes: number of sentences of each source document.
        target_sizes: number of sentences of each target document.

    Returns:
        The largest cosine of each sentence with the other document, averaged over sentences and
        over both directions, [S, T].
    """
    scores = []
    target_starts = starts(target_sizes)
    for document in np.split(source, starts(source_sizes)[1:]):
        cosines = document @ target.T  # [n, M]
        forward = np.maximum.reduceat(cosines, target_starts, axis=1).mean(axis=0)  # [T]
        backward = np.add.reduceat(cosines.max(axis=0), target_starts) / target_sizes  # [T]
        scores.append((forward + backward) / 2)
    return np.array(scores)


def mean_margin(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by the margins of mined sentence pairs; see `bimax`.

    A sentence counts with the margin of its pair if the pair lies in the two documents, and with 0
    otherwise. The score is the mean over all sentences of both documents.
    """
    pairs = mine(source, target, k=min(4, len(source), len(target)))
    of_source = np.repeat(np.arange(len(source_sizes)), source_sizes)
    of_target = np.repeat(np.arange(len(target_sizes)), target_sizes)
    sums = np.zeros((len(source_sizes), len(target_sizes)), np.float32)
    np.add.at(sums, (of_source[pairs.source], of_target[pairs.target]), 2 * pairs.scores)
    return sums / np.add.outer(source_sizes, target_sizes)


def mean_vector(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by the cosine of their means, a baseline; see `bimax`."""
    source_means = normalise_rows(np.add.reduceat(source, starts(source_sizes)))
    target_means = normalise_rows(np.add.reduceat(target, starts(target_sizes)))
    return source_means @ target_means.T


def starts(sizes: Sizes) -> np.ndarray:
    """Return the number of the first sentence of each document."""
    return np.cumsum([0, *sizes[:-1]])


SCORES = {"bimax": bimax, "margin": mean_margin, "mean": mean_vector}


def best_pairs(scores: np.ndarray) -> MinedPairs:
    """Choose pairs greedily by score, each document at most once."""
    order = np.argsort(-scores, axis=None, kind="stable")
    rows, columns = np.unravel_index(order, scores.shape)
    return one_to_one(MinedPairs(scores[rows, columns], rows, columns))


def read_documents(path: Path) -> list[list[str]]:
    documents = []
    for blank, lines in groupby(read_lines(path), is_blank):
        if not blank:
            documents.append(list(lines))
    return documents


def embed(encoder: SentenceEncoder, documents: list[list[str]]) -> np.ndarray:
    sentences = list(chain.from_iterable(documents))
    return encoder.encode(sentences, normalize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="folder, or name of a model of the package"
    )
    for side in ("source", "target"):
        parser.add_argument(f"--{side}", type=Path, required=True, metavar="FILE", help=".gz too")
    parser.add_argument("--score", choices=SCORES, default="bimax", help="default: bimax")
    parser.add_argument("--aligned", action="store_true")
    args = parser.parse_args()
    with exit_on_input_error("document_pairs.py"):
        pair_documents(parser, args)


def pair_documents(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    encoder = SentenceEncoder.from_pretrained(args.model)
    sides = [read_documents(path) for path in (args.source, args.target)]
    for path, side in zip((args.source, args.target), sides, strict=True):
        if not side:
            parser.error(
                f"{path}: no text; expected one sentence per line, and an empty line "
                "between documents"
            )
    source, target = sides
    if args.aligned and len(source) != len(target):
        parser.error(
            f"--aligned: {len(source):,} and {len(target):,} documents; expected equal numbers"
        )
    sizes = [[len(document) for document in side] for side in sides]
    scores = SCORES[args.score](embed(encoder, source), embed(encoder, target), *sizes)
    if args.aligned:
        print_accuracy(args.score, scores)
    else:
        print_pairs(best_pairs(scores))


def print_pairs(pairs: MinedPairs) -> None:
    for score, source, target in zip(pairs.scores, pairs.source, pairs.target, strict=True):
        print(f"{score:.6f}\t{source + 1}\t{target + 1}")


def print_accuracy(name: str, scores: np.ndarray) -> None:
    expected = np.arange(len(scores))
    forward = (scores.argmax(axis=1) == expected).mean()
    backward = (scores.argmax(axis=0) == expected).mean()
    pairs = best_pairs(scores)
    one_to_one_share = (pairs.source == pairs.target).mean()
    print(
        f"{name}: source to target {forward:.1%}, target to source {backward:.1%}, "
        f"one to one {one_to_one_share:.1%}"
    )


if __name__ == "__main__":
    # `| head` ends the program without a message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
