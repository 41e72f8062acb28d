"""numpy versions of fairseq's Cython modules: against a slow reference, and against these
themselves.
"""

import importlib.util

import numpy as np
import pytest
from conftest import python
from forks import FAIRSEQ

from fairseq_lxsr.training import uncompiled


def batches_by_steps(indices, lengths, max_tokens, max_sentences, multiple):
    """What data_utils_fast.pyx does, position by position."""
    ends, count, start, tail_longest, longest = [0] * (len(indices) + 1), 0, 0, 0, 0
    for position in range(len(indices)):
        tail_longest = max(tail_longest, lengths[position])
        end = position + 1
        new_longest = max(longest, tail_longest)
        size = end - start
        overflow = size > max_sentences > 0 or size * new_longest > max_tokens > 0
        if overflow:
            if tail_longest * (end - ends[count]) > max_tokens > 0:
                count += 1
                ends[count] = position
                tail_longest = lengths[position]
            start = ends[count]
            count += 1
            new_longest = tail_longest
        if overflow or size < multiple or size % multiple == 0:
            ends[count] = end
            longest, tail_longest = new_longest, 0
    if ends[count] != len(indices):
        count += 1
    return np.split(indices, ends[:count]) if len(indices) else []


def blocks_by_steps(sizes, break_mode, block_size, separator):
    """What token_block_utils_fast.pyx does for whole sentences, one by one."""
    document = break_mode == "complete_doc"
    blocks, place, size = [], 0, 0
    sentences = sizes.tolist()
    while sentences:
        ends_document = document and sentences[0] == separator
        if (size + sentences[0] <= block_size or size == 0) and not ends_document:
            size += sentences.pop(0)
            continue
        if size > document:
            blocks.append((place, place + size))
        place, size = place + size, 0
        if ends_document:
            place += sentences.pop(0)
    if size > document:
        blocks.append((place, place + size))
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)


def places_by_steps(sizes, blocks):
    """The state of its DatasetSearcher, which moves on sentence by sentence until the place is
    reached.
    """

    def seek(place):
        index, reached = 0, 0
        while reached < place:
            if reached + sizes[index] > place:
                return index, place - reached
            reached += sizes[index]
            index += 1
        return index, 0

    return np.array(
        [(*seek(start), seek(max(start, end - 1))[0]) for start, end in blocks]
    ).reshape(-1, 3)


def compiled(module):
    """One of the two modules, where fairseq was built."""
    found = pytest.importorskip(f"fairseq.data.{module}", exc_type=ImportError)
    if found is uncompiled:
        pytest.skip("fairseq was not built here")
    return found


def drawn_batching(rng):
    """Lengths and limits as people give them, and odd ones."""
    count = int(rng.choice([0, 1, 2, 7, 60, 400]))
    lengths = rng.integers(0 if rng.random() < 0.2 else 1, rng.choice([2, 12, 300]), count)
    lengths = np.sort(lengths) if rng.random() < 0.5 else lengths
    longest = int(lengths.max(initial=1))
    max_tokens = int(
        rng.choice([-1, 0, longest, longest + rng.integers(40), longest * rng.integers(1, 40)])
    )
    limits = (
        max_tokens,
        int(rng.choice([-1, 0, 1, 3, 8, 50, 1000])),
        int(rng.choice([1, 1, 2, 3, 8, 64])),
    )
    return (rng.permutation(count), lengths, *limits)


def drawn_text(rng):
    sizes = rng.integers(
        0 if rng.random() < 0.5 else 1, rng.choice([2, 5, 40]), rng.integers(1, 80)
    )
    return sizes, int(rng.choice([1, 2, 7, 30, 500])), int(rng.choice([0, 1, 1, 2]))


def batch_with(module, seed):
    return [
        batch.tolist()
        for batch in module.batch_by_size_vec(*drawn_batching(np.random.default_rng(seed)))
    ]


@pytest.mark.parametrize("part", range(4))
def test_batches_are_those_of_the_slow_reference(part):
    for seed in range(part * 500, (part + 1) * 500):
        expected = batches_by_steps(*drawn_batching(np.random.default_rng(seed)))
        assert batch_with(uncompiled, seed) == [batch.tolist() for batch in expected], seed


def test_batches_are_those_of_the_compiled_module():
    module = compiled("data_utils_fast")
    for seed in range(2_000):
        assert batch_with(uncompiled, seed) == batch_with(module, seed), seed


def test_batches_by_hand():
    """The multiple of 4 is kept, and what is over goes to the next batch; 3 x 9 is more than 20."""
    lengths = np.array([2, 2, 2, 2, 2, 2, 9, 9, 9])
    found = uncompiled.batch_by_size_vec(np.arange(9), lengths, 20, -1, 4)
    assert [batch.tolist() for batch in found] == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]
    by_function = uncompiled.batch_by_size_fn(np.arange(9), lengths.__getitem__, 20, -1, 4)
    assert [batch.tolist() for batch in by_function] == [batch.tolist() for batch in found]
    with pytest.raises(AssertionError, match="should not exceed max_tokens=8"):
        uncompiled.batch_by_size_vec(np.arange(9), lengths, 8, -1, 1)


def test_batches_of_fixed_shapes():
    shapes = np.array([[8, 4], [4, 8], [2, 16]])
    lengths = np.array([3, 4, 3, 7, 2, 12, 16, 16, 1])
    found = uncompiled.batch_fixed_shapes_fast(np.arange(9), lengths.__getitem__, shapes)
    assert found == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]


def test_batches_of_fixed_shapes_are_those_of_the_compiled_module():
    module = compiled("data_utils_fast")
    for seed in range(300):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 20, 50)
        shapes = rng.integers(1, 24, (rng.integers(1, 5), 2))
        arguments = (rng.permutation(50), lengths.__getitem__, shapes[np.lexsort(shapes.T)])
        assert uncompiled.batch_fixed_shapes_fast(*arguments) == module.batch_fixed_shapes_fast(
            *arguments
        ), seed


@pytest.mark.parametrize("mode", ["complete", "complete_doc"])
def test_blocks_of_whole_sentences_are_those_of_the_slow_reference(mode):
    for seed in range(500):
        sizes, block_size, separator = drawn_text(np.random.default_rng(seed))
        blocks = uncompiled._get_slice_indices_fast(sizes, mode, block_size, separator)
        np.testing.assert_array_equal(blocks, blocks_by_steps(sizes, mode, block_size, separator))
        places = uncompiled._get_block_to_dataset_index_fast(sizes, blocks)
        np.testing.assert_array_equal(places, places_by_steps(sizes, blocks))


def test_blocks_by_hand():
    """Seven tokens: sentences of 3, 0 and 4."""
    sizes = np.array([3, 0, 4])
    expected = {
        "none": [[0, 5], [5, 7]],
        "eos": [[0, 3], [3, 3], [3, 7]],
        "complete": [[0, 3], [3, 7]],
    }
    for mode, blocks in expected.items():
        assert uncompiled._get_slice_indices_fast(sizes, mode, 5, 1).tolist() == blocks
    places = uncompiled._get_block_to_dataset_index_fast(sizes, np.array(expected["none"]))
    assert places.tolist() == [[0, 0, 2], [2, 2, 2]]
    with pytest.raises(ValueError, match="Invalid break_mode: lines"):
        uncompiled._get_slice_indices_fast(sizes, "lines", 5, 1)


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc", "eos"])
def test_blocks_are_those_of_the_compiled_module(mode):
    module = compiled("token_block_utils_fast")
    for seed in range(500):
        sizes, block_size, separator = drawn_text(np.random.default_rng(seed))
        blocks = uncompiled._get_slice_indices_fast(sizes, mode, block_size, separator)
        if len(blocks):  # the compiled one fails where there is no block
            np.testing.assert_array_equal(
                blocks, module._get_slice_indices_fast(sizes, mode, block_size, separator)
            )
            places = uncompiled._get_block_to_dataset_index_fast(sizes, blocks)
            np.testing.assert_array_equal(
                places, module._get_block_to_dataset_index_fast(sizes, blocks)
            )


UNBUILT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "fairseq.data.data_utils_fast":
            raise ModuleNotFoundError("not built")
        if name == "fairseq.data.token_block_utils_fast":
            raise ValueError("numpy.dtype size changed, may indicate binary incompatibility")

sys.meta_path.insert(0, Absent())
from fairseq.data import TokenBlockDataset, data_utils
import fairseq_lxsr.training.fairseq_patches
import numpy as np, torch

lengths = np.array([1, 2, 3, 4, 5])
batches = data_utils.batch_by_size(np.arange(5), None, lengths, max_tokens=8)
print([batch.tolist() for batch in batches])
parts = [torch.arange(3), torch.arange(3, 7)]
blocks = TokenBlockDataset(parts, [3, 4], 5, pad=0, eos=1, break_mode="complete")
print([blocks[number].tolist() for number in range(len(blocks))])
"""


@pytest.mark.slow
def test_fairseq_batches_where_it_was_not_built_or_for_another_numpy():
    said = python(UNBUILT).splitlines()
    assert said == ["[[0, 1], [2, 3], [4]]", "[[0, 1, 2], [3, 4, 5, 6]]"]


def test_what_is_compiled_is_used():
    """Where fairseq was built for this Python and numpy, nothing is replaced."""
    importlib.import_module("fairseq_lxsr.training.fairseq_patches")
    for module in ("data_utils_fast", "token_block_utils_fast"):
        assert compiled(module).__file__.endswith(".so")


def test_bleu_counts_words_and_their_runs():
    """Unknown words of the reference match nothing; what surrounds a sentence does not count, in it
    it does.
    """
    reference, prediction = [1, 5, 6, 7, 8, 2], [5, 6, 6, 2, 7, 8, 2, 1]
    found = uncompiled.count_for_bleu(reference, prediction, 1, 2)
    matches = {"match1": 4, "match2": 2, "match3": 0, "match4": 0}
    assert found == matches | {
        "reflen": 4,
        "predlen": 6,
        "count1": 6,
        "count2": 5,
        "count3": 4,
        "count4": 3,
    }
    ends = uncompiled.count_for_bleu([2], [1, 1], 1, 2)
    assert (ends["reflen"], ends["predlen"], ends["count1"]) == (1, 0, 0)


BLEU = """
import sys
import numpy as np
import torch
from fairseq.scoring import bleu
compiled = bleu.Scorer(bleu.BleuConfig()) if sys.argv[1] == "compiled" else None
methods = bleu.Scorer.reset, bleu.Scorer.add
from fairseq_lxsr.training import fairseq_patches
fairseq_patches.count_bleu_without_a_library()
ours, rng = bleu.Scorer(bleu.BleuConfig()), np.random.default_rng(1)
for number in range(300):
    sides = []
    for _ in range(2):
        words = rng.integers(1, 9, rng.integers(1, 12))
        sides.append(torch.IntTensor(np.append(words, rng.integers(2, 5))))
    for scorer, reset, add in ((ours, bleu.Scorer.reset, bleu.Scorer.add), (compiled, *methods)):
        if scorer and number % 50 == 0:
            reset(scorer, number % 100 == 0)
        if scorer:
            add(scorer, *sides)
    if compiled:
        for name, _ in bleu.BleuStat._fields_:
            assert getattr(ours.stat, name) == getattr(compiled.stat, name), (number, name)
assert 0 < ours.precision()[0] < 1, ours.result_string()
"""


def test_bleu_is_that_of_the_compiled_library():
    """Without the library it is only that the scorer runs."""
    python(
        BLEU,
        "compiled" if importlib.util.find_spec("fairseq.libbleu") else "none",
        preloaded=FAIRSEQ,
    )
