"""Search with a few sentences: python search.py MODEL QUERIES CANDIDATES, aligned text files."""

import sys

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.vectors import nearest_neighbours

HOW_MANY = 6


def main(model: str, query_file: str, candidate_file: str) -> None:
    queries, candidates = zip(*read_parallel(query_file, candidate_file), strict=True)
    encoder = SentenceEncoder.from_pretrained(model)
    shown = range(0, len(queries), -(-len(queries) // HOW_MANY))
    vectors = encoder.encode([queries[i] for i in shown]), encoder.encode(candidates)
    cosines, found = nearest_neighbours(*vectors, k=min(2, len(candidates)))
    for query, scores, neighbours in zip(shown, cosines, found, strict=True):
        print(f"\n{queries[query]}")
        for score, neighbour in zip(scores, neighbours, strict=True):
            print(
                f"   {score:.2f}  {candidates[neighbour]}{'   <- its translation' if neighbour == query else ''}"
            )


if __name__ == "__main__":
    with exit_on_input_error("search.py"):
        if len(sys.argv) != 4:
            raise InputError(f"{len(sys.argv) - 1} arguments; expected MODEL QUERIES CANDIDATES")
        main(*sys.argv[1:])
