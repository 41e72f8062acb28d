"""Two Cython modules of fairseq in numpy, and its count for BLEU, so that it is installed without
being built.

`training/fairseq_patches.py` provides them where fairseq has no compiled ones: its functions import
them when they are called. The tasks here cut batches themselves; fairseq's own data sets need them,
also under this --user-dir, and fairseq-generate scores by BLEU. Names and results are those of
fairseq 0.12.2, which the tests compare.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fairseq_lxsr.vectors.rows import IntArray


def batch_by_size_vec(
    indices: IntArray, num_tokens_vec: IntArray, max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[IntArray]:
    """Cut `indices` [N] into batches of at most `max_sentences` and `max_tokens`, with padding; 0
    or less: no limit.

    A batch of more than `bsz_mult` sentences has a multiple of it, the rest goes to the next one.
    """
    if not len(indices):
        return []
    assert max_tokens <= 0 or np.max(num_tokens_vec) <= max_tokens, (
        f"Sentences lengths should not exceed max_tokens={max_tokens}"
    )
    ends: list[int] = []
    start, complete = 0, 0  # of the batch, and the end of what it is sure to have
    while True:
        full = _first_too_many(num_tokens_vec, start, max_tokens, max_sentences)
        count = full - start
        complete = max(complete, start + (count if count < bsz_mult else count - count % bsz_mult))
        if full == len(indices):
            break
        ends.append(complete)
        rest = num_tokens_vec[complete : full + 1]
        # the rest is too much for one batch with the next sentence
        if 0 < max_tokens < len(rest) * rest.max():
            ends.append(full)
        start, complete = ends[-1], full + 1
    return np.split(indices, ends + [complete] * (complete != len(indices)))


def _first_too_many(lengths: IntArray, start: int, max_tokens: int, max_sentences: int) -> int:
    """Find the first sentence that a batch from `start` on has no room for; all that there are if
    it has for each.
    """
    most = min(start + max_sentences, len(lengths)) if max_sentences > 0 else len(lengths)
    window = 64
    while max_tokens > 0:
        longest = np.maximum.accumulate(lengths[start : min(start + window, most)])
        too_many = longest * np.arange(1, len(longest) + 1) > max_tokens
        if too_many[-1]:
            return start + int(too_many.argmax())
        if start + window >= most:
            break
        window *= 4
    return most


def batch_by_size_fn(
    indices: IntArray,
    num_tokens_fn: Callable[[int], int],
    max_tokens: int,
    max_sentences: int,
    bsz_mult: int,
) -> list[IntArray]:
    """Do what `batch_by_size_vec` does, with a function that tells the length of a sentence."""
    lengths = np.fromiter(map(num_tokens_fn, indices.tolist()), np.int64, len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def batch_fixed_shapes_fast(
    indices: IntArray, num_tokens_fn: Callable[[int], int], fixed_shapes_sorted: IntArray
) -> list[list[int]]:
    """Cut `indices` [N] into batches that fit one of the shapes [K, 2], sentences and tokens,
    smallest first.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    shapes, longest = fixed_shapes_sorted, 0
    for index in indices.tolist():
        length = num_tokens_fn(index)
        longest = max(longest, length)
        fits = (len(batch) < shapes[:, 0]) & (longest <= shapes[:, 1])
        if fits.any():
            shapes = shapes[fits.argmax() :]
        else:
            batches.append(batch)
            # fairseq forgets this sentence's length as well
            batch, shapes, longest = ([], fixed_shapes_sorted, 0)
        batch.append(index)
    return batches + [batch] * bool(batch)


def _get_slice_indices_fast(
    sizes: IntArray, break_mode: str, block_size: int, document_sep_len: int
) -> IntArray:
    """Cut a text of sentences of `sizes` [N] into blocks: the places in the text where they begin
    and end, [M, 2].

    `break_mode`: none, blocks of equal size; complete, of whole sentences; complete_doc, of one
    document, which ends with a sentence of `document_sep_len`; eos, a sentence each.
    """
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if break_mode == "none":
        starts = np.arange(0, total, block_size)
        return np.stack([starts, np.minimum(starts + block_size, total)], axis=1)
    if break_mode == "eos":
        return np.stack([ends - sizes, ends], axis=1)
    if break_mode == "complete":
        return _pairs(_whole_sentences(ends.tolist(), 0, total, block_size))
    if break_mode != "complete_doc":
        raise ValueError(f"Invalid break_mode: {break_mode}")
    places = ends.tolist()
    separators = sizes == document_sep_len
    documents = zip(
        [0, *ends[separators].tolist()], [*(ends - sizes)[separators].tolist(), total], strict=True
    )
    blocks = (
        block
        for start, end in documents
        for block in _whole_sentences(places, start, end, block_size)
    )
    # fairseq leaves out a block of one token
    return _pairs((start, end) for start, end in blocks if end - start > 1)


def _whole_sentences(
    ends: list[int], start: int, total: int, block_size: int
) -> Iterator[tuple[int, int]]:
    """Cut the text between two places where sentences end into blocks; a longer sentence is a block
    of its own.
    """
    while start < total:
        last = bisect_right(ends, start + block_size)
        end = ends[last - 1] if last and ends[last - 1] > start else ends[bisect_right(ends, start)]
        yield start, min(end, total)
        start = min(end, total)


def _pairs(blocks: Iterator[tuple[int, int]]) -> IntArray:
    return np.array([*blocks], dtype=np.int64).reshape(-1, 2)


def _get_block_to_dataset_index_fast(sizes: IntArray, slice_indices: IntArray) -> IntArray:
    """Find for blocks [M, 2] the sentence of the first token, its place in it, and the sentence of
    the last, [M, 3].

    Where a sentence begins after empty ones, it is the first of these that counts.
    """
    starts = np.concatenate([[0], sizes.cumsum()])

    def sentence_at(place: IntArray) -> IntArray:
        found = np.searchsorted(starts, place)
        return np.where(starts[found] == place, found, found - 1)

    begin, end = slice_indices.T
    first = sentence_at(begin)
    return np.stack([first, begin - starts[first], sentence_at(np.maximum(begin, end - 1))], axis=1)


def count_for_bleu(
    reference: Sequence[int], prediction: Sequence[int], pad: int, end: int
) -> dict[str, int]:
    """Count what BLEU is made of: lengths, n-grams of the prediction and those of them that the
    reference has too.

    Padding before and after a side does not count, nor does its `end`, unless that is all.
    """
    reference, prediction = (_trimmed(side, pad, end) for side in (reference, prediction))
    found = {"reflen": len(reference), "predlen": len(prediction)}
    for n in range(1, 5):
        grams = [
            Counter(zip(*(side[i:] for i in range(n)), strict=False))
            for side in (reference, prediction)
        ]
        found |= {f"match{n}": (grams[0] & grams[1]).total(), f"count{n}": grams[1].total()}
    return found


def _trimmed(ids: Sequence[int], pad: int, end: int) -> Sequence[int]:
    start, stop = 0, len(ids)
    while start < stop and ids[start] == pad:
        start += 1
    while stop > start + 1 and ids[stop - 1] in (pad, end):
        stop -= 1
    return ids[start:stop]
