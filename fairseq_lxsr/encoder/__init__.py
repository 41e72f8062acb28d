"""Embeds sentences with a model folder; fairseq is not needed."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import TEACHER, read_config, size_of
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag, read_bag
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    is_sentence_transformers_folder,
    module_folder,
    read_sentence_transformers_folder,
)
from fairseq_lxsr.encoder.st_names import (
    SentenceTransformersMethods,
    accept_sentence_transformers_options,
    as_list,
)
from fairseq_lxsr.errors import InputError, SentenceError
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.machine import check_device, require
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.options import COMPUTE_DTYPES, ON_LONG
from fairseq_lxsr.text.tokenizer import Tokenizer
from fairseq_lxsr.vectors.rows import unit_rows

if TYPE_CHECKING:
    from fairseq_lxsr.encoder.torch_network import NetworkCopies
    from fairseq_lxsr.modules import SentenceNetwork

NO_LIMIT = np.iinfo(np.int64).max


class SentenceEncoder(SentenceTransformersMethods):
    """Encodes sentences of all its training languages into one embedding space.

        encoder = SentenceEncoder.from_pretrained("model")
        embeddings = encoder.encode(["A dog.", "Un chien."])  # float32 [2, D]

    An encoder without layers computes with numpy where it can (float32 on the CPU), and torch need
    not be installed.

    Args:
        model: the encoder network, or the `Bag` that computes the same.
        tokenizer: maps text to dictionary ids.
        config: the content of config.json.
        device: device of the computation, `cuda` or `cpu`; None selects CUDA for layers where it is
            available.
        untrained: whether the weights are random and not those of the folder.
        folder: the model folder.
    """

    def __init__(
        self,
        model: "SentenceNetwork | Bag",
        tokenizer: Tokenizer,
        config: dict[str, Any],
        device: str | None = None,
        untrained: bool = False,
        folder: Path | None = None,
    ):
        self.untrained, self.folder = untrained, folder
        self.tokenizer = tokenizer
        self.config = config
        self._bag = model if isinstance(model, Bag) else None
        self._networks = None if isinstance(model, Bag) else _copies_of(model, device)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, device: str | None = None, untrained: bool = False
    ) -> Self:
        """Load a model folder that `lxsr export folder` wrote; nothing in it can run code.

        Args:
            folder: the model folder, the name of a model in this package, the address of an archive
                with its checksum, see `encoder.locate.find_model`, or what `lxsr export
                sentence-transformers` wrote of a model without layers, also after
                sentence-transformers has trained and saved it.
            device: as in `SentenceEncoder`.
            untrained: use random weights (seed 1) of the same shape, as a baseline for the trained
                ones.

        Raises:
            InputError: naming the file that is missing, changed or of another kind, for layers
                without torch, for a device that is not there, and as `encoder.locate.find_model`.
        """
        check_device(device)
        folder = module_folder(find_model(folder))
        if is_sentence_transformers_folder(folder):
            bag, tokenizer, config = read_sentence_transformers_folder(folder)
            return cls(bag, tokenizer, config, device, untrained, folder)
        config = read_config(folder)
        if device in (None, "cpu") and not untrained and getattr(size_of(config), "is_bag", False):
            bag, tokenizer = read_bag(folder, config)
            return cls(bag, tokenizer, config, device, untrained, folder)
        require("torch", "torch", f"{folder}: this model")
        from fairseq_lxsr.encoder.torch_network import read_model

        network, tokenizer = read_model(folder, config, untrained)
        return cls(network, tokenizer, config, device, untrained, folder)

    @property
    def model(self) -> Any:
        """The network; torch is imported. Exports use attributes that only one kind of network
        has.
        """
        return self._copies().network

    @property
    def device(self) -> str:
        """Device of the computation: `cpu`, `cuda` or `cuda:0`."""
        return str(self._networks.device) if self._networks else "cpu"

    @property
    def size(self) -> Any:
        """Sizes of the encoder: `embed_dim`, `output_dim`, `max_positions` and others."""
        return self._bag.config if self._bag else self.model.config

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Weights by name, float32 arrays; those of an encoder without layers need no torch."""
        if self._bag:
            return self._bag.weights
        return {
            name: value.detach().float().cpu().numpy()
            for name, value in self.model.state_dict().items()
        }

    @property
    def output_dim(self) -> int:
        """Width D of an embedding, in units; `size.embed_dim` is that of the token embeddings."""
        return self.size.output_dim

    @property
    def table(self) -> np.ndarray:
        """Vectors of the pieces, float32 [V, D], of which an embedding is the weighted mean, before
        gated layers.

        Raises:
            InputError: for other layers, whose vectors of pieces depend on the sentence.
        """
        if not getattr(self.size, "sums_rows", False):
            raise InputError(
                f"{self.folder or 'model'}: an encoder with layers has no vector for a piece; "
                "take one without layers, or with gated ones"
            )
        return self.weights[TABLE]

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        if self._bag:
            return sum(value.size for value in self._bag.weights.values())
        return sum(value.numel() for value in self.model.state_dict().values())

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that are equal only for encoders that give the same embeddings.

        The version of the reading of text does not count: embeddings of both can be compared.
        """
        # the hash of the weights stands for the architecture as well
        essence = {name: self.config[name] for name in ("encoder", "text", "files")}
        essence["text"] = {
            name: value for name, value in essence["text"].items() if name != "version"
        }
        digest = hashlib.sha256(json.dumps(essence, sort_keys=True).encode()).hexdigest()[:12]
        limit = f"-max{self._max_seq_length}" if self._max_seq_length else ""
        return f"{digest}{limit}-untrained" if self.untrained else digest + limit

    @property
    def space(self) -> str:
        """Fingerprint of the model with whose embeddings these can be compared: that of the
        teacher, or the own one.
        """
        teacher = self.config.get("training", {}).get(TEACHER)
        return teacher if teacher and not self.untrained else self.fingerprint

    @accept_sentence_transformers_options
    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        device: str | None = None,
        dtype: str = "float32",
        normalize: bool = False,
        truncate_dim: int | None = None,
        show_progress: bool = False,
        on_long: str = "cut",
        counts: Counter[str] | None = None,
    ) -> np.ndarray:
        """Embed sentences; several threads, and processes that received a copy, may call it at
        once.

        Sentences are sorted by length for encoding and returned in the given order; an empty one
        gives zeros, and so does one without a known word.

        Args:
            texts: N sentences: a list, a generator, or an array of strings; or one sentence.
            batch_size: sentences encoded together; short ones that share a row of 64 pieces may be
                more.
            device: `cpu` or `cuda`; None takes the encoder's own.
            dtype: precision of the computation: `float32`, `bfloat16`, `float16`, or on CPUs `int8`
                (matrix products only; scales are computed per batch, so an embedding depends
                slightly on its batch).
            normalize: scale embeddings to length one (zero vectors stay zero).
            truncate_dim: number of leading dimensions to keep; truncation precedes normalization.
            show_progress: show a progress bar.
            on_long: how to treat a sentence of more than `max_positions` pieces: `cut` encodes its
                beginning; `split-mean` encodes it in parts and takes their mean, weighted by
                length; `error` refuses it. LASER has no such limit.
            counts: counter to which the numbers of `empty` (without a known word) and `long`
                sentences are added.

        The names that sentence-transformers has are accepted too: `sentences`,
        `normalize_embeddings`, `show_progress_bar`, `convert_to_numpy`, `convert_to_tensor`,
        `precision` (and `output_dtype`, the same).

        Returns:
            float32 [N, D], or [N, truncate_dim]; of one sentence [D].

        Raises:
            InputError: for an unknown option, what is no text, and a device that is not there; a
                `SentenceError` for a long sentence with `error`, and for an embedding that is not
                finite.
        """
        sentences = as_list(texts)
        check_device(device)
        self._check_options(batch_size, dtype, truncate_dim, on_long)
        ids, lengths = self.tokenizer.encode_known(sentences)
        longest = self.max_seq_length or NO_LIMIT
        if counts is not None:
            counts.update(empty=int((lengths == 0).sum()), long=int((lengths > longest).sum()))
        if on_long == "error" and (lengths > longest).any():
            row = int((lengths > longest).argmax())
            why = f"{lengths[row]} pieces; expected at most {longest}: split it, or set on_long to cut or split-mean"
            raise SentenceError(row, sentences[row], why)
        starts, options = lengths.cumsum() - lengths, (batch_size, device, dtype, show_progress)
        if on_long == "split-mean":
            embeddings = self._encode_in_parts(FlatPieces(ids, starts, lengths), longest, *options)
        else:
            embeddings = self._encode_pieces(
                FlatPieces(ids, starts, np.minimum(lengths, longest)), *options
            )
        unusable = ~np.isfinite(embeddings).all(axis=1)
        if unusable.any():
            row = int(unusable.argmax())
            why = f"its embedding in {dtype} has NaN or infinity in it; take float32, or another model"
            raise SentenceError(row, sentences[row], why)
        embeddings = embeddings[:, :truncate_dim]
        return unit_rows(embeddings) if normalize else embeddings

    def split(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Split sentences into the pieces that `encode` reads of them; the end of a long one is
        cut.

        Returns:
            Rows of the `table`, of one sentence after the other [P], and the number of pieces of
            each [N].
        """
        ids, lengths = self.tokenizer.encode_known(texts)
        places = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
        longest = self.max_seq_length or NO_LIMIT
        return ids[places < longest], lengths.clip(max=longest)

    def _check_options(
        self, batch_size: int, dtype: str, truncate_dim: int | None, on_long: str
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size {batch_size}; expected 1 or more")
        if dtype not in COMPUTE_DTYPES:
            raise InputError(f"dtype {dtype!r}; expected one of {', '.join(COMPUTE_DTYPES)}")
        if truncate_dim is not None and not 1 <= truncate_dim <= self.output_dim:
            raise InputError(f"truncate_dim {truncate_dim}; expected 1 to {self.output_dim}")
        if on_long not in ON_LONG:
            raise InputError(f"on_long {on_long!r}; expected one of {', '.join(ON_LONG)}")

    def _encode_in_parts(self, pieces: FlatPieces, longest: int, *options) -> np.ndarray:
        """Encode long sentences in parts of `longest` pieces; return the means of the parts,
        weighted by length.
        """
        lengths = pieces.lengths
        parts = np.maximum(1, -(-lengths // longest))
        owner = np.repeat(np.arange(len(lengths)), parts)
        offset = (np.arange(len(owner)) - (parts.cumsum() - parts)[owner]) * longest
        part_lengths = np.minimum(longest, lengths[owner] - offset)
        vectors = self._encode_pieces(
            FlatPieces(pieces.ids, pieces.starts[owner] + offset, part_lengths), *options
        )
        embeddings = np.zeros((len(lengths), self.output_dim), dtype=np.float32)
        share = part_lengths / np.maximum(1, lengths)[owner]
        np.add.at(embeddings, owner, vectors * share[:, None].astype(np.float32))
        return embeddings

    def _encode_pieces(
        self, pieces: FlatPieces, batch_size: int, device: str | None, dtype: str, progress: bool
    ) -> np.ndarray:
        """Return the embeddings [N, D]."""
        if self._bag and dtype == "float32" and device in (None, "cpu"):
            batches = self._bag.embed(pieces)
        else:
            batches = self._copies().embed(pieces, batch_size, device, dtype)
        count = len(pieces.lengths)
        embeddings = np.zeros((count, self.output_dim), dtype=np.float32)
        # a bar that is not shown would still take tqdm's lock, which a fork may find taken for ever
        bars = (
            Progress(total=count, desc="encode", unit=" sentences") if progress else nullcontext()
        )
        with bars as bar:
            for sentences, vectors in batches:
                embeddings[sentences] = vectors
                if bar is not None:
                    bar.update(len(sentences))
            if bar is not None:
                bar.update(count - bar.n)  # empty sentences stay zero
        return embeddings

    def _copies(self) -> "NetworkCopies":
        """Return the network, which is made when first asked for where numpy computes the
        embeddings.
        """
        if self._networks is None:
            require("torch", "torch", "this precision, device or export")
            self._networks = _copies_of(self._bag, "cpu")
        return self._networks


def _copies_of(model: Any, device: str | None) -> "NetworkCopies":
    # torch takes seconds to load
    from fairseq_lxsr.encoder.torch_network import NetworkCopies, network_of

    return NetworkCopies(network_of(model) if isinstance(model, Bag) else model, device)
