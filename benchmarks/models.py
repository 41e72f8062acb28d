"""Untrained models over the word pieces of a data folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import extended_symbols
from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.export.fast_tokenizer import fast_tokenizer
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.text.tokenizer import (
    SENTENCEPIECE_FILE,
    TEXT_FILE,
    TextOptions,
    Tokenizer,
    read_dictionary,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer


def read_fast_tokenizer(data_bin: Path) -> "FastTokenizer":
    """Return the tokenizer of a data folder for sentence-transformers and model2vec."""
    symbols = read_dictionary(_dictionary(data_bin))
    text_options = TextOptions.load(data_bin / TEXT_FILE)
    tokenizer = Tokenizer(data_bin / SENTENCEPIECE_FILE, text_options, symbols)
    return fast_tokenizer(tokenizer, extended_symbols(tokenizer, len(tokenizer.symbols)))


def random_encoder(
    folder: Path, data_bin: Path, device: str | None = None, **sizes: Any
) -> SentenceEncoder:
    """Write a model folder with random weights, and load it.

    Args:
        folder: the output folder.
        data_bin: data folder of `lxsr prepare`.
        device: see `SentenceEncoder.from_pretrained`.
        sizes: fields of `TransformerConfig`.
    """
    dictionary = _dictionary(data_bin)
    config = TransformerConfig(len(read_dictionary(dictionary)), 1, **sizes)
    network = TransformerSentenceEncoder(config)
    text_options = TextOptions.load(data_bin / TEXT_FILE)
    save_folder(folder, network, dictionary, data_bin / SENTENCEPIECE_FILE, text_options, {})
    return SentenceEncoder.from_pretrained(folder, device)


def _dictionary(data_bin: Path) -> Path:
    # The dictionaries of all languages are the same.
    return min(data_bin.glob("dict.*.txt"))
