"""Implementations of `Encoder`: models of any library, and one encoder for each language."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_lxsr.embeddings.contract import Encoder, Text, count_zeros, short_hash
from fairseq_lxsr.embeddings.stored import StoredEmbeddings
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import FloatArray


class ModelFolder:
    """Encodes with a model folder of this package.

    Args:
        options: options of `SentenceEncoder.encode`.
    """

    def __init__(self, encoder: SentenceEncoder, **options: Any):
        self.encoder, self.options = encoder, options
        self.counts: Counter[str] = Counter()  # of all sentences so far: `empty` and `long`

    def reading(self, on_long: str) -> "ModelFolder":
        """Return the same model with another `on_long`, and counts of its own."""
        return ModelFolder(self.encoder, **self.options | {"on_long": on_long})

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    @property
    def space(self) -> str:
        return self.encoder.space

    @property
    def width(self) -> int:
        return self.encoder.output_dim

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        found: Counter[str] = Counter()
        embeddings = self.encoder.encode(text, counts=found, **self.options)
        for counter in (self.counts, counts):
            if counter is not None:
                counter.update(found)
        return embeddings


class LibraryModel:
    """Encodes with a model of another library that has `encode(sentences) -> [N, D]`.

    Args:
        options: options that are passed to `encode`.
    """

    def __init__(self, model: Any, fingerprint: str, width: int, **options: Any):
        self.model, self.fingerprint, self.width, self.options = model, fingerprint, width, options

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        return count_zeros(self.model.encode(list(text), **self.options), counts)


class ByLanguage:
    """Holds one encoder for each language, for systems with separate files for languages."""

    def __init__(self, encoders: Mapping[str, Encoder]):
        self.encoders = dict(encoders)

    @property
    def fingerprint(self) -> str:
        return short_hash(
            *(
                f"{language}={self.encoders[language].fingerprint}"
                for language in sorted(self.encoders)
            )
        )

    @property
    def space(self) -> str:
        """The space of all of them, where it is one."""
        spaces = {
            getattr(encoder, "space", encoder.fingerprint) for encoder in self.encoders.values()
        }
        return spaces.pop() if len(spaces) == 1 else self.fingerprint

    @property
    def width(self) -> int:
        """Width of the first encoder; `width_of` finds that of a text."""
        return next(iter(self.encoders.values())).width

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        return self.of(text.language).embed(text, counts)

    def of(self, language: str) -> Encoder:
        """Return the encoder of a language."""
        if language not in self.encoders:
            raise InputError(
                f"no model for the language {language!r}, only for {', '.join(sorted(self.encoders))}; "
                f"add --model {language}=..."
            )
        return self.encoders[language]


def with_on_long(encoder: Encoder, on_long: str) -> Encoder:
    """Return the encoder with another `on_long` in its model folders; only they have a longest
    text.
    """
    if isinstance(encoder, ByLanguage):
        return ByLanguage(
            {language: with_on_long(one, on_long) for language, one in encoder.encoders.items()}
        )
    return encoder.reading(on_long) if isinstance(encoder, ModelFolder) else encoder


def count_long(encoder: Encoder) -> int:
    """Return how many texts so far were longer than the model folders read."""
    if isinstance(encoder, ByLanguage):
        return sum(map(count_long, encoder.encoders.values()))
    return encoder.counts["long"] if isinstance(encoder, ModelFolder) else 0


def width_of(encoder: Encoder, text: Text) -> int:
    """Return the width of the embeddings of a text, or of its first sentence: languages and stored
    files may differ.
    """
    if isinstance(encoder, ByLanguage):
        return width_of(encoder.of(text.language), text)
    return encoder.embed(text).shape[1] if isinstance(encoder, StoredEmbeddings) else encoder.width


def check_same_width(source: int, target: int, names: tuple[Any, Any]) -> None:
    """Check that the embeddings of two texts can be compared, given their widths and what to call
    the texts.
    """
    if source != target:
        raise InputError(
            f"embeddings of {names[0]} are {source} wide and those of {names[1]} {target}; expected the same model for "
            "both"
        )


def sentence_transformers_folder(
    folder: str | Path, batch_size: int = 64, device: str | None = None, show_progress: bool = False
) -> LibraryModel:
    """Load a local folder of sentence-transformers, or of a Hugging Face encoder (then with mean
    pooling).

    Weights are read from safetensors, and code in the folder is not run.

    Raises:
        InputError: without the library, and for a folder that it cannot load or that embeds
            nothing.
    """
    require("sentence_transformers", "st", f"{folder}:")
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # a damaged folder raises errors of many kinds
        raise InputError(
            f"{folder}: sentence-transformers cannot load it ({first_line(error):.150})"
        ) from None
    width = model.get_embedding_dimension()
    if width is None:
        raise InputError(
            f"{folder}: none of its modules embeds; expected a whole folder of sentence-transformers"
        )
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    fingerprint = short_hash(*(f"{path.relative_to(folder)}={sha256(path)}" for path in files))
    return LibraryModel(
        model, fingerprint, width, batch_size=batch_size, show_progress_bar=show_progress
    )
