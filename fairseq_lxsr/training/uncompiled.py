"""NumPy replacements for two of fairseq's Cython modules, and for its BLEU counts.

`training/fairseq_patches.py` installs them if fairseq was not compiled. The tasks of this package
build batches themselves, but fairseq's own datasets need these functions, and fairseq-generate
computes BLEU scores. Function names and results match fairseq 0.12.2, as the tests verify.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fairseq_lxsr.vectors.rows import IntArray


def batch_by_size_vec(
    indices: IntArray, num_tokens_vec: IntArray, max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[IntArray]:
    """Split sentences into batches.

    Args:
        indices: sentence indices [N].
        num_tokens_vec: lengths of the sentences [N].
        max_tokens: maximum number of tokens per batch, including padding; 0 or less for no limit.
        max_sentences: maximum number of sentences per batch; 0 or less for no limit.
        bsz_mult: larger batches contain a multiple of this number of sentences; the remaining
            sentences go into the next batch.
    """
    if not len(indices):
        return []
    assert max_tokens <= 0 or np.max(num_tokens_vec) <= max_tokens, (
        f"Sentences lengths should not exceed max_tokens={max_tokens}"
    )
    ends: list[int] = []
    # Index of the first sentence in the current batch.
    start = 0
    # Index after the last sentence that certainly belongs to the batch.
    complete = 0
    while True:
        full = _first_too_many(num_tokens_vec, start, max_tokens, max_sentences)
        count = full - start
        if count >= bsz_mult:
            count -= count % bsz_mult
        complete = max(complete, start + count)
        if full == len(indices):
            break
        ends.append(complete)
        rest = num_tokens_vec[complete : full + 1]
        # The rest becomes a separate batch if the next sentence does not fit into the batch.
        if 0 < max_tokens < len(rest) * rest.max():
            ends.append(full)
        start = ends[-1]
        complete = full + 1
    if complete != len(indices):
        ends.append(complete)
    return np.split(indices, ends)


def _first_too_many(lengths: IntArray, start: int, max_tokens: int, max_sentences: int) -> int:
    """Return the index of the first sentence that does not fit into a batch, or N if all fit.

    Args:
        lengths: lengths of the sentences [N].
        start: index of the first sentence in the batch.
        max_tokens: maximum number of tokens (see `batch_by_size_vec`).
        max_sentences: maximum number of sentences (see `batch_by_size_vec`).
    """
    limit = len(lengths)
    if max_sentences > 0:
        limit = min(start + max_sentences, limit)
    window = 64
    while max_tokens > 0:
        longest = np.maximum.accumulate(lengths[start : min(start + window, limit)])
        too_many = longest * np.arange(1, len(longest) + 1) > max_tokens
        if too_many[-1]:
            return start + int(too_many.argmax())
        if start + window >= limit:
            break
        window *= 4
    return limit


def batch_by_size_fn(
    indices: IntArray,
    num_tokens_fn: Callable[[int], int],
    max_tokens: int,
    max_sentences: int,
    bsz_mult: int,
) -> list[IntArray]:
    """Like `batch_by_size_vec`, but with a function that returns the length of a sentence."""
    lengths = np.fromiter(map(num_tokens_fn, indices.tolist()), np.int64, len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def batch_fixed_shapes_fast(
    indices: IntArray, num_tokens_fn: Callable[[int], int], fixed_shapes_sorted: IntArray
) -> list[list[int]]:
    """Split sentences into batches of fixed shapes.

    Args:
        indices: sentence indices [N].
        num_tokens_fn: returns the length of a sentence.
        fixed_shapes_sorted: allowed shapes (sentences, tokens), smallest first [K, 2].
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    shapes = fixed_shapes_sorted
    longest = 0
    for index in indices.tolist():
        length = num_tokens_fn(index)
        longest = max(longest, length)
        fits = (len(batch) < shapes[:, 0]) & (longest <= shapes[:, 1])
        if fits.any():
            shapes = shapes[fits.argmax() :]
        else:
            batches.append(batch)
            batch = []
            shapes = fixed_shapes_sorted
            # As in fairseq, the length of this sentence is not counted.
            longest = 0
        batch.append(index)
    if batch:
        batches.append(batch)
    return batches


def _get_slice_indices_fast(
    sizes: IntArray, break_mode: str, block_size: int, document_sep_len: int
) -> IntArray:
    """Split a text into blocks.

    Args:
        sizes: lengths of the sentences [N].
        break_mode: `none` for blocks of equal size, `complete` for whole sentences,
            `complete_doc` for whole sentences of one document, `eos` for one sentence each.
        block_size: maximum number of tokens per block.
        document_sep_len: length of the sentence that ends a document.

    Returns:
        Start and end position of each block in the text [M, 2].
    """
    ends = sizes.cumsum()
    total = int(sizes.sum())
    if break_mode == "none":
        starts = np.arange(0, total, block_size)
        return np.stack([starts, np.minimum(starts + block_size, total)], axis=1)
    if break_mode == "eos":
        return np.stack([ends - sizes, ends], axis=1)
    if break_mode == "complete":
        return _as_array(_complete_sentences(ends.tolist(), 0, total, block_size))
    if break_mode != "complete_doc":
        raise ValueError(f"Invalid break_mode: {break_mode}")
    separators = sizes == document_sep_len
    document_starts = [0, *ends[separators].tolist()]
    document_ends = [*(ends - sizes)[separators].tolist(), total]
    places = ends.tolist()
    blocks = []
    for document_start, document_end in zip(document_starts, document_ends, strict=True):
        for start, end in _complete_sentences(places, document_start, document_end, block_size):
            # As in fairseq, blocks of one token are dropped.
            if end - start > 1:
                blocks.append((start, end))
    return _as_array(blocks)


def _complete_sentences(
    ends: list[int], start: int, stop: int, block_size: int
) -> Iterator[tuple[int, int]]:
    """Split text into blocks of whole sentences. A sentence that is too long gets its own block.

    Args:
        ends: end positions of the sentences.
        start: start position of the text.
        stop: end position of the text.
        block_size: maximum number of tokens per block.

    Yields:
        Start and end position of each block.
    """
    while start < stop:
        last = bisect_right(ends, start + block_size)
        end = ends[last - 1] if last else start
        if end <= start:
            # The first sentence is longer than a block.
            end = ends[bisect_right(ends, start)]
        end = min(end, stop)
        yield start, end
        start = end


def _as_array(blocks: Iterable[tuple[int, int]]) -> IntArray:
    return np.array([*blocks], dtype=np.int64).reshape(-1, 2)


def _get_block_to_dataset_index_fast(sizes: IntArray, slice_indices: IntArray) -> IntArray:
    """Find the sentences in which each block begins and ends.

    If a block begins after empty sentences, it begins in the first of these sentences.

    Args:
        sizes: lengths of the sentences [N].
        slice_indices: start and end position of each block in the text [M, 2].

    Returns:
        Index of the first token's sentence, position of the token in that sentence, and index of
        the last token's sentence [M, 3].
    """
    starts = np.concatenate([[0], sizes.cumsum()])

    def sentence_at(place: IntArray) -> IntArray:
        sentence = np.searchsorted(starts, place)
        return np.where(starts[sentence] == place, sentence, sentence - 1)

    begin, end = slice_indices.T
    first = sentence_at(begin)
    return np.stack([first, begin - starts[first], sentence_at(np.maximum(begin, end - 1))], axis=1)


def count_for_bleu(
    reference: Sequence[int], prediction: Sequence[int], pad: int, end: int
) -> dict[str, int]:
    """Count the lengths and n-grams of a sentence for BLEU.

    Padding at either end and trailing end symbols are not counted, unless there is nothing else.

    Args:
        reference: ids of the reference.
        prediction: ids of the prediction.
        pad: id of padding.
        end: id of the end symbol.

    Returns:
        The lengths `reflen` and `predlen`, and, for n from 1 to 4, the number of n-grams in the
        prediction, `countN`, and how many of these also occur in the reference, `matchN`.
    """
    reference = _trimmed(reference, pad, end)
    prediction = _trimmed(prediction, pad, end)
    counts = {"reflen": len(reference), "predlen": len(prediction)}
    for n in range(1, 5):
        reference_ngrams = _count_ngrams(reference, n)
        ngrams = _count_ngrams(prediction, n)
        counts[f"match{n}"] = (reference_ngrams & ngrams).total()
        counts[f"count{n}"] = ngrams.total()
    return counts


def _count_ngrams(ids: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    shifted = [ids[start:] for start in range(n)]
    return Counter(zip(*shifted, strict=False))


def _trimmed(ids: Sequence[int], pad: int, end: int) -> Sequence[int]:
    """Strip leading padding, and trailing padding and EOS, but keep at least one id."""
    start = 0
    stop = len(ids)
    while start < stop and ids[start] == pad:
        start += 1
    while stop > start + 1 and ids[stop - 1] in (pad, end):
        stop -= 1
    return ids[start:stop]
