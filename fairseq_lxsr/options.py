"""Declares options, and checks their values.

Each option is declared once. Its value is checked in the same way on the command line, in YAML and
in JSON.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.machine import require

Config = TypeVar("Config")
# Default upper limit for integers.
LARGEST_INT = 2**31 - 1


class Allowed:
    """A set of allowed option values.

    `value in allowed` checks a value, `str(allowed)` describes the allowed values, and an instance
    can be used as argparse's `type=`.
    """

    def __contains__(self, value: Any) -> bool:
        raise NotImplementedError

    def check(self, name: str, value: Any) -> None:
        """Raise `InputError` unless a value from YAML, JSON or fairseq is allowed."""
        if value not in self:
            raise InputError(f"{name} {shown(value)} is invalid; expected {self}")

    def from_text(self, text: str) -> Any:
        """Convert a command-line string to a value, which `__call__` then checks.

        If the string cannot be converted, return a value that is not allowed.
        """
        return text

    def __call__(self, text: str) -> Any:
        value = self.from_text(text)
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r:.60} is invalid; expected {self}")
        return value


@dataclass(frozen=True)
class Range(Allowed):
    """Numbers from `least` to `most`; NaN is never allowed.

        parser.add_argument("--k", type=at_least(1), default=5)
        dropout: float = field(default=0.1, metadata={"help": "...", "range": below(1)})

    Attributes:
        least: lower limit.
        most: upper limit.
        whole: allow integers only.
        open_least: exclude the lower limit itself.
        open_most: exclude the upper limit itself.
        infinite: allow infinity.
    """

    least: float = -math.inf
    most: float = math.inf
    whole: bool = False
    open_least: bool = False
    open_most: bool = False
    infinite: bool = False

    def __contains__(self, value: Any) -> bool:
        # numpy's number types are also registered as Integral or Real.
        kind: Any = Integral if self.whole else Real
        if not isinstance(value, kind) or isinstance(value, bool):
            return False
        if not self.whole and not self._is_number(value):
            return False
        is_large_enough = value > self.least if self.open_least else value >= self.least
        is_small_enough = value < self.most if self.open_most else value <= self.most
        return is_large_enough and is_small_enough

    def _is_number(self, value: float) -> bool:
        try:
            return not math.isnan(value) and (self.infinite or not math.isinf(value))
        except OverflowError:
            # The integer is too large for a float.
            return False

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a number"
        return f"{kind} {self._describe_ends()}".rstrip()

    def _describe_ends(self) -> str:
        has_least = self.least > -math.inf
        has_most = self.most < (LARGEST_INT if self.whole else math.inf)
        is_open = self.open_least or self.open_most
        if has_least and has_most and not is_open:
            return f"from {self.least:,} to {self.most:,}"
        ends = []
        if has_least:
            ends.append(f"{'above' if self.open_least else 'of at least'} {self.least:,}")
        if has_most:
            ends.append(f"{'below' if self.open_most else 'of at most'} {self.most:,}")
        return " and ".join(ends)

    def from_text(self, text: str) -> float:
        try:
            return int(text) if self.whole else float(text)
        except ValueError:
            return math.nan


def at_least(least: int, most: int = LARGEST_INT) -> Range:
    """Return the range of integers from `least` to `most`, both inclusive."""
    return Range(least, most, whole=True)


def between(least: float, most: float) -> Range:
    """Return the range from `least` to `most`, both inclusive."""
    return Range(least, most)


def below(most: float) -> Range:
    """Return the range from 0 (inclusive) to `most` (exclusive), as used for dropout."""
    return Range(0.0, most, open_most=True)


def positive(infinite: bool = False) -> Range:
    """Return the range of numbers greater than 0, with infinity if `infinite` is True."""
    return Range(0, open_least=True, infinite=infinite)


NON_NEGATIVE = Range(0)
FINITE = Range()
# These limits keep loss terms within the range of float32.
LOSS_WEIGHT = Range(0, 1_000_000)
MARGIN = Range(-1_000_000, 1_000_000)
TEMPERATURE = Range(1e-6, 1_000_000)


@dataclass(frozen=True)
class FileName(Allowed):
    """Strings that can name a file or folder: valid UTF-8, without NUL, and not empty.

    An empty path would mean the working directory. PyTorch, safetensors, SentencePiece and faiss
    cannot open a file whose name is not UTF-8, and some of them report the file as damaged.

    Attributes:
        optional: allow an empty string, which means that there is no file.
        excluded: character that the name must not contain; an empty string allows all characters.
        description: description of the allowed names, for messages.
    """

    optional: bool = False
    excluded: str = ""
    description: str = "a UTF-8 file name"

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, str) or not (self.optional or value.strip()):
            return False
        if self.excluded and self.excluded in value:
            return False
        try:
            return b"\0" not in os.fsencode(value) + value.encode()
        except UnicodeEncodeError:
            # Python represents bytes that are not UTF-8 as lone surrogates.
            return False

    def __str__(self) -> str:
        return self.description


FILE_NAME = FileName()
WORK_FOLDER = FileName(
    excluded=os.pathsep,
    description=f"a UTF-8 folder name without {os.pathsep!r}, which separates data folders",
)


@dataclass(frozen=True)
class NumberList(Allowed):
    """Strings that list distinct integers in any order, such as `64,128`.

    Attributes:
        numbers: allowed range of each number.
    """

    numbers: Range

    def __contains__(self, value: Any) -> bool:
        try:
            numbers = self.parse(value)
        except (AttributeError, ValueError):
            # Not a string, or not a list of integers.
            return False
        are_different = len(set(numbers)) == len(numbers)
        return are_different and all(number in self.numbers for number in numbers)

    def __str__(self) -> str:
        return f"{self.numbers}, or several distinct numbers separated by commas"

    def parse(self, text: str) -> list[int]:
        """Parse a comma-separated list, and return the numbers in ascending order."""
        return sorted(int(number) for number in text.split(","))


def file_path(text: str) -> Path:
    """Check a file name and return it as a path; used as `type=` in argparse."""
    return Path(FILE_NAME(text))


def work_path(text: str) -> Path:
    """Check a training data folder's name and return it as a path; used as `type=` in argparse."""
    return Path(WORK_FOLDER(text))


def output_path(text: str) -> Path:
    """Check and return an output path; used as `type=` in argparse.

    `.` and `/` are rejected, because the names of side files are derived from the output's name.
    """
    if not file_path(text).name:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is invalid; expected {FILE_NAME}")
    return Path(text)


def limited(default: Any, allowed: Allowed | Sequence[str]) -> Any:
    """Declare a dataclass field with constraints that `check_fields` enforces.

        workers: int = limited(2, at_least(1))

    Args:
        default: default value.
        allowed: an `Allowed`, or a sequence of allowed words.
    """
    return option("", default, allowed)


def option(
    help: str,
    default: Any = MISSING,
    allowed: Any = None,
    only_in_files: bool = False,
    **arguments: Any,
) -> Any:
    """Declare a dataclass field that is also a command-line option.

    `cli.options.add_options` adds the options of a dataclass to a parser.

        @dataclass(frozen=True)
        class SearchOptions:
            k: int = option("neighbours per query", 5, at_least(1))

    Args:
        help: description for `--help`; "(default: ...)" is appended unless the text already
            contains it.
        default: default value; an option without one is required.
        allowed: an `Allowed`, or a sequence of allowed words, for `check_fields`.
        only_in_files: whether the option can only be set in YAML files.
        arguments: further arguments of `add_argument`, such as `nargs`, `metavar` or `type`.
    """
    metadata: dict[str, Any] = {
        "help": help,
        "arguments": arguments,
        "only_in_files": only_in_files,
    }
    if isinstance(allowed, Sequence):
        metadata["choices"] = allowed
    elif allowed is not None:
        metadata["range"] = allowed
    return field(default=default, metadata=metadata)


def check_fields(
    values: Any,
    kind: type | None = None,
    spell: Callable[[str], str] = str,
    optional: bool = False,
) -> None:
    """Check a dataclass's field values against the declared types, `range` and `choices`.

    Args:
        values: the dataclass, or another object with the fields of `kind`.
        kind: dataclass that declares the fields; defaults to the type of `values`.
        spell: converts a field name to the user's spelling, such as `--align-weight`.
        optional: whether every field may be None.

    Raises:
        InputError: if a value is not allowed; reports the first such field.
    """
    kind = kind or type(values)
    hints = get_type_hints(kind)
    for item in fields(kind):
        value = getattr(values, item.name)
        hint = hints[item.name]
        if value is None and (optional or fits(None, hint)):
            continue
        _check_field(spell(item.name), value, hint, item)


def _check_field(name: str, value: Any, hint: Any, item: Field) -> None:
    choices = item.metadata.get("choices")
    allowed = item.metadata.get("range")
    is_list = get_origin(hint) is tuple
    if choices is not None and (not isinstance(value, str) or value not in choices):
        raise InputError(f"{name} {shown(value)} is invalid; choose from {', '.join(choices)}")
    # For a plain value, checking the range also checks the type.
    if (allowed is None or is_list) and not fits(value, hint):
        raise InputError(f"{name} {shown(value)} is invalid; expected {_describe_in_yaml(hint)}")
    if allowed is not None:
        for element in value if is_list else (value,):
            allowed.check(name, element)


def _describe_in_yaml(hint: Any) -> str:
    description = describe_type(hint)
    if "mapping" in description:
        description += " ('no' and '1' are text only if quoted)"
    return description


PLAIN_TYPES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    NoneType: "null",
}


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value matches a type hint: a plain type, or a union, mapping or tuple.

    A bool does not match int or float, and an int matches float. If the hint is any other type,
    every value matches.
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in inner)
    if origin is Mapping:
        return _fits_mapping(value, *inner)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(part, inner[0]) for part in value)
    if hint not in PLAIN_TYPES or type(value) is hint:
        return True
    return hint is float and type(value) is int


def _fits_mapping(value: Any, key_hint: Any, value_hint: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(fits(key, key_hint) and fits(value[key], value_hint) for key in value)


def describe_type(hint: Any) -> str:
    """Describe a type for a message, for example `an integer or null`."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is Mapping:
        return f"a mapping of {describe_type(inner[0])} to {describe_type(inner[1])}"
    if origin is tuple:
        return f"a list of {describe_type(inner[0])}"
    return PLAIN_TYPES.get(hint, "another value")


def read_yaml_config(path: Path, kind: type[Config]) -> Config:
    """Read a YAML file into a dataclass, and check its values.

    File names in the file are relative to the working directory.
    """
    content = read_yaml(path)
    try:
        return from_mapping(content, kind, "the file")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; tags that create objects are rejected."""
    require("yaml", "prepare", f"{path}:")
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            names = set()
            for key, _ in node.value:
                if key.value in names:
                    raise ValueError(f"the key {key.value} occurs twice")
                names.add(key.value)
            return super().construct_mapping(node, deep)

    if not path.is_file():
        raise InputError(f"{path}: no such file; specify a YAML file")
    try:
        # A subclass of SafeLoader only creates plain values.
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise InputError(f"{path}: not a YAML file ({' '.join(str(error).split()):.300})") from None


def from_mapping(content: Any, kind: type[Config], place: str) -> Config:
    """Create a dataclass from a mapping, and check its keys and values.

    Args:
        content: parsed YAML or JSON; nested mappings and lists become nested dataclasses and
            tuples.
        kind: the dataclass to create.
        place: name of the mapping in messages.

    Raises:
        InputError: if the content is not a mapping, or a key is unknown or missing.
    """
    items = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    _check_keys(content, items, place)
    hints = get_type_hints(kind)
    values = {}
    for name, value in content.items():
        if is_dataclass(hints[name]):
            value = from_mapping(value, hints[name], name)
        elif get_origin(hints[name]) is tuple and isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)


def _check_keys(content: Any, items: Mapping[str, Field], place: str) -> None:
    """Check that `content` is a mapping with all required keys and no unknown keys."""
    expected = f"some of {', '.join(items)}"
    if not isinstance(content, Mapping):
        raise InputError(f"{place} is {shown(content)}; expected a mapping with {expected}")
    for name in content:
        if name not in items:
            raise InputError(f"{place} has an unknown key {shown(name)}; expected {expected}")
    for name, item in items.items():
        is_required = item.default is MISSING and item.default_factory is MISSING
        if is_required and name not in content:
            raise InputError(f"{place} lacks the required key {name!r}")


# Data types in which embeddings can be computed.
COMPUTE_DTYPES = ("float32", "bfloat16", "float16", "int8")
# Data types in which a model can be trained on a CPU.
CPU_PRECISIONS = ("float32", "bfloat16", "auto")
# Data types of a trained model's weights, and of stored weights.
WEIGHT_TYPES = ("float32", "float16", "bfloat16")
STORED_TYPES = (*WEIGHT_TYPES, "int8", "int4")
# Types of weights in a sentence-transformers folder of a model without layers.
STATIC_TYPES = ("float32", "float16", "int8")
# Sources of replacement sentences for training on monolingual text.
CONTEXT_NEGATIVES = ("language", "corpus")
# Languages of the two sentences of a pair that is mined in monolingual text.
PAIR_LANGUAGES = ("different", "any")
# Names of the pooling functions in modules/pooling.py.
POOLING_NAMES = ("mean", "mean_max")
ON_LONG = ("cut", "split-mean", "error")
WORD_WEIGHTS = ("mean", "sum", "idf")

EMBEDDING_FORMATS = ("npy", "parquet", "raw", "safetensors")
EMBEDDING_DTYPES = ("float32", "float16", "int8", "binary")
INDEX_KINDS = ("flat", "float16", "int8")
# Index types for mining, which searches for the k nearest neighbours of every sentence.
MINING_KINDS = ("flat", "int8", "binary")

SEARCH_PRECISIONS = ("float32", "bfloat16")
MARGINS = ("ratio", "distance", "absolute")
RETRIEVALS = ("max", "intersect", "fwd", "bwd", "all")
# Maps each ranking metric from its name in options to its name in score signatures.
RANKING_METRICS = {"nn": "nn-cosine", "csls": "csls-k10", "margin": "margin-ratio-k4-of-100"}
# The same for the ranking metrics of passages.
PASSAGE_METRICS = {
    "nn": "nn-cosine",
    "passages": "index-maxsim-pairs-of-100-prefix-bm25-by-language",
    "bm25": "bm25-k1.5-b0.75",
}

# Collections of several languages: each passage in one of them, or in all.
POOLS = ("one", "all")

# BUCC variants: learnt threshold, threshold tuned on the evaluation data, and mteb's two variants.
BUCC_FORMS = ("learned", "oracle", "mteb-v2", "mteb-v1")
BUCC_PARTS = ("sample", "training", "test")

CLASSIFIERS = ("mlp", "linear")
XNLI_PRESETS = ("laser", "wang")
# Which of several equally good epochs to keep.
TIES = ("first", "last")

# Number of bootstrap samples.
BOOTSTRAP_DRAWS = 1000
