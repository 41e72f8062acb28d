"""A model folder on disk becomes sentence embeddings; no fairseq needed."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_folder, sha256
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.text import SENTENCEPIECE_FILE, TextOptions, Tokenizer, read_dictionary

CONFIG_FILE, WEIGHTS_FILE, DICTIONARY_FILE = "config.json", "model.safetensors", "dict.txt"
FORMAT_VERSION = 1


class SentenceEncoder:
    """Encodes sentences of any language it was trained on into one space.

        encoder = SentenceEncoder.from_pretrained("model")
        embeddings = encoder.encode(["A dog.", "Un chien."])  # float32 [2, D]

    Args:
        model: the encoder network.
        tokenizer: text to dictionary ids.
        config: the content of config.json.
        device: where to compute, `cuda` or `cpu`; None takes CUDA where there is one.
    """

    def __init__(
        self, model: TransformerSentenceEncoder, tokenizer: Tokenizer, config: dict[str, Any], device: str | None = None
    ):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device).eval()
        self.tokenizer = tokenizer
        self.config = config

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | None = None, untrained: bool = False):
        """Load a model folder as `lxsr export-model` writes it; nothing in it can run code.

        Args:
            untrained: take fresh random weights (seed 1) of the same shape: what training is measured against.
        Raises: InputError naming the file that is missing, changed or of another kind.
        """
        folder = Path(folder)
        config = read_config(folder)
        symbols = read_dictionary(folder / DICTIONARY_FILE)
        tokenizer = Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(**config["text"]), symbols)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = TransformerSentenceEncoder(TransformerConfig(**config["encoder"]))
        if not untrained:
            load_weights(model, folder / WEIGHTS_FILE)
        return cls(model, tokenizer, config, device)

    @property
    def embed_dim(self) -> int:
        """D, the width of an embedding."""
        return self.model.config.embed_dim

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that two encoders share only when they give the same embeddings."""
        essence = {name: self.config[name] for name in ("encoder", "text", "files")}
        return hashlib.sha256(json.dumps(essence, sort_keys=True).encode()).hexdigest()[:12]

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch_size: int = 64, show_progress_bar: bool = False) -> np.ndarray:
        """Embed sentences.

        Sentences are encoded in order of length and returned in the order given; longer ones are cut at the model's
        `max_positions`; an empty one gives a zero vector. Embeddings are not normalised.

        Args:
            texts: N sentences.
            batch_size: sentences encoded together.
        Returns: float32 [N, D].
        """
        if isinstance(texts, str):
            raise TypeError("texts is a str; expected a list of sentences")
        longest = self.model.config.max_positions
        ids = [torch.from_numpy(sentence[:longest]) for sentence in self.tokenizer.encode(texts)]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        embeddings = np.zeros((len(ids), self.embed_dim), dtype=np.float32)
        with tqdm(total=len(ids), desc="encode", unit=" sentences", disable=None if show_progress_bar else True) as bar:
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                if not len(ids[batch[0]]):
                    break  # only empty sentences are left
                padding = self.model.config.padding_idx
                tokens = pad_sequence([ids[index] for index in batch], batch_first=True, padding_value=padding)
                embeddings[batch] = self.model(tokens.to(self.device))[0][0].float().cpu().numpy()
                bar.update(len(batch))
            bar.update(len(ids) - bar.n)
        return embeddings


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, after checking that every file is there and the one it names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder; make one with `lxsr export-model`")
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        version, files = config["format_version"], config["files"]
        TransformerConfig(**config["encoder"])
        TextOptions(**config["text"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / CONFIG_FILE}: not the description of a model folder ({error!r})") from None
    if version != FORMAT_VERSION:
        raise InputError(f"{folder / CONFIG_FILE}: format {version}; this version reads format {FORMAT_VERSION}")
    for name in (WEIGHTS_FILE, DICTIONARY_FILE, SENTENCEPIECE_FILE):
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: no such file, the model folder is not whole; export or copy it again")
        if sha256(path) != files.get(name):
            raise InputError(f"{path}: differs from the file that was exported; export or copy the folder again")
    return config


def load_weights(model: TransformerSentenceEncoder, path: Path) -> None:
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not the weights of this encoder ({reason}); export the model again") from None


def save_folder(
    folder: str | Path,
    model: TransformerSentenceEncoder,
    dictionary: Path,
    sentencepiece_model: Path,
    text: TextOptions,
    training: dict[str, Any],
) -> None:
    """Write a model folder; it appears under its name only when it is complete."""
    with atomic_folder(folder, CONFIG_FILE) as work:
        weights = {name: value.detach().float().contiguous() for name, value in model.state_dict().items()}
        (work / WEIGHTS_FILE).write_bytes(save(weights, metadata={"format": "pt"}))
        (work / DICTIONARY_FILE).write_bytes(dictionary.read_bytes())
        (work / SENTENCEPIECE_FILE).write_bytes(sentencepiece_model.read_bytes())
        config = {
            "format_version": FORMAT_VERSION,
            "encoder": asdict(model.config),
            "text": asdict(text),
            "training": training,
            "files": {name: sha256(work / name) for name in (WEIGHTS_FILE, DICTIONARY_FILE, SENTENCEPIECE_FILE)},
        }
        # written last: a folder without it does not load
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
