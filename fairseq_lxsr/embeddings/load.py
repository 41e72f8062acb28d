"""Loads any encoder by name, in Python and for the command-line option --model."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from fairseq_lxsr.embeddings.contract import Encoder
from fairseq_lxsr.embeddings.formats import format_name
from fairseq_lxsr.embeddings.stored import (
    StoredEmbeddings,
    embedding_files,
    is_embeddings_folder,
)
from fairseq_lxsr.embeddings.systems import ByLanguage, ModelFolder, sentence_transformers_folder
from fairseq_lxsr.embeddings.truncated import TruncatedEncoder
from fairseq_lxsr.embeddings.word_vectors import WordVectors
from fairseq_lxsr.embeddings.write import index_path
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE, MODEL_FILES, ST_MODULE
from fairseq_lxsr.encoder.sentence_transformers_folder import is_static_export, normalizes
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.machine import check_device
from fairseq_lxsr.options import COMPUTE_DTYPES, FILE_NAME, ON_LONG, WORD_WEIGHTS, at_least

Names = str | Path | Mapping[str, str | Path] | Iterable[str]
# First bytes of a zip archive, the format of torch's checkpoints.
ARCHIVE_START = b"PK\x03\x04"
# Matches the prefix LANG= of a model name.
LANGUAGE = re.compile("[^=/#]*=")
# Default width of LASER-raw files, which is the width of LASER's embeddings.
RAW_DIM = 1024


def load(
    names: Names,
    *,
    batch_size: int = 256,
    device: str | None = None,
    show_progress: bool = False,
    truncate_dim: int | None = None,
    **options: Any,
) -> Encoder:
    """Load an encoder of any kind by its name.

        encoder = load("lxsr-static")
        encoder = load("work/en-fr/model#untrained", batch_size=64)
        encoder = load({"en": "wiki.en.vec#sum", "fr": "wiki.fr.vec#sum"})

    A name takes one of these forms. An option may follow the last `#`, unless a path with that name
    exists:

    - a model in this package
    - a model on a hub, as `hub:ORG/NAME` or `hub:ORG/NAME@REVISION`
    - a model folder or the URL of its archive; `#untrained` gives it random weights
    - a file of word vectors, combined by `#mean` (the default), `#sum` or `#idf`
    - a folder of sentence-transformers or of a Hugging Face encoder
    - a folder of stored embeddings; `#dim=512` sets the width of LASER-raw files (1024 by default)

    Args:
        names: one name, or one per language, as a mapping or as a list of `LANG=NAME`.
        batch_size: number of sentences encoded together.
        device: cpu or cuda; None for cuda if it is available and the model has layers.
        show_progress: show a progress bar while encoding, and while a file of word vectors is read.
        truncate_dim: number of leading dimensions to keep; None keeps all.
        **options (Any): other options of `SentenceEncoder.encode`, such as `dtype` and `on_long`.
            They apply to models of this package; other models ignore them.

    Returns:
        The encoder. If languages are named, it selects the model by the language of the text.

    Raises:
        InputError: if the model is not found, the name has an invalid option after `#`, a language
            is named twice, the device does not exist, or a keyword is not an option of
            `SentenceEncoder.encode` or has an invalid value.
    """
    check_device(device, "--device")
    _check_options(options)
    encoders = {}
    for name in parse_names(names):
        encoders[name.language] = _load_one(name, batch_size, device, show_progress, options)
    if not encoders:
        raise InputError("no model given; specify one model, or one per language")
    encoder: Encoder = encoders[""] if "" in encoders else ByLanguage(encoders)
    if truncate_dim is None or truncate_dim == encoder.width:
        return encoder
    return TruncatedEncoder(encoder, truncate_dim)


def _check_options(options: Mapping[str, Any]) -> None:
    """Check the extra options of `load`, which are passed to `SentenceEncoder.encode`."""
    allowed = list(signature(SentenceEncoder.encode).parameters)
    for parameter in (
        "self",
        "texts",
        "counts",
        "batch_size",
        "device",
        "show_progress",
        "truncate_dim",
    ):
        allowed.remove(parameter)
    for name, value in options.items():
        if name not in allowed:
            raise InputError(f"unknown option {name!r}; choose from {', '.join(allowed)}")
        choices = {"dtype": COMPUTE_DTYPES, "on_long": ON_LONG}.get(name)
        if choices and value not in choices:
            raise InputError(f"invalid {name} {value!r}; choose from {', '.join(choices)}")


@dataclass(frozen=True)
class ModelName:
    """A parsed name `LANG=PATH#WORD,WORD`.

    Attributes:
        text: name as specified by the user, for messages.
        language: language that the model is used for; empty for all languages.
        path: a path, a URL, or the name of a model in this package or on a hub.
        words: options after #.
    """

    text: str
    language: str
    path: str | Path
    words: tuple[str, ...]

    @classmethod
    def parse(cls, name: str | Path, language: str = "") -> "ModelName":
        """Parse a name. An existing path is not split at `#`.

        Args:
            name: model name to parse.
            language: language of the model, if already known.

        Returns:
            The parts of the name.
        """
        if isinstance(name, Path):
            return cls(str(name), language, name, ())
        path = name
        if not language and LANGUAGE.match(name) and not Path(name).exists():
            language, _, path = name.partition("=")
        words: list[str] = []
        if "#" in path and not Path(path).exists():
            path, words = _split_words(path)
        if path not in FILE_NAME:
            raise InputError(f"{name!r:.60} is not the name of a model; expected {FILE_NAME}")
        return cls(name, language, path, tuple(words))

    def word(self, allowed: tuple[str, ...], kind: str) -> str | None:
        """Return the option after #, or None if there is none.

        Args:
            allowed: options that this kind of model supports.
            kind: description of the kind of model, for the message.

        Returns:
            The option, one of `allowed`.

        Raises:
            InputError: if there is any other option, or more than one.
        """
        if not self.words:
            return None
        if self.words[0] not in allowed or len(self.words) > 1:
            expected = " or ".join(f"#{word}" for word in allowed) or "none"
            raise InputError(
                f"--model {self.text}: option {','.join(self.words)!r:.60} is invalid for {kind}; "
                f"expected {expected}"
            )
        return self.words[0]

    def width(self) -> int:
        """Return N of `#dim=N`, the width of LASER-raw embeddings.

        Returns:
            The width; 1024 if the name has no option.
        """
        option = self.words[0] if self.words else f"dim={RAW_DIM}"
        if len(self.words) > 1 or not option.startswith("dim="):
            # This call raises an InputError.
            self.word(("dim=N",), "a folder of embeddings")
        width = at_least(1).from_text(option.removeprefix("dim="))
        if width not in at_least(1):
            raise InputError(
                f"--model {self.text}: #{option} is invalid; expected #dim= with {at_least(1)}"
            )
        return int(width)


def _split_words(name: str) -> tuple[str, list[str]]:
    """Split a name into the path and the options after the last #."""
    path, _, end = name.rpartition("#")
    words = end.split(",")
    # The checksum of a model is part of its name.
    checksums = [word for word in words if word.startswith("sha256=")]
    options = [word for word in words if word not in checksums]
    return "#".join([path, *checksums]), options


def parse_names(names: Names) -> list[ModelName]:
    """Parse model names: a single name, or one name per language.

    Args:
        names: a name, or several names of the form LANGUAGE=NAME.

    Returns:
        A parsed name for each name.

    Raises:
        InputError: if there are several models for a language, or a name is invalid.
    """
    if isinstance(names, Mapping):
        return [ModelName.parse(name, language) for language, name in names.items()]
    if isinstance(names, str | Path):
        names = [names]  # type: ignore[list-item]
    parsed = [ModelName.parse(name) for name in names]
    languages = [name.language for name in parsed]
    texts = " ".join(name.text for name in parsed)
    if "" in languages and len(parsed) > 1:
        raise InputError(
            f"--model {texts}: several models; specify one, or LANG=PATH for each language"
        )
    if len(set(languages)) != len(parsed):
        raise InputError(
            f"--model {texts}: a language is repeated; expected one model per language"
        )
    return parsed


def refuse_idf(names: Names) -> None:
    """Reject `#idf` for commands that read text in blocks, because it requires counts over all
    text.

    Args:
        names: names of the models.
    """
    for name in parse_names(names):
        if "idf" in name.words:
            raise InputError(
                f"--model {name.text}: idf counts words over the whole text, but this command "
                "reads it in blocks; use #mean or #sum"
            )


def model_files(names: Names) -> Iterator[Path]:
    """Yield the files that models are loaded from; for other libraries, only the folder.

    Args:
        names: names of the models.

    Yields:
        Paths of files, or of the folder of another library.
    """
    for name in parse_names(names):
        path = find_model(name.path)
        if is_embeddings_folder(path):
            for file in embedding_files(path):
                yield file
                yield index_path(file)
        elif path.is_dir() and _is_own_folder(path):
            for file_name in MODEL_FILES:
                yield path / file_name
        else:
            yield path


def is_model_folder(path: Path) -> bool:
    """Return whether `load` would load a path as a model folder of this package.

    This includes exports of models without layers, which this package reads by itself. Only such a
    model may be loaded by a name from a file, because other libraries can run code from a model,
    and files may be pipes or of any size.

    Args:
        path: folder to check.

    Returns:
        True for a model folder or such an export.
    """
    if (path / ST_MODULE).is_dir():
        path = path / ST_MODULE
    if is_static_export(path):
        return True
    return (
        (path / CONFIG_FILE).is_file() and not is_embeddings_folder(path) and _is_own_folder(path)
    )


def _load_one(
    name: ModelName,
    batch_size: int,
    device: str | None,
    show_progress: bool,
    options: dict[str, Any],
) -> Encoder:
    path = find_model(name.path)
    if (path / ST_MODULE).is_dir():
        path = path / ST_MODULE
    if path.is_file():
        return _load_word_vectors(name, path, show_progress)
    if is_embeddings_folder(path):
        return StoredEmbeddings(path, name.width())
    is_export = is_static_export(path)
    if path.is_dir() and not is_export and not _is_own_folder(path):
        name.word((), "a model of sentence-transformers")
        return sentence_transformers_folder(path, batch_size, device, show_progress)
    # The folder of an export has no original network, whose shapes random weights could take.
    words = () if is_export else ("untrained",)
    untrained = name.word(words, "a model folder") is not None
    if is_export and normalizes(path):
        options = options | {"normalize": True}
    encoder = SentenceEncoder.from_pretrained(path, device, untrained=untrained)
    return ModelFolder(encoder, batch_size=batch_size, show_progress=show_progress, **options)


def _load_word_vectors(name: ModelName, path: Path, show_progress: bool) -> WordVectors:
    """Load a word vector file, after rejecting other kinds of files."""
    if format_name(path):
        raise InputError(
            f"--model {path} is an embedding file; specify its folder, in which the embeddings "
            f"of a text NAME have the name NAME{path.suffix}"
        )
    with open(path, "rb") as stream:
        is_archive = stream.read(len(ARCHIVE_START)) == ARCHIVE_START
    if is_archive or path.suffix == ".pt":
        raise InputError(
            f"--model {path} is a checkpoint or an archive; use word vectors or a model "
            "folder (created by `lxsr export folder --checkpoint FILE.pt --output FOLDER`)"
        )
    weights = name.word(WORD_WEIGHTS, "word vectors") or WORD_WEIGHTS[0]
    return WordVectors(path, weights, show_progress)


def _is_own_folder(folder: Path) -> bool:
    """Return whether a folder is a model folder of this package.

    A folder without a readable config.json counts as one, because loading it will report the
    problem.
    """
    if (folder / "modules.json").exists():
        return False
    try:
        with open_file(folder / CONFIG_FILE) as stream:
            config = parse_json(stream.read().decode("utf-8"))
    except (OSError, ValueError):
        return True
    # Only the config.json of a Hugging Face model contains this key.
    return "model_type" not in config
