"""Finds any encoder by its name, in Python as for --model of the command line."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lxsr.embeddings.contract import Encoder
from fairseq_lxsr.embeddings.formats import format_name
from fairseq_lxsr.embeddings.stored import StoredEmbeddings, embedding_files, is_embeddings_folder
from fairseq_lxsr.embeddings.systems import ByLanguage, ModelFolder, sentence_transformers_folder
from fairseq_lxsr.embeddings.word_vectors import WordVectors
from fairseq_lxsr.embeddings.write import index_path
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import SCHEME, find_model
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE, MODEL_FILES, ST_MODULE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.machine import check_device
from fairseq_lxsr.options import FILE_NAME, WORD_WEIGHTS, at_least

Names = str | Path | Mapping[str, str | Path] | Iterable[str]
ARCHIVE_START = b"PK\x03\x04"  # torch saves checkpoints as zip archives
LANGUAGE = re.compile("[^=/#]*=")  # before the name of a model
RAW_DIM = 1024  # width of LASER-raw embeddings, as LASER itself has it


def load(
    names: Names,
    *,
    batch_size: int = 256,
    device: str | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Encoder:
    """Load an encoder of any kind by its name.

        encoder = load("lxsr-static")
        encoder = load("work/en-fr/model#untrained", batch_size=64)
        encoder = load({"en": "wiki.en.vec#sum", "fr": "wiki.fr.vec#sum"})

    A name is that of a model in this package; the path of a model folder or the address of its
    archive (`#untrained` after it: random weights); a file of word vectors (`#mean`, the default,
    `#sum` or `#idf`); a folder of sentence-transformers or of a Hugging Face encoder; or a folder
    of stored embeddings (`#dim=512`: width of LASER-raw files, else 1024). The word stands behind
    the last #, also of an address. A path that exists is taken whole.

    Args:
        names: a name; or one for each language, as a mapping or as a list of `LANG=NAME`.
        batch_size: sentences encoded together.
        device: cpu or cuda; None for cuda where there is one and the model has layers.
        show_progress: show a progress bar while encoding.
        options: other options of `SentenceEncoder.encode`, for our model folders alone.

    Raises:
        InputError: for a name of no encoder, a word after # that does not fit it, or a language
            that is named twice.
    """
    check_device(device, "--device")
    how = (batch_size, device, show_progress, options)
    encoders = {name.language: _load_one(name, *how) for name in parse_names(names)}
    if not encoders:
        raise InputError("no model is named; expected one, or one for each language")
    return encoders[""] if "" in encoders else ByLanguage(encoders)


@dataclass(frozen=True)
class ModelName:
    """What `LANG=PATH#WORD,WORD` says."""

    text: str  # as it was given, for messages
    language: str  # of the text that the model is for; empty where it is for all
    path: str | Path
    words: tuple[str, ...]

    @classmethod
    def parse(cls, name: str | Path, language: str = "") -> "ModelName":
        """Take a name apart, unless a path of this name exists; `language` where it is known
        already.
        """
        if isinstance(name, Path):
            return cls(str(name), language, name, ())
        path, words = name, list[str]()
        if not language and LANGUAGE.match(name) and not Path(name).exists():
            language, _, path = name.partition("=")
        if "#" in path and not Path(path).exists():
            path, _, end = path.rpartition("#")
            words = end.split(",")
            checksums = [
                word for word in words if SCHEME.match(path) and word.startswith("sha256=")
            ]
            path = "#".join([path, *checksums])  # an address goes on with its checksum
            words = [word for word in words if word not in checksums]
        if path not in FILE_NAME:
            raise InputError(f"{name!r:.60} names no model; expected {FILE_NAME}")
        return cls(name, language, path, tuple(words))

    def word(self, allowed: tuple[str, ...], kind: str) -> str | None:
        """Return the one word after #, which must be one of `allowed` for a model of this kind;
        None without one.
        """
        if not self.words:
            return None
        if self.words[0] not in allowed or len(self.words) > 1:
            expected = " or ".join(f"#{word}" for word in allowed) or "none"
            raise InputError(
                f"--model {self.text}: {','.join(self.words)!r:.60} after the name of {kind}; expected {expected}"
            )
        return self.words[0]

    def width(self) -> int:
        """Return N of `#dim=N`, the width of LASER-raw embeddings."""
        given = self.words[0] if self.words else f"dim={RAW_DIM}"
        if len(self.words) > 1 or not given.startswith("dim="):
            self.word(("dim=N",), "a folder of embeddings")
        width = at_least(1).from_text(given.removeprefix("dim="))
        if width not in at_least(1):
            raise InputError(f"--model {self.text}: expected #dim= with {at_least(1)}")
        return int(width)


def parse_names(names: Names) -> list[ModelName]:
    """Return the one name, or those of several languages."""
    if isinstance(names, Mapping):
        return [ModelName.parse(name, language) for language, name in names.items()]
    found = [
        ModelName.parse(name) for name in ([names] if isinstance(names, str | Path) else names)
    ]
    languages, texts = [name.language for name in found], " ".join(name.text for name in found)
    if "" in languages and len(found) > 1:
        raise InputError(f"--model {texts}; expected one, or LANG=PATH for each language")
    if len(set(languages)) != len(found):
        raise InputError(f"--model {texts}; expected one for each language")
    return found


def refuse_idf(names: Names) -> None:
    """Refuse weights that are counted over one text, for commands that read it in blocks."""
    for name in parse_names(names):
        if "idf" in name.words:
            raise InputError(
                f"--model {name.text}: idf counts words over one text, and this command goes through it in blocks; "
                "expected #mean or #sum"
            )


def model_files(names: Names) -> Iterator[Path]:
    """Yield the files that are read of the models; a foreign folder stands for all its content."""
    for name in parse_names(names):
        path = find_model(name.path)
        if is_embeddings_folder(path):
            yield from (part for file in embedding_files(path) for part in (file, index_path(file)))
        elif path.is_dir() and _is_ours(path):
            yield from (path / file for file in MODEL_FILES)
        else:
            yield path


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
        if format_name(path):
            raise InputError(
                f"--model {path}: a file of embeddings; expected the folder that holds it, where the vectors of a text "
                f"NAME are in NAME{path.suffix}"
            )
        _refuse_checkpoint(path)
        return WordVectors(
            path, name.word(WORD_WEIGHTS, "word vectors") or WORD_WEIGHTS[0], show_progress=True
        )
    if is_embeddings_folder(path):
        return StoredEmbeddings(path, name.width())
    if path.is_dir() and not _is_ours(path):
        name.word((), "a model of sentence-transformers")
        return sentence_transformers_folder(path, batch_size, device, show_progress=True)
    untrained = name.word(("untrained",), "a model folder") is not None
    encoder = SentenceEncoder.from_pretrained(path, device, untrained=untrained)
    return ModelFolder(encoder, batch_size=batch_size, show_progress=show_progress, **options)


def _refuse_checkpoint(path: Path) -> None:
    """Refuse a checkpoint of fairseq-train, before it is read as word vectors."""
    with open(path, "rb") as stream:
        is_archive = stream.read(len(ARCHIVE_START)) == ARCHIVE_START
    if is_archive or path.suffix == ".pt":
        raise InputError(
            f"--model {path}: a checkpoint or an archive; expected a model folder, of `lxsr export folder --checkpoint "
            "FILE.pt --output FOLDER`, or word vectors"
        )


def _is_ours(folder: Path) -> bool:
    """Return whether config.json is that of our model folders, or is missing (loading then says
    what is missing).
    """
    if (folder / "modules.json").exists():
        return False
    try:
        with open_file(folder / CONFIG_FILE) as stream:
            return "model_type" not in parse_json(stream.read().decode("utf-8"))
    except (OSError, ValueError):
        return True
