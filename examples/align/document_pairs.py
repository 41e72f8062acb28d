"""Find which documents translate each other, from the embeddings of their sentences.

python document_pairs.py --model MODEL --source docs.de --target docs.fr > pairs.tsv

A file has one sentence a line and an empty line between documents. The output has a line for each
pair: score, number of the source document, number of the target document, from 1, every document at
most once, best pairs first. With --aligned, document i of the source translates document i of the
target, and the accuracy is printed instead.
"""

import argparse
import signal
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import exit_on_input_error
from fairseq_lxsr.files.lines import is_blank, read_lines
from fairseq_lxsr.vectors import MinedPairs, mine, normalise_rows, one_to_one

Sizes = Sequence[int]  # sentences of each document


def bimax(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by BiMax (Wang, Utsuro and Nagata 2025, Findings of EMNLP).

    Args:
        source: vectors of length one of all source sentences in order, [N, D].
        target: vectors of length one of all target sentences in order, [M, D].
        source_sizes: number of sentences of each source document.
        target_sizes: number of sentences of each target document.

    Returns:
        The largest cosine of a sentence with the other document, the mean over sentences and over
        both ways; [S, T].
    """
    scores, target_starts = [], starts(target_sizes)
    for document in np.split(source, starts(source_sizes)[1:]):
        cosines = document @ target.T  # [n, M]
        forward = np.maximum.reduceat(cosines, target_starts, axis=1).mean(axis=0)  # [T]
        backward = np.add.reduceat(cosines.max(axis=0), target_starts) / target_sizes  # [T]
        scores.append((forward + backward) / 2)
    return np.array(scores)


def mean_margin(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by the margins of the sentence pairs that are mined from all
    text; as `bimax`.

    A sentence counts with the margin of its pair where that lies in the two documents, else with 0;
    the mean over all sentences of both.
    """
    pairs = mine(source, target, k=min(4, len(source), len(target)))
    of_source, of_target = (
        np.repeat(np.arange(len(sizes)), sizes) for sizes in (source_sizes, target_sizes)
    )
    sums = np.zeros((len(source_sizes), len(target_sizes)), np.float32)
    np.add.at(sums, (of_source[pairs.source], of_target[pairs.target]), 2 * pairs.scores)
    return sums / np.add.outer(source_sizes, target_sizes)


def mean_vector(
    source: np.ndarray, target: np.ndarray, source_sizes: Sizes, target_sizes: Sizes
) -> np.ndarray:
    """Score all pairs of documents by the cosine of their mean vectors, to compare with; as
    `bimax`.
    """
    means = (
        np.add.reduceat(source, starts(source_sizes)),
        np.add.reduceat(target, starts(target_sizes)),
    )
    ours, theirs = map(normalise_rows, means)
    return ours @ theirs.T


def starts(sizes: Sizes) -> np.ndarray:
    return np.cumsum([0, *sizes[:-1]])


SCORES = {"bimax": bimax, "margin": mean_margin, "mean": mean_vector}


def best_pairs(scores: np.ndarray) -> MinedPairs:
    """Every document at most once, greedily by score."""
    order = np.argsort(-scores, axis=None, kind="stable")
    rows, columns = np.unravel_index(order, scores.shape)
    return one_to_one(MinedPairs(scores[rows, columns], rows, columns))


def read_documents(path: Path) -> list[list[str]]:
    return [list(lines) for blank, lines in groupby(read_lines(path), is_blank) if not blank]


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
                f"{path}: no text; expected one sentence a line, an empty line between documents"
            )
    vectors = [
        encoder.encode([line for document in side for line in document], normalize=True)
        for side in sides
    ]
    scores = SCORES[args.score](*vectors, *(list(map(len, side)) for side in sides))
    if not args.aligned:
        pairs = best_pairs(scores)
        for score, source, target in zip(pairs.scores, pairs.source, pairs.target, strict=True):
            print(f"{score:.6f}\t{source + 1}\t{target + 1}")
        return
    if len(sides[0]) != len(sides[1]):
        parser.error(
            f"--aligned: {len(sides[0]):,} documents and {len(sides[1]):,}; expected as many"
        )
    right = np.arange(len(scores))
    shares = [(scores.argmax(axis=1) == right).mean(), (scores.argmax(axis=0) == right).mean()]
    pairs = best_pairs(scores)
    shares.append((pairs.source == pairs.target).mean())
    print(
        f"{args.score}: "
        + "source to target {:.1%}, target to source {:.1%}, one to one {:.1%}".format(*shares)
    )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a message
    main()
