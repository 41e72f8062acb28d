"""Options of `lxsr prepare` on the command line and in CONFIG.yaml.

They are checked before anything runs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_lxsr.errors import InputError, listed, shown
from fairseq_lxsr.options import FILE_NAME, WORK_FOLDER, at_least, between, check_fields, option
from fairseq_lxsr.preparation.clean import FILTERS, MESSAGE_FILTERS, check_filters
from fairseq_lxsr.preparation.tables import TABLE_NAME, parse_columns
from fairseq_lxsr.text.languages import split_pair

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
# None stands for the gettext catalogues of this machine.
TextName = str | None
Sources = Mapping[str, TextName | tuple[str, ...]]
SOURCE_NAME = re.compile(r"\w[\w.+-]{0,63}")
# Each shard is an open file in the binarise stage.
MAX_SHARDS = 512
MAX_WORKERS = 1024


def filters_named(text: str) -> dict[str, dict[str, Any]]:
    """Parse comma-separated names of filters, which get their default options."""
    return {name: {} for name in text.split(",") if name}


@dataclass(frozen=True)
class Cleaning:
    """Options of cleaning, which comes before the split of a corpus.

    The defaults for None depend on the text. Program messages are filtered, and no sentence of a
    side may be repeated; other text is not filtered, and no pair may be repeated. Sentences are
    compared by `clean.comparable`.
    """

    filters: Mapping[str, Mapping[str, Any] | None] | None = option(
        f"filters that drop pairs, some of {', '.join(FILTERS)}, in the order in which they are "
        "applied; a CONFIG.yaml can set their options (default: "
        f"{','.join(MESSAGE_FILTERS)} for catalogues, none for your own text)",
        None,
        type=filters_named,
        metavar="NAMES",
    )
    repeats: str | None = option(
        "what counts as a duplicate and is dropped: a repeated pair, or a repeated sentence on "
        "either side (default: side for catalogues, pair for your own text)",
        None,
        REPEATS,
    )
    exclude: tuple[str, ...] = option(
        "evaluation text, in any format of --data; pairs with one of its sentences are dropped",
        (),
        FILE_NAME,
        nargs="+",
        metavar="FILE",
    )
    keep_dropped: bool = option("write dropped pairs to dropped.tsv.gz, with the reason", False)

    def __post_init__(self):
        check_fields(self)
        check_filters(self.filters or {})

    def for_text(self, is_messages: bool) -> "Cleaning":
        """Return a copy with the defaults for the text instead of None.

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
    """Options of splitting text into word pieces."""

    vocab_size: int = option(
        "entries of the joint dictionary, including special symbols; the paper uses 50000",
        16_000,
        at_least(1, 10_000_000),
    )
    lowercase: bool = option(
        "lower-case all text, here and when encoding (default: yes; --no-lowercase keeps capitals)",
        True,
    )
    # SentencePiece accepts this range.
    character_coverage: float = option(
        "share of the characters of all languages that get a piece; the rarest are unknown",
        1.0,
        between(0.98, 1),
    )
    max_sentences: int = option(
        "average number of lines from which SentencePiece learns, because each line is drawn by "
        "itself; the same number of each language if available",
        1_000_000,
        at_least(1),
        only_in_files=True,
    )
    model_type: str = option("kind of SentencePiece model", "bpe", MODEL_TYPES)
    byte_fallback: bool = option("encode unknown characters as bytes instead of <unk>", False)
    normalisation: str = option(
        "normalization rule of SentencePiece, which is stored in its model",
        "nmt_nfkc",
        NORMALISATIONS,
        only_in_files=True,
    )
    split_han: bool = option("treat every Chinese character as a word", False, only_in_files=True)
    simplify_chinese: bool = option(
        "convert traditional Chinese characters to simplified ones in all text, here and when "
        "encoding",
        False,
    )
    from_model: str | None = option(
        "use the pieces and the text normalization of the model that `lxsr train --from` will "
        "start from, and add pieces for languages that it does not support; of the options of "
        "pieces only --new-pieces is used then",
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
    """Options of the whole preparation."""

    pairs: Mapping[str, TextName | Sources] = option(
        "text of each language pair SRC-TGT, as for --data; null for the gettext catalogues of "
        "this machine. Several sources (kinds of text) of a pair are a mapping from their names to "
        "text, or to lists of text",
        only_in_files=True,
    )
    work: str = option(
        "folder for corpus/SRC-TGT, subwords and data-bin", "work", WORK_FOLDER, metavar="FOLDER"
    )
    cleaning: Cleaning = DEFAULT_CLEANING
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int | None = option(
        "pairs held out for validation; 0: none, for training with --disable-validation (default: "
        "1000, but at most 5 %% of the text)",
        None,
        at_least(0),
    )
    test_size: int | None = option(
        "pairs held out for testing; 0: none (default: 2000, but at most 10 %% of the text)",
        None,
        at_least(0),
    )
    seed: int = option("random seed for the choice of held-out pairs", 1, at_least(0))
    workers: int = option("number of processes", 2, at_least(1, MAX_WORKERS))
    shards: int = option(
        "number of parts of the training data, data-bin/0 to N-1, for corpora larger than the "
        "memory",
        1,
        at_least(1, MAX_SHARDS),
    )
    columns: str | None = option(
        "columns of source and target in .tsv and .csv files, by number from 1 or by name "
        "(default: the columns that a header names, or else the first two with text)",
        None,
        metavar="I,J",
    )

    def __post_init__(self):
        check_fields(self)
        if not self.pairs:
            raise InputError("pairs: empty; expected for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(pair)
            _check_texts(pair, text)
        if self.columns is not None:
            parse_columns(self.columns)
            if not any(map(TABLE_NAME.search, _texts(self.pairs))):
                raise InputError(
                    f"columns {self.columns} without a .tsv or .csv file: omit the option"
                )
        named = {"-".join(split_pair(pair)): text for pair, text in self.pairs.items()}
        if len(named) < len(self.pairs):
            raise InputError(f"pairs: {listed(self.pairs)}; expected each pair once")
        object.__setattr__(self, "pairs", named)


def _texts(pairs: Mapping[str, TextName | Sources]) -> Iterator[str]:
    """Yield the names of all texts."""
    for sources in pairs.values():
        if not isinstance(sources, Mapping):
            sources = {"": sources}
        for text in sources.values():
            if isinstance(text, str):
                yield text
            elif text is not None:
                yield from text


def _check_texts(pair: str, texts: TextName | Sources) -> None:
    """Check the text of a language pair and the names of its sources."""
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
                f"pairs: {pair} has a source {shown(name)}; expected a name of at most 64 letters, "
                "digits and _.+-"
            )
        names = [text]
        if isinstance(text, tuple | list) and text:
            names = list(text)
        for text_name in names:
            _check_text(f"{pair} {name}", text_name)


def _check_text(name: str, text: Any) -> None:
    if text is not None and text not in FILE_NAME:
        raise InputError(f"pairs: {name} is {shown(text)}; expected the name of its text, or null")
