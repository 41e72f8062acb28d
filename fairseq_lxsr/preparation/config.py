"""Options of `lxsr prepare`, of the command line and of CONFIG.yaml alike, checked before anything
runs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.options import FILE_NAME, at_least, between, check_fields, option
from fairseq_lxsr.preparation.clean import FILTERS, MESSAGE_FILTERS, check_filters
from fairseq_lxsr.preparation.tables import TABLE_NAME, parse_columns
from fairseq_lxsr.text.languages import split_pair

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
TextName = str | None  # None: the gettext catalogues of this machine
Sources = Mapping[str, TextName | tuple[str, ...]]
SOURCE_NAME = re.compile(r"\w[\w.+-]{0,63}")
MAX_SHARDS = 512  # each shard is an open file in the binarise stage
MAX_WORKERS = 1024


def filters_named(text: str) -> dict[str, dict[str, Any]]:
    """Parse names of filters with commas between them; their options are those by default."""
    return {name: {} for name in text.split(",") if name}


@dataclass(frozen=True)
class Cleaning:
    """Options of cleaning, which precedes the split of a corpus.

    None depends on the text: program messages are filtered, and a side may not be repeated; other
    text is not filtered, and a pair may not be repeated. Sentences are compared by
    `clean.comparable`.
    """

    filters: Mapping[str, Mapping[str, Any] | None] | None = option(
        f"drop pairs by some of {', '.join(FILTERS)}, in the order in which you name them; a CONFIG.yaml can set their "
        f"options (default: {','.join(MESSAGE_FILTERS)} for catalogues, none for own text)",
        None,
        type=filters_named,
        metavar="NAMES",
    )
    repeats: str | None = option(
        "what is dropped as a duplicate: a pair, or a sentence of either side (default: side for catalogues, pair for "
        "own text)",
        None,
        REPEATS,
    )
    exclude: tuple[str, ...] = option(
        "evaluation text, in any format of --data; no pair with one of its sentences is used",
        (),
        FILE_NAME,
        nargs="+",
        metavar="FILE",
    )
    keep_dropped: bool = option("write dropped pairs and why to dropped.tsv.gz", False)

    def __post_init__(self):
        check_fields(self)
        check_filters(self.filters or {})

    def for_text(self, is_messages: bool) -> "Cleaning":
        """Return a copy in which values of None are replaced by those that suit the text."""
        chosen = (
            self.filters if self.filters is not None else (MESSAGE_FILTERS if is_messages else {})
        )
        filters = {name: dict(options or {}) for name, options in chosen.items()}
        return replace(
            self, filters=filters, repeats=self.repeats or ("side" if is_messages else "pair")
        )


DEFAULT_CLEANING = Cleaning()


@dataclass(frozen=True)
class SubwordOptions:
    """Options of splitting text into pieces."""

    vocab_size: int = option(
        "entries of the joint dictionary, specials included; the paper: 50000",
        16_000,
        at_least(1, 10_000_000),
    )
    lowercase: bool = option(
        "lower-case all text, here and later when encoding (default: yes; --no-lowercase keeps capitals)",
        True,
    )
    character_coverage: float = option(  # the range that SentencePiece accepts
        "share of the characters of all languages that get a piece; the rarest are unknown",
        1.0,
        between(0.98, 1),
    )
    max_sentences: int = option(
        "lines that SentencePiece learns from, on average because each is drawn by itself; equally many of each "
        "language where available",
        1_000_000,
        at_least(1),
        only_in_files=True,
    )
    model_type: str = option("kind of SentencePiece model", "bpe", MODEL_TYPES)
    byte_fallback: bool = option("unknown characters as bytes instead of <unk>", False)
    normalisation: str = option(
        "normalization rule of SentencePiece, stored in its model",
        "nmt_nfkc",
        NORMALISATIONS,
        only_in_files=True,
    )
    split_han: bool = option("treat every Chinese character as a word", False, only_in_files=True)
    simplify_chinese: bool = option(
        "read traditional Chinese characters as simplified ones in all text, here and later when encoding",
        False,
    )
    from_model: str | None = option(
        "take the pieces and the reading of text of a model that `lxsr train --from` will go on from, and add pieces "
        "for languages that it lacks; of the options of pieces only --new-pieces counts then",
        None,
        FILE_NAME,
        metavar="MODEL",
    )
    new_pieces: int = option(
        "with --from-model: most pieces that are added", 8000, at_least(0, 10_000_000)
    )

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class PrepareConfig:
    """Options of the whole preparation."""

    pairs: Mapping[str, TextName | Sources] = option(
        "text of each language pair SRC-TGT, as for --data; null for the gettext catalogues of this machine. Several "
        "sources (kinds of text) of a pair are a mapping of their names to text, or to lists of it",
        only_in_files=True,
    )
    work: str = option(
        "holds corpus/SRC-TGT, subwords and data-bin", "work", FILE_NAME, metavar="FOLDER"
    )
    cleaning: Cleaning = DEFAULT_CLEANING
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int | None = option(
        "pairs held out for validation; 0: none, for training with --disable-validation (default: 1000, and at most "
        "5 %% of the text)",
        None,
        at_least(0),
    )
    test_size: int | None = option(
        "pairs held out for testing; 0: none (default: 2000, and at most 10 %% of the text)",
        None,
        at_least(0),
    )
    seed: int = option("of the draw of held-out pairs", 1, at_least(0))
    workers: int = option("processes", 2, at_least(1, MAX_WORKERS))
    shards: int = option(
        "parts of the training data, data-bin/0 to N-1, for corpora larger than the memory",
        1,
        at_least(1, MAX_SHARDS),
    )
    columns: str | None = option(
        "columns of source and target in .tsv and .csv files, from 1 or by name (default: those that a header names, "
        "else the first two of text)",
        None,
        metavar="I,J",
    )

    def __post_init__(self):
        check_fields(self)
        if not self.pairs:
            raise InputError("pairs: none; expected for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(pair)
            _check_texts(pair, text)
        if self.columns is not None:
            parse_columns(self.columns)
            if not any(map(TABLE_NAME.search, _texts(self.pairs))):
                raise InputError(
                    f"columns {self.columns} without a .tsv or .csv file; leave it out"
                )
        named = {"-".join(split_pair(pair)): text for pair, text in self.pairs.items()}
        if len(named) < len(self.pairs):
            raise InputError(f"pairs: {', '.join(self.pairs)}; expected each pair once")
        object.__setattr__(self, "pairs", named)


def _texts(pairs: Mapping[str, TextName | Sources]) -> Iterator[str]:
    """Yield the names of all texts."""
    for text in pairs.values():
        for one in text.values() if isinstance(text, Mapping) else (text,):
            yield from (one,) if isinstance(one, str) else one or ()


def _check_texts(pair: str, texts: TextName | Sources) -> None:
    """Check the text of a language pair, and the names of its sources."""
    if not isinstance(texts, Mapping):
        _check_text(pair, texts)
        return
    if not texts:
        raise InputError(
            f"pairs: {pair} has no source; expected for example {{law: PREFIX, speech: PREFIX}}"
        )
    for name, text in texts.items():
        if not SOURCE_NAME.fullmatch(name):
            raise InputError(
                f"pairs: {pair} has a source {shown(name)}; expected a name of at most 64 letters, digits and _.+-"
            )
        for one in text if isinstance(text, tuple | list) and text else [text]:
            _check_text(f"{pair} {name}", one)


def _check_text(name: str, text: Any) -> None:
    if text is not None and text not in FILE_NAME:
        raise InputError(f"pairs: {name} is {shown(text)}; expected the name of its text, or null")
