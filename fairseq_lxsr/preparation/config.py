"""`lxsr prepare CONFIG.yaml`: every option of every stage in one file, checked before anything runs."""

import importlib.util
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.languages import split_pair
from fairseq_lxsr.preparation.clean import MESSAGE_FILTERS

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")


@dataclass(frozen=True)
class Cleaning:
    """What is left out before a corpus is split.

    Args:
        filters: by name, each with its options; see `clean.FILTERS`. None for what suits the text: program messages are
            filtered, one's own text is not.
        repeats: what counts as a repetition (sentences compared without case, punctuation and digits): a `pair`, a
            `side`, or nothing (`keep`). None for what suits the text: each side of a message is used once, each pair of
            one's own text.
        exclude: text files, usually of evaluation sets; a pair with one of their lines on either side is left out.
        keep_dropped: write what is left out, with the reason, to `dropped.tsv.gz`.
    """

    filters: Mapping[str, Mapping[str, Any]] | None = None
    repeats: str | None = None
    exclude: tuple[str, ...] = ()
    keep_dropped: bool = False

    def __post_init__(self):
        if self.repeats not in (None, *REPEATS):
            raise InputError(f"repeats {self.repeats!r}; expected one of {', '.join(REPEATS)}")

    def suited(self, is_messages: bool) -> "Cleaning":
        """The same with everything decided."""
        filters = self.filters if self.filters is not None else (MESSAGE_FILTERS if is_messages else {})
        return replace(self, filters=filters, repeats=self.repeats or ("side" if is_messages else "pair"))


DEFAULT_CLEANING = Cleaning()


@dataclass(frozen=True)
class SubwordOptions:
    """How text is split into pieces.

    Args:
        vocab_size: entries of the dictionary, fairseq's four specials and <mask> included.
        lowercase: lower-case all text, here and later when encoding.
        character_coverage: share of characters that get a piece.
        max_sentences: SentencePiece learns from so many lines at most, the same number of every language where they
            have them, drawn evenly.
        model_type: `bpe` or `unigram`.
        byte_fallback: characters without a piece become bytes instead of <unk>.
        normalisation: a rule of SentencePiece; it lies in its model.
        split_han: every Chinese character is a word of its own.
    """

    vocab_size: int = 16_000
    lowercase: bool = True
    character_coverage: float = 1.0
    max_sentences: int = 1_000_000
    model_type: str = "bpe"
    byte_fallback: bool = False
    normalisation: str = "nmt_nfkc"
    split_han: bool = False

    def __post_init__(self):
        if self.vocab_size < 1 or self.max_sentences < 1:
            raise InputError(f"vocab_size {self.vocab_size}, max_sentences {self.max_sentences}; expected 1 or more")
        if not 0.98 <= self.character_coverage <= 1:  # what SentencePiece takes
            raise InputError(f"character_coverage {self.character_coverage}; expected a share, 0.98 to 1")
        for name, known in (("model_type", MODEL_TYPES), ("normalisation", NORMALISATIONS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r}; expected one of {', '.join(known)}")


@dataclass(frozen=True)
class PrepareConfig:
    """The whole preparation.

    Args:
        pairs: language pairs as SRC-TGT, each with its text as `formats.find_source` takes it, or null for the gettext
            catalogues of this machine.
        work: folder that gets corpus/SRC-TGT, subwords and data-bin.
        cleaning: see `corpus.Cleaning`.
        shards: parts of the training data, see `binarise.binarise`.
    """

    pairs: Mapping[str, str | None]
    work: str = "work"
    cleaning: Cleaning = field(default_factory=Cleaning)
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int = 1000
    test_size: int = 2000
    seed: int = 1
    workers: int = 2
    shards: int = 1

    def __post_init__(self):
        for name, least in (("valid_size", 1), ("test_size", 1), ("workers", 1), ("shards", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} {getattr(self, name)}; expected {least} or more")
        if not self.pairs:
            raise InputError("pairs: none; expected for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(str(pair))
            if not isinstance(text, str | None):
                raise InputError(f"pairs: {pair} is {text!r}; expected the name of its text, or null")


def read_config(path: Path) -> PrepareConfig:
    """A YAML file with the fields of `PrepareConfig`; file names in it are relative to the current folder.

    Raises: InputError for anything unknown, missing or of another type.
    """
    content = read_yaml(path)
    try:
        options = checked(content, PrepareConfig, "the file")
        if "cleaning" in options:
            options["cleaning"] = _cleaning(options["cleaning"])
        if "subwords" in options:
            options["subwords"] = SubwordOptions(**checked(options["subwords"], SubwordOptions, "subwords"))
        return PrepareConfig(**options)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Its content, plain values only."""
    if importlib.util.find_spec("yaml") is None:
        raise InputError(f"{path}: needs PyYAML, which is not installed: pip install 'fairseq-lxsr[prepare]'")
    import yaml

    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a YAML file ({' '.join(str(error).split())})") from None


def _cleaning(content: Any) -> Cleaning:
    given = checked(content, Cleaning, "cleaning")
    if "filters" in given:
        for name, options in given["filters"].items():
            if not isinstance(options, dict | None):
                raise InputError(f"filter {name!r} is {options!r}; expected its options, for example {{longest: 80}}")
        given["filters"] = {name: options or {} for name, options in given["filters"].items()}
    exclude = given.pop("exclude", [])
    if not all(isinstance(path, str) for path in exclude):
        raise InputError(f"exclude is {exclude!r}; expected a list of file names")
    return Cleaning(**given, exclude=tuple(exclude))


def checked(content: Any, kind: type, where: str) -> dict[str, Any]:
    """A mapping with fields of a dataclass, those of plain types with values of their type."""
    known = {item.name: item for item in fields(kind)}
    if not isinstance(content, dict):
        raise InputError(f"{where} is {content!r:.40}; expected a mapping with some of {', '.join(known)}")
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{where} has {name!r}; expected some of {', '.join(known)}")
        default = known[name].default
        plain = isinstance(default, bool | int | float | str)
        fitting = (int, float) if isinstance(default, float) else (type(default),)
        if plain and type(value) not in fitting:
            raise InputError(f"{name} is {value!r}; expected {type(default).__name__}, for example {default!r}")
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in content:
            raise InputError(f"{where} has no {name!r}")
    for name, kind_of in (("pairs", dict), ("filters", dict), ("exclude", list)):
        plain = name in known and isinstance(known[name].default, bool | int | float | str)
        if name in content and not plain and not isinstance(content[name], kind_of):
            raise InputError(f"{name} is {content[name]!r:.40}; expected a {'list' if kind_of is list else 'mapping'}")
    return dict(content)
