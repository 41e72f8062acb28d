"""`lxsr prepare CONFIG.yaml`: every option of every stage in one file, checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.languages import split_pair
from fairseq_lxsr.preparation.clean import MESSAGE_FILTERS, check_filters
from fairseq_lxsr.ranges import FILE_NAME, at_least, between, check_fields, limited

REPEATS = ("pair", "side", "keep")
MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
MOST_SHARDS = 512  # each is an open file while text becomes numbers
MOST_WORKERS = 1024


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
        """The same with everything decided."""
        chosen = self.filters if self.filters is not None else (MESSAGE_FILTERS if is_messages else {})
        filters = {name: dict(options or {}) for name, options in chosen.items()}
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

    vocab_size: int = limited(16_000, at_least(1, 10_000_000))
    lowercase: bool = True
    character_coverage: float = limited(1.0, between(0.98, 1))  # what SentencePiece takes
    max_sentences: int = limited(1_000_000, at_least(1))
    model_type: str = limited("bpe", MODEL_TYPES)
    byte_fallback: bool = False
    normalisation: str = limited("nmt_nfkc", NORMALISATIONS)
    split_han: bool = False

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class PrepareConfig:
    """The whole preparation.

    Args:
        pairs: language pairs as SRC-TGT, each with its text as `formats.find_source` takes it, or null for the gettext
            catalogues of this machine.
        work: folder that gets corpus/SRC-TGT, subwords and data-bin.
        cleaning: see `Cleaning`.
        subwords: see `SubwordOptions`.
        valid_size: pairs held out for validation and testing.
        test_size: pairs held out for validation and testing.
        seed: of the draw of held-out pairs.
        workers: processes.
        shards: parts of the training data, see `binarise.binarise`.
    """

    pairs: Mapping[str, str | None]
    work: str = limited("work", FILE_NAME)
    cleaning: Cleaning = DEFAULT_CLEANING
    subwords: SubwordOptions = field(default_factory=SubwordOptions)
    valid_size: int = limited(1000, at_least(1))
    test_size: int = limited(2000, at_least(1))
    seed: int = limited(1, at_least(0))
    workers: int = limited(2, at_least(1, MOST_WORKERS))
    shards: int = limited(1, at_least(1, MOST_SHARDS))

    def __post_init__(self):
        check_fields(self)
        if not self.pairs:
            raise InputError("pairs: none; expected for example {en-fr: PREFIX}")
        for pair, text in self.pairs.items():
            split_pair(pair)
            if text is not None and text not in FILE_NAME:
                raise InputError(f"pairs: {pair} is {shown(text)}; expected the name of its text, or null")
