"""`lxsr prepare CONFIG.yaml`: every option of every stage in one file, checked before anything runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.options import FILE_NAME, at_least, between, check_fields, limited
from fairseq_lxsr.preparation.clean import MESSAGE_FILTERS, check_filters
from fairseq_lxsr.text.languages import split_pair

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
TextName = str | None  # None: the gettext catalogues of this machine
Sources = Mapping[str, TextName | tuple[str, ...]]
SOURCE_NAME = re.compile(r"\w[\w.+-]{0,63}")
MOST_SHARDS = 512  # each shard is an open file in the binarise stage
MOST_WORKERS = 1024


@dataclass(frozen=True)
class Cleaning:
    """Options of cleaning, which precedes the split of a corpus.

    Args:
        filters: options by filter, see `clean.FILTERS`. None depends on the text: program messages are filtered, other
            text is not.
        repeats: what counts as a duplicate (compared without case, punctuation as blanks, each digit as 0): a `pair`, a
            `side`, or nothing (`keep`). None depends on the text: `side` for program messages, `pair` for other text.
        exclude: text files, usually of evaluation sets; a pair with one of their lines on either side is dropped.
        keep_dropped: write dropped pairs, with the reason, to `dropped.tsv.gz`.
    """

    filters: Mapping[str, Mapping[str, Any] | None] | None = None
    repeats: str | None = limited(None, REPEATS)
    exclude: tuple[str, ...] = ()
    keep_dropped: bool = False

    def __post_init__(self):
        check_fields(self)
        check_filters(self.filters or {})
        for path in self.exclude:
            FILE_NAME.check("exclude", path)

    def suited(self, is_messages: bool) -> "Cleaning":
        """Return a copy in which values of None are replaced by those that suit the text."""
        chosen = self.filters if self.filters is not None else (MESSAGE_FILTERS if is_messages else {})
        filters = {name: dict(options or {}) for name, options in chosen.items()}
        return replace(self, filters=filters, repeats=self.repeats or ("side" if is_messages else "pair"))


DEFAULT_CLEANING = Cleaning()


@dataclass(frozen=True)
class SubwordOptions:
    """Options of splitting text into pieces.

    Args:
        vocab_size: entries of the dictionary, including fairseq's four special symbols and <mask>.
        lowercase: lower-case all text, here and in encoding.
        character_coverage: share of characters that have a piece.
        max_sentences: largest number of lines that SentencePiece learns from, on average, because each line is drawn by
            itself; the same number of every language where available.
        model_type: `bpe` or `unigram`.
        byte_fallback: split characters without a piece into bytes instead of <unk>.
        normalisation: normalization rule of SentencePiece, stored in its model.
        split_han: treat every Chinese character as a word.
    """

    vocab_size: int = limited(16_000, at_least(1, 10_000_000))
    lowercase: bool = True
    character_coverage: float = limited(1.0, between(0.98, 1))  # range that SentencePiece accepts
    max_sentences: int = limited(1_000_000, at_least(1))
    model_type: str = limited("bpe", MODEL_TYPES)
    byte_fallback: bool = False
    normalisation: str = limited("nmt_nfkc", NORMALISATIONS)
    split_han: bool = False

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class PrepareConfig:
    """Options of the whole preparation.

    Args:
        pairs: text of each language pair SRC-TGT, as in `formats.find_source`; null for the gettext catalogues of this
            machine. Several sources (kinds of text) of a pair are a mapping of their names to text, or to lists of it.
        work: folder for corpus/SRC-TGT, subwords and data-bin.
        cleaning: see `Cleaning`.
        subwords: see `SubwordOptions`.
        valid_size: number of pairs held out for validation.
        test_size: number of pairs held out for testing; 0: none, and the data folder has no test split.
        seed: seed of the draw of held-out pairs.
        workers: number of processes.
        shards: number of parts of the training data, see `binarise.binarise`.
    """

    pairs: Mapping[str, TextName | Sources]
    work: str = limited("work", FILE_NAME)
    cleaning: Cleaning = DEFAULT_CLEANING
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int = limited(1000, at_least(1))
    test_size: int = limited(2000, at_least(0))
    seed: int = limited(1, at_least(0))
    workers: int = limited(2, at_least(1, MOST_WORKERS))
    shards: int = limited(1, at_least(1, MOST_SHARDS))

    def __post_init__(self):
        check_fields(self)
        if not self.pairs:
            raise InputError("pairs: none; expected for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(pair)
            _check_texts(pair, text)


def _check_texts(pair: str, texts: TextName | Sources) -> None:
    """Check the text of a language pair, and the names of its sources."""
    if not isinstance(texts, Mapping):
        _check_text(pair, texts)
        return
    if not texts:
        raise InputError(f"pairs: {pair} has no source; expected for example {{law: PREFIX, speech: PREFIX}}")
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
