"""Computes sentence embeddings with a model from a model folder, without fairseq."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np

from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import TEACHER, read_config, size_of
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag, read_bag
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    is_sentence_transformers_folder,
    module_folder,
    read_sentence_transformers_folder,
)
from fairseq_lxsr.encoder.st_names import (
    EncodeOptions,
    LibraryOptions,
    SentenceTransformersMethods,
    accept_sentence_transformers_options,
    as_list,
)
from fairseq_lxsr.errors import InputError, SentenceError, check_text_list, shown
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.machine import check_device, require
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.options import COMPUTE_DTYPES, ON_LONG
from fairseq_lxsr.text.tokenizer import Tokenizer
from fairseq_lxsr.vectors.rows import check_count, unit_rows

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_lxsr.encoder.torch_network import NetworkCopies
    from fairseq_lxsr.modules import SentenceNetwork

logger = logging.getLogger(__name__)
# Word piece limit for models that do not have a limit.
NO_LIMIT = np.iinfo(np.int64).max


class SentenceEncoder(SentenceTransformersMethods):
    """Encoder that maps sentences in all its training languages into one vector space.

        encoder = SentenceEncoder.from_pretrained("lxsr-static")
        embeddings = encoder.encode(["The dog sleeps.", "Le chien dort."])
        similarities = encoder.similarity(embeddings, embeddings)

    `embeddings` is float32 [2, D], and `similarities` is float32 [2, 2]. `from_pretrained` loads a
    model, `encode` embeds sentences, `similarity` compares embeddings, and `languages` lists the
    languages of the training text.

    An encoder without layers runs in NumPy whenever possible (in float32 on the CPU). In this case,
    it works without torch.

    Args:
        model: any argument of `from_pretrained`, such as `"lxsr-static"`. To build an encoder from
            its parts, pass a network, or a `Bag` that computes the same embeddings in NumPy. In
            this case, a tokenizer and a config are required.
        tokenizer: splits text into word pieces and maps them to dictionary ids.
        config: content of config.json.
        device: default device, `cpu` or `cuda`; None uses CUDA for networks if available.
        untrained: whether the weights are random instead of trained.
        folder: path of the model folder, if the encoder is built from its parts.

    Raises:
        InputError: if `from_pretrained` rejects the model, or a part is missing.
    """

    def __init__(
        self,
        model: "str | Path | SentenceNetwork | Bag",
        tokenizer: Tokenizer | None = None,
        config: dict[str, Any] | None = None,
        device: str | None = None,
        untrained: bool = False,
        folder: Path | None = None,
    ):
        if isinstance(model, str | Path):
            if tokenizer is not None or config is not None or folder is not None:
                raise InputError(
                    f"model is {shown(str(model))}, together with tokenizer, config or "
                    "folder; pass only the name or folder of a model, or else a network"
                )
            model, tokenizer, config, folder = _read_parts(model, device, untrained)
        if tokenizer is None or config is None:
            raise InputError(
                f"model is a {type(model).__name__} without tokenizer or config; expected the "
                "name or folder of a model, as in "
                'SentenceEncoder.from_pretrained("lxsr-static")'
            )
        self.untrained = untrained
        self.folder = folder
        self.tokenizer = tokenizer
        self.config = config
        self._bag: Bag | None = None
        self._networks: NetworkCopies | None = None
        if isinstance(model, Bag):
            self._bag = model
        else:
            self._networks = _copies_of(model, device)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        device: str | None = None,
        untrained: bool = False,
        *,
        revision: str | None = None,
        sha256: str | None = None,
    ) -> Self:
        """Load a model. No code from the model folder is ever run.

            encoder = SentenceEncoder.from_pretrained("lxsr-static")
            encoder = SentenceEncoder.from_pretrained("work/en-fr/model", device="cpu")
            encoder = SentenceEncoder.from_pretrained("hub:ORG/NAME", revision="v1")

        Args:
            folder: name of a packaged model, a model folder written by `lxsr export folder`, the
                name of a model on a hub, or an archive URL with its checksum (see
                `encoder.locate.find_model`). Folders written by `lxsr export sentence-transformers`
                and `lxsr export hub` work too; if the model has no layers, even after
                sentence-transformers has trained and saved it.
            device: default device of `encode`, `cpu` or `cuda`; None uses CUDA for networks if
                available.
            untrained: use random weights (seed 1) of the same shapes, as a baseline for the trained
                model.
            revision: branch, tag or commit of a model on a hub; None for the newest version.
            sha256: checksum that identifies the model, as `lxsr export hub --push` prints it
                (see `encoder.pin.check_pin`).

        Returns:
            The encoder, ready to use.

        Raises:
            InputError: if a file is missing, changed or invalid, a model cannot be downloaded, it
                has another checksum, it has layers and torch is not installed, or the device does
                not exist.
        """
        # Check the device first, because a download takes longer.
        check_device(device)
        folder = find_model(folder, revision, sha256)
        return cls(folder, device=device, untrained=untrained)

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = 256,
        device: str | None = None,
        dtype: str = "float32",
        normalize: bool = False,
        truncate_dim: int | None = None,
        show_progress: bool = False,
        on_long: str = "cut",
        counts: Counter[str] | None = None,
        *,
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[LibraryOptions],
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = 256,
        *,
        convert_to_tensor: Literal[True],
        **options: Unpack[EncodeOptions],
    ) -> "Tensor": ...

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = 256,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **options: Unpack[EncodeOptions],
    ) -> Any: ...

    @overload
    def encode(
        self,
        *,
        sentences: str | Iterable[str],
        batch_size: int = 256,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **options: Unpack[EncodeOptions],
    ) -> Any: ...

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
        """Return the embeddings of sentences, in input order.

            embeddings = encoder.encode(["The dog sleeps.", "Le chien dort."], normalize=True)
            query = encoder.encode("Un chien dort.", normalize=True)
            scores = embeddings @ query

        Empty sentences and sentences without a known word yield zeros. Several threads may call
        this method at once, and so may processes that received a copy of the encoder.

        Option names from sentence-transformers are accepted too: `sentences`,
        `normalize_embeddings`, `show_progress_bar`, `convert_to_numpy`, `convert_to_tensor`,
        `precision`, and `output_dtype` (same as `precision`).

        Args:
            texts: N sentences, as a list, a generator or an array of strings; or a single sentence.
            batch_size: number of sentences to encode together. Batches of short sentences may
                contain more, because several short sentences share a row of 64 word pieces.
            device: `cpu` or `cuda`; None uses the encoder's default device.
            dtype: computation precision: `float32`, `bfloat16` or `float16`, and on CPUs also
                `int8`. With `int8`, only matrix products are quantized; scales are computed per
                batch, so an embedding depends slightly on its batch.
            normalize: scale embeddings to unit length; zero vectors stay zero.
            truncate_dim: number of leading dimensions to keep, 1 to D; None keeps all. Truncation
                comes before normalization.
            show_progress: show a progress bar.
            on_long: how to handle sentences with more than `max_seq_length` word pieces: `cut`
                encodes the first pieces; `split-mean` encodes parts and returns their mean,
                weighted by length; `error` raises an error. Models without layers and LASER
                encoders have no limit: they read all of a text.
            counts: counter to update: adds the number of sentences without a known word to `empty`,
                and the number of long sentences to `long`. Without it, a warning says how many
                sentences were cut.

        Returns:
            Embeddings, float32 [N, D] or [N, truncate_dim]; [D] or [truncate_dim] for a single
            sentence. `precision="float16"` returns float16. `precision="binary"` (int8) and
            `"ubinary"` (uint8) return one bit per dimension, packed as [N, D / 8].
            `convert_to_tensor=True` returns a torch tensor, and `convert_to_numpy=False` a list of
            N tensors.

        Raises:
            InputError: if an option is invalid, a text is not a string, the texts are a table, a
                mapping or a set, or the device does not exist.
            SentenceError: if a sentence is too long and `on_long` is `error`, or if an embedding
                contains NaN or infinity.
        """
        sentences = as_list(texts)
        check_device(device)
        self._check_options(batch_size, dtype, truncate_dim, on_long)
        ids, lengths = self.tokenizer.encode_known(sentences)
        limit = self.max_seq_length or NO_LIMIT
        is_long = lengths > limit
        if counts is not None:
            counts.update(empty=int((lengths == 0).sum()), long=int(is_long.sum()))
        elif on_long == "cut" and is_long.any():
            logger.warning(
                "%s of %s texts were truncated to %s word pieces; on_long='split-mean' encodes "
                "whole texts",
                f"{is_long.sum():,}",
                f"{len(lengths):,}",
                limit,
            )
        if on_long == "error" and is_long.any():
            row = int(is_long.argmax())
            problem = (
                f"{lengths[row]} word pieces exceed the limit of {limit}; split the sentence, or "
                "set on_long to cut or split-mean"
            )
            raise SentenceError(row, sentences[row], problem)

        starts = lengths.cumsum() - lengths
        options = (batch_size, device, dtype, show_progress)
        if on_long == "split-mean":
            pieces = FlatPieces(ids, starts, lengths)
            embeddings = self._encode_in_parts(pieces, limit, *options)
        else:
            pieces = FlatPieces(ids, starts, np.minimum(lengths, limit))
            embeddings = self._encode_pieces(pieces, *options)
        is_invalid = ~np.isfinite(embeddings).all(axis=1)
        if is_invalid.any():
            row = int(is_invalid.argmax())
            problem = (
                f"the embedding in {dtype} contains NaN or infinity; use float32 or another model"
            )
            raise SentenceError(row, sentences[row], problem)
        embeddings = embeddings[:, :truncate_dim]
        return unit_rows(embeddings) if normalize else embeddings

    if TYPE_CHECKING:
        # For type checkers, these methods have the same signature as `encode`.
        encode_query = encode
        encode_document = encode

    @property
    def model(self) -> Any:
        """The torch network. Reading this property imports torch.

        The type is not declared, because exports use attributes that only some architectures have.
        """
        return self._copies().network

    @property
    def device(self) -> str:
        """Default device for encoding: `cpu`, `cuda` or `cuda:0`."""
        return str(self._networks.device) if self._networks else "cpu"

    @property
    def size(self) -> Any:
        """Sizes of the encoder, such as `embed_dim`, `output_dim` and `max_positions`."""
        return self._bag.config if self._bag else self.model.config

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Weights by name, as float32 arrays. Only encoders with layers import torch here."""
        if self._bag:
            return self._bag.weights
        return {
            name: value.detach().float().cpu().numpy()
            for name, value in self.model.state_dict().items()
        }

    @property
    def output_dim(self) -> int:
        """Sentence embedding width D. The width of token embeddings is `size.embed_dim`."""
        return self.size.output_dim

    @property
    def table(self) -> np.ndarray:
        """Embeddings of all word pieces before gated layers, float32 [V, D].

        Row indices are dictionary ids.

        Without layers, a sentence embedding is the weighted mean of its word piece embeddings. For
        a few rows, `table_rows` needs less memory.

        Raises:
            InputError: if the layers are not gated, because piece embeddings then depend on
                context.
        """
        self.check_table()
        return self.weights[TABLE]

    def table_rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of some word pieces (see `table`).

            ids, lengths = encoder.split(["The dog sleeps."])
            rows, places = encoder.table_rows(ids)
            vectors = rows[places]

        In an 8-bit or 4-bit table, only the rows of these pieces are converted to float32.

        Args:
            ids: dictionary ids of word pieces, int64 [P].

        Returns:
            Vectors float32 [R, D], and the position of each word piece among them, int64 [P].

        Raises:
            InputError: see `table`.
        """
        self.check_table()
        if self._bag:
            return self._bag.rows(ids)
        return self.weights[TABLE], ids

    @property
    def packed_table(self) -> PackedTable | None:
        """The table in 8 or 4 bits, as stored in the model folder; None if it has another type."""
        return self._bag.packed_table if self._bag else None

    def check_table(self) -> None:
        """Check that the model has a fixed vector for each word piece.

        Raises:
            InputError: if the layers are not gated.
        """
        if not getattr(self.size, "sums_rows", False):
            raise InputError(
                f"{self.folder or 'model'}: an encoder with layers does not have a fixed "
                "vector per word piece; use a model without layers, or with gated layers"
            )

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        if self._bag:
            return self._bag.parameters
        return sum(value.numel() for value in self.model.state_dict().values())

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify encoders with identical embeddings.

        The text normalization version is excluded, because embeddings of all versions are
        comparable.
        """
        fingerprint = self._model_hash
        if self._max_seq_length:
            fingerprint += f"-max{self._max_seq_length}"
        if self.untrained:
            fingerprint += "-untrained"
        return fingerprint

    @cached_property
    def _model_hash(self) -> str:
        """Hash of the model, without the options of this encoder."""
        # The hash of the weights covers the architecture as well.
        essence = {name: self.config[name] for name in ("encoder", "text", "files")}
        essence["text"] = dict(essence["text"])
        essence["text"].pop("version", None)
        digest = hashlib.sha256(json.dumps(essence, sort_keys=True).encode()).hexdigest()
        return digest[:12]

    @property
    def space(self) -> str:
        """Fingerprint that is shared by models with comparable embeddings.

        For a distilled model, it is the fingerprint of the teacher; for other models, it is their
        own.
        """
        teacher = self.config.get("training", {}).get(TEACHER)
        return teacher if teacher and not self.untrained else self.fingerprint

    def split(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Split sentences into the word pieces that `encode` uses, truncating long sentences.

            ids, lengths = encoder.split(["The dog sleeps.", "Le chien dort."])
            vectors = encoder.table[ids]
            first_sentence = vectors[: lengths[0]]

        Args:
            texts: N sentences.

        Returns:
            Concatenated dictionary ids of all word pieces, int64 [P], and the number of word pieces
            per sentence, int64 [N]. The ids are row indices of `table`.

        Raises:
            InputError: if `texts` is a single string, a table, a mapping or a set, or if an element
                is not a string.
        """
        check_text_list("texts", texts)
        ids, lengths = self.tokenizer.encode_known(as_list(texts))
        starts = lengths.cumsum() - lengths
        positions = np.arange(len(ids)) - np.repeat(starts, lengths)
        limit = self.max_seq_length or NO_LIMIT
        return ids[positions < limit], lengths.clip(max=limit)

    def _check_options(
        self, batch_size: int, dtype: str, truncate_dim: int | None, on_long: str
    ) -> None:
        check_count("batch_size", batch_size)
        if dtype not in COMPUTE_DTYPES:
            raise InputError(f"dtype is {dtype!r}; expected one of {', '.join(COMPUTE_DTYPES)}")
        if truncate_dim is not None:
            check_count("truncate_dim", truncate_dim, self.output_dim, "dimensions")
        if on_long not in ON_LONG:
            raise InputError(f"on_long is {on_long!r}; expected one of {', '.join(ON_LONG)}")

    def _encode_in_parts(self, pieces: FlatPieces, limit: int, *options) -> np.ndarray:
        """Encode sentences in parts of at most `limit` word pieces, and average the parts.

        Args:
            pieces: word pieces of N sentences.
            limit: maximum number of word pieces per part.
            options: additional arguments of `_encode_pieces`.

        Returns:
            Mean embeddings of the parts, weighted by length, float32 [N, D].
        """
        lengths = pieces.lengths
        # An empty sentence gets one empty part, so that each sentence has a row.
        part_counts = np.maximum(1, -(-lengths // limit))
        first_parts = part_counts.cumsum() - part_counts
        # Sentence index of each part, its offset in the sentence, and its length.
        sentences = np.repeat(np.arange(len(lengths)), part_counts)
        offsets = (np.arange(len(sentences)) - first_parts[sentences]) * limit
        part_lengths = np.minimum(limit, lengths[sentences] - offsets)
        parts = FlatPieces(pieces.ids, pieces.starts[sentences] + offsets, part_lengths)
        vectors = self._encode_pieces(parts, *options)
        embeddings = np.zeros((len(lengths), self.output_dim), dtype=np.float32)
        weights = part_lengths / np.maximum(1, lengths)[sentences]
        np.add.at(embeddings, sentences, vectors * weights[:, None].astype(np.float32))
        return embeddings

    def _encode_pieces(
        self,
        pieces: FlatPieces,
        batch_size: int,
        device: str | None,
        dtype: str,
        show_progress: bool,
    ) -> np.ndarray:
        """Return the embeddings of N sentences, float32 [N, D]; for the options, see `encode`."""
        if self._bag and dtype == "float32" and device in (None, "cpu"):
            batches = self._bag.embed(pieces)
        else:
            if dtype == "float32":
                feature = f"device {device}"
            else:
                feature = f"dtype {dtype}"
            batches = self._copies(feature).embed(pieces, batch_size, device, dtype)
        count = len(pieces.lengths)
        embeddings = np.zeros((count, self.output_dim), dtype=np.float32)
        # Without a progress bar, do not call tqdm at all. Even a disabled bar acquires tqdm's lock,
        # which another thread may have held when this process was forked.
        bar_context = (
            Progress(total=count, desc="encode", unit=" sentences", leave=None)
            if show_progress
            else nullcontext()
        )
        with bar_context as bar:
            for sentences, vectors in batches:
                embeddings[sentences] = vectors
                if bar is not None:
                    bar.update(len(sentences))
            if bar is not None:
                # Empty sentences do not belong to any batch.
                bar.update(count - bar.n)
        return embeddings

    def _copies(self, feature: str = "this export") -> "NetworkCopies":
        """Return the torch network with its cached copies; for a `Bag`, create it on first use.

        Args:
            feature: what needs the network; the message begins with it if torch is missing.
        """
        if self._networks is None:
            require("torch", "torch", feature)
            self._networks = _copies_of(self._bag, "cpu")
        return self._networks


def _read_parts(
    model: str | Path, device: str | None, untrained: bool
) -> "tuple[SentenceNetwork | Bag, Tokenizer, dict[str, Any], Path]":
    """Read the network, the tokenizer, the content of config.json and the folder of a model.

    The arguments are those of `SentenceEncoder.from_pretrained`.
    """
    check_device(device)
    folder = module_folder(find_model(model))
    if is_sentence_transformers_folder(folder):
        bag, tokenizer, config = read_sentence_transformers_folder(folder)
        return bag, tokenizer, config, folder
    config = read_config(folder)
    if device in (None, "cpu") and not untrained and getattr(size_of(config), "is_bag", False):
        bag, tokenizer = read_bag(folder, config)
        return bag, tokenizer, config, folder
    feature = "a model with random weights" if untrained else "this model"
    require("torch", "torch", f"{folder}: {feature}")
    from fairseq_lxsr.encoder.torch_network import read_model

    network, tokenizer = read_model(folder, config, untrained)
    return network, tokenizer, config, folder


def _copies_of(model: Any, device: str | None) -> "NetworkCopies":
    # Imported here, because importing torch takes seconds.
    from fairseq_lxsr.encoder.torch_network import NetworkCopies, network_of

    network = network_of(model) if isinstance(model, Bag) else model
    return NetworkCopies(network, device)
