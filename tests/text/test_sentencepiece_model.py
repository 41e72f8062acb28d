"""SentencePiece model files are read as by the library protobuf, and extended."""

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


def trained(**options) -> bytes:
    lines = []
    for english, french in toy.sentences(200):
        lines += [english, french]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_fields_of_a_model_are_those_that_protobuf_reads(options):
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    content = trained(**options)
    proto.ParseFromString(content)
    model = read_sentencepiece(content)
    for piece, expected in zip(model.pieces, proto.pieces, strict=True):
        assert piece.text == expected.piece
        assert piece.score == expected.score
        assert piece.type == expected.type
    trainer = proto.trainer_spec
    normalizer = proto.normalizer_spec
    assert model.kind == trainer.model_type
    assert model.byte_fallback == trainer.byte_fallback
    assert model.charsmap == normalizer.precompiled_charsmap
    assert model.plain == (
        normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
        and not trainer.treat_whitespace_as_suffix
    )


def test_pieces_are_appended_to_a_model():
    content = trained(**KINDS[0])
    new_pieces = [Piece("ж", -1e3, 1), Piece("▁" + 100 * "že", -1e3 - 1, 4)]
    extended = with_pieces(content, new_pieces)
    assert extended.startswith(content)
    old_pieces = read_sentencepiece(content).pieces
    assert read_sentencepiece(extended).pieces == old_pieces + new_pieces
    assert read_sentencepiece(extended).kind == BPE
    processor = sentencepiece.SentencePieceProcessor(model_proto=extended)
    assert processor.IdToPiece(80) == "ж"
    assert processor.GetScore(81) == -1001.0
    assert processor.EncodeAsIds("žж")[-1] == 80
