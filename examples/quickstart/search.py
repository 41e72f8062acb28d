"""Search with a few sentences: python search.py MODEL QUERIES CANDIDATES, aligned text files."""

import sys

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.lines import read_parallel
from fairseq_lxsr.retrieval import nearest_neighbours

HOW_MANY = 6

model, query_file, candidate_file = sys.argv[1:]
queries, candidates = zip(*read_parallel(query_file, candidate_file), strict=True)
encoder = SentenceEncoder.from_pretrained(model)
shown = range(0, len(queries), -(-len(queries) // HOW_MANY))
cosines, found = nearest_neighbours(encoder.encode([queries[i] for i in shown]), encoder.encode(candidates), k=2)
for query, scores, neighbours in zip(shown, cosines, found, strict=True):
    print(f"\n{queries[query]}")
    for score, neighbour in zip(scores, neighbours, strict=True):
        print(f"   {score:.2f}  {candidates[neighbour]}{'   <- its translation' if neighbour == query else ''}")
