"""Model folders with random weights over a fresh SentencePiece model, whose dictionary lacks some
of its pieces.
"""

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
    """Args: pieces: `bpe` or `unigram`; version: of the reading of text; rule: of letters; read_as:
    letters and what the model reads in their place; lines: of text, in addition; sizes: of the
    config.
    """
    folder.mkdir(parents=True)
    text = folder / "text"
    toy_lines = [side for pair in toy.sentences(800, seed=2) for side in pair]
    text.write_text("\n".join([*toy_lines, *lines]), encoding="utf-8")
    how = {"byte_fallback": True, "vocab_size": 340} if byte_fallback else {"vocab_size": 80}
    how["vocab_size"] += len(set("".join(lines)))
    how |= {
        "input": str(text),
        "model_prefix": str(folder / "sp"),
        "model_type": pieces,
        "minloglevel": 2,
    }
    how |= {"normalization_rule_tsv": str(rule)} if rule else {}
    sentencepiece.SentencePieceTrainer.Train(**how)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sp.model"))
    kept = [processor.IdToPiece(index) for index in range(3, len(processor))][:-20]
    (folder / "dict.txt").write_text(
        "".join(f"{piece} 1\n" for piece in kept[::-1]), encoding="utf-8"
    )
    sizes = {
        "num_layers": 1,
        "embed_dim": 32,
        "ffn_embed_dim": 48,
        "num_heads": 4,
        "max_positions": 64,
    } | sizes
    torch.manual_seed(0)
    network = TransformerSentenceEncoder(TransformerConfig(4 + len(kept) + 1, 1, **sizes))
    for name, weights in network.named_parameters():
        if name.endswith(("gates", "order")):  # zero before training, when they change nothing
            torch.nn.init.normal_(weights)
    options = TextOptions(lowercase=True, version=version, read_as=read_as)
    save_folder(folder / "model", network, folder / "dict.txt", folder / "sp.model", options, {})
    return folder / "model"
