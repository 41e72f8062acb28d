"""Model folders with random weights and a new SentencePiece model; the dictionary lacks some pieces."""

from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import torch
import toy

from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.text.tokenizer import TextOptions


def write_model(
    folder: Path,
    pieces: str = "bpe",
    byte_fallback: bool = False,
    version: int = 1,
    rule: Path | None = None,
    read_as: str = "",
    lines: Sequence[str] = (),
    **sizes,
) -> Path:
    """Write a model folder.

    Args:
        folder: a new folder, whose subfolder `model` is the model folder.
        pieces: `bpe` or `unigram`.
        byte_fallback: an option of SentencePiece.
        version: the version of the normalization of text.
        rule: a normalization rule of SentencePiece.
        read_as: letters, and what the model reads in their place.
        lines: text in addition to that of the toy corpus.
        sizes: fields of the config.
    """
    folder.mkdir(parents=True)
    text = folder / "text"
    text.write_text("\n".join([*toy.lines(800, seed=2), *lines]), encoding="utf-8")
    trainer_options = {
        "input": str(text),
        "model_prefix": str(folder / "sp"),
        "model_type": pieces,
        "minloglevel": 2,
        "vocab_size": 80 + len(set("".join(lines))),
    }
    if byte_fallback:
        trainer_options["byte_fallback"] = True
        trainer_options["vocab_size"] += 260
    if rule:
        trainer_options["normalization_rule_tsv"] = str(rule)
    sentencepiece.SentencePieceTrainer.Train(**trainer_options)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sp.model"))
    # Without the special symbols and the last 20 pieces, in reverse order.
    symbols = [processor.IdToPiece(index) for index in range(3, len(processor) - 20)][::-1]
    dictionary = "".join(f"{symbol} 1\n" for symbol in symbols)
    (folder / "dict.txt").write_text(dictionary, encoding="utf-8")
    sizes = {
        "num_layers": 1,
        "embed_dim": 32,
        "ffn_embed_dim": 48,
        "num_heads": 4,
        "max_positions": 64,
    } | sizes
    torch.manual_seed(0)
    network = TransformerSentenceEncoder(TransformerConfig(4 + len(symbols) + 1, 1, **sizes))
    for name, weights in network.named_parameters():
        # These are zero before training, and then have no effect.
        if name.endswith(("gates", "order")):
            torch.nn.init.normal_(weights)
    options = TextOptions(lowercase=True, version=version, read_as=read_as)
    save_folder(folder / "model", network, folder / "dict.txt", folder / "sp.model", options, {})
    return folder / "model"
