"""The SentencePiece model file, as the library protobuf reads it."""

import io

import pytest
import sentencepiece
import toy

from fairseq_lxsr.text.sentencepiece_model import BPE, Piece, read_sentencepiece, with_pieces

KINDS = [
    {"model_type": "bpe", "vocab_size": 80},
    {"model_type": "unigram", "vocab_size": 80, "user_defined_symbols": ["<x>"]},
    {"model_type": "unigram", "vocab_size": 340, "byte_fallback": True},
    {
        "model_type": "bpe",
        "vocab_size": 80,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
    },
    {"model_type": "word", "vocab_size": 20},
]


def trained(**how) -> bytes:
    model, lines = io.BytesIO(), iter([side for pair in toy.sentences(200) for side in pair])
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=lines, model_writer=model, minloglevel=2, **how
    )
    return model.getvalue()


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_the_same_fields(how):
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    model = trained(**how)
    proto.ParseFromString(model)
    found, trainer, normalizer = (
        read_sentencepiece(model),
        proto.trainer_spec,
        proto.normalizer_spec,
    )
    assert [(piece.text, piece.score, piece.type) for piece in found.pieces] == [
        (piece.piece, piece.score, piece.type) for piece in proto.pieces
    ]
    assert (found.kind, found.byte_fallback) == (trainer.model_type, trainer.byte_fallback)
    assert found.charsmap == normalizer.precompiled_charsmap
    blanks = (
        normalizer.add_dummy_prefix,
        normalizer.remove_extra_whitespaces,
        normalizer.escape_whitespaces,
    )
    assert found.plain == (all(blanks) and not trainer.treat_whitespace_as_suffix)


def test_pieces_are_appended():
    old, new = trained(**KINDS[0]), [Piece("ж", -1e3, 1), Piece("▁" + 100 * "že", -1e3 - 1, 4)]
    longer = with_pieces(old, new)
    assert longer.startswith(old)
    assert read_sentencepiece(longer).pieces == read_sentencepiece(old).pieces + new
    assert read_sentencepiece(longer).kind == BPE
    processor = sentencepiece.SentencePieceProcessor(model_proto=longer)
    assert [processor.IdToPiece(80), processor.GetScore(81)] == ["ж", -1001.0]
    assert processor.EncodeAsIds("žж")[-1] == 80
