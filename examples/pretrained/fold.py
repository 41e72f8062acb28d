"""Give a trained model without layers the rules by which this package reads text.

python examples/pretrained/fold.py MODEL --output MODEL

These are the rules of `lxsr prepare` with the option `normalisation: folded`. Any other rules that
the model has are replaced. Its word pieces are folded as the text will be. Pieces that become equal
are merged: the vector of the new piece is the mean of theirs, weighted by their probabilities.
Pieces that no text has after reading are left out. `lxsr prepare --from-model` and
`lxsr train --from ... --no-frozen-pieces` can then train the model on the folded text.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import SCALE, to_int4, write_folder
from fairseq_lxsr.encoder.numpy_network import TABLE
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.text.folding import FOLDED, fold, folded_charsmap
from fairseq_lxsr.text.sentencepiece_model import (
    NORMAL,
    UNIGRAM,
    Piece,
    SentencePieceFile,
    model_of_pieces,
    read_sentencepiece,
    with_rule_name,
)
from fairseq_lxsr.text.tokenizer import MASK, SPECIAL, TEXT_VERSION, TextOptions, normalise_all
from fairseq_lxsr.text.words import WORD_START

# Words in which pieces may occur, in the middle or at the end of a word and at its start. Joiners
# only stay between letters that join.
INSIDE = ("1{}", "1{}1", "({}", "\u0915{}\u0915")
AT_START = ("{}", "{}1")


def folded_pieces(pieces: list[Piece], options: TextOptions) -> dict[str, list[int]]:
    """Return the places of the pieces that become one, by the text of the new piece.

    Args:
        pieces: all pieces of the model.
        options: how the model will read text.
    """
    folded = [fold(piece.text) if piece.type == NORMAL else piece.text for piece in pieces]
    is_read = are_read(folded, options)
    groups = defaultdict(list)
    for place, (piece, text) in enumerate(zip(pieces, folded, strict=True)):
        is_needed = piece.type != NORMAL or piece.text == WORD_START or text in is_read
        if is_needed:
            groups[text].append(place)
    return groups


def are_read(texts: Iterable[str], options: TextOptions) -> set[str]:
    """Return the pieces that stay as they are in some word."""
    distinct = sorted(set(texts))
    remaining = set()
    for is_start, frames in ((True, AT_START), (False, INSIDE)):
        chosen = [text for text in distinct if text.startswith(WORD_START) == is_start]
        letters = [text.removeprefix(WORD_START) for text in chosen]
        for frame in frames:
            words = normalise_all([frame.format(text) for text in letters], options)
            for text, part, word in zip(chosen, letters, words, strict=True):
                if part and (word.startswith(part) if is_start else part in word):
                    remaining.add(text)
    return remaining


def unigram_file(encoder: SentenceEncoder) -> SentencePieceFile:
    """Return the SentencePiece model of an encoder.

    Raises:
        InputError: if its pieces are not those of a unigram model.
    """
    file = read_sentencepiece(encoder.tokenizer.serialized_model())
    if file.kind != UNIGRAM or file.byte_fallback:
        raise InputError(
            f"{encoder.folder}: pieces of another kind; expected those of a unigram model"
        )
    return file


def fold_model(model: Path, output: Path, dtype: str = "float32") -> int:
    """Write a model with the rules, and return the number of pieces that were merged or removed.

    Raises:
        InputError: if the model has layers, or its pieces are not those of a unigram model.
    """
    encoder = SentenceEncoder.from_pretrained(model)
    file = unigram_file(encoder)
    ids = encoder.tokenizer.piece_ids
    options = replace(encoder.tokenizer.options, version=TEXT_VERSION)
    probabilities = np.exp([piece.score for piece in file.pieces])
    vectors = []
    pieces = []
    for text, places in folded_pieces(file.pieces, options).items():
        if file.pieces[places[0]].type != NORMAL:
            continue
        weights = probabilities[places]
        vectors.append(weights @ encoder.table[ids[places]] / weights.sum())
        pieces.append(Piece(text, float(np.log(weights.sum())), NORMAL))
    model_file = with_rule_name(
        model_of_pieces(pieces, UNIGRAM, folded_charsmap()), FOLDED.encode()
    )
    table = table_of_pieces(encoder, encoder.table, np.stack(vectors))
    write_table(encoder, table, [dictionary_of(pieces), model_file], output, dtype, options)
    return len(encoder.table) - len(table)


def table_of_pieces(base: SentenceEncoder, table: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the table of a model with other pieces.

    Args:
        base: the model before.
        table: its vectors, of which those of the special symbols are taken [U, D].
        vectors: the vectors of the new pieces [V, D].
    """
    symbols = base.tokenizer.symbols
    special = [symbols.index(symbol) for symbol in SPECIAL]
    # Training may have added the symbol <mask>, the last row.
    mask = table[len(symbols) :]
    return np.concatenate([table[special], vectors, mask]).astype(np.float32)


def dictionary_of(pieces: list[Piece]) -> bytes:
    """Return the content of dict.txt."""
    return "".join(f"{piece.text} 1\n" for piece in pieces if piece.text != MASK).encode()


def parser_of_step(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of a script that changes a model, with MODEL and `--output`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="model folder or name")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="model folder to write"
    )
    return parser


def write_with_pieces(
    base: SentenceEncoder, texts: list[bytes], new: Iterable[str], rows: np.ndarray, output: Path
) -> None:
    """Write a model in float32 that has more pieces than another one.

    Args:
        base: the other model.
        texts: its dict.txt, and a SentencePiece model that has the new pieces, too.
        new: the new pieces.
        rows: their vectors [N, D].
        output: model folder to write.
    """
    dictionary, sentencepiece = texts
    entries = "".join(f"{text} 1\n" for text in new)
    # Training may have added the symbol <mask>, the last row.
    count = len(base.tokenizer.symbols)
    table = np.concatenate([base.table[:count], rows, base.table[count:]])
    write_table(base, table, [dictionary + entries.encode(), sentencepiece], output, "float32")


def write_table(
    base: SentenceEncoder,
    table: np.ndarray,
    texts: list[bytes],
    output: Path,
    dtype: str,
    options: TextOptions | None = None,
) -> None:
    """Write a model folder without layers, with the options of another one.

    Args:
        base: the model with the options.
        table: a row for each word piece [V, D].
        texts: bytes of dict.txt and sentencepiece.model.
        output: model folder to write.
        dtype: type of the weights that are written, "float32" or "int4".
        options: how the model reads text; None for the options of `base`.
    """
    weights = {TABLE: np.ascontiguousarray(table, dtype=np.float32)}
    if dtype == "int4":
        codes, scales = to_int4(weights[TABLE])
        weights = {TABLE: codes, TABLE + SCALE: scales}
    description = {name: base.config[name] for name in ("architecture", "text", "training")}
    if options is not None:
        description["text"] = options.record()
    description["encoder"] = base.config["encoder"] | {"vocab_size": len(table)}

    def save_weights(metadata: dict[str, str]) -> bytes:
        return save(weights, metadata)

    write_folder(output, texts, description, save_weights)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="model folder or name")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="model folder to write"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "int4"),
        default="float32",
        help="type of the weights that are written (default: float32)",
    )
    args = parser.parse_args()
    with exit_on_input_error("fold.py"):
        merged = fold_model(find_model(args.model), args.output, args.dtype)
        print(f"{args.output}: {merged:,} of the pieces were merged or removed")


if __name__ == "__main__":
    main()
