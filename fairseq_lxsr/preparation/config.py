"""Options of `lxsr prepare`, on the command line and in CONFIG.yaml.

All options are checked before anything runs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_lxsr.errors import InputError, listed, shown
from fairseq_lxsr.files.entities import ENTITIES, ENTITIES_HELP
from fairseq_lxsr.options import FILE_NAME, WORK_FOLDER, at_least, between, check_fields, option
from fairseq_lxsr.preparation.clean import FILTERS, MESSAGE_FILTERS, check_filters
from fairseq_lxsr.preparation.tables import TABLE_NAME, parse_columns
from fairseq_lxsr.text.languages import split_pair

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "folded", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
# None means the gettext catalogues on this machine.
TextName = str | None
Sources = Mapping[str, TextName | tuple[str, ...]]
SOURCE_NAME = re.compile(r"\w[\w.+-]{0,63}")
# The binarise stage keeps a file open for each shard.
MAX_SHARDS = 512
MAX_WORKERS = 1024


def filters_named(text: str) -> dict[str, dict[str, Any]]:
    """Parse comma-separated filters, each with its options.

        filters_named("identical,length:shortest=1:longest=80")
        # {"identical": {}, "length": {"shortest": 1, "longest": 80}}

    Args:
        text: filters, each written as NAME or NAME:OPTION=VALUE[:OPTION=VALUE].

    Raises:
        InputError: if an option has no value.
    """
    filters: dict[str, dict[str, Any]] = {}
    for description in text.split(","):
        name, *assignments = description.split(":")
        options = {}
        for assignment in assignments:
            option_name, equals, value = assignment.partition("=")
            if not equals:
                raise InputError(
                    f"--filters: filter {name!r}: no value in {shown(assignment)}; expected "
                    "OPTION=VALUE"
                )
            options[option_name] = _number_or_text(value)
        if description:
            filters[name] = options
    return filters


def _number_or_text(value: str) -> int | float | str:
    """Convert a value to a number if possible; otherwise, return it unchanged."""
    for number_type in (int, float):
        try:
            return number_type(value)
        except ValueError:
            continue
    return value


@dataclass(frozen=True)
class Cleaning:
    """Options for cleaning a corpus before it is split into train, valid and test.

    None selects a default that depends on the text. By default, program messages are filtered, and
    no sentence may be repeated on either side. Other text is not filtered, and no pair may be
    repeated. Sentences are compared by `clean.comparable`.
    """

    filters: Mapping[str, Mapping[str, Any] | None] | None = option(
        "comma-separated filters that drop pairs, chosen from "
        f"{', '.join(FILTERS)}, in the order in which to apply them; options follow the name, as "
        "in length:shortest=1:longest=80 or language:method=py3langid "
        f"(default: {','.join(MESSAGE_FILTERS)} for catalogues, none for your own text)",
        None,
        type=filters_named,
        metavar="NAMES",
    )
    repeats: str | None = option(
        "which duplicates to drop: pair (repeated pairs), side (pairs with a repeated sentence on "
        "either side), keep (none) (default: side for catalogues, pair for your own text)",
        None,
        REPEATS,
    )
    exclude: tuple[str, ...] = option(
        "evaluation text, in any format that --data supports; pairs that contain one of its "
        "sentences are dropped",
        (),
        FILE_NAME,
        nargs="+",
        metavar="FILE",
    )
    keep_dropped: bool = option("write dropped pairs to dropped.tsv.gz with reasons", False)
    entities: str = option(ENTITIES_HELP, ENTITIES[0], ENTITIES)

    def __post_init__(self):
        check_fields(self)
        check_filters(self.filters or {})

    def for_text(self, is_messages: bool) -> "Cleaning":
        """Return a copy in which None is replaced with the defaults for the kind of text.

        Args:
            is_messages: whether the text consists of program messages.
        """
        default_filters = MESSAGE_FILTERS if is_messages else {}
        default_repeats = "side" if is_messages else "pair"
        chosen = default_filters if self.filters is None else self.filters
        filters = {name: dict(options or {}) for name, options in chosen.items()}
        return replace(self, filters=filters, repeats=self.repeats or default_repeats)


DEFAULT_CLEANING = Cleaning()


@dataclass(frozen=True)
class SubwordOptions:
    """Options for learning word pieces and normalizing text."""

    vocab_size: int | None = option(
        "size of the joint dictionary, including special symbols; the paper uses 50000 (default: "
        "8000; 16000 for at least 20,000 training pairs, 32000 for at least 500,000; less if a "
        "small text does not yield as many pieces)",
        None,
        at_least(1, 10_000_000),
        metavar="N",
    )
    lowercase: bool = option(
        "lowercase all text, here and when encoding (default: yes; --no-lowercase keeps capitals)",
        True,
    )
    # SentencePiece accepts values from 0.98 to 1.
    character_coverage: float = option(
        "fraction of characters covered by the vocabulary, over all languages; the rarest "
        "characters become unknown",
        1.0,
        between(0.98, 1),
    )
    max_sentences: int = option(
        "approximate number of lines to train SentencePiece on, sampled equally from each "
        "language if available",
        1_000_000,
        at_least(1),
        only_in_files=True,
    )
    model_type: str = option("SentencePiece model type", "bpe", MODEL_TYPES)
    byte_fallback: bool = option("encode unknown characters as bytes instead of <unk>", False)
    normalisation: str = option(
        "normalization rule, which is stored in the SentencePiece model: a rule of SentencePiece, "
        "or folded, which also replaces variants of a character, such as the digits of different "
        "scripts, with one of them",
        "nmt_nfkc",
        NORMALISATIONS,
        only_in_files=True,
    )
    split_han: bool = option("treat Chinese characters as words", False, only_in_files=True)
    simplify_chinese: bool = option(
        "convert traditional Chinese characters to simplified ones in all text, here and when "
        "encoding",
        False,
    )
    from_model: str | None = option(
        "reuse the pieces and text normalization of the model that `lxsr train --from` will "
        "start from, and add pieces for languages that it does not support; other word piece "
        "options, except --new-pieces, are then ignored",
        None,
        FILE_NAME,
        metavar="MODEL",
    )
    new_pieces: int = option(
        "with --from-model: maximum number of pieces to add", 8000, at_least(0, 10_000_000)
    )

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class PrepareConfig:
    """All options of `lxsr prepare`."""

    pairs: Mapping[str, TextName | Sources] = option(
        "text of each language pair SRC-TGT, see --data; null for the gettext catalogues on "
        "this machine. For several sources (kinds of text), map each source name to a text "
        "or a list of texts",
        only_in_files=True,
    )
    work: str = option(
        "output folder, with subfolders corpus/SRC-TGT, subwords and data-bin",
        "work",
        WORK_FOLDER,
        metavar="FOLDER",
    )
    cleaning: Cleaning = DEFAULT_CLEANING
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int | None = option(
        "pairs held out for validation; 0 for none, to train with --disable-validation "
        "(default: 1000, but at most 5 %% of the text)",
        None,
        at_least(0),
    )
    test_size: int | None = option(
        "pairs held out for testing; 0 for none (default: 2000, but at most 10 %% of the text)",
        None,
        at_least(0),
    )
    seed: int = option("random seed for choosing held-out pairs", 1, at_least(0))
    workers: int = option("number of processes", 2, at_least(1, MAX_WORKERS))
    shards: int = option(
        "number of shards of the training data, data-bin/0 to N-1, for corpora that do not fit "
        "into memory",
        1,
        at_least(1, MAX_SHARDS),
    )
    columns: str | None = option(
        "source and target columns in .tsv and .csv files, by one-based number or by name "
        "(default: the columns named in the header, or else the first two with text)",
        None,
        metavar="I,J",
    )

    def __post_init__(self):
        check_fields(self)
        if not self.pairs:
            raise InputError("pairs is empty; specify a text, for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(pair)
            _check_texts(pair, text)
        if self.columns is not None:
            parse_columns(self.columns)
            if not any(map(TABLE_NAME.search, _texts(self.pairs))):
                raise InputError(
                    f"columns {self.columns} only applies to .tsv and .csv files; omit it"
                )
        named = {"-".join(split_pair(pair)): text for pair, text in self.pairs.items()}
        if len(named) < len(self.pairs):
            raise InputError(
                f"pairs: a pair is repeated in {listed(self.pairs)}; list each pair once"
            )
        object.__setattr__(self, "pairs", named)


def _texts(pairs: Mapping[str, TextName | Sources]) -> Iterator[str]:
    """Yield the paths of all configured texts."""
    for sources in pairs.values():
        if not isinstance(sources, Mapping):
            sources = {"": sources}
        for text in sources.values():
            if isinstance(text, str):
                yield text
            elif text is not None:
                yield from text


def _check_texts(pair: str, texts: TextName | Sources) -> None:
    """Check the text configured for a language pair, and the names of its sources."""
    if not isinstance(texts, Mapping):
        _check_text(pair, texts)
        return
    if not texts:
        raise InputError(
            f"pairs: {pair} has no source; specify sources, for example "
            f"{{law: PREFIX, speech: PREFIX}}"
        )
    for name, text in texts.items():
        if not SOURCE_NAME.fullmatch(name):
            raise InputError(
                f"pairs: {pair} has an invalid source name {shown(name)}; use at most 64 "
                "letters, digits and _.+-"
            )
        names = [text]
        if isinstance(text, tuple | list) and text:
            names = list(text)
        for text_name in names:
            _check_text(f"{pair} {name}", text_name)


def _check_text(name: str, text: Any) -> None:
    if text is not None and text not in FILE_NAME:
        raise InputError(f"pairs: {name} is {shown(text)}; specify the path of its text, or null")
