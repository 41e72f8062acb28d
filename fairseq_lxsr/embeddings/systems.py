"""Implementations of `Encoder` for model folders, other libraries, and one model per language."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_lxsr.embeddings.contract import Encoder, Text, count_zeros, short_hash
from fairseq_lxsr.embeddings.stored import StoredEmbeddings
from fairseq_lxsr.embeddings.truncated import TruncatedEncoder, check_truncate_dim
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    is_sentence_transformers_folder,
    require_library,
)
from fairseq_lxsr.encoder.st_checksums import check_export
from fairseq_lxsr.errors import InputError, first_line, is_panic, listed, rust_errors
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.vectors.rows import FloatArray


class ModelFolder:
    """Encodes with a model folder of this package.

    Args:
        encoder: the loaded model folder.
        options: options of `SentenceEncoder.encode`.

    Attributes:
        counts: the numbers of `empty` and `long` sentences so far.
    """

    def __init__(self, encoder: SentenceEncoder, **options: Any):
        self.encoder = encoder
        self.options = options
        self.counts: Counter[str] = Counter()

    def reading(self, on_long: str) -> "ModelFolder":
        """Return the same model with a different `on_long` and separate counts.

        Args:
            on_long: what happens to long texts; see `SentenceEncoder.encode`.

        Returns:
            An encoder that shares the weights.
        """
        return ModelFolder(self.encoder, **self.options | {"on_long": on_long})

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    @property
    def folder(self) -> Path | None:
        return self.encoder.folder

    @property
    def space(self) -> str:
        return self.encoder.space

    @property
    def width(self) -> int:
        return self.encoder.output_dim

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        text_counts: Counter[str] = Counter()
        embeddings = self.encoder.encode(text, counts=text_counts, **self.options)
        self.counts.update(text_counts)
        if counts is not None:
            counts.update(text_counts)
        return embeddings


class LibraryModel:
    """Encodes with a model of another library.

    Args:
        model: an object with a method `encode(sentences)` that returns embeddings [N, D].
        fingerprint: identifies the model.
        width: number of dimensions D.
        options: options for `encode`.
    """

    def __init__(self, model: Any, fingerprint: str, width: int, **options: Any):
        self.model = model
        self.fingerprint = fingerprint
        self.width = width
        self.options = options

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        try:
            embeddings = self.model.encode(list(text), **self.options)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InputError(
                f"the tokenizer of the model failed ({first_line(error):.150}); copy the model "
                "folder again"
            ) from None
        return count_zeros(embeddings, counts)


class ByLanguage:
    """One encoder per language, for systems with a separate file for each language."""

    def __init__(self, encoders: Mapping[str, Encoder]):
        self.encoders = dict(encoders)

    @property
    def fingerprint(self) -> str:
        parts = []
        for language in sorted(self.encoders):
            parts.append(f"{language}={self.encoders[language].fingerprint}")
        return short_hash(*parts)

    @property
    def space(self) -> str:
        """Fingerprint of the space that all encoders share, or `fingerprint` if they do not share
        one."""
        spaces = set()
        for encoder in self.encoders.values():
            spaces.add(getattr(encoder, "space", encoder.fingerprint))
        return spaces.pop() if len(spaces) == 1 else self.fingerprint

    @property
    def width(self) -> int:
        """Width of the first encoder. `width_of` returns the width for a text."""
        return next(iter(self.encoders.values())).width

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        return self.encoder_of(text.language).embed(text, counts)

    def encoder_of(self, language: str) -> Encoder:
        """Return the encoder of a language.

        Args:
            language: language code.

        Returns:
            The encoder.

        Raises:
            InputError: if there is none.
        """
        if language not in self.encoders:
            raise InputError(
                f"no model for the language {language!r}, only for "
                f"{listed(sorted(self.encoders))}; add --model {language}=..."
            )
        return self.encoders[language]


def with_on_long(encoder: Encoder, on_long: str) -> Encoder:
    """Return an encoder that handles long texts according to `on_long`.

    Encoders of other libraries do not limit the length of texts, so they are returned unchanged.

    Args:
        encoder: any encoder.
        on_long: what happens to long texts; see `SentenceEncoder.encode`.

    Returns:
        An encoder that shares the weights.
    """
    if isinstance(encoder, ByLanguage):
        changed = {}
        for language, language_encoder in encoder.encoders.items():
            changed[language] = with_on_long(language_encoder, on_long)
        return ByLanguage(changed)
    if isinstance(encoder, ModelFolder):
        return encoder.reading(on_long)
    return encoder


def count_long(encoder: Encoder) -> int:
    """Return the number of texts so far that exceeded the length limit of the model folders.

    Args:
        encoder: encoder that has embedded texts.

    Returns:
        The number of texts; 0 for encoders of other libraries.
    """
    if isinstance(encoder, ByLanguage):
        return sum(map(count_long, encoder.encoders.values()))
    if isinstance(encoder, TruncatedEncoder):
        return count_long(encoder.encoder)
    if isinstance(encoder, ModelFolder):
        return encoder.counts["long"]
    return 0


def width_of(encoder: Encoder, text: Text) -> int:
    """Return the number of dimensions of a text's embeddings.

    It may differ between languages and stored files. A part of the text suffices, such as its first
    sentence.

    Args:
        encoder: any encoder.
        text: text to embed.

    Returns:
        The width D.
    """
    if isinstance(encoder, ByLanguage):
        return width_of(encoder.encoder_of(text.language), text)
    if isinstance(encoder, TruncatedEncoder):
        check_truncate_dim(encoder.width, width_of(encoder.encoder, text))
        return encoder.width
    if isinstance(encoder, StoredEmbeddings):
        return encoder.embed(text).shape[1]
    return encoder.width


def check_same_width(source: int, target: int, names: tuple[Any, Any]) -> None:
    """Check that the embeddings of two texts have the same width.

    Args:
        source: width of the first embeddings.
        target: width of the second embeddings.
        names: names of the texts, for the message.

    Raises:
        InputError: if the widths differ.
    """
    if source != target:
        raise InputError(
            f"embeddings of {names[0]} have width {source}, but embeddings of {names[1]} have "
            f"width {target}; "
            "use the same model for both"
        )


def sentence_transformers_folder(
    folder: str | Path, batch_size: int = 64, device: str | None = None, show_progress: bool = False
) -> LibraryModel:
    """Load a local folder of sentence-transformers.

        encoder = sentence_transformers_folder("models/LaBSE", device="cpu")

    The folder of a Hugging Face encoder is loaded with mean pooling. Weights are read from
    safetensors, and code in the folder is not run.

    Args:
        folder: local model folder.
        batch_size: number of sentences to encode together.
        device: cpu or cuda; None for cuda if it is available.
        show_progress: whether to show a progress bar while encoding.

    Returns:
        An encoder of sentences.

    Raises:
        InputError: if the library is missing, or if it cannot load the folder as an encoder.
    """
    require_library(f"{folder}:")
    folder = Path(folder)
    if is_sentence_transformers_folder(folder):
        check_export(folder)
    from sentence_transformers import SentenceTransformer

    try:
        with rust_errors():
            model = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
    except Exception as error:
        # Loading a damaged folder may raise almost any exception.
        raise InputError(
            f"{folder}: sentence-transformers cannot load the folder ({first_line(error):.150})"
        ) from None
    width = model.get_embedding_dimension()
    if width is None:
        raise InputError(
            f"{folder}: no module creates embeddings; expected a complete "
            "sentence-transformers folder"
        )
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    fingerprint = short_hash(*(f"{path.relative_to(folder)}={sha256(path)}" for path in files))
    return LibraryModel(
        model, fingerprint, width, batch_size=batch_size, show_progress_bar=show_progress
    )
