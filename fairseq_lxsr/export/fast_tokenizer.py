"""Converts a SentencePiece tokenizer to a Hugging Face tokenizer, for other programs."""

import unicodedata
from collections.abc import Sequence
from typing import Any

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import BLANKS
from fairseq_lxsr.modules import TransformerSentenceEncoder
from fairseq_lxsr.text import MASK, UNK, Tokenizer

# texts on which the two tokenizers are compared, in addition to text of the user
SAMPLE = (
    "The quick brown fox jumps over the lazy dog.",
    "  Où   est la bibliothèque ?  Ça coûte 12,50 €… «\u00a0ici\u00a0» ",
    "Straße, \uff26\uff35\uff2c\uff2c\uff0d\uff37 ﬁne ½ №5 e\u0301te\u0301 — naïve",
    "printf('%s', a_b) ; x == y && ~/.config/file-name.txt http://a.b/c?d=e",
    "Привет, мир! 你好\uff0c世界。 こんにちは 안녕하세요 مرحبا",
    "aaaaaaaa bbbb abababab 1234567890 1,000,000.00",
    "ΔΡΟΜΟΣ Σ ΣΑΣ Λ.Σ. ΔΡΟ\u0301Σ λΣ\u0301λ 中Σ σας it\x92s here e\u0302\u0301 a\u0323\u0302 محم\u0651\u064eد",
    "the <mask> of <pad> and <unk> in <s> </s>",
)
# Python lower-cases to ς after a cased letter and before none, ignoring marks and dots between
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
FINAL_SIGMA = rf"(?<={_CASED}|{_CASED}[.':\u2019\p{{M}}])Σ(?![.':\u2019\p{{M}}]*{_CASED})"
# Vietnamese letters with two marks: the library composes one mark, SentencePiece composes both
TWO_MARKS = [letter for letter in map(chr, range(0x1EA4, 0x1EF2)) if len(unicodedata.normalize("NFD", letter)) == 3]


def require_transformer(encoder: SentenceEncoder, form: str) -> None:
    """Check that another program can run this encoder.

    Raises:
        InputError: for an encoder that is not a transformer with mean pooling, or that splits Chinese.
    """
    kind = encoder.config["architecture"]
    if isinstance(encoder.model, TransformerSentenceEncoder):
        pooling, split_han = encoder.model.config.pooling, encoder.tokenizer.options.split_han
        if pooling == "mean" and not split_han:
            return
        kind = f"pooling {pooling}" if pooling != "mean" else "split_han"
    raise InputError(f"a model of {kind} cannot be written for {form}; use the model folder itself, or `lxsr embed`")


def extended_symbols(tokenizer: Tokenizer, rows: int) -> list[str]:
    """List the symbols of the embedding rows, followed by the pieces without a row, which are read as unknown."""
    symbols = tokenizer.symbols
    if len(symbols) < rows:
        symbols = [*symbols, MASK]  # training adds it to the dictionary
    known = set(symbols)
    return [*symbols, *(piece for piece in tokenizer.all_pieces() if piece not in known)]


def fast_tokenizer(tokenizer: Tokenizer, symbols: Sequence[str]) -> Any:
    """Build a tokenizer of the library tokenizers with SentencePiece's normalization and algorithm, and our ids.

    Args:
        tokenizer: the tokenizer to convert.
        symbols: see `extended_symbols`.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as FastTokenizer

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(tokenizer.serialized_model())
    steps = [normalizers.Replace(Regex(BLANKS), " "), normalizers.Strip()]
    if tokenizer.options.lowercase:
        steps += [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if proto.normalizer_spec.precompiled_charsmap:
        written = [letter for letter in TWO_MARKS if letter.islower() or not tokenizer.options.lowercase]
        steps += [normalizers.Replace(unicodedata.normalize("NFD", letter), letter) for letter in written]
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    fast = FastTokenizer(_algorithm(proto, symbols))
    fast.normalizer = normalizers.Sequence(steps)
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return fast


def _algorithm(proto: Any, symbols: Sequence[str]) -> Any:
    """Build BPE or unigram over our symbols; symbols that SentencePiece never gives score too low to be chosen."""
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    of_bytes = {piece.piece for piece in proto.pieces if piece.type == piece.BYTE}
    fallback = bool(proto.trainer_spec.byte_fallback)
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        never = min(scores.values()) - 1e4
        # no text can equal a symbol with a blank before it
        names = (symbol if symbol in scores or symbol in of_bytes else f" {symbol}" for symbol in symbols)
        vocabulary = [(name, scores.get(name, never)) for name in names]
        return models.Unigram(vocabulary, unk_id=list(symbols).index(UNK), byte_fallback=fallback)
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
        raise InputError("this SentencePiece model is neither BPE nor unigram; expected one of them")
    merges = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, min(scores[left], scores[right]), left, right))
    ids = {symbol: index for index, symbol in enumerate(symbols)}
    ordered = [(left, right) for *_, left, right in sorted(merges)]
    return models.BPE(ids, ordered, unk_token=UNK, fuse_unk=True, byte_fallback=fallback)
