"""A model with random weights, as a folder and as a checkpoint of fairseq-train, in a tenth of a
second.
"""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import toy

from fairseq_lxsr.encoder.checkpoint import ARCHITECTURE
from fairseq_lxsr.encoder.model_folder import read_config
from fairseq_lxsr.encoder.torch_network import read_model, save_folder
from fairseq_lxsr.modules import all_networks
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TEXT_FILE,
    TextOptions,
    read_dictionary,
)

TEXT = TextOptions(lowercase=True)
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {
        "embed_dim": 16,
        "ffn_embed_dim": 32,
        "num_heads": 2,
        "num_layers": 1,
        "max_positions": 40,
    },
    "laser": {"embed_dim": 8, "hidden_size": 8, "num_layers": 2},
    "tlaser": {
        "embed_dim": 16,
        "ffn_embed_dim": 32,
        "num_heads": 2,
        "num_layers": 1,
        "max_positions": 40,
    },
}


def write_pieces(folder: Path, vocab_size: int = 100) -> Path:
    """A data folder without text: dict.txt, sentencepiece.model and text.json."""
    folder.mkdir(parents=True, exist_ok=True)
    model = io.BytesIO()
    lines = [line.lower() for line in toy.lines(300)]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        minloglevel=2,
    )
    (folder / SENTENCEPIECE_FILE).write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    dictionary = ""
    for piece in map(processor.IdToPiece, range(vocab_size)):
        if piece not in SPECIAL:
            dictionary += f"{piece} 1\n"
    (folder / DICTIONARY_FILE).write_text(dictionary, encoding="utf-8")
    (folder / TEXT_FILE).write_text(TEXT.dumps(), encoding="utf-8")
    return folder


def network(
    data: Path, architecture: str = "transformer", mask: bool = True, **sizes
) -> torch.nn.Module:
    """Return a network with random weights for a data folder; `mask`: with the <mask> of xling_sent."""
    kind = all_networks()[architecture]
    vocab_size = len(read_dictionary(data / DICTIONARY_FILE)) + mask
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return kind(kind.Config(vocab_size, 1, **SIZES[architecture] | sizes)).eval()


def write_folder(folder: Path, architecture: str = "transformer", **sizes) -> Path:
    """A model folder of random weights."""
    data = write_pieces(folder.parent / f"{folder.name}.data")
    files = data / DICTIONARY_FILE, data / SENTENCEPIECE_FILE
    save_folder(folder, network(data, architecture, **sizes), *files, TEXT, {})
    return folder


def save_as(folder: Path, output: Path, dtype: str) -> Path:
    """Write the model of a folder in another precision."""
    config = read_config(folder)
    texts = folder / DICTIONARY_FILE, folder / SENTENCEPIECE_FILE
    save_folder(
        output, read_model(folder, config)[0], *texts, TextOptions(**config["text"]), {}, dtype
    )
    return output


def checkpoint_state(data: Path, named: str | Path | None = None, **sizes) -> dict[str, Any]:
    """Return a checkpoint of a transformer of the task xling_sent.

    `named` is the data folder as the options of the training name it.
    """
    model = network(data, **sizes)
    options = {
        "_name": "lxsr_tiny",
        "max_positions": model.config.max_positions,
        "pooling": model.config.pooling,
        "gated": model.config.gated,
        "order_coefficients": model.config.order_coefficients,
        "encoder_ffn_embed_dim": model.config.ffn_embed_dim,
        "encoder_attention_heads": model.config.num_heads,
        "encoder_layers": model.config.num_layers,
    }
    return {
        "model": {f"encoder.{name}": value for name, value in model.state_dict().items()},
        "cfg": {
            "model": options,
            "task": {
                "_name": "xling_sent",
                "data": str(named or data),
                "lang_pairs": "en-fr",
                "objective": "ugt",
                "align_weight": 2.0,
            },
            "criterion": {"_name": "xling_sent_loss"},
            "common": {"seed": 1},
        },
        "task_state": {ARCHITECTURE: "transformer"},
        "optimizer_history": [{"num_updates": 7}],
    }


def drop_checksums(folder: Path) -> None:
    """Reduce the modules.json of an export to the fields that sentence-transformers saves."""
    path = folder / "modules.json"
    names = ("idx", "name", "path", "type")
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([{name: module[name] for name in names} for module in modules]))
