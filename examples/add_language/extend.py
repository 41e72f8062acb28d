"""Extend a model without layers by a language: its pieces, and a checkpoint from which training goes on.

python extend.py --checkpoint OLD.pt --known corpus/en-cs/train.en --new corpus/en-cs/train.cs --output work/cs

The old pieces keep their numbers and vectors. The new ones are learned on top of them: BPE goes on where it stopped, on
text of the new language as the old pieces split it. Their first vectors are those with which the mean over a new
sentence comes nearest to the embedding of its translation (ridge regression).
"""

import argparse
import tempfile
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from torch import Tensor

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import (
    DICTIONARY_HASH,
    ENCODER_PREFIX,
    SPLIT_PROBABILITY,
    TOKEN_EMBEDDINGS,
    read_checkpoint,
)
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.export.folder import export_checkpoint
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.write import atomic_folder, atomic_write
from fairseq_lxsr.text.sentencepiece_model import BPE, NORMAL, Piece, read_sentencepiece, with_pieces
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    TEXT_FILE,
    TextOptions,
    Tokenizer,
    hash_symbols,
    normalise,
    read_dictionary,
)

SUBWORDS, START = "subwords", "start.pt"  # in the output; the first is what `lxsr prepare` takes as it is
LEAST = 5  # occurrences of a new piece when it is learned
LONGEST = 16  # characters of a piece, as in SentencePiece
WORDS, ROUNDS = 50_000, 100  # the most frequent words that pieces are learned from, and at least so many steps of it
PAIRS = 100_000  # most pairs that the regression reads
RIDGE, STEPS = 1.0, 20  # weight of the squares of the vectors; steps of conjugate gradients


def words_of(lines: Iterable[str], options: TextOptions) -> Counter[str]:
    """Count the words of text, treated as before it is split into pieces."""
    return Counter(word for line in lines for word in normalise(line, options).split(" ") if word)


def learn_pieces(model: bytes, words: Counter[str], most: int) -> list[str]:
    """Go on learning BPE on words of a new language, first the letters that the model lacks.

    Args:
        model: content of a SentencePiece model file.
        words: counts of the words.
        most: number of pieces.

    Returns:
        At most so many pieces in the order in which they were learned, each seen `LEAST` times.
    """
    file = read_sentencepiece(model)
    if file.kind != BPE:
        raise InputError("the model's pieces are of another kind than BPE; expected --model-type bpe of `lxsr prepare`")
    known = {piece.text for piece in file.pieces}
    words = Counter(dict(words.most_common(WORDS)))
    letters = Counter[str]()
    for word, count in zip(processor_of(model).Normalize(list(words)), words.values(), strict=True):
        for letter in word:
            letters[letter] += count
    new = [letter for letter, count in letters.most_common() if letter not in known and count >= LEAST][:most]
    while len(new) < most:
        found = new_pairs(lengthened(model, new), words, known.union(new), min(most - len(new), -(-most // ROUNDS)))
        if not found:
            break
        new += found
    return new


def new_pairs(model: bytes, words: Counter[str], known: set[str], most: int) -> list[str]:
    """The most frequent neighbours among the pieces of words, joined; no piece is in two of them."""
    counts: Counter[tuple[str, str]] = Counter()
    normal = {piece.text for piece in read_sentencepiece(model).pieces if piece.type == NORMAL}
    for pieces, count in zip(processor_of(model).EncodeAsPieces(list(words)), words.values(), strict=True):
        for pair in pairwise(pieces):
            counts[pair] += count
    found: dict[str, None] = {}
    taken: set[str] = set()
    for (left, right), count in counts.most_common():
        if count < LEAST or len(found) == most:
            break
        if (
            taken.isdisjoint((left, right))
            and {left, right} <= normal
            and joins(left + right)
            and left + right not in known
        ):
            found.setdefault(left + right)
            taken |= {left, right}
    return list(found)


def joins(text: str) -> bool:
    """Whether text may be a piece: letters and their marks, perhaps the beginning of a word."""
    letters = text.removeprefix("▁")
    return len(text) <= LONGEST and all(unicodedata.category(letter)[0] in "LM" for letter in letters)


def lengthened(model: bytes, new: Sequence[str]) -> bytes:
    """The model file with new pieces, which join only what the old ones leave apart: their scores are below all."""
    least = min(piece.score for piece in read_sentencepiece(model).pieces)
    return with_pieces(model, (Piece(text, least - 1 - number, NORMAL) for number, text in enumerate(new)))


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def split_otherwise(old: bytes, new: bytes, words: Counter[str]) -> float:
    """Percent of the words of a text that two models split into other pieces."""
    before, after = (processor_of(model).EncodeAsPieces(list(words)) for model in (old, new))
    other = sum(count for a, b, count in zip(before, after, words.values(), strict=True) if a != b)
    return 100 * other / max(1, words.total())


def first_vectors(encoder: SentenceEncoder, tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]]) -> Tensor:
    """Vectors of the new pieces with which new sentences come near to the embeddings of their translations.

    Minimises sum_i T_i |mean_t w_it - x_i|^2 + ridge |W|^2, where the vectors of old pieces stay: a sentence counts by
    its length T_i. The order of the pieces, which adds little, is left out.

    Args:
        encoder: the old model.
        tokenizer: with old and new pieces.
        pairs: sentences of a known language and of the new one.

    Returns:
        [new pieces, D], zeros for pieces that these pairs do not have.
    """
    known, new = zip(*pairs, strict=True)
    old = len(encoder.tokenizer.symbols)
    ids, lengths = tokenizer.encode_flat(new)
    row = np.repeat(np.arange(len(lengths)), lengths)  # sentence of each piece
    root = np.sqrt(np.maximum(lengths, 1))
    rest = torch.from_numpy(encoder.encode(known) * (root / encoder.size.embed_dim**0.5)[:, None].astype(np.float32))
    weights = torch.from_numpy((1 / root[row]).astype(np.float32))
    places, is_new = torch.from_numpy(np.stack((row, ids))), torch.from_numpy(ids >= old)
    table = torch.from_numpy(encoder.table[:old])
    rest -= sparse(places[:, ~is_new], weights[~is_new], len(lengths), old) @ table
    shift = torch.tensor([[0], [old]])
    return ridge(places[:, is_new] - shift, weights[is_new], rest, len(tokenizer.symbols) - old)


def ridge(places: Tensor, values: Tensor, targets: Tensor, columns: int) -> Tensor:
    """Least squares with a penalty: conjugate gradients on the normal equations, for each column of targets.

    Args:
        places: [2, n] rows and columns of the values of a matrix [N, V].
        values: [n].
        targets: [N, D].
        columns: V.

    Returns:
        [V, D].
    """
    matrix = sparse(places, values, len(targets), columns)
    transposed = sparse(places.flip(0), values, columns, len(targets))
    # by the diagonal, because pieces are rare and frequent
    scale = 1 / (RIDGE + torch.bincount(places[1], values**2, minlength=columns).float())[:, None]
    found = torch.zeros(columns, targets.shape[1])
    rest = transposed @ targets
    step = scale * rest
    size = (rest * step).sum(0)
    for _ in range(STEPS):
        product = transposed @ (matrix @ step) + RIDGE * step
        rate = size / (step * product).sum(0).clamp_min(1e-30)
        found += rate * step
        rest -= rate * product
        before, size = size, (rest * scale * rest).sum(0)
        step = scale * rest + size / before.clamp_min(1e-30) * step
    return found


def sparse(places: Tensor, values: Tensor, rows: int, columns: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_coo_tensor(places, values, (rows, columns), check_invariants=False).to_sparse_csr()


def extended(state: dict[str, Any], exported: Tensor, old: int, symbols: Sequence[str], rows: Tensor) -> dict[str, Any]:
    """A checkpoint of the encoder alone whose table has new rows; that of <mask>, which comes last, moves to the end.

    Args:
        state: the old checkpoint.
        exported: [V, D] its table as users have it: after subword dropout the expected rows.
        old: number of the old symbols.
        symbols: old and new ones.
        rows: [new pieces, D].
    """
    weights = {name: value for name, value in state["model"].items() if name.startswith(ENCODER_PREFIX)}
    table = exported.to(weights[ENCODER_PREFIX + TOKEN_EMBEDDINGS].dtype)
    weights[ENCODER_PREFIX + TOKEN_EMBEDDINGS] = torch.cat((table[:old], rows.to(table.dtype), table[old:]))
    # without probabilities no piece is split for being rare in what follows: the old rows are as expected already
    kept = {name: value for name, value in state["task_state"].items() if name != SPLIT_PROBABILITY}
    more = {"task_state": kept | {DICTIONARY_HASH: hash_symbols(symbols)}}
    return {**state, "model": weights, "last_optimizer_state": None, "extra_state": {}} | more


def write(args: argparse.Namespace) -> Iterator[str]:
    """Write both parts of the output, and yield what was found."""
    state = read_checkpoint(args.checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        encoder = SentenceEncoder.from_pretrained(export_checkpoint(args.checkpoint, Path(temporary) / "m", args.data))
        old_dictionary = (Path(temporary) / "m" / DICTIONARY_FILE).read_text(encoding="utf-8")
    model, options = encoder.tokenizer.serialized_model(), encoder.tokenizer.options
    if not getattr(encoder.size, "is_bag", False):
        raise InputError(
            f"{args.checkpoint}: a model with layers; expected one without, whose rows add up to embeddings"
        )
    table = torch.from_numpy(np.array(encoder.table))
    pieces = learn_pieces(model, words_of(read_lines(args.new), options), args.pieces)
    longer = lengthened(model, pieces)
    subwords = args.output / SUBWORDS
    with atomic_folder(subwords, DICTIONARY_FILE) as work:
        (work / SENTENCEPIECE_FILE).write_bytes(longer)
        (work / DICTIONARY_FILE).write_text(
            old_dictionary + "".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8"
        )
        (work / TEXT_FILE).write_text(options.dumps(), encoding="utf-8")
    symbols, old = read_dictionary(subwords / DICTIONARY_FILE), len(encoder.tokenizer.symbols)
    yield f"{subwords}: {old:,} old entries of the dictionary and {len(pieces):,} new"
    for path in args.old_text:
        share = split_otherwise(model, longer, words_of(read_lines(path), options))
        yield f"{path}: {share:.2f} % of the words are split otherwise than before"
    every = -(-sum(1 for _ in read_lines(args.new)) // PAIRS)  # kinds of text follow each other
    pairs = islice(read_parallel(args.known, args.new), None, None, max(1, every))
    rows = first_vectors(encoder, Tokenizer(subwords / SENTENCEPIECE_FILE, options, symbols), pairs)
    with atomic_write(args.output / START, "wb") as stream:
        torch.save(extended(state, table, old, symbols, rows), stream)
    yield f"{args.output / START}: for --finetune-from-model; with --frozen-pieces {old} the old vectors stay"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE.pt", help="of a model without layers")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="its data folder, where it cannot be found")
    parser.add_argument("--known", type=Path, required=True, metavar="FILE", help="text of a language of the model")
    parser.add_argument("--new", type=Path, required=True, metavar="FILE", help="its translation, the new language")
    parser.add_argument("--pieces", type=int, default=8_000, metavar="N", help="most new pieces (default: 8000)")
    parser.add_argument("--old-text", type=Path, nargs="+", default=[], metavar="FILE", help="how much changes there")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for subwords/ and start.pt")
    with exit_on_input_error("extend.py"):
        for line in write(parser.parse_args()):
            print(line, flush=True)


if __name__ == "__main__":
    main()
