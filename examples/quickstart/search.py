"""Search with a few sentences: python search.py MODEL QUERIES CANDIDATES, aligned text files."""

import math
import sys

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.vectors import nearest_neighbours

NUM_QUERIES = 6


def main(model: str, query_file: str, candidate_file: str) -> None:
    queries, candidates = zip(*read_parallel(query_file, candidate_file), strict=True)
    encoder = SentenceEncoder.from_pretrained(model)
    step = math.ceil(len(queries) / NUM_QUERIES)
    numbers = range(0, len(queries), step)
    query_vectors = encoder.encode([queries[number] for number in numbers])
    candidate_vectors = encoder.encode(candidates)
    cosines, neighbours = nearest_neighbours(
        query_vectors, candidate_vectors, k=min(2, len(candidates))
    )
    for number, scores, ids in zip(numbers, cosines, neighbours, strict=True):
        print(f"\n{queries[number]}")
        for score, neighbour in zip(scores, ids, strict=True):
            line = f"   {score:.2f}  {candidates[neighbour]}"
            if neighbour == number:
                line += "   <- its translation"
            print(line)


if __name__ == "__main__":
    with exit_on_input_error("search.py"):
        if len(sys.argv) != 4:
            raise InputError(f"{len(sys.argv) - 1} arguments; expected MODEL QUERIES CANDIDATES")
        main(*sys.argv[1:])
