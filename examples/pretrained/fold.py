"""Give a trained model without layers the folding of letters that it was trained without.

python examples/pretrained/fold.py MODEL --output MODEL

The word pieces are folded as the text will be. Pieces that become equal are merged: the vector of
the new piece is the mean of theirs, weighted by their probabilities. `lxsr prepare --from-model`
and `lxsr train --from ... --no-frozen-pieces` can then train the model on the folded text.
"""

import argparse
from collections import defaultdict
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
from fairseq_lxsr.text.tokenizer import MASK, SPECIAL
from fairseq_lxsr.text.words import WORD_START


def folded_pieces(pieces: list[Piece]) -> dict[str, list[int]]:
    """Return the places of the pieces that become one, by the text of the new piece."""
    groups = defaultdict(list)
    for place, piece in enumerate(pieces):
        text = piece.text
        if piece.type == NORMAL:
            text = fold(text)
        # A mark that folding removes leaves nothing, or the start of a word.
        if text and (text != WORD_START or piece.text == WORD_START):
            groups[text].append(place)
    return groups


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
    """Fold a model, and return the number of pieces that were merged or removed.

    Raises:
        InputError: if the model has layers, or its pieces are not those of a unigram model.
    """
    encoder = SentenceEncoder.from_pretrained(model)
    file = unigram_file(encoder)
    ids = encoder.tokenizer.piece_ids
    probabilities = np.exp([piece.score for piece in file.pieces])
    vectors = []
    pieces = []
    for text, places in folded_pieces(file.pieces).items():
        if file.pieces[places[0]].type != NORMAL:
            continue
        weights = probabilities[places]
        vectors.append(weights @ encoder.table[ids[places]] / weights.sum())
        pieces.append(Piece(text, float(np.log(weights.sum())), NORMAL))
    model_file = with_rule_name(
        model_of_pieces(pieces, UNIGRAM, folded_charsmap(file.charsmap), False), FOLDED.encode()
    )
    table = table_of_pieces(encoder, encoder.table, np.stack(vectors))
    write_table(encoder, table, [dictionary_of(pieces), model_file], output, dtype)
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


def write_table(
    base: SentenceEncoder, table: np.ndarray, texts: list[bytes], output: Path, dtype: str
) -> None:
    """Write a model folder without layers, with the options of another one.

    Args:
        base: the model with the options.
        table: a row for each word piece [V, D].
        texts: bytes of dict.txt and sentencepiece.model.
        output: model folder to write.
        dtype: type of the weights that are written, "float32" or "int4".
    """
    weights = {TABLE: np.ascontiguousarray(table, dtype=np.float32)}
    if dtype == "int4":
        codes, scales = to_int4(weights[TABLE])
        weights = {TABLE: codes, TABLE + SCALE: scales}
    description = {name: base.config[name] for name in ("architecture", "text", "training")}
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
