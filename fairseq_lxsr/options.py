"""What values options may have: declared once at the option, checked alike on the command line, in
YAML and in JSON.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.machine import require

Config = TypeVar("Config")
LARGEST_INT = 2**31 - 1  # largest whole number where no smaller limit is declared


class Allowed:
    """What values an option may have: `in` asks, `str` says what is expected, and argparse takes it
    as `type=`.
    """

    def __contains__(self, value: Any) -> bool:
        raise NotImplementedError

    def check(self, name: str, value: Any) -> None:
        """Check a value of YAML, JSON or fairseq."""
        if value not in self:
            raise InputError(f"{name} {shown(value)}; expected {self}")

    def from_text(self, text: str) -> Any:
        """Convert a text of the command line; a value that is not allowed stands for one that
        cannot be converted.
        """
        return text

    def __call__(self, text: str) -> Any:
        value = self.from_text(text)
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r:.60}; expected {self}")
        return value


@dataclass(frozen=True)
class Range(Allowed):
    """Numbers from `least` to `most`; NaN is never allowed.

        parser.add_argument("--k", type=at_least(1), default=5)
        dropout: float = field(default=0.1, metadata={"help": "...", "range": below(1)})

    Args:
        least: lower end, allowed itself.
        most: upper end, allowed itself.
        whole: allow whole numbers only.
        open_least: exclude the lower end itself.
        open_most: exclude the upper end itself.
        infinite: allow infinity.
    """

    least: float = -math.inf
    most: float = math.inf
    whole: bool = False
    open_least: bool = False
    open_most: bool = False
    infinite: bool = False

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, int if self.whole else int | float) or isinstance(value, bool):
            return False
        if not self.whole and not self._is_number(value):
            return False
        above = value > self.least if self.open_least else value >= self.least
        return above and (value < self.most if self.open_most else value <= self.most)

    def _is_number(self, value: float) -> bool:
        try:
            return not math.isnan(value) and (self.infinite or not math.isinf(value))
        except OverflowError:  # an integer beyond the range of floats
            return False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = (
            f"{'above' if self.open_least else 'of at least'} {self.least:,}"
            if self.least > -math.inf
            else ""
        )
        is_limited = self.most < (LARGEST_INT if self.whole else math.inf)
        high = f"{'below' if self.open_most else 'of at most'} {self.most:,}" if is_limited else ""
        return " ".join((kind, " and ".join(filter(None, (low, high))))).strip()

    def from_text(self, text: str) -> float:
        try:
            return int(text) if self.whole else float(text)
        except ValueError:
            return math.nan


def at_least(least: int, most: int = LARGEST_INT) -> Range:
    """Return the range of whole numbers from `least` to `most`."""
    return Range(least, most, whole=True)


def between(least: float, most: float) -> Range:
    """Return the range from `least` to `most`, both allowed."""
    return Range(least, most)


def below(most: float, least: float = 0.0) -> Range:
    """Return the range from `least` up to but excluding `most`, for example of a dropout
    probability.
    """
    return Range(least, most, open_most=True)


def positive(infinite: bool = False) -> Range:
    """Return the range of numbers above 0."""
    return Range(0, open_least=True, infinite=infinite)


NON_NEGATIVE = Range(0)
# weights of loss terms, which are float32
LOSS_WEIGHT, MARGIN, TEMPERATURE = (
    Range(0, 1_000_000),
    Range(-1_000_000, 1_000_000),
    Range(1e-6, 1_000_000),
)
FINITE = Range()


@dataclass(frozen=True)
class FileName(Allowed):
    """Texts that can name a file or folder: not empty (which would be the current folder), without
    NUL, and in UTF-8.

    PyTorch, safetensors, SentencePiece and faiss cannot open a file whose name is not UTF-8; some
    call it damaged. An empty text, which stands for no file, is allowed where it is `optional`;
    `what` describes the expected value.
    """

    optional: bool = False
    what: str = "a file name in UTF-8"

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, str) or not (self.optional or value.strip()):
            return False
        try:
            return b"\0" not in os.fsencode(value) + value.encode()
        except (
            UnicodeEncodeError
        ):  # half of a surrogate pair, as Python shows bytes that are not UTF-8
            return False

    def __str__(self) -> str:
        return self.what


FILE_NAME = FileName()


@dataclass(frozen=True)
class NumberList(Allowed):
    """Texts that list different numbers of a range in any order, separated by commas, for example
    `64,128`.
    """

    of: Range

    def __contains__(self, value: Any) -> bool:
        try:
            numbers = self.parse(value)
        except (AttributeError, ValueError):  # not a text, or not of numbers
            return False
        return len(set(numbers)) == len(numbers) and all(number in self.of for number in numbers)

    def __str__(self) -> str:
        return f"{self.of}, or several different ones separated by commas"

    def parse(self, text: str) -> list[int]:
        """Return the numbers in ascending order."""
        return sorted(int(number) for number in text.split(","))


def file_path(text: str) -> Path:
    """Check a file name and return it as a path, as `type=` of argparse."""
    return Path(FILE_NAME(text))


def output_path(text: str) -> Path:
    """Check the path of an output with side files; `.` and `/` have no name to derive theirs
    from.
    """
    if not file_path(text).name:
        raise argparse.ArgumentTypeError(f"{text!r:.60}; expected {FILE_NAME}")
    return Path(text)


def limited(default: Any, allowed: Allowed | Sequence[str]) -> Any:
    """Declare a field of a dataclass that `check_fields` checks: `workers: int = limited(2,
    at_least(1))`.
    """
    return option("", default, allowed)


def option(
    help: str,
    default: Any = MISSING,
    allowed: Any = None,
    only_in_files: bool = False,
    **arguments: Any,
) -> Any:
    """Declare a field of a dataclass that is an option of the command line too, see
    `cli.options.add_options`.

        @dataclass(frozen=True)
        class SearchOptions:
            k: int = option("neighbours of a query", 5, at_least(1))

    Args:
        help: what `--help` says; the default is added to it, unless it names one.
        default: default value; without one, the option is required.
        allowed: what `check_fields` allows: range of a number, a kind of file name, or the allowed
            words.
        only_in_files: whether YAML files alone have the option.
        arguments: other arguments of `add_argument`, for example `nargs`, `metavar`, or a `type` that
            parses.
    """
    kind = (
        {}
        if allowed is None
        else {"choices" if isinstance(allowed, Sequence) else "range": allowed}
    )
    return field(
        default=default,
        metadata={"help": help, **kind, "arguments": arguments, "only_in_files": only_in_files},
    )


def check_fields(
    values: Any,
    kind: type | None = None,
    spell: Callable[[str], str] = str,
    where: str = "",
    optional: bool = False,
) -> None:
    """Check the types of a dataclass's fields, and the `range` or `choices` in their metadata.

    `values` may be another object with the fields of `kind`; `spell` returns the name of a field as
    the user writes it, for example `--align-weight`; `where` stands before it in messages; None is
    allowed for every field where `optional`.
    """
    kind = kind or type(values)
    hints = get_type_hints(kind)
    for item in fields(kind):
        value, hint = getattr(values, item.name), hints[item.name]
        if value is None and (optional or fits(None, hint)):
            continue
        name, choices, allowed = (
            f"{where}{spell(item.name)}",
            item.metadata.get("choices"),
            item.metadata.get("range"),
        )
        is_list = get_origin(hint) is tuple
        if choices is not None and (not isinstance(value, str) or value not in choices):
            raise InputError(f"{name} {shown(value)}; expected one of {', '.join(choices)}")
        if (allowed is None or is_list) and not fits(value, hint):
            words = describe_type(hint)
            note = " ('no' and '1' are text in quotes only)" if "mapping" in words else ""
            raise InputError(f"{name} {shown(value)}; expected {words}{note}")
        if allowed is not None:
            for one in value if is_list else (value,):
                allowed.check(name, one)


PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type: a plain type, union, mapping or tuple of them; other types
    fit any value.

    A bool does not fit a number, and an int fits a float.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(value[key], inner[1]) for key in value
        )
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(part, inner[0]) for part in value)
    return hint not in PLAIN or type(value) is hint or (hint is float and type(value) is int)


def describe_type(hint: Any) -> str:
    """Describe a type in words, for messages."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is Mapping:
        return f"a mapping of {describe_type(inner[0])} to {describe_type(inner[1])}"
    return (
        f"a list of {describe_type(inner[0])}"
        if origin is tuple
        else PLAIN.get(hint, "another value")
    )


def read_yaml_config(path: Path, kind: type[Config]) -> Config:
    """Read a YAML file into a dataclass that checks its values; file names in it are relative to
    the current folder.
    """
    content = read_yaml(path)
    try:
        return from_mapping(content, kind, "the file")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; tags that create objects are refused."""
    require("yaml", "train", f"{path}:")
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            names = [key.value for key, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{twice[0]} is there twice")
            return super().construct_mapping(node, deep)

    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file")
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)  # safe
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise InputError(f"{path}: not a YAML file ({' '.join(str(error).split()):.300})") from None


def from_mapping(content: Any, kind: type[Config], where: str) -> Config:
    """Create a dataclass from a mapping, `where` in messages; what is nested becomes nested
    dataclasses and tuples.
    """
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(content, Mapping):
        raise InputError(
            f"{where} is {shown(content)}; expected a mapping with some of {', '.join(known)}"
        )
    for name in content:
        if name not in known:
            raise InputError(f"{where} has {shown(name)}; expected some of {', '.join(known)}")
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in content:
            raise InputError(f"{where} has no {name!r}")
    hints = get_type_hints(kind)
    values = {}
    for name, value in content.items():
        if is_dataclass(hints[name]):
            value = from_mapping(value, hints[name], name)
        elif get_origin(hints[name]) is tuple and isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)


COMPUTE_DTYPES = ("float32", "bfloat16", "float16", "int8")  # precisions of the computation
CPU_PRECISIONS = ("float32", "bfloat16", "auto")  # precisions of training
WEIGHT_TYPES = ("float32", "float16", "bfloat16")  # types of weights
STORED_TYPES = (*WEIGHT_TYPES, "int8", "int4")  # types of weights on disk
# where training without parallel text draws sentences to put in
CONTEXT_NEGATIVES = ("language", "corpus")
POOLING_NAMES = ("mean", "mean_max")  # functions of modules/pooling.py
ON_LONG = ("cut", "split-mean", "error")
WORD_WEIGHTS = ("mean", "sum", "idf")

EMBEDDING_FORMATS = ("npy", "parquet", "raw", "safetensors")
EMBEDDING_DTYPES = ("float32", "float16", "int8", "binary")
INDEX_KINDS = ("flat", "float16", "int8", "binary", "ivf", "ivf-pq")
MINING_KINDS = ("flat", "int8", "binary")  # that find k neighbours of every sentence

SEARCH_PRECISIONS = ("float32", "bfloat16")
MARGINS = ("ratio", "distance", "absolute")
RETRIEVALS = ("max", "intersect", "fwd", "bwd", "all")
# ways to rank candidates, as named in options and in signatures of scores
RANKING_METRICS = {"nn": "nn-cosine", "csls": "csls-k10", "margin": "margin-ratio-k4-of-100"}

# what is called BUCC: threshold learned on another part, threshold chosen on the same part, and
# mteb's two, without one
BUCC_FORMS = ("learned", "oracle", "mteb-v2", "mteb-v1")
BUCC_PARTS = ("sample", "training", "test")

CLASSIFIERS = ("mlp", "linear")
XNLI_PRESETS = ("laser", "wang")
TIES = ("first", "last")  # epoch kept of several that are equally good

BOOTSTRAP_DRAWS = 1000  # draws of the bootstrap

# former options of fairseq-train, and the one value of each that commands, recipes and checkpoints
# may still name
REMOVED_OPTIONS: Mapping[str, bool | int | float] = {
    "activation-dropout": 0.0,
    "adam-eps": 1e-8,
    "constraint-every": 1,
    "context": 1,
    "detach-mean-norm": False,  # now one of the values of --constraint
    "distill-weight": 1.0,
    "mask-same-text": False,
    "near-size": 32,
    "translation-weight": 0.5,
}
